# SPDX-License-Identifier: Apache-2.0
"""The command line of every app: a frozen `Config`, overridden field by field, and clean errors.

ml_collections' config_flags needs a ConfigDict; the `Config` becomes one here (typed placeholders
for optional fields) and is made again, and so validated, from what the flags left in it.
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
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args, get_type_hints

from absl import app, flags, logging
from ml_collections import config_dict, config_flags

from experiments import allocator, user_cache
from transformer.checkpoints import workdir_files
from transformer.config import Config
from transformer.errors import InputError
from transformer.fields import Group, flat, unknown_field

_TYPES = {"int": int, "float": float, "str": str, "bool": bool}
_SHARED = (
    "experiments.checkpoint_flags",
    "experiments.distributed",
    "experiments.benchmarks.reporting",
)
"""The modules of flags that several apps have."""
_OVERRIDE = re.compile(r"--?(?:no)?config\.([^=]+)")


def run(main: Callable[..., int | None], config_from: str | None) -> None:
    """Parses the command line, calls `main` with the config, and exits.

    Status 0 on success, 1 with one message for bad input, 130 on Ctrl-C, or what `main` returns.

    Args:
      main: of an app; its module's docstring is what ``--help`` begins with.
      config_from: ``config`` when the flag ``--config=FILE.py[:ARGUMENT]`` names it, ``workdir``
        when it is the one saved in ``--workdir``, but on one device unless the flags say otherwise;
        None when the app has no config of its own, and `main` is called without one.
    """

    def guarded(arguments: list[str]) -> None:
        try:
            if len(arguments) > 1:
                raise InputError(f"unexpected argument {arguments[1]!r}; every flag begins with --")
            allocator.keep_pages()
            user_cache.keep_compiled_programs()
            status = main(to_config(flags.FLAGS["config"].value)) if config_from else main()
        except InputError as error:
            sys.exit(f"error: {error}")
        except BrokenPipeError:
            _forget_the_reader()
            status = 0
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            sys.exit(f"error: {place}{error.strerror or error}")
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
            _forget_the_reader()
            sys.exit(0)
        except (InputError, flags.Error) as error:
            sys.exit(f"error: {error}")

    # Warnings of this project go through the standard library; absl's are Orbax's, about its own
    # options.
    logging.set_verbosity(logging.ERROR)
    for package in ("transformer", "experiments"):
        standard_logging.getLogger(package).setLevel(standard_logging.WARNING)
    logging.get_absl_handler().setFormatter(_Plain())
    app.run(guarded, flags_parser=parse)


def _forget_the_reader() -> None:
    """After the reader of standard output has gone (`| head`), which is no error: there is nothing
    to flush to.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parse(arguments: list[str], config_from: str | None) -> list[str]:
    if config_from is None:
        for argument in filter(_OVERRIDE.match, arguments):
            raise InputError(
                f"{argument}: this command has no config to override; see --help for its flags"
            )
        return flags.FLAGS(arguments)
    if config_from == "config":
        place, rest = _take(arguments, "config")
        config = load_config_file(place)
    else:
        rest = arguments
        config = workdir_files.load_inference_config(_take(arguments, "workdir")[0])
    known = flat(config)
    for argument in rest:
        override = _OVERRIDE.match(argument)
        if override and override.group(1) not in known:
            raise InputError(unknown_field(override.group(1), list(known)))
    config, rest = _unset(config, rest)
    config_flags.DEFINE_config_dict("config", to_config_dict(config), sys_argv=rest)
    return flags.FLAGS(rest)


def _unset(config: Config, arguments: Sequence[str]) -> tuple[Config, list[str]]:
    """The config without what ``--config.FIELD=None`` takes back, and the other arguments.

    config_flags would take the word for a value of the field's type.
    """
    left = []
    for argument in arguments:
        override, value = _OVERRIDE.match(argument), argument.partition("=")[2]
        group, _, name = override.group(1).partition(".") if override else ("", "", "")
        fields = getattr(config, group, None)
        if value == "None" and name and type(None) in get_args(get_type_hints(type(fields))[name]):
            config = config.replace(**{group: fields.replace(**{name: None})})
        else:
            left.append(argument)
    return config, left


def _take(arguments: Sequence[str], name: str) -> tuple[str, list[str]]:
    """The value of ``--name=value`` or ``--name value``, and the other arguments."""
    for place, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag in (f"--{name}", f"-{name}"):
            after = place + 1 if equals else place + 2
            if not equals:
                value = arguments[place + 1] if place + 1 < len(arguments) else ""
            if value:
                return value, [*arguments[:place], *arguments[after:]]
    wanted = {
        "config": "--config=FILE.py, for example --config=experiments/configs/pronouns.py",
        "workdir": "--workdir=DIRECTORY, where train left its results",
    }
    raise InputError(f"missing {wanted[name]}")


