# SPDX-License-Identifier: Apache-2.0
"""The learning rate and the first updates, worked by hand (paper 5.3)."""

import jax.numpy as jnp
import numpy as np
import pytest

from transformer import optimizers
from transformer.config import OptimizerConfig


def rate(step, **arguments):
    """The learning rate of an update, the first one being number 1."""
    return float(optimizers.noam(**arguments)(jnp.asarray(step - 1)))


@pytest.mark.parametrize(("d_model", "peak"), [(512, 6.99e-4), (1024, 4.94e-4)])
def test_the_peak_is_the_papers(d_model, peak):
    assert rate(4000, d_model=d_model) == pytest.approx(peak, abs=0.005e-4)
    assert rate(4000, d_model=d_model) == pytest.approx((d_model * 4000) ** -0.5, rel=1e-6)
    assert rate(3999, d_model=d_model) < rate(4000, d_model=d_model) > rate(4001, d_model=d_model)


def test_the_first_step_is_a_four_thousandth_of_the_peak():
    assert rate(1, d_model=512) == pytest.approx(512**-0.5 * 4000**-1.5, rel=1e-6)
    assert rate(1, d_model=512) == pytest.approx(1.7469e-7, rel=1e-4)
    assert rate(1, d_model=512) > 0


def test_it_rises_linearly_and_falls_as_the_inverse_root():
    assert rate(3000, d_model=512) == pytest.approx(3 * rate(1000, d_model=512), rel=1e-6)
    assert rate(16000, d_model=512) == pytest.approx(rate(4000, d_model=512) / 2, rel=1e-6)


def test_warm_up_moves_the_peak_and_scale_multiplies_everything():
    assert rate(8000, d_model=512, warmup_steps=8000, scale=2.0) == pytest.approx(
        2 * (512 * 8000) ** -0.5, rel=1e-6
    )
    config = OptimizerConfig(learning_rate=2.0, warmup_steps=8000)
    schedule = optimizers.schedule(config, 512)
    for step in (1, 500, 8000, 90_000):
        expected = rate(step, d_model=512, warmup_steps=8000, scale=2.0)
        assert float(schedule(jnp.asarray(step - 1))) == pytest.approx(expected, rel=1e-6)


def test_adams_first_update_is_the_rate_times_the_sign_of_the_gradient():
    """Both moments are corrected to g and g^2, so the update is -lr g / (|g| + 1e-9)."""
    optimizer = optimizers.build(OptimizerConfig(), d_model=512)
    params = jnp.array([1.0, -2.0, 0.5, 3.0])
    gradient = jnp.array([0.3, -0.002, 1e-9, 0.0])
    update, state = optimizer.update(gradient, optimizer.init(params), params)
    lr = 512**-0.5 * 4000**-1.5
    np.testing.assert_allclose(update, [-lr, lr, -lr / 2, 0.0], rtol=1e-4)
    adam = state[0]
    np.testing.assert_allclose(adam.mu, 0.1 * gradient, rtol=1e-5)
    np.testing.assert_allclose(adam.nu, 0.02 * gradient**2, rtol=1e-5)


def test_adams_second_update_by_hand():
    """Moments of 1 then -2 with 0.9 and 0.98, corrected by 1 - 0.81 and 1 - 0.9604."""
    optimizer = optimizers.build(OptimizerConfig(warmup_steps=10), d_model=100)
    params = jnp.zeros((1,))
    _, state = optimizer.update(jnp.array([1.0]), optimizer.init(params), params)
    update, _ = optimizer.update(jnp.array([-2.0]), state, params)
    first = (0.9 * 0.1 * 1 + 0.1 * -2) / (1 - 0.9**2)
    second = (0.98 * 0.02 * 1 + 0.02 * 4) / (1 - 0.98**2)
    lr = 100**-0.5 * 2 * 10**-1.5
    assert float(update[0]) == pytest.approx(-lr * first / second**0.5, rel=1e-4)


def test_moments_are_shaped_as_the_parameters_and_float32():
    optimizer = optimizers.build(OptimizerConfig(), d_model=4)
    params = {"a": jnp.ones((2, 3)), "b": {"c": jnp.ones(5)}}
    adam = optimizer.init(params)[0]
    for moment in (adam.mu, adam.nu):
        assert moment["a"].shape == (2, 3)
        assert moment["b"]["c"].shape == (5,)
        assert moment["a"].dtype == jnp.float32
