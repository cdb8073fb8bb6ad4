# SPDX-License-Identifier: Apache-2.0
"""Label-smoothed cross-entropy (paper 5.4), as sums over target tokens.

Sums are added over devices and micro-batches, then divided once by the number of tokens. The
unsmoothed negative log-likelihood (NLL) is always reported too, because smoothed losses of
different systems cannot be compared.
"""

import math
from collections.abc import Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Float, Int, wide
from transformer.batch import gold_logits
from transformer.errors import InputError


@flax.struct.dataclass
class Sums:
    """Sums over target tokens, in nats; ``a + b`` reduces over devices and batches."""

    loss: Float[Array, ""]
    nll: Float[Array, ""]
    correct: Float[Array, ""]
    tokens: Float[Array, ""]
    gradient_norm: Float[Array, ""] | float = 0.0
    """Global norm of the mean gradient, before clipping, summed over training steps."""

    def __add__(self, other: "Sums") -> "Sums":
        return jax.tree.map(jnp.add, self, other)

    @classmethod
    def zero(cls) -> "Sums":
        """The sums over no tokens."""
        return cls(*(jnp.zeros(()) for _ in range(5)))

    def with_auxiliary(self, sown: Mapping[str, Any]) -> "Sums":
        """Add the losses that modules have sown, once for each token."""
        auxiliary = jax.tree.leaves(sown)
        return self.replace(loss=self.loss + sum(auxiliary) * self.tokens) if auxiliary else self

    def means(self) -> dict[str, float]:
        """Loss and NLL per token in nats, perplexity, and accuracy."""
        tokens = max(float(self.tokens), 1.0)
        nll = float(self.nll) / tokens
        return {
            "loss": float(self.loss) / tokens,
            "nll": nll,
            "perplexity": perplexity(nll),
            "accuracy": float(self.correct) / tokens,
        }


def perplexity(nll: float) -> float:
    """exp(nll), at most exp(700), because JSON has no infinity."""
    return math.exp(min(nll, 700.0))


def smoothed_cross_entropy(
    logits: Float[Array, "B T V"],
    target: Int[Array, "B T"],
    smoothing: float = 0.1,
    mass: str = "uniform_others",
    pad_id: int = 0,
) -> Sums:
    """Cross-entropy with the smoothed label, summed over the tokens that are not padding.

    The label has probability 1 - smoothing on the gold token. ``uniform_others`` spreads the rest
    as smoothing / (V-1) over every other token (Tensor2Tensor, the paper's code). ``uniform``
    spreads it as smoothing / V over all tokens, including the gold one.

    The label `[B, T, V]` is never built: with probability g on the gold token and r on every other,
    loss = -(g - r) log p[gold] - r sum_v log p[v].

    Args:
      logits: logits of every target position.
      target: token ids.
      smoothing: between 0 and 1; with 0 the loss is the NLL.
      mass: ``uniform_others`` or ``uniform``.
      pad_id: token id of padding.

    Raises:
      InputError: for an unknown mass.
    """
    vocab_size = logits.shape[-1]
    if mass == "uniform_others":
        other = smoothing / (vocab_size - 1)
        gold = 1.0 - smoothing
    elif mass == "uniform":
        other = smoothing / vocab_size
        gold = 1.0 - smoothing + other
    else:
        raise InputError(
            f"label-smoothing mass {mass!r} is unknown; choose 'uniform_others' or 'uniform'"
        )
    logits = logits.astype(wide(logits.dtype))
    weights = (target != pad_id).astype(logits.dtype)  # [B, T]
    log_normalizer = jax.nn.logsumexp(logits, axis=-1)  # [B, T]
    nll = log_normalizer - gold_logits(logits, target)
    loss = nll
    if smoothing:
        nll_of_all = vocab_size * log_normalizer - logits.sum(-1)  # -sum_v log p[v]: [B, T]
        loss = (gold - other) * nll + other * nll_of_all
    correct = _is_argmax(logits, target)
    return Sums(
        loss=(loss * weights).sum(),
        nll=(nll * weights).sum(),
        correct=(correct * weights).sum(),
        tokens=weights.sum(),
    )


def _is_argmax(logits: Float[Array, "B T V"], target: Int[Array, "B T"]) -> Bool[Array, "B T"]:
    """``logits.argmax(-1) == target``: no logit is larger, and none before it is as large.

    An argmax reduces pairs of logit and index, which XLA's CPU backend does not vectorize. The
    maximum is a plain reduction, and needs no all-gather of a vocabulary divided over devices.
    """
    largest = logits.max(-1, keepdims=True)  # [B, T, 1]
    is_before = jnp.arange(logits.shape[-1]) < target[..., None]  # [B, T, V]
    is_largest = gold_logits(logits, target) == largest[..., 0]
    return is_largest & ~((logits == largest) & is_before).any(-1)
