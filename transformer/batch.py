# SPDX-License-Identifier: Apache-2.0
"""A batch of sentence pairs, the call of a model that reads it, and its log-probabilities."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from transformer.arrays import Array, Float, Int, Key, Params, Shown, wide
from transformer.models.protocol import Model, Source
from transformer.nn.positions import shift_right


@flax.struct.dataclass(repr=False)
class Batch(Shown):
    """Sentence pairs as padded token ids; a row of padding alone has weight 0."""

    source: Source
    target: Int[Array | np.ndarray, "B T"]
    source_segments: Int[Array | np.ndarray, "B S"] | None = None
    """In packed rows, the sentence of its row that each token belongs to, from 1; 0 for padding."""
    target_segments: Int[Array | np.ndarray, "B T"] | None = None

    def inputs(
        self,
        bos_id: int,
        rng: Key[Array, ""] | None = None,
        example_ids: Int[Array, " B"] | None = None,
    ) -> dict[str, Any]:
        """The keyword arguments of ``model.apply`` that predict the target.

        Args:
          bos_id: token id of BOS, the first decoder input.
          rng: for dropout; without it there is none.
          example_ids: global index of each example, for dropout; 0, 1, ... unless given.
        """
        target_in = shift_right(self.target, self.target_segments, bos_id)  # [B, T]
        inputs = {"source": self.source, "target_in": target_in}
        if self.target_segments is not None:
            inputs["source_segments"] = self.source_segments
            inputs["target_segments"] = self.target_segments
        if rng is not None:
            inputs |= {"train": True, "example_ids": example_ids, "rngs": {"dropout": rng}}
        return inputs


def target_log_probs(model: Model, params: Params, batch: Batch) -> Float[Array, "B T"]:
    """Natural-log probability of every target token; 0 for padding."""
    special_ids = model.config.special_ids
    logits = model.apply({"params": params}, **batch.inputs(special_ids.bos))
    log_probs = token_log_probs(logits, batch.target)
    return jnp.where(batch.target != special_ids.pad, log_probs, 0.0)


def token_log_probs(
    logits: Float[Array, "B T V"], target: Int[Array, "B T"]
) -> Float[Array, "B T"]:
    """Natural-log probability of each target token, computed in float32."""
    logits = logits.astype(wide(logits.dtype))
    return gold_logits(logits, target) - jax.nn.logsumexp(logits, axis=-1)


def gold_logits(logits: Float[Array, "B T V"], target: Int[Array, "B T"]) -> Float[Array, "B T"]:
    """The logit of each target token.

    It is the sum of one logit and zeros. A gather would have a scatter into zeros `[B, T, V]` as
    its gradient, and would collect a vocabulary that is divided over devices.
    """
    tokens = jnp.arange(logits.shape[-1])
    return jnp.where(tokens == target[..., None], logits, 0.0).sum(-1)
