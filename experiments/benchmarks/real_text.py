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
from typing import Any

from absl import flags

from experiments.benchmarks import prepared_text, reporting
from experiments.benchmarks.alternating import PROGRAMS, Subject
from experiments.benchmarks.settings import parse_integers
from experiments.benchmarks.text_batches import TEXT
from experiments.benchmarks.workloads import Workload
from experiments.corpora import text_files
from experiments.flags import run
from transformer.config import DataConfig
from transformer.errors import InputError

_SOURCE = flags.DEFINE_string("source", None, "Training text, one sentence per line.")
_TARGET = flags.DEFINE_string("target", None, "Its translation, line by line.")
_TRANSLATE = flags.DEFINE_string(
    "translate", None, "Text to translate; only training is measured without it."
)
_VOCABULARY = flags.DEFINE_integer(
    "vocabulary", None, "Subwords; the workload's vocabulary unless given.", lower_bound=5
)
_BUCKETS = flags.DEFINE_list(
    "buckets",
    ["12", "16", "20", "24", "32", "64"],
    "Batch lengths of this project; longer sentences are left out.",
)
_TOKENS = flags.DEFINE_integer("tokens", 2048, "Source and target positions of a batch.")
_BATCHES = flags.DEFINE_integer("batches", 16, "Batches in a training sample.", lower_bound=1)
_SENTENCES = flags.DEFINE_integer("sentences", None, "Number of lines to translate.", lower_bound=1)
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
    pairs = text_files.read_pairs(_SOURCE.value, _TARGET.value)
    lines = text_files.read_lines(_TRANSLATE.value) if _TRANSLATE.value else []
    results = []
    for name, workload in workloads.items():
        with tempfile.TemporaryDirectory() as folder:
            reporting.log(f"{name}: learning a vocabulary and tokenizing")
            text = prepared_text.prepare(
                workload, pathlib.Path(folder), pairs, lines[: _SENTENCES.value], _BATCHES.value
            )
            path = f"{folder}/{TEXT}"
            results += _measure_training(name, workload, path)
            for number in beams if text.lines else ():
                results += _measure_translating(name, workload, path, number)
    reporting.print_table(results)


def _with_buckets(workload: Workload) -> Workload:
    buckets = tuple(sorted(set(parse_integers("buckets", _BUCKETS.value))))
    rows, least = _TOKENS.value // buckets[-1], DataConfig.row_multiple
    if rows < least:
        raise InputError(
            f"--tokens={_TOKENS.value}: a batch has at least {least} rows, so at least "
            f"{least * buckets[-1]} positions of sentences of {buckets[-1]} tokens; raise it, or "
            "shorten --buckets"
        )
    return dataclasses.replace(
        workload,
        vocab_size=_VOCABULARY.value or workload.vocab_size,
        batch_size=rows,
        source_length=buckets[-1],
        target_length=buckets[-1],
        inner_dropout=_DROPOUT.value == "inner",
        buckets=buckets,
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
