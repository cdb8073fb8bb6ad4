# SPDX-License-Identifier: Apache-2.0
"""Figures draw what they are given, are told in words, are readable, and change nothing around."""

import ast
import base64
import functools
import io
import subprocess
import sys
import xml.etree.ElementTree

import jax
import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from PIL import Image
from test_apps import REPOSITORY

from transformer.config import DecodeConfig, TransformerConfig
from transformer.errors import InputError
from transformer.inspection import figures, search_log
from transformer.inspection.figures import style
from transformer.inspection.figures.style import DPI, shortened, shown
from transformer.inspection.trace import run
from transformer.positions import sinusoids

LONG_WORD = "▁Donaudampfschifffahrtsgesellschaft"
AWKWARD = ["▁$x^2$", "שלום", "你好", "a\nb", "", "  ", "&<b>", LONG_WORD, "▁_{", "👩‍👩‍👧"]


def words(count, side):
    """Tokens of a sentence, some of them long or awkward."""
    plain = ["▁The", "▁animal", "didn", "'", "t", "▁because", "▁it", ".", "</s>"]
    cycle = plain[:count] if count <= 5 else [*plain, *AWKWARD]
    return [f"{cycle[place % len(cycle)]}" for place in range(count - 1)] + [f"{side}{count}"]


def softmax(scores):
    """Over the last axis."""
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


class Sentence:
    """Random arrays of one sentence pair; no two sizes are the same."""

    def __init__(self, source, target):
        random = np.random.default_rng(source)
        self.normal = random.standard_normal
        self.source, self.target_in = words(source, "s"), words(target, "i")
        self.target_out = [*self.target_in[1:], "</s>"]
        self.rows = figures.read_predict(self.target_in, self.target_out)
        self.causal = np.tril(np.ones((target, target), bool))
        self.encoder = softmax(self.normal((2, 4, source, source)) * 3)
        self.cross = softmax(self.normal((3, 8, target, source)) * 3)
        scores = np.where(self.causal, self.normal((3, 8, target, target)) * 2, -1e30)
        self.decoder = softmax(scores)
        self.x = self.normal((source, 24))
        self.kernels = [self.normal((24, size)) for size in (6, 6, 7)]
        self.q, self.k, self.v = (self.x @ kernel for kernel in self.kernels)
        self.vocabulary = [*words(source, "v"), *AWKWARD, *map(str, range(10))]
        self.ids = random.integers(0, len(self.vocabulary), target)
        self.logits = self.normal((4, target, len(self.vocabulary))) * 2
        smooth = np.full(self.logits.shape[1:], 0.1 / (len(self.vocabulary) - 1))
        smooth[np.arange(target), self.ids] = 0.9
        self.smooth = smooth
        self.sublayers = [f"{layer} {name}" for layer in (1, 2) for name in ("attention", "ffn")]
        self.stream = self.normal((3, 4, source, 24))
        self.log = self.search(source, target)

    def search(self, source, target):
        """A log as a search of two beams might leave it."""
        ids = [4 + place % 5 for place in range(source)]
        steps, live = [], [((), 0.0)]
        for index in range(target):
            beams = len(live)
            top = np.argsort(self.normal((beams, 20)), axis=-1)[:, :4]
            steps.append(
                search_log.SearchStep(
                    tokens=tuple(tokens for tokens, _ in live),
                    log_probs=tuple(total for _, total in live),
                    parents=() if index == 0 else (0, 0) if index == 1 else (1, 0),
                    top_tokens=top,
                    top_log_probs=-np.sort(np.abs(self.normal((beams, 4))), axis=-1) - 0.3,
                    cross_attention=softmax(self.normal((beams, 3, 8, source)) * 2),
                    finished=(search_log.Finished(0, -2.5 - index, -1.5),)
                    if index >= target - 2
                    else (),
                )
            )
            grown = [live[0], live[0]] if index == 0 else [live[1], live[0]]
            live = [
                ((*tokens, 5 + beam + index % 3), total - 0.5 - beam)
                for beam, (tokens, total) in enumerate(grown)
            ]
        results = tuple(
            search_log.Result((*step.tokens[0], 2), -1.5, step.finished[0].log_prob)
            for step in steps[-1:-3:-1]
        )
        return search_log.SearchLog(tuple(ids), tuple(steps), results)


