# SPDX-License-Identifier: Apache-2.0
"""The training loop: what a batch changes, and what is logged, validated and saved after it."""

import io
import math
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from experiments import compose, distributed, logs
from experiments.pipeline.batching import evaluation_batches
from experiments.profiling import Profile
from transformer import sharding
from transformer.arrays import EOS_ID, PAD_ID, Params
from transformer.checkpoints import selection, workdir_files
from transformer.checkpoints.manager import Checkpoints
from transformer.errors import InputError
from transformer.text.metrics import corpus_scores
from transformer.training import optimizers
from transformer.training.losses import Sums
from transformer.training.step import Batch, TrainState
from transformer.translator import Translator


def fresh_meta() -> dict[str, Any]:
    """What is saved beside the state: seconds so far, what the result reports, and the counters."""
    return {
        "seconds": 0.0,
        "step_seconds": 0.0,
        "tokens": 0.0,
        "train_loss": None,
        "validation": {},
        "validated_at": -1,
        "best_score": None,
        "validations_since_best": 0,
        "skipped": 0,
        "skipped_in_a_row": 0,
    }


class Trainer:
    """One training, from a state on; in several processes the same in each."""

    def __init__(
        self,
        experiment: compose.Experiment,
        state: TrainState,
        meta: dict[str, Any],
        began: float,
        directory: epath.Path,
        checkpoints: Checkpoints,
        log: logs.MetricsLog,
        progress: logs.Progress,
        profile: Profile,
    ):
        """Goes on from `state` and `meta`, which `Checkpoints.restore` gave or which are fresh.

        Args:
          experiment: from `compose.build`.
          state: is given up.
          meta: see `fresh_meta`.
          began: `time.monotonic` of the start.
          directory: the workdir.
          checkpoints: where it is saved.
          log: of the metrics.
          progress: what is shown.
          profile: which steps are traced.
        """
        self.experiment, self.state, self.meta = experiment, state, meta
        self.step = int(state.step)
        self._before, self._began = meta["seconds"], began
        self._skipped_folder = directory / workdir_files.SKIPPED
        self._checkpoints, self._log = checkpoints, log
        self._progress, self._profile = progress, profile
        config = experiment.config
        self._rate = optimizers.schedule(
            config.optimizer, config.model.d_model, config.training.steps
        )
        self._compiled: dict[tuple[int, ...], jax.stages.Compiled] = {}
        self._window: list[Sums] = []
        """Sums of the steps since the last report, not yet read."""
        self._window_began = time.monotonic()

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

    def result(self) -> dict[str, Any]:
        """What ``result.json`` says of a training that has ended."""
        return {
            "step": self.step,
            "stopped_early": self.stopped_early,
            "train_loss": self.meta["train_loss"],
            "validation": self.meta["validation"],
            "seconds": round(self.seconds(), 1),
            "tokens_per_second": round(self.meta["tokens"] / self.meta["step_seconds"], 1),
            "parameters": sum(leaf.size for leaf in jax.tree.leaves(self.state.params)),
        }

    def update(self, batch: Batch) -> None:
        """One step on a batch of `Batches`, and whatever is due after it.

        Raises:
          InputError: when too many steps in a row, or a validation, were not finite.
        """
        config = self.experiment.config
        batch = self.experiment.on_mesh(batch)
        program = self._program_for(batch)
        if said := self._profile.before_step(self.state):
            self._progress.say(said)
        self.state, sums = program(self.state, batch)
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

    def _program_for(self, batch: Batch) -> jax.stages.Compiled:
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
        window = jax.device_get(self._window)
        taken = time.monotonic() - self._window_began
        self._count_skipped(window)
        total = sum(window, Sums.zero())
        self.meta["tokens"] += float(total.tokens)
        self.meta["step_seconds"] += taken
        left = self.experiment.config.training.steps - self.step
        updates = self.step - self.meta["skipped"]
        values = {
            "learning_rate": float(self._rate(jnp.asarray(max(updates - 1, 0)))),
            "tokens_per_second": float(total.tokens) / taken,
            "seconds_left": left * taken / len(window),
        }
        if total.tokens:
            means = total.means()
            self.meta["train_loss"] = means["loss"]
            values = means | values
        if self.meta["skipped"]:
            values["skipped"] = self.meta["skipped"]
        self._log.write(self.step, "train", values)
        self._progress.report(self.step, values)
        self._window_began, self._window = time.monotonic(), []

    def _count_skipped(self, window: list[Sums]) -> None:
        """Counts the steps that were skipped, and keeps their batches for a look."""
        for step, sums in enumerate(window, self.step - len(window) + 1):
            if sums.tokens:
                self.meta["skipped_in_a_row"] = 0
                continue
            self.meta["skipped"] += 1
            self.meta["skipped_in_a_row"] += 1
            self._progress.say(
                f"warning: step {step} is skipped, because its loss or gradient is not finite"
            )
            if distributed.is_main():
                self._keep_batch(step)
            most = self.experiment.config.training.max_skipped
            if self.meta["skipped_in_a_row"] >= most:
                self._checkpoints.finish()
                saved = self._checkpoints.steps()
                intact = (
                    f"the checkpoint of step {saved[-1]} is intact" if saved else "none is saved"
                )
                raise InputError(
                    f"step {step} is the last of {most} in a row whose loss or gradient is not "
                    f"finite (training.max_skipped); {intact}, and the batches are in "
                    f"{self._skipped_folder}. Begin again in another --workdir with a lower "
                    "optimizer.learning_rate, more optimizer.warmup_steps, or optimizer.clip_norm"
                )

    def _keep_batch(self, step: int) -> None:
        """Leaves the batch of a step as arrays and as text, a pair a line."""
        batch = self.experiment.data.train.global_batch(step - 1)
        self._skipped_folder.mkdir(parents=True, exist_ok=True)
        arrays = io.BytesIO()
        np.savez(arrays, source=batch.source, target=batch.target)
        (self._skipped_folder / f"{step}.npz").write_bytes(arrays.getvalue())
        sides = self._sentences(batch.source), self._sentences(batch.target)
        text = "".join(f"{source}\t{target}\n" for source, target in zip(*sides, strict=True))
        (self._skipped_folder / f"{step}.tsv").write_text(text, encoding="utf-8")

    def _sentences(self, rows: np.ndarray) -> Iterator[str]:
        """The text of every sentence of the rows, of which packed ones hold several."""
        ids = rows[rows != PAD_ID]
        for sentence in np.split(ids, np.flatnonzero(ids == EOS_ID) + 1)[:-1]:
            yield " ".join(self.experiment.tokenizer.decode(sentence.tolist()).split())

    def _validate(self) -> None:
        """NLL over all validation pairs, BLEU of real beam search over the first of them."""
        experiment, config = self.experiment, self.experiment.config
        params = self.state.weights
        values = validation_losses(experiment, params)
        if not math.isfinite(values["nll"]):
            raise InputError(
                f"the validation loss is {values['nll']} after step {self.step}; lower "
                "optimizer.learning_rate or raise optimizer.warmup_steps. What was saved before "
                "is intact"
            )
        split = experiment.data.validation.first(config.training.validation_sentences)
        # A lexicon is learned when the training is over.
        whole = config.replace(decode=config.decode.replace(shortlist=None))
        translator = Translator(whole, params, experiment.tokenizer, mesh=experiment.mesh)
        hypotheses = [translation.text for translation in translator(split.sources)]
        values["bleu"] = corpus_scores(hypotheses, split.targets, bootstrap=0)["bleu"]
        values |= split.corpus_metrics(hypotheses)
        self.meta["validation"] = values
        self.meta["validated_at"] = self.step
        score = selection.score(values, config.training.best_by)
        best = self.meta["best_score"]
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
    data, mesh = experiment.config.data, experiment.mesh
    batches = evaluation_batches(experiment.data.validation_corpus, data, mesh.shape["data"])
    where = sharding.batch_sharding(mesh)
    sums = [experiment.eval_step(params, sharding.place(batch, where)) for batch in batches]
    means = sum(jax.device_get(sums), Sums.zero()).means()
    return {"nll": means["nll"], "perplexity": means["perplexity"]}
