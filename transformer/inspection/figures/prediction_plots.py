# SPDX-License-Identifier: Apache-2.0
"""Predictions: output distributions before and after training, and the logit lens."""

from collections.abc import Sequence

import numpy as np
from matplotlib.image import AxesImage
from numpy.typing import ArrayLike

from transformer.arrays import Float, Int
from transformer.inspection.argument_checks import Sizes, check_distributions
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.style import DescribedFigure
from transformer.inspection.figures.typesetting import listed

CELL = (0.95, 0.22)


@style.styled
def plot_output_distribution(
    logits: ArrayLike,
    vocabulary: Sequence[str],
    target_in: Sequence[str],
    target_out: ArrayLike,
    *,
    before: ArrayLike | None = None,
    target: ArrayLike | None = None,
    top_k: int = 5,
    title: str = "Output distribution",
) -> DescribedFigure:
    """The most probable next tokens at every position, with the loss.

    Args:
      logits: [T,V].
      vocabulary: V tokens.
      target_in: T tokens that are read.
      target_out: ids of the T tokens to predict.
      before: [T,V], logits of the untrained model, drawn above.
      target: [T,V], the smoothed labels that training aims at; adds the Kullback-Leibler divergence
        from them.
      top_k: number of tokens a position, at most V.
    """
    sizes = Sizes()
    runs = {} if before is None else {"before training": sizes.array("before", before, "T V")}
    name = "probabilities" if before is None else "after training"
    runs[name] = sizes.array("logits", logits, "T V")
    vocabulary = sizes.tokens("vocabulary", vocabulary, "V")
    read = sizes.tokens("target_in", target_in, "T")
    correct = sizes.token_ids("target_out", target_out, "T")
    if target is not None:
        target = sizes.array("target", target, "T V")
        check_distributions("target", target, "give probabilities over the vocabulary")
    top_k = min(top_k, len(vocabulary))

    rows = parts.read_predict(read, [vocabulary[token] for token in correct])
    log_probs = {name: log_softmax(values) for name, values in runs.items()}
    orders = {
        name: np.argsort(-each, axis=-1, kind="stable")[:, :top_k]
        for name, each in log_probs.items()
    }
    panels = [
        parts.Panel(
            values=np.exp(np.take_along_axis(each, orders[name], axis=-1)),
            cell=CELL,
            name=name,
            heading="" if before is None else name,
            rows=rows,
            beside=_losses(each, correct, target),
            legend="probability" if i == len(log_probs) - 1 else None,
        )
        for i, (name, each) in enumerate(log_probs.items())
    ]
    note = (
        "The most probable tokens of each row, best first, with their probability; the correct one "
        "is framed, and its probability is p. Cross-entropy is −log p"
        + (", in nats." if target is None else "; KL is from the smoothed target; both in nats.")
    )
    figure, images = parts.draw_panels([[panel] for panel in panels], title=title, note=note)
    for image, order in zip(images, orders.values(), strict=True):
        _write_tokens(image, order, vocabulary, correct)
    items = [
        f"{'the model' if before is None else name}: mean cross-entropy "
        f"{-each[range(len(correct)), correct].mean():.2f} nats, the correct token is the most "
        f"probable at {(each.argmax(-1) == correct).sum()} of {len(correct)} positions"
        for name, each in log_probs.items()
    ]
    figure.description = f"{title} over {len(vocabulary)} tokens. {'; '.join(items)}."
    return figure


def _losses(
    log_probs: Float[np.ndarray, "T V"],
    correct: list[int],
    target: Float[np.ndarray, "T V"] | None,
) -> dict[str, list[str]]:
    """Columns of text: probability and losses of the correct tokens."""
    of_correct = log_probs[range(len(correct)), correct]
    columns = {
        "p": [f"{value:.3f}" for value in np.exp(of_correct)],
        "cross-\nentropy": [f"{-value:.2f}" for value in of_correct],
    }
    if target is not None:
        entropy_term = np.log(np.where(target > 0, target, 1))
        divergence = (target * (entropy_term - log_probs)).sum(-1)
        columns["KL"] = [f"{value:.2f}" for value in divergence]
    return columns


def log_softmax(logits: Float[np.ndarray, "... V"]) -> Float[np.ndarray, "... V"]:
    """Logarithm of the softmax over the last axis."""
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _write_tokens(
    image: AxesImage, ids: Int[np.ndarray, "T K"], vocabulary: list[str], correct: list[int]
) -> None:
    """Write tokens into the cells and frame the correct ones."""
    parts.write_tokens(image, [[vocabulary[token] for token in row] for row in ids])
    for t, k in np.argwhere(ids == np.asarray(correct)[:, None]):
        parts.outline(image.axes, t, k, style.VERMILION, f"correct {t} {k}")


@style.styled
def plot_logit_lens(
    lens_logits: ArrayLike,
    vocabulary: Sequence[str],
    target_in: Sequence[str],
    target_out: ArrayLike,
    *,
    title: str = "Logit lens: the prediction from every decoder layer",
) -> DescribedFigure:
    """The most probable token at every position, from the residual stream of every layer.

    Args:
      lens_logits: [L+1,T,V]: of the decoder's input, then of each layer; the last are the model's.
      vocabulary: V tokens.
      target_in: T tokens that are read.
      target_out: ids of the T tokens to predict.
    """
    sizes = Sizes()
    logits = sizes.array("lens_logits", lens_logits, "L+1 T V")
    vocabulary = sizes.tokens("vocabulary", vocabulary, "V")
    read = sizes.tokens("target_in", target_in, "T")
    correct = sizes.token_ids("target_out", target_out, "T")
    log_probs = log_softmax(logits).swapaxes(0, 1)  # [T, L+1, V]
    best = log_probs.argmax(-1)  # [T, L+1]
    layers = ["input", *(f"layer {layer}" for layer in range(1, len(logits)))]

    panel = parts.Panel(
        values=np.exp(log_probs.max(-1)),
        cell=CELL,
        rows=parts.read_predict(read, [vocabulary[token] for token in correct]),
        columns=layers,
        legend="probability",
    )
    note = (
        "Each cell: the most probable token and its probability, from the residual stream at that "
        "layer; framed where it is the correct one. The last column is the model's output. Early "
        "layers are not trained to be read this way."
    )
    figure, [image] = parts.draw_panels([[panel]], title=title, note=note)
    _write_tokens(image, best, vocabulary, correct)
    counts = (best == np.asarray(correct)[:, None]).sum(0)
    items = [f"{layer} {count}" for layer, count in zip(layers, counts, strict=True)]
    figure.description = (
        f"{title}. Positions at which the correct token is the most probable, of {len(correct)}: "
        f"{listed(items, 14)}."
    )
    return figure
