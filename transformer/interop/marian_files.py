# SPDX-License-Identifier: Apache-2.0
"""Import models of Marian, such as the downloads of OPUS-MT: ``.npz``, ``.yml`` and ``.spm``.

Only NumPy reads them. Positions are those that Marian computes (`sinusoid_layout` ``halves``),
which differ from those of the same model in Hugging Face and CTranslate2.
"""

import contextlib
import pathlib
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
from etils import epath

from transformer.arrays import Params
from transformer.config import DecodeConfig, TransformerConfig
from transformer.errors import InputError
from transformer.interop import imported_model
from transformer.interop.huggingface_import import (
    POSITIONS,
    marian_vocabulary,
    with_language,
)
from transformer.interop.imported_model import SIDES, ImportedModel, Linear
from transformer.interop.weight_files import Weights

CONFIG = "special:model.yml"
"""Name of the array with the options of the training, as bytes of YAML."""
NORM_EPSILON = 1e-6
LONGEST = 512
"""Tokens of a sentence; Marian itself has no limit."""
_SUPPORTED = {
    "type": ("transformer", "another architecture"),
    "transformer-decoder-autoreg": ("self-attention", "the decoder has another kind of layer"),
    "transformer-no-projection": ("false", "attention has an output map"),
    "transformer-train-positions": ("false", "positions are sinusoids"),
    "transformer-train-position-embeddings": ("false", "positions are sinusoids"),
    "transformer-preprocess": ("", "layer norms come after the sub-layers"),
    "transformer-postprocess": ("dan", "a residual connection and a layer norm follow a layer"),
    "transformer-postprocess-top": ("", "post-norm stacks have no final layer norm"),
    "transformer-ffn-depth": ("2", "the feed-forward network has two linear maps"),
    "tied-embeddings-all": ("true", "source, target and logits must share one table"),
    "output-omit-bias": ("false", "the logits have a bias"),
    "transformer-depth-scaling": ("false", "no layer is scaled"),
    "lemma-dim-emb": ("0", "factors are not supported"),
}
"""Options with one supported value, which is the default of absent ones, and the reason."""
_ACTIVATIONS = ("relu", "swish")


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
    directory = imported_model.existing_directory(path)
    weights_path = _only(directory, "*.npz", "the weights")
    vocabulary_path = _only(directory, "*vocab*.yml", "the vocabulary")
    with _opened(weights_path) as file:
        tensors = {name: _reader(weights_path, file, name) for name in file.files}
        if CONFIG not in tensors:
            raise InputError(f"{weights_path} has no {CONFIG}; is it a model of Marian?")
        options = _options(weights_path, tensors.pop(CONFIG)())
        ids = read_vocabulary(vocabulary_path)
        size = len(ids)
        for piece in ("</s>", "<unk>"):
            if piece not in ids:
                raise InputError(f"{vocabulary_path} has no piece {piece}; copy the file again")
        # As in Hugging Face's files: a row of zeros for padding, which the decoder reads first.
        ids |= {"<pad>": size}
        special = {"<pad>": size, "</s>": ids["</s>"]}
        vocabulary = marian_vocabulary(directory, vocabulary_path, ids, special, start=size)
        weights = Weights(str(weights_path), tensors)
        model = _model_config(weights_path, options, len(vocabulary.pieces), POSITIONS[positions])
        order = [*vocabulary.original_ids]
        zeros = np.zeros((1, model.d_model), np.float32)
        table = np.concatenate([weights.take("Wemb", size, model.d_model), zeros])
        bias = np.append(weights.take("decoder_ff_logit_out_b", 1, size)[0], np.float32(0))
        embedding = {
            "table": table[order],
            "output_bias": imported_model.output_bias(bias, vocabulary.original_ids),
        }
        stacks = {side: _stack(weights, side, model) for side in SIDES}
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


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> Iterator[np.lib.npyio.NpzFile]:
    with contextlib.ExitStack() as stack:
        try:
            stream = stack.enter_context(path.open("rb"))
            file = np.load(stream, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("it is not an archive of arrays")
            stack.enter_context(file)
        except _DAMAGE as error:
            raise InputError(f"{path} cannot be read ({error}); copy it again") from None
        yield file


_DAMAGE = (OSError, ValueError, EOFError, LookupError, zipfile.BadZipFile, zlib.error)
_DAMAGE += (NotImplementedError, MemoryError)


def _reader(path: pathlib.Path, file: np.lib.npyio.NpzFile, name: str) -> Callable[[], np.ndarray]:
    def read() -> np.ndarray:
        try:
            return file[name]
        except _DAMAGE as error:
            raise InputError(f"{path}: {name!r} cannot be read ({error}); copy it again") from None

    return read


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
    for name, (supported, reason) in _SUPPORTED.items():
        if options.get(name, supported) != supported:
            raise InputError(
                f"{path}: the option {name} is {options[name]!r}, but only {supported!r} is "
                f"supported: {reason}"
            )
    if options.get("transformer-postprocess-emb", "d") not in ("", "d"):
        raise InputError(
            f"{path}: the option transformer-postprocess-emb is "
            f"{options['transformer-postprocess-emb']!r}, but only '' and 'd' are supported"
        )
    activation = options.get("transformer-ffn-activation", "swish")
    if activation not in _ACTIVATIONS:
        raise InputError(
            f"{path}: the option transformer-ffn-activation is {activation!r}, but must be one of "
            f"{', '.join(_ACTIVATIONS)} (Marian's gelu is another function)"
        )

    def integer(name: str) -> int:
        value = options.get(name, "")
        if not value.isdecimal():
            raise InputError(f"{path}: the option {name} is {value!r}, but must be a number")
        return int(value)

    hidden = integer("transformer-dim-ffn")
    if options.get("transformer-decoder-dim-ffn", "0") not in ("0", str(hidden)):
        raise InputError(
            f"{path}: the options transformer-dim-ffn and transformer-decoder-dim-ffn differ, but "
            "model.d_ff is one number"
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
            activation=activation,
            attention_bias=True,
            output_bias=True,
            norm_epsilon=NORM_EPSILON,
            sinusoid_layout=layout,
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


_SUB_LAYERS = {"self_attention": "self", "cross_attention": "context", "feed_forward": "ffn"}
_LINEAR = {"query": "q", "key": "k", "value": "v", "output": "o", "in": "1", "out": "2"}
_NORMS = {"self_attention": "Wo_ln", "cross_attention": "Wo_ln", "feed_forward": "ffn_ln"}


def _stack(weights: Weights, side: str, model: TransformerConfig) -> Params:
    """The layers of a stack; Marian counts them from 1, and its kernels are [in, out]."""

    def layer(prefix: str) -> Params:
        def linear(sub_layer: str, name: str, inputs: int, outputs: int) -> Linear:
            names = [f"{prefix}_{_SUB_LAYERS[sub_layer]}_{part}{_LINEAR[name]}" for part in "Wb"]
            return weights.take(names[0], inputs, outputs), weights.take(names[1], 1, outputs)[0]

        def norm(sub_layer: str) -> Params:
            name = f"{prefix}_{_SUB_LAYERS[sub_layer]}_{_NORMS[sub_layer]}"
            return {
                part: weights.take(f"{name}_{part}", 1, model.d_model)[0]
                for part in ("scale", "bias")
            }

        return imported_model.layer_params(model, side, linear, norm)

    return {f"layer_{index}": layer(f"{side}_l{index + 1}") for index in range(model.depth(side))}


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
