# SPDX-License-Identifier: Apache-2.0
"""Floating-point operations of the matmuls of a convolutional model's forward pass."""

from transformer.config import ConvolutionalConfig


def forward_flops(config: ConvolutionalConfig, source: int, target: int) -> int:
    """Floating-point operations of the matmuls of a forward pass over one sentence pair.

    A matmul of [m, k] and [k, n] counts as 2 m k n. For S and T positions, padding included:

    - a convolution of width k over t positions: 4 t k D^2, zeros before and after included;
    - the linear maps at both ends of both stacks: 2 t D^2 each;
    - in every layer of the decoder, the queries 2 T D^2, and scores and weighted sum 4 T S D;
    - logits: 2 T D V.

    Args:
      config: the sizes.
      source: S.
      target: T.
    """
    d, convolution = config.d_model, 4 * config.kernel_width * config.d_model**2
    encoder = config.depth("encoder") * source * convolution + 4 * source * d * d
    attention = 2 * target * d * d + 4 * target * source * d
    decoder = config.depth("decoder") * (target * convolution + attention) + 4 * target * d * d
    return encoder + decoder + 2 * target * d * config.vocab_size
