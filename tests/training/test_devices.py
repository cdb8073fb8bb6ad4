# SPDX-License-Identifier: Apache-2.0
"""Training gives the same results on any number of devices, in any preset.

In float64 losses agree to 1e-9 over 50 steps. In float32 they differ by rounding errors, which Adam
magnifies from step to step.
"""

import functools
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from transformer import sharding
from transformer.batch import Batch
from transformer.config import (
    ClassifierConfig,
    Config,
    ConvolutionalConfig,
    LanguageModelConfig,
    OptimizerConfig,
    ParallelConfig,
    RecurrentConfig,
    TrainingConfig,
    TransformerConfig,
)
from transformer.models import protocol
from transformer.training import optimizers
from transformer.training import step as training
from transformer.training.step import TrainState

CONFIG = Config(
    model=TransformerConfig(vocab_size=24, num_layers=1, d_model=16, num_heads=8, d_ff=32),
    optimizer=OptimizerConfig(warmup_steps=20, learning_rate=0.3),
    training=TrainingConfig(label_smoothing=0.1),
)
DRY = CONFIG.replace(model=CONFIG.model.replace(dropout=0.0))
FAMILIES = {
    "convolutional": CONFIG.replace(
        model=ConvolutionalConfig(
            vocab_size=24, num_layers=2, d_model=16, kernel_width=3, max_positions=150
        )
    ),
    "recurrent": CONFIG.replace(
        model=RecurrentConfig(
            **{"vocab_size": 24, "num_layers": 2, "d_model": 16, "dropout": 0.1},
            **{"cell": "lstm", "attention": "general", "input_feeding": True},
        )
    ),
    "language model": CONFIG.replace(
        model=LanguageModelConfig(vocab_size=24, num_layers=1, d_model=16, num_heads=8, d_ff=32)
    ),
    "classifier": CONFIG.replace(
        model=ClassifierConfig(vocab_size=24, num_layers=1, d_model=16, num_heads=8, d_ff=32)
    ),
}
"""The other families, which have dropout too."""
HASH = CONFIG.replace(model=CONFIG.model.replace(dropout_generator="hash"))
VARIED = CONFIG.replace(
    model=CONFIG.model.replace(
        positions="shaw",
        max_relative_position=3,
        num_kv_heads=4,
        shared_layers=True,
        timestep_encoding=True,
        encoder_layers=2,
        activation="swiglu",
        norm_kind="rms_norm",
        tied_embeddings="none",
        attention_window=5,
    )
)
ADDITIVE = CONFIG.replace(
    model=CONFIG.model.replace(attention_score="additive", positions="alibi", num_kv_heads=4)
)
ROWS = 32
EIGHT = ParallelConfig(data=8)


class Run(NamedTuple):
    """The mean loss of every step, the state after the last, and the compiled program's text."""

    losses: np.ndarray
    state: TrainState
    program: str


