# SPDX-License-Identifier: Apache-2.0
"""What Tensor2Tensor called transformer_base from its third version on, which is not the paper's
base model.

It differs in: norm before the sub-layer; dropout 0.1 also on attention weights and inside the
feed-forward network; beta2 0.997; 8,000 warm-up steps; twice the learning rate; sines and cosines
in halves.

Run:    as base.py.
"""

from experiments.configs import base
from transformer.config import Config


def get_config() -> Config:
    """The experiment."""
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
