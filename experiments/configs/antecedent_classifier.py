# SPDX-License-Identifier: Apache-2.0
"""An encoder-only classifier that names the antecedent of "it" in a sentence of `pronouns`.

Run:    transformer train --config=antecedent_classifier \\
            --workdir=runs/antecedent
        transformer evaluate --workdir=runs/antecedent
Expect: 99% antecedent accuracy or more on the test split, and on unseen noun pairs (`evaluate
        --split=test_unseen`), after 3 minutes on two CPU cores that had other work too.
"""

from transformer.config import (
    ClassifierConfig,
    Config,
    DataConfig,
    DecodeConfig,
    OptimizerConfig,
    TrainingConfig,
)


def get_config() -> Config:
    """Return the config."""
    return Config(
        model=ClassifierConfig(
            source_vocab_size=491,
            vocab_size=95,
            num_layers=2,
            d_model=128,
            d_ff=256,
            num_heads=4,
        ),
        optimizer=OptimizerConfig(warmup_steps=300, learning_rate=0.5),
        decode=DecodeConfig(beams=1),
        data=DataConfig(
            dataset="english_pronouns/antecedent",
            tokenizer="word",
            vocabulary="separate",
            max_length=16,
            bucket_lengths=(10, 12, 16),
            tokens_per_batch=4096,
        ),
        training=TrainingConfig(steps=500, validate_every=250),
    )
