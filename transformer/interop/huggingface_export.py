# SPDX-License-Identifier: Apache-2.0
"""Export to Hugging Face Transformers: post-norm models as Marian, pre-norm models as Pegasus.

Both have a ``MarianTokenizer``, and positions that are all sines, then all cosines, with the
wavelengths of the paper: the paper's table with its columns in another order. So the channels of
the residual stream are written in that order, everywhere. The model computes the same function,
except that the epsilon of its layer norms is the constant 1e-5.
"""

import pathlib
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict

from transformer.arrays import Float, Int, Params
from transformer.checkpoints import workdir_files
from transformer.config import Config, TransformerConfig
from transformer.interop import export_limits, imported_model
from transformer.interop.huggingface_files import NORM_EPSILON, tensor_name
from transformer.interop.model_card import Export
from transformer.models import protocol
from transformer.nn.parameters import is_parameter
from transformer.nn.positions import sinusoids
from transformer.text.mapped_tokenizer import MappedTokenizer
from transformer.text.tokenizer import Tokenizer
from transformer.trained_model import TrainedModel

FORMAT = "Hugging Face's Marian and Pegasus"
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new", "swish": "swish"}
"""From `model.activation` to ``activation_function``."""
MODEL_TYPES = {"post": "marian", "pre": "pegasus"}
"""From `model.norm` to ``model_type``."""
MODEL_CLASSES = {"post": "MarianMTModel", "pre": "PegasusForConditionalGeneration"}
"""From `model.norm` to the class in Transformers."""
_RESIDUAL_AXES = ("embed", "norm")
"""The logical axes of parameters that are channels of the residual stream."""


def export(trained: TrainedModel, directory: pathlib.Path) -> Export:
    """Write ``model.safetensors``, the configs and the tokenizer's files into an empty directory.

    Raises:
      InputError: for a model that neither Marian nor Pegasus can hold.
    """
    import safetensors.numpy

    config = trained.config
    require_supported(config)
    tokenizer = trained.vocabularies.tokenizer
    tensors = named_tensors(config.model, jax.device_get(trained.params))
    tensors |= position_tables(config)
    # Transformers 4 refuses a file that does not name the framework.
    metadata = {"format": "pt"}
    (directory / "model.safetensors").write_bytes(safetensors.numpy.save(tensors, metadata))
    for side, of_side in trained.vocabularies._asdict().items():
        (directory / f"{side}.spm").write_bytes(of_side.sentencepiece_model)
    files = {
        "config.json": model_config(config),
        "generation_config.json": generation_config(config),
        "tokenizer_config.json": tokenizer_config(config, tokenizer),
        "vocab.json": {piece: i for i, piece in enumerate(_pieces(tokenizer))},
    }
    for name, content in files.items():
        (directory / name).write_text(workdir_files.json_text(content), encoding="utf-8")
    notes = [*_language_notes(tokenizer), *_differences(config)]
    usage = _USAGE.replace("MODEL", MODEL_CLASSES[config.model.norm])
    return Export(usage, "float32", notes, library="transformers")


