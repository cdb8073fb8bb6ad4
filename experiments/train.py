# SPDX-License-Identifier: Apache-2.0
"""Trains a model.

python -m experiments.train --config=experiments/configs/pronouns.py --workdir=runs/de

Run it again to go on where it stopped. The last line on standard output is one JSON object with the
result, which is kept in the workdir as result.json. Ctrl-C and SIGTERM save before they stop.
"""

import contextlib
import json
import pathlib
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from absl import flags

from experiments import compose, datasets, logs, workdir
from experiments.datasets import defects, embedded
from experiments.datasets.batching import in_order
from experiments.flags import run
from transformer import optimizers, sharding
from transformer.arrays import Params
from transformer.checkpoints import Checkpoints, Score
from transformer.config import Config
from transformer.errors import InputError
from transformer.losses import Sums
from transformer.metrics import corpus_scores
from transformer.training import TrainState
from transformer.translator import Translator

WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the run; made if it does not exist.")


def main(config: Config) -> int:
    """Trains and prints the result; returns the exit status."""
    if not WORKDIR.value:
        raise InputError("missing --workdir=DIRECTORY, where the results go")
    directory = pathlib.Path(WORKDIR.value)
    with workdir.claimed(directory, config) as config:
        result, stopped_by = train(config, directory)
    if stopped_by:
        return 128 + stopped_by
    print(json.dumps(result))
    return 0


def train(config: Config, directory: pathlib.Path) -> tuple[dict[str, Any] | None, int]:
    """Trains to the end, or until a signal asks to stop.

    Returns:
      the result and 0, or None and the number of the signal; the state is saved either way.
    """
    result_file = directory / "result.json"
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
    experiment = compose.build(config, directory)
    config, batches = experiment.config, experiment.data.train
    with Checkpoints(directory, config.training, writing=True) as checkpoints:
        restored = checkpoints.restore(experiment.abstract_state)
        state, meta = restored or (experiment.init_state(), _fresh_meta())
        first = int(state.step)
        parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
        _say(
            f"{parameters:,} parameters; {len(batches.source_lengths):,} pairs, "
            f"{batches.too_long} left out as longer than {config.data.max_length} tokens, "
            f"{batches.empty} as empty; {batches.per_epoch} batches an epoch, padding "
            f"{batches.padding_share():.0%}" + (f"; going on from step {first}" if restored else "")
        )
        if not restored:
            _warn_about_the_text(config)
        with (
            logs.MetricsLog(directory, first, config.logging.tensorboard) as log,
            logs.Progress(first, config.training.steps) as progress,
            contextlib.closing(batches.iterate(first)) as iterator,
            _signals() as received,
        ):
            workdir.begin(directory, config, experiment.tokenizer)
            trainer = _Trainer(experiment, state, meta, began, checkpoints, log, progress)
            for batch in iterator:
                if trainer.finished or received:
                    break
                trainer.update(batch)
            trainer.save()
    if received and not trainer.finished:
        name = signal.Signals(received[0]).name
        _say(f"stopped by {name} after step {trainer.step}, saved; run the same command to go on")
        return None, received[0]
    result = {
        "step": trainer.step,
        "stopped_early": trainer.stopped_early,
        "train_loss": trainer.meta["train_loss"],
        "validation": trainer.meta["validation"],
        "seconds": round(trainer.seconds(), 1),
        "tokens_per_second": round(trainer.meta["tokens"] / trainer.meta["step_seconds"], 1),
        "parameters": parameters,
    }
    workdir.write_json(result_file, result)
    return result, 0


def _warn_about_the_text(config: Config) -> None:
    """Says, once, what is odd about a person's text; the embedded corpora are known.

    Empty pairs and those that are too long have been counted already, and `doctor` says more.
    """
    data = config.data
    if data.dataset in embedded.names() and not data.mixture:
        return
    corpora = [pairs for _, pairs in datasets.training_corpora(data)]
    validation = datasets.text_pairs(data, "validation")
    for note in defects.notes(corpora, validation, max_length=data.max_length, tokenizer=None):
        _say(f"warning: {note}")


def _fresh_meta() -> dict[str, Any]:
    """What is saved beside the state: seconds so far, and what the result reports."""
    return {
        "seconds": 0.0,
        "step_seconds": 0.0,
        "tokens": 0.0,
        "train_loss": None,
        "validation": {},
        "validated_at": -1,
        "best_score": None,
        "validations_since_best": 0,
    }


