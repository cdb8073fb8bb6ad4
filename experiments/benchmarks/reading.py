# SPDX-License-Identifier: Apache-2.0
"""How fast a corpus is tokenized into the cache and read as batches, and how much memory it takes.

python -m experiments.benchmarks.reading --pairs=1000000,10000000

The text is invented here, from a seed, in a temporary folder: words as frequent as in a language
(Zipf's law), as many a sentence as in WMT's news text. Beside the cache, SentencePiece itself
encodes a part of the same text with as many threads as the cache uses: what it allows on
this machine. Memory is the resident memory of this process and those it starts, all pages counted,
those of mapped files too. Each number of pairs is measured in a process of its own, so that none
has the memory of another. Standard output has one JSON object a number.
"""

import contextlib
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
from absl import flags

from experiments.benchmarks.settings import numbers
from experiments.corpora.text_files import TwoFiles
from experiments.flags import run
from experiments.pipeline import token_cache
from experiments.pipeline.batching import Batches
from experiments.pipeline.token_corpus import TokenCorpus
from transformer.arrays import PAD_ID
from transformer.config import DataConfig
from transformer.text.tokenizer import Tokenizer, Vocabularies

PAIRS = flags.DEFINE_list("pairs", ["1000000"], "How many pairs; several numbers are possible.")
THREADS = flags.DEFINE_integer(
    "threads", None, "Threads that tokenize; default: one per core.", lower_bound=1
)
VOCABULARY = flags.DEFINE_integer("vocabulary", 16_000, "Sub-words.", lower_bound=500)
BATCHES = flags.DEFINE_integer("batches", 2000, "How many are read.", lower_bound=1)
FOLDER = flags.DEFINE_string("folder", None, "Where the temporary folder is made.")
SEED = flags.DEFINE_integer("seed", 0, "Of the text.", lower_bound=0)

WORDS, WORD_LENGTH = 60_000, 5.5
SENTENCE_LENGTH, LONGEST = 23.6, 100
FEWEST, AT_ONCE = 1000, 50_000
LEARNED_FROM, COMPARED = 50_000, 200_000


def main() -> int:
    """Measures and prints."""
    counts = numbers("pairs", PAIRS.value, least=FEWEST)
    if len(counts) == 1:
        print(json.dumps(measured(counts[0])))
        return 0
    for count in counts:
        again = [sys.executable, "-m", "experiments.benchmarks.reading", *sys.argv[1:]]
        # The last of several equal flags counts.
        if status := subprocess.run([*again, f"--pairs={count}"], check=False).returncode:
            return status
    return 0


def measured(count: int) -> dict[str, float]:
    """With so many pairs."""
    threads = THREADS.value or token_cache.available_cores()
    with tempfile.TemporaryDirectory(dir=FOLDER.value) as folder:
        home = pathlib.Path(folder)
        _say(f"inventing {count:,} pairs")
        pairs = invent(home, count, SEED.value)
        sources, targets = next(pairs.chunks(LEARNED_FROM))
        tokenizer = Tokenizer.train([*sources, *targets], VOCABULARY.value)
        del sources, targets
        _say(f"tokenizing with {threads} threads")
        with Spent() as tokenizing:
            corpus = token_cache.load_or_tokenize(
                pairs, Vocabularies.shared(tokenizer), home / "tokens", threads
            )
        tokens = len(corpus.source.ids) + len(corpus.target.ids)
        with Spent() as reading:
            planning, read = read_batches(corpus)
        _say(f"SentencePiece itself with {threads} threads")
        sources, targets = next(pairs.chunks(COMPARED))
        with Spent() as alone:
            tokenizer.encode_flat([*sources, *targets], threads)
        return {
            "pairs": count,
            "text_gib": round(sum(path.stat().st_size for path in home.glob("*.txt")) / 2**30, 3),
            "tokens_a_pair": round(tokens / count, 1),
            "threads": threads,
            "tokenizing_pairs_per_second": round(count / tokenizing.seconds),
            "sentencepiece_pairs_per_second": round(len(sources) / alone.seconds),
            "tokenizing_pairs_per_cpu_second": round(count / tokenizing.cpu_seconds),
            "sentencepiece_pairs_per_cpu_second": round(len(sources) / alone.cpu_seconds),
            "tokenizing_peak_gib": tokenizing.peak_gib,
            "planning_seconds": round(planning, 2),
            "reading_pairs_per_second": round(read / (reading.seconds - planning)),
            "reading_peak_gib": reading.peak_gib,
        }


class Spent:
    """The time of a block on the clock and on all cores, and the most memory it held at once."""

    EVERY = 0.1
    """Seconds between two looks at the memory."""

    def __enter__(self) -> "Spent":
        self.peak_gib = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        self._began = time.perf_counter(), sum(os.times()[:4])
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._began[0]
        self.cpu_seconds = sum(os.times()[:4]) - self._began[1]
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        me = os.getpid()
        while not self._done.wait(self.EVERY):
            children = pathlib.Path(f"/proc/{me}/task/{me}/children").read_text().split()
            total = sum(_resident(process) for process in (me, *children))
            self.peak_gib = max(self.peak_gib, round(total / 2**30, 3))


def _resident(process: int | str) -> int:
    """Bytes; 0 for a process that has ended."""
    try:
        pages = pathlib.Path(f"/proc/{process}/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * resource.getpagesize()


def invent(folder: pathlib.Path, count: int, seed: int) -> TwoFiles:
    """Writes two text files of so many lines."""
    generator = np.random.default_rng(seed)
    letters = np.array(list("etaoinshrdlcumwfgypbvk"))
    shape = 1 / np.arange(1, len(letters) + 1)
    words = np.array(
        [
            "".join(generator.choice(letters, length, p=shape / shape.sum()))
            for length in 1 + generator.poisson(WORD_LENGTH - 1, WORDS)
        ]
    )
    frequency = np.cumsum(1 / np.arange(1, WORDS + 1))
    paths = [folder / f"{side}.txt" for side in ("source", "target")]
    for path in paths:
        with open(path, "w", encoding="utf-8") as file:
            for start in range(0, count, AT_ONCE):
                lengths = 1 + generator.poisson(
                    generator.gamma(2.5, (SENTENCE_LENGTH - 1) / 2.5, min(AT_ONCE, count - start))
                )
                ends = np.cumsum(np.minimum(lengths, LONGEST))
                drawn = np.searchsorted(frequency, generator.random(ends[-1]) * frequency[-1])
                chosen = words[drawn].tolist()
                begins = np.concatenate([[0], ends[:-1]])
                file.writelines(
                    " ".join(chosen[begin:end]) + "\n"
                    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
                )
    return TwoFiles(*map(str, paths))


def read_batches(corpus: TokenCorpus) -> tuple[float, int]:
    """Plans the corpus and reads training batches, as training does.

    Returns:
      the seconds that planning took, and the number of pairs in the batches.
    """
    data = DataConfig(
        max_length=128, bucket_lengths=(16, 32, 48, 64, 96, 128), tokens_per_batch=8192
    )
    _say("reading batches")
    began = time.perf_counter()
    batches = Batches([(1.0, corpus)], data, SEED.value)
    planning = time.perf_counter() - began
    read = 0
    with contextlib.closing(batches.iterate(0)) as iterator:
        for _, batch in zip(range(BATCHES.value), iterator, strict=False):
            read += int((batch.target[:, 0] != PAD_ID).sum())
    return planning, read


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    run(main, config_from=None)
