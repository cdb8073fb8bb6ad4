# SPDX-License-Identifier: Apache-2.0
"""The command line of every app: config overrides, help, error messages and exit codes.

The frozen `Config` becomes an ml_collections ConfigDict, whose fields are the flags
``--config.FIELD=VALUE``. The result is validated by making a `Config` of it again.
"""

import ast
import contextlib
import dataclasses
import importlib.util
import inspect
import logging as standard_logging
import os
import pathlib
import re
import sys
import textwrap
import traceback
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from absl import app, flags, logging
from ml_collections import config_dict, config_flags

from experiments import allocator, user_cache
from transformer.checkpoints import workdir_files
from transformer.config import Config
from transformer.errors import InputError
from transformer.fields import FieldGroup, flat, unknown_field

_SHARED_FLAGS = (
    "experiments.workdir_flag",
    "experiments.checkpoint_flags",
    "experiments.distributed",
    "experiments.benchmarks.reporting",
)
"""Modules that define flags of several apps."""
_OVERRIDE = re.compile(r"--?(?:no)?config\.([^=]+)")
_MISSING = {
    "config": "--config=FILE.py, for example --config=experiments/configs/pronouns.py",
    "workdir": "--workdir=DIRECTORY, where train left its results",
}


def run(main: Callable[..., int | None], config_from: Literal["config", "workdir"] | None) -> None:
    """Parse the command line, call `main` with the config, and exit.

    The exit status is 0 on success, 1 with one message for invalid input, 130 on Ctrl-C, or what
    `main` returns.

    Args:
      main: the app; the docstring of its module starts the help text.
      config_from: the flag that names the config: ``--config=FILE.py[:ARGUMENT]``, or ``--workdir``
        for the config saved there, reset to one device. With None, `main` takes no config.
    """

    def call_main(arguments: list[str]) -> None:
        try:
            if len(arguments) > 1:
                raise InputError(f"unexpected argument {arguments[1]!r}; every flag begins with --")
            allocator.keep_pages()
            user_cache.keep_compiled_programs()
            status = main(to_config(flags.FLAGS["config"].value)) if config_from else main()
        except InputError as error:
            sys.exit(f"error: {error}")
        except BrokenPipeError:
            _discard_stdout()
            status = 0
        except OSError as error:
            file = f"{error.filename}: " if error.filename else ""
            sys.exit(f"error: {file}{error.strerror or error}")
        except KeyboardInterrupt:
            sys.exit(130)
        sys.exit(status or 0)

    def parse(arguments: list[str]) -> list[str]:
        try:
            if set(arguments) & {"--help", "-help", "-h"}:
                print(help_text(main, config_from))
                sys.exit(0)
            return _parse(arguments, config_from)
        except BrokenPipeError:
            _discard_stdout()
            sys.exit(0)
        except (InputError, flags.Error) as error:
            sys.exit(f"error: {error}")

    # This project warns through the standard library; absl's warnings are Orbax's.
    logging.set_verbosity(logging.ERROR)
    for package in ("transformer", "experiments"):
        standard_logging.getLogger(package).setLevel(standard_logging.WARNING)
    logging.get_absl_handler().setFormatter(_MessageFormatter())
    app.run(call_main, flags_parser=parse)


def _discard_stdout() -> None:
    """Let Python's last flush succeed after the reader of a pipe has gone (``| head``)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parse(arguments: list[str], config_from: str | None) -> list[str]:
    """Define the flags of the config and parse all flags; returns the other arguments."""
    if config_from is None:
        for argument in filter(_OVERRIDE.match, arguments):
            raise InputError(
                f"{argument}: this command has no config to override; see --help for its flags"
            )
        return flags.FLAGS(arguments)
    value, rest = _take_flag(arguments, config_from)
    if config_from == "config":
        config = load_config_file(value)
    else:
        config, rest = workdir_files.load_inference_config(value), arguments
    fields = flat(config)
    for argument in rest:
        override = _OVERRIDE.match(argument)
        if override and override[1] not in fields:
            raise InputError(unknown_field(override[1], list(fields)))
    config, rest = _unset(config, rest)
    values = to_config_dict(config)
    config_flags.DEFINE_config_dict("config", values, sys_argv=rest)
    others = flags.FLAGS(rest)
    if values.model.family != config.model.family:
        raise InputError(
            f"model.family is {config.model.family!r} here, whose fields are the flags; choose "
            f"another config for {values.model.family!r}"
        )
    return others


def _take_flag(arguments: Sequence[str], name: str) -> tuple[str, list[str]]:
    """Return the value of ``--name=value`` or ``--name value``, and the other arguments."""
    for index, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag in (f"--{name}", f"-{name}"):
            end = index + 1 if equals else index + 2
            value = value if equals else "".join(arguments[index + 1 : end])
            if value:
                return value, [*arguments[:index], *arguments[end:]]
    raise InputError(f"missing {_MISSING[name]}")


def _unset(config: Config, arguments: Sequence[str]) -> tuple[Config, list[str]]:
    """Apply ``--config.FIELD=None``, which config_flags would take for a value of the field's type.

    Returns:
      The config and the other arguments.
    """
    others = []
    for argument in arguments:
        override, value = _OVERRIDE.match(argument), argument.partition("=")[2]
        group, _, name = override[1].partition(".") if override else ("", "", "")
        fields = getattr(config, group, None)
        if value == "None" and name and type(None) in typing.get_args(_types(fields)[name]):
            config = config.replace(**{group: fields.replace(**{name: None})})
        else:
            others.append(argument)
    return config, others


def load_config_file(flag: str) -> Config:
    """Return the config of ``FILE.py`` or ``FILE.py:ARGUMENT``.

    The file defines ``get_config()``, or ``get_config(argument)``.

    Raises:
      InputError: when the file is missing, defines no such function, or it returns no `Config`.
    """
    path, colon, argument = flag.partition(":")
    if not pathlib.Path(path).is_file():
        raise InputError(f"--config={flag}: no file {path}; the configs are in experiments/configs")
    spec = importlib.util.spec_from_file_location("config_file", path)
    if spec is None:
        raise InputError(f"--config={flag}: {path} is not a Python file (.py)")
    module = importlib.util.module_from_spec(spec)
    with _located(path):
        spec.loader.exec_module(module)
    if not hasattr(module, "get_config"):
        raise InputError(f"{path} does not define get_config()")
    parameters = inspect.signature(module.get_config).parameters
    if colon and not parameters:
        raise InputError(f"--config={flag}: get_config() of {path} takes no argument after ':'")
    required = [one for one in parameters.values() if one.default is one.empty]
    if required and not colon:
        raise InputError(f"--config={flag}: get_config() needs an argument; write {path}:ARGUMENT")
    with _located(path):
        config = module.get_config(argument) if colon else module.get_config()
    if not isinstance(config, Config):
        raise InputError(f"get_config() of {path} returned {type(config).__name__}, not a Config")
    return config


@contextlib.contextmanager
def _located(path: str) -> Iterator[None]:
    """Turn an exception of the user's config file into one message with its line."""
    try:
        yield
    except InputError:
        raise
    except SyntaxError as error:
        raise InputError(f"{error.filename or path}:{error.lineno}: {error.msg}") from None
    except Exception as error:  # noqa: BLE001 - the file may raise anything
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == path]
        location = f"{path}:{lines[-1]}" if lines else path
        raise InputError(f"{location}: {type(error).__name__}: {error}") from None


