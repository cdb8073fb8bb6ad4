# SPDX-License-Identifier: Apache-2.0
"""Why a model writes one token and not another: the question of a page, and what answers it.

With two sentences the question is the first token in which their translations differ; with one, the
prediction of which the model is least sure. Everything is measured on the difference of the
log-probabilities of both tokens after the same prefix, log P(token) - log P(other).
"""

import dataclasses
import functools
from collections.abc import Sequence

import flax.struct
import jax
import numpy as np

from experiments.pages.sentence.analyzed_pair import AnalyzedPair
from transformer.arrays import Array, Float, Int, Params
from transformer.inspection import ablation, attribution, patching, readout
from transformer.inspection.activations import PerHead
from transformer.inspection.views.attention_kinds import Focus
from transformer.models.protocol import KINDS, Kind, Model

GRADIENT_POINTS = 64
"""Points of integrated gradients."""
MAX_ATTRIBUTION_FLOPS = 1e12
"""Computations that would take more use gradient times input instead."""

BATCH_SIZE = 16
"""Removed heads, or patched sites, per batch."""


@dataclasses.dataclass(frozen=True)
class Question:
    """Two tokens that the model can write at one position, after the same prefix."""

    position: int
    token: int
    """The token of the first sentence's translation."""
    other: int
    """The token of the second's; with one sentence the runner-up."""

    def preference(self, pair: AnalyzedPair) -> float:
        """log P(token) - log P(other) in nats."""
        log_probs = pair.computed.log_probs[self.position]
        return float(log_probs[self.token] - log_probs[self.other])

    def probabilities(self, pair: AnalyzedPair) -> tuple[float, float]:
        """P(token) and P(other)."""
        row = np.exp(pair.computed.log_probs[self.position])
        return float(row[self.token]), float(row[self.other])


def first_difference(first: AnalyzedPair, second: AnalyzedPair) -> Question | None:
    """The first token in which two translations differ; None if they are the same."""
    answers = zip(first.target, second.target, strict=False)
    for position, (token, other) in enumerate(answers):
        if token != other:
            return Question(position, token, other)
    return None


def least_certain(pair: AnalyzedPair, chosen: slice = slice(None)) -> Question:
    """The prediction with the smallest margin between its token and the best other one.

    Args:
      pair: a sentence pair.
      chosen: positions whose token the model chose. Others, such as a language code, were forced.
    """
    log_probs = np.array(pair.computed.log_probs)  # [T, V]
    positions, special = np.arange(len(pair.target)), pair.config.special_ids
    of_target = log_probs[positions, pair.target]
    log_probs[positions, pair.target] = -np.inf
    log_probs[:, [special.pad, special.bos]] = -np.inf
    margins = of_target - log_probs.max(-1)
    position = int(positions[chosen][margins[chosen].argmin()])
    return Question(position, pair.target[position], int(log_probs[position].argmax()))


# What removing a head does.


@flax.struct.dataclass
class WeightedLogProbabilities:
    """A weighted sum of the log-probabilities of tokens, as a metric of logits."""

    positions: Int[Array | np.ndarray, "*B K"]
    tokens: Int[Array | np.ndarray, "*B K"]
    weights: Float[Array | np.ndarray, "*B K"]

    def __call__(self, logits: Float[Array, "T V"]) -> Float[Array, ""]:
        """The weighted sum, in nats."""
        log_probs = jax.nn.log_softmax(logits)
        return (self.weights * log_probs[self.positions, self.tokens]).sum()


@dataclasses.dataclass(frozen=True)
class HeadEffects:
    """Effects of removing each head, by kind of attention, ``[L,N]`` each."""

    loss: dict[Kind, np.ndarray]
    """Increase of the loss of the model's own translation, in nats per token, a mean."""
    preference: dict[Kind, np.ndarray]
    """Decrease, in nats, of the preference for the question's token; with two sentences, decrease
    of the difference between their preferences.
    """

    def strongest(self, kind: Kind) -> tuple[int, int]:
        """Layer and head without which most of the preference is lost."""
        values = self.preference[kind]
        layer, head = np.unravel_index(values.argmax(), values.shape)
        return int(layer), int(head)


