# SPDX-License-Identifier: Apache-2.0
"""Views take what is attention and nothing else, and their pages are small, whole and closed."""

import base64
import hashlib
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_html import AWKWARD, Reader

from transformer.errors import InputError
from transformer.inspection.html import escape
from transformer.inspection.search_log import Finished, Result, SearchLog, SearchStep
from transformer.inspection.trace import run
from transformer.inspection.views import packing, picture
from transformer.inspection.views.attention import families, families_of
from transformer.inspection.views.compare import compare
from transformer.inspection.views.grid import grid
from transformer.inspection.views.head_view import head_view, shares_between_heads
from transformer.inspection.views.numbers import DRAWN, numbers
from transformer.inspection.views.replay import replay
from transformer.inspection.views.steps import Head, heads_of, recomputed, steps
from transformer.inspection.views.view import FILES, HEAD_COLOURS, page


def softmax_weights(layers, heads, rows, columns, causal=False, seed=0):
    """Attention with strong and weak weights, `[L,N,T,S]`."""
    scores = 2 * np.random.default_rng(seed).normal(size=(layers, heads, rows, columns))
    if causal:
        scores = np.where(np.tril(np.ones((rows, columns), bool)), scores, -np.inf)
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return (exponentials / exponentials.sum(-1, keepdims=True)).astype(np.float32)


def words(count, prefix):
    return [f"{prefix}{place}" for place in range(count)]


def pair(source=5, target=4, encoder=(2, 4), decoder=(3, 2), tokens=None, seed=0):
    """All kinds of attention of one sentence pair, the stacks of unequal depth and heads."""
    return families(
        encoder=softmax_weights(*encoder, source, source, seed=seed),
        decoder=softmax_weights(*decoder, target, target, causal=True, seed=seed + 1),
        cross=softmax_weights(*decoder, target, source, seed=seed + 2),
        source_tokens=tokens or words(source, "s"),
        target_in=["<s>", *words(target - 1, "t")],
        target_out=[*words(target - 1, "t"), "</s>"],
    )


def one_head(rows=3, columns=4, width=2, wide=3, seed=0):
    """A head's vectors and what they give."""
    generator = np.random.default_rng(seed)
    query, key, value = (
        generator.normal(size=shape) for shape in ((rows, width), (columns, width), (columns, wide))
    )
    _, weights, z = recomputed(query, key, value, np.ones((rows, columns), bool))
    labels = [tuple((word,) for word in words(count, "w")) for count in (rows, columns)]
    return Head("a head", *labels, query, key, value, weights, z)


def search(cross=True, layers=2, heads=3, source=3):
    """A search with two beams over three steps, as `search_log.record` keeps one."""

    def attention(hypotheses):
        weights = softmax_weights(hypotheses, layers, heads, source)
        return weights if cross else None

    def step(tokens, log_probs, parents, finished=()):
        count = len(tokens)
        top = np.array([[4, 5, 2]] * count)
        chances = np.log(np.array([[0.5, 0.3, 0.1]] * count))
        return SearchStep(tokens, log_probs, parents, top, chances, attention(count), finished)

    steps = (
        step(((),), (0.0,), ()),
        step(((4,), (5,)), (-0.69, -1.2), (0, 0)),
        step(((4, 5), (5, 4)), (-1.9, -1.89), (0, 1), (Finished(1, -2.5, -1.5),)),
    )
    return SearchLog((4, 5, 2), steps, (Result((5, 4, 2), -1.5, -2.5),))


def pieces(ids):
    return [["<pad>", "<s>", "</s>", "<unk>", "one", "two"][int(token)] for token in ids]


NATS = {"measure": "Nats", "title": "Numbers"}


def every_view():
    """One view of each kind."""
    both = pair()
    return [
        head_view(both),
        grid(both),
        steps([one_head()]),
        replay(search(), pieces),
        numbers(np.linspace(-2, 1, 6).reshape(2, 3), ["r", "s"], words(3, "c"), **NATS),
        compare(both, pair(seed=9), patch=np.linspace(-1, 1, 15).reshape(3, 5)),
    ]


def data_of(text):
    """What a page's script reads."""
    [block] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    return json.loads(block)


