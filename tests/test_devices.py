# SPDX-License-Identifier: Apache-2.0
"""The same training on any number of devices, however they share the work.

In float64, where rounding is out of sight, losses agree to 1e-9 over 50 steps. In float32 they
agree as closely as rounding allows, which Adam magnifies from step to step.
"""

import functools
import re
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from transformer import sharding
from transformer.config import (
    Config,
    OptimizerConfig,
    ParallelConfig,
    TrainingConfig,
    TransformerConfig,
)
from transformer.models import base
from transformer.training import optimizers
from transformer.training import step as training
from transformer.training.step import Batch, TrainState

CONFIG = Config(
    model=TransformerConfig(vocab_size=24, num_layers=1, d_model=16, num_heads=8, d_ff=32),
    optimizer=OptimizerConfig(warmup_steps=20, learning_rate=0.3),
    training=TrainingConfig(label_smoothing=0.1),
)
DRY = CONFIG.replace(model=CONFIG.model.replace(dropout=0.0))
HASH = CONFIG.replace(model=CONFIG.model.replace(dropout_generator="hash"))
ROWS = 32
EIGHT = ParallelConfig(data=8)


class Run(NamedTuple):
    """The mean loss of every step, the state after the last, and the compiled program's text."""

    losses: np.ndarray
    state: TrainState
    program: str


