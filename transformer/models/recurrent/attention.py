# SPDX-License-Identifier: Apache-2.0
"""Attention of recurrent models: one score for each pair of a decoder and an encoder state.

- additive: ``v . tanh(W q + U m)`` (Bahdanau et al. 2015, A.1.2), which Luong et al. (2015) call
  concat: their ``v . tanh(W [q; m])`` is the same function.
- dot: ``q . m``; general: ``q . (W m)`` (Luong et al. 2015, equation 8).

q is a state of the decoder and m one of the encoder. What depends on m alone, the keys, is computed
once for a sentence. `local_window` restricts attention to a predicted position (local-p).
"""

from collections.abc import Callable

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Float, Int, wide
from transformer.config import RecurrentConfig
from transformer.models.recurrent.cells import Weights
from transformer.nn.attention import masked_softmax
from transformer.nn.linear import project, wide_einsum
from transformer.nn.taps import patch_of, record

TIME_AXIS = {"scores": 2, "weights": 2, "z": 1}
"""The taps of attention, and the axis of the target positions in each."""


@flax.struct.dataclass
class SourceKeys:
    """The annotations of a source and their keys, computed once."""

    annotations: Float[Array, "B S A"]
    keys: Float[Array, "B S D"]
    mask: Bool[Array, "B 1 S"]


Tap = Callable[[str, Array], Array]
"""From the name of a tap and an activation to the activation, which may be patched."""


def attend(
    config: RecurrentConfig,
    weights: Weights,
    source: SourceKeys,
    query: Float[Array, "B T D"],
    tap: Tap = lambda name, x: x,
) -> Float[Array, "B T A"]:
    """The context of decoder states: the sum of the annotations, weighted by their scores.

    Its taps are ``scores``, ``weights`` and ``z``, with the axes of multi-head attention.
    """
    if config.attention in ("additive", "concat"):
        projected = project("BTD,Dy->BTy", query, weights["query"])
        vector = weights["score"][:, 0].astype(query.dtype)
        scores = additive_scores(projected, source.keys, vector)
    else:
        scores = dot_scores(query, source.keys)
    mask = source.mask
    if config.local_window is not None:
        hidden = project("BTD,Dy->BTy", query, weights["position"])
        vector = weights["position_score"][:, 0].astype(query.dtype)
        bias, mask = local_window(hidden, vector, mask, config.local_window)
        scores = scores + bias
    scores = tap("scores", scores[:, None])  # [B, 1, T, S]
    shares = tap("weights", masked_softmax(scores, mask[:, None]))[:, 0]  # [B, T, S]
    annotations = source.annotations
    context = jnp.einsum("BTS,BSA->BTA", shares.astype(annotations.dtype), annotations)
    return tap("z", context[:, :, None])[:, :, 0]


class CrossAttention(nn.Module):
    """The taps of `attend`, for one layer with one head. The parameters are the decoder's."""

    def taps_of_loop(self, length: int) -> Callable[[Int[Array, ""], dict[str, Array]], Tap]:
        """Read the patches before a loop over `length` positions.

        Returns:
          a function from a position and a dictionary to the tap of that time step, which adds the
          activations to the dictionary.
        """
        patches = {
            name: patch_of(self, name) for name in TIME_AXIS if self.has_variable("patches", name)
        }

        def at(t: Int[Array, ""], seen: dict[str, Array]) -> Tap:
            def tap(name: str, x: Array) -> Array:
                if name in patches:
                    axis = TIME_AXIS[name]
                    patched = patches[name](jnp.repeat(x, length, axis))  # As at all positions.
                    x = jax.lax.dynamic_slice_in_dim(patched, t, 1, axis)
                seen[name] = x
                return x

            return tap

        return at

    def record(self, seen: dict[str, Array]) -> None:
        """Record the activations of all time steps, each with a leading time axis."""
        for name, x in seen.items():
            record(self, name, jnp.moveaxis(x, 0, TIME_AXIS[name]).squeeze(TIME_AXIS[name] + 1))


def attentional_vector(
    weights: Weights, hidden: Float[Array, "B T D"], context: Float[Array, "B T A"]
) -> Float[Array, "B T D"]:
    """tanh(W [c; s]) (Luong et al. 2015, equation 5)."""
    both = jnp.concatenate([context.astype(hidden.dtype), hidden], axis=-1)
    return jnp.tanh(project("BTx,xy->BTy", both, weights["combine"]))


def dot_scores(query: Float[Array, "B T D"], key: Float[Array, "B S D"]) -> Float[Array, "B T S"]:
    """q . k, without a scale factor."""
    return wide_einsum("BTD,BSD->BTS", query.astype(key.dtype), key)


@jax.checkpoint
def additive_scores(
    query: Float[Array, "B T D"], key: Float[Array, "B S D"], vector: Float[Array, " D"]
) -> Float[Array, "B T S"]:
    """v . tanh(q + k), where q and k are the projected states.

    A sum of products rather than an einsum, so that XLA adds up the tanh without storing all of
    them, [B,T,S,D]. The backward pass computes them again.
    """
    dtype = wide(key.dtype)
    hidden = jnp.tanh(query.astype(dtype)[:, :, None] + key.astype(dtype)[:, None])
    return (hidden * vector.astype(dtype)).sum(-1)


def local_window(
    hidden: Float[Array, "B T D"],
    vector: Float[Array, " D"],
    mask: Bool[Array, "B 1 S"],
    width: int,
) -> tuple[Float[Array, "B T S"], Bool[Array, "B T S"]]:
    """Local-p attention (Luong et al. 2015, section 3.2, equations 9 and 10).

    The window is centered on ``p = S sigmoid(v . tanh(W h))``, where S counts the tokens of the
    sentence. The paper multiplies the weights by a Gaussian with standard deviation width / 2. Here
    its logarithm is added to the scores, so that the weights sum to 1.

    Args:
      hidden: W h of the decoder's state.
      vector: v.
      mask: true for tokens, false for padding.
      width: D of the paper; the window has the positions within `width` of p.

    Returns:
      the bias of the scores, and the window.
    """
    dtype = wide(hidden.dtype)
    relative = jax.nn.sigmoid((jnp.tanh(hidden.astype(dtype)) * vector.astype(dtype)).sum(-1))
    center = mask.sum(-1).astype(dtype) * relative  # [B, T]
    distance = jnp.arange(mask.shape[-1], dtype=dtype) - center[..., None]  # [B, T, S]
    bias = -(distance**2) / (2 * (width / 2) ** 2)
    return bias, mask & (jnp.abs(distance) <= width)


def maxout(x: Float[Array, "B T width"]) -> Float[Array, "B T D"]:
    """The larger one of every two neighbors (Goodfellow et al. 2013; Bahdanau et al. 2015, A.2)."""
    return x.reshape(*x.shape[:-1], -1, 2).max(-1)
