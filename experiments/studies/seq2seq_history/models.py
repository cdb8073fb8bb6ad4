# SPDX-License-Identifier: Apache-2.0
"""The models of the history, each with the number of parameters of a given Transformer."""

import bisect
import dataclasses
import math
from collections.abc import Callable
from typing import Any

from experiments.configs import pronouns_recurrent
from experiments.studies import study_runs
from transformer.config import (
    Config,
    ConvolutionalConfig,
    ModelConfig,
    OptimizerConfig,
    RecurrentConfig,
)
from transformer.fields import field_types

WIDTHS = range(8, 2049, 8)
"""Candidates for d_model."""


@dataclasses.dataclass(frozen=True)
class Model:
    """A model of the history, whose width is chosen."""

    config: type[ModelConfig] | None
    """None: the Transformer of the config."""
    fields: dict[str, Any]
    peak: float
    """Learning rate after the warmup."""


MODELS = {
    **{
        name: Model(RecurrentConfig, pronouns_recurrent.MODELS[name], 0.003)
        for name in ("sutskever", "bahdanau", "luong")
    },
    "convolutional": Model(ConvolutionalConfig, {"num_layers": 3, "kernel_width": 5}, 0.002),
    "transformer": Model(None, {}, 0.002),
}


def model_config(like: Config, name: str) -> ModelConfig:
    """The config of a model with the number of parameters that is nearest to the Transformer's.

    Fields that both families have, such as vocabulary sizes and dropout, are the Transformer's.
    """
    model = MODELS[name]
    if model.config is None:
        return like.model
    shared = set(field_types(model.config)) & set(field_types(type(like.model)))
    shared -= {"family", "num_layers", "encoder_layers", "decoder_layers", "d_model"}
    fields = {field: getattr(like.model, field) for field in sorted(shared)} | model.fields
    if "max_positions" in fields:
        longest = like.data.max_length + like.decode.extra_length
        fields["max_positions"] = max(longest, like.decode.max_length or 0)

    def of_width(width: int) -> ModelConfig:
        return model.config(**fields | {"d_model": width})

    return nearest_size(of_width, study_runs.number_of_parameters(like.model))


def nearest_size(of_width: Callable[[int], ModelConfig], parameters: int) -> ModelConfig:
    """The config whose number of parameters, which grows with its width, is nearest."""

    def size(width: int) -> int:
        return study_runs.number_of_parameters(of_width(width))

    above = bisect.bisect_left(WIDTHS, parameters, 1, len(WIDTHS) - 1, key=size)
    return of_width(min(WIDTHS[above - 1 : above + 1], key=lambda one: abs(size(one) - parameters)))


def config_of(like: Config, name: str, steps: int) -> Config:
    """The config of a model that trains for this number of steps."""
    warmup = max(min(100, steps // 10), 1)
    return like.replace(
        model=model_config(like, name),
        optimizer=OptimizerConfig(
            schedule="cosine", learning_rate=MODELS[name].peak, clip_norm=1.0, warmup_steps=warmup
        ),
        training=like.training.replace(steps=steps, validate_every=math.ceil(steps / 4)),
    )
