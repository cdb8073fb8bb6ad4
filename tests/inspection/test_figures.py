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
from drawings import DRAWN, LONG_WORD, Sentence, drawn, every_text, sentence
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from transformer.errors import InputError
from transformer.inspection import figures
from transformer.inspection.figures.style import DPI
from transformer.inspection.figures.typesetting import printable, shortened

QUICK = ("attention", "head_table", "beam_tree", "residual_flow")
"""Drawn twice in the default tests; the others in the slow ones."""

SIZES = ["short", pytest.param("long", marks=pytest.mark.slow)]


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


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", DRAWN)
def test_no_text_is_smaller_than_twelve_pixels_and_no_figure_wider_than_a_notebook(name, size):
    figure = drawn(name, size)
    points = min(text.get_fontsize() for text in every_text(figure))
    assert points * DPI / 72 >= 12
    if size == "short":
        assert figure.get_figwidth() * DPI <= 1150


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", DRAWN)
def test_no_text_crosses_the_edge_or_another_text(name, size):
    figure = drawn(name, size)
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


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_has_a_description_which_its_files_contain(name, tmp_path):
    figure = drawn(name)
    description = figure.description
    assert description.endswith(".")
    assert 60 < len(description) < 2000
    figures.save(figure, tmp_path / "f.png", dpi=40)
    with Image.open(tmp_path / "f.png") as image:
        assert image.text == {"Description": description}
    figures.save(figure, tmp_path / "f.svg")
    root = xml.etree.ElementTree.parse(tmp_path / "f.svg").getroot()
    assert root.get("role") == "img"
    assert root[0].tag.endswith("desc")
    assert root[0].text == description


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in DRAWN],
)
def test_equal_data_give_equal_bytes(name, tmp_path):
    files = []
    for copy in (Sentence(5, 4), Sentence(5, 4)):
        figure = DRAWN[name](copy)
        files.append(
            [figures.save(figure, tmp_path / f"f.{k}").read_bytes() for k in ("png", "svg")]
        )
    assert files[0] == files[1]
    assert b"dc:date" not in files[0][1]


def test_any_string_can_be_a_title_a_name_or_a_token(tmp_path):
    for title in ["", "$a_{", "你", LONG_WORD * 4, "a\nb"]:
        figure = figures.plot_head_table({title or "x": [[1.0]]}, label=title, title=title)
        figures.save(figure, tmp_path / "f.png", dpi=40)
    token = "▁你"
    figure = figures.plot_token_heads(np.ones((1, 1, 1)), 0, [token], ["שלום"])
    figures.save(figure, tmp_path / "f.png", dpi=40)
    assert "<4F60>" in {text.get_text() for text in every_text(figure)}
    assert "'你'" in figure.description


@pytest.mark.slow
def test_descriptions_of_long_sentences_are_at_most_2000_characters():
    lengths = {name: len(drawn(name, "long").description) for name in DRAWN}
    assert {name: length for name, length in lengths.items() if length > 2000} == {}


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


def test_pyplot_is_not_imported_and_matplotlib_only_by_figures():
    program = (
        "import sys; from transformer.inspection import search_log, html\n"
        "assert 'matplotlib' not in sys.modules\n"
        "from transformer.inspection import figures\n"
        "figures.plot_attention([[1.0]], ['a'], ['b']).description\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "print(sorted(m for m in sys.modules if m.startswith('matplotlib.backends.backend_')))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    importers = set()
    for path in (REPOSITORY / "transformer").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if any(name.partition(".")[0] == "matplotlib" for name in names):
                importers.add(str(path.parent.relative_to(REPOSITORY)))
    assert importers == {"transformer/inspection/figures"}


def test_a_notebook_shows_the_figure_with_its_description_as_alternative_text():
    figure = drawn("masks")
    data, metadata = figure._repr_mimebundle_()
    assert metadata == {"image/png": {"alt": figure.description}}
    assert data["image/png"].startswith("iVBOR")
    assert figure.description in data["text/plain"]


def test_a_notebook_stores_a_palette_that_is_close_to_the_colors_of_the_figure(tmp_path):
    figure = drawn("token_heads")
    kept = figure.png()
    full = figures.save(figure, tmp_path / "figure.png", dpi=DPI)
    assert len(kept) < len(full.read_bytes()) / 2
    pixels = [
        np.asarray(Image.open(file).convert("RGB"), float) for file in (io.BytesIO(kept), full)
    ]
    assert np.abs(pixels[0] - pixels[1]).max() <= 16, "of 255"


def test_the_file_type_follows_from_the_ending_and_the_folder_is_made(tmp_path):
    path = figures.save(drawn("masks"), tmp_path / "new" / "f.pdf")
    assert path.read_bytes().startswith(b"%PDF")
    assert b"CreationDate" not in path.read_bytes()
    with pytest.raises(InputError, match="f.bmp ends in '.bmp'; a figure is saved as '.png'"):
        figures.save(drawn("masks"), tmp_path / "f.bmp")


def test_the_text_of_an_svg_is_text_or_on_request_shapes():
    figure = drawn("masks")
    as_text, as_paths = figures.to_svg(figure), figures.to_svg(figure, text_as_paths=True)
    assert as_text.startswith("<svg ") and as_paths.startswith("<svg ")
    assert ">Attention masks</text>" in as_text
    assert "<text" not in as_paths
    assert "<metadata" not in as_text and "<metadata" not in as_paths


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
