# SPDX-License-Identifier: Apache-2.0
"""Effects of edits to a model's activations, over the twins of the study `antecedent`.

An effect is the share of the way from a sentence's answer to its twin's answer: 0 if placing the
twin's activations somewhere changes nothing, 1 if the model then answers as for the twin. It is a
ratio of sums over all twins of which the model is right about both. In adjective twins the reason
chooses the other noun; in noun twins the nouns exchange their gender (`antecedent_sentences`). The
metric is the preference for the correct pronoun over the twin's, in nats, after the correct prefix.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from experiments.studies import interchange
from experiments.studies.antecedent_sentences import ADJECTIVE, NOUN
from experiments.studies.interchange import Sites
from experiments.studies.twins import ROLES, Sentences
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

    def nothing(self) -> Sites:
        """An edit that selects nothing."""
        return interchange.no_edit(self.model, self.batch)

    def edited(self, donor: Sites, edit: Sites) -> tuple[Float[np.ndarray, " B"], Sites]:
        """Preference and activations after an edit."""
        value, sites = interchange.run(self.model, self.params, self.batch, donor, edit)
        return np.asarray(value, np.float64), sites

    def donor(self, kind: int) -> Sites:
        """The activations of every sentence's twin; decoder rows moved to the same pronoun row."""
        rows = np.arange(len(self.batch)) ^ kind
        shift = self.batch.position - self.batch.position[rows]
        return interchange.aligned(self.activations[rows], shift)

    @property
    def has_pronoun_row(self) -> np.ndarray:
        """``[B,T]``: the row that predicts the pronoun."""
        return np.arange(self.batch.target_in.shape[1]) == np.asarray(self.batch.position)[:, None]

    def has_roles(self, roles: Sequence[str]) -> np.ndarray:
        """``[B,S]``: source tokens with one of the roles."""
        return np.isin(self.batch.source_roles, [ROLES.index(role) for role in roles])


@dataclasses.dataclass(frozen=True)
class Effects:
    """Effects of edits between twins of one kind."""

    subject: Subject
    kind: int
    donor: Sites
    rows: np.ndarray | None = None
    """A subset of the sentences, [B]; all by default."""

    @property
    def right(self) -> np.ndarray:
        """``[B]``: the model is right about the sentence and its twin."""
        preference = self.subject.preference
        right = (preference > 0) & (preference[np.arange(len(preference)) ^ self.kind] > 0)
        return right if self.rows is None else right & self.rows

    def _parts(self, preference: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numerator and denominator of the effect, summed by quadruple."""
        before = self.subject.preference
        whole = before + before[np.arange(len(before)) ^ self.kind]
        moved = before - preference
        return tuple((part * self.right).reshape(-1, 4).sum(1) for part in (moved, whole))

    def of(self, preference: np.ndarray) -> float:
        """Effect of an edit after which the preference is this."""
        moved, whole = self._parts(preference)
        return float(moved.sum() / whole.sum()) if whole.sum() else float("nan")

    def of_edit(self, edit: Sites) -> float:
        """Effect of an edit."""
        return self.of(self.subject.edited(self.donor, edit)[0])

    def with_interval(self, preference: np.ndarray) -> list[float]:
        """Effect, and its 95% interval over quadruples (percentile bootstrap)."""
        moved, whole = self._parts(preference)
        rng = np.random.default_rng(0)
        draws = rng.multinomial(len(whole), np.full(len(whole), 1 / len(whole)), BOOTSTRAPS)
        with np.errstate(invalid="ignore"):
            ratios = (draws @ moved) / (draws @ whole)
        low, high = np.nanquantile(ratios, [0.025, 0.975]) if whole.sum() else (np.nan, np.nan)
        return [self.of(preference), float(low), float(high)]
