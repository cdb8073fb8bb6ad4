# SPDX-License-Identifier: Apache-2.0
"""Meshes over eight simulated devices, and where each preset puts which parameter."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec

from transformer import sharding
from transformer.config import LOGICAL_AXES, OptimizerConfig, ParallelConfig, TransformerConfig
from transformer.errors import InputError
from transformer.models import base
from transformer.training import optimizers, step

CONFIG = TransformerConfig(vocab_size=12, num_layers=1, d_model=16, num_heads=4, d_ff=32)


@pytest.fixture(scope="module")
def boxed():
    """The shapes of a model's parameters, with their logical axes."""
    tokens = jnp.zeros((1, 1), jnp.int32)
    model = base.build(CONFIG)
    return jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)["params"]


def specs(boxed, preset, data=2, model=4):
    """path -> partition spec."""
    mesh = sharding.make_mesh(ParallelConfig(data=data, model=model))
    rules = sharding.rules_of(ParallelConfig(preset=preset))
    shardings = sharding.shardings_of(boxed, mesh, rules)
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
    axes = [tuple(axis for axis, _ in rules) for rules in sharding.PRESETS.values()]
    assert axes == [LOGICAL_AXES] * 4
    assert {to for rules in sharding.PRESETS.values() for _, to in rules} == {
        None,
        "data",
        "model",
    }


def test_rows_of_a_batch_are_divided_along_data_and_scalars_are_everywhere():
    mesh = sharding.make_mesh(ParallelConfig(data=2, model=4))
    assert sharding.batch_sharding(mesh).shard_shape((8, 5)) == (4, 5)
    assert sharding.replicated(mesh).shard_shape((8, 5)) == (8, 5)


# Rules that cannot be followed.


def refused(boxed, **fields):
    """The message with which a mesh or its rules are refused."""
    parallel = ParallelConfig(**fields)
    mesh, rules = sharding.make_mesh(parallel), sharding.rules_of(parallel)
    with pytest.raises(InputError) as error:
        sharding.shardings_of(boxed, mesh, rules)
    return str(error.value)


def test_own_rules_stand_in_place_of_the_presets():
    rules = sharding.rules_of(ParallelConfig(preset="tensor", rules=("vocab=", "kv=data")))
    found = {rule.logical: (rule.mesh, rule.origin) for rule in rules}
    preset = "parallel.preset='tensor'"
    assert found == {
        "vocab": (None, "parallel.rules"),
        "position": (None, preset),
        "embed": (None, preset),
        "heads": ("model", preset),
        "kv": ("data", "parallel.rules"),
        "mlp": ("model", preset),
        "norm": (None, preset),
    }


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (
            ("hedas=model",),
            "parallel.rules has 'hedas=model', but there is no logical axis 'hedas'; did you mean "
            "'heads'? (logical axes: vocab, position, embed, heads, kv, mlp, norm)",
        ),
        (
            ("vocab=", "heads=modle"),
            "parallel.rules has 'heads=modle', but there is no mesh axis 'modle'; did you mean "
            "'model'? (mesh axes: data, model)",
        ),
        (
            ("heads=model=data",),
            "parallel.rules has 'heads=model=data', but there is no mesh axis 'model=data'; did "
            "you mean 'model'? (mesh axes: data, model)",
        ),
        (
            ("heads",),
            "parallel.rules is ('heads',), but must be LOGICAL=MESH each, or LOGICAL= for not "
            "divided",
        ),
        (
            ("heads=model", "heads="),
            "parallel.rules is ('heads=model', 'heads='), but must be rules of different axes",
        ),
    ],
)
def test_rules_of_axes_that_there_are_not_are_refused(rules, said):
    with pytest.raises(InputError) as error:
        ParallelConfig(rules=rules)
    assert str(error.value) == said


def test_heads_that_do_not_divide_are_refused_with_parameter_shape_rule_and_remedy(boxed):
    assert refused(boxed, model=8, preset="tensor", rules=("vocab=",)) == (
        "parallel.model = 8 does not divide heads = 4 of parameter "
        "decoder/layer_0/cross_attention/key [16, 4, 4] (embed, heads, kv), as the rule "
        "heads=model (parallel.preset='tensor') asks. Choose another number of devices or another "
        "width, or leave such an axis whole on every device with "
        "--config.parallel.rules=\"('vocab=', 'heads=')\""
    )


