# SPDX-License-Identifier: Apache-2.0
"""Label-smoothed cross-entropy as sums that divide once, after every device has added its part.

Paper 5.4. The smoothed loss is what is minimised; the un-smoothed negative log-likelihood is always
reported beside it, because smoothed values of different systems are not comparable.
"""

import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import PAD_ID, Array, Float, Int, wide
from transformer.errors import InputError


@flax.struct.dataclass
class Sums:
    """Sums over target tokens, in nats; ``a + b`` is the reduction over devices and batches."""

    loss: Float[Array, ""]
    nll: Float[Array, ""]
    correct: Float[Array, ""]
    tokens: Float[Array, ""]

    def __add__(self, other: "Sums") -> "Sums":
        return jax.tree.map(jnp.add, self, other)

    @classmethod
    def zero(cls) -> "Sums":
        """The sums over no token."""
        return cls(*(jnp.zeros(()) for _ in range(4)))

    def means(self) -> dict[str, float]:
        """Per-token loss and NLL in nats, perplexity, and the share of tokens predicted right."""
        tokens = max(float(self.tokens), 1.0)
        nll = float(self.nll) / tokens
        return {
            "loss": float(self.loss) / tokens,
            "nll": nll,
            "perplexity": float(jnp.exp(nll)),
            "accuracy": float(self.correct) / tokens,
        }


def token_log_probs(
    logits: Float[Array, "B T V"], target: Int[Array, "B T"]
) -> Float[Array, "B T"]:
    """The natural log of the model's probability of each target token, computed in float32."""
    logits = _at_least_float32(logits)
    chosen = jnp.take_along_axis(logits, target[..., None], axis=-1)[..., 0]
    return chosen - jax.nn.logsumexp(logits, axis=-1)


def smoothed_cross_entropy(
    logits: Float[Array, "B T V"],
    target: Int[Array, "B T"],
    smoothing: float = 0.1,
    mass: str = "uniform_others",
) -> Sums:
    """Cross-entropy against the smoothed label, summed over the tokens that are not padding.

    The label gives 1 - smoothing to the gold token and spreads the rest: ``uniform_others`` gives
    smoothing / (V-1) to every other token (Tensor2Tensor, the paper's own code), ``uniform`` gives
    smoothing / V to all, the gold one included. In closed form, without building the [B,T,V] label:
    with q the gold token's probability in the label and r every other's,
    loss = -(q - r) log p[gold] - r sum_v log p[v].

    Args:
      smoothing: between 0 and 1; 0 makes the loss equal to the NLL.
      mass: ``uniform_others`` or ``uniform``.

    Raises:
      InputError: for an unknown mass.
    """
    vocabulary = logits.shape[-1]
    if mass == "uniform_others":
        other = smoothing / (vocabulary - 1)
        gold = 1.0 - smoothing
    elif mass == "uniform":
        other = smoothing / vocabulary
        gold = 1.0 - smoothing + other
    else:
        raise InputError(
            f"label-smoothing mass {mass!r} is unknown; choose 'uniform_others' or 'uniform'"
        )
    logits = _at_least_float32(logits)
    weights = (target != PAD_ID).astype(logits.dtype)
    normalizer = jax.nn.logsumexp(logits, axis=-1)
    nll = normalizer - jnp.take_along_axis(logits, target[..., None], axis=-1)[..., 0]
    loss = nll
    if smoothing:
        sum_of_all = vocabulary * normalizer - logits.sum(-1)
        loss = (gold - other) * nll + other * sum_of_all
    correct = _most_probable(logits) == target
    return Sums(
        loss=(loss * weights).sum(),
        nll=(nll * weights).sum(),
        correct=(correct * weights).sum(),
        tokens=weights.sum(),
    )


def divergence_sum(
    logits: Float[Array, "B T V"], others: Float[Array, "B T V"], target: Int[Array, "B T"]
) -> Float[Array, ""]:
    """(KL(p||q) + KL(q||p)) / 2 of two predicted distributions, summed over the tokens that are not
    padding, in nats: sum_v (p[v] - q[v]) (log p[v] - log q[v]) / 2.
    """
    log_p = jax.nn.log_softmax(_at_least_float32(logits))
    log_q = jax.nn.log_softmax(_at_least_float32(others))
    each = 0.5 * ((jnp.exp(log_p) - jnp.exp(log_q)) * (log_p - log_q)).sum(-1)
    return jnp.where(target != PAD_ID, each, 0.0).sum()


def _most_probable(logits: Float[Array, "B T V"]) -> Int[Array, "B T"]:
    """`logits.argmax(-1)` as two reductions of one number each, which XLA's CPU backend computes
    with vector instructions; for the pair of a value and its place it goes through V one by one.
    """
    largest = logits.max(-1, keepdims=True)
    places = jnp.arange(logits.shape[-1], dtype=jnp.int32)
    return jnp.where(logits == largest, places, logits.shape[-1]).min(-1)


def _at_least_float32(logits: Array) -> Array:
    return logits.astype(wide(logits.dtype))
