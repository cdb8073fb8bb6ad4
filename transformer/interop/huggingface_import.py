# SPDX-License-Identifier: Apache-2.0
"""Import models from Hugging Face's files, without PyTorch or Transformers.

These are Marian models (OPUS-MT), pre-norm models that `huggingface_export` wrote, and by
`m2m100_import` those of M2M100 and NLLB-200. The weights are transposed and reordered, never
changed: the logits are those of Transformers to rounding. A field that this model cannot represent
is refused by name.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any, Literal

from etils import epath

from transformer.errors import InputError
from transformer.interop import m2m100_import, weight_files
from transformer.interop.huggingface_files import (
    Fields,
    ordered_pieces,
    read_model,
    sentencepiece_model,
)
from transformer.interop.imported_model import ImportedModel
from transformer.text.mapped_tokenizer import MappedVocabulary

POSITIONS = {"huggingface": "halves_paper", "marian": "halves"}
"""Layouts of the sinusoids of Marian models: that of Hugging Face, and that of their training."""

_MARIAN_RULES = [
    ("normalize_before", False, "Hugging Face computes Marian models as post-norm"),
    ("normalize_embedding", False, "the embedding has no layer norm"),
    ("add_final_layer_norm", False, "post-norm stacks have no final layer norm"),
    ("static_position_embeddings", True, "Marian models have sinusoids"),
    ("share_encoder_decoder_embeddings", True, "source and target must share their vocabulary"),
]
"""Fields with the one value that is supported, which is their default, and the reason."""


def load(
    path: epath.PathLike,
    positions: Literal["huggingface", "marian"] | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
) -> ImportedModel:
    """Read a directory that ``save_pretrained`` wrote, or a download of the Hugging Face Hub.

    Args:
      path: a directory with ``config.json``, the weights and the tokenizer's files.
      positions: sinusoids of a Marian model, see `POSITIONS`; default: those of Hugging Face.
      source_language: language of the sources of M2M100 and NLLB-200, such as ``eng_Latn``.
      target_language: language of their translations. With a multilingual Marian model, that of
        the translations of sentences that begin with no code, such as ``deu``.

    Raises:
      InputError: for a model that cannot be held exactly, or files that are missing, damaged, or do
        not belong together.
    """
    directory = pathlib.Path(path)
    fields = Fields(directory / "config.json")
    kind = fields.get("model_type", None)
    if kind == "m2m_100":
        _refuse_option("positions", positions, "only a Marian model has a choice of positions")
        return m2m100_import.load(directory, fields, source_language, target_language)
    if kind not in ("marian", "pegasus"):
        raise InputError(
            f"{fields.path}: model_type is {kind!r}, but must be 'marian' (OPUS-MT), 'm2m_100' "
            "(M2M100, NLLB-200) or 'pegasus' (pre-norm models of convert --to=huggingface)"
        )
    reason = "the model has one source language, or does not need to know it"
    _refuse_option("source_language", source_language, reason)
    path = directory / "vocab.json"
    if kind == "pegasus":
        _refuse_option("positions", positions, "only a Marian model has a choice of positions")
        if not path.exists():
            raise InputError(
                f"{fields.path}: a Pegasus model is read with the tokenizer files that "
                "convert --to=huggingface writes (vocab.json, source.spm, target.spm), and "
                "vocab.json is missing; the tokenizer of other Pegasus models is not supported"
            )
    size = fields.integer("vocab_size")
    if kind == "marian":
        for rule in _MARIAN_RULES:
            fields.require(*rule)
        fields.require("decoder_vocab_size", size, "both sides share a vocabulary")
    special = {"<pad>": fields.integer("pad_token_id"), "</s>": fields.integer("eos_token_id")}
    start = fields.integer("decoder_start_token_id")
    ids = weight_files.read_json(path)
    vocabulary = marian_vocabulary(directory, path, ids, size, special, start)
    return read_model(
        directory,
        fields,
        with_language(vocabulary, target_language),
        table_layout=POSITIONS["huggingface"],
        norm="pre" if kind == "pegasus" else "post",
        sinusoid_layout=POSITIONS[positions or "huggingface"],
        embedding_scale="tokens" if fields.get("scale_embedding", False) else "none",
    )


def _refuse_option(name: str, value: str | None, reason: str) -> None:
    if value is not None:
        raise InputError(f"--{name}={value}: {reason}; leave it out")


def marian_vocabulary(
    directory: pathlib.Path,
    path: pathlib.Path,
    ids: Mapping[str, Any],
    size: int,
    special: Mapping[str, int],
    start: int,
) -> MappedVocabulary:
    """The vocabulary of a model, whose directory has ``source.spm`` and ``target.spm``.

    See `ordered_pieces` for the other arguments.
    """
    pieces, original_ids = ordered_pieces(path, ids, size, special, start)
    languages = tuple(piece for piece in pieces if piece.startswith(">>") and piece.endswith("<<"))
    models = [sentencepiece_model(directory, f"{side}.spm") for side in ("source", "target")]
    return MappedVocabulary(*models, pieces, original_ids, languages)


def with_language(vocabulary: MappedVocabulary, language: str | None) -> MappedVocabulary:
    """The vocabulary with a default target language for sources that begin with no code."""
    if language is None:
        return vocabulary
    code = f">>{language.strip('<>')}<<"
    if code not in vocabulary.languages:
        known = ", ".join(one.strip("<>") for one in vocabulary.languages)
        raise InputError(
            f"--target_language={language}, but the languages of this model are {known}"
            if known
            else f"--target_language={language}, but this model translates into one language; "
            "leave it out"
        )
    return dataclasses.replace(vocabulary, source_prefix=(code,))
