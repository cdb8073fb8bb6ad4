# SPDX-License-Identifier: Apache-2.0
"""Export to CTranslate2, an inference engine for CPU and GPU, with integer quantization.

The weights are rearranged, never changed: CTranslate2 computes the same function. Its Python
package writes the file from NumPy arrays.
"""

import pathlib
from types import ModuleType
from typing import Any

import jax
import numpy as np

from transformer.arrays import Float, Params
from transformer.config import Config, TransformerConfig
from transformer.errors import InputError
from transformer.interop import export_limits
from transformer.interop.model_card import Export
from transformer.interop.tokenizer_files import TokenizerFiles, write_tokenizers
from transformer.nn.feed_forward import GATES
from transformer.nn.positions import sinusoids
from transformer.trained_model import TrainedModel

FORMAT = "CTranslate2"
QUANTIZATIONS = ("int8", "int16", "float16")
_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "swish": "SWISH"}
_ABSOLUTE = ("sinusoidal", "learned", "none")
_ANY_VALUE = (
    *("source_vocab_size", "d_k", "num_kv_heads", "attention_bias", "shared_layers", "activation"),
    *("norm_kind", "tied_embeddings", "embedding_scale", "sinusoid_layout", "position_offset"),
    "output_bias",
)
"""Fields that CTranslate2 holds with every value, besides `limits.COMMON_FIELDS`."""


def export(
    trained: TrainedModel, directory: pathlib.Path, quantization: str | None = None
) -> Export:
    """Write ``model.bin``, the vocabularies and the tokenizers into an empty directory.

    Kernels and embeddings are quantized by one of `QUANTIZATIONS`, or stored in float32.

    Raises:
      InputError: for a model that CTranslate2 cannot hold, or if its package is not installed.
    """
    config = trained.config
    require_supported(config)
    pieces = [side.pieces(range(side.vocab_size)) for side in trained.vocabularies]
    spec = build_spec(config, jax.device_get(trained.params), *pieces)
    spec.validate()
    spec.optimize(quantization)
    spec.save(str(directory))
    files = write_tokenizers(trained.vocabularies, directory)
    return Export(
        usage=_usage(config, files, pieces[1]),
        dtype=quantization or "float32",
        differences=[*files.notes(), *_differences(config)],
    )


def require_supported(config: Config) -> None:
    """Refuse a model that CTranslate2 cannot hold exactly, naming every field in the way."""
    model = config.model
    export_limits.require_transformer(model, FORMAT)
    same = all(len({*model.head_widths(side)}) == 1 for side in ("encoder", "decoder"))
    rules = [
        ("positions", model.positions != "alibi", "its encoder has no ALiBi"),
        ("attention_window", model.attention_window is None, "its window is causal"),
        ("attention_score", model.attention_score == "dot", "it has dot products only"),
        ("timestep_encoding", not model.timestep_encoding, "its layers add no encodings"),
        ("d_v", same, "its values are as wide as its keys (model.d_k)"),
    ]
    export_limits.require(model, rules, _ANY_VALUE, FORMAT)


def build_spec(
    config: Config, params: Params, source_pieces: list[str], target_pieces: list[str]
) -> Any:
    """Build the ``TransformerSpec`` of a supported model, from NumPy arrays.

    The pieces are the subwords of each side in the order of their ids.
    """
    specs = _package()
    model = config.model
    encoder, decoder = (
        getattr(specs, f"Transformer{side.capitalize()}Spec")(
            model.depth(side), model.heads(side), **_options(specs, model, side)
        )
        for side in ("encoder", "decoder")
    )
    spec = specs.TransformerSpec(encoder, decoder)
    scale = model.embedding_scale == "tokens"
    for side, stack in (("encoder", encoder), ("decoder", decoder)):
        stack.scale_embeddings = scale
        if model.positions in _ABSOLUTE:
            table = _positions(config, params)
            stack.position_encodings.encodings = table
        _fill_stack(stack, model, params[side], side)
    _fill_embeddings(encoder, decoder, model, params["embedding"])

    spec.register_source_vocabulary(source_pieces)
    spec.register_target_vocabulary(target_pieces)
    settings, ids = spec.config, model.special_ids
    settings.unk_token, settings.bos_token, settings.eos_token = (
        target_pieces[index] for index in (ids.unk, ids.bos, ids.eos)
    )
    settings.decoder_start_token = target_pieces[ids.bos]
    settings.add_source_eos = True
    settings.layer_norm_epsilon = model.norm_epsilon
    return spec


