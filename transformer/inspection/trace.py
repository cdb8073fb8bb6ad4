# SPDX-License-Identifier: Apache-2.0
"""Run a model on one sentence pair, read its activations, and intervene on them.

Arrays have no batch axis: attention weights are ``[L,N,T,S]``. Use `jax.vmap` for a batch. All
functions support `jax.jit` (with `model` and `capture` static), `jax.vmap` and `jax.grad`. Checks
of values, as opposed to shapes, are skipped under a transformation.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

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
from transformer.config import ModelConfig
from transformer.errors import InputError
from transformer.inspection.activations import Trace, describe, trace_of, without_batch
from transformer.inspection.argument_checks import check_weights, first_index
from transformer.inspection.interventions import Interventions
from transformer.models.protocol import Model
from transformer.nn.masks import causal_mask, padding_mask

Tokens = Array | np.ndarray | Sequence
"""Token ids of one sentence, ``Int[S]``; checked by the functions below."""
Capture = Literal["none", "weights", "full"]
"""A static argument: nothing, attention weights, or every intermediate value."""


def run(
    model: Model,
    params: Params,
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
      model: any model that taps its activations. Attention whose weights are read or patched is
        computed by the formula, whatever `model.attention_kernel` is.
      source: ids [S]; `pad_id` where padded.
      target_in: ids [T].
      capture: ``none``; ``weights``, the attention weights; or ``full``, everything. Static.
      interventions: gates on the heads and patches of activations.

    Returns:
      the logits, and the trace without the axis B; None if `capture` is ``none``.

    Raises:
      InputError: for interventions made for another model or length, or weights whose rows do not
        sum to 1.
    """
    if capture not in get_args(Capture):
        raise InputError(f"capture {capture!r} is unknown; choose one of {list(get_args(Capture))}")
    description = describe(model)
    source = check_tokens("source", source, model.config)
    target_in = check_tokens("target_in", target_in, model.config)
    if interventions is not None:
        interventions.check(model, len(source), len(target_in))
    logits, trace = apply(
        *(model, params, source[None], target_in[None]),
        capture=capture,
        interventions=interventions,
    )
    if trace is None:
        return logits[0], None
    trace = without_batch(trace)
    masks = masks_of(source, len(target_in), model.config.pad_id)
    if is_concrete(trace, masks):
        for kind in description.attention:
            if interventions is not None and interventions.patches_weights(kind):
                continue
            name = f"the weights of {kind} attention"
            check_weights(trace.attention(kind).weights, getattr(masks, kind), name)
    return logits[0], trace


def apply(
    model: Model,
    params: Params,
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
    patches = {} if interventions is None else interventions.patches(model)
    try:
        return call(model, params, source, target_in, patches, capture)
    except (
        ApplyScopeInvalidVariablesStructureError,
        ApplyScopeInvalidVariablesTypeError,
        ScopeCollectionNotFound,
        ScopeParamNotFoundError,
        ScopeParamShapeError,
    ) as error:
        reason = str(error).partition(" (http")[0]
        raise InputError(
            f"the parameters are not those of this model ({reason}); give the model that they "
            "were trained with, and TrainState.weights or Translator.params"
        ) from None


def _apply(
    model: Model,
    params: Params,
    source: Int[Array, "B S"],
    target_in: Int[Array, "B T"],
    patches: dict[str, Any],
    capture: Capture,
) -> tuple[Float[Array, "B T V"], Trace | None]:
    variables = {"params": params, "patches": patches}
    if capture == "none" and not patches:
        return model.apply(variables, source, target_in), None
    logits, tapped = model.apply(variables, source, target_in, mutable=["trace"])
    if capture == "none":
        return logits, None
    trace = trace_of(params, tapped["trace"])
    return logits, trace.weights_alone() if capture == "weights" else trace.replace(logits=logits)


_jitted_apply = jax.jit(_apply, static_argnames=("model", "capture"))


# Checks, batches and masks.


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
    """Convert the token ids of many sentence pairs, padded to one length a side, to two arrays.

    Raises:
      InputError: as in `check_tokens`, except that single rows may be only padding.
    """
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