# What is attention.


def test_families_have_any_depth_and_number_of_heads():
    encoder, decoder, cross = pair()
    assert encoder.weights.shape == (2, 4, 5, 5)
    assert decoder.weights.shape == (3, 2, 4, 4)
    assert cross.weights.shape == (3, 2, 4, 5)


def test_rows_of_the_decoder_say_what_is_read_and_what_is_predicted():
    encoder, decoder, cross = pair()
    assert encoder.rows[0] == ("s0",)
    assert decoder.rows == cross.rows == (("<s>", "t0"), ("t0", "t1"), ("t1", "t2"), ("t2", "</s>"))
    assert decoder.columns == (("<s>",), ("t0",), ("t1",), ("t2",))
    assert cross.columns == encoder.columns


def test_swapped_axes_are_refused():
    with pytest.raises(InputError, match=r"cross: weights of shape \(1, 1, 3, 2\) have 3 rows"):
        families(
            cross=softmax_weights(1, 1, 3, 2),
            source_tokens=["a", "b", "c"],
            target_in=["x", "y"],
            target_out=["y", "z"],
        )


def test_shares_between_heads_are_refused_as_attention():
    weights = softmax_weights(1, 4, 3, 3)
    shares = weights / weights.sum(1, keepdims=True)
    with pytest.raises(
        InputError, match=r"the weights of encoder attention: row \[0, \d, \d\] sums to .*not over"
    ):
        families(encoder=shares, source_tokens=words(3, "s"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w[0], r"weights of shape \(1, 3, 3\); \[layers, heads, rows, columns\]"),
        (lambda w: w[None], r"without a batch axis"),
        (lambda w: w[:, :0], r"each at least 1"),
        (lambda w: w + np.nan, "sums to nan"),
        (lambda w: w + np.eye(3) - 1 / 3, "least weight -.* never negative"),
        (lambda w: w * 1.002, r"sums to 1\.002 with"),
        (lambda w: "weights", "not an array of numbers"),
    ],
)
def test_what_is_no_attention_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        families(encoder=change(softmax_weights(1, 1, 3, 3)), source_tokens=words(3, "s"))


def test_a_decoder_that_looks_ahead_is_refused():
    with pytest.raises(InputError, match="may not attend to that key"):
        families(decoder=softmax_weights(1, 1, 2, 2), target_in=["a", "b"], target_out=["b", "c"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "no weights are given"),
        ({"target_in": ["a"]}, "target_in has 1 tokens and target_out 0"),
        ({"source_tokens": "abc"}, "'abc' is a string; give its tokens as a list"),
    ],
)
def test_tokens_that_do_not_fit_are_refused(given, message):
    with pytest.raises(InputError, match=message):
        families(**given)


def test_sums_within_a_thousandth_pass_and_are_kept_to_a_millionth():
    weights = softmax_weights(1, 1, 2, 2).astype(np.float64)
    weights /= weights.sum(-1, keepdims=True)
    weights[0, 0, 1] *= 1.0005
    [family] = families(encoder=weights, source_tokens=["a", "b"])
    assert family.packed()["sums"] == {1: 500}


def test_entropy_is_log2_of_the_keys_where_rows_are_uniform_and_0_where_they_have_one():
    uniform, one = np.full((1, 1, 4, 4), 0.25), np.eye(4)[None, None]
    both = np.concatenate([uniform, one], axis=1)
    [family] = families(encoder=both, source_tokens=words(4, "s"))
    assert family.entropy().tolist() == [[2.0, 0.0]]


TOKENS = {
    "source_tokens": words(4, "s"),
    "target_in": words(3, "t"),
    "target_out": words(3, "u"),
}


@pytest.fixture(scope="module")
def trace(shallow):
    """Of a model whose stacks differ, everything."""
    params, config = shallow
    return jax.jit(lambda: run(params, config, [4, 7, 5, 2], [1, 5, 9], capture="full")[1])()


