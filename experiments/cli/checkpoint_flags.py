# SPDX-License-Identifier: Apache-2.0
"""Flags that select the weights of a workdir, and the translator that they describe."""

from absl import flags
from etils import epath

from experiments.cli import average_flags
from experiments.cli.workdir_flag import WORKDIR
from transformer import paths
from transformer.config import Config
from transformer.translator import Translator

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
        directory(),
        config,
        average_flags.AVERAGE.value,
        average_flags.AROUND.value,
        ENSEMBLE.value or (),
    )


def description(config: Config) -> str:
    """Describe the selected weights in words."""
    words = average_flags.description(config)
    if ENSEMBLE.value:
        words += f", in an ensemble with {', '.join(ENSEMBLE.value)}"
    return words
