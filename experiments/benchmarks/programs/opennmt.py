# SPDX-License-Identifier: Apache-2.0
"""CTranslate2 on the same weights as `marian`, converted."""

import gc
import tempfile
from typing import Any

import ctranslate2
from ctranslate2.converters import TransformersConverter

from experiments.benchmarks.program import Program, better_threads
from experiments.benchmarks.work import Work


class _Vocabulary:
    """All that the converter asks of a tokenizer."""

    eos_token, unk_token = "</s>", "<unk>"

    def __init__(self, size: int):
        self._size = size

    def get_vocab(self) -> dict[str, int]:
        """Every token's id; padding is the last, as Marian has it."""
        tokens = ["<pad_0>", "<s>", self.eos_token, self.unk_token]
        tokens += [word(place) for place in range(len(tokens), self._size - 1)]
        return {token: place for place, token in enumerate([*tokens, "<pad>"])}


def word(place: int) -> str:
    """The token of an id."""
    return f"w{place}"


class _Converter(TransformersConverter):
    """Of a model that has no tokenizer beside it."""

    def __init__(self, folder: str, vocabulary: int):
        super().__init__(folder)
        self._vocabulary = vocabulary

    def load_tokenizer(self, *_: Any, **__: Any) -> _Vocabulary:
        """In place of the files that a tokenizer has."""
        return _Vocabulary(self._vocabulary)


def converted(work: Work, folder: str) -> str:
    """Writes the converted model into a folder and returns its path."""
    from experiments.benchmarks.programs import marian

    marian.model_of(work).save_pretrained(f"{folder}/marian")
    return _Converter(f"{folder}/marian", work.vocabulary).convert(f"{folder}/converted")


def decoding(work: Work, beams: int, dtype: str) -> Program:
    """`translate_batch` with exactly so many tokens a sentence.

    Args:
      work: what is done.
      beams: 1 is greedy search.
      dtype: ``float32`` or ``int8``, in which the products are computed.
    """
    ids, _ = work.token_ids()
    # Padding, the last id, is not in the converted vocabulary.
    source = [[word(min(token, work.vocabulary - 2)) for token in row] for row in ids]
    translator = None

    def use(threads: int) -> None:
        nonlocal translator
        translator = ctranslate2.Translator(
            path, device="cpu", compute_type=dtype, inter_threads=1, intra_threads=threads
        )

    def call() -> list:
        return translator.translate_batch(
            source,
            beam_size=beams,
            max_batch_size=work.rows,
            min_decoding_length=work.target,
            max_decoding_length=work.target,
        )

    with tempfile.TemporaryDirectory() as folder:
        path = converted(work, folder)
        gc.collect()
        threads = better_threads(call, use)
    assert all(len(result.hypotheses[0]) == work.target for result in call())
    about = {"version": f"ctranslate2 {ctranslate2.__version__}", "threads": threads}
    return Program(call, about | {"computed_in": translator.compute_type})
