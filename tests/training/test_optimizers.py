# SPDX-License-Identifier: Apache-2.0
"""The learning rates and the first updates, worked by hand (paper 5.3)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.config import OptimizerConfig, TransformerConfig
from transformer.models import protocol
from transformer.nn.parameters import Parameter
from transformer.training import optimizers


def rate(step, **arguments):
    """The learning rate of update number `step`, counted from 1."""
    return float(optimizers.noam(**arguments)(jnp.asarray(step - 1)))


def build(config, metadata=None, d_model=6, steps=10):
    """The optimizer; adam without weight decay needs no metadata."""
    widths = {"d_model": d_model, "num_heads": 1, "d_ff": 8}
    model = protocol.build(TransformerConfig(vocab_size=9, num_layers=1, **widths))
    return optimizers.optimizer(model, config, steps, trained=metadata)


def test_the_rate_rises_linearly_to_the_papers_peak_and_falls_as_the_inverse_root():
    for d, peak in ((512, 6.99e-4), (1024, 4.94e-4)):
        assert rate(4000, d_model=d) == pytest.approx(peak, abs=0.005e-4)
        assert rate(4000, d_model=d) == pytest.approx((d * 4000) ** -0.5, rel=1e-6)
        assert rate(3999, d_model=d) < rate(4000, d_model=d) > rate(4001, d_model=d)
    assert rate(1, d_model=512) == pytest.approx(512**-0.5 * 4000**-1.5, rel=1e-6)
    assert rate(1, d_model=512) == pytest.approx(1.7469e-7, rel=1e-4)
    assert rate(3000, d_model=512) == pytest.approx(3 * rate(1000, d_model=512), rel=1e-6)
    assert rate(16000, d_model=512) == pytest.approx(rate(4000, d_model=512) / 2, rel=1e-6)


def test_warm_up_moves_the_peak_and_the_scale_multiplies_every_rate():
    assert rate(8000, d_model=512, warmup_steps=8000, scale=2.0) == pytest.approx(
        2 * (512 * 8000) ** -0.5, rel=1e-6
    )
    config = OptimizerConfig(learning_rate=2.0, warmup_steps=8000)
    schedule = optimizers.schedule(config, 512, 100_000)
    for step in (1, 500, 8000, 90_000):
        expected = rate(step, d_model=512, warmup_steps=8000, scale=2.0)
        assert float(schedule(jnp.asarray(step - 1))) == pytest.approx(expected, rel=1e-6)


def test_adams_first_update_is_the_rate_times_the_sign_of_the_gradient():
    """Both moments are corrected to g and g^2, so the update is -lr g / (|g| + 1e-9)."""
    optimizer = build(OptimizerConfig(), d_model=512)
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
    optimizer = build(OptimizerConfig(warmup_steps=10), d_model=100)
    params = jnp.zeros((1,))
    _, state = optimizer.update(jnp.array([1.0]), optimizer.init(params), params)
    update, _ = optimizer.update(jnp.array([-2.0]), state, params)
    first = (0.9 * 0.1 * 1 + 0.1 * -2) / (1 - 0.9**2)
    second = (0.98 * 0.02 * 1 + 0.02 * 4) / (1 - 0.98**2)
    lr = 100**-0.5 * 2 * 10**-1.5
    assert float(update[0]) == pytest.approx(-lr * first / second**0.5, rel=1e-4)


def test_moments_have_the_shapes_of_the_parameters_and_are_float32():
    optimizer = build(OptimizerConfig())
    params = {"a": jnp.ones((2, 3)), "b": {"c": jnp.ones(5)}}
    adam = optimizer.init(params)[0]
    for moment in (adam.mu, adam.nu):
        assert moment["a"].shape == (2, 3)
        assert moment["b"]["c"].shape == (5,)
        assert moment["a"].dtype == jnp.float32


# Other schedules and optimizers.


def rates(steps, name, total=1000, **fields):
    """The learning rates of these updates, counted from 1, with a peak of 0.4."""
    config = OptimizerConfig(schedule=name, learning_rate=0.4, **fields)
    schedule = optimizers.schedule(config, d_model=64, steps=total)
    return [float(schedule(jnp.asarray(step - 1))) for step in steps]


def test_constant_rises_linearly_and_cosine_falls_to_half_the_peak_midway_and_to_0_at_the_end():
    """A warm-up of one step begins at the peak; one as long as the training ends there."""
    by_hand = [0.04, 0.2, 0.4, 0.4, 0.4]
    constant = rates([1, 5, 10, 11, 1000], "constant", warmup_steps=10)
    np.testing.assert_allclose(constant, by_hand, rtol=1e-6)
    by_hand = [0.2, 0.4, 0.4 * (0.5 + 0.125**0.5), 0.2, 0.0, 0.0]
    np.testing.assert_allclose(
        rates([5, 10, 35, 60, 110, 200], "cosine", total=110, warmup_steps=10), by_hand, atol=1e-7
    )
    for name in ("constant", "cosine"):
        assert rates([1], name, warmup_steps=1) == [pytest.approx(0.4)]
    whole = rates([1, 5, 10], "cosine", total=10, warmup_steps=10)
    np.testing.assert_allclose(whole, [0.04, 0.2, 0.4], rtol=1e-6)


def kernel(*shape, num_input_axes=1):
    """Metadata of a kernel."""
    return parameter(shape, "kernel", num_input_axes)


def parameter(shape, kind, num_input_axes=0):
    """Metadata of a parameter; no optimizer reads the names of its axes."""
    leaf = jax.ShapeDtypeStruct(shape, jnp.float32)
    return Parameter(leaf, ("embed",) * len(shape), kind=kind, num_input_axes=num_input_axes)


METADATA = {
    "attention": {"query": kernel(6, 2, 3), "query_bias": parameter((2, 3), "bias")},
    "embedding": {"table": parameter((130, 128), "embedding")},
    "norm": {"scale": parameter((6,), "scale"), "bias": parameter((6,), "bias")},
    "output": kernel(2, 3, 6, num_input_axes=2),
}
PARAMS = jax.tree.map(
    lambda leaf: jnp.ones(leaf.value.shape),
    METADATA,
    is_leaf=lambda node: isinstance(node, Parameter),
)


def config_of(name, **changes):
    options = {"schedule": "constant", "learning_rate": 0.01, "warmup_steps": 1, **changes}
    return OptimizerConfig(name=name, **options)


def first_update(gradients, name, params=PARAMS, metadata=METADATA, **changes):
    """The first update of all parameters."""
    optimizer = build(config_of(name, **changes), metadata)
    update = jax.jit(lambda gradients: optimizer.update(gradients, optimizer.init(params), params))
    return update(gradients)[0]


def random_like(params, seed=0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.standard_normal(leaf.shape), "f"), params)


@pytest.mark.parametrize("name", ["adamw", "adafactor", "lion", "muon", "schedule_free"])
def test_weight_decay_takes_rate_times_weight_off_kernels_and_embeddings_only(name):
    """Decoupled: it does not depend on the gradient. Muon decays kernels only."""
    gradients = random_like(PARAMS)
    plain = first_update(gradients, name, weight_decay=0.0, beta1=0.9)
    decayed = first_update(gradients, name, weight_decay=0.5, beta1=0.9)
    difference = jax.tree.map(jnp.subtract, decayed, plain)
    matrix = -0.01 * 0.5
    expected = jax.tree.map(jnp.zeros_like, PARAMS)
    expected["attention"]["query"] += matrix
    expected["output"] += matrix
    if name != "muon":
        expected["embedding"]["table"] += matrix
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), difference, expected)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_what_decays_is_declared_and_does_not_depend_on_names(name):
    """A kernel called ``scale`` decays, a bias called ``table`` does not."""
    metadata = {"scale": kernel(4, 4), "table": parameter((4,), "bias")}
    params = {"scale": jnp.ones((4, 4)), "table": jnp.ones(4)}
    plain, decayed = (
        first_update(random_like(params), name, params, metadata, weight_decay=decay, beta1=0.9)
        for decay in (0.0, 0.5)
    )
    np.testing.assert_allclose(decayed["scale"] - plain["scale"], -0.005, atol=2e-6)
    np.testing.assert_array_equal(decayed["table"], plain["table"])


def test_lions_first_update_is_the_rate_times_the_sign():
    gradients = random_like(PARAMS)
    jax.tree.map(
        lambda update, gradient: np.testing.assert_allclose(update, -0.01 * jnp.sign(gradient)),
        *(first_update(gradients, "lion"), gradients),
    )


def condition(kernel):
    """Largest over smallest singular value of a kernel, as a matrix of 6 inputs and 6 outputs."""
    values = np.linalg.svd(np.asarray(kernel).reshape(6, 6), compute_uv=False)
    return values.max() / values.min()


def test_muon_orthogonalizes_kernels_and_leaves_the_other_parameters_to_adam():
    """A kernel [D,N,H] is a matrix [D, N H]; one [N,H,D] with two input axes is [N H, D]."""
    gradients = random_like(PARAMS)
    muon, adam = first_update(gradients, "muon"), first_update(gradients, "adam")
    assert condition(muon["attention"]["query"]) < 2.5
    assert condition(muon["output"]) < 2.5 < condition(gradients["output"])
    for path in (("embedding", "table"), ("norm", "scale"), ("attention", "query_bias")):
        a, b = muon[path[0]][path[1]], adam[path[0]][path[1]]
        np.testing.assert_allclose(np.sign(a), np.sign(b))
    damped = first_update(gradients, "muon", epsilon=1e3)
    assert (jnp.abs(damped["norm"]["scale"]) < jnp.abs(muon["norm"]["scale"]) / 100).all()


def test_adafactor_keeps_a_row_and_a_column_of_second_moments_per_matrix():
    optimizer = build(config_of("adafactor", beta1=0.0), METADATA)
    kept = sum(leaf.size for leaf in jax.tree.leaves(optimizer.init(PARAMS)))
    assert kept < PARAMS["embedding"]["table"].size / 10


@pytest.mark.parametrize(("warmup", "weights"), [(1, [1, 1, 1]), (3, [1, 4, 9])])
def test_schedule_free_evaluates_the_mean_of_its_iterates(warmup, weights):
    """Iterates weigh as the squares of their rates: 1/3, 2/3 and 3/3 of the peak in warmup."""
    params, metadata = {"w": jnp.array([1.0, -2.0])}, {"w": parameter((2,), "bias")}
    optimizer = build(config_of("schedule_free", warmup_steps=warmup), metadata)
    state, iterates = optimizer.init(params), []
    for seed in range(3):
        update, state = optimizer.update(random_like(params, seed), state, params)
        params = jax.tree.map(jnp.add, params, update)
        iterates.append(state.z["w"])
    average = optimizers.schedule_free_average(state, params)
    expected = np.average(iterates, axis=0, weights=weights)
    np.testing.assert_allclose(average["w"], expected, rtol=1e-5)
    np.testing.assert_allclose(params["w"], 0.9 * average["w"] + 0.1 * iterates[-1], rtol=1e-5)
    adam = build(config_of("adam"))
    assert optimizers.schedule_free_average(adam.init(params), params) is None


@pytest.mark.parametrize("name", ["adam", "schedule_free"])
def test_a_gradient_above_the_clip_norm_is_scaled_down_to_it(name):
    """The moments after one step show which gradient the optimizer saw."""
    params, metadata = {"w": jnp.zeros(2)}, {"w": parameter((2,), "bias")}
    clipped = build(config_of(name, clip_norm=1.0), metadata)
    plain = build(config_of(name), metadata)

    def moments(optimizer, gradient):
        _, state = optimizer.update({"w": jnp.array(gradient)}, optimizer.init(params), params)
        [second_moment] = [
            leaf.nu["w"]
            for leaf in jax.tree.leaves(state, is_leaf=lambda leaf: hasattr(leaf, "nu"))
            if hasattr(leaf, "nu")
        ]
        return np.asarray(second_moment)

    np.testing.assert_allclose(
        moments(clipped, [30.0, 40.0]), moments(plain, [0.6, 0.8]), rtol=1e-5
    )
    np.testing.assert_allclose(moments(clipped, [0.3, 0.4]), moments(plain, [0.3, 0.4]), rtol=1e-5)
