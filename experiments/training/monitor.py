# SPDX-License-Identifier: Apache-2.0
"""Actions between two training steps: log metrics, validate, save, count skipped steps."""

import dataclasses
import math
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from experiments.console.progress import TrainingProgress
from experiments.training import allocator, distributed, metrics_log
from experiments.training.compile_ahead import StepPrograms
from experiments.training.compose import Experiment
from transformer import sharding
from transformer.arrays import Params
from transformer.batch import Batch
from transformer.checkpoints import selection, workdir_files
from transformer.checkpoints.manager import Checkpoints
from transformer.errors import InputError
from transformer.provenance import provenance
from transformer.text.metrics import corpus_scores
from transformer.text.tokenizer import Tokenizer
from transformer.training import optimizers
from transformer.training.losses import Sums
from transformer.training.step import TrainState
from transformer.translator import Translator

MOST_SKIPPED = 0.01
"""Share of skipped steps above which a training ends with a warning."""
_START_AGAIN = (
    "Start again in another --workdir with a lower optimizer.learning_rate or training.r_drop, "
    "more optimizer.warmup_steps, or optimizer.clip_norm"
)


@dataclasses.dataclass
class Totals:
    """Counters of a run over all its restarts, saved beside the training state."""

    seconds: float = 0.0
    step_seconds: float = 0.0
    """Time of training steps alone, without compilation and validation."""
    tokens: float = 0.0
    """Target tokens without padding."""
    train_loss: float | None = None
    """The last reported value."""
    validation: dict[str, float] = dataclasses.field(default_factory=dict)
    """Scores of the last validation, at step `validated_at`."""
    validated_at: int = -1
    best_score: float | None = None
    best_by: str | None = None
    """Name of that score."""
    validations_since_best: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0


