# SPDX-License-Identifier: Apache-2.0
"""Traces of a forward pass and interventions in it, as pytrees.

A `Trace` holds the intermediate values that `capture` selects. `Interventions` gate heads and patch
the residual stream. Both pass through `jit`, `vmap` and `grad`. With ``capture="none"`` and no
interventions, the model computes exactly what it would without this module.
"""

from typing import Literal

import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Float

Capture = Literal["none", "weights", "full"]
"""A static argument: nothing, attention weights, or every intermediate value."""

Kind = Literal["encoder", "decoder", "cross"]
"""Self-attention of the encoder, self-attention of the decoder, and cross-attention."""
KINDS: tuple[Kind, ...] = ("encoder", "decoder", "cross")


@flax.struct.dataclass
class PerHead:
    """A number for each head, by kind of attention; None for a kind that the model lacks."""

    encoder: Float[Array, "*B _L _N"] | None = None
    decoder: Float[Array, "*B _L _N"] | None = None
    cross: Float[Array, "*B _L _N"] | None = None


@flax.struct.dataclass
class AttentionTrace:
    """One attention sub-layer, or those of a stack with a leading axis L.

    The trace of one sentence pair (`inspection.run`) has no axis B, here and below.
    """

    weights: Float[Array, "*leading N T S"]
    """After mask and softmax, before dropout; rows sum to 1."""
    scores: Float[Array, "*leading N T S"] | None = None
    """query . key / sqrt(d_k), plus the position bias if any, before the mask."""
    query: Float[Array, "*leading N T H"] | None = None
    """After the rotation by position if any; and so are the keys."""
    key: Float[Array, "*leading N S H"] | None = None
    value: Float[Array, "*leading N S Hv"] | None = None
    z: Float[Array, "*leading N T Hv"] | None = None
    """For each query, the weighted sum of the values, times the head's gate."""
    head_out: Float[Array, "*leading N T D"] | None = None
    """z W^O for each head; the sum over heads, plus the bias if any, is the output."""
    output: Float[Array, "*leading T D"] | None = None
    """The output of the sub-layer, which is added to the residual stream."""


@flax.struct.dataclass
class StackTrace:
    """The layers of the encoder or the decoder; fields it lacks are None."""

    self_attention: AttentionTrace | None
    cross_attention: AttentionTrace | None = None
    embedded: Float[Array, "*B T D"] | None = None
    """Token embeddings times sqrt(d_model), before positions are added."""
    positions: Float[Array, "T D"] | None = None
    """The absolute encodings; zeros if positions enter in attention only."""
    feed_forward: Float[Array, "L *B T D"] | None = None
    """The output of each feed-forward network, which is added to the residual stream."""
    sublayers: Float[Array, "L U *B T D"] | None = None
    """The residual stream after each sub-layer."""
    residual: Float[Array, "L+1 *B T D"] | None = None
    """The residual stream: the stack's input, then the output of every layer."""


@flax.struct.dataclass
class Trace:
    """One forward pass of an encoder-decoder model."""

    encoder: StackTrace
    decoder: StackTrace
    logits: Float[Array, "*B T V"] | None = None

    def attention(self, kind: Kind) -> AttentionTrace | None:
        """The attention of this kind in every layer; None if the model has none."""
        stack = self.encoder if kind == "encoder" else self.decoder
        return stack.cross_attention if kind == "cross" else stack.self_attention


@flax.struct.dataclass
class StackInterventions:
    """Interventions in one stack, the same for every sentence of the batch."""

    self_heads: Float[Array, "L N"] | None
    """Factors of the heads' outputs: 1 keeps a head, 0 removes it."""
    cross_heads: Float[Array, "L N"] | None
    patch_mask: Bool[Array, "L+1 T 1"] | None
    """Where the residual stream is overwritten: level 0 is the stack's input, l follows layer l."""
    patch_value: Float[Array, "L+1 T D"] | None

    def gates_of_layer(self, layer: int) -> dict[str, Float[Array, " N"]]:
        """The gates of one layer, named as the arguments of the layer."""
        gates = {"self_gates": self.self_heads, "cross_gates": self.cross_heads}
        return {name: heads[layer] for name, heads in gates.items() if heads is not None}


@flax.struct.dataclass
class Interventions:
    """Gates on the heads and patches of the residual streams; see `trace.no_interventions`."""

    encoder: StackInterventions
    decoder: StackInterventions

    @property
    def gates(self) -> PerHead:
        """The gates of all heads."""
        return PerHead(self.encoder.self_heads, self.decoder.self_heads, self.decoder.cross_heads)

    def with_gates(self, gates: PerHead) -> "Interventions":
        """The same patches with other gates."""
        return Interventions(
            self.encoder.replace(self_heads=gates.encoder),
            self.decoder.replace(self_heads=gates.decoder, cross_heads=gates.cross),
        )

    def patched(
        self, side: str, mask: Bool[Array, "levels T"], value: Float[Array, "levels T D"]
    ) -> "Interventions":
        """The same gates, with one residual stream overwritten by `value` where `mask` is true.

        Args:
          side: ``encoder`` or ``decoder``.
          mask: by level (0 is the stack's input, l the output of layer l) and position.
          value: a residual stream as captured in `StackTrace.residual`.
        """
        stack = getattr(self, side).replace(patch_mask=mask[..., None], patch_value=value)
        return self.replace(**{side: stack})


def patch(
    x: Float[Array, "B T D"], interventions: StackInterventions | None, layer: int
) -> Float[Array, "B T D"]:
    """The residual stream at level `layer`, overwritten where it is patched."""
    if interventions is None:
        return x
    mask, value = interventions.patch_mask[layer], interventions.patch_value[layer]
    return jnp.where(mask, value.astype(x.dtype), x)


def gate(z: Float[Array, "B T N H"], gates: Float[Array, " N"] | None) -> Float[Array, "B T N H"]:
    """Multiply the output of each head by its gate."""
    return z if gates is None else z * gates[:, None].astype(z.dtype)


def stack_layers(traces: list) -> AttentionTrace | None:
    """Stack one trace per layer along a leading axis L; None if nothing was captured."""
    if traces[0] is None:
        return None
    return jax.tree.map(lambda *layers: jnp.stack(layers), *traces)
