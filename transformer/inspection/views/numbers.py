# SPDX-License-Identifier: Apache-2.0
"""A map of numbers of both signs, such as what each prediction is attributed to."""

from collections.abc import Sequence

import numpy as np

from transformer.errors import InputError
from transformer.inspection.views import picture
from transformer.inspection.views.attention_data import labels
from transformer.inspection.views.view import View

DRAWN = 400
"""The most cells of the still picture: the largest."""


def numbers(
    values, rows: Sequence[str], columns: Sequence[str], *, measure: str, title: str
) -> View:
    """A map that is read cell by cell, shaded by the size of a number and its sign.

    Args:
      values: ``[R,C]``, convertible to NumPy.
      rows: R names.
      columns: C names.
      measure: what the numbers are, with their unit.
      title: of the page.

    Raises:
      InputError: when there are more or fewer names than rows and columns, or a number that is not
        finite.
    """
    array = np.asarray(values, np.float64)
    if array.shape != (len(rows), len(columns)) or not array.size or not np.isfinite(array).all():
        raise InputError(
            f"the numbers have shape {array.shape}; finite ones of [rows, columns] = "
            f"{(len(rows), len(columns))}, each at least 1, are needed"
        )
    most = float(np.abs(array).max()) or 1.0
    least = 0.05 * most
    if array.size > DRAWN:
        least = max(least, np.sort(np.abs(array), axis=None)[-DRAWN])
    row, column = np.unravel_index(np.abs(array).argmax(), array.shape)
    of_rows, of_columns = labels(rows), labels(columns)
    told = (
        f"{measure}; round cells are negative, below {least / most:.0%} of the largest left out. "
        f"The largest is {array[row, column]:.3g}, for "
        f"{picture.joined(of_rows[row])} and {picture.joined(of_columns[column])}."
    )
    drawn = picture.heat_map(
        told,
        np.where(np.abs(array) < least, 0, array / most),
        list(map(picture.joined, of_rows)),
        list(map(picture.joined, of_columns)),
    )
    return View(
        kind="numbers",
        title=title,
        told=told,
        picture=drawn,
        options={
            # A zero is one character.
            "values": [[value or 0 for value in line] for line in array.round(3).tolist()],
            "rows": of_rows,
            "columns": of_columns,
            "most": most,
            "measure": measure,
        },
        height=min(1000, 400 + 26 * len(rows)),
    )
