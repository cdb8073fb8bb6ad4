# SPDX-License-Identifier: Apache-2.0
"""What an export format can hold: refuse other models by name, and limit the length of sentences.

An exported model computes the same function, or it is not exported.
"""

from collections.abc import Iterable

from transformer.config import Config, DecodeConfig, ModelConfig
from transformer.models import limits

_MIN_POSITIONS = 512


def require_transformer(config: ModelConfig, format_name: str) -> None:
    """Refuse every model but the encoder-decoder Transformer, naming the family."""
    limits.require_transformer(
        config,
        f"has no counterpart in {format_name}: it holds encoder-decoder Transformers; "
        "--to=stablehlo exports every family that translates",
    )


def require(
    config: ModelConfig, rules: Iterable[limits.Rule], supported: Iterable[str], format_name: str
) -> None:
    """Refuse a model with unsupported fields, naming each; see `limits.require_fields`."""
    supported = (*supported, *limits.COMMON_FIELDS, *config.free_after_training)
    problem = f"this model has no exact counterpart in {format_name}"
    limits.require_fields(config, rules, supported, problem)


def longest_output(config: Config) -> int:
    """Tokens of the longest translation of any sentence, EOS included."""
    return config.decode.longest_output(config.data.max_length)


def length_notes(config: Config) -> list[str]:
    """The note of a card where the limit of the output depends on the source here only."""
    if config.decode.max_length is not None:
        return []
    return [
        f"Translations have at most {longest_output(config):,} tokens with EOS, whatever the "
        "length of the source."
    ]


def num_positions(config: Config) -> int:
    """Length of an exported table of absolute positions, which limits sentences there."""
    if config.model.positions == "learned":
        return config.model.max_positions
    return max(_MIN_POSITIONS, config.data.max_length, longest_output(config))


def length_penalty(decode: DecodeConfig) -> float:
    """The exponent of the length in another program; 1 for ``gnmt``, which is missing there."""
    return {"length": decode.alpha, "none": 0.0, "gnmt": 1.0}[decode.length_penalty]
