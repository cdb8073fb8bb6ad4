# SPDX-License-Identifier: Apache-2.0
"""A search drawn from its log: film strip, animation, and the tree of hypotheses."""

import base64
import dataclasses
import io
from collections.abc import Sequence

import numpy as np
from etils import epath
from matplotlib.patches import FancyBboxPatch
from PIL import Image

from transformer.arrays import EOS_ID, Float
from transformer.errors import InputError
from transformer.inspection import html
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.style import Picture
from transformer.inspection.search_log import SearchLog
from transformer.paths import absolute, write_whole


@dataclasses.dataclass(frozen=True)
class _Frame:
    """One step on the way to one result."""

    prefix: tuple[int, ...]
    tokens: list[int]
    """The most probable next tokens, the most probable first."""
    probabilities: Float[np.ndarray, " k"]
    reads: Float[np.ndarray, " S"] | None
    """Encoder-decoder attention over the source, a mean over heads."""
    chosen: int


def _frames(log: SearchLog, result: int, layer: int, head: int | None) -> list[_Frame]:
    if not -len(log.results) <= result < len(log.results):
        raise InputError(
            f"result is {result}, but the search found {len(log.results)}; give 0 for the best"
        )
    tokens = log.results[result].tokens
    frames = []
    for index, beam in enumerate(log.path(result)):
        step = log.steps[index]
        reads = None
        if step.cross_attention is not None:
            reads = _mean_over_heads(step.cross_attention[beam], layer, head)
        frames.append(
            _Frame(
                tokens[:index],
                step.top_tokens[beam].tolist(),
                np.exp(step.top_log_probs[beam]),
                reads,
                tokens[index],
            )
        )
    return frames


def _mean_over_heads(
    weights: Float[np.ndarray, "L N S"], layer: int, head: int | None
) -> Float[np.ndarray, " S"]:
    for name, place, size in (("layer", layer, len(weights)), ("head", head, weights.shape[1])):
        if place is not None and not -size <= place < size:
            raise InputError(f"{name} is {place}, but the decoder has {size}, counted from 0")
    return weights[layer].mean(0) if head is None else weights[layer, head]


def _words(vocabulary: Sequence[str], ids: Sequence[int]) -> list[str]:
    short = [token for token in ids if token >= len(vocabulary)]
    if short:
        raise InputError(
            f"vocabulary has {len(vocabulary)} tokens, but the log has the id {short[0]}; give "
            "every token of the model's vocabulary, in the order of their ids"
        )
    return [vocabulary[token] for token in ids]


def _reading(layer: int, head: int | None, log: SearchLog) -> str:
    """Whose attention is drawn, in words."""
    depth, heads = log.steps[0].cross_attention.shape[1:3]
    who = "mean of the heads" if head is None else f"head {head % heads + 1}"
    return f"{who} of decoder layer {layer % depth + 1}"


