# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters: their sum with a kernel by hand, their declarations, and what a step trains."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
from flax.traverse_util import flatten_dict
from jax.sharding import PartitionSpec

from transformer import sharding
from transformer.batch import Batch
from transformer.config import Config, ParallelConfig, TrainingConfig
from transformer.errors import InputError
from transformer.models import protocol
from transformer.training import adapters as lora
from transformer.training import optimizers
from transformer.training import step as training
from transformer.training.step import loss as smoothed_loss

TARGETS = TrainingConfig().lora_targets


@pytest.fixture(scope="module")
def model(shallow):
    """A Transformer with one layer in each stack and without dropout."""
    return protocol.build(shallow[0].config.replace(decoder_layers=1, dropout=0.0))


@pytest.fixture(scope="module")
def params(model):
    """Random parameters."""
    return oracle.random_params(model, seed=0)


@pytest.fixture(scope="module")
def metadata(model):
    return protocol.parameter_metadata(model)


def adapted(adapters):
    """The paths of the adapted kernels, each as its names and a slash between them."""
    return {"/".join(path[:-1]) for path in flatten_dict(adapters)}


def test_an_adapter_adds_the_scaled_product_of_its_factors_to_its_kernel_alone():
    random = np.random.default_rng(0)
    params = {
        "output": {"kernel": random.normal(size=(3, 4, 5)), "bias": random.normal(size=5)},
        "kernel": random.normal(size=(5, 6)),
    }
    a, b = random.normal(size=(3, 4, 2)), random.normal(size=(2, 5))
    adapters = {"output": {"kernel": {lora.A: a, lora.B: b}}}
    merged = lora.merge(adapters, jax.tree.map(jnp.asarray, params), 1.5)
    expected = params["output"]["kernel"] + 1.5 * np.einsum("nhr,rd->nhd", a, b)
    np.testing.assert_allclose(merged["output"]["kernel"], expected, rtol=1e-5)
    np.testing.assert_array_equal(merged["output"]["bias"], np.float32(params["output"]["bias"]))
    np.testing.assert_array_equal(merged["kernel"], np.float32(params["kernel"]))


def test_fresh_adapters_change_nothing(metadata, params):
    adapters = lora.init(jax.random.key(0), lora.declare(metadata, 3, TARGETS))
    jax.tree.map(np.testing.assert_array_equal, lora.merge(adapters, params, 2.0), params)
    # A is not zero: then B would have no gradient, and A has none while B is zero.
    a = [leaf for path, leaf in flatten_dict(adapters).items() if path[-1] == lora.A]
    deviations = [float(jnp.std(leaf)) * (leaf.size // leaf.shape[-1]) ** 0.5 for leaf in a]
    assert 0.7 < np.mean(deviations) < 1.3


def test_targets_choose_kernels_by_their_logical_axes(model, metadata):
    attention = adapted(lora.declare(metadata, 2, ("heads",)))
    network = adapted(lora.declare(metadata, 2, ("mlp",)))
    assert attention and all("attention" in path for path in attention)
    assert network and all("feed_forward" in path for path in network)
    assert adapted(lora.declare(metadata, 2, TARGETS)) == attention | network
    frozen = lora.frozen_mask(model, metadata, ("encoder",))
    remaining = adapted(lora.declare(metadata, 2, ("mlp",), frozen))
    assert remaining == {path for path in network if path.startswith("decoder")}
    with pytest.raises(InputError, match=r"\('vocab',\), but .* axes are embed, heads, kv, mlp"):
        lora.declare(metadata, 2, ("vocab",))
    with pytest.raises(InputError, match="'mpl'.*has the axis 'mpl'; their axes are embed, heads"):
        lora.declare(metadata, 2, ("heads", "mpl"))


def test_the_factors_are_sharded_like_the_axes_of_their_kernel(metadata):
    parallel = ParallelConfig(data=2, model=2, preset="fsdp_tensor")
    adapters = lora.declare(metadata, 3, ("mlp",))
    layer = sharding.param_shardings(adapters, sharding.make_mesh(parallel), parallel)
    network = layer["encoder"]["layer_0"]["feed_forward"]
    kernel_in, kernel_out = network["kernel_in"], network["kernel_out"]
    assert kernel_in[lora.A].spec == PartitionSpec("data", None)
    assert kernel_in[lora.B].spec == PartitionSpec(None, "model")
    assert kernel_out[lora.A].spec == PartitionSpec("model", None)
    assert kernel_out[lora.B].spec == PartitionSpec(None, "data")


def test_a_step_trains_the_adapters_by_the_gradient_of_the_merged_model(
    model, params, metadata, source, target_in
):
    """The gradient of B is that of the kernel times A, and the base stays as it is."""
    config = Config(
        model=model.config,
        training=TrainingConfig(init_from="model", lora_rank=2, lora_alpha=6.0),
    )
    adapters = lora.declare(metadata, 2, ("mlp",))
    optimizer = optimizers.optimizer(model, config.optimizer, 10, trained=adapters)
    state = training.TrainState.create(
        model, optimizer, jax.random.key(0), params=params, adapter_metadata=adapters
    )
    batch = Batch(source, target_in)
    to_model = functools.partial(lora.merge, scale=config.training.lora_scale)
    step = functools.partial(training.train_step, model, optimizer, to_model=to_model)
    after, sums = jax.jit(step)(state, batch)

    def loss(params):
        sums = smoothed_loss(model, params, batch)
        return sums.loss / sums.tokens, sums.loss

    gradient, total = jax.jit(jax.grad(loss, has_aux=True))(params)
    np.testing.assert_allclose(sums.loss, total, rtol=1e-6)
    expected = {}
    for path, leaf in flatten_dict(state.params).items():
        of_kernel = flatten_dict(gradient)[path[:-1]]
        if path[-1] == lora.B:
            a = flatten_dict(state.params)[*path[:-1], lora.A]
            expected[path] = 3.0 * np.einsum("ir,io->ro", a, of_kernel)
        else:
            expected[path] = np.zeros(leaf.shape)
    norm = np.sqrt(sum((leaf**2).sum() for leaf in expected.values()))
    np.testing.assert_allclose(sums.gradient_norm, norm, rtol=1e-4)
    jax.tree.map(np.testing.assert_array_equal, after.base, params)
    changed = {
        path[-1]
        for path, leaf in flatten_dict(after.params).items()
        if not np.array_equal(leaf, flatten_dict(state.params)[path])
    }
    assert changed == {lora.B}
    merged = lora.merge(after.params, after.base, config.training.lora_scale)
    assert not np.array_equal(*(kernel_of(tree) for tree in (merged, params)))


def test_the_model_and_its_adapters_are_drawn_with_different_keys(model, metadata):
    declared = lora.declare(metadata, 2, ("mlp",))
    key = jax.random.key(0)
    create = functools.partial(training.TrainState.create, model, optax.identity())
    state = jax.jit(functools.partial(create, adapter_metadata=declared))(key)
    plain = jax.jit(create)(key)
    jax.tree.map(np.testing.assert_array_equal, state.base, plain.params)
    assert (jax.random.key_data(state.rng) == jax.random.key_data(plain.rng)).all()
    of_model_key, _ = jax.random.split(key)
    same = lora.init(of_model_key, declared)
    first, *_ = jax.tree.leaves(state.params)
    assert not np.array_equal(first, jax.tree.leaves(same)[0])


def kernel_of(params):
    """One adapted kernel."""
    return params["encoder"]["layer_0"]["feed_forward"]["kernel_in"]
