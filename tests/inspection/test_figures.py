# SPDX-License-Identifier: Apache-2.0
"""Figures are described in words, readable, reproducible, and leave matplotlib's state alone."""

import ast
import io
import subprocess
import sys
import xml.etree.ElementTree

import matplotlib
import numpy as np
import pytest
from apps import REPOSITORY
from drawings import DRAWN, LONG_WORD, Sentence, drawn, every_text, sentence, written
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from transformer.errors import InputError
from transformer.inspection import figures
from transformer.inspection.figures.style import DPI
from transformer.inspection.figures.typesetting import printable, shortened

# Every figure.


def test_every_public_figure_is_tested():
    public = {name.removeprefix("plot_") for name in figures.__all__ if name.startswith("plot_")}
    assert public == DRAWN.keys() - {"head_shares"}


def extents(text, renderer):
    """Boxes that a text covers, in pixels; a slanted one is a diagonal row of squares."""
    if not text.get_rotation():
        return [text.get_window_extent(renderer).extents]
    box = text.get_window_extent(renderer).extents
    side = text.get_fontsize() / 72 * text.figure.dpi / np.sqrt(2)
    count = max(int(min(box[2] - box[0], box[3] - box[1]) / side), 1)
    corners = np.linspace(box[:2], box[2:] - side, count)
    return [np.concatenate([corner, corner + side]) for corner in corners]


