# SPDX-License-Identifier: Apache-2.0
"""Arrays as short text, which a page's script unpacks (`share.js`)."""

import base64

import numpy as np
from jaxtyping import Float

ALPHABET = bytes(code for code in range(33, 127) if chr(code) not in '"&(/:<\\')
"""The characters that need no escape in JSON and in HTML, and that no address has."""

ALONE = 40
"""The smallest so many multiples have one character, as most attention weights are small; the
others have two, the first of which is none of these.
"""

STEPS = ALONE + (len(ALPHABET) - ALONE) * len(ALPHABET) - 1
"""A share is a multiple of 1 / STEPS."""


def shares(values: Float[np.ndarray, "..."]) -> str:
    """Numbers from 0 to 1, one or two characters each, rounded to multiples of 1 / `STEPS`."""
    codes = np.rint(np.clip(values, 0, 1) * STEPS).astype(int).ravel()
    large, rest = codes >= ALONE, codes - ALONE
    first = np.where(large, ALONE + rest // len(ALPHABET), codes)
    both = np.stack([first, rest % len(ALPHABET)], axis=-1)
    kept = np.stack([np.ones_like(large), large], axis=-1)
    return np.frombuffer(ALPHABET, np.uint8)[both[kept]].tobytes().decode("ascii")


def floats(values: Float[np.ndarray, "..."]) -> str:
    """Numbers in single precision: base64 of their bytes, the lowest first."""
    return base64.b64encode(np.ascontiguousarray(values, "<f4").tobytes()).decode("ascii")
