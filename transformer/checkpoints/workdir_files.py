# SPDX-License-Identifier: Apache-2.0
"""The files of a workdir: their names, loading the config, and atomic writes.

A workdir is the directory of one training run. Everything needed to translate is in it, so it can
be copied to another machine.
"""

import json
from typing import Any

from etils import epath

from transformer import paths
from transformer.config import Config, ParallelConfig
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
LEXICON = "shortlist.npz"
"""Lexical translation table of `experiments.learn_lexicon`, for ``decode.shortlist``."""
SKIPPED = "skipped"
"""Directory of the batches whose loss or gradient was not finite."""
TOKENS = "tokens"
"""Directory of the tokenized training corpora."""
PROFILE = "profile"
"""Directory of profiler traces."""


def load_config(workdir: epath.PathLike) -> Config:
    """Load the config that a workdir was trained with.

    Raises:
      InputError: when the directory or the file is missing or unreadable.
    """
    workdir = paths.reachable(workdir)
    path = workdir / CONFIG
    if not workdir.is_dir():
        raise InputError(f"{workdir} does not exist; train first, or check the path")
    try:
        return Config.from_json(path.read_bytes().decode("utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}); is this a workdir of train?") from None


def load_inference_config(workdir: epath.PathLike) -> Config:
    """Load the config of a workdir for use on one device.

    The ``parallel`` fields describe the machine that trained the model, so they are reset.

    Raises:
      InputError: see `load_config`.
    """
    return load_config(workdir).replace(parallel=ParallelConfig())


def write_bytes(path: epath.PathLike, data: bytes) -> None:
    """Write a file atomically: readers see the previous content or all of the new one.

    Raises:
      InputError: when the file cannot be written; its previous content is kept.
    """
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


def write_json(path: epath.PathLike, value: Any) -> None:
    """Write an indented JSON file atomically; see `write_bytes`."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")