@style.styled
def plot_decoding(
    log: SearchLog,
    vocabulary: Sequence[str],
    *,
    result: int = 0,
    layer: int = -1,
    head: int | None = None,
    title: str = "Decoding, one token after the other",
) -> Picture:
    """A film strip: at each step what is read, where in the source, and what is predicted.

    Args:
      log: of `search_log.record`.
      vocabulary: every token, in the order of their ids.
      result: which of the results, from the best, 0.
      layer: whose encoder-decoder attention.
      head: of that layer; the mean of all unless given.
      title: above the figure.

    Raises:
      InputError: for a result, layer or head that is not there, or a vocabulary that is too short.
    """
    frames = _frames(log, result, layer, head)
    source = _words(vocabulary, log.source)
    chosen = _words(vocabulary, [frame.chosen for frame in frames])
    read = ["start", *chosen[:-1]]
    top_k = len(frames[0].tokens)
    cell, row, word = min(max(3.0 / len(source), 0.2), 0.4), 0.27, 0.92
    labels = [f"{n + 1}   {text}" for n, text in enumerate(parts.read_predict(read, chosen))]
    left = parts.label_width(labels) + 0.15
    reads = frames[0].reads is not None
    top = (parts.label_height(source, cell) if reads else 0.2) + 0.3
    wide, high = (cell * len(source) if reads else 0.0), row * len(frames)
    table = left + wide + (0.25 if reads else 0.0)
    width, height = table + word * top_k + parts.COLOUR_BAR_WIDTH, top + max(high, 0.9)
    note = "The source was encoded once, before step 1. Framed: the token that was taken."
    if reads:
        note += f" Attention: {_reading(layer, head, log)}."
    picture = style.sheet(width, height, title, note)
    content = style.canvas(picture, width, height)
    if reads:
        ax = style.axes(picture, left, top, wide, high)
        ax.set_label("attention")
        parts.heat(ax, np.stack([frame.reads for frame in frames]))
        parts.lines_between_rows(ax, len(frames))
        parts.column_labels(ax, source)
        parts.row_labels(ax, labels)
        heading = "where it reads in the source"
        parts.unit_text(content, left, 0.0, heading, ha="left", color=style.SOFT)
    ax = style.axes(picture, table, top, word * top_k, high)
    ax.set_label("probabilities")
    image = parts.heat(ax, np.stack([frame.probabilities for frame in frames]))
    parts.lines_between_rows(ax, len(frames))
    parts.words(image, [_words(vocabulary, frame.tokens) for frame in frames])
    for index, frame in enumerate(frames):
        for place in np.flatnonzero(np.asarray(frame.tokens) == frame.chosen):
            parts.outline(ax, index, place, style.VERMILION).set_gid(f"chosen {index}")
    if not reads:
        parts.row_labels(ax, labels)
    parts.unit_text(
        content, table, top - 0.12, "most probable next tokens", ha="left", color=style.SOFT
    )
    bar_height = max(min(high, 2.0), 0.9)
    bar_left = table + word * top_k + 0.12
    parts.colour_bar(picture, image, "weight, probability", bar_left, top, bar_height)
    picture.description = _told(title, frames, source, chosen, log, result)
    return picture


def _told(title, frames, source, chosen, log, result) -> str:
    steps = []
    for index, frame in enumerate(frames):
        taken = frame.probabilities[np.asarray(frame.tokens) == frame.chosen]
        said = f"{chosen[index]!r}" + (f" ({taken[0]:.2f})" if taken.size else "")
        if frame.reads is not None:
            said += f" reading most from {source[frame.reads.argmax()]!r}"
        steps.append(said)
    return (
        f"{title}: {len(frames)} steps for a source of {len(source)} tokens, with log-probability "
        f"{log.results[result].log_prob:.2f}. {parts.list_of(steps, 12)}."
    )


@style.styled
def _frame_picture(
    frames: list[_Frame], number: int, source: list[str], vocabulary: Sequence[str], said: str
) -> Picture:
    """One picture of the animation; all have the same size. Number 0 shows the encoder alone."""
    width = 9.0
    lines_of = lambda tokens: _flowed(tokens, width - 0.1)  # noqa: E731
    source_lines = lines_of(source)
    whole = ["start", *_words(vocabulary, [frame.chosen for frame in frames])]
    target_lines = lines_of(whole)
    top_k = len(frames[0].tokens)
    high = 0.35 * (len(source_lines) + len(target_lines)) + 1.0 + 0.27 * top_k + 0.3
    steps = len(frames)
    headline = (
        f"Step {number} of {steps}: read and predict"
        if number
        else "First the encoder reads the whole source, once"
    )
    picture = style.sheet(width, high, headline, said)
    content = style.canvas(picture, width, high)
    frame = frames[number - 1] if number else None
    shade = frame.reads if frame is not None and frame.reads is not None else None
    parts.unit_text(content, 0, 0.08, "source", ha="left", color=style.SOFT)
    y = _flow(content, source_lines, 0.22, shade)
    y += 0.25
    parts.unit_text(content, 0, y, "target so far", ha="left", color=style.SOFT)
    emphasised = np.zeros(len(whole))
    if number:
        emphasised[number - 1] = 1.0
    after = _flow(content, target_lines, y + 0.14, None, number, emphasised)
    if frame is not None:
        y = after + 0.3
        parts.unit_text(content, 0, y, "most probable next tokens", ha="left", color=style.SOFT)
        words = _words(vocabulary, frame.tokens)
        for place, (word, probability) in enumerate(zip(words, frame.probabilities, strict=True)):
            at = y + 0.22 + 0.27 * place
            taken = frame.tokens[place] == frame.chosen
            weight = "bold" if taken else "normal"
            text = style.shortened(word, 1.5, 9)
            parts.unit_text(content, 1.7, at, text, ha="right", fontsize=9, fontweight=weight)
            colour = style.VERMILION if taken else style.SKY
            content.barh(at, 5.5 * probability, 0.18, left=1.8, color=colour)
            said = f"{probability:.2f}" + ("  ← taken" if taken else "")
            parts.unit_text(content, 1.86 + 5.5 * probability, at, said, ha="left")
    picture.description = headline + "."
    if frame is not None:
        read = whole[number - 1]
        picture.description = (
            f"Step {number} of {steps}: reads {read!r}"
            + (f", most from source {source[shade.argmax()]!r}" if shade is not None else "")
            + f", predicts {whole[number]!r}."
        )
    return picture