def head_effects(
    question: Question, first: AnalyzedPair, second: AnalyzedPair | None
) -> HeadEffects:
    """Remove each head in turn, and measure the loss and the preference in one program."""
    pairs = [first, first] if second is None else [first, first, second]
    length = len(first.target)
    # The loss of all tokens, and the preference of the question, as weights of the same terms.
    positions = [*range(length), question.position, question.position]
    tokens = [*first.target, question.token, question.other]
    loss, preference = [1 / length] * length + [0, 0], [0] * length + [1, -1]
    weights = [loss, *([preference] * (len(pairs) - 1))]
    metric = WeightedLogProbabilities(
        np.tile(np.array(positions), (len(pairs), 1)),
        np.tile(np.array(tokens), (len(pairs), 1)),
        np.array(weights, np.float32),
    )
    width = max(len(pair.source) for pair in pairs)
    pad = first.config.pad_id
    ablated = ablation.ablate_heads_for_metric(
        first.model,
        first.params,
        np.array([pair.source + [pad] * (width - len(pair.source)) for pair in pairs]),
        np.array([first.target_in] * len(pairs)),
        metric,
        heads_at_once=BATCH_SIZE,
    )
    lost = jax.tree.map(
        lambda without: np.asarray(ablated.value)[:, None, None] - np.asarray(without),
        ablated.without,
    )  # [B, L, N]

    def by_kind(values: PerHead, rows: Sequence[int], signs: Sequence[int]) -> dict:
        return {
            kind: sum(sign * each[row] for row, sign in zip(rows, signs, strict=True))
            for kind, each in vars(values).items()
            if each is not None
        }

    rows, signs = ([1], [1]) if second is None else ([1, 2], [1, -1])
    return HeadEffects(by_kind(lost, [0], [1]), by_kind(lost, rows, signs))


# What the tokens contribute.


@dataclasses.dataclass(frozen=True)
class Contributions:
    """Contributions of source and prefix tokens, in nats."""

    predictions: np.ndarray
    """``[T,S+T]``: to the log-probability of each token of the first translation."""
    value: np.ndarray
    """``[T]``: the log-probabilities."""
    baseline: np.ndarray
    """``[T]``: those of the baseline, which has positions but no tokens."""
    preferences: list[np.ndarray]
    """``[S+T]`` for each sentence: to the preference for the token of the question."""
    integrated: bool
    """Integrated gradients, or gradient times input where those would take too long."""


def contributions(
    question: Question, first: AnalyzedPair, second: AnalyzedPair | None
) -> Contributions:
    """Attribute every prediction of the first sentence, and the preference of each sentence.

    Both are linear in log-probabilities, so the preference is the difference of two of them. The
    second sentence must be as long as the first.
    """
    length, rows = len(first.target), [(first.source, question.other)]
    if second is not None:
        rows += [(second.source, question.token), (second.source, question.other)]
    sources = [first.source] * length + [source for source, _ in rows]
    tokens = [*first.target, *(token for _, token in rows)]
    positions = [*range(length), *[question.position] * len(rows)]

    flops = 3 * first.model.describe().forward_flops(1, len(first.source), length)
    integrated = flops * GRADIENT_POINTS * len(tokens) <= MAX_ATTRIBUTION_FLOPS
    results = jax.device_get(
        _attribute(
            first.model,
            first.params,
            np.array(sources),
            np.array(first.target_in),
            np.array(positions),
            np.array(tokens),
            integrated,
        )
    )
    values = np.concatenate([results.source, results.target], axis=1)  # [rows, S + T]
    preferences = [values[question.position] - values[length]]
    if second is not None:
        preferences.append(values[length + 1] - values[length + 2])
    return Contributions(
        values[:length], results.value[:length], results.baseline[:length], preferences, integrated
    )


