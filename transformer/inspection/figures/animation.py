# SPDX-License-Identifier: Apache-2.0
"""Decoding in motion: the frames of a film strip as a GIF, or as a page without scripts."""

import base64
import io
from collections.abc import Sequence
from numbers import Real

import numpy as np
from etils import epath
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import FancyBboxPatch
from PIL import Image

from transformer.errors import InputError
from transformer.inspection import html
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.decoding import Frame, frames_of, reading_of, words_of
from transformer.inspection.figures.style import Picture
from transformer.inspection.search_log import SearchLog
from transformer.paths import absolute, write_whole


@style.styled
def _frame_picture(
    frames: list[Frame], number: int, source: list[str], vocabulary: Sequence[str], said: str
) -> Picture:
    """One picture of the animation; all have the same size. Number 0 shows the encoder alone."""
    width = 9.0
    lines_of = lambda tokens: _flowed(tokens, width - 0.1)  # noqa: E731
    source_lines = lines_of(source)
    whole = ["start", *words_of(vocabulary, [frame.chosen for frame in frames])]
    target_lines = lines_of(whole)
    top_k = len(frames[0].tokens)
    high = 0.35 * (len(source_lines) + len(target_lines)) + 1.0 + 0.27 * (top_k + 1) + 0.3
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
        bars = list(zip(frame.tokens, frame.probabilities, strict=True))
        if not frame.listed:
            bars.append((frame.chosen, frame.probability))
        for place, (token, probability) in enumerate(bars):
            at = y + 0.22 + 0.27 * place
            taken = token == frame.chosen
            [word] = words_of(vocabulary, [token])
            weight = "bold" if taken else "normal"
            text = style.shortened(word, 1.5, 9)
            parts.unit_text(content, 1.7, at, text, ha="right", fontsize=9, fontweight=weight)
            colour = style.VERMILION if taken else style.SKY
            content.barh(at, 5.5 * probability, 0.18, left=1.8, color=colour)
            said = f"{probability:.2g}" + ("  ← taken" if taken else "")
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


def _flowed(tokens: Sequence[str], width: Real) -> list[list[tuple[int, str, float, float]]]:
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
    seconds: Real = 1.0,
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
    frames = frames_of(log, result, layer, head)
    source = words_of(vocabulary, log.source)
    said = "Framed: the token that is read."
    if frames[0].reads is not None:
        said += f" Shaded, from dark (0) to yellow (1): {reading_of(layer, head, log)}."
    pictures = [
        _frame_picture(frames, number, source, vocabulary, said)
        for number in range(len(frames) + 1)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    told = [picture.description for picture in pictures]
    pngs = [style.rendered(picture, "png", {"Software": None}, 100) for picture in pictures]
    indexed = [_indexed(png) for png in pngs]
    if path.suffix == ".gif":
        write_whole(path, _gif(indexed, seconds, " ".join(told)))
    else:
        write_whole(path, _page(indexed, told).encode("utf-8"))
    return path


def _gif(images: list[Image.Image], seconds: Real, comment: str) -> bytes:
    first, *others = images
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


def _indexed(png: bytes) -> Image.Image:
    """A frame in the colours of `_palette`, each pixel in the nearest."""
    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
    palette = np.asarray(_palette()).reshape(256, 3)
    colours, places = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True)
    distances = np.square(colours[:, None].astype(int) - palette).sum(-1)
    nearest = distances.argmin(-1).astype(np.uint8)
    image = Image.fromarray(nearest[places.ravel()].reshape(pixels.shape[:2]))
    image.putpalette(_palette())
    return image


def _palette() -> list[int]:
    """256 colours that hold what the frames draw: greys, the weights' colours, and shades of two
    more; the same for all frames, so that no colour changes from one to the next.
    """
    greys = np.linspace(0, 1, 48)[:, None].repeat(3, axis=1)
    weights = style.WEIGHTS(np.linspace(0, 1, 176))[:, :3]
    shades = [
        LinearSegmentedColormap.from_list("shades", [style.PAPER, colour])(np.linspace(0, 1, 16))
        for colour in (style.SKY, style.VERMILION)
    ]
    colours = np.concatenate([greys, weights, *(shade[:, :3] for shade in shades)])
    return (colours * 255).round().astype(int).ravel().tolist()


def _page(images: list[Image.Image], told: list[str]) -> str:
    """One picture at a time, chosen by radio buttons, which arrow keys walk through."""
    slides = []
    for number, (image, text) in enumerate(zip(images, told, strict=True)):
        png = io.BytesIO()
        image.save(png, format="PNG")
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
        data = f"data:image/png;base64,{base64.b64encode(png.getvalue()).decode('ascii')}"
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
