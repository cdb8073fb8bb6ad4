# SPDX-License-Identifier: Apache-2.0
"""The command line of every app: config overrides, help, error messages and exit codes.

``--config.FIELD=VALUE`` overrides a field of the frozen `Config`, which is validated again.
"""

import ast
import contextlib
import dataclasses
import inspect
import itertools
import logging
import os
import pathlib
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Literal

import jax
from absl import flags
from absl import logging as absl_logging

from experiments.cli import process
from transformer import compile_cache, paths, user_functions
from transformer.checkpoints import workdir_files
from transformer.config import Config, DataConfig
from transformer.errors import InputError
from transformer.fields import FieldGroup, difference, field_types, flat, unknown_field

CONFIGS = pathlib.Path(__file__).parents[1] / "configs"
_OVERRIDE = re.compile(r"--?(no)?config\.([^=]+)(=)?(.*)", re.DOTALL)
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_TEXT_FIELDS = frozenset(
    f"data.{name}"
    for name in (
        *("train_source", "train_target", "tsv_columns", "mixture", "direction", "row_multiple"),
        *("tokenizer", "tokenizer_model", "source_tokenizer_model", "vocabulary"),
    )
)
"""Fields that a config which fits the text needs to know."""
_MISSING = {
    "config": "--config=NAME or --config=FILE.py, for example --config=pronouns",
    "workdir": "--workdir=DIRECTORY, where train left its results",
}


def run(main: Callable[..., int | None], config_from: Literal["config", "workdir"] | None) -> None:
    """Parse the command line, call `main` with the config, and exit.

    The exit status is 0 on success, 1 with one message for invalid input, 128 + the number of a
    signal that stopped the app, or what `main` returns.

    Args:
      main: the app; the docstring of its module starts the help text.
      config_from: the flag that names the config: ``--config=FILE.py[:ARGUMENT]``, or ``--workdir``
        for the config saved there, reset to one device. With None, `main` takes no config.
    """
    process.prepare()
    # Importing Orbax may have configured the root logger already.
    logging.basicConfig(handlers=[log_handler()], force=True)
    absl_logging.set_verbosity(absl_logging.ERROR)  # warnings there are Orbax's
    try:
        status = _run(main, sys.argv, config_from)
        sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001 - a signal may come out as any exception
        status = _exit_status(error)
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for Python's last flush
    sys.exit(status)


def parse_integers(flag: str, texts: Sequence[str]) -> list[int]:
    """Parse the values of a list flag.

    Raises:
      InputError: for a value that is not a whole number of at least 1, and for no value.
    """
    if not texts:
        raise InputError(f"--{flag}= is empty; give whole numbers, separated by commas")
    for text in texts:
        if not text.isdecimal() or int(text) < 1:
            raise InputError(
                f"--{flag}={','.join(texts)}: {text!r} is not a whole number of at least 1"
            )
    return list(map(int, texts))


def require_one_line(flag: flags.FlagHolder) -> None:
    """Reject text that is not one line of UTF-8.

    Raises:
      InputError: naming the flag, and the byte that is not UTF-8.
    """
    text = flag.value
    try:
        text.encode()
    except UnicodeEncodeError as error:
        byte = ord(text[error.start]) & 0xFF
        raise InputError(
            f"--{flag.name} has the byte 0x{byte:02X} as character {error.start + 1}, which is not "
            "UTF-8; give the text in UTF-8"
        ) from None
    if "\n" in text:
        raise InputError(f"--{flag.name} has several lines; give one")


