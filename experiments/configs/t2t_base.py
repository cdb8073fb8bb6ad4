# SPDX-License-Identifier: Apache-2.0
"""Tensor2Tensor's transformer_base since its third version, which is not the paper's base model.

It differs from ``protocol.py`` in pre-norm, dropout 0.1 on attention weights and inside the
feed-forward network, beta2 0.997, 8,000 warm-up steps, twice the learning rate, and sinusoids in
halves.

Run:    as base.py.
Expect: the cost of base.py. Not run here at full length.
"""

from experiments.configs import base
from transformer.config import Config


def get_config() -> Config:
    """Return the config."""
    config = base.get_config()
    return config.replace(
        model=config.model.replace(
            norm="pre",
            attention_dropout=0.1,
            activation_dropout=0.1,
            sinusoid_layout="halves",
        ),
        optimizer=config.optimizer.replace(beta2=0.997, warmup_steps=8000, learning_rate=2.0),
    )
