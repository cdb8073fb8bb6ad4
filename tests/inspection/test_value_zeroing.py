# SPDX-License-Identifier: Apache-2.0
"""Value zeroing: the change of a vector without one key's value."""

import jax.numpy as jnp
import numpy as np
import pytest

from transformer.config import ConvolutionalConfig
from transformer.errors import InputError
from transformer.inspection.value_zeroing import value_zeroing
from transformer.models import protocol

SOURCE, TARGET_IN = np.array([4, 7, 5, 10, 2]), np.array([1, 5, 9, 4])


def test_a_row_is_the_change_without_each_key_as_shares(shallow, traced, nothing):
    shares, seen = value_zeroing(*shallow, SOURCE, TARGET_IN), traced()[1]
    value = seen.encoder.self_attention.value
    changes = []
    for key in range(5):
        mask = jnp.zeros((1, 3, 5, 1), bool).at[:, :, key].set(True)
        changed = nothing.patch_heads("encoder", "value", mask, jnp.zeros_like(value))
        without = traced(interventions=changed)[1]
        a, b = (np.asarray(each.encoder.residual[1, 3]) for each in (seen, without))
        changes.append(1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    np.testing.assert_allclose(shares[0, 3], np.array(changes) / sum(changes), atol=1e-3)
    np.testing.assert_allclose(shares.sum(-1), 1, atol=1e-5)


def test_a_decoder_query_changes_with_the_past_alone(shallow):
    shares = value_zeroing(*shallow, SOURCE, TARGET_IN, "decoder")
    assert shares.shape == (2, 4, 4)
    np.testing.assert_allclose(shares[0, 0], [1, 0, 0, 0], rtol=1e-6)  # exactly 0 elsewhere
    np.testing.assert_allclose(np.triu(shares[1], 1), 0, atol=1e-6)


def test_values_that_are_zero_already_change_nothing(shallow):
    model, params = shallow
    params = {**params, "encoder": {**params["encoder"]}}
    layer = params["encoder"]["layer_0"]
    attention = {**layer["self_attention"], "value": 0 * layer["self_attention"]["value"]}
    params["encoder"]["layer_0"] = {**layer, "self_attention": attention}
    shares = value_zeroing(model, params, SOURCE, TARGET_IN)
    np.testing.assert_allclose(shares, 0, atol=1e-6)


def test_a_family_without_values_is_rejected():
    model = protocol.build(ConvolutionalConfig(vocab_size=11, d_model=8, num_layers=1))
    with pytest.raises(InputError, match="'convolutional' has no 'cross' attention that writes"):
        value_zeroing(model, {}, SOURCE, TARGET_IN, "cross")
