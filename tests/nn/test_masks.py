# SPDX-License-Identifier: Apache-2.0
"""Who may attend to whom, element by element."""

import jax.numpy as jnp
import numpy as np

from transformer.decode_cache import DecodeCache
from transformer.nn.masks import causal_mask, packed_mask, padding_mask

YES, NO = True, False


def test_padding_mask_is_false_on_padding_alone():
    mask = padding_mask(jnp.array([[5, 2, 0], [1, 3, 2]]))
    np.testing.assert_array_equal(mask, [[[[YES, YES, NO]]], [[[YES, YES, YES]]]])


def test_causal_mask_is_the_lower_triangle_with_its_diagonal():
    expected = [[YES, NO, NO], [YES, YES, NO], [YES, YES, YES]]
    np.testing.assert_array_equal(causal_mask(3), [[expected]])


def test_masks_combine_by_and():
    both = causal_mask(3) & padding_mask(jnp.array([[5, 2, 0]]))
    np.testing.assert_array_equal(both, [[[[YES, NO, NO], [YES, YES, NO], [YES, YES, NO]]]])


def test_packed_mask_keeps_each_sentence_to_itself():
    mask = packed_mask(jnp.array([[1, 1, 2, 0]]), jnp.array([[1, 2, 2]]))
    expected = [[YES, NO, NO], [YES, NO, NO], [NO, YES, YES], [NO, NO, NO]]
    np.testing.assert_array_equal(mask, [[expected]])


def test_packed_mask_never_lets_padding_be_attended_to_not_even_by_padding():
    mask = packed_mask(jnp.array([[1, 0]]), jnp.array([[1, 0]]))
    np.testing.assert_array_equal(mask, [[[[YES, NO], [NO, NO]]]])


def test_one_segment_and_its_padding_is_the_padding_mask():
    tokens = jnp.array([[7, 8, 2, 0, 0]])
    packed = packed_mask(jnp.ones((1, 3), jnp.int32), (tokens != 0).astype(jnp.int32))
    expected = np.broadcast_to(padding_mask(tokens), packed.shape)
    np.testing.assert_array_equal(packed, expected)


def test_a_beam_attends_to_what_its_ancestors_wrote_up_to_its_position():
    """Two beams, three positions. Beam 0 comes from beam 1 at position 0; position 2 is to come."""
    ancestry = jnp.array([[[1, 0, 0], [1, 1, 1]]])
    mask = DecodeCache((), ancestry, jnp.array(1), num_groups=1).self_mask()
    expected = [[NO, YES, YES, NO, NO, NO], [NO, YES, NO, YES, NO, NO]]
    np.testing.assert_array_equal(mask, [[expected]])
