# SPDX-License-Identifier: Apache-2.0
"""Compares two workdirs, or two files of translations, on the same sentences.

python -m experiments.compare --workdirs=A,B [--split=test]
python -m experiments.compare --workdirs=A,B --source=FILE --target=FILE
python -m experiments.compare --outputs=A.txt,B.txt --target=FILE [--source=FILE]

Prints both systems' scores with sacreBLEU's two paired tests, the scores by length, and the
sentences that differ most; the last line is one JSON object. --output=FILE.html writes the same as
a page.

Each workdir translates with the config saved in it, but on one device. To compare other ways of
decoding, or to divide the work over several devices, give files as --outputs: evaluate, which takes
--config.decode and --config.parallel fields, leaves its translations in the workdir's evaluations,
and translate writes them with --output.
"""

import json
import sys

from absl import flags

from experiments.corpora import registry
from experiments.corpora.text_files import read_pairs
from experiments.flags import run
from experiments.reports import comparison_report
from experiments.reports.comparison_report import System
from transformer import paths
from transformer.checkpoints import workdir_files
from transformer.errors import InputError
from transformer.text.metrics import require_tokenization
from transformer.translator import Translator

WORKDIRS = flags.DEFINE_list("workdirs", None, "Two directories that train left: A,B.")
OUTPUTS = flags.DEFINE_list("outputs", None, "Two files of translations, one a line: A.txt,B.txt.")
SPLIT = flags.DEFINE_string("split", "test", "Split of the workdirs' own dataset.")
SOURCE = flags.DEFINE_string("source", None, "Text file to translate, in place of a split.")
TARGET = flags.DEFINE_string("target", None, "Its reference translations.")
OUTPUT = flags.DEFINE_string("output", None, "File for a page to open in a browser (.html).")
BLEU_TOKENIZE = flags.DEFINE_string(
    "bleu_tokenize", "13a", "sacreBLEU's name of BLEU's tokenization; 'none' for tokenized text."
)
BLEU_LOWERCASE = flags.DEFINE_boolean("bleu_lowercase", False, "BLEU in lower case.")


def main() -> None:
    """Compares, and prints what was found."""
    output = paths.reachable(OUTPUT.value) if OUTPUT.value else None
    if output and not (paths.is_remote(output) or output.parent.is_dir()):
        raise InputError(f"--output={output}: its folder does not exist; make it first")
    require_tokenization(BLEU_TOKENIZE.value)
    sources, references, systems = _of_outputs() if OUTPUTS.value else _of_workdirs()
    found = comparison_report.compare(
        sources,
        references,
        systems,
        bleu_tokenize=BLEU_TOKENIZE.value,
        bleu_lowercase=BLEU_LOWERCASE.value,
    )
    if output:
        workdir_files.write_text(output, comparison_report.as_page(found))
        print(f"page: {output}", file=sys.stderr)
    sys.stdout.reconfigure(encoding="utf-8")
    print(comparison_report.as_text(found))
    print(json.dumps(comparison_report.as_json(found)))


def _of_outputs() -> tuple[list[str] | None, list[str], tuple[System, System]]:
    """Sources (or None), references and translations, all from files."""
    if WORKDIRS.value:
        raise InputError("--workdirs and --outputs exclude each other; give one of them")
    if not TARGET.value:
        raise InputError("missing --target=FILE, the references of --outputs")
    sources = read_pairs(SOURCE.value, TARGET.value)[0] if SOURCE.value else None
    systems = []
    for path in _two("outputs", OUTPUTS.value):
        translations, references = read_pairs(path, TARGET.value)
        systems.append(System(path, translations))
    return sources, references, tuple(systems)


def _of_workdirs() -> tuple[list[str], list[str], tuple[System, System]]:
    """Sources, references, and what the two models make of the sources."""
    if not WORKDIRS.value:
        raise InputError("missing --workdirs=A,B or --outputs=A.txt,B.txt, what to compare")
    if bool(SOURCE.value) != bool(TARGET.value):
        raise InputError("--source and --target go together; give both, or --split")
    places = _two("workdirs", WORKDIRS.value)
    configs = [workdir_files.load_inference_config(place) for place in places]
    if SOURCE.value:
        splits = [registry.from_files(SOURCE.value, TARGET.value)] * 2
    else:
        splits = [registry.load(config.data, SPLIT.value) for config in configs]
        _require_the_same(places, splits)
    systems = []
    for place, config, split in zip(places, configs, splits, strict=True):
        print(f"translating {len(split):,} sentences with {place}", file=sys.stderr, flush=True)
        translator = Translator.from_workdir(place, config)
        translations = [result.text for result in translator(split.sources)]
        systems.append(System(place, translations, split.corpus_metrics(translations)))
    return splits[0].sources, splits[0].targets, tuple(systems)


def _two(flag: str, values: list[str]) -> list[str]:
    if len(values) != 2 or not all(values):
        given = ",".join(values)
        raise InputError(f"--{flag}={given} names {len(values)}, but must name two: --{flag}=A,B")
    return values


def _require_the_same(places: list[str], splits: list[registry.Split]) -> None:
    """Refuses two splits that are not the same pairs."""
    first, second = splits
    remedy = "give the test set of both with --source=FILE --target=FILE"
    if len(first) != len(second):
        raise InputError(
            f"the {SPLIT.value} split of {places[0]} has {len(first)} pairs, that of {places[1]} "
            f"has {len(second)}; {remedy}"
        )
    for side in ("sources", "targets"):
        pairs = zip(getattr(first, side), getattr(second, side), strict=True)
        differing = (line for line, (a, b) in enumerate(pairs, start=1) if a != b)
        line = next(differing, None)
        if line is not None:
            raise InputError(
                f"the {SPLIT.value} splits of {places[0]} and {places[1]} differ: pair {line} has "
                f"other {side}; {remedy}"
            )


if __name__ == "__main__":
    run(main, config_from=None)
