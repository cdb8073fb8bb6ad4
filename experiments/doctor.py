# SPDX-License-Identifier: Apache-2.0
"""Check the data, the memory and the time of a training run before it starts.

transformer doctor --config=pronouns

It takes the --config and the config fields of `train`, and changes nothing. A finding is printed
with its first locations as file:line and with what `train` does about it: "error" (the run cannot
start), "dropped" (the pairs are left out) or "warning" (the text is used). The last line on stdout
is one JSON object with all figures. The exit status is 1 if `train` would refuse the config or the
data.
"""

from experiments.training import allocator

if __name__ == "__main__":
    allocator.restart_with_huge_pages()  # as `train` does, whose memory and time it measures

import dataclasses
import functools
import itertools
import json
import shlex
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from experiments.cli import command_line
from experiments.console.formatting import byte_size, duration, table
from experiments.console.progress import say
from experiments.data import registry
from experiments.data.checks.text_checks import RULES, CheckedSplit, Finding, ReadablePairs
from experiments.data.pairs import SentencePairs
from experiments.planning import costs
from experiments.training import compose, training_data
from transformer import device_memory
from transformer.config import Config
from transformer.errors import InputError
from transformer.text.metrics import check_tokenization
from transformer.text.tokenizer import Vocabularies


@dataclasses.dataclass(frozen=True)
class Options:
    """The training to examine."""

    config: Config = Config()
    """The experiment."""
    timing: bool = True
    """Time a few steps to estimate the training time; --notiming skips this."""


Mixture = list[tuple[float, SentencePairs]]
"""Training corpora with their weights."""


def main(options: Options) -> int:
    """Print the report; return the exit status."""
    report = run(options)
    errors = report["errors"]
    if errors:
        say(f"error: train would refuse this: {'; '.join(errors)}")
    print(json.dumps(report))
    return 1 if errors else 0


def run(options: Options) -> dict[str, Any]:
    """Run all checks, printing their results; return the figures for the JSON line."""
    config = options.config
    report: dict[str, Any] = {"errors": []}

    def fail(error: InputError) -> None:
        _print_entry("error", str(error))
        report["errors"].append(str(error))

    def check(require: Callable[..., None], *arguments: Any) -> None:
        try:
            require(*arguments)
        except InputError as error:
            fail(error)

    check(check_tokenization, config.evaluation.bleu_tokenize)
    mixture, vocabularies, vocabulary_error = [], None, None
    try:
        mixture = registry.training_corpora(config.data)
        say("loading or training the vocabulary")
        readable = [ReadablePairs(pairs) for _, pairs in mixture]
        vocabularies = training_data.load_vocabularies(config, readable)
    except InputError as error:
        vocabulary_error = error

    splits: dict[str, CheckedSplit] = {}
    for name in registry.SPLITS:
        try:
            if name == "train":
                corpora = mixture or registry.training_corpora(config.data)
            else:
                corpora = [(1.0, registry.sentence_pairs(config.data, name))]
        except InputError as error:
            _print_section(f"{name}: none")
            report[name] = None
            # A test split is optional.
            if name == "test":
                _print_entry("warning", str(error))
            else:
                fail(error)
            continue
        say(f"reading the {name} split")
        pairs = [pairs for _, pairs in corpora]
        splits[name] = split = CheckedSplit(
            name, pairs, vocabularies, config.data.max_length, config.data.empty_sources
        )
        findings = split.findings()
        if name != "train" and "train" in splits:
            findings += split.in_training(splits["train"])
        report[name] = _report_split(split, findings)
        if name != "test":
            report["errors"] += [one.detail for one in findings if one.severity == "error"]
            if vocabularies is not None:
                location = functools.partial(split.location, side=1)
                check(training_data.require_short_targets, config, split.target.lengths, location)

    report |= {"vocabulary": None, "run": None}
    train = splits.get("train", ())
    if vocabularies is None:
        _print_section("vocabulary: none, so lengths, memory and time are unknown")
        # Without readable text, the text is the error, and it is reported already.
        if len(train) or not report["errors"]:
            fail(vocabulary_error)
    else:
        report["vocabulary"] = _report_vocabulary(config, vocabularies)
        if len(train) or not report["errors"]:
            try:
                report["run"] = _report_run(config, vocabularies, mixture, train, options.timing)
            except InputError as error:
                fail(error)
    _print_conclusion(report)
    return report