@functools.cache
def sentence(size):
    """Short: 5 and 4 tokens; long: 30 and 29."""
    return {"short": Sentence(5, 4), "long": Sentence(30, 29)}[size]


TINY = TransformerConfig(
    vocab_size=11, encoder_layers=2, decoder_layers=3, d_model=12, num_heads=3, d_ff=20, norm="pre"
)

KINDS = ("png", "svg")

DRAWN = {
    "architecture": lambda s: figures.plot_architecture(TINY),
    "attention": lambda s: figures.plot_attention(
        s.decoder[0, 0], s.rows, s.target_in, mask=s.causal, annotate=True
    ),
    "attention_grid": lambda s: figures.plot_attention_grid(s.cross, s.rows, s.source),
    "token_heads": lambda s: figures.plot_token_heads(s.encoder[1], 2, s.source, s.source),
    "head_shares": lambda s: figures.plot_token_heads(
        s.decoder[1], 2, s.rows, s.target_in, normalize="heads"
    ),
    "attention_steps": lambda s: figures.plot_attention_steps(
        s.x, s.q, s.k, s.v, 1, s.source, mask=np.tril(np.ones((len(s.source),) * 2, bool))
    ),
    "attention_matrices": lambda s: figures.plot_attention_matrices(s.x, *s.kernels, s.source),
    "head_assembly": lambda s: figures.plot_head_assembly(
        s.normal((8, len(s.source), 7)), s.normal((8, 7, 24)), s.source
    ),
    "positional_encoding": lambda s: figures.plot_positional_encoding(
        {layout: sinusoids(len(s.source), 24, layout) for layout in ("interleaved", "halves")}
    ),
    "vectors": lambda s: figures.plot_vectors(
        {"embedding": s.x, "position": s.x[:, ::-1], "query": s.q, "value": s.v}, s.source
    ),
    "residual_flow": lambda s: figures.plot_residual_flow(*s.stream, s.sublayers, s.source),
    "output_distribution": lambda s: figures.plot_output_distribution(
        s.logits[1],
        s.vocabulary,
        s.target_in,
        s.ids,
        before=s.logits[0],
        target=s.smooth,
    ),
    "alignment": lambda s: figures.plot_alignment(
        s.cross[0, 0], s.source, s.target_in, s.target_out, gold={(0, 0), (2, 1), (2, 4)}
    ),
    "decoding": lambda s: figures.plot_decoding(s.log, s.vocabulary),
    "beam_tree": lambda s: figures.plot_beam_tree(s.log, s.vocabulary),
    "curves": lambda s: figures.plot_curves(
        {
            "training": (range(len(s.source)), np.exp(s.normal(len(s.source)))),
            "validation": ([0, len(s.source)], [3.0, 0.5]),
        },
        x_label="step",
        y_label="loss (nats a token)",
        levels={"the least that is possible": 0.33},
        logarithmic=len(s.source) > 5,
    ),
    "logit_lens": lambda s: figures.plot_logit_lens(s.logits, s.vocabulary, s.target_in, s.ids),
    "head_table": lambda s: figures.plot_head_table(
        {"encoder": s.normal((2, 4)), "decoder": s.normal((3, 8)), "cross": s.normal((3, 8))},
        label="coreference score",
    ),
    "patch_map": lambda s: figures.plot_patch_map(s.normal((3, len(s.source))), s.source),
    "attribution": lambda s: figures.plot_attribution(
        s.normal((len(s.rows), len(s.source) + len(s.target_in))),
        s.source,
        s.target_in,
        s.target_out,
    ),
    "spread": lambda s: figures.plot_spread(
        {word: s.normal(5) for word in dict.fromkeys(s.source)},
        label="coreference score",
        marked=s.normal(len(set(s.source))),
        limits=np.abs(s.normal(len(set(s.source)))),
    ),
    "masks": lambda s: figures.plot_masks(
        s.source,
        s.target_in,
        source_mask=np.arange(len(s.source)) < len(s.source) - 2,
        causal=s.causal,
    ),
}


QUICK = ("attention", "head_table", "beam_tree", "residual_flow")
"""Drawn again in every run of the tests; the others where there is more time."""


@functools.cache
def drawn(name, size="short"):
    """The figure, drawn once for all tests that only look at it."""
    return DRAWN[name](sentence(size))


