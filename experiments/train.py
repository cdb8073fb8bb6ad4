# SPDX-License-Identifier: Apache-2.0
"""Trains a model.

python -m experiments.train --config=experiments/configs/pronouns.py --workdir=runs/de

Run it again to go on where it stopped. The last line on standard output is one JSON object with the
result, which is kept in the workdir as result.json. Ctrl-C and SIGTERM save before they stop.
Several processes, each started with the same command, train together with --distributed.
"""

import contextlib
import json
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
from absl import flags
from etils import epath

from experiments import compose, distributed, logs, workdir
from experiments.corpora import registry
from experiments.flags import run
from experiments.pipeline import text_checks
from experiments.profiling import Profile
from experiments.trainer import Trainer, fresh_meta
from transformer import paths, sharding
from transformer.checkpoints import workdir_files
from transformer.checkpoints.manager import Checkpoints
from transformer.config import Config
from transformer.errors import InputError

WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the run; made if it does not exist.")
PROFILE = flags.DEFINE_integer(
    "profile", None, "Write a trace of so many steps into the workdir's folder profile."
)


def main(config: Config) -> int:
    """Trains and prints the result; returns the exit status."""
    if not WORKDIR.value:
        raise InputError("missing --workdir=DIRECTORY, where the results go")
    directory = paths.reachable(WORKDIR.value)
    with distributed.joined(), _claimed(directory, config) as config:
        result, stopped_by = train(config, directory)
        if result and distributed.is_main():
            print(json.dumps(result))
    return 128 + stopped_by if stopped_by else 0


@contextlib.contextmanager
def _claimed(directory: epath.Path, config: Config) -> Iterator[Config]:
    """The workdir, which one process claims for all."""
    with contextlib.ExitStack() as stack:
        with distributed.all_or_none(f"use {directory}"):
            if distributed.is_main():
                config = stack.enter_context(workdir.open_for_training(directory, config))
        # What process 0 found there holds for all.
        yield config if distributed.is_main() else workdir.resume_config(config, directory)


def train(config: Config, directory: epath.Path) -> tuple[dict[str, Any] | None, int]:
    """Trains to the end, or until a signal asks to stop.

    Returns:
      the result and 0, or None and the number of the signal; the state is saved either way.
    """
    result_file = directory / workdir_files.RESULT
    if result_file.exists():
        try:
            result = json.loads(result_file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(
                f"{result_file} is not JSON ({error}); remove it to go on from the last checkpoint"
            ) from None
        if result.get("stopped_early"):
            _say(f"{directory} is finished: it stopped early, after step {result['step']}")
            return result, 0
        if result["step"] >= config.training.steps:
            _say(f"{directory} is finished; raise --config.training.steps to train on")
            return result, 0

    began = time.monotonic()
    with distributed.all_or_none("prepare the training"):
        experiment = compose.build(config, directory)
        _require_whole_mesh(experiment)
    distributed.require_same("the config", experiment.config.to_json().encode())
    distributed.require_same("the vocabulary", experiment.tokenizer.model)
    config, batches = experiment.config, experiment.data.train
    main = distributed.is_main()
    with Checkpoints(directory, config.training, writing=True) as checkpoints:
        restored = checkpoints.restore(experiment.abstract_state)
        state, meta = restored or (experiment.init_state(), fresh_meta())
        first = int(state.step)
        _say(_introduction(experiment))
        _say(
            f"{len(batches.source_lengths):,} pairs, "
            f"{batches.too_long} left out as longer than {config.data.max_length} tokens, "
            f"{batches.empty} as empty; {batches.per_epoch} batches an epoch, padding "
            f"{batches.padding_share():.0%}" + (f"; going on from step {first}" if restored else "")
        )
        if main and not restored:
            _warn_about_the_text(config)
        with (
            logs.MetricsLog(directory if main else None, first, config.logging.tensorboard) as log,
            logs.Progress(first, config.training.steps, shown=main) as progress,
            Profile(PROFILE.value if main else None, directory / workdir_files.PROFILE) as profile,
            contextlib.closing(batches.iterate(first)) as iterator,
            distributed.signals() as stop,
        ):
            if main:
                workdir.initialize(directory, config, experiment.tokenizer)
            trainer = Trainer(
                experiment, state, meta, began, directory, checkpoints, log, progress, profile
            )
            for batch in iterator:
                if trainer.finished or stop.after(trainer.step):
                    break
                trainer.update(batch)
            trainer.save()
    if stop.signal and not trainer.finished:
        name = signal.Signals(stop.signal).name
        _say(f"stopped by {name} after step {trainer.step}, saved; run the same command to go on")
        return None, stop.signal
    result = trainer.result()
    if main:
        workdir_files.write_json(result_file, result)
    return result, 0


def _require_whole_mesh(experiment: compose.Experiment) -> None:
    """Several processes that train together must all have a part in it."""
    devices, used = jax.device_count(), experiment.mesh.size
    if distributed.several() and used < devices:
        raise InputError(
            f"parallel.data x parallel.model is {used}, but the {jax.process_count()} processes "
            f"have {devices} devices; set --config.parallel.data and --config.parallel.model so "
            f"that their product is {devices}"
        )


def _introduction(experiment: compose.Experiment) -> str:
    """Where everything lies, before the first step."""
    text = sharding.describe(experiment.abstract_state)
    devices, mesh = jax.device_count(), experiment.mesh
    if mesh.size < devices:
        more = f"--config.parallel.data={devices // mesh.shape['model']}"
        text += f"\n{mesh.size} of {devices} devices used; {more} would use more of them"
    return text


def _warn_about_the_text(config: Config) -> None:
    """Says, once, what is odd about a person's text; the embedded corpora are known.

    Empty pairs and those that are too long have been counted already, and `doctor` says more.
    """
    data = config.data
    if data.dataset in registry.embedded_datasets() and not data.mixture:
        return
    corpora = [pairs for _, pairs in registry.training_corpora(data)]
    validation = registry.sentence_pairs(data, "validation")
    for warning in text_checks.warnings(corpora, validation, data.max_length):
        _say(f"warning: {warning}")


def _say(text: str) -> None:
    if distributed.is_main():
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    run(main, config_from="config")
