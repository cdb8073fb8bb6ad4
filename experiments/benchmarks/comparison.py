# SPDX-License-Identifier: Apache-2.0
"""Comparisons of this project with peers: options, processes, turns and results.

Each program runs in a separate process (`worker`) and takes one sample when asked, while the other
one waits, so that load on the machine affects both.
"""

import ast
import contextlib
import dataclasses
import fnmatch
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

from experiments.benchmarks.workloads import DROPOUT, WORKLOADS, Workload
from experiments.cli.options import require_at_least
from transformer.config import Config, DataConfig
from transformer.errors import InputError

_SHARED_DEVICE = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""JAX takes memory of an accelerator when it needs it, because others measure there too."""
PAUSE_SECONDS = 0.3
"""Pause between two samples; idle threads of some libraries spin for a while."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """One measurement of a program."""

    seconds: float
    other_load: float
    """Cores kept busy by other processes."""
    peak_mib: int = 0
    """Peak resident memory of the process so far."""
    device_peak_mib: int = 0
    """Peak memory on an accelerator so far."""


Measured = TypeVar("Measured")


class Unavailable(Exception):
    """A program that cannot be measured here, and why."""


@dataclasses.dataclass(frozen=True)
class Subject:
    """A program to measure."""

    name: str
    function: str
    """MODULE.FUNCTION that returns a `worker.Program`."""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Arguments of the function in addition to the workload."""
    checkout: str | None = None
    """Path of another checkout of this project to run from."""


