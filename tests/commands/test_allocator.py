# SPDX-License-Identifier: Apache-2.0
"""Huge pages are requested once, where the kernel gives them; freed memory is returned."""

import os
import sys

import pytest

from experiments.training import allocator
from transformer import device_memory


@pytest.mark.parametrize(
    ("tunables", "support", "library", "expected"),
    [
        (None, "always [madvise] never", ("glibc", "2.36"), "glibc.malloc.hugetlb=1"),
        ("a.b=2", "always [madvise] never", ("glibc", "2.36"), "a.b=2:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", "always [madvise] never", ("glibc", "2.36"), None),
        (None, "always madvise [never]", ("glibc", "2.36"), None),
        (None, "[always] madvise never", ("glibc", "2.36"), None),  # without a request too
        (None, "always [madvise] never", ("glibc", "2.34"), None),
        (None, "always [madvise] never", ("", ""), None),
    ],
)
def test_a_process_restarts_once_with_huge_pages(
    monkeypatch, tmp_path, tunables, support, library, expected
):
    restarts = []
    monkeypatch.setattr(os, "execve", lambda *restart: restarts.append(restart))
    monkeypatch.setattr(sys, "orig_argv", ["python", "-X", "dev", "-m", "experiments.train"])
    monkeypatch.setattr(allocator.platform, "libc_ver", lambda: library)
    monkeypatch.setattr(allocator, "_ON_REQUEST", tmp_path / "enabled")
    (tmp_path / "enabled").write_text(support)
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if tunables:
        monkeypatch.setenv("GLIBC_TUNABLES", tunables)
    allocator.restart_with_huge_pages()
    if expected is None:
        assert restarts == []
        return
    [(program, arguments, variables)] = restarts
    assert arguments == [program, "-X", "dev", "-m", "experiments.train"]
    assert variables == os.environ | {"GLIBC_TUNABLES": expected}
    monkeypatch.setenv("GLIBC_TUNABLES", expected)
    allocator.restart_with_huge_pages()
    assert len(restarts) == 1


def test_freed_memory_is_returned():
    allocator.return_unused_pages()  # else the blocks may lie in what was freed before
    before = device_memory.resident_bytes()
    blocks = [bytearray(64 << 10) for _ in range(2048)]
    last = blocks.pop()  # keeps glibc from returning what was freed before it
    used = device_memory.resident_bytes() - before
    del blocks
    allocator.return_unused_pages()
    assert used > 100 << 20
    assert device_memory.resident_bytes() - before < 0.5 * used
    del last
