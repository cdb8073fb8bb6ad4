# SPDX-License-Identifier: Apache-2.0
"""Speed on real text: training and translating sentences of all lengths.

python -m experiments.benchmarks.real_text --source=train.en --target=train.de --translate=val.en

The vocabulary is learned from the training text; weights are random. Workloads, turns, peers and
output are those of `training_speed` and `decoding_speed`.

Training: the first batches of an epoch, with their preparation; samples are of 1,000 target tokens,
padding not counted. PyTorch has the same sentence pairs in memory, sorted by length and batched
within the same token budget.

Translating: this project from text to text, each translation one token longer than its source;
samples are of one sentence. Peers go from ids to ids in batches sorted by length, with the same
number of tokens in total. A lexicon is learned for --variant=shortlist:decode.shortlist=20.
"""

import dataclasses
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

from absl import flags

from experiments.benchmarks import reporting
from experiments.benchmarks.alternating import PROGRAMS, Subject
from experiments.benchmarks.settings import config_of, parse_integers
from experiments.benchmarks.text_batches import LEXICON, TEXT, TOKENIZER, Text
from experiments.benchmarks.workloads import Workload
from experiments.corpora import text_files
from experiments.flags import run
from experiments.pipeline.batching import Batches
from experiments.pipeline.token_corpus import TokenCorpus
from transformer.errors import InputError
from transformer.text.lexicon import MAX_PAIRS, Lexicon
from transformer.text.tokenizer import Tokenizer, Vocabularies

BUCKETS = (12, 16, 20, 24, 32, 64)
"""Batch lengths of this project; longer sentences are left out."""
TOKENS, BATCHES = 2048, 16
"""Source and target positions of a training batch; batches in a sample."""

_SOURCE = flags.DEFINE_string("source", None, "Training text, one sentence per line.")
_TARGET = flags.DEFINE_string("target", None, "Its translation, line by line.")
_TRANSLATE = flags.DEFINE_string(
    "translate", None, "Text to translate; only training is measured without it."
)
_VOCABULARY = flags.DEFINE_integer(
    "vocabulary", None, "Subwords; the workload's vocabulary unless given.", lower_bound=5
)
_TOGETHER = flags.DEFINE_integer("together", 64, "Sentences per decoding batch.", lower_bound=1)
_BEAMS = flags.DEFINE_list("beams", ["4"], "Beam sizes; 1 is greedy search.")
_DROPOUT = reporting.define_dropout()


def main() -> None:
    """Measure and print."""
    for flag in (_SOURCE, _TARGET):
        if not flag.value:
            raise InputError(f"--{flag.name}=FILE is missing")
    beams = parse_integers("beams", _BEAMS.value)
    workloads = reporting.workloads(_with_buckets)
    for workload in workloads.values():  # checks flags before anything is prepared
        reporting.choose(reporting.this_project("training_text", {}, workload), [], workload)
    pairs = text_files.TwoFiles(_SOURCE.value, _TARGET.value).read()
    lines = list(text_files.lines(_TRANSLATE.value)) if _TRANSLATE.value else []
    results = []
    for name, workload in workloads.items():
        with tempfile.TemporaryDirectory() as folder:
            reporting.log(f"{name}: learning a vocabulary and tokenizing")
            text = prepare(workload, pathlib.Path(folder), pairs, lines)
            path = f"{folder}/{TEXT}"
            results += _measure_training(name, workload, path)
            for number in beams if text.lines else ():
                results += _measure_translating(name, workload, path, number)
    reporting.print_table(results)


def prepare(
    workload: Workload,
    folder: pathlib.Path,
    pairs: tuple[Sequence[str], Sequence[str]],
    lines: Sequence[str],
) -> Text:
    """Write the vocabulary, a lexicon and the `Text` into a folder.

    Args:
      workload: sizes; its buckets are the lengths of batches.
      folder: for the files.
      pairs: sources and targets of the training text.
      lines: to translate; empty ones and those longer than the longest bucket are left out.

    Raises:
      InputError: if the vocabulary is too large for the text, or no line is left.
    """
    try:
        tokenizer = Tokenizer.train([*pairs[0], *pairs[1]], workload.vocab_size)
    except InputError as error:
        text = str(error).replace("--config.model.vocab_size", "--vocabulary")
        raise InputError(text.replace("model.vocab_size", "--vocabulary")) from None
    (folder / TOKENIZER).write_bytes(tokenizer.model)
    corpus = TokenCorpus.encode(*pairs, Vocabularies.shared(tokenizer))
    if lines:
        some = range(0, len(corpus), -(-len(corpus) // MAX_PAIRS))
        sides = ([side[pair] for pair in some] for side in (corpus.source, corpus.target))
        Lexicon.learn(*sides, tokenizer.vocab_size).save(folder / LEXICON)
    planned = Batches([(1.0, corpus)], config_of(workload).data, seed=0).plan(0)[:BATCHES]
    chosen = [pair for batch in planned for pair in batch.pairs]
    encoded = zip(lines, tokenizer.encode(list(lines)), strict=True)
    kept = [(line, ids) for line, ids in encoded if 1 < len(ids) <= workload.source_length]
    if lines and not kept:
        raise InputError(
            f"no line of the text to translate has 1 to {workload.source_length - 1} subwords; "
            "translate shorter lines"
        )
    if len(kept) < len(lines):
        reporting.log(f"{len(lines) - len(kept)} empty or too long lines are left out")
    text = Text(
        sources=[corpus.source[pair].tolist() for pair in chosen],
        targets=[corpus.target[pair].tolist() for pair in chosen],
        lines=[line for line, _ in kept],
        line_ids=[list(map(int, ids)) for _, ids in kept],
    )
    text.save(folder / TEXT)
    return text


def _with_buckets(workload: Workload) -> Workload:
    return dataclasses.replace(
        workload,
        vocab_size=_VOCABULARY.value or workload.vocab_size,
        batch_size=TOKENS // BUCKETS[-1],
        source_length=BUCKETS[-1],
        target_length=BUCKETS[-1],
        inner_dropout=_DROPOUT.value == "inner",
        buckets=BUCKETS,
    )


def _measure_training(name: str, workload: Workload, path: str) -> list[dict[str, Any]]:
    peers = [
        Subject(
            f"PyTorch training {dtype}",
            f"{PROGRAMS}.pytorch.training_text",
            {"path": path, "dtype": dtype},
        )
        for dtype in ("float32", "bfloat16")
    ]
    ours = reporting.this_project("training_text", {"path": path}, workload)
    about = {"benchmark": "training text", "workload": name, "unit": "1,000 target tokens"}
    return reporting.measure(ours, peers, workload, about)


def _measure_translating(
    name: str, workload: Workload, path: str, beams: int
) -> list[dict[str, Any]]:
    options = {"path": path, "beams": beams, "together": _TOGETHER.value}
    peers = [
        *(
            Subject(
                f"CTranslate2 {dtype}",
                f"{PROGRAMS}.opennmt.translating",
                options | {"dtype": dtype},
            )
            for dtype in ("float32", "int8")
        ),
        Subject("Marian float32", f"{PROGRAMS}.marian.translating", options),
    ]
    ours = reporting.this_project("translating", options, workload)
    about = {"benchmark": "translating text", "workload": name, "unit": "sentence"}
    about |= {"beams": beams, "together": _TOGETHER.value}
    return reporting.measure(ours, peers, workload, about)


if __name__ == "__main__":
    run(main, config_from=None)
