# SPDX-License-Identifier: Apache-2.0
"""Where the time of a training step and of a search goes, by parts of the model.

python -m experiments.benchmarks.breakdown --works=W1 --what=training,greedy,beam

W1 is a small model and W2 the paper's base model (`benchmarks/work.py`), with random weights, as in
`benchmarks.training` and `benchmarks.decoding`. XLA's profiler times every operation of a call on
each thread. An operation belongs to the part of the model whose code it was made of, and where XLA
has fused several, to the part of the last; those with a matrix product in them are told from the
others. Standard output has one JSON object a part, standard error a table. On another device than
the CPU there is nothing to show: use --profile of `train` there.
"""

import contextlib
import glob
import json
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator

import jax
from absl import flags

from experiments import formatting, hlo
from experiments.benchmarks import reporting
from experiments.benchmarks.programs import own
from experiments.benchmarks.settings import parse_own
from experiments.benchmarks.work import WORKS
from experiments.flags import run
from transformer.errors import InputError

BEAMS = {"greedy": 1, "beam": 4}

_WORKS = flags.DEFINE_list("works", ["W1"], "Which of them.")
_WHAT = flags.DEFINE_list("what", ["training", *BEAMS], "Which calls.")
_CALLS = flags.DEFINE_integer("calls", 5, "That are traced.", lower_bound=1)

PARTS = (
    ("attention", "_attention/|_attention[.]"),
    ("feed-forward networks", "feed_forward/"),
    ("residual connections, layer norms", "_residual|/norm"),
    ("embeddings, logits", "embedding"),
    ("encoder and decoder, the rest", "/(encoder|decoder)"),
)
"""Parts of the model, and what the scope of an operation in one of them has."""
OUTSIDE = {"training": "loss, optimizer", "greedy": "search", "beam": "search"}
"""What does not belong to the model."""

Part = tuple[str, bool]
"""Of the model, and whether matrix products."""


def main() -> None:
    """Measures and prints."""
    for what in _WHAT.value:
        if what not in OUTSIDE:
            raise InputError(f"--what={what}: there are {', '.join(OUTSIDE)}")
    if jax.default_backend() != "cpu":
        raise InputError("only calls on the CPU are broken down; use --profile of train elsewhere")
    overrides = parse_own(reporting.OWN.value)
    for name in reporting.works(_WORKS.value):
        for what in _WHAT.value:
            if what == "training":
                call, text = own.traced_training(WORKS[name], overrides)
            else:
                call, text = own.traced_decoding(WORKS[name], BEAMS[what], overrides)
            whole, parts = measured(call, text, OUTSIDE[what], _CALLS.value)
            _show(name, what, whole, parts)


def measured(
    call: Callable[[], object], text: str, outside: str, calls: int
) -> tuple[float, dict[Part, float]]:
    """Milliseconds of a call, untraced, and those that each part keeps threads busy.

    Args:
      call: runs the program, compiled before, to its end.
      text: of the program, as `hlo.origins` takes it.
      outside: what operations belong to that are of no part of the model.
      calls: how many are timed, and then traced.
    """
    seconds = []
    for _ in range(calls):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    origins = hlo.origins(text)
    busy: Counter[Part] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(calls):
                call()
        for operation, milliseconds in _operations(folder):
            if operation in origins:
                one = origins[operation]
                busy[part_of(one.scope, outside), one.multiplies] += milliseconds / calls
    return statistics.median(seconds) * 1e3, dict(busy)


def part_of(scope: str, outside: str) -> str:
    """The part of the model that a scope lies in."""
    return next((part for part, pattern in PARTS if re.search(pattern, scope)), outside)


def _operations(folder: str) -> Iterator[tuple[str, float]]:
    """Each execution of an operation in a trace, and its milliseconds."""
    [path] = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
    for plane in jax.profiler.ProfileData.from_file(path).planes:
        for line in plane.lines:
            for event in line.events:
                operation = dict(event.stats).get("hlo_op")
                if operation:
                    yield operation, event.duration_ns / 1e6


def _show(name: str, what: str, whole: float, parts: dict[Part, float]) -> None:
    total = sum(parts.values())
    rows = [[f"{name}, {what}: {whole:.4g} ms", "", "share"]]
    for (part, multiplies), busy in sorted(parts.items(), key=lambda item: -item[1]):
        kind = "matrix products" if multiplies else "everything else"
        about = {"benchmark": "breakdown", "work": name, "what": what, "call_ms": round(whole, 3)}
        figures = {"part": part, "kind": kind, "share": round(busy / total, 4)}
        print(json.dumps(about | figures), flush=True)
        rows.append([part, kind, f"{busy / total:.1%}"])
    with contextlib.redirect_stdout(sys.stderr):
        formatting.print_table(rows)


if __name__ == "__main__":
    run(main, config_from=None)
