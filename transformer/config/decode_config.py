# SPDX-License-Identifier: Apache-2.0
"""Config of decoding."""

import dataclasses
from typing import Annotated, Any, ClassVar, Literal

from transformer.fields import Bounds, Count, FieldGroup, Length, NonNegativeReal, Positive, Seed
from transformer.user_functions import is_function

Beams = Annotated[int, Bounds(1, 1024)]  # beams x vocabulary must fit 32-bit integers
Ngram = Annotated[int, Bounds(1, 100)]


@dataclasses.dataclass(frozen=True)
class DecodeConfig(FieldGroup):
    """Beam search (paper 6.1), sampling, and minimum Bayes risk."""

    group: ClassVar[str] = "decode"
    removed_fields: ClassVar[dict[str, Any]] = {"shortlist": None}

    method: Literal["beam", "sample", "mbr"] = "beam"
    """beam: beam search. sample: draws from the model. mbr: of several samples, the one most like
    the others (minimum Bayes risk).
    """
    beams: Beams = 4
    """K; 1 is greedy search."""
    groups: Annotated[int, Bounds(1)] = 1
    """Diverse beam search: groups that the beams are divided into."""
    diversity: NonNegativeReal = 0.5
    """Diverse beam search: log-probability that a group pays for a token, for each hypothesis of an
    earlier group that chose it at this step.
    """
    finish_from: Literal["best_k", "best_2k"] = "best_k"
    """Which of the best 2K extensions of a step may finish if they end with EOS: the best K, as in
    Hugging Face, or all, as in Tensor2Tensor.
    """
    length_penalty: Literal["gnmt", "length", "none"] = "gnmt"
    """gnmt: ((5 + len) / 6)^alpha. length: len^alpha. EOS counts in len."""
    alpha: Annotated[float, Bounds(-5, 5)] = 0.6
    extra_length: Length = 50
    """The longest output has the source's number of tokens plus this many, as in the paper ..."""
    max_length: Length | None = None
    """... or this fixed number of tokens."""
    min_length: Count = 0
    """The fewest tokens before EOS; the longest output takes precedence."""
    block_ngrams: Ngram | None = None
    """No n-gram of this many tokens occurs twice in an output."""
    temperature: Annotated[float, Bounds(1e-3, 1e18)] = 1.0
    """Sampling: divides the logits."""
    top_k: Positive | None = None
    """Sampling: only the most probable tokens, this many."""
    top_p: Annotated[float, Bounds(above=0, at_most=1)] = 1.0
    """Sampling: only the fewest tokens that together have this probability."""
    min_p: Annotated[float, Bounds(0, 1)] = 0.0
    """Sampling: only tokens with at least this fraction of the highest probability."""
    truncation: str | None = None
    """Sampling: ``FILE.py:FUNCTION``, where FUNCTION(log_probs) returns which tokens may be drawn,
    Booleans, of those that the rules above leave. log_probs has one row of the vocabulary for each
    sample.
    """
    seed: Seed = 0
    """Sampling: with a line's number and its text, determines the line's samples."""
    mbr_samples: Positive = 32
    """Minimum Bayes risk: samples per sentence. Batches have at most batch_size x beams samples."""
    mbr_metric: Literal["chrf", "bleu"] = "chrf"
    """Minimum Bayes risk: sentence score that measures similarity."""
    batch_size: Positive = 64
    """Sentences decoded together: in one batch, or on a CPU in as many as are searched at the same
    time.
    """

    def validate(self) -> None:
        """Check groups and lengths; reject fields that the method does not use."""
        divides = self.beams % self.groups == 0
        self.require(divides, "groups", f"a divisor of decode.beams = {self.beams}")
        longer = self.max_length is None or self.min_length < self.max_length
        self.require(longer, "min_length", f"below decode.max_length = {self.max_length}")
        named = self.truncation is None or is_function(self.truncation)
        self.require(named, "truncation", "FILE.py:FUNCTION")
        # A field without effect is more likely a mistake.
        sampling = ("temperature", "top_k", "top_p", "min_p", "truncation")
        for name in sampling if self.method == "beam" else ("groups",):
            unset = getattr(self, name) == getattr(type(self), name)
            self.require(unset, name, f"left out with decode.method={self.method!r}")

    def longest_output(self, source_length: int) -> int:
        """Tokens of the longest output for a source of this many, EOS included."""
        return self.max_length or source_length + self.extra_length

    @property
    def most_results(self) -> tuple[str, int]:
        """The field that limits the results of a sentence, and its value."""
        name = "mbr_samples" if self.method == "mbr" else "beams"
        return f"decode.{name}", getattr(self, name)
