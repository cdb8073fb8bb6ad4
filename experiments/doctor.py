# SPDX-License-Identifier: Apache-2.0
"""Examines the data, the memory and the time of a training run before it begins.

python -m experiments.doctor --config=experiments/configs/pronouns.py

It takes the flags of `train` but for --workdir, and changes nothing. What it finds is printed with
the first few places as file:line and with what `train` does about it: "refused" (the run cannot
begin), "left out" (those pairs are not trained on) or "note" (used). The last line on standard
output is one JSON object with all figures. The exit status is 1 if anything is refused by `train`.
"""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
from absl import flags

from experiments import compose, costs, device_memory
from experiments.corpora import registry
from experiments.flags import run
from experiments.formatting import byte_size, duration, print_table
from experiments.pipeline.pairs import Pairs
from experiments.pipeline.text_checks import TITLES, Finding, Readable, Split
from transformer.config import Config
from transformer.errors import InputError
from transformer.text.tokenizer import Tokenizer

TIMING = flags.DEFINE_bool(
    "timing", True, "Run a few steps to estimate the time of the training; --notiming does not."
)


def main(config: Config) -> int:
    """Prints the report; returns the exit status."""
    figures = examine(config, timing=TIMING.value)
    refused = figures["refused"]
    if refused:
        _say(f"error: train would refuse this: {'; '.join(refused)}")
    print(json.dumps(figures))
    return 1 if refused else 0


def examine(config: Config, *, timing: bool) -> dict[str, Any]:
    """Prints everything but the last line, which the figures that it returns are for."""
    refused: list[str] = []

    def refuse(error: InputError) -> None:
        print(f"  refused   {error}")
        refused.append(str(error))

    mixture = _or_error(registry.training_corpora, config.data)
    tokenizer = mixture if isinstance(mixture, InputError) else _vocabulary(config, mixture)
    vocabulary = tokenizer if isinstance(tokenizer, Tokenizer) else None
    figures: dict[str, Any] = {}
    splits: dict[str, Split] = {}
    for name in registry.SPLITS:
        corpora = mixture if name == "train" else _or_error(_other_split, config, name)
        if isinstance(corpora, InputError):
            _section(f"{name}: none")
            figures[name] = None
            if name == "test":
                print(f"  note      {corpora}")
            else:
                refuse(corpora)
            continue
        splits[name] = split = _read(config, name, [pairs for _, pairs in corpora], vocabulary)
        findings = split.findings()
        if name != "train" and "train" in splits:
            findings += split.in_training(splits["train"])
        figures[name] = _print_split(split, findings)
        if name != "test":
            refused += [one.detail for one in findings if one.severity == "refused"]

    figures |= {"vocabulary": None, "run": None}
    if vocabulary is None:
        _section("vocabulary: none, so that nothing is known of tokens, memory and time")
        # Where no text could be read, that is what is wrong.
        if not refused or len(splits.get("train", ())):
            refuse(tokenizer)
    else:
        figures["vocabulary"] = _print_vocabulary(config, vocabulary, splits)
        train = splits["train"]
        if len(train) or not refused:
            try:
                figures["run"] = _print_run(config, vocabulary, mixture, train, timing)
            except InputError as error:
                refuse(error)
    print(f"\n{'train would refuse this, as said above' if refused else 'train can begin'}\n")
    return {"refused": refused, **figures}


# The data.

Mixture = list[tuple[float, Pairs]]
"""Corpora and their weights."""
Found = TypeVar("Found")


def _or_error(function: Callable[..., Found], *arguments: Any) -> Found | InputError:
    """What a function returns, or the error that it raises."""
    try:
        return function(*arguments)
    except InputError as error:
        return error


def _other_split(config: Config, name: str) -> Mixture:
    return [(1.0, registry.text_pairs(config.data, name))]


def _vocabulary(config: Config, mixture: Mixture) -> Tokenizer | InputError:
    """The tokenizer that `train` would use, learned from what of the text can be read."""
    began = time.monotonic()
    readable = [Readable(pairs) for _, pairs in mixture]
    tokenizer = _or_error(compose.vocabulary, config, readable)
    _say(f"vocabulary: {duration(time.monotonic() - began)}")
    return tokenizer


