# SPDX-License-Identifier: Apache-2.0
"""Compare two workdirs, or two files of translations, on the same sentences.

python -m experiments.compare --workdirs=A,B [--split=test]
python -m experiments.compare --workdirs=A,B --source=FILE --target=FILE
python -m experiments.compare --outputs=A.txt,B.txt --target=FILE [--source=FILE]

Prints the scores of both systems with sacreBLEU's paired tests, the scores by length, and the
sentences that differ most. The last line is one JSON object. --output=FILE.html writes the same
content as a page.

Each workdir translates with its saved config, on one device. To compare other decoding options, or
to use several devices, give files as --outputs: evaluate, which takes --config.decode and
--config.parallel fields, keeps its translations in the workdir's evaluations, and translate writes
them with --output.
"""

import json
import sys

from absl import flags

from experiments import evaluation_flags
from experiments.corpora.registry import Split
from experiments.corpora.text_files import TwoFiles
from experiments.evaluation_flags import SOURCE, SPLIT, TARGET
from experiments.flags import run
from experiments.reports import comparison_report
from experiments.reports.comparison_report import System
from transformer import paths
from transformer.checkpoints import workdir_files
from transformer.errors import InputError
from transformer.translator import Translator

WORKDIRS = flags.DEFINE_list("workdirs", None, "Two directories written by train: A,B.")
OUTPUTS = flags.DEFINE_list(
    "outputs", None, "Two files of translations, one per line: A.txt,B.txt."
)
OUTPUT = flags.DEFINE_string("output", None, "Path of a page to open in a browser (.html).")


def main() -> None:
    """Compare the systems, and print and write the result."""
    output = paths.reachable(OUTPUT.value) if OUTPUT.value else None
    if output and not (paths.is_remote(output) or output.parent.is_dir()):
        raise InputError(f"--output={output}: its folder does not exist; make it first")
    bleu_options = evaluation_flags.bleu_options()
    sources, references, systems = _read_outputs() if OUTPUTS.value else _translate_with_workdirs()
    comparison = comparison_report.compare(sources, references, systems, **bleu_options)
    if output:
        workdir_files.write_text(output, comparison_report.as_page(comparison))
        print(f"page: {output}", file=sys.stderr)
    sys.stdout.reconfigure(encoding="utf-8")
    print(comparison_report.as_text(comparison))
    print(json.dumps(comparison_report.as_json(comparison)))


def _read_outputs() -> tuple[list[str] | None, list[str], tuple[System, System]]:
    """Sources (if given), references and systems, read from files."""
    if WORKDIRS.value:
        raise InputError("--workdirs and --outputs exclude each other; give one of them")
    if not TARGET.value:
        raise InputError("missing --target=FILE, the references of --outputs")
    sources = TwoFiles(SOURCE.value, TARGET.value).read()[0] if SOURCE.value else None
    systems = []
    for path in _require_two("outputs", OUTPUTS.value):
        translations, references = TwoFiles(path, TARGET.value).read()
        systems.append(System(path, translations))
    return sources, references, tuple(systems)


def _translate_with_workdirs() -> tuple[list[str], list[str], tuple[System, System]]:
    """Sources, references, and the translations of two models."""
    if not WORKDIRS.value:
        raise InputError("missing --workdirs=A,B or --outputs=A.txt,B.txt, what to compare")
    evaluation_flags.require_source_and_target()
    workdirs = _require_two("workdirs", WORKDIRS.value)
    configs = [workdir_files.load_inference_config(workdir) for workdir in workdirs]
    splits = [evaluation_flags.load_split(config.data) for config in configs]
    _require_equal(workdirs, splits)
    systems = []
    for workdir, config, split in zip(workdirs, configs, splits, strict=True):
        print(f"translating {len(split):,} sentences with {workdir}", file=sys.stderr, flush=True)
        translator = Translator.from_workdir(workdir, config)
        translations = [result.text for result in translator(split.sources)]
        systems.append(System(workdir, translations, split.corpus_metrics(translations)))
    return splits[0].sources, splits[0].targets, tuple(systems)


def _require_two(flag: str, values: list[str]) -> list[str]:
    if len(values) != 2 or not all(values):
        given = ",".join(values)
        raise InputError(f"--{flag}={given} names {len(values)}, but must name two: --{flag}=A,B")
    return values


def _require_equal(workdirs: list[str], splits: list[Split]) -> None:
    """Reject splits with different sentence pairs."""
    first, second = splits
    remedy = "give the test set of both with --source=FILE --target=FILE"
    if len(first) != len(second):
        raise InputError(
            f"the {SPLIT.value} split of {workdirs[0]} has {len(first)} pairs, that of "
            f"{workdirs[1]} has {len(second)}; {remedy}"
        )
    for side in ("sources", "targets"):
        pairs = zip(getattr(first, side), getattr(second, side), strict=True)
        line = next((line for line, (a, b) in enumerate(pairs, start=1) if a != b), None)
        if line is not None:
            raise InputError(
                f"the {SPLIT.value} splits of {workdirs[0]} and {workdirs[1]} differ: pair {line} "
                f"has other {side}; {remedy}"
            )


if __name__ == "__main__":
    run(main, config_from=None)
