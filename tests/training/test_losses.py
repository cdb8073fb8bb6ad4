# SPDX-License-Identifier: Apache-2.0
"""Label-smoothed cross-entropy: numbers worked by hand, and invariances."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from transformer.batch import token_log_probs
from transformer.errors import InputError
from transformer.training.consistency import symmetric_kl_sum
from transformer.training.losses import (
    Sums,
    perplexity,
    smoothed_cross_entropy,
)

PROBABILITIES = [0.5, 0.25, 0.125, 0.125]
"""Of a vocabulary of four: log2 p is -1, -2, -3, -3."""
LOGITS = jnp.log(jnp.array([[PROBABILITIES]])) + 3.0
LN2 = math.log(2)


def rows(seed=0, shape=(2, 5, 7)):
    """Random logits."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape) * 2, jnp.float32)


TARGET = jnp.array([[3, 6, 1, 2, 0], [5, 2, 0, 0, 0]])


def test_the_perplexity_of_a_model_that_diverged_is_a_number():
    assert perplexity(2.0) == pytest.approx(math.exp(2.0))
    assert math.isfinite(perplexity(1e4))


def test_uniform_others_by_hand():
    """Gold token 1 has 0.7, the three others 0.1 each: 0.7 * 2 + 0.1 * (1 + 3 + 3) = 2.1 bits."""
    sums = smoothed_cross_entropy(LOGITS, jnp.array([[1]]), 0.3, "uniform_others")
    assert float(sums.loss) == pytest.approx(2.1 * LN2, rel=1e-6)
    assert float(sums.nll) == pytest.approx(2 * LN2, rel=1e-6)


def test_uniform_by_hand():
    """All four have 0.1, the gold token 0.6 more: 0.7 * 2 + 0.1 * (1 + 3 + 3) = 2.1 bits at 0.4."""
    sums = smoothed_cross_entropy(LOGITS, jnp.array([[1]]), 0.4, "uniform")
    assert float(sums.loss) == pytest.approx(2.1 * LN2, rel=1e-6)
    sums = smoothed_cross_entropy(LOGITS, jnp.array([[1]]), 0.2, "uniform")
    assert float(sums.loss) == pytest.approx((0.85 * 2 + 0.05 * 7) * LN2, rel=1e-6)


@pytest.mark.parametrize("mass", ["uniform_others", "uniform"])
def test_all_sums_equal_those_of_the_oracle(mass):
    for smoothing in (0.0, 0.1, 0.5):
        sums = smoothed_cross_entropy(rows(), TARGET, smoothing, mass)
        expected = oracle.loss_sums(np.asarray(rows()), TARGET, smoothing, mass)
        sums = [sums.loss, sums.nll, sums.correct, sums.tokens]
        np.testing.assert_allclose(sums, expected, rtol=1e-5)


def test_of_equal_logits_the_first_token_is_the_prediction():
    logits = jnp.array([[[1.0, 3, 3, 2], [1.0, 3, 3, 2], [5.0, 5, 5, 5]]])
    sums = smoothed_cross_entropy(logits, jnp.array([[1, 2, 3]]))
    assert (sums.correct, sums.tokens) == (1, 3)


def test_padding_contributes_nothing_to_any_sum():
    changed = rows().at[0, 4].set(100.0 * rows(1)[0, 4]).at[1, 2:].multiply(-7.0)
    ours = jax.tree.leaves(smoothed_cross_entropy(rows(), TARGET))
    assert ours == jax.tree.leaves(smoothed_cross_entropy(changed, TARGET))
    assert float(smoothed_cross_entropy(rows(), TARGET).tokens) == 6
    nothing = smoothed_cross_entropy(rows(), jnp.zeros_like(TARGET))
    assert jax.tree.leaves(nothing) == jax.tree.leaves(Sums.zero())


def test_any_id_can_be_the_padding():
    """With pad_id 6, the targets that were 0 count and those that were 6 do not."""
    swapped = jnp.where(TARGET == 0, 6, jnp.where(TARGET == 6, 0, TARGET))
    logits = rows()[..., jnp.array([6, 1, 2, 3, 4, 5, 0])]
    ours = smoothed_cross_entropy(logits, swapped, pad_id=6)
    expected = smoothed_cross_entropy(rows(), TARGET)
    np.testing.assert_allclose(jax.tree.leaves(ours), jax.tree.leaves(expected), rtol=1e-6)
    divergences = (
        symmetric_kl_sum(logits, -logits, swapped, pad_id=6),
        symmetric_kl_sum(rows(), -rows(), TARGET),
    )
    assert float(divergences[0]) == pytest.approx(float(divergences[1]), rel=1e-6)