def _print_conclusion(report: Mapping[str, Any]) -> None:
    """Print whether the training can start, with its command and cost."""
    if report["errors"]:
        print("\ntrain would refuse this\n")
        return
    flags_of_train = [one for one in sys.argv[1:] if not one.startswith(("--timing", "--notiming"))]
    print("\ntrain can start:\n")
    print(f"  transformer train {shlex.join(flags_of_train)} --workdir=DIRECTORY\n")
    figures = report["run"]
    takes = f"{byte_size(figures['needed_bytes'])} of memory a device"
    if figures["expected_seconds"] is not None:
        takes = f"about {duration(figures['expected_seconds'])} on this machine, and {takes}"
    print(f"It takes {takes}.\n")


# Data.


def _report_split(split: CheckedSplit, findings: Sequence[Finding]) -> dict[str, Any]:
    """Report sizes and lengths of both sides, and the findings."""
    _print_section(f"{split.name}: {len(split):,} pairs")
    for corpus, size in zip(split.corpora, split.sizes, strict=True):
        print(f"  {corpus.pairs.name}" + (f": {size:,} pairs" if len(split.corpora) > 1 else ""))
    sides = {"source": split.source.statistics(), "target": split.target.statistics()}
    rows = [["", *sides]]
    for name in sides["source"]:
        title = name.replace("_", " ").replace("95 percent", "95%")
        rows.append([title, *(_number(side.get(name, 0)) for side in sides.values())])
    _print_table(rows)
    for finding in findings:
        _print_finding(finding)
    if not findings:
        print("  no findings")
    return {
        "pairs": len(split),
        "corpora": [corpus.pairs.name for corpus in split.corpora],
        **sides,
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }


def _print_finding(finding: Finding) -> None:
    if finding.severity == "error":
        _print_entry("error", finding.detail, finding.treatment)
        return
    lines = [f"{RULES[finding.rule]}: {finding.count:,}", *finding.locations]
    if finding.detail:
        lines[0] += f" ({finding.detail})"
    if finding.count > len(finding.locations):
        lines.append(f"and {finding.count - len(finding.locations):,} more")
    _print_entry(finding.severity, *lines, finding.treatment)


def _report_vocabulary(config: Config, vocabularies: Vocabularies) -> dict[str, int]:
    """Report its sizes."""
    trained = f"{config.data.tokenizer}, trained on the training text"
    origin = config.data.tokenizer_model or trained
    size = f"{vocabularies.target.vocab_size:,}"
    if not vocabularies.are_shared:
        size = f"{vocabularies.source.vocab_size:,} source and {size} target"
    _print_section(f"vocabulary: {size} tokens ({origin})")
    return {side: tokenizer.vocab_size for side, tokenizer in vocabularies._asdict().items()}


# The training run.