def _flowed(tokens: Sequence[str], width: float) -> list[list[tuple[int, str, float, float]]]:
    """Tokens set in lines: (place, text, left, width)."""
    lines, at = [[]], 0.0
    for place, token in enumerate(tokens):
        text = style.shortened(token, 2.0, 10)
        wide = style.text_width(text, 10) + 0.16
        if at + wide > width and lines[-1]:
            lines.append([])
            at = 0.0
        lines[-1].append((place, text, at, wide))
        at += wide + 0.06
    return lines


def _flow(content, lines, top, shade, shown_to=None, emphasised=None) -> float:
    """Draws lines of tokens in boxes; returns where they end."""
    for number, line in enumerate(lines):
        y = top + 0.35 * number
        for place, text, left, wide in line:
            if shown_to is not None and place >= max(shown_to, 1):
                continue
            weight = 0.0 if shade is None else float(shade[place])
            face = style.WEIGHTS(weight) if shade is not None else style.PAPER
            frame = emphasised is not None and emphasised[place]
            content.add_patch(
                FancyBboxPatch(
                    (left, y),
                    wide,
                    0.27,
                    boxstyle="round,pad=0,rounding_size=0.04",
                    facecolor=face,
                    edgecolor=style.VERMILION if frame else style.SOFT,
                    linewidth=1.6 if frame else 0.5,
                    clip_on=False,
                )
            )
            ink = style.ink_on(face) if shade is not None else style.INK
            middle = left + wide / 2
            parts.unit_text(content, middle, y + 0.13, text, fontsize=10, color=ink)
    return top + 0.35 * len(lines)


