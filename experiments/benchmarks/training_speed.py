# SPDX-License-Identifier: Apache-2.0
"""Speed of training steps, beside PyTorch, Hugging Face, the matmuls alone and other checkouts.

python -m experiments.benchmarks.training_speed --workloads=W1,W2
python -m experiments.benchmarks.training_speed --workloads=W1 --dropout=paper --lengths=64,1024
python -m experiments.benchmarks.training_speed --against=../older --only='checkout*'

W1 is a small model and W2 the paper's base model (`workloads.py`), with random weights and random
sentences. This project and each peer take turns, each in a separate process. A figure is the median
over the rounds, with quartiles; a speedup above 1 means that this project is faster. "matmuls" runs
only the matmuls of the step: its speedup is the fraction of the step that they take. Peers need pip
install -e .[bench]; those that are not installed are skipped. Standard output has one JSON object
per result, standard error a table.
"""

import dataclasses

from absl import flags

from experiments.benchmarks import reporting
from experiments.benchmarks.alternating import PROGRAMS, Subject
from experiments.benchmarks.settings import config_of, parse_integers
from experiments.benchmarks.workloads import Workload
from experiments.costs import step_flops
from experiments.flags import run
from transformer.models import base

TOKENS = 2048
"""Source and target tokens of a batch where lengths are given."""

_DROPOUT = reporting.define_dropout()
_LENGTHS = flags.DEFINE_list(
    "lengths", [], f"Source and target lengths, in batches of {TOKENS:,} tokens a side."
)
_PEERS = [
    *(
        Subject(
            f"PyTorch {mode} {dtype}",
            f"{PROGRAMS}.pytorch.training",
            {"compiled": mode == "compiled", "dtype": dtype},
        )
        for dtype in ("float32", "bfloat16")
        for mode in ("eager", "compiled")
    ),
    Subject("Marian float32", f"{PROGRAMS}.marian.training", {"dtype": "float32"}),
]


def main() -> None:
    """Measure and print."""
    results = []
    for name, workload in _workloads().items():
        ours = reporting.this_project("training", {}, workload)
        matmuls = dataclasses.replace(
            ours, name="matmuls", function=f"{PROGRAMS}.this_project.step_matmuls"
        )
        model = base.build(config_of(workload, ours.options["overrides"]).model)
        flops = step_flops(model, workload.batch_size, workload.source_length)
        about = {"benchmark": "training", "workload": name, "gflop": round(flops / 1e9, 1)}
        results += reporting.measure(ours, [*_PEERS, matmuls], workload, about)
    reporting.print_table(results)


def _workloads() -> dict[str, Workload]:
    lengths = parse_integers("lengths", _LENGTHS.value)
    inner = _DROPOUT.value == "inner"
    named = reporting.workloads(lambda one: dataclasses.replace(one, inner_dropout=inner))
    if not lengths:
        return named
    return {
        f"{name} {length}": dataclasses.replace(
            workload,
            batch_size=max(TOKENS // length, 1),
            source_length=length,
            target_length=length,
        )
        for name, workload in named.items()
        for length in lengths
    }


if __name__ == "__main__":
    run(main, config_from=None)
