# SPDX-License-Identifier: Apache-2.0
"""Environment variables for tests, which compile far more than they run, two processes at once.

`QUICK` makes XLA compile in a tenth of the time: without most optimizations, without the fusion
emitters, without dividing every program into 32 to be compiled apart, and without the Python lines
of each operation. `USUAL` leaves out none of these, for what trains for minutes. Both give a
program one thread for its matmuls.
"""

import os
import subprocess
import sys

ONE_THREAD = ("--xla_cpu_multi_thread_eigen=false",)
COMPILER = ("--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1")
MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": "1000000000",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=0",
}
"""The C library keeps what memory it has, instead of asking the system for it in every step, and
`train` does not restart.
"""


def _with(*flags: str) -> str:
    """XLA_FLAGS: those given and these, or those given alone if this jaxlib does not know these.

    XLA ends a process at a flag that it does not know.
    """
    given = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if flag not in _OURS]
    program = "from jaxlib import xla_client; xla_client.CompileOptions()"
    both = " ".join([*given, *flags])
    if both != os.environ.get("XLA_FLAGS"):
        environment = os.environ | {"XLA_FLAGS": both}
        command = [sys.executable, "-c", program]
        if subprocess.run(command, env=environment, capture_output=True).returncode:
            return " ".join(given)
    return both


_OURS = ONE_THREAD + COMPILER
QUICK = MEMORY | {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",
    "XLA_FLAGS": _with(*ONE_THREAD, *COMPILER),
}
USUAL = MEMORY | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "XLA_FLAGS": _with(*ONE_THREAD)}
