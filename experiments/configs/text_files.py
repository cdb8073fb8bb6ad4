# SPDX-License-Identifier: Apache-2.0
"""A small model for your own text: two files a split, one sentence a line.

Run:    python -m experiments.train --config=experiments/configs/text_files.py \\
            --workdir=runs/mine \\
            --config.data.train_source=train.en --config.data.train_target=train.de \\
            --config.data.validation_source=valid.en --config.data.validation_target=valid.de

Expect: `experiments.doctor` with the same flags estimates memory and time.

With one TSV file a split, leave out the targets and set --config.data.tsv_columns. Use a smaller
vocabulary for a few thousand pairs, and a larger model (base.py) for a few million.
"""

from transformer.config import (
    Config,
    DataConfig,
    OptimizerConfig,
    TrainingConfig,
    TransformerConfig,
)


def get_config() -> Config:
    """Return the config."""
    return Config(
        model=TransformerConfig(
            vocab_size=8000, num_layers=3, d_model=256, d_ff=1024, num_heads=4, dropout=0.1
        ),
        optimizer=OptimizerConfig(warmup_steps=2000),
        data=DataConfig(
            dataset="text_files",
            max_length=128,
            bucket_lengths=(16, 32, 64, 128),
            tokens_per_batch=4096,
        ),
        training=TrainingConfig(steps=20_000, validate_every=1000),
    )