def _package() -> ModuleType:
    try:
        import ctranslate2.specs as specs
    except ImportError:
        raise InputError(
            "--to=ctranslate2 needs the package ctranslate2, which is not installed; install it "
            "with: pip install ctranslate2"
        ) from None
    return specs


def _options(specs: ModuleType, model: TransformerConfig, side: str) -> dict[str, Any]:
    """The keyword arguments of the specification of a stack."""
    d_k, heads = model.head_widths(side)[0], model.heads(side)
    options = {
        "pre_norm": model.norm == "pre",
        "activation": specs.common_spec.Activation[
            _ACTIVATIONS[GATES.get(model.activation, model.activation)]
        ],
        "ffn_glu": model.activation in GATES,
        "rms_norm": model.norm_kind == "rms_norm",
        "head_dim": None if d_k * heads == model.d_model else d_k,
        "relative_position": model.positions == "shaw",
        "relative_attention_bias": model.positions == "t5",
    }
    if model.positions == "rotary":
        options |= {"rotary_dim": 0, "rotary_interleave": True}  # 0: all dimensions
    return options


def _positions(config: Config, params: Params) -> Float[np.ndarray, "T D"]:
    """The table of absolute positions; zeros without."""
    model, length = config.model, export_limits.num_positions(config)
    if model.positions == "learned":
        table = params["embedding"]["positions"]
    elif model.positions == "sinusoidal":
        offset = model.position_offset
        table = sinusoids(offset + length, model.d_model, model.sinusoid_layout)[offset:]
    else:
        table = np.zeros((length, model.d_model))
    if model.embedding_scale == "positions":
        table = table / np.sqrt(model.d_model)
    return _array(table)


def _fill_embeddings(encoder: Any, decoder: Any, model: TransformerConfig, params: Params) -> None:
    table = _array(params["table"])
    encoder.embeddings[0].weight = _array(params.get("source_table", table))
    decoder.embeddings.weight = table
    output = params.get("output")
    bias = params.get("output_bias")
    _set(decoder.projection, table if output is None else output.T, bias)


def _fill_stack(stack: Any, model: TransformerConfig, params: Params, side: str) -> None:
    for index, layer in enumerate(stack.layer):
        # With shared layers there is one, which all refer to; the file has it once.
        tree = params["layer_0" if model.shared_layers else f"layer_{index}"]
        _fill_attention(layer.self_attention, model, tree, "self_attention", side)
        _fill_relative(layer.self_attention, model, params, side)
        if side == "decoder":
            _fill_attention(layer.attention, model, tree, "cross_attention", side)
        network = tree["feed_forward"]
        gate = network.get("kernel_gate")
        if gate is None:
            _set(layer.ffn.linear_0, network["kernel_in"].T, network["bias_in"])
        else:
            _set(layer.ffn.linear_0, gate.T)
            _set(layer.ffn.linear_0_noact, network["kernel_in"].T)
        _set(layer.ffn.linear_1, network["kernel_out"].T, network.get("bias_out"))
        _set_norm(layer.ffn.layer_norm, tree["feed_forward_residual"]["norm"])
    if model.norm == "pre":
        _set_norm(stack.layer_norm, params["final_norm"])


def _fill_attention(
    attention: Any, model: TransformerConfig, layer: Params, name: str, side: str
) -> None:
    """Set the projections, whose rows are the outputs of all heads, and the norm."""
    params, heads = layer[name], model.heads(side)

    def rows(one: str) -> Float[np.ndarray, "_ D"]:
        kernel = _all_heads(params[one], 1, heads)  # [D, N, H]
        return kernel.reshape(len(kernel), -1).T

    def bias(one: str) -> Float[np.ndarray, " _"]:
        return _all_heads(params[f"{one}_bias"], 0, heads).reshape(-1)

    joined = [("query", "key", "value")]
    if name == "cross_attention":
        joined = [("query",), ("key", "value")]
    for linear, names in zip(attention.linear, joined, strict=False):
        biases = [bias(one) for one in names] if model.attention_bias else None
        _set(linear, np.concatenate([*map(rows, names)]), biases and np.concatenate(biases))
    output = params["output"]  # [N, H, D]
    _set(attention.linear[-1], output.reshape(-1, output.shape[-1]).T, params.get("output_bias"))
    _set_norm(attention.layer_norm, layer[f"{name}_residual"]["norm"])


