# SPDX-License-Identifier: Apache-2.0
"""Import models of Marian, such as the downloads of OPUS-MT: ``.npz``, ``.yml`` and ``.spm``.

Only NumPy reads them. Positions are those that Marian computes (`sinusoid_layout` ``halves``),
which differ from those of the same model in Hugging Face and CTranslate2.
"""

import pathlib
import re
from typing import Literal

import numpy as np
from etils import epath

from transformer.config import DecodeConfig, TransformerConfig
from transformer.errors import InputError
from transformer.interop import imported_model
from transformer.interop.huggingface_import import (
    POSITIONS,
    marian_vocabulary,
    with_language,
)
from transformer.interop.imported_model import ImportedModel
from transformer.interop.weight_files import Weights

CONFIG = "special:model.yml"
"""Name of the array with the options of the training, as bytes of YAML."""
NORM_EPSILON = 1e-6
LONGEST = 512
"""Tokens of a sentence; Marian itself has no limit."""
_SUPPORTED = {
    "type": (("transformer",), "another architecture"),
    "transformer-decoder-autoreg": (("self-attention",), "the decoder has another kind of layer"),
    "transformer-no-projection": (("false",), "attention has an output map"),
    "transformer-train-positions": (("false",), "positions are sinusoids"),
    "transformer-train-position-embeddings": (("false",), "positions are sinusoids"),
    "transformer-preprocess": (("",), "layer norms come after the sub-layers"),
    "transformer-postprocess": (("dan",), "a residual connection and a norm follow a sub-layer"),
    "transformer-postprocess-emb": (("d", ""), "embeddings have no layer norm"),
    "transformer-postprocess-top": (("",), "post-norm stacks have no final layer norm"),
    "transformer-ffn-depth": (("2",), "the feed-forward network has two linear maps"),
    "transformer-ffn-activation": (("swish", "relu"), "Marian's gelu is another function"),
    "tied-embeddings-all": (("true",), "source, target and logits must share one table"),
    "output-omit-bias": (("false",), "the logits have a bias"),
    "transformer-depth-scaling": (("false",), "no layer is scaled"),
    "lemma-dim-emb": (("0",), "factors are not supported"),
}
"""Options with their supported values, the default of absent ones first, and the reason."""


def load(
    path: epath.PathLike,
    positions: Literal["huggingface", "marian"] = "marian",
    target_language: str | None = None,
) -> ImportedModel:
    """Read a directory with one ``.npz``, its vocabulary ``.yml``, and the SentencePiece models.

    Args:
      path: for example an unpacked ZIP archive of OPUS-MT.
      positions: see `huggingface_import.POSITIONS`.
      target_language: see `huggingface_import.load`.

    Raises:
      InputError: for a model that cannot be held exactly, or files that are missing, damaged, or do
        not belong together.
    """
    directory = pathlib.Path(path)
    weights_path = _only(directory, "*.npz", "the weights")
    vocabulary_path = _only(directory, "*vocab*.yml", "the vocabulary")
    tensors = _read_arrays(weights_path)
    if CONFIG not in tensors:
        raise InputError(f"{weights_path} has no {CONFIG}; is it a model of Marian?")
    options = _options(weights_path, tensors.pop(CONFIG))
    ids = read_vocabulary(vocabulary_path)
    size = len(ids)
    if "</s>" not in ids:
        raise InputError(f"{vocabulary_path} has no piece </s>; copy the file again")
    # As in Hugging Face's files: a row of zeros for padding, which the decoder reads first.
    ids |= {"<pad>": size}
    special = {"<pad>": size, "</s>": ids["</s>"]}
    vocabulary = marian_vocabulary(
        *(directory, vocabulary_path, ids), size=size + 1, special=special, start=size
    )
    model = _model_config(weights_path, options, len(vocabulary.pieces), POSITIONS[positions])
    weights = Weights(weights_path, tensors, tensors.__getitem__)
    table = np.pad(weights.take("Wemb", size, model.d_model), ((0, 1), (0, 0)))
    bias = np.pad(weights.take("decoder_ff_logit_out_b", 1, size)[0], (0, 1))
    order = vocabulary.original_ids
    embedding = {"table": table[[*order]], "output_bias": imported_model.output_bias(bias, order)}

    def take(path: str, shape: tuple[int, ...]) -> np.ndarray:
        # Biases and scales are rows there.
        return weights.take(_tensor_name(path), *(shape if len(shape) == 2 else (1, *shape)))

    stacks = imported_model.read_stacks(model, take)
    weights.require_all_taken()
    config = imported_model.config_of(model, _decode_config(directory), LONGEST, vocabulary)
    origin = {"format": "marian", "positions": positions, "directory": directory.name}
    vocabulary = with_language(vocabulary, target_language)
    return ImportedModel(config, {"embedding": embedding, **stacks}, vocabulary, origin)


def read_vocabulary(path: pathlib.Path) -> dict[str, int]:
    """Read Marian's vocabulary: one line ``piece: id`` each, quoted as in YAML.

    A YAML parser would read ``no: 17`` as false, and split lines at other characters.

    Raises:
      InputError: naming the line that is neither.
    """
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}); copy it again") from None
    ids: dict[str, int] = {}
    key = None
    for number, line in enumerate(lines, 1):
        line = line.removesuffix("\r")
        if not line:
            continue
        if line.startswith("? "):  # A long key has its own line, and its value the next.
            key = line[2:]
            continue
        if key is None:
            key, _, value = line.rpartition(":")
        else:
            value = line.removeprefix(":")
        if not value.strip().isdecimal():
            raise InputError(f"{path}:{number}: {line!r} is not 'piece: id'; copy the file again")
        piece, key = _unquoted(key.strip(" ")), None
        if piece in ids:
            raise InputError(f"{path}:{number}: the piece {piece!r} occurs twice")
        ids[piece] = int(value)
    return ids


