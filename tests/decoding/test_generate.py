# SPDX-License-Identifier: Apache-2.0
"""Several threads may call a function whose static arguments are compared by Python code."""

import concurrent.futures
import subprocess
import sys
import time

import jax.numpy as jnp

from transformer.decoding.generate import compiled

CALLS_OF_FOUR_THREADS = """
import concurrent.futures, time
import jax.numpy as jnp
from transformer.decoding.generate import compiled

class Static:
    def __init__(self, number):
        self.number = number

    def __hash__(self):
        return hash(self.number)

    def __eq__(self, other):
        time.sleep(0.0002)  # another thread runs
        return self.number == other.number

@compiled
def add(x, *, static):
    return x + static.number

def call(_):
    for last in range(40):
        for number in range(max(0, last - 5), last + 1):
            assert add(jnp.zeros(()), static=Static(number)) == number

with concurrent.futures.ThreadPoolExecutor(4) as threads:
    list(threads.map(call, range(4)))
print("complete")
"""


def test_static_arguments_that_let_other_threads_run_are_found():
    """With `jax.jit` instead, this program crashed in 25 of 25 runs (jaxlib 0.10.2)."""
    finished = subprocess.run(
        [sys.executable, "-c", CALLS_OF_FOUR_THREADS], stdout=subprocess.PIPE, text=True
    )
    assert (finished.returncode, finished.stdout) == (0, "complete\n")


def test_threads_that_call_at_once_compile_once_for_each_value():
    traced = []

    @compiled
    def scaled(x, *, factor, offset):
        traced.append(factor)
        time.sleep(0.05)
        return factor * x + offset

    def call(factor):
        return float(scaled(jnp.ones(()), factor=factor, offset=1))

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        assert list(threads.map(call, [3, 3, 5, 3])) == [4.0, 4.0, 6.0, 4.0]
    assert float(scaled(jnp.ones(()), offset=1, factor=5)) == 6.0
    assert sorted(traced) == [3, 5]
