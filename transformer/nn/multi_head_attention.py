# SPDX-License-Identifier: Apache-2.0
"""Multi-head attention (paper 3.2.2): projections, the attention kernel, and the output map."""

import flax.linen as nn
from jax.nn.initializers import zeros

from transformer.arrays import Array, Bool, Float, Int
from transformer.config import TransformerConfig
from transformer.nn.attention import KERNELS, cached_attention
from transformer.nn.capture import AttentionTrace, Capture, gate
from transformer.nn.dropout import dropout
from transformer.nn.matmul import project
from transformer.nn.parameters import declare, glorot_uniform
from transformer.nn.positions import PositionTerm


class MultiHeadAttention(nn.Module):
    """Concat(head_1, ..., head_N) W^O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V).

    Queries, keys, values and output may differ in width; in the Transformer all four are d_model.
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
        """Kernels [D,N,H] for queries, keys and values, and [N,H,D] for the output."""
        heads_in, heads_out = glorot_uniform(0, (1, 2)), glorot_uniform((0, 1), 2)
        n, d_k, d_v = self.num_heads, self.d_k, self.d_v

        def input_kernel(name: str, *shape: int) -> Array:
            return declare(self, name, "kernel", ("embed", "heads", "kv"), heads_in, shape)

        self.query_kernel = input_kernel("query", self.query_width, n, d_k)
        self.key_kernel = input_kernel("key", self.key_width, n, d_k)
        self.value_kernel = input_kernel("value", self.value_width, n, d_v)
        self.output_kernel = declare(
            self,
            "output",
            "kernel",
            ("heads", "kv", "embed"),
            heads_out,
            (n, d_v, self.output_width),
            num_input_axes=2,
        )

        def bias(name: str, axes: tuple[str, ...], *shape: int) -> Array | None:
            return declare(self, name, "bias", axes, zeros, shape) if self.bias else None

        self.query_bias = bias("query_bias", ("heads", "kv"), n, d_k)
        self.key_bias = bias("key_bias", ("heads", "kv"), n, d_k)
        self.value_bias = bias("value_bias", ("heads", "kv"), n, d_v)
        self.output_bias = bias("output_bias", ("embed",), self.output_width)

    def __call__(
        self,
        queries_from: Float[Array, "B T Dq"],
        keys_from: Float[Array, "B S Dk"],
        values_from: Float[Array, "B S Dv"],
        mask: Bool[Array, "#B #N #T S"] | None,
        *,
        positions: PositionTerm | None = None,
        train: bool = False,
        example_ids: Int[Array, " B"] | None = None,
        capture: Capture = "none",
        gates: Float[Array, " N"] | None = None,
    ) -> tuple[Float[Array, "B T D"], AttentionTrace | None]:
        """Self-attention if all three inputs are the same, cross-attention otherwise.

        Args:
          queries_from: what W^Q is applied to.
          keys_from: what W^K is applied to.
          values_from: what W^V is applied to.
          mask: true where a query may attend to a key.
          positions: how positions enter the scores, besides through the inputs.
          train: apply dropout to the weights.
          example_ids: global index of each example in the batch, for dropout.
          capture: what the trace holds.
          gates: a factor for each head's output.

        Returns:
          the output, and the trace (None if `capture` is ``none``).
        """
        key, value = self.keys_values(keys_from, values_from, positions)
        query = self.queries(queries_from, positions)

        def drop_weights(weights: Array) -> Array:
            key = self.make_rng("dropout")
            return dropout(weights, self.dropout, key, example_ids, self.dropout_generator)

        attended = KERNELS[self.kernel](
            query,
            key,
            value,
            mask,
            None if positions is None else positions.bias,
            dropout=drop_weights if train and self.dropout else None,
            with_weights=capture != "none",
        )
        z = gate(attended.z, gates)  # [B, T, N, Hv]
        output = project("BTNH,NHD->BTD", z, self.output_kernel, self.output_bias)
        if capture == "none":
            return output, None
        trace = AttentionTrace(weights=attended.weights)
        if capture == "full":
            trace = trace.replace(
                scores=attended.scores,
                query=query.swapaxes(1, 2),  # [B, N, T, H], as are the next three
                key=key.swapaxes(1, 2),
                value=value.swapaxes(1, 2),
                z=z.swapaxes(1, 2),
                head_out=project("BTNH,NHD->BNTD", z, self.output_kernel),
                output=output,
            )
        return output, trace

    def queries(
        self, x: Float[Array, "B T D"], positions: PositionTerm | None = None
    ) -> Float[Array, "B T N H"]:
        """Q W^Q for all heads, rotated by position if the scheme rotates."""
        query = project("BTD,DNH->BTNH", x, self.query_kernel, self.query_bias)
        return _rotated(query, positions)

    def keys_values(
        self,
        keys_from: Float[Array, "B S Dk"],
        values_from: Float[Array, "B S Dv"],
        positions: PositionTerm | None = None,
    ) -> tuple[Float[Array, "B S N H"], Float[Array, "B S N Hv"]]:
        """K W^K, rotated by position if the scheme rotates, and V W^V, for all heads."""
        key = project("BSD,DNH->BSNH", keys_from, self.key_kernel, self.key_bias)
        value = project("BSD,DNH->BSNH", values_from, self.value_kernel, self.value_bias)
        return _rotated(key, positions), value

    def attend_cached(
        self,
        query: Float[Array, "B K N H"],
        key: Float[Array, "B N H C"],
        value: Float[Array, "B N C Hv"],
        mask: Bool[Array, "#B 1 #K C"],
        positions: PositionTerm | None = None,
    ) -> Float[Array, "B K D"]:
        """Attention and output map for one query of each beam, over cached keys and values."""
        bias = None if positions is None else positions.bias
        z = cached_attention(query.swapaxes(1, 2), key, value, mask, bias)  # [B, N, K, Hv]
        z = z.swapaxes(1, 2).reshape(*query.shape[:2], -1)  # [B, K, J]
        # Heads and head size are one axis J here: over two, XLA would copy both operands.
        kernel = self.output_kernel.reshape(-1, self.output_width)  # [J, D]
        return project("BKJ,JD->BKD", z, kernel, self.output_bias)


def _rotated(x: Float[Array, "B T N H"], positions: PositionTerm | None) -> Float[Array, "B T N H"]:
    return x if positions is None or positions.rotate is None else positions.rotate(x)


def attention_of(
    config: TransformerConfig, side: str, name: str | None = None
) -> MultiHeadAttention:
    """The attention sub-layer that a config describes, for the ``encoder`` or the ``decoder``."""
    d_k, d_v = config.head_widths(side)
    return MultiHeadAttention(
        num_heads=config.heads(side),
        d_k=d_k,
        d_v=d_v,
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
