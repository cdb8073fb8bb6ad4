# SPDX-License-Identifier: Apache-2.0
"""Sample text from a language model.

transformer sample --workdir=runs/lm --num_samples=5
transformer sample --workdir=runs/lm --prompt="The animal didn't" --num_samples=5

Prints one line a sample; every line begins with the prompt. The next token may continue the
prompt's last word. --config.decode.seed=N draws other samples; --config.decode.temperature, top_k,
top_p and min_p adapt the distribution. With --best the lines are the most probable texts that beam
search finds, best first. With --scores, the natural-log probability of the text, prompt and EOS
included, and a tab precede each line.
"""

import dataclasses

from experiments.cli import command_line
from experiments.cli.weights import Weights
from transformer.errors import InputError
from transformer.translator import Translation


@dataclasses.dataclass(frozen=True)
class Options(Weights):
    """The model, and what to sample."""

    prompt: str = ""
    """Text that every sample begins with."""
    num_samples: int = 1
    """Number of samples."""
    best: bool = False
    """Search for the most probable texts instead."""
    scores: bool = False
    """Print the log-probability of what follows the prompt, and a tab, before a line."""


def run(options: Options) -> list[Translation]:
    """Sample or search."""
    number = options.num_samples
    if number < 1:
        raise InputError(f"--num_samples={number}, but it must be at least 1")
    command_line.require_one_line("prompt", options.prompt)
    method = {"method": "beam", "beams": number} if options.best else {"method": "sample"}
    [samples] = options.translator().continuations([options.prompt], number, **method)
    return samples


def main(options: Options) -> None:
    """Print a line for each sample."""
    for sample in run(options):
        print(f"{sample.log_prob:.6f}\t{sample.text}" if options.scores else sample.text)


if __name__ == "__main__":
    command_line.run(main, "workdir", Options)
