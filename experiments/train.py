# SPDX-License-Identifier: Apache-2.0
"""Train a model.

python -m experiments.train --config=experiments/configs/pronouns.py --workdir=runs/de

The same command continues a training that was stopped. The last line on standard output is one JSON
object with the result, which is also written to result.json in the workdir. Ctrl-C, SIGTERM and
SIGHUP save before they stop. With --distributed, several processes started with the same command
train together.
"""

import contextlib
import json
from collections.abc import Iterator

from absl import flags
from etils import epath

from experiments.cli import cluster_flags
from experiments.cli.command_line import run
from experiments.cli.workdir_flag import WORKDIR
from experiments.training import allocator, distributed, loop, workdir
from transformer import paths
from transformer.config import Config
from transformer.errors import InputError

CONTINUE_WITH_CHANGES = flags.DEFINE_boolean(
    "continue_with_changes",
    False,
    "Continue a workdir with another learning rate, data, ...; config.json records the changes.",
)
PROFILE = flags.DEFINE_integer(
    "profile", None, "Number of steps to trace; the trace is written to the workdir's profile/."
)
VERBOSE = flags.DEFINE_boolean("verbose", False, "Print the table of parameters on one device too.")


def main(config: Config) -> int:
    """Train and print the result; returns the exit status."""
    if not WORKDIR.value:
        raise InputError("missing --workdir=DIRECTORY, where the results go")
    directory = paths.reachable(WORKDIR.value)
    allow_changes = CONTINUE_WITH_CHANGES.value
    allocator.use_few_arenas()
    with cluster_flags.joined(), _opened(directory, config, allow_changes) as config:
        result, stopped_by = loop.train(
            config,
            directory,
            profile_steps=PROFILE.value,
            handle_signals=True,
            allow_changes=allow_changes,
            verbose=VERBOSE.value,
        )
        if result and distributed.is_main():
            print(json.dumps(result))
    return 128 + stopped_by if stopped_by else 0


@contextlib.contextmanager
def _opened(directory: epath.Path, config: Config, allow_changes: bool) -> Iterator[Config]:
    """The config to train with; process 0 locks the workdir for all processes."""
    with contextlib.ExitStack() as stack:
        with distributed.all_or_none(f"use {directory}"):
            if distributed.is_main():
                opened = workdir.open_for_training(directory, config, allow_changes)
                config = stack.enter_context(opened)
        # After process 0 has checked the directory, the others read the same config in it.
        if not distributed.is_main():
            config = workdir.resume_config(config, directory, allow_changes)
        yield config


if __name__ == "__main__":
    run(main, config_from="config")
