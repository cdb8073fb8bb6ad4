# SPDX-License-Identifier: Apache-2.0
"""Compare systems on the same sentences: two or more workdirs, or files of translations.

transformer compare --workdirs=A,B [--split=test]
transformer compare --workdirs=A,B,C --source=FILE --target=FILE
transformer compare --workdirs=a_seed0,a_seed1 --workdirs=b_seed0,b_seed1 --names=a,b
transformer compare --outputs=A.txt,B.txt --target=FILE [--source=FILE]

Prints the scores of all systems, tests of the difference of every two with a correction for their
number, the scores by length, and the sentences that differ most. The last line is one JSON object.
--output=FILE.html writes the same content as a page.

A flag that is given once names one run of each system. Given once per system, it names the runs of
that system, which differ in their seeds. Single runs are compared by sacreBLEU's paired tests,
several by Welch's t-test over the runs.

Each workdir translates with its saved config, on one device. To compare other decoding options, or
to use several devices, give files as --outputs: evaluate, which takes --config.decode and
--config.parallel fields, keeps its translations in the workdir's evaluations, and translate writes
them with --output.
"""

import dataclasses
import json
import sys
from typing import Literal

from experiments.cli import command_line
from experiments.cli.options import output_file
from experiments.cli.scored_pairs import ScoredPairs
from experiments.console.progress import say
from experiments.data.registry import Split
from experiments.data.text_files import TwoFiles
from experiments.pages import comparison as comparison_page
from experiments.scoring import comparison
from experiments.scoring.comparison import Comparison, Run
from transformer.checkpoints import workdir_files
from transformer.config import Config
from transformer.errors import InputError
from transformer.translator import Translator


@dataclasses.dataclass(frozen=True)
class Options(ScoredPairs):
    """The systems, the test set, and the page."""

    workdirs: tuple[str, ...] = dataclasses.field(default=(), metadata={"repeated": True})
    """Directories written by train: A,B,... If repeated, each flag names the runs of one system."""
    outputs: tuple[str, ...] = dataclasses.field(default=(), metadata={"repeated": True})
    """Files of translations, one per line, in the form of --workdirs."""
    names: tuple[str, ...] | None = None
    """Names of the systems; by default those of their runs."""
    output: str | None = None
    """Path of a page to open in a browser (.html)."""


def run(options: Options) -> Comparison:
    """Score the systems and test their differences."""
    config = None
    if options.outputs:
        sources, references, systems = _read_outputs(options)
    else:
        sources, references, systems, config = _translate_with_workdirs(options)
    return comparison.compare(sources, references, systems, **options.bleu_options(config))


def main(options: Options) -> None:
    """Compare the systems, and print and write the result."""
    output = output_file(options.output) if options.output else None
    options.bleu_options()  # checked before anything is translated
    results = run(options)
    try:
        if output:
            workdir_files.write_text(output, comparison_page.as_page(results))
            say(f"page: {output}")
    finally:
        sys.stdout.reconfigure(encoding="utf-8")
        print(comparison_page.as_text(results))
        print(json.dumps(comparison.as_json(results)), flush=True)


def _read_outputs(options: Options) -> tuple[list[str] | None, list[str], dict[str, list[Run]]]:
    """Sources (if given), references and the runs of each system, read from files."""
    if options.workdirs:
        raise InputError("--workdirs and --outputs exclude each other; give one of them")
    if not options.target:
        raise InputError("missing --target=FILE, the references of --outputs")
    sources = TwoFiles(options.source, options.target).read()[0] if options.source else None
    references: list[str] = []
    runs = {}
    for name, files in _systems("outputs", options).items():
        runs[name] = []
        for file in files:
            translations, references = TwoFiles(file, options.target).read()
            runs[name].append(Run(file, translations))
    return sources, references, runs


def _translate_with_workdirs(
    options: Options,
) -> tuple[list[str], list[str], dict[str, list[Run]], Config]:
    """Sources, references, the translations of all models, and the config of the first.

    All models are scored by the metrics of that config.
    """
    if not options.workdirs:
        raise InputError("missing --workdirs=A,B or --outputs=A.txt,B.txt, what to compare")
    options.require_both()
    systems = _systems("workdirs", options)
    workdirs = [workdir for of_system in systems.values() for workdir in of_system]
    configs = [workdir_files.load_inference_config(workdir) for workdir in workdirs]
    splits = [options.load(config.data) for config in configs]
    for workdir, split in zip(workdirs[1:], splits[1:], strict=True):
        _require_equal(options.split, workdirs[0], splits[0], workdir, split)
    runs = {}
    for workdir, config, split in zip(workdirs, configs, splits, strict=True):
        say(f"translating {len(split):,} sentences with {workdir}")
        translator = Translator.from_workdir(workdir, config)
        translations = [result.text for result in translator(split.sources)]
        measures = split.corpus_metrics(translations, configs[0].evaluation.metrics)
        runs[workdir] = Run(workdir, translations, measures)
    named = {name: [runs[workdir] for workdir in each] for name, each in systems.items()}
    return splits[0].sources, splits[0].targets, named, configs[0]


def _systems(flag: Literal["workdirs", "outputs"], options: Options) -> dict[str, list[str]]:
    """The paths of the runs of each system, by its name."""
    systems = [value.split(",") for value in getattr(options, flag)]
    if len(systems) == 1:
        systems = [[path] for path in systems[0]]
    paths_of_runs = [path for system in systems for path in system]
    if len(systems) < 2 or not all(paths_of_runs):
        raise InputError(
            f"--{flag}={','.join(paths_of_runs)} names {len(systems)}, but must name two or more: "
            f"--{flag}=A,B"
        )
    if len(set(paths_of_runs)) < len(paths_of_runs):
        raise InputError(f"--{flag}={','.join(paths_of_runs)} names a run twice; name each once")
    names = options.names or comparison.default_names(systems)
    if len(set(names)) != len(systems):
        raise InputError(
            f"--names={','.join(names)} gives {len(set(names))} different names, but there are "
            f"{len(systems)} systems; give one to each"
        )
    return dict(zip(names, systems, strict=True))


def _require_equal(name: str, workdir: str, split: Split, other: str, other_split: Split) -> None:
    """Reject splits with different sentence pairs."""
    remedy = "give the test set of both with --source=FILE --target=FILE"
    if len(split) != len(other_split):
        raise InputError(
            f"the {name} split of {workdir} has {len(split)} pairs, that of {other} has "
            f"{len(other_split)}; {remedy}"
        )
    for side in ("sources", "targets"):
        pairs = zip(getattr(split, side), getattr(other_split, side), strict=True)
        line = next((line for line, (a, b) in enumerate(pairs, start=1) if a != b), None)
        if line is not None:
            raise InputError(
                f"the {name} splits of {workdir} and {other} differ: pair {line} has other "
                f"{side}; {remedy}"
            )


if __name__ == "__main__":
    command_line.run(main, None, Options)
