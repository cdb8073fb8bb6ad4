# SPDX-License-Identifier: Apache-2.0
"""Score a trained workdir on a split of its dataset or on two text files.

python -m experiments.evaluate --workdir=runs/de [--split=test]
python -m experiments.evaluate --workdir=runs/de --source=FILE --target=FILE

Translates the sources and scores the translations against the untouched references. The last line
on standard output is one JSON object. The workdir's evaluations folder keeps it, the translations,
one per line (.txt), and a report to open in a browser (.html), whose path is printed on standard
error. Evaluations that differ in anything, such as a decoding option, have different names.
"""

import dataclasses
import datetime
import hashlib
import json
import os
import re
import sys
from typing import Any

import jax
from etils import epath

from experiments.cli import checkpoint_flags, scoring_flags
from experiments.cli.command_line import run
from experiments.cli.scoring_flags import SOURCE, SPLIT, TARGET
from experiments.data.registry import Split
from experiments.pages.evaluation_report import Evaluation, evaluation_page
from experiments.scoring.evaluation import evaluate
from transformer import paths
from transformer.checkpoints import workdir_files
from transformer.config import Config
from transformer.errors import InputError
from transformer.provenance import provenance


def main(config: Config) -> None:
    """Evaluate, print the scores, and write scores, translations and report to the workdir."""
    workdir = checkpoint_flags.directory()
    if workdir.is_file():
        raise InputError(
            f"--workdir={workdir} is a bundle, which keeps no evaluations; name the workdir it was "
            "made from, or use translate or score"
        )
    scoring_flags.require_source_and_target()
    bleu_options = scoring_flags.bleu_options(config)
    split = scoring_flags.load_split(config.data)
    translator = checkpoint_flags.translator(config)
    evaluation = evaluate(translator, split, **bleu_options)

    name = SPLIT.value
    if SOURCE.value:
        name = f"{os.path.basename(SOURCE.value)}-{os.path.basename(TARGET.value)}"
    origin = {
        **_origin_of(split),
        "bleu": bleu_options,
        "weights": checkpoint_flags.description(config),
        "checkpoints": translator.checkpoints,
        "decode": dataclasses.asdict(translator.config.decode),
        "compute_dtype": config.model.compute_dtype,
        **provenance(),
    }
    digest = hashlib.sha256(json.dumps(origin, sort_keys=True).encode()).hexdigest()
    scores = evaluation.scores | {
        "origin": {"time": datetime.datetime.now(datetime.UTC).isoformat("T", "seconds"), **origin}
    }
    report = evaluation_page(
        f"{os.path.basename(os.path.abspath(workdir))} on {name}",
        evaluation,
        config,
        weights=checkpoint_flags.description(config),
        parameters=sum(leaf.size for leaf in jax.tree.leaves(translator.params)),
        metrics=workdir / workdir_files.METRICS,
        changes=workdir_files.load_changes(workdir),
    )
    stem = re.sub(r"[^\w.-]", "_", name) + f"-{digest[:8]}"
    try:
        _write(workdir / workdir_files.EVALUATIONS, stem, evaluation, scores, report)
    finally:
        print(json.dumps(scores), flush=True)


def _write(
    folder: epath.Path, stem: str, evaluation: Evaluation, scores: dict[str, Any], report: str
) -> None:
    """Write scores, translations and the report."""
    if not paths.is_remote(folder):
        folder.mkdir(exist_ok=True)
    translations = "".join(text + "\n" for text in evaluation.translations)
    workdir_files.write_text(folder / f"{stem}.txt", translations)
    workdir_files.write_json(folder / f"{stem}.json", scores)
    workdir_files.write_text(folder / f"{stem}.html", report)
    print(f"report: {folder / stem}.html", file=sys.stderr)


def _origin_of(split: Split) -> dict[str, Any]:
    """Where the sentence pairs come from, and the digest of their text."""
    pairs = {"sha256": split.digest()}
    if SOURCE.value:
        files = {"source": SOURCE.value, "target": TARGET.value}
        return {side: str(paths.absolute(path)) for side, path in files.items()} | pairs
    return {"dataset": split.dataset, "split": SPLIT.value} | pairs


if __name__ == "__main__":
    run(main, config_from="workdir")
