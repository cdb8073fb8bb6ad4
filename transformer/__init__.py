# SPDX-License-Identifier: Apache-2.0
"""The encoder-decoder Transformer of "Attention Is All You Need" (Vaswani et al., 2017).

Read it in this order: `attention`, `layers`, `model`, `training`, `decoding`, `translator`.
"""

from transformer.config import Config, TransformerConfig
from transformer.errors import InputError
from transformer.models.base import build
from transformer.translator import Translation, Translator

__all__ = ["Config", "InputError", "TransformerConfig", "Translation", "Translator", "build"]
