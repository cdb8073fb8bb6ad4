# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own `nn.Transformer`, with what it leaves to its user: one embedding table for source,
target and logits, sinusoidal positions, and the smoothed loss.
"""

import math
import sys
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.benchmarks import text
from experiments.benchmarks.program import Program
from experiments.benchmarks.threads import a_few, better_threads
from experiments.benchmarks.work import DROPOUT, Work

START_ID = 1
LABEL_SMOOTHING = 0.1

Batch = tuple[Tensor, Tensor]
"""Sources and targets."""


class Model(nn.Module):
    """From sources and targets to the loss."""

    def __init__(self, work: Work):
        super().__init__()
        self.padded = bool(work.buckets)
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
        length = target.shape[1]
        # Padding on the right is hidden from a target's own tokens by the causal mask.
        padding = source == text.PAD_ID if self.padded else None
        decoded = self.transformer(
            self._embed(source),
            self._embed(before),
            tgt_mask=self.causal[:length, :length],
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        logits = F.linear(decoded, self.embedding.weight)
        return smoothed_loss(logits, target)


def smoothed_loss(logits: Tensor, target: Tensor) -> Tensor:
    """The mean smoothed cross-entropy of a target token, in float32."""
    return F.cross_entropy(
        logits.flatten(0, 1).float(),
        target.flatten(),
        ignore_index=text.PAD_ID,
        label_smoothing=LABEL_SMOOTHING,
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
    return steps(model, loss, [batch_of(work)], dtype, compiled)


def training_text(work: Work, path: str, by_length: bool, dtype: str) -> Program:
    """A step with Adam on each batch of a text, padded to its longest source and longest target.

    Args:
      work: the sizes of the model; its rows times its longest target is what a batch may have.
      path: of a `text.Text`.
      by_length: the pairs are sorted by length before they are cut into batches; otherwise the
        batches are those of this program.
      dtype: as in `training`.
    """
    torch.manual_seed(0)
    words = text.Text.load(path)
    cut = words.sorted_batches(work.rows * work.target) if by_length else words.batches()
    arrays = [tuple(map(text.padded, batch)) for batch in cut]
    batches = [tuple(map(torch.from_numpy, batch)) for batch in arrays]
    model = Model(work).train()
    program = steps(model, model, batches, dtype)
    program.units = words.target_tokens / 1000
    program.about |= {"padding_share": text.padding_share(arrays), "batches": len(batches)}
    return program


def batch_of(work: Work) -> Batch:
    """The work's only one."""
    source, target = (torch.from_numpy(ids).long() for ids in work.token_ids())
    return source, target


def steps(
    model: nn.Module, loss, batches: Sequence[Batch], dtype: str, compiled: bool = False
) -> Program:
    """Training steps of a model, of which `loss` gives the loss, on one batch after the other, with
    the better of one thread and one for each core.
    """
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, betas=(0.9, 0.98), fused=True)
    compiled_for = set()

    def trained(some: Sequence[Batch]) -> None:
        for source, target in some:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
                value = loss(source, target)
            value.backward()
            optimizer.step()
            value.item()

    def use(threads: int) -> None:
        # PyTorch compiles anew for another number of threads, and keeps what it has.
        torch.set_num_threads(threads)
        if compiled and threads not in compiled_for:
            compiled_for.add(threads)
            plural = "s" if threads > 1 else ""
            print(
                f"  compiling for {threads} thread{plural}, which may take minutes", file=sys.stderr
            )

    threads = better_threads(lambda: trained(a_few(batches)), use)
    return Program(
        lambda: trained(batches), {"version": f"torch {torch.__version__}", "threads": threads}
    )
