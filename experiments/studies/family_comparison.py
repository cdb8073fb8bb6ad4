# SPDX-License-Identifier: Apache-2.0
"""Models of several families with equal parameters and equal training time, and their measures.

`seq2seq_history` trains and compares them.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from experiments.configs import pronouns_recurrent
from experiments.data import registry
from experiments.data.grammars import pronouns
from experiments.scoring.diagnostics import length_buckets
from experiments.studies import study_runs
from transformer.config import (
    Config,
    ConvolutionalConfig,
    ModelConfig,
    OptimizerConfig,
    RecurrentConfig,
)
from transformer.fields import field_types
from transformer.inspection import alignment
from transformer.text.metrics import corpus_scores
from transformer.translator import Translator

ALIGNED = 400
"""Sentences whose alignment is compared with the gold alignment."""
WIDTHS = range(8, 2049, 8)
"""Widths among which the one with the right number of parameters is chosen."""


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

# The models.


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
    low, high = 0, len(WIDTHS) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if study_runs.number_of_parameters(of_width(WIDTHS[middle])) < parameters:
            low = middle
        else:
            high = middle
    sizes = {width: of_width(width) for width in (WIDTHS[low], WIDTHS[high])}
    return min(
        sizes.values(), key=lambda one: abs(study_runs.number_of_parameters(one) - parameters)
    )


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


# Measures of translations and of attention.


def by_length(
    sources: Sequence[str], translations: Sequence[str], references: Sequence[str], **bleu: Any
) -> list[dict[str, Any]]:
    """BLEU with its interval for sentences of similar lengths of the source, in words.

    `bleu` are keyword arguments of `metrics.corpus_scores`.
    """
    rows = []
    for bucket in length_buckets(sources):
        texts = ([side[row] for row in bucket.rows] for side in (translations, references))
        scores = corpus_scores(*texts, **bleu)
        about = {"words": bucket.name, "mean": bucket.mean, "sentences": len(bucket.rows)}
        rows.append(about | {key: scores[key] for key in ("bleu", "bleu_ci")})
    return rows


def alignment_error_rate(translator: Translator, scored_pairs: registry.Split) -> float | None:
    """Error rate of the head, or of the mean of a layer's heads, that aligns validation best.

    None without a gold alignment, for a model without attention, and for separate vocabularies.
    """
    config = translator.config
    examples = scored_pairs.examples
    has_gold = bool(examples) and "alignment" in examples[0]
    if not has_gold or not translator.vocabularies.are_shared:
        return None
    if "cross" not in translator.model.describe().attention:
        return None
    rates = {}
    both = {"validation": registry.load(config.data, "validation"), "scored": scored_pairs}
    for name, split in both.items():
        pairs = split.first(ALIGNED)
        links = [example["alignment"] for example in pairs.examples]
        batch = alignment.aligned_batch(
            translator.tokenizer, pairs.sources, pairs.targets, links, split=pronouns.words
        )
        for convention in ("predict", "read"):
            errors = alignment.alignment_errors(
                translator.model, translator.params, batch, convention
            )
            for kind, values in (("heads", errors.heads), ("layers", errors.layers)):
                for index, rate in enumerate(values.ravel().tolist()):
                    rates[name, convention, kind, index] = rate
    of_validation = {key: rate for key, rate in rates.items() if key[0] == "validation"}
    _, *best = min(of_validation, key=of_validation.get)
    return rates[("scored", *best)]
