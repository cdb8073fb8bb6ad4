# SPDX-License-Identifier: Apache-2.0
"""Draw the README's picture: python -m experiments.studies.readme_picture --workdir=runs/de

One attention head for a sentence and its twin: of the encoder in the row of "it", or of the
cross-attention in the row that predicts the pronoun. The head is the one with the highest
coreference score over the test split among those that read different words in the two sentences.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from absl import flags

from experiments.corpora import registry
from experiments.flags import run
from experiments.studies import resolution, twins
from experiments.workdir_flag import WORKDIR
from transformer.arrays import Float
from transformer.config import Config
from transformer.errors import InputError
from transformer.inspection import figures, trace
from transformer.inspection.figures import parts, style
from transformer.translator import Translator

OUTPUT = flags.DEFINE_string("output", "docs/pronoun.png", "Path of the picture.")

SENTENCE = "The animal didn't cross the street because it was too {}."
PRONOUNS = ("es", "sie", "er", "il", "elle")
TWINS_MEASURED = 200


@dataclasses.dataclass(frozen=True)
class Head:
    """An attention head and its coreference score; layer and index count from 0."""

    kind: Literal["encoder", "cross"]
    layer: int
    index: int
    score: float

    def __str__(self) -> str:
        stack = "encoder" if self.kind == "encoder" else "decoder's cross-attention"
        return f"head {self.index + 1} in layer {self.layer + 1} of the {stack}"


def main(config: Config) -> None:
    """Choose the head, draw the picture, and print its path."""
    translator = Translator.from_workdir(WORKDIR.value, config)
    examples = registry.load(config.data, "test").examples
    sentences = twins.read(translator.tokenizer, examples, TWINS_MEASURED)
    measured = resolution.coreference(translator.params, translator.config.model, sentences)
    pairs = [analyze(translator, SENTENCE.format(adjective)) for adjective in ("tired", "wide")]
    head = choose({kind: measured[kind].score for kind in ("encoder", "cross")}, pairs)
    print(figures.save(draw(pairs, head), OUTPUT.value))


@dataclasses.dataclass(frozen=True)
class AnalyzedSentence:
    """A sentence, its translation, and the weights of every head in the row of the pronoun."""

    translation: str
    pronoun: str
    words: list[str]
    """The source tokens, without word boundary marks."""
    weights: Mapping[str, Float[np.ndarray, "L N S"]]
    """By kind of attention."""

    def strongest(self, head: Head) -> str:
        """The source token that a head reads most."""
        return self.words[int(self.weights[head.kind][head.layer, head.index].argmax())]


def analyze(translator: Translator, source: str) -> AnalyzedSentence:
    """Translate a sentence and capture where every head reads at its pronoun."""
    tokenizer = translator.tokenizer
    translation = translator([source])[0].text
    source_ids, target_ids = tokenizer.encode([source, translation])
    target_in = [tokenizer.special_ids.bos, *target_ids[:-1]]
    _, captured = trace.run(
        translator.params, translator.config.model, source_ids, target_in, capture="weights"
    )
    sides = [tokenizer.pieces(ids) for ids in (source_ids, target_ids)]
    source_words, target_words = ([piece.replace("▁", "") for piece in side] for side in sides)
    [row] = [index for index, word in enumerate(target_words) if word in PRONOUNS]
    rows = {"encoder": source_words.index("it"), "cross": row}
    weights = {
        kind: np.asarray(captured.attention(kind).weights)[:, :, row]  # [L, N, S]
        for kind, row in rows.items()
    }
    return AnalyzedSentence(translation, target_words[row], source_words, weights)


def choose(
    scores: Mapping[str, Float[np.ndarray, "L N"]], pair: Sequence[AnalyzedSentence]
) -> Head:
    """The head with the highest score that reads different words in the two sentences.

    Raises:
      InputError: when every head reads the same word in both.
    """
    heads = [
        Head(kind, layer, index, float(score))
        for kind, of_kind in scores.items()
        for (layer, index), score in np.ndenumerate(of_kind)
    ]
    first, second = pair
    telling = [head for head in heads if first.strongest(head) != second.strongest(head)]
    if not telling:
        raise InputError(
            "no head reads different words in the two sentences, so that there is nothing to show; "
            "train with another --config.training.seed"
        )
    return max(telling, key=lambda head: head.score)


@style.styled
def draw(pair: Sequence[AnalyzedSentence], head: Head) -> figures.DescribedFigure:
    """Both sentences as rows of tokens, colored by weight, with their translations."""
    panels = [
        parts.Panel(
            values=sentence.weights[head.kind][head.layer, head.index][None],
            cell=(0.62, 0.42),
            heading=f"{sentence.translation}   ({sentence.pronoun})",
            columns=sentence.words,
            color_bar="weight",
        )
        for sentence in pair
    ]
    row = {"encoder": 'reading "it"', "cross": "while the decoder predicts the pronoun"}[head.kind]
    figure, images = parts.draw_panels(
        [[panel] for panel in panels],
        title=f"{str(head).capitalize()}, {row}",
        note="Softmax weights over the source; each row sums to 1. The head has the highest "
        "coreference score of those that read different words in these two sentences: over twins "
        f"of the test split it gives the antecedent {head.score:.2f} more weight than the other "
        "noun on average. A weight says where a head reads, not why the model answers.",
        gap=0.35,
    )
    for image in images:
        parts.write_numbers(image)
    strongest = [sentence.strongest(head) for sentence in pair]
    figure.description = (
        f"{str(head).capitalize()} reads {strongest[0]!r} most when the animal was too tired, and "
        f"{strongest[1]!r} when the street was too wide."
    )
    return figure


if __name__ == "__main__":
    run(main, config_from="workdir")
