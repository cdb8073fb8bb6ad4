# SPDX-License-Identifier: Apache-2.0
"""Attention rollout: hand-worked layers, and rows that sum to one."""

import jax.numpy as jnp
import numpy as np
import pytest

from transformer.inspection.rollout import decoder_rollout, encoder_rollout
from transformer.inspection.trace import run


def test_two_hand_worked_layers():
    """Layer 1 swaps the positions; both heads of layer 2 read only the first position."""
    swap = jnp.array([[0.0, 1.0], [1.0, 0.0]])
    first = jnp.array([[1.0, 0.0], [1.0, 0.0]])
    rollout = encoder_rollout(jnp.stack([jnp.stack([swap] * 2), jnp.stack([first] * 2)]))
    np.testing.assert_allclose(rollout[0], [[0.5, 0.5], [0.5, 0.5]])
    np.testing.assert_allclose(rollout[1], [[0.5, 0.5], [0.5, 0.5]])
    rollout = encoder_rollout(jnp.stack([first, swap])[:, None])
    np.testing.assert_allclose(rollout[0], [[1, 0], [0.5, 0.5]])
    np.testing.assert_allclose(rollout[1], [[0.75, 0.25], [0.75, 0.25]])


def test_heads_are_averaged():
    rollout = encoder_rollout(jnp.array([[[[1.0, 0], [1, 0]], [[0, 1.0], [0, 1]]]]))
    np.testing.assert_allclose(rollout[0], [[0.75, 0.25], [0.25, 0.75]])


def test_a_hand_worked_decoder_layer():
    """Each attention passes on half of a position; the memory has contributions of the source."""
    self_weights = jnp.array([[[[1.0, 0.0], [1.0, 0.0]]]])
    cross = jnp.array([[[[1.0, 0.0], [0.0, 1.0]]]])
    memory = jnp.array([[1.0, 0.0], [0.5, 0.5]])
    rollout = decoder_rollout(self_weights, cross, memory)
    np.testing.assert_allclose(rollout.target[0], [[0.5, 0], [0.25, 0.25]])
    np.testing.assert_allclose(rollout.source[0], [[0.5, 0], [0.25, 0.25]])


@pytest.mark.slow
def test_rows_sum_to_one_and_padding_and_later_tokens_contribute_nothing(
    model, params, source, target_in
):
    _, trace = run(model, params, source[1], target_in[1], capture="weights")
    memory = encoder_rollout(trace.attention("encoder").weights)
    np.testing.assert_allclose(memory.sum(-1), np.ones((2, 5)), atol=1e-6)
    assert not np.asarray(memory)[:, :3, 3:].any()
    rollout = decoder_rollout(
        trace.attention("decoder").weights, trace.attention("cross").weights, memory[-1]
    )
    assert rollout.source.shape == (3, 4, 5) and rollout.target.shape == (3, 4, 4)
    np.testing.assert_allclose(
        rollout.source.sum(-1) + rollout.target.sum(-1), np.ones((3, 4)), atol=1e-6
    )
    assert not np.asarray(rollout.source)[..., 3:].any()
    assert not np.triu(rollout.target, k=1).any()
