# SPDX-License-Identifier: Apache-2.0
"""The encoder-decoder Transformer of "Attention Is All You Need" (Vaswani et al., 2017).

The names below, in the order in which one needs them, are imported when they are first used, so
`import transformer` takes no time. Functions take ``(model, params, ...)`` in this order.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer import inspection
    from transformer.batch import Batch
    from transformer.config import (
        ClassifierConfig,
        Config,
        ConvolutionalConfig,
        DecodeConfig,
        LanguageModelConfig,
        OptimizerConfig,
        RecurrentConfig,
        TransformerConfig,
    )
    from transformer.decoding.generate import generate
    from transformer.errors import InputError
    from transformer.models.cached_attention import CachedAttention
    from transformer.models.classifier import Classifier
    from transformer.models.convolutional import Convolutional
    from transformer.models.language_model import LanguageModel
    from transformer.models.protocol import build, register
    from transformer.models.recurrent import Recurrent
    from transformer.models.transformer import (
        Decoder,
        DecoderLayer,
        Encoder,
        EncoderLayer,
        Transformer,
    )
    from transformer.nn.attention import attention
    from transformer.nn.feed_forward import FeedForward
    from transformer.nn.multi_head_attention import MultiHeadAttention
    from transformer.nn.positions import shift_right, sinusoids
    from transformer.nn.taps import Patch, tap
    from transformer.text.tokenizer import Tokenizer
    from transformer.training.optimizers import optimizer
    from transformer.training.step import TrainState, eval_step, loss, train_step
    from transformer.translator import Translation, Translator

_MODULES = {
    # Models and their configs.
    "Transformer": "models.transformer",
    "TransformerConfig": "config",
    "Recurrent": "models.recurrent",
    "RecurrentConfig": "config",
    "Convolutional": "models.convolutional",
    "ConvolutionalConfig": "config",
    "LanguageModel": "models.language_model",
    "LanguageModelConfig": "config",
    "Classifier": "models.classifier",
    "ClassifierConfig": "config",
    "build": "models.protocol",
    "register": "models.protocol",
    # Training.
    "Batch": "batch",
    "shift_right": "nn.positions",
    "loss": "training.step",
    "OptimizerConfig": "config",
    "optimizer": "training.optimizers",
    "TrainState": "training.step",
    "train_step": "training.step",
    "eval_step": "training.step",
    # Decoding.
    "DecodeConfig": "config",
    "generate": "decoding.generate",
    # Looking inside.
    "inspection": "",
    "tap": "nn.taps",
    "Patch": "nn.taps",
    # Building blocks.
    "attention": "nn.attention",
    "sinusoids": "nn.positions",
    "MultiHeadAttention": "nn.multi_head_attention",
    "CachedAttention": "models.cached_attention",
    "FeedForward": "nn.feed_forward",
    "EncoderLayer": "models.transformer",
    "DecoderLayer": "models.transformer",
    "Encoder": "models.transformer",
    "Decoder": "models.transformer",
    # Raw text, and experiments.
    "Tokenizer": "text.tokenizer",
    "Translator": "translator",
    "Translation": "translator",
    "Config": "config",
    "InputError": "errors",
}
"""The module of this package that defines each name; a module itself has none."""

__all__ = [
    "Batch",
    "CachedAttention",
    "Classifier",
    "ClassifierConfig",
    "Config",
    "Convolutional",
    "ConvolutionalConfig",
    "DecodeConfig",
    "Decoder",
    "DecoderLayer",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "InputError",
    "LanguageModel",
    "LanguageModelConfig",
    "MultiHeadAttention",
    "OptimizerConfig",
    "Patch",
    "Recurrent",
    "RecurrentConfig",
    "Tokenizer",
    "TrainState",
    "Transformer",
    "TransformerConfig",
    "Translation",
    "Translator",
    "attention",
    "build",
    "eval_step",
    "generate",
    "inspection",
    "loss",
    "optimizer",
    "register",
    "shift_right",
    "sinusoids",
    "tap",
    "train_step",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not _MODULES[name]:
        return importlib.import_module(f"{__name__}.{name}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