def test_a_trace_gives_its_families_and_its_heads(trace):
    kinds = families_of(trace, **TOKENS)
    assert [family.kind for family in kinds] == ["encoder", "decoder", "cross"]
    np.testing.assert_array_equal(kinds[2].weights, trace.decoder.cross_attention.weights)

    which = [("encoder", -1, 0), ("decoder", 0, 1), ("cross", 1, 1)]
    heads = heads_of(trace, which, **TOKENS)
    assert heads[1].title == "Decoder self-attention, layer 1, head 2"
    for head, (kind, layer, place) in zip(heads, which, strict=True):
        family = {family.kind: family for family in kinds}[kind]
        scaled, weights, z = recomputed(head.query, head.key, head.value, head.weights > 0)
        np.testing.assert_allclose(weights, family.weights[layer, place], atol=1e-5)
        np.testing.assert_allclose(z, head.z, atol=1e-5)
    with pytest.raises(InputError, match="layer 2 does not exist: Encoder-decoder attention has 2"):
        heads_of(trace, [("cross", 2, 0)], **TOKENS)


def test_a_trace_of_several_sentences_or_of_weights_alone_is_refused(trace):
    batch = jax.tree.map(lambda array: jnp.stack([array] * 2, 1), trace)
    with pytest.raises(InputError, match="without a batch axis"):
        families_of(batch, **TOKENS)
    own = trace.encoder.self_attention.replace(z=None)
    weights_alone = trace.replace(encoder=trace.encoder.replace(self_attention=own))
    with pytest.raises(InputError, match="capture='full'"):
        heads_of(weights_alone, [("encoder", 0, 0)], **TOKENS)


# Numbers as text.


def unpacked(text):
    """The numbers of packed shares; `test_browser` holds the pages' own script to them."""
    codes, numbers = iter(map(packing.ALPHABET.index, text.encode())), []
    for code in codes:
        more = code - packing.ALONE
        numbers.append(code if more < 0 else packing.ALONE + more * 87 + next(codes))
    return [number / packing.STEPS for number in numbers]


def test_shares_are_right_to_half_a_step_and_0_and_1_exactly():
    values = np.array([0.0, 1, 0.5, 1 / 3, 1e-9])
    found = unpacked(packing.shares(values))
    assert found[:2] == [0.0, 1.0]
    np.testing.assert_allclose(found, values, atol=0.5 / packing.STEPS)
    assert packing.shares(np.array([0.0, 1.0])) == "!~~"
    every = np.arange(packing.STEPS + 1) / packing.STEPS
    np.testing.assert_allclose(unpacked(packing.shares(every)), every, atol=1e-9)


def test_of_a_decoder_only_what_it_may_read_is_on_a_page():
    _, decoder, cross = pair()
    assert len(unpacked(decoder.packed()["weights"])) == 3 * 2 * (4 * 5 // 2)
    assert len(unpacked(cross.packed()["weights"])) == 3 * 2 * 4 * 5


def test_floats_are_the_bytes_of_single_precision():
    values = np.array([1.5, -2.25e-3])
    decoded = np.frombuffer(base64.b64decode(packing.floats(values)), "<f4")
    assert decoded.tolist() == values.astype(np.float32).tolist()


def test_shares_between_heads_sum_to_one_over_heads_and_are_0_where_nobody_reads():
    weights = softmax_weights(1, 4, 3, 3, causal=True)[0]
    shares = shares_between_heads(weights)
    np.testing.assert_allclose(shares.sum(0), np.tril(np.ones((3, 3))), atol=1e-6)


# What a view refuses.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 2}, "layer 2 does not exist: Encoder self-attention has 2"),
        ({"heads": [4]}, "head 4 does not exist"),
        ({"heads": []}, "no head is chosen"),
        ({"row": 5}, "row 5 does not exist"),
        ({"normalize": "rows"}, "choose 'keys' or 'heads'"),
    ],
)
def test_a_head_view_of_what_does_not_exist_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        head_view(pair(), **options)


def test_a_measure_of_the_grid_has_a_number_for_every_head():
    measures = {"need": {family.kind: np.ones(family.weights.shape[:2]) for family in pair()}}
    assert len(data_of(grid(pair(), measures=measures).html)["views"][0]["measures"]) == 2
    with pytest.raises(InputError, match="no values for 'cross'"):
        grid(pair(), measures={"need": {"encoder": np.ones((2, 4)), "decoder": np.ones((3, 2))}})
    measures["need"]["decoder"] = np.ones((2, 3))
    with pytest.raises(InputError, match=r"'need' of 'decoder' has shape \(2, 3\)"):
        grid(pair(), measures=measures)


