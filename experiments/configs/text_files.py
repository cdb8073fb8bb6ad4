# SPDX-License-Identifier: Apache-2.0
"""Your own text: two files a split, one sentence a line.

Run:    transformer train --config=text_files \\
            --workdir=runs/mine \\
            --config.data.train_source=train.en --config.data.train_target=train.de \\
            --config.data.validation_source=valid.en --config.data.validation_target=valid.de

Expect: `experiments.doctor` with the same flags estimates memory and time.

The recipe (``text_files.py:small``, ``:medium`` or ``:large``) is chosen from the number of
sentence pairs and the machine unless it is named; vocabulary and batches fit the text. The choice
is printed as flags. Other flags take precedence. With one TSV file a split, leave out the
targets and set --config.data.tsv_columns.
"""

from transformer.config import Config, DataConfig, TrainingConfig


def get_config(recipe: str = "auto") -> Config:
    """Return the config, which `experiments.data.recipes` fits to the text."""
    return Config(data=DataConfig(dataset="text_files"), training=TrainingConfig(recipe=recipe))
