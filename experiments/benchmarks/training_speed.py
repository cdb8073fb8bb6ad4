# SPDX-License-Identifier: Apache-2.0
"""How fast training steps are, beside PyTorch and Hugging Face and beside what the machine allows.

python -m experiments.benchmarks.training_speed --works=W1,W2
python -m experiments.benchmarks.training_speed --works=W1 --dropout=paper --lengths=64,1024

W1 is a small model and W2 the paper's base model (`benchmarks/work.py`), with random weights and
random sentences. This program's step and that of each peer are timed in turns, each in a process of
its own; a figure is the median over the rounds, and a ratio says how many times as long the peer
takes. "matrix products" are those of the step alone, each in its fastest form: that ratio is the
share of the machine's rate that the step reaches. --own=FIELD=VALUE,... measures this program with
other config fields against all of them, and --variant=NAME:FIELD=VALUE,... against itself. Peers
come with pip install -e .[bench]; one that is not there is skipped. Standard output has one JSON
object a result, standard error a table.
"""

import dataclasses
from collections.abc import Iterator

from absl import flags

from experiments.benchmarks import reporting
from experiments.benchmarks.alternating import PROGRAMS, Subject, compare
from experiments.benchmarks.settings import config_of, numbers
from experiments.benchmarks.work import WORKS, Work
from experiments.costs import step_flops
from experiments.flags import run

TOKENS = 2048
"""Of a batch, source and target each, where lengths are given."""

_WORKS = flags.DEFINE_list("works", list(WORKS), "Which of them.")
_DROPOUT = reporting.define_dropout()
_LENGTHS = flags.DEFINE_list(
    "lengths",
    [],
    f"Of source and target, in place of the work's own; a batch then has {TOKENS:,} tokens a side.",
)


def main() -> None:
    """Measures and prints."""
    works = dict(_works())
    own = reporting.own("training", {}, works.values())
    overrides = own.options["overrides"]
    products = dataclasses.replace(
        own, name="matrix products", place=f"{PROGRAMS}.own.step_products"
    )
    ways = [*reporting.variants(own, works.values()), *reporting.with_returned_pages(own)]
    others = reporting.chosen([*_peers(), products, *ways])
    results = []
    for name, work in works.items():
        flops = step_flops(config_of(work, overrides).model, work.rows, work.source)
        for other, figures in compare(own, others, work, reporting.effort(), reporting.say):
            tokens = work.rows * work.target
            figures |= {
                "gflop_a_step": round(flops / 1e9, 1),
                "own_gflop_per_second": round(flops / figures["own_ms"] / 1e6, 1),
                "own_target_tokens_per_second": round(tokens / figures["own_ms"] * 1e3),
            }
            results.append(reporting.result("training", name, work, own, other, figures))
    reporting.print_table(results)


def _works() -> Iterator[tuple[str, Work]]:
    lengths = numbers("lengths", _LENGTHS.value)
    for name in reporting.works(_WORKS.value):
        work = dataclasses.replace(WORKS[name], dropout_inside=_DROPOUT.value == "inside")
        if not lengths:
            yield name, work
        for length in lengths:
            rows = max(TOKENS // length, 1)
            yield (
                f"{name} {length}",
                dataclasses.replace(work, rows=rows, source=length, target=length),
            )


def _peers() -> list[Subject]:
    peers = [
        Subject(
            f"PyTorch {way} {dtype}",
            f"{PROGRAMS}.pytorch.training",
            {"compiled": compiled, "dtype": dtype},
        )
        for dtype in ("float32", "bfloat16")
        for way, compiled in (("eager", False), ("compiled", True))
    ]
    peers.append(Subject("Marian float32", f"{PROGRAMS}.marian.training", {"dtype": "float32"}))
    return peers + [reporting.with_kept_pages(peer) for peer in peers]


if __name__ == "__main__":
    run(main, config_from=None)
