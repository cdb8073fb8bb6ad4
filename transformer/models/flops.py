# SPDX-License-Identifier: Apache-2.0
"""Floating-point operations of the matmuls of a Transformer's forward pass."""

from transformer.config import TransformerConfig
from transformer.nn.feed_forward import GATES


def forward_flops(config: TransformerConfig, source: int, target: int) -> int:
    """Floating-point operations of the matmuls of a forward pass over one sentence pair.

    A matmul of [m, k] and [k, n] counts as 2 m k n. For S and T positions, padding included:

    - attention from t to s positions: projections 2 D N (t d_k + s d_k + s d_v + t d_v), scores
      and weighted sum 2 t s N (d_k + d_v), masked scores included, because they are computed;
    - of these, keys and values have `model.num_kv_heads` instead of N heads in the projections, and
      self-attention with ``model.positions="shaw"`` has scores and weighted sum twice;
    - feed-forward network: 4 t D F, or 6 t D F if it is gated;
    - logits: 2 T D V.

    An encoder layer has one attention from S to S. A decoder layer has one from T to T and one from
    T to S. Norms, softmax, embeddings and the optimizer are not counted, as is usual.

    Args:
      config: the sizes.
      source: S.
      target: T.
    """
    decoder = decoder_flops(config, source, target)
    return encoder_flops(config, source) + decoder + logits_flops(config, target)


def encoder_flops(config: TransformerConfig, source: int) -> int:
    """The encoder's share of `forward_flops`."""
    layer = _self_attention_flops(config, "encoder", source) + _feed_forward_flops(config, source)
    return config.depth("encoder") * layer


def decoder_flops(config: TransformerConfig, source: int | None, target: int) -> int:
    """The decoder's share of `forward_flops`; without cross-attention if `source` is None."""
    layer = _self_attention_flops(config, "decoder", target)
    layer += _feed_forward_flops(config, target)
    if source is not None:
        layer += _attention_flops(config, "decoder", target, source)
    return config.depth("decoder") * layer


def logits_flops(config: TransformerConfig, target: int) -> int:
    """The output map's share of `forward_flops`."""
    return 2 * target * config.d_model * config.vocab_size


def _self_attention_flops(config: TransformerConfig, side: str, positions: int) -> int:
    vectors = config.heads(side) * sum(config.head_widths(side))
    relative = 2 * positions**2 * vectors if config.positions == "shaw" else 0
    return _attention_flops(config, side, positions, positions) + relative


def _attention_flops(config: TransformerConfig, side: str, queries: int, keys: int) -> int:
    heads, head_size = config.heads(side), sum(config.head_widths(side))
    rows = queries * heads + keys * config.kv_heads(side)
    projections = 2 * config.d_model * rows * head_size
    return projections + 2 * queries * keys * heads * head_size


def _feed_forward_flops(config: TransformerConfig, positions: int) -> int:
    kernels = 3 if config.activation in GATES else 2
    return 2 * kernels * positions * config.d_model * config.d_ff
