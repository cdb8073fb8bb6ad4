# SPDX-License-Identifier: Apache-2.0
"""How does a model resolve "it"? Train 40 models and measure which path carries the answer.

python -m experiments.studies.antecedent --runs=runs/antecedent --output=docs/antecedent
python -m experiments.studies.antecedent --workdirs=runs/de,runs/fr --output=docs/antecedent

The models are those of `models`. Each has a workdir RUNS/NAME, which every app reads, and a file
OUTPUT/NAME.json. With --workdirs, models of `pronouns` that were trained before are measured.
Repeat the command to continue: finished trainings and measurements are kept. Several processes
share the work: start the command once per processor. A model of the small recipe takes a few
minutes on a CPU core.
"""

import dataclasses
import json
import sys
from typing import Any

import jax
import numpy as np
from etils import epath

from experiments import bundle
from experiments.cli.command_line import run
from experiments.cli.options import require_at_least
from experiments.studies import study_runs
from experiments.studies.antecedent import measures, sentences
from experiments.studies.antecedent.models import StudyModel, models
from experiments.studies.cache import cached, digest_of
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
    quadruples: int = 24
    """Quadruples of sentences to measure."""


def main(options: Options) -> int:
    """Train and measure the models."""
    require_at_least(1, quadruples=options.quadruples)
    runs, output = paths.absolute(options.runs), paths.absolute(options.output)
    for directory in map(paths.absolute, options.workdirs or ()):
        measure(directory, output / f"workdir-{directory.name}.json", options.quadruples)
    if options.workdirs:
        return 0
    known = models()

    def train_and_measure(name: str) -> None:
        train(known[name], runs / name)
        measure(runs / name, output / f"{name}.json", options.quadruples, known[name])

    names = study_runs.checked_names("models", options.models, list(known))
    try:
        study_runs.share(train_and_measure, names, runs)
    except study_runs.Stopped as stopped:
        return stopped.code
    return 0


def train(model: StudyModel, directory: epath.Path) -> None:
    """Train one model, and keep a bundle of each of its stages."""
    for steps in (*model.stages, model.steps):
        file = _stage_file(directory, steps)
        if study_runs.trained_steps(directory) > steps or file.exists():
            continue
        study_runs.trained(model.config(steps), directory)
        if steps != model.steps:
            file.parent.mkdir(exist_ok=True)
            bundle.run(bundle.Options(workdir=str(directory), average=1, output=str(file)))


def _stage_file(directory: epath.Path, steps: int) -> epath.Path:
    return directory / "stages" / f"{steps}.zip"


def measure(
    directory: epath.Path, file: epath.Path, quadruples: int, model: StudyModel | None = None
) -> dict[str, Any]:
    """Measure the last checkpoint of a workdir, unless the file has these measurements.

    Args:
      directory: the workdir, of a model of `pronouns`.
      file: the measurements, as JSON.
      quadruples: number of quadruples of sentences.
      model: the model, if it is one of the study.
    """
    config = workdir_files.load_inference_config(directory)
    language = config.data.dataset.rpartition("/")[2]
    result = json.loads((directory / workdir_files.RESULT).read_text(encoding="utf-8"))
    facts = {
        "name": directory.name,
        **({"recipe": model.recipe} if model else {}),
        "language": language,
        "width": config.model.d_model,
        "layers": config.model.num_layers,
        "steps": result["step"],
        "seed": config.training.seed,
        "device": jax.devices()[0].device_kind,
        "parameters": result["parameters"],
        "validation": {
            key: round(result["validation"][key], 4) for key in ("nll", "pronoun_accuracy")
        },
    }
    translator = Translator.from_workdir(directory, average=1)
    batch, headline = sentences.read(translator.tokenizer, language, quadruples)
    stages = {
        steps: Translator.from_workdir(_stage_file(directory, steps)).params
        for steps in (model.stages if model else ())
        if _stage_file(directory, steps).exists()
    }

    def compute() -> dict[str, Any]:
        print(f"measuring {directory}", file=sys.stderr, flush=True)
        built, params = translator.model, translator.params
        return {
            **facts,
            **measures.measure(built, params, batch, headline, translator.tokenizer),
            "stages": [
                {"step": steps, **measures.quick(built, stage, batch)}
                for steps, stage in stages.items()
            ],
        }

    vocabulary = np.frombuffer(translator.tokenizer.model, np.uint8)
    weights, data = (config.model, translator.params, stages), (batch, headline, vocabulary)
    return cached(file, digest_of(measures.VERSION, facts, weights, data), compute)


if __name__ == "__main__":
    run(main, None, Options)
