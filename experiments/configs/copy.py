# SPDX-License-Identifier: Apache-2.0
"""Copy strings of 5 to 20 letters: the smallest end-to-end test of training and decoding.

Run:    transformer train --config=copy --workdir=runs/copy
Expect: 99% exact match or more on unseen strings, after a minute on two CPU cores.
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
    return symbols("copy")


def symbols(task: str) -> Config:
    """Return the config of ``copy``, ``reverse`` or ``sort``."""
    return Config(
        model=TransformerConfig(
            vocab_size=30, num_layers=2, d_model=64, d_ff=256, num_heads=4, dropout=0.0
        ),
        optimizer=OptimizerConfig(warmup_steps=200, learning_rate=0.2),
        data=DataConfig(
            dataset=f"symbols_grammar/{task}",
            tokenizer="word",
            max_length=24,
            bucket_lengths=(24,),
            tokens_per_batch=3072,
        ),
        training=TrainingConfig(steps=800, validate_every=100, validation_sentences=100),
    )
