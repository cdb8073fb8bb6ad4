# SPDX-License-Identifier: Apache-2.0
"""The small model of notebooks and studies, trained on first use.

translator = small_model.load(seed=0, folder="runs")
"""

import os

from etils import epath

from experiments.configs import pronouns_small
from experiments.storage import file_lock
from experiments.training import loop, workdir
from transformer import paths
from transformer.checkpoints import workdir_files
from transformer.errors import InputError
from transformer.translator import Translator


def load(seed: int = 0, folder: str | os.PathLike = "runs") -> Translator:
    """Load the model of ``experiments/configs/pronouns_small.py`` of one seed; train it if needed.

    Its workdir is ``<folder>/pronouns_small_<seed>``, which every app can read. The first call
    trains for about a minute of processor time, with its log on standard error. A training that was
    interrupted continues from its last checkpoint. Other processes wait.
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
                loop.train(config, directory)
    except OSError as error:
        raise InputError(
            f"{error.filename or directory} cannot be written ({error.strerror}); name a writable "
            "folder"
        ) from None
    return Translator.from_workdir(directory)