def panel(figure, label):
    """The axes of this name."""
    [found] = [ax for ax in figure.axes if ax.get_label() == label]
    return found


def values(figure, label=None):
    """What a panel's heat map shows; of the only one unless named."""
    axes = [panel(figure, label)] if label else [ax for ax in figure.axes if ax.images]
    [image] = [image for ax in axes for image in ax.images]
    return image.get_array()


def framed(figure):
    """The cells in frames, by their names."""
    return sorted(p.get_gid() for ax in figure.axes for p in ax.patches if p.get_gid())


def labels(axis):
    """The texts along an axis."""
    return [text.get_text() for text in axis.get_ticklabels()]


def every_text(figure):
    """All that is written in a figure."""
    return [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]


# What holds of every figure.


def test_every_public_drawing_has_a_case_here():
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
        files.append([figures.save(figure, tmp_path / f"f.{k}").read_bytes() for k in KINDS])
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


# Every figure draws its data.


def test_attention_draws_the_weights_and_crosses_out_what_the_mask_forbids():
    s = sentence("short")
    figure = drawn("attention")
    found = values(figure)
    np.testing.assert_array_equal(found.data, s.decoder[0, 0])
    np.testing.assert_array_equal(found.mask, ~s.causal)
    [ax] = [ax for ax in figure.axes if ax.images]
    assert labels(ax.yaxis) == ["▁The → ▁animal", "▁animal → didn", "didn → i4", "i4 → </s>"]
    assert labels(ax.xaxis) == s.target_in
    written = [text.get_text() for text in ax.texts]
    assert written == [f"{value:.2f}" for value in s.decoder[0, 0][s.causal]]


def test_the_grid_draws_every_layer_and_head_or_those_asked_for():
    s = sentence("short")
    figure = drawn("attention_grid")
    for layer in range(3):
        for head in range(8):
            found = values(figure, f"layer {layer + 1} head {head + 1}")
            np.testing.assert_array_equal(found, s.cross[layer, head])
    some = figures.plot_attention_grid(s.cross, s.rows, s.source, layers=[-1], heads=[5, 0])
    panels = [ax.get_label() for ax in some.axes if ax.get_label().startswith("layer")]
    assert panels == ["layer 3 head 6", "layer 3 head 1"]


def test_the_grid_of_a_long_sentence_numbers_its_tokens_and_says_which_is_which():
    written = " ".join(text.get_text() for text in every_text(drawn("attention_grid", "long")))
    assert "keys:   1 ▁The   2 ▁animal" in written
    assert "queries:   1 ▁The → ▁animal" in written


def test_heads_of_one_token_sum_to_one_over_the_keys():
    s = sentence("short")
    figure = drawn("token_heads")
    np.testing.assert_array_equal(values(figure, "values"), s.encoder[1, :, 2].T)
    np.testing.assert_allclose(values(figure, "values").sum(0), 1)
    lines = {line.get_gid() for ax in figure.axes for line in ax.lines if line.get_gid()}
    drawn_lines = np.argwhere(s.encoder[1, :, 2] > 0.01) + 1
    assert lines == {f"head {head} key {key}" for head, key in drawn_lines}


def test_shares_between_heads_sum_to_one_over_the_heads_and_are_called_so():
    s = sentence("short")
    figure = drawn("head_shares")
    found = values(figure, "values")
    row = s.decoder[1, :, 2, :3]
    np.testing.assert_allclose(found[:3], (row / row.sum(0)).T)
    np.testing.assert_allclose(found[:3].sum(1), 1)
    assert found.mask[3:].all(), "no head may attend to what comes later"
    assert "shares between heads" in figures.describe(figure)
    assert any("As in the Illustrated Transformer's figure" in t.get_text() for t in figure.texts)


def test_the_six_steps_of_a_hand_worked_case():
    """q.k of 112 and 96 with keys of size 64: divided by 8, the weights are .88 and .12."""
    q = np.zeros((2, 64))
    q[0, 0] = 1.0
    k = np.zeros((2, 64))
    k[:, 0] = 112, 96
    v = np.array([[1.0, 0.0], [0.0, 1.0]])
    figure = figures.plot_attention_steps(
        np.ones((2, 3)), q, k, v, 0, ["Thinking", "Machines"], z=[[0.8808, 0.1192]] * 2
    )
    written = {text.get_text() for text in every_text(figure)}
    assert {"112.00", "96.00", "14.00", "12.00", "0.881", "0.119", "÷ √64"} <= written
    np.testing.assert_allclose(values(figure, "result"), [[0.8808, 0.1192]], atol=1e-4)
    np.testing.assert_allclose(values(figure, "weighted"), [[0.8808, 0], [0, 0.1192]], atol=1e-4)


