# SPDX-License-Identifier: Apache-2.0
"""Compare a model's trained word vectors with skip-gram vectors of the same text.

python -m experiments.studies.embeddings --workdir=runs/de --output=embeddings

For each side of the corpus that the model reads or writes: nearest neighbors, analogies, and a
picture in two dimensions (principal components), of the model's embedding table and of a skip-gram
model with negative sampling (Mikolov et al. 2013) trained on the training split. A word's vector is
the mean of its tokens' rows. On `pronouns` the analogies are singular to plural and masculine to
feminine forms, and nearest neighbors are scored by the gender and the kind of the noun; elsewhere
--analogies names a file in the format of word2vec ("a b c d" a line; ": name" begins a section).

Writes embeddings.md, embeddings.json and a figure a side. Skip-gram vectors are kept in --output
and not trained again. The last line printed is the JSON.
"""

import dataclasses
import hashlib
import json
from collections.abc import Sequence

import numpy as np
from etils import epath

from experiments.cli.command_line import run
from experiments.cli.weights import Weights
from experiments.data import registry
from experiments.data.grammars.pronouns import words as words_of
from experiments.studies import skip_gram
from experiments.studies.skip_gram import WordVectors
from experiments.studies.word_vectors import (
    Knowledge,
    Side,
    analogy_accuracy,
    draw,
    knowledge,
    language_of,
    model_vectors,
    nearest,
    neighbor_agreement,
    questions_of,
    read_analogies,
)
from transformer import paths
from transformer.checkpoints import workdir_files
from transformer.errors import InputError
from transformer.inspection import figures
from transformer.translator import Translator


@dataclasses.dataclass(frozen=True)
class Options(Weights):
    """The model, and what is compared."""

    output: str | None = None
    """Folder of the results; created if missing."""
    words: tuple[str, ...] | None = None
    """Words whose neighbors are listed."""
    analogies: str | None = None
    """File of analogies, instead of the corpus's."""
    neighbors: int = 5
    """Neighbors of each word."""


def main(options: Options) -> None:
    """Study every side, and write tables, figures and JSON."""
    config = options.config
    if not options.output:
        raise InputError("missing --output=DIR")
    output = paths.reachable(options.output)
    output.mkdir(parents=True, exist_ok=True)
    translator = options.translator()
    sides: tuple[Side, ...] = ("source", "target") if config.model.reads_source else ("target",)
    train = registry.load(config.data, "train")
    results, pages = {}, []
    for side in sides:
        texts = train.sources if side == "source" else train.targets
        result, page = study(translator, side, texts, output, options)
        results[side] = result
        pages.append(page)
    heading = f"# Word vectors of {options.directory}\n\n"
    workdir_files.write_text(output / "embeddings.md", heading + "\n".join(pages))
    workdir_files.write_json(output / "embeddings.json", results)
    print(json.dumps(results))


def study(
    translator: Translator,
    side: Side,
    texts: Sequence[str],
    output: epath.Path,
    options: Options,
) -> tuple[dict, str]:
    """Compare both spaces on one side; returns the numbers and the page."""
    sentences = [words_of(text) for text in texts]
    trained = _skip_gram(sentences, output / f"skip_gram_{side}.npz")
    spaces = {
        translator.config.model.family: model_vectors(translator, side, trained.words),
        "skip-gram": trained,
    }
    language = language_of(translator.config, side)
    other = language_of(translator.config, "target" if side == "source" else "source")
    known = knowledge(language, None if other == language else other) if language else Knowledge()
    questions = {name: [*questions_of(pairs)] for name, pairs in known.pairs.items()}
    if options.analogies:
        questions = read_analogies(options.analogies)
    result, rows = {"words": len(trained.words)}, []
    for name, asked in questions.items():
        shares = [analogy_accuracy(space, asked) for space in spaces.values()]
        result[f"{name}_analogies"] = dict(zip(spaces, (s for s, _ in shares), strict=True))
        number = shares[0][1]
        cells = " | ".join(_percent(share) for share, _ in shares)
        chance = f"{1 / (len(trained.words) - 3):.1%}"
        rows.append(f"| analogies of {name}, {number} | {cells} | {chance} |")
    for name, labels in known.labels.items():
        shares = [neighbor_agreement(space, labels) for space in spaces.values()]
        result[f"{name}_of_nearest_noun"] = dict(zip(spaces, (s for s, _ in shares), strict=True))
        cells = " | ".join(_percent(share) for share, _ in shares)
        rows.append(f"| nearest noun has the same {name} | {cells} | {_percent(shares[0][1])} |")
    page = [f"## {side.capitalize()}, {len(trained.words)} words\n"]
    if rows:
        page += [f"| | {' | '.join(spaces)} | chance |", "|---|---|---|---|", *rows, ""]
    examples = options.words or known.examples or trained.words[:8]
    page += [f"| word | {' | '.join(spaces)} |", "|---|---|---|"]
    result["neighbors"] = {}
    for word in examples:
        if word not in trained.words:
            continue
        near = {name: nearest(space, word, options.neighbors) for name, space in spaces.items()}
        result["neighbors"][word] = near
        cells = (", ".join(f"{w} {c:.2f}" for w, c in each) for each in near.values())
        page.append(f"| {word} | {' | '.join(cells)} |")
    figure = draw(spaces, known, side)
    figures.save(figure, output / f"{side}.png")
    page += ["", f"![{figure.description}]({side}.png)", ""]
    return result, "\n".join(page)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _skip_gram(sentences: Sequence[Sequence[str]], path: epath.Path) -> WordVectors:
    """Skip-gram vectors of these sentences, from the file if they were trained before."""
    settings = skip_gram.Settings()
    digest = hashlib.sha256(repr(settings).encode())
    for sentence in sentences:
        digest.update("\0".join(sentence).encode() + b"\n")
    identity = digest.hexdigest()
    if path.exists():
        with path.open("rb") as file, np.load(file) as saved:
            if str(saved["identity"]) == identity:
                return WordVectors(tuple(map(str, saved["words"])), saved["vectors"])
    trained = skip_gram.train(sentences, settings)
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        np.savez(file, identity=identity, words=np.array(trained.words), vectors=trained.vectors)
    partial.replace(path)
    return trained


if __name__ == "__main__":
    run(main, "workdir", Options)
