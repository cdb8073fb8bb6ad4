# SPDX-License-Identifier: Apache-2.0
"""The command line of every app: flags, error messages and exit codes."""

import contextlib
import logging
import os
import pdb
import sys
import traceback
from collections.abc import Callable
from typing import Any, Literal

import jax
from absl import app, flags
from absl import logging as absl_logging

from experiments.cli import config_flags, process, usage
from experiments.cli.options import define, read
from transformer import compile_cache
from transformer.errors import InputError
from transformer.provenance import provenance

DRY_RUN = flags.DEFINE_boolean("dry_run", False, "Print the config with all overrides, and stop.")


ConfigFrom = Literal["config", "workdir"] | None


def run(main: Callable[[Any], int | None], config_from: ConfigFrom, options: type) -> None:
    """Parse the command line, call `main`, and exit.

    The exit status is 0 on success, 1 with one message for invalid input, 128 + the number of a
    signal that stopped the app, or what `main` returns.

    Args:
      main: the app; the docstring of its module starts the help text.
      config_from: the flag that names the config: ``--config=FILE.py[:ARGUMENT]``, or ``--workdir``
        for the config saved there, reset to one device. With None there is no config.
      options: a dataclass, whose fields are the flags and with which `main` is called. Its field
        `config` holds the config, if there is one.
    """
    process.prepare()
    # Importing Orbax may have configured the root logger already.
    logging.basicConfig(handlers=[log_handler()], force=True)
    absl_logging.set_verbosity(absl_logging.ERROR)  # warnings there are Orbax's
    try:
        status = _run(main, sys.argv, config_from, options)
        sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001 - a signal may come out as any exception
        status = _exit_status(error)
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for Python's last flush
    sys.exit(status)


def require_one_line(name: str, text: str) -> None:
    """Reject text that is not one line of UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        byte = ord(text[error.start]) & 0xFF
        raise InputError(
            f"--{name} has the byte 0x{byte:02X} as character {error.start + 1}, which is not "
            "UTF-8; give the text in UTF-8"
        ) from None
    if "\n" in text:
        raise InputError(f"--{name} has several lines; give one")


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
    if app.PDB_POST_MORTEM.value:
        traceback.print_exception(error)
        pdb.post_mortem(error.__traceback__)
    raise error


def _devices_exist() -> bool:
    try:
        return bool(jax.devices())
    except (RuntimeError, AssertionError):
        return False


def _run(
    main: Callable[[Any], int | None],
    arguments: list[str],
    config_from: ConfigFrom,
    options: type,
) -> int:
    define(options)
    jax.config.parse_flags_with_absl()
    arguments = flags.FLAGS.read_flags_from_files(arguments, force_gnu=False)
    given = {argument.lstrip("-") for argument in arguments if argument.startswith("-")}
    if "version" in given:
        print(provenance()["version"])
        return 0
    if given & {"help", "h", "helpshort", "helpfull"}:
        config = None
        if config_from:
            with contextlib.suppress(InputError):  # help needs no config
                config, _ = config_flags.load(arguments, config_from)
        print(usage.help_text(main, config_from, config, full="helpfull" in given))
        return 0
    config = None
    if config_from is None:
        if overrides := [*filter(config_flags.OVERRIDE.match, arguments)]:
            raise InputError(
                f"{overrides[0]}: this command has no config to override; see --help for its flags"
            )
    else:
        config, arguments = config_flags.load(arguments, config_from)
    unexpected = flags.FLAGS(arguments)[1:]
    if unexpected:
        raise InputError(f"unexpected argument {unexpected[0]!r}; every flag begins with --")
    if DRY_RUN.value and config:
        print(config.to_json())
        return 0
    compile_cache.enable()
    return main(read(options, **({"config": config} if config else {}))) or 0


class _MessageFormatter(logging.Formatter):
    """``warning: message``, without date, process and line."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{record.levelname.lower()}: {record.getMessage()}"
