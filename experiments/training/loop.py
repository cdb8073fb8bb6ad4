# SPDX-License-Identifier: Apache-2.0
"""The loop of a training: from a workdir to its result, or to the checkpoint of a stopped run."""

import contextlib
import json
import signal
import time
from typing import Any

import jax
from etils import epath

from experiments.console.progress import TrainingProgress, say
from experiments.data import registry
from experiments.data.checks import text_checks
from experiments.training import compose, distributed, initial_weights, metrics_log, workdir
from experiments.training.monitor import Monitor, Totals
from experiments.training.parameter_table import parameter_table
from experiments.training.profiling import Profile
from transformer import trained_model
from transformer.checkpoints import base_model, workdir_files
from transformer.checkpoints.identity import Identity
from transformer.checkpoints.manager import Checkpoints
from transformer.config import Config
from transformer.errors import InputError


def train(
    config: Config,
    directory: epath.Path,
    *,
    profile_steps: int | None = None,
    handle_signals: bool = False,
    allow_changes: bool = False,
    verbose: bool = False,
) -> tuple[dict[str, Any] | None, int]:
    """Train to the end, or until a signal; continue from the last checkpoint if there is one.

    Args:
      config: validated; it fits what is in the workdir.
      directory: the workdir, which no other training uses meanwhile.
      profile_steps: number of steps to trace.
      allow_changes: continue a training that stopped early, if `config` lets it.
      handle_signals: save and return on SIGINT, SIGTERM and SIGHUP; only in the main thread.
      verbose: print the table of parameters on one device too.

    Returns:
      The contents of result.json and 0, or None and the number of the signal.
    """
    if result := _finished_result(config, directory, allow_changes):
        return result, 0
    began = time.monotonic()
    with distributed.all_or_none("prepare the training"):
        experiment = compose.build(config, directory)
        compose.require_memory(experiment)
        _require_every_device(experiment)
    distributed.require_same("the config", experiment.config.to_json().encode())
    vocabularies = experiment.data.vocabularies
    distributed.require_same("the vocabulary", b"".join(side.model for side in vocabularies))
    config, batches, main = experiment.config, experiment.data.train, distributed.is_main()

    initial, init_from = None, {}
    if config.training.init_from and not workdir.has_checkpoints(directory):
        initial, init_from = initial_weights.load(experiment, directory)
    adapters = base_model.adapters_identity(directory, config.training)
    identity = Identity.of(config.model, *(side.model for side in vocabularies), adapters)
    with Checkpoints(directory, config.training, identity, writing=True) as checkpoints:
        restored = checkpoints.restore(experiment.abstract_state)
        assert restored or bool(initial) == bool(config.training.init_from)
        state, totals = restored or (experiment.init_state(initial), {})
        if restored and adapters:
            state = state.replace(base=trained_model.load_base(directory, config))
        del initial
        first = int(state.step)
        _introduce(experiment, first if restored else None, verbose)
        progress = TrainingProgress(first, config.training.steps, shown=main)
        trace_folder = directory / workdir_files.PROFILE
        no_signals = contextlib.nullcontext(distributed.Stop())
        with (
            metrics_log.MetricsLog(
                directory if main else None, first, config.logging.tensorboard
            ) as log,
            progress,
            Profile(profile_steps if main else None, trace_folder, progress.say) as profile,
            contextlib.closing(batches.iterate(first)) as iterator,
            distributed.signals() if handle_signals else no_signals as stop,
        ):
            if main:
                workdir.initialize(directory, config, vocabularies, first, init_from)
            monitor = Monitor(
                experiment, first, Totals(**totals), directory, checkpoints, log, progress, began
            )
            for batch in iterator:
                if monitor.finished or stop.after(monitor.step):
                    break
                batch = experiment.put_batch(batch)
                monitor.compile_ahead(state, batch)
                profile.before_step(state)
                state, sums = experiment.train_step(state, batch)
                monitor.after_step(state, sums)
            monitor.save(state)

    if not monitor.finished:
        name = signal.Signals(stop.signal).name
        _log(f"stopped by {name} after step {monitor.step}, saved; repeat the command to continue")
        return None, stop.signal
    result = monitor.result()
    if main:
        workdir_files.write_json(directory / workdir_files.RESULT, result)
    return result, 0


def _finished_result(
    config: Config, directory: epath.Path, allow_changes: bool
) -> dict[str, Any] | None:
    """The result of a training that is complete; None if there are steps left."""
    file = directory / workdir_files.RESULT
    if not file.exists():
        return None
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(result["step"], int):
            raise ValueError(f"its step is {result['step']}")
    except (ValueError, TypeError, LookupError) as error:
        raise InputError(
            f"{file} is not the result of a training ({error}); remove it to continue from the "
            "last checkpoint"
        ) from None
    early = result.get("stopped_early") and not allow_changes
    if not early and result["step"] < config.training.steps:
        return None
    early_stop = f": it stopped early, after step {result['step']}"
    more = "; raise --config.training.steps to train on"
    _log(f"{directory} is finished{early_stop if early else more}")
    return result


def _require_every_device(experiment: compose.Experiment) -> None:
    """Raise unless the mesh includes the devices of all processes."""
    devices, used = jax.device_count(), experiment.mesh.size
    if distributed.several() and used < devices:
        raise InputError(
            f"parallel.data x parallel.model is {used}, but the {jax.process_count()} processes "
            f"have {devices} devices; set --config.parallel.data and --config.parallel.model so "
            f"that their product is {devices}"
        )


def _introduce(experiment: compose.Experiment, continued_at: int | None, verbose: bool) -> None:
    """Print the parameters, unused devices, the size of the data, and warnings about its text."""
    table = parameter_table(experiment.abstract_state)
    _log(table if verbose or experiment.mesh.size > 1 else table.splitlines()[-1])
    trained, total = experiment.num_trained, experiment.num_parameters
    if trained != total:
        what = "as adapters of" if experiment.adapter_metadata else "of"
        _log(f"{trained:,} parameters are trained, {what} {total:,}")
    devices, mesh = jax.device_count(), experiment.mesh
    if mesh.size < devices:
        more = f"--config.parallel.data={devices // mesh.shape['model']}"
        _log(f"{mesh.size} of {devices} devices used; {more} would use more of them")
    config, batches = experiment.config, experiment.data.train
    _log(
        f"{len(batches.source_lengths):,} pairs, "
        f"{batches.too_long} left out as longer than {config.data.max_length} tokens, "
        f"{batches.empty} as empty; {batches.per_epoch} batches an epoch, padding "
        f"{batches.padding_share():.0%}"
        + ("" if continued_at is None else f"; continuing from step {continued_at}")
    )
    # Embedded corpora are clean, and a training that continues has warned at its start.
    clean = config.data.dataset in registry.embedded_datasets() and not config.data.mixture
    if distributed.is_main() and continued_at is None and not clean:
        corpora = [pairs for _, pairs in registry.training_corpora(config.data)]
        validation = registry.sentence_pairs(config.data, "validation")
        limits = config.data.max_length, config.data.empty_sources
        for warning in text_checks.warnings(corpora, validation, *limits):
            _log(f"warning: {warning}")


def _log(text: str) -> None:
    if distributed.is_main():
        say(text)
