# SPDX-License-Identifier: Apache-2.0
"""Data diversification: a training text beside its translations by models trained on it.

Nguyen et al. (2020). Teachers translate the sources, together, and a model of the other direction
translates the targets. The student reads three texts of equal weight: the pairs, the sources with
their translations, and the translated targets with the targets. Nothing but the text is used.
"""

import os
import sys
import time
from typing import Any

from etils import epath

from experiments import back_translate
from experiments.data import registry
from experiments.studies import study_runs
from experiments.studies.cache import cached
from experiments.training import synthetic_pairs
from transformer.checkpoints import workdir_files
from transformer.config import Config
from transformer.errors import InputError


def diversify(
    config: Config, folder: epath.Path, *, teachers: int, steps: int
) -> tuple[Config, float]:
    """Train the teachers and translate the training text, unless that is done.

    The teachers have the config of the student but for their number of steps. Their workdirs are
    ``teacher-0``, ``teacher-1``, ... (seeds 0, 1, ...) and ``reverse`` in `folder`, beside the
    directories of pairs ``forward-COUNT-STEPS`` and ``back-STEPS``. So the student's config names
    what it learns from.

    Args:
      config: config of a training on one corpus.
      folder: local directory.
      teachers: number of models that translate the sources.
      steps: training steps of each teacher.

    Returns:
      The config of the student, with its mixture and vocabulary, and the seconds of the teachers'
      trainings and translations.

    Raises:
      InputError: when `config` has a mixture, or a workdir is of another config.
      Stopped: by a signal; what was done is kept.
    """
    if config.data.mixture:
        raise InputError(
            "data.mixture is set, but teachers translate one corpus; name it by data.dataset or "
            "data.train_source and data.train_target"
        )
    other_direction, _, _ = synthetic_pairs.direction(config.data)
    differences = {f"teacher-{seed}": {"training.seed": seed} for seed in range(teachers)}
    differences["reverse"] = {"data.direction": other_direction}
    *forward, reverse = (os.fspath(folder / name) for name in differences)

    def train(name: str) -> dict[str, Any]:
        fields = {"training.steps": steps, **differences[name]}
        return study_runs.trained(study_runs.with_fields(config, fields), folder / name)

    results = study_runs.share(train, differences, folder)
    written = study_runs.share(lambda _: _write_text(config, folder), ["text"], folder)
    sources, targets = written["text"]
    translations = {
        f"forward-{teachers}-{steps}": {
            "workdir": forward[0],
            "ensemble": tuple(forward[1:]),
            "input": sources,
            "forward": True,
        },
        f"back-{steps}": {"workdir": reverse, "input": targets},
    }
    translated = study_runs.share(
        lambda name: _translate(folder / name, **translations[name]), translations, folder
    )
    (mixture, _), ([*_, back], _) = translated.values()
    learned_from = {
        "data.mixture": (*mixture, back),
        "data.tokenizer_model": os.path.join(forward[0], workdir_files.TOKENIZER),
    }
    if config.data.vocabulary == "separate":
        source_tokenizer = os.path.join(forward[0], workdir_files.SOURCE_TOKENIZER)
        learned_from["data.source_tokenizer_model"] = source_tokenizer
    seconds = sum(result["seconds"] for result in results.values())
    seconds += sum(spent for _, spent in translated.values())
    return study_runs.with_fields(config, learned_from), seconds


def _write_text(config: Config, folder: epath.Path) -> tuple[str, str]:
    """Write the sources and the targets of the training text, a sentence a line."""
    pairs = registry.load(config.data, "train")
    files = folder / "text.source", folder / "text.target"
    for file, sentences in zip(files, (pairs.sources, pairs.targets), strict=True):
        lines = (sentence.replace("\n", " ") for sentence in sentences)
        workdir_files.write_text(file, "".join(f"{line}\n" for line in lines))
    return tuple(map(os.fspath, files))


def _translate(output: epath.Path, **options: Any) -> tuple[tuple[str, ...], float]:
    """Make pairs of a text; returns the corpora of a training on them, and the seconds spent.

    The seconds are those of the last uninterrupted part.
    """
    print(f"translating {options['input']} to {output}", file=sys.stderr, flush=True)
    began = time.monotonic()
    report = back_translate.run(
        back_translate.Options(output=os.fspath(output), resume=True, **options)
    )
    spent = {"seconds": time.monotonic() - began}
    kept = cached(output / "seconds.json", report["identity"], lambda: spent)
    return report["mixture"], kept["seconds"]
