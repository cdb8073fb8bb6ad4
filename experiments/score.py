# SPDX-License-Identifier: Apache-2.0
"""Score given translations.

python -m experiments.score --workdir=runs/de --source=FILE --target=FILE

Prints for each line the natural-log probability of the target given the source and the number of
target tokens, separated by a tab. EOS is included in both.
"""

from absl import flags

from experiments.cli import checkpoint_flags
from experiments.cli.command_line import run
from experiments.data.text_files import TwoFiles
from transformer.config import Config
from transformer.errors import InputError

SOURCE = flags.DEFINE_string("source", None, "Text file, one sentence a line.")
TARGET = flags.DEFINE_string("target", None, "Text file with the translation of each line.")


def main(config: Config) -> None:
    """Read both files and print a line for each sentence pair."""
    for flag in (SOURCE, TARGET):
        if not flag.value:
            raise InputError(f"missing --{flag.name}=FILE")
    sources, targets = TwoFiles(SOURCE.value, TARGET.value).read()
    translator = checkpoint_flags.translator(config)
    for log_prob, num_tokens in translator.score(sources, targets):
        print(f"{log_prob:.6f}\t{num_tokens}")


if __name__ == "__main__":
    run(main, config_from="workdir")
