# SPDX-License-Identifier: Apache-2.0
"""Tables of studies, as Markdown and as JSON, and the names that their flags accept."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from transformer.checkpoints import workdir_files
from transformer.errors import InputError


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table: where its values are, and how they are written."""

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


def checked_names(flag: str, names: Sequence[str], known: Sequence[str]) -> list[str]:
    """The names of a flag, all of them if none is given.

    Raises:
      InputError: for an unknown name, with the known ones.
    """
    for name in names or ():
        if name not in known:
            raise InputError(f"--{flag} has {name!r}, but must be of {', '.join(known)}")
    return list(names or known)


def with_interval(scores: Mapping[str, Any]) -> str:
    """BLEU with its 95% interval: ``30.1 [28.8, 31.4]``."""
    low, high = scores["bleu_ci"]
    return f"{scores['bleu']:.1f} [{low:.1f}, {high:.1f}]"