def test_two_sentences_of_unequal_length_are_not_compared():
    with pytest.raises(InputError, match="equally many tokens"):
        compare(pair(source=5), pair(source=6))


def test_a_patch_map_fits_the_encoder():
    with pytest.raises(InputError, match=r"shape \(2, 5\); .* \(3, 5\) are needed"):
        compare(pair(), pair(), patch=np.ones((2, 5)))
    with pytest.raises(InputError, match="needs the encoder's attention"):
        compare(pair()[1:], pair()[1:], patch=np.ones((3, 5)))


def test_of_the_last_layers_alone_a_comparison_keeps_their_numbers_and_the_whole_patch_map():
    pairs = [tuple(family.last(1) for family in pair(seed=seed)) for seed in (0, 9)]
    view = compare(*pairs, patch=np.ones((3, 5)))
    assert "layer 2, head 1: second sentence minus first sentence" in view.told
    [first, _] = data_of(view.html)["pairs"]
    assert [(family["layers"], family["since"]) for family in first] == [(1, 1), (1, 2), (1, 2)]
    assert pair()[0].last(5).weights.shape == (2, 4, 5, 5)


def test_a_map_of_numbers_names_the_largest_and_has_as_many_names():
    view = numbers([[0.5, -2.0]], ["r"], ["a", "b"], **NATS)
    assert view.told == (
        "Nats; round cells are negative, below 5% of the largest left out. "
        "The largest is -2, for \u2068r\u2069 and \u2068b\u2069."
    )
    shown = data_of(view.html)["views"][0]
    assert (shown["values"], shown["most"]) == ([[0.5, -2.0]], 2.0)
    for wrong in ([[1.0]], [[1.0, np.nan]], []):
        with pytest.raises(InputError, match=r"\[rows, columns\] = \(1, 2\)"):
            numbers(wrong, ["r"], ["a", "b"], **NATS)


def test_a_still_map_of_many_numbers_draws_the_largest():
    values = 100 + np.random.default_rng(0).permutation(DRAWN + 8).reshape(8, -1)
    names = [[str(place) for place in range(length)] for length in values.shape]
    view = numbers(-values, *names, **NATS)
    # Cells of one shade are one path.
    assert sum(path["d"].count("M") for path in Reader(view.picture).all("path")) == DRAWN
    assert f"below {108 / (DRAWN + 107):.0%} of the largest left out" in view.told


def test_steps_need_vectors_of_one_pass():
    head = one_head()
    fields = {name: getattr(head, name) for name in ("title", "rows", "columns")}
    fields |= {name: getattr(head, name) for name in ("query", "key", "value", "weights", "z")}
    with pytest.raises(InputError, match=r"weights recomputed .* differ by"):
        Head(**fields | {"query": head.query + 1})
    with pytest.raises(InputError, match="z recomputed"):
        Head(**fields | {"z": head.z + 0.01})
    with pytest.raises(InputError, match="do not fit together"):
        Head(**fields | {"key": head.key[:-1]})
    with pytest.raises(InputError, match="no head is given"):
        steps([])
    with pytest.raises(InputError, match="row 3 does not exist"):
        steps([head], row=3)


def test_a_masked_key_is_one_whose_weight_is_exactly_0():
    head = one_head()
    allowed = np.array([[True, False, True, True]] * 3)
    _, weights, z = recomputed(head.query, head.key, head.value, allowed)
    masked = Head("x", head.rows, head.columns, head.query, head.key, head.value, weights, z)
    assert masked.packed()["masked"] == ["0100"] * 3
    assert "masked" in Reader(steps([masked]).picture).text


def test_a_search_without_steps_or_with_other_attention_is_refused():
    log = search()
    with pytest.raises(InputError, match="no step or no result"):
        replay(SearchLog(log.source, (), log.results), pieces)
    with pytest.raises(InputError, match="layer 2 does not exist: the decoder has 2"):
        replay(log, pieces, layers=[2])
    with pytest.raises(InputError, match="2 hypotheses and 2 source tokens|1 hypotheses and 2"):
        replay(SearchLog(log.source[:2], log.steps, log.results), pieces)