def batch_of(step):
    """Random strings to be copied with every symbol raised by one; each step has others.

    Rows hold more tokens the further down they are, from 2 to 9, and one of them none.
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
    return base.build(config.model), optimizers.build(
        config.optimizer, config.model.d_model, config.training.steps
    )


def in_parts(micro_batches, config=CONFIG):
    """The config with so many micro-batches."""
    return config.replace(training=config.training.replace(micro_batches=micro_batches))


def pure_step(config, **options):
    """`training.train_step`, of state and batch alone."""
    model, optimizer = parts(config)
    return functools.partial(
        training.train_step, model=model, optimizer=optimizer, config=config, **options
    )


@functools.cache
def boxed():
    """The abstract fresh state, with logical axes."""
    make = functools.partial(training.init_state, *parts(CONFIG))
    return jax.eval_shape(make, jax.random.key(0))


@functools.cache
def fresh(dtype):
    """The state before the first step; in float64 it is the float32 one, widened."""
    make = jax.jit(functools.partial(training.init_state, *parts(CONFIG)))
    state = nn.unbox(make(jax.random.key(0)))
    return jax.tree.map(
        lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, state
    )


def taken(step, state, steps, batch_of=batch_of):
    """Compiles the step and takes so many."""
    dtype, losses = state.params["embedding"]["table"].dtype, []
    compiled = step.lower(state, batch_of(0)).compile()
    for number in range(steps):
        state, sums = compiled(state, batch_of(number))
        assert sums.loss.dtype == dtype
        losses.append(float(sums.loss) / float(sums.tokens))
    return Run(np.array(losses), state, compiled.as_text())


def jitted(mesh, parallel, config):
    """The step on a mesh, as `experiments.compose` builds it, and how the state lies there."""
    held = sharding.shardings_of_state(boxed(), mesh, sharding.rules_of(parallel))
    step = jax.jit(
        pure_step(config, gathered=sharding.gathered(held.params)),
        in_shardings=(held, sharding.batch_sharding(mesh)),
        out_shardings=(held, sharding.replicated(mesh)),
    )
    return step, held


@functools.cache
def run(dtype, steps, parallel=ParallelConfig(), config=CONFIG):  # noqa: B008 (it is frozen)
    """Trains on a mesh."""
    with jax.enable_x64(dtype == "float64"):
        step, held = jitted(sharding.make_mesh(parallel), parallel, config)
        return taken(step, jax.device_put(fresh(dtype), held), steps)


def furthest(state, other):
    """The largest difference between two states: of parameters, and of Adam's moments, without
    which a gradient of the wrong size could pass, as Adam divides it by its own.
    """
    differences = jax.tree.map(
        lambda a, b: np.abs(np.asarray(a) - np.asarray(b)).max(),
        *((each.params, each.opt_state) for each in (state, other)),
    )
    return max(jax.tree.leaves(differences))


# Meshes.


def test_the_batches_are_uneven_over_rows_devices_and_micro_batches():
    batch = batch_of(0)
    tokens = (batch.target != 0).sum(-1)
    assert tokens.min() == 0 < 2 < tokens.max()
    assert len(set(tokens.reshape(8, -1).sum(-1))) > 4
    assert len(set(tokens.reshape(-1, 4).sum(0))) > 2
    assert (batch.source != batch_of(1).source).any()


@pytest.mark.slow
def test_the_curve_goes_down_and_depends_on_the_dropout():
    wet, dry = run("float64", 10).losses, run("float64", 10, EIGHT, DRY).losses
    assert wet[-1] < wet[0] - 0.5
    # The curves may cross, but nearly everywhere they are far apart.
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
QUICK_MESHES = [
    (ParallelConfig(data=8, preset="fsdp"), "float64"),
    (ParallelConfig(data=2, model=4, preset="fsdp_tensor"), "float64"),
    (ParallelConfig(data=2, model=4, preset="fsdp_tensor"), "float32"),
]


def shown(value):
    """The name of a mesh, or a dtype as it is."""
    return value if isinstance(value, str) else f"{value.preset}-{value.data}x{value.model}"


def check(dtype, steps, parallel):
    """Compares a mesh with one device, step by step; returns the differences."""
    ours, theirs = run(dtype, steps, parallel), run(dtype, steps)
    apart = np.abs(ours.losses - theirs.losses)
    if dtype == "float64":
        assert apart.max() < 1e-9
    else:
        assert apart[0] < 1e-6
        assert apart[9] < 1e-5
    table = ours.state.params["embedding"]["table"]
    assert len(table.sharding.device_set) == parallel.data * parallel.model
    return apart, furthest(ours.state, theirs.state)


@pytest.mark.parametrize(
    ("parallel", "dtype"),
    QUICK_MESHES,
    ids=lambda value: value if isinstance(value, str) else shown(value),
)
def test_ten_steps_on_eight_devices_are_those_on_one(parallel, dtype):
    check(dtype, 10, parallel)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("parallel", EVERY_MESH, ids=shown)
def test_fifty_steps_on_any_mesh_are_those_on_one_device(parallel, dtype, record_property):
    apart, parameters = check(dtype, 50, parallel)
    measured = {f"step {step}": apart[step - 1] for step in (1, 10, 50)}
    measured |= {"largest": apart.max(), "parameters": parameters}
    for name, value in measured.items():
        record_property(name, f"{value:.1e}")
    print(shown(parallel), dtype, *(f"{name} {value:.1e}" for name, value in measured.items()))


@pytest.mark.slow
def test_a_mesh_of_one_device_is_no_mesh():
    with jax.enable_x64(True):
        plain = taken(jax.jit(pure_step(CONFIG)), fresh("float64"), 10)
    assert np.abs(plain.losses - run("float64", 10).losses).max() < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["fsdp", "tensor", "fsdp_tensor"])
def test_a_mesh_draws_the_same_hash_as_one_device(preset):
    model = 1 if preset == "fsdp" else 4
    parallel = ParallelConfig(data=8 // model, model=model, preset=preset)
    ours, theirs = run("float64", 10, parallel, HASH), run("float64", 10, config=HASH)
    assert np.abs(ours.losses - theirs.losses).max() < 1e-9
    assert np.abs(theirs.losses - run("float64", 10).losses).min() > 1e-4


@pytest.mark.slow
def test_micro_batches_on_a_mesh_drop_out_what_one_device_does():
    ours = run("float64", 10, ParallelConfig(data=4, preset="fsdp"), in_parts(2))
    assert np.abs(ours.losses - run("float64", 10).losses).max() < 1e-9


# Micro-batches.


@pytest.mark.parametrize("micro_batches", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_micro_batches_of_unequal_token_counts_make_the_same_updates(micro_batches):
    """With dropout: a row drops out by its number in the batch, whichever part it is in."""
    whole = run("float64", 10, EIGHT, HASH)
    apart = run("float64", 10, EIGHT, in_parts(micro_batches, HASH))
    assert np.abs(whole.losses - apart.losses).max() < 1e-12
    assert furthest(whole.state, apart.state) < 1e-12
    assert np.abs(np.diff(whole.losses)).min() > 1e-3


# What the devices send each other.


def sent(program):
    """The shapes that the collectives of a compiled program give, by the collective's name."""
    found = {}
    for line in program.splitlines():
        match = re.search(
            r"= (.*?) (all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute)"
            r"(?:-start)?\(",
            line,
        )
        if match:
            shapes = re.findall(r"[a-z]+\d*\[([\d,]*)\]", match[1])
            found.setdefault(match[2], set()).update(
                tuple(map(int, filter(None, shape.split(",")))) for shape in shapes
            )
    return found