def to_config_dict(group: FieldGroup) -> config_dict.ConfigDict:
    """Convert to a ConfigDict in which fields that are None are typed, too."""
    values = {}
    for name, kind in _types(group).items():
        value = getattr(group, name)
        if isinstance(value, FieldGroup):
            value = to_config_dict(value)
        elif value is None:
            value = config_dict.placeholder(_value_type(kind))
        values[name] = value
    return config_dict.ConfigDict(values)


def to_config(values: config_dict.ConfigDict) -> Config:
    """Return the validated `Config` with the values of a ConfigDict."""
    return Config.from_dict(values.to_dict())


def _types(group: FieldGroup) -> dict[str, Any]:
    hints = typing.get_type_hints(type(group))
    return {field.name: hints[field.name] for field in dataclasses.fields(group)}


def _value_type(optional: Any) -> type:
    """Return the type of the values of an optional field."""
    [kind] = [option for option in typing.get_args(optional) if option is not type(None)]
    if typing.get_origin(kind) is Literal:
        return type(typing.get_args(kind)[0])
    return typing.get_origin(kind) or kind


def help_text(main: Callable[..., int | None], config_from: str | None) -> str:
    """Describe the app, its flags and, if it has a config, every field with default and meaning."""
    module = sys.modules[main.__module__]
    lines = [inspect.getdoc(module) or "", "", "Flags:"]
    if config_from == "config":
        lines.append("  --config: FILE.py or FILE.py:ARGUMENT, with the experiment's get_config().")
    for name in (*_SHARED_FLAGS, module.__name__):
        for flag in flags.FLAGS.get_flags_for_module(name):
            default = "" if flag.default is None else f" (default {flag.default})"
            lines.append(f"  --{flag.name}: {flag.help}{default}")
    if config_from is None:
        return "\n".join(lines)
    lines += [
        "",
        "Config fields, overridden with --config.FIELD=VALUE. The defaults are the paper's base",
        "model; --config.FIELD=None unsets an optional field.",
    ]
    if config_from == "workdir":
        lines += [
            "The values saved in the workdir are used, except for parallel: one device decodes,",
            "however many trained. --config.parallel.data=8 divides the sentences over 8.",
        ]
    return "\n".join(lines + _field_lines(Config()))


def _field_lines(group: FieldGroup) -> list[str]:
    lines, meanings, indent = [], _meanings(type(group)), " " * 8
    for name, kind in _types(group).items():
        value = getattr(group, name)
        if isinstance(value, FieldGroup):
            summary = inspect.getdoc(type(value)).splitlines()[0]
            lines += ["", f"  {name}: {summary}", *_field_lines(value)]
            continue
        kind = kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
        lines.append(f"    {group.path(name)}: {kind} = {value!r}")
        meaning = meanings.get(name, "")
        lines += textwrap.wrap(meaning, 92, initial_indent=indent, subsequent_indent=indent)
    return lines


def _meanings(group: type[FieldGroup]) -> dict[str, str]:
    """Return the string that follows each field in the source of its class, or of a base class."""
    meanings: dict[str, str] = {}
    for cls in filter(dataclasses.is_dataclass, reversed(group.__mro__)):
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0].body
        meanings |= {
            field.target.id: " ".join(text.value.value.split())
            for field, text in zip(body, body[1:], strict=False)
            if isinstance(field, ast.AnnAssign)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        }
    return meanings


class _MessageFormatter(logging.PythonFormatter):
    """``warning: message``, without date, process and line."""

    def format(self, record) -> str:
        return f"{record.levelname.lower()}: {record.getMessage()}"