def test_a_search_without_attention_is_shown_without():
    view = replay(search(cross=False), pieces)
    assert "reads" not in data_of(view.html)["views"][0]["steps"][0]
    assert "two" in Reader(view.picture).text


def test_the_search_on_a_page_follows_the_best_hypothesis():
    shown = data_of(replay(search(), pieces).html)["views"][0]
    assert shown["results"] == [
        {"tokens": ["two", "one", "</s>"], "score": -1.5, "path": [0, 1, 1]}
    ]
    assert shown["steps"][2]["finished"] == [[1, -1.5]]
    assert shown["steps"][1]["next"][0] == [["one", 0.5], ["two", 0.3], ["</s>", 0.1]]


# Pages.


@pytest.mark.parametrize("view", every_view(), ids=lambda view: view.kind)
def test_the_template_of_a_view_is_under_ten_kilobytes(view):
    text = re.sub(r'(id="data">).*?(</script>)', r"\1\2", view.html)
    for content in map(escape, (view.picture, view.told, view.title)):
        assert content in text
        text = text.replace(content, "")
    assert len(text.encode()) < 10_000


@pytest.mark.parametrize("view", every_view(), ids=lambda view: view.kind)
def test_a_page_runs_its_own_script_only_and_has_no_address(view):
    read = Reader(view.html)
    assert "://" not in view.html
    assert "url(" not in view.html
    [policy] = [meta["content"] for meta in read.all("meta") if "http-equiv" in meta]
    assert re.findall(r"script-src [^;]*", policy) == [f"script-src {digest_of(view.html)}"]
    assert "default-src 'none'" in policy
    assert [script.get("type") for script in read.all("script")] == ["application/json", None]
    for tag, attributes in read.elements:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href"):
                assert value.startswith("data:"), (tag, value)


def digest_of(text):
    """What the policy calls the script that runs."""
    [script] = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


@pytest.mark.parametrize("view", every_view(), ids=lambda view: view.kind)
def test_a_view_has_a_picture_and_words_without_its_script(view):
    read = Reader(view.html)
    assert read.all("svg")[0]["role"] == "img"
    assert view.told in read.text
    assert "NaN" not in view.picture
    assert "nan" not in view.picture


def test_the_same_arguments_give_the_same_bytes():
    assert [view.html for view in every_view()] == [view.html for view in every_view()]
    assert page("x", every_view()) == page("x", every_view())
    assert every_view()[0]._repr_html_() == every_view()[0]._repr_html_()


def test_a_view_is_told_in_a_line_where_only_text_is_shown():
    for view in every_view():
        assert repr(view) == f"<View: {view.title}>"


def test_weights_are_on_a_page_once_however_many_views_show_them():
    both = pair()
    data = data_of(page("x", [head_view(both), grid(both), compare(both, pair(seed=3))]))
    assert len(data["pairs"]) == 2
    assert [view["pairs"] for view in data["views"]] == [[0], [0], [0, 1]]


def test_a_notebook_gets_a_frame_and_a_picture_for_where_frames_are_taken_out():
    view = head_view(pair())
    read = Reader(view._repr_html_())
    [frame] = read.all("iframe")
    assert frame["srcdoc"] == view.html
    assert frame["sandbox"] == "allow-scripts allow-downloads", "not the notebook's own origin"
    assert len(read.all("svg")) == 1, "the frame's own are in its document"
    assert view.told in read.text


@pytest.mark.parametrize("text", AWKWARD)
def test_a_token_of_any_kind_stays_text(text):
    view = head_view(pair(tokens=[text, *words(4, "s")]))
    read = Reader(view.html)
    assert len(read.all("script")) == 2
    assert data_of(view.html)["pairs"][0][0]["columns"][0] == [text]
    assert text in Reader(view.picture).text


