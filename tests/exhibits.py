# SPDX-License-Identifier: Apache-2.0
"""Inputs of the views: attention, the vectors of a head, a search; and a view of each kind."""

import functools
import json
import re

import numpy as np

from transformer.inspection.activations import AttentionTrace, StackTrace, Trace
from transformer.inspection.search_log import Finished, Result, SearchLog, SearchStep
from transformer.inspection.views.attention_kinds import attention_kinds, trace_attention_kinds
from transformer.inspection.views.attention_steps import attention_steps
from transformer.inspection.views.head_overview import head_overview
from transformer.inspection.views.head_view import head_view
from transformer.inspection.views.search_replay import search_replay
from transformer.inspection.views.sentence_comparison import compare_sentences
from transformer.inspection.views.value_map import value_map


def softmax_weights(layers, heads, rows, columns, causal=False, seed=0):
    """Attention with strong and weak weights, `[L,N,T,S]`."""
    scores = 2 * np.random.default_rng(seed).normal(size=(layers, heads, rows, columns))
    if causal:
        scores = np.where(np.tril(np.ones((rows, columns), bool)), scores, -np.inf)
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return (exponentials / exponentials.sum(-1, keepdims=True)).astype(np.float32)


def words(count, prefix):
    return [f"{prefix}{index}" for index in range(count)]


def pair(source=5, target=4, encoder=(2, 4), decoder=(3, 2), tokens=None, seed=0):
    """All kinds of attention of one sentence pair; the stacks differ in layers and heads."""
    return attention_kinds(
        encoder=softmax_weights(*encoder, source, source, seed=seed),
        decoder=softmax_weights(*decoder, target, target, causal=True, seed=seed + 1),
        cross=softmax_weights(*decoder, target, source, seed=seed + 2),
        source_tokens=tokens or words(source, "s"),
        target_in=["<s>", *words(target - 1, "t")],
        target_out=[*words(target - 1, "t"), "</s>"],
    )


HEAD = [("cross", 0, 0)]


def one_head(rows=3, columns=4, width=2, wide=3, mask=None, seed=0):
    """Arguments of `attention_steps`: the trace of a cross-attention head with random vectors."""
    generator = np.random.default_rng(seed)
    query, key, value = (
        generator.normal(size=shape) for shape in ((rows, width), (columns, width), (columns, wide))
    )
    scores = query @ key.T / np.sqrt(width)
    exponentials = np.exp(np.where(True if mask is None else mask, scores, -np.inf))
    weights = exponentials / exponentials.sum(1, keepdims=True)
    vectors = {"query": query, "key": key, "value": value, "z": weights @ value}
    arrays = {"weights": weights, "scores": scores} | vectors
    head = AttentionTrace(**{name: array[None, None] for name, array in arrays.items()})
    decoder = StackTrace(self_attention=None, cross_attention=head)
    trace = Trace(encoder=StackTrace(self_attention=None), decoder=decoder)
    tokens = words(rows, "w")
    kinds = trace_attention_kinds(
        trace, source_tokens=words(columns, "w"), target_in=tokens, target_out=tokens
    )
    return trace, kinds, HEAD


def search(cross=True, layers=2, heads=3, source=3):
    """A search with two beams and three steps, as `search_log.record` returns it."""

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


VOCABULARY = ["<pad>", "<s>", "</s>", "<unk>", "one", "two"]


EXHIBITS = {
    "head_view": lambda: head_view(pair()),
    "head_overview": lambda: head_overview(pair()),
    "attention_steps": lambda: attention_steps(*one_head()),
    "search_replay": lambda: search_replay(search(), VOCABULARY),
    "compare_sentences": lambda: compare_sentences(pair(), pair(seed=9)),
    "value_map": lambda: value_map(
        [[0.5, -2.0], [float("nan"), 1.0]],
        [("r",), ("s",)],
        [("a",), ("b",)],
        name="Contribution",
        unit="nats",
    ),
}
"""A view of each kind, by its name; drawing one takes a second."""
exhibit = functools.cache(lambda name: EXHIBITS[name]())


def every_view():
    """One view of each kind."""
    return [exhibit(name) for name in EXHIBITS]


def data_of(text):
    """The data that a page's script reads."""
    [block] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    return json.loads(block)
