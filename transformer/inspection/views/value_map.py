# SPDX-License-Identifier: Apache-2.0
"""A heat map of any values of rows and columns, such as the contributions of tokens."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from transformer.errors import InputError
from transformer.inspection.argument_checks import checked_index
from transformer.inspection.html import Html, shaded, shaded_table
from transformer.inspection.views.attention_kinds import Label, label_text
from transformer.inspection.views.view import View


def value_map(
    values: ArrayLike,
    rows: Sequence[Label],
    columns: Sequence[Label],
    *,
    name: str,
    unit: str,
    limit: float | None = None,
    digits: int = 2,
    cursor: tuple[int, int] = (0, 0),
    title: str = "Values",
) -> View:
    """A heat map whose cells are read with the pointer or the arrow keys.

    Args:
      values: ``[T,S]``, finite numbers, or NaN where there is no value.
      name: What a value is, for screen readers and the table.
      limit: Absolute value of the full color; the largest of the values by default.
      cursor: Row and column of the cell read first.

    Raises:
      InputError: The values do not match the labels, or the cursor is outside.
    """
    array = np.asarray(values, np.float64)
    if array.shape != (len(rows), len(columns)) or not array.size or np.isinf(array).any():
        raise InputError(
            f"{name} has shape {list(array.shape)} for {len(rows)} rows and {len(columns)} "
            "columns; give one finite number, or NaN, for each"
        )
    row, column = (
        checked_index(f"{axis} of {name}", index, size)
        for axis, index, size in zip(("row", "column"), cursor, array.shape, strict=True)
    )
    known = np.where(np.isnan(array), 0.0, array)
    limit = float(np.abs(known).max()) if limit is None else limit
    cells = [
        [
            Html("<td></td>") if np.isnan(value) else shaded(value, limit, digits=digits)
            for value in of_row
        ]
        for of_row in array
    ]
    return View(
        script="valueMap",
        title=title,
        description=f"{name}, {unit}, from 0 to {limit:.{digits}f}.",
        static=shaded_table(
            f"{name}, {unit}",
            ["", *map(label_text, columns)],
            zip(map(label_text, rows), cells, strict=True),
            chosen=row,
        ),
        options={
            "name": name,
            "rows": rows,
            "columns": columns,
            "values": [
                [None if np.isnan(value) else round(float(value), 5) for value in of_row]
                for of_row in array
            ],
            "limit": round(limit, 5),
            "unit": unit,
            "digits": digits,
            "cursor": [row, column],
        },
    )
