# SPDX-License-Identifier: Apache-2.0
"""Assemble the model of another program, and write it as a workdir for every app."""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from etils import epath
from flax.traverse_util import flatten_dict

from transformer.arrays import Float, Params
from transformer.checkpoints import workdir_files
from transformer.checkpoints.identity import Identity
from transformer.checkpoints.manager import Checkpoints
from transformer.config import Config, DataConfig, DecodeConfig, TransformerConfig
from transformer.errors import InputError
from transformer.interop.new_directory import new_directory
from transformer.models import protocol
from transformer.provenance import provenance
from transformer.text.mapped_tokenizer import SPECIAL_PIECES, MappedVocabulary
from transformer.text.sentencepiece_fields import segmentation

EXCLUDED = -100.0
"""Logit of padding and BOS, which no imported model predicts.

exp(-100) is 0 beside any other logit. A much larger number would count in the label smoothing of
a later training, which sums over the whole vocabulary.
"""
BUCKETS = (16, 32, 64, 128, 256, 512)
SIDES = ("encoder", "decoder")
Linear = tuple[Float[np.ndarray, "in out"], Float[np.ndarray, " out"]]
"""Kernel and bias of a linear map."""


@dataclasses.dataclass(frozen=True)
class ImportedModel:
    """A model and its vocabulary, in the form of this project."""

    config: Config
    params: Params
    """NumPy arrays, float32."""
    vocabulary: MappedVocabulary
    origin: dict[str, Any]
    """Where the model is from, for ``result.json``."""


def config_of(
    model: TransformerConfig, decode: DecodeConfig, longest: int, vocabulary: MappedVocabulary
) -> Config:
    """The config of an imported model, which names no text to train on.

    Args:
      model: its model section.
      decode: its decode section.
      longest: sentence that the model was made for, in tokens.
      vocabulary: names the algorithm, with which a training samples subwords.
    """
    algorithm = segmentation(vocabulary.target_model).algorithm
    longest = min(longest, BUCKETS[-1])
    buckets = (*(size for size in BUCKETS if size < longest), longest)
    data = DataConfig(
        dataset="text_files",
        # Like words, characters have one segmentation.
        tokenizer="word" if algorithm == "char" else algorithm,
        max_length=longest,
        bucket_lengths=buckets,
    )
    return Config(model=model, decode=decode, data=data)


def write_workdir(imported: ImportedModel, workdir: epath.PathLike) -> None:
    """Write the workdir, which appears complete or not at all.

    Raises:
      InputError: if the model is incomplete, or the workdir exists or cannot be written.
    """
    config, tokenizer = imported.config, imported.vocabulary.pack()
    require_complete(imported.params, config.model)
    with new_directory(workdir, "--workdir") as directory:
        (directory / workdir_files.TOKENIZER).write_bytes(tokenizer)
        identity = Identity.of(config.model, tokenizer, tokenizer)
        with Checkpoints(directory, config.training, identity, writing=True) as checkpoints:
            checkpoints.save_params(imported.params)
        (directory / workdir_files.CONFIG).write_text(config.to_json(), encoding="utf-8")
        result = {
            "step": 0,
            "validation": {},
            "parameters": sum(leaf.size for leaf in jax.tree.leaves(imported.params)),
            "imported": imported.origin,
            "provenance": provenance(),
        }
        text = json.dumps(result, indent=2, ensure_ascii=False) + "\n"
        (directory / workdir_files.RESULT).write_text(text, encoding="utf-8")


def require_complete(params: Params, config: TransformerConfig) -> None:
    """Check that the parameters are those of the model, with their shapes.

    Raises:
      InputError: naming the first parameter that is missing, left over, or of another shape.
    """
    expected = _shapes(nn.unbox(protocol.parameter_metadata(protocol.build(config))))
    actual = _shapes(params)
    for name in [*expected, *actual]:
        if expected.get(name) != actual.get(name):
            raise InputError(
                f"the parameter {name} has the shape {actual.get(name)} in the imported model and "
                f"{expected.get(name)} in the config (None: absent); check that its files belong "
                "together"
            )