class _Trainer:
    """The loop's state: what a batch changes, and what is logged, validated and saved."""

    def __init__(self, experiment, state, meta, began, checkpoints, log, progress):
        self.experiment: compose.Experiment = experiment
        self.state: TrainState = state
        self.meta: dict[str, Any] = meta
        self.step = int(state.step)
        self._before, self._began = meta["seconds"], began
        self._checkpoints: Checkpoints = checkpoints
        self._log: logs.MetricsLog = log
        self._progress: logs.Progress = progress
        config = experiment.config
        self._rate = optimizers.schedule(
            config.optimizer, config.model.d_model, config.training.steps
        )
        self._compiled = {}
        self._where = sharding.batch_sharding(experiment.mesh)
        self._window_began, self._window = time.monotonic(), []

    def seconds(self) -> float:
        """Wall-clock seconds over all restarts."""
        return self._before + time.monotonic() - self._began

    @property
    def stopped_early(self) -> bool:
        """Whether the validations have not become better for training.patience in a row."""
        patience = self.experiment.config.training.patience
        return patience is not None and self.meta["validations_since_best"] >= patience

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do."""
        return self.stopped_early or self.step >= self.experiment.config.training.steps

    def update(self, batch) -> None:
        """One step, and whatever is due after it."""
        config = self.experiment.config
        batch = jax.device_put(batch, self._where)
        self.state, sums = self._step_for(batch)(self.state, batch)
        self._window.append(sums)
        self.step += 1
        self._progress.advance(self.step)
        last = self.step == config.training.steps
        validate = last or self.step % config.training.validate_every == 0
        if validate or self.step % config.logging.log_every == 0:
            self._report()
        if validate:
            self._validate()
            self.save()
            self._window_began = time.monotonic()

    def save(self) -> None:
        """Saves state, position and counters, unless this very step is saved already."""
        if self._window:
            self._report()
        self.meta["seconds"] = self.seconds()
        fresh = self.meta["validated_at"] == self.step
        validation = self.meta["validation"]
        metrics = {name: validation[name] for name in ("nll", "bleu")} if fresh else None
        self._checkpoints.save(self.state, self.meta, metrics)

    def _step_for(self, batch):
        """The step compiled for this shape; the time that takes is not counted as training."""
        if batch.source.shape not in self._compiled:
            jax.block_until_ready(self.state)
            rows, length = batch.source.shape
            parts = self.experiment.config.training.micro_batches or 1
            self._progress.say(
                f"compiling the step for batches of {rows} x {length} tokens"
                + (f", in {parts} parts" if parts > 1 else "")
            )
            compiling = time.monotonic()
            lowered = self.experiment.train_step.lower(self.state, batch)
            self._compiled[batch.source.shape] = lowered.compile()
            self._window_began += time.monotonic() - compiling
        return self._compiled[batch.source.shape]

    def _report(self) -> None:
        """Reads the sums of the steps since the last report, and logs them."""
        total = sum(jax.device_get(self._window), Sums.zero())
        taken = time.monotonic() - self._window_began
        means = total.means()
        if not np.isfinite(means["loss"]):
            raise InputError(
                f"the loss is {means['loss']} at step {self.step}; lower optimizer.learning_rate "
                "or raise optimizer.warmup_steps. The last checkpoint is intact"
            )
        self.meta["tokens"] += float(total.tokens)
        self.meta["step_seconds"] += taken
        self.meta["train_loss"] = means["loss"]
        left = self.experiment.config.training.steps - self.step
        values = {
            **means,
            "learning_rate": float(self._rate(self.step - 1)),
            "tokens_per_second": float(total.tokens) / taken,
            "seconds_left": left * taken / len(self._window),
        }
        self._log.write(self.step, "train", values)
        self._progress.report(self.step, values)
        self._window_began, self._window = time.monotonic(), []

    def _validate(self) -> None:
        """NLL over all validation pairs, BLEU of real beam search over the first of them."""
        experiment, config = self.experiment, self.experiment.config
        params = self.state.weights
        values = validation_losses(experiment, params)
        split = experiment.data.validation.first(config.training.validation_sentences)
        translator = Translator(config, params, experiment.tokenizer)
        hypotheses = [translation.text for translation in translator(split.sources)]
        values["bleu"] = corpus_scores(hypotheses, split.targets, bootstrap=0)["bleu"]
        values |= split.own_metrics(hypotheses)
        self.meta["validation"] = values
        self.meta["validated_at"] = self.step
        score, best = Score(config.training.best_by)(values), self.meta["best_score"]
        if best is None or score > best:
            self.meta["best_score"], self.meta["validations_since_best"] = score, 0
        else:
            self.meta["validations_since_best"] += 1
        self._log.write(self.step, "validation", values)
        shown = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        self._progress.say(f"step {self.step}  validation  {shown}")
        for index in range(min(config.logging.samples, len(split))):
            self._progress.say(f"  source     {split.sources[index]}")
            self._progress.say(f"  translated {hypotheses[index]}")
            self._progress.say(f"  reference  {split.targets[index]}")


def validation_losses(experiment: compose.Experiment, params: Params) -> dict[str, float]:
    """Un-smoothed NLL a token in nats, and perplexity, over the whole validation split."""
    total = Sums.zero()
    for batch in in_order(experiment.data.validation_corpus, experiment.config.data):
        total += experiment.eval_step(params, batch)
    means = total.means()
    return {"nll": means["nll"], "perplexity": means["perplexity"]}


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM; a second one takes its usual course."""
    received: list[int] = []
    usual = {}

    def note(number, _frame):
        received.append(number)
        signal.signal(number, usual[number])
        _say(f"{signal.Signals(number).name}: saving after this step (again to stop at once)")

    for number in (signal.SIGINT, signal.SIGTERM):
        usual[number] = signal.signal(number, note)
    try:
        yield received
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    run(main, config_from="config")
