# SPDX-License-Identifier: Apache-2.0
"""What the model predicts: output distributions before and after training, and layer by layer."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from transformer.arrays import Float
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.figure_checks import Sizes, check_distribution
from transformer.inspection.figures.style import Picture

CELL_WIDTH, ROW = 0.86, 0.27


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
) -> Picture:
    """The most probable next tokens at every position, with the loss beside them.

    Args:
      logits: [T,V].
      vocabulary: V tokens.
      target_in: T tokens that are read.
      target_out: the ids of the T tokens that should be predicted.
      before: [T,V], the logits of the untrained model, drawn beside them.
      target: [T,V], the distribution that training aims at (smoothed labels); with it, the
        Kullback-Leibler divergence from it is written beside the cross-entropy.
      top_k: how many tokens a position.
      title: above the figure.

    Raises:
      InputError: for shapes that do not belong together, ids outside the vocabulary, or a target
        that is no distribution.
    """
    sizes = Sizes()
    panels = [
        ("after training" if before is not None else "", sizes.array("logits", logits, "T V"))
    ]
    if before is not None:
        panels.insert(0, ("before training", sizes.array("before", before, "T V")))
    vocabulary = sizes.tokens("vocabulary", vocabulary, "V")
    read = sizes.tokens("target_in", target_in, "T")
    places = sizes.array("target_out", target_out, "T").astype(int)
    right = [sizes.index(f"target_out[{t}]", int(token), "V") for t, token in enumerate(places)]
    aimed = None
    if target is not None:
        aimed = sizes.array("target", target, "T V")
        check_distribution("target", aimed)
    top_k = sizes.count("top_k", top_k, "V")

    rows = parts.read_predict(read, [vocabulary[token] for token in right])
    left = parts.label_width(rows) + 0.12
    table = CELL_WIDTH * top_k
    beside = 1.0 if aimed is None else 1.52
    panel = table + beside + 0.3
    top, high = 0.55, ROW * len(rows)
    width = left + panel * len(panels) + parts.COLOUR_BAR_WIDTH
    note = (
        "The most probable tokens of each row, best first, with their probability; the right one "
        "is framed, and its probability is p. Cross-entropy is −log p"
    )
    note += (
        ", KL is measured from the smoothed target; both in nats."
        if target is not None
        else (", in nats.")
    )
    picture = style.sheet(width, top + max(high, 0.9), title, note)
    content = style.canvas(picture, width, top + max(high, 0.9))
    told = []
    for number, (name, values) in enumerate(panels):
        log_probs = _log_softmax(values)
        at = left + panel * number
        ax = style.axes(picture, at, top, table, high)
        ax.set_label(name or "probabilities")
        image = _ranked(ax, log_probs, vocabulary, top_k, right)
        if number == 0:
            parts.row_labels(ax, rows)
        parts.unit_text(content, at + table / 2, 0.12, name, fontsize=9)
        of_right = log_probs[np.arange(len(right)), right]
        columns = [
            ("p", 0.36, np.exp(of_right), ".3f"),
            ("cross-\nentropy", 0.95, -of_right, ".2f"),
        ]
        if aimed is not None:
            kl = (aimed * (np.log(np.where(aimed > 0, aimed, 1)) - log_probs)).sum(-1)
            columns.append(("KL", 1.5, kl, ".2f"))
        for heading, offset, column, form in columns:
            x = at + table + offset
            look = {"fontsize": 7.5, "ha": "right"}
            parts.unit_text(content, x, top - 0.05, heading, va="bottom", **look)
            for t, value in enumerate(column):
                parts.unit_text(content, x, top + ROW * (t + 0.5), format(value, form), **look)
        told.append(
            f"{name or 'the model'}: mean cross-entropy {-of_right.mean():.2f} nats, the right "
            f"token is the most probable at {(log_probs.argmax(-1) == right).sum()} of "
            f"{len(right)} positions"
        )
    parts.colour_bar(
        picture, image, "probability", width - parts.COLOUR_BAR_WIDTH, top, max(min(high, 2.0), 0.9)
    )
    picture.description = f"{title} over {len(vocabulary)} tokens. {'; '.join(told)}."
    return picture


def _log_softmax(logits: Float[np.ndarray, "... V"]) -> Float[np.ndarray, "... V"]:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _ranked(ax, log_probs, vocabulary, top_k, right):
    """Each row's most probable tokens, written into cells that show their probability."""
    order = np.argsort(-log_probs, axis=-1, kind="stable")[:, :top_k]
    probabilities = np.exp(np.take_along_axis(log_probs, order, axis=-1))
    image = parts.heat(ax, probabilities)
    parts.words(image, [[vocabulary[token] for token in row] for row in order])
    for t, k in np.argwhere(order == np.asarray(right)[:, None]):
        parts.outline(ax, t, k, style.VERMILION).set_gid(f"right {t} {k}")
    return image


