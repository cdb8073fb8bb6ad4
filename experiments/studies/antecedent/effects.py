# SPDX-License-Identifier: Apache-2.0
"""Effects of edits to a model's activations, over twins.

An effect is the share of the way from a sentence's answer to its twin's answer: 0 if placing the
twin's activations somewhere changes nothing, 1 if the model then answers as for the twin. It is a
ratio of sums over all twins of which the model is right about both. In adjective twins the reason
chooses the other noun; in noun twins the nouns exchange their gender (`sentences`). The metric is
the preference for the correct pronoun over the twin's, in nats, after the correct prefix.
"""

import dataclasses
import functools

import numpy as np

from experiments.studies.antecedent import interchange
from experiments.studies.antecedent.interchange import Sites
from experiments.studies.antecedent.sentences import ADJECTIVE, NOUN
from experiments.studies.antecedent.twins import ROLES, Sentences
from transformer.arrays import Float, Params
from transformer.models.protocol import Model

TWINS = {"adjective": ADJECTIVE, "noun": NOUN}
GROUPS = {
    "it": ("it",),
    "adjective": ("adjective",),
    "nouns": ("antecedent", "distractor"),
    "reason": ("rest of the reason",),
    "rest": (
        "before the antecedent",
        "before the distractor",
        "rest of the event",
        "punctuation",
        "EOS",
    ),
}
"""Parts of the source sentence, whose roles are those of `twins.ROLES`."""
BOOTSTRAPS = 1000


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model, the quadruples, and its unchanged run over them."""

    model: Model
    params: Params
    batch: Sentences
    preference: Float[np.ndarray, " B"]
    activations: Sites

    @classmethod
    def of(cls, model: Model, params: Params, batch: Sentences) -> "Subject":
        """Run the model once."""
        preference, sites = interchange.activations(model, params, batch)
        return cls(model, params, batch, np.asarray(preference, np.float64), sites)

    def no_edit(self) -> Sites:
        """Masks that select no site, to be changed."""
        return interchange.no_edit(self.model, self.batch)

    def edited(self, donor: Sites, edit: Sites) -> Float[np.ndarray, " B"]:
        """Preference after an edit."""
        preference, _ = interchange.run(self.model, self.params, self.batch, donor, edit)
        return np.asarray(preference, np.float64)

    def with_residual(
        self, donor: Sites, level: int, positions: np.ndarray
    ) -> Float[np.ndarray, " B"]:
        """Preference with the donor's residual stream at some positions of the encoder.

        Args:
          donor: the activations to place.
          level: 0 for the encoder's input, or the number of a layer; -1 for the last one.
          positions: mask of the source tokens, [B,S].
        """
        edit = self.no_edit()
        edit.residual[:, level] = positions
        return self.edited(donor, edit)

    @property
    def has_pronoun_row(self) -> np.ndarray:
        """``[B,T]``: the row that predicts the pronoun."""
        return np.arange(self.batch.target_in.shape[1]) == np.asarray(self.batch.position)[:, None]

    def has_roles(self, *roles: str) -> np.ndarray:
        """``[B,S]``: source tokens with one of the roles."""
        return np.isin(self.batch.source_roles, [ROLES.index(role) for role in roles])


@dataclasses.dataclass(frozen=True)
class Effects:
    """Effects of edits that place activations of the twins of one kind."""

    subject: Subject
    kind: int
    """`ADJECTIVE` or `NOUN`."""
    rows: np.ndarray | bool = True
    """Mask of the sentences that count, [B]."""

    @property
    def twins(self) -> np.ndarray:
        """Row of the twin of each sentence."""
        return np.arange(len(self.subject.preference)) ^ self.kind

    @functools.cached_property
    def donor(self) -> Sites:
        """The activations of the twins, with the pronoun's row where the sentence has it."""
        position = self.subject.batch.position
        by = position - position[self.twins]
        return interchange.aligned(self.subject.activations[self.twins], by)

    @property
    def right(self) -> np.ndarray:
        """``[B]``: the model is right about the sentence and its twin."""
        right = self.subject.preference > 0
        return right & right[self.twins] & self.rows

    def _parts(self, preference: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numerator and denominator of the effect, summed by quadruple."""
        before = self.subject.preference
        parts = before - preference, before + before[self.twins]
        return tuple((part * self.right).reshape(-1, 4).sum(1) for part in parts)

    def effect(self, preference: np.ndarray) -> float:
        """Effect of an edit after which the preference is this."""
        moved, whole = self._parts(preference)
        return float(moved.sum() / whole.sum()) if whole.sum() else float("nan")

    def with_interval(self, preference: np.ndarray) -> list[float]:
        """Effect, and its 95% interval over quadruples (percentile bootstrap)."""
        moved, whole = self._parts(preference)
        rng = np.random.default_rng(0)
        draws = rng.multinomial(len(whole), np.full(len(whole), 1 / len(whole)), BOOTSTRAPS)
        with np.errstate(invalid="ignore"):
            ratios = (draws @ moved) / (draws @ whole)
        low, high = np.nanquantile(ratios, [0.025, 0.975]) if whole.sum() else (np.nan, np.nan)
        return [self.effect(preference), float(low), float(high)]
