# SPDX-License-Identifier: Apache-2.0
"""Compare a model's trained word vectors with skip-gram vectors of the same text.

python -m experiments.studies.embeddings --workdir=runs/de --output=embeddings

For each side of the corpus that the model reads or writes: nearest neighbors, analogies, and a
picture in two dimensions (principal components), of the model's embedding table and of a skip-gram
model with negative sampling (Mikolov et al. 2013) trained on the training split. A word's vector is
the mean of its tokens' rows. On `pronouns` the analogies are singular to plural and masculine to
feminine forms, and nearest neighbors are scored by the gender and the kind of the noun.

Writes embeddings.json and a figure for each side to --output, where skip-gram vectors are kept and
not trained again. The last line printed is the JSON.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from experiments.cli import command_line
from experiments.cli.weights import Weights
from experiments.data import registry
from experiments.data.grammars.pronouns import words as words_of
from experiments.studies.cache import cached, digest_of
from experiments.studies.embeddings import knowledge, picture, skip_gram, word_vectors
from experiments.studies.embeddings.knowledge import Knowledge
from experiments.studies.embeddings.word_vectors import Side, WordVectors
from transformer import paths
from transformer.checkpoints import workdir_files
from transformer.errors import InputError
from transformer.inspection import figures

NEIGHBORS = 5
"""Listed neighbors of each word."""


@dataclasses.dataclass(frozen=True)
class Options(Weights):
    """The model, and what is compared."""

    output: str | None = None
    """Directory of the results; created if missing."""
    words: tuple[str, ...] | None = None
    """Words whose neighbors are listed."""


def run(options: Options) -> dict[Side, dict[str, Any]]:
    """Study every side, and write figures and JSON; returns the numbers."""
    config = options.config
    if not options.output:
        raise InputError("missing --output=DIRECTORY")
    output = paths.reachable(options.output)
    output.mkdir(parents=True, exist_ok=True)
    translator, train = options.translator(), registry.load(config.data, "train")
    texts = {"source": train.sources} if config.model.reads_source else {}
    texts["target"] = train.targets
    languages = knowledge.languages_of(config)
    results = {}
    for side, lines in texts.items():
        trained = _skip_gram([*map(words_of, lines)], output / f"skip_gram_{side}.json")
        model = word_vectors.model_vectors(translator, side, trained.words)
        spaces = {config.model.family: model, "skip-gram": trained}
        known = Knowledge()
        if languages:
            others = {*languages.values()} - {languages[side]}
            known = knowledge.knowledge(languages[side], *others)
        figures.save(picture.draw(spaces, known, side), output / f"{side}.png")
        examples = options.words or known.examples or trained.words[:8]
        near = {
            word: {
                name: word_vectors.nearest(space, word, NEIGHBORS) for name, space in spaces.items()
            }
            for word in examples
            if word in trained.words
        }
        scores = score(spaces, known)
        results[side] = {"words": len(trained.words), "scores": scores, "neighbors": near}
    workdir_files.write_json(output / "embeddings.json", results)
    return results


def main(options: Options) -> None:
    """Print the numbers."""
    print(json.dumps(run(options)))


def score(spaces: Mapping[str, WordVectors], known: Knowledge) -> list[dict[str, Any]]:
    """Accuracy of analogies, and the share of nearest nouns with the same label, by space."""
    rows, vectors = [], spaces.values()
    for name, pairs in known.pairs.items():
        questions = [*knowledge.questions_of(pairs)]
        shares, counts = zip(
            *(word_vectors.analogy_accuracy(space, questions) for space in vectors), strict=True
        )
        chance = 1 / (len(next(iter(vectors)).words) - 3)
        rows.append((f"analogies of {name}, {counts[0]}", shares, chance))
    for name, labels in known.labels.items():
        shares, chances = zip(
            *(word_vectors.neighbor_agreement(space, labels) for space in vectors), strict=True
        )
        rows.append((f"nearest noun has the same {name}", shares, chances[0]))
    return [
        {"measure": measure, **dict(zip(spaces, shares, strict=True)), "chance": chance}
        for measure, shares, chance in rows
    ]


def _skip_gram(sentences: Sequence[Sequence[str]], file: epath.Path) -> WordVectors:
    """Skip-gram vectors of these sentences, trained once."""
    settings = skip_gram.Settings()

    def compute() -> dict[str, Any]:
        trained = skip_gram.train(sentences, settings)
        return {"words": trained.words, "vectors": trained.vectors.tolist()}

    found = cached(file, digest_of(settings, sentences), compute)
    return WordVectors(tuple(found["words"]), np.array(found["vectors"], np.float32))


if __name__ == "__main__":
    command_line.run(main, "workdir", Options)