def batch_of(step):
    """Random strings; the target has every symbol raised by one. Each step has other strings.

    Rows have more tokens further down, from 2 to 9; one has none.
    """
    rng = np.random.default_rng(step)
    source, target = np.zeros((ROWS, 9), np.int32), np.zeros((ROWS, 10), np.int32)
    for row in range(ROWS):
        if row == 5:
            continue
        length = rng.integers(1, 2 + row // 4)
        source[row, :length] = rng.integers(4, 23, length)
        target[row, :length] = source[row, :length] + 1
        source[row, length] = target[row, length] = 2
    return Batch(source, target)


def parts(config):
    """(model, optimizer) of a config."""
    model = protocol.build(config.model)
    return model, optimizers.optimizer(model, config.optimizer, config.training.steps)


def in_parts(micro_batches, config=CONFIG):
    """The config with this number of micro-batches."""
    return config.replace(training=config.training.replace(micro_batches=micro_batches))


def pure_step(config, **options):
    """`training.train_step`, of state and batch alone."""
    micro_batches = config.training.micro_batches or 1
    return functools.partial(
        training.train_step, *parts(config), micro_batches=micro_batches, **options
    )


def fresh(dtype, config=CONFIG):
    """The state before the first step; in float64, the float32 one cast."""
    # Neither dropout nor micro-batches change it.
    model = config.model.replace(dropout=0.1, dropout_generator="threefry")
    return _fresh(dtype, CONFIG.replace(model=model))


@functools.cache
def _fresh(dtype, config):
    init = jax.jit(functools.partial(TrainState.create, *parts(config)))
    return jax.tree.map(
        lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf,
        init(jax.random.key(0)),
    )


def trained(step, state, steps, batch_of=batch_of):
    """Compile the step and take `steps` of them."""
    dtype, losses = jax.tree.leaves(state.params)[0].dtype, []
    compiled = step.lower(state, batch_of(0)).compile()
    for number in range(steps):
        state, sums = compiled(state, batch_of(number))
        assert sums.loss.dtype == dtype
        losses.append(float(sums.loss) / float(sums.tokens))
    return Run(np.array(losses), state, compiled.as_text())


def jitted(mesh, parallel, config):
    """The step on a mesh, jitted as `training.compose` does, and the shardings of its state."""
    metadata = protocol.parameter_metadata(parts(config)[0])
    of_params = sharding.param_shardings(metadata, mesh, parallel)
    init = functools.partial(TrainState.create, *parts(config))
    shapes = jax.eval_shape(init, jax.random.key(0))
    of_state = sharding.state_shardings(shapes, of_params)

    def gather(params, _):
        return sharding.all_gather(params, metadata, of_params, config.model.compute_dtype)

    step = jax.jit(
        pure_step(config, to_model=gather),
        in_shardings=(of_state, sharding.batch_sharding(mesh)),
        out_shardings=(of_state, sharding.replicated(mesh)),
    )
    return step, of_state


def run(dtype, steps, parallel=ParallelConfig(), config=CONFIG):  # noqa: B008 (it is frozen)
    """Train on a mesh, or return what an equal call has trained."""
    return _run(dtype, steps, parallel, config)


@functools.cache
def _run(dtype, steps, parallel, config):
    with jax.enable_x64(dtype == "float64"):
        step, shardings = jitted(sharding.make_mesh(parallel), parallel, config)
        return trained(step, jax.device_put(fresh(dtype, config), shardings), steps)


def furthest(state, other):
    """The largest difference between two states, of parameters and of Adam's moments.

    Adam's update does not depend on the scale of the gradient; its moments do.
    """
    differences = jax.tree.map(
        lambda a, b: np.abs(np.asarray(a) - np.asarray(b)).max(),
        *((each.params, each.opt_state) for each in (state, other)),
    )
    return max(jax.tree.leaves(differences))


# Meshes.


@pytest.mark.slow
def test_the_loss_falls_and_depends_on_the_dropout():
    wet, dry = run("float64", 10).losses, run("float64", 10, EIGHT, DRY).losses
    assert wet[-1] < wet[0] - 0.5
    # The two curves may cross, but they differ at most steps.
    assert np.median(np.abs(wet - dry)) > 1e-2


MESHES = {
    "replicated": [(2, 1), (4, 1), (8, 1)],
    "fsdp": [(2, 1), (4, 1), (8, 1)],
    "tensor": [(1, 2), (1, 4), (1, 8), (2, 2), (2, 4), (4, 2)],
    "fsdp_tensor": [(2, 2), (2, 4), (4, 2)],
}
EVERY_MESH = [
    ParallelConfig(data=data, model=model, preset=preset)
    for preset, meshes in MESHES.items()
    for data, model in meshes
]


def shown(value):
    """The test id of a mesh or of a dtype."""
    return value if isinstance(value, str) else f"{value.preset}-{value.data}x{value.model}"


def check(dtype, steps, parallel, config=CONFIG):
    """Compare a mesh with one device at every step; returns the differences."""
    ours, theirs = run(dtype, steps, parallel, config), run(dtype, steps, config=config)
    apart = np.abs(ours.losses - theirs.losses)
    if dtype == "float64":
        assert apart.max() < 1e-9
    else:
        assert apart[0] < 1e-6
        assert apart[9] < 1e-5
    table = jax.tree.leaves(ours.state.params)[0]
    assert len(table.sharding.device_set) == parallel.data * parallel.model
    return apart, furthest(ours.state, theirs.state)


def test_ten_steps_on_eight_devices_equal_those_on_one():
    """The slow tests have the other meshes."""
    check("float64", 10, ParallelConfig(data=2, model=4, preset="fsdp_tensor"))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("parallel", EVERY_MESH, ids=shown)
def test_fifty_steps_on_any_mesh_equal_those_on_one_device(parallel, dtype, record_property):
    apart, parameters = check(dtype, 50, parallel)
    measured = {f"step {step}": apart[step - 1] for step in (1, 10, 50)}
    measured |= {"largest": apart.max(), "parameters": parameters}
    for name, value in measured.items():
        record_property(name, f"{value:.1e}")
    print(shown(parallel), dtype, *(f"{name} {value:.1e}" for name, value in measured.items()))


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["fsdp", "fsdp_tensor"])
@pytest.mark.parametrize("family", FAMILIES)
def test_ten_steps_of_every_family_on_eight_devices_equal_those_on_one(family, preset):
    data = 8 if preset == "fsdp" else 2
    parallel = ParallelConfig(data=data, model=8 // data, preset=preset)
    check("float64", 10, parallel, FAMILIES[family])


@pytest.mark.slow
def test_a_mesh_of_one_device_equals_no_mesh():
    with jax.enable_x64(True):
        plain = trained(jax.jit(pure_step(CONFIG)), fresh("float64"), 10)
    assert np.abs(plain.losses - run("float64", 10).losses).max() < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["fsdp", "tensor", "fsdp_tensor"])