@functools.partial(jax.jit, static_argnames=("model", "integrated"))
def _attribute(
    model: Model,
    params: Params,
    sources: Int[Array, "R S"],
    target_in: Int[Array, " T"],
    positions: Int[Array, " R"],
    tokens: Int[Array, " R"],
    integrated: bool,
) -> attribution.Attribution:
    """Attribute log-probabilities of tokens, one after the other."""

    def of_row(row: tuple[Int[Array, " S"], Int[Array, ""], Int[Array, ""]]):
        source, position, token = row
        arguments = (model, params, source, target_in)
        metric = readout.LogProbability(position, token)
        if integrated:
            return attribution.integrated_gradients(*arguments, metric, steps=GRADIENT_POINTS)
        return attribution.input_x_gradient(*arguments, metric)

    return jax.lax.map(of_row, (sources, positions, tokens))


# Where the encoder holds the answer.


def patch_map(question: Question, first: AnalyzedPair, second: AnalyzedPair) -> np.ndarray:
    """Share of the difference that each vector of the first sentence's encoder restores, [L+1,S].

    The model reads the second sentence, which must be as long, with the first's vector at one site.
    """
    result = patching.patch_sites(
        first.model,
        first.params,
        first.source,
        second.source,
        first.target_in,
        readout.LogitDifference(question.position, question.token, question.other),
        sites_at_once=BATCH_SIZE,
    )
    return np.asarray(result.effect)


# All of it.


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What answers the question: measurements of one or two sentences."""

    question: Question
    pairs: list[AnalyzedPair]
    """The first sentence, and the second if the question is about both."""
    effects: HeadEffects
    focus: Focus
    contributions: Contributions | None
    """None for a family without residual streams."""
    patched: np.ndarray | None
    """From `patch_map`; None with one sentence, or two that cannot be compared by position."""

    @property
    def is_about_two(self) -> bool:
        """Whether two sentences are compared."""
        return len(self.pairs) == 2

    @property
    def total(self) -> float:
        """The preference of the first sentence minus that of the second, if there are two."""
        signed = zip((1, -1), self.pairs, strict=False)
        return sum(sign * self.question.preference(pair) for sign, pair in signed)

    def reads(self, pair: AnalyzedPair, kind: Kind) -> np.ndarray | None:
        """The weights of the strongest head of a kind in its row of the focus.

        None for the encoder if the focus, a source position of the first sentence, is that of
        another word here, because the sentences differ in length.
        """
        if kind == "encoder" and len(pair.source) != len(self.pairs[0].source):
            return None
        weights = pair.computed.trace.attention(kind).weights[self.effects.strongest(kind)]
        return np.asarray(weights[self.focus.row(kind)], np.float64)


def gather(
    first: AnalyzedPair, second: AnalyzedPair | None, chosen: slice = slice(None)
) -> Evidence:
    """Find the question of one or two sentences, and measure what answers it.

    Equal sentences, and sentences with equal translations, pose no common question: that of the
    first is measured.

    Args:
      first: the sentence.
      second: to compare it with.
      chosen: see `least_certain`, of the first sentence.
    """
    question = None
    if second is not None and second.source != first.source:
        question = first_difference(first, second)
    if question is None:
        question, second = least_certain(first, chosen), None
    effects = head_effects(question, first, second)
    # Positions are compared one by one only between sentences of one length.
    same_length = second is not None and len(second.source) == len(first.source)
    contributed = patched = None
    if first.has_residual_streams:
        contributed = contributions(question, first, second if same_length else None)
        if same_length and question.preference(first) != question.preference(second):
            patched = patch_map(question, first, second)
    return Evidence(
        question,
        [first] if second is None else [first, second],
        effects,
        _focus(question, first, effects, patched),
        contributed,
        patched,
    )


def _focus(
    question: Question, first: AnalyzedPair, effects: HeadEffects, patched: np.ndarray | None
) -> Focus:
    """The strongest head, of the encoder if it has any, and the position that carries the answer.

    Without a patch map, that is the source position which the strongest head of cross-attention
    reads most.
    """
    source = 0
    if patched is not None:
        source = int(patched[-1].argmax())
    elif "cross" in effects.preference:
        layer, head = effects.strongest("cross")
        weights = first.computed.trace.attention("cross").weights
        source = int(weights[layer, head, question.position].argmax())
    kind = next(kind for kind in KINDS if kind in effects.preference)
    return Focus(kind, *effects.strongest(kind), source=source, target=question.position)
