# SPDX-License-Identifier: Apache-2.0
"""Huge pages are requested once, where the kernel gives them."""

import os
import sys

import pytest

from experiments.training import allocator


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
