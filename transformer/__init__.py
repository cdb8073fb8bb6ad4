# SPDX-License-Identifier: Apache-2.0
"""The encoder-decoder Transformer of "Attention Is All You Need" (Vaswani et al., 2017).

The names below are imported when they are first used, so `import transformer` takes no time.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer.config import Config, TransformerConfig
    from transformer.errors import InputError
    from transformer.models.base import build
    from transformer.translator import Translation, Translator

_MODULES = {
    "Config": "transformer.config",
    "InputError": "transformer.errors",
    "TransformerConfig": "transformer.config",
    "Translation": "transformer.translator",
    "Translator": "transformer.translator",
    "build": "transformer.models.base",
}
"""The module that defines each name."""

__all__ = ["Config", "InputError", "TransformerConfig", "Translation", "Translator", "build"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
