# SPDX-License-Identifier: Apache-2.0
"""Train a model.

transformer train --config=pronouns --workdir=runs/de

The same command continues a training that was stopped. The last line on standard output is one JSON
object with the result, which is also written to result.json in the workdir. Ctrl-C, SIGTERM and
SIGHUP save before they stop. With --distributed, several processes started with the same command
train together.
"""

from experiments.training import allocator

if __name__ == "__main__":
    allocator.restart_with_huge_pages()  # before the slow imports

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from etils import epath

from experiments.cli import command_line
from experiments.cli.cluster import Cluster, joined
from experiments.training import distributed, loop, workdir
from transformer import paths
from transformer.config import Config
from transformer.errors import InputError


@dataclasses.dataclass(frozen=True)
class Options(Cluster):
    """What to train, and where the results go."""

    config: Config = Config()
    """The experiment; in a workdir that exists it is compared with the one there."""
    workdir: str | None = None
    """Directory of the run, which is made and filled."""
    continue_with_changes: bool = False
    """Continue a workdir with another learning rate, data, ...; config.json records the changes."""
    profile: int | None = None
    """Number of steps to trace; the trace is written to the workdir's profile/."""
    verbose: bool = False
    """Print the table of parameters on one device too."""


def run(options: Options, *, handle_signals: bool = False) -> tuple[dict[str, Any] | None, int]:
    """Train to the end, or to a signal.

    Args:
      options: see `Options`.
      handle_signals: save and return on SIGINT, SIGTERM and SIGHUP.

    Returns:
      the contents of ``result.json`` and 0, or None and the number of the signal.
    """
    if not options.workdir:
        raise InputError("missing --workdir=DIRECTORY, where the results go")
    directory, allow_changes = paths.reachable(options.workdir), options.continue_with_changes
    with joined(options), _opened(directory, options.config, allow_changes) as config:
        return loop.train(
            config,
            directory,
            profile_steps=options.profile,
            handle_signals=handle_signals,
            allow_changes=allow_changes,
            verbose=options.verbose,
        )


def main(options: Options) -> int:
    """Train and print the result; returns the exit status."""
    result, stopped_by = run(options, handle_signals=True)
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
    command_line.run(main, "config", Options)
