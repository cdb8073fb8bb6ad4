# SPDX-License-Identifier: Apache-2.0
"""Interventions in a forward pass: gates on the heads, and patches of activations.

A patch has the axes of the field of the trace that it overwrites. Zero, mean and resample ablation,
activation patching and path patching differ only in the value of a patch. `Interventions.patches`
gives them to the taps of the model.
"""

import functools
import operator
from typing import Any, Literal, get_args

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Float, Int, Params, Shown
from transformer.errors import InputError
from transformer.inspection.activations import PARTS, PerHead, Trace, describe, trace_of
from transformer.models.protocol import KINDS, Kind, Model, parameter_metadata
from transformer.nn.taps import Patch

Site = Literal["query", "key", "value", "weights", "z"]
"""An activation of a head: a field of `AttentionPatches` and of `AttentionTrace`."""


@flax.struct.dataclass(repr=False)
class AttentionPatches(Shown):
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
    """[L,N,T,S], the attention pattern."""
    z: Patch | None = None
    """[L,N,T,Hv], the heads' outputs, after the gates."""


@flax.struct.dataclass(repr=False)
class StackInterventions(Shown):
    """Interventions in one stack, the same for every sentence of the batch."""

    self_heads: Float[Array, "L N"] | None = None
    """Factors of the heads' outputs: 1 keeps a head, 0 removes it."""
    cross_heads: Float[Array, "L N"] | None = None
    residual: Patch | None = None
    """[L+1,T,D], the residual stream: level 0 is the stack's input, l follows layer l."""
    self_attention: AttentionPatches | None = None
    cross_attention: AttentionPatches | None = None
    feed_forward: Patch | None = None
    """[L,T,D], the outputs of the feed-forward networks."""


@flax.struct.dataclass(repr=False)
class Interventions(Shown):
    """Gates on the heads and patches of activations; see `no_interventions`."""

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

    def patch_residual(
        self, side: str, mask: Bool[Array, "levels T"], value: Float[Array, "levels T D"]
    ) -> "Interventions":
        """The same interventions, with one residual stream overwritten where `mask` is true.

        Args:
          mask: by level (0 is the stack's input, l the output of layer l) and position.
          value: a residual stream as captured in `StackTrace.residual`.
        """
        stack = getattr(self, side).replace(residual=Patch(mask[..., None], value))
        return self.replace(**{side: stack})

    def patch_heads(
        self, kind: Kind, site: Site, mask: Bool[Array, "..."], value: Float[Array, "..."]
    ) -> "Interventions":
        """The same interventions, with an activation of heads overwritten where `mask` is true.

        Args:
          mask: as many axes as `value`, each of its size or 1; for example [L,N,T,1].
          value: as captured in `Trace.attention(kind)`, for example [L,N,T,Hv] for ``z``.
        """
        side, name = PARTS[kind]
        stack = getattr(self, side)
        patches = getattr(stack, name) or AttentionPatches()
        patches = patches.replace(**{site: Patch(mask, value)})
        return self.replace(**{side: stack.replace(**{name: patches})})

    def patches_weights(self, kind: Kind) -> bool:
        """Whether the weights are not those of a softmax, so that their rows may not sum to 1."""
        side, name = PARTS[kind]
        patches = getattr(getattr(self, side), name)
        return patches is not None and patches.weights is not None

    def patches(self, model: Model) -> dict[str, Any]:
        """The collection ``patches`` of these interventions for the taps of a model."""
        names = _tap_names(model)
        collection = {}
        for side in ("encoder", "decoder"):
            stack = getattr(self, side)
            by_layer = _unstacked(stack.replace(residual=None))  # the first axis of all others is L
            patches = _named(list(map(_of_layer, by_layer)), names.get(side, {}))
            if stack.residual is not None:
                patches["residual"] = tuple(_unstacked(stack.residual))
            if patches:
                collection[side] = patches
        return collection

    def check(self, model: Model, source: int, target: int) -> None:
        """Check that they are of this model and of sentences of S and T tokens.

        Raises:
          InputError: naming the part; some of other sizes would broadcast.
        """
        config = model.config
        required = allowed = _shapes(no_interventions(model, source, target))
        given = _shapes(self)
        if given.keys() - required.keys():  # to know the shapes, the model is traced
            allowed = required | _shapes(_all_patches(model, source, target))
        if not required.keys() <= given.keys():
            raise InputError(
                "interventions lack a part; change those of no_interventions with .replace(...)"
            )
        for path, shape in given.items():
            if path not in allowed:
                raise InputError(
                    f"interventions{path} is set, but the model family {config.family!r} cannot be "
                    "changed there; leave it None"
                )
            # A mask may have axes of size 1, but not the first, which is the layers'.
            is_mask = path.endswith(".mask") and len(shape) == len(allowed[path])
            sizes = zip(shape, allowed[path], strict=False)
            broadcasts = is_mask and all(a == b or i and a == 1 for i, (a, b) in enumerate(sizes))
            if shape != allowed[path] and not broadcasts:
                raise InputError(
                    f"interventions{path} has the shape {list(shape)}, but this model and these "
                    f"sentences need {list(allowed[path])}; begin with "
                    f"no_interventions(model, {source}, {target})"
                )


