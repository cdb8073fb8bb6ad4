# SPDX-License-Identifier: Apache-2.0
"""One sentence pair through the model, everything on the way kept and anything on the way changed.

Arrays have no batch axis: attention weights are ``[L,N,T,S]``. A batch is `jax.vmap` of `run`. All
of this may be transformed by `jax.jit` (with `config` and `capture` static), `jax.vmap` and
`jax.grad`; what depends on values and not on shapes is checked where values are known.
"""

from collections.abc import Sequence
from typing import Any, TypeGuard, get_args

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import (
    ApplyScopeInvalidVariablesStructureError,
    ApplyScopeInvalidVariablesTypeError,
    ScopeParamNotFoundError,
    ScopeParamShapeError,
)

from transformer.arrays import PAD_ID, Array, Bool, Float, Int, Params
from transformer.config import TransformerConfig
from transformer.errors import InputError
from transformer.inspection.attention_checks import check_weights, first_index
from transformer.models import base
from transformer.nn.capture import KINDS, AttentionTrace, Capture, Interventions, StackTrace, Trace
from transformer.nn.masks import causal_mask, padding_mask

Tokens = Array | np.ndarray | Sequence
"""Token ids of one sentence; the functions below refuse what is not ``Int[S]``."""


def run(
    params: Params,
    config: TransformerConfig,
    source: Tokens,
    target_in: Tokens,
    *,
    capture: Capture = "none",
    interventions: Interventions | None = None,
) -> tuple[Float[Array, "T V"], Trace | None]:
    """The logits of one sentence pair, and what was seen on the way to them.

    Row t of the logits is computed while the decoder reads ``target_in[t]`` and predicts the token
    after it; so are row t of every attention of the decoder and of its residual stream.

    Computed operation by operation (not compiled), the logits are bitwise the same whatever is
    captured, and with the interventions of `Interventions.none`. Under `jax.jit` each choice is
    another program, in which XLA may join and order sums differently: they agree to rounding.

    Args:
      params: of the model that `config` describes, as in a `TrainState`.
      config: of the model (``Config.model``). Weights are captured with
        ``attention_kernel="einsum"`` only, which any model's parameters can be used with.
      source: ids [S], the end token last; 0 where padded.
      target_in: ids [T] that the decoder reads: the start token, then the target.
      capture: ``none``; ``weights``, the attention weights; or ``full``, everything. Static.
      interventions: gates on the heads and patches of the residual stream.

    Returns:
      the logits, in the compute dtype, and the trace, whose arrays lack the axis B; None in its
      place when `capture` is ``none``.

    Raises:
      InputError: for parameters of another model, tokens that are not one sentence of the
        vocabulary, interventions made for another model or length, or a kernel that keeps no
        weights; and where the values are known (not under a transformation), for weights whose
        rows do not sum to 1.
    """
    if capture not in get_args(Capture):
        raise InputError(f"capture {capture!r} is unknown; choose one of {list(get_args(Capture))}")
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
    masks = masks_of(source, len(target_in))
    if is_concrete(trace, masks):
        for kind in KINDS:
            name = f"the weights of {kind} attention"
            check_weights(trace.attention(kind).weights, getattr(masks, kind), name)
    return logits[0], trace


def apply(params: Params, config: TransformerConfig, *arguments: Any, **options: Any) -> Any:
    """`Module.apply` of the model that `config` describes.

    Raises:
      InputError: when the parameters are those of another model.
    """
    try:
        return base.build(config).apply({"params": params}, *arguments, **options)
    except (
        ApplyScopeInvalidVariablesStructureError,
        ApplyScopeInvalidVariablesTypeError,
        ScopeParamNotFoundError,
        ScopeParamShapeError,
    ) as error:
        reason = str(error).partition(" (http")[0]
        raise InputError(
            f"the parameters are not those of this config ({reason}); give the config that the "
            "model was trained with, and TrainState.weights or Translator.params"
        ) from None


def check_config(config: TransformerConfig) -> None:
    """Refuses what is no model's config.

    Raises:
      InputError: for the config of a whole experiment above all.
    """
    if not isinstance(config, TransformerConfig):
        raise InputError(
            f"config is a {type(config).__name__}, but it must be that of the model: config.model"
        )


def check_at_least_one(name: str, number: int | None) -> None:
    """Refuses a count below 1; None, where something is not given, is no count.

    Raises:
      InputError: naming it.
    """
    if number is not None and number < 1:
        raise InputError(f"{name} is {number}, but it must be at least 1")