@style.styled
def plot_logit_lens(
    lens_logits: ArrayLike,
    vocabulary: Sequence[str],
    target_in: Sequence[str],
    target_out: ArrayLike,
    *,
    title: str = "Logit lens: what each decoder layer would predict",
) -> Picture:
    """The most probable token at every position, from the residual stream at every layer.

    Args:
      lens_logits: [L+1,T,V]: of the decoder's input, then of each layer; the last are the model's.
      vocabulary: V tokens.
      target_in: T tokens that are read.
      target_out: the ids of the T tokens that should be predicted.
      title: above the figure.

    Raises:
      InputError: for shapes that do not belong together, or ids outside the vocabulary.
    """
    sizes = Sizes()
    logits = sizes.array("lens_logits", lens_logits, "L+1 T V")
    vocabulary = sizes.tokens("vocabulary", vocabulary, "V")
    read = sizes.tokens("target_in", target_in, "T")
    places = sizes.array("target_out", target_out, "T").astype(int)
    right = [sizes.index(f"target_out[{t}]", int(token), "V") for t, token in enumerate(places)]
    log_probs = _log_softmax(logits).swapaxes(0, 1)
    best = log_probs.argmax(-1)
    layers = ["input", *(f"layer {layer}" for layer in range(1, logits.shape[0]))]
    layers[-1] += "\n= output"

    rows = parts.read_predict(read, [vocabulary[token] for token in right])
    left, top = parts.label_width(rows) + 0.12, 0.42
    wide, high = CELL_WIDTH * 1.1 * len(layers), ROW * len(rows)
    picture = style.sheet(
        left + wide + parts.COLOUR_BAR_WIDTH,
        top + max(high, 0.9),
        title,
        "Each cell: the most probable token and its probability, from the stream at that layer; "
        "framed where it is the right one. Early layers are not trained to be read this way.",
    )
    ax = style.axes(picture, left, top, wide, high)
    image = parts.heat(ax, np.exp(log_probs.max(-1)))
    parts.words(image, [[vocabulary[token] for token in row] for row in best])
    for t, layer in np.argwhere(best == np.asarray(right)[:, None]):
        parts.outline(ax, t, layer, style.VERMILION).set_gid(f"right {t} {layer}")
    parts.row_labels(ax, rows)
    ax.set_xticks(range(len(layers)), layers)
    ax.tick_params(axis="x", length=0, labelsize=8)
    ax.xaxis.tick_top()
    bar_height = max(min(high, 2.0), 0.9)
    parts.colour_bar(picture, image, "probability", left + wide + 0.12, top, bar_height)
    found = [
        f"{name.split(chr(10))[0]} {(best[:, n] == right).sum()}" for n, name in enumerate(layers)
    ]
    picture.description = (
        f"{title}. Positions at which the right token is the most probable, of {len(rows)}: "
        f"{parts.list_of(found, 14)}."
    )
    return picture
