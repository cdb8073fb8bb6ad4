# SPDX-License-Identifier: Apache-2.0
"""Invalid arguments of figures are rejected with a reason."""

import numpy as np
import pytest
from drawings import sentence

from transformer.errors import InputError
from transformer.inspection import figures
from transformer.inspection.activations import StackTrace

T, S = 4, 5
ROWS, KEYS = list("abcd"), list("vwxyz")
UNIFORM = np.full((T, S), 1 / S)
WRONG = [
    (
        lambda: figures.plot_attention(UNIFORM[None], ROWS, KEYS),
        r"weights has shape \[1, 4, 5\], but must be \[T,S\]; leave out the batch axis",
    ),
    (  # swapped axes
        lambda: figures.plot_attention(UNIFORM.T / UNIFORM.T.sum(-1, keepdims=True), ROWS, KEYS),
        "query_tokens has 4 tokens, but weights says that T is 5; .* queries before keys",
    ),
    (  # scores instead of weights
        lambda: figures.plot_attention(UNIFORM - 1, ROWS, KEYS),
        r"weights: row \[0\] sums to -4 with least value -0.8",
    ),
    (
        lambda: figures.plot_attention_grid(UNIFORM[None, None] * 1.01, ROWS, KEYS),
        r"weights: row \[0, 0, 0\] sums to 1.01",
    ),
    (  # shares between heads
        lambda: figures.plot_token_heads(np.full((2, T, S), 0.5), 0, ROWS, KEYS),
        r"weights: row \[0, 0\] sums to 2.5 .* and not over the heads",
    ),
    (
        lambda: figures.plot_attention(UNIFORM, ROWS, KEYS, mask=np.arange(S) < np.full((T, 1), 3)),
        r"weights: the weight at \[0, 3\] is 0.2, but that query may not attend to that key",
    ),
    (
        lambda: figures.plot_attention(UNIFORM, ROWS, KEYS, mask=np.ones((T, S))),
        "mask holds float64 values, but must be boolean",
    ),
    (
        lambda: figures.plot_patch_map([[0.0, np.nan]], ["a", "b"]),
        r"effect\[0, 1\] is nan, but every value must be finite",
    ),
    (
        lambda: figures.plot_patch_map([["a", "b"]], ["a", "b"]),
        "effect holds <U1 values, but must hold real numbers",
    ),
    (lambda: figures.plot_patch_map([[1.0], [1.0, 2.0]], ["a", "b"]), "cannot be made an array"),
    (
        lambda: figures.plot_patch_map(np.zeros((2, 0)), []),
        r"effect has shape \[2, 0\], \[levels,S\]: there is nothing to draw along S",
    ),
    (
        lambda: figures.plot_patch_map([[0.0, 1.0]], "ab"),
        "tokens must be a list of strings, one a token, not 'ab'",
    ),
    (
        lambda: figures.plot_token_heads(UNIFORM[None], 4, ROWS, KEYS),
        "token is 4, but must be from 0 to 3",
    ),
    (
        lambda: figures.plot_token_heads(UNIFORM[None], 0, ROWS, KEYS, normalize="rows"),
        "normalize is 'rows', but must be 'keys' or 'heads'",
    ),
    (
        lambda: figures.plot_alignment(UNIFORM, KEYS, ROWS, ROWS, gold={(0, 5)}),
        "the source position of a gold pair is 5, but must be from 0 to 4",
    ),
    (
        lambda: figures.plot_alignment(UNIFORM, KEYS, ROWS, ROWS, convention="output"),
        "convention is 'output', but must be 'predict' or 'read'",
    ),
    (
        lambda: figures.plot_attention_steps(
            *[np.ones((2, 3))] * 4, 0, ["a", "b"], mask=np.array([[False] * 2, [True] * 2])
        ),
        r"mask\[0\] lets query 0 attend to nothing",
    ),
    (
        lambda: figures.plot_logit_lens(np.zeros((2, 1, 3)), list("abc"), ["x"], [3]),
        r"target_out\[0\] is 3, but must be from 0 to 2",
    ),
    (
        lambda: figures.plot_output_distribution(
            np.zeros((1, 3)), list("abc"), ["x"], [1], target=[[0.5, 0.2, 0.2]], top_k=2
        ),
        r"target: row \[0\] sums to 0.9",
    ),
    (
        lambda: figures.plot_attribution(np.zeros((1, 4)), ["a", "b"], ["c"], ["x"]),
        r"source and prefix together has 3 tokens, but attribution says that S\+T is 4",
    ),
    (
        lambda: figures.read_predict(ROWS, KEYS),
        "target_out has 5 tokens, but target_in says that T is 4",
    ),
    (
        lambda: figures.plot_output_layer([1.0], [[1.0], [2.0]], ["a", "b"], logits=[1.0, 3.0]),
        "logits differs by 1 .* check that they are of the same .* position",
    ),
    (
        lambda: figures.plot_multi_head(UNIFORM, {"query": UNIFORM}, ROWS),
        r"kernels lacks \['key', 'output', 'value'\]; give the parameters of one attention",
    ),
    (
        lambda: figures.plot_vector_flow(StackTrace(self_attention=None), ROWS),
        "the residual stream was not captured; run with capture='full'",
    ),
    (lambda: figures.plot_head_table({}), "values is empty"),
    (lambda: figures.plot_vectors({}, []), "vectors is empty"),
    (lambda: figures.plot_positional_encoding({}), "tables is empty"),
    (
        lambda: figures.plot_beam_tree(sentence("short").log, ["a"] * 5),
        "vocabulary has 5 tokens, but the log has the id",
    ),
]


def test_invalid_arguments_are_rejected_with_a_reason():
    for draw, words in WRONG:
        with pytest.raises(InputError, match=words):
            draw()
