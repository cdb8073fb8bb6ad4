# SPDX-License-Identifier: Apache-2.0
"""Sort strings of 5 to 20 letters: each target word depends on all source words.

Run:    transformer train --config=sort --workdir=runs/sort
Expect: about 95% exact match on unseen strings, after a minute on two CPU cores.
"""

from experiments.configs.copy import symbols
from transformer.config import Config


def get_config() -> Config:
    """Return the config."""
    return symbols("sort")