def _read(
    config: Config, name: str, corpora: Sequence[Pairs], tokenizer: Tokenizer | None
) -> Split:
    began = time.monotonic()
    split = Split(name, corpora, tokenizer, config.data.max_length)
    _say(f"{name}: {len(split):,} pairs read in {duration(time.monotonic() - began)}")
    return split


def _print_split(split: Split, findings: Sequence[Finding]) -> dict[str, Any]:
    """Sizes and lengths of both sides, then the findings."""
    _section(f"{split.name}: {len(split):,} pairs")
    for corpus, size in zip(split.corpora, split.sizes, strict=True):
        print(f"  {corpus.name}" + (f": {size:,} pairs" if len(split.corpora) > 1 else ""))
    sides = {"source": split.source.figures(), "target": split.target.figures()}
    rows = [["", "source", "target"]]
    for name in sides["source"]:
        if name != "unknown_tokens":
            rows.append(
                [name.replace("_", " ").replace("95 percent", "95%")]
                + [_number(figures.get(name, 0)) for figures in sides.values()]
            )
    print_table(rows)
    for finding in findings:
        _print_finding(finding)
    if not findings:
        print("  nothing found")
    return {
        "pairs": len(split),
        "corpora": [corpus.name for corpus in split.corpora],
        **sides,
        "findings": [finding.to_dict() for finding in findings],
    }


def _print_finding(finding: Finding) -> None:
    indent = " " * 12
    if finding.severity == "refused":
        print(f"  {finding.severity:<8}  {finding.detail}")
    else:
        detail = f" ({finding.detail})" if finding.detail else ""
        print(f"  {finding.severity:<8}  {TITLES[finding.rule]}: {finding.count:,}{detail}")
        for place in finding.places:
            print(f"{indent}{place}")
        if finding.count > len(finding.places):
            print(f"{indent}and {finding.count - len(finding.places):,} more")
    print(f"{indent}{finding.treatment}")


def _print_vocabulary(
    config: Config, tokenizer: Tokenizer, splits: Mapping[str, Split]
) -> dict[str, Any]:
    """Its size, and how much of each split it covers."""
    learned = f"{config.data.tokenizer}, learned from the training text"
    origin = config.data.tokenizer_model or learned
    _section(f"vocabulary: {tokenizer.vocab_size:,} tokens ({origin})")
    coverage: dict[str, list[float]] = {}
    rows = [["known tokens", "source", "target"]]
    for name, split in splits.items():
        if len(split):
            coverage[name] = [
                1 - side.unknown_tokens / int(side.lengths.sum()) for side in split.sides
            ]
            rows.append([name, *(f"{share:.4%}" for share in coverage[name])])
    print_table(rows)
    return {"size": tokenizer.vocab_size, "known_tokens": coverage}


# The run.


def _print_run(
    config: Config,
    tokenizer: Tokenizer,
    mixture: Mixture,
    train: Split,
    timing: bool,
) -> dict[str, Any]:
    """Epochs, memory, operations and time of the training."""
    device = jax.devices()[0]
    _section(f"the run, on {device.platform} ({device.device_kind})")
    experiment = costs.experiment_of_lengths(config, tokenizer, _lengths(mixture, train))
    config, batches = experiment.config, experiment.data.train
    parameters = sum(leaf.size for leaf in jax.tree.leaves(experiment.abstract_state.params))
    epochs = config.training.steps / batches.per_epoch
    parts = config.training.micro_batches or 1
    padding = batches.padding_share()
    print_table(
        [
            ["parameters", f"{parameters:,}"],
            ["steps", f"{config.training.steps:,}"],
            ["batches an epoch", f"{batches.per_epoch:,}"],
            ["epochs", f"{epochs:,.1f}"],
            ["padding", f"{padding:.1%} of the target positions"],
            ["micro-batches", f"{parts:,}"],
        ]
    )
    programs = []
    for (rows, length), count in sorted(costs.batches_by_shape(experiment).items()):
        _say(f"compiling the step for batches of {rows} x {length} tokens")
        programs.append(costs.compile_step(experiment, rows, length, count))
    shapes = [shape for _, shape in programs]
    limit = config.training.memory_limit_gib
    available = device_memory.available_bytes() if limit is None else int(limit * 2**30)
    needed = max(shape.memory.peak_bytes for shape in shapes)
    # A machine's memory is in use by others too, and what does not fit there ends this process.
    room = available // 2 if device.platform == "cpu" else available
    untimed = "--notiming was given"
    if timing and needed > room:
        untimed = "the step needs more memory than it is safe to take for a trial"
    elif timing:
        untimed = f"a step takes longer than {costs.TIMING_SECONDS} s"
        _say(f"timing steps, for at most {costs.TIMING_SECONDS} s")
        shapes = costs.time_steps(experiment, programs)
    steps = config.training.steps
    flops = sum(s.flops * s.batches for s in shapes) / sum(s.batches for s in shapes) * steps
    shapes = sorted(shapes, key=lambda shape: shape.length)
    _print_shapes(shapes)
    _print_memory(needed, available, parts)
    _print_flops(flops, parts)
    mean = costs.mean_step_seconds(shapes)
    if mean is None:
        least = flops / costs.matmul_flops_per_second() / experiment.mesh.size
        print(f"  time      not measured: {untimed}; at the speed of this device's float32 matrix")
        print(f"            product the products alone take {duration(least)}")
    else:
        _print_time(mean, steps)
    return {
        "parameters": parameters,
        "steps": steps,
        "batches_per_epoch": batches.per_epoch,
        "epochs": epochs,
        "padding_share": padding,
        "micro_batches": parts,
        "available_bytes": available,
        "needed_bytes": needed,
        "fits": needed <= available,
        "training_flops": flops,
        "paper_training_flops": costs.PAPER_TRAINING_FLOPS,
        "step_seconds": mean,
        "expected_seconds": None if mean is None else mean * steps,
        "shapes": [
            {**dataclasses.asdict(shape), "peak_bytes": shape.memory.peak_bytes} for shape in shapes
        ],
    }


