# SPDX-License-Identifier: Apache-2.0
"""Attention rollout: two layers by hand, rows that sum to one, a source that is all there is."""

import jax.numpy as jnp
import numpy as np

from transformer.inspection.rollout import decoder_rollout, encoder_rollout
from transformer.inspection.trace import run


def test_two_layers_by_hand():
    """Layer 1 exchanges the positions; layer 2 reads the first position only, from both heads."""
    exchange = jnp.array([[0.0, 1.0], [1.0, 0.0]])
    first = jnp.array([[1.0, 0.0], [1.0, 0.0]])
    found = encoder_rollout(jnp.stack([jnp.stack([exchange] * 2), jnp.stack([first] * 2)]))
    np.testing.assert_allclose(found[0], [[0.5, 0.5], [0.5, 0.5]])
    np.testing.assert_allclose(found[1], [[0.5, 0.5], [0.5, 0.5]])
    found = encoder_rollout(jnp.stack([first, exchange])[:, None])
    np.testing.assert_allclose(found[0], [[1, 0], [0.5, 0.5]])
    np.testing.assert_allclose(found[1], [[0.75, 0.25], [0.75, 0.25]])


def test_heads_are_averaged():
    found = encoder_rollout(jnp.array([[[[1.0, 0], [1, 0]], [[0, 1.0], [0, 1]]]]))
    np.testing.assert_allclose(found[0], [[0.75, 0.25], [0.25, 0.75]])


def test_a_decoder_layer_by_hand():
    """Half of a position stays in each attention; the memory is passed on as what it is made of."""
    own = jnp.array([[[[1.0, 0.0], [1.0, 0.0]]]])
    cross = jnp.array([[[[1.0, 0.0], [0.0, 1.0]]]])
    memory = jnp.array([[1.0, 0.0], [0.5, 0.5]])
    found = decoder_rollout(own, cross, memory)
    np.testing.assert_allclose(found.target[0], [[0.5, 0], [0.25, 0.25]])
    np.testing.assert_allclose(found.source[0], [[0.5, 0], [0.25, 0.25]])


def test_rows_sum_to_one_and_nothing_comes_from_padding_or_from_later_tokens(
    params, config, source, target_in
):
    _, trace = run(params, config, source[1], target_in[1], capture="weights")
    memory = encoder_rollout(trace.attention("encoder").weights)
    np.testing.assert_allclose(memory.sum(-1), np.ones((2, 5)), atol=1e-6)
    assert not np.asarray(memory)[:, :3, 3:].any()
    found = decoder_rollout(
        trace.attention("decoder").weights, trace.attention("cross").weights, memory[-1]
    )
    assert found.source.shape == (3, 4, 5) and found.target.shape == (3, 4, 4)
    np.testing.assert_allclose(
        found.source.sum(-1) + found.target.sum(-1), np.ones((3, 4)), atol=1e-6
    )
    assert not np.asarray(found.source)[..., 3:].any()
    assert not np.triu(found.target, k=1).any()
