# SPDX-License-Identifier: Apache-2.0
"""Import M2M100 and NLLB-200 (dense) models from Hugging Face's files.

These are pre-norm Transformers whose first position is 2. A source and a translation each begin
with the code of their language: that of the source is read, that of the translation is forced.
"""

import pathlib

from transformer.errors import InputError
from transformer.interop import weight_files
from transformer.interop.huggingface_files import (
    Fields,
    ordered_pieces,
    read_model,
    sentencepiece_model,
)
from transformer.interop.imported_model import ImportedModel
from transformer.text.mapped_tokenizer import MappedVocabulary
from transformer.text.tokenizer import processor

SENTENCEPIECE = "sentencepiece.bpe.model"
_SPECIAL = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}


def load(
    directory: pathlib.Path,
    fields: Fields,
    source_language: str | None,
    target_language: str | None,
) -> ImportedModel:
    """Read the model; see `huggingface_import.load`.

    The languages are codes such as ``eng_Latn`` (NLLB) or ``en`` (M2M100).
    """
    fields.require("pad_token_id", _SPECIAL["<pad>"], "positions begin after it")
    return read_model(
        directory,
        fields,
        _vocabulary(directory, fields, source_language, target_language),
        table_layout="halves",
        norm="pre",
        sinusoid_layout="halves",
        position_offset=_SPECIAL["<pad>"] + 1,
        embedding_scale="tokens" if fields.get("scale_embedding", True) else "none",
    )


def _vocabulary(
    directory: pathlib.Path,
    fields: Fields,
    source_language: str | None,
    target_language: str | None,
) -> MappedVocabulary:
    """The pieces of ``vocab.json`` or SentencePiece, the codes after them, and unused rows."""
    model, size = sentencepiece_model(directory, SENTENCEPIECE), fields.integer("vocab_size")
    path = directory / "vocab.json"
    if path.exists():
        ids = weight_files.read_json(path)
    else:
        path, pieces = directory / SENTENCEPIECE, processor(model)
        # Fairseq has the special tokens in another order, and padding.
        ids = {pieces.id_to_piece(index): index + 1 for index in range(3, pieces.vocab_size())}
        ids = _SPECIAL | ids
    codes = _language_codes(directory)
    ids |= {code: len(ids) + index for index, code in enumerate(codes) if code not in ids}
    named = set(ids.values())
    ids |= {f"<unused {index}>": index for index in range(size) if index not in named}
    special = {"<pad>": fields.integer("pad_token_id"), "</s>": fields.integer("eos_token_id")}
    start = fields.integer("decoder_start_token_id")
    pieces, original_ids = ordered_pieces(path, ids, size, special, start)
    return MappedVocabulary(
        *(model, model, pieces, original_ids),
        source_prefix=(_code("source", source_language, codes),),
        target_prefix=(_code("target", target_language, codes),),
    )


def _language_codes(directory: pathlib.Path) -> list[str]:
    """The pieces of languages in the order of their ids."""
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        path = directory / name
        if not path.exists():
            continue
        values = weight_files.read_json(path)
        for field in ("additional_special_tokens", "extra_special_tokens"):
            codes = values.get(field)
            if isinstance(codes, list) and codes and all(isinstance(one, str) for one in codes):
                return codes
    raise InputError(
        f"{directory} names no languages (additional_special_tokens of special_tokens_map.json); "
        "download all files of the model"
    )


def _code(side: str, language: str | None, codes: list[str]) -> str:
    """The piece of a language, which may be given without its underscores."""
    for code in (language, f"__{language}__"):
        if code in codes:
            return code
    known = ", ".join(code.strip("_") for code in codes)
    problem = f"missing --{side}_language" if language is None else f"--{side}_language={language}"
    raise InputError(f"{problem}; the languages of this model are {known}")
