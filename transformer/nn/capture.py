# SPDX-License-Identifier: Apache-2.0
"""Traces of a forward pass and interventions in it, as pytrees.

A `Trace` holds the intermediate values that `capture` selects. `Interventions` gate heads and patch
activations; a patch has the axes of the field of the trace that it overwrites. Zero, mean and
resample ablation, activation patching and path patching differ only in the value of a patch. Both
pass through `jit`, `vmap` and `grad`. With ``capture="none"`` and no interventions, the model
computes exactly what it would without this module.
"""

from typing import Any, Literal

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
    """query . key / sqrt(d_k), or the additive score, plus what positions add, before the mask."""
    query: Float[Array, "*leading N T H"] | None = None
    """After the rotation by position if any; and so are the keys."""
    key: Float[Array, "*leading N S H"] | None = None
    """As each query head reads them, if several share the keys and values of one head."""
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
    """Scaled token embeddings, before positions are added."""
    positions: Float[Array, "T D"] | None = None
    """What is added to the embeddings: the absolute encodings (zeros if positions enter in
    attention only) and, with `model.timestep_encoding`, that of the first layer.
    """
    feed_forward: Float[Array, "L *B T D"] | None = None
    """The output of each feed-forward network, which is added to the residual stream."""
    sublayers: Float[Array, "L U *B T D"] | None = None
    """The residual stream after each sub-layer."""
    residual: Float[Array, "L+1 *B T D"] | None = None
    """The residual stream: the stack's input, then the output of every layer, with the timestep
    encoding of the next layer if there are such.
    """


@flax.struct.dataclass
class Trace:
    """One forward pass of a model; a stack that it lacks is None."""

    encoder: StackTrace | None
    decoder: StackTrace | None
    logits: Float[Array, "*B T V"] | None = None

    def attention(self, kind: Kind) -> AttentionTrace | None:
        """The attention of this kind in every layer; None if the model has none."""
        stack = self.encoder if kind == "encoder" else self.decoder
        if stack is None:
            return None
        return stack.cross_attention if kind == "cross" else stack.self_attention


@flax.struct.dataclass
class Patch:
    """An activation overwritten by `value` where `mask` is true."""

    mask: Bool[Array, "..."]
    """As many axes as the value, each of its size or 1."""
    value: Float[Array, "..."]

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """The patched activation."""
        return jnp.where(self.mask, self.value.astype(x.dtype), x)

    def swapaxes(self, first: int, second: int) -> "Patch":
        """The patch of an activation with these two axes exchanged."""
        return jax.tree.map(lambda array: array.swapaxes(first, second), self)


@flax.struct.dataclass
class AttentionPatches:
    """Patches of one kind of attention, with the axes of `AttentionTrace`; None changes nothing.

    What follows a patched activation is computed from it: scores and weights from `query` and
    `key`, z from `weights` and `value`. The captured values are those after the patches.
    """

    query: Patch | None = None
    """[L,N,T,H]"""
    key: Patch | None = None
    """[L,N,S,H]"""
    value: Patch | None = None
    """[L,N,S,Hv]"""
    weights: Patch | None = None
    """[L,N,T,S], the attention pattern; with the kernel ``einsum`` only."""
    z: Patch | None = None
    """[L,N,T,Hv], the heads' outputs, after the gates."""


Site = Literal["query", "key", "value", "weights", "z"]
"""An activation of a head: a field of `AttentionPatches` and of `AttentionTrace`."""


@flax.struct.dataclass
class StackInterventions:
    """Interventions in one stack, the same for every sentence of the batch."""

    self_heads: Float[Array, "L N"] | None
    """Factors of the heads' outputs: 1 keeps a head, 0 removes it."""
    cross_heads: Float[Array, "L N"] | None
    residual: Patch | None
    """[L+1,T,D], the residual stream: level 0 is the stack's input, l follows layer l."""
    self_attention: AttentionPatches | None = None
    cross_attention: AttentionPatches | None = None
    feed_forward: Patch | None = None
    """[L,T,D], the outputs of the feed-forward networks."""

    def of_layer(self, layer: int) -> dict[str, Any]:
        """The interventions in one layer, named as its arguments; without those that are None."""
        parts = {
            "self_gates": self.self_heads,
            "cross_gates": self.cross_heads,
            "self_patches": self.self_attention,
            "cross_patches": self.cross_attention,
            "feed_forward_patch": self.feed_forward,
        }
        given = {name: part for name, part in parts.items() if part is not None}
        return jax.tree.map(lambda array: array[layer], given)


@flax.struct.dataclass
class Interventions:
    """Gates on the heads and patches of activations; see `trace.no_interventions`."""

    encoder: StackInterventions
    decoder: StackInterventions

    @property
    def gates(self) -> PerHead:
        """The gates of all heads."""
        return PerHead(self.encoder.self_heads, self.decoder.self_heads, self.decoder.cross_heads)

    def with_gates(self, gates: PerHead) -> "Interventions":
        """The same patches with other gates."""
        return self.replace(
            encoder=self.encoder.replace(self_heads=gates.encoder),
            decoder=self.decoder.replace(self_heads=gates.decoder, cross_heads=gates.cross),
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
        stack = getattr(self, side).replace(residual=Patch(mask[..., None], value))
        return self.replace(**{side: stack})

    def patched_heads(
        self, kind: Kind, site: Site, mask: Bool[Array, "..."], value: Float[Array, "..."]
    ) -> "Interventions":
        """The same interventions, with an activation of heads overwritten where `mask` is true.

        Args:
          kind: of attention.
          site: the activation.
          mask: as many axes as `value`, each of its size or 1; for example [L,N,T,1].
          value: as captured in `Trace.attention(kind)`, for example [L,N,T,Hv] for ``z``.
        """
        side = "encoder" if kind == "encoder" else "decoder"
        name = "cross_attention" if kind == "cross" else "self_attention"
        stack = getattr(self, side)
        patches = getattr(stack, name) or AttentionPatches()
        patches = patches.replace(**{site: Patch(mask, value)})
        return self.replace(**{side: stack.replace(**{name: patches})})


def patch(
    x: Float[Array, "B T D"], interventions: StackInterventions | None, layer: int
) -> Float[Array, "B T D"]:
    """The residual stream at level `layer`, overwritten where it is patched."""
    if interventions is None or interventions.residual is None:
        return x
    return jax.tree.map(lambda array: array[layer], interventions.residual)(x)


def patched(x: Float[Array, "..."], patch: Patch | None) -> Float[Array, "..."]:
    """An activation, overwritten if it is patched."""
    return x if patch is None else patch(x)


def patch_heads(x: Float[Array, "B T N H"], patch: Patch | None) -> Float[Array, "B T N H"]:
    """An activation of the heads, overwritten where it is patched; the patch is [N,T,H]."""
    return x if patch is None else patch.swapaxes(0, 1)(x)


def gate(z: Float[Array, "B T N H"], gates: Float[Array, " N"] | None) -> Float[Array, "B T N H"]:
    """Multiply the output of each head by its gate."""
    return z if gates is None else z * gates[:, None].astype(z.dtype)


def stack_layers(traces: list) -> AttentionTrace | None:
    """Stack one trace per layer along a leading axis L; None if nothing was captured."""
    if traces[0] is None:
        return None
    return jax.tree.map(lambda *layers: jnp.stack(layers), *traces)
