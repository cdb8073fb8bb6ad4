# SPDX-License-Identifier: Apache-2.0
"""A trained model behind the batching core: warm-up, lines of text, attention between words."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

from experiments.serving import word_attention
from experiments.serving.batcher import Batcher
from transformer.decoding.sentence_batches import SMALL_BATCHES
from transformer.errors import InputError
from transformer.platforms import platform
from transformer.translator import Translator

BATCH_OVERHEAD = 1.5
"""Cost of a step on a CPU in addition to that of its rows, in rows."""


class Engine:
    """A translator behind a batcher; a context manager.

    Methods may be called from any thread.
    """

    def __init__(
        self,
        translator: Translator,
        *,
        window: float = 0.0,
        capacity: int | None = None,
        observe: Callable[[int, int, float], None] = lambda sentences, rows, seconds: None,
    ):
        """Start the threads; see `Batcher` for the other arguments."""
        self.translator = translator
        self.config = translator.config
        self.most_results = self.config.decode.most_results[1]
        self.shows_attention = word_attention.is_available(translator)
        self.ready = threading.Event()
        """Set when every program is compiled."""
        # A sample depends on its line number, so that it is alone in its batch.
        rows = translator.batch_rows() if self.config.decode.method == "beam" else [1]
        on_cpu = platform() == "cpu"
        self._costs = {each: each + BATCH_OVERHEAD if on_cpu else 1.0 for each in rows}
        self.batcher = Batcher(
            translator.nbest,
            costs=self._costs_of,
            bucket=translator.search.padded_length,
            window=window,
            capacity=capacity,
            threads=translator.search.threads,
            observe=observe,
        )
        self._attention = ThreadPoolExecutor(1)

    def warm_up(self) -> None:
        """Compile every program that a request can need."""
        for num_results in sorted({1, self.most_results}):
            self.translator.warm_up(self._costs_of(num_results), num_results)
        if self.shows_attention:
            word_attention.warm_up(self.translator)
        self.ready.set()

    def translate(self, lines: Sequence[str], num_results: int = 1) -> list[Future]:
        """Queue lines of text; blank lines have no translations.

        Args:
          lines: lines of text.
          num_results: 1, or any number up to `most_results`: all these share one program.

        Returns:
          a future for each line that is not blank, of its translations, best first.

        Raises:
          QueueFull: see `Batcher.submit`.
          InputError: if a line has more than data.max_length tokens, which would be cut.
        """
        numbered = {number: line for number, line in enumerate(lines, 1) if line.strip()}
        tokens = self.translator.vocabularies.source.encode([*numbered.values()])
        lengths, longest = [len(ids) for ids in tokens], self.config.data.max_length
        for number, length in zip(numbered, lengths, strict=True):
            if length > longest:
                raise InputError(
                    f"line {number} has {length} tokens, but this model reads at most {longest}; "
                    "divide it into sentences, one a line"
                )
        searched = 1 if num_results == 1 else self.most_results
        return self.batcher.submit([*numbered.values()], searched, lengths)

    def attention(self, source: str, target: str) -> Future[dict[str, Any]]:
        """Compute the attention between words in a thread; see `word_attention.prepare`.

        Raises:
          InputError: if the model has no attention from target to source, or for text that is
            empty or too long.
        """
        return self._attention.submit(word_attention.prepare(self.translator, source, target))

    def close(self) -> None:
        """Finish what was accepted and end the threads."""
        self.batcher.close()
        self._attention.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _costs_of(self, num_results: int) -> dict[int, float]:
        """Costs by number of rows; only small batches are compiled for lists of alternatives."""
        most = max(SMALL_BATCHES) if num_results > 1 else max(self._costs)
        return {rows: cost for rows, cost in self._costs.items() if rows <= most} or self._costs
