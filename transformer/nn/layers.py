# SPDX-License-Identifier: Apache-2.0
"""The layers of figure 1: layer norm, feed-forward network, residual connection, and the stacks'.

Paper 3.1 and 3.3. Every formula is a plain function; the modules declare parameters and call it.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax.nn.initializers import ones, zeros

from transformer.arrays import Array, Bool, Float, Int, wide
from transformer.config import TransformerConfig
from transformer.nn.cache import LayerCache
from transformer.nn.capture import AttentionPatches, AttentionTrace, Capture, Patch, patched
from transformer.nn.dropout import apply_dropout
from transformer.nn.matmul import project
from transformer.nn.multi_head_attention import MultiHeadAttention
from transformer.nn.parameters import declare, glorot_uniform
from transformer.nn.positions import NO_POSITIONS, PositionTerm

ACTIVATIONS = {
    "relu": jax.nn.relu,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),  # JAX's default is the tanh form
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "swish": jax.nn.swish,
}
GATES = {"reglu": "relu", "geglu": "gelu", "swiglu": "swish"}
"""The activation of each gated feed-forward network (Shazeer 2020)."""


def layer_norm(
    x: Float[Array, "*B D"],
    scale: Float[Array, " D"],
    bias: Float[Array, " D"],
    epsilon: float,
) -> Float[Array, "*B D"]:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over D, in float32 or wider."""
    if _is_batch_of_one(x):
        return layer_norm(x[0], scale, bias, epsilon)[None]
    centered = x.astype(wide(x.dtype))
    centered = centered - centered.mean(-1, keepdims=True)
    variance = jnp.square(centered).mean(-1, keepdims=True)  # [*B, 1]
    return (centered * jax.lax.rsqrt(variance + epsilon) * scale + bias).astype(x.dtype)


def rms_norm(
    x: Float[Array, "*B D"], scale: Float[Array, " D"], epsilon: float
) -> Float[Array, "*B D"]:
    """x / sqrt(mean(x^2) + epsilon) * scale over D (Zhang and Sennrich 2019, equation 4)."""
    if _is_batch_of_one(x):
        return rms_norm(x[0], scale, epsilon)[None]
    exact = x.astype(wide(x.dtype))
    mean_square = jnp.square(exact).mean(-1, keepdims=True)  # [*B, 1]
    return (exact * jax.lax.rsqrt(mean_square + epsilon) * scale).astype(x.dtype)


def _is_batch_of_one(x: Float[Array, "*B D"]) -> bool:
    """Whether x is [1, T, D].

    XLA's CPU backend takes eight times as long for the gradients of a norm of it as of [T, D].
    """
    return x.ndim == 3 and x.shape[0] == 1


def feed_forward(
    x: Float[Array, "B T D"],
    kernel_in: Float[Array, "D F"],
    bias_in: Float[Array, " F"],
    kernel_out: Float[Array, "F D"],
    bias_out: Float[Array, " D"],
    activation: Callable[[Array], Array] = jax.nn.relu,
    hidden_dropout: Callable[[Array], Array] = lambda hidden: hidden,
) -> Float[Array, "B T D"]:
    """FFN(x) = max(0, x W1 + b1) W2 + b2, the same at every position (paper 3.3)."""
    hidden = activation(project("BTD,DF->BTF", x, kernel_in, bias_in))
    return project("BTF,FD->BTD", hidden_dropout(hidden), kernel_out, bias_out)


def gated_feed_forward(
    x: Float[Array, "B T D"],
    kernel_gate: Float[Array, "D F"],
    kernel_in: Float[Array, "D F"],
    kernel_out: Float[Array, "F D"],
    activation: Callable[[Array], Array],
    hidden_dropout: Callable[[Array], Array] = lambda hidden: hidden,
) -> Float[Array, "B T D"]:
    """FFN(x) = (activation(x W) * (x V)) W2, without biases (Shazeer 2020, equation 6)."""
    hidden = activation(project("BTD,DF->BTF", x, kernel_gate))
    hidden = hidden * project("BTD,DF->BTF", x, kernel_in)
    return project("BTF,FD->BTD", hidden_dropout(hidden), kernel_out)


class LayerNorm(nn.Module):
    """Layer normalization with learned scale and bias."""

    epsilon: float

    @nn.compact
    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """Normalize x over its last axis."""
        width = x.shape[-1:]
        scale = declare(self, "scale", "scale", ("norm",), ones, width)
        bias = declare(self, "bias", "bias", ("norm",), zeros, width)
        return layer_norm(x, scale, bias, self.epsilon)


class RMSNorm(nn.Module):
    """Root mean square normalization with a learned scale."""

    epsilon: float

    @nn.compact
    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """Normalize x over its last axis."""
        scale = declare(self, "scale", "scale", ("norm",), ones, x.shape[-1:])
        return rms_norm(x, scale, self.epsilon)


