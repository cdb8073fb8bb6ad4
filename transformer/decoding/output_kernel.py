# SPDX-License-Identifier: Apache-2.0
"""The output map of a search on a CPU: a kernel `[D, V]` instead of the embedding table `[V, D]`.

With tied embeddings, the logits of K beams are ``BKD,VD->BKV`` (paper 3.4). For few sentences in
float32, XLA's CPU backend takes up to twice the time of ``BKD,DV->BKV`` for that. A translator on a
CPU therefore keeps the table and its transpose; in bfloat16 the table is as fast or faster.
"""

import dataclasses

import jax

from transformer.arrays import Params
from transformer.config import ModelConfig
from transformer.models import base, ensemble
from transformer.nn.embedding import add_output_kernel
from transformer.nn.matmul import cpu_forms


def with_output_kernel(model: base.Model, params: Params) -> tuple[base.Model, Params]:
    """Return a model with the same logits whose output map is a kernel, and its parameters.

    All other parameters are the same arrays. The arguments are returned where the kernel would not
    be faster. Each member of an ensemble is treated by itself.
    """
    if isinstance(model, ensemble.Ensemble):
        members = [with_output_kernel(*member) for member in ensemble.members(model, params)]
        return ensemble.join(*zip(*members, strict=True))
    config, embedding = model.config, params.get("embedding", {})
    gains = cpu_forms() and config.compute_dtype == "float32" and _shares_output(config)
    if not gains or "table" not in embedding or model != base.build(config):
        return model, params
    untied = dataclasses.replace(config, tied_embeddings=_without_output(config))
    embedding = jax.jit(add_output_kernel)(embedding)
    return base.build(untied), {**params, "embedding": embedding}


def _shares_output(config: ModelConfig) -> bool:
    """Whether the output map of every step is a table that embeds tokens too."""
    tied = getattr(config, "tied_embeddings", "none")
    return tied in ("all", "target_output") and config.max_target_tokens is None


def _without_output(config: ModelConfig) -> str:
    """The value of `tied_embeddings` with which only the output map is separate."""
    embeddings_are_tied = config.tied_embeddings == "all" and config.source_vocab_size is None
    return "source_target" if embeddings_are_tied else "none"
