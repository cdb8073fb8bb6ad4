# SPDX-License-Identifier: Apache-2.0
"""How long a training state takes to save and to restore, and how much saving slows a training.

python -m experiments.benchmarks.checkpointing --config=experiments/configs/big.py

Of the config's model the state is made whole: parameters and the optimizer's moments, all of them
random numbers, which no more than trained ones can be compressed. It is saved and restored several
times, in a temporary folder; what was written is still in the machine's memory when it is read. For
the slowdown the small model of copy.py is trained with and without saving, in turns. Standard
output has one JSON object a result, of medians over the turns.
"""

import dataclasses
import functools
import json
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from experiments.configs import copy
from experiments.flags import run
from transformer.checkpoints.manager import Checkpoints
from transformer.config import Config
from transformer.models import base
from transformer.training import optimizers
from transformer.training import step as training
from transformer.training.step import Batch, TrainState

TURNS = flags.DEFINE_integer("turns", 3, "Of which the median is taken.", lower_bound=1)
EVERY = flags.DEFINE_integer("every", 100, "Steps between two saves.", lower_bound=1)
STEPS = flags.DEFINE_integer("steps", 300, "Steps of one turn of training.", lower_bound=1)
FOLDER = flags.DEFINE_string("folder", None, "Where the temporary folder is made.")


@dataclasses.dataclass(frozen=True)
class Times:
    """Of saving and restoring one state once."""

    blocked: float
    """Seconds until `save` returned and the training could go on."""
    finished: float
    """Seconds until all was written and its digests were taken."""
    restored: float
    """Seconds until the digests were verified and all was in memory again."""
    size: int
    """Bytes on the disk."""


def main(config: Config) -> None:
    """Measures and prints."""
    with tempfile.TemporaryDirectory(dir=FOLDER.value) as name:
        folder = pathlib.Path(name)
        state = random_state(config)
        parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
        _say(f"saving and restoring {parameters:,} parameters and their moments")
        times = [save_and_restore(state, config, folder) for _ in range(TURNS.value)]
        size = times[0].size
        del state
        saved = {
            "parameters": parameters,
            "gib": round(size / 2**30, 3),
            "save_blocks_seconds": _median(one.blocked for one in times),
            "save_finished_seconds": _median(one.finished for one in times),
            "restore_seconds": _median(one.restored for one in times),
        }
        print(json.dumps(saved), flush=True)
        _say(f"training a small model, {TURNS.value} times with and without saving")
        without, with_saving = slowdown(folder)
        slowed = {
            "save_every_steps": EVERY.value,
            "steps_per_second_without": round(statistics.median(without), 2),
            "steps_per_second_saving": round(statistics.median(with_saving), 2),
            "slowdown": round(
                statistics.median(a / b - 1 for a, b in zip(without, with_saving, strict=True)), 4
            ),
        }
        print(json.dumps(slowed), flush=True)
    for key, value in (saved | slowed).items():
        _say(f"{key:>26}  {value:,}")


def random_state(config: Config) -> TrainState:
    """A training state of a config, every floating-point number of it drawn at random."""
    model = base.build(config.model)
    optimizer = optimizers.build(config.optimizer, config.model.d_model, config.training.steps)
    init = functools.partial(
        training.init_state, model, optimizer, with_average=training.keeps_average(config)
    )
    shapes = nn.unbox(jax.eval_shape(init, jax.random.key(0)))
    generator = np.random.default_rng(0)

    def drawn(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.key(0)
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            return jnp.asarray(generator.standard_normal(leaf.shape, np.float32))
        return jnp.zeros(leaf.shape, leaf.dtype)

    return jax.tree.map(drawn, shapes)


def save_and_restore(state: TrainState, config: Config, folder: pathlib.Path) -> Times:
    """Once, in a folder of its own."""
    abstract = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state
    )
    with tempfile.TemporaryDirectory(dir=folder) as name:
        with Checkpoints(name, config.training, writing=True) as checkpoints:
            began = time.perf_counter()
            checkpoints.save(state, {})
            blocked = time.perf_counter() - began
            checkpoints.finish()
            finished = time.perf_counter() - began
        size = sum(path.stat().st_size for path in pathlib.Path(name).rglob("*") if path.is_file())
        with Checkpoints(name, config.training, writing=True) as checkpoints:
            began = time.perf_counter()
            jax.block_until_ready(checkpoints.restore(abstract))
            restored = time.perf_counter() - began
    return Times(blocked, finished, restored, size)


def slowdown(folder: pathlib.Path) -> tuple[list[float], list[float]]:
    """Steps a second without saving and with it, of each round."""
    config = copy.get_config()
    model = base.build(config.model)
    optimizer = optimizers.build(config.optimizer, config.model.d_model, config.training.steps)
    step = jax.jit(
        functools.partial(training.train_step, model=model, optimizer=optimizer, config=config),
        donate_argnums=0,
    )
    generator = np.random.default_rng(0)
    shape = (config.data.tokens_per_batch // config.data.max_length, config.data.max_length)
    tokens = generator.integers(4, config.model.vocab_size, (2, *shape), np.int32)
    batch = Batch(*map(jnp.asarray, tokens))
    state, _ = step(random_state(config), batch)

    def trained(state: TrainState, save: Callable[[TrainState], None]) -> TrainState:
        for _ in range(STEPS.value):
            state, _ = step(state, batch)
            if int(state.step) % EVERY.value == 0:
                save(state)
        return jax.block_until_ready(state)

    without, with_saving = [], []
    with Checkpoints(folder, config.training, writing=True) as checkpoints:
        for _ in range(TURNS.value):
            for rates, save in (
                (without, lambda state: None),
                (with_saving, lambda state: checkpoints.save(state, {})),
            ):
                began = time.perf_counter()
                state = trained(state, save)
                checkpoints.finish()
                rates.append(STEPS.value / (time.perf_counter() - began))
    return without, with_saving


def _median(values) -> float:
    return round(statistics.median(values), 2)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    run(main, config_from="config")
