# SPDX-License-Identifier: Apache-2.0
"""Options that the speed benchmarks share, and how they run and print comparisons."""

import dataclasses
import fnmatch
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.benchmarks.alternating import Effort, Subject, compare
from experiments.benchmarks.settings import config_of, parse_overrides
from experiments.benchmarks.workloads import WORKLOADS, Workload
from experiments.cli.options import require_at_least
from experiments.console import formatting
from transformer.errors import InputError


@dataclasses.dataclass(frozen=True)
class Options:
    """What is compared, and with how much effort."""

    workloads: tuple[str, ...] = ("W1", "W2")
    """W1 (small model), W2 (the paper's base model), R1 (recurrent, training only), G0, G1 and G2
    (for IWSLT, base and big, with batches for an accelerator) or several.
    """
    against: tuple[str, ...] = dataclasses.field(default=(), metadata={"repeated": True})
    """Path of another checkout of this project to compare with; may be repeated."""
    only: tuple[str, ...] = ()
    """Measure only peers that match one of these patterns, for example 'PyTorch*'."""
    rounds: int = Effort.rounds
    """Rounds per comparison."""
    quiet: float = Effort.quiet
    """Cores that other processes may keep busy in a quiet round."""
    budget: float = Effort.budget
    """Seconds per comparison; loud rounds are repeated until then."""
    prepare_together: bool = False
    """Prepare the programs of a workload at the same time, which saves minutes of compiling on a
    machine with many cores. All are in memory until they have been measured.
    """
    overrides: str = ""
    """FIELD=VALUE,...: config fields of this project, for example model.dropout_generator=hash."""
    variant: tuple[str, ...] = dataclasses.field(default=(), metadata={"repeated": True})
    """NAME:FIELD=VALUE,...: compare this project with itself with these fields instead of
    --overrides; may be repeated.
    """
    peer_dtypes: tuple[str, ...] | None = None
    """Number formats of the peers, for example float16, if not the usual ones."""

    def __post_init__(self) -> None:
        require_at_least(1, rounds=self.rounds)

    @property
    def effort(self) -> Effort:
        """How much is measured."""
        return Effort(self.rounds, self.quiet, self.budget, self.prepare_together)


def workloads(options: Options, **changes: Any) -> dict[str, Workload]:
    """Return the chosen workloads by name, with changed fields.

    Raises:
      InputError: for an unknown name.
    """
    for name in options.workloads:
        if name not in WORKLOADS:
            raise InputError(f"--workloads={name}: choose from {', '.join(WORKLOADS)}")
    return {name: dataclasses.replace(WORKLOADS[name], **changes) for name in options.workloads}


def program(name: str, function: str, **options: Any) -> Subject:
    """Return a program of `experiments.benchmarks.programs`, for example ``pytorch.training``."""
    return Subject(name, f"experiments.benchmarks.programs.{function}", options)


def this_project(options: Options, function: str, workload: Workload, **arguments: Any) -> Subject:
    """Return this project with the fields of --overrides.

    Raises:
      InputError: for an unknown field or an invalid value.
    """
    overrides = parse_overrides("overrides", options.overrides)
    config_of(workload, overrides)
    return program("this project", f"this_project.{function}", **arguments, overrides=overrides)


def choose(
    options: Options, ours: Subject, peers: Sequence[Subject], workload: Workload
) -> list[Subject]:
    """Return the peers, variants and other checkouts that --only matches.

    Raises:
      InputError: for a pattern that matches none, or an invalid variant.
    """
    every = list(peers)
    for text in options.variant:
        name, _, fields = text.partition(":")
        overrides = parse_overrides(f"variant={name}:", fields)
        if not overrides:
            raise InputError(f"--variant={text}: write NAME:FIELD=VALUE,FIELD=VALUE")
        config_of(workload, overrides)
        arguments = {**ours.options, "overrides": overrides}
        every.append(dataclasses.replace(ours, name=f"variant {name}", options=arguments))
    every += [
        dataclasses.replace(ours, name=f"checkout {path}", checkout=path)
        for path in options.against
    ]
    for pattern in options.only:
        if not fnmatch.filter([one.name for one in every], pattern):
            names = "; ".join(one.name for one in every)
            raise InputError(f"--only={pattern} matches no program; choose from: {names}")
    patterns = options.only or ["*"]
    return [one for one in every if any(fnmatch.fnmatch(one.name, each) for each in patterns)]


def measure(
    options: Options,
    ours: Subject,
    peers: Sequence[Subject],
    workload: Workload,
    about: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Compare with each chosen peer; print one JSON object per result and return all.

    Args:
      options: of the benchmark.
      ours: this project.
      peers: candidates, of which --only chooses.
      workload: what is measured.
      about: facts for the results, for example the workload's name.
    """
    results = []
    chosen = choose(options, ours, peers, workload)
    for peer, figures in compare(ours, chosen, workload, options.effort, log):
        result = {
            **about,
            "batch_size": workload.batch_size,
            "source_length": workload.source_length,
            "target_length": workload.target_length,
            "inner_dropout": workload.inner_dropout,
            "overrides": ours.options["overrides"],
            "peer": peer.name,
            **figures,
        }
        if figures.get("peak_tflops"):
            # GFLOP per millisecond are TFLOP/s.
            result["utilization"] = about["gflop"] / figures["ms"] / figures["peak_tflops"]
        print(json.dumps(result), flush=True)
        results.append(result)
    return results


def print_table(results: Sequence[Mapping[str, Any]]) -> None:
    """Print one result per line on standard error."""
    table = [["peer", "workload", "speedup", "quartiles", "ms", "peer ms", "threads", "load"]]
    for one in results:
        low, high = one["speedup_quartiles"]
        beams = f", beam {one['beams']}" if "beams" in one else ""
        cells = [one["peer"], f"{one['workload']}{beams}", f"{one['speedup']:.2f}"]
        cells += [f"{low:.2f}..{high:.2f}", f"{one['ms']:.4g}", f"{one['peer_ms']:.4g}"]
        loud = f"{one['other_load']:.2f} ({one['loud_rounds']}/{one['rounds']} loud)"
        table.append([*cells, str(one.get("peer_threads", "")), loud])
    log(formatting.table(table))


def log(text: str) -> None:
    """Print progress."""
    print(text, file=sys.stderr, flush=True)
