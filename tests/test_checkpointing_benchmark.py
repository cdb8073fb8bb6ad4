# SPDX-License-Identifier: Apache-2.0
"""The checkpointing benchmark saves a complete, incompressible state and times finished work."""

import jax
import numpy as np

from experiments import costs
from experiments.benchmarks.checkpointing import random_state, save_and_restore
from transformer.config import Config, OptimizerConfig, TransformerConfig

CONFIG = Config(
    model=TransformerConfig(vocab_size=500, num_layers=1, d_model=64, d_ff=128, num_heads=2),
    optimizer=OptimizerConfig(warmup_steps=10),
)


def test_the_complete_state_is_saved_and_cannot_be_compressed(tmp_path):
    abstract = costs.experiment_of_shapes(CONFIG).abstract_state
    state = random_state(abstract)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves((state.params, state.opt_state))]
    numbers = [leaf for leaf in leaves if leaf.dtype == np.float32]
    assert all(len(np.unique(leaf)) > 0.9 * leaf.size for leaf in numbers)
    figures = save_and_restore(state, abstract, CONFIG, tmp_path)
    # Parameters and two moments; random mantissas leave only exponents to compress.
    raw = sum(leaf.nbytes for leaf in numbers)
    assert raw == 3 * sum(leaf.nbytes for leaf in jax.tree.leaves(state.params))
    assert 0.85 * raw < figures["gib"] * 2**30 < 1.2 * raw
    assert 0 < figures["blocks_seconds"] < figures["saved_seconds"]
    assert figures["restored_seconds"] > 0
    assert list(tmp_path.iterdir()) == []
