# SPDX-License-Identifier: Apache-2.0
"""The runs of a study: named configs, each trained once and scored.

Everything is kept in the workdir of its run, so a study that was stopped continues where it was,
and a study with more runs trains only those that are new.
"""

import contextlib
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple, TypeVar

import jax
from etils import epath

from experiments.data import registry
from experiments.planning import costs
from experiments.scoring import evaluation
from experiments.storage import file_lock
from experiments.training import compose, loop, workdir
from transformer.checkpoints import workdir_files
from transformer.config import Config, ModelConfig
from transformer.models import protocol
from transformer.translator import Translator

Outcome = TypeVar("Outcome")
Selection = Literal["nll", "bleu", "last"]
"""The weights that are scored: the best checkpoint by a validation score, or the last one."""


TIMED_STEPS = 12
"""Steps that are timed, of which the fastest counts."""


class Stopped(Exception):  # noqa: N818 - not an error
    """A signal stopped a training, which has been saved; the study's exit status is `code`."""

    def __init__(self, signal: int) -> None:
        super().__init__(f"stopped by signal {signal}; repeat the command to continue")
        self.code = 128 + signal


def trained(config: Config, directory: epath.Path) -> dict[str, Any]:
    """Train a config in a workdir unless that is done; returns the contents of result.json.

    Raises:
      InputError: when the workdir is of another config.
      Stopped: after SIGINT, SIGTERM or SIGHUP.
    """
    with workdir.open_for_training(directory, config) as opened:
        if not (directory / workdir_files.RESULT).exists():
            print(f"training {directory}", file=sys.stderr, flush=True)
        result, stopped_by = loop.train(opened, directory, handle_signals=True)
    if stopped_by:
        raise Stopped(stopped_by)
    return result


def trained_steps(directory: epath.Path) -> int:
    """The steps of the training that was finished last in a workdir; 0 if there is none."""
    result = directory / workdir_files.RESULT
    return json.loads(result.read_text(encoding="utf-8"))["step"] if result.exists() else 0


def share(
    task: Callable[[str], Outcome], names: Iterable[str], folder: epath.Path
) -> dict[str, Outcome]:
    """Call a function for each name; processes that do this at the same time divide the names.

    Names that another process works on come last, and this process waits for them.

    Args:
      task: keeps what it did, so that another call with the same name only returns it.
      names: of the calls.
      folder: on this machine, gets a directory of locks.
    """
    names, outcomes = list(names), {}
    for waiting in (False, True):
        for name in names:
            if name in outcomes:
                continue
            lock = folder / "locks" / name
            lock.mkdir(parents=True, exist_ok=True)
            message = f"waiting for another process that works on {name}" if waiting else None
            with contextlib.ExitStack() as stack:
                try:
                    stack.enter_context(file_lock.hold(lock, message))
                except BlockingIOError:
                    continue
                outcomes[name] = task(name)
    return {name: outcomes[name] for name in names}


def scored(
    directory: epath.Path,
    split: str,
    *,
    selection: Selection = "nll",
    data: Callable[[Config], registry.Split] | None = None,
    sentences: int | None = None,
) -> dict[str, Any]:
    """The scores of `evaluation.evaluate` of a trained workdir, computed once for each text.

    A training that continued for more steps is scored again.

    Args:
      directory: the workdir, whose `study_scores` folder keeps the scores.
      split: of the workdir's dataset, or the name of the sentence pairs of `data`.
      selection: the weights.
      data: loads the sentence pairs, if they are not a split of the dataset.
      sentences: number of sentence pairs, from the start; all by default.
    """
    config = workdir_files.load_inference_config(directory)
    pairs = data(config) if data else registry.load(config.data, split)
    pairs = pairs.first(sentences or len(pairs))

    def compute() -> dict[str, Any]:
        print(f"scoring {directory} on {split}", file=sys.stderr, flush=True)
        average = 1 if selection == "last" else None
        by = {} if selection == "last" else {"best_by": selection}
        selecting = config.replace(training=config.training.replace(**by))
        translator = Translator.from_workdir(directory, selecting, average)
        return evaluation.evaluate(translator, pairs).scores

    return computed_once(scores_file(directory, f"{split}-{selection}", pairs), compute)


def scores_file(directory: epath.Path, name: str, pairs: registry.Split) -> epath.Path:
    """The file that keeps scores of these sentence pairs, for the steps trained so far."""
    steps = trained_steps(directory)
    return directory / "study_scores" / f"{name}-{steps}-{pairs.digest()[:8]}.json"


def computed_once(file: epath.Path, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The contents of a JSON file, which is written with the result of `compute` if missing."""
    if file.exists():
        return json.loads(file.read_text(encoding="utf-8"))
    values = compute()
    file.parent.mkdir(parents=True, exist_ok=True)
    workdir_files.write_json(file, values)
    return values


class StepMeasurement(NamedTuple):
    """Time and size of a training step."""

    seconds: float
    """Of the fastest of `TIMED_STEPS` steps with the most frequent batch shape, so that a load that
    comes and goes does not count.
    """
    tokens: float
    """Mean number of target tokens of a batch."""

    def steps_in(self, minutes: float) -> int:
        """The number of steps that take these minutes; 0 if a single one takes longer."""
        return int(60 * minutes / self.seconds)


def measure_step(config: Config, folder: epath.Path) -> StepMeasurement:
    """Time a training step of a config on this machine, once for each config.

    Args:
      config: of the training.
      folder: keeps the measurements.
    """
    identity = hashlib.sha256(config.to_json().encode()).hexdigest()[:16]

    def compute() -> dict[str, float]:
        print(f"measuring the steps of {config.model.family}", file=sys.stderr, flush=True)
        experiment = compose.build(config)
        [((rows, length), _)] = costs.batches_by_shape(experiment).most_common(1)
        step, batches = experiment.compile_step(rows, length), experiment.data.train
        index = next(i for i, planned in enumerate(batches.plan(0)) if planned.length == length)
        state, batch = experiment.init_state(), experiment.put_batch(batches[index])
        seconds = []
        for _ in range(TIMED_STEPS):
            jax.block_until_ready((state, batch))
            began = time.monotonic()
            state, sums = step(state, batch)
            jax.block_until_ready((state, sums))
            seconds.append(time.monotonic() - began)
        tokens = float(batches.target_lengths.sum()) / batches.per_epoch
        return StepMeasurement(min(seconds), tokens)._asdict()

    return StepMeasurement(**computed_once(folder / f"step-{identity}.json", compute))


def number_of_parameters(config: ModelConfig) -> int:
    """The number of parameters of a model, from shapes alone."""
    metadata = protocol.parameter_metadata(protocol.build(config))
    return sum(leaf.size for leaf in jax.tree.leaves(metadata))


def with_fields(config: Config, fields: dict[str, Any]) -> Config:
    """The config with other values of fields such as ``training.label_smoothing``."""
    groups: dict[str, dict[str, Any]] = {}
    for path, value in fields.items():
        group, _, name = path.partition(".")
        groups.setdefault(group, {})[name] = value
    changed = {group: getattr(config, group).replace(**groups[group]) for group in groups}
    return config.replace(**changed)
