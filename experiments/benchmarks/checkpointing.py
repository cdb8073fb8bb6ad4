# SPDX-License-Identifier: Apache-2.0
"""Time to save and restore a training state, and slowdown of a training run by saving.

python -m experiments.benchmarks.checkpointing --config=experiments/configs/big.py

The state of the config's model has random values, which compress no better than trained ones. It is
saved and restored in a temporary folder; files are still in the page cache when they are read. The
slowdown is that of the small model of copy.py, trained with and without saving in alternating
turns. Standard output has one JSON object per result, with medians over the turns.
"""

import json
import pathlib
import statistics
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from experiments import costs
from experiments.configs import copy
from experiments.flags import run
from transformer.checkpoints.manager import Checkpoints
from transformer.config import Config
from transformer.training.step import Batch, TrainState

TURNS = flags.DEFINE_integer("turns", 3, "Turns of each measurement.", lower_bound=1)
EVERY = flags.DEFINE_integer("every", 100, "Steps between two saves.", lower_bound=1)
STEPS = flags.DEFINE_integer("steps", 300, "Training steps of a turn.", lower_bound=1)
FOLDER = flags.DEFINE_string("folder", None, "Parent of the temporary folder.")


def main(config: Config) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(dir=FOLDER.value) as name:
        folder = pathlib.Path(name)
        abstract = costs.experiment_of_shapes(config).abstract_state
        state = random_state(abstract)
        turns = [save_and_restore(state, abstract, config, folder) for _ in range(TURNS.value)]
        del state
        result = {"parameters": sum(leaf.size for leaf in jax.tree.leaves(abstract.params))}
        for name in turns[0]:
            result[name] = round(statistics.median(turn[name] for turn in turns), 3)
        print(json.dumps(result), flush=True)
        ratios = [
            step_seconds(folder, saving=True) / step_seconds(folder, saving=False)
            for _ in range(TURNS.value)
        ]
        slowdown = round(statistics.median(ratios) - 1, 4)
        print(json.dumps({"save_every_steps": EVERY.value, "slowdown": slowdown}), flush=True)


def random_state(abstract: TrainState) -> TrainState:
    """Training state with random floating-point numbers, on the default device."""
    generator = np.random.default_rng(0)

    def draw(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.device_put(jax.random.key(0), leaf.sharding)
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            values = generator.standard_normal(leaf.shape, np.float32)
        else:
            values = np.zeros(leaf.shape, leaf.dtype)
        return jax.device_put(values, leaf.sharding)

    return jax.tree.map(draw, abstract)


def save_and_restore(
    state: TrainState, abstract: TrainState, config: Config, folder: pathlib.Path
) -> dict[str, float]:
    """Save and restore once, in a temporary folder below `folder`.

    Returns:
      seconds until `save` returned (``blocks_seconds``), until everything was written with digests
      (``saved_seconds``), until everything was verified and read (``restored_seconds``), and the
      size on disk in ``gib``.
    """
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
    return {
        "gib": size / 2**30,
        "blocks_seconds": blocked,
        "saved_seconds": finished,
        "restored_seconds": restored,
    }


def step_seconds(folder: pathlib.Path, saving: bool) -> float:
    """Mean seconds of a training step of the small model of copy.py."""
    experiment = costs.experiment_of_shapes(copy.get_config())
    [(rows, length)] = experiment.data.train.shapes()[-1:]
    vocab_size = experiment.config.model.vocab_size
    tokens = np.random.default_rng(0).integers(4, vocab_size, (2, rows, length), np.int32)
    batch = experiment.put_batch(Batch(*tokens))
    state, _ = experiment.train_step(experiment.init_state(), batch)
    with (
        tempfile.TemporaryDirectory(dir=folder) as name,
        Checkpoints(name, experiment.config.training, writing=True) as checkpoints,
    ):
        jax.block_until_ready(state)
        began = time.perf_counter()
        for step in range(1, STEPS.value + 1):
            state, _ = experiment.train_step(state, batch)
            if saving and step % EVERY.value == 0:
                checkpoints.save(state, {})
        jax.block_until_ready(state)
        checkpoints.finish()
        return (time.perf_counter() - began) / STEPS.value


if __name__ == "__main__":
    run(main, config_from="config")
