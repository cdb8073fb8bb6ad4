# SPDX-License-Identifier: Apache-2.0
"""What a training run will cost: floating-point operations, memory, and time on this machine."""

import dataclasses
import functools
import time
from collections import Counter
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from experiments import compiled_cost, compose
from experiments.corpora import registry
from experiments.pipeline.batching import Batches
from experiments.pipeline.token_corpus import Corpus, Side
from transformer import sharding
from transformer.arrays import UNK_ID
from transformer.config import Config, TransformerConfig
from transformer.text.tokenizer import Tokenizer

Lengths = np.ndarray
"""Int32 tokens of each sentence, the end token included."""

PAPER_DEVICES = 8
PAPER_FLOPS = 9.5e12
"""What the paper takes one of its P100 to do in a second (footnote to section 6.1)."""
PAPER_SECONDS = {"base": 12 * 3600, "big": 3.5 * 24 * 3600}
PAPER_TRAINING_FLOPS = {"base": 3.3e18, "big": 2.3e19}
"""Table 2. They are the time on 8 P100 times `PAPER_FLOPS`: what the devices could have done in
that time, not a count of the model's operations, which is several times less.
"""

TIMING_SECONDS = 25
"""Steps are timed for no longer than this, all shapes together."""


def forward_flops(model: TransformerConfig, source: int, target: int) -> int:
    """Floating-point operations of the matrix products of one forward pass over one row.

    A product of [m, k] and [k, n] counts as 2 m k n. With S and T positions of source and target,
    padding included, and N heads of widths d_k and d_v:

    - attention from t to s positions: projections 2 D N (t d_k + s d_k + s d_v + t d_v), scores
      and weighted sum 2 t s N (d_k + d_v), masked scores included, as they are computed;
    - feed-forward network: 4 t D F;
    - logits: 2 T D V.

    An encoder layer has one attention from S to S; a decoder layer one from T to T and one from T
    to S. Everything else (norms, softmax, embeddings, optimizer) is left out, as is usual.

    Args:
      model: the sizes.
      source: S.
      target: T.
    """
    width = model.d_model

    def attention(side: str, queries: int, keys: int) -> int:
        heads, (d_k, d_v) = model.heads(side), model.head_widths(side)
        projections = 2 * width * heads * (queries + keys) * (d_k + d_v)
        return projections + 2 * queries * keys * heads * (d_k + d_v)

    def feed_forward(positions: int) -> int:
        return 4 * positions * width * model.d_ff

    encoder = attention("encoder", source, source) + feed_forward(source)
    decoder = attention("decoder", target, target) + attention("decoder", target, source)
    decoder += feed_forward(target)
    logits = 2 * target * width * model.vocab_size
    return model.depth("encoder") * encoder + model.depth("decoder") * decoder + logits


def step_flops(model: TransformerConfig, rows: int, length: int, passes: int = 1) -> int:
    """Of one training step on a batch [rows, length]: forward once and backward twice that.

    Args:
      model: the sizes.
      rows: of the batch.
      length: of source and target, in tokens.
      passes: forward passes a batch; two with R-Drop.
    """
    return 3 * passes * rows * forward_flops(model, length, length)


@dataclasses.dataclass(frozen=True)
class Shape:
    """What the steps on batches of one shape cost."""

    rows: int
    length: int
    batches: int
    """In an epoch."""
    flops: int
    """Matrix products of one step, all devices together."""
    cost: compiled_cost.Cost
    """XLA's account, of one device."""
    seconds: float | None = None
    """Of one step, measured; None when it was not."""


def experiment_of_lengths(
    config: Config, tokenizer: Tokenizer | None, mixture: Sequence[tuple[float, Lengths, Lengths]]
) -> compose.Experiment:
    """The experiment on sentences of these lengths, all of one and the same token: shapes, plan
    and time of the training steps are those of the real text, which need not be kept for it.

    Args:
      config: validated.
      tokenizer: of the experiment, if it has one already; no sub-words are sampled.
      mixture: for each corpus its weight and the lengths of its sources and targets.

    Raises:
      InputError: when no pair is left, or for devices or micro-batches that do not fit.
    """

    def side(lengths: Lengths) -> Side:
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        return Side(np.broadcast_to(np.int32(UNK_ID), offsets[-1]), offsets)

    corpora = [(weight, Corpus(side(left), side(right))) for weight, left, right in mixture]
    return experiment_of_corpora(config, tokenizer, corpora)


