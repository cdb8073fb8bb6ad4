# SPDX-License-Identifier: Apache-2.0
"""Figures are told in words, are readable, and change nothing around."""

import ast
import base64
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
from transformer.inspection.figures.style import DPI, shortened, shown

QUICK = ("attention", "head_table", "beam_tree", "residual_flow")
"""Drawn again in every run of the tests; the others where there is more time."""


# What holds of every figure.


def test_every_public_drawing_has_a_case():
    public = {name.removeprefix("plot_") for name in figures.__all__ if name.startswith("plot_")}
    assert public == DRAWN.keys() - {"head_shares"}


@pytest.mark.parametrize("size", ["short", "long"])
@pytest.mark.parametrize("name", DRAWN)
def test_nothing_is_written_over_the_edge_or_over_another_text(name, size):
    figure = drawn(name, size)
    renderer = FigureCanvasAgg(figure).get_renderer()
    texts = every_text(figure)
    boxes = np.array([text.get_window_extent(renderer).extents for text in texts])
    page = figure.bbox
    over = (boxes[:, :2] < -1).any(-1) | (boxes[:, 2:] > [page.width + 1, page.height + 1]).any(-1)
    assert [texts[place].get_text() for place in np.flatnonzero(over)] == []
    low = np.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    shared = np.maximum(high - low, 0)
    # A text's box has room for accents and descenders, which most texts do not have.
    spans = boxes[:, 2:] - boxes[:, :2]
    smaller = np.minimum(spans[:, None], spans[None])
    covered = (shared > np.minimum(0.35 * smaller, 6)).all(-1)
    pairs = np.argwhere(np.triu(covered, 1))
    assert [(texts[a].get_text(), texts[b].get_text()) for a, b in pairs] == []


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_is_told_in_words_and_the_words_are_in_its_files(name, tmp_path):
    figure = drawn(name)
    told = figures.describe(figure)
    assert told.endswith(".")
    assert 60 < len(told) < 2000
    figures.save(figure, tmp_path / "f.png", dpi=40)
    with Image.open(tmp_path / "f.png") as image:
        assert image.text == {"Description": told}
    figures.save(figure, tmp_path / "f.svg")
    root = xml.etree.ElementTree.parse(tmp_path / "f.svg").getroot()
    assert root.get("role") == "img"
    assert root[0].tag.endswith("desc")
    assert root[0].text == told


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in DRAWN],
)
def test_the_same_data_give_the_same_bytes(name, tmp_path):
    files = []
    for copy in (Sentence(5, 4), Sentence(5, 4)):
        figure = DRAWN[name](copy)
        files.append(
            [figures.save(figure, tmp_path / f"f.{k}").read_bytes() for k in ("png", "svg")]
        )
    assert files[0] == files[1]
    assert b"<dc:date>" not in files[0][1]


def test_titles_and_names_are_shown_however_awkward_they_are(tmp_path):
    for title in ["", "$a_{", "你", LONG_WORD * 4, "a\nb"]:
        figure = figures.plot_head_table({title or "x": [[1.0]]}, label=title, title=title)
        figures.save(figure, tmp_path / "f.png", dpi=40)
    token = "▁你"
    figure = figures.plot_token_heads(np.ones((1, 1, 1)), 0, [token], ["שלום"])
    figures.save(figure, tmp_path / "f.png", dpi=40)
    assert "▁<4F60>" in {text.get_text() for text in every_text(figure)}
    assert token in figures.describe(figure)


def test_long_descriptions_stay_short_enough_to_be_listened_to():
    told = {name: len(figures.describe(drawn(name, "long"))) for name in DRAWN}
    assert {name: length for name, length in told.items() if length > 2000} == {}


# Around the figures.


def test_no_style_is_changed_and_no_style_gets_in():
    with matplotlib.rc_context({"font.size": 30, "image.cmap": "gray", "text.parse_math": True}):
        before = dict(matplotlib.rcParams)
        figure = DRAWN["attention"](sentence("short"))
        assert dict(matplotlib.rcParams) == before
    expected = drawn("attention")
    np.testing.assert_array_equal(figure.get_size_inches(), expected.get_size_inches())
    sizes = [[text.get_fontsize() for text in every_text(f)] for f in (figure, expected)]
    assert sizes[0] == sizes[1]


def test_pyplot_is_never_loaded_and_matplotlib_only_by_this_package():
    program = (
        "import sys; from transformer.inspection import search_log, html\n"
        "assert 'matplotlib' not in sys.modules\n"
        "from transformer.inspection import figures\n"
        "figures.describe(figures.plot_attention([[1.0]], ['a'], ['b']))\n"
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


def test_a_notebook_shows_the_picture_with_its_description_as_alternative_text():
    figure = drawn("masks")
    data, metadata = figure._repr_mimebundle_()
    assert metadata == {"image/png": {"alt": figures.describe(figure)}}
    assert data["image/png"].startswith("iVBOR")
    assert figures.describe(figure) in data["text/plain"]


def test_a_notebook_keeps_few_colours_that_are_nearly_those_of_the_figure(tmp_path):
    figure = drawn("token_heads")
    kept = base64.b64decode(figure._repr_mimebundle_()[0]["image/png"])
    whole = figures.save(figure, tmp_path / "figure.png", dpi=DPI)
    assert len(kept) < len(whole.read_bytes()) / 2
    pixels = [
        np.asarray(Image.open(file).convert("RGB"), float) for file in (io.BytesIO(kept), whole)
    ]
    assert np.abs(pixels[0] - pixels[1]).max() <= 16, "of 255"


def test_a_figure_is_saved_by_its_ending_into_a_folder_that_need_not_exist(tmp_path):
    path = figures.save(drawn("masks"), tmp_path / "new" / "f.pdf")
    assert path.read_bytes().startswith(b"%PDF")
    assert b"CreationDate" not in path.read_bytes()
    with pytest.raises(InputError, match=r"f.bmp ends in '.bmp'; a figure is saved as \['png'"):
        figures.save(drawn("masks"), tmp_path / "f.bmp")


def test_tokens_are_shown_as_they_are_and_what_has_no_glyph_by_its_code_point():
    assert [shown(token) for token in ("▁$x^2$", "שלום", "", "  ", "a b")] == [
        "▁$x^2$",
        "שלום",
        "(empty)",
        "␣␣",
        "a b",
    ]
    assert shown("你\n\u200d") == "<4F60><A><200D>"
    assert shortened(LONG_WORD, 0.8, 8).endswith("…")
    assert shortened("▁The", 0.8, 8) == "▁The"
