# SPDX-License-Identifier: Apache-2.0
"""Read the files of Hugging Face's BART family: fields, weights and ids."""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from transformer.arrays import Float, Params
from transformer.config import DecodeConfig, TransformerConfig
from transformer.errors import InputError
from transformer.interop import imported_model, weight_files
from transformer.interop.imported_model import SIDES, ImportedModel, Linear
from transformer.interop.weight_files import Weights
from transformer.text.mapped_tokenizer import MappedVocabulary
from transformer.text.tokenizer import processor

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "swish": "swish",
    "silu": "swish",
}
NORM_EPSILON = 1e-5
"""PyTorch's default, which no config names."""
_SIZES = ("d_model", "encoder_layers", "decoder_layers")
_SIZES += ("encoder_attention_heads", "decoder_attention_heads")
_SIZES += ("encoder_ffn_dim", "decoder_ffn_dim", "vocab_size", "max_position_embeddings")


class Fields:
    """The fields of a JSON file, each read with a check."""

    def __init__(self, path: pathlib.Path):
        """Read the file."""
        self.path, self._values = path, weight_files.read_json(path)

    def get(self, name: str, default: Any) -> Any:
        """A field, or a default where it is absent or null."""
        value = self._values.get(name)
        return default if value is None else value

    def integer(self, name: str, default: int | None = None) -> int:
        """A field that must be a whole number of at least 0; without a default it must exist."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InputError(f"{self.path}: {name} is {value!r}, but must be a whole number")
        return value

    def number(self, name: str, default: float) -> float:
        """A field that must be a number."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InputError(f"{self.path}: {name} is {value!r}, but must be a number")
        return value

    def require(self, name: str, supported: Any, reason: str) -> None:
        """Refuse a field with another value than the supported one, which is also the default."""
        value = self.get(name, supported)
        if value != supported:
            raise InputError(
                f"{self.path}: {name} is {value!r}, but only {supported!r} is supported: {reason}"
            )


def _model_config(fields: Fields, sizes: Mapping[str, int], **others: Any) -> TransformerConfig:
    """The model section, from the fields that all models of the family have."""
    activation = fields.get("activation_function", "gelu")
    if activation not in ACTIVATIONS:
        raise InputError(
            f"{fields.path}: activation_function is {activation!r}, but must be one of "
            f"{', '.join(ACTIVATIONS)}"
        )
    encoder_heads, decoder_heads = (sizes[f"{side}_attention_heads"] for side in SIDES)
    try:
        return TransformerConfig(
            d_model=sizes["d_model"],
            d_ff=sizes["encoder_ffn_dim"],
            num_layers=sizes["encoder_layers"],
            decoder_layers=_other(sizes["decoder_layers"], sizes["encoder_layers"]),
            num_heads=encoder_heads,
            decoder_heads=_other(decoder_heads, encoder_heads),
            activation=ACTIVATIONS[activation],
            attention_bias=True,
            norm_epsilon=NORM_EPSILON,
            dropout=fields.number("dropout", 0.1),
            attention_dropout=fields.number("attention_dropout", 0.0),
            activation_dropout=fields.number("activation_dropout", 0.0),
            **others,
        )
    except InputError as error:
        raise InputError(f"{fields.path}: {error}") from None


def _other(value: int, default: int) -> int | None:
    """A field that is left out where it equals its default."""
    return None if value == default else value


