# SPDX-License-Identifier: Apache-2.0
"""Text of tables, memory sizes and durations."""

from collections.abc import Sequence


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns, the first one to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        print("  ".join(["", first.ljust(widths[0]), *cells]).rstrip())


def byte_size(count: float) -> str:
    """Format a number of bytes in MiB or GiB."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def duration(seconds: float) -> str:
    """Format a duration in the largest unit of which there are at least two."""
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"