def experiment_of_corpora(
    config: Config, tokenizer: Tokenizer | None, corpora: Sequence[tuple[float, Corpus]]
) -> compose.Experiment:
    """The experiment on corpora that are tokenized already, without validation text.

    Args:
      config: validated.
      tokenizer: of the experiment, if it has one already; no sub-words are sampled.
      corpora: each with its weight.

    Raises:
      InputError: when no pair is left, or for devices or micro-batches that do not fit.
    """
    batches = Batches(corpora, config.data, config.training.seed)
    nothing = registry.Split(config.data.dataset, [], [])
    data = compose.Data(batches, nothing, Corpus(Side.of([]), Side.of([])))
    return compose.assembled(config, tokenizer, data)


def experiment_of_shapes(config: Config) -> compose.Experiment:
    """The experiment on batches of every shape that the config allows, without text or tokenizer.

    Raises:
      InputError: for devices or micro-batches that do not fit the config.
    """
    lengths = np.array(config.data.bucket_lengths, np.int32)
    return experiment_of_lengths(config, None, [(1.0, lengths, lengths)])


def batches_by_shape(experiment: compose.Experiment) -> Counter[tuple[int, int]]:
    """How many batches of each (rows, length) an epoch has."""
    batches = experiment.data.train
    return Counter((batches.rows(one.length), one.length) for one in batches.plan(0))


def compiled_shape(
    experiment: compose.Experiment, rows: int, length: int, batches: int
) -> tuple[jax.stages.Compiled, Shape]:
    """The training step compiled for batches of one shape, and what it costs."""
    config = experiment.config
    program, cost = compiled_cost.compiled(
        experiment.train_step, experiment.abstract_state, experiment.abstract_batch(rows, length)
    )
    passes = 2 if config.training.r_drop else 1
    flops = step_flops(config.model, rows, length, passes)
    return program, Shape(rows, length, batches, flops, cost)


def timed(
    experiment: compose.Experiment, programs: list[tuple[jax.stages.Compiled, Shape]]
) -> list[Shape]:
    """The shapes with the measured seconds of a step, those first in which an epoch spends most.

    A step that would outlast `TIMING_SECONDS`, by its operations and what this machine's matrix
    product does, is not begun. A shape's first step is not counted if there is time for more.
    """
    began, rate = time.monotonic(), product_flops()
    by_work = sorted(programs, key=lambda pair: -pair[1].batches * pair[1].flops)
    batches, where = experiment.data.train, sharding.batch_sharding(experiment.mesh)
    places: dict[int, int] = {}
    for place, planned in enumerate(batches.plan(0)):
        places.setdefault(planned.length, place)
    state, measured = None, []
    for program, shape in by_work:
        taken = []
        least = shape.flops / rate / experiment.mesh.size
        while len(taken) < 3:
            expected = min(taken) if taken else least
            if time.monotonic() - began + expected > TIMING_SECONDS:
                break
            state = experiment.init_state() if state is None else state
            batch = jax.device_put(batches[places[shape.length]], where)
            jax.block_until_ready((state, batch))
            before = time.monotonic()
            state, sums = program(state, batch)
            jax.block_until_ready((state, sums))
            taken.append(time.monotonic() - before)
        seconds = min(taken) if taken else None
        measured.append(dataclasses.replace(shape, seconds=seconds))
    return measured


def mean_step_seconds(shapes: list[Shape]) -> float | None:
    """Of an epoch's steps; a shape that was not measured takes as long for an operation as the
    measured ones do. None when none was.
    """
    known = [shape for shape in shapes if shape.seconds is not None]
    if not known:
        return None
    a_flop = sum(s.seconds * s.batches for s in known) / sum(s.flops * s.batches for s in known)
    total = sum(s.batches * (s.flops * a_flop if s.seconds is None else s.seconds) for s in shapes)
    return total / sum(s.batches for s in shapes)


@functools.cache
def product_flops(size: int = 1024) -> float:
    """Operations a second of this device's float32 matrix product [size, size] x [size, size]."""
    matrix = jnp.ones((size, size), np.float32)
    product = jax.jit(jnp.matmul)
    jax.block_until_ready(product(matrix, matrix))
    fastest = np.inf
    for _ in range(5):
        before = time.monotonic()
        jax.block_until_ready(product(matrix, matrix))
        fastest = min(fastest, time.monotonic() - before)
    return 2 * size**3 / fastest