def load_config_file(place: str) -> Config:
    """What ``get_config()`` of ``FILE.py``, or ``get_config(ARGUMENT)`` of ``FILE.py:ARGUMENT``,
    returns.

    Raises:
      InputError: when the file is missing, has no `get_config`, or returns no `Config`.
    """
    path, colon, argument = place.partition(":")
    if not pathlib.Path(path).is_file():
        raise InputError(
            f"--config={place}: no file {path}; the configs are in experiments/configs"
        )
    spec = importlib.util.spec_from_file_location("config_file", path)
    if spec is None:
        raise InputError(f"--config={place}: {path} is not a Python file (.py)")
    module = importlib.util.module_from_spec(spec)
    with _blamed_on(path):
        spec.loader.exec_module(module)
    if not hasattr(module, "get_config"):
        raise InputError(f"{path} does not define get_config()")
    takes = inspect.signature(module.get_config).parameters
    if colon and not takes:
        raise InputError(f"--config={place}: get_config() of {path} takes no argument after ':'")
    needed = [p for p in takes.values() if p.default is p.empty]
    if needed and not colon:
        raise InputError(f"--config={place}: get_config() needs an argument; write {path}:ARGUMENT")
    with _blamed_on(path):
        config = module.get_config(argument) if colon else module.get_config()
    if not isinstance(config, Config):
        raise InputError(f"get_config() of {path} returned {type(config).__name__}, not a Config")
    return config


@contextlib.contextmanager
def _blamed_on(path: str) -> Iterator[None]:
    """Turns what a person's config file raises into one message with its line."""
    try:
        yield
    except InputError:
        raise
    except SyntaxError as error:
        raise InputError(f"{error.filename or path}:{error.lineno}: {error.msg}") from None
    except Exception as error:  # noqa: BLE001 - a person's code may raise anything
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
        place = f"{path}:{lines[-1]}" if lines else path
        raise InputError(f"{place}: {type(error).__name__}: {error}") from None


def to_config_dict(group: Group) -> config_dict.ConfigDict:
    """The same fields as a ConfigDict, typed also where they are None."""
    values = {}
    for field in dataclasses.fields(group):
        value = getattr(group, field.name)
        if isinstance(value, Group):
            value = to_config_dict(value)
        elif value is None:
            [kind] = [name for name in str(field.type).split(" | ") if name != "None"]
            value = config_dict.placeholder(_TYPES[kind])
        values[field.name] = value
    return config_dict.ConfigDict(values)


def to_config(values: config_dict.ConfigDict) -> Config:
    """The validated `Config` from what the flags made of its fields."""
    return Config.from_dict(values.to_dict())


def help_text(main: Callable[..., int | None], config_from: str | None) -> str:
    """What the app does, its flags, and every config field, if it has a config, with its default
    and meaning.
    """
    module = sys.modules[main.__module__]
    lines = [inspect.getdoc(module) or "", "", "Flags:"]
    if config_from == "config":
        lines.append("  --config: FILE.py or FILE.py:ARGUMENT, with the experiment's get_config().")
    for flag in [flag for name in (*_SHARED, module.__name__) for flag in _flags_of(name)]:
        default = "" if flag.default is None else f" (default {flag.default})"
        lines.append(f"  --{flag.name}: {flag.help}{default}")
    if config_from is not None:
        lines += [
            "",
            "Config fields, overridden with --config.FIELD=VALUE (defaults of the paper's base);",
            "--config.FIELD=None takes back the value of one that may have none:",
        ]
        if config_from == "workdir":
            lines += [
                "those of the workdir hold here, but for parallel: however many devices trained",
                "the model, it is read on one; --config.parallel.data=8 divides the sentences over",
                "8.",
            ]
        lines += _field_lines(Config())
    return "\n".join(lines)


def _flags_of(module: str) -> list[flags.Flag]:
    return list(flags.FLAGS.get_flags_for_module(module) or ())


def _field_lines(group: Group) -> list[str]:
    meanings = _meanings(type(group))
    lines = []
    for field in dataclasses.fields(group):
        value = getattr(group, field.name)
        if isinstance(value, Group):
            lines += ["", f"  {field.name}: {inspect.getdoc(type(value)).splitlines()[0]}"]
            lines += _field_lines(value)
            continue
        kind = field.type if isinstance(field.type, str) else _type_name(field.type)
        lines.append(f"    {group.path(field.name)}: {kind} = {value!r}")
        lines += textwrap.wrap(
            meanings.get(field.name, ""), 92, initial_indent=" " * 8, subsequent_indent=" " * 8
        )
    return lines


def _type_name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")


def _meanings(group: type[Group]) -> dict[str, str]:
    """The string that follows each field in the source of its class, or of the class's bases."""
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


class _Plain(logging.PythonFormatter):
    """``warning: message``, without date, process and line."""

    def format(self, record) -> str:
        return f"{record.levelname.lower()}: {record.getMessage()}"