class Monitor:
    """Log, validate and save a training run; every process of the run has one.

    The training loop calls `compile_ahead` before a step and `after_step` after it.
    """

    def __init__(
        self,
        experiment: Experiment,
        step: int,
        totals: Totals,
        directory: epath.Path,
        checkpoints: Checkpoints,
        log: metrics_log.MetricsLog,
        progress: TrainingProgress,
        began: float | None = None,
    ):
        """Continue after `step`; `began` is when (`time.monotonic()`) the program was started."""
        self.experiment, self.step, self.totals = experiment, step, totals
        self._skipped_batches = directory / workdir_files.SKIPPED
        self._checkpoints, self._log, self._progress = checkpoints, log, progress
        best_by = experiment.config.training.best_by
        if totals.best_by not in (None, best_by):  # changed between two starts
            totals.best_score, totals.validations_since_best = None, 0
        totals.best_by = best_by
        config, d_model = experiment.config, experiment.model.describe().d_model
        rate = optimizers.schedule(config.optimizer, d_model, config.training.steps)
        self._learning_rate = jax.jit(rate)  # one program, not one for each operation
        self._programs = StepPrograms(experiment, progress.say)
        # Sums of the steps since the last report, still on the devices.
        self._window: list[Sums] = []
        self._window_began = time.monotonic()
        # The wall-clock time of all restarts counts from here.
        self._zero_seconds = (self._window_began if began is None else began) - totals.seconds

    @property
    def stopped_early(self) -> bool:
        """Whether the last ``training.patience`` validations were no better than the best."""
        patience = self.experiment.config.training.patience
        return patience is not None and self.totals.validations_since_best >= patience

    @property
    def finished(self) -> bool:
        """Whether training is complete."""
        return self.stopped_early or self.step >= self.experiment.config.training.steps

    def result(self) -> dict[str, Any]:
        """The contents of ``result.json``.

        Raises:
          InputError: when every step was skipped.
        """
        totals = self.totals
        parameters, trained = self.experiment.num_parameters, self.experiment.num_trained
        if totals.skipped == self.step:
            raise InputError(
                f"all {self.step} steps were skipped, because the loss or gradient of each was not "
                f"finite, so nothing was learned; their batches are in {self._skipped_batches}. "
                f"{_START_AGAIN}"
            )
        if totals.skipped > MOST_SKIPPED * self.step:
            self._progress.say(
                f"warning: {totals.skipped} of {self.step} steps ({totals.skipped / self.step:.1%})"
                " were skipped, because their loss or gradient was not finite; their batches are "
                f"in {self._skipped_batches}"
            )
        return {
            "step": self.step,
            "stopped_early": self.stopped_early,
            "train_loss": totals.train_loss,
            "validation": totals.validation,
            "seconds": round(time.monotonic() - self._zero_seconds, 1),
            "tokens_per_second": round(totals.tokens / totals.step_seconds, 1),
            "parameters": parameters,
            **({"trained_parameters": trained} if trained != parameters else {}),
            "skipped": totals.skipped,
            "provenance": provenance(),
        }

    def compile_ahead(self, state: TrainState, batch: Batch) -> None:
        """Compile the training step for a new batch shape; the time is not training time."""
        shape = batch.source.shape
        if shape in self._programs:
            return
        jax.block_until_ready(state)
        began = time.monotonic()
        self._programs.compile_for(shape, self.step)
        self._window_began += time.monotonic() - began

    def after_step(self, state: TrainState, sums: Sums) -> None:
        """Log, validate and save where they are due, given the new state and the step's sums.

        Raises:
          InputError: when too many steps in a row, or a validation, were not finite.
        """
        config = self.experiment.config
        self._window.append(sums)
        self.step += 1
        self._progress.advance(self.step)
        last = self.step == config.training.steps
        validate = last or self.step % config.training.validate_every == 0
        if validate or self.step % config.logging.log_every == 0:
            self._report()
        if validate:
            self._validate(self.experiment.model_params(state))
            self.save(state)
            allocator.return_unused_pages()
            self._window_began = time.monotonic()

    def save(self, state: TrainState) -> None:
        """Save the state and the totals, unless a checkpoint of this step exists.

        The first checkpoint of a training is read back before the training goes on. On a CPU, wait
        until they are written: the copies of the state and the temporaries of the next step would
        be in memory at once, and writing takes the cores of that step.
        """
        if self._window:
            self._report()
        totals = self.totals
        totals.seconds = time.monotonic() - self._zero_seconds
        metrics = None
        if totals.validated_at == self.step:
            metrics = {name: totals.validation[name] for name in ("nll", "bleu")}
        is_first = not self._checkpoints.steps()
        self._checkpoints.save(state, dataclasses.asdict(totals), metrics)
        if is_first:
            self._checkpoints.require_readable(self.experiment.abstract_state.weights)
        if self.experiment.mesh.devices.flat[0].platform == "cpu":
            self._checkpoints.finish()

    def _report(self) -> None:
        """Log the means over the steps since the last report."""
        totals, window = self.totals, jax.device_get(self._window)
        seconds = time.monotonic() - self._window_began
        self._count_skipped(window)
        sums = sum(window, Sums.zero())
        totals.tokens += float(sums.tokens)
        totals.step_seconds += seconds
        remaining = self.experiment.config.training.steps - self.step
        updates = self.step - totals.skipped
        values = {
            "learning_rate": float(self._learning_rate(jnp.asarray(max(updates - 1, 0)))),
            "tokens_per_second": float(sums.tokens) / seconds,
            "seconds_left": remaining * seconds / len(window),
        }
        if sums.tokens:
            means = sums.means()
            totals.train_loss = means["loss"]
            counted = sum(one.tokens > 0 for one in window)
            values = means | {"gradient_norm": float(sums.gradient_norm) / int(counted)} | values
        if totals.skipped:
            values["skipped"] = totals.skipped
        self._log.write(self.step, "train", values)
        self._progress.report(self.step, values)
        self._window_began, self._window = time.monotonic(), []

    def _count_skipped(self, window: list[Sums]) -> None:
        """Count the skipped steps of a window, keep their batches, and stop after too many."""
        totals, limit = self.totals, self.experiment.config.training.max_skipped
        for step, sums in enumerate(window, self.step - len(window) + 1):
            if sums.tokens:
                totals.skipped_in_a_row = 0
                continue
            totals.skipped += 1
            totals.skipped_in_a_row += 1
            self._progress.say(
                f"warning: step {step} is skipped, because its loss or gradient is not finite"
            )
            if distributed.is_main():
                _write_batch(self._skipped_batches, step, self.experiment)
            if totals.skipped_in_a_row < limit:
                continue
            self._checkpoints.finish()
            saved = self._checkpoints.steps()
            intact = f"the checkpoint of step {saved[-1]} is intact" if saved else "none is saved"
            raise InputError(
                f"step {step} is the last of {limit} in a row whose loss or gradient is not finite "
                f"(training.max_skipped); {intact}, and the batches are in {self._skipped_batches}."
                f" {_START_AGAIN}"
            )

    def _validate(self, params: Params) -> None:
        """Log NLL, BLEU and the dataset's metrics of the validation split, and some samples."""
        experiment, config = self.experiment, self.experiment.config
        values = validation_losses(experiment, params)
        if not math.isfinite(values["nll"]):
            raise InputError(
                f"the validation loss is {values['nll']} after step {self.step}; lower "
                "optimizer.learning_rate or raise optimizer.warmup_steps. What was saved before "
                "is intact"
            )
        split = experiment.data.validation.first(config.training.validation_sentences)
        vocabularies = experiment.data.vocabularies
        translator = Translator(config, params, vocabularies, mesh=experiment.mesh)
        hypotheses = [translation.text for translation in translator(split.sources)]
        tokenize = config.evaluation.bleu_tokenize
        scores = corpus_scores(hypotheses, split.targets, bootstrap=0, bleu_tokenize=tokenize)
        values |= {name: scores[name] for name in ("bleu", "exact_match")}
        values |= split.corpus_metrics(hypotheses, config.evaluation.metrics)
        totals = self.totals
        totals.validation, totals.validated_at = values, self.step
        score = selection.score(values, config.training.best_by)
        if totals.best_score is None or score > totals.best_score:
            totals.best_score, totals.validations_since_best = score, 0
        else:
            totals.validations_since_best += 1
        self._log.write(self.step, "validation", values)
        shown = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        self._progress.say(f"step {self.step}  validation  {shown}")
        for index in range(min(config.logging.samples, len(split))):
            self._progress.say(f"  source     {split.sources[index]}")
            self._progress.say(f"  translated {hypotheses[index]}")
            self._progress.say(f"  reference  {split.targets[index]}")


