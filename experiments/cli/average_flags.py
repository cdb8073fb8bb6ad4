# SPDX-License-Identifier: Apache-2.0
"""Flags that select the checkpoints of a training: the best one, or the mean of several."""

from absl import flags

from transformer.config import Config

AVERAGE = flags.DEFINE_integer(
    "average", None, "Use the mean of this number of checkpoints instead of the best checkpoint."
)
AROUND = flags.DEFINE_enum(
    "around",
    "last",
    ["last", "best"],
    "Checkpoints that --average uses: the last ones, or the best one and its neighbors.",
)


def description(config: Config) -> str:
    """Describe the selected weights in words."""
    if AVERAGE.value is None:
        return f"the best checkpoint by validation {config.training.best_by.upper()}"
    which = {"last": "the last", "best": "the best and its neighbors, together"}[AROUND.value]
    return f"the mean of {which} {AVERAGE.value} checkpoints"
