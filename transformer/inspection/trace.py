# SPDX-License-Identifier: Apache-2.0
"""Run a model on one sentence pair, capture its activations, and intervene on them.

Arrays have no batch axis: attention weights are ``[L,N,T,S]``. Use `jax.vmap` for a batch. All
functions support `jax.jit` (with `config` and `capture` static), `jax.vmap` and `jax.grad`. Checks
of values, as opposed to shapes, are skipped under a transformation.
"""

from collections.abc import Callable, Sequence
from typing import Any, get_args

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import (
    ApplyScopeInvalidVariablesStructureError,
    ApplyScopeInvalidVariablesTypeError,
    ScopeCollectionNotFound,
    ScopeParamNotFoundError,
    ScopeParamShapeError,
)

from transformer.arrays import Array, Bool, Float, Int, Params
from transformer.config import ModelConfig, TransformerConfig
from transformer.errors import InputError
from transformer.inspection.argument_checks import check_weights, first_index
from transformer.models import base
from transformer.nn.capture import (
    AttentionPatches,
    AttentionTrace,
    Capture,
    Interventions,
    Kind,
    Patch,
    StackInterventions,
    StackTrace,
    Trace,
)
from transformer.nn.masks import causal_mask, padding_mask

Tokens = Array | np.ndarray | Sequence
"""Token ids of one sentence, ``Int[S]``; checked by the functions below."""


def run(
    params: Params,
    config: ModelConfig,
    source: Tokens,
    target_in: Tokens,
    *,
    capture: Capture = "none",
    interventions: Interventions | None = None,
) -> tuple[Float[Array, "T V"], Trace | None]:
    """Compute the logits of one sentence pair and a trace of the forward pass.

    Row t of the logits, of the decoder's attention and of its residual stream is computed while the
    decoder reads ``target_in[t]`` and predicts the next token.

    Without `jax.jit`, the logits are bitwise equal for every capture, and with the interventions of
    `no_interventions`. Under `jax.jit` they agree to rounding, since XLA may order sums
    differently.

    Args:
      params: of the model, as in a `TrainState`.
      config: of the model. Weights can be captured only with ``attention_kernel="einsum"``, which
        works with any Transformer's parameters.
      source: ids [S]; `pad_id` where padded.
      target_in: ids [T].
      capture: ``none``; ``weights``, the attention weights; or ``full``, everything. Static.
      interventions: gates on the heads and patches of activations.

    Returns:
      the logits, in the compute dtype, and the trace without the axis B; None if `capture` is
      ``none``.

    Raises:
      InputError: for interventions made for another model or length, a kernel that cannot capture
        weights, or weights whose rows do not sum to 1.
    """
    if capture not in get_args(Capture):
        raise InputError(f"capture {capture!r} is unknown; choose one of {list(get_args(Capture))}")
    description = describe(config)
    source = check_tokens("source", source, config)
    target_in = check_tokens("target_in", target_in, config)
    if interventions is not None:
        _check_interventions(interventions, config, len(source), len(target_in))
    logits, trace = apply(
        params,
        config,
        source[None],
        target_in[None],
        capture=capture,
        interventions=interventions,
    )
    if trace is None:
        return logits[0], None
    trace = _without_batch(trace)
    masks = masks_of(source, len(target_in), config.pad_id)
    if is_concrete(trace, masks):
        for kind in description.attention:
            if _patches_weights(interventions, kind):
                continue
            name = f"the weights of {kind} attention"
            check_weights(trace.attention(kind).weights, getattr(masks, kind), name)
    return logits[0], trace


def apply(
    params: Params,
    config: ModelConfig,
    source: Int[Array, "B S"],
    target_in: Int[Array, "B T"],
    *,
    capture: Capture = "none",
    interventions: Interventions | None = None,
) -> tuple[Float[Array, "B T V"], Trace | None]:
    """Call the model on a batch; the trace has the axis B."""
    # Under a transformation, calls of equal shapes share one trace of the model's Python code.
    concrete = is_concrete(params, source, target_in, interventions)
    call = _apply if concrete else _jitted_apply
    try:
        return call(params, config, source, target_in, capture, interventions)
    except (
        ApplyScopeInvalidVariablesStructureError,
        ApplyScopeInvalidVariablesTypeError,
        ScopeCollectionNotFound,
        ScopeParamNotFoundError,
        ScopeParamShapeError,
    ) as error:
        reason = str(error).partition(" (http")[0]
        raise InputError(
            f"the parameters are not those of this config ({reason}); give the config that the "
            "model was trained with, and TrainState.weights or Translator.params"
        ) from None


