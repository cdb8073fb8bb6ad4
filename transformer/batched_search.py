# SPDX-License-Identifier: Apache-2.0
"""Search for the translations of any number of sentences, or score them, from token ids.

Sentences of similar length share a batch. Batches have few shapes, because each is compiled, and
several are searched at the same time.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from transformer import sharding
from transformer.arrays import Params
from transformer.batch import Batch
from transformer.config import DataConfig, DecodeConfig
from transformer.cores import map_in_threads, num_cores
from transformer.decoding import generate
from transformer.decoding.sentence_batches import (
    NumberedBatch,
    batch_sizes,
    batches_by_length,
    one_of_each_shape_first,
    pad,
    search_lengths,
    static_size,
)
from transformer.models import protocol

MOST_THREADS = 4
"""Threads that search at the same time on a CPU; each has fewer sentences, the more there are."""

RawHypothesis = tuple[list[int], float, float]
"""The token ids of a hypothesis, padded, its score and its log-probability."""


class BatchedSearch:
    """The batches, threads and compiled programs of a model on a mesh.

    The sentences of a batch are divided over the mesh axis ``data``. Several threads may use an
    object at the same time.
    """

    def __init__(self, model: protocol.Model, params: Params, mesh: Mesh, data: DataConfig):
        """Compile nothing yet. The parameters are on the mesh; `data` has the bucket lengths."""
        self.model = model
        self.params = params
        self.mesh = mesh
        self.data = data

    @functools.cached_property
    def threads(self) -> int:
        """Batches that are searched at the same time, each in a thread.

        On a CPU one for each core, at most `MOST_THREADS`: the steps of a single search have
        little work for several cores. Several devices or processes work together on one batch.
        """
        on_one_cpu = self.mesh.size == 1 and self.mesh.devices.flat[0].platform == "cpu"
        if not on_one_cpu or jax.process_count() > 1:
            return 1
        return min(num_cores(), MOST_THREADS)

    @functools.cached_property
    def lengths(self) -> tuple[int, ...]:
        """The lengths to which sources are padded."""
        return search_lengths(self.data.bucket_lengths)

    def padded_length(self, length: int) -> int:
        """The length to which a source is padded; beyond the longest, a multiple of that."""
        fitting = (each for each in self.lengths if length <= each)
        return next(fitting, self.data.bucket(length))

    def batch_rows(self, config: DecodeConfig, num_hypotheses: int) -> list[int]:
        """The numbers of rows that a batch can have, ascending.

        `decode.batch_size` sentences are divided over the threads; with mbr, no more samples at a
        time than beam search has hypotheses.
        """
        together = config.batch_size
        if config.method == "mbr":
            together = together * config.beams // num_hypotheses
        rows = max(-(-together // self.threads), 1)
        return batch_sizes(rows, self.mesh.shape["data"])

    def warm_up(
        self,
        num_sentences: Iterable[int],
        lengths: Iterable[int],
        num_hypotheses: int,
        config: DecodeConfig,
        *,
        prefixed: bool,
    ) -> None:
        """Compile the searches of later calls of `decode`, with prefixes or without.

        Without numbers of sentences, or of the tokens of a sentence, any number is covered.
        """
        sizes = self.batch_rows(config, num_hypotheses)
        rows = {static_size(count, sizes) for count in num_sentences} or sizes
        padded = {self.padded_length(length) for length in lengths} or self.lengths
        # The search of padding alone ends before its first step.
        shapes = itertools.product(sorted(rows), sorted(padded))
        batches = (([], np.full(shape, self._pad_id, np.int32)) for shape in shapes)
        prefixes = [] if prefixed else None
        self._decode_batches(batches, prefixes, num_hypotheses, 0, config)

    def decode(
        self,
        sources: Sequence[Sequence[int]],
        prefixes: Sequence[Sequence[int]] | None,
        num_hypotheses: int,
        first_line: int,
        config: DecodeConfig,
    ) -> Iterator[tuple[int, list[RawHypothesis]]]:
        """The index of each source that is not empty, with its hypotheses or samples.

        Args:
          sources: token ids of each source.
          prefixes: token ids that each translation begins with.
          num_hypotheses: number of hypotheses or samples for each source.
          first_line: line number of the first source, on which its samples depend.
          config: how to search or to sample.
        """
        sizes = self.batch_rows(config, num_hypotheses)
        batches = self._batches(sources, sizes, self.padded_length)
        results = self._decode_batches(batches, prefixes, num_hypotheses, first_line, config)
        return itertools.chain.from_iterable(results)

    def score(
        self,
        sources: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        config: DecodeConfig,
    ) -> list[float]:
        """Natural-log probability of each target given its source; both end with EOS.

        `config` is that of searches, whose batches have as many rows.
        """
        pairs = list(zip(sources, targets, strict=True))
        scores = [0.0] * len(pairs)
        params = self._inference_params

        def score_batch(numbered: NumberedBatch) -> None:
            indices, padded = numbered
            batch = Batch(
                *(
                    pad([ids[index] for index in indices], padded.shape, self._pad_id)
                    for ids in (sources, targets)
                )
            )
            log_probs = generate.score(
                params, self._on_mesh(batch), mesh=self.mesh, model=self.model
            )
            for index, log_prob in zip(indices, np.asarray(log_probs).tolist(), strict=False):
                scores[index] = log_prob

        longer = [max(pair, key=len) for pair in pairs]
        self._in_threads(
            score_batch, self._batches(longer, self.batch_rows(config, 1), self.data.bucket)
        )
        return scores

    @property
    def _pad_id(self) -> int:
        return self.model.config.pad_id

    def _decode_batches(
        self,
        batches: Iterable[NumberedBatch],
        prefixes: Sequence[Sequence[int]] | None,
        num_hypotheses: int,
        first_line: int,
        config: DecodeConfig,
    ) -> list[list[tuple[int, list[RawHypothesis]]]]:
        """The indices and the hypotheses of the sources of each batch; see `decode`."""
        params = self._inference_params

        def decode_batch(numbered: NumberedBatch) -> list[tuple[int, list[RawHypothesis]]]:
            indices, source = numbered
            rows, length = source.shape
            max_length = config.longest_output(length)
            prefix = lines = None
            if prefixes is not None:
                chosen = [prefixes[index] for index in indices]
                prefix = pad(chosen, (rows, max_length), self._pad_id)
            if config.method != "beam":
                lines = np.full(rows, -1, np.int32)
                lines[: len(indices)] = [first_line + index for index in indices]
            hypotheses = generate.decode(
                params,
                *self._on_mesh((source, prefix, lines)),
                np.uint32(config.seed),
                mesh=self.mesh,
                model=self.model,
                config=config.replace(seed=0),  # the argument replaces it
                num_results=num_hypotheses,
                max_length=max_length,
            )
            tokens, scores, log_probs = (
                np.asarray(field)[:, :num_hypotheses].tolist()
                for field in (hypotheses.tokens, hypotheses.scores, hypotheses.log_probs)
            )
            return [
                (index, list(zip(*fields, strict=True)))
                for index, *fields in zip(indices, tokens, scores, log_probs, strict=False)
            ]

        return self._in_threads(decode_batch, batches)

    def _batches(
        self,
        sentences: Sequence[Sequence[int]],
        sizes: Sequence[int],
        bucket: Callable[[int], int],
    ) -> list[NumberedBatch]:
        """Batches in the order in which threads begin with them."""
        batches = batches_by_length(sentences, sizes, bucket=bucket, pad_id=self._pad_id)
        return one_of_each_shape_first(batches)

    def _in_threads(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """The results of a function for all items, in order, from `threads` threads."""
        return list(map_in_threads(function, items, self.threads))

    def _on_mesh(self, batch: Any) -> Any:
        """Divide arrays with the leading axis B over the devices."""
        return sharding.put_on_mesh(batch, sharding.batch_sharding(self.mesh))

    @functools.cached_property
    def _inference_params(self) -> Params:
        """The parameters, cast to the compute dtype once, before the threads start."""
        return jax.jit(self.model.cast_params)(self.params)
