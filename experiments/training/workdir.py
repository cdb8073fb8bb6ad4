# SPDX-License-Identifier: Apache-2.0
"""Opening a workdir for training: one config, one training at a time."""

import contextlib
import datetime
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from etils import epath

from experiments.data import registry, text_files
from experiments.storage import file_lock
from transformer import paths, user_functions
from transformer.checkpoints import workdir_files
from transformer.config import Config
from transformer.errors import InputError
from transformer.fields import difference
from transformer.provenance import provenance
from transformer.text.tokenizer import Vocabularies

logger = logging.getLogger(__name__)

_NOT_COMPARED = (
    *("parallel.", "logging."),
    *("training.memory_limit_gib", "data.token_cache", "data.tokenizing_threads"),
    *("model.attention_kernel", "model.remat"),
)
"""Prefixes of the fields that do not change results, but for rounding."""

_OF_THE_STATE = (
    *("optimizer.name", "optimizer.clip_norm", "optimizer.weight_decay", "optimizer.beta1"),
    *("training.seed", "data.tokenizer", "data.vocabulary", "data.character_coverage"),
    *("training.init_from", "training.freeze", "training.ema_decay"),
    *("training.lora_rank", "training.lora_alpha", "training.lora_targets"),
)
"""Fields that determine the vocabulary, the random key, the first weights, what is trained, or the
optimizer's state.
"""


@contextlib.contextmanager
def open_for_training(
    workdir: epath.Path, config: Config, allow_changes: bool = False
) -> Iterator[Config]:
    """Create the directory, lock it against other trainings, and check its config.

    Object stores have no locks: there, starting only one training per workdir is up to the user.

    The config is written by `initialize`, after data and vocabulary have been checked, so a failed
    start can be repeated with a corrected config.

    Yields:
      The config to train with; see `resume_config`.

    Raises:
      InputError: when the directory cannot be written or read again, when another training runs
        in it, or when it was started with another config.
    """
    workdir_files.require_readable_name(workdir)
    with contextlib.ExitStack() as stack:
        if not paths.is_remote(workdir):
            if workdir.exists() and not workdir.is_dir():
                raise InputError(f"--workdir={workdir} is a file; name a directory")
            try:
                workdir.mkdir(parents=True, exist_ok=True)
                stack.enter_context(file_lock.hold(workdir))
            except BlockingIOError:
                raise InputError(
                    f"another training is running in {workdir}; wait for it, or use another "
                    "--workdir"
                ) from None
            except OSError as error:
                raise InputError(
                    f"--workdir={workdir} cannot be written: {paths.reason(error)}; name a "
                    "writable directory"
                ) from None
        yield resume_config(config, workdir, allow_changes)


def resume_config(config: Config, workdir: epath.Path, allow_changes: bool = False) -> Config:
    """Check a config against the one that the workdir was started with.

    Args:
      config: to train with.
      workdir: directory of the run.
      allow_changes: accept and log changes that leave the parameters and the optimizer's state
        usable.

    Returns:
      `config` with absolute paths. With ``batch_fitting='auto'`` it includes the micro-batch
      count chosen when the run started.

    Raises:
      InputError: when the configs differ in a field that changes results.
    """
    config = with_absolute_paths(config)
    trained = has_checkpoints(workdir)
    files = [workdir_files.CONFIG, workdir_files.TOKENIZER]
    if config.data.vocabulary == "separate":
        files.append(workdir_files.SOURCE_TOKENIZER)
    for needed in files:
        if trained and not (workdir / needed).exists():
            raise InputError(
                f"{workdir} has checkpoints but no {needed}, without which they cannot be used; "
                "restore the file, or choose another --workdir"
            )
    if not (workdir / workdir_files.CONFIG).exists():
        return config
    # Earlier versions kept relative paths.
    saved = with_absolute_paths(workdir_files.load_config(workdir))
    fitted = config.training.batch_fitting == saved.training.batch_fitting == "auto"
    if fitted and config.training.micro_batches is None:
        micro_batches = saved.training.micro_batches
        config = config.replace(training=config.training.replace(micro_batches=micro_batches))
    changed = changes(saved, config)
    before, after = changed.get("training.steps", (0, 0))
    if after > before:
        del changed["training.steps"]
        logger.warning("%s continues from %d to %d steps", workdir, before, after)
    lines = [f"  {path}: {old!r} there, {new!r} now" for path, (old, new) in changed.items()]
    impossible = [path for path in changed if path in _OF_THE_STATE]
    impossible += saved.model.changes(config.model)
    if changed and allow_changes and not impossible:
        logger.warning("%s continues with changes:\n%s", workdir, "\n".join(lines))
    elif changed:
        remedy = "use that config, or choose another --workdir"
        if allow_changes:
            remedy = f"what was trained does not fit another {impossible[0]}; {remedy}"
        elif not impossible:
            remedy += ", or give --continue_with_changes to train"
        raise InputError(
            f"{workdir} was started with another config:\n" + "\n".join(lines) + f"\n{remedy}"
        )
    return config


