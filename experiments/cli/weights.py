# SPDX-License-Identifier: Apache-2.0
"""The options that select a trained model: a workdir, which of its checkpoints, an ensemble."""

import dataclasses
from typing import Literal

from etils import epath

from transformer import paths
from transformer.checkpoints import workdir_files
from transformer.config import Config
from transformer.errors import InputError
from transformer.translator import Translator


@dataclasses.dataclass(frozen=True)
class Weights:
    """Which trained weights an app uses, and with which config."""

    config: Config | None = None
    """The config of the workdir with other decoding fields; by default as it is there."""
    workdir: str | None = None
    """Directory of a run, which `train` made, or a bundle."""
    average: int | None = None
    """Use the mean of this number of checkpoints instead of the best checkpoint."""
    around: Literal["last", "best"] = "last"
    """Checkpoints that --average uses: the last ones, or the best one and its neighbors."""
    ensemble: tuple[str, ...] | None = None
    """Comma-separated workdirs with the same vocabulary; the probabilities of all models are
    averaged.
    """

    def __post_init__(self) -> None:
        if self.config is None:
            object.__setattr__(self, "config", workdir_files.load_inference_config(self.directory))

    @property
    def directory(self) -> epath.Path:
        """The workdir or the bundle."""
        if not self.workdir:
            raise InputError("missing --workdir=DIRECTORY, where train left its results")
        return paths.reachable(self.workdir)

    def translator(self) -> Translator:
        """Load the model or the ensemble."""
        return Translator.from_workdir(
            *(self.directory, self.config, self.average, self.around, self.ensemble or ())
        )

    def description(self) -> str:
        """Describe the weights in words."""
        words = describe(self.config, self.average, self.around)
        if self.ensemble:
            words += f", in an ensemble with {', '.join(self.ensemble)}"
        return words


def describe(config: Config, average: int | None, around: Literal["last", "best"]) -> str:
    """Describe a choice of checkpoints in words."""
    if average is None:
        return f"the best checkpoint by validation {config.training.best_by.upper()}"
    which = {"last": "the last", "best": "the best and its neighbors, together"}[around]
    return f"the mean of {which} {average} checkpoints"
