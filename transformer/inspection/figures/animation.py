# SPDX-License-Identifier: Apache-2.0
"""Decoding in motion: the frames of a film strip as a GIF, or as a page without scripts."""

import base64
import io
from collections.abc import Sequence
from numbers import Real

import numpy as np
from etils import epath
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.patches import FancyBboxPatch
from PIL import Image

from transformer.errors import InputError
from transformer.inspection import html
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.decoding_plots import Frame, frames_of, reading_of, words_of
from transformer.inspection.figures.style import Picture
from transformer.inspection.search_log import SearchLog
from transformer.paths import absolute, write_atomic

LINE, BAR = 0.35, 0.27
"""Inches from line to line of tokens, and from bar to bar."""


@style.styled
def _frame_picture(
    frames: list[Frame], number: int, source: list[str], vocabulary: Sequence[str], said: str
) -> Picture:
    """One picture of the animation; all have the same size. Number 0 shows the encoder alone."""
    width = 9.0
    target = ["start", *words_of(vocabulary, [frame.chosen for frame in frames])]
    source_lines, target_lines = _in_lines(source, width), _in_lines(target, width)
    bars = len(frames[0].tokens) + 1
    high = LINE * (len(source_lines) + len(target_lines)) + 1.0 + BAR * bars + 0.3
    headline = "First the encoder reads the whole source, once"
    if number:
        headline = f"Step {number} of {len(frames)}: read and predict"
    picture = style.sheet(width, high, headline, said)
    content = style.canvas(picture, width, high)
    heading = {"ha": "left", "color": style.SOFT}
    frame = frames[number - 1] if number else None
    reads = None if frame is None else frame.reads
    faces = [style.PAPER] * len(source) if reads is None else list(map(style.WEIGHTS, reads))
    parts.unit_text(content, 0, 0.08, "source", **heading)
    end = _boxes(content, source_lines, 0.22, faces, None)
    parts.unit_text(content, 0, end + 0.25, "target so far", **heading)
    faces = [style.PAPER] * max(number, 1)
    end = _boxes(content, target_lines, end + 0.39, faces, number - 1 if number else None)
    if frame is None:
        picture.description = headline + "."
        return picture
    parts.unit_text(content, 0, end + 0.3, "most probable next tokens", **heading)
    _bars(content, frame, vocabulary, end + 0.52)
    picture.description = (
        f"Step {number} of {len(frames)}: reads {target[number - 1]!r}"
        + (f", most from source {source[reads.argmax()]!r}" if reads is not None else "")
        + f", predicts {target[number]!r}."
    )
    return picture


def _bars(content: Axes, frame: Frame, vocabulary: Sequence[str], top: Real) -> None:
    """The most probable tokens and, where it is not among them, the one that was taken."""
    bars = list(zip(frame.tokens, frame.probabilities, strict=True))
    if not frame.listed:
        bars.append((frame.chosen, frame.probability))
    for place, (token, probability) in enumerate(bars):
        y, taken = top + BAR * place, token == frame.chosen
        [word] = words_of(vocabulary, [token])
        look = {"ha": "right", "fontsize": 9, "fontweight": style.weight(word, taken)}
        parts.unit_text(content, 1.7, y, style.shortened(word, 1.5, 9), **look)
        colour = style.VERMILION if taken else style.SKY
        content.barh(y, 5.5 * probability, 0.18, left=1.8, color=colour)
        said = f"{probability:.2g}" + ("  ← taken" if taken else "")
        parts.unit_text(content, 1.86 + 5.5 * probability, y, said, ha="left")


def _in_lines(tokens: Sequence[str], width: Real) -> list[list[tuple[int, str, float, float]]]:
    """Tokens set in lines of so many inches: (place, text, left, width)."""
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


def _boxes(content: Axes, lines, top: Real, faces: list, framed: int | None) -> float:
    """Draws tokens in boxes, as many as have a face; returns where the last line ends."""
    for number, line in enumerate(lines):
        y = top + LINE * number
        for place, text, left, wide in line:
            if place >= len(faces):
                continue
            face, strong = to_rgba(faces[place]), place == framed
            content.add_patch(
                FancyBboxPatch(
                    (left, y),
                    wide,
                    0.27,
                    boxstyle="round,pad=0,rounding_size=0.04",
                    facecolor=face,
                    edgecolor=style.VERMILION if strong else style.SOFT,
                    linewidth=1.6 if strong else 0.5,
                    clip_on=False,
                )
            )
            look = {"fontsize": 10, "color": style.ink_on(face)}
            parts.unit_text(content, left + wide / 2, y + 0.13, text, **look)
    return top + LINE * len(lines)


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
        write_atomic(path, _gif(indexed, seconds, " ".join(told)))
    else:
        write_atomic(path, _page(indexed, told).encode("utf-8"))
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
