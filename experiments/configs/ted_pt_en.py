# SPDX-License-Identifier: Apache-2.0
"""Portuguese to English TED talks from TFDS (`ted_hrlr_translate/pt_to_en`, Qi et al. 2018).

About 52,000 sentence pairs, downloaded once. TensorFlow is not needed.

Run:    transformer train --config=ted_pt_en --workdir=runs/ted
        transformer evaluate --workdir=runs/ted
        (--config.data.direction=en-pt for the other direction)
Expect: not run here. The text is tokenized and mostly lower-case, so its BLEU compares only with
        results on the same text.
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
            vocab_size=8000, num_layers=4, d_model=256, d_ff=1024, num_heads=4, dropout=0.3
        ),
        optimizer=OptimizerConfig(warmup_steps=4000),
        data=DataConfig(
            dataset="ted_hrlr_translate/pt_to_en",
            direction="pt-en",
            max_length=128,
            bucket_lengths=(16, 24, 32, 48, 64, 128),
            tokens_per_batch=8192,
        ),
        training=TrainingConfig(steps=20_000, validate_every=1000),
    )
