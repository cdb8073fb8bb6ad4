# SPDX-License-Identifier: Apache-2.0
"""OV and QK matrices of heads, against the scores and outputs of a forward pass."""

import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from transformer.config import TransformerConfig
from transformer.errors import InputError
from transformer.inspection.head_circuits import copying_score, ov_circuits, qk_circuits
from transformer.models import protocol


def test_qk_and_ov_matrices_give_the_scores_and_outputs_of_heads(shallow, traced):
    """Cross-attention has queries of the decoder and keys of the memory."""
    _, seen = traced()
    memory, x = seen.encoder.residual[-1], seen.encoder.residual[0]
    for kind, layer, queries, keys in (
        ("encoder", 0, x, x),
        ("cross", 1, seen.decoder.sublayers[1, 0], memory),
    ):
        circuits = qk_circuits(*shallow, kind)
        scores = jnp.einsum("TD,NDE,SE->NTS", queries, circuits[layer], keys)
        np.testing.assert_allclose(seen.attention(kind).scores[layer], scores, atol=1e-4)
    assert circuits.shape == (2, 2, 6, 6)
    attention, x = seen.decoder.self_attention, seen.decoder.residual[1]
    written = jnp.einsum("SD,NDE->NSE", x, ov_circuits(*shallow, "decoder")[1])
    outputs = jnp.einsum("NTS,NSE->NTE", attention.weights[1], written)
    np.testing.assert_allclose(attention.head_out[1], outputs, atol=1e-4)


def test_heads_that_share_keys_and_values_share_those_factors():
    config = TransformerConfig(
        vocab_size=11, num_layers=1, d_model=8, d_ff=8, num_heads=4, num_kv_heads=2
    )
    model = protocol.build(config)
    params = oracle.random_params(model, seed=1)
    kernels = params["encoder"]["layer_0"]["self_attention"]
    expected = kernels["value"][:, 1] @ kernels["output"][3]
    np.testing.assert_allclose(ov_circuits(model, params, "encoder")[0, 3], expected, atol=1e-5)


def test_the_copying_score_is_1_for_copies_minus_1_for_negatives_0_for_a_rotation():
    identity, rotation = np.eye(2), np.array([[0.0, -1.0], [1.0, 0.0]])
    mixed = np.diag([3.0, -1.0])  # (3 - 1) / (3 + 1)
    scores = copying_score(np.array([[identity, -identity, rotation, mixed, 0 * identity]]))
    np.testing.assert_allclose(scores, [[1, -1, 0, 0.5, 0]], atol=1e-12)


def test_scores_that_are_no_product_are_rejected(shallow):
    model, params = shallow
    additive = protocol.build(model.config.replace(attention_score="additive"))
    with pytest.raises(InputError, match=r"no QK matrix.*model\.attention_score is 'additive'"):
        qk_circuits(additive, params, "encoder")