def _apply(
    params: Params,
    config: ModelConfig,
    source: Int[Array, "B S"],
    target_in: Int[Array, "B T"],
    capture: Capture,
    interventions: Interventions | None,
) -> tuple[Float[Array, "B T V"], Trace | None]:
    return base.build(config).apply(
        {"params": params}, source, target_in, capture=capture, interventions=interventions
    )


_jitted_apply = jax.jit(_apply, static_argnames=("config", "capture"))


def describe(config: ModelConfig) -> base.Description:
    """Describe a model that can be inspected.

    Raises:
      InputError: for the config of an experiment, or for a model without attention.
    """
    if not isinstance(config, ModelConfig):
        raise InputError(
            f"config is a {type(config).__name__}, but it must be that of the model: config.model"
        )
    description = base.build(config).describe()
    if not description.attention:
        raise InputError(
            f"the model family {config.family!r} has no attention, so there is nothing to inspect; "
            "give a model whose describe() lists kinds of attention"
        )
    return description


def no_interventions(config: ModelConfig, source_length: int, target_length: int) -> Interventions:
    """Interventions that change nothing: all gates 1, nothing patched.

    Edit with ``.with_gates``, ``.patched``, ``.patched_heads`` and ``.replace``.
    """
    description = describe(config)
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


def map_batches(function: Callable[[Array], Any], rows: Array, batch_size: int | None) -> Any:
    """`jax.lax.map` in equal batches, so one is compiled; copies of the last row fill the last."""
    number = len(rows)
    batch_size = min(batch_size or number, number)
    padding = jnp.broadcast_to(rows[-1], (-number % batch_size, *rows.shape[1:]))
    values = jax.lax.map(function, jnp.concatenate([rows, padding]), batch_size=batch_size)
    return jax.tree.map(lambda leaf: leaf[:number], values)


def check_positive(name: str, number: int | None) -> None:
    """Check that a count is at least 1 or None."""
    if number is not None and number < 1:
        raise InputError(f"{name} is {number}, but it must be at least 1")


def is_concrete(*values: object) -> bool:
    """Whether the values of these pytrees are known, so no JAX transformation is tracing them."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values))


def check_tokens(name: str, tokens: Tokens, config: ModelConfig) -> Int[Array, " S"]:
    """Convert the token ids of one sentence to an array.

    Args:
      name: of the argument, for the message.
      tokens: an array, or a list as returned by `Tokenizer.encode` for each sentence.

    Raises:
      InputError: when they are not one row of integers, or (if concrete) are only padding or
        outside the vocabulary.
    """
    array = _token_array(name, tokens, config)
    if array.ndim != 1 or not array.size:
        raise InputError(
            f"{name} has the shape {list(array.shape)}, but it must be one sentence, [S]; for "
            "several sentences of one length use jax.vmap"
        )
    if is_concrete(array) and not (np.asarray(array) != config.pad_id).any():
        raise InputError(f"{name} is only padding; give a sentence that has tokens")
    return jnp.asarray(array)


def check_pairs(
    source: Tokens, target: Tokens, config: ModelConfig
) -> tuple[Int[Array, "B S"], Int[Array, "B T"]]:
    """Convert the token ids of many sentence pairs to two arrays.

    Args:
      source: source sentences, padded to one length.
      target: their translations, padded to one length.

    Raises:
      InputError: as in `check_tokens`, except that single rows may be only padding.
    """
    describe(config)
    source = _token_array("source", source, config)
    target = _token_array("target", target, config)
    for name, array in (("source", source), ("target", target)):
        if array.ndim != 2 or not array.size:
            raise InputError(
                f"{name} has the shape {list(array.shape)}, but it must be sentences padded with "
                f"{config.pad_id} to one length, [B,S]"
            )
    if len(source) != len(target):
        raise InputError(
            f"there are {len(source)} source sentences and {len(target)} targets; give one target "
            "a source"
        )
    return jnp.asarray(source), jnp.asarray(target)


def _token_array(name: str, tokens: Tokens, config: ModelConfig) -> Array | np.ndarray:
    """Integers and, if concrete, within the vocabulary."""
    try:
        array = tokens if isinstance(tokens, jax.Array) else np.asarray(tokens)
    except ValueError:
        raise InputError(
            f"{name} has rows of different lengths; pad them with {config.pad_id}"
        ) from None
    if array.size and not jnp.issubdtype(array.dtype, jnp.integer):
        raise InputError(f"{name} is {array.dtype}, but token ids are integers")
    if is_concrete(array):
        ids = np.asarray(array)
        size = config.vocab_size_of("source" if name.endswith("source") else "target")
        wrong = (ids < 0) | (ids >= size)
        if wrong.any():
            index = first_index(wrong)
            raise InputError(
                f"{name}{list(index)} is {ids[index]}, but this model's tokens are 0 to "
                f"{size - 1}; encode the text with the model's tokenizer"
            )
    return array


def _check_interventions(
    interventions: Interventions, config: ModelConfig, source: int, target: int
) -> None:
    """Reject those made for another model or other lengths, some of which would broadcast."""
    required = _shapes(jax.eval_shape(lambda: no_interventions(config, source, target)))
    allowed = required | _shapes(_all_patches(config, source, target))
    given = _shapes(interventions)
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
                f"no_interventions(config, {source}, {target})"
            )


def _patches_weights(interventions: Interventions | None, kind: Kind) -> bool:
    """Whether the weights are not those of a softmax, so that their rows may not sum to 1."""
    if interventions is None:
        return False
    stack = interventions.encoder if kind == "encoder" else interventions.decoder
    patches = stack.cross_attention if kind == "cross" else stack.self_attention
    return patches is not None and patches.weights is not None


def _shapes(interventions: Interventions) -> dict[str, tuple[int, ...]]:
    """The shape of every array, by its path."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(interventions)
    return {jax.tree_util.keystr(path): jnp.shape(leaf) for path, leaf in leaves}


