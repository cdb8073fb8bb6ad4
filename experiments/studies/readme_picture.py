# SPDX-License-Identifier: Apache-2.0
"""The README's picture: python -m experiments.studies.readme_picture --workdir=runs/de

Draws where one head reads while the decoder predicts the pronoun, for the sentence and its twin.
The head is the one of all encoder-decoder heads that, over the test split, puts most more weight on
the antecedent than on the other noun; the picture names it and its average.
"""

import dataclasses
import functools
import pathlib

import flax.linen as nn
import jax
import matplotlib
import numpy as np
from absl import flags

from experiments.corpora import registry
from experiments.corpora.pronouns import words
from experiments.flags import run
from transformer.arrays import Array, Float, Int, Params
from transformer.config import Config
from transformer.inspection.words import words_of_pieces
from transformer.nn.positions import shift_right
from transformer.translator import Translator

WORKDIR = flags.DEFINE_string("workdir", None, "Directory that train left, of a pronouns config.")
OUTPUT = flags.DEFINE_string("output", "docs/pronoun.png", "Where the picture goes.")

SENTENCE = "The animal didn't cross the street because it was too {}."
SENTENCES_MEASURED = 400


@dataclasses.dataclass(frozen=True)
class Reading:
    """One sentence pair, and the weights of every encoder-decoder head at every target position."""

    source: list[str]
    target: list[str]
    weights: Float[np.ndarray, "L N T S"]


def main(config: Config) -> None:
    """Chooses the head, draws the picture, and prints its path."""
    translator = Translator.from_workdir(WORKDIR.value, config)
    layer, head, preference = best_head(translator, registry.load(config.data, "test"))
    readings = []
    for adjective in ("tired", "wide"):
        source = SENTENCE.format(adjective)
        readings.append(read(translator, source, translator([source])[0].text))
    figure = draw(readings, layer, head, preference)
    path = pathlib.Path(OUTPUT.value)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160, metadata={"Software": None})
    print(path)


def read(translator: Translator, source: str, target: str) -> Reading:
    """Runs the pair through the model, teacher-forced, and keeps the encoder-decoder weights."""
    source_ids, target_ids = (translator.tokenizer.encode([text])[0] for text in (source, target))
    # One shape for all sentences, so that one program serves them; padding is never attended to.
    padded = np.zeros((2, 1, translator.config.data.max_length), np.int32)
    padded[0, 0, : len(source_ids)], padded[1, 0, : len(target_ids)] = source_ids, target_ids
    weights = _cross_weights(translator.params, *padded, translator.model)
    weights = np.asarray(weights)[:, 0, :, : len(target_ids), : len(source_ids)]
    pieces = translator.tokenizer.pieces
    return Reading(pieces(source_ids), pieces(target_ids), weights)


@functools.partial(jax.jit, static_argnums=3)
def _cross_weights(
    params: Params, source: Int[Array, "1 S"], target: Int[Array, "1 T"], model: nn.Module
) -> Float[Array, "L 1 N T S"]:
    _, trace = model.apply({"params": params}, source, shift_right(target), capture="weights")
    return trace.decoder.cross_attention.weights


def best_head(translator: Translator, split: registry.Split) -> tuple[int, int, float]:
    """Layer, head, and by how much more weight it gives the antecedent than the distractor."""
    preferences = []
    for example in split.examples:
        if not example["resolution"] or len(preferences) == SENTENCES_MEASURED:
            continue
        reading = read(translator, example["source"], example["target"])
        row = _tokens_of(reading.target, example["target"], example["target_pronoun"])[0]
        antecedent, distractor = (
            _tokens_of(reading.source, example["source"], example[noun])
            for noun in ("antecedent", "distractor")
        )
        at_pronoun = reading.weights[:, :, row]
        preferences.append(
            at_pronoun[..., antecedent].sum(-1) - at_pronoun[..., distractor].sum(-1)
        )
    mean = np.mean(preferences, axis=0)
    layer, head = np.unravel_index(mean.argmax(), mean.shape)
    return int(layer), int(head), float(mean.max())


def _tokens_of(pieces: list[str], text: str, word: int) -> list[int]:
    """The places of the sub-words of a word of the text."""
    owners = words_of_pieces(pieces, words(text))
    return [place for place, owner in enumerate(owners) if owner == word]


def draw(readings: list[Reading], layer: int, head: int, preference: float):
    """Each sentence as a row of words, shaded by weight, with the translation underneath."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 1, figsize=(10, 4.2))
    figure.suptitle(
        f"Where encoder-decoder head {head + 1} of layer {layer + 1} reads "
        "while the decoder predicts the pronoun",
        fontsize=12,
    )
    for panel, reading in zip(panels, readings, strict=True):
        source = [piece.replace("▁", "") for piece in reading.source[:-1]] + ["(end)"]
        translation = "".join(reading.target[:-1]).replace("▁", " ").strip()
        [row] = [
            index
            for index, piece in enumerate(reading.target)
            if piece.replace("▁", "") in ("es", "sie", "er", "il", "elle")
        ]
        pronoun = reading.target[row].replace("▁", "")
        weights = reading.weights[layer, head, row]
        panel.imshow(weights[None], cmap="Blues", vmin=0, vmax=1, aspect="auto")
        for column, (word, weight) in enumerate(zip(source, weights, strict=True)):
            shade = "white" if weight > 0.55 else "black"
            panel.text(column, -0.1, word, ha="center", va="center", color=shade, fontsize=10)
            panel.text(column, 0.28, f"{weight:.2f}", ha="center", color=shade, fontsize=8)
        panel.set_xticks([])
        panel.set_yticks([])
        panel.set_xlabel(f"{translation}        (predicting: {pronoun})", fontsize=12, labelpad=6)
    figure.text(
        0.5,
        0.015,
        "Softmax weights over the source; each row sums to 1. Chosen among all heads by the test "
        f"split, where it gives the antecedent {preference:.2f}\nmore weight than the other noun, "
        "on average. A weight says where a head reads, not why the model answers.",
        ha="center",
        fontsize=8,
    )
    figure.subplots_adjust(top=0.88, bottom=0.22, hspace=0.55, left=0.02, right=0.98)
    return figure


if __name__ == "__main__":
    run(main, config_from="workdir")
