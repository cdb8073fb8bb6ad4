# SPDX-License-Identifier: Apache-2.0
"""Multi-head attention (paper 3.2.2): projections, the attention kernel, and the output map."""

from typing import Literal

import flax.linen as nn
from jax.nn.initializers import normal, zeros

from transformer.arrays import Array, Bool, Float, Int
from transformer.config import TransformerConfig
from transformer.errors import InputError
from transformer.nn.attention import cached_attention, repeat_heads
from transformer.nn.attention_kernels import KERNELS
from transformer.nn.capture import AttentionPatches, AttentionTrace, Capture, gate, patch_heads
from transformer.nn.dropout import apply_dropout
from transformer.nn.matmul import project
from transformer.nn.parameters import declare, glorot_uniform
from transformer.nn.positions import NO_POSITIONS, PositionTerm


class MultiHeadAttention(nn.Module):
    """Concat(head_1, ..., head_N) W^O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V)."""

    config: TransformerConfig
    side: Literal["encoder", "decoder"]
    """Whose number of heads and head sizes apply."""

    def setup(self) -> None:
        """Kernels [D,N,H] for queries, keys and values, and [N,H,D] for the output.

        With `model.num_kv_heads`, keys and values have that number of heads instead of N.
        """
        heads_in, heads_out = glorot_uniform(0, (1, 2)), glorot_uniform((0, 1), 2)
        width, n = self.config.d_model, self.config.heads(self.side)
        d_k, d_v = self.config.head_widths(self.side)

        kv_heads = self.config.kv_heads(self.side)
        kv_axes = ("heads" if self.config.num_kv_heads is None else "kv_heads", "kv")

        def input_kernel(name: str, axes: tuple[str, ...], *shape: int) -> Array:
            return declare(self, name, "kernel", ("embed", *axes), heads_in, (width, *shape))

        self.query_kernel = input_kernel("query", ("heads", "kv"), n, d_k)
        self.key_kernel = input_kernel("key", kv_axes, kv_heads, d_k)
        self.value_kernel = input_kernel("value", kv_axes, kv_heads, d_v)
        axes, shape = ("heads", "kv", "embed"), (n, d_v, width)
        self.output_kernel = declare(
            self, "output", "kernel", axes, heads_out, shape, num_input_axes=2
        )

        def bias(name: str, axes: tuple[str, ...], *shape: int) -> Array | None:
            biased = self.config.attention_bias
            return declare(self, name, "bias", axes, zeros, shape) if biased else None

        self.query_bias = bias("query_bias", ("heads", "kv"), n, d_k)
        self.key_bias = bias("key_bias", kv_axes, kv_heads, d_k)
        self.value_bias = bias("value_bias", kv_axes, kv_heads, d_v)
        self.output_bias = bias("output_bias", ("embed",), width)
        self.score_vector = None
        if self.config.attention_score == "additive":
            axes, initializer = ("kv", "heads"), normal(d_k**-0.5)
            self.score_vector = declare(self, "score", "kernel", axes, initializer, (d_k, n))

    def __call__(
        self,
        queries_from: Float[Array, "B T D"],
        keys_from: Float[Array, "B S D"],
        values_from: Float[Array, "B S D"],
        mask: Bool[Array, "#B #N #T S"] | None,
        *,
        causal: bool = False,
        positions: PositionTerm = NO_POSITIONS,
        train: bool = False,
        example_ids: Int[Array, " B"] | None = None,
        capture: Capture = "none",
        gates: Float[Array, " N"] | None = None,
        patches: AttentionPatches | None = None,
    ) -> tuple[Float[Array, "B T D"], AttentionTrace | None]:
        """Self-attention if all three inputs are the same, cross-attention otherwise.

        Args:
          mask: true where a query may attend to a key.
          causal: a query may attend only to keys up to its own position, besides what `mask`
            forbids.
          positions: how positions enter the scores, besides through the inputs.
          train: apply dropout to the weights.
          example_ids: global index of each example in the batch, for dropout.
          capture: what the trace holds.
          gates: a factor for each head's output.
          patches: of this layer, without the axis L.

        Returns:
          the output, and the trace (None if `capture` is ``none``).

        Raises:
          InputError: if `capture` or a patch needs weights, which the kernel does not keep.
        """
        n = self.config.heads(self.side)
        patches = patches or AttentionPatches()
        key, value = (
            repeat_heads(x, n, axis=2) for x in self.keys_values(keys_from, values_from, positions)
        )
        query = patch_heads(self.queries(queries_from, positions), patches.query)
        key, value = patch_heads(key, patches.key), patch_heads(value, patches.value)

        def drop(weights: Float[Array, "B N T S"]) -> Float[Array, "B N T S"]:
            rate = self.config.attention_dropout
            return apply_dropout(self, weights, rate, train=train, example_ids=example_ids)

        kernel = self.config.attention_kernel
        options = self._terms(positions) | {"causal": causal}
        if kernel == "einsum":
            options |= {"dropout": drop, "with_weights": capture != "none"}
            if patches.weights is not None:
                options["edit"] = patches.weights
        elif capture != "none" or patches.weights is not None:
            raise InputError(
                f"the {kernel!r} attention kernel does not keep its weights, so it cannot capture "
                "or patch them; use model.attention_kernel='einsum' to look inside (same "
                "parameters, same result)"
            )
        attended = KERNELS[kernel](query, key, value, mask, **options)
        z = patch_heads(gate(attended.z, gates), patches.z)  # [B, T, N, Hv]
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
        self, x: Float[Array, "B T D"], positions: PositionTerm = NO_POSITIONS
    ) -> Float[Array, "B T N H"]:
        """Q W^Q for all heads, rotated by position if the scheme rotates."""
        return positions.rotate(project("BTD,DNH->BTNH", x, self.query_kernel, self.query_bias))

    def keys_values(
        self,
        keys_from: Float[Array, "B S D"],
        values_from: Float[Array, "B S D"],
        positions: PositionTerm = NO_POSITIONS,
    ) -> tuple[Float[Array, "B S _ H"], Float[Array, "B S _ Hv"]]:
        """K W^K, rotated by position if the scheme rotates, and V W^V, for all their heads."""
        key = project("BSD,DNH->BSNH", keys_from, self.key_kernel, self.key_bias)
        value = project("BSD,DNH->BSNH", values_from, self.value_kernel, self.value_bias)
        return positions.rotate(key), value

    def attend_cached(
        self,
        query: Float[Array, "B K N H"],
        key: Float[Array, "B _ H C"],
        value: Float[Array, "B _ C Hv"],
        mask: Bool[Array, "#B 1 #K C"],
        positions: PositionTerm = NO_POSITIONS,
    ) -> Float[Array, "B K D"]:
        """Attention and output map for one query of each beam, over cached keys and values."""
        query = query.swapaxes(1, 2)  # [B, N, K, H]
        z = cached_attention(query, key, value, mask, **self._terms(positions))  # [B, N, K, Hv]
        z = z.swapaxes(1, 2).reshape(len(z), z.shape[2], -1)  # [B, K, J]
        # Heads and head size are one axis J here: over two, XLA would copy both operands.
        kernel = self.output_kernel.reshape(-1, self.config.d_model)  # [J, D]
        return project("BKJ,JD->BKD", z, kernel, self.output_bias)

    def _terms(self, positions: PositionTerm) -> dict[str, Array]:
        """The arguments of an attention function that only some variants have."""
        terms = positions.of_attention()
        return terms if self.score_vector is None else terms | {"score_vector": self.score_vector}
