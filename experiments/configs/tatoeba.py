# SPDX-License-Identifier: Apache-2.0
"""Tatoeba, English to German, from text files: a hundred thousand short pairs and more.

156,952 sentence pairs, with 6 words a sentence. As `multi30k.py:hour`, with a wider feed-forward
network and less dropout, because it reads each pair a third as often.

Run:    python -m experiments.train --config=experiments/configs/tatoeba.py \\
            --workdir=runs/tatoeba \\
            --config.data.train_source=train.eng.gz --config.data.train_target=train.deu.gz \\
            --config.data.validation_source=dev.eng.gz --config.data.validation_target=dev.deu.gz
        python -m experiments.evaluate --workdir=runs/tatoeba \\
            --source=dev.eng.gz --target=dev.deu.gz
        The pairs of deu-eng.zip at manythings.org/anki, some of them kept apart as `dev`.
Expect: 42.5 BLEU on the 2,000 development pairs of docs/results.md, after 65 minutes on one core of
        an Intel Xeon (AMX) with `--config.model.compute_dtype=bfloat16`.
"""

from transformer.config import (
    Config,
    DataConfig,
    DecodeConfig,
    OptimizerConfig,
    TrainingConfig,
    TransformerConfig,
)


def get_config() -> Config:
    """Return the config."""
    return Config(
        model=TransformerConfig(
            vocab_size=8000,
            num_layers=4,
            d_model=128,
            d_ff=512,
            num_heads=4,
            norm="pre",
            dropout=0.1,
            dropout_generator="hash",
        ),
        optimizer=OptimizerConfig(schedule="cosine", learning_rate=0.004, warmup_steps=800),
        decode=DecodeConfig(beams=5, length_penalty="length", alpha=1.0),
        data=DataConfig(
            dataset="text_files",
            max_length=64,
            bucket_lengths=(8, 12, 16, 24, 32, 64),
            tokens_per_batch=4096,
        ),
        training=TrainingConfig(
            steps=6500, validate_every=650, validation_sentences=200, micro_batches=4, keep_last=5
        ),
    )
