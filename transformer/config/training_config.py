# SPDX-License-Identifier: Apache-2.0
"""Configs of the optimizer, the training loop and its logs."""

import dataclasses
from typing import ClassVar, Literal

from transformer.fields import FieldGroup


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(FieldGroup):
    """Adam with the paper's schedule (paper 5.3), and others by name."""

    group: ClassVar[str] = "optimizer"

    name: Literal["adam", "adamw", "adafactor", "lion", "muon", "schedule_free"] = "adam"
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-9
    weight_decay: float = 0.0
    """Multiplied by the learning rate; of kernels and embeddings (muon: kernels); not with adam."""
    clip_norm: float | None = None
    """Largest global norm of the gradient."""
    learning_rate: float = 1.0
    """A factor of noam, 1 in the paper; the peak of the other schedules."""
    schedule: Literal["noam", "constant", "cosine"] = "noam"
    """noam: d_model^-0.5 min(step^-0.5, step warmup^-1.5), the paper's. constant and cosine: linear
    warmup, then constant, or half a cosine down to 0 at training.steps.
    """
    warmup_steps: int = 4000

    def validate(self) -> None:
        """Check rates, and that the named optimizer has the fields."""
        self.require_rates("beta1", "beta2")
        self.require_above_zero("epsilon", "learning_rate", "clip_norm")
        self.require_at_least(0, "weight_decay")
        self.require_at_least(1, "warmup_steps")
        if self.name == "adam":
            self.require(self.weight_decay == 0, "weight_decay", "0 with adam; use adamw")
        if self.name == "schedule_free":
            self.require(self.schedule == "constant", "schedule", "'constant' with schedule_free")
            self.require(self.beta1 > 0, "beta1", "above 0 with schedule_free")


@dataclasses.dataclass(frozen=True)
class TrainingConfig(FieldGroup):
    """The loss, the number of steps, validation and checkpoints."""

    group: ClassVar[str] = "training"

    steps: int = 100_000
    seed: int = 0
    label_smoothing: float = 0.1
    label_smoothing_mass: Literal["uniform_others", "uniform"] = "uniform_others"
    r_drop: float = 0.0
    """R-Drop: weight of the divergence between two passes with different dropout (Liang et al.
    2021); 0 makes one pass.
    """
    ema_decay: float | None = None
    """Decay of an exponential moving average of the weights, which is validated and used (0.999 is
    usual).
    """
    micro_batches: int | None = None
    """Gradient accumulation: equal parts of a batch, computed in turn to save memory; default 1."""
    batch_fitting: Literal["fixed", "auto"] = "fixed"
    """auto: the smallest number of micro_batches with which the compiled step fits into
    memory_limit_gib, written to config.json; the batch stays the same.
    """
    memory_limit_gib: float | None = None
    """For batch_fitting; default: the memory of the device or the machine."""
    validate_every: int = 1000
    """Steps between validations; each one also saves a checkpoint, and so does the last step."""
    validation_sentences: int = 500
    """Validation sentences translated for BLEU; the NLL is over all."""
    best_by: Literal["nll", "bleu"] = "nll"
    """Validation score that selects the best checkpoint."""
    patience: int | None = None
    """Stop after this many validations in a row without improvement."""
    max_skipped: int = 10
    """Stop after this many steps in a row with a non-finite loss or gradient, which are skipped and
    counted.
    """
    keep_last: int = 5
    """Checkpoints kept, besides the best."""
    keep_around_best: int = 0
    """Checkpoints kept on each side of the best, for averaging (`evaluate --around=best`)."""

    def validate(self) -> None:
        """Check counts and rates."""
        self.require_at_least(1, "steps", "validate_every", "keep_last", "validation_sentences")
        self.require_at_least(1, "micro_batches", "patience", "max_skipped")
        self.require_at_least(0, "seed", "r_drop", "keep_around_best")
        self.require_above_zero("memory_limit_gib")
        self.require_rates("label_smoothing")
        if self.ema_decay is not None:
            self.require(0 < self.ema_decay < 1, "ema_decay", "above 0 and below 1")
        if self.memory_limit_gib is not None:
            auto = self.batch_fitting == "auto"
            self.require(auto, "memory_limit_gib", "left out unless training.batch_fitting='auto'")


@dataclasses.dataclass(frozen=True)
class LoggingConfig(FieldGroup):
    """Logs of training. No field changes a result."""

    group: ClassVar[str] = "logging"

    log_every: int = 50
    """Steps between lines of metrics."""
    samples: int = 3
    """Sample translations printed at each validation."""
    tensorboard: bool = True

    def validate(self) -> None:
        """Check counts."""
        self.require_at_least(1, "log_every")
        self.require_at_least(0, "samples")
