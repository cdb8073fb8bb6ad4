# SPDX-License-Identifier: Apache-2.0
"""The building blocks of figure 1: attention heads, feed-forward network, residual + norm,
embedding.

Paper 3.1 to 3.4. Every formula is a plain function; the modules below declare parameters, with
their logical axes, and call it.
"""

from collections.abc import Callable

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax.nn.initializers import normal, ones, variance_scaling, zeros

from transformer.arrays import Array, Bool, Float, Int, wide
from transformer.config import TransformerConfig
from transformer.errors import InputError
from transformer.nn.attention import KERNELS, cached_attention
from transformer.nn.cache import LayerCache
from transformer.nn.capture import AttentionTrace, Capture, gate
from transformer.nn.dropout import GENERATORS, Rows, dropout
from transformer.nn.matmul import product
from transformer.nn.positions import sinusoids

ACTIVATIONS = {"relu": jax.nn.relu, "gelu": jax.nn.gelu, "swish": jax.nn.swish}


def project(spec: str, x: Array, kernel: Array, bias: Array | None = None) -> Array:
    """The one linear map of the model: an einsum of activations and a kernel, plus a bias.

    The kernel, a float32 parameter, is cast to the dtype of the activations, which is the compute
    dtype. The bias is added in float32 or wider, so that its gradient, a sum over all rows, is one
    too.
    """
    output = product(spec, x, kernel.astype(x.dtype))
    if bias is None:
        return output
    return (output.astype(wide(x.dtype)) + bias).astype(x.dtype)


