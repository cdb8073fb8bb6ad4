# SPDX-License-Identifier: Apache-2.0
"""Draw the README's picture.

python -m experiments.studies.readme_picture --workdir=docs/pronouns_de.zip

A sentence and its twin, which need different pronouns: where the encoder reads at "it" in both, and
which encoder positions carry the answer. The head is the one whose row of "it" differs most between
the two sentences, so a head that reads the same in both is never chosen.
"""

import dataclasses

import numpy as np

from experiments.cli import command_line
from experiments.cli.weights import Weights
from transformer import inspection
from transformer.arrays import Float
from transformer.errors import InputError
from transformer.inspection import figures, patching, readout
from transformer.inspection.figures import parts, style
from transformer.inspection.words import display_tokens
from transformer.translator import Translator

SENTENCE = "The animal didn't cross the street because it was too {}."
ADJECTIVES = ("tired", "wide")
PRONOUNS = ("es", "sie", "er", "il", "elle")
CELL = (0.53, 0.34)


@dataclasses.dataclass(frozen=True)
class Options(Weights):
    """The model, and the picture."""

    output: str = "docs/pronoun.png"
    """Path of the picture."""


def run(options: Options) -> str:
    """Draw the picture; returns its path."""
    return str(figures.save(draw(analyze(options.translator())), options.output, dpi=140))


def main(options: Options) -> None:
    """Print the path of the picture."""
    print(run(options))


@dataclasses.dataclass(frozen=True)
class Twin:
    """One of the two sentences, its translation, and where the encoder reads at "it"."""

    source: list[int]
    target: list[int]
    text: str
    position: int
    """Index of the pronoun in the target."""
    pronoun: str
    weights: Float[np.ndarray, "L N S"]
    """Weights of every encoder head at "it"."""


@dataclasses.dataclass(frozen=True)
class TwinAnalysis:
    """The contents of the picture."""

    texts: tuple[str, str]
    """Translations."""
    pronouns: tuple[str, str]
    words: tuple[list[str], list[str]]
    """Tokens of both source sentences."""
    layer: int
    """Layer of the chosen head, from 0."""
    head: int
    rows: Float[np.ndarray, "2 S"]
    """Attention weights of the chosen head at "it" in both sentences."""
    effect: Float[np.ndarray, "L+1 S"]
    """Share of the first answer that each site of the encoder restores in the second sentence."""


def analyze(translator: Translator) -> TwinAnalysis:
    """Translate both sentences, choose the head, and patch every site of the encoder."""
    tired, wide = (_twin(translator, SENTENCE.format(adjective)) for adjective in ADJECTIVES)
    if tired.pronoun == wide.pronoun:
        raise InputError(
            f"the model translates both sentences with {tired.pronoun!r}, so that there is no "
            "answer to explain; train longer, or on pronouns.py:de or :fr"
        )
    layer, head = choose(tired.weights, wide.weights)
    answer, other = tired.target[tired.position], wide.target[wide.position]
    metric = readout.LogitDifference(tired.position, answer, other)
    target_in = [translator.tokenizer.special_ids.bos, *tired.target[: tired.position]]
    patched = patching.patch_sites(
        translator.model, translator.params, tired.source, wide.source, target_in, metric
    )
    pieces = translator.tokenizer.pieces
    return TwinAnalysis(
        texts=(tired.text, wide.text),
        pronouns=(tired.pronoun, wide.pronoun),
        words=(display_tokens(pieces(tired.source)), display_tokens(pieces(wide.source))),
        layer=layer,
        head=head,
        rows=np.stack([twin.weights[layer, head] for twin in (tired, wide)]),
        effect=np.asarray(patched.effect),
    )


def _twin(translator: Translator, source: str) -> Twin:
    tokenizer, text = translator.tokenizer, translator(source).text
    source_ids, target_ids = tokenizer.encode([source, text])
    target_in = [tokenizer.special_ids.bos, *target_ids[:-1]]
    _, captured = inspection.run(
        translator.model, translator.params, source_ids, target_in, capture="weights"
    )
    words, targets = (display_tokens(tokenizer.pieces(ids)) for ids in (source_ids, target_ids))
    positions = [index for index, word in enumerate(targets) if word in PRONOUNS]
    if len(positions) != 1:
        raise InputError(f"the translation {text!r} has {len(positions)} pronouns, but needs one")
    [position] = positions
    weights = np.asarray(captured.encoder.self_attention.weights)[:, :, words.index("it")]
    return Twin(source_ids, target_ids, text, position, targets[position], weights)


def choose(
    first: Float[np.ndarray, "L N S"], second: Float[np.ndarray, "L N S"]
) -> tuple[int, int]:
    """Layer and head whose two rows differ most, by total variation distance."""
    distance = np.abs(first - second).sum(-1) / 2  # [L, N]
    if not distance.any():
        raise InputError("every head reads the same in both sentences; check that they differ")
    layer, head = np.unravel_index(distance.argmax(), distance.shape)
    return int(layer), int(head)


@style.styled
def draw(shown: TwinAnalysis) -> figures.DescribedFigure:
    """The row of "it" in both sentences, and below them the patch map."""
    answer, other = shown.pronouns
    head = f"head {shown.head + 1} in layer {shown.layer + 1} of the encoder"
    sites = ["input", *(f"after layer {layer}" for layer in range(1, len(shown.effect)))]
    both = [a if a == b else f"{b} ← {a}" for a, b in zip(*shown.words, strict=True)]
    panels = [
        parts.Panel(
            values=row[None],
            cell=CELL,
            name=f"it in {name}",
            heading=text,
            rows=["it reads"],
            columns=words,
            legend="attention weight" if name == ADJECTIVES[1] else None,
        )
        for name, row, text, words in zip(
            ADJECTIVES, shown.rows, shown.texts, shown.words, strict=True
        )
    ]
    panels.append(
        parts.Panel(
            values=shown.effect,
            cell=CELL,
            name="patch map",
            heading=f"Copied from the first sentence into the second, this vector turns {other!r} "
            f"into {answer!r}:",
            rows=sites,
            columns=both,
            legend="share of the answer",
            **parts.signed(max(1.0, parts.largest(shown.effect))),
        )
    )
    figure, images = parts.draw_panels(
        [[panel] for panel in panels],
        title=f'"it" becomes {answer!r} or {other!r}: where the encoder reads, and what carries '
        "the answer",
        note=f'Above: {head}, whose row of "it" differs most between the two sentences. Below: '
        f"activation patching; 1 is {answer!r} and 0 is {other!r}, by the difference of their "
        "logits. A weight says where a head reads, not why the model answers; one pair of "
        "sentences is an example.",
        gap=0.2,
    )
    for image in images:
        parts.write_numbers(image)
    read = [
        f"{words[row.argmax()]!r} most ({row.max():.2f}) when {pronoun!r} is right"
        for words, row, pronoun in zip(shown.words, shown.rows, shown.pronouns, strict=True)
    ]
    carried = [
        f"{site} {both[row.argmax()]!r} ({row.max():.2f})"
        for site, row in zip(sites, shown.effect, strict=True)
    ]
    figure.description = (
        f'At "it", {head} reads {read[0]}, and {read[1]}. The position that carries most of the '
        f"answer: {', '.join(carried)}."
    )
    return figure


if __name__ == "__main__":
    command_line.run(main, "workdir", Options)
