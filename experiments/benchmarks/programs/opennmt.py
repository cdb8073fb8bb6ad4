# SPDX-License-Identifier: Apache-2.0
"""CTranslate2 with the weights of `marian`, converted."""

import gc
import tempfile
from collections.abc import Sequence
from typing import Any

import ctranslate2
from ctranslate2.converters import TransformersConverter

from experiments.benchmarks.programs import marian
from experiments.benchmarks.text_batches import Text
from experiments.benchmarks.worker import Program, fastest, num_cores
from experiments.benchmarks.workloads import Workload

SPECIAL = ("<pad_0>", "<s>", "</s>", "<unk>")

Batch = tuple[list[list[str]], int]
"""Tokens of the sources, and the length of their translations."""


class _Vocabulary:
    """The part of a tokenizer that the converter uses; padding is the last id, as in Marian."""

    eos_token, unk_token = SPECIAL[2:]

    def __init__(self, size: int):
        self._tokens = [*map(token_of, range(size - 1)), "<pad>"]

    def get_vocab(self) -> dict[str, int]:
        return {token: index for index, token in enumerate(self._tokens)}


class _Converter(TransformersConverter):
    """Convert a model that has no tokenizer files."""

    def __init__(self, folder: str, vocab_size: int):
        super().__init__(folder)
        self._vocab_size = vocab_size

    def load_tokenizer(self, *_: Any, **__: Any) -> _Vocabulary:
        return _Vocabulary(self._vocab_size)


def token_of(index: int) -> str:
    """Token of an id."""
    return SPECIAL[index] if index < len(SPECIAL) else f"w{index}"


def tokens_of(workload: Workload, sentences: Sequence[Sequence[int]]) -> list[list[str]]:
    """Tokens of ids; the last id is padding in the converted vocabulary and is not used."""
    return [[token_of(min(one, workload.vocab_size - 2)) for one in ids] for ids in sentences]


def decoding(workload: Workload, beams: int, dtype: str) -> Program:
    """`translate_batch`; every translation has the workload's target length.

    Args:
      workload: sizes.
      beams: 1 is greedy search.
      dtype: ``float32`` or ``int8``, in which matmuls are computed.
    """
    tokens = tokens_of(workload, workload.token_ids()[0].tolist())
    return _translating(workload, [(tokens, workload.target_length)], beams, dtype)


def translating(workload: Workload, path: str, beams: int, together: int, dtype: str) -> Program:
    """`translate_batch` from tokens to tokens for the lines of a `Text`; samples are of a sentence.

    All batches are submitted at once, so that several may be translated at the same time.
    """
    batches = [
        (tokens_of(workload, ids), length)
        for ids, length in Text.load(path).translation_batches(together)
    ]
    program = _translating(workload, batches, beams, dtype)
    program.units = sum(len(source) for source, _ in batches)
    return program


def _translating(workload: Workload, batches: Sequence[Batch], beams: int, dtype: str) -> Program:
    """With one thread, one per core, or a batch per core, whichever is fastest."""
    translator = None

    def use(threads: tuple[int, int]) -> None:
        nonlocal translator
        inter_threads, intra_threads = threads
        translator = ctranslate2.Translator(
            model,
            device="cpu",
            compute_type=dtype,
            inter_threads=inter_threads,
            intra_threads=intra_threads,
        )

    def translate(batches: Sequence[Batch]) -> int:
        pending = [
            translator.translate_batch(
                source,
                beam_size=beams,
                max_batch_size=len(source),
                min_decoding_length=length,
                max_decoding_length=length,
                asynchronous=True,
            )
            for source, length in batches
        ]
        return sum(len(one.result().hypotheses[0]) for results in pending for one in results)

    choices = {(1, 1), (1, num_cores())} | ({(num_cores(), 1)} if len(batches) > 1 else set())
    with tempfile.TemporaryDirectory() as folder:
        marian.model_of(workload).save_pretrained(f"{folder}/marian")
        model = _Converter(f"{folder}/marian", workload.vocab_size).convert(f"{folder}/converted")
        gc.collect()
        some = batches[:: -(-len(batches) // 4)]
        threads = fastest(lambda: translate(some), use, choices)
    tokens = translate(batches)
    assert tokens == sum(len(source) * length for source, length in batches)
    return Program(
        lambda: translate(batches),
        {
            "version": f"ctranslate2 {ctranslate2.__version__}",
            "compute_type": translator.compute_type,
            "threads": "{} x {}".format(*threads),
            "output_tokens": tokens,
        },
    )
