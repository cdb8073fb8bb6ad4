# SPDX-License-Identifier: Apache-2.0
"""Predictions: from a vector to a word, distributions before and after training, the logit lens."""

import dataclasses
from typing import Annotated

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from scipy.special import log_softmax

from transformer.arrays import Float, Int
from transformer.inspection.argument_checks import check_distributions, check_equal, checked
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.style import DescribedFigure
from transformer.inspection.figures.typesetting import listed, shortened

CELL = (0.95, 0.22)
"""Width and height of a cell with a token."""
WIDTH, CURVE, BARS = 7.6, 1.1, 2.3
"""Width of the vector and of all logits, height of the logits, and width of the bars."""
ROW = 0.22
"""Height of a row of bars."""
OTHERS = "all others"
"""The column of the tokens that are not in the sentence."""


@style.styled
@checked
def plot_output_distribution(
    logits: Float[np.ndarray, "T V"],
    vocabulary: Annotated[list[str], "V"],
    target_in: Annotated[list[str], "T"],
    target_out: Annotated[list[int], "T"],
    *,
    before: Float[np.ndarray, "T V"] | None = None,
    target: Float[np.ndarray, "T V"] | None = None,
    top_k: int = 5,
    title: str = "Output distribution",
) -> DescribedFigure:
    """The most probable next tokens at every position, with the loss.

    Args:
      before: logits of the untrained model, drawn above.
      target: the smoothed labels that training aims at; adds the Kullback-Leibler divergence from
        them.
      top_k: number of tokens a position, at most V.
    """
    runs = {"probabilities": logits}
    if before is not None:
        runs = {"before training": before, "after training": logits}
    if target is not None:
        check_distributions("target", target, "give probabilities over the vocabulary")
    top_k = min(top_k, len(vocabulary))

    rows = parts.read_predict(target_in, [vocabulary[token] for token in target_out])
    log_probs = {name: log_softmax(values, axis=-1) for name, values in runs.items()}
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
            beside=_losses(each, target_out, target),
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
        _write_tokens(image, order, vocabulary, target_out)
    items = [
        f"{'the model' if before is None else name}: mean cross-entropy "
        f"{-each[range(len(rows)), target_out].mean():.2f} nats, the correct token is the most "
        f"probable at {(each.argmax(-1) == target_out).sum()} of {len(rows)} positions"
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


def _write_tokens(
    image: AxesImage, ids: Int[np.ndarray, "T K"], vocabulary: list[str], correct: list[int]
) -> None:
    """Write tokens into the cells and frame the correct ones."""
    parts.write_tokens(image, [[vocabulary[token] for token in row] for row in ids])
    for t, k in np.argwhere(ids == np.asarray(correct)[:, None]):
        parts.outline(image.axes, t, k, style.VERMILION, f"correct {t} {k}")


@style.styled
@checked
def plot_logit_lens(
    lens_logits: Float[np.ndarray, "levels T V"],
    vocabulary: Annotated[list[str], "V"],
    target_in: Annotated[list[str], "T"],
    target_out: Annotated[list[int], "T"],
    *,
    title: str = "Logit lens: the prediction from every decoder layer",
) -> DescribedFigure:
    """The most probable token at every position, from the residual stream of every layer.

    Args:
      lens_logits: logits of the decoder's input, then of each layer; the last are the model's.
    """
    log_probs = log_softmax(lens_logits, axis=-1).swapaxes(0, 1)  # [T, L+1, V]
    best = log_probs.argmax(-1)  # [T, L+1]
    layers = ["input", *(f"layer {layer}" for layer in range(1, len(lens_logits)))]

    panel = parts.Panel(
        values=np.exp(log_probs.max(-1)),
        cell=CELL,
        rows=parts.read_predict(target_in, [vocabulary[token] for token in target_out]),
        columns=layers,
        legend="probability",
    )
    note = (
        "Each cell: the most probable token and its probability, from the residual stream at that "
        "layer; framed where it is the correct one. The last column is the model's output. Early "
        "layers are not trained to be read this way."
    )
    figure, [image] = parts.draw_panels([[panel]], title=title, note=note)
    _write_tokens(image, best, vocabulary, target_out)
    counts = (best == np.asarray(target_out)[:, None]).sum(0)
    items = [f"{layer} {count}" for layer, count in zip(layers, counts, strict=True)]
    figure.description = (
        f"{title}. Positions at which the correct token is the most probable, of "
        f"{len(target_out)}: {listed(items, 14)}."
    )
    return figure


@style.styled
@checked
def plot_output_layer(
    hidden: Float[np.ndarray, " D"],
    output_matrix: Float[np.ndarray, "V D"],
    vocabulary: Annotated[list[str], "V"],
    *,
    bias: Float[np.ndarray, " V"] | None = None,
    logits: Float[np.ndarray, " V"] | None = None,
    top_k: int = 8,
    title: str = "From a vector to a word",
) -> DescribedFigure:
    """One vector of the decoder, its logits over the vocabulary, and the most probable tokens.

    Args:
      hidden: output of the decoder at one position.
      output_matrix: one row a token; with tied embeddings the embedding table.
      logits: the model's, which the drawn ones must equal.
      top_k: number of tokens whose logit and probability are shown, at most V.
    """
    scores = output_matrix @ hidden + (0.0 if bias is None else bias)
    check_equal("logits", scores, logits)
    probabilities = np.exp(log_softmax(scores, axis=-1))
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
        f"× output matrix {scores.size:,}×{hidden.size}"
        + ("" if bias is None else " + bias")
        + f" = {scores.size:,} logits, one a token",
        f"softmax = {scores.size:,} probabilities, which sum to 1; the {len(best)} largest:",
    )
    for top, text in zip(tops[1:], texts, strict=True):
        arrow = (left + 0.1, top - 0.5), (left + 0.1, top - 0.22)
        parts.draw_arrow(figure.content, *arrow)
        look = {"ha": "left", "fontsize": style.HEADING}
        parts.put_text(figure.content, left + 0.3, top - 0.36, text, **look)
    _draw_logits(parts.axes(figure, left, tops[1], WIDTH, CURVE, "logits"), scores, best)
    names = [shortened(vocabulary[token], parts.LONGEST_LABEL, style.TEXT) for token in best]
    heights = tops[2] + ROW * (np.arange(len(best)) + 0.5)
    for y, name, token in zip(heights, names, best, strict=True):
        parts.put_text(figure.content, left - 0.55, y, name, ha="right")
        parts.put_text(figure.content, left - 0.08, y, str(token), ha="right", color=style.SOFT)
    bars = (
        ("logit", scores[best], "{:.2f}", max(float(scores[best].max()), 1e-9)),
        ("probability", probabilities[best], "{:.4f}", 1.0),
    )
    for i, (name, values, form, high) in enumerate(bars):
        start = left + i * (BARS + 1.2)
        ax = parts.axes(figure, start, tops[2], BARS, ROW * len(best), f"{name} bars")
        ax.barh(range(len(best)), values, height=0.7, color=style.POSITIVE)
        ax.set_xlim(min(float(values.min()), 0.0), high)
        ax.set_ylim(len(best) - 0.5, -0.5)
        ax.set_axis_off()
        for row, (y, value) in enumerate(zip(heights, values, strict=True)):
            text = form.format(value) + (f"  {name}" if row == 0 else "")
            parts.put_text(figure.content, start + BARS + 0.08, y, text, ha="left")
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


