# SPDX-License-Identifier: Apache-2.0
"""Reverse strings of 5 to 20 letters: attention must run against the word order.

Run:    transformer train --config=reverse --workdir=runs/reverse
Expect: 99% exact match or more on unseen strings, after a minute on two CPU cores.
"""

from experiments.configs.copy import symbols
from transformer.config import Config


def get_config() -> Config:
    """Return the config."""
    return symbols("reverse")