def _unquoted(text: str) -> str:
    """The value of a plain, 'single' or "double" quoted scalar of YAML."""
    if len(text) >= 2 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    if len(text) >= 2 and text[0] == text[-1] == '"':
        return _ESCAPE.sub(_unescaped, text[1:-1])
    return text


_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)")
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "0": "\0", "a": "\a", "e": "\x1b"}
_CONTROLS |= {"f": "\f", "v": "\v", "_": "\xa0", "N": "\x85", "L": "\u2028", "P": "\u2029"}


def _unescaped(match: re.Match) -> str:
    code = match[1]
    if len(code) > 1:
        return chr(min(int(code[1:], 16), 0x10FFFF))
    return _CONTROLS.get(code, code)


def _only(directory: pathlib.Path, pattern: str, what: str) -> pathlib.Path:
    """The one file of a pattern; several with the same content count as one."""
    found = sorted(directory.glob(pattern))
    if not found:
        raise InputError(f"{directory} has no {pattern}, {what}; unpack the complete download")
    if len(found) > 1 and len({path.read_bytes() for path in found}) > 1:
        names = ", ".join(path.name for path in found)
        raise InputError(
            f"{directory} has several files {pattern}: {names}; leave one (separate vocabularies "
            "are not supported)"
        )
    return found[0]


def _read_arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            return dict(archive)
    # A damaged archive raises many types.
    except Exception as error:  # noqa: BLE001
        raise InputError(f"{path} cannot be read ({error}); copy it again") from None


def _options(path: pathlib.Path, data: np.ndarray) -> dict[str, str]:
    """The options of the training whose values are on one line."""
    try:
        text = data.astype(np.uint8).tobytes().rstrip(b"\0").decode("utf-8")
    except (ValueError, TypeError) as error:
        raise InputError(f"{path}: {CONFIG} cannot be read ({error}); copy it again") from None
    pairs = (line.partition(": ") for line in text.split("\n") if not line.startswith((" ", "#")))
    return {key: _unquoted(value.strip()) for key, separator, value in pairs if separator}


def _model_config(
    path: pathlib.Path, options: dict[str, str], vocab_size: int, layout: str
) -> TransformerConfig:
    def integer(name: str) -> int:
        value = options.get(name, "")
        if not value.isdecimal():
            raise InputError(f"{path}: the option {name} is {value!r}, but must be a number")
        return int(value)

    hidden = integer("transformer-dim-ffn")
    widths = {"transformer-decoder-dim-ffn": (("0", str(hidden)), "model.d_ff is one number")}
    for name, (supported, reason) in (_SUPPORTED | widths).items():
        if options.get(name, supported[0]) not in supported:
            raise InputError(
                f"{path}: the option {name} is {options[name]!r}, but only "
                f"{' or '.join(map(repr, supported))} is supported: {reason}"
            )
    depth = [integer("enc-depth"), integer("dec-depth")]
    try:
        return TransformerConfig(
            vocab_size=vocab_size,
            d_model=integer("dim-emb"),
            d_ff=hidden,
            num_layers=depth[0],
            decoder_layers=None if depth[0] == depth[1] else depth[1],
            num_heads=integer("transformer-heads"),
            activation=options.get("transformer-ffn-activation", "swish"),
            attention_bias=True,
            output_bias=True,
            norm_epsilon=NORM_EPSILON,
            sinusoid_layout=layout,
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


_MODULES = {
    "self_attention": "self",
    "cross_attention": "context",
    "feed_forward": "ffn",
    "self_attention_residual/norm": "self_Wo_ln",
    "cross_attention_residual/norm": "context_Wo_ln",
    "feed_forward_residual/norm": "ffn_ffn_ln",
}
_PARTS = {
    "query": "Wq",
    "query_bias": "bq",
    "key": "Wk",
    "key_bias": "bk",
    "value": "Wv",
    "value_bias": "bv",
    "output": "Wo",
    "output_bias": "bo",
    "kernel_in": "W1",
    "bias_in": "b1",
    "kernel_out": "W2",
    "bias_out": "b2",
    "scale": "scale",
    "bias": "bias",
}
"""From the names of this project to those of Marian."""


def _tensor_name(path: str) -> str:
    """Name of the tensor of a parameter of a layer, counted from 1; its kernels are [in, out]."""
    side, layer, *module, part = path.split("/")
    index = int(layer.removeprefix("layer_")) + 1
    return f"{side}_l{index}_{_MODULES['/'.join(module)]}_{_PARTS[part]}"


def _decode_config(directory: pathlib.Path) -> DecodeConfig:
    """The search of ``decoder.yml``, if there is one."""
    path, options = directory / "decoder.yml", {}
    if path.exists():
        options = _options(path, np.frombuffer(path.read_bytes(), np.uint8))
    try:
        return DecodeConfig(
            beams=int(options.get("beam-size", 6)),
            length_penalty="length",
            alpha=float(options.get("normalize", 1.0)),
        )
    except ValueError as error:
        raise InputError(f"{path}: {error} (beam-size, normalize)") from None
