# SPDX-License-Identifier: Apache-2.0
"""Views take what is attention and nothing else, and keep its numbers."""

import base64

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exhibits import (
    NATS,
    data_of,
    one_head,
    pair,
    pieces,
    search,
    softmax_weights,
    words,
)
from test_html import Reader

from transformer.errors import InputError
from transformer.inspection.search_log import SearchLog
from transformer.inspection.trace import run
from transformer.inspection.views import number_packing
from transformer.inspection.views.attention_data import families, families_of
from transformer.inspection.views.compare_view import compare
from transformer.inspection.views.grid import grid
from transformer.inspection.views.head_view import head_view, shares_between_heads
from transformer.inspection.views.numbers import DRAWN, numbers
from transformer.inspection.views.replay import replay
from transformer.inspection.views.step_view import Head, heads_of, recomputed, steps

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
    codes, numbers = iter(map(number_packing.ALPHABET.index, text.encode())), []
    for code in codes:
        more = code - number_packing.ALONE
        numbers.append(code if more < 0 else number_packing.ALONE + more * 87 + next(codes))
    return [number / number_packing.STEPS for number in numbers]


def test_shares_are_right_to_half_a_step_and_0_and_1_exactly():
    values = np.array([0.0, 1, 0.5, 1 / 3, 1e-9])
    found = unpacked(number_packing.shares(values))
    assert found[:2] == [0.0, 1.0]
    np.testing.assert_allclose(found, values, atol=0.5 / number_packing.STEPS)
    assert number_packing.shares(np.array([0.0, 1.0])) == "!~~"
    every = np.arange(number_packing.STEPS + 1) / number_packing.STEPS
    np.testing.assert_allclose(unpacked(number_packing.shares(every)), every, atol=1e-9)


def test_of_a_decoder_only_what_it_may_read_is_on_a_page():
    _, decoder, cross = pair()
    assert len(unpacked(decoder.packed()["weights"])) == 3 * 2 * (4 * 5 // 2)
    assert len(unpacked(cross.packed()["weights"])) == 3 * 2 * 4 * 5


def test_floats_are_the_bytes_of_single_precision():
    values = np.array([1.5, -2.25e-3])
    decoded = np.frombuffer(base64.b64decode(number_packing.floats(values)), "<f4")
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
