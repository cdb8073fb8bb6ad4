# SPDX-License-Identifier: Apache-2.0
"""The small Marian checkpoint of Hugging Face, and models that are made of it."""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from transformer.arrays import SpecialIds
from transformer.interop import huggingface_import
from transformer.models import protocol
from transformer.text.mapped_tokenizer import MappedTokenizer
from transformer.text.tokenizer import Tokenizer, Vocabularies
from transformer.trained_model import TrainedModel

CHECKPOINT = pathlib.Path(__file__).parent / "interop" / "marian_checkpoint"
"""Made by scripts/make_marian_fixture.py."""
OUTPUTS = dict(np.load(CHECKPOINT / "outputs.npz"))
SENTENCES = OUTPUTS["sentences"].tolist()
PIECES = huggingface_import.load(CHECKPOINT).vocabulary.pieces
PREFIXES = {"source_prefix": PIECES[9:10], "target_prefix": PIECES[8:9]}
"""As in NLLB, every source begins with a piece, and every translation with another."""


def trained_model(decode, unknown=0.0, **fields):
    """The imported checkpoint as an export takes it.

    Args:
      decode: its decode section.
      unknown: added to the logit of unknown characters.
      **fields: of its vocabulary.
    """
    imported = huggingface_import.load(CHECKPOINT)
    config = imported.config.replace(decode=decode)
    vocabulary = dataclasses.replace(imported.vocabulary, **fields)
    vocabularies = Vocabularies.shared(MappedTokenizer(vocabulary.pack()))
    params, mesh = jax.tree.map(jnp.asarray, imported.params), jax.make_mesh((1,), "x")
    bias = params["embedding"]["output_bias"]
    params["embedding"]["output_bias"] = bias.at[SpecialIds().unk].add(unknown)
    model = protocol.build(config.model)
    return TrainedModel(config, params, vocabularies, model, mesh, {})


def foreign_target():
    """A SentencePiece model of the target that knows no piece of the checkpoint's words."""
    return {"target_model": Tokenizer.train(["x y z"] * 9, 10, "bpe", at_most=True).model}
