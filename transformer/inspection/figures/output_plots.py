# SPDX-License-Identifier: Apache-2.0
"""From a vector to a word: logits and probabilities, and the distributions of training."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from transformer.arrays import Float
from transformer.inspection.argument_checks import Sizes, check_distributions, check_equal
from transformer.inspection.figures import architecture, parts, style
from transformer.inspection.figures.prediction_plots import log_softmax
from transformer.inspection.figures.style import DescribedFigure
from transformer.inspection.figures.typesetting import listed, shortened

WIDTH, CURVE, BARS = 7.6, 1.1, 2.3
"""Width of the vector and of all logits, height of the logits, and width of the bars."""
ROW = 0.22
"""Height of a row of bars."""
OTHERS = "all others"
"""The column of the tokens that are not in the sentence."""


@style.styled
def plot_output_layer(
    hidden: ArrayLike,
    output_matrix: ArrayLike,
    vocabulary: Sequence[str],
    *,
    bias: ArrayLike | None = None,
    logits: ArrayLike | None = None,
    top_k: int = 8,
    title: str = "From a vector to a word",
) -> DescribedFigure:
    """One vector of the decoder, its logits over the vocabulary, and the most probable tokens.

    Args:
      hidden: [D], output of the decoder at one position.
      output_matrix: [V,D]; with tied embeddings the embedding table.
      vocabulary: V tokens.
      bias: [V], added to the logits.
      logits: [V], the model's, which the drawn ones must equal.
      top_k: number of tokens whose logit and probability are shown, at most V.
    """
    sizes = Sizes()
    hidden = sizes.array("hidden", hidden, "D")
    matrix = sizes.array("output_matrix", output_matrix, "V D")
    vocabulary = sizes.tokens("vocabulary", vocabulary, "V")
    scores = matrix @ hidden + (0.0 if bias is None else sizes.array("bias", bias, "V"))
    if logits is not None:
        remedy = "the vector is the decoder's last, and the matrix and the bias are the model's"
        check_equal("logits", scores, sizes.array("logits", logits, "V"), remedy)
    probabilities = np.exp(log_softmax(scores))
    best = np.argsort(-scores, kind="stable")[:top_k]

    left = max(parts.label_width([vocabulary[token] for token in best]) + 0.65, 1.0)
    tops = (0.35, 0.35 + 0.3 + parts.LEGEND + 0.65, 0.0)
    tops = (*tops[:2], tops[1] + CURVE + 1.15)
    figure = parts.sheet(left + WIDTH, tops[2] + ROW * len(best) + 0.1, title)
    limit = parts.largest(hidden)
    heading = f"output of the decoder: {hidden.size} numbers"
    panel = parts.signed_panel(
        "hidden", heading, hidden[None], (WIDTH, 0.3), limit=limit, legend="value"
    )
    panel.draw(figure, left, tops[0])
    texts = (
        f"× output matrix {matrix.shape[0]:,}×{matrix.shape[1]}"
        + ("" if bias is None else " + bias")
        + f" = {scores.size:,} logits, one a token",
        f"softmax = {scores.size:,} probabilities, which sum to 1; the {len(best)} largest:",
    )
    for top, text in zip(tops[1:], texts, strict=True):
        arrow = (left + 0.1, top - 0.5), (left + 0.1, top - 0.22)
        architecture.draw_arrow(figure.content, *arrow)
        look = {"ha": "left", "fontsize": style.HEADING}
        parts.put_text(figure.content, left + 0.3, top - 0.36, text, **look)
    _draw_logits(parts.axes(figure, left, tops[1], WIDTH, CURVE, "logits"), scores, best)
    _draw_best(figure, scores, probabilities, best, vocabulary, (left, tops[2]))
    items = [f"{vocabulary[token]!r} {probabilities[token]:.3f}" for token in best]
    figure.description = (
        f"{title}: {hidden.size} numbers become {scores.size} logits, from {scores.min():.2f} to "
        f"{scores.max():.2f}, and the softmax of these. Highest probabilities: {listed(items, 12)}."
    )
    return figure


def _draw_logits(ax: Axes, scores: Float[np.ndarray, " V"], best: np.ndarray) -> None:
    """A line a token; the most probable ones are colored."""
    ids = np.arange(scores.size)
    ax.vlines(ids, 0, scores, color=style.FAINT, linewidth=0.7)
    ax.vlines(best, 0, scores[best], color=style.POSITIVE, linewidth=1.2)
    ax.plot(ids, scores, ".", color=style.SOFT, markersize=1.5, gid="logits")
    ax.plot(best, scores[best], "o", color=style.POSITIVE, markersize=3)
    ax.axhline(0, color=style.SOFT, linewidth=0.6)
    ax.set_xlim(-0.5, scores.size - 0.5)
    ax.set_xticks([tick for tick in ax.get_xticks() if 0 <= tick < scores.size])
    ax.yaxis.set_major_locator(MaxNLocator(4, prune="both"))  # free corners
    ax.spines[["top", "right", "bottom"]].set_visible(False)
    ax.set_xlabel("token id", fontsize=style.TEXT, labelpad=1)
    ax.set_title("logit", loc="left", fontsize=style.TEXT)


def _draw_best(
    figure: DescribedFigure,
    scores: Float[np.ndarray, " V"],
    probabilities: Float[np.ndarray, " V"],
    best: np.ndarray,
    vocabulary: list[str],
    corner: tuple[float, float],
) -> None:
    """Token, id, logit and probability of the most probable tokens."""
    left, top = corner
    names = [shortened(vocabulary[token], parts.LONGEST_LABEL, style.TEXT) for token in best]
    for row, (name, token) in enumerate(zip(names, best, strict=True)):
        y = top + ROW * (row + 0.5)
        parts.put_text(figure.content, left - 0.55, y, name, ha="right")
        parts.put_text(figure.content, left - 0.08, y, str(token), ha="right", color=style.SOFT)
    drawings = (("logit", scores, "{:.2f}"), ("probability", probabilities, "{:.4f}"))
    for i, (name, values, form) in enumerate(drawings):
        start = left + i * (BARS + 1.2)
        ax = parts.axes(figure, start, top, BARS, ROW * len(best), f"{name} bars")
        ax.barh(range(len(best)), values[best], height=0.7, color=style.POSITIVE)
        low = min(float(values[best].min()), 0.0)
        ax.set_xlim(low, 1.0 if name == "probability" else max(float(values[best].max()), 1e-9))
        ax.set_ylim(len(best) - 0.5, -0.5)
        ax.set_axis_off()
        for row, token in enumerate(best):
            y, look = top + ROW * (row + 0.5), {"ha": "left"}
            text = form.format(values[token]) + (f"  {name}" if row == 0 else "")
            parts.put_text(figure.content, start + BARS + 0.08, y, text, **look)


@style.styled
def plot_target_distributions(
    before: ArrayLike,
    target: ArrayLike,
    after: ArrayLike,
    vocabulary: Sequence[str],
    target_in: Sequence[str],
    target_out: ArrayLike,
    *,
    title: str = "Predictions before training, what training asks for, and predictions after it",
) -> DescribedFigure:
    """Three distributions at every position: untrained, the smoothed target, and trained.

    Columns are the tokens of the sentence, in the order of their first appearance, and the sum over
    all other tokens of the vocabulary.

    Args:
      before: [T,V], logits of the untrained model.
      target: [T,V], probabilities that training aims at; with label smoothing no one-hot vectors.
      after: [T,V], logits of the trained model.
      vocabulary: V tokens.
      target_in: T tokens that are read.
      target_out: ids of the T tokens to predict.
    """
    sizes = Sizes()
    before, after, target = sizes.arrays("T V", before=before, after=after, target=target)
    vocabulary = sizes.tokens("vocabulary", vocabulary, "V")
    read = sizes.tokens("target_in", target_in, "T")
    correct = sizes.token_ids("target_out", target_out, "T")
    check_distributions("target", target, "give probabilities over the vocabulary")

    with np.errstate(divide="ignore"):
        log_probs = {
            "before training": log_softmax(before),
            "target": np.log(target),
            "after training": log_softmax(after),
        }
    losses = {name: _cross_entropy(target, each) for name, each in log_probs.items()}
    columns = list(dict.fromkeys(correct))
    rows = parts.read_predict(read, [vocabulary[token] for token in correct])
    panels = [
        parts.Panel(
            values=_columns_of(np.exp(each), columns),
            cell=(max(min(2.7 / (len(columns) + 1), 0.3), parts.SMALLEST_CELL), 0.2),
            name=name,
            heading=f"{name}\ncross-entropy {losses[name]:.2f}",
            rows=rows,
            columns=[*(vocabulary[token] for token in columns), OTHERS],
            legend="probability" if name == "before training" else None,
        )
        for name, each in log_probs.items()
    ]
    abreast = 3 * panels[0].width < 9
    if abreast:
        panels[1:] = [_without_rows(panel) for panel in panels[1:]]
    note = (
        "Rows: read → predict. Columns: the tokens of the sentence, and the sum of all others. "
        "Cross-entropy with the target, mean over the rows, in nats: the target's own is its "
        "entropy, and no model can be below it."
    )
    figure, _ = parts.draw_panels(
        [panels] if abreast else [[panel] for panel in panels], title=title, note=note, apart=0.05
    )
    means = {
        name: np.exp(each)[range(len(correct)), correct].mean() for name, each in log_probs.items()
    }
    items = [
        f"{name}: {means[name]:.3f} on the correct token in the mean, cross-entropy "
        f"{losses[name]:.2f} nats"
        for name in log_probs
    ]
    figure.description = f"{title}, at {len(correct)} positions. {'; '.join(items)}."
    return figure


def _cross_entropy(target: Float[np.ndarray, "T V"], log_probs: Float[np.ndarray, "T V"]) -> float:
    """Mean over the positions, in nats; a token that the target excludes adds nothing."""
    return float(-(target * np.where(target > 0, log_probs, 0.0)).sum(-1).mean())


def _columns_of(probabilities: Float[np.ndarray, "T V"], ids: list[int]) -> np.ndarray:
    """The probabilities of some tokens, then the sum of those of all others."""
    chosen = probabilities[:, ids]
    rest = probabilities.sum(-1, keepdims=True) - chosen.sum(-1, keepdims=True)
    return np.concatenate([chosen, rest.clip(0)], axis=1)


def _without_rows(panel: parts.Panel) -> parts.Panel:
    return dataclasses.replace(panel, rows=None)