def _shapes(tree: Params) -> dict[str, tuple[int, ...]]:
    return {name: leaf.shape for name, leaf in flatten_dict(tree, sep="/").items()}


def layer_params(
    model: TransformerConfig,
    side: str,
    linear: Callable[[str, str, int, int], Linear],
    norm: Callable[[str], Params],
) -> Params:
    """The parameters of one layer, with biases and layer norms.

    Args:
      model: a Transformer without gates.
      side: ``encoder`` or ``decoder``.
      linear: from a sub-layer, the name of its linear map (``query``, ``key``, ``value`` and
        ``output`` of attention; ``in`` and ``out``), and the numbers of inputs and outputs.
      norm: from a sub-layer to ``scale`` and ``bias`` of its layer norm, [D] each.
    """
    width = model.d_model
    inner = model.heads(side), width // model.heads(side)  # N, H

    def attention(name: str) -> Params:
        params = {}
        for projection in ("query", "key", "value"):
            kernel, bias = linear(name, projection, width, width)
            params[projection] = kernel.reshape(width, *inner)
            params[f"{projection}_bias"] = bias.reshape(inner)
        kernel, bias = linear(name, "output", width, width)
        return params | {"output": kernel.reshape(*inner, width), "output_bias": bias}

    attentions = ("self_attention", "cross_attention")[: 1 + (side == "decoder")]
    params = {name: attention(name) for name in attentions}
    kernel_in, bias_in = linear("feed_forward", "in", width, model.d_ff)
    kernel_out, bias_out = linear("feed_forward", "out", model.d_ff, width)
    params["feed_forward"] = {
        **{"kernel_in": kernel_in, "bias_in": bias_in},
        **{"kernel_out": kernel_out, "bias_out": bias_out},
    }
    return params | {f"{name}_residual": {"norm": norm(name)} for name in params}


def special_first(
    pieces: Mapping[str, int], pad: int, start: int, eos: int, unknown: int
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The pieces in the order of this project, and the original id of each.

    The special ids come first, then the others in their order. BOS is `start`, the token that the
    decoder reads first: another special token, whose row of the table BOS then repeats, or a piece
    of its own, ``<s>``.

    Args:
      pieces: ids from 0 without gaps.
      pad: id of padding.
      start: id of the first decoder input.
      eos: id of the end of a sentence.
      unknown: id of a piece outside the vocabulary.
    """
    names = {index: piece for piece, index in pieces.items()}
    special, placed = SPECIAL_PIECES, {pad, eos, unknown}
    if names[start] == special[1]:
        placed.add(start)
    others = [index for index in range(len(names)) if index not in placed]
    # A special token that this model does not use keeps its row, but no text is encoded as it.
    texts = (names[one] if names[one] not in special else f"<unused {one}>" for one in others)
    return (*special, *texts), (pad, start, eos, unknown, *others)


def output_bias(
    bias: Float[np.ndarray, " _"], original_ids: tuple[int, ...]
) -> Float[np.ndarray, " V"] | None:
    """The bias of the logits in the order of this project; None if it adds nothing.

    It is `EXCLUDED` for padding and BOS, if BOS repeats the row of another token: the probability
    of that token would count twice.
    """
    ordered = bias[list(original_ids)]
    if len(set(original_ids)) < len(original_ids):
        ordered[:2] = EXCLUDED
    return ordered if ordered.any() else None


def existing_directory(path: epath.PathLike) -> pathlib.Path:
    """The directory to import from.

    Raises:
      InputError: if it is not a local directory.
    """
    directory = pathlib.Path(path)
    if not directory.is_dir():
        raise InputError(
            f"--input={path} is not a directory; download the files of the model into one"
        )
    return directory
