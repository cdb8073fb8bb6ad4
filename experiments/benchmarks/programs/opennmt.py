# SPDX-License-Identifier: Apache-2.0
"""CTranslate2 on the same weights as `marian`, converted."""

import gc
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2.converters import TransformersConverter

from experiments.benchmarks import text
from experiments.benchmarks.program import Program
from experiments.benchmarks.threads import a_few, better_threads, cores, fastest
from experiments.benchmarks.work import Work


class _Vocabulary:
    """All that the converter asks of a tokenizer."""

    special = ("<pad_0>", "<s>", "</s>", "<unk>")
    eos_token, unk_token = special[2:]

    def __init__(self, size: int):
        self._size = size

    def get_vocab(self) -> dict[str, int]:
        """Every token's id; padding is the last, as Marian has it."""
        tokens = [word(place) for place in range(self._size - 1)]
        return {token: place for place, token in enumerate([*tokens, "<pad>"])}


def word(place: int) -> str:
    """The token of an id."""
    return _Vocabulary.special[place] if place < len(_Vocabulary.special) else f"w{place}"


class _Converter(TransformersConverter):
    """Of a model that has no tokenizer beside it."""

    def __init__(self, folder: str, vocabulary: int):
        super().__init__(folder)
        self._vocabulary = vocabulary

    def load_tokenizer(self, *_: Any, **__: Any) -> _Vocabulary:
        """In place of the files that a tokenizer has."""
        return _Vocabulary(self._vocabulary)


def words(work: Work, sentences: Iterable[np.ndarray]) -> list[list[str]]:
    """The tokens of the ids; padding, the last id, is not in the converted vocabulary."""
    return [[word(min(token, work.vocabulary - 2)) for token in ids] for ids in sentences]


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
    source = words(work, work.token_ids()[0])
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
    return Program(call, _about(translator) | {"threads": threads})


def translating(work: Work, path: str, beams: int, together: int, dtype: str) -> Program:
    """`translate_batch`, from tokens to tokens, on the lines of a text, the shortest first.

    All batches are handed over at once, so that several can be translated at the same time; that,
    or more threads for each, or neither, whichever is fastest.

    Args:
      work: the sizes of the model.
      path: of a `text.Text`, which says how long the translations of a batch are.
      beams: 1 is greedy search.
      together: sentences of a batch.
      dtype: as in `decoding`.
    """
    batches = [
        (words(work, ids), length) for ids, length in text.Text.load(path).translated(together)
    ]
    translator = None

    def use(threads: tuple[int, int]) -> None:
        nonlocal translator
        at_once, each = threads
        translator = ctranslate2.Translator(
            model, device="cpu", compute_type=dtype, inter_threads=at_once, intra_threads=each
        )

    def translated(some: Sequence[tuple[list[list[str]], int]]) -> int:
        waiting = [
            translator.translate_batch(
                source,
                beam_size=beams,
                max_batch_size=together,
                min_decoding_length=length,
                max_decoding_length=length,
                asynchronous=True,
            )
            for source, length in some
        ]
        return sum(len(one.result().hypotheses[0]) for results in waiting for one in results)

    choices = dict.fromkeys([(1, 1), (1, cores()), (cores(), 1)])
    with tempfile.TemporaryDirectory() as folder:
        model = converted(work, folder)
        gc.collect()
        threads = fastest(lambda: translated(a_few(batches)), use, list(choices))
    tokens = translated(batches)
    assert tokens == sum(len(source) * length for source, length in batches)
    about = {"threads": "{} x {}".format(*threads), "output_tokens": tokens}
    return Program(
        lambda: translated(batches),
        _about(translator) | about,
        units=sum(len(source) for source, _ in batches),
    )


def _about(translator: ctranslate2.Translator) -> dict[str, str]:
    version = f"ctranslate2 {ctranslate2.__version__}"
    return {"version": version, "computed_in": translator.compute_type}