@pytest.fixture(scope="module")
def trace(shallow):
    """One sentence through a small model, everything captured."""
    return jax.jit(lambda: run(*shallow, [4, 7, 5, 10, 2], [1, 5, 9, 4], capture="full")[1])()


def test_steps_matrices_and_assembly_are_those_of_a_model_under_its_mask(trace, shallow):
    """Which they check themselves, against the model's z and its output."""
    params, _ = shallow
    tokens, causal = ["a", "b", "c", "d"], np.tril(np.ones((4, 4), bool))
    attention, layer, head = trace.decoder.self_attention, 1, 1
    x = trace.decoder.residual[layer]
    q, k, v, z = (
        np.asarray(part)[layer, head]
        for part in (attention.query, attention.key, attention.value, attention.z)
    )
    figure = figures.plot_attention_steps(x, q, k, v, 3, tokens, mask=causal, z=z)
    np.testing.assert_allclose(values(figure, "result")[0], z[3], atol=1e-5)
    kernels = params["decoder"][f"layer_{layer}"]["self_attention"]
    of_head = [kernels[name][:, head] for name in ("query", "key", "value")]
    figure = figures.plot_attention_matrices(x, *of_head, tokens, mask=causal, z=z)
    np.testing.assert_allclose(values(figure, "Z"), z, atol=1e-5)
    np.testing.assert_allclose(
        values(figure, "weights").data, attention.weights[layer, head], atol=1e-6
    )
    every_z, output = np.asarray(attention.z)[layer], np.asarray(attention.output)[layer]
    figure = figures.plot_head_assembly(every_z, kernels["output"], tokens, output=output)
    np.testing.assert_allclose(values(figure, "sum"), output, atol=1e-5)
    heads = [values(figure, f"head {n + 1}") for n in range(2)]
    np.testing.assert_allclose(heads, attention.head_out[layer], atol=1e-5)
    with pytest.raises(InputError, match=r"z\[3\] differs by .* the mask is the model's"):
        figures.plot_attention_steps(x, q, k, v, 3, tokens, mask=np.eye(4, dtype=bool), z=z)
    with pytest.raises(InputError, match="output differs by"):
        figures.plot_head_assembly(every_z[::-1], kernels["output"], tokens, output=output)


def test_positions_are_drawn_with_the_products_of_their_rows_by_distance():
    figure = drawn("positional_encoding", "long")
    for layout in ("interleaved", "halves"):
        table = sinusoids(30, 24, layout)
        np.testing.assert_array_equal(values(figure, f"{layout} table"), table)
        np.testing.assert_allclose(values(figure, f"{layout} products"), table @ table.T)
        line, _ = panel(figure, f"{layout} distances").lines
        np.testing.assert_allclose(line.get_ydata(), table[0] @ table.T / 12, atol=1e-12)


def test_a_row_of_the_decoder_names_tokens_of_any_kind_from_left_to_right():
    mark = "\u200e"
    rows = figures.read_predict(["<s>", "שלום", ""], ["שלום", "", "a"])
    assert rows == [f"<s> → {mark}שלום{mark}", f"{mark}שלום{mark} → (empty)", "(empty) → a"]
    assert [shown(row) for row in rows] == rows
    assert style.text_width(mark, 8) == 0


def test_vectors_of_any_width_are_drawn_in_colours_that_mean_the_same():
    narrow, wide = np.eye(2, 3), -4 * np.eye(2, 5)
    picture = figures.plot_vectors({"narrow": narrow, "wide": wide}, ["a", "b"])
    images = {ax.get_label(): ax.images[0] for ax in picture.axes if ax.images}
    np.testing.assert_array_equal(images["narrow"].get_array(), narrow)
    np.testing.assert_array_equal(images["wide"].get_array(), wide)
    assert images["narrow"].get_clim() == images["wide"].get_clim() == (-4.0, 4.0)
    with pytest.raises(InputError, match="tokens has 3 tokens"):
        figures.plot_vectors({"narrow": narrow}, ["a", "b", "c"])


