# SPDX-License-Identifier: Apache-2.0
"""The one place that maps a config to a model. Every family offers the calls listed in `model`."""

import flax.linen as nn

from transformer.config import TransformerConfig
from transformer.models.transformer import Transformer

FAMILIES: dict[str, type[nn.Module]] = {"transformer": Transformer}


def build(config: TransformerConfig) -> nn.Module:
    """The model that `config.family` names; parameters come from its ``init``."""
    return FAMILIES[config.family](config)