@pytest.mark.parametrize("size", ["short", pytest.param("long", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_is_readable_and_described(name, size):
    """No text is small, crosses the edge or another text; no figure is wider than a notebook."""
    figure = drawn(name, size)
    assert figure.description.endswith(".")
    assert 60 < len(figure.description) <= 2000
    assert min(text.get_fontsize() for text in every_text(figure)) * DPI / 72 >= 12
    if size == "short":
        assert figure.get_figwidth() * DPI <= 1150
    figure.draw_without_rendering()
    renderer = FigureCanvasAgg(figure).get_renderer()
    pieces = [(text, box) for text in every_text(figure) for box in extents(text, renderer)]
    texts, boxes = [text for text, _ in pieces], np.array([box for _, box in pieces])
    page = figure.bbox
    over = (boxes[:, :2] < -1).any(-1) | (boxes[:, 2:] > [page.width + 1, page.height + 1]).any(-1)
    assert [texts[i].get_text() for i in np.flatnonzero(over)] == []
    low = np.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    shared = np.maximum(high - low, 0)
    # The extent of a text includes accents and descenders, which most texts do not have.
    spans = boxes[:, 2:] - boxes[:, :2]
    smaller = np.minimum(spans[:, None], spans[None])
    covered = (shared > np.minimum(0.35 * smaller, 6)).all(-1)
    pairs = [(texts[a], texts[b]) for a, b in np.argwhere(np.triu(covered, 1))]
    assert [(a.get_text(), b.get_text()) for a, b in pairs if a is not b] == []


@pytest.mark.parametrize("names", [["beam_tree"], pytest.param(DRAWN, marks=pytest.mark.slow)])
def test_equal_data_give_equal_files(names, tmp_path):
    for name in names:
        figures_of_equal_data = [DRAWN[name](Sentence(5, 4)) for _ in range(2)]
        for ending in ("png", "svg"):
            first, second = (
                figures.save(figure, tmp_path / f"f.{ending}").read_bytes()
                for figure in figures_of_equal_data
            )
            assert first == second, (name, ending)
        assert b"dc:date" not in first


# Texts.


def test_any_string_can_be_a_title_a_name_or_a_token(tmp_path):
    for title in ["", "$a_{", "你", LONG_WORD * 4, "a\nb"]:
        figure = figures.plot_head_table({title or "x": [[1.0]]}, label=title, title=title)
        figures.save(figure, tmp_path / "f.png", dpi=40)
    token = "▁你"
    figure = figures.plot_token_heads(np.ones((1, 1, 1)), 0, [token], ["שלום"])
    figures.save(figure, tmp_path / "f.png", dpi=40)
    assert "<4F60>" in written(figure)
    assert "'你'" in figure.description


def test_characters_without_a_glyph_are_shown_by_their_code_points():
    assert [printable(token) for token in ("▁$x^2$", "שלום", "", "  ", "a b")] == [
        "▁$x^2$",
        "שלום",
        "(empty)",
        "␣␣",
        "a b",
    ]
    assert printable("你\n\u200d") == "<4F60><A><200D>"
    assert shortened(LONG_WORD, 0.8, 8).endswith("…")
    assert shortened("▁The", 0.8, 8) == "▁The"


# Styles, files and notebooks.


def test_the_users_style_is_neither_changed_nor_used():
    with matplotlib.rc_context({"font.size": 30, "image.cmap": "gray", "text.parse_math": True}):
        before = dict(matplotlib.rcParams)
        figure = DRAWN["attention"](sentence("short"))
        assert dict(matplotlib.rcParams) == before
    expected = drawn("attention")
    np.testing.assert_array_equal(figure.get_size_inches(), expected.get_size_inches())
    sizes = [[text.get_fontsize() for text in every_text(f)] for f in (figure, expected)]
    assert sizes[0] == sizes[1]


def test_matplotlib_is_imported_by_figures_alone_and_pyplot_by_nothing():
    importers = set()
    for path in (REPOSITORY / "transformer").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            if any(name.partition(".")[0] == "matplotlib" for name in names):
                importers.add(str(path.parent.relative_to(REPOSITORY)))
                assert not any("pyplot" in name for name in names), path
    assert importers == {"transformer/inspection/figures"}


@pytest.mark.slow
def test_drawing_imports_no_pyplot_and_the_rest_of_inspection_no_matplotlib():
    program = (
        "import sys; from transformer.inspection import search_log, html\n"
        "assert 'matplotlib' not in sys.modules\n"
        "from transformer.inspection import figures\n"
        "figures.plot_attention([[1.0]], ['a'], ['b']).description\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, check=True)


def test_files_contain_the_description_and_no_date(tmp_path):
    figure = drawn("masks")
    with Image.open(figures.save(figure, tmp_path / "f.png", dpi=40)) as image:
        assert image.text == {"Description": figure.description}
    root = xml.etree.ElementTree.parse(figures.save(figure, tmp_path / "f.svg")).getroot()
    assert (root.get("role"), root[0].text) == ("img", figure.description)
    assert root[0].tag.endswith("desc")
    data = figures.save(figure, tmp_path / "new" / "f.pdf").read_bytes()
    assert data.startswith(b"%PDF") and b"CreationDate" not in data
    with pytest.raises(InputError, match="f.bmp ends in '.bmp'; a figure is saved as '.png'"):
        figures.save(figure, tmp_path / "f.bmp")


def test_the_text_of_an_svg_is_text_or_on_request_shapes():
    figure = drawn("masks")
    as_text, as_paths = figures.to_svg(figure), figures.to_svg(figure, text_as_paths=True)
    assert as_text.startswith("<svg ") and as_paths.startswith("<svg ")
    assert ">Attention masks</text>" in as_text
    assert "<text" not in as_paths
    assert "<metadata" not in as_text and "<metadata" not in as_paths


def test_a_notebook_shows_the_figure_in_a_palette_close_to_its_colors(tmp_path):
    """With its description as alternative text."""
    figure = drawn("token_heads")
    data, metadata = figure._repr_mimebundle_()
    assert metadata == {"image/png": {"alt": figure.description}}
    assert data["image/png"].startswith("iVBOR")
    assert figure.description in data["text/plain"]
    kept = figure.png()
    full = figures.save(figure, tmp_path / "figure.png", dpi=DPI)
    assert len(kept) < len(full.read_bytes()) / 2
    pixels = [
        np.asarray(Image.open(file).convert("RGB"), float) for file in (io.BytesIO(kept), full)
    ]
    assert np.abs(pixels[0] - pixels[1]).max() <= 16, "of 255"