def test_the_residual_flow_is_drawn_as_lengths_shares_and_cosines():
    x, added, after = sentence("short").stream
    figure = drawn("residual_flow")
    lines = {line.get_label(): line.get_xdata() for line in panel(figure, "lengths").lines}
    norm = functools.partial(np.linalg.norm, axis=-1)
    expected = {"x": x, "f(x)": added, "x + f(x)": x + added, "goes on": after}
    assert lines.keys() == expected.keys()
    for name, vectors in expected.items():
        np.testing.assert_allclose(lines[name], norm(vectors).mean(-1))
    np.testing.assert_allclose(values(figure, "‖f(x)‖ / ‖x‖"), norm(added) / norm(x))
    cosine = (x * (x + added)).sum(-1) / norm(x) / norm(x + added)
    np.testing.assert_allclose(values(figure, "cosine of x and x + f(x)"), cosine)


def test_the_output_distribution_before_and_after_with_its_losses():
    s = sentence("short")
    figure = drawn("output_distribution")
    for name, logits in (("before training", s.logits[0]), ("after training", s.logits[1])):
        probabilities = softmax(logits)
        np.testing.assert_allclose(values(figure, name), -np.sort(-probabilities)[:, :5])
        assert (f"{-np.log(probabilities[0, s.ids[0]]):.2f}") in {
            text.get_text() for text in every_text(figure)
        }
    ranks = np.argsort(-s.logits[1], axis=-1)[:, :5]
    expected = [f"right {t} {k}" for t, k in np.argwhere(ranks == s.ids[:, None])]
    frames = [p.get_gid() for p in panel(figure, "after training").patches if p.get_gid()]
    assert frames == expected
    kl = (s.smooth * (np.log(s.smooth) - np.log(softmax(s.logits[1])))).sum(-1)
    assert f"{kl[1]:.2f}" in {text.get_text() for text in every_text(figure)}


def test_an_alignment_frames_the_gold_cells_of_the_row_that_predicts_or_reads():
    s = sentence("short")
    assert framed(drawn("alignment")) == ["gold 0 0", "gold 2 1", "gold 2 4"]
    figure = figures.plot_alignment(
        s.cross[0, 0],
        s.source,
        s.target_in,
        s.target_out,
        gold={(0, 0), (2, 1), (3, 4)},
        convention="read",
    )
    assert framed(figure) == ["gold 1 0", "gold 3 1"], "the last token is never read"
    np.testing.assert_array_equal(values(figure), s.cross[0, 0])
    assert "align the token it reads" in figures.describe(figure)


def test_the_film_strip_follows_a_result_through_the_log():
    s = sentence("short")
    figure = drawn("decoding")
    path = s.log.path()
    expected = [
        step.cross_attention[beam, -1].mean(0) for step, beam in zip(s.log.steps, path, strict=True)
    ]
    np.testing.assert_array_equal(values(figure, "attention"), expected)
    tops = [np.exp(step.top_log_probs[b]) for step, b in zip(s.log.steps, path, strict=True)]
    np.testing.assert_array_equal(values(figure, "probabilities"), tops)
    second = figures.plot_decoding(s.log, s.vocabulary, result=1, layer=0, head=3)
    assert len(values(second, "attention")) == 3
    beam = s.log.path(1)[2]
    np.testing.assert_array_equal(
        values(second, "attention")[2], s.log.steps[2].cross_attention[beam, 0, 3]
    )


def test_the_beam_tree_has_every_hypothesis_and_what_it_goes_on_from():
    s = sentence("short")
    figure = drawn("beam_tree")
    gids = {line.get_gid() for ax in figure.axes for line in ax.lines if line.get_gid()}
    edges = {
        f"edge {index} {beam} from {parent}"
        for index, step in enumerate(s.log.steps)
        for beam, parent in enumerate(step.parents)
    }
    assert {gid for gid in gids if gid.startswith("edge")} == edges
    finished = {f"finished {n} {f.beam}" for n, p in enumerate(s.log.steps) for f in p.finished}
    assert gids - edges == finished
    thick = {
        line.get_gid() for ax in figure.axes for line in ax.lines if line.get_linewidth() > 2.2
    }
    best = s.log.path()
    assert thick == {
        f"edge {n} {beam} from {s.log.steps[n].parents[beam]}" for n, beam in enumerate(best) if n
    }
    written = {text.get_text() for text in every_text(figure)}
    assert "★ -5.50   score -1.500" in written
    assert {f"{total:.2f}" for total in s.log.steps[2].log_probs} <= written


