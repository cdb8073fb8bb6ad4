# SPDX-License-Identifier: Apache-2.0
"""The files of a workdir: their names, loading the config, and atomic writes.

A workdir is the directory of one training run. Everything needed to translate is in it, so it can
be copied to another machine.
"""

import io
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from transformer import paths
from transformer.config import RUNS, Config, ParallelConfig
from transformer.errors import InputError

CONFIG = "config.json"
TOKENIZER = "tokenizer.model"
"""SentencePiece model of the target vocabulary, or of the one shared by source and target."""
SOURCE_TOKENIZER = "tokenizer.source.model"
"""SentencePiece model of the source vocabulary, if it is not shared."""
CHECKPOINTS = "checkpoints"
"""Directory with one subdirectory per saved step."""
METRICS = "metrics.jsonl"
"""One JSON object a line: ``step``, ``split`` and the values. TensorBoard files lie beside it."""
RESULT = "result.json"
"""The result of a finished training; its absence means that the training has not finished."""
EVALUATIONS = "evaluations"
"""Directory of scores, translations and reports of `experiments.evaluate`."""
SKIPPED = "skipped"
"""Directory of the sentence pairs of batches whose loss or gradient was not finite."""
TOKENS = "tokens"
"""Directory of the tokenized training corpora."""
BASE = "base"
"""With LoRA, the model that the adapters were trained on: a workdir with one checkpoint that has no
training state, or a bundle.
"""
PROFILE = "profile"
"""Directory of profiler traces."""

INFERENCE_FILES = frozenset({CONFIG, TOKENIZER, SOURCE_TOKENIZER})
"""The files that translating reads, beside the parameters."""


def opened(workdir: paths.Readable) -> epath.Path | zipfile.Path:
    """The directory of a run, or the root of a bundle, whose files are read in the same way.

    Raises:
      InputError: when it does not exist or is neither, or when a file in it is not a regular file.
    """
    if isinstance(workdir, zipfile.Path):
        return workdir
    path = paths.reachable(workdir)
    if path.is_dir():
        for name in INFERENCE_FILES:
            file = path / name
            if file.exists() and not paths.is_regular_file(file):  # reading a FIFO would wait
                raise InputError(f"{file} is not a regular file; restore it from a copy")
        return path
    if not path.exists():
        raise InputError(f"{workdir} does not exist; train first, or check the path")
    try:
        if not paths.is_regular_file(path):
            raise OSError("not a regular file")
        file = io.BytesIO(path.read_bytes()) if paths.is_remote(path) else os.fspath(path)
        bundle = zipfile.ZipFile(file)
        for name in INFERENCE_FILES.intersection(bundle.namelist()):
            bundle.read(name)  # compares its checksum
        return zipfile.Path(bundle)
    # A damaged archive raises many types.
    except Exception as error:  # noqa: BLE001
        raise InputError(
            f"{workdir} is not a workdir, and cannot be read as a bundle ({paths.reason(error)}); "
            "check the path, or copy the bundle again"
        ) from None


def require_readable_name(workdir: epath.Path) -> None:
    """Refuse a path in which no checkpoint could be found again.

    Orbax looks for the files of a checkpoint with a pattern that begins with its path.

    Raises:
      InputError: for a path with a special character of such patterns.
    """
    if special := {*str(workdir)} & {*"*?["}:
        raise InputError(
            f"{workdir} has {min(special)!r} in its path, which Orbax takes for a pattern of "
            "names; use a directory without it"
        )


def load_config(workdir: paths.Readable) -> Config:
    """Load the config that a workdir or a bundle was trained with.

    Raises:
      InputError: when the directory or the file is missing or unreadable.
    """
    path = opened(workdir) / CONFIG
    try:
        return Config.from_json(path.read_bytes().decode("utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}); is this a workdir of train?") from None


def load_runs(workdir: paths.Readable) -> list[dict[str, Any]]:
    """The starts of a training that began or changed it, oldest first.

    Each has ``step``, ``time``, ``provenance`` and ``changes``: field -> [old, new]. Workdirs of
    earlier versions have none.
    """
    try:
        runs = json.loads((opened(workdir) / CONFIG).read_text(encoding="utf-8"))[RUNS]
        return [run for run in runs if run.keys() >= {"step", "time", "changes", "provenance"}]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return []


def load_changes(workdir: paths.Readable) -> list[dict[str, Any]]:
    """The runs that changed fields of the config, oldest first; see `load_runs`."""
    return [run for run in load_runs(workdir) if run["changes"]]


def may_change_after_training(path: str, config: Config) -> bool:
    """Whether a field, for example ``decode.beams``, can be overridden for a trained workdir.

    Others have no effect any more, or would give the trained parameters another function.
    """
    group, _, name = path.partition(".")
    if group == "model":
        return name in config.model.free_after_training
    if group == "data":
        return name not in _OF_TRAINING_DATA
    return group in ("decode", "parallel", "evaluation", "logging") or path == "training.best_by"


_OF_TRAINING_DATA = (
    *("tokenizer", "tokenizer_model", "vocabulary", "source_tokenizer_model", "token_cache"),
    *("character_coverage", "subword_sampling", "tokenizing_threads", "packing"),
)


def load_inference_config(workdir: paths.Readable) -> Config:
    """Load the config of a workdir for use on one device.

    The ``parallel`` fields describe the machine that trained the model, so they are reset.
    """
    return load_config(workdir).replace(parallel=ParallelConfig())


def write_bytes(path: epath.PathLike, data: bytes) -> None:
    """Write a file as `paths.write_atomic`; an InputError if it cannot be written."""
    try:
        paths.write_atomic(epath.Path(path), data)
    # Each object store raises its own exception types.
    except Exception as error:  # noqa: BLE001
        raise InputError(
            f"{path} cannot be written: {paths.reason(error)}; make it writable, or free "
            "space there"
        ) from None


def write_text(path: epath.PathLike, text: str) -> None:
    """Write a UTF-8 text file atomically; see `write_bytes`."""
    write_bytes(path, text.encode())


def config_text(config: Config, runs: Sequence[Mapping[str, Any]]) -> str:
    """The text of `CONFIG`: the fields, and the runs of `load_runs`."""
    return json_text(config.to_dict() | {RUNS: list(runs)})


def write_json(path: epath.PathLike, value: Any) -> None:
    """Write an indented JSON file atomically; see `write_bytes`."""
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """Indented JSON that ends its last line."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
