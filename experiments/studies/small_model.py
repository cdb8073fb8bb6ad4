# SPDX-License-Identifier: Apache-2.0
"""The small model that notebooks and studies look into, trained when it is first asked for.

translator = small_model.load(seed=0, folder="runs")
"""

import contextlib
import io
import os
import sys
import time

from etils import epath

from experiments import compose, file_lock, logs, workdir
from experiments.configs import pronouns_small
from experiments.profiling import Profile
from experiments.trainer import Trainer, fresh_meta
from transformer import paths
from transformer.checkpoints import workdir_files
from transformer.checkpoints.manager import Checkpoints
from transformer.config import Config, TrainingConfig
from transformer.errors import InputError
from transformer.translator import Translator


def load(seed: int = 0, folder: str | os.PathLike = "runs") -> Translator:
    """The model of ``experiments/configs/pronouns_small.py``, trained from one seed.

    It is the workdir ``<folder>/pronouns_small_<seed>``, which every app can read. The first call
    trains it, within about a minute of processor time, and shows one line of progress on standard
    error; later calls open it. A second process that asks meanwhile waits for the first. Where a
    training was interrupted, the next call goes on from its last checkpoint.

    Args:
      seed: of the parameters, of dropout and of the order of the sentences.
      folder: on this machine; made if missing.

    Raises:
      InputError: when the workdir cannot be written, is damaged, or holds another config's model.
    """
    config = pronouns_small.get_config()
    config = config.replace(training=config.training.replace(seed=seed))
    directory = epath.Path(paths.local(folder, "folder")) / f"pronouns_small_{seed}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # This is the lock of `workdir.open_for_training`: `experiments.train` is refused meanwhile.
        with file_lock.hold(directory, f"waiting for another process that trains {directory}"):
            config = workdir.resume_config(config, directory)
            if not (directory / workdir_files.RESULT).exists():
                _train(config, directory)
    except OSError as error:
        raise InputError(
            f"{error.filename or directory} cannot be written ({error.strerror}); name a folder in "
            "which files can be made"
        ) from None
    return Translator.from_workdir(directory)


def _train(config: Config, directory: epath.Path) -> None:
    """Trains to the end, as `experiments.train` does."""
    began = time.monotonic()
    with (
        _OneLine(config.training) as progress,
        # What the parts of a training say belongs on a terminal, not into a notebook.
        contextlib.redirect_stderr(io.StringIO()),
        Checkpoints(directory, config.training, writing=True) as checkpoints,
    ):
        experiment = compose.build(config, directory)
        restored = checkpoints.restore(experiment.abstract_state)
        state, meta = restored or (experiment.init_state(), fresh_meta())
        with (
            logs.MetricsLog(directory, int(state.step), config.logging.tensorboard) as log,
            Profile(None, directory / workdir_files.PROFILE) as profile,
            contextlib.closing(experiment.data.train.iterate(int(state.step))) as batches,
        ):
            workdir.initialize(directory, config, experiment.tokenizer)
            trainer = Trainer(
                experiment, state, meta, began, directory, checkpoints, log, progress, profile
            )
            while not trainer.finished:
                trainer.update(next(batches))
    workdir_files.write_json(directory / workdir_files.RESULT, trainer.result())


class _OneLine(logs.Progress):
    """One line on standard error that is written over and over."""

    def __init__(self, training: TrainingConfig):
        super().__init__(0, training.steps, shown=False)
        self._name = f"training the small model, seed {training.seed}"
        self._steps, self._stream = training.steps, sys.stderr
        self._write("preparing the sentences")

    def report(self, step: int, values: dict[str, float]) -> None:
        """How far it is, and how well it does."""
        self._write(f"step {step} of {self._steps}, loss {values['loss']:.2f}")

    def __exit__(self, *_: object) -> None:
        print(file=self._stream, flush=True)

    def _write(self, text: str) -> None:
        print(f"\r{self._name}: {text:<40}", end="", file=self._stream, flush=True)
