# SPDX-License-Identifier: Apache-2.0
"""How does a model resolve "it"? Train 40 models and measure which path carries the answer.

python -m experiments.studies.antecedent --runs=runs/antecedent --output=docs/antecedent
python -m experiments.studies.antecedent --workdirs=runs/de,runs/fr --output=docs/antecedent

The models are those of `antecedent_models`. Each has a workdir RUNS/NAME, which every app reads,
and gets a file OUTPUT/NAME.json. With --workdirs, models of `pronouns` that were trained before are
measured. Repeat the command to continue: what is trained or measured is not done again. Several
processes share the work: start the command as often as there are processors to use. A model of the
small recipe takes a few minutes on a CPU core.
"""

import dataclasses
import json
import sys
from typing import Any

import jax
from etils import epath

from experiments.cli.command_line import run
from experiments.cli.options import require_at_least
from experiments.studies import antecedent_measures, antecedent_sentences, study_runs
from experiments.studies.antecedent_models import StudyModel, models
from experiments.studies.study_tables import checked_names
from transformer import paths
from transformer.checkpoints import workdir_files
from transformer.translator import Translator


@dataclasses.dataclass(frozen=True)
class Options:
    """The models, and what is measured."""

    runs: str = "runs/antecedent"
    """Directory of the workdirs, one per model."""
    output: str = "runs/antecedent"
    """Directory of the measurements."""
    models: tuple[str, ...] | None = None
    """Names of models: A,B,...; all by default."""
    workdirs: tuple[str, ...] | None = None
    """Trained models to measure instead: A,B,..."""
    train_only: bool = False
    """Train the models, and measure nothing."""
    quadruples: int = 24
    """Quadruples of sentences to measure."""


def main(options: Options) -> int:
    """Train and measure the models."""
    require_at_least(1, quadruples=options.quadruples)
    runs, output = paths.absolute(options.runs), paths.absolute(options.output)
    if options.workdirs:
        for directory in map(epath.Path, options.workdirs):
            measure_workdir(directory, output, options.quadruples)
        return 0
    known = models()

    def train_and_measure(name: str) -> None:
        train(known[name], runs / name, options.quadruples)
        if not options.train_only:
            measure(known[name], runs / name, output, options.quadruples)

    names = checked_names("models", options.models, list(known))
    try:
        study_runs.share(train_and_measure, names, runs)
    except study_runs.Stopped as stopped:
        return stopped.code
    return 0


def train(model: StudyModel, directory: epath.Path, quadruples: int) -> None:
    """Train one model, and measure it at its stages."""
    for steps in (*model.stages, model.steps):
        if study_runs.trained_steps(directory) < steps:
            study_runs.trained(model.config(steps), directory)
            if steps != model.steps:
                values = measure_quickly(model.language, directory, quadruples)
                file = stage_file(directory, steps)
                file.parent.mkdir(exist_ok=True)
                workdir_files.write_json(file, {"step": steps, **values})


def stage_file(directory: epath.Path, steps: int) -> epath.Path:
    """The file that keeps the measures of a stage."""
    return directory / "study_scores" / f"antecedent-{steps}.json"


def measure_quickly(language: str, directory: epath.Path, quadruples: int) -> dict[str, Any]:
    """The measures of a model that is being trained."""
    translator = Translator.from_workdir(directory, average=1)
    batch, _ = antecedent_sentences.read(translator.tokenizer, language, quadruples)
    return antecedent_measures.quick(translator.model, translator.params, batch)


def measure(
    model: StudyModel, directory: epath.Path, output: epath.Path, quadruples: int
) -> dict[str, Any]:
    """Write the file of one model, unless it exists; returns its contents."""
    names = ("recipe", "language", "width", "layers", "steps", "seed")
    factors = {name: getattr(model, name) for name in names}
    stages = [stage_file(directory, steps) for steps in model.stages]

    def compute() -> dict[str, Any]:
        return {
            "name": model.name,
            **factors,
            **measures_of(model.language, directory, quadruples),
            "stages": [json.loads(file.read_text("utf-8")) for file in stages if file.exists()],
        }

    return study_runs.computed_once(output / f"{model.name}.json", compute)


def measure_workdir(directory: epath.Path, output: epath.Path, quadruples: int) -> dict[str, Any]:
    """Write the file of a model of `pronouns` that was trained outside the study."""
    config = workdir_files.load_inference_config(directory)
    language = config.data.dataset.rpartition("/")[2]

    def compute() -> dict[str, Any]:
        return {
            "name": directory.name,
            "language": language,
            "width": config.model.d_model,
            "layers": config.model.num_layers,
            "steps": study_runs.trained_steps(directory),
            "seed": config.training.seed,
            **measures_of(language, directory, quadruples),
            "stages": [],
        }

    return study_runs.computed_once(output / f"workdir-{directory.name}.json", compute)


def measures_of(language: str, directory: epath.Path, quadruples: int) -> dict[str, Any]:
    """All measures of the last checkpoint of a workdir."""
    print(f"measuring {directory}", file=sys.stderr, flush=True)
    translator = Translator.from_workdir(directory, average=1)
    batch, headline = antecedent_sentences.read(translator.tokenizer, language, quadruples)
    result = json.loads((directory / workdir_files.RESULT).read_text(encoding="utf-8"))
    return {
        "device": jax.devices()[0].device_kind,
        "parameters": result["parameters"],
        "validation": {
            key: round(result["validation"][key], 4) for key in ("nll", "pronoun_accuracy")
        },
        **antecedent_measures.measure(
            translator.model, translator.params, batch, headline, translator.tokenizer
        ),
    }


if __name__ == "__main__":
    run(main, None, Options)
