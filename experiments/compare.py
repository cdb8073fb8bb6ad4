# SPDX-License-Identifier: Apache-2.0
"""Compare systems on the same sentences: two or more workdirs, or files of translations.

python -m experiments.compare --workdirs=A,B [--split=test]
python -m experiments.compare --workdirs=A,B,C --source=FILE --target=FILE
python -m experiments.compare --workdirs=a_seed0,a_seed1 --workdirs=b_seed0,b_seed1 --names=a,b
python -m experiments.compare --outputs=A.txt,B.txt --target=FILE [--source=FILE]

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

import json
import sys

from absl import flags

from experiments.cli import scoring_flags
from experiments.cli.command_line import run
from experiments.cli.scoring_flags import SOURCE, SPLIT, TARGET
from experiments.data.registry import Split
from experiments.data.text_files import TwoFiles
from experiments.pages import comparison_report
from experiments.scoring import comparison
from experiments.scoring.comparison import Run
from transformer import paths
from transformer.checkpoints import workdir_files
from transformer.config import Config
from transformer.errors import InputError
from transformer.translator import Translator

WORKDIRS = flags.DEFINE_multi_string(
    "workdirs",
    None,
    "Directories written by train: A,B,... If repeated, each flag names the runs of one system.",
)
OUTPUTS = flags.DEFINE_multi_string(
    "outputs", None, "Files of translations, one per line, in the form of --workdirs."
)
NAMES = flags.DEFINE_list("names", None, "Names of the systems; by default those of their runs.")
OUTPUT = flags.DEFINE_string("output", None, "Path of a page to open in a browser (.html).")


def main() -> None:
    """Compare the systems, and print and write the result."""
    output = paths.reachable(OUTPUT.value) if OUTPUT.value else None
    if output and not (paths.is_remote(output) or output.parent.is_dir()):
        raise InputError(f"--output={output}: its folder does not exist; make it first")
    if output and output.is_dir():
        raise InputError(f"--output={output} is a directory; name a file")
    bleu_options = scoring_flags.bleu_options()
    if OUTPUTS.value:
        sources, references, systems = _read_outputs()
    else:
        sources, references, systems, config = _translate_with_workdirs()
        bleu_options = scoring_flags.bleu_options(config)
    results = comparison.compare(sources, references, systems, **bleu_options)
    try:
        if output:
            workdir_files.write_text(output, comparison_report.as_page(results))
            print(f"page: {output}", file=sys.stderr)
    finally:
        sys.stdout.reconfigure(encoding="utf-8")
        print(comparison_report.as_text(results))
        print(json.dumps(comparison.as_json(results)), flush=True)


def _read_outputs() -> tuple[list[str] | None, list[str], dict[str, list[Run]]]:
    """Sources (if given), references and the runs of each system, read from files."""
    if WORKDIRS.value:
        raise InputError("--workdirs and --outputs exclude each other; give one of them")
    if not TARGET.value:
        raise InputError("missing --target=FILE, the references of --outputs")
    sources = TwoFiles(SOURCE.value, TARGET.value).read()[0] if SOURCE.value else None
    references: list[str] = []
    runs = {}
    for name, files in _systems("outputs", OUTPUTS.value).items():
        runs[name] = []
        for file in files:
            translations, references = TwoFiles(file, TARGET.value).read()
            runs[name].append(Run(file, translations))
    return sources, references, runs


def _translate_with_workdirs() -> tuple[list[str], list[str], dict[str, list[Run]], Config]:
    """Sources, references, the translations of all models, and the config of the first.

    All models are scored by the metrics of that config.
    """
    if not WORKDIRS.value:
        raise InputError("missing --workdirs=A,B or --outputs=A.txt,B.txt, what to compare")
    scoring_flags.require_source_and_target()
    systems = _systems("workdirs", WORKDIRS.value)
    workdirs = [workdir for of_system in systems.values() for workdir in of_system]
    configs = [workdir_files.load_inference_config(workdir) for workdir in workdirs]
    splits = [scoring_flags.load_split(config.data) for config in configs]
    for workdir, split in zip(workdirs[1:], splits[1:], strict=True):
        _require_equal(workdirs[0], splits[0], workdir, split)
    runs = {}
    for workdir, config, split in zip(workdirs, configs, splits, strict=True):
        print(f"translating {len(split):,} sentences with {workdir}", file=sys.stderr, flush=True)
        translator = Translator.from_workdir(workdir, config)
        translations = [result.text for result in translator(split.sources)]
        measures = split.corpus_metrics(translations, configs[0].evaluation.metrics)
        runs[workdir] = Run(workdir, translations, measures)
    named = {name: [runs[workdir] for workdir in each] for name, each in systems.items()}
    return splits[0].sources, splits[0].targets, named, configs[0]


def _systems(flag: str, values: list[str]) -> dict[str, list[str]]:
    """The paths of the runs of each system, by its name."""
    systems = [value.split(",") for value in values]
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
    names = NAMES.value or comparison.default_names(systems)
    if len(set(names)) != len(systems):
        raise InputError(
            f"--names={','.join(names)} gives {len(set(names))} different names, but there are "
            f"{len(systems)} systems; give one to each"
        )
    return dict(zip(names, systems, strict=True))


def _require_equal(workdir: str, split: Split, other: str, other_split: Split) -> None:
    """Reject splits with different sentence pairs."""
    remedy = "give the test set of both with --source=FILE --target=FILE"
    if len(split) != len(other_split):
        raise InputError(
            f"the {SPLIT.value} split of {workdir} has {len(split)} pairs, that of {other} has "
            f"{len(other_split)}; {remedy}"
        )
    for side in ("sources", "targets"):
        pairs = zip(getattr(split, side), getattr(other_split, side), strict=True)
        line = next((line for line, (a, b) in enumerate(pairs, start=1) if a != b), None)
        if line is not None:
            raise InputError(
                f"the {SPLIT.value} splits of {workdir} and {other} differ: pair {line} has other "
                f"{side}; {remedy}"
            )


if __name__ == "__main__":
    run(main, config_from=None)
