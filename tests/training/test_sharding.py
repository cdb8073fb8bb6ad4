# SPDX-License-Identifier: Apache-2.0
"""Meshes over eight simulated devices, and the sharding of every array in each preset."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import oracle
import pytest
from jax.sharding import AxisType, PartitionSpec

from experiments.training.parameter_table import parameter_table
from transformer import sharding
from transformer.config import (
    MESH_AXES,
    OptimizerConfig,
    ParallelConfig,
    TransformerConfig,
)
from transformer.errors import InputError
from transformer.models import protocol
from transformer.nn.parameters import Parameter
from transformer.training import optimizers, step

CONFIG = TransformerConfig(vocab_size=12, num_layers=1, d_model=16, num_heads=4, d_ff=32)
KEY = "parameter decoder/layer_0/cross_attention/key [16, 4, 4] (embed, heads, kv)"


@pytest.fixture(scope="module")
def metadata():
    """Shapes and logical axes of a model's parameters."""
    return protocol.parameter_metadata(protocol.build(CONFIG))


def param_shardings(metadata, **fields):
    """The sharding of every parameter with these fields of `ParallelConfig`."""
    parallel = ParallelConfig(**fields)
    return sharding.param_shardings(metadata, sharding.make_mesh(parallel), parallel)


def specs(metadata, preset):
    """path -> partition spec, on a mesh of 2 x 4 devices."""
    shardings = param_shardings(metadata, data=2, model=4, preset=preset)
    return {
        "/".join(key.key for key in path): leaf.spec
        for path, leaf in jax.tree_util.tree_leaves_with_path(shardings)
    }


def test_a_mesh_always_has_both_axes_and_uses_the_first_devices():
    for data, model in ((1, 1), (8, 1), (2, 4), (1, 3)):
        mesh = sharding.make_mesh(ParallelConfig(data=data, model=model))
        assert dict(mesh.shape) == {"data": data, "model": model}
        assert mesh.axis_types == (AxisType.Auto, AxisType.Auto)
        assert sorted(device.id for device in mesh.devices.flat) == list(range(data * model))
    with pytest.raises(InputError, match=r"3 x 4 needs 12 devices, but there are 8 \(cpu\); lower"):
        sharding.make_mesh(ParallelConfig(data=3, model=4))


# Presets.


def test_fsdp_divides_every_matrix_along_data_and_nothing_along_model(metadata):
    replicated = specs(metadata, "replicated").values()
    assert all(axis is None for spec in replicated for axis in spec)
    by_name = specs(metadata, "fsdp")
    assert by_name["embedding/table"] == PartitionSpec(None, "data")
    assert by_name["encoder/layer_0/self_attention/query"] == PartitionSpec("data", None, None)
    assert by_name["encoder/layer_0/self_attention/output"] == PartitionSpec(None, None, "data")
    assert by_name["decoder/layer_0/feed_forward/kernel_out"] == PartitionSpec(None, "data")
    for name, spec in by_name.items():
        assert "model" not in spec
        assert ("data" in spec) == (len(spec) > 1 or name.endswith("bias_out")), name


def test_tensor_divides_heads_d_ff_and_vocabulary_along_model(metadata):
    by_name = specs(metadata, "tensor")
    assert by_name["embedding/table"] == PartitionSpec("model", None)
    assert by_name["decoder/layer_0/cross_attention/key"] == PartitionSpec(None, "model", None)
    assert by_name["decoder/layer_0/cross_attention/output"] == PartitionSpec("model", None, None)
    assert by_name["encoder/layer_0/feed_forward/kernel_in"] == PartitionSpec(None, "model")
    assert by_name["encoder/layer_0/feed_forward/bias_in"] == PartitionSpec("model")
    assert by_name["encoder/layer_0/feed_forward/kernel_out"] == PartitionSpec("model", None)
    assert not any("data" in spec for spec in by_name.values())
    assert not any("model" in spec for name, spec in by_name.items() if "norm" in name)


def test_the_rules_are_those_of_the_preset_and_those_of_the_config_replace_them():
    for preset, divided in sharding.PRESETS.items():
        assert sharding.rules_of(ParallelConfig(preset=preset)) == divided
        assert {*divided.values()} <= {*MESH_AXES}
    rules = sharding.rules_of(ParallelConfig(preset="tensor", rules=("vocab=", "kv=data")))
    kept = dict.fromkeys(["source_vocab", "heads", "kv_heads", "mlp"], "model")
    assert rules == {**kept, "kv": "data"}


def test_rows_of_a_batch_are_divided_along_data_and_scalars_are_replicated():
    mesh = sharding.make_mesh(ParallelConfig(data=2, model=4))
    assert sharding.batch_sharding(mesh).shard_shape((8, 5)) == (4, 5)
    assert sharding.replicated(mesh).shard_shape((8, 5)) == (8, 5)


def test_all_gathered_parameters_are_not_divided_along_data(metadata):
    both, tensor = (
        param_shardings(metadata, data=2, model=4, preset=preset)
        for preset in ("fsdp_tensor", "tensor")
    )
    assert both != tensor
    assert sharding.all_gathered(both) == tensor


