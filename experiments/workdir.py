# SPDX-License-Identifier: Apache-2.0
"""Opening a workdir for training: one config, one training at a time."""

import contextlib
import logging
from collections.abc import Iterator

from etils import epath

from experiments import file_lock
from transformer import paths
from transformer.checkpoints import workdir_files
from transformer.config import Config
from transformer.errors import InputError
from transformer.fields import difference
from transformer.text.tokenizer import Vocabularies

logger = logging.getLogger(__name__)

_NOT_COMPARED = (
    *("parallel.", "logging."),
    *("training.memory_limit_gib", "data.token_cache", "data.tokenizing_threads"),
)
"""Prefixes of the fields that do not change results."""


@contextlib.contextmanager
def open_for_training(workdir: epath.Path, config: Config) -> Iterator[Config]:
    """Create the directory, lock it against other trainings, and check its config.

    Object stores have no locks: there, starting only one training per workdir is up to the user.

    The config is written by `initialize`, after data and vocabulary have been checked, so a failed
    start can be repeated with a corrected config.

    Yields:
      The config to train with; see `resume_config`.

    Raises:
      InputError: when the directory cannot be written, when another training runs in it, or when
        it was started with another config.
    """
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
        yield resume_config(config, workdir)


def resume_config(config: Config, workdir: epath.Path) -> Config:
    """Check a config against the one that the workdir was started with.

    Returns:
      `config`. With ``batch_fitting='auto'`` it includes the micro-batch count chosen when the run
      started.

    Raises:
      InputError: when the configs differ in a field that changes results.
    """
    steps = paths.children(workdir / workdir_files.CHECKPOINTS)
    trained = any(path.name.isdigit() for path in steps)
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
    saved = workdir_files.load_config(workdir)
    fitted = config.training.batch_fitting == saved.training.batch_fitting == "auto"
    if fitted and config.training.micro_batches is None:
        micro_batches = saved.training.micro_batches
        config = config.replace(training=config.training.replace(micro_batches=micro_batches))
    changed = {
        path: values
        for path, values in difference(saved, config).items()
        if not path.startswith(_NOT_COMPARED)
    }
    before, after = changed.get("training.steps", (0, 0))
    if after > before:
        del changed["training.steps"]
        logger.warning("%s continues from %d to %d steps", workdir, before, after)
    if changed:
        lines = [f"  {path}: {old!r} there, {new!r} now" for path, (old, new) in changed.items()]
        raise InputError(
            f"{workdir} was started with another config:\n" + "\n".join(lines) + "\n"
            "use that config, or choose another --workdir"
        )
    return config


def initialize(workdir: epath.Path, config: Config, vocabularies: Vocabularies) -> None:
    """Write the config and the vocabularies, before the first step."""
    models = {workdir_files.TOKENIZER: vocabularies.target.model}
    if not vocabularies.are_shared:
        models[workdir_files.SOURCE_TOKENIZER] = vocabularies.source.model
    for name, model in models.items():
        if not (workdir / name).exists():
            workdir_files.write_bytes(workdir / name, model)
    workdir_files.write_text(workdir / workdir_files.CONFIG, config.to_json())
