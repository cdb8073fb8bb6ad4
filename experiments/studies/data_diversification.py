# SPDX-License-Identifier: Apache-2.0
"""Data diversification: a training text beside its translations by models trained on it.

Nguyen et al. (2020). Teachers translate the sources, together, and a model of the other direction
translates the targets. The student reads three texts of equal weight: the pairs, the sources with
their translations, and the translated targets with the targets. Nothing but the text is used.
"""

import os
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from etils import epath

from experiments.data import registry
from experiments.studies import study_runs
from experiments.training import synthetic_pairs
from experiments.training.synthetic_pairs import PairOptions
from transformer.checkpoints import workdir_files
from transformer.config import Config
from transformer.errors import InputError
from transformer.translator import Translator


class Diversified(NamedTuple):
    """The config of a student, and the time of its preparation."""

    config: Config
    """With the mixture and the vocabulary that the student learns from."""
    seconds: float
    """Of the teachers' trainings and of their translations."""


def diversify(config: Config, folder: epath.Path, *, teachers: int, steps: int) -> Diversified:
    """Train the teachers and translate the training text, unless that is done.

    The teachers have the config of the student but for their number of steps. Their workdirs are
    ``teacher-0``, ``teacher-1``, ... (seeds 0, 1, ...) and ``reverse`` in `folder`, beside the
    directories of pairs ``forward-COUNT-STEPS`` and ``back-STEPS``. So the student's config names
    what it learns from.

    Args:
      config: of a training on one corpus.
      folder: on this machine.
      teachers: number of models that translate the sources.
      steps: of each teacher.

    Raises:
      InputError: when `config` has a mixture, or a workdir is of another config.
      study_runs.Stopped: by a signal; what was done is kept.
    """
    if config.data.mixture:
        raise InputError(
            "data.mixture is set, but teachers translate one corpus; name it by data.dataset or "
            "data.train_source and data.train_target"
        )
    other_direction, _, _ = synthetic_pairs.direction(config.data)
    differences = {f"teacher-{seed}": {"training.seed": seed} for seed in range(teachers)}
    differences["reverse"] = {"data.direction": other_direction}
    *forward, reverse = (folder / name for name in differences)

    def train(name: str) -> dict[str, Any]:
        of_teacher = {"training.steps": steps, **differences[name]}
        return study_runs.trained(study_runs.with_fields(config, of_teacher), folder / name)

    results = study_runs.share(train, differences, folder)
    written = study_runs.share(lambda _: _write_text(config, folder), ["text"], folder)
    sources, targets = written["text"]
    translations = {
        f"forward-{teachers}-{steps}": (forward, sources, PairOptions(forward=True)),
        f"back-{steps}": ([reverse], targets, PairOptions()),
    }
    translated = study_runs.share(
        lambda name: _translate(*translations[name], folder / name), translations, folder
    )
    (mixture, _), ([*_, back], _) = translated.values()
    learned_from = {
        "data.mixture": (*mixture, back),
        "data.tokenizer_model": os.fspath(forward[0] / workdir_files.TOKENIZER),
    }
    if config.data.vocabulary == "separate":
        source_tokenizer = forward[0] / workdir_files.SOURCE_TOKENIZER
        learned_from["data.source_tokenizer_model"] = os.fspath(source_tokenizer)
    seconds = sum(result["seconds"] for result in results.values())
    seconds += sum(took for _, took in translated.values())
    return Diversified(study_runs.with_fields(config, learned_from), seconds)


def _write_text(config: Config, folder: epath.Path) -> tuple[epath.Path, epath.Path]:
    """Write the sources and the targets of the training text, a sentence a line."""
    pairs = registry.load(config.data, "train")
    files = folder / "text.source", folder / "text.target"
    for file, sentences in zip(files, (pairs.sources, pairs.targets), strict=True):
        lines = (sentence.replace("\n", " ") for sentence in sentences)
        workdir_files.write_text(file, "".join(f"{line}\n" for line in lines))
    return files


def _translate(
    workdirs: Sequence[epath.Path], text: epath.Path, options: PairOptions, output: epath.Path
) -> tuple[tuple[str, ...], float]:
    """Make pairs of a text; returns the corpora of a training on them, and the seconds it took.

    The seconds are those of the last uninterrupted part.
    """
    print(f"translating {text} to {output}", file=sys.stderr, flush=True)
    began = time.monotonic()
    first, *others = workdirs
    translator = Translator.from_workdir(first, ensemble=others)
    folder = pathlib.Path(output)
    report = synthetic_pairs.make(translator, os.fspath(text), folder, options, resume=True)
    took = {"seconds": time.monotonic() - began}
    file = output / f"seconds-{report['identity'][:8]}.json"
    kept = study_runs.computed_once(file, lambda: took)
    return report["mixture"], kept["seconds"]