def _lengths(mixture: Mixture, train: Split) -> list[tuple[float, costs.Lengths, costs.Lengths]]:
    """Each corpus's weight and its part of the lengths."""
    found, begin = [], 0
    for (weight, _), size in zip(mixture, train.sizes, strict=True):
        part = slice(begin, begin + size)
        found.append((weight, train.source.lengths[part], train.target.lengths[part]))
        begin += size
    return found


def _print_shapes(shapes: Sequence[costs.StepCost]) -> None:
    """What a step costs on batches of each shape."""
    head = ["rows x length", "batches", "arguments", "temporaries", "peak"]
    head += ["products", "XLA's count", "a step"]
    rows = [head]
    for shape in shapes:
        memory = shape.memory
        rows.append(
            [
                f"{shape.rows} x {shape.length}",
                f"{shape.batches:,}",
                byte_size(memory.argument_bytes),
                byte_size(memory.temporary_bytes + memory.output_bytes),
                byte_size(memory.peak_bytes),
                f"{shape.flops:.2e} FLOPs",
                f"{shape.xla_flops:.2e} FLOPs",
                "not timed" if shape.seconds is None else f"{shape.seconds:.3g} s",
            ]
        )
    print_table(rows)


def _print_memory(needed: int, available: int, parts: int) -> None:
    there = f"the step needs {byte_size(needed)} a device, of {byte_size(available)}"
    if needed <= available:
        print(f"  memory    {there}: it fits")
        return
    print(f"  note      {there}: it does not fit")
    print(
        f"            set --config.training.micro_batches={2 * parts} or more, which leaves the "
        "batch as it is, or\n            --config.training.batch_fitting=auto, which finds the "
        "number"
    )


def _print_flops(flops: float, parts: int) -> None:
    papers = " and ".join(
        f"{value:.1e} ({name})" for name, value in costs.PAPER_TRAINING_FLOPS.items()
    )
    print(f"  products  {flops:.2e} FLOPs in the whole training, padding included")
    print(
        f"            the paper has {papers}: the time on its 8 P100 at 9.5 TFLOPS, no count\n"
        "            of operations; its base training needs about 1e18 by the count above"
    )
    if parts > 1:
        print(f"            XLA counts one of the {parts} micro-batches")


def _print_time(mean: float, steps: int) -> None:
    print(
        f"  time      about {duration(mean * steps)} on this machine ({mean:.3g} s a step): an "
        "estimate from a few steps,\n            without compilation, validation and saving"
    )
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > 2 * cores:
        print(
            f"            other programs were at work too (load {load:.1f} on {cores} cores); it "
            "is less without them"
        )


# Text.


def _section(title: str) -> None:
    print(f"\n{title[0].upper()}{title[1:]}")


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    run(main, config_from="config")