class Worker:
    """Process of a subject; a context manager, which waits until the program is ready."""

    about: dict[str, Any]
    """Facts that the program reports when it is ready."""

    def __init__(self, subject: Subject, workload: Workload):
        """Start the process."""
        request = {**subject.options, "workload": dataclasses.asdict(workload)}
        path = {"PYTHONPATH": subject.checkout} if subject.checkout else {}
        worker = [sys.executable, "-m", "experiments.benchmarks.worker"]
        self._name = subject.name
        self._process = subprocess.Popen(
            [*worker, subject.function, json.dumps(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=subject.checkout,
            env=_SHARED_DEVICE | os.environ | path,
            process_group=0,  # Ctrl-C reaches only this process, which stops its workers
        )

    def sample(self) -> Sample:
        """Measure once.

        Raises:
          Unavailable: if the process has ended.
        """
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        return Sample(**self._answer())

    def __enter__(self) -> Self:
        """Wait until the program is ready.

        Raises:
          Unavailable: if a library is missing or the program fails.
        """
        try:
            self.about = self._answer()["ready"]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End the process and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            raise Unavailable(f"the process of {self._name} ended with status {status}")
        answer = json.loads(line)
        if "missing" in answer:
            raise Unavailable(f"{answer['missing']} is not installed (pip install -e .[bench])")
        if "failed" in answer:
            raise Unavailable(answer["failed"])
        return answer


def alternate(programs: Sequence[Callable[[], Measured]], rounds: int) -> list[list[Measured]]:
    """Measure programs in turns, whose order alternates; returns the samples of each round."""
    measured = []
    for number in range(rounds):
        samples = []
        for program in programs if number % 2 == 0 else reversed(programs):
            time.sleep(PAUSE_SECONDS)
            samples.append(program())
        measured.append(samples if number % 2 == 0 else samples[::-1])
    return measured


def compare(
    ours: Subject, peers: Sequence[Subject], workload: Workload, rounds: int
) -> Iterator[tuple[Subject, dict[str, Any]]]:
    """Measure this project against each peer in turn; a peer that is unavailable is skipped.

    Yields:
      each measured peer and its figures.
    """
    log(f"preparing {ours.name}")
    try:
        with Worker(ours, workload) as our_worker:
            for peer in peers:
                log(f"measuring {peer.name}")
                try:
                    with Worker(peer, workload) as worker:
                        measured = alternate([our_worker.sample, worker.sample], rounds)
                except Unavailable as reason:
                    log(f"{peer.name} is skipped: {reason}")
                    continue
                about = {f"peer_{name}": value for name, value in worker.about.items()}
                yield peer, our_worker.about | about | summarize(measured)
    except Unavailable as reason:
        raise InputError(f"{ours.name} cannot be measured: {reason}") from None


def summarize(rounds: Sequence[Sequence[Sample]]) -> dict[str, Any]:
    """Return medians and quartiles: milliseconds, and the speedup within each round.

    A round is a sample of this project and one of a peer, one right after the other.
    """
    figures: dict[str, Any] = {
        **spread("speedup", [peer.seconds / ours.seconds for ours, peer in rounds]),
        **spread("ms", [ours.seconds * 1e3 for ours, _ in rounds]),
        **spread("peer_ms", [peer.seconds * 1e3 for _, peer in rounds]),
    }
    for prefix, samples in zip(("", "peer_"), zip(*rounds, strict=True), strict=True):
        for name in ("peak_mib", "device_peak_mib"):
            figures[prefix + name] = max(getattr(sample, name) for sample in samples)
    loads = [max(sample.other_load for sample in samples) for samples in rounds]
    return figures | {"rounds": len(rounds), "other_load": round(statistics.median(loads), 3)}


def spread(name: str, values: Sequence[float]) -> dict[str, Any]:
    """Return the median, and the quartiles, to four digits, interpolated."""
    three = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    low, median, high = (float(f"{value:.4g}") for value in three)
    return {name: median, f"{name}_quartiles": [low, high]}


# Options and results.


@dataclasses.dataclass(frozen=True)
class Options:
    """Workloads, peers and the number of rounds."""

    workloads: tuple[str, ...] = ("W1", "W2")
    """W1 (small model), W2 (the paper's base model), R1 (recurrent, training only), G1 and G2 (base
    and big, with batches for an accelerator) or several.
    """
    against: tuple[str, ...] = dataclasses.field(default=(), metadata={"repeated": True})
    """Path of another checkout of this project to compare with; may be repeated."""
    only: tuple[str, ...] = ()
    """Measure only peers that match one of these patterns, for example 'PyTorch*'."""
    rounds: int = 9
    """Rounds per comparison."""
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


def workloads(options: Options, **changes: Any) -> dict[str, Workload]:
    """Return the chosen workloads by name, with changed fields."""
    for name in options.workloads:
        if name not in WORKLOADS:
            raise InputError(f"--workloads={name}: choose from {', '.join(WORKLOADS)}")
    return {name: dataclasses.replace(WORKLOADS[name], **changes) for name in options.workloads}


def config_of(workload: Workload, overrides: Mapping[str, Any] | None = None) -> Config:
    """Return a config whose batches have the shape of the workload, or the lengths of its buckets.

    Args:
      workload: sizes of the model and of its batches.
      overrides: values by path, for example ``model.dropout``.

    Raises:
      InputError: for an unknown field or an invalid value in `overrides`.
    """
    longest = max(workload.source_length, workload.target_length)
    inner = DROPOUT if workload.inner_dropout else 0.0
    family_fields = {
        "transformer": {
            "d_ff": workload.d_ff,
            "num_heads": workload.num_heads,
            "attention_dropout": inner,
            "activation_dropout": inner,
        },
        "recurrent": {"cell": "lstm", "encoder_direction": "forward", "attention": "none"},
    }
    multiple = min(DataConfig.row_multiple, workload.batch_size)
    fields: dict[str, dict[str, Any]] = {
        "model": {
            "family": workload.family,
            "vocab_size": workload.vocab_size,
            "num_layers": workload.num_layers,
            "d_model": workload.d_model,
            "dropout": DROPOUT,
            **family_fields[workload.family],
        },
        "data": {
            "max_length": longest,
            "bucket_lengths": workload.buckets or (longest,),
            "tokens_per_batch": workload.batch_size * longest,
            "row_multiple": multiple if workload.buckets else workload.batch_size,
        },
    }
    for path, value in (overrides or {}).items():
        group, _, field = path.partition(".")
        fields.setdefault(group, {})[field] = value
    return Config.from_dict(fields)


def parse_overrides(flag: str, text: str) -> dict[str, Any]:
    """Parse ``FIELD=VALUE,FIELD=VALUE``; values are Python literals or else text."""
    overrides: dict[str, Any] = {}
    # A tuple has commas too, but no field name after them.
    for pair in re.split(r",\s*(?=[\w.]*=)", text) if text else ():
        path, equals, value = pair.partition("=")
        if not (path and equals):
            raise InputError(
                f"--{flag}: {pair!r} is not FIELD=VALUE; write for example "
                f"--{flag}=model.dropout=0.0,model.d_ff=512"
            )
        try:
            overrides[path] = ast.literal_eval(value)
        except (SyntaxError, ValueError):
            overrides[path] = value
    return overrides


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
    """Return the peers, variants and other checkouts that --only matches."""
    every = list(peers)
    for text in options.variant:
        name, _, fields = text.partition(":")
        overrides = parse_overrides(f"variant={name}:", fields)
        if not overrides:
            raise InputError(f"--variant={text}: write NAME:FIELD=VALUE,FIELD=VALUE")
        config_of(workload, overrides)
        arguments = {**ours.options, "overrides": overrides}
        every.append(dataclasses.replace(ours, name=f"variant {name}", options=arguments))
    for path in options.against:
        every.append(dataclasses.replace(ours, name=f"checkout {path}", checkout=path))
    names = [subject.name for subject in every]
    for pattern in options.only:
        if not fnmatch.filter(names, pattern):
            raise InputError(
                f"--only={pattern} matches no program; choose from: {'; '.join(names)}"
            )
    patterns = options.only or ["*"]
    return [subject for subject in every if any(fnmatch.fnmatch(subject.name, p) for p in patterns)]


def measure(
    options: Options,
    ours: Subject,
    peers: Sequence[Subject],
    workload: Workload,
    about: Mapping[str, Any],
) -> None:
    """Compare with each chosen peer; print one JSON object per result.

    Args:
      options: options of the benchmark.
      ours: this project.
      peers: candidates, of which --only chooses.
      workload: the measured workload.
      about: further facts for the results, for example the workload's name.
    """
    chosen = choose(options, ours, peers, workload)
    for peer, figures in compare(ours, chosen, workload, options.rounds):
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
        low, high = figures["speedup_quartiles"]
        log(f"{figures['speedup']:.2f} ({low:.2f}..{high:.2f}) times as fast as {peer.name}")
        print(json.dumps(result), flush=True)


def log(text: str) -> None:
    """Print progress."""
    print(text, file=sys.stderr, flush=True)
