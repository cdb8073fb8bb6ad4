# SPDX-License-Identifier: Apache-2.0
"""Gathers by indices that a search computed, and their quotients."""

import jax
import jax.numpy as jnp
import numpy as np

from transformer.nn.gather import divmod_of_indices, gather


def test_a_gather_is_numpys():
    values = np.arange(24).reshape(2, 3, 4)
    indices = np.array([[2, 0], [1, 1]])[..., None]
    expected = np.take_along_axis(values, indices, axis=1)
    np.testing.assert_array_equal(gather(jnp.asarray(values), jnp.asarray(indices)), expected)


def test_quotients_and_remainders_are_pythons():
    quotients, remainders = divmod_of_indices(jnp.arange(10), 4)
    pairs = zip(quotients.tolist(), remainders.tolist(), strict=True)
    assert list(pairs) == [divmod(n, 4) for n in range(10)]


def test_neither_compiles_a_check_of_its_indices():
    def both(values, indices):
        return gather(values, divmod_of_indices(indices, 2)[0])

    lowered = jax.jit(both).lower(jnp.ones((2, 3)), jnp.zeros((2, 2), jnp.int32)).as_text()
    assert "gather" in lowered
    assert not {"compare", "select", "sign"} & set(lowered.replace(".", " ").split())