@pytest.mark.slow
def test_a_search_is_animated_on_a_page_without_scripts(tmp_path):
    s = sentence("short")
    page = figures.animate_decoding(s.log, s.vocabulary, tmp_path / "f.html").read_text("utf-8")
    frames = len(s.log.results[0].tokens) + 1
    assert page.count("<img ") == page.count('type="radio"') == frames
    assert page.count('alt="Step ') == frames - 1
    assert "<script" not in page


@pytest.mark.slow
def test_a_real_search_is_drawn_and_animated(shallow, tmp_path):
    log = search_log.record(*shallow, [4, 7, 5, 10, 2], decode=DecodeConfig(beams=3, max_length=5))
    vocabulary = [f"w{place}" for place in range(11)]
    tree = figures.plot_beam_tree(log, vocabulary)
    assert "Beam search with 3 beams" in figures.describe(tree)
    figures.plot_decoding(log, vocabulary)
    frames = len(log.results[0].tokens) + 1
    for ending in ("gif", "html"):
        files = [
            figures.animate_decoding(log, vocabulary, tmp_path / f"{n}.{ending}") for n in (1, 2)
        ]
        first, second = (file.read_bytes() for file in files)
        assert first == second
    with Image.open(tmp_path / "1.gif") as image:
        assert image.n_frames == frames
        assert b"Step 1 of" in image.info["comment"]
    page = (tmp_path / "1.html").read_text(encoding="utf-8")
    assert page.count("<img ") == page.count('type="radio"') == frames
    assert page.count('alt="Step ') == frames - 1
    assert "<script" not in page
    assert "http:" not in page.replace("http://www.w3.org", "")
    assert "https:" not in page


def test_the_logit_lens_draws_the_best_token_of_every_layer():
    s = sentence("short")
    figure = drawn("logit_lens")
    probabilities = softmax(s.logits)
    np.testing.assert_allclose(values(figure), probabilities.max(-1).T)
    best = s.logits.argmax(-1).T
    assert framed(figure) == [f"right {t} {n}" for t, n in np.argwhere(best == s.ids[:, None])]


def test_tables_maps_and_attributions_draw_their_numbers():
    table = {"encoder": [[0.5, -1.0]], "cross": [[1.0], [0.25]]}
    figure = figures.plot_head_table(table)
    for name, expected in table.items():
        np.testing.assert_array_equal(values(figure, name), expected)
    assert "highest 0.50 at layer 1 head 1" in figures.describe(figure)
    written = {
        text.get_text() for text in every_text(figures.plot_head_table({"a": [[-0.001, -1]]}))
    }
    assert {"0.00", "-1.00"} <= written and "-0.00" not in written
    effect = np.array([[0.0, 0.25], [1.0, 0.5]])
    figure = figures.plot_patch_map(effect, ["a", "b"])
    np.testing.assert_array_equal(values(figure), effect[::-1])
    [ax] = [ax for ax in figure.axes if ax.images]
    assert labels(ax.yaxis) == ["after layer 1", "input"]
    figure = figures.plot_attribution([[1.0, -2.0, 0.5]], ["a", "b"], ["c"], ["x"])
    np.testing.assert_array_equal(values(figure, "source"), [[1.0, -2.0]])
    np.testing.assert_array_equal(values(figure, "prefix"), [[0.5]])
    assert "'x' most to source 'b' (-2.00)" in figures.describe(figure)


def test_a_spread_has_a_dot_for_every_model_and_marks_one():
    figure = figures.plot_spread(
        {"encoder": [0.0, 0.5], "cross": [1.0, -0.25]},
        label="score",
        marked=[0.1, 0.9],
        limits=[2, 3],
    )
    [ax] = [ax for ax in figure.axes if ax.get_label() == "spread"]
    assert labels(ax.yaxis) == ["encoder", "cross"]
    drawn = {tuple(np.atleast_1d(line.get_xdata())) for line in ax.lines}
    assert {(0.0, 1.0), (0.5, -0.25), (0.1, 0.9), (2.0, 3.0)} <= drawn
    assert "cross: -0.25 to 1.00, this model 0.90, limit 3.00" in figures.describe(figure)
    with pytest.raises(InputError, match="marked has shape .1., .R., but the names of values"):
        figures.plot_spread({"a": [1.0], "b": [2.0]}, label="score", marked=[1.0])


