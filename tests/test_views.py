# SPDX-License-Identifier: Apache-2.0
"""Views accept only valid attention and keep its numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exhibits import VOCABULARY, data_of, one_head, pair, search, softmax_weights, words
from test_html import Reader

from transformer.errors import InputError
from transformer.inspection.search_log import SearchLog
from transformer.inspection.trace import run
from transformer.inspection.views.attention_kinds import attention_kinds, trace_attention_kinds
from transformer.inspection.views.attention_steps import attention_steps
from transformer.inspection.views.head_overview import head_overview
from transformer.inspection.views.head_view import head_view, shares_between_heads
from transformer.inspection.views.search_replay import search_replay
from transformer.inspection.views.sentence_comparison import compare_sentences

# Valid attention.


def test_kinds_of_attention_may_differ_in_layers_and_heads():
    encoder, decoder, cross = pair()
    assert encoder.weights.shape == (2, 4, 5, 5)
    assert decoder.weights.shape == (3, 2, 4, 4)
    assert cross.weights.shape == (3, 2, 4, 5)


def test_decoder_rows_name_the_token_read_and_the_token_predicted():
    encoder, decoder, cross = pair()
    assert encoder.rows[0] == ("s0",)
    assert decoder.rows == cross.rows == (("<s>", "t0"), ("t0", "t1"), ("t1", "t2"), ("t2", "</s>"))
    assert decoder.columns == (("<s>",), ("t0",), ("t1",), ("t2",))
    assert cross.columns == encoder.columns


def test_swapped_axes_are_rejected():
    with pytest.raises(InputError, match="the weights of cross attention have 3 rows and 2"):
        attention_kinds(
            cross=softmax_weights(1, 1, 3, 2),
            source_tokens=["a", "b", "c"],
            target_in=["x", "y"],
            target_out=["y", "z"],
        )


def test_shares_between_heads_are_rejected_as_attention():
    weights = softmax_weights(1, 4, 3, 3)
    shares = weights / weights.sum(1, keepdims=True)
    with pytest.raises(
        InputError, match=r"the weights of encoder attention: row \[0, \d, \d\] sums to .*not over"
    ):
        attention_kinds(encoder=shares, source_tokens=words(3, "s"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w[0], r"has shape \[1, 3, 3\], but must be \[L,N,T,S\]"),
        (lambda w: w[None], "leave out the batch axis"),
        (lambda w: w[:, :0], "nothing to draw along N"),
        (lambda w: w + np.nan, "is nan, but every value must be finite"),
        (lambda w: w + np.eye(3) - 1 / 3, "least value -.* never negative"),
        (lambda w: w * 1.002, r"sums to 1\.002 with"),
        (lambda w: "weights", r"has shape \[\], but must be"),
    ],
)
def test_arrays_that_are_not_attention_are_rejected(change, message):
    with pytest.raises(InputError, match=message):
        attention_kinds(encoder=change(softmax_weights(1, 1, 3, 3)), source_tokens=words(3, "s"))


def test_a_decoder_that_attends_to_later_positions_is_rejected():
    with pytest.raises(InputError, match="may not attend to that key"):
        attention_kinds(
            decoder=softmax_weights(1, 1, 2, 2), target_in=["a", "b"], target_out=["b", "c"]
        )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "no weights are given"),
        ({"target_in": ["a"]}, "target_in has 1 tokens and target_out has 0"),
        ({"source_tokens": "abc"}, "'abc' is a string; give its tokens as a list"),
    ],
)
def test_tokens_that_do_not_match_are_rejected(given, message):
    with pytest.raises(InputError, match=message):
        attention_kinds(**given)


def test_row_sums_within_a_thousandth_of_1_are_accepted_and_kept_to_a_millionth():
    weights = softmax_weights(1, 1, 2, 2).astype(np.float64)
    weights /= weights.sum(-1, keepdims=True)
    weights[0, 0, 1] *= 1.0005
    [encoder] = attention_kinds(encoder=weights, source_tokens=["a", "b"])
    assert encoder.to_json()["rowSums"] == [[[1.0, 1.0005]]]


def test_entropy_is_log2_of_the_keys_for_uniform_rows_and_0_for_one_hot_rows():
    uniform, one = np.full((1, 1, 4, 4), 0.25), np.eye(4)[None, None]
    both = np.concatenate([uniform, one], axis=1)
    [encoder] = attention_kinds(encoder=both, source_tokens=words(4, "s"))
    assert encoder.entropy().tolist() == [[2.0, 0.0]]


TOKENS = {
    "source_tokens": words(4, "s"),
    "target_in": words(3, "t"),
    "target_out": words(3, "u"),
}


@pytest.fixture(scope="module")
def trace(shallow):
    """A full trace of a model whose stacks differ in depth."""
    params, config = shallow
    return jax.jit(lambda: run(params, config, [4, 7, 5, 2], [1, 5, 9], capture="full")[1])()


def test_the_attention_and_the_vectors_of_a_trace_are_the_model_s(trace):
    kinds = trace_attention_kinds(trace, **TOKENS)
    assert [attention.kind for attention in kinds] == ["encoder", "decoder", "cross"]
    np.testing.assert_array_equal(kinds[2].weights, trace.decoder.cross_attention.weights)

    which = [("encoder", -1, 0), ("decoder", 0, 1), ("cross", 1, 1)]
    heads = attention_steps(trace, kinds, which).options["heads"]
    assert heads[1]["title"] == "Decoder self-attention, layer 1, head 2"
    for data, (kind, layer, head) in zip(heads, which, strict=True):
        attention = {attention.kind: attention for attention in kinds}[kind]
        query, key, value, z = (np.array(data[name]) for name in ("query", "key", "value", "z"))
        scores = query @ key.T / np.sqrt(query.shape[1])
        exponentials = np.exp(np.where(data["masked"], -np.inf, scores))
        weights = exponentials / exponentials.sum(1, keepdims=True)
        np.testing.assert_allclose(weights, attention.weights[layer, head], atol=1e-5)
        np.testing.assert_allclose(weights @ value, z, atol=1e-5)
    with pytest.raises(InputError, match="layer of cross-attention is 2, but must be from 0 to 1"):
        attention_steps(trace, kinds, [("cross", 2, 0)])
    with pytest.raises(InputError, match="'self' is not one of encoder, decoder, cross"):
        attention_steps(trace, kinds, [("self", 0, 0)])


def test_a_trace_of_a_batch_or_of_weights_alone_is_rejected(trace):
    batch = jax.tree.map(lambda array: jnp.stack([array] * 2, 1), trace)
    with pytest.raises(InputError, match="leave out the batch axis"):
        trace_attention_kinds(batch, **TOKENS)
    attention = trace.encoder.self_attention.replace(z=None)
    weights_alone = trace.replace(encoder=trace.encoder.replace(self_attention=attention))
    with pytest.raises(InputError, match="capture='full'"):
        attention_steps(
            weights_alone, trace_attention_kinds(weights_alone, **TOKENS), [("encoder", 0, 0)]
        )


# The data of a page.


def test_weights_and_vectors_are_rounded_to_what_a_page_shows():
    encoder, decoder, _ = pair()
    shown = np.array(encoder.to_json()["weights"])
    np.testing.assert_allclose(shown, encoder.weights, atol=0.5e-4)
    assert (shown == shown.round(4)).all()
    assert np.array(decoder.to_json()["weights"]).shape == decoder.weights.shape
    trace, *arguments = one_head()
    [head] = attention_steps(trace, *arguments).options["heads"]
    query = trace.attention("cross").query[0, 0]
    np.testing.assert_allclose(head["query"], query, atol=0.5e-7)


def test_shares_between_heads_sum_to_1_over_the_heads_and_are_0_where_all_weights_are():
    weights = softmax_weights(1, 4, 3, 3, causal=True)[0]
    shares = shares_between_heads(weights)
    np.testing.assert_allclose(shares.sum(0), np.tril(np.ones((3, 3))), atol=1e-6)


# Invalid arguments.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 2}, "layer of encoder self-attention is 2, but must be"),
        ({"row": 5}, "row of encoder self-attention is 5"),
    ],
)
def test_a_head_view_rejects_a_layer_or_row_that_does_not_exist(options, message):
    with pytest.raises(InputError, match=message):
        head_view(pair(), **options)


def test_a_measure_of_the_overview_has_a_number_for_every_head():
    both = pair()
    measures = {"need": {each.kind: np.ones(each.weights.shape[:2]) for each in both}}
    assert len(head_overview(both, measures=measures).options["measures"]) == 2
    with pytest.raises(InputError, match="no values for 'cross'"):
        head_overview(
            both, measures={"need": {"encoder": np.ones((2, 4)), "decoder": np.ones((3, 2))}}
        )
    measures["need"]["decoder"] = np.ones((2, 3))
    with pytest.raises(InputError, match=r"'need' of 'decoder' has shape \(2, 3\)"):
        head_overview(both, measures=measures)


def test_sentences_of_different_lengths_are_not_compared():
    with pytest.raises(InputError, match="equal numbers of tokens"):
        compare_sentences(pair(source=5), pair(source=6))


def test_a_comparison_of_the_last_layers_keeps_their_numbers():
    pairs = [tuple(each.last_layers(1) for each in pair(seed=seed)) for seed in (0, 9)]
    view = compare_sentences(*pairs)
    assert "layer 2, head 1: second sentence minus first sentence" in view.description
    kinds = data_of(view.html)["pairs"][0]
    assert [(len(each["weights"]), each["firstLayer"]) for each in kinds] == [
        (1, 1),
        (1, 2),
        (1, 2),
    ]
    assert pair()[0].last_layers(5).weights.shape == (2, 4, 5, 5)


def test_six_steps_need_a_head_and_a_row_that_exist():
    trace, kinds, heads = one_head()
    with pytest.raises(InputError, match="no head is given"):
        attention_steps(trace, kinds, [])
    with pytest.raises(InputError, match="row of cross-attention is 3"):
        attention_steps(trace, kinds, heads, row=3)
    with pytest.raises(InputError, match="head of cross-attention is 1"):
        attention_steps(trace, kinds, [("cross", 0, 1)])


def test_a_key_is_masked_if_its_weight_is_exactly_0():
    mask = np.array([[True, False, True, True]] * 3)
    [head] = attention_steps(*one_head(mask=mask)).options["heads"]
    assert head["masked"] == [[False, True, False, False]] * 3


def test_the_static_content_of_the_six_steps_has_the_scores_and_weights_of_the_row():
    trace, kinds, heads = one_head()
    text = Reader(attention_steps(trace, kinds, heads, row=1).static).text
    cross = trace.attention("cross")
    for score, weight in zip(cross.scores[0, 0, 1], cross.weights[0, 0, 1], strict=True):
        assert f"{score * np.sqrt(2):.3f}{score:.3f}{weight:.3f}" in text


def test_a_search_without_steps_is_rejected():
    log = search()
    with pytest.raises(InputError, match="no step or no result"):
        search_replay(SearchLog(log.source, (), log.results), VOCABULARY)


def test_a_search_without_attention_is_shown_without():
    view = search_replay(search(cross=False), VOCABULARY)
    assert "attention" not in view.options["steps"][0]
    assert "two" in view.description


def test_the_search_on_a_page_follows_the_best_hypothesis():
    data = data_of(search_replay(search(), VOCABULARY).html)["views"][0]["options"]
    assert data["results"] == [{"tokens": ["two", "one", "</s>"], "score": -1.5, "path": [0, 1, 1]}]
    assert data["steps"][2]["finished"] == [{"beam": 1, "score": -1.5}]
    assert data["steps"][1]["next"][0] == [["one", 0.5], ["two", 0.3], ["</s>", 0.1]]
