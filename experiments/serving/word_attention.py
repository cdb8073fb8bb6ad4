# SPDX-License-Identifier: Apache-2.0
"""The attention of each word of a translation over the words of its source.

Words have character offsets, so that a page can mark them in the text. One program is compiled for
each bucket.
"""

import functools
import itertools
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from transformer.arrays import Array, Float, Int, Params
from transformer.cores import map_in_threads
from transformer.decoding.generate import compiled
from transformer.errors import InputError
from transformer.inspection import trace, words
from transformer.models.protocol import Model
from transformer.nn.positions import shift_right
from transformer.text.tokenizer import WORD_BEGIN
from transformer.translator import Translator


def is_available(translator: Translator) -> bool:
    """Whether the model is a single one with attention from target to source."""
    describe = getattr(translator.model, "describe", None)  # ensembles have none
    return describe is not None and "cross" in describe().attention


def prepare(translator: Translator, source: str, target: str) -> Callable[[], dict[str, Any]]:
    """Check and tokenize a sentence pair; the returned function runs the model.

    That function returns ``source`` and ``target``, lists of words as ``[start, end]`` in
    characters of the text (the last source word, EOS, is not listed), and ``weights [L][T][S]``,
    the mean over the heads of each layer: row t is computed while the model predicts word t.

    Raises:
      InputError: if the model has no such attention, or a text is empty or too long.
    """
    if not is_available(translator):
        raise InputError("this model has no attention from the translation to the source")
    limit, tokenizers = translator.config.data.bucket_lengths[-1], translator.vocabularies
    ids, spans, numbers = [], [], []
    for name, text, tokenizer in zip(
        ("source", "target"), (source, target), tokenizers, strict=True
    ):
        [tokens] = tokenizer.encode([text])
        if not text.strip() or len(tokens) > limit:
            raise InputError(f"{name} has {len(tokens)} tokens, EOS included; give 2 to {limit}")
        ids.append(tokens)
        of_tokens, of_words = word_spans(text, tokenizer.pieces(tokens[:-1]))
        numbers.append(of_tokens)
        spans.append(of_words)
    keys = np.array([*numbers[0], len(spans[0])])  # EOS is the last source word
    queries = np.array(numbers[1])

    def compute() -> dict[str, Any]:
        weights = _run(translator, *ids)[:, : len(queries), : len(keys)]  # [L, T, S]
        merged = words.merge(weights, queries, keys, len(spans[1]), len(spans[0]) + 1)
        weights = merged.astype(np.float64).round(4).tolist()
        return {"source": spans[0], "target": spans[1], "weights": weights}

    return compute


def warm_up(translator: Translator) -> None:
    """Compile the program of each bucket."""
    eos = translator.config.model.special_ids.eos
    sentences = [[eos] * length for length in translator.config.data.bucket_lengths]
    run = functools.partial(_run, translator, [eos])
    list(map_in_threads(run, sentences, translator.search.threads))


def _run(
    translator: Translator, source_ids: Sequence[int], target_ids: Sequence[int]
) -> Float[np.ndarray, "L T S"]:
    """Cross-attention weights, the mean over heads, padded to a bucket."""
    config = translator.config
    length = config.data.bucket(max(len(source_ids), len(target_ids)))
    arrays = np.full((2, length), config.model.pad_id, np.int32)
    for row, ids in zip(arrays, (source_ids, target_ids), strict=True):
        row[: len(ids)] = ids
    return np.asarray(_cross_attention(translator.params, *arrays, model=translator.model))


@compiled
def _cross_attention(
    params: Params, source: Int[Array, " S"], target: Int[Array, " T"], *, model: Model
) -> Float[Array, "L T S"]:
    target_in = shift_right(target[None], bos_id=model.config.bos_id)[0]
    _, captured = trace.run(model, params, source, target_in, capture="weights")
    return captured.attention("cross").weights.mean(1)


def word_spans(text: str, pieces: Sequence[str]) -> tuple[list[int], list[list[int]]]:
    """Find the words of a tokenized text.

    Args:
      text: the text.
      pieces: its subwords, without EOS.

    Returns:
      the index of each subword's word, `words.NO_WORD` for a leading subword without characters,
      and the ``[start, end]`` of each word in characters of the text.
    """
    spans: list[list[int]] = []
    numbers, cursor = [], 0
    for piece, following in itertools.zip_longest(pieces, pieces[1:], fillvalue=WORD_BEGIN):
        characters = piece.replace(WORD_BEGIN, "")
        unknown = piece == "<unk>"
        start = cursor if unknown else text.find(characters, cursor)
        if not characters or start < 0:
            numbers.append(len(spans) - 1 if spans else words.NO_WORD)
            continue
        if unknown:  # its characters end at the next subword, or at the next space
            start += len(text[start:]) - len(text[start:].lstrip())
            length = len((text[start:].split() or [""])[0])
            if not following.startswith(WORD_BEGIN):
                end = text.find(following, start + 1, start + length)
                length = end - start if end > 0 else length
        else:
            length = len(characters)
        cursor = start + length
        if spans and spans[-1][1] == start and _continues(text[start - 1], text[start]):
            spans[-1][1] = cursor
        else:
            spans.append([start, cursor])
        numbers.append(len(spans) - 1)
    return numbers, spans


def _continues(before: str, after: str) -> bool:
    """Whether two adjacent characters belong to one word: letters of scripts with spaces."""
    wide = unicodedata.east_asian_width(after) in "WF"
    return before.isalnum() and after.isalnum() and not wide