def log_handler() -> logging.Handler:
    """Log messages of an app, on standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(_MessageFormatter())
    handler.addFilter(_is_not_of_a_raised_error)
    return handler


def _is_not_of_a_raised_error(record: logging.LogRecord) -> bool:
    """Whether a record adds to the error of a failed save or restore, which the app reports."""
    if record.name == "absl" and f"{os.sep}orbax{os.sep}" in record.pathname:
        return False  # Orbax logs every error that it also raises
    # After the first failed write asyncio reports the others of a save, which are never awaited.
    error = record.exc_info[1] if record.name == "asyncio" and record.exc_info else None
    return not (isinstance(error, ValueError) and "OCDBT" in str(error))


def _exit_status(error: BaseException) -> int | str:
    """The exit status after an exception, or a message for status 1; bugs are raised again."""
    notes = getattr(error, "__notes__", [])
    if process.received:
        print("; ".join([str(process.received), *notes]), file=sys.stderr)
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        # The interpreter's shutdown would free what threads of XLA still compute with.
        os._exit(process.received.code)
    if isinstance(error, BrokenPipeError):
        return 0  # the reader of the results has gone (`| head`)
    if isinstance(error, (InputError, flags.Error)):
        return "; ".join([f"error: {error}", *notes])
    if isinstance(error, OSError):
        file = f"{error.filename}: " if error.filename else ""
        return f"error: {file}{error.strerror or error}"
    platforms = os.environ.get("JAX_PLATFORMS")
    if platforms and isinstance(error, (RuntimeError, AssertionError)) and not _devices_exist():
        return (
            f"error: JAX has no devices for the environment variable JAX_PLATFORMS={platforms}; "
            "unset it, or install what these devices need"
        )
    raise error


def _devices_exist() -> bool:
    try:
        return bool(jax.devices())
    except (RuntimeError, AssertionError):
        return False


def _run(main: Callable[..., int | None], arguments: list[str], config_from: str | None) -> int:
    if set(arguments) & {"--help", "-help", "-h"}:
        config = None
        if config_from:
            with contextlib.suppress(InputError):  # help needs no config
                config, _ = _load_config(arguments, config_from)
        print(help_text(main, config_from, config))
        return 0
    if config_from is None:
        configs, overrides = [], [*filter(_OVERRIDE.match, arguments)]
        if overrides:
            raise InputError(
                f"{overrides[0]}: this command has no config to override; see --help for its flags"
            )
    else:
        loaded, arguments = _load_config(arguments, config_from)
        config, arguments = override(loaded, arguments)
        if config_from == "workdir":
            _require_free(loaded, config)
        configs = [config]
    unexpected = flags.FLAGS(arguments)[1:]
    if unexpected:
        raise InputError(f"unexpected argument {unexpected[0]!r}; every flag begins with --")
    compile_cache.enable()
    return main(*configs) or 0


def _load_config(arguments: Sequence[str], config_from: str) -> tuple[Config, Sequence[str]]:
    """Return the config without overrides, and the arguments without ``--config=``."""
    value, others = take_flag(arguments, config_from)
    if config_from == "config":
        return load_config_file(value, others), others
    return workdir_files.load_inference_config(value), arguments


def take_flag(arguments: Sequence[str], name: str) -> tuple[str, list[str]]:
    """Return the value of ``--name=value`` or ``--name value``, and the other arguments.

    Of several values the last counts, as with all flags.
    """
    value, others = "", []
    rest = iter(arguments)
    for argument in rest:
        flag, equals, text = argument.partition("=")
        if flag in (f"--{name}", f"-{name}"):
            value = text if equals else next(rest, "")
        else:
            others.append(argument)
    if not value:
        raise InputError(f"missing {_MISSING[name]}")
    return value, others


def override(config: Config, arguments: Sequence[str]) -> tuple[Config, list[str]]:
    """Apply ``--config.FIELD=VALUE``, ``--config.FIELD VALUE`` and ``--noconfig.FIELD``.

    Returns:
      The validated config and the other arguments.

    Raises:
      InputError: for an unknown field or an invalid value.
    """
    known, values, others = flat(config), dataclasses.asdict(config), []
    rest = iter(arguments)
    for argument in rest:
        match = _OVERRIDE.fullmatch(argument)
        if not match:
            others.append(argument)
            continue
        negated, path, equals, text = match.groups()
        if path not in known:
            raise InputError(unknown_field(path, list(known)))
        group, _, name = path.partition(".")
        kind = field_types(type(getattr(config, group)))[name]
        if not equals:
            text = str(not negated) if kind is bool else next(rest, "")
        values[group][name] = parse_value(text, kind)
    family = values["model"]["family"]
    if family != config.model.family:
        raise InputError(
            f"model.family is {config.model.family!r} here, whose fields are the flags; choose "
            f"another config for {family!r}"
        )
    return type(config).from_dict(values), others


def _require_free(trained: Config, config: Config) -> None:
    """Refuse overrides that a trained model does not allow."""
    for path, (old, new) in difference(trained, config).items():
        if not workdir_files.may_change_after_training(path, trained):
            raise InputError(
                f"{path} is {old!r} in the training of this model, and cannot be {new!r} after it; "
                f"leave --config.{path} out"
            )


def parse_value(text: str, kind: Any) -> Any:
    """Return the value of a field of type `kind`; invalid text is returned for the validation."""
    kinds = typing.get_args(kind) or (kind,)
    if text == "None" and type(None) in kinds:
        return None
    with contextlib.suppress(ValueError, SyntaxError):
        if typing.get_origin(kind) is tuple:
            return ast.literal_eval(text)
        for number in (int, float):
            if number in kinds:
                return number(text)
    return _BOOLEANS.get(text.lower(), text) if bool in kinds else text


def load_config_file(flag: str, arguments: Sequence[str] = ()) -> Config:
    """Return the config of ``NAME[:ARGUMENT]`` in `experiments.configs`, or of a file of the user.

    The file defines ``get_config()``, or ``get_config(argument)``. A `get_config` with a parameter
    ``data`` fits the text that `arguments` name, one with a parameter ``init_from`` the model that
    they name. It does so once for a workdir: when training continues, the config is that of the
    workdir.

    Raises:
      InputError: when the file is missing, defines no such function, or it returns no `Config`.
    """
    path, colon, argument = flag.partition(":")
    if not pathlib.Path(path).is_file():
        shipped = {file.stem: str(file) for file in sorted(CONFIGS.glob("*.py"))}
        if path not in shipped:
            raise InputError(
                f"--config={flag}: no file {path}; name a file, or one of the configs "
                f"{', '.join(shipped)}"
            )
        path = shipped[path]
    module = user_functions.load_module(path)
    if not hasattr(module, "get_config"):
        raise InputError(f"{path} does not define get_config()")
    parameters = inspect.signature(module.get_config).parameters
    if colon and not parameters:
        raise InputError(f"--config={flag}: get_config() of {path} takes no argument after ':'")
    required = [one for one in parameters.values() if one.default is one.empty]
    if required and not colon:
        raise InputError(f"--config={flag}: get_config() needs an argument; write {path}:ARGUMENT")
    chosen = [argument] if colon else []
    with user_functions.located(path):
        config = module.get_config(*chosen)
    if not isinstance(config, Config):
        raise InputError(f"get_config() of {path} returned {type(config).__name__}, not a Config")
    if "init_from" in parameters and arguments:
        return _fine_tuning_config(module, path, arguments)
    if "data" not in parameters:
        return config
    saved = _saved_config(arguments)
    if saved and saved.data.dataset == config.data.dataset and argument in ("", "auto"):
        return saved
    with user_functions.located(path):
        return module.get_config(*chosen, data=_text(config.data, arguments))


def _fine_tuning_config(module: ModuleType, path: str, arguments: Sequence[str]) -> Config:
    """The config of the workdir if it started from the same model, or one for that model."""
    init_from = _overrides(arguments).get("training.init_from")
    if init_from is None:
        raise InputError(
            f"--config={path} needs --config.training.init_from=WORKDIR, the trained model that "
            "the training starts from"
        )
    saved = _saved_config(arguments)
    if saved and saved.training.init_from == os.fspath(paths.absolute(init_from)):
        return saved
    with user_functions.located(path):
        return module.get_config(init_from=init_from)


def _saved_config(arguments: Sequence[str]) -> Config | None:
    """The config of the workdir on the command line, if there is one."""
    with contextlib.suppress(InputError):
        return workdir_files.load_config(take_flag(arguments, "workdir")[0])
    return None


def _text(data: DataConfig, arguments: Sequence[str]) -> DataConfig:
    """The text and the vocabulary that the overrides name."""
    kinds, values = field_types(DataConfig), {}
    for path, text in _overrides(arguments).items():
        if path in _TEXT_FIELDS:
            name = path.removeprefix("data.")
            values[name] = parse_value(text, kinds[name])
    return data.replace(**values)


def _overrides(arguments: Sequence[str]) -> dict[str, str]:
    """The text of each override on the command line, by field."""
    values = {}
    for argument, following in itertools.zip_longest(arguments, arguments[1:], fillvalue=""):
        if match := _OVERRIDE.fullmatch(argument):
            values[match[2]] = match[4] if match[3] else following
    return values


def help_text(
    main: Callable[..., int | None], config_from: str | None, config: Config | None = None
) -> str:
    """Describe the app, its flags and, if it has a config, the fields with values and meaning.

    Args:
      main: the app.
      config_from: see `run`.
      config: whose values are shown; the paper's base model by default.
    """
    module = sys.modules[main.__module__]
    lines = [inspect.getdoc(module) or "", "", "Flags:"]
    if config_from == "config":
        lines.append("  --config: NAME or FILE.py, or either with :ARGUMENT, for get_config().")
    ours = [name for name in flags.FLAGS.flags_by_module_dict() if name.startswith("experiments.")]
    for name in dict.fromkeys([*ours, module.__name__]):
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
        return config_from == "config" or workdir_files.may_change_after_training(path, config)

    return "\n".join(lines + _field_lines(config, is_shown))


def _field_lines(group: FieldGroup, is_shown: Callable[[str], bool]) -> list[str]:
    lines, meanings, indent = [], _meanings(type(group)), " " * 8
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


class _MessageFormatter(logging.Formatter):
    """``warning: message``, without date, process and line."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{record.levelname.lower()}: {record.getMessage()}"
