# SPDX-License-Identifier: Apache-2.0
"""Draw the pictures of docs/inspection.md.

python -m experiments.studies.docs_figures --workdir=runs/de
"""

import dataclasses

import numpy as np

from experiments.cli import command_line
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


def run(options: Options) -> list[str]:
    """Draw every picture; returns their paths."""
    folder = paths.absolute(options.output)
    drawn = pictures(options.translator(), options.sentence)
    return [
        str(figures.save(figure, folder / f"{name}.png", dpi=DPI)) for name, figure in drawn.items()
    ]


def main(options: Options) -> None:
    """Print the paths."""
    print(*run(options), sep="\n")


def pictures(translator: Translator, sentence: str) -> dict[str, figures.DescribedFigure]:
    """Figures of the model's translation of a sentence, by file name."""
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
    """Target distributions of label smoothing: its mass is spread over all other tokens."""
    labels = np.full(shape, smoothing / (shape[1] - 1))
    labels[np.arange(len(target)), target] = 1 - smoothing
    return labels


if __name__ == "__main__":
    command_line.run(main, "workdir", Options)