def validation_losses(experiment: Experiment, params: Params) -> dict[str, float]:
    """Unsmoothed NLL per token in nats, and perplexity, over the complete validation split."""
    where = sharding.batch_sharding(experiment.mesh)
    sums = [
        experiment.eval_step(params, sharding.put_on_mesh(batch, where))
        for batch in experiment.validation_batches()
    ]
    means = sum(jax.device_get(sums), Sums.zero()).means()
    return {"nll": means["nll"], "perplexity": means["perplexity"]}


def _write_batch(folder: epath.Path, step: int, experiment: Experiment) -> None:
    """Write the sentence pairs of the batch of a step."""
    batch, vocabularies = experiment.data.train.global_batch(step - 1), experiment.data.vocabularies
    sources = _sentences(batch.source, vocabularies.source)
    pairs = zip(sources, _sentences(batch.target, vocabularies.target), strict=True)
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{source}\t{target}\n" for source, target in pairs)
    (folder / f"{step}.tsv").write_text(text, encoding="utf-8")


def _sentences(tokens: np.ndarray, tokenizer: Tokenizer) -> Iterator[str]:
    """Decode the sentences of a batch `[B, T]`, of which a packed row holds several."""
    ids = tokens[tokens != tokenizer.special_ids.pad]
    for sentence in np.split(ids, np.flatnonzero(ids == tokenizer.special_ids.eos) + 1)[:-1]:
        yield " ".join(tokenizer.decode(sentence.tolist()).split())
