# SPDX-License-Identifier: Apache-2.0
"""The base model that LoRA adapters were trained on, kept once in the workdir of the adapters.

Checkpoints of the workdir hold adapters only. Their `Identity` has the digest of the base.
"""

import hashlib
import json
from typing import Any

from etils import epath

from transformer import paths, processes
from transformer.checkpoints import integrity, workdir_files
from transformer.config import TrainingConfig
from transformer.errors import InputError


def copy_into(workdir: epath.Path, source: epath.Path, step: int | None) -> None:
    """Copy a model to ``base`` in a workdir, atomically. An earlier copy is replaced.

    Args:
      workdir: directory of the training of the adapters.
      source: a workdir or a bundle.
      step: the checkpoint of a workdir to copy, without its training state; None for a bundle.
    """
    processes.from_main_process(lambda: _copy(workdir / workdir_files.BASE, source, step))


def adapters_identity(workdir: epath.Path, config: TrainingConfig) -> dict[str, Any] | None:
    """`Identity.adapters` of a workdir; None without LoRA. Its base must be there."""
    if not config.lora_rank:
        return None
    base = workdir / workdir_files.BASE
    if not base.exists():
        raise InputError(
            f"{base} is missing: the adapters in {workdir} need this model; restore it from a copy"
        )
    return {
        "rank": config.lora_rank,
        "alpha": config.lora_alpha,
        "targets": [*config.lora_targets],
        "without": [*config.freeze],
        "base": processes.from_main_process(lambda: _digest(base)),
    }


def _copy(target: epath.Path, source: epath.Path, step: int | None) -> None:
    partial = target.with_name(f"{target.name}.partial")
    try:
        for path in (partial, target):
            if path.is_dir():
                path.rmtree()
            elif path.exists():
                path.unlink()
        if step is None:
            paths.write_atomic(target, source.read_bytes())
            return
        names = (workdir_files.CONFIG, workdir_files.TOKENIZER, workdir_files.SOURCE_TOKENIZER)
        checkpoints = epath.Path(workdir_files.CHECKPOINTS)
        for name in (*names, checkpoints / str(step), checkpoints / "digests" / f"{step}.json"):
            _copy_tree(source / name, partial / name)
        partial.rename(target)
    # Each object store raises its own exception types.
    except Exception as error:  # noqa: BLE001
        raise InputError(
            f"the base of the adapters could not be copied from {source} to {target}: "
            f"{paths.reason(error)}; make it writable, or free space there"
        ) from None


def _copy_tree(source: epath.Path, target: epath.Path) -> None:
    """Copy a file or a directory, if it exists, without the training state."""
    if source.is_dir():
        for path in source.iterdir():
            if path.name != "progress":
                _copy_tree(path, target / path.name)
    elif source.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        source.copy(target)


def _digest(base: epath.Path) -> str:
    if not base.is_dir():
        return integrity.file_digest(base)
    digests = integrity.directory_digests(base)
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()
