# SPDX-License-Identifier: Apache-2.0
"""Arrays as short text, which a page's script unpacks."""

import base64

import numpy as np
from jaxtyping import Float

ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

STEPS = 64**2 - 1
"""A share is a multiple of 1 / STEPS, so that two characters hold it."""


def shares(values: Float[np.ndarray, "..."]) -> str:
    """Numbers from 0 to 1, two characters each, rounded to the nearest multiple of 1 / `STEPS`."""
    codes = np.rint(np.clip(values, 0, 1) * STEPS).astype(int)
    letters = np.frombuffer(ALPHABET, np.uint8)
    return letters[np.stack([codes // 64, codes % 64], -1)].tobytes().decode("ascii")


def floats(values: Float[np.ndarray, "..."]) -> str:
    """Numbers in single precision: base64 of their bytes, the lowest first."""
    return base64.b64encode(np.ascontiguousarray(values, "<f4").tobytes()).decode("ascii")
