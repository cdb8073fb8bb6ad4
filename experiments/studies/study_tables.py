# SPDX-License-Identifier: Apache-2.0
"""Tables of studies as Markdown, JSON and pictures, and the names that their flags accept."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from transformer.checkpoints import workdir_files
from transformer.errors import InputError
from transformer.inspection import figures
from transformer.inspection.figures import parts, style


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table: its heading, the key of its values, and their format."""

    name: str
    key: str
    form: str = "{}"


def markdown(columns: Sequence[Column], rows: Sequence[dict[str, Any]]) -> str:
    """A Markdown table; a missing value is empty."""
    lines = [[column.name for column in columns], ["---"] * len(columns)]
    for row in rows:
        values = [row.get(column.key) for column in columns]
        lines.append(
            [
                "" if value is None else column.form.format(value).replace("|", "\\|")
                for column, value in zip(columns, values, strict=True)
            ]
        )
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def write_table(
    output: epath.Path, name: str, columns: Sequence[Column], rows: Sequence[dict[str, Any]]
) -> str:
    """Write ``NAME.md`` and ``NAME.json`` and return the Markdown."""
    text = markdown(columns, rows)
    try:
        output.mkdir(parents=True, exist_ok=True)
        workdir_files.write_text(output / f"{name}.md", text)
        workdir_files.write_json(output / f"{name}.json", rows)
    except OSError as error:
        raise InputError(
            f"--output={output} cannot be written ({error.strerror}); name another directory"
        ) from None
    return text


@style.styled
def picture(
    title: str,
    labels: Sequence[str],
    shares: Mapping[str, Sequence[float]],
    *,
    beside: Mapping[str, Sequence[str]],
    lowest: float = 0.0,
) -> figures.DescribedFigure:
    """Draw shares of a table as a heat map with numbers.

    Args:
      title: title of the picture.
      labels: names of the rows.
      shares: values of each column, from 0 to 1.
      beside: columns of text.
      lowest: share with the palest color.
    """
    values = 100 * np.array([*shares.values()]).T
    panel = parts.Panel(
        values=values,
        cell=(0.9, 0.24),
        rows=labels,
        columns=[*shares],
        limits=(100 * lowest, 100.0),
        legend="%",
        beside=beside,
    )
    figure, [image] = parts.draw_panels([[panel]], title=title)
    parts.write_numbers(image, "{:.1f}")
    described = (
        f"{label}: " + ", ".join(f"{name} {x:.1f}%" for name, x in zip(shares, row, strict=True))
        for label, row in zip(labels, values, strict=True)
    )
    figure.description = f"{title}. {'; '.join(described)}."
    return figure


def checked_names(flag: str, names: Sequence[str], known: Sequence[str]) -> list[str]:
    """The names of a list flag; all known ones if none is given.

    Raises:
      InputError: for an unknown name, with the known ones.
    """
    for name in names or ():
        if name not in known:
            raise InputError(f"--{flag} has {name!r}, but must be of {', '.join(known)}")
    return list(names or known)


def checked_seeds(texts: Sequence[str]) -> list[int]:
    """The seeds of ``--seeds``.

    Raises:
      InputError: for a value that is not a whole number, and for no value.
    """
    if not texts or not all(text.isdecimal() for text in texts):
        raise InputError(f"--seeds={','.join(texts)} must be whole numbers: 0,1,2")
    return [*map(int, texts)]


def with_interval(scores: Mapping[str, Any]) -> str:
    """BLEU with its 95% interval: ``30.1 [28.8, 31.4]``."""
    low, high = scores["bleu_ci"]
    return f"{scores['bleu']:.1f} [{low:.1f}, {high:.1f}]"