def has_checkpoints(workdir: epath.Path) -> bool:
    """Whether a training has saved in this workdir."""
    steps = paths.children(workdir / workdir_files.CHECKPOINTS)
    return any(path.name.isdigit() for path in steps)


def changes(saved: Config, config: Config) -> dict[str, tuple[Any, Any]]:
    """The fields that change results and differ: name -> (saved, new)."""
    changed = difference(saved, config)
    return {path: both for path, both in changed.items() if not path.startswith(_NOT_COMPARED)}


def with_absolute_paths(config: Config) -> Config:
    """The config with absolute paths, so that any working directory can continue the run."""

    def absolute(path: str | None) -> str | None:
        return path and os.fspath(paths.absolute(path))

    def absolute_name(name: str | None) -> str | None:
        """With an absolute path if the name is ``FILE.py:FUNCTION``."""
        return absolute(name) if name and user_functions.is_function(name) else name

    def absolute_entry(entry: str) -> str:
        """With absolute paths in ``WEIGHT*SOURCE,TARGET`` or ``FILE.tsv``."""
        weight, star, corpus = entry.partition("*") if "*" in entry else ("", "", entry)
        if "," not in corpus and not text_files.is_tsv(corpus):
            return weight + star + absolute_name(corpus)
        return weight + star + ",".join(map(absolute, corpus.split(",")))

    data, optimizer, evaluation = config.data, config.optimizer, config.evaluation
    files = ["tokenizer_model", "source_tokenizer_model", "token_cache"]
    files += [f"{split}_{side}" for split in registry.SPLITS for side in ("source", "target")]
    changed = {name: absolute(getattr(data, name)) for name in files}
    changed["mixture"] = tuple(map(absolute_entry, data.mixture))
    changed["dataset"] = absolute_name(data.dataset)
    training = config.training.replace(init_from=absolute(config.training.init_from))
    return config.replace(
        data=data.replace(**changed),
        training=training,
        decode=config.decode.replace(truncation=absolute_name(config.decode.truncation)),
        optimizer=optimizer.replace(name=absolute_name(optimizer.name)),
        evaluation=evaluation.replace(metrics=tuple(map(absolute_name, evaluation.metrics))),
    )


def initialize(
    workdir: epath.Path,
    config: Config,
    vocabularies: Vocabularies,
    step: int = 0,
    init_from: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> None:
    """Write the config and the vocabularies, before the first step after `step`.

    ``config.json`` also records the starts of the run that began it, changed the config, or used
    another version of the program. The first one has `init_from`: the checkpoints, by workdir, that
    the training started from.
    """
    models = {workdir_files.TOKENIZER: vocabularies.target.model}
    if not vocabularies.are_shared:
        models[workdir_files.SOURCE_TOKENIZER] = vocabularies.source.model
    for name, model in models.items():
        if not (workdir / name).exists():
            workdir_files.write_bytes(workdir / name, model)
    path, changed = workdir / workdir_files.CONFIG, {}
    if path.exists():
        changed = changes(with_absolute_paths(workdir_files.load_config(workdir)), config)
    runs, made_by = workdir_files.load_runs(workdir), provenance()
    if changed or not runs or runs[-1]["provenance"] != made_by:
        time = datetime.datetime.now(datetime.UTC).isoformat("T", "seconds")
        run = {"step": step, "time": time, "changes": changed, "provenance": made_by}
        runs.append(run | ({"init_from": dict(init_from)} if init_from else {}))
    workdir_files.write_text(path, workdir_files.config_text(config, runs))
