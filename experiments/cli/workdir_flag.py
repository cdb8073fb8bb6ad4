# SPDX-License-Identifier: Apache-2.0
"""The flag ``--workdir`` of every app that has one; absl refuses a second definition."""

from absl import flags

WORKDIR = flags.DEFINE_string(
    "workdir", None, "Directory of a run: `train` makes and fills it, the other apps read it."
)
