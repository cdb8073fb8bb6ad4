# SPDX-License-Identifier: Apache-2.0
"""A trained model behind the batching core: warm-up, lines of text, attention between words."""

import functools
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from experiments.serving import word_attention
from experiments.serving.batcher import Batcher, BatchRecord, Future
from experiments.serving.languages import target_codes
from transformer.cores import map_in_threads
from transformer.decoding.sentence_batches import SMALL_BATCHES
from transformer.errors import InputError
from transformer.translator import Translation, Translator

BATCH_OVERHEAD = 1.5
"""Cost of a batch in addition to that of its rows, in rows; assumed until warm-up measures it."""
_MOST_MEASURED = 16
"""Batches of a size that warm-up times."""


class Engine:
    """A translator behind a batcher; a context manager.

    Methods may be called from any thread. Before `warm_up` has finished, calls compile what they
    need.
    """

    def __init__(
        self,
        translator: Translator,
        *,
        window: float = 0.0,
        capacity: int | None = None,
        observe: Callable[[BatchRecord], None] = lambda record: None,
        costs: Mapping[int, float] | None = None,
    ):
        """Start the threads.

        Args:
          translator: of any model, or an ensemble.
          window: see `Batcher`.
          capacity: see `Batcher`.
          observe: see `Batcher`.
          costs: of a batch, by its number of rows, in any unit; by default warm-up measures them.
        """
        self.translator = translator
        self.config = translator.config
        self.most_results = self.config.decode.most_results[1]
        self.shows_attention = word_attention.is_available(translator)
        self._threads = translator.search.threads
        self._measures_costs, self._capacity = costs is None, capacity
        self._costs = dict(
            costs or {rows: rows + BATCH_OVERHEAD for rows in translator.batch_rows()}
        )
        self._ready = threading.Event()
        self.batcher = Batcher(
            translator.nbest,
            costs=self._costs_of,
            bucket=translator.search.padded_length,
            window=window,
            capacity=capacity,
            combine=self.config.decode.method == "beam",
            threads=self._threads,
            observe=observe,
        )

    @property
    def ready(self) -> bool:
        """Whether every program is compiled."""
        return self._ready.is_set()

    def warm_up(self) -> None:
        """Compile every program that a request can need, and measure the cost of each batch size.

        Blocks until that is done, in the threads of the batcher.
        """
        # Steps that wait count in the queue.
        threads = min(self._threads, self._capacity or self._threads)
        list(map_in_threads(self._call, self._warm_up_steps(), threads))
        if self._measures_costs:
            self._call(self._measure_costs)
        self.declare_ready()

    def declare_ready(self) -> None:
        """Accept work, without a warm-up."""
        self._ready.set()

    def translate(
        self, lines: Sequence[str], num_results: int = 1
    ) -> Future[list[list[Translation]]]:
        """Queue lines of text; blank lines have no translations.

        Args:
          lines: of text.
          num_results: 1, or any number up to `most_results`: all these share one program.

        Returns:
          a future of the translations of each line that is not blank, best first.

        Raises:
          QueueFull: see `Batcher.submit`.
          InputError: if a line has more than data.max_length tokens, and so would be cut.
        """
        numbered = {number: line for number, line in enumerate(lines, 1) if line.strip()}
        lengths = self._lengths(numbered.values())
        longest = self.config.data.max_length
        for number, length in zip(numbered, lengths, strict=True):
            if length > longest:
                raise InputError(
                    f"line {number} has {length} tokens, but this model reads at most {longest}; "
                    "divide it into sentences, one a line"
                )
        searched = 1 if num_results == 1 else self.most_results
        return self.batcher.submit([*numbered.values()], searched, lengths=lengths)

    def attention(self, source: str, target: str) -> Future[dict[str, Any]]:
        """Queue the computation of `word_attention.between_words`.

        Raises:
          QueueFull: see `Batcher.submit`.
          InputError: if the model has no attention from target to source, or for text that is
            empty or too long.
        """
        compute = word_attention.prepare(self.translator, source, target)
        return self.batcher.call(compute)

    def close(self) -> None:
        """Finish what was accepted and end the thread."""
        self.batcher.close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, function: Callable[[], None]) -> None:
        self.batcher.call(function).result()

    def _costs_of(self, num_results: int) -> Mapping[int, float]:
        """Costs by batch size; lists of alternatives have small batches, so few are compiled."""
        if num_results == 1:
            return self._costs
        most = max(SMALL_BATCHES)
        return {rows: cost for rows, cost in self._costs.items() if rows <= most} or self._costs

    def _lengths(self, lines: Iterable[str]) -> list[int]:
        """Tokens of each line, EOS included."""
        return [len(ids) for ids in self.translator.vocabularies.source.encode([*lines])]

    def _warm_up_steps(self) -> list[Callable[[], None]]:
        """Short functions, so that the threads can do other work between them."""
        kinds = [(rows, 1) for rows in self._costs]
        if self.most_results > 1:
            kinds += [(rows, self.most_results) for rows in self._costs_of(self.most_results)]
        steps = [
            functools.partial(self.translator.warm_up, [rows], num_results, [length])
            for rows, num_results in kinds
            for length in self.translator.search.lengths
        ]
        if self.shows_attention:
            steps += word_attention.warm_up_steps(self.translator)
        return steps

    def _measure_costs(self) -> None:
        """Time the steps of batches of each size, as many at a time as in service.

        The sentences are random subwords, whose translations differ in length more than those of
        text do. A batch takes the steps of its longest translation, so seconds are divided by that.
        """
        threads = self._threads
        batches = {
            rows: max(threads, min(_MOST_MEASURED, max(self._costs) * threads // rows))
            for rows in self._costs
        }
        sentences = self._random_sentences(max(rows * count for rows, count in batches.items()))
        translate = functools.partial(self.translator.nbest, num_results=1)
        for rows, count in batches.items():
            parts = [sentences[rows * number : rows * (number + 1)] for number in range(count)]
            began = time.perf_counter()
            translated = list(map_in_threads(translate, parts, threads))
            seconds = time.perf_counter() - began
            steps = [max(len(best.tokens) for [best] in batch) for batch in translated]
            self._costs[rows] = seconds / max(sum(steps), 1)

    def _random_sentences(self, count: int) -> list[str]:
        """Sentences of random subwords, of the middle length."""
        lengths = self.translator.search.lengths
        length = lengths[len(lengths) // 2]
        tokenizer = self.translator.vocabularies.source
        generator = random.Random(0)
        regular = [i for i in range(tokenizer.vocab_size) if i not in tokenizer.special_ids]
        code = " ".join(target_codes(self.translator.vocabularies)[:1])

        def sentence() -> str:
            text = ""
            # The text of random subwords may have more of them than were drawn.
            for drawn in range(max(length - 3, 1), 0, -1):
                text = f"{code} {tokenizer.decode(generator.choices(regular, k=drawn))}"
                if self._lengths([text])[0] <= length:
                    break
            return text

        return [sentence() for _ in range(count)]
