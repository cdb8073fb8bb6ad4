# SPDX-License-Identifier: Apache-2.0
"""Environment variables for tests, which compile far more than they run, two processes at once.

`QUICK` makes XLA compile in a tenth of the time: without most optimizations, without the fusion
emitters, without dividing every program into 32 to be compiled apart, and without the Python lines
of each operation. `USUAL` leaves out none of these, for what trains for minutes. Both give a
program one thread for its matmuls.
"""

import mmap
import os
import pathlib

import jaxlib

ONE_THREAD = {"xla_cpu_multi_thread_eigen": "false"}
COMPILER = {
    "xla_cpu_use_fusion_emitters": "false",
    "xla_cpu_parallel_codegen_split_count": "1",
}
MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": "1000000000",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=0",
}
"""The C library keeps what memory it has, instead of asking the system for it in every step, and
`train` does not restart.
"""


def _with(flags: dict[str, str]) -> str:
    """XLA_FLAGS: what was given, and of these what this jaxlib has.

    XLA ends a process at a flag that it does not know. The text of one that it knows ends with a
    zero byte; the name of one that was removed is still in a description of all options.
    """
    binary = pathlib.Path(jaxlib.__file__).parent / "libjax_common.so"
    if not binary.exists():
        return " ".join(_given)
    with binary.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as code:
        known = [name for name in flags if code.find(b"\0%b\0" % name.encode()) >= 0]
    return " ".join([*_given, *(f"--{name}={flags[name]}" for name in known)])


_given = [
    flag
    for flag in os.environ.get("XLA_FLAGS", "").split()
    if flag.strip("-").partition("=")[0] not in ONE_THREAD | COMPILER
]
USUAL = MEMORY | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "XLA_FLAGS": _with(ONE_THREAD)}
QUICK = MEMORY | {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",
    "XLA_FLAGS": _with(ONE_THREAD | COMPILER),
}
