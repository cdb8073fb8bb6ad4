# SPDX-License-Identifier: Apache-2.0
"""Refuse, by field, a Transformer that another program or method cannot represent exactly.

Every field is classified: it is supported with every value, with some values (a `Rule`), or it is
unknown. A model with an unknown field, such as a field of a user's subclass, is refused.
"""

import dataclasses
from collections.abc import Iterable

from transformer.config import ModelConfig
from transformer.errors import InputError
from transformer.fields import FieldGroup
from transformer.models import protocol
from transformer.models.transformer import Transformer

Rule = tuple[str, bool, str]
"""A field, whether its value is supported, and the reason if it is not."""

COMMON_FIELDS = (
    *("family", "vocab_size", "pad_id", "bos_id", "eos_id", "unk_id"),
    *("num_layers", "encoder_layers", "decoder_layers", "d_model", "d_ff"),
    *("num_heads", "encoder_heads", "decoder_heads", "norm", "norm_epsilon"),
    *("max_positions", "position_buckets", "position_max_distance", "max_relative_position"),
)
"""Fields of a Transformer that are supported everywhere, with every value, as are those of
`free_after_training`.
"""


def require_transformer(config: ModelConfig, problem: str) -> None:
    """Refuse every model but the encoder-decoder `Transformer` itself.

    Raises:
      InputError: naming the family and the class of the model, with the problem that it has.
    """
    model = type(protocol.build(config))
    if model is not Transformer:
        raise InputError(
            f"model.family is {config.family!r}, whose model {model.__name__} {problem}"
        )


def require_fields(
    group: FieldGroup, rules: Iterable[Rule], supported: Iterable[str], problem: str
) -> None:
    """Refuse a group with unsupported or unknown fields.

    Args:
      group: a config.
      rules: the fields that are supported with some values only.
      supported: names of the fields that are supported with every value.
      problem: beginning of the message.

    Raises:
      InputError: naming every such field, its value and the reason.
    """
    rules = list(rules)
    known = {*supported, *(name for name, _, _ in rules)}
    names = [field.name for field in dataclasses.fields(group)]
    rules += [(name, False, "this field is unknown there") for name in names if name not in known]
    reasons = [
        f"{group.path(name)} is {getattr(group, name)!r}, but {reason}"
        for name, is_supported, reason in rules
        if not is_supported
    ]
    if reasons:
        raise InputError(f"{problem}: {'; '.join(reasons)}")
