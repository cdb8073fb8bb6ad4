# SPDX-License-Identifier: Apache-2.0
"""Multi-head attention (paper 3.2.2): Concat(head_1, ..., head_N) W^O."""

import functools
from typing import Literal

import flax.linen as nn
from jax.nn.initializers import normal, zeros

from transformer import kernels
from transformer.arrays import Array, Bool, Float, Int
from transformer.config import TransformerConfig
from transformer.nn.attention import additive_scores, attention, repeat_heads, scaled_scores
from transformer.nn.dropout import apply_dropout
from transformer.nn.linear import project
from transformer.nn.parameters import declare, glorot_uniform
from transformer.nn.positions import NO_POSITIONS, PositionTerm
from transformer.nn.taps import is_tapped, tap


class MultiHeadAttention(nn.Module):
    """Project to N heads, attend in each, and map the concatenated heads to the output."""

    config: TransformerConfig
    side: Literal["encoder", "decoder"]
    """Which stack's head counts and sizes to use."""

    def setup(self) -> None:
        """Kernels [D,N,H] of queries, keys and values, and [N,H,D] of the output.

        With `model.num_kv_heads`, keys and values have that number of heads instead of N.
        """
        config, width = self.config, self.config.d_model
        n, kv_heads = config.heads(self.side), config.kv_heads(self.side)
        d_k, d_v = config.head_widths(self.side)
        into, out = glorot_uniform(0, (1, 2)), glorot_uniform((0, 1), 2)
        kv_axes = ("heads" if config.num_kv_heads is None else "kv_heads", "kv")

        def kernel(name: str, axes: tuple[str, ...], heads: int, size: int) -> Array:
            return declare(self, name, "kernel", ("embed", *axes), into, (width, heads, size))

        self.query_kernel = kernel("query", ("heads", "kv"), n, d_k)
        self.key_kernel = kernel("key", kv_axes, kv_heads, d_k)
        self.value_kernel = kernel("value", kv_axes, kv_heads, d_v)
        axes, shape = ("heads", "kv", "embed"), (n, d_v, width)
        self.output_kernel = declare(self, "output", "kernel", axes, out, shape, num_input_axes=2)

        def bias(name: str, axes: tuple[str, ...], *shape: int) -> Array | None:
            biased = config.attention_bias
            return declare(self, name, "bias", axes, zeros, shape) if biased else None

        self.query_bias = bias("query_bias", ("heads", "kv"), n, d_k)
        self.key_bias = bias("key_bias", kv_axes, kv_heads, d_k)
        self.value_bias = bias("value_bias", kv_axes, kv_heads, d_v)
        self.output_bias = bias("output_bias", ("embed",), width)
        self.score_vector = None
        if config.attention_score == "additive":
            axes, initializer = ("kv", "heads"), normal(d_k**-0.5)
            self.score_vector = declare(self, "score", "kernel", axes, initializer, (d_k, n))

    def __call__(
        self,
        queries_from: Float[Array, "B T D"],
        keys_from: Float[Array, "B S D"],
        values_from: Float[Array, "B S D"],
        mask: Bool[Array, "#B #N #T S"] | None = None,
        *,
        causal: bool = False,
        positions: PositionTerm = NO_POSITIONS,
        dropout: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Self-attention if all three inputs are the same, cross-attention otherwise.

        Args:
          mask: true where a query may attend to a key.
          causal: a query may attend only to keys up to its own position, besides what `mask`
            forbids.
          positions: how relative positions enter.
          dropout: see `apply_dropout`.
        """
        n = self.config.heads(self.side)
        key = project("BSD,DNH->BSNH", keys_from, self.key_kernel, self.key_bias)
        value = project("BSD,DNH->BSNH", values_from, self.value_kernel, self.value_bias)
        query = project("BTD,DNH->BTNH", queries_from, self.query_kernel, self.query_bias)
        query = tap(self, "query", positions.rotate(self.adjust(query, "query")))
        key = tap(self, "key", repeat_heads(positions.rotate(self.adjust(key, "key")), n))
        value = tap(self, "value", repeat_heads(value, n))
        z = tap(self, "z", self._attend(query, key, value, mask, causal, positions, dropout))
        output = project("BTNH,NHD->BTD", z, self.output_kernel, self.output_bias)
        return tap(self, "output", output)

    def adjust(
        self, x: Float[Array, "B T _ H"], name: Literal["query", "key"]
    ) -> Float[Array, "B T _ H"]:
        """Queries or keys as they are projected; a variant such as QK-norm overrides this."""
        return x

    def _attend(
        self,
        query: Float[Array, "B T N H"],
        key: Float[Array, "B S N H"],
        value: Float[Array, "B S N Hv"],
        mask: Bool[Array, "#B #N #T S"] | None,
        causal: bool,
        positions: PositionTerm,
        dropout: Int[Array, " B"] | None,
    ) -> Float[Array, "B T N Hv"]:
        """The formula, or a kernel that computes the same without its weights."""
        config = self.config
        needs_weights = (
            is_tapped(self, "scores", "weights")
            or self.score_vector is not None
            or positions.keys is not None
            or (dropout is not None and config.attention_dropout > 0)
        )
        if not needs_weights:
            kernel = kernels.choose(config.attention_kernel, query, key, value, positions.bias)
            if kernel is not None:
                return kernel(query, key, value, mask, positions.bias, causal=causal)

        def drop(weights: Float[Array, "B N T S"]) -> Float[Array, "B N T S"]:
            return apply_dropout(self, weights, config.attention_dropout, dropout)

        score = scaled_scores
        if self.score_vector is not None:
            score = functools.partial(additive_scores, vector=self.score_vector)
        return attention(
            *(query, key, value, mask),
            causal=causal,
            positions=positions,
            score=score,
            tap=functools.partial(tap, self),
            dropout=drop,
        )