def test_padding_has_no_gradient():
    gradient = jax.grad(lambda x: smoothed_cross_entropy(x, TARGET).loss)(rows())
    np.testing.assert_array_equal((gradient != 0).any(-1), TARGET != 0)


def test_the_sums_of_two_batches_add_up_to_those_of_both():
    whole = smoothed_cross_entropy(rows(), TARGET)
    parts = [smoothed_cross_entropy(rows()[i : i + 1], TARGET[i : i + 1]) for i in (0, 1)]
    added = Sums.zero() + parts[0] + parts[1]
    np.testing.assert_allclose(jax.tree.leaves(added), jax.tree.leaves(whole), rtol=1e-6)


def test_means_are_per_token_and_perplexity_is_exp_of_the_nll():
    sums = Sums(*(jnp.float32(value) for value in (12.0, 4 * LN2, 3.0, 4.0)))
    expected = {"loss": 3.0, "nll": LN2, "perplexity": 2.0, "accuracy": 0.75}
    assert sums.means() == pytest.approx(expected, rel=1e-6)
    assert Sums.zero().means() == {"loss": 0, "nll": 0, "perplexity": 1, "accuracy": 0}


@pytest.mark.parametrize("mass", ["uniform_others", "uniform"])
def test_the_smoothed_loss_is_least_where_the_model_equals_the_smoothed_label(mass):
    label = oracle.smoothed_label(2, 5, 0.2, mass)
    target = jnp.array([[2]])

    def loss(logits):
        return smoothed_cross_entropy(logits, target, 0.2, mass).loss

    best = jnp.log(jnp.asarray(label, jnp.float32))[None, None]
    np.testing.assert_allclose(jax.grad(loss)(best), 0, atol=1e-6)
    entropy = -(label * np.log(label)).sum()
    assert float(loss(best)) == pytest.approx(entropy, rel=1e-6)
    for direction in np.eye(5, dtype=np.float32):
        assert float(loss(best + 0.5 * direction)) > entropy + 1e-3


def test_a_constant_added_to_all_logits_changes_nothing():
    ours = smoothed_cross_entropy(rows(), TARGET)
    np.testing.assert_allclose(
        jax.tree.leaves(smoothed_cross_entropy(rows() + 50.0, TARGET)),
        jax.tree.leaves(ours),
        rtol=1e-5,
    )


def test_bfloat16_logits_are_summed_in_float32():
    logits = rows().astype(jnp.bfloat16)
    ours = smoothed_cross_entropy(logits, TARGET)
    expected = smoothed_cross_entropy(logits.astype(jnp.float32), TARGET)
    assert ours.loss.dtype == jnp.float32
    assert jax.tree.leaves(ours) == jax.tree.leaves(expected)


def test_token_log_probs_by_hand_and_their_sum_is_minus_the_nll():
    log_probs = token_log_probs(jnp.tile(LOGITS, (1, 4, 1)), jnp.array([[0, 1, 2, 3]]))
    np.testing.assert_allclose(log_probs, [[-LN2, -2 * LN2, -3 * LN2, -3 * LN2]], rtol=1e-6)
    total = jnp.where(TARGET != 0, token_log_probs(rows(), TARGET), 0.0).sum()
    sums = smoothed_cross_entropy(rows(), TARGET)
    assert float(total) == pytest.approx(-float(sums.nll), rel=1e-6)


def test_an_unknown_mass_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match="'all' is unknown; choose 'uniform_others' or 'uniform'"):
        smoothed_cross_entropy(rows(), TARGET, 0.1, "all")


def test_the_symmetric_kl_divergence_of_two_predictions_by_hand():
    """p = (1/2, 1/2) and q = (1/4, 3/4): ((1/4) ln 2 + (-1/4) ln(2/3)) / 2 a token."""
    p = jnp.log(jnp.array([[[0.5, 0.5], [0.5, 0.5]]]))
    q = jnp.log(jnp.array([[[0.25, 0.75], [0.9, 0.1]]]))
    divergence = symmetric_kl_sum(p, q, jnp.array([[1, 0]]))
    assert float(divergence) == pytest.approx(0.25 * np.log(3) / 2, rel=1e-5)
    assert float(symmetric_kl_sum(p, p, jnp.array([[1, 1]]))) == 0.0
