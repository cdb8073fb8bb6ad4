# SPDX-License-Identifier: Apache-2.0
"""The corpus of ``pronouns.py`` with a model small enough to train in a notebook.

Run:    transformer train --config=pronouns_small \\
            --workdir=runs/small
Expect: 97% to 99% pronoun accuracy and 93% to 96% exact match on unseen sentences (`evaluate`;
        seeds 0, 1 and 2), after about a minute of CPU time. Sentences have at most 20 tokens.
"""

from experiments.configs import pronouns
from transformer.config import Config


def get_config() -> Config:
    """Return the config."""
    config = pronouns.get_config("de")
    return config.replace(
        # Training ends within the first epoch, so there is no overfitting for dropout to prevent.
        model=config.model.replace(d_model=64, dropout=0.0),
        optimizer=config.optimizer.replace(schedule="cosine", warmup_steps=80, learning_rate=0.006),
        # One batch shape, because compiling a second takes longer than the padding it saves.
        data=config.data.replace(max_length=20, bucket_lengths=(20,), tokens_per_batch=1024),
        training=config.training.replace(
            steps=600, validate_every=600, validation_sentences=64, keep_last=1
        ),
    )
