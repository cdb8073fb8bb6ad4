# SPDX-License-Identifier: Apache-2.0
"""The paper's big model (table 3): d_model 1024, 16 heads, d_ff 4096, dropout 0.3; 300,000 steps.

Run:    as base.py.
Expect: the paper has 28.4 BLEU (tokenized, table 2) on newstest2014 English-German, averaging the
        last 20 checkpoints, after 3.5 days on 8 P100. Not run here at full length.
"""

from experiments.configs import base
from transformer.config import Config


def get_config() -> Config:
    """Return the config."""
    config = base.get_config()
    return config.replace(
        model=config.model.replace(d_model=1024, num_heads=16, d_ff=4096, dropout=0.3),
        training=config.training.replace(steps=300_000, keep_last=20),
    )
