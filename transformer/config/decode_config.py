# SPDX-License-Identifier: Apache-2.0
"""Config of decoding."""

import dataclasses
from typing import ClassVar, Literal

from transformer.fields import FieldGroup


@dataclasses.dataclass(frozen=True)
class DecodeConfig(FieldGroup):
    """Beam search (paper 6.1), sampling, and minimum Bayes risk."""

    group: ClassVar[str] = "decode"

    method: Literal["beam", "sample", "mbr"] = "beam"
    """beam: beam search. sample: draws from the model. mbr: of several samples, the one most like
    the others (minimum Bayes risk).
    """
    beams: int = 4
    """K; 1 is greedy search."""
    groups: int = 1
    """Diverse beam search: groups that the beams are divided into."""
    diversity: float = 0.5
    """Diverse beam search: log-probability that a group pays for a token, for each hypothesis of an
    earlier group that chose it at this step.
    """
    length_penalty: Literal["gnmt", "length", "none"] = "gnmt"
    """gnmt: ((5 + len) / 6)^alpha. length: len^alpha. EOS counts in len."""
    alpha: float = 0.6
    extra_length: int = 50
    """The longest output has the source's number of tokens plus this many, as in the paper ..."""
    max_length: int | None = None
    """... or this fixed number of tokens."""
    min_length: int = 0
    """The fewest tokens before EOS; the longest output takes precedence."""
    block_ngrams: int | None = None
    """No n-gram of this many tokens occurs twice in an output."""
    temperature: float = 1.0
    """Sampling: divides the logits."""
    top_k: int | None = None
    """Sampling: only the most probable tokens, this many."""
    top_p: float = 1.0
    """Sampling: only the fewest tokens that together have this probability."""
    min_p: float = 0.0
    """Sampling: only tokens with at least this fraction of the highest probability."""
    seed: int = 0
    """Sampling: with a line's number and its text, determines the line's samples."""
    mbr_samples: int = 32
    """Minimum Bayes risk: samples per sentence. Batches have at most batch_size x beams samples."""
    mbr_metric: Literal["chrf", "bleu"] = "chrf"
    """Minimum Bayes risk: sentence score that measures similarity."""
    batch_size: int = 64
    """Sentences decoded together."""
    shortlist: int | None = None
    """Beam search over the most frequent subwords and this many translations of each source subword
    (`experiments.learn_lexicon`); over all unless given. An approximation.
    """

    def validate(self) -> None:
        """Check sizes and rates; reject fields that the method does not use."""
        self.require_at_least(1, "beams", "groups", "max_length", "batch_size", "extra_length")
        self.require_at_least(1, "block_ngrams", "top_k", "mbr_samples", "shortlist")
        self.require_at_least(0, "diversity", "min_length", "seed")
        divides = self.beams % self.groups == 0
        self.require(divides, "groups", f"a divisor of decode.beams = {self.beams}")
        longer = self.max_length is None or self.min_length < self.max_length
        self.require(longer, "min_length", f"below decode.max_length = {self.max_length}")
        self.require(self.temperature > 0, "temperature", "above 0 (decode.beams=1 is greedy)")
        self.require(0 < self.top_p <= 1, "top_p", "above 0 and at most 1")
        self.require(0 <= self.min_p <= 1, "min_p", "at least 0 and at most 1")
        self.require(self.seed < 2**32, "seed", "at least 0 and below 2^32")
        self.require((self.shortlist or 1) <= 100, "shortlist", "1 to 100")
        # A field without effect is more likely a mistake.
        sampling = ("temperature", "top_k", "top_p", "min_p")
        for name in sampling if self.method == "beam" else ("groups", "shortlist"):
            unset = getattr(self, name) == getattr(type(self), name)
            self.require(unset, name, f"left out with decode.method={self.method!r}")

    @property
    def most_results(self) -> tuple[str, int]:
        """The field that limits the results of a sentence, and its value."""
        name = "mbr_samples" if self.method == "mbr" else "beams"
        return f"decode.{name}", getattr(self, name)
