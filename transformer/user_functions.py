# SPDX-License-Identifier: Apache-2.0
"""Functions of the user's own files, which a config names as ``FILE.py:FUNCTION``.

A config file refers to its own function `my_function` as ``f"{__file__}:my_function"``.
"""

import contextlib
import functools
import importlib.util
import os
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any

from transformer.errors import InputError


def is_function(name: str) -> bool:
    """Whether a name has the form ``FILE.py:FUNCTION``."""
    return name.rpartition(":")[0].endswith(".py")


def load_function(name: str) -> Callable[..., Any]:
    """Return the function ``FILE.py:FUNCTION``, whose exceptions are InputErrors with their line.

    Raises:
      InputError: when the file cannot be loaded or lacks the function.
    """
    path, _, function_name = name.rpartition(":")
    module = load_module(path)
    if not callable(function := getattr(module, function_name, None)):
        raise InputError(f"{name}: {path} does not define a function {function_name}")

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        with located(path):
            return function(*arguments)

    return call


def load_module(path: str) -> types.ModuleType:
    """Run a Python file, and return it as a module.

    Raises:
      InputError: when the file is missing, or with the line of an exception in it.
    """
    if not os.path.isfile(path):
        raise InputError(f"no file {path}; check the path")
    spec = importlib.util.spec_from_file_location(f"user_file_{abs(hash(path))}", path)
    if spec is None:
        raise InputError(f"{path} is not a Python file (.py)")
    module = importlib.util.module_from_spec(spec)
    with located(path):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def located(path: str) -> Iterator[None]:
    """Turn an exception of a user's file into an InputError with its line."""
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
