# SPDX-License-Identifier: Apache-2.0
"""Speed of training steps, beside PyTorch, Hugging Face, the matmuls alone and other checkouts.

python -m experiments.benchmarks.training_speed --workloads=W1,W2
python -m experiments.benchmarks.training_speed --workloads=W1 --dropout=paper --lengths=64,1024
python -m experiments.benchmarks.training_speed --workloads=R1
python -m experiments.benchmarks.training_speed --against=../older --only='checkout*'

W1 is a small model, W2 the paper's base model and R1 a recurrent one, beside PyTorch's `nn.LSTM`
(`workloads.py`). Weights and sentences are random. This project and each peer take turns, each in a
separate process. A figure is the median over the rounds, with quartiles; a speedup above 1 means
that this project is faster. "matmuls" runs only the matmuls of the step: its speedup is the
fraction of the step that they take. Peers need pip install -e .[bench]; those that are not
installed are skipped. Standard output has one JSON object per result.
"""

import dataclasses
from typing import Literal

from experiments.benchmarks import comparison
from experiments.benchmarks.comparison import config_of, program
from experiments.benchmarks.workloads import Workload
from experiments.cli import command_line
from experiments.cli.options import require_at_least
from experiments.planning.costs import step_flops
from transformer.models import protocol

TOKENS = 2048
"""Source and target tokens of a batch of given lengths, without `--tokens`."""


@dataclasses.dataclass(frozen=True)
class Options(comparison.Options):
    """The comparison, and its batches."""

    lengths: tuple[int, ...] | None = None
    """Source and target lengths."""
    tokens: int | None = None
    """Source and target tokens of a batch. By default those of the workload, or 2,048 with
    --lengths.
    """
    dropout: Literal["inner", "paper"] = "inner"
    """inner: also on attention weights and inside feed-forward networks, as in PyTorch's layers.
    paper: as in the paper. The same for all programs.
    """


def run(options: Options) -> None:
    """Measure and print."""
    require_at_least(1, tokens=options.tokens)
    for name, workload in _workloads(options).items():
        _measure(options, name, workload)


def _workloads(options: Options) -> dict[str, Workload]:
    named = comparison.workloads(options, inner_dropout=options.dropout == "inner")
    if options.lengths:
        named = {
            f"{name} {length}": dataclasses.replace(
                workload, source_length=length, target_length=length
            )
            for name, workload in named.items()
            for length in options.lengths
        }
    tokens = options.tokens or (TOKENS if options.lengths else None)
    if tokens is None:
        return named
    return {
        name: dataclasses.replace(workload, batch_size=max(tokens // workload.source_length, 1))
        for name, workload in named.items()
    }


def _measure(options: Options, name: str, workload: Workload) -> None:
    ours = comparison.this_project(options, "training", workload)
    dtypes = options.peer_dtypes or ("float32", "bfloat16")
    is_transformer = workload.family == "transformer"
    # torch.compile leaves nn.LSTM as it is.
    modes = {"eager": False, "compiled": True} if is_transformer else {"eager": False}
    peers = [
        program(f"PyTorch {mode} {dtype}", "pytorch.training", compiled=compiled, dtype=dtype)
        for dtype in dtypes
        for mode, compiled in modes.items()
    ]
    if is_transformer:
        peers.append(program(f"Marian {dtypes[0]}", "marian.training", dtype=dtypes[0]))
    peers.append(program("matmuls", "this_project.step_matmuls", **ours.options))
    model = protocol.build(config_of(workload, ours.options["overrides"]).model)
    flops = step_flops(model, workload.batch_size, workload.source_length)
    about = {"benchmark": "training", "workload": name, "gflop": round(flops / 1e9, 1)}
    comparison.measure(options, ours, peers, workload, about)


if __name__ == "__main__":
    command_line.run(run, None, Options)
