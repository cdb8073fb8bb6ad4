# SPDX-License-Identifier: Apache-2.0
"""What the live page can run. Other models, tokenizers and searches are refused by name."""

from typing import Any

from transformer.config import Config, DecodeConfig, TransformerConfig
from transformer.errors import InputError
from transformer.text.sentencepiece_fields import CONTROL, NORMAL, UNKNOWN, Segmentation
from transformer.text.tokenizer import Tokenizer

MODEL_FIELDS: dict[str, tuple[Any, ...]] = {
    "source_vocab_size": (None,),
    "compute_dtype": ("float32",),
    "num_kv_heads": (None,),
    "attention_bias": (False,),
    "attention_score": ("dot",),
    "attention_window": (None,),
    "shared_layers": (False,),
    "timestep_encoding": (False,),
    "activation": ("relu",),
    "norm": ("post", "pre"),
    "norm_kind": ("layer_norm",),
    "tied_embeddings": ("all",),
    "embedding_scale": ("tokens",),
    "positions": ("sinusoidal",),
    "sinusoid_layout": ("interleaved",),
    "position_offset": (0,),
    "output_bias": (False,),
}
"""The values of `model` that the scripts compute; other fields may have any value."""

DECODE_FIELDS: dict[str, tuple[Any, ...]] = {
    "method": ("beam",),
    "groups": (1,),
    "min_length": (0,),
    "block_ngrams": (None,),
}
"""The same for `decode`."""


def require_model(config: Config) -> None:
    """Refuse models that the page cannot run.

    Raises:
      InputError: naming the family, or every field with another value.
    """
    if type(config.model) is not TransformerConfig:
        raise InputError(
            f"model.family is {config.model.family!r}, but the live page runs the encoder-decoder "
            "Transformer alone; leave --live out, or give the workdir of family 'transformer'"
        )
    _require_fields(config.model, MODEL_FIELDS, "leave --live out to look at this model")


def require_search(decode: DecodeConfig) -> None:
    """Refuse searches that the page does not have.

    Raises:
      InputError: naming every field with another value.
    """
    _require_fields(decode, DECODE_FIELDS, "override them with --config.decode.FIELD=VALUE")


def _require_fields(group: Any, fields: dict[str, tuple[Any, ...]], remedy: str) -> None:
    reasons = [
        f"{group.group}.{name} is {getattr(group, name)!r} (it computes "
        f"{' or '.join(map(repr, values))})"
        for name, values in fields.items()
        if getattr(group, name) not in values
    ]
    if reasons:
        raise InputError(f"the live page cannot run this: {'; '.join(reasons)}; {remedy}")


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