def _all_patches(config: ModelConfig, source: int, target: int) -> Interventions:
    """The shapes of all patches that `no_interventions` leaves out."""

    def patch(*shape: int) -> Patch:
        return Patch(*[jax.ShapeDtypeStruct(shape, jnp.float32)] * 2)

    if not isinstance(config, TransformerConfig):
        nothing = StackInterventions(None, None, None)
        return Interventions(nothing, nothing)
    description, lengths = describe(config), {"encoder": source, "decoder": target}

    def attention(kind: Kind, side: str, keys: int) -> AttentionPatches | None:
        if kind not in description.attention:
            return None
        (d_k, d_v), queries = config.head_widths(side), lengths[side]
        heads = description.attention[kind]
        sizes = {"query": (queries, d_k), "key": (keys, d_k), "value": (keys, d_v)}
        sizes |= {"weights": (queries, keys), "z": (queries, d_v)}
        return AttentionPatches(**{site: patch(*heads, *size) for site, size in sizes.items()})

    def stack(side: str, length: int) -> StackInterventions:
        layers = description.residual_layers.get(side)
        cross = attention("cross", side, source) if side == "decoder" else None
        network = patch(layers, length, description.d_model) if layers else None
        own = attention(side, side, length)
        return StackInterventions(None, None, None, own, cross, network)

    return Interventions(stack("encoder", source), stack("decoder", target))


def _without_batch(trace: Trace) -> Trace:
    """Remove the batch axis of a trace of one sentence pair."""

    def attention(trace: AttentionTrace | None) -> AttentionTrace | None:
        return jax.tree.map(lambda array: array[:, 0], trace)

    def stack(trace: StackTrace | None) -> StackTrace | None:
        if trace is None:
            return None
        pair = trace.replace(
            self_attention=attention(trace.self_attention),
            cross_attention=attention(trace.cross_attention),
        )
        if trace.residual is None:
            return pair
        return pair.replace(
            embedded=trace.embedded[0],
            feed_forward=trace.feed_forward[:, 0],
            sublayers=trace.sublayers[:, :, 0],
            residual=trace.residual[:, 0],
        )

    logits = None if trace.logits is None else trace.logits[0]
    return Trace(stack(trace.encoder), stack(trace.decoder), logits)


# Attention masks.


@flax.struct.dataclass
class Masks:
    """Keys [S] that each query [T] may attend to, by kind of attention."""

    encoder: Bool[Array, "#S S"]
    decoder: Bool[Array, "T T"]
    cross: Bool[Array, "#T S"]


def masks_of(source: Int[Array, " S"], target_length: int, pad_id: int = 0) -> Masks:
    """The attention masks of a sentence pair (paper 3.2.3)."""
    real = padding_mask(source[None], pad_id)[0, 0]
    return Masks(encoder=real, decoder=causal_mask(target_length)[0, 0], cross=real)
