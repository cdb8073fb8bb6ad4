# SPDX-License-Identifier: Apache-2.0
"""The directory of one run: one config, one trainer at a time, files whole or not there."""

import contextlib
import json
import logging
from collections.abc import Iterator
from typing import Any

from etils import epath

from experiments import lease
from transformer import paths
from transformer.config import Config
from transformer.errors import InputError
from transformer.fields import difference
from transformer.text.tokenizer import Tokenizer
from transformer.translator import load_config

logger = logging.getLogger(__name__)

_NOT_COMPARED = (
    *("parallel.", "logging."),
    *("training.memory_limit_gib", "data.token_cache", "data.tokenizing_processes"),
)
"""What the fields that change no result begin with."""


@contextlib.contextmanager
def claimed(workdir: epath.Path, config: Config) -> Iterator[Config]:
    """Makes the directory if needed, keeps other trainings out, and holds it to one config.

    The config is written with `begin`, when data and vocabulary have proved good, so that a start
    that failed does not stand in the way of its own correction. What is given back is `config`, but
    where ``training.batch_fitting`` is ``auto`` with what that chose when the run began.

    Raises:
      InputError: when it cannot be written, when another training runs in it, or when it was begun
        with another config.
    """
    with contextlib.ExitStack() as stack:
        try:
            # An object store has no directories; asking for one may make a bucket.
            if not paths.is_remote(workdir):
                _make(workdir)
            stack.enter_context(lease.held(workdir))
        except InputError:
            raise
        # Stores have exceptions of their own.
        except Exception as error:  # noqa: BLE001
            raise InputError(
                f"--workdir={workdir} cannot be written: {paths.reason(error)}; name a "
                "directory in which files can be made"
            ) from None
        yield held_to(config, workdir)


def _make(workdir: epath.Path) -> None:
    if workdir.exists() and not workdir.is_dir():
        raise InputError(f"--workdir={workdir} is a file; name a directory")
    workdir.mkdir(parents=True, exist_ok=True)


def held_to(config: Config, workdir: epath.Path) -> Config:
    """The config, if it is the one that the directory was begun with; see `claimed`.

    Raises:
      InputError: when it is not.
    """
    trained = any(path.name.isdigit() for path in paths.children(workdir / "checkpoints"))
    for needed in ("config.json", "tokenizer.model"):
        if trained and not (workdir / needed).exists():
            raise InputError(
                f"{workdir} has checkpoints but no {needed}, without which they cannot be used; "
                "restore the file, or choose another --workdir"
            )
    if not (workdir / "config.json").exists():
        return config
    saved = load_config(workdir)
    fitted = config.training.batch_fitting == saved.training.batch_fitting == "auto"
    if fitted and config.training.micro_batches is None:
        parts = saved.training.micro_batches
        config = config.replace(training=config.training.replace(micro_batches=parts))
    changed = {
        path: values
        for path, values in difference(saved, config).items()
        if not path.startswith(_NOT_COMPARED)
    }
    before, after = changed.get("training.steps", (0, 0))
    if after > before:
        del changed["training.steps"]
        logger.warning("%s goes on from %d to %d steps", workdir, before, after)
    if changed:
        lines = [f"  {path}: {old!r} there, {new!r} now" for path, (old, new) in changed.items()]
        raise InputError(
            f"{workdir} was begun with another config:\n" + "\n".join(lines) + "\n"
            "use that config, or choose another --workdir"
        )
    return config


def begin(workdir: epath.Path, config: Config, tokenizer: Tokenizer) -> None:
    """Writes what makes the workdir self-contained, before the first step."""
    model = workdir / "tokenizer.model"
    if not model.exists():
        write_bytes(model, tokenizer.model)
    write_text(workdir / "config.json", config.to_json())


def write_bytes(path: epath.Path, data: bytes) -> None:
    """Writes a file whole: a reader sees what was there before, or all of this.

    Raises:
      InputError: when it cannot be written; what was there before is.
    """
    try:
        paths.write_whole(path, data)
    # Stores have exceptions of their own.
    except Exception as error:  # noqa: BLE001
        raise InputError(
            f"{path} cannot be written: {paths.reason(error)}; make it writable, or make room there"
        ) from None


def write_text(path: epath.Path, text: str) -> None:
    """Writes a text file whole, in UTF-8."""
    write_bytes(path, text.encode())


def write_json(path: epath.Path, value: Any) -> None:
    """Writes a JSON file whole, indented."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")
