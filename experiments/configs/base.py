# SPDX-License-Identifier: Apache-2.0
"""The paper's base model (table 3) for two text files a split.

6 + 6 layers, d_model 512, 8 heads, d_ff 2048; 100,000 steps of about 25,000 source and 25,000
target tokens. The model and optimizer are the defaults of `Config`.

Run:    transformer train --config=base --workdir=runs/base \\
            --config.data.train_source=... --config.data.train_target=... (and validation_*, test_*)
Expect: the paper has 27.3 BLEU (tokenized, table 2) on newstest2014 English-German, averaging the
        last 5 checkpoints, after 12 hours on 8 P100. Not run here at full length.
"""

from transformer.config import Config, DataConfig, TrainingConfig


def get_config() -> Config:
    """Return the config."""
    return Config(
        data=DataConfig(
            dataset="text_files",
            max_length=256,
            bucket_lengths=(16, 32, 48, 64, 96, 128, 256),
            tokens_per_batch=25_000,
        ),
        training=TrainingConfig(steps=100_000, validate_every=2000),
    )
