# SPDX-License-Identifier: Apache-2.0
"""Configs of the optimizer, the training loop and its logs."""

import dataclasses
from typing import Annotated, ClassVar, Literal

from transformer.fields import (
    Bounds,
    Count,
    FieldGroup,
    NonNegativeReal,
    Positive,
    PositiveReal,
    Rate,
    Seed,
)
from transformer.user_functions import is_function

OPTIMIZERS = ("adam", "adamw", "adafactor", "lion", "muon", "schedule_free")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(FieldGroup):
    """Adam with the paper's schedule (paper 5.3), and others by name."""

    group: ClassVar[str] = "optimizer"

    name: str = "adam"
    """adam, adamw, adafactor, lion, muon or schedule_free; or ``FILE.py:FUNCTION``, where
    FUNCTION(learning_rate), with a function of the number of updates, gives an optax optimizer.
    """
    beta1: Rate = 0.9
    beta2: Rate = 0.98
    epsilon: PositiveReal = 1e-9
    weight_decay: NonNegativeReal = 0.0
    """Multiplied by the learning rate; of kernels and embeddings (muon: kernels); not with adam."""
    clip_norm: PositiveReal | None = None
    """Largest global norm of the gradient."""
    learning_rate: PositiveReal = 1.0
    """A factor of noam, 1 in the paper; the peak of the other schedules."""
    schedule: Literal["noam", "constant", "cosine"] = "noam"
    """noam: d_model^-0.5 min(step^-0.5, step warmup^-1.5), the paper's. constant and cosine: linear
    warmup, then constant, or half a cosine down to 0 at training.steps.
    """
    warmup_steps: Positive = 4000

    def validate(self) -> None:
        """Check that the optimizer is known and has the fields."""
        known = self.name in OPTIMIZERS or is_function(self.name)
        self.require(known, "name", f"one of {', '.join(OPTIMIZERS)}, or FILE.py:FUNCTION")
        if self.name == "adam":
            self.require(self.weight_decay == 0, "weight_decay", "0 with adam; use adamw")
        if self.name == "schedule_free":
            self.require(self.schedule == "constant", "schedule", "'constant' with schedule_free")
            self.require(self.beta1 > 0, "beta1", "above 0 with schedule_free")


@dataclasses.dataclass(frozen=True)
class TrainingConfig(FieldGroup):
    """The loss, the number of steps, validation and checkpoints."""

    group: ClassVar[str] = "training"

    recipe: Literal["auto", "small", "medium", "large", "fine_tune"] | None = None
    """Completes a config file from the command line: ``fine_tune`` from the model of
    training.init_from, the others from the training text. The completed config has None.
    """
    steps: Positive = 100_000
    seed: Seed = 0
    label_smoothing: Rate = 0.1
    label_smoothing_mass: Literal["uniform_others", "uniform"] = "uniform_others"
    r_drop: NonNegativeReal = 0.0
    """R-Drop: weight of the divergence between two passes with different dropout (Liang et al.
    2021); 0 makes one pass.
    """
    cutoff: Rate = 0.0
    """SimCut: probability with which the vector of a token, of source or target, is zeroed in a
    second pass (Gao et al. 2022; 0.05 is usual); 0 makes one pass.
    """
    cutoff_weight: NonNegativeReal = 3.0
    """SimCut: weight of the divergence of the second pass from the first."""
    ema_decay: Annotated[float, Bounds(above=0, below=1)] | None = None
    """Decay of an exponential moving average of the weights, which is validated and used (0.999 is
    usual).
    """
    micro_batches: Positive | None = None
    """Gradient accumulation: equal parts of a batch, computed in turn to save memory; default 1."""
    batch_fitting: Literal["fixed", "auto"] = "fixed"
    """auto: the smallest number of micro_batches with which the compiled step fits into
    memory_limit_gib, written to config.json; the batch stays the same.
    """
    memory_limit_gib: PositiveReal | None = None
    """For batch_fitting; default: the memory of the device or the machine."""
    validate_every: Positive = 1000
    """Steps between validations; each one also saves a checkpoint, and so does the last step."""
    validation_sentences: Positive = 500
    """Validation sentences translated for BLEU; the NLL is over all."""
    best_by: Literal["nll", "bleu"] = "nll"
    """Validation score that selects the best checkpoint."""
    patience: Positive | None = None
    """Stop after this many validations in a row without improvement."""
    max_skipped: Positive = 10
    """Stop after this many steps in a row with a non-finite loss or gradient, which are skipped and
    counted.
    """
    keep_last: Positive = 5
    """Checkpoints kept, besides the best."""
    keep_around_best: Count = 0
    """Checkpoints kept on each side of the best, for averaging (`evaluate --around=best`)."""
    init_from: str | None = None
    """Workdir or bundle whose best weights and vocabulary the training starts from; its model
    section must be the config's. ``--config=fine_tune`` takes the config from there.
    """
    freeze: tuple[Literal["embedding", "encoder", "decoder"], ...] = ()
    """Parts that are not trained: ``embedding`` (tables of tokens and learned positions),
    ``encoder`` (its other parameters), ``decoder`` (the rest). With LoRA: parts without adapters.
    """
    lora_rank: Count = 0
    """LoRA: the rank of the adapters, which are trained instead of the weights (Hu et al. 2021);
    0 trains the weights.
    """
    lora_alpha: PositiveReal = 16.0
    """LoRA: the product of the two factors of an adapter is multiplied by lora_alpha / lora_rank.
    """
    lora_targets: tuple[str, ...] = ("heads", "kv_heads", "mlp", "hidden")
    """LoRA: kernels with at least one of these logical axes (see parallel.rules) are adapted:
    attention (heads, kv_heads), feed-forward (mlp), recurrent layers (hidden).
    """

    @property
    def forward_passes(self) -> int:
        """Forward passes of a training step: R-Drop and SimCut compare two."""
        return 2 if self.r_drop or self.cutoff else 1

    @property
    def lora_scale(self) -> float:
        """The factor of the product A B of an adapter."""
        return self.lora_alpha / self.lora_rank

    def validate(self) -> None:
        """Check that a memory limit and the fields of fine-tuning have an effect."""
        if self.memory_limit_gib is not None:
            auto = self.batch_fitting == "auto"
            self.require(auto, "memory_limit_gib", "left out unless training.batch_fitting='auto'")
        self.require(len({*self.freeze}) == len(self.freeze), "freeze", "different parts")
        if self.init_from is None:
            must = "left out unless training.init_from names the model to start from"
            self.require(not self.freeze, "freeze", must)
            self.require(not self.lora_rank, "lora_rank", must)


@dataclasses.dataclass(frozen=True)
class LoggingConfig(FieldGroup):
    """Logs of training. No field changes a result."""

    group: ClassVar[str] = "logging"

    log_every: Positive = 50
    """Steps between lines of metrics."""
    samples: Count = 3
    """Sample translations printed at each validation."""
    tensorboard: bool = True
