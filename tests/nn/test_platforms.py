# SPDX-License-Identifier: Apache-2.0
"""The platform that is compiled for selects the forms of operations, and is in jit's cache key."""

import threading

import jax
import jax.numpy as jnp
import pytest

from transformer import cpu
from transformer.platforms import compiling_for, operation, platform


@pytest.fixture
def form(monkeypatch):
    """A compiled function whose result is 1 in the CPU form and 0 in the default form."""
    monkeypatch.setitem(cpu.OPERATIONS, "test", lambda x: x + 1)
    return jax.jit(lambda x: operation("test", lambda x: x)(x))


def test_compiled_functions_are_traced_for_each_platform(form):
    zero = jnp.zeros(())
    for _ in range(2):
        with compiling_for("cpu"):
            assert form(zero) == 1
            with compiling_for("tpu"):
                assert form(zero) == 0
            assert form(zero) == 1
        with compiling_for("cuda"):
            assert form(zero) == 0


@pytest.mark.parametrize("default", ["cpu", "cuda", "tpu"])
def test_the_default_is_the_platform_of_the_default_backend(monkeypatch, default):
    monkeypatch.setattr(jax.export, "default_export_platform", lambda: default)
    assert platform() == default
    with compiling_for("rocm"):
        assert platform() == "rocm"


def test_an_exception_and_another_thread_leave_the_platform_alone():
    with pytest.raises(ZeroDivisionError), compiling_for("tpu"):
        seen = []
        thread = threading.Thread(target=lambda: seen.append(platform()))
        thread.start()
        thread.join()
        1 / 0  # noqa: B018
    assert seen == [jax.default_backend()] == [platform()]


def test_a_misspelled_operation_is_an_error_on_a_cpu():
    with compiling_for("cpu"), pytest.raises(KeyError, match="topk"):
        operation("topk", jax.lax.top_k)