def test_every_rule_that_cannot_be_followed_is_named_at_once_and_the_remedy_is_one(boxed):
    message = refused(boxed, model=8, preset="tensor")
    assert "heads = 4 of parameter decoder/layer_0/cross_attention/key [16, 4, 4]" in message
    assert "vocab = 12 of parameter embedding/table [12, 16] (vocab, embed)" in message
    assert message.count("does not divide") == 2
    assert message.endswith("--config.parallel.rules=\"('heads=', 'vocab=')\"")
    mesh = sharding.make_mesh(ParallelConfig(model=8))
    rules = sharding.rules_of(ParallelConfig(preset="tensor", rules=("heads=", "vocab=")))
    sharding.shardings_of(boxed, mesh, rules)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"data": 3, "preset": "fsdp"},
            "parallel.data = 3 does not divide embed = 16 of parameter",
        ),
        (
            {"model": 3, "preset": "tensor", "rules": ("heads=",)},
            "mlp = 32 of parameter decoder/layer_0/feed_forward/bias_in [32] (mlp), as the rule "
            "mlp=model (parallel.preset='tensor') asks",
        ),
        (
            {"data": 8, "rules": ("kv=data",)},
            "as the rule kv=data (parallel.rules) asks",
        ),
    ],
)
def test_any_axis_that_does_not_divide_is_refused(boxed, fields, said):
    assert said in refused(boxed, **fields)


@pytest.mark.parametrize(
    ("rule", "rules", "remedy"),
    [
        (
            "embed=model",
            "embed=model (parallel.rules) and heads=model (parallel.preset='tensor')",
            "('embed=',)",
        ),
        (
            "kv=model",
            "heads=model (parallel.preset='tensor') and kv=model (parallel.rules)",
            "('kv=model', 'heads=')",
        ),
    ],
)
def test_two_axes_of_a_parameter_on_one_axis_of_the_mesh_are_refused(boxed, rule, rules, remedy):
    message = refused(boxed, model=2, preset="tensor", rules=(rule,))
    assert message == (
        f"the rules {rules} both divide parameter decoder/layer_0/cross_attention/key [16, 4, 4] "
        "(embed, heads, kv) along the mesh axis model, which can divide it once; leave one of the "
        f'two axes whole, for example with --config.parallel.rules="{remedy}"'
    )


def test_an_axis_that_no_rule_knows_is_a_fault_of_the_program(boxed):
    rules = tuple(rule for rule in sharding.rules_of(ParallelConfig()) if rule.logical != "mlp")
    with pytest.raises(AssertionError, match=r"a parameter declares \['mlp'\], but LOGICAL_AXES"):
        sharding.shardings_of(boxed, sharding.make_mesh(ParallelConfig()), rules)


def test_indivisible_parameters_are_refused_before_what_the_optimizer_keeps_for_them():
    optimizer, model = optimizers.build(OptimizerConfig(), 16, 10), base.build(CONFIG)
    state = jax.eval_shape(functools.partial(step.init_state, model, optimizer), jax.random.key(0))
    parallel = ParallelConfig(model=8, preset="tensor")
    with pytest.raises(InputError, match="does not divide heads = 4 of parameter decoder/layer_0"):
        sharding.shardings_of_state(
            state, sharding.make_mesh(parallel), sharding.rules_of(parallel)
        )


@pytest.mark.parametrize(
    ("shapes", "micro_batches", "said"),
    [
        ([(8, 16), (4, 32)], 1, None),
        ([(8, 16), (16, 8)], 2, None),
        (
            [(8, 16), (6, 32)],
            1,
            "batches of 6 x 32 tokens cannot be divided over parallel.data = 4 devices: 6 rows are "
            "no multiple of 4; give data.row_multiple such a multiple (data.tokens_per_batch must "
            "be at least data.max_length times as many), or lower parallel.data",
        ),
        (
            [(8, 16)],
            4,
            "batches of 8 x 16 tokens cannot be divided over parallel.data = 4 devices in 4 "
            "micro-batches: 8 rows are no multiple of 16; give data.row_multiple such a multiple "
            "(data.tokens_per_batch must be at least data.max_length times as many), or lower "
            "parallel.data or training.micro_batches",
        ),
    ],
)
def test_rows_must_divide_over_devices_and_micro_batches(shapes, micro_batches, said):
    mesh = sharding.make_mesh(ParallelConfig(data=4, model=2))
    if said is None:
        sharding.require_rows(shapes, mesh, micro_batches)
    else:
        with pytest.raises(InputError) as error:
            sharding.require_rows(shapes, mesh, micro_batches)
        assert str(error.value) == said