def require_supported(config: Config) -> None:
    """Refuse a model that neither Marian nor Pegasus can hold, naming every field in the way."""
    model = config.model
    export_limits.require_transformer(model, FORMAT)
    standard = all(
        model.head_widths(side) == (model.d_model / model.heads(side),) * 2
        for side in ("encoder", "decoder")
    )
    layouts = ("interleaved", "halves_paper")
    rules = [
        ("norm_kind", model.norm_kind == "layer_norm", "they have layer norms"),
        ("activation", model.activation in ACTIVATIONS, "they have no gated feed-forward network"),
        ("positions", model.positions == "sinusoidal", "their positions are sinusoids"),
        (
            "sinusoid_layout",
            model.positions != "sinusoidal" or model.sinusoid_layout in layouts,
            "they compute their table with the paper's wavelengths",
        ),
        ("position_offset", model.position_offset == 0, "their first position is 0"),
        ("timestep_encoding", not model.timestep_encoding, "their layers add no encodings"),
        ("shared_layers", not model.shared_layers, "their layers have separate parameters"),
        ("attention_score", model.attention_score == "dot", "they have dot products only"),
        ("attention_window", model.attention_window is None, "their attention has no window"),
        ("num_kv_heads", model.num_kv_heads is None, "all their heads have keys and values"),
        ("d_k", standard or model.d_k is None, "their heads divide d_model"),
        ("d_v", standard or model.d_v is None, "their heads divide d_model"),
        ("source_vocab_size", model.source_vocab_size is None, "source and target share a table"),
        ("tied_embeddings", model.tied_embeddings == "all", "all embeddings share one table"),
        (
            "embedding_scale",
            model.embedding_scale != "positions",
            "they scale the embeddings of tokens, or none",
        ),
    ]
    export_limits.require(model, rules, ("attention_bias", "output_bias"), FORMAT)


def named_tensors(config: TransformerConfig, params: Params) -> dict[str, Float[np.ndarray, "..."]]:
    """The tensors of a supported model by their names there; linear maps are [out, in]."""
    params = permute_residual(config, params, channel_order(config))
    embedding, params = params["embedding"], flatten_dict(params, sep="/")
    bias = embedding.get("output_bias", np.zeros(config.vocab_size))
    tensors = {"model.shared.weight": embedding["table"], "final_logits_bias": bias[None]}
    # Biases that the model does not have are zeros.
    declared = imported_model.stack_parameters(config.replace(attention_bias=True))
    for path, parameter in declared.items():
        shape = imported_model.matrix_shape(parameter)
        values = params.get(path, np.zeros(shape))
        tensors[tensor_name(path)] = values.reshape(shape).T
    return {name: np.ascontiguousarray(each, np.float32) for name, each in tensors.items()}


def position_tables(config: Config) -> dict[str, Float[np.ndarray, "T D"]]:
    """The sinusoids of both sides, which Pegasus wants in the file; Marian computes its own."""
    if config.model.norm == "post":
        return {}
    table = sinusoids(_num_positions(config), config.model.d_model, "halves_paper")
    table = table.astype(np.float32)
    return {f"model.{side}.embed_positions.weight": table for side in ("encoder", "decoder")}


def _num_positions(config: Config) -> int:
    return export_limits.num_positions(config) + 1


def channel_order(config: TransformerConfig) -> Int[np.ndarray, " D"]:
    """The channels in the order of Transformers: those of sines, then those of cosines."""
    channels = np.arange(config.d_model)
    if config.sinusoid_layout != "interleaved":
        return channels
    return np.concatenate([channels[0::2], channels[1::2]])


def permute_residual(
    config: TransformerConfig, params: Params, order: Int[np.ndarray, " D"]
) -> Params:
    """Reorder the channels of the residual stream in every parameter that reads or writes it.

    Layer norms do not depend on the order, so the model's function is the same.
    """

    def permute(parameter: Any, leaf: np.ndarray) -> np.ndarray:
        for axis, name in enumerate(parameter.names):
            if name in _RESIDUAL_AXES:
                leaf = np.take(leaf, order, axis)
        return leaf

    metadata = protocol.parameter_metadata(protocol.build(config))
    return jax.tree.map(permute, metadata, params, is_leaf=is_parameter)