def _report_run(
    config: Config, vocabularies: Vocabularies, mixture: Mixture, train: CheckedSplit, timing: bool
) -> dict[str, Any]:
    """Report epochs, memory, operations and time of the training."""
    device = jax.devices()[0]
    _print_section(f"the run, on {device.platform} ({device.device_kind})")
    starts = itertools.accumulate(train.sizes, initial=0)
    lengths = [
        (weight, train.source.lengths[start:stop], train.target.lengths[start:stop])
        for (weight, _), (start, stop) in zip(mixture, itertools.pairwise(starts), strict=True)
    ]
    experiment = costs.experiment_of_lengths(config, vocabularies, lengths)
    training, batches = experiment.config.training, experiment.data.train
    parameters, padding = experiment.num_parameters, batches.padding_share()
    epochs, micro_batches = training.steps / batches.per_epoch, training.micro_batches or 1
    _print_table(
        [
            ["parameters", f"{parameters:,}"],
            ["steps", f"{training.steps:,}"],
            ["batches an epoch", f"{batches.per_epoch:,}"],
            ["epochs", f"{epochs:,.1f}"],
            ["padding", f"{padding:.1%} of the target positions"],
            ["micro-batches", f"{micro_batches:,}"],
        ]
    )
    compose.require_memory(experiment)
    programs, before = [], device_memory.resident_bytes()
    for (rows, length), count in sorted(costs.batches_by_shape(experiment).items()):
        say(f"compiling the step for batches of {rows} x {length} tokens")
        programs.append(costs.compile_step(experiment, rows, length, count))
    steps = sorted((step for _, step in programs), key=lambda step: step.length)
    limit = training.memory_limit_gib
    available = device_memory.available_bytes() if limit is None else int(limit * 2**30)
    needed = max(step.peak_bytes for step in steps)
    process = _process_bytes(before, needed) if device.platform == "cpu" and before else None
    # On a CPU, other programs share the memory, and exceeding it kills this process.
    safe = available // 2 if device.platform == "cpu" else available
    untimed = "--notiming was given"
    if timing and needed > safe:
        untimed = "the step needs too much memory for a trial on this machine"
    elif timing:
        untimed = f"a step takes longer than {costs.TIMING_SECONDS} s"
        say(f"timing steps, for at most {costs.TIMING_SECONDS} s")
        costs.time_steps(experiment, programs)
    flops = sum(step.flops * step.batches for step in steps) / batches.per_epoch * training.steps
    _print_steps(steps)
    # XLA's CPU backend undoes rematerialization.
    remat = None if device.platform == "cpu" else getattr(experiment.config.model, "remat", None)
    _print_memory(needed, available, micro_batches, remat)
    if process is not None:
        _print_entry("", f"the process, with Python and its programs, about {byte_size(process)}")
    _print_entry("matmuls", f"{flops:.2e} FLOPs in the complete training, padding included")
    seconds = costs.mean_step_seconds(steps)
    if seconds is None:
        minimum = flops / costs.matmul_flops_per_second() / experiment.mesh.size
        text = f"not measured: {untimed}; at this device's float32 matmul rate,"
        _print_entry("time", text, f"the matmuls alone take {duration(minimum)}")
    else:
        total = duration(seconds * training.steps)
        _print_entry(
            "time",
            f"about {total} on this machine ({seconds:.3g} s a step), estimated from",
            "a few steps, without compilation, validation and saving",
        )
    return {
        "parameters": parameters,
        "steps": training.steps,
        "batches_per_epoch": batches.per_epoch,
        "epochs": epochs,
        "padding_share": padding,
        "micro_batches": micro_batches,
        "available_bytes": available,
        "needed_bytes": needed,
        "process_bytes": process,
        "fits": needed <= available,
        "training_flops": flops,
        "step_seconds": seconds,
        "expected_seconds": None if seconds is None else seconds * training.steps,
        "shapes": [dataclasses.asdict(step) for step in steps],
    }


def _process_bytes(before: int, needed: int) -> int:
    """Estimate the peak memory of the training process, after its steps have been compiled here.

    A validation has two more programs a length, for the loss and for the search, and programs that
    are compiled at the same time leave gaps between them, in up to eight arenas a core: twice the
    memory of the steps' programs in all.

    Args:
      before: resident bytes before the compilation.
      needed: bytes of the largest step, by XLA's account.
    """
    allocator.return_unused_pages()
    resident = device_memory.resident_bytes()
    programs = resident - before
    return resident + 2 * programs + needed


def _print_steps(steps: Sequence[costs.StepCost]) -> None:
    """Print the cost of a step for each batch shape."""
    rows = [["rows x length", "batches", "memory", "matmul FLOPs", "a step"]]
    for step in steps:
        seconds = "not timed" if step.seconds is None else f"{step.seconds:.3g} s"
        sizes = [f"{step.batches:,}", byte_size(step.peak_bytes), f"{step.flops:.2e}"]
        rows.append([f"{step.rows} x {step.length}", *sizes, seconds])
    _print_table(rows)


def _print_memory(needed: int, available: int, micro_batches: int, remat: str | None) -> None:
    """Whether the step fits, and what would make it fit; `remat` is None where it saves nothing."""
    text = f"the step needs {byte_size(needed)} a device, of {byte_size(available)}"
    if needed <= available:
        _print_entry("memory", f"{text}: it fits")
        return
    remedies = [
        f"set --config.training.micro_batches={2 * micro_batches} or more, which keeps the batch,",
        "or --config.training.batch_fitting=auto, which finds the number",
    ]
    if remat == "none":
        remedies += [
            "or --config.model.remat=full, which computes activations again instead of storing "
            "them:",
            "about a third more time, and the same results",
        ]
    _print_entry("warning", f"{text}: it does not fit", *remedies)


# Output.


def _print_section(title: str) -> None:
    print(f"\n{title[0].upper()}{title[1:]}")


def _print_entry(label: str, *lines: str) -> None:
    """Print a label and the lines beside it."""
    for line in lines:
        print(f"  {label:<8}  {line}")
        label = ""


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    print(textwrap.indent(table(rows), "  "))


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


if __name__ == "__main__":
    command_line.run(main, "config", Options)
