# SPDX-License-Identifier: Apache-2.0
"""Model families behind one protocol; importing the package registers those of this project."""

from transformer.models import ensemble, transformer

__all__ = ["ensemble", "transformer"]
