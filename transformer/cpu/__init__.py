# SPDX-License-Identifier: Apache-2.0
"""Forms of operations that only XLA's CPU backend needs; `platforms.operation` selects them."""

from collections.abc import Callable

from transformer.cpu import attention, matmul
from transformer.cpu.top_k import two_level_top_k

OPERATIONS: dict[str, Callable] = {
    "by_heads": attention.by_heads,
    "cache_dtype": attention.cache_dtype,
    "einsum": matmul.einsum,
    "norm": attention.norm,
    "transpose": matmul.transpose,
    "wide_einsum": matmul.wide_einsum,
    "top_k": two_level_top_k,
}
"""Operations by name. Each computes what the default form does, but for rounding."""
