# SPDX-License-Identifier: Apache-2.0
"""The files of Hugging Face's BART family: fields, names of tensors, weights and ids."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from transformer.arrays import Float
from transformer.config import DecodeConfig, TransformerConfig
from transformer.errors import InputError
from transformer.interop import imported_model, weight_files
from transformer.interop.imported_model import SIDES, ImportedModel
from transformer.interop.weight_files import Weights
from transformer.nn.positions import sinusoids
from transformer.text.mapped_tokenizer import SPECIAL_PIECES, MappedVocabulary
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

    def require(self, name: str, supported: Any, reason: str) -> None:
        """Refuse a field with another value than the supported one, which is also the default."""
        value = self.get(name, supported)
        if value != supported:
            raise InputError(
                f"{self.path}: {name} is {value!r}, but only {supported!r} is supported: {reason}"
            )


_MODULES = {
    "self_attention": "self_attn.",
    "cross_attention": "encoder_attn.",
    "feed_forward": "",
    "self_attention_residual/norm": "self_attn_layer_norm.",
    "cross_attention_residual/norm": "encoder_attn_layer_norm.",
    "feed_forward_residual/norm": "final_layer_norm.",
}
_PARTS = {
    "query": "q_proj.weight",
    "query_bias": "q_proj.bias",
    "key": "k_proj.weight",
    "key_bias": "k_proj.bias",
    "value": "v_proj.weight",
    "value_bias": "v_proj.bias",
    "output": "out_proj.weight",
    "output_bias": "out_proj.bias",
    "kernel_in": "fc1.weight",
    "bias_in": "fc1.bias",
    "kernel_out": "fc2.weight",
    "bias_out": "fc2.bias",
    "scale": "weight",
    "bias": "bias",
}
"""From the names of this project to those of the modules and tensors there."""


def tensor_name(path: str) -> str:
    """Name of the tensor of a parameter of the encoder or decoder; its kernels are [out, in]."""
    side, layer, *module, part = path.split("/")
    if layer == "final_norm":
        return f"model.{side}.layer_norm.{_PARTS[part]}"
    index = layer.removeprefix("layer_")
    return f"model.{side}.layers.{index}.{_MODULES['/'.join(module)]}{_PARTS[part]}"


def _model_config(fields: Fields, sizes: Mapping[str, int], **others: Any) -> TransformerConfig:
    """The model section, from the fields that all models of the family have."""
    activation = fields.get("activation_function", "gelu")
    if activation not in ACTIVATIONS:
        raise InputError(
            f"{fields.path}: activation_function is {activation!r}, but must be one of "
            f"{', '.join(ACTIVATIONS)}"
        )
    layers, decoder_layers = sizes["encoder_layers"], sizes["decoder_layers"]
    heads, decoder_heads = (sizes[f"{side}_attention_heads"] for side in SIDES)
    try:
        return TransformerConfig(
            d_model=sizes["d_model"],
            d_ff=sizes["encoder_ffn_dim"],
            num_layers=layers,
            decoder_layers=None if decoder_layers == layers else decoder_layers,
            num_heads=heads,
            decoder_heads=None if decoder_heads == heads else decoder_heads,
            activation=ACTIVATIONS[activation],
            attention_bias=True,
            norm_epsilon=NORM_EPSILON,
            dropout=fields.get("dropout", 0.1),
            attention_dropout=fields.get("attention_dropout", 0.0),
            activation_dropout=fields.get("activation_dropout", 0.0),
            **others,
        )
    except InputError as error:
        raise InputError(f"{fields.path}: {error}") from None


def ordered_pieces(
    path: pathlib.Path, ids: Mapping[str, Any], size: int, special: Mapping[str, int], start: int
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The pieces of a vocabulary file in the order of this project, and the original id of each.

    The special ids come first, then the others in their order. BOS is `start`, the token that the
    decoder reads first: another special token, whose row of the table BOS then repeats, or a piece
    of its own, ``<s>``.

    Args:
      path: the file, for errors.
      ids: from pieces to ids.
      size: rows of the embedding table.
      special: ids of padding and EOS by the config, which the file must agree with.
      start: id of the first decoder input.

    Raises:
      InputError: for an id that is missing, repeated, or beyond the table.
    """
    missing = sorted({*range(size)} - {one for one in ids.values() if type(one) is int})
    if missing or len(ids) != size:
        problem = f"no piece with the id {missing[0]}" if missing else f"{len(ids)} pieces"
        raise InputError(
            f"{path} has {problem}, but the table has {size} rows; copy the file again, or correct "
            "vocab_size in config.json"
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
    names = {index: piece for piece, index in ids.items()}
    pad, eos, unknown = special["<pad>"], special["</s>"], ids["<unk>"]
    placed = {pad, eos, unknown}
    if names[start] == SPECIAL_PIECES[1]:
        placed.add(start)
    others = [index for index in range(size) if index not in placed]
    # A special token that this model does not use keeps its row, but no text is encoded as it.
    texts = (f"<unused {i}>" if names[i] in SPECIAL_PIECES else names[i] for i in others)
    return (*SPECIAL_PIECES, *texts), (pad, start, eos, unknown, *others)


def sentencepiece_model(directory: pathlib.Path, name: str) -> bytes:
    """Read a SentencePiece model; an InputError if the file is missing, or is none."""
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
    table_layout: str,
    **others: Any,
) -> ImportedModel:
    """Read the weights and the search of a model.

    Args:
      directory: location of the weights.
      fields: the model's ``config.json``.
      vocabulary: the model's pieces, see `ordered_pieces`.
      table_layout: `sinusoid_layout` of the tables of positions that older files hold.
      **others: further fields of the model section.

    Raises:
      InputError: for a model that cannot be held exactly, or weights that do not fit the config.
    """
    fields.require("tie_word_embeddings", True, "the logits must use the table of the embeddings")
    sizes = {name: fields.integer(name) for name in _SIZES}
    fields.require("decoder_ffn_dim", sizes["encoder_ffn_dim"], "model.d_ff is one number")
    size, longest = sizes["vocab_size"], sizes["max_position_embeddings"]
    ids = vocabulary.original_ids
    with weight_files.opened(directory) as weights:
        bias = np.zeros(size, np.float32)
        if "final_logits_bias" in weights:
            bias = weights.take("final_logits_bias", 1, size)[0]
        bias = imported_model.output_bias(bias, ids)
        model = _model_config(
            *(fields, sizes), vocab_size=len(ids), output_bias=bias is not None, **others
        )
        embedding = {"table": _shared_table(weights, size, model.d_model)[[*ids]]}
        if bias is not None:
            embedding["output_bias"] = bias
        first = model.position_offset
        table = sinusoids(first + longest, model.d_model, table_layout)
        for name in [name for name in weights if ".embed_positions." in name]:
            # The tolerance admits float16. Rows before the first position are not read.
            if not np.allclose(weights.take(name, *table.shape)[first:], table[first:], atol=1e-3):
                raise InputError(
                    f"{name} holds other positions than the sinusoids of this kind of model; "
                    "learned positions are not supported"
                )
        stacks = imported_model.read_stacks(
            model, lambda path, shape: weights.take(tensor_name(path), *shape[::-1]).T
        )
        weights.require_all_taken()
    config = imported_model.config_of(model, _decode_config(directory, fields), longest, vocabulary)
    kind = fields.get("model_type", None)
    origin = {"format": "huggingface", "model_type": kind, "directory": directory.name}
    return ImportedModel(config, {"embedding": embedding, **stacks}, vocabulary, origin)


def _shared_table(weights: Weights, size: int, width: int) -> Float[np.ndarray, "V D"]:
    """The one embedding table; older files repeat it under other names."""
    copies = [f"model.{side}.embed_tokens.weight" for side in SIDES] + ["lm_head.weight"]
    names = [name for name in ("model.shared.weight", *copies) if name in weights]
    table = weights.take(names[0] if names else "model.shared.weight", size, width)
    for name in copies:
        weights.require_copy(name, table)
    return table


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
