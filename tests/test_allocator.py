# SPDX-License-Identifier: Apache-2.0
"""The allocator is set once, where that has an effect, and freed memory can be returned."""

import os
import sys

import pytest
from apps import TINY, run

from experiments import allocator
from transformer import device_memory

TUNABLES = "GLIBC_TUNABLES"
SETTINGS = "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1"


@pytest.fixture
def restarted(monkeypatch):
    """The environments of the restarts of this process, none of which happens."""
    environments = []
    monkeypatch.setattr(os, "execve", lambda program, arguments, env: environments.append(env))
    monkeypatch.setattr(allocator, "_have_effect", lambda: True)
    monkeypatch.delenv(TUNABLES, raising=False)
    return environments


def test_a_process_restarts_once_with_the_settings(restarted, monkeypatch):
    allocator.restart_with_settings()
    [environment] = restarted
    assert environment == os.environ | {TUNABLES: SETTINGS}
    monkeypatch.setenv(TUNABLES, environment[TUNABLES])
    assert allocator.uses_huge_pages()
    allocator.restart_with_settings()
    assert len(restarted) == 1


def test_the_arguments_of_the_interpreter_are_kept(restarted, monkeypatch):
    calls = []
    monkeypatch.setattr(os, "execve", lambda *call: calls.append(call[:2]))
    monkeypatch.setattr(sys, "orig_argv", ["python", "-X", "dev", "-m", "experiments.train"])
    allocator.restart_with_settings()
    program = sys.executable
    assert calls == [(program, [program, "-X", "dev", "-m", "experiments.train"])]


@pytest.mark.parametrize("value", ["0", "1", "2"])
def test_the_setting_of_the_user_counts(restarted, monkeypatch, value):
    monkeypatch.setenv(TUNABLES, f"glibc.malloc.arena_max=2:glibc.malloc.hugetlb={value}")
    allocator.restart_with_settings()
    assert not restarted
    assert allocator.uses_huge_pages() == (value == "1")


@pytest.mark.parametrize(
    ("huge_pages", "expected"), [(True, SETTINGS), (False, "glibc.malloc.hugetlb=0")]
)
def test_other_tunables_are_kept(monkeypatch, huge_pages, expected):
    monkeypatch.setenv(TUNABLES, f"glibc.malloc.tcache_count=0:{SETTINGS}")
    tunables = allocator.environment(huge_pages=huge_pages)[TUNABLES]
    assert tunables == f"glibc.malloc.tcache_count=0:{expected}"


@pytest.mark.parametrize(
    ("library", "support", "expected"),
    [
        ("glibc 2.36", "always [madvise] never", True),
        ("glibc 2.34", "always [madvise] never", False),
        ("musl 1.2", "always [madvise] never", False),
        ("glibc 2.36", "always madvise [never]", False),
        ("glibc 2.36", "[always] madvise never", False),  # without a request too
        ("glibc 2.36", None, False),
    ],
)
def test_it_depends_on_the_library_and_the_kernel(
    monkeypatch, tmp_path, library, support, expected
):
    file = tmp_path / "enabled"
    if support is not None:
        file.write_text(support)
    monkeypatch.setattr(os, "confstr", lambda name: library)
    monkeypatch.setattr(allocator, "_SUPPORT", file)
    assert allocator._have_effect() == expected


def test_freed_memory_is_returned():
    before = device_memory.resident_bytes()
    blocks = [bytearray(64 << 10) for _ in range(2048)]
    last = blocks.pop()  # keeps glibc from returning what was freed before it
    used = device_memory.resident_bytes() - before
    del blocks
    allocator.return_unused_pages()
    assert used > 100 << 20
    assert device_memory.resident_bytes() - before < used / 2
    del last


@pytest.mark.slow
def test_the_benchmark_measures_a_step_of_every_length():
    finished = run(
        "experiments.benchmarks.step_memory",
        "--config=copy",
        *TINY,
        "--config.data.bucket_lengths=(4,8)",
        "--config.data.max_length=8",
        "--config.data.tokens_per_batch=64",
        "--rounds=3",
    )
    assert finished.status == 0, finished.err
    result = finished.result
    assert sorted(result["lengths"]) == [4, 8]
    assert 0 < result["seconds"][0] <= result["seconds"][1] <= result["seconds"][2]
    first, last = result["peak_mib"]
    assert result["needed_mib"] < first <= last
