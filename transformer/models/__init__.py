# SPDX-License-Identifier: Apache-2.0
"""Model families behind one protocol; importing the package registers those of this project."""

from transformer.models import (
    classifier,
    convolutional,
    ensemble,
    language_model,
    recurrent,
    transformer,
)

__all__ = [
    "classifier",
    "convolutional",
    "ensemble",
    "language_model",
    "recurrent",
    "transformer",
]
