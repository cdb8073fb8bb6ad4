# SPDX-License-Identifier: Apache-2.0
"""The benchmark of checkpoints saves what a trained state is like, and what it times is done."""

import jax
import numpy as np

from experiments.benchmarks.checkpointing import random_state, save_and_restore
from transformer.config import Config, OptimizerConfig, TransformerConfig

CONFIG = Config(
    model=TransformerConfig(vocab_size=500, num_layers=1, d_model=64, d_ff=128, num_heads=2),
    optimizer=OptimizerConfig(warmup_steps=10),
)


def test_the_state_is_saved_whole_and_cannot_be_compressed(tmp_path):
    state = random_state(CONFIG)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves((state.params, state.opt_state))]
    numbers = [leaf for leaf in leaves if leaf.dtype == np.float32]
    assert all(len(np.unique(leaf)) > 0.9 * leaf.size for leaf in numbers)
    times = save_and_restore(state, CONFIG, tmp_path)
    # The parameters and two moments; random mantissas leave only the exponents to be compressed.
    raw = sum(leaf.nbytes for leaf in numbers)
    assert raw == 3 * sum(leaf.nbytes for leaf in jax.tree.leaves(state.params))
    assert 0.85 * raw < times.size < 1.2 * raw
    assert 0 < times.blocked < times.finished
    assert times.restored > 0
    assert list(tmp_path.iterdir()) == []