def test_parameters_in_use_are_whole_along_data(boxed):
    mesh = sharding.make_mesh(ParallelConfig(data=2, model=4))
    both, tensor = (
        sharding.shardings_of(boxed, mesh, sharding.rules_of(ParallelConfig(preset=preset)))
        for preset in ("fsdp_tensor", "tensor")
    )
    assert both != tensor
    assert sharding.gathered(both) == tensor


# What is said of it.


def abstract_state(layers, **fields):
    """A training state of shapes, dtypes and shardings, with Adam."""
    config = dataclasses.replace(CONFIG, encoder_layers=layers)
    optimizer, model = optimizers.build(OptimizerConfig(), 16, 10), base.build(config)
    boxed = jax.eval_shape(functools.partial(step.init_state, model, optimizer), jax.random.key(0))
    parallel = ParallelConfig(**fields)
    shardings = sharding.shardings_of_state(
        boxed, sharding.make_mesh(parallel), sharding.rules_of(parallel)
    )
    return jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
        nn.unbox(boxed),
        shardings,
    )


def test_describe_says_shape_sharding_and_bytes_of_every_parameter_and_of_the_whole_state():
    """By hand, over 2 x 4 devices.

    Embedding 12 x 16; attention 4 kernels of 16 x 4 x 4; feed-forward network 2 kernels of 16 x 32
    and biases of 32 and 16; norm 16 and 16. Two encoder layers have 1 attention and 2 norms each,
    one decoder layer has 2 and 3.
    """
    text = sharding.describe(abstract_state(2, data=2, model=4, preset="fsdp_tensor"))
    first, _, *table, last = text.split("\n")
    rows = {name: " ".join(columns) for name, *columns in map(str.split, table)}
    assert first == "mesh data=2 x model=4"
    assert rows["embedding/table"] == "[12, 16] float32 [model, data] 96"
    layers = "encoder/layer_{0..1}"
    kernel, output = rows[f"{layers}/feed_forward/kernel_in"], "self_attention/output"
    assert kernel == "[16, 32] float32 [data, model] 2 x 256"
    assert rows[f"{layers}/{output}"] == "[4, 4, 16] float32 [model, -, data] 2 x 128"
    assert rows[f"decoder/layer_0/{output}"] == "[4, 4, 16] float32 [model, -, data] 128"
    assert rows["decoder/layer_0/self_attention_residual/norm/bias"] == "[16] float32 [-] 64"
    assert len(rows) == 1 + (4 + 4 + 2 * 2) + (2 * 4 + 4 + 3 * 2)
    attention, network = 4 * 256, 2 * 512 + 32 + 16
    count = 192 + 2 * (attention + network + 2 * 32) + (2 * attention + network + 3 * 32)
    # On a device: an eighth of every kernel, a quarter of bias_in, half of bias_out, every norm.
    network = 2 * 64 + 8 + 8
    held = 24 + 2 * (128 + network + 2 * 32) + (2 * 128 + network + 3 * 32)
    # Parameters and two moments in float32, two counts and the step in int32, and a key of 8 bytes.
    state = 3 * 4 * held + 3 * 4 + 8
    assert last == (
        f"{count:,} parameters; each device holds {4 * held:,} bytes of parameters and {state:,} "
        "bytes of training state"
    )


def test_a_described_state_is_what_the_devices_hold():
    abstract = abstract_state(1, data=2, model=4, preset="tensor")
    state = jax.tree.map(
        lambda leaf: jax.device_put(jnp.zeros(leaf.shape, leaf.dtype), leaf.sharding),
        abstract.replace(rng=abstract.step),
    )
    held = sum(leaf.addressable_shards[3].data.nbytes for leaf in jax.tree.leaves(state))
    text = sharding.describe(state)
    assert text.endswith(f"and {held:,} bytes of training state")
    assert text == sharding.describe(abstract.replace(rng=abstract.step))


NAMES = ["adam", "adafactor", "lion", "muon", "schedule_free"]


@pytest.mark.parametrize("name", NAMES)
def test_what_an_optimizer_keeps_for_a_parameter_lies_where_the_parameter_does(name):
    config = OptimizerConfig(name=name, schedule="constant")
    optimizer, model = optimizers.build(config, 16, 10), base.build(CONFIG)
    make = functools.partial(step.init_state, model, optimizer, with_average=True)
    boxed = jax.eval_shape(make, jax.random.key(0))
    mesh = sharding.make_mesh(ParallelConfig(data=2, model=4))
    rules = sharding.rules_of(ParallelConfig(preset="tensor"))
    shardings = sharding.shardings_of_state(boxed, mesh, rules)
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