def layer_norm(
    x: Float[Array, "*B D"],
    scale: Float[Array, " D"],
    bias: Float[Array, " D"],
    epsilon: float,
) -> Float[Array, "*B D"]:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over D, in float32 or wider."""
    centred = x.astype(wide(x.dtype))
    centred = centred - centred.mean(-1, keepdims=True)
    variance = jnp.square(centred).mean(-1, keepdims=True)
    return (centred * jax.lax.rsqrt(variance + epsilon) * scale + bias).astype(x.dtype)


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


def _glorot(in_axis, out_axis):
    return variance_scaling(1.0, "fan_avg", "uniform", in_axis=in_axis, out_axis=out_axis)


class _Parametric(nn.Module):
    """A module that declares parameters with logical axis names and drops out by rate."""

    def parameter(self, name: str, axes: tuple[str, ...], initializer, shape: tuple[int, ...]):
        """A float32 parameter whose axes the sharding rules map to the mesh."""
        return self.param(name, nn.with_logical_partitioning(initializer, axes), shape)

    def dropped(
        self, x: Float[Array, "B ..."], rate: float, generator: str, rows: Rows | None
    ) -> Float[Array, "B ..."]:
        """`x` after dropout. Everywhere below, `rows` are given in training, None otherwise."""
        if rows is None or not rate:
            return x
        bits = GENERATORS[generator](self.make_rng("dropout"), rows, x.shape[1:])
        return dropout(x, rate, bits)


class MultiHeadAttention(_Parametric):
    """Concat(head_1, ..., head_N) W^O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V) (paper
    3.2.2).

    Queries, keys, values and the output each have a width of their own; in the Transformer all four
    are d_model.
    """

    num_heads: int
    d_k: int
    d_v: int
    query_width: int
    key_width: int
    value_width: int
    output_width: int
    bias: bool = False
    kernel: str = "einsum"
    dropout: float = 0.0
    dropout_generator: str = "threefry"

    def setup(self) -> None:
        """Kernels [width, N, H] for queries, keys and values, and [N, H, width] for the output."""
        heads_in, heads_out = _glorot(0, (1, 2)), _glorot((0, 1), 2)
        axes = ("embed", "heads", "kv")
        n, d_k, d_v = self.num_heads, self.d_k, self.d_v
        self.query_kernel = self.parameter("query", axes, heads_in, (self.query_width, n, d_k))
        self.key_kernel = self.parameter("key", axes, heads_in, (self.key_width, n, d_k))
        self.value_kernel = self.parameter("value", axes, heads_in, (self.value_width, n, d_v))
        self.output_kernel = self.parameter(
            "output", ("heads", "kv", "embed"), heads_out, (n, d_v, self.output_width)
        )

        def bias(name: str, axes: tuple[str, ...], *shape: int):
            return self.parameter(name, axes, zeros, shape) if self.bias else None

        self.query_bias = bias("query_bias", axes[1:], n, d_k)
        self.key_bias = bias("key_bias", axes[1:], n, d_k)
        self.value_bias = bias("value_bias", axes[1:], n, d_v)
        self.output_bias = bias("output_bias", ("embed",), self.output_width)

    def queries(self, x: Float[Array, "B T D"]) -> Float[Array, "B T N H"]:
        """Q W^Q, all heads at once."""
        return project("BTD,DNH->BTNH", x, self.query_kernel, self.query_bias)

    def keys_values(
        self, keys_from: Float[Array, "B S Dk"], values_from: Float[Array, "B S Dv"]
    ) -> tuple[Float[Array, "B S N H"], Float[Array, "B S N Hv"]]:
        """K W^K and V W^V, all heads at once."""
        return (
            project("BSD,DNH->BSNH", keys_from, self.key_kernel, self.key_bias),
            project("BSD,DNH->BSNH", values_from, self.value_kernel, self.value_bias),
        )

    def attend(
        self,
        query: Float[Array, "B T N H"],
        key: Float[Array, "B S N H"],
        value: Float[Array, "B S N Hv"],
        mask: Bool[Array, "#B #N #T S"] | None,
        *,
        rows: Rows | None = None,
        capture: Capture = "none",
        gates: Float[Array, " N"] | None = None,
    ) -> tuple[Float[Array, "B T D"], AttentionTrace | None]:
        """Attention of every head, and the heads together times W^O."""
        drop = None
        if rows is not None and self.dropout:
            options = (self.dropout, self.dropout_generator, rows)
            drop = lambda weights: self.dropped(weights, *options)  # noqa: E731
        attended = KERNELS[self.kernel](
            query, key, value, mask, dropout=drop, with_weights=capture != "none"
        )
        z = gate(attended.z, gates)
        output = project("BTNH,NHD->BTD", z, self.output_kernel, self.output_bias)
        if capture == "none":
            return output, None
        trace = AttentionTrace(weights=attended.weights)
        if capture == "full":
            trace = trace.replace(
                scores=attended.scores,
                query=query.swapaxes(1, 2),
                key=key.swapaxes(1, 2),
                value=value.swapaxes(1, 2),
                z=z.swapaxes(1, 2),
                head_out=project("BTNH,NHD->BNTD", z, self.output_kernel),
                output=output,
            )
        return output, trace

    def attend_cached(
        self,
        query: Float[Array, "B K N H"],
        key: Float[Array, "B N H C"],
        value: Float[Array, "B N C Hv"],
        mask: Bool[Array, "#B 1 #K C"],
    ) -> Float[Array, "B K D"]:
        """`attend` for one query of each beam, over keys and values as a cache lays them out."""
        z = cached_attention(query.swapaxes(1, 2), key, value, mask).swapaxes(1, 2)
        # One axis for heads and head size: of two, XLA copies both operands to sum over them.
        kernel = self.output_kernel.reshape(-1, self.output_width)
        return project("BKC,CD->BKD", z.reshape(*z.shape[:2], -1), kernel, self.output_bias)

    def __call__(
        self,
        queries_from: Float[Array, "B T Dq"],
        keys_from: Float[Array, "B S Dk"],
        values_from: Float[Array, "B S Dv"],
        mask: Bool[Array, "#B #N #T S"] | None,
        *,
        rows: Rows | None = None,
        capture: Capture = "none",
        gates: Float[Array, " N"] | None = None,
    ) -> tuple[Float[Array, "B T D"], AttentionTrace | None]:
        """Self-attention when all three inputs are the same, cross-attention otherwise."""
        key, value = self.keys_values(keys_from, values_from)
        query = self.queries(queries_from)
        return self.attend(query, key, value, mask, rows=rows, capture=capture, gates=gates)


class FeedForward(_Parametric):
    """The position-wise feed-forward network (paper 3.3)."""

    config: TransformerConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], *, rows: Rows | None = None
    ) -> Float[Array, "B T D"]:
        """FFN(x)."""
        d_model, d_ff = self.config.d_model, self.config.d_ff
        return feed_forward(
            x,
            self.parameter("kernel_in", ("embed", "mlp"), _glorot(0, 1), (d_model, d_ff)),
            self.parameter("bias_in", ("mlp",), zeros, (d_ff,)),
            self.parameter("kernel_out", ("mlp", "embed"), _glorot(0, 1), (d_ff, d_model)),
            self.parameter("bias_out", ("embed",), zeros, (d_model,)),
            ACTIVATIONS[self.config.activation],
            lambda hidden: self.dropped(
                hidden, self.config.activation_dropout, self.config.dropout_generator, rows
            ),
        )


class LayerNorm(_Parametric):
    """Layer normalisation with learned scale and bias."""

    epsilon: float

    @nn.compact
    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """The normalised x."""
        width = x.shape[-1:]
        scale = self.parameter("scale", ("norm",), ones, width)
        bias = self.parameter("bias", ("norm",), zeros, width)
        return layer_norm(x, scale, bias, self.epsilon)


class Residual(_Parametric):
    """The connection around every sub-layer (paper 3.1, 5.4).

    post: LayerNorm(x + Dropout(Sublayer(x))), the paper's. pre: x +
    Dropout(Sublayer(LayerNorm(x))).
    """

    config: TransformerConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        sublayer: Callable[[Array], tuple[Array, object]],
        *,
        rows: Rows | None = None,
    ) -> tuple[Float[Array, "B T D"], object]:
        """Wraps `sublayer`, which returns its output and what it captured."""
        norm = LayerNorm(self.config.norm_epsilon, name="norm")
        pre = self.config.norm == "pre"
        output, trace = sublayer(norm(x) if pre else x)
        x = x + self.dropped(output, self.config.dropout, self.config.dropout_generator, rows)
        return (x if pre else norm(x)), trace


def attention_of(
    config: TransformerConfig, side: str, name: str | None = None
) -> MultiHeadAttention:
    """The attention sub-layer that a config describes, for the ``encoder`` or the ``decoder``."""
    return MultiHeadAttention(
        num_heads=config.heads(side),
        d_k=config.head_widths(side)[0],
        d_v=config.head_widths(side)[1],
        query_width=config.d_model,
        key_width=config.d_model,
        value_width=config.d_model,
        output_width=config.d_model,
        bias=config.attention_bias,
        kernel=config.attention_kernel,
        dropout=config.attention_dropout,
        dropout_generator=config.dropout_generator,
        name=name,
    )


@flax.struct.dataclass
class LayerTrace:
    """What one layer captured; the last two only where the capture is full."""

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
        rows: Rows | None = None,
        capture: Capture = "none",
        gates: Float[Array, " N"] | None = None,
    ) -> tuple[Float[Array, "B S D"], LayerTrace]:
        """One layer."""
        attention = attention_of(self.config, "encoder", "self_attention")
        network = FeedForward(self.config, name="feed_forward")

        attended, trace = Residual(self.config, name="self_attention_residual")(
            x,
            lambda y: attention(y, y, y, mask, rows=rows, capture=capture, gates=gates),
            rows=rows,
        )
        output, transformed = Residual(self.config, name="feed_forward_residual")(
            attended, lambda y: (network(y, rows=rows),) * 2, rows=rows
        )
        captured = LayerTrace(trace)
        if capture == "full":
            captured = captured.replace(feed_forward=transformed, sublayers=(attended, output))
        return output, captured


class DecoderLayer(nn.Module):
    """Masked self-attention, attention over the memory, then feed-forward (figure 1, right)."""

    config: TransformerConfig

    def setup(self) -> None:
        """Three sub-layers and the residual around each."""
        self.self_attention = attention_of(self.config, "decoder")
        self.cross_attention = attention_of(self.config, "decoder")
        self.feed_forward = FeedForward(self.config)
        self.self_attention_residual = Residual(self.config)
        self.cross_attention_residual = Residual(self.config)
        self.feed_forward_residual = Residual(self.config)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: Float[Array, "B S D"],
        self_mask: Bool[Array, "#B 1 #T T"],
        cross_mask: Bool[Array, "#B 1 #T S"],
        *,
        rows: Rows | None = None,
        capture: Capture = "none",
        self_gates: Float[Array, " N"] | None = None,
        cross_gates: Float[Array, " N"] | None = None,
    ) -> tuple[Float[Array, "B T D"], LayerTrace]:
        """One layer over all target positions at once."""
        options = {"rows": rows, "capture": capture}

        attended, self_trace = self.self_attention_residual(
            x,
            lambda y: self.self_attention(y, y, y, self_mask, gates=self_gates, **options),
            rows=rows,
        )
        informed, cross_trace = self.cross_attention_residual(
            attended,
            lambda y: self.cross_attention(
                y, memory, memory, cross_mask, gates=cross_gates, **options
            ),
            rows=rows,
        )
        output, transformed = self.feed_forward_residual(
            informed, lambda y: (self.feed_forward(y, rows=rows),) * 2, rows=rows
        )
        captured = LayerTrace(self_trace, cross_trace)
        if capture == "full":
            sublayers = (attended, informed, output)
            captured = captured.replace(feed_forward=transformed, sublayers=sublayers)
        return output, captured

    def init_cache(
        self, memory: Float[Array, "B S D"], beams: int, length: int, groups: int
    ) -> LayerCache:
        """Room for `length` steps of `beams` hypotheses, and the memory's keys and values."""
        attention = self.self_attention
        cross_key, cross_value = self.cross_attention.keys_values(memory, memory)
        return LayerCache.of_memory(
            cross_key,
            cross_value,
            rows=memory.shape[0] * groups,
            places=length * beams // groups,
            widths=(attention.d_k, attention.d_v),
        )

    def step(
        self,
        x: Float[Array, "B K D"],
        cache: LayerCache,
        index: Int[Array, ""],
        self_mask: Bool[Array, "R 1 _ C"],
        cross_mask: Bool[Array, "B 1 1 S"],
    ) -> tuple[Float[Array, "B K D"], LayerCache]:
        """One target position of every beam: what `__call__` computes in row `index`.

        The beams of a sentence are queries side by side over one copy of the sentence's keys. In
        self-attention these are the keys of all beams of a row, masked for each query to its own.
        """
        rows, _, beams, _ = self_mask.shape
        here = index * beams

        def attend_to_self(y):
            y = y.reshape(rows, beams, -1)
            key, value = self.self_attention.keys_values(y, y)
            written = cache.write(key, value, here)
            query = self.self_attention.queries(y)
            output = self.self_attention.attend_cached(
                query, written.self_key, written.self_value, self_mask
            )
            return output.reshape(x.shape), written

        def attend_to_memory(y):
            query = self.cross_attention.queries(y)
            keys, values = cache.cross_key, cache.cross_value
            return self.cross_attention.attend_cached(query, keys, values, cross_mask), None

        x, cache = self.self_attention_residual(x, attend_to_self)
        x, _ = self.cross_attention_residual(x, attend_to_memory)
        x, _ = self.feed_forward_residual(x, lambda y: (self.feed_forward(y), None))
        return x, cache