@pytest.mark.parametrize(
    ("token", "shown"), [("", "(empty)"), (" ", "(space)"), ("a\u2028\x07", "aU+2028U+0007")]
)
def test_tokens_that_nobody_would_see_are_named(token, shown):
    assert pair(tokens=[token, *words(4, "s")])[0].columns[0] == (shown,)


def test_a_report_of_6_layers_8_heads_and_30_tokens_is_under_400_kilobytes():
    both = pair(30, 30, (6, 8), (6, 8))
    assert [family.weights.shape for family in both] == [(6, 8, 30, 30)] * 3
    views = [
        head_view(both),
        grid(both),
        steps([one_head(30, 30, 64, 64)]),
        replay(*long_search(), layers=[-1]),
    ]
    assert len(page("A report", views).encode()) < 400_000


def long_search():
    """Four beams over thirty steps in a model of 6 layers and 8 heads, and its tokens."""
    source, beams = tuple(range(4, 34)), range(4)
    found = [tuple(4 + (place + beam) % 30 for place in range(30)) for beam in beams]
    log_steps = [
        SearchStep(
            tokens=tuple(found[beam][:index] for beam in beams),
            log_probs=tuple(-0.1234 * index - beam for beam in beams),
            parents=tuple(beams),
            top_tokens=np.arange(4, 24).reshape(4, 5),
            top_log_probs=np.log(np.full((4, 5), 0.123456)),
            cross_attention=softmax_weights(4, 6, 8, 30, seed=index),
            finished=(),
        )
        for index in range(30)
    ]
    log = SearchLog(source, tuple(log_steps), (Result(found[0], -1.0, -2.0),))
    return log, lambda ids: [f"▁word{token}" for token in ids]


def test_a_page_is_saved_as_it_is(tmp_path):
    view = grid(pair())
    view.save(tmp_path / "view.html")
    assert (tmp_path / "view.html").read_bytes() == view.html.encode()


def luminance(colour):
    """Relative luminance as WCAG defines it."""
    shares = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [s / 12.92 if s <= 0.03928 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    return sum(weight * s for weight, s in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("colour", [*HEAD_COLOURS, picture.MORE, picture.LESS])
@pytest.mark.parametrize("paper", ["#ffffff", "#161616"])
def test_colours_stand_out_in_both_schemes(colour, paper):
    low, high = sorted((luminance(colour), luminance(paper)))
    assert (high + 0.05) / (low + 0.05) >= 3


def test_every_kind_of_view_names_its_files():
    assert {view.kind for view in every_view()} == set(FILES)


def test_a_still_head_view_names_its_heads_and_draws_what_is_not_weak():
    both = pair()
    read = Reader(head_view(both, heads=[1, 3], row=2).picture)
    weights = both[0].weights[-1][[1, 3], 2]
    lines = [path for path in read.all("path") if "L" in path["d"]]
    expected = [f"{weight:.2f}" for weight in weights.ravel().tolist() if weight >= 0.05]
    assert [line["stroke-opacity"] for line in lines] == expected
    squares = [path for path in read.all("path") if "L" not in path["d"]]
    assert len(squares) == (weights >= 0.01).sum() > len(lines)
    assert [text for text in read.shown if text.isdigit()] == ["2", "4"]


def test_cells_that_are_all_positive_are_one_image_of_so_many_pixels():
    drawn = picture.heat_map("x", np.full((2, 3), 0.5), ["r", "s"], ["a", "b", "c"])
    [image] = Reader(drawn).all("image")
    kind, _, encoded = image["href"].partition(",")
    assert kind == "data:image/png;base64"
    assert base64.b64decode(encoded)[16:24] == bytes([0, 0, 0, 3, 0, 0, 0, 2])
    assert float(image["width"]) / float(image["height"]) == 3 / 2


def test_negative_cells_are_round_and_shades_follow_the_square_root():
    drawn = picture.heat_map("x", np.array([[0.25, -1.0, 0.0]]), ["r"], ["a", "b", "c"])
    paths = Reader(drawn).all("path")
    assert [(path["fill"], path["fill-opacity"]) for path in paths] == [
        (picture.MORE, "0.5"),
        (picture.LESS, "1.0"),
    ]
    assert "a" in paths[1]["d"]
    assert "a" not in paths[0]["d"]
