# SPDX-License-Identifier: Apache-2.0
"""Views accept only valid attention and keep its numbers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exhibits import VOCABULARY, data_of, one_head, pair, search, softmax_weights, words
from html_reader import Reader

from transformer.errors import InputError
from transformer.inspection.search_log import SearchLog
from transformer.inspection.views.attention_kinds import (
    Focus,
    attention_kinds,
    trace_attention_kinds,
)
from transformer.inspection.views.attention_steps import attention_steps
from transformer.inspection.views.head_overview import head_overview
from transformer.inspection.views.head_view import head_view, shares_between_heads
from transformer.inspection.views.reading_path import ReadingPath
from transformer.inspection.views.search_replay import search_replay
from transformer.inspection.views.sentence_comparison import compare_sentences
from transformer.inspection.views.value_map import value_map

# Valid attention.


def test_kinds_of_attention_differ_in_sizes_and_rows_are_named_by_both_tokens():
    encoder, decoder, cross = pair()
    assert encoder.weights.shape == (2, 4, 5, 5)
    assert decoder.weights.shape == (3, 2, 4, 4)
    assert cross.weights.shape == (3, 2, 4, 5)
    assert encoder.rows[0] == ("s0",)
    assert decoder.rows == cross.rows == (("<s>", "t0"), ("t0", "t1"), ("t1", "t2"), ("t2", "</s>"))
    assert decoder.columns == (("<s>",), ("t0",), ("t1",), ("t2",))
    assert cross.columns == encoder.columns
    [encoder] = attention_kinds(
        encoder=np.full((1, 1, 4, 4), 0.25), source_tokens=["▁Schm", "etter", "ling", "</s>"]
    )
    assert encoder.columns == (("Schm",), ("·etter",), ("·ling",), ("</s>",)), "words"


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
        (
            lambda w: np.concatenate([w, w], 1) / 2,
            r"the weights of encoder attention: row \[0, 0, 0\] sums to 0.5.*not over",
        ),
    ],
)
def test_arrays_that_are_not_attention_are_rejected(change, message):
    with pytest.raises(InputError, match=message):
        attention_kinds(encoder=change(softmax_weights(1, 1, 3, 3)), source_tokens=words(3, "s"))


def test_attention_that_does_not_match_its_tokens_is_rejected():
    decoder = {"target_in": ["a", "b"], "target_out": ["b", "c"]}
    cross = decoder | {"source_tokens": ["a", "b", "c"]}
    for given, message in (
        ({}, "no weights are given"),
        ({"target_in": ["a"]}, "target_in has 1 tokens and target_out has 0"),
        ({"source_tokens": "abc"}, "'abc' is a string; give its tokens as a list"),
        (decoder | {"decoder": softmax_weights(1, 1, 2, 2)}, "may not attend to that key"),
        (  # swapped axes
            cross | {"cross": softmax_weights(1, 1, 3, 2)},
            "the weights of cross attention have 3 rows and 2",
        ),
    ):
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
    "source_tokens": words(5, "s"),
    "target_in": words(4, "t"),
    "target_out": words(4, "u"),
}


def test_the_attention_and_the_vectors_of_a_trace_are_the_model_s(traced):
    _, trace = traced()
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


def test_a_trace_of_a_batch_or_of_weights_alone_is_rejected(traced):
    _, trace = traced()
    batch = jax.tree.map(lambda array: jnp.asarray(np.stack([array] * 2, 1)), trace)
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


def test_a_measure_of_the_overview_has_a_number_for_every_head():
    both = pair()
    measures = {"need": {each.kind: np.ones(each.weights.shape[:2]) for each in both}}
    assert len(head_overview(both, measures=measures).options["measures"]) == 2
    with pytest.raises(InputError, match="'need' has no values; give those of at least one"):
        head_overview(both, measures={"need": {}})
    measures["need"]["decoder"] = np.ones((2, 3))
    with pytest.raises(InputError, match=r"'need' of 'decoder' has shape \(2, 3\)"):
        head_overview(both, measures=measures)


def test_a_measure_may_mean_something_for_some_kinds_of_attention_only():
    view = head_overview(pair(), measures={"distance": {"encoder": np.ones((2, 4))}})
    distance, entropy = view.options["measures"]
    assert [values is None for values in distance["values"]] == [False, True, True]
    assert None not in entropy["values"]


# The head and the words that a page is about.

FOCUS = Focus("cross", 2, 1, source=3, target=2)


def test_every_view_opens_on_the_same_head_and_on_the_row_of_its_kind():
    both = pair()
    views = [
        head_view(both, focus=FOCUS),
        head_overview(both, focus=FOCUS),
        compare_sentences(both, pair(seed=9), focus=FOCUS),
    ]
    for view in views:
        assert view.options["kind"] == 2
        assert view.options["layer"] == 2
        assert view.options["rows"] == [3, 2, 2], "of encoder, decoder and cross-attention"
    assert views[0].options["heads"] == [1]
    assert views[1].options["head"] == views[2].options["head"] == 1
    assert "Cross-attention, layer 3, row 3" in views[0].description


def test_a_focus_a_layer_or_a_row_that_does_not_exist_is_rejected():
    both, last = pair(), tuple(each.consecutive_layers(1) for each in pair())
    for view, attention, options, message in (
        (head_view, both, {"layer": 2}, "layer of encoder self-attention is 2, but must be"),
        (head_view, both, {"row": 5}, "row of encoder self-attention is 5"),
        (head_view, both, {"focus": {"head": 2}}, "head of cross-attention is 2"),
        (head_overview, both, {"focus": {"source": 5}}, "row of encoder self-attention is 5"),
        (head_view, last, {"focus": {"layer": 1}}, "1 is not among the layers of the view, which"),
    ):
        if "focus" in options:
            options = {"focus": dataclasses.replace(FOCUS, **options["focus"])}
        with pytest.raises(InputError, match=message):
            view(attention, **options)


def test_the_search_opens_on_the_step_of_the_word_and_at_most_on_the_last():
    assert search_replay(search(), VOCABULARY, step=1).options["first"] == 1
    assert search_replay(search(), VOCABULARY, step=9).options["first"] == 2


# A map of values.

ROWS, COLUMNS = [("r",), ("s",)], [("a",), ("b",), ("c",)]


def test_a_map_of_values_keeps_them_and_leaves_out_what_cannot_count():
    values = [[0.5, -2.0, np.nan], [0.25, 0.0, 1.0]]
    view = value_map(values, ROWS, COLUMNS, name="Share", unit="nats", cursor=(1, 2))
    assert view.options["values"] == [[0.5, -2.0, None], [0.25, 0.0, 1.0]]
    assert view.options["limit"] == 2.0
    assert view.options["cursor"] == [1, 2]
    assert "<td></td>" in view.static
    text = Reader(view.static).text
    assert all(number in text for number in ("0.50", "-2.00", "0.25", "1.00"))


def test_values_that_do_not_match_their_labels_are_rejected():
    for values, cursor, message in (
        ([[1.0, 2.0]], (0, 0), r"Share has shape \[1, 2\] for 2 rows and 3 columns"),
        ([[1.0, 2.0, np.inf]] * 2, (0, 0), "give one finite number, or NaN"),
        ([[1.0, 2.0, 3.0]] * 2, (2, 0), "row of Share is 2"),
    ):
        with pytest.raises(InputError, match=message):
            value_map(values, ROWS, COLUMNS, name="Share", unit="nats", cursor=cursor)


# The path of an answer.


def test_the_drawn_path_has_a_line_for_each_weight_that_is_not_tiny_and_every_word():
    path = ReadingPath(
        words=[("the",), ("animal",), ("it",)],
        position=2,
        predictions=[("es", 0.9), ("sie", 0.1)],
        encoder=np.array([0.01, 0.74, 0.25]),
        cross=np.array([0.0, 0.0, 1.0]),
        shades=np.array([0.1, -0.2, 1.0]),
    )
    read = Reader(path.drawing("what es reads"))
    lines = [float(line["stroke-opacity"]) for line in read.all("line")]
    assert lines == [0.74, 0.25, 1.0]
    boxes = [(box["class"], float(box["fill-opacity"])) for box in read.all("rect")[:3]]
    assert boxes == [("high", 0.1), ("low", 0.2), ("high", 1.0)]
    for text in ("what es reads", "animal", "es", "0.90", "sie", "0.10"):
        assert text in read.text


# Two sentences.


def test_a_comparison_of_the_last_layers_keeps_their_numbers():
    pairs = [tuple(each.consecutive_layers(1) for each in pair(seed=seed)) for seed in (0, 9)]
    view = compare_sentences(*pairs)
    assert "layer 2, head 1: the second sentence minus the first sentence" in view.description
    kinds = data_of(view.html)["pairs"][0]
    shown = [(len(each["weights"]), each["firstLayer"]) for each in kinds]
    assert shown == [(1, 1), (1, 2), (1, 2)]
    assert pair()[0].consecutive_layers(5).weights.shape == (2, 4, 5, 5)
    with pytest.raises(InputError, match="equal numbers of tokens"):
        compare_sentences(pair(source=5), pair(source=6))


def test_consecutive_layers_keep_the_layer_of_the_focus():
    kinds = pair(encoder=(3, 4), decoder=(5, 2))
    for layer, first in ((1, 1), (4, 3)):
        focus = dataclasses.replace(FOCUS, layer=layer)
        kept = tuple(each.consecutive_layers(2, focus) for each in kinds)
        assert [each.first_layer for each in kept] == [1, 3, first]
        np.testing.assert_array_equal(kept[2].weights, kinds[2].weights[first : first + 2])
        assert first + compare_sentences(kept, kept, focus=focus).options["layer"] == layer


# One head, and a search.


def test_six_steps_mask_keys_of_weight_0_and_need_a_head_and_a_row_that_exist():
    mask = np.array([[True, False, True, True]] * 3)
    [head] = attention_steps(*one_head(mask=mask)).options["heads"]
    assert head["masked"] == [[False, True, False, False]] * 3
    trace, kinds, heads = one_head()
    text = Reader(attention_steps(trace, kinds, heads, row=1).static).text
    cross = trace.attention("cross")
    for score, weight in zip(cross.scores[0, 0, 1], cross.weights[0, 0, 1], strict=True):
        assert f"{score * np.sqrt(2):.3f}{score:.3f}{weight:.3f}" in text
    for heads, row, message in (
        ([], 0, "no head is given"),
        ([("cross", 0, 0)], 3, "row of cross-attention is 3"),
        ([("cross", 0, 1)], 0, "head of cross-attention is 1"),
    ):
        with pytest.raises(InputError, match=message):
            attention_steps(trace, kinds, heads, row=row)


def test_a_search_may_lack_attention_but_not_steps():
    log = search()
    with pytest.raises(InputError, match="no step or no result"):
        search_replay(SearchLog(log.source, (), log.results), VOCABULARY)
    view = search_replay(search(cross=False), VOCABULARY)
    assert "attention" not in view.options["steps"][0]
    assert "two" in view.description


def test_the_search_on_a_page_follows_the_best_hypothesis():
    data = data_of(search_replay(search(), VOCABULARY).html)["views"][0]["options"]
    assert data["results"] == [{"tokens": ["two", "one", "</s>"], "score": -1.5, "path": [0, 1, 1]}]
    assert data["steps"][2]["finished"] == [{"beam": 1, "score": -1.5}]
    assert data["steps"][1]["next"][0] == [["one", 0.5], ["two", 0.3], ["</s>", 0.1]]
