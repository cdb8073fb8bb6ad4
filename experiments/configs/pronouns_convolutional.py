# SPDX-License-Identifier: Apache-2.0
"""`pronouns` with the convolutional model of Gehring et al. 2017, to compare with the Transformer.

Run:    transformer train --config=pronouns_convolutional \\
            --workdir=runs/convolutional
        transformer evaluate --workdir=runs/convolutional
Expect: 99% pronoun accuracy or more on unseen sentences, and on unseen noun pairs
        (`evaluate --split=test_unseen`).
"""

from experiments.configs import pronouns
from transformer.config import Config, ConvolutionalConfig, OptimizerConfig


def get_config(language: str = "de") -> Config:
    """Return the config; `language` is ``de`` or ``fr``."""
    return pronouns.get_config(language).replace(
        model=ConvolutionalConfig(
            vocab_size=1600,
            num_layers=3,
            d_model=128,
            kernel_width=5,
            dropout_generator="hash",
        ),
        optimizer=OptimizerConfig(schedule="cosine", learning_rate=3e-3, warmup_steps=100),
    )
