# SPDX-License-Identifier: Apache-2.0
"""Tatoeba's short everyday sentences with a small model, from text files.

About 150,000 English-German sentence pairs.

Run:    python -m experiments.train --config=experiments/configs/tatoeba.py \\
            --workdir=runs/tatoeba --config.data.train_source=train.tsv \\
            --config.data.validation_source=dev.tsv
        The first column is English, the second German; --config.data.tsv_columns="(2,1)" swaps
        them. Two files a split work as in text_files.py. The sentences are at https://tatoeba.org
        and, as TSV, at https://www.manythings.org/anki. One sentence often has several
        translations: keep all pairs of a sentence in one split.
Expect: not run here. On the public test set of 2021-08-07, translating by the nearest training
        sentence scores 13 BLEU, if no test sentence is in the training text.
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
            vocab_size=8000, num_layers=3, d_model=256, d_ff=1024, num_heads=4, dropout=0.2
        ),
        optimizer=OptimizerConfig(warmup_steps=2000),
        data=DataConfig(
            dataset="text_files",
            max_length=64,
            bucket_lengths=(8, 12, 16, 24, 64),
            tokens_per_batch=8192,
        ),
        training=TrainingConfig(steps=20_000, validate_every=1000),
    )
