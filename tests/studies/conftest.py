# SPDX-License-Identifier: Apache-2.0
"""A tiny experiment that the studies train."""

import pytest

from experiments.cli import config_flags


@pytest.fixture(scope="session")
def tiny(train):
    """The config that trains a tiny model on letters, with fields such as "model.d_ff=8"."""

    def config(*fields):
        short = ("training.steps=20", "training.validate_every=10", "logging.tensorboard=0")
        flags = train("unused", *(f"--config.{field}" for field in (*short, *fields)))
        return config_flags.load(["app", *flags], "config")[0]

    return config