def test_masks_of_all_three_kinds_of_attention():
    figure = drawn("masks")
    keys = np.array([True, True, True, False, False])
    np.testing.assert_array_equal(values(figure, "encoder").mask, np.tile(~keys, (5, 1)))
    np.testing.assert_array_equal(values(figure, "encoder-decoder").mask, np.tile(~keys, (4, 1)))
    np.testing.assert_array_equal(values(figure, "decoder").mask, ~sentence("short").causal)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, {"2 encoder", "3 decoder", "pre-norm"}),
        ({"norm": "post", "num_layers": 9, "encoder_layers": None}, {"9 encoder", "post-norm"}),
        ({"positions": "learned", "attention_bias": True, "d_k": 5, "d_v": 4}, {"parameters"}),
    ],
)
def test_the_architecture_counts_what_the_model_declares(changes, said):
    config = TINY.replace(**changes)
    figure = figures.plot_architecture(config)
    told = figures.describe(figure)
    assert all(words in told for words in said)
    written = " ".join(text.get_text() for text in every_text(figure))
    assert f"× {config.depth('decoder')}" in written
    assert "masked self-attention, 3 heads" in written


def test_the_base_model_has_the_parameters_of_the_paper():
    figure = figures.plot_architecture(TransformerConfig())
    assert "63,045,632 parameters" in figures.describe(figure)
    assert "Q, K, V 512×8×64, O 8×64×512" in {text.get_text() for text in every_text(figure)}


# What cannot be drawn.

