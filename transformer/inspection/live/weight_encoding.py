# SPDX-License-Identifier: Apache-2.0
"""Weights as text: 24-bit integers and a scale for each tensor, in base64.

Float16 is too coarse: its 11 significant bits move the logits of the default `pronouns` model by up
to 0.005 (docs/inspection.md). An integer of 24 bits costs one more byte a weight, and is off by at
most 6e-8 of the tensor's largest weight.
"""

import base64

import numpy as np
from numpy.typing import ArrayLike

from transformer.arrays import Float

BYTES_PER_WEIGHT = 4
"""3 bytes, which are 4 characters of base64."""
LARGEST = 2**23 - 1
"""The integer of a tensor's largest weight."""


def scale_of(weights: ArrayLike) -> float:
    """The weight of the integer 1."""
    return float(np.abs(weights).max(initial=0.0)) / LARGEST or 1.0


def integers(weights: ArrayLike) -> np.ndarray:
    """The weights in units of their scale, rounded."""
    return np.rint(np.asarray(weights, np.float64) / scale_of(weights)).astype("<i4")


def rounded(weights: ArrayLike) -> Float[np.ndarray, "..."]:
    """The weights as the page reads them."""
    return np.float32(integers(weights) * scale_of(weights))


def encode(weights: ArrayLike) -> str:
    """The integers of a tensor in row-major order, 3 bytes each, lowest byte first."""
    octets = integers(weights).reshape(-1, 1).view(np.uint8)  # [weights, 4]
    return base64.b64encode(octets[:, :3].tobytes()).decode("ascii")
