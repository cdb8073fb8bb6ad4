# SPDX-License-Identifier: Apache-2.0
"""Flags that select the weights of a workdir, and the translator that they describe."""

from absl import flags
from etils import epath

from experiments.workdir_flag import WORKDIR
from transformer import paths
from transformer.config import Config
from transformer.translator import Translator

AVERAGE = flags.DEFINE_integer(
    "average", None, "Use the mean of this number of checkpoints instead of the best checkpoint."
)
AROUND = flags.DEFINE_enum(
    "around",
    "last",
    ["last", "best"],
    "Checkpoints that --average uses: the last ones, or the best one and its neighbors.",
)
ENSEMBLE = flags.DEFINE_list(
    "ensemble",
    None,
    "Comma-separated workdirs with the same vocabulary; the probabilities of all models are "
    "averaged.",
)


def directory() -> epath.Path:
    """Return the workdir."""
    return paths.reachable(WORKDIR.value)


def translator(config: Config) -> Translator:
    """Load the model or the ensemble that the flags select."""
    return Translator.from_workdir(
        directory(), config, AVERAGE.value, AROUND.value, ENSEMBLE.value or ()
    )


def description(config: Config) -> str:
    """Describe the selected weights in words."""
    words = f"the best checkpoint by validation {config.training.best_by.upper()}"
    if AVERAGE.value is not None:
        which = {"last": "the last", "best": "the best and its neighbors, together"}[AROUND.value]
        words = f"the mean of {which} {AVERAGE.value} checkpoints"
    if ENSEMBLE.value:
        words += f", in an ensemble with {', '.join(ENSEMBLE.value)}"
    return words