class Embedding(_Parametric):
    """Tokens to vectors and vectors to logits with one table, and positions (paper 3.4, 3.5)."""

    config: TransformerConfig

    def setup(self) -> None:
        """The table [V, D]: the source's, the target's, and the one before the softmax."""
        config = self.config
        vectors = normal(config.d_model**-0.5)
        self.table = self.parameter(
            "table", ("vocab", "embed"), vectors, (config.vocab_size, config.d_model)
        )
        if config.positions == "learned":
            self.learned = self.parameter(
                "positions", ("position", "embed"), vectors, (config.max_positions, config.d_model)
            )

    def tokens(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Each token's row of the table, in the compute dtype, times sqrt(d_model)."""
        vectors = jnp.take(self.table, tokens, axis=0)
        if self.config.compute_dtype == "bfloat16":
            vectors = vectors.astype(jnp.bfloat16)
        return (vectors * jnp.sqrt(self.config.d_model)).astype(vectors.dtype)

    def positions(self, length: int) -> Float[Array, "T D"]:
        """The first `length` rows of the positional table."""
        config = self.config
        if config.positions == "learned":
            if length > config.max_positions:
                raise InputError(
                    f"{length} positions asked for, but the learned table has model.max_positions "
                    f"= {config.max_positions}; shorten the sentence or train with a longer table"
                )
            return self.learned[:length]
        return jnp.asarray(
            sinusoids(length, config.d_model, config.sinusoid_layout),
            wide(self.table.dtype),
        )

    def embed(
        self,
        tokens: Int[Array, "B T"],
        positions: Float[Array, "*#B #T D"],
        *,
        rows: Rows | None = None,
    ) -> Float[Array, "B T D"]:
        """Dropout(embedding * sqrt(d_model) + position)."""
        vectors = self.tokens(tokens)
        vectors = vectors + positions.astype(vectors.dtype)
        return self.dropped(vectors, self.config.dropout, self.config.dropout_generator, rows)

    def logits(
        self, x: Float[Array, "B T D"], table: Float[Array, "V D"] | None = None
    ) -> Float[Array, "B T V"]:
        """The pre-softmax linear map, whose kernel is the embedding table (paper 3.4), or the rows
        of it that are given.
        """
        return project("BTD,VD->BTV", x, self.table if table is None else table)
