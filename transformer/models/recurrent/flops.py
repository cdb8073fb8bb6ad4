# SPDX-License-Identifier: Apache-2.0
"""Floating-point operations of the matmuls of a recurrent model's forward pass."""

from transformer.config import RecurrentConfig
from transformer.models.recurrent.cells import CELLS


def forward_flops(config: RecurrentConfig, source: int, target: int) -> int:
    """Floating-point operations of the matmuls of a forward pass over one sentence pair.

    A matmul of [m, k] and [k, n] counts as 2 m k n. For S and T positions, a layer of cells has
    2 (inputs + D) P at each position. The kernels of the attention and of the output layer count
    once for each position, the weighted sum 2 S T A, and dot products 2 S T D; additive scores are
    no matmul.

    Args:
      config: the sizes.
      source: S.
      target: T.
    """
    width, memory = config.d_model, config.memory_width
    gates, layers = CELLS[config.cell].gates * width, config.num_layers

    def cells(input_width: int) -> int:
        return 2 * (input_width + width) * gates

    encoder = source * (memory // width) * (cells(width) + (layers - 1) * cells(memory))
    decoder = target * layers * cells(width) + 2 * target * width * config.vocab_size
    if config.encoder_direction == "both":
        decoder += 2 * layers * CELLS[config.cell].state_size * width * width
    if config.attention == "none":
        return encoder + decoder
    attention = 2 * source * target * memory
    if config.attention in ("dot", "general"):
        attention += 2 * source * target * width
    if config.attention != "dot":
        attention += 2 * source * memory * width
    if config.attention in ("additive", "concat"):
        attention += 2 * target * width * width
    if config.local_window is not None:
        attention += 2 * target * width * width
    if config.attention == "additive":
        attention += 2 * target * (memory * gates + (2 * width + memory) * 2 * width)
    else:
        attention += 2 * target * (memory + width) * width
        attention += 2 * target * width * gates if config.input_feeding else 0
    return encoder + decoder + attention
