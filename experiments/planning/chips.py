# SPDX-License-Identifier: Apache-2.0
"""Published memory and peak rates of accelerators.

Sources: NVIDIA's data sheets of H100 SXM and H200 SXM (dense rates are half of those with
sparsity); Google's pages "TPU v5e" and "TPU v5p" on docs.cloud.google.com/tpu/docs. float32 matmuls
run in TF32 on these GPUs and in bfloat16 on TPUs, JAX's defaults.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Chip(NamedTuple):
    """One accelerator."""

    name: str
    memory_bytes: float
    peak_flops: Mapping[str, float]
    """FLOP/s of dense matmuls, by compute dtype."""


_HOPPER = {"bfloat16": 1979e12 / 2, "float32": 989e12 / 2}
_V5E = {"bfloat16": 197e12, "float32": 197e12}
_V5P = {"bfloat16": 459e12, "float32": 459e12}

CHIPS = (
    Chip("H100", 80e9, _HOPPER),
    Chip("H200", 141e9, _HOPPER),
    Chip("TPU v5e", 16e9, _V5E),
    Chip("TPU v5p", 95 * 2**30, _V5P),
)