@style.styled
@checked
def plot_target_distributions(
    before: Float[np.ndarray, "T V"],
    target: Float[np.ndarray, "T V"],
    after: Float[np.ndarray, "T V"],
    vocabulary: Annotated[list[str], "V"],
    target_in: Annotated[list[str], "T"],
    target_out: Annotated[list[int], "T"],
    *,
    title: str = "Predictions before training, what training asks for, and predictions after it",
) -> DescribedFigure:
    """Three distributions at every position: untrained, the smoothed target, and trained.

    Columns are the tokens of the sentence, in the order of their first appearance, and the sum over
    all other tokens of the vocabulary.

    Args:
      before, after: logits of the untrained and of the trained model.
      target: probabilities that training aims at; with label smoothing no one-hot vectors.
    """
    check_distributions("target", target, "give probabilities over the vocabulary")

    with np.errstate(divide="ignore"):
        log_probs = {
            "before training": log_softmax(before, axis=-1),
            "target": np.log(target),
            "after training": log_softmax(after, axis=-1),
        }
    losses = {  # a token that the target excludes adds nothing
        name: -(target * np.where(target > 0, each, 0.0)).sum(-1).mean()
        for name, each in log_probs.items()
    }
    columns = list(dict.fromkeys(target_out))
    rows = parts.read_predict(target_in, [vocabulary[token] for token in target_out])
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
        panels[1:] = [dataclasses.replace(panel, rows=None) for panel in panels[1:]]
    note = (
        "Rows: read → predict. Columns: the tokens of the sentence, and the sum of all others. "
        "Cross-entropy with the target, mean over the rows, in nats: the target's own is its "
        "entropy, and no model can be below it."
    )
    figure, _ = parts.draw_panels(
        [panels] if abreast else [[panel] for panel in panels], title=title, note=note, apart=0.05
    )
    means = {
        name: np.exp(each)[range(len(rows)), target_out].mean() for name, each in log_probs.items()
    }
    items = [
        f"{name}: {means[name]:.3f} on the correct token in the mean, cross-entropy "
        f"{losses[name]:.2f} nats"
        for name in log_probs
    ]
    figure.description = f"{title}, at {len(rows)} positions. {'; '.join(items)}."
    return figure


def _columns_of(probabilities: Float[np.ndarray, "T V"], ids: list[int]) -> np.ndarray:
    """The probabilities of some tokens, then the sum of those of all others."""
    chosen = probabilities[:, ids]
    rest = probabilities.sum(-1, keepdims=True) - chosen.sum(-1, keepdims=True)
    return np.concatenate([chosen, rest.clip(0)], axis=1)
