# SPDX-License-Identifier: Apache-2.0
"""The trainings of a study: named configs, each trained once and scored once, a row for each.

Everything is kept in the workdir of its training, so a study that was stopped continues, and a
study with more trainings runs only those that are new. The rows have the form of
``docs/results/*.json``, from which ``scripts/results_tables.py`` makes tables.
"""

import contextlib
import dataclasses
import json
import pathlib
import platform
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from etils import epath

from experiments import evaluate, train
from experiments.cli.process import Stopped
from experiments.cli.scored_pairs import ScoredPairs
from experiments.scoring.evaluation import Evaluation
from experiments.storage import file_lock
from experiments.studies.cache import cached, digest_of
from experiments.training import compose
from transformer.checkpoints import workdir_files
from transformer.config import Config, ModelConfig
from transformer.cores import num_cores
from transformer.errors import InputError
from transformer.models import protocol
from transformer.provenance import provenance

Outcome = TypeVar("Outcome")

WARMUP_STEPS, TIMED_STEPS = 5, 20
"""Training steps before and during the measurement of their time."""


def trained(config: Config, directory: epath.Path) -> dict[str, Any]:
    """Train a config in a workdir unless that is done; returns the contents of result.json.

    Raises:
      InputError: when the workdir is of another config.
      Stopped: after SIGINT, SIGTERM or SIGHUP; repeat the command to continue.
    """
    if not (directory / workdir_files.RESULT).exists():
        print(f"training {directory}", file=sys.stderr, flush=True)
    options = train.Options(config=config, workdir=str(directory))
    result, stopped_by = train.run(options, handle_signals=True)
    if stopped_by:
        raise Stopped(128 + stopped_by)
    return result


def trained_steps(directory: epath.Path) -> int:
    """The steps of the training that was finished last in a workdir; 0 if there is none."""
    result = directory / workdir_files.RESULT
    return json.loads(result.read_text(encoding="utf-8"))["step"] if result.exists() else 0


