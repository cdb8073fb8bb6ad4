# SPDX-License-Identifier: Apache-2.0
"""Time to save and restore a training state.

python -m experiments.benchmarks.checkpointing --config=experiments/configs/big.py

The state of the config's model has random values, which compress no better than trained ones. It is
saved and restored in a temporary folder; files are still in the page cache when they are read. The
last line on standard output is one JSON object, with medians over the turns.
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
from experiments.flags import run
from transformer.checkpoints.manager import Checkpoints
from transformer.config import Config
from transformer.training.step import TrainState

TURNS = flags.DEFINE_integer("turns", 3, "Turns of each measurement.", lower_bound=1)
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
        print(json.dumps(result))


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


if __name__ == "__main__":
    run(main, config_from="config")