def test_kernels_are_cast_before_they_are_all_gathered_and_their_gradients_are_float32(metadata):
    of_params = param_shardings(metadata, data=8, preset="fsdp")
    params = oracle.random_params(protocol.build(CONFIG), seed=0)

    def gather(params):
        return sharding.all_gather(params, metadata, of_params, "bfloat16")

    def total(params):
        return sum(leaf.astype(jnp.float32).sum() for leaf in jax.tree.leaves(gather(params)))

    gathered = jax.jit(gather, in_shardings=(of_params,))(params)
    network, table = gathered["encoder"]["layer_0"]["feed_forward"], gathered["embedding"]["table"]
    assert network["kernel_in"].dtype == jnp.bfloat16
    assert network["bias_out"].dtype == table.dtype == jnp.float32
    assert network["kernel_in"].is_fully_replicated and table.is_fully_replicated
    gradient = jax.jit(jax.grad(total), in_shardings=(of_params,))(params)
    assert all(
        (leaf == 1).all() and leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(gradient)
    )


# Rules that cannot be applied.


def refused(metadata, **fields):
    """The error message for these fields of `ParallelConfig`."""
    with pytest.raises(InputError) as error:
        param_shardings(metadata, **fields)
    return str(error.value)


def test_rules_with_unknown_axes_are_refused():
    unknown = "there is no mesh axis {0!r}; did you mean 'model'? (mesh axes: data, model)"
    for rules, message in {
        ("vocab=", "heads=modle"): "has 'heads=modle', but " + unknown.format("modle"),
        ("heads=model=data",): "has 'heads=model=data', but " + unknown.format("model=data"),
        ("heads",): "is ('heads',), but must be LOGICAL=MESH each, or LOGICAL= for unsharded",
        ("heads=model", "heads="): (
            "is ('heads=model', 'heads='), but must be rules of different axes"
        ),
    }.items():
        with pytest.raises(InputError) as error:
            ParallelConfig(rules=rules)
        assert str(error.value) == f"parallel.rules {message}"


def test_indivisible_heads_are_refused_with_parameter_shape_rule_and_remedy(metadata):
    assert refused(metadata, model=8, preset="tensor", rules=("vocab=",)) == (
        f"parallel.model = 8 does not divide heads = 4 of {KEY}, as required by the rule "
        "heads=model (parallel.preset='tensor'). Choose another number of devices or another "
        "size, or leave the axis unsharded with --config.parallel.rules=\"('vocab=', 'heads=')\""
    )


def test_every_rule_that_fails_is_reported_at_once_with_one_remedy_that_works(metadata):
    message = refused(metadata, model=8, preset="tensor")
    assert f"heads = 4 of {KEY}" in message
    assert "vocab = 12 of parameter embedding/table [12, 16] (vocab, embed)" in message
    assert message.count("does not divide") == 2
    assert message.endswith("--config.parallel.rules=\"('heads=', 'vocab=')\"")
    param_shardings(metadata, model=8, preset="tensor", rules=("heads=", "vocab="))


def test_every_kind_of_indivisible_axis_is_refused(metadata):
    for fields, message in (
        (
            {"data": 3, "preset": "fsdp"},
            "parallel.data = 3 does not divide embed = 16 of parameter",
        ),
        (
            {"model": 3, "preset": "tensor", "rules": ("heads=",)},
            "mlp = 32 of parameter decoder/layer_0/feed_forward/bias_in [32] (mlp), as required "
            "by the rule mlp=model (parallel.preset='tensor')",
        ),
        ({"data": 8, "rules": ("kv=data",)}, "as required by the rule kv=data (parallel.rules)"),
    ):
        assert message in refused(metadata, **fields)


def test_two_axes_of_a_parameter_along_one_mesh_axis_are_refused(metadata):
    of_heads = "heads=model (parallel.preset='tensor')"
    for rule, rules, remedy in (
        ("embed=model", f"embed=model (parallel.rules) and {of_heads}", "('embed=',)"),
        ("kv=model", f"{of_heads} and kv=model (parallel.rules)", "('kv=model', 'heads=')"),
    ):
        assert refused(metadata, model=2, preset="tensor", rules=(rule,)) == (
            f"the rules {rules} both divide {KEY} along the mesh axis model, which can divide only "
            "one of them; leave one axis unsharded, for example with "
            f'--config.parallel.rules="{remedy}"'
        )


def test_an_axis_of_any_name_is_divided_if_a_rule_names_it():
    leaf = jax.ShapeDtypeStruct((4, 6), jnp.float32)
    metadata = {"kernel": Parameter(leaf, names=("expert", "embed"))}
    for rules, spec in [((), (None, "data")), (("expert=model",), ("model", "data"))]:
        config = {"data": 2, "model": 4, "preset": "fsdp", "rules": rules}
        assert param_shardings(metadata, **config)["kernel"].spec == PartitionSpec(*spec)
        sharding.require_axes(metadata, ParallelConfig(**config))


