# SPDX-License-Identifier: Apache-2.0
"""Speed of greedy and beam search, beside CTranslate2, Hugging Face and other checkouts.

python -m experiments.benchmarks.decoding_speed --workloads=W1,W2 --beams=1,4
python -m experiments.benchmarks.decoding_speed --workloads=W1 --sentences=1
python -m experiments.benchmarks.decoding_speed --lines=val.en \\
    --train_source=train.en --train_target=train.de
python -m experiments.benchmarks.decoding_speed --against=../older --only='checkout*'

W1 is a small model and W2 the paper's base model (`workloads.py`), with random weights; CTranslate2
has those of the Marian model, converted. Every translation has exactly the length of the workload,
from ids to ids, with the complete search: finished hypotheses, length penalty, stopping rule. Turns
and output are those of `training_speed`.

With --lines, this project goes from text to text, each translation one token longer than its
source, and samples are of one sentence. Peers go from ids to ids in batches sorted by length, with
the same number of tokens in total.
"""

import dataclasses
import pathlib
import tempfile
from typing import Any

from experiments.benchmarks import comparison
from experiments.benchmarks.comparison import log, program
from experiments.benchmarks.workloads import TEXT, TOKENIZER, WORKLOADS, Text, Workload
from experiments.cli import command_line
from experiments.cli.options import require_at_least
from experiments.data import text_files
from transformer.errors import InputError
from transformer.text.tokenizer import Tokenizer

BUCKETS = (12, 16, 20, 24, 32, 64)
"""Batch lengths of this project; longer sentences are left out."""


@dataclasses.dataclass(frozen=True)
class Options(comparison.Options):
    """The comparison, and its searches."""

    beams: tuple[int, ...] = (1, 4)
    """Beam sizes; 1 is greedy search."""
    sentences: int | None = None
    """Sentences per batch; 1 measures latency."""
    lines: str | None = None
    """Text to translate."""
    train_source: str | None = None
    """Text of the vocabulary for --lines, one sentence per line."""
    train_target: str | None = None
    """Its translation, line by line."""


def run(options: Options) -> None:
    """Measure and print."""
    require_at_least(1, sentences=options.sentences)
    size = {"batch_size": options.sentences} if options.sentences else {}
    for name, workload in comparison.workloads(options, **size).items():
        if workload.family != "transformer":
            known = [known for known, one in WORKLOADS.items() if one.family == "transformer"]
            raise InputError(
                f"--workloads={name}: its peer does not decode; choose from {', '.join(known)}"
            )
        with tempfile.TemporaryDirectory() as folder:
            path = None
            if options.lines:
                longest = BUCKETS[-1]
                sizes = {"source_length": longest, "target_length": longest, "buckets": BUCKETS}
                workload = dataclasses.replace(workload, **sizes)
                path = prepare_text(options, workload, pathlib.Path(folder))
            for beams in options.beams:
                _measure(options, name, workload, beams, path)


def prepare_text(options: Options, workload: Workload, folder: pathlib.Path) -> str:
    """Write vocabulary and lines to translate into a folder; returns the path of a `Text`."""
    for name in ("train_source", "train_target"):
        if not getattr(options, name):
            raise InputError(f"--{name}=FILE is missing")
    sources, targets = text_files.TwoFiles(options.train_source, options.train_target).read()
    lines = list(text_files.lines(options.lines))
    log("learning a vocabulary and tokenizing")
    try:
        tokenizer = Tokenizer.train([*sources, *targets], workload.vocab_size)
    except InputError as error:
        problem = str(error).partition(";")[0]  # the remedy there is no flag here
        raise InputError(
            f"--train_source and --train_target have too little text: {problem}"
        ) from None
    (folder / TOKENIZER).write_bytes(tokenizer.model)
    encoded = zip(lines, tokenizer.encode(lines), strict=True)
    kept = [(line, ids) for line, ids in encoded if 1 < len(ids) <= workload.source_length]
    if not kept:
        raise InputError(
            f"--lines={options.lines} has no line of 1 to {workload.source_length - 1} subwords; "
            "translate shorter lines"
        )
    log(f"{len(lines) - len(kept)} empty or too long lines are left out")
    Text([line for line, _ in kept], [[*map(int, ids)] for _, ids in kept]).save(folder / TEXT)
    return str(folder / TEXT)


def _measure(options: Options, name: str, workload: Workload, beams: int, path: str | None) -> None:
    log(f"{name}, {'greedy' if beams == 1 else f'beam {beams}'}")
    about = {"benchmark": "decoding", "workload": name, "beams": beams}
    arguments: dict[str, Any] = {"beams": beams}
    function, together = "decoding", {}
    if path:
        about |= {"benchmark": "translating text", "unit": "sentence"}
        arguments["path"] = path
        function, together = "translating", {"together": workload.batch_size}
    ours = comparison.this_project(options, function, workload, **arguments, **together)
    dtypes = options.peer_dtypes or ("float32", "int8")
    peers = [
        program(f"CTranslate2 {dtype}", "opennmt.decoding", dtype=dtype, **arguments)
        for dtype in dtypes
    ]
    peers.append(program(f"Marian {dtypes[0]}", "marian.decoding", dtype=dtypes[0], **arguments))
    comparison.measure(options, ours, peers, workload, about)


if __name__ == "__main__":
    command_line.run(run, None, Options)
