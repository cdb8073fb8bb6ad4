# SPDX-License-Identifier: Apache-2.0
"""The small model of notebooks and studies, trained on first use.

translator = small_model.load(seed=0, folder="runs")
"""

import contextlib
import io
import os
import sys

from etils import epath

from experiments import file_lock, logs, train, workdir
from experiments.configs import pronouns_small
from transformer import paths
from transformer.checkpoints import workdir_files
from transformer.config import Config, TrainingConfig
from transformer.errors import InputError
from transformer.translator import Translator


def load(seed: int = 0, folder: str | os.PathLike = "runs") -> Translator:
    """Load the model of ``experiments/configs/pronouns_small.py`` of one seed; train it if needed.

    Its workdir is ``<folder>/pronouns_small_<seed>``, which every app can read. The first call
    trains for about a minute of processor time and shows one line of progress on standard error. A
    training that was interrupted continues from its last checkpoint. Other processes wait.

    Args:
      seed: of the parameters, of dropout and of the order of the sentences.
      folder: on this machine; created if missing.

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
    """Train to the end, showing one line of progress instead of a log."""
    progress = _OneLine(config.training)
    with contextlib.redirect_stderr(io.StringIO()):
        train.train(config, directory, progress=progress)


class _OneLine(logs.Progress):
    """One line on standard error, overwritten at every report."""

    def __init__(self, training: TrainingConfig):
        super().__init__(0, training.steps, shown=False)
        self._name = f"training the small model, seed {training.seed}"
        # Later, standard error is redirected.
        self._steps, self._stream = training.steps, sys.stderr
        self._write("preparing the sentences")

    def report(self, step: int, values: dict[str, float]) -> None:
        """Show the step and the loss."""
        self._write(f"step {step} of {self._steps}, loss {values['loss']:.2f}")

    def __exit__(self, *_: object) -> None:
        print(file=self._stream, flush=True)

    def _write(self, text: str) -> None:
        print(f"\r{self._name}: {text:<40}", end="", file=self._stream, flush=True)