NORMS = {"layer_norm": LayerNorm, "rms_norm": RMSNorm}
"""The norm of each `model.norm_kind`."""


class FeedForward(nn.Module):
    """The position-wise feed-forward network (paper 3.3)."""

    config: TransformerConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        *,
        train: bool = False,
        example_ids: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """FFN(x), with `model.activation_dropout` between its two linear maps."""
        config = self.config
        d_model, d_ff = config.d_model, config.d_ff
        glorot = glorot_uniform(0, 1)
        kernel_in = ("kernel_in", "kernel", ("embed", "mlp"), glorot, (d_model, d_ff))
        kernel_out = ("kernel_out", "kernel", ("mlp", "embed"), glorot, (d_ff, d_model))

        def hidden_dropout(hidden: Float[Array, "B T F"]) -> Float[Array, "B T F"]:
            rate = config.activation_dropout
            return apply_dropout(self, hidden, rate, train=train, example_ids=example_ids)

        if config.activation in GATES:
            kernel_gate = ("kernel_gate", *kernel_in[1:])
            kernels = [declare(self, *each) for each in (kernel_gate, kernel_in, kernel_out)]
            activation = ACTIVATIONS[GATES[config.activation]]
            return gated_feed_forward(x, *kernels, activation, hidden_dropout)
        return feed_forward(
            x,
            declare(self, *kernel_in),
            declare(self, "bias_in", "bias", ("mlp",), zeros, (d_ff,)),
            declare(self, *kernel_out),
            declare(self, "bias_out", "bias", ("embed",), zeros, (d_model,)),
            ACTIVATIONS[config.activation],
            hidden_dropout,
        )


class Residual(nn.Module):
    """The residual connection around every sub-layer (paper 3.1, 5.4).

    post: LayerNorm(x + Dropout(Sublayer(x))), as in the paper.
    pre: x + Dropout(Sublayer(LayerNorm(x))).
    """

    config: TransformerConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        sublayer: Callable[[Array], tuple[Array, Any]],
        *,
        train: bool = False,
        example_ids: Int[Array, " B"] | None = None,
    ) -> tuple[Float[Array, "B T D"], Any]:
        """Wrap `sublayer`, which returns its output and an auxiliary result."""
        norm = NORMS[self.config.norm_kind](self.config.norm_epsilon, name="norm")
        pre, rate = self.config.norm == "pre", self.config.dropout
        output, auxiliary = sublayer(norm(x) if pre else x)
        x = x + apply_dropout(self, output, rate, train=train, example_ids=example_ids)
        return (x if pre else norm(x)), auxiliary


