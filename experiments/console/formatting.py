# SPDX-License-Identifier: Apache-2.0
"""Text of tables, memory sizes and durations."""

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Align the columns of a table, one line a row; the first `left` columns to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def byte_size(count: float) -> str:
    """Format a number of bytes in MiB or GiB."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def duration(seconds: float) -> str:
    """Format a duration in the largest unit of which there are at least two."""
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"