def share(
    task: Callable[[str], Outcome], names: Iterable[str], folder: epath.Path
) -> dict[str, Outcome]:
    """Call a function for each name; processes that do this at the same time divide the names.

    The function keeps its results, so that another call with the same name only returns one. Names
    that another process works on, by the locks in `folder`, come last, and this process waits.
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
    test_set: ScoredPairs,
    measures: Callable[[Evaluation, evaluate.Options], Mapping[str, Any]] | None = None,
    **weights: Any,
) -> dict[str, Any]:
    """The scores of a trained workdir, computed once for these weights, options and texts.

    Further scores are those of `measures`; `weights` are fields of `Weights`, such as ``average``.
    """
    fields = {each.name: getattr(test_set, each.name) for each in dataclasses.fields(ScoredPairs)}
    options = evaluate.Options(workdir=str(directory), **fields, **weights)
    training = (directory / workdir_files.RESULT).read_text(encoding="utf-8")
    text = options.load(options.config.data).digest()
    named = measures and f"{measures.__module__}.{measures.__qualname__}"
    key = digest_of(dataclasses.replace(options, workdir=None), training, text, named)

    def compute() -> dict[str, Any]:
        print(f"scoring {directory} on {options.test_set}", file=sys.stderr, flush=True)
        evaluation = evaluate.run(options)
        return evaluation.scores | dict(measures(evaluation, options) if measures else {})

    return cached(directory / "study_scores" / f"{key}.json", key, compute)


class StepMeasurement(NamedTuple):
    """Time and size of a training step."""

    seconds: float
    """Mean of `TIMED_STEPS` steps."""
    tokens: float
    """Mean number of target tokens of a batch."""

    def steps_in(self, minutes: float) -> int:
        """The number of steps that take these minutes; 0 if a single one takes longer."""
        return int(60 * minutes / self.seconds)


def measure_step(config: Config, folder: epath.Path) -> StepMeasurement:
    """Time the first training steps of a config on this machine, once for each config."""
    key = digest_of(config, WARMUP_STEPS, TIMED_STEPS)

    def compute() -> dict[str, float]:
        print(f"measuring the steps of {config.model.family}", file=sys.stderr, flush=True)
        experiment = compose.build(config)
        batches, total = experiment.data.train, WARMUP_STEPS + TIMED_STEPS
        shapes = batches.shapes_between(0, total)
        programs = {shape: experiment.compile_step(*shape) for shape in shapes}
        state, seconds = experiment.init_state(), []
        for index in range(total):
            batch = experiment.put_batch(batches[index])
            jax.block_until_ready((state, batch))
            began = time.monotonic()
            state, _ = jax.block_until_ready(programs[batch.target.shape](state, batch))
            seconds.append(time.monotonic() - began)
        tokens = float(batches.target_lengths.sum()) / batches.per_epoch
        return StepMeasurement(float(np.mean(seconds[WARMUP_STEPS:])), tokens)._asdict()

    return StepMeasurement(**cached(folder / f"step-{key}.json", key, compute))


def number_of_parameters(config: ModelConfig) -> int:
    """The number of parameters of a model, from shapes alone."""
    metadata = protocol.parameter_metadata(protocol.build(config))
    return sum(leaf.size for leaf in jax.tree.leaves(metadata))


def with_fields(config: Config, fields: Mapping[str, Any]) -> Config:
    """The config with other values of fields such as ``training.label_smoothing``."""
    groups: dict[str, dict[str, Any]] = {}
    for path, value in fields.items():
        group, _, name = path.partition(".")
        groups.setdefault(group, {})[name] = value
    changed = {group: getattr(config, group).replace(**groups[group]) for group in groups}
    return config.replace(**changed)


# The rows of a study.


def row_of(result: Mapping[str, Any], scores: Mapping[str, Any], **about: Any) -> dict[str, Any]:
    """The row of one training: what distinguishes it, and its size, time and `rounded` scores."""
    size = {"parameters": result["parameters"], "steps": result["step"]}
    return {**about, **size, "minutes": round(result["seconds"] / 60, 1), "scores": scores}


def rounded(scores: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Scores as a row has them: a list with the interval if there is one, and shares in percent."""
    values: dict[str, Any] = {}
    for name in names:
        if f"{name}_ci" in scores:
            values[name] = [round(each, 1) for each in (scores[name], *scores[f"{name}_ci"])]
        elif name in ("nll", "bleu"):
            values[name] = round(scores[name], 4)
        else:
            values[name] = round(100 * scores[name], 2)
    return values


def write_rows(output: epath.Path, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write ``NAME.json``: the rows, and the circumstances that they share."""
    command = shlex.join(["python", *sys.orig_argv[1:]])
    about = {"machine": machine(), "command": command, "provenance": provenance()}
    try:
        output.mkdir(parents=True, exist_ok=True)
        workdir_files.write_json(output / f"{name}.json", {"circumstances": about, "runs": rows})
    except OSError as error:
        raise InputError(
            f"--output={output} cannot be written ({error.strerror}); name another directory"
        ) from None


def print_rows(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print a JSON object for each row."""
    print(*map(json.dumps, rows), sep="\n")


def machine() -> str:
    """The devices that this process computes on, for example ``2 cores of AMD EPYC``."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        return f"{jax.device_count()} x {device.device_kind}"
    name = platform.processor() or platform.machine()
    information = pathlib.Path("/proc/cpuinfo")  # not on every system
    if information.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", information.read_text(), re.MULTILINE)
        name = found[1] if found else name
    cores = num_cores()
    return f"{cores} {'core' if cores == 1 else 'cores'} of {name}"


# The flags of a study.


def checked_names(flag: str, names: Sequence[str], known: Sequence[str]) -> list[str]:
    """The names of a list flag; all known ones if none is given."""
    for name in names or ():
        if name not in known:
            raise InputError(f"--{flag} has {name!r}, but must be of {', '.join(known)}")
    return list(names or known)


def checked_seeds(texts: Sequence[str]) -> list[int]:
    """The seeds of ``--seeds``."""
    if not texts or not all(text.isdecimal() for text in texts):
        raise InputError(f"--seeds={','.join(texts)} must be whole numbers: 0,1,2")
    return [*map(int, texts)]
