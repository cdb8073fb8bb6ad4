# SPDX-License-Identifier: Apache-2.0
"""CTranslate2 with the weights of `marian`, converted."""

import gc
import tempfile
from typing import Any

import ctranslate2
from ctranslate2.converters import TransformersConverter

from experiments.benchmarks.programs import marian
from experiments.benchmarks.worker import Program, fastest
from experiments.benchmarks.workloads import Text, Workload, translation_batches
from transformer.cores import num_cores

SPECIAL = ("<pad_0>", "<s>", "</s>", "<unk>")


class _Vocabulary:
    """The part of a tokenizer that the converter uses; padding is the last id, as in Marian."""

    eos_token, unk_token = SPECIAL[2:]

    def __init__(self, size: int):
        self._tokens = [*map(token_of, range(size - 1)), "<pad>"]

    def get_vocab(self) -> dict[str, int]:
        return {token: index for index, token in enumerate(self._tokens)}


class _Converter(TransformersConverter):
    """Convert a model that has no tokenizer files."""

    vocab_size: int

    def load_tokenizer(self, *_: Any, **__: Any) -> _Vocabulary:
        return _Vocabulary(self.vocab_size)


def token_of(index: int) -> str:
    """Return the token of an id."""
    return SPECIAL[index] if index < len(SPECIAL) else f"w{index}"


def decoding(workload: Workload, beams: int, dtype: str, path: str | None = None) -> Program:
    """`translate_batch` for the batch of the workload or for all batches of a `Text`, at once.

    It uses one thread, one per core, or a batch per core, whichever is fastest. Translations have
    exactly the output length of their batch.
    """
    unused = workload.vocab_size - 1  # padding, which the converted vocabulary lacks
    batches = [
        ([[token_of(min(one, unused - 1)) for one in source] for source in sources], length)
        for sources, length in translation_batches(workload, path and Text.load(path))
    ]
    translator = None
    device = "cuda" if ctranslate2.get_cuda_device_count() else "cpu"

    def use(threads: tuple[int, int]) -> None:
        nonlocal translator
        inter, intra = threads
        options = {"device": device, "inter_threads": inter, "intra_threads": intra}
        translator = ctranslate2.Translator(model, compute_type=dtype, **options)

    def translate(batches: list[tuple[list[list[str]], int]]) -> int:
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
    choices = choices if device == "cpu" else {(1, 1)}
    with tempfile.TemporaryDirectory() as folder:
        marian.model_of(workload).save_pretrained(f"{folder}/marian")
        converter = _Converter(f"{folder}/marian")
        converter.vocab_size = workload.vocab_size
        model = converter.convert(f"{folder}/converted")
        gc.collect()
        some = batches[:: -(-len(batches) // 4)]
        threads = fastest(lambda: translate(some), use, choices)
    tokens = translate(batches)
    assert tokens == sum(len(source) * length for source, length in batches)
    about = {"version": f"ctranslate2 {ctranslate2.__version__}", "output_tokens": tokens}
    about |= {"compute_type": translator.compute_type, "threads": "{} x {}".format(*threads)}
    sentences = sum(len(source) for source, _ in batches)
    return Program(lambda: translate(batches), about, sentences if path else 1)
