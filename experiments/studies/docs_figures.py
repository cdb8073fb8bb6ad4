# SPDX-License-Identifier: Apache-2.0
"""Draw the pictures of docs/inspection.md.

python -m experiments.studies.docs_figures --workdir=runs/de
"""

import dataclasses

import numpy as np

from experiments.cli.command_line import run
from experiments.cli.weights import Weights
from transformer import inspection, paths
from transformer.arrays import Float
from transformer.inspection import figures
from transformer.inspection.alignment import untrained_params
from transformer.translator import Translator

DPI = 100


@dataclasses.dataclass(frozen=True)
class Options(Weights):
    """The model, and the pictures."""

    output: str = "docs"
    """Directory of the pictures."""
    sentence: str = "The animal didn't cross the street because it was too tired."
    """Sentence that the model translates."""


def main(options: Options) -> None:
    """Draw every picture and print its path."""
    translator = options.translator()
    for name, figure in pictures(translator, options.sentence).items():
        path = paths.absolute(options.output) / f"{name}.png"
        print(figures.save(figure, path, dpi=DPI))


def pictures(translator: Translator, sentence: str) -> dict[str, figures.DescribedFigure]:
    """The figures by the name of their files, for the model's translation of the sentence."""
    config, tokenizer = translator.config.model, translator.tokenizer
    [source], target = tokenizer.encode([sentence]), list(translator(sentence).tokens)
    target_in = [config.bos_id, *target[:-1]]
    model = translator.model
    logits, seen = inspection.run(model, translator.params, source, target_in, capture="full")
    before, _ = inspection.run(model, untrained_params(model), source, target_in)
    smoothing = translator.config.training.label_smoothing
    words, read = tokenizer.pieces(source), tokenizer.pieces(target_in)
    cross = seen.decoder.cross_attention
    vocabulary = tokenizer.pieces(list(range(config.vocab_size)))
    return {
        "vector_flow": figures.plot_vector_flow(seen.encoder, words),
        "memory": figures.plot_memory(seen.encoder.residual[-1], cross.key, cross.value, words),
        "target_distributions": figures.plot_target_distributions(
            before, smoothed(target, logits.shape, smoothing), logits, vocabulary, read, target
        ),
    }


def smoothed(
    target: list[int], shape: tuple[int, int], smoothing: float
) -> Float[np.ndarray, "T V"]:
    """The distributions that training aims at, with the rest spread over all other tokens."""
    labels = np.full(shape, smoothing / (shape[1] - 1))
    labels[np.arange(len(target)), target] = 1 - smoothing
    return labels


if __name__ == "__main__":
    run(main, "workdir", Options)