T, S = 4, 5
ROWS, KEYS = list("abcd"), list("vwxyz")
UNIFORM = np.full((T, S), 1 / S)
WRONG = {
    "a batch axis": (
        lambda: figures.plot_attention(UNIFORM[None], ROWS, KEYS),
        r"weights has shape \[1, 4, 5\], but must be \[T,S\]; leave out the batch axis",
    ),
    "axes the wrong way round": (
        lambda: figures.plot_attention(UNIFORM.T / UNIFORM.T.sum(-1, keepdims=True), ROWS, KEYS),
        "query_tokens has 4 tokens, but weights says that T is 5; .* queries before keys",
    ),
    "scores in place of weights": (
        lambda: figures.plot_attention(UNIFORM - 1, ROWS, KEYS),
        r"weights: row \[0\] sums to -4 with least weight -0.8",
    ),
    "rows that do not sum to one": (
        lambda: figures.plot_attention_grid(UNIFORM[None, None] * 1.01, ROWS, KEYS),
        r"weights: row \[0, 0, 0\] sums to 1.01",
    ),
    "shares between heads": (
        lambda: figures.plot_token_heads(np.full((2, T, S), 0.5), 0, ROWS, KEYS),
        r"weights: row \[0, 0\] sums to 2.5 .* and not over the heads",
    ),
    "weight where the mask is false": (
        lambda: figures.plot_attention(UNIFORM, ROWS, KEYS, mask=np.arange(S) < np.full((T, 1), 3)),
        r"weights: the weight at \[0, 3\] is 0.2, but that query may not attend to that key",
    ),
    "a mask of numbers": (
        lambda: figures.plot_attention(UNIFORM, ROWS, KEYS, mask=np.ones((T, S))),
        "mask holds float64 values, but must be boolean",
    ),
    "not a number": (
        lambda: figures.plot_patch_map([[0.0, np.nan]], ["a", "b"]),
        r"effect\[0, 1\] is nan, but every value must be finite",
    ),
    "words": (
        lambda: figures.plot_patch_map([["a", "b"]], ["a", "b"]),
        "effect holds <U1 values, but must hold real numbers",
    ),
    "a ragged list": (
        lambda: figures.plot_patch_map([[1.0], [1.0, 2.0]], ["a", "b"]),
        "effect cannot be made an array",
    ),
    "nothing": (
        lambda: figures.plot_patch_map(np.zeros((2, 0)), []),
        r"effect has shape \[2, 0\], \[L\+1,S\]: there is nothing to draw along S",
    ),
    "a string for tokens": (
        lambda: figures.plot_patch_map([[0.0, 1.0]], "ab"),
        "tokens must be a list of strings, one a token, not 'ab'",
    ),
    "a token that is not there": (
        lambda: figures.plot_token_heads(UNIFORM[None], 4, ROWS, KEYS),
        "token is 4, but must be from 0 to 3",
    ),
    "another normalisation": (
        lambda: figures.plot_token_heads(UNIFORM[None], 0, ROWS, KEYS, normalize="rows"),
        "normalize is 'rows', but must be 'keys' or 'heads'",
    ),
    "a layer that is not there": (
        lambda: figures.plot_attention_grid(UNIFORM[None, None], ROWS, KEYS, layers=[1]),
        r"layers\[0\] is 1, but must be from 0 to 0",
    ),
    "no head": (
        lambda: figures.plot_attention_grid(UNIFORM[None, None], ROWS, KEYS, heads=[]),
        "heads is empty: there is nothing to draw",
    ),
    "a gold pair outside": (
        lambda: figures.plot_alignment(UNIFORM, KEYS, ROWS, ROWS, gold={(0, 5)}),
        "the source place of a gold pair is 5, but must be from 0 to 4",
    ),
    "another convention": (
        lambda: figures.plot_alignment(UNIFORM, KEYS, ROWS, ROWS, convention="output"),
        "convention is 'output', but must be 'predict' or 'read'",
    ),
    "a query that sees nothing": (
        lambda: figures.plot_attention_steps(
            *[np.ones((2, 3))] * 4, 0, ["a", "b"], mask=np.array([[False] * 2, [True] * 2])
        ),
        r"mask\[0\] lets query 0 attend to nothing",
    ),
    "an id outside the vocabulary": (
        lambda: figures.plot_logit_lens(np.zeros((2, 1, 3)), list("abc"), ["x"], [3]),
        r"target_out\[0\] is 3, but must be from 0 to 2",
    ),
    "a target that is no distribution": (
        lambda: figures.plot_output_distribution(
            np.zeros((1, 3)), list("abc"), ["x"], [1], target=[[0.5, 0.2, 0.2]], top_k=2
        ),
        r"target\[0\] sums to 0.9",
    ),
    "more top tokens than there are": (
        lambda: figures.plot_output_distribution(
            np.zeros((1, 3)), list("abc"), ["x"], [1], top_k=4
        ),
        "top_k is 4, but must be from 1 to 3",
    ),
    "attributions to too few tokens": (
        lambda: figures.plot_attribution(np.zeros((1, 4)), ["a", "b"], ["c"], ["x"]),
        r"source and prefix together has 3 tokens, but attribution says that S\+T is 4",
    ),
    "rows of unequal sides": (
        lambda: figures.read_predict(ROWS, KEYS),
        "target_out has 5 tokens, but target_in says that T is 4",
    ),
    "no table": (lambda: figures.plot_head_table({}), "values is empty"),
    "no vectors": (lambda: figures.plot_vectors({}, []), "vectors is empty"),
    "no positions": (lambda: figures.plot_positional_encoding({}), "tables is empty"),
    "a result that was not found": (
        lambda: figures.plot_decoding(sentence("short").log, ["a"] * 40, result=2),
        "result is 2, but the search found 2",
    ),
    "a vocabulary that is too short": (
        lambda: figures.plot_beam_tree(sentence("short").log, ["a"] * 5),
        "vocabulary has 5 tokens, but the log has the id",
    ),
    "a decoder layer that is not there": (
        lambda: figures.plot_decoding(sentence("short").log, ["a"] * 40, layer=3),
        "layer is 3, but the decoder has 3, counted from 0",
    ),
    "another kind of animation": (
        lambda: figures.animate_decoding(sentence("short").log, ["a"] * 40, "x.mp4"),
        r"x.mp4 ends in '.mp4'; an animation is saved as .gif or .html",
    ),
    "no time": (
        lambda: figures.animate_decoding(sentence("short").log, ["a"] * 40, "x.gif", seconds=0.0),
        "seconds is 0.0, but must be above 0",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_drawn_is_refused_with_a_reason(case):
    draw, words = WRONG[case]
    with pytest.raises(InputError, match=words):
        draw()
