# SPDX-License-Identifier: Apache-2.0
"""Speed of greedy and beam search, beside CTranslate2, Hugging Face and other checkouts.

python -m experiments.benchmarks.decoding_speed --workloads=W1,W2 --beams=1,4
python -m experiments.benchmarks.decoding_speed --workloads=W1 --sentences=1
python -m experiments.benchmarks.decoding_speed --lines=val.en \\
    --train_source=train.en --train_target=train.de
python -m experiments.benchmarks.decoding_speed --against=../older --only='checkout*'

W1 is a small model and W2 the paper's base model (`workloads.py`), with random weights; CTranslate2
has those of the Marian model, converted. Every translation has exactly the length of the workload,
from ids to ids, with the complete search: finished hypotheses, length penalty, stopping rule; real
text is described in `real_text.py`. Turns and output are those of `training_speed`.
"""

import contextlib
import dataclasses
from typing import Any

from experiments.benchmarks import comparison, real_text
from experiments.benchmarks.comparison import program
from experiments.benchmarks.workloads import WORKLOADS, Workload
from experiments.cli import command_line
from experiments.cli.options import require_at_least
from transformer.errors import InputError


@dataclasses.dataclass(frozen=True)
class Options(real_text.Options, comparison.Options):
    """The comparison, and its searches."""

    beams: tuple[int, ...] = (1, 4)
    """Beam sizes; 1 is greedy search."""
    sentences: int | None = None
    """Sentences per batch; 1 measures latency."""
    lines: str | None = None
    """Text to translate; the vocabulary is that of --train_source and --train_target."""


def run(options: Options) -> None:
    """Measure and print."""
    require_at_least(1, sentences=options.sentences)
    results = []
    size = {"batch_size": options.sentences} if options.sentences else {}
    for name, workload in comparison.workloads(options, **size).items():
        if workload.family != "transformer":
            known = [known for known, one in WORKLOADS.items() if one.family == "transformer"]
            raise InputError(
                f"--workloads={name}: its peer does not decode; choose from {', '.join(known)}"
            )
        with contextlib.ExitStack() as stack:
            path = None
            if options.lines:
                text = real_text.prepared(workload, options, options.lines)
                workload, path = stack.enter_context(text)
            for beams in options.beams:
                results += _measure(options, name, workload, beams, path)
    comparison.print_table(results)


def _measure(
    options: Options, name: str, workload: Workload, beams: int, path: str | None
) -> list[dict[str, Any]]:
    comparison.log(f"{name}, {'greedy' if beams == 1 else f'beam {beams}'}")
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
    return comparison.measure(options, ours, peers, workload, about)


if __name__ == "__main__":
    command_line.run(run, None, Options)
