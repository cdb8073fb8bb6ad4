# SPDX-License-Identifier: Apache-2.0
"""Comparisons of this project with peers: shared options, config overrides, results and tables."""

import ast
import dataclasses
import fnmatch
import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.benchmarks.alternating import Subject, compare
from experiments.benchmarks.workloads import DROPOUT, WORKLOADS, Workload
from experiments.cli.options import require_at_least
from experiments.console import formatting
from transformer.config import Config, DataConfig
from transformer.errors import InputError


@dataclasses.dataclass(frozen=True)
class Options:
    """Workloads, peers and the number of rounds."""

    workloads: tuple[str, ...] = ("W1", "W2")
    """W1 (small model), W2 (the paper's base model), R1 (recurrent, training only), G0, G1 and G2
    (for IWSLT, base and big, with batches for an accelerator) or several.
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
    """Return the chosen workloads by name, with changed fields.

    Raises:
      InputError: for an unknown name.
    """
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
    """Parse ``FIELD=VALUE,FIELD=VALUE``; values are Python literals or else text.

    Raises:
      InputError: if the text has another form.
    """
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
) -> list[dict[str, Any]]:
    """Compare with each chosen peer; print one JSON object per result and return all.

    Args:
      options: options of the benchmark.
      ours: this project.
      peers: candidates, of which --only chooses.
      workload: the measured workload.
      about: further facts for the results, for example the workload's name.
    """
    results = []
    chosen = choose(options, ours, peers, workload)
    for peer, figures in compare(ours, chosen, workload, options.rounds, log):
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
    for result in results:
        low, high = result["speedup_quartiles"]
        beams = f", beam {result['beams']}" if "beams" in result else ""
        cells = [result["peer"], f"{result['workload']}{beams}", f"{result['speedup']:.2f}"]
        cells += [f"{low:.2f}..{high:.2f}", f"{result['ms']:.4g}", f"{result['peer_ms']:.4g}"]
        table.append([*cells, str(result.get("peer_threads", "")), f"{result['other_load']:.2f}"])
    log(formatting.table(table))


def log(text: str) -> None:
    """Print progress."""
    print(text, file=sys.stderr, flush=True)
