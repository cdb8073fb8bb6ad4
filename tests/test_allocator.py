# SPDX-License-Identifier: Apache-2.0
"""Huge pages are requested once, where they have an effect; arenas are few; memory is returned."""

import os
import platform
import subprocess
import sys

import pytest

from experiments.training import allocator
from transformer import device_memory
from transformer.cores import num_cores

TUNABLES = "GLIBC_TUNABLES"


@pytest.fixture
def restarted(monkeypatch):
    """The environments of the restarts of this process, none of which happens."""
    environments = []
    monkeypatch.setattr(os, "execve", lambda program, arguments, env: environments.append(env))
    monkeypatch.setattr(allocator, "_have_effect", lambda: True)
    monkeypatch.delenv(TUNABLES, raising=False)
    return environments


def test_a_process_restarts_once_with_huge_pages(restarted, monkeypatch):
    allocator.restart_with_huge_pages()
    [environment] = restarted
    assert environment == os.environ | {TUNABLES: "glibc.malloc.hugetlb=1"}
    monkeypatch.setenv(TUNABLES, environment[TUNABLES])
    assert allocator.uses_huge_pages()
    allocator.restart_with_huge_pages()
    assert len(restarted) == 1


def test_the_arguments_of_the_interpreter_are_kept(restarted, monkeypatch):
    calls = []
    monkeypatch.setattr(os, "execve", lambda *call: calls.append(call[:2]))
    monkeypatch.setattr(sys, "orig_argv", ["python", "-X", "dev", "-m", "experiments.train"])
    allocator.restart_with_huge_pages()
    program = sys.executable
    assert calls == [(program, [program, "-X", "dev", "-m", "experiments.train"])]


@pytest.mark.parametrize("value", ["0", "1", "2"])
def test_the_setting_of_the_user_counts(restarted, monkeypatch, value):
    monkeypatch.setenv(TUNABLES, f"glibc.malloc.arena_max=2:glibc.malloc.hugetlb={value}")
    allocator.restart_with_huge_pages()
    assert not restarted
    assert allocator.uses_huge_pages() == (value == "1")


def test_other_tunables_are_kept(monkeypatch):
    monkeypatch.setenv(TUNABLES, "glibc.malloc.arena_max=2:glibc.malloc.hugetlb=1")
    tunables = allocator.environment(huge_pages=False)[TUNABLES]
    assert tunables == "glibc.malloc.arena_max=2:glibc.malloc.hugetlb=0"


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


@pytest.mark.parametrize(
    ("give_back", "share"),
    [
        (allocator.return_unused_pages, (0, 0.5)),
        (allocator.PeriodicReturn(seconds=0).after_step, (0, 0.5)),
        (allocator.PeriodicReturn(seconds=3600).after_step, (0.5, 1.1)),
    ],
)
def test_freed_memory_is_returned_at_its_time(give_back, share):
    allocator.return_unused_pages()  # else the blocks may lie in what was freed before
    before = device_memory.resident_bytes()
    blocks = [bytearray(64 << 10) for _ in range(2048)]
    last = blocks.pop()  # keeps glibc from returning what was freed before it
    used = device_memory.resident_bytes() - before
    del blocks
    give_back()
    assert used > 100 << 20
    assert share[0] < (device_memory.resident_bytes() - before) / used < share[1]
    del last


ARENAS_OF_THREADS = """
import ctypes, threading
from experiments.training import allocator

number = {threads}
if {few}:
    allocator.use_few_arenas()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
barrier = threading.Barrier(number)

def allocate():
    libc.malloc(100)
    barrier.wait()

threads = [threading.Thread(target=allocate) for _ in range(number)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
out = libc.fopen(b"/dev/stdout", b"w")
libc.malloc_info(0, ctypes.c_void_p(out))
libc.fclose(ctypes.c_void_p(out))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
@pytest.mark.parametrize("few", [True, False])
def test_threads_share_few_arenas_on_request(few):
    cores = num_cores()
    program = ARENAS_OF_THREADS.format(few=few, threads=3 * cores)
    finished = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True
    )
    arenas = finished.stdout.count("<heap nr=")
    assert (arenas == 2 * cores) if few else (arenas > 2 * cores)