def is_concrete(*values: object) -> bool:
    """Whether the values of these pytrees are known: not while JAX traces a function."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values))


def check_tokens(name: str, tokens: Tokens, config: TransformerConfig) -> Int[Array, " S"]:
    """The token ids of one sentence as an array.

    Args:
      name: of the argument, for the message.
      tokens: an array, or a list as `Tokenizer.encode` gives one for each sentence.
      config: of the model.

    Raises:
      InputError: when they are not a row of whole numbers, are all padding, or (where values are
        known) are outside the vocabulary.
    """
    array = _token_array(name, tokens, config)
    if array.ndim != 1 or not array.size:
        raise InputError(
            f"{name} has the shape {list(array.shape)}, but it must be one sentence, [S]; for "
            "several sentences of one length use jax.vmap"
        )
    if is_concrete(array) and not (np.asarray(array) != PAD_ID).any():
        raise InputError(f"{name} is padding throughout; give a sentence that has tokens")
    return jnp.asarray(array)


def check_pairs(
    source: Tokens, target: Tokens, config: TransformerConfig
) -> tuple[Int[Array, "B S"], Int[Array, "B T"]]:
    """The token ids of many sentence pairs as two arrays.

    Args:
      source: of the source sentences, padded with 0 to one length.
      target: of as many translations, padded with 0 to one length.
      config: of the model.

    Raises:
      InputError: as in `check_tokens`, but that single rows may be padding throughout.
    """
    arrays = {
        "source": _token_array("source", source, config),
        "target": _token_array("target", target, config),
    }
    for name, array in arrays.items():
        if array.ndim != 2 or not array.size:
            raise InputError(
                f"{name} has the shape {list(array.shape)}, but it must be sentences padded with 0 "
                "to one length, [B,S]"
            )
    if len(arrays["source"]) != len(arrays["target"]):
        raise InputError(
            f"there are {len(arrays['source'])} source sentences and {len(arrays['target'])} "
            "targets; give one target a source"
        )
    return jnp.asarray(arrays["source"]), jnp.asarray(arrays["target"])


def _token_array(name: str, tokens: Tokens, config: TransformerConfig) -> Array | np.ndarray:
    """Whole numbers, and where they are known, of the vocabulary."""
    check_config(config)
    try:
        array = tokens if _is_array(tokens) else np.asarray(tokens)
    except ValueError:
        raise InputError(f"{name} has rows of different lengths; pad them with 0") from None
    if array.size and not jnp.issubdtype(array.dtype, jnp.integer):
        raise InputError(f"{name} is {array.dtype}, but token ids are whole numbers")
    if is_concrete(array):
        ids = np.asarray(array)
        wrong = (ids < 0) | (ids >= config.vocab_size)
        if wrong.any():
            place = first_index(wrong)
            raise InputError(
                f"{name}{list(place)} is {ids[place]}, but this model's tokens are 0 to "
                f"{config.vocab_size - 1}; encode the text with the model's own tokenizer"
            )
    return array


def _is_array(tokens: Tokens) -> TypeGuard[Array | np.ndarray]:
    return isinstance(tokens, jax.Array | np.ndarray)


def _check_interventions(
    interventions: Interventions, config: TransformerConfig, source: int, target: int
) -> None:
    """Refuses those made for another model or other lengths; einsums would broadcast some."""
    expected = jax.eval_shape(lambda: Interventions.none(config, source, target))
    leaves, found = jax.tree_util.tree_flatten_with_path(interventions)
    if found != jax.tree.structure(expected):
        raise InputError(
            "interventions lack a part; change those of Interventions.none with .replace(...)"
        )
    for (path, leaf), like in zip(leaves, jax.tree.leaves(expected), strict=True):
        if jnp.shape(leaf) != like.shape:
            raise InputError(
                f"interventions{jax.tree_util.keystr(path)} has the shape {list(jnp.shape(leaf))}, "
                f"but this model and these sentences need {list(like.shape)}; begin with "
                f"Interventions.none(config, {source}, {target})"
            )


def _without_batch(trace: Trace) -> Trace:
    """The trace of the one sentence pair of a batch."""

    def attention(trace: AttentionTrace | None) -> AttentionTrace | None:
        return jax.tree.map(lambda array: array[:, 0], trace)

    def stack(trace: StackTrace) -> StackTrace:
        own = trace.replace(
            self_attention=attention(trace.self_attention),
            cross_attention=attention(trace.cross_attention),
        )
        if trace.residual is None:
            return own
        return own.replace(
            embedded=trace.embedded[0],
            feed_forward=trace.feed_forward[:, 0],
            sublayers=trace.sublayers[:, :, 0],
            residual=trace.residual[:, 0],
        )

    logits = None if trace.logits is None else trace.logits[0]
    return Trace(stack(trace.encoder), stack(trace.decoder), logits)


# What the attention matrices must be.


@flax.struct.dataclass
class Masks:
    """By kind of attention, which keys [S] each query [T] may attend to."""

    encoder: Bool[Array, "#S S"]
    decoder: Bool[Array, "T T"]
    cross: Bool[Array, "#T S"]


def masks_of(source: Int[Array, " S"], target_length: int) -> Masks:
    """The masks under which the model computes a sentence pair (paper 3.2.3)."""
    real = padding_mask(source[None])[0, 0]
    return Masks(encoder=real, decoder=causal_mask(target_length)[0, 0], cross=real)
