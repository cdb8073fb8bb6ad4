# SPDX-License-Identifier: Apache-2.0
"""Draw the README's picture: python -m experiments.studies.readme_picture --workdir=runs/de

Cross-attention of one head while the decoder predicts the pronoun, for a sentence and its twin. The
head is the one with the highest coreference score over the test split; the picture gives both.
"""

import numpy as np
from absl import flags

from experiments.corpora import registry
from experiments.flags import run
from experiments.studies import resolution, twins
from experiments.workdir_flag import WORKDIR
from transformer.config import Config
from transformer.inspection import figures, trace
from transformer.inspection.figures import parts, style
from transformer.translator import Translator

OUTPUT = flags.DEFINE_string("output", "docs/pronoun.png", "Path of the picture.")

SENTENCE = "The animal didn't cross the street because it was too {}."
PRONOUNS = ("es", "sie", "er", "il", "elle")
TWINS_MEASURED = 200


def main(config: Config) -> None:
    """Choose the head, draw the picture, and print its path."""
    translator = Translator.from_workdir(WORKDIR.value, config)
    examples = registry.load(config.data, "test").examples
    sentences = twins.read(translator.tokenizer, examples, TWINS_MEASURED)
    read = resolution.coreference(translator.params, translator.config.model, sentences)
    scores = read["cross"].score
    layer, head = (int(index) for index in np.unravel_index(scores.argmax(), scores.shape))
    figure = draw(translator, layer, head, float(scores.max()))
    print(figures.save(figure, OUTPUT.value))


@style.styled
def draw(translator: Translator, layer: int, head: int, score: float) -> figures.DescribedFigure:
    """Both sentences as rows of tokens, colored by weight, with their translations."""
    panels = [
        _panel(translator, SENTENCE.format(adjective), layer, head)
        for adjective in ("tired", "wide")
    ]
    figure, images = parts.draw_panels(
        [[panel] for panel in panels],
        title=f"Cross-attention of head {head + 1} in layer {layer + 1} while the decoder predicts "
        "the pronoun",
        note="Softmax weights over the source; each row sums to 1. Chosen among all heads by the "
        f"test split, where it gives the antecedent {score:.2f} more weight than the other noun on "
        "average. A weight says where a head reads, not why the model answers.",
        gap=0.35,
    )
    for image in images:
        parts.write_numbers(image)
    strongest = [panel.columns[int(panel.values.argmax())] for panel in panels]
    figure.description = (
        f"Head {head + 1} of layer {layer + 1} reads {strongest[0]!r} most when the animal was too "
        f"tired, and {strongest[1]!r} when the street was too wide."
    )
    return figure


def _panel(translator: Translator, source: str, layer: int, head: int) -> parts.Panel:
    """The weights of one head in the row that predicts the pronoun."""
    tokenizer, config = translator.tokenizer, translator.config.model
    translation = translator([source])[0].text
    source_ids, target_ids = tokenizer.encode([source, translation])
    target_in = [tokenizer.special_ids.bos, *target_ids[:-1]]
    _, seen = trace.run(translator.params, config, source_ids, target_in, capture="weights")
    words = [piece.replace("▁", "") for piece in tokenizer.pieces(target_ids)]
    [row] = [index for index, word in enumerate(words) if word in PRONOUNS]
    return parts.Panel(
        values=np.asarray(seen.attention("cross").weights)[layer, head, row][None],
        cell=(0.62, 0.42),
        heading=f"{translation}   (predicting: {words[row]})",
        columns=[piece.replace("▁", "") for piece in tokenizer.pieces(source_ids)],
        color_bar="weight",
    )


if __name__ == "__main__":
    run(main, config_from="workdir")