def _all_heads(array: np.ndarray, axis: int, heads: int) -> np.ndarray:
    """Repeat the heads of keys and values that several heads of queries share."""
    return np.repeat(array, heads // array.shape[axis], axis)


def _fill_relative(attention: Any, model: TransformerConfig, params: Params, side: str) -> None:
    """Set what relative positions add to self-attention, which all layers share."""
    if model.positions == "shaw":
        for name in ("keys", "values"):
            rows = params["position_scheme"][name]
            # The decoder has no vectors for keys after the query; CTranslate2 never reads them.
            missing = 2 * model.max_relative_position + 1 - len(rows)
            table = _array(np.pad(rows, ((0, missing), (0, 0))))
            setattr(attention, f"relative_position_{name}", table)
    if model.positions == "t5":
        attention.relative_attention_bias = _array(params["position_scheme"]["bias"])
        attention.relative_attention_max_distance = np.int32(model.position_max_distance)


def _set(linear: Any, weight: np.ndarray, bias: np.ndarray | None = None) -> None:
    linear.weight = _array(weight)
    if bias is not None:
        linear.bias = _array(bias)


def _set_norm(norm: Any, params: Params) -> None:
    norm.gamma = _array(params["scale"])
    if "bias" in params:
        norm.beta = _array(params["bias"])


def _array(values: Any) -> np.ndarray:
    """A copy, because CTranslate2 quantizes in place."""
    return np.array(values, np.float32, order="C")


def _differences(config: Config) -> list[str]:
    decode, model = config.decode, config.model
    notes = [
        "CTranslate2 stops a beam search when as many hypotheses as beams have finished, so a "
        "beam search may return other translations; greedy search returns the same.",
        "`suppress_sequences` forbids padding and BOS, which this project never generates.",
        *export_limits.length_notes(config),
    ]
    if not decode.min_length:
        notes.append("`min_decoding_length` must be 0: by default no translation is empty.")
    if decode.length_penalty == "gnmt" and decode.beams > 1:
        notes.append("The length penalty `gnmt` is missing there; `length_penalty=1` is similar.")
    if model.positions in _ABSOLUTE:
        notes.append(f"Sentences have at most {export_limits.num_positions(config):,} tokens.")
    return notes


def _usage(config: Config, files: TokenizerFiles, pieces: list[str]) -> str:
    decode, ids = config.decode, config.model.special_ids
    forbidden = [[pieces[ids.pad]], [pieces[ids.bos]]]
    before = "".join(f"{piece!r}, " for piece in files.source_prefix)
    skipped = len(files.target_prefix)
    # There the limit does not count EOS, and must be at least 1 and the minimum.
    longest = max(export_limits.longest_output(config) - 1, 1)
    options = ""
    if decode.block_ngrams is not None:
        options += f"    no_repeat_ngram_size={decode.block_ngrams},\n"
    if skipped:
        options += f"    target_prefix=[{[*files.target_prefix]!r}],\n"
    target = f'target = sentencepiece.SentencePieceProcessor("DIRECTORY/{files.target}")\n'
    return f"""\
```python
import ctranslate2
import sentencepiece

source = sentencepiece.SentencePieceProcessor("DIRECTORY/{files.source}")
{"" if files.joins_pieces else target}translator = ctranslate2.Translator("DIRECTORY", device="cpu")
[result] = translator.translate_batch(
    [[{before}*source.encode("a sentence", out_type=str)]],
    beam_size={decode.beams},
    length_penalty={export_limits.length_penalty(decode):g},
    max_decoding_length={longest},
    min_decoding_length={min(decode.min_length, longest)},
    suppress_sequences={forbidden!r},
{options})
pieces = result.hypotheses[0][{skipped}:]
{files.print_code("pieces", "target")}```
"""
