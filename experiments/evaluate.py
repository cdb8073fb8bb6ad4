# SPDX-License-Identifier: Apache-2.0
"""Score a trained workdir on a split of its dataset or on two text files.

transformer evaluate --workdir=runs/de [--split=test]
transformer evaluate --workdir=runs/de --source=FILE --target=FILE

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
from typing import Any

import jax

from experiments.cli import command_line
from experiments.cli.scored_pairs import ScoredPairs
from experiments.cli.weights import Weights
from experiments.console.progress import say
from experiments.data.registry import Split
from experiments.pages.evaluation import Evaluation, evaluation_page
from experiments.scoring.evaluation import evaluate
from transformer import paths
from transformer.checkpoints import workdir_files
from transformer.errors import InputError
from transformer.provenance import provenance


@dataclasses.dataclass(frozen=True)
class Options(ScoredPairs, Weights):
    """The model, the test set, and the variant of BLEU."""

    @property
    def test_set(self) -> str:
        """The name of the split or of the files."""
        if not self.source:
            return self.split
        return f"{os.path.basename(self.source)}-{os.path.basename(self.target)}"


def run(options: Options) -> Evaluation:
    """Translate and score; the scores have the origin of model and text."""
    config = options.config
    bleu_options = options.bleu_options(config)
    split = options.load(config.data)
    translator = options.translator()
    evaluation = evaluate(translator, split, **bleu_options)
    origin = {
        "time": datetime.datetime.now(datetime.UTC).isoformat("T", "seconds"),
        **_origin_of(split, options),
        "bleu": bleu_options,
        "weights": options.description(),
        "checkpoints": translator.checkpoints,
        "decode": dataclasses.asdict(translator.config.decode),
        "compute_dtype": config.model.compute_dtype,
        **provenance(),
    }
    parameters = sum(leaf.size for leaf in jax.tree.leaves(translator.params))
    scores = evaluation.scores | {"parameters": parameters, "origin": origin}
    return dataclasses.replace(evaluation, scores=scores)


def main(options: Options) -> None:
    """Print the scores, and write scores, translations and report to the workdir."""
    if options.directory.is_file():
        raise InputError(
            f"--workdir={options.directory} is a bundle, which keeps no evaluations; name the "
            "workdir it was made from, or use translate or score"
        )
    evaluation = run(options)
    try:
        _write(evaluation, options)
    finally:
        print(json.dumps(evaluation.scores), flush=True)


def _write(evaluation: Evaluation, options: Options) -> None:
    """Write scores, translations and the report."""
    workdir, scores = options.directory, evaluation.scores
    origin = {name: value for name, value in scores["origin"].items() if name != "time"}
    digest = hashlib.sha256(json.dumps(origin, sort_keys=True).encode()).hexdigest()
    stem = re.sub(r"[^\w.-]", "_", options.test_set) + f"-{digest[:8]}"
    report = evaluation_page(
        f"{os.path.basename(os.path.abspath(workdir))} on {options.test_set}",
        evaluation,
        options.config,
        weights=options.description(),
        parameters=scores["parameters"],
        metrics=workdir / workdir_files.METRICS,
        changes=workdir_files.load_changes(workdir),
    )
    folder = workdir / workdir_files.EVALUATIONS
    if not paths.is_remote(folder):
        folder.mkdir(exist_ok=True)
    translations = "".join(text + "\n" for text in evaluation.translations)
    workdir_files.write_text(folder / f"{stem}.txt", translations)
    workdir_files.write_json(folder / f"{stem}.json", scores)
    workdir_files.write_text(folder / f"{stem}.html", report)
    say(f"report: {folder / stem}.html")


def _origin_of(split: Split, options: Options) -> dict[str, Any]:
    """The origin of the sentence pairs, and the digest of their text."""
    pairs = {"sha256": split.digest()}
    if options.source:
        files = {"source": options.source, "target": options.target}
        return {side: str(paths.absolute(path)) for side, path in files.items()} | pairs
    return {"dataset": split.dataset, "split": options.split} | pairs


if __name__ == "__main__":
    command_line.run(main, "workdir", Options)
