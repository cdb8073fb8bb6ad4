# SPDX-License-Identifier: Apache-2.0
"""Several threads may call a function whose static arguments are compared by Python code."""

import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp

from transformer.threaded_jit import threaded_jit

CALLS_OF_FOUR_THREADS = """
import threading, time
import jax.numpy as jnp
from transformer.threaded_jit import threaded_jit

class Static:
    def __init__(self, number):
        self.number = number

    def __hash__(self):
        return hash(self.number)

    def __eq__(self, other):
        time.sleep(0.0002)  # another thread runs
        return self.number == other.number

@threaded_jit("static")
def add(x, *, static):
    return x + static.number

def call():
    for last in range(40):
        for number in range(max(0, last - 5), last + 1):
            assert add(jnp.zeros(()), static=Static(number)) == number

threads = [threading.Thread(target=call) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print("complete")
"""


def test_static_arguments_that_let_other_threads_run_are_found():
    """With `jax.jit` instead, this program crashed in 25 of 25 runs (jaxlib 0.10.2)."""
    finished = subprocess.run(
        [sys.executable, "-c", CALLS_OF_FOUR_THREADS], stdout=subprocess.PIPE, text=True
    )
    assert (finished.returncode, finished.stdout) == (0, "complete\n")


def test_a_function_is_compiled_once_for_each_value_of_its_static_arguments():
    traced = []

    @threaded_jit("sign", "offset")
    def shifted(x, y=0, *, sign, offset):
        traced.append((x.shape, sign, offset))
        return sign * x + y + offset

    x = jnp.arange(3.0)
    for _ in range(2):
        assert shifted(x, sign=2, offset=1).tolist() == [1.0, 3.0, 5.0]
        assert shifted(x, offset=1, sign=2, y=1.0).tolist() == [2.0, 4.0, 6.0]
        assert shifted(x[:1], sign=-1, offset=5).tolist() == [5.0]
    assert traced == [((3,), 2, 1), ((3,), 2, 1), ((1,), -1, 5)]


def test_threads_that_ask_at_once_compile_once():
    traced = []

    @threaded_jit("factor")
    def scaled(x, *, factor):
        traced.append(factor)
        time.sleep(0.05)
        return factor * x

    results = []
    threads = [
        threading.Thread(target=lambda: results.append(float(scaled(jnp.ones(()), factor=3))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [3.0] * 4
    assert traced == [3]


def test_it_has_the_name_of_the_function_and_can_be_lowered():
    @threaded_jit("times")
    def repeated(x, *, times):
        """Repeat."""
        return jnp.tile(x, times)

    assert (repeated.__name__, repeated.__doc__) == ("repeated", "Repeat.")
    lowered = repeated.lower(jax.ShapeDtypeStruct((2,), jnp.float32), times=3)
    assert lowered.out_info.shape == (6,)
    assert "jit_repeated" in lowered.as_text()
