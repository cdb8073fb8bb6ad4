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

from experiments import compose
from experiments.corpora import registry
from experiments.pipeline.batching import Batches
from experiments.pipeline.token_corpus import TokenCorpus, TokenSequences
from experiments.training_data import TrainingData
from transformer import sharding
from transformer.config import Config
from transformer.device_memory import MemoryUsage, memory_usage
from transformer.models.base import Model
from transformer.text.tokenizer import Vocabularies

Lengths = np.ndarray
"""Int32 number of tokens of each sentence, EOS included."""

_TOKEN = np.int32(4)
"""Any id that is not special."""

PAPER_TRAINING_FLOPS = {"base": 3.3e18, "big": 2.3e19}
"""Paper, table 2: training time x 8 GPUs x 9.5 TFLOPS, the peak of a P100. This is what the GPUs
could have computed in that time; the matmuls of the model are several times less.
"""

TIMING_SECONDS = 25
"""Time limit for `time_steps`, all shapes together."""


def step_flops(model: Model, rows: int, length: int, forward_passes: int = 1) -> int:
    """FLOPs of the matmuls of one training step: the backward pass costs twice the forward pass.

    Args:
      model: of any family.
      rows: batch size.
      length: source and target length.
      forward_passes: forward passes per batch; two with R-Drop.
    """
    return 3 * forward_passes * model.describe().forward_flops(rows, length, length)


@dataclasses.dataclass(frozen=True)
class StepCost:
    """Cost of the training step on batches of one shape."""

    rows: int
    length: int
    batches: int
    """Batches of this shape in an epoch."""
    flops: int
    """Matmuls of one step on all devices together, by `step_flops`."""
    xla_flops: float
    """XLA's count for one device: every operation, but the body of a loop only once."""
    memory: MemoryUsage
    seconds: float | None = None
    """Measured time of one step; None if it was not measured."""


# Experiments without text.


def experiment_of_lengths(
    config: Config,
    vocabularies: Vocabularies | None,
    mixture: Sequence[tuple[float, Lengths, Lengths]],
) -> compose.Experiment:
    """Compose an experiment on sentences of given lengths that all repeat one token.

    Batch shapes, memory and step time equal those of the real text, which need not be kept.

    Args:
      config: validated.
      vocabularies: vocabularies of the experiment, if there are any.
      mixture: weight, source lengths and target lengths of each corpus.

    Raises:
      InputError: if no sentence pair is left, or devices or micro-batches do not fit.
    """

    def side(lengths: Lengths) -> TokenSequences:
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        return TokenSequences(np.broadcast_to(_TOKEN, offsets[-1]), offsets)

    corpora = [(weight, TokenCorpus(side(left), side(right))) for weight, left, right in mixture]
    return experiment_of_corpora(config, vocabularies, corpora)


def experiment_of_corpora(
    config: Config, vocabularies: Vocabularies | None, corpora: Sequence[tuple[float, TokenCorpus]]
) -> compose.Experiment:
    """Compose an experiment on tokenized corpora, each with its weight, without validation.

    Raises:
      InputError: if no sentence pair is left, or devices or micro-batches do not fit.
    """
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


def batches_by_shape(experiment: compose.Experiment) -> Counter[tuple[int, int]]:
    """Number of batches of each (rows, length) in an epoch."""
    batches = experiment.data.train
    return Counter((batches.rows(one.length), one.length) for one in batches.plan(0))


# The compiled step.


def compile_step(
    experiment: compose.Experiment, rows: int, length: int, batches: int = 1
) -> tuple[jax.stages.Compiled, StepCost]:
    """Compile the training step for batches of one shape; nothing is allocated or run."""
    program = experiment.train_step.lower(
        experiment.abstract_state, experiment.abstract_batch(rows, length)
    ).compile()
    config = experiment.config
    flops = step_flops(experiment.model, rows, length, 2 if config.training.r_drop else 1)
    xla_flops = float(program.cost_analysis().get("flops", 0.0))
    return program, StepCost(rows, length, batches, flops, xla_flops, memory_usage(program))


def time_steps(
    experiment: compose.Experiment, programs: list[tuple[jax.stages.Compiled, StepCost]]
) -> list[StepCost]:
    """Time the steps, those that take most of an epoch first, for at most `TIMING_SECONDS`.

    A step that would exceed the limit at this machine's matmul rate is not started. The fastest of
    three steps counts, so that the first one may warm up.
    """
    began, rate = time.monotonic(), matmul_flops_per_second()
    batches, batch_sharding = experiment.data.train, sharding.batch_sharding(experiment.mesh)
    first_batch: dict[int, int] = {}
    for index, planned in enumerate(batches.plan(0)):
        first_batch.setdefault(planned.length, index)
    state, costs = None, []
    for program, cost in sorted(programs, key=lambda pair: -pair[1].batches * pair[1].flops):
        seconds = []
        lower_bound = cost.flops / rate / experiment.mesh.size
        while len(seconds) < 3:
            expected = min(seconds, default=lower_bound)
            if time.monotonic() - began + expected > TIMING_SECONDS:
                break
            state = experiment.init_state() if state is None else state
            batch = jax.device_put(batches[first_batch[cost.length]], batch_sharding)
            jax.block_until_ready((state, batch))
            before = time.monotonic()
            state, sums = program(state, batch)
            jax.block_until_ready((state, sums))
            seconds.append(time.monotonic() - before)
        costs.append(dataclasses.replace(cost, seconds=min(seconds, default=None)))
    return costs


def mean_step_seconds(costs: Sequence[StepCost]) -> float | None:
    """Mean time of a step over an epoch; None if no shape was measured.

    A shape that was not measured is assumed to run at the mean FLOP/s of those that were.
    """
    measured = [cost for cost in costs if cost.seconds is not None]
    if not measured:
        return None
    total = sum(cost.seconds * cost.batches for cost in measured)
    seconds_per_flop = total / sum(cost.flops * cost.batches for cost in measured)
    total += sum(
        cost.flops * cost.batches * seconds_per_flop for cost in costs if cost.seconds is None
    )
    return total / sum(cost.batches for cost in costs)


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
