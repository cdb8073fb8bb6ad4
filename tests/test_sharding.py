# SPDX-License-Identifier: Apache-2.0
"""Meshes over eight simulated devices, and where each preset puts which parameter."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec

from transformer import families, optimizers, sharding, training
from transformer.config import OptimizerConfig, ParallelConfig, TransformerConfig
from transformer.errors import InputError

CONFIG = TransformerConfig(vocab_size=12, num_layers=1, d_model=16, num_heads=4, d_ff=32)


@pytest.fixture(scope="module")
def boxed():
    """The shapes of a model's parameters, with their logical axes."""
    tokens = jnp.zeros((1, 1), jnp.int32)
    model = families.build(CONFIG)
    return jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)["params"]


def specs(boxed, preset, data=2, model=4):
    """path -> partition spec."""
    mesh = sharding.make_mesh(ParallelConfig(data=data, model=model))
    shardings = sharding.shardings_of(boxed, mesh, sharding.PRESETS[preset])
    return {
        "/".join(key.key for key in path): leaf.spec
        for path, leaf in jax.tree_util.tree_leaves_with_path(shardings)
    }


@pytest.mark.parametrize(("data", "model"), [(1, 1), (8, 1), (2, 4), (1, 3)])
def test_a_mesh_has_both_axes_always_and_takes_the_first_devices(data, model):
    mesh = sharding.make_mesh(ParallelConfig(data=data, model=model))
    assert dict(mesh.shape) == {"data": data, "model": model}
    assert mesh.axis_types == (AxisType.Auto, AxisType.Auto)
    assert sorted(device.id for device in mesh.devices.flat) == list(range(data * model))


def test_more_devices_than_there_are_is_refused_with_both_numbers():
    with pytest.raises(InputError, match=r"3 x 4 needs 12 devices, but there are 8 \(cpu\); lower"):
        sharding.make_mesh(ParallelConfig(data=3, model=4))


def test_replicated_divides_nothing(boxed):
    assert all(axis is None for spec in specs(boxed, "replicated").values() for axis in spec)


def test_fsdp_divides_every_matrix_along_data_and_nothing_along_model(boxed):
    found = specs(boxed, "fsdp")
    assert found["embedding/table"] == PartitionSpec(None, "data")
    assert found["encoder/layer_0/self_attention/query"] == PartitionSpec("data", None, None)
    assert found["encoder/layer_0/self_attention/output"] == PartitionSpec(None, None, "data")
    assert found["decoder/layer_0/feed_forward/kernel_out"] == PartitionSpec(None, "data")
    for path, spec in found.items():
        assert "model" not in spec
        assert ("data" in spec) == (len(spec) > 1 or path.endswith("bias_out")), path


def test_tensor_divides_heads_hidden_units_and_words_along_model(boxed):
    found = specs(boxed, "tensor")
    assert found["embedding/table"] == PartitionSpec("model", None)
    assert found["decoder/layer_0/cross_attention/key"] == PartitionSpec(None, "model", None)
    assert found["decoder/layer_0/cross_attention/output"] == PartitionSpec("model", None, None)
    assert found["encoder/layer_0/feed_forward/kernel_in"] == PartitionSpec(None, "model")
    assert found["encoder/layer_0/feed_forward/bias_in"] == PartitionSpec("model")
    assert found["encoder/layer_0/feed_forward/kernel_out"] == PartitionSpec("model", None)
    assert not any("data" in spec for spec in found.values())
    assert not any("model" in spec for path, spec in found.items() if "norm" in path)


def test_every_preset_knows_the_same_logical_axes():
    axes = [{axis for axis, _ in rules} for rules in sharding.PRESETS.values()]
    assert axes[0] == axes[1] == axes[2]
    assert {to for rules in sharding.PRESETS.values() for _, to in rules} == {
        None,
        "data",
        "model",
    }


def test_rows_of_a_batch_are_divided_along_data_and_scalars_are_everywhere():
    mesh = sharding.make_mesh(ParallelConfig(data=2, model=4))
    assert sharding.batch_sharding(mesh).shard_shape((8, 5)) == (4, 5)
    assert sharding.replicated(mesh).shard_shape((8, 5)) == (8, 5)


def test_describe_says_name_shape_place_and_bytes_on_one_device(boxed):
    mesh = sharding.make_mesh(ParallelConfig(data=2, model=4))
    shardings = sharding.shardings_of(boxed, mesh, sharding.PRESETS["tensor"])
    lines = sharding.describe(nn.unbox(boxed), shardings).split("\n")
    assert len(lines) == len(jax.tree.leaves(boxed))
    (table,) = (line for line in lines if "embedding/table" in line)
    assert "(12, 16)" in table
    assert "('model', None)" in table
    assert table.endswith(" 192 B")  # 12 x 16 float32 over 4 devices
    (kernel,) = (line for line in lines if "encoder/layer_0/feed_forward/kernel_in" in line)
    assert kernel.endswith(" 512 B")  # 16 x 32 float32 over 4 devices


NAMES = ["adam", "adafactor", "lion", "muon", "schedule_free"]


@pytest.mark.parametrize("name", NAMES)
def test_what_an_optimizer_keeps_for_a_parameter_lies_where_the_parameter_does(name):
    config = OptimizerConfig(name=name, schedule="constant")
    optimizer, model = optimizers.build(config, 16, 10), families.build(CONFIG)
    make = functools.partial(training.init_state, model, optimizer, with_average=True)
    boxed = jax.eval_shape(make, jax.random.key(0))
    mesh = sharding.make_mesh(ParallelConfig(data=2, model=4))
    shardings = sharding.shardings_of_state(boxed, mesh, sharding.PRESETS["tensor"])
    state = nn.unbox(boxed)
    assert jax.tree.structure(shardings) == jax.tree.structure(state)
    for leaf, where in zip(jax.tree.leaves(state), jax.tree.leaves(shardings), strict=True):
        where.shard_shape(leaf.shape)  # fails where the ranks differ
    kernel = PartitionSpec(None, "model")
    average = shardings.average["encoder"]["layer_0"]["feed_forward"]["kernel_in"]
    assert average.spec == kernel
    moments = {
        where.spec
        for path, where in jax.tree_util.tree_leaves_with_path(shardings.opt_state)
        if "kernel_in" in str(path[-1]) and "v_row" not in str(path) and "v_col" not in str(path)
    }
    assert (kernel in moments) or name == "adafactor"