def no_interventions(model: Model, source_length: int, target_length: int) -> Interventions:
    """Interventions that change nothing: all gates 1, nothing patched.

    Edit with ``.with_gates``, ``.patch_residual``, ``.patch_heads`` and ``.replace``.
    """
    description = describe(model)
    gates = {kind: jnp.ones(size) for kind, size in description.attention.items()}

    def stack(side: str, length: int, cross_heads: Array | None) -> StackInterventions:
        residual = None
        if side in description.residual_layers:
            levels = description.residual_layers[side] + 1
            mask = jnp.zeros((levels, length, 1), bool)
            residual = Patch(mask, jnp.zeros((levels, length, description.d_model)))
        return StackInterventions(gates.get(side), cross_heads, residual)

    return Interventions(
        stack("encoder", source_length, None), stack("decoder", target_length, gates.get("cross"))
    )


@flax.struct.dataclass
class _Gated:
    """A patch of z: the gates first, then the patch itself."""

    gates: Float[Array, " N"]
    patch: Patch | None

    def __call__(self, z: Float[Array, "B T N H"]) -> Float[Array, "B T N H"]:
        z = z * self.gates[:, None].astype(z.dtype)
        return z if self.patch is None else self.patch(z)


def _unstacked(tree: Any) -> list[Any]:
    """One tree for each index of the first axis, the same of all arrays."""
    length = max((leaf.shape[0] for leaf in jax.tree.leaves(tree)), default=0)
    return [jax.tree.map(operator.itemgetter(i), tree) for i in range(length)]


def _of_layer(stack: StackInterventions) -> dict[str, Any]:
    """The patches of one layer by module and tap; their arrays have no axis L."""
    patches: dict[str, Any] = {}
    attentions = {
        "self_attention": (stack.self_attention, stack.self_heads),
        "cross_attention": (stack.cross_attention, stack.cross_heads),
    }
    for name, (given, gates) in attentions.items():
        given = given or AttentionPatches()
        sites = {"weights": given.weights} | {
            # [N, T, H] to [T, N, H]
            site: jax.tree.map(lambda array: array.swapaxes(0, 1), getattr(given, site))
            for site in ("query", "key", "value", "z")
        }
        if gates is not None:
            sites["z"] = _Gated(gates, sites["z"])
        sites = {site: patch for site, patch in sites.items() if patch is not None}
        if sites:
            patches[name] = sites
    if stack.feed_forward is not None:
        patches["feed_forward"] = {"output": stack.feed_forward}
    return patches


@functools.lru_cache(maxsize=16)
def _tap_names(model: Model) -> dict[str, Any]:
    """The collection ``trace`` of a model without its values."""
    variables = {"params": nn.unbox(parameter_metadata(model))}
    apply = functools.partial(model.apply, mutable=["trace"])
    return jax.eval_shape(apply, variables, *model.example_inputs())[1]["trace"]


def _named(layers: list[dict[str, Any]], tapped: dict[str, Any]) -> dict[str, Any]:
    """The patches of a stack's layers, by the names of the modules that have taps."""
    if not layers:
        return {}
    names = [f"layer_{i}" for i in range(len(layers)) if f"layer_{i}" in tapped]
    if not names:
        return layers[0]
    if len(names) == len(layers):
        return dict(zip(names, layers, strict=True))
    # Shared layers: one patch for each application.
    return {names[0]: jax.tree.map(lambda *each: (*each,), *layers, is_leaf=callable)}


def _shapes(interventions: Interventions) -> dict[str, tuple[int, ...]]:
    """The shape of every array, by its path."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(interventions)
    return {jax.tree_util.keystr(path): jnp.shape(leaf) for path, leaf in leaves}


def _all_patches(model: Model, source: int, target: int) -> Interventions:
    """The shapes of all patches that `no_interventions` leaves out: those of what is captured."""
    tokens = [jax.ShapeDtypeStruct((1, length), jnp.int32) for length in (source, target)]
    params = nn.unbox(parameter_metadata(model))

    def captured(params: Params, *tokens: Int[Array, "1 _"]) -> Trace:
        _, tapped = model.apply({"params": params}, *tokens, mutable=["trace"])
        return trace_of(params, tapped["trace"])

    trace = jax.eval_shape(captured, params, *tokens)

    def patch(captured: jax.ShapeDtypeStruct | None) -> Patch | None:
        """A patch of an activation [L, B, ...]."""
        if captured is None:
            return None
        return Patch(*[jax.ShapeDtypeStruct((captured.shape[0], *captured.shape[2:]), bool)] * 2)

    stacks = {"encoder": StackInterventions(), "decoder": StackInterventions()}
    for kind in KINDS:
        attention, (side, name) = trace.attention(kind), PARTS[kind]
        if attention is not None:
            sites = {site: patch(getattr(attention, site)) for site in get_args(Site)}
            stacks[side] = stacks[side].replace(**{name: AttentionPatches(**sites)})
    for side in stacks:
        stack = getattr(trace, side)
        if stack is not None:
            stacks[side] = stacks[side].replace(feed_forward=patch(stack.feed_forward))
    return Interventions(**stacks)
