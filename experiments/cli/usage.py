# SPDX-License-Identifier: Apache-2.0
"""The help of an app: its docstring, its flags, and the fields of its config."""

import ast
import dataclasses
import inspect
import sys
import textwrap
from collections.abc import Callable
from typing import Any

from absl import flags

from transformer.checkpoints import workdir_files
from transformer.config import Config
from transformer.fields import FieldGroup, field_types

OFTEN_CHANGED = (
    *("data.dataset", "data.train_source", "data.train_target", "data.tokens_per_batch"),
    *("model.num_layers", "model.d_model", "model.dropout", "optimizer.learning_rate"),
    *("training.steps", "training.seed", "decode.beams", "decode.alpha", "parallel.data"),
)
"""The fields in ``--help``; ``--helpfull`` has all."""


def help_text(
    main: Callable[[Any], int | None],
    config_from: str | None,
    config: Config | None = None,
    *,
    full: bool = False,
) -> str:
    """Describe the app, its flags and, if it has a config, the fields with values and meaning.

    Args:
      main: the app.
      config_from: see `command_line.run`.
      config: the values to show; those of the paper's base model by default.
      full: show all fields, and not those alone that are often changed.
    """
    module = sys.modules[main.__module__]
    lines = [inspect.getdoc(module) or "", "", "Flags:"]
    if config_from == "config":
        lines.append(
            "  --config: NAME or FILE.py, or either with :ARGUMENT, for get_config(); or the "
            "config.json of a workdir."
        )
    ours = [name for name in flags.FLAGS.flags_by_module_dict() if name.startswith("experiments.")]
    for name in dict.fromkeys([*reversed(ours), module.__name__]):
        for flag in flags.FLAGS.get_flags_for_module(name):
            default = "" if flag.default is None else f" (default {flag.default})"
            text = f"--{flag.name}: {flag.help}{default}"
            lines += textwrap.wrap(text, 100, initial_indent="  ", subsequent_indent=" " * 8)
    if config_from is None:
        return "\n".join(lines)
    whose = f"those of --{config_from}" if config else "the paper's base model"
    lines += [
        "",
        f"Config fields, overridden with --config.FIELD=VALUE. The values are {whose};",
        "--config.FIELD=None unsets an optional field.",
    ]
    if config_from == "workdir":
        lines += [
            "Those of the training are fixed. One device decodes, however many trained;",
            "--config.parallel.data=8 divides the sentences over 8.",
        ]
    config = config or Config()

    def is_shown(path: str) -> bool:
        if not (full or path in OFTEN_CHANGED):
            return False
        return config_from == "config" or workdir_files.may_change_after_training(path, config)

    lines += _field_lines(config, is_shown)
    return "\n".join(lines if full else [*lines, "", "--helpfull lists all fields."])


def _field_lines(group: FieldGroup, is_shown: Callable[[str], bool]) -> list[str]:
    lines, texts, indent = [], meanings(type(group)), " " * 8
    for name, kind in field_types(type(group)).items():
        value = getattr(group, name)
        if isinstance(value, FieldGroup):
            summary = inspect.getdoc(type(value)).splitlines()[0]
            fields = _field_lines(value, is_shown)
            lines += ["", f"  {name}: {summary}", *fields] if fields else []
            continue
        if not is_shown(group.path(name)):
            continue
        kind = kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
        lines.append(f"    {group.path(name)}: {kind} = {value!r}")
        meaning = texts.get(name, "")
        lines += textwrap.wrap(meaning, 92, initial_indent=indent, subsequent_indent=indent)
    return lines


def meanings(group: type) -> dict[str, str]:
    """Return the string that follows each field in the source of its class, or of a base class."""
    texts: dict[str, str] = {}
    for cls in filter(dataclasses.is_dataclass, reversed(group.__mro__)):
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0].body
        texts |= {
            field.target.id: " ".join(text.value.value.split())
            for field, text in zip(body, body[1:], strict=False)
            if isinstance(field, ast.AnnAssign)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        }
    return texts
