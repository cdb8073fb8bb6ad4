# SPDX-License-Identifier: Apache-2.0
"""Freed memory is returned to the kernel."""

from experiments.training import allocator
from transformer import device_memory


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
