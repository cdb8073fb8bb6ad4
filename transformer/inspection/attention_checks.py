# SPDX-License-Identifier: Apache-2.0
"""Validation of attention weights: all weights that are drawn or measured are checked here."""

import numpy as np

from transformer.arrays import Array, Bool, Float
from transformer.errors import InputError

ROW_SUM_TOLERANCE = 1e-3
"""Largest difference of a row's sum from 1; it admits weights of half precision."""


def check_weights(
    weights: Float[Array | np.ndarray, "*L T S"],
    mask: Bool[Array | np.ndarray, "#T S"] | None = None,
    name: str = "attention weights",
) -> None:
    """Check that an array is the result of a softmax over the keys.

    Args:
      weights: each row, over the last axis, must sum to 1 within `ROW_SUM_TOLERANCE`.
      mask: where a query may attend; elsewhere the weight must be exactly 0.
      name: of the weights, for the message.

    Raises:
      InputError: naming the first invalid row. The usual cause is a normalization over heads or
        over queries.
    """
    weights = np.asarray(weights)
    sums = weights.sum(-1, dtype=np.float64)
    wrong = ~(np.abs(sums - 1) <= ROW_SUM_TOLERANCE) | (weights < 0).any(-1)
    if wrong.any():
        index = first_index(wrong)
        raise InputError(
            f"{name}: row {list(index)} sums to {sums[index]:.6g} with least weight "
            f"{weights[index].min():.6g}, but a softmax over the keys sums to 1 and is never "
            "negative; give the weights after the softmax and before dropout, normalized over the "
            "last axis, the keys, and not over the heads"
        )
    if mask is not None:
        masked = np.where(np.asarray(mask), 0, weights)
        if masked.any():
            index = first_index(masked != 0)
            raise InputError(
                f"{name}: the weight at {list(index)} is {weights[index]:.6g}, but that query may "
                "not attend to that key; the mask and the weights are of different sentences"
            )


def first_index(where: Bool[np.ndarray, "..."]) -> tuple[int, ...]:
    """Index of the first true element."""
    return tuple(int(index) for index in np.argwhere(where)[0])