def test_hash_dropout_on_a_mesh_equals_that_on_one_device(preset):
    model = 1 if preset == "fsdp" else 4
    parallel = ParallelConfig(data=8 // model, model=model, preset=preset)
    ours, theirs = run("float64", 10, parallel, HASH), run("float64", 10, config=HASH)
    assert np.abs(ours.losses - theirs.losses).max() < 1e-9
    assert np.abs(theirs.losses - run("float64", 10).losses).min() > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("config", [VARIED, ADDITIVE], ids=["shaw and others", "additive"])
@pytest.mark.parametrize("preset", ["fsdp", "fsdp_tensor"])
def test_variants_of_the_model_train_on_a_mesh_as_on_one_device(config, preset):
    model = 1 if preset == "fsdp" else 4
    parallel = ParallelConfig(data=8 // model, model=model, preset=preset)
    ours, theirs = run("float64", 3, parallel, config), run("float64", 3, config=config)
    assert np.abs(ours.losses - theirs.losses).max() < 1e-9
    assert furthest(ours.state, theirs.state) < 1e-9


@pytest.mark.slow
def test_micro_batches_on_a_mesh_have_the_dropout_of_one_device():
    ours = run("float64", 10, ParallelConfig(data=4, preset="fsdp"), in_parts(2))
    assert np.abs(ours.losses - run("float64", 10).losses).max() < 1e-9


# Micro-batches.


@pytest.mark.parametrize("micro_batches", [2, 4])
@pytest.mark.slow
def test_micro_batches_of_unequal_token_counts_make_the_same_updates(micro_batches):
    """With dropout, which depends on the index of an example in the batch, not on its part."""
    whole = run("float64", 10, EIGHT, HASH)
    apart = run("float64", 10, EIGHT, in_parts(micro_batches, HASH))
    assert np.abs(whole.losses - apart.losses).max() < 1e-12
    assert furthest(whole.state, apart.state) < 1e-12
    assert np.abs(np.diff(whole.losses)).min() > 1e-3


# Collectives.


def collectives(program):
    """The result shapes of the collectives of a compiled program, by the collective's name."""
    shapes_of = {}
    for line in program.splitlines():
        match = re.search(
            r"= (.*?) (all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute)"
            r"(?:-start)?\(",
            line,
        )
        if match:
            shapes = re.findall(r"[a-z]+\d*\[([\d,]*)\]", match[1])
            shapes_of.setdefault(match[2], set()).update(
                tuple(map(int, filter(None, shape.split(",")))) for shape in shapes
            )
    return shapes_of


def test_data_parallel_devices_send_parameters_gradients_and_sums_only():
    """With `fsdp` too: parameters are all-gathered for the forward pass, activations never.

    Gradients of heads are sent as the matrix that `transformer.cpu.matmul` computes.
    """
    parallel = ParallelConfig(data=8, preset="fsdp")
    sent = collectives(run("float64", 1, parallel, DRY).program)
    shapes = {leaf.shape for leaf in jax.tree.leaves(fresh("float64").params)}
    assert sent["all-gather"] <= shapes
    assert set().union(*sent.values()) <= shapes | {(16, 16), ()}
    assert (24, 16) in sent["all-gather"]
    assert (24, 16) in sent["all-reduce"]


@pytest.mark.parametrize("preset", [pytest.param("tensor", marks=pytest.mark.slow), "fsdp_tensor"])
def test_neither_the_embedding_table_nor_logits_nor_rows_of_other_devices_are_sent(preset):
    """Over 2 x 4 devices each has 16 of the 32 rows and 6 of the 24 tokens."""
    sent = collectives(run("float64", 10, ParallelConfig(data=2, model=4, preset=preset)).program)
    for shape in set().union(*sent.values()):
        of_activations = bool({9, 10} & set(shape))  # the lengths; no parameter has such an axis
        assert shape != (24, 16)
        assert not of_activations or (shape[0] == 16 and shape[-1] not in (24, 6)), shape
    if preset == "tensor":
        assert "all-gather" not in sent  # the argmax over the vocabulary needs none


# `shard_map` and `pmap`.


def under_shard_map(step, mesh):
    """Each device computes its local rows; the step sums over the axis ``data``.

    With check_vma, JAX would sum the gradients of replicated parameters a second time.
    """
    return jax.jit(
        jax.shard_map(
            step,
            mesh=mesh,
            in_specs=(PartitionSpec(), PartitionSpec("data")),
            out_specs=PartitionSpec(),
            check_vma=False,
        )
    )


def under_pmap(step):
    """The same with `jax.pmap`; a batch has a leading axis of devices."""
    return jax.pmap(step, axis_name="data", in_axes=(None, 0), out_axes=None)


def by_device(number):
    """A batch with a leading axis of devices."""
    return jax.tree.map(lambda rows: rows.reshape(8, -1, rows.shape[1]), batch_of(number))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "config"),
    [
        pytest.param("float64", HASH, id="float64-hash"),
        pytest.param("float64", CONFIG, id="float64-threefry"),
        pytest.param("float32", CONFIG, id="float32-threefry"),
        pytest.param("float64", in_parts(2, HASH), id="micro-batches"),
    ],
)
def test_jit_shard_map_and_pmap_take_the_same_steps(dtype, config):
    """With dropout, which counts examples over all devices."""
    expected = run(dtype, 10, EIGHT, config)
    with jax.enable_x64(dtype == "float64"):
        step, mesh = pure_step(config, axis_name="data"), sharding.make_mesh(EIGHT)
        state = jax.device_put(fresh(dtype), sharding.replicated(mesh))
        runs = [
            trained(under_shard_map(step, mesh), state, 10),
            trained(under_pmap(step), fresh(dtype), 10, by_device),
        ]
    for losses, state, _ in runs:
        apart = np.abs(losses - expected.losses)
        if dtype == "float64":
            assert apart.max() < 1e-9
            assert furthest(state, expected.state) < 1e-9
        else:
            assert apart[0] < 1e-6
            assert apart[9] < 1e-5
