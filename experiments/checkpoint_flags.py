# SPDX-License-Identifier: Apache-2.0
"""Which weights an app uses: the flags of every app that reads a workdir, and what they load."""

from absl import flags
from etils import epath

from transformer import paths
from transformer.config import Config
from transformer.translator import Translator

WORKDIR = flags.DEFINE_string("workdir", None, "Directory that train left.")
AVERAGE = flags.DEFINE_integer(
    "average", None, "Use the mean of so many checkpoints instead of the best one."
)
AROUND = flags.DEFINE_enum(
    "around",
    "last",
    ["last", "best"],
    "Which checkpoints --average takes: the last ones, or those about the best.",
)
ENSEMBLE = flags.DEFINE_list(
    "ensemble",
    None,
    "Further workdirs, separated by commas, with the same vocabulary: all models' probabilities "
    "are averaged.",
)


def directory() -> epath.Path:
    """The workdir."""
    return paths.reachable(WORKDIR.value)


def translator(config: Config) -> Translator:
    """The model that the flags ask for, or the ensemble of models."""
    return Translator.from_workdir(
        directory(), config, AVERAGE.value, AROUND.value, ENSEMBLE.value or ()
    )


def description(config: Config) -> str:
    """What the flags ask for, in words."""
    words = f"the best checkpoint by validation {config.training.best_by.upper()}"
    if AVERAGE.value is not None:
        which = {"last": "the last", "best": "the best and its neighbours, together"}[AROUND.value]
        words = f"the mean of {which} {AVERAGE.value} checkpoints"
    if ENSEMBLE.value:
        words += f", in an ensemble with {', '.join(ENSEMBLE.value)}"
    return words


def suffix() -> str:
    """Of the names of evaluations, so that those of other weights have other names."""
    name = ""
    if AVERAGE.value is not None:
        name += f"-average{AVERAGE.value}" + "-around_best" * (AROUND.value == "best")
    if ENSEMBLE.value:
        name += f"-ensemble{1 + len(ENSEMBLE.value)}"
    return name