def model_config(config: Config) -> dict[str, Any]:
    """The content of ``config.json``."""
    model, ids = config.model, config.model.special_ids
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (
            ("layers", model.depth(side)),
            ("attention_heads", model.heads(side)),
            ("ffn_dim", model.d_ff),
        )
    }
    marian_options = {
        "decoder_vocab_size": model.vocab_size,
        "static_position_embeddings": True,
        "normalize_before": False,
        "normalize_embedding": False,
        "add_final_layer_norm": False,
        "share_encoder_decoder_embeddings": True,
    }
    return {
        "model_type": MODEL_TYPES[model.norm],
        "architectures": [MODEL_CLASSES[model.norm]],
        "is_encoder_decoder": True,
        "vocab_size": model.vocab_size,
        "d_model": model.d_model,
        **sides,
        **(marian_options if model.norm == "post" else {}),
        "activation_function": ACTIVATIONS[model.activation],
        "scale_embedding": model.embedding_scale == "tokens",
        "max_position_embeddings": _num_positions(config),
        "tie_word_embeddings": True,
        "dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        "activation_dropout": model.activation_dropout,
        "pad_token_id": ids.pad,
        "bos_token_id": ids.bos,
        "eos_token_id": ids.eos,
        "forced_eos_token_id": ids.eos,
        "decoder_start_token_id": ids.bos,
        "dtype": "float32",
    }


def generation_config(config: Config) -> dict[str, Any]:
    """The content of ``generation_config.json``: how ``generate`` searches by default."""
    decode, ids = config.decode, config.model.special_ids
    constraints = {}
    if decode.min_length:
        # The tokens before EOS, as here; `min_length` would count BOS.
        constraints["min_new_tokens"] = decode.min_length
    if decode.block_ngrams is not None:
        constraints["no_repeat_ngram_size"] = decode.block_ngrams
    return {
        "num_beams": decode.beams,
        "length_penalty": export_limits.length_penalty(decode),
        "early_stopping": False,
        # There the length counts BOS.
        "max_length": export_limits.longest_output(config) + 1,
        **constraints,
        "bad_words_ids": [[ids.pad], [ids.bos]],
        "renormalize_logits": False,
        "pad_token_id": ids.pad,
        "bos_token_id": ids.bos,
        "eos_token_id": ids.eos,
        "forced_eos_token_id": ids.eos,
        "decoder_start_token_id": ids.bos,
    }


def tokenizer_config(config: Config, tokenizer: Tokenizer) -> dict[str, Any]:
    """The content of ``tokenizer_config.json``."""
    pieces, ids = _pieces(tokenizer), config.model.special_ids
    languages = config.data.direction.split("-")
    named = len(languages) == 2
    return {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": languages[0] if named else None,
        "target_lang": languages[1] if named else None,
        "model_max_length": config.data.max_length,
        "separate_vocabs": False,
        "pad_token": pieces[ids.pad],
        "eos_token": pieces[ids.eos],
        "unk_token": pieces[ids.unk],
    }


def _pieces(tokenizer: Tokenizer) -> list[str]:
    return tokenizer.pieces(range(tokenizer.vocab_size))


def _language_notes(tokenizer: Tokenizer) -> list[str]:
    languages = tokenizer.vocabulary.languages if isinstance(tokenizer, MappedTokenizer) else ()
    if not languages:
        return []
    return [f"A source begins with the code of its target language, for example {languages[0]}."]


def _differences(config: Config) -> list[str]:
    decode, model = config.decode, config.model
    notes = []
    if model.norm_epsilon != NORM_EPSILON:
        notes.append(
            f"Layer norms add {NORM_EPSILON:g} to the variance, here {model.norm_epsilon:g}: "
            "logits differ in the fifth digit after the point."
        )
    if decode.method != "beam" or decode.groups > 1:
        notes.append("`generation_config.json` has a plain beam search.")
    if decode.length_penalty == "gnmt" and decode.beams > 1:
        notes.append("The length penalty `gnmt` is missing there; `length_penalty` 1 is similar.")
    notes += export_limits.length_notes(config)
    notes.append("Unknown characters are left out of the text.")
    return notes


_USAGE = """\
```python
from transformers import MarianTokenizer, MODEL

tokenizer = MarianTokenizer.from_pretrained("DIRECTORY")
model = MODEL.from_pretrained("DIRECTORY")
batch = tokenizer(["a sentence"], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))
```
"""
