# SPDX-License-Identifier: Apache-2.0
"""PyTorch's `nn.Transformer` or `nn.LSTM`, with a tied embedding table, sinusoidal positions and
the smoothed loss, which PyTorch leaves to its users.
"""

import math
import sys
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.benchmarks.worker import STEPS_AHEAD, Program, fastest
from experiments.benchmarks.workloads import DROPOUT, PAD_ID, Workload
from transformer.cores import num_cores

BOS_ID = 1
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LABEL_SMOOTHING = 0.1


class Model(nn.Module):
    """Map sources and targets to the mean loss of a target token."""

    def __init__(self, workload: Workload):
        super().__init__()
        width = workload.d_model
        self.embedding = nn.Embedding(workload.vocab_size, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.transformer = nn.Transformer(
            width,
            workload.num_heads,
            workload.num_layers,
            workload.num_layers,
            workload.d_ff,
            DROPOUT,
            batch_first=True,
        )
        self.dropout = nn.Dropout(DROPOUT)
        rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000) / width))
        longest = max(workload.source_length, workload.target_length)
        angles = torch.arange(longest)[:, None] * rates
        self.register_buffer("positions", torch.stack([angles.sin(), angles.cos()], -1).flatten(1))
        mask = torch.ones(workload.target_length, workload.target_length, dtype=torch.bool)
        self.register_buffer("causal_mask", mask.triu(1))
        if not workload.inner_dropout:
            for layer in (*self.transformer.encoder.layers, *self.transformer.decoder.layers):
                layer.dropout.p = 0.0
                for name in ("self_attn", "multihead_attn"):
                    if hasattr(layer, name):
                        getattr(layer, name).dropout = 0.0

    def _embed(self, ids: Tensor) -> Tensor:
        scaled = self.embedding(ids) * math.sqrt(self.embedding.embedding_dim)
        return self.dropout(scaled + self.positions[: ids.shape[1]])

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Compute the loss with teacher forcing."""
        target_in = F.pad(target[:, :-1], (1, 0), value=BOS_ID)
        length = target.shape[1]
        decoded = self.transformer(
            self._embed(source),
            self._embed(target_in),
            tgt_mask=self.causal_mask[:length, :length],
            tgt_is_causal=True,
        )
        return smoothed_loss(F.linear(decoded, self.embedding.weight), target)


class RecurrentModel(nn.Module):
    """`nn.LSTM` as encoder and decoder, with one embedding table; see `Model`."""

    def __init__(self, workload: Workload):
        super().__init__()
        width, layers = workload.d_model, workload.num_layers
        self.embedding = nn.Embedding(workload.vocab_size, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.encoder, self.decoder = (
            nn.LSTM(width, width, layers, batch_first=True, dropout=DROPOUT) for _ in range(2)
        )
        self.dropout = nn.Dropout(DROPOUT)

    def _embed(self, ids: Tensor) -> Tensor:
        return self.dropout(self.embedding(ids) * math.sqrt(self.embedding.embedding_dim))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Compute the loss with teacher forcing."""
        target_in = F.pad(target[:, :-1], (1, 0), value=BOS_ID)
        _, state = self.encoder(self._embed(source))
        decoded, _ = self.decoder(self._embed(target_in), state)
        return smoothed_loss(F.linear(self.dropout(decoded), self.embedding.weight), target)


MODELS = {"transformer": Model, "recurrent": RecurrentModel}
"""Models by the family of the workload."""


def smoothed_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Mean smoothed cross-entropy of a target token, in float32."""
    return F.cross_entropy(
        logits.flatten(0, 1).float(),
        target.flatten(),
        ignore_index=PAD_ID,
        label_smoothing=LABEL_SMOOTHING,
    )


def training(workload: Workload, dtype: str, compiled: bool = False) -> Program:
    """Training steps with Adam.

    Args:
      workload: sizes of the model and of its batch.
      dtype: ``float32`` or ``bfloat16`` (autocast; parameters stay float32).
      compiled: use `torch.compile`.
    """
    torch.manual_seed(0)
    model = MODELS[workload.family](workload).train()
    loss = torch.compile(model) if compiled else model
    if compiled:
        print("  compiling, which may take minutes", file=sys.stderr)
    return training_program(model, loss, workload.token_ids(), dtype)


def training_program(
    model: nn.Module,
    loss: Callable[..., Tensor],
    batch: tuple[np.ndarray, np.ndarray],
    dtype: str,
) -> Program:
    """A training step on a batch, with one thread or one per core, whichever is faster.

    On a GPU there are `STEPS_AHEAD` steps before it waits.
    """
    model.to(DEVICE)
    steps = 1 if DEVICE == "cpu" else STEPS_AHEAD
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, betas=(0.9, 0.98), fused=True)
    source, target = (torch.from_numpy(ids).long().to(DEVICE) for ids in batch)

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(DEVICE, torch.bfloat16, enabled=dtype == "bfloat16"):
                value = loss(source, target)
            value.backward()
            optimizer.step()
        value.item()

    threads = fastest(lambda: train(1), torch.set_num_threads, thread_choices())
    about = {"version": f"torch {torch.__version__}", "threads": threads}
    return Program(lambda: train(steps), about, steps, device_peak_bytes)


def thread_choices() -> set[int]:
    """Numbers of CPU threads to try; they do not matter on a GPU."""
    return {1, num_cores()} if DEVICE == "cpu" else {1}


def device_peak_bytes() -> int:
    """Peak memory of tensors on the GPU."""
    return torch.cuda.max_memory_allocated() if DEVICE == "cuda" else 0