@flax.struct.dataclass
class LayerTrace:
    """The intermediate values of one layer; the last two with full capture only."""

    self_attention: AttentionTrace | None
    cross_attention: AttentionTrace | None = None
    feed_forward: Float[Array, "B T D"] | None = None
    """The output of the feed-forward network."""
    sublayers: tuple[Float[Array, "B T D"], ...] = ()
    """The residual stream after each sub-layer."""


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward (figure 1, left)."""

    config: TransformerConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B S D"],
        mask: Bool[Array, "#B 1 #S S"],
        *,
        positions: PositionTerm = NO_POSITIONS,
        train: bool = False,
        example_ids: Int[Array, " B"] | None = None,
        capture: Capture = "none",
        self_gates: Float[Array, " N"] | None = None,
        self_patches: AttentionPatches | None = None,
        feed_forward_patch: Patch | None = None,
    ) -> tuple[Float[Array, "B S D"], LayerTrace]:
        """Apply the layer to all source positions."""
        attention = MultiHeadAttention(self.config, "encoder", name="self_attention")
        network = FeedForward(self.config, name="feed_forward")
        mode = {"train": train, "example_ids": example_ids}

        def attend(y: Float[Array, "B S D"]) -> tuple[Array, AttentionTrace | None]:
            options = {"positions": positions, "capture": capture}
            changes = {"gates": self_gates, "patches": self_patches}
            return attention(y, y, y, mask, **options, **changes, **mode)

        attended, trace = Residual(self.config, name="self_attention_residual")(x, attend, **mode)
        output, transformed = Residual(self.config, name="feed_forward_residual")(
            attended, lambda y: (patched(network(y, **mode), feed_forward_patch),) * 2, **mode
        )
        captured = LayerTrace(trace)
        if capture == "full":
            captured = captured.replace(feed_forward=transformed, sublayers=(attended, output))
        return output, captured


class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention over the memory, then feed-forward (figure 1, right).

    The paper calls cross-attention "encoder-decoder attention". Decoder-only models are without it;
    their memory has no positions.
    """

    config: TransformerConfig
    has_cross_attention = True

    def setup(self) -> None:
        """Three sub-layers (or two) and the residual connection around each."""
        self.self_attention = MultiHeadAttention(self.config, "decoder")
        self.feed_forward = FeedForward(self.config)
        self.self_attention_residual = Residual(self.config)
        self.feed_forward_residual = Residual(self.config)
        if self.has_cross_attention:
            self.cross_attention = MultiHeadAttention(self.config, "decoder")
            self.cross_attention_residual = Residual(self.config)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: Float[Array, "B S D"],
        self_mask: Bool[Array, "#B 1 #T T"] | None,
        cross_mask: Bool[Array, "#B 1 #T S"],
        *,
        positions: PositionTerm = NO_POSITIONS,
        train: bool = False,
        example_ids: Int[Array, " B"] | None = None,
        capture: Capture = "none",
        self_gates: Float[Array, " N"] | None = None,
        cross_gates: Float[Array, " N"] | None = None,
        self_patches: AttentionPatches | None = None,
        cross_patches: AttentionPatches | None = None,
        feed_forward_patch: Patch | None = None,
    ) -> tuple[Float[Array, "B T D"], LayerTrace]:
        """Apply the layer to all target positions at once; `positions` is for self-attention.

        Self-attention is causal besides what `self_mask` forbids (paper 3.2.3, third item).
        """
        mode = {"train": train, "example_ids": example_ids}

        def attend_to_self(y: Float[Array, "B T D"]) -> tuple[Array, AttentionTrace | None]:
            options = {"causal": True, "positions": positions, "capture": capture}
            changes = {"gates": self_gates, "patches": self_patches}
            return self.self_attention(y, y, y, self_mask, **options, **changes, **mode)

        def attend_to_memory(y: Float[Array, "B T D"]) -> tuple[Array, AttentionTrace | None]:
            options = {"capture": capture, "gates": cross_gates, "patches": cross_patches}
            return self.cross_attention(y, memory, memory, cross_mask, **options, **mode)

        attended, self_trace = self.self_attention_residual(x, attend_to_self, **mode)
        sublayers, cross_trace = [attended], None
        if self.has_cross_attention:
            informed, cross_trace = self.cross_attention_residual(
                attended, attend_to_memory, **mode
            )
            sublayers.append(informed)

        def transform(y: Float[Array, "B T D"]) -> tuple[Array, Array]:
            return (patched(self.feed_forward(y, **mode), feed_forward_patch),) * 2

        output, transformed = self.feed_forward_residual(sublayers[-1], transform, **mode)
        captured = LayerTrace(self_trace, cross_trace)
        if capture == "full":
            captured = captured.replace(feed_forward=transformed, sublayers=(*sublayers, output))
        return output, captured

    def init_cache(
        self, memory: Float[Array, "B S D"], num_beams: int, length: int, num_groups: int
    ) -> LayerCache:
        """An empty cache for `length` target positions, with the memory's keys and values."""
        # Without cross-attention the memory is empty, and so are its keys and values.
        attention = self.cross_attention if self.has_cross_attention else self.self_attention
        cross_key, cross_value = attention.keys_values(memory, memory)
        cache_length = length * num_beams // num_groups
        return LayerCache.create(
            cross_key, cross_value, num_groups=num_groups, cache_length=cache_length
        )

    def step(
        self,
        x: Float[Array, "B _ D"],
        cache: LayerCache,
        index: Int[Array, ""],
        self_mask: Bool[Array, "BG 1 K C"],
        cross_mask: Bool[Array, "B 1 1 S"],
        positions: PositionTerm = NO_POSITIONS,
    ) -> tuple[Float[Array, "B _ D"], LayerCache]:
        """Apply the layer to target position `index` of every beam, as `__call__` does to its row.

        The beams of a sentence act as query positions over one copy of its keys. In self-attention
        these are the keys of all K beams of a group, and the mask selects each hypothesis's slots.
        """
        groups, _, num_beams, _ = self_mask.shape

        def attend_to_self(y: Float[Array, "B _ D"]) -> tuple[Array, LayerCache]:
            y = y.reshape(groups, num_beams, -1)  # [BG, K, D]
            key, value = self.self_attention.keys_values(y, y, positions)
            written = cache.write(key, value, index * num_beams)
            query = self.self_attention.queries(y, positions)
            output = self.self_attention.attend_cached(
                query, written.self_key, written.self_value, self_mask, positions
            )
            return output.reshape(x.shape), written

        def attend_to_memory(y: Float[Array, "B _ D"]) -> tuple[Array, None]:
            query = self.cross_attention.queries(y)
            keys, values = cache.cross_key, cache.cross_value
            return self.cross_attention.attend_cached(query, keys, values, cross_mask), None

        x, cache = self.self_attention_residual(x, attend_to_self)
        if self.has_cross_attention:
            x, _ = self.cross_attention_residual(x, attend_to_memory)
        x, _ = self.feed_forward_residual(x, lambda y: (self.feed_forward(y), None))
        return x, cache
