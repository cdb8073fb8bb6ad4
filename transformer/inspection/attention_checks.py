# SPDX-License-Identifier: Apache-2.0
"""What an array of attention weights must be: everything that is shown or measured is held to it.

Every row is a distribution over the keys, and what a query may not attend to has a weight of
exactly 0.
"""

import numpy as np

from transformer.arrays import Array, Bool, Float
from transformer.errors import InputError

ROW_SUM_TOLERANCE = 1e-3
"""How far a row may be from 1: weights of half precision are still accepted."""


def check_weights(
    weights: Float[Array | np.ndarray, "*L T S"],
    mask: Bool[Array | np.ndarray, "#T S"] | None = None,
    name: str = "attention weights",
) -> None:
    """Refuses an array that cannot be attention weights after a softmax over the keys.

    Args:
      weights: every row, over the last axis, sums to 1 within `ROW_SUM_TOLERANCE`.
      mask: where a query may attend; elsewhere the weight must be exactly 0.
      name: what they are called in the message.

    Raises:
      InputError: naming the first row that is wrong. Weights that were normalised over heads, or
        over queries, are the usual reason.
    """
    weights = np.asarray(weights)
    sums = weights.sum(-1, dtype=np.float64)
    wrong = ~(np.abs(sums - 1) <= ROW_SUM_TOLERANCE) | (weights < 0).any(-1)
    if wrong.any():
        place = first(wrong)
        raise InputError(
            f"{name}: row {list(place)} sums to {sums[place]:.6g} with least weight "
            f"{weights[place].min():.6g}, but a softmax over the keys sums to 1 and is never "
            "negative; give the weights after the softmax and before dropout, normalised over the "
            "last axis, the keys, and not over the heads"
        )
    if mask is not None:
        hidden = np.where(np.asarray(mask), 0, weights)
        if hidden.any():
            place = first(hidden != 0)
            raise InputError(
                f"{name}: the weight at {list(place)} is {weights[place]:.6g}, but that query may "
                "not attend to that key; the mask and the weights are of different sentences"
            )


def first(where: Bool[np.ndarray, "..."]) -> tuple[int, ...]:
    """The indices of the first element that is true."""
    return tuple(int(index) for index in np.argwhere(where)[0])
