# SPDX-License-Identifier: Apache-2.0
"""What the live page can run. Other models, tokenizers and searches are refused by name."""

from collections.abc import Iterable
from typing import Any

from transformer.config import Config, DecodeConfig
from transformer.errors import InputError
from transformer.fields import FieldGroup
from transformer.models import limits
from transformer.text.sentencepiece_fields import CONTROL, NORMAL, UNKNOWN, Segmentation
from transformer.text.tokenizer import Tokenizer

MODEL_FIELDS: dict[str, Any] = {
    "source_vocab_size": None,
    "compute_dtype": "float32",
    "num_kv_heads": None,
    "attention_bias": False,
    "attention_score": "dot",
    "attention_window": None,
    "shared_layers": False,
    "timestep_encoding": False,
    "activation": "relu",
    "norm_kind": "layer_norm",
    "tied_embeddings": "all",
    "embedding_scale": "tokens",
    "positions": "sinusoidal",
    "sinusoid_layout": "interleaved",
    "position_offset": 0,
    "output_bias": False,
}
"""The only value of these fields of `model` that the scripts compute. They compute every value of
``d_k``, ``d_v`` and `limits.COMMON_FIELDS`.
"""

DECODE_FIELDS: dict[str, Any] = {
    "method": "beam",
    "groups": 1,
    "min_length": 0,
    "block_ngrams": None,
}
"""The only value of these fields of `decode` that the scripts compute."""

_DECODE_ANY_VALUE = (
    *("beams", "finish_from", "length_penalty", "alpha", "extra_length", "max_length"),
    *("batch_size", "diversity", "temperature", "top_k", "top_p", "min_p", "seed"),
    *("truncation", "mbr_samples", "mbr_metric"),
)
"""Fields that the scripts compute with every value, or that have no effect on such a search."""


def require_model(config: Config) -> None:
    """Refuse models that the page cannot run.

    Raises:
      InputError: naming the family, or every field with another value.
    """
    model = config.model
    limits.require_transformer(
        model,
        "is not the encoder-decoder Transformer, the only model of the live page; leave --live "
        "out, or give the workdir of family 'transformer'",
    )
    supported = ("d_k", "d_v", *limits.COMMON_FIELDS, *model.free_after_training)
    _require_fields(model, MODEL_FIELDS, supported, "leave --live out")


def require_search(decode: DecodeConfig) -> None:
    """Refuse searches that the page does not have.

    Raises:
      InputError: naming every field with another value.
    """
    remedy = "override them with --config.decode.FIELD=VALUE"
    _require_fields(decode, DECODE_FIELDS, _DECODE_ANY_VALUE, remedy)


def _require_fields(
    group: FieldGroup, fields: dict[str, Any], supported: Iterable[str], remedy: str
) -> None:
    rules = [
        (name, getattr(group, name) == value, f"it computes {value!r}")
        for name, value in fields.items()
    ]
    limits.require_fields(group, rules, supported, f"the live page cannot run this, so {remedy}")


def require_segmentation(tokenizer: Tokenizer, fields: Segmentation) -> None:
    """Refuse tokenizers whose algorithm the page does not have.

    Raises:
      InputError: naming the algorithm or the feature.
    """
    types = {NORMAL, CONTROL, UNKNOWN}
    normal = [id_ for id_ in range(len(fields.pieces)) if id_ not in tokenizer.special_ids]
    scores = [fields.scores[id_] for id_ in normal]
    reasons = {
        f"its algorithm is {fields.algorithm!r}, not 'bpe'": fields.algorithm != "bpe",
        "it segments unknown characters into bytes": fields.byte_fallback,
        "it has user-defined, unused or byte pieces": not types.issuperset(fields.types),
        "it has further control pieces": any(fields.types[id_] != NORMAL for id_ in normal),
        "its pieces are not in the order of their merges": scores != sorted(scores, reverse=True)
        or len(set(scores)) < len(scores),
        "it normalizes characters": bool(fields.character_map),
        "it treats spaces in another way": fields.space_after_word or not fields.edits_spaces,
        "every translation begins with a language code": bool(tokenizer.forced_ids),
    }
    found = [reason for reason, holds in reasons.items() if holds]
    if found:
        raise InputError(
            f"the live page cannot run this tokenizer: {'; '.join(found)}; leave --live out, or "
            "train with --config.data.tokenizer=bpe"
        )