def test_devices_that_share_only_rows_send_parameters_gradients_and_sums():
    """With `fsdp` too: parameters are gathered where they are used, activations never. Gradients of
    heads are sent as the matrix that `transformer.nn.matmul` makes them as.
    """
    parallel = ParallelConfig(data=8, preset="fsdp")
    found = sent(run("float64", 10, parallel).program)
    shapes = {leaf.shape for leaf in jax.tree.leaves(fresh("float64").params)}
    assert found["all-gather"] <= shapes
    assert set().union(*found.values()) <= shapes | {(16, 16), ()}
    assert (24, 16) in found["all-gather"]
    assert (24, 16) in found["all-reduce"]


@pytest.mark.parametrize("preset", [pytest.param("tensor", marks=pytest.mark.slow), "fsdp_tensor"])
def test_neither_the_whole_table_nor_logits_nor_the_rows_of_others_are_sent(preset):
    """Over 2 x 4 devices each has 16 of the 32 rows and 6 of the 24 words."""
    found = sent(run("float64", 10, ParallelConfig(data=2, model=4, preset=preset)).program)
    for shape in set().union(*found.values()):
        of_activations = bool({9, 10} & set(shape))  # the lengths; no parameter has such an axis
        assert shape != (24, 16)
        assert not of_activations or (shape[0] == 16 and shape[-1] not in (24, 6)), shape
    if preset == "tensor":
        assert "all-gather" not in found  # even the best word comes from maxima and minima


# What pmap became.


def under_shard_map(step, mesh):
    """Each device computes its own rows, and the step adds the sums over the axis ``data``.

    With check_vma, JAX would add the gradients of what all devices share by itself, a second time.
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
    """The same, the old way; a batch has a leading axis of devices."""
    return jax.pmap(step, axis_name="data", in_axes=(None, 0), out_axes=None)


def by_device(number):
    """A batch with a leading axis of devices."""
    return jax.tree.map(lambda rows: rows.reshape(8, -1, rows.shape[1]), batch_of(number))


@pytest.mark.parametrize(
    ("dtype", "config"),
    [
        pytest.param("float64", HASH, id="float64-hash"),
        pytest.param("float64", CONFIG, id="float64-threefry", marks=pytest.mark.slow),
        pytest.param("float32", CONFIG, id="float32-threefry", marks=pytest.mark.slow),
        pytest.param("float64", in_parts(2, HASH), id="micro-batches", marks=pytest.mark.slow),
    ],
)
def test_jit_shard_map_and_pmap_take_the_same_steps(dtype, config):
    """Dropout too, whose rows are numbered through the devices."""
    expected = run(dtype, 10, EIGHT, config)
    with jax.enable_x64(dtype == "float64"):
        step, mesh = pure_step(config, axis_name="data"), sharding.make_mesh(EIGHT)
        state = jax.device_put(fresh(dtype), sharding.replicated(mesh))
        runs = [
            taken(under_shard_map(step, mesh), state, 10),
            taken(under_pmap(step), fresh(dtype), 10, by_device),
        ]
    for losses, state, _ in runs:
        apart = np.abs(losses - expected.losses)
        if dtype == "float64":
            assert apart.max() < 1e-9
            assert furthest(state, expected.state) < 1e-9
        else:
            assert apart[0] < 1e-6
            assert apart[9] < 1e-5