def animate_decoding(
    log: SearchLog,
    vocabulary: Sequence[str],
    path: epath.PathLike,
    *,
    result: int = 0,
    layer: int = -1,
    head: int | None = None,
    seconds: float = 1.0,
) -> epath.Path:
    """The film strip in motion: the same bytes for the same log.

    A ``.gif`` plays by itself, for ever. An ``.html`` page holds the same pictures, each with its
    description, and moves when the reader asks for the next one (by mouse or arrow keys); it has
    no script and loads nothing.

    Args:
      log: of `search_log.record`.
      vocabulary: every token, in the order of their ids.
      path: ends in ``.gif`` or ``.html``.
      result: which of the results, from the best, 0.
      layer: whose encoder-decoder attention.
      head: of that layer; the mean of all unless given.
      seconds: a step, in a GIF.

    Returns:
      the path.

    Raises:
      InputError: as `plot_decoding`, for another ending, and for a time that is not positive.
    """
    path = absolute(path)
    if path.suffix not in (".gif", ".html"):
        raise InputError(f"{path} ends in {path.suffix!r}; an animation is saved as .gif or .html")
    if not seconds > 0:
        raise InputError(f"seconds is {seconds}, but must be above 0")
    frames = _frames(log, result, layer, head)
    source = _words(vocabulary, log.source)
    said = "Framed: the token that is read."
    if frames[0].reads is not None:
        said += f" Shaded, from dark (0) to yellow (1): {_reading(layer, head, log)}."
    pictures = [
        _frame_picture(frames, number, source, vocabulary, said)
        for number in range(len(frames) + 1)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    told = [picture.description for picture in pictures]
    pngs = [style.rendered(picture, "png", {"Software": None}, 100) for picture in pictures]
    if path.suffix == ".gif":
        write_whole(path, _gif(pngs, seconds, " ".join(told)))
    else:
        write_whole(path, _page(pngs, told).encode("utf-8"))
    return path


def _gif(pngs: list[bytes], seconds: float, comment: str) -> bytes:
    images = [Image.open(io.BytesIO(png)).convert("RGB") for png in pngs]
    # One palette for all, so that a colour does not change from frame to frame.
    palette = images[-1].quantize(256, dither=Image.Dither.NONE)
    first, *others = (image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images)
    file = io.BytesIO()
    first.save(
        file,
        format="GIF",
        save_all=True,
        append_images=others,
        duration=[int(1000 * seconds)] * len(others) + [int(3000 * seconds)],
        loop=0,
        comment=comment.encode("utf-8"),
    )
    return file.getvalue()


def _page(pngs: list[bytes], told: list[str]) -> str:
    """One picture at a time, chosen by radio buttons, which arrow keys walk through."""
    slides = []
    for number, (png, text) in enumerate(zip(pngs, told, strict=True)):
        name = "start" if number == 0 else str(number)
        checked = {"checked": ""} if number == 0 else {}
        button = html.element(
            "input",
            type="radio",
            name="step",
            id=f"s{number}",
            aria_label=f"step {name}",
            **checked,
        )
        data = f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"
        picture = html.element("img", src=data, alt=text)
        label = html.element("label", name, for_=f"s{number}")
        slides += [button, label, html.element("figure", picture)]
    style_sheet = html.element("style", html.Html(_SLIDES))
    hint = html.paragraph("Choose a step, or go through them with the arrow keys.")
    form = html.element("form", *slides, class_="slides", autocomplete="off")
    return html.page("Decoding, one token after the other", style_sheet, hint, form)


_SLIDES = """
main { max-width: 64rem }
.slides { display: grid; grid-template-columns: repeat(24, auto); gap: .2rem .1rem }
.slides input { position: absolute; opacity: 0 }
.slides label { grid-row: auto; padding: .1rem .4rem; border: 1px solid var(--line);
  text-align: center; cursor: pointer }
.slides input:checked + label { background: var(--ink); color: var(--paper) }
.slides input:focus-visible + label { outline: 3px solid var(--s0) }
.slides figure { display: none; order: 1; grid-column: 1 / -1; margin: .5rem 0 }
.slides input:checked + label + figure { display: block }
.slides img { width: 100%; height: auto }
"""


@style.styled
def plot_beam_tree(
    log: SearchLog, vocabulary: Sequence[str], *, title: str | None = None
) -> Picture:
    """The hypotheses of every step, best first from the left, and what each goes on from.

    Args:
      log: of `search_log.record`.
      vocabulary: every token, in the order of their ids.
      title: above the figure.

    Raises:
      InputError: for a vocabulary that is too short.
    """
    source = _words(vocabulary, log.source)
    beams = max(len(step.tokens) for step in log.steps)
    most_finished = max(len(step.finished) for step in log.steps)
    wide, high, step_x, row = 1.02, 0.3, 1.2, 0.62
    left, top = 0.75, 0.35
    ends = left + step_x * beams + 0.25
    width = ends + max(1.65 * most_finished, 1.5)
    height = top + row * (len(log.steps) + 0.1) + 0.35
    best = log.path() if log.results else ()
    greedy = _greedy(log)
    title = title or (
        f"Beam search with {beams} beams" if beams > 1 else "Greedy search: a beam search of one"
    )
    note = (
        "A row a step: the live hypotheses, best first, each with its last token and log P so far. "
        "Thick: the way to the best result. Dashed frame: the most probable token every time "
        "(greedy). Right: hypotheses that the end token finished, with log P and score; ★ the best "
        "result, ✓ the other results."
    )
    picture = style.sheet(width, height, title, note)
    content = style.canvas(picture, width, height)
    parts.unit_text(content, left, 0.05, "live hypotheses", ha="left", color=style.SOFT)
    parts.unit_text(content, ends, 0.05, "finished", ha="left", color=style.SOFT)

    def place(index: int, beam: int) -> tuple[float, float]:
        return left + step_x * beam, top + row * index

    ranks = {result.tokens: rank for rank, result in enumerate(log.results)}
    for index, step in enumerate(log.steps):
        parts.unit_text(
            content,
            0,
            top + row * index + high / 2,
            f"step {index + 1}",
            ha="left",
            color=style.SOFT,
        )
        tokens = ["start" if not t else _words(vocabulary, t[-1:])[0] for t in step.tokens]
        for beam, token in enumerate(tokens):
            x, y = place(index, beam)
            on_best = index < len(best) and best[index] == beam
            if index:
                from_x, from_y = place(index - 1, step.parents[beam])
                content.plot(
                    [from_x + wide / 2, x + wide / 2],
                    [from_y + high + 0.015, y - 0.015],
                    color=style.VERMILION if on_best else style.SOFT,
                    linewidth=2.4 if on_best else 0.8,
                    zorder=1,
                    gid=f"edge {index} {beam} from {step.parents[beam]}",
                )
            _node(content, x, y, wide, high, on_best, greedy.get(index) == beam)
            text = style.shortened(token, wide - 0.5, 8)
            parts.unit_text(content, x + 0.05, y + high / 2, text, ha="left", zorder=3)
            parts.unit_text(
                content,
                x + wide - 0.05,
                y + high / 2,
                f"{step.log_probs[beam]:.2f}",
                ha="right",
                fontsize=6.5,
                zorder=3,
            )
        for number, one in enumerate(step.finished):
            x, y = place(index, one.beam)
            at = ends + 1.65 * number
            rank = ranks.get((*step.tokens[one.beam], EOS_ID))
            mark = "" if rank is None else ("★ " if rank == 0 else "✓ ")
            look = {"color": style.VERMILION if rank == 0 else style.SOFT}
            bottom = y + high + 0.1 + 0.06 * number
            content.plot(
                [x + wide / 2, x + wide / 2, at + 0.1, at + 0.1],
                [y + high + 0.015, bottom, bottom, y + high],
                linewidth=2.0 if rank == 0 else 0.7,
                zorder=0,
                gid=f"finished {index} {one.beam}",
                **look,
            )
            _node(content, at, y, 1.55, high, rank == 0, False)
            text = f"{mark}{one.log_prob:.2f}   score {one.score:.3f}"
            parts.unit_text(
                content,
                at + 0.08,
                y + high / 2,
                text,
                ha="left",
                fontsize=7,
                fontweight="bold" if rank == 0 else "normal",
                zorder=3,
            )
    told = [
        f"{' '.join(_words(vocabulary, result.tokens))!r} with log-probability "
        f"{result.log_prob:.2f} and score {result.score:.3f}"
        for result in log.results
    ]
    finished = sum(len(step.finished) for step in log.steps)
    picture.description = (
        f"{title}, {len(log.steps)} steps for {' '.join(source)!r}; {finished} hypotheses were "
        f"finished. Results, best first: {parts.list_of(told, 4)}."
    )
    return picture


def _greedy(log: SearchLog) -> dict[int, int]:
    """Which live hypothesis of each step greedy search would have, as long as it is live."""
    found, tokens = {0: 0}, ()
    for index, step in enumerate(log.steps[:-1]):
        tokens = (*tokens, int(step.top_tokens[found[index]][0]))
        following = log.steps[index + 1].tokens
        if tokens not in following:
            break
        found[index + 1] = following.index(tokens)
    return found


def _node(content, left, top, wide, high, strong, dashed) -> None:
    content.add_patch(
        FancyBboxPatch(
            (left, top),
            wide,
            high,
            boxstyle="round,pad=0,rounding_size=0.05",
            facecolor=style.PAPER,
            edgecolor=style.VERMILION if strong else style.INK if dashed else style.SOFT,
            linewidth=1.8 if strong else 1.2 if dashed else 0.6,
            linestyle=(0, (4, 2)) if dashed else "-",
            zorder=2,
        )
    )
