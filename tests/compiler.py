# SPDX-License-Identifier: Apache-2.0
"""What environment variables make XLA compile quickly, since tests compile far more than they run.

Without most optimizations XLA compiles in a half of the time, and without the two parts below in a
quarter of that. What trains for minutes is better off with `USUAL`.
"""

import mmap
import os
import pathlib

import jaxlib

LEFT_OUT = {"xla_cpu_use_fusion_emitters": "false", "xla_cpu_parallel_codegen_split_count": "1"}


def _known() -> dict[str, str]:
    """Those that this jaxlib has: XLA ends a process at a flag that it does not know."""
    binary = pathlib.Path(jaxlib.__file__).parent / "libjax_common.so"
    if not binary.exists():
        return {}
    with binary.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as code:
        return {name: value for name, value in LEFT_OUT.items() if code.find(name.encode()) >= 0}


_given = [
    flag
    for flag in os.environ.get("XLA_FLAGS", "").split()
    if flag.strip("-").partition("=")[0] not in LEFT_OUT
]
USUAL = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "XLA_FLAGS": " ".join(_given)}
QUICK = {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "XLA_FLAGS": " ".join([*_given, *(f"--{name}={value}" for name, value in _known().items())]),
}
