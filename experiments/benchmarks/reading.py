# SPDX-License-Identifier: Apache-2.0
"""Throughput and memory of tokenizing a corpus into the cache and of reading batches from it.

python -m experiments.benchmarks.reading --pairs=1000000,10000000

The text is random, written to a temporary folder: words distributed by Zipf's law, sentences as
long as those of WMT's news text. For comparison, SentencePiece encodes a part of the same text with
one thread per core. Memory is the peak resident memory, pages of mapped files included. Several
numbers of pairs are measured in separate processes. Standard output has one JSON object per number.
"""

import contextlib
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import numpy as np
from absl import flags

from experiments.benchmarks.settings import parse_integers
from experiments.benchmarks.worker import cpu_seconds, num_cores, peak_mib
from experiments.corpora.text_files import TwoFiles
from experiments.flags import run
from experiments.pipeline import token_cache
from experiments.pipeline.batching import Batches
from transformer.config import DataConfig
from transformer.text.tokenizer import Tokenizer, Vocabularies

PAIRS = flags.DEFINE_list("pairs", ["1000000"], "Numbers of sentence pairs.")
THREADS = flags.DEFINE_integer(
    "threads", None, "Threads that tokenize; default: one per core.", lower_bound=1
)
VOCABULARY = flags.DEFINE_integer("vocabulary", 16_000, "Subwords.", lower_bound=500)
BATCHES = flags.DEFINE_integer("batches", 2000, "Batches to read.", lower_bound=1)
FOLDER = flags.DEFINE_string("folder", None, "Parent of the temporary folder.")

MIN_PAIRS = 1000
NUM_WORDS = 60_000
SAMPLE_PAIRS = 50_000
"""Pairs from which the vocabulary is learned and that SentencePiece encodes for comparison."""


def main() -> int:
    """Measure and print."""
    counts = parse_integers("pairs", PAIRS.value, least=MIN_PAIRS)
    if len(counts) == 1:
        print(json.dumps(measure(counts[0])))
        return 0
    command = [sys.executable, "-m", "experiments.benchmarks.reading", *sys.argv[1:]]
    return max(
        # The last of several equal flags counts.
        subprocess.run([*command, f"--pairs={count}"], check=False).returncode
        for count in counts
    )


def measure(count: int) -> dict[str, float]:
    """Figures for one number of sentence pairs."""
    with tempfile.TemporaryDirectory(dir=FOLDER.value) as name:
        folder = pathlib.Path(name)
        _log(f"writing {count:,} sentence pairs")
        pairs = TwoFiles(*(write_text(folder / side, count) for side in ("source", "target")))
        sources, targets = next(pairs.chunks(SAMPLE_PAIRS))
        tokenizer = Tokenizer.train([*sources, *targets], VOCABULARY.value)
        figures: dict[str, float] = {"pairs": count}
        _log("tokenizing")
        with _measured(figures, "tokenizing", count):
            corpus = token_cache.load_or_tokenize(
                pairs, Vocabularies.shared(tokenizer), folder / "tokens", THREADS.value
            )
        _log("SentencePiece alone")
        with _measured(figures, "sentencepiece", len(sources)):
            tokenizer.encode_flat([*sources, *targets], THREADS.value or num_cores())
        _log("reading batches")
        data = DataConfig(
            max_length=128, bucket_lengths=(16, 32, 48, 64, 96, 128), tokens_per_batch=8192
        )
        began = time.perf_counter()
        batches = Batches([(1.0, corpus)], data, seed=0)
        figures["planning_seconds"] = round(time.perf_counter() - began, 2)
        began, read = time.perf_counter(), 0
        with contextlib.closing(batches.iterate(0)) as iterator:
            for batch in itertools.islice(iterator, BATCHES.value):
                read += int(batch.target.any(axis=1).sum())
        figures["reading_pairs_per_second"] = round(read / (time.perf_counter() - began))
        return figures | {"reading_peak_mib": round(peak_mib())}


@contextlib.contextmanager
def _measured(figures: dict[str, float], name: str, pairs: int) -> Iterator[None]:
    """Add pairs per second and per CPU second, and the peak memory, of a block."""
    before, began = cpu_seconds(), time.perf_counter()
    yield
    figures[f"{name}_pairs_per_second"] = round(pairs / (time.perf_counter() - began))
    if before:
        figures[f"{name}_pairs_per_cpu_second"] = round(pairs / (cpu_seconds()[1] - before[1]))
    figures[f"{name}_peak_mib"] = round(peak_mib())


def write_text(path: pathlib.Path, count: int) -> str:
    """Write random lines of about 24 words, at most 100; return the path."""
    generator = np.random.default_rng(list(path.name.encode()))
    letters = np.array(list("etaoinshrdlcumwfgypbvk"))
    shape = 1 / np.arange(1, len(letters) + 1)
    words = [
        "".join(generator.choice(letters, length, p=shape / shape.sum()))
        for length in 1 + generator.poisson(4.5, NUM_WORDS)
    ]
    frequency = np.cumsum(1 / np.arange(1, NUM_WORDS + 1))
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(count):
            length = min(1 + generator.poisson(generator.gamma(2.5, 9.0)), 100)
            drawn = np.searchsorted(frequency, generator.random(length) * frequency[-1])
            file.write(" ".join(words[word] for word in drawn) + "\n")
    return str(path)


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    run(main, config_from=None)
