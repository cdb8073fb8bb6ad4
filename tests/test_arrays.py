# SPDX-License-Identifier: Apache-2.0
"""The special ids, and that the tests' type checker really checks shapes."""

import beartype
import jax.numpy as jnp
import jaxtyping
import pytest

from transformer import arrays
from transformer.arrays import Array, Float
from transformer.nn import masks, positions


def test_special_ids_are_the_first_and_differ():
    ids = [arrays.PAD_ID, arrays.BOS_ID, arrays.EOS_ID, arrays.UNK_ID]
    assert ids == list(range(arrays.NUM_SPECIAL_IDS))


def test_padding_is_zero_as_jax_fills_arrays_with_it():
    assert arrays.PAD_ID == 0


def test_every_call_in_these_tests_is_checked_for_shape_and_type():
    with pytest.raises(jaxtyping.TypeCheckError):
        masks.padding_mask(jnp.zeros((2, 3, 4), jnp.int32))
    with pytest.raises(jaxtyping.TypeCheckError):
        positions.shift_right(jnp.zeros((2, 3)))


def test_a_letter_has_one_size_within_a_call():
    @jaxtyping.jaxtyped(typechecker=beartype.beartype)
    def first(x: Float[Array, "B D"], y: Float[Array, "B D"]) -> Float[Array, "B D"]:
        return x

    assert first(jnp.ones((2, 3)), jnp.ones((2, 3))).shape == (2, 3)
    with pytest.raises(jaxtyping.TypeCheckError):
        first(jnp.ones((2, 3)), jnp.ones((2, 4)))
