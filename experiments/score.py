# SPDX-License-Identifier: Apache-2.0
"""Scores given translations.

python -m experiments.score --workdir=runs/de --source=FILE --target=FILE

For each line: the natural-log probability of the target given the source, a tab, and the target's
number of tokens. The end token is in both.
"""

from absl import flags

from experiments import checkpoint_flags
from experiments.corpora.text_files import read_pairs
from experiments.flags import run
from transformer.config import Config
from transformer.errors import InputError

SOURCE = flags.DEFINE_string("source", None, "Text file, one sentence a line.")
TARGET = flags.DEFINE_string("target", None, "Its translations, line by line.")


def main(config: Config) -> None:
    """Reads both files and prints a line for each pair."""
    for name, path in (("source", SOURCE.value), ("target", TARGET.value)):
        if not path:
            raise InputError(f"missing --{name}=FILE")
    sources, targets = read_pairs(SOURCE.value, TARGET.value)
    translator = checkpoint_flags.translator(config)
    for log_prob, tokens in translator.score(sources, targets):
        print(f"{log_prob:.6f}\t{tokens}")


if __name__ == "__main__":
    run(main, config_from="workdir")
