# SPDX-License-Identifier: Apache-2.0
"""Forms of operations that only XLA's CPU backend needs; `platforms.operation` selects them."""

from collections.abc import Callable

from transformer.cpu import attention, matmul
from transformer.cpu.most_probable import most_probable_by_bisection
from transformer.cpu.top_k import two_level_top_k

OPERATIONS: dict[str, Callable] = {
    "by_heads": attention.by_heads,
    "cache_dtype": attention.cache_dtype,
    "einsum": matmul.einsum,
    "most_probable": most_probable_by_bisection,
    "norm": attention.norm,
    "top_k": two_level_top_k,
    "transpose": matmul.transpose,
    "wide_einsum": matmul.wide_einsum,
}
"""Operations by name. Each computes what the default form does, but for rounding."""
