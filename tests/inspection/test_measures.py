# SPDX-License-Identifier: Apache-2.0
"""Measures of attention weights on hand-worked matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.inspection import measures
from transformer.inspection.trace import run

PREVIOUS = np.eye(4, k=-1) + np.diag([1.0, 0, 0, 0])
"""A head that reads the previous position; the first one reads itself."""
ITSELF = np.eye(4)
UNIFORM = np.full((4, 4), 0.25)


# Entropy and distance.


def test_the_entropy_of_rows_in_bits():
    """The binary logarithm of the length of a uniform row, and 0 of a row of one key."""
    for keys in (1, 5):
        values = measures.entropy(jnp.full((3, 2, keys), 1 / keys))
        np.testing.assert_allclose(values, np.full((3, 2), np.log2(keys)), atol=1e-6)
    rows = np.array([[0.5, 0.25, 0.25, 0.0], [0.0, 0.0, 1.0, 0.0]])
    np.testing.assert_allclose(measures.entropy(rows), [1.5, 0.0], atol=1e-6)


def test_the_attention_distance_is_weighted_by_the_weights():
    weights = np.array([[0.5, 0.0, 0.5], [0.25, 0.75, 0.0]])
    np.testing.assert_allclose(measures.attention_distance(weights), [1.0, 0.25])
    np.testing.assert_allclose(measures.attention_distance(PREVIOUS), [0, 1, 1, 1])


def test_a_mean_over_rows_ignores_excluded_rows_even_if_they_are_nan():
    values = jnp.array([[1.0, 3.0, jnp.nan], [2.0, 2.0, 8.0]])
    rows = np.array([True, True, False])
    np.testing.assert_allclose(measures.row_mean(values, rows), [2, 2])
    np.testing.assert_allclose(measures.row_mean(values[1]), 4)
    np.testing.assert_allclose(measures.row_mean(values, np.zeros(3, bool)), [0, 0])


# Roles.


def test_a_head_has_the_role_of_the_position_it_reads():
    following, first = np.eye(4, k=1) + np.diag([0, 0, 0, 1.0]), np.eye(4)[[0] * 4]
    weights = np.stack([PREVIOUS, following, first, np.eye(4)[[3] * 4], ITSELF, UNIFORM])
    roles = measures.head_roles(weights)
    expected = ["previous", "next", "first", "end", "diagonal", ""]
    np.testing.assert_array_equal(roles.names(), expected)
    np.testing.assert_allclose(roles.previous, [1, 0, 1 / 3, 0, 0, 0.25], atol=1e-6)
    np.testing.assert_allclose(roles.next, [0, 1, 0, 1 / 3, 0, 0.25], atol=1e-6)
    np.testing.assert_allclose(roles.first, [0.5, 0, 1, 0, 0.25, 0.25], atol=1e-6)
    np.testing.assert_allclose(roles.end, [0, 0.5, 0, 1, 0.25, 0.25], atol=1e-6)
    np.testing.assert_allclose(roles.diagonal, [0.25, 0.25, 0.25, 0.25, 1, 0.25], atol=1e-6)
    assert roles.names(threshold=0.2)[5] == "previous"


def test_the_roles_of_cross_attention_count_the_queries_for_which_the_key_exists():
    weights = np.array([[1.0, 0], [0.25, 0.75], [0.5, 0.5]])
    roles = measures.head_roles(weights)
    assert float(roles.diagonal) == pytest.approx((1 + 0.75) / 2)
    assert float(roles.previous) == pytest.approx((0.25 + 0.5) / 2)
    assert float(roles.next) == 0
    assert float(roles.end) == pytest.approx((0 + 0.75 + 0.5) / 3)


# Coreference.

IT = np.array([False, False, False, True])
ANIMAL, STREET = np.eye(4, dtype=bool)[0], np.eye(4, dtype=bool)[2]


def test_the_coreference_score_is_the_antecedents_weight_minus_the_distractors():
    weights = np.array([UNIFORM, np.tile([0.5, 0.1, 0.2, 0.2], (4, 1)), ITSELF])
    scores = measures.coreference_score(weights, IT, ANIMAL, STREET)
    np.testing.assert_allclose(scores, [0, 0.3, 0], atol=1e-7)
    scores = measures.coreference_score(weights, IT, STREET, ANIMAL)
    np.testing.assert_allclose(scores, [0, -0.3, 0], atol=1e-7)


def test_words_of_several_tokens_are_summed_as_keys_and_averaged_as_queries():
    weights = np.array([[0.1, 0.2, 0.7, 0], [0, 0, 0, 1], [0.4, 0.4, 0.2, 0], [0.2, 0, 0.6, 0.2]])
    query, antecedent = np.array([0, 0, 1, 1], bool), np.array([1, 1, 0, 0], bool)
    scores = measures.coreference_score(weights, query, antecedent, STREET)
    assert float(scores) == pytest.approx(((0.8 - 0.2) + (0.2 - 0.6)) / 2)


def test_the_coreference_score_is_zero_over_both_assignments_of_the_nouns():
    """Over twins, in which the two nouns swap, a positional head scores zero."""
    shares = np.random.default_rng(1).random((6, 2, 3, 4, 4))
    weights = jnp.asarray(shares / shares.sum(-1, keepdims=True))
    score = jax.vmap(measures.coreference_score, (0, None, None, None))
    scores = jnp.concatenate(
        [score(weights, IT, ANIMAL, STREET), score(weights, IT, STREET, ANIMAL)]
    )
    assert np.abs(scores).min() > 1e-4
    np.testing.assert_allclose(scores.mean(0), np.zeros((2, 3)), atol=1e-7)
    np.testing.assert_array_equal(measures.share_above_zero(scores), np.full((2, 3), 0.5))


def test_a_score_of_zero_counts_half_in_the_share_above_zero():
    scores = np.array([[0.5, -0.1], [0.0, 0.0], [-0.1, 0.0], [0.2, -0.2]])
    np.testing.assert_allclose(measures.share_above_zero(scores), [2.5 / 4, 1 / 4])


def test_a_head_that_distinguishes_the_nouns_is_above_chance_and_noise_is_below():
    noise = np.random.default_rng(1).normal(0, 0.1, (400, 2, 3))
    threshold = measures.chance_threshold(noise)
    assert 0.1 / 20 < threshold < 4 * 0.1 / 20, "a few standard errors of a mean of 400"
    assert threshold == measures.chance_threshold(noise)
    assert measures.chance_threshold(noise[:, :1, :1]) < threshold, "one head, one comparison"
    resolving = noise.copy()
    resolving[:, 0, 0] += 0.2
    assert resolving[:, 0, 0].mean() > measures.chance_threshold(resolving)
    assert measures.chance_threshold(np.zeros((4, 1, 2))) == 0.0


# Norm-weighted attention.


def test_norm_weighted_attention_is_the_norm_of_the_contribution_of_each_key():
    """Values 3 and 0 times (4/3, 1) are (4, 3) with norm 5, and 0; half of 5 is 2.5."""
    weights = jnp.array([[[0.5, 0.5], [0.2, 0.8]]])
    value, kernel = jnp.array([[[3.0], [0.0]]]), jnp.array([[[4 / 3, 1.0]]])
    weighted = measures.norm_weighted_attention(weights, value, kernel)
    np.testing.assert_allclose(weighted, [[[2.5, 0], [1.0, 0]]], rtol=1e-6)


def test_with_one_key_the_norm_weighted_attention_is_the_norm_of_the_heads_output(shallow):
    """A source of one token has all the weight, so its contribution is the head's output."""
    tokens = np.array([4]), np.array([1, 5])
    _, trace = jax.jit(lambda: run(*shallow, *tokens, capture="full"))()
    for kind in ("encoder", "cross"):
        attention = trace.attention(kind)
        kernels = measures.output_kernels(*shallow, kind)
        weighted = measures.norm_weighted_attention(attention.weights, attention.value, kernels)
        norms = np.linalg.norm(attention.head_out, axis=-1)[..., None]
        np.testing.assert_allclose(weighted, norms, rtol=1e-4)


def test_output_kernels_are_those_of_the_kind_of_attention(model, params):
    for kind, stack, name, layers in (
        ("encoder", "encoder", "self_attention", 2),
        ("decoder", "decoder", "self_attention", 3),
        ("cross", "decoder", "cross_attention", 3),
    ):
        kernels = measures.output_kernels(model, params, kind)
        assert kernels.shape == (layers, 3, 4, 12)
        np.testing.assert_array_equal(kernels[1], params[stack]["layer_1"][name]["output"])
