# SPDX-License-Identifier: Apache-2.0
"""Data diversification: a training text beside its translations by models trained on it.

Nguyen et al. (2020). Teachers translate the sources, together, and a model of the other direction
translates the targets. The student reads three texts of equal weight: the pairs, the sources with
their translations, and the translated targets with the targets. Nothing but the text is used.
"""

import functools
import pathlib
import sys
import time
from typing import NamedTuple

from etils import epath

from experiments import synthetic_pairs
from experiments.corpora import registry
from experiments.studies import study_runs
from experiments.synthetic_pairs import Options
from transformer import paths
from transformer.checkpoints import workdir_files
from transformer.config import Config
from transformer.errors import InputError
from transformer.translator import Translator


class Diversified(NamedTuple):
    """What the student learns from, and what it took to make."""

    config: Config
    """Of the student."""
    seconds: float
    """Of the teachers' trainings and of their translations."""


def diversify(config: Config, folder: epath.Path, *, teachers: int, steps: int) -> Diversified:
    """Train the teachers and translate the training text, unless that is done.

    The teachers have the config of the student but for their number of steps. Their workdirs are
    ``teacher-0``, ``teacher-1``, ... (seeds 0, 1, ...) and ``reverse`` in `folder`, beside the
    directories of pairs ``forward-COUNT`` and ``back``.

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
    folder = pathlib.Path(paths.local(folder, "folder"))
    shorter = study_runs.with_fields(config, {"training.steps": steps})
    other, _, _ = synthetic_pairs.direction(config.data)
    fields = {f"teacher-{seed}": {"training.seed": seed} for seed in range(teachers)}
    fields["reverse"] = {"data.direction": other}
    trainings = {
        name: functools.partial(
            study_runs.trained, study_runs.with_fields(shorter, changed), epath.Path(folder / name)
        )
        for name, changed in fields.items()
    }
    results = study_runs.share(trainings, epath.Path(folder))

    pairs = registry.load(config.data, "train")
    text = {side: folder / f"text.{side}" for side in ("source", "target")}
    for side, lines in {"source": pairs.sources, "target": pairs.targets}.items():
        one_line_each = "".join(line.replace("\n", " ") + "\n" for line in lines)
        workdir_files.write_text(epath.Path(text[side]), one_line_each)

    *names, reverse = (folder / name for name in fields)
    texts = {
        f"forward-{teachers}": (names, text["source"], Options(forward=True)),
        "back": ([reverse], text["target"], Options()),
    }
    translations = {
        name: functools.partial(_translated, workdirs, lines, folder / name, options)
        for name, (workdirs, lines, options) in texts.items()
    }
    (mixture, forward_seconds), ([*_, back], back_seconds) = study_runs.share(
        translations, epath.Path(folder)
    ).values()
    read = {
        "data.mixture": (*mixture, back),
        "data.tokenizer_model": str(names[0] / workdir_files.TOKENIZER),
    }
    if config.data.vocabulary == "separate":
        read["data.source_tokenizer_model"] = str(names[0] / workdir_files.SOURCE_TOKENIZER)
    seconds = sum(result["seconds"] for result in results.values())
    return Diversified(
        study_runs.with_fields(config, read), seconds + forward_seconds + back_seconds
    )


def _translated(
    workdirs: list[pathlib.Path], text: pathlib.Path, output: pathlib.Path, options: Options
) -> tuple[tuple[str, ...], float]:
    """Make pairs of a text; returns the corpora of a training on them, and the seconds it took.

    The seconds are those of the last uninterrupted part.
    """
    print(f"translating {text} to {output}", file=sys.stderr, flush=True)
    began = time.monotonic()
    first, *others = workdirs
    translator = Translator.from_workdir(first, ensemble=others)
    report = synthetic_pairs.make(translator, str(text), output, options, resume=True)
    took = {"seconds": time.monotonic() - began}
    kept = study_runs.computed_once(epath.Path(output / "seconds.json"), lambda: took)
    return report["mixture"], kept["seconds"]
