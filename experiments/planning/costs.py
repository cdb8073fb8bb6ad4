# SPDX-License-Identifier: Apache-2.0
"""Cost of a training step: FLOPs by formula, memory by XLA's account, measured seconds."""

import dataclasses
import functools
import time
from collections import Counter
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from experiments.data import registry
from experiments.data.batching import Batches
from experiments.data.token_corpus import TokenCorpus, TokenSequences
from experiments.training import compose
from experiments.training.training_data import TrainingData
from transformer import device_memory
from transformer.config import Config
from transformer.models.protocol import Model
from transformer.text.tokenizer import Vocabularies

_TOKEN = np.int32(4)
"""Any id that is not special."""

TIMING_SECONDS = 25
"""Time limit for `time_steps`, all shapes together."""


@dataclasses.dataclass
class StepCost:
    """Cost of the training step on batches of one shape."""

    rows: int
    length: int
    batches: int
    """Batches of this shape in an epoch."""
    flops: int
    """Matmuls of one step on all devices together, by `step_flops`."""
    peak_bytes: int
    seconds: float | None = None
    """Measured time of one step; None if it was not measured."""


def step_flops(model: Model, rows: int, length: int, forward_passes: int = 1) -> int:
    """FLOPs of the matmuls of one training step: the backward pass costs twice the forward pass.

    Args:
      model: a model of any family.
      rows: batch size.
      length: source and target length.
      forward_passes: forward passes per batch; two with R-Drop.
    """
    return 3 * forward_passes * model.describe().forward_flops(rows, length, length)


# Experiments without text.


def experiment_of_lengths(
    config: Config,
    vocabularies: Vocabularies | None,
    mixture: Sequence[tuple[float, np.ndarray, np.ndarray]],
) -> compose.Experiment:
    """Compose an experiment on sentences of given lengths that all repeat one token.

    Batch shapes, memory and step time equal those of the real text, which need not be kept.

    Args:
      config: validated.
      vocabularies: vocabularies of the experiment, if there are any.
      mixture: weight, source lengths and target lengths (int32, EOS included) of each corpus.

    Raises:
      InputError: if no sentence pair is left, or devices or micro-batches do not fit.
    """

    def side(lengths: np.ndarray) -> TokenSequences:
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        return TokenSequences(np.broadcast_to(_TOKEN, offsets[-1]), offsets)

    corpora = [(weight, TokenCorpus(side(left), side(right))) for weight, left, right in mixture]
    batches = Batches(
        corpora, config.data, config.training.seed, pad_id=config.model.special_ids.pad
    )
    nothing = registry.Split(config.data.dataset, [], [])
    no_tokens = TokenCorpus(TokenSequences.from_lists([]), TokenSequences.from_lists([]))
    data = TrainingData(vocabularies, batches, nothing, no_tokens)
    return compose.build(config, data=data)


def experiment_of_shapes(config: Config) -> compose.Experiment:
    """Compose an experiment with one batch of every shape that the config allows.

    Raises:
      InputError: if devices or micro-batches do not fit the config.
    """
    lengths = np.array(config.data.bucket_lengths, np.int32)
    return experiment_of_lengths(config, None, [(1.0, lengths, lengths)])


# The compiled step.


def batches_by_shape(experiment: compose.Experiment) -> Counter[tuple[int, int]]:
    """Number of batches of each (rows, length) in an epoch."""
    batches = experiment.data.train
    return Counter((batches.rows(one.length), one.length) for one in batches.plan(0))


def compile_step(
    experiment: compose.Experiment, rows: int, length: int, batches: int = 1
) -> tuple[jax.stages.Compiled, StepCost]:
    """Compile the training step for batches of one shape; nothing is allocated or run."""
    program = experiment.compile_step(rows, length)
    forward_passes = experiment.config.training.forward_passes
    flops = step_flops(experiment.model, rows, length, forward_passes)
    return program, StepCost(rows, length, batches, flops, device_memory.peak_bytes(program))


def time_steps(
    experiment: compose.Experiment, programs: Sequence[tuple[jax.stages.Compiled, StepCost]]
) -> None:
    """Measure the steps, those that take most of an epoch first, for at most `TIMING_SECONDS`.

    A step that would exceed the limit at this machine's matmul rate is not started. The fastest of
    three steps counts, so that the first one may warm up.
    """
    began, rate = time.monotonic(), matmul_flops_per_second()
    batches = experiment.data.train
    index_of_length = {planned.length: index for index, planned in enumerate(batches.plan(0))}
    state = None
    for program, cost in sorted(programs, key=lambda pair: -pair[1].batches * pair[1].flops):
        expected = cost.flops / rate / experiment.mesh.size
        for _ in range(3):
            if time.monotonic() - began + expected > TIMING_SECONDS:
                break
            state = experiment.init_state() if state is None else state
            batch = experiment.put_batch(batches[index_of_length[cost.length]])
            jax.block_until_ready((state, batch))
            before = time.monotonic()
            state, sums = program(state, batch)
            jax.block_until_ready((state, sums))
            seconds = time.monotonic() - before
            cost.seconds = expected = min(seconds, cost.seconds or seconds)


def mean_step_seconds(costs: Sequence[StepCost]) -> float | None:
    """Mean time of a step over an epoch; None if no shape was measured.

    A shape that was not measured is assumed to run at the mean FLOP/s of those that were.
    """
    timed = [cost for cost in costs if cost.seconds is not None]
    if not timed:
        return None
    total = sum(cost.seconds * cost.batches for cost in timed)
    seconds_per_flop = total / sum(cost.flops * cost.batches for cost in timed)
    untimed_flops = sum(cost.flops * cost.batches for cost in costs if cost.seconds is None)
    return (total + untimed_flops * seconds_per_flop) / sum(cost.batches for cost in costs)


@functools.cache
def matmul_flops_per_second(size: int = 1024) -> float:
    """Fastest of five float32 matmuls `[size, size] x [size, size]` on this device."""
    matrix = jnp.ones((size, size), np.float32)
    matmul = jax.jit(jnp.matmul)
    jax.block_until_ready(matmul(matrix, matrix))
    fastest = np.inf
    for _ in range(5):
        before = time.monotonic()
        jax.block_until_ready(matmul(matrix, matrix))
        fastest = min(fastest, time.monotonic() - before)
    return 2 * size**3 / fastest
