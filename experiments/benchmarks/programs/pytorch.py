# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own `nn.Transformer`, with what it leaves to its user: one embedding table for source,
target and logits, sinusoidal positions, and the smoothed loss.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.benchmarks.program import Program, better_threads
from experiments.benchmarks.work import DROPOUT, Work

START_ID = 1
LABEL_SMOOTHING = 0.1


class Model(nn.Module):
    """From sources and targets to the loss."""

    def __init__(self, work: Work):
        super().__init__()
        width = work.d_model
        self.embedding = nn.Embedding(work.vocabulary, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.transformer = nn.Transformer(
            width, work.heads, work.layers, work.layers, work.d_ff, DROPOUT, batch_first=True
        )
        self.dropout = nn.Dropout(DROPOUT)
        rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000) / width))
        angles = torch.arange(max(work.source, work.target))[:, None] * rates
        positions = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
        self.register_buffer("positions", positions)
        mask = torch.ones(work.target, work.target, dtype=torch.bool).triu(1)
        self.register_buffer("causal", mask)
        if not work.dropout_inside:
            self._without_dropout_inside()

    def _without_dropout_inside(self) -> None:
        for layer in (*self.transformer.encoder.layers, *self.transformer.decoder.layers):
            layer.dropout.p = 0.0
            for attention in (layer.self_attn, getattr(layer, "multihead_attn", None)):
                if attention is not None:
                    attention.dropout = 0.0

    def _embed(self, ids: Tensor) -> Tensor:
        scaled = self.embedding(ids) * math.sqrt(self.embedding.embedding_dim)
        return self.dropout(scaled + self.positions[: ids.shape[1]])

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """The mean loss of a target token."""
        before = F.pad(target[:, :-1], (1, 0), value=START_ID)
        decoded = self.transformer(
            self._embed(source), self._embed(before), tgt_mask=self.causal, tgt_is_causal=True
        )
        logits = F.linear(decoded, self.embedding.weight)
        return smoothed_loss(logits, target)


def smoothed_loss(logits: Tensor, target: Tensor) -> Tensor:
    """The mean smoothed cross-entropy of a target token, in float32."""
    return F.cross_entropy(
        logits.flatten(0, 1).float(), target.flatten(), label_smoothing=LABEL_SMOOTHING
    )


def training(work: Work, compiled: bool, dtype: str) -> Program:
    """One step with Adam after the other, on one batch.

    Args:
      work: what is done.
      compiled: with `torch.compile`.
      dtype: ``float32`` or ``bfloat16`` (autocast; parameters stay float32).
    """
    torch.manual_seed(0)
    model = Model(work).train()
    loss = torch.compile(model) if compiled else model
    return steps(model, loss, work, dtype)


def steps(model: nn.Module, loss, work: Work, dtype: str) -> Program:
    """Training steps of a model, of which `loss` gives the loss, with the better of one thread and
    one for each core.
    """
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, betas=(0.9, 0.98), fused=True)
    source, target = (torch.from_numpy(ids).long() for ids in work.token_ids())

    def call() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            value = loss(source, target)
        value.backward()
        optimizer.step()
        value.item()

    def use(threads: int) -> None:
        torch.set_num_threads(threads)
        # Compiled code has the number of threads in it.
        torch.compiler.reset()

    threads = better_threads(call, use)
    return Program(call, {"version": f"torch {torch.__version__}", "threads": threads})
