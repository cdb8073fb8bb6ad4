# SPDX-License-Identifier: Apache-2.0
"""Score given translations.

transformer score --workdir=runs/de --source=FILE --target=FILE

Prints for each line the natural-log probability of the target given the source and the number of
target tokens, separated by a tab. EOS is included in both.
"""

import dataclasses

from experiments.cli import command_line
from experiments.cli.weights import Weights
from experiments.data.text_files import TwoFiles
from transformer.errors import InputError


@dataclasses.dataclass(frozen=True)
class Options(Weights):
    """The model, and the sentence pairs."""

    source: str | None = None
    """Text file, one sentence a line."""
    target: str | None = None
    """Text file with the translation of each line."""


def run(options: Options) -> list[tuple[float, int]]:
    """The natural-log probability of each target, and its number of tokens; both include EOS."""
    for name in ("source", "target"):
        if not getattr(options, name):
            raise InputError(f"missing --{name}=FILE")
    sources, targets = TwoFiles(options.source, options.target).read()
    return options.translator().score(sources, targets)


def main(options: Options) -> None:
    """Print a line for each sentence pair."""
    for log_prob, num_tokens in run(options):
        print(f"{log_prob:.6f}\t{num_tokens}")


if __name__ == "__main__":
    command_line.run(main, "workdir", Options)