def read_pieces(
    path: pathlib.Path, ids: Mapping[str, Any], size: int, special: Mapping[str, int], start: int
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Check the ids of a vocabulary file, and order them as `imported_model.special_first` does.

    Args:
      path: of the file, for errors.
      ids: from pieces to ids.
      size: rows of the embedding table.
      special: ids of padding and EOS by the config, which the file must agree with.
      start: id of the first decoder input.

    Raises:
      InputError: for an id that is missing, repeated, or beyond the table.
    """
    numbers = [one for one in ids.values() if isinstance(one, int) and not isinstance(one, bool)]
    missing = sorted(set(range(size)) - set(numbers))
    if missing:
        raise InputError(
            f"{path} has no piece with the id {missing[0]}, but the table has {size} rows; copy "
            "the file again, or correct vocab_size in config.json"
        )
    if len(ids) != size:
        raise InputError(
            f"{path} has {len(ids)} pieces, but the table has {size} rows; copy the file again, or "
            "correct vocab_size in config.json"
        )
    for piece, index in special.items():
        if ids.get(piece) != index:
            raise InputError(
                f"{path} gives {piece} the id {ids.get(piece)}, but config.json says {index}; "
                "check that both belong together"
            )
    if "<unk>" not in ids:
        raise InputError(f"{path} has no piece <unk>; copy the file again")
    if start >= size:
        raise InputError(
            f"{path} has {size} pieces, but decoder_start_token_id is {start}; check config.json"
        )
    return imported_model.special_first(ids, special["<pad>"], start, special["</s>"], ids["<unk>"])


def sentencepiece_model(directory: pathlib.Path, name: str) -> bytes:
    """Read a SentencePiece model.

    Raises:
      InputError: if the file is missing, or is none.
    """
    path = directory / name
    try:
        model = path.read_bytes()
        processor(model)
    except OSError as error:
        reason = error.strerror
        if (directory / name.replace(".spm", ".bpe")).exists():
            reason = "the model uses subword-nmt (.bpe), which is not supported"
        raise InputError(f"{path} cannot be read: {reason}") from None
    except RuntimeError as error:
        raise InputError(f"{path} is not a SentencePiece model ({error}); copy it again") from None
    return model


def read_model(
    directory: pathlib.Path,
    fields: Fields,
    vocabulary: MappedVocabulary,
    positions: tuple[str, Callable[[int, int], Float[np.ndarray, "T D"]]],
    logits_bias: str | None = None,
    **others: Any,
) -> ImportedModel:
    """Read the weights and the search of a model.

    Args:
      directory: of the model.
      fields: of its ``config.json``.
      vocabulary: see `read_pieces`.
      positions: name of the table of positions that older files hold, and the function that
        computes it from ``max_position_embeddings`` and D.
      logits_bias: name of the bias of the logits, [1,V]; default: there is none.
      **others: fields of the model section.

    Raises:
      InputError: for a model that cannot be held exactly, or weights that do not fit the config.
    """
    sizes = {name: fields.integer(name) for name in _SIZES}
    size, longest = sizes["vocab_size"], sizes["max_position_embeddings"]
    ids = vocabulary.original_ids
    with weight_files.opened(directory) as weights:
        bias = weights.take(logits_bias, 1, size)[0] if logits_bias else np.zeros(size, np.float32)
        bias = imported_model.output_bias(bias, ids)
        model = _model_config(
            *(fields, sizes), vocab_size=len(ids), output_bias=bias is not None, **others
        )
        params = {"embedding": {"table": _shared_table(weights, size, model.d_model)[[*ids]]}}
        if bias is not None:
            params["embedding"]["output_bias"] = bias
        for side in SIDES:
            name = f"model.{side}.{positions[0]}"
            if name in weights:
                _require_positions(weights, name, positions[1](longest, model.d_model))
        params |= {side: _stack_params(weights, side, model) for side in SIDES}
        weights.require_all_taken()
    config = imported_model.config_of(model, _decode_config(directory, fields), longest, vocabulary)
    kind = fields.get("model_type", None)
    origin = {"format": "huggingface", "model_type": kind, "directory": directory.name}
    return ImportedModel(config, params, vocabulary, origin)


def _shared_table(weights: Weights, size: int, width: int) -> Float[np.ndarray, "V D"]:
    """The one embedding table; older files repeat it under other names."""
    copies = [f"model.{side}.embed_tokens.weight" for side in SIDES] + ["lm_head.weight"]
    names = [name for name in ("model.shared.weight", *copies) if name in weights]
    table = weights.take(names[0] if names else "model.shared.weight", size, width)
    for name in copies:
        weights.require_copy(name, table)
    return table


def _require_positions(weights: Weights, name: str, table: Float[np.ndarray, "T D"]) -> None:
    """Compare the positions that older files hold with those that are computed here."""
    # The tolerance admits float16.
    if not np.allclose(weights.take(name, *table.shape), table, atol=1e-3):
        raise InputError(
            f"{name} holds other positions than the sinusoids of this kind of model; learned "
            "positions are not supported"
        )


ATTENTIONS = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}
PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}
"""From the names of this project to those of the modules there."""
_LINEAR = PROJECTIONS | {"output": "out_proj", "in": "fc1", "out": "fc2"}
_PREFIXES = {name: f"{module}." for name, module in ATTENTIONS.items()} | {"feed_forward": ""}
_NORMS = {name: f"{module}_layer_norm" for name, module in ATTENTIONS.items()}
_NORMS |= {"feed_forward": "final_layer_norm"}


def _stack_params(weights: Weights, side: str, model: TransformerConfig) -> Params:
    """The layers of the encoder or the decoder, and for pre-norm the final norm."""

    def norm(module: str) -> Params:
        parts = {"scale": "weight", "bias": "bias"}
        return {ours: weights.take(f"{module}.{p}", model.d_model) for ours, p in parts.items()}

    def layer(prefix: str) -> Params:
        def linear(sub_layer: str, name: str, inputs: int, outputs: int) -> Linear:
            module = f"{prefix}.{_PREFIXES[sub_layer]}{_LINEAR[name]}"
            kernel = weights.take(f"{module}.weight", outputs, inputs)
            return np.ascontiguousarray(kernel.T), weights.take(f"{module}.bias", outputs)

        return imported_model.layer_params(
            model, side, linear, lambda sub_layer: norm(f"{prefix}.{_NORMS[sub_layer]}")
        )

    stack = {
        f"layer_{index}": layer(f"model.{side}.layers.{index}")
        for index in range(model.depth(side))
    }
    if model.norm == "pre":
        stack["final_norm"] = norm(f"model.{side}.layer_norm")
    return stack


def _decode_config(directory: pathlib.Path, fields: Fields) -> DecodeConfig:
    """The search that the model names, in ``generation_config.json`` or in older files.

    Defaults are those of Transformers. There `min_new_tokens` takes precedence over `min_length`,
    which counts the first decoder input.
    """
    path = directory / "generation_config.json"
    generation = Fields(path) if path.exists() else fields
    min_length = max(generation.integer("min_length", 0) - 1, 0)
    try:
        return DecodeConfig(
            beams=generation.get("num_beams", 1),
            length_penalty="length",
            alpha=generation.get("length_penalty", 1.0),
            min_length=generation.integer("min_new_tokens", min_length),
            block_ngrams=generation.integer("no_repeat_ngram_size", 0) or None,
        )
    except InputError as error:
        raise InputError(
            f"{generation.path}: {error} (num_beams, length_penalty, min_new_tokens, min_length, "
            "no_repeat_ngram_size)"
        ) from None
