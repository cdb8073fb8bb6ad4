# SPDX-License-Identifier: Apache-2.0
"""Forms of operations that only XLA's CPU backend needs; `platforms.operation` selects them."""

from collections.abc import Callable

OPERATIONS: dict[str, Callable] = {}
"""Operations by name. Each computes what the default form does, but for rounding."""
