# SPDX-License-Identifier: Apache-2.0
"""Assemble the model of another program, and write it as a workdir for every app."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from etils import epath
from flax.traverse_util import flatten_dict, unflatten_dict

from transformer.arrays import Float, Params
from transformer.checkpoints import workdir_files
from transformer.checkpoints.identity import Identity
from transformer.checkpoints.manager import Checkpoints
from transformer.config import Config, DataConfig, DecodeConfig, TransformerConfig
from transformer.interop.new_directory import new_directory
from transformer.models import protocol
from transformer.nn.parameters import Parameter
from transformer.provenance import provenance
from transformer.text.mapped_tokenizer import MappedVocabulary
from transformer.text.sentencepiece_fields import segmentation

EXCLUDED = -100.0
"""Logit of padding and BOS, which no imported model predicts.

exp(-100) is 0 beside any other logit. A much larger number would count in the label smoothing of
a later training, which sums over the whole vocabulary.
"""
BUCKETS = (16, 32, 64, 128, 256, 512)
SIDES = ("encoder", "decoder")


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
    """The config of an imported model for sentences of at most `longest` tokens.

    It names no text to train on.
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
    """Write the workdir, which must not exist; it appears complete or not at all."""
    config, tokenizer = imported.config, imported.vocabulary.pack()
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
        text = workdir_files.json_text(result)
        (directory / workdir_files.RESULT).write_text(text, encoding="utf-8")


def stack_parameters(model: TransformerConfig) -> dict[str, Parameter]:
    """The declarations of the encoder's and the decoder's parameters, by path."""
    metadata = protocol.parameter_metadata(protocol.build(model))
    return flatten_dict({side: metadata[side] for side in SIDES}, sep="/")


def matrix_shape(parameter: Parameter) -> tuple[int, ...]:
    """[in, out] of a kernel, with all heads on one axis; [out] of a bias or a scale."""
    shape, inputs = parameter.value.shape, parameter.num_input_axes
    parts = (shape[:inputs], shape[inputs:]) if inputs else (shape,)
    return tuple(map(math.prod, parts))


def read_stacks(
    model: TransformerConfig, take: Callable[[str, tuple[int, ...]], np.ndarray]
) -> Params:
    """The parameters of the encoder and the decoder.

    `take` reads the values of a parameter from its path and its `matrix_shape`.
    """
    params = {
        path: np.ascontiguousarray(take(path, matrix_shape(each))).reshape(each.value.shape)
        for path, each in stack_parameters(model).items()
    }
    return unflatten_dict(params, sep="/")


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