def test_a_rule_of_an_axis_that_the_model_lacks_is_refused_with_its_axes(metadata):
    sharding.require_axes(metadata, ParallelConfig(rules=("vocab=", "rank=model")))
    with pytest.raises(InputError) as error:
        sharding.require_axes(metadata, ParallelConfig(rules=("vocab=", "hedas=model")))
    assert str(error.value) == (
        "parallel.rules has 'hedas=model', but the model has no logical axis 'hedas'; did you mean "
        "'heads'? (logical axes: embed, heads, kv, norm, mlp, vocab, rank)"
    )


def test_rows_must_divide_over_devices_and_micro_batches():
    mesh = sharding.make_mesh(ParallelConfig(data=4, model=2))
    sharding.require_divisible_rows([(8, 16), (4, 32)], mesh, 1)
    sharding.require_divisible_rows([(8, 16), (16, 8)], mesh, 2)
    remedy = (
        "set data.row_multiple to a multiple of it (data.tokens_per_batch must be at least "
        "data.max_length times data.row_multiple), or lower parallel.data"
    )
    for shapes, micro_batches, message in (
        (
            [(8, 16), (6, 32)],
            1,
            "batches of 6 x 32 tokens cannot be divided over parallel.data = 4 devices: 6 rows are "
            f"not a multiple of 4; {remedy}",
        ),
        (
            [(8, 16)],
            4,
            "batches of 8 x 16 tokens cannot be divided over parallel.data = 4 devices in 4 "
            f"micro-batches: 8 rows are not a multiple of 16; {remedy} or training.micro_batches",
        ),
    ):
        with pytest.raises(InputError) as error:
            sharding.require_divisible_rows(shapes, mesh, micro_batches)
        assert str(error.value) == message


# The training state.


def abstract_state(model_config, optimizer_config, with_average=False, **fields):
    """A training state of shapes, dtypes and shardings."""
    model = protocol.build(model_config)
    optimizer = optimizers.optimizer(model, optimizer_config, 10)
    init = functools.partial(step.TrainState.create, model, optimizer, with_average=with_average)
    shapes = jax.eval_shape(init, jax.random.key(0))
    of_params = param_shardings(protocol.parameter_metadata(model), **fields)
    shardings = sharding.state_shardings(shapes, of_params)
    assert jax.tree.structure(shardings) == jax.tree.structure(shapes)
    return jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
        *(shapes, shardings),
    )


@pytest.mark.parametrize("name", ["adam", "adamw", "adafactor", "lion", "muon", "schedule_free"])
def test_the_moments_and_the_average_of_a_parameter_are_sharded_as_the_parameter(name):
    clip_norm = None if name == "adam" else 1.0
    config = OptimizerConfig(name=name, schedule="constant", clip_norm=clip_norm)
    state = abstract_state(CONFIG, config, with_average=True, data=2, model=4, preset="tensor")
    for leaf in jax.tree.leaves(state):
        leaf.sharding.shard_shape(leaf.shape)  # fails where the ranks differ
    kernel = PartitionSpec(None, "model")
    average = state.average["encoder"]["layer_0"]["feed_forward"]["kernel_in"]
    assert average.sharding.spec == kernel
    moments = [
        leaf.sharding.spec
        for path, leaf in jax.tree_util.tree_leaves_with_path(state.opt_state)
        if "kernel_in" in str(path[-1]) and leaf.shape == (16, 32)
    ]
    assert set(moments) == {kernel}
    others = [leaf for leaf in jax.tree.leaves(state.opt_state) if leaf.shape == ()]
    assert others and all(leaf.sharding.spec == PartitionSpec() for leaf in others)


# The table of parameters.


def test_the_table_has_shape_sharding_and_bytes_of_every_parameter_and_of_the_state():
    """By hand, over 2 x 4 devices.

    Embedding 12 x 16; attention 4 kernels of 16 x 4 x 4; feed-forward network 2 kernels of 16 x 32
    and biases of 32 and 16; norm 16 and 16. Two encoder layers have 1 attention and 2 norms each,
    one decoder layer has 2 and 3.
    """
    config = dataclasses.replace(CONFIG, encoder_layers=2)
    fields = {"data": 2, "model": 4, "preset": "fsdp_tensor"}
    text = parameter_table(abstract_state(config, OptimizerConfig(), **fields))
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


def test_the_bytes_in_the_table_are_those_that_a_device_holds():
    abstract = abstract_state(CONFIG, OptimizerConfig(), data=2, model=4, preset="tensor")
    state = jax.tree.map(
        lambda leaf: jax.device_put(jnp.zeros(leaf.shape, leaf.dtype), leaf.sharding),
        abstract.replace(rng=abstract.step),
    )
    held = sum(leaf.addressable_shards[3].data.nbytes for leaf in jax.tree.leaves(state))
    text = parameter_table(state)
    assert text.endswith(f"and {held:,} bytes of training state")
    assert text == parameter_table(abstract.replace(rng=abstract.step))
