# SPDX-License-Identifier: Apache-2.0
"""The measures of the study `antecedent` for one model, as numbers for its JSON file.

An effect is the share of the way from a sentence's answer to its twin's answer: 0 if placing the
twin's activations somewhere changes nothing, 1 if the model then answers as for the twin. It is a
ratio of sums over all twins of which the model is right about both. In adjective twins the reason
chooses the other noun; in noun twins the nouns exchange their gender (`antecedent_sentences`). The
metric is the preference for the correct pronoun over the twin's, in nats, after the correct prefix.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.studies import interchange
from experiments.studies.antecedent_sentences import ADJECTIVE, NOUN
from experiments.studies.interchange import Sites
from experiments.studies.twins import ROLES, Sentences
from transformer.arrays import Array, Float, Params
from transformer.config import ModelConfig
from transformer.inspection import attribution, measures, trace
from transformer.inspection.alignment import untrained_params
from transformer.nn.capture import KINDS, Kind
from transformer.text.tokenizer import Tokenizer

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
DELETIONS = 4
IG_STEPS = 32
IG_SENTENCES = 24


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model, the quadruples, and its unchanged run over them."""

    params: Params
    config: ModelConfig
    batch: Sentences
    preference: Float[np.ndarray, " B"]
    activations: Sites

    @classmethod
    def of(cls, params: Params, config: ModelConfig, batch: Sentences) -> "Subject":
        """Run the model once."""
        preference, sites = interchange.activations(params, config, batch)
        return cls(params, config, batch, np.asarray(preference, np.float64), sites)

    def nothing(self) -> Sites:
        """An edit that selects nothing."""
        return interchange.no_edit(self.config, self.batch)

    def edited(self, donor: Sites, edit: Sites) -> tuple[Float[np.ndarray, " B"], Sites]:
        """Preference and activations after an edit."""
        value, sites = interchange.run(self.params, self.config, self.batch, donor, edit)
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


def measure(
    params: Params, config: ModelConfig, batch: Sentences, headline: Sentences, tokenizer: Tokenizer
) -> dict[str, Any]:
    """All measures of a trained model."""
    subject = Subject.of(params, config, batch)
    measured = paths(subject) | {
        "ablation": ablations(subject),
        "coreference": coreference(subject),
        "attribution": faithfulness(subject),
        "headline": example(subject, headline, tokenizer),
    }
    return rounded(measured)


def paths(subject: Subject) -> dict[str, Any]:
    """Accuracy, and the effects of memory, layers and heads."""
    measured: dict[str, Any] = {
        "right": float((subject.preference > 0).mean()),
        "preference": float(subject.preference.mean()),
        "sentences": len(subject.batch),
    }
    for name, kind in TWINS.items():
        effects = Effects(subject, kind, subject.donor(kind))
        measured[name] = {
            "right": int(effects.right.sum()),
            **memory(effects),
            "encoder": encoder_map(effects),
            "decoder": decoder_map(effects),
            "heads": heads(effects),
            "paths": path_patching(effects),
        }
    return measured


def quick(params: Params, config: ModelConfig, batch: Sentences) -> dict[str, Any]:
    """The measures of a stage of training: accuracy, memory, and coreference scores."""
    subject = Subject.of(params, config, batch)
    measured: dict[str, Any] = {"right": float((subject.preference > 0).mean())}
    for name, kind in TWINS.items():
        effects = Effects(subject, kind, subject.donor(kind))
        measured[name] = {"right": int(effects.right.sum()), **memory(effects)}
    return rounded(measured | {"coreference": coreference(subject)})


# Activation patching.


def memory(effects: Effects) -> dict[str, Any]:
    """Effects of the encoder's output, by group of tokens.

    ``memory``: one group is the twin's; ``rest``: all except the group; ``clause_first`` and
    ``event_first``: ``memory`` of sentences of these two orders. In the first the target read so
    far has no noun; in the second it has the translations of both.
    """
    subject = effects.subject
    position = np.where(subject.has_roles(["it"]), np.arange(subject.batch.source.shape[1]), 99)
    noun = np.where(subject.has_roles(["antecedent"]), np.arange(position.shape[1]), 99)
    first = position.min(1) < noun.min(1)
    orders = {"clause_first": first, "event_first": ~first}
    result: dict[str, Any] = {"memory": {}, "rest": {}, **{order: {} for order in orders}}
    everything = tuple(role for roles in GROUPS.values() for role in roles)
    for name, roles in {**GROUPS, "all": everything}.items():
        edit = subject.nothing()
        chosen = subject.has_roles(roles)
        edit.encoder_residual[:, -1] = chosen
        preference, _ = subject.edited(effects.donor, edit)
        result["memory"][name] = effects.with_interval(preference)
        for order, rows in orders.items():
            part = dataclasses.replace(effects, rows=rows)
            result[order][name] = part.with_interval(preference)
        if name in ("it", "adjective", "nouns"):
            edit.encoder_residual[:, -1] = subject.has_roles(everything) & ~chosen
            result["rest"][name] = effects.of_edit(edit)
    return result


def encoder_map(effects: Effects) -> list[list[float]]:
    """Effect of each role after each layer of the encoder."""
    subject = effects.subject

    def effect(level: int, role: str) -> float:
        edit = subject.nothing()
        edit.encoder_residual[:, level] = subject.has_roles([role])
        return effects.of_edit(edit)

    levels = subject.nothing().encoder_residual.shape[1]
    return [[effect(level, role) for role in ROLES] for level in range(1, levels)]


def decoder_map(effects: Effects) -> dict[str, list[float]]:
    """Effect of the decoder's input and of each layer: the pronoun's row, and the rows before it.

    Rows before it are comparable in adjective twins only, whose prefixes are equal.
    """
    subject = effects.subject
    before = np.arange(subject.batch.target_in.shape[1]) < subject.batch.position[:, None]
    rows = {"pronoun": subject.has_pronoun_row}
    if effects.kind == ADJECTIVE:
        rows["before"] = before

    def effect(level: int, chosen: np.ndarray) -> float:
        edit = subject.nothing()
        edit.decoder_residual[:, level] = chosen
        return effects.of_edit(edit)

    levels = subject.nothing().decoder_residual.shape[1]
    return {
        name: [effect(level, chosen) for level in range(levels)] for name, chosen in rows.items()
    }


def heads(effects: Effects) -> dict[str, Any]:
    """Effects of each head, of each layer's heads, and of all heads of a kind.

    ``it``: encoder heads in the row of "it"; ``adjective``: in the adjective's row; ``cross`` and
    ``decoder``: in the row that predicts the pronoun. ``output`` is the head's output, ``pattern``
    its attention weights alone, which then read the values of the sentence itself. Patterns of the
    decoder's self-attention are left out: the keys of noun twins are not comparable.
    """
    subject = effects.subject
    pronoun = subject.has_pronoun_row
    rows: dict[str, tuple[str, Kind, np.ndarray]] = {
        "it output": ("heads", "encoder", subject.has_roles(["it"])),
        "it pattern": ("patterns", "encoder", subject.has_roles(["it"])),
        "adjective output": ("heads", "encoder", subject.has_roles(["adjective"])),
        "cross output": ("heads", "cross", pronoun),
        "cross pattern": ("patterns", "cross", pronoun),
        "decoder output": ("heads", "decoder", pronoun),
    }
    single = ("it output", "it pattern", "cross output") if effects.kind == ADJECTIVE else ()
    result: dict[str, Any] = {}
    for name, (site, kind, row) in rows.items():
        effect = functools.partial(_head_effect, effects, site, kind, row)
        layers, number = getattr(subject.nothing(), site)[kind].shape[1:3]
        result[name] = {
            "layers": [effect((layer, slice(None))) for layer in range(layers)],
            "all": effect((slice(None), slice(None))),
        }
        if name in single:
            result[name]["heads"] = [
                [effect((layer, head)) for head in range(number)] for layer in range(layers)
            ]
    return result


def _head_effect(
    effects: Effects, site: str, kind: Kind, row: np.ndarray, chosen: tuple[Any, Any]
) -> float:
    edit = effects.subject.nothing()
    layer, head = chosen
    mask = getattr(edit, site)[kind]  # [B, L, N, T]
    mask[:, layer, head] = row.reshape(len(row), *[1] * (mask[:, layer, head].ndim - 2), -1)
    return effects.of_edit(edit)


def path_patching(effects: Effects) -> dict[str, Any]:
    """Effects of paths: what a receiver computes after the sender alone is the twin's.

    ``to_cross``: from a group of the memory through the cross-attention of one layer in the
    pronoun's row, and through no other head; ``through_it``: from the heads of an encoder layer in
    the row of "it" through the memory of "it".
    """
    subject = effects.subject
    result: dict[str, Any] = {"to_cross": {}}
    for name, roles in GROUPS.items():
        sender = subject.nothing()
        sender.encoder_residual[:, -1] = subject.has_roles(roles)
        _, sent = subject.edited(effects.donor, sender)
        received = dataclasses.replace(effects, donor=sent)
        pronoun = subject.has_pronoun_row
        layers = range(sender.heads["cross"].shape[1])
        result["to_cross"][name] = [
            _head_effect(received, "heads", "cross", pronoun, (layer, slice(None)))
            for layer in layers
        ]
    through = []
    it = subject.has_roles(["it"])
    for layer in range(subject.nothing().heads["encoder"].shape[1]):
        sender = subject.nothing()
        sender.heads["encoder"][:, layer] = it[:, None]
        _, sent = subject.edited(effects.donor, sender)
        receiver = subject.nothing()
        receiver.encoder_residual[:, -1] = it
        through.append(dataclasses.replace(effects, donor=sent).of_edit(receiver))
    return result | {"through_it": through}


# Ablation.


def ablations(subject: Subject) -> dict[str, Any]:
    """Share of right answers without heads: one, a layer's, all of a kind, and pairs of a kind.

    ``zero``: outputs of 0; ``mean``: the mean over all tokens; ``resample``: those of another
    sentence, of equal lengths where there is one. In every row of the heads. ``pairs``, of the
    means, are in the order of `itertools.combinations`.
    """
    donors = {
        "zero": jax.tree.map(jnp.zeros_like, subject.activations),
        "mean": _means(subject),
        "resample": _resampled(subject),
    }
    result: dict[str, Any] = {}
    for mode, donor in donors.items():
        result[mode] = {}
        for kind in KINDS:
            right = functools.partial(_right_without, subject, donor, kind)
            layers, number = subject.nothing().heads[kind].shape[1:3]
            of_layer = [[(layer, head) for head in range(number)] for layer in range(layers)]
            every = [one for ones in of_layer for one in ones]
            result[mode][kind] = {"heads": [[right([one]) for one in ones] for ones in of_layer]}
            if mode == "mean":
                result[mode][kind]["layers"] = [right(ones) for ones in of_layer]
                result[mode][kind]["all"] = right(every)
                if kind != "decoder":
                    pairs = itertools.combinations(every, 2)
                    result[mode][kind]["pairs"] = [right(pair) for pair in pairs]
    return result


def _right_without(
    subject: Subject, donor: Sites, kind: Kind, removed: Sequence[tuple[int, int]]
) -> float:
    edit = subject.nothing()
    for layer, head in removed:
        edit.heads[kind][:, layer, head] = True
    return float((subject.edited(donor, edit)[0] > 0).mean())


def _means(subject: Subject) -> Sites:
    """The mean output of every head over all tokens, in the decoder up to the pronoun's row."""
    batch = subject.batch
    read = np.arange(batch.target_in.shape[1]) <= np.asarray(batch.position)[:, None]
    real = {"encoder": np.asarray(batch.source_roles) >= 0, "decoder": read, "cross": read}

    def mean(kind: Kind, array: Float[Array, "B L N T H"]) -> Float[Array, "B L N T H"]:
        weight = jnp.asarray(real[kind], array.dtype)
        average = jnp.einsum("BLNTH,BT->LNH", array, weight) / weight.sum()
        return jnp.broadcast_to(average[None, :, :, None], array.shape)

    heads = {kind: mean(kind, array) for kind, array in subject.activations.heads.items()}
    return subject.activations.replace(heads=heads)


def _resampled(subject: Subject) -> Sites:
    """The activations of another sentence for each, of another quadruple."""
    batch = subject.batch
    lengths = np.asarray((batch.source_roles >= 0).sum(1))
    it = np.asarray(batch.has_role("it").argmax(1))
    shape = np.stack([it, lengths, batch.position], 1)
    rng = np.random.default_rng(0)
    rows = []
    for row in range(len(batch)):
        distance = np.abs(shape - shape[row]).sum(1) + rng.random(len(batch)) / 2
        distance[4 * (row // 4) : 4 * (row // 4) + 4] = np.inf
        rows.append(int(distance.argmin()))
    shift = batch.position - batch.position[rows]
    return interchange.aligned(subject.activations[np.array(rows)], shift)


# Attention weights.


def coreference(subject: Subject) -> dict[str, Any]:
    """Coreference scores of all heads, with the threshold that chance exceeds in 5% of cases.

    Of the encoder in the row of "it", and of cross-attention in the row that predicts the pronoun.
    """
    batch, number = subject.batch, np.arange(len(subject.batch))
    signs = subject.has_roles(["antecedent"]) * 1.0 - subject.has_roles(["distractor"])
    rows = {"encoder": batch.has_role("it").argmax(1), "cross": np.asarray(batch.position)}
    result = {}
    for kind, row in rows.items():
        weights = np.asarray(subject.activations.patterns[kind], np.float64)[number, :, :, row]
        scores = np.einsum("BLNS,BS->BLN", weights, signs)
        # Quadruples are independent; positional effects cancel within twins.
        chance = measures.chance_threshold(scores.reshape(-1, 4, *scores.shape[1:]).mean(1))
        result[kind] = {
            "score": scores.mean(0),
            "ahead": measures.share_above_zero(scores),
            "chance": chance,
        }
    return result


# Attribution.


def faithfulness(subject: Subject) -> dict[str, Any]:
    """How integrated gradients fare: deletion, occlusion, and randomized parameters.

    ``deletion``: the preference that is left, as a share, after the embeddings of the k first
    source tokens of an order are set to zero, k = 0 ... `DELETIONS`. ``rank_correlation``:
    Spearman's, with the preference that the deletion of single tokens costs (``occlusion``), and
    with the integrated gradients of models whose parameters are initial ones.
    """
    rows = np.arange(len(subject.batch)) < IG_SENTENCES
    chosen = rows & (subject.preference > 0)
    real = np.asarray(subject.batch.source_roles) >= 0
    of_trained = _attributions(subject.params, subject)
    donor = _without_embeddings(subject)
    occlusion = _occlusion(subject, donor)
    # As arrays of the same sharding, so that one program serves all three.
    initial = jax.tree.map(
        lambda fresh, trained: jax.device_put(np.asarray(fresh), trained.sharding),
        _initial_params(subject.config),
        subject.params,
    )
    decoder = {**subject.params, "decoder": initial["decoder"]}
    of_random = {
        "decoder": _attributions(decoder, subject),
        "all": _attributions(initial, subject),
    }
    last_cross = np.asarray(subject.activations.patterns["cross"]).mean((1, 2))  # [B, T, S]
    attention = last_cross[np.arange(len(real)), np.asarray(subject.batch.position)]
    rng = np.random.default_rng(0)
    orders = {
        "integrated gradients": of_trained,
        "occlusion": occlusion,
        "attention": attention,
        "random": rng.random(real.shape),
    }
    first_role = [
        ROLES[int(roles[np.where(roles >= 0, scores, -np.inf).argmax()])]
        for roles, scores in zip(
            np.asarray(subject.batch.source_roles)[chosen], of_trained[chosen], strict=True
        )
    ]
    return {
        "sentences": int(chosen.sum()),
        "deletion": {
            name: _deletion_curve(subject, donor, scores, chosen) for name, scores in orders.items()
        },
        "rank_correlation": {
            "occlusion": _rank_correlation(of_trained, occlusion, real, chosen),
            **{
                f"random {name}": _rank_correlation(np.abs(of_trained), np.abs(other), real, chosen)
                for name, other in of_random.items()
            },
        },
        "largest": {role: first_role.count(role) for role in ROLES if role in first_role},
    }


def _attributions(params: Params, subject: Subject) -> Float[np.ndarray, "B S"]:
    """Integrated gradients of the source tokens; 0 for sentences that are not attributed."""
    part = (
        subject.batch[np.arange(IG_SENTENCES)]
        if len(subject.batch) > IG_SENTENCES
        else (subject.batch)
    )
    result = np.zeros(subject.batch.source.shape)
    result[: len(part)] = _integrated(params, subject.config, part)
    return result


@functools.partial(jax.jit, static_argnames="config")
def _integrated(params: Params, config: ModelConfig, batch: Sentences) -> Float[Array, "B S"]:
    def one(sentence: Sentences) -> Float[Array, " S"]:
        return attribution.integrated_gradients(
            params,
            config,
            sentence.source,
            sentence.target_in,
            sentence.preference,
            steps=IG_STEPS,
        ).source

    return jax.lax.map(one, batch, batch_size=8)


def _without_embeddings(subject: Subject) -> Sites:
    """A donor whose encoder input is the positions alone."""
    residual = subject.activations.encoder_residual.at[:, 0].set(_positions(subject))
    return subject.activations.replace(encoder_residual=residual)


def _deleted(subject: Subject, donor: Sites, tokens: np.ndarray) -> Float[np.ndarray, " B"]:
    """Preference after the embeddings of the tokens [B,S] are set to zero; positions stay."""
    edit = subject.nothing()
    edit.encoder_residual[:, 0] = tokens
    return subject.edited(donor, edit)[0]


def _positions(subject: Subject) -> Float[Array, "S D"]:
    """What is added to the embeddings of the source."""

    @jax.jit
    def positions(params: Params) -> Float[Array, "S D"]:
        tokens = subject.batch.source[0], subject.batch.target_in[0]
        _, seen = trace.run(params, subject.config, *tokens, capture="full")
        return seen.encoder.positions

    return positions(subject.params)


@functools.lru_cache(maxsize=4)
def _initial_params(config: ModelConfig) -> Params:
    return untrained_params(config, seed=1)


def _occlusion(subject: Subject, donor: Sites) -> Float[np.ndarray, "B S"]:
    """Preference that the deletion of each source token costs."""
    length = subject.batch.source.shape[1]
    each = [_deleted(subject, donor, np.arange(length)[None] == s) for s in range(length)]
    return subject.preference[:, None] - np.stack(each, 1)


def _deletion_curve(
    subject: Subject, donor: Sites, scores: np.ndarray, chosen: np.ndarray
) -> list[float]:
    """Mean preference of the chosen sentences after 0, 1, ... deletions, as a share."""
    real = np.asarray(subject.batch.source_roles) >= 0
    order = np.argsort(-np.where(real, scores, -np.inf), axis=1)
    rank = np.argsort(order, axis=1)
    left = [subject.preference[chosen].mean()]
    left += [
        _deleted(subject, donor, (rank < k) & real)[chosen].mean() for k in range(1, DELETIONS + 1)
    ]
    return [float(each / left[0]) for each in left]


def _rank_correlation(
    first: np.ndarray, second: np.ndarray, real: np.ndarray, chosen: np.ndarray
) -> float:
    """Mean over sentences of Spearman's rank correlation over tokens."""
    correlations = []
    for a, b, kept in zip(first[chosen], second[chosen], real[chosen], strict=True):
        ranks = [np.argsort(np.argsort(each[kept])) for each in (a, b)]
        correlations.append(np.corrcoef(*ranks)[0, 1])
    return float(np.mean(correlations)) if correlations else float("nan")


# One example.


def example(subject: Subject, headline: Sentences, tokenizer: Tokenizer) -> dict[str, Any]:
    """The published twins: attention of every head, and the effect of every encoder site."""
    if not len(headline):
        return {}
    number = len(subject.batch)
    twice = headline[np.arange(number) % 2]
    of_headline = Subject.of(subject.params, subject.config, twice)
    edit = of_headline.nothing()
    levels, length = edit.encoder_residual.shape[1:]
    sites = [(level, s) for level in range(levels) for s in range(length)]
    effects = np.zeros((2, levels, length))
    # Rows 2i and 2i + 1 are the twins, of which each batch edits one site.
    for start in range(0, len(sites), number // 2):
        chunk = sites[start : start + number // 2]
        edit.encoder_residual[:] = False
        for row, site in enumerate(chunk):
            edit.encoder_residual[2 * row : 2 * row + 2, *site] = True
        preference, _ = of_headline.edited(of_headline.donor(ADJECTIVE), edit)
        before = of_headline.preference[:2]
        for row, (level, s) in enumerate(chunk):
            moved = before - preference[2 * row : 2 * row + 2]
            effects[:, level, s] = moved / before.sum()
    patterns = jax.tree.map(np.asarray, of_headline.activations.patterns)
    twins = []
    for row, one in enumerate(headline):
        real = np.asarray(one.source_roles) >= 0
        it = int(one.has_role("it").argmax())
        twins.append(
            {
                "words": tokenizer.pieces(one.source[real].tolist()),
                "target": tokenizer.pieces([int(t) for t in one.target if t]),
                "position": int(one.position),
                "preference": float(of_headline.preference[row]),
                "it": patterns["encoder"][row, :, :, it][..., real],
                "cross": patterns["cross"][row, :, :, int(one.position)][..., real],
                "effect": effects[row][:, real],
            }
        )
    return {"twins": twins}


def rounded(values: Any) -> Any:
    """Numbers with 4 decimals, in lists and dictionaries; None for NaN."""
    if isinstance(values, Mapping):
        return {key: rounded(value) for key, value in values.items()}
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, list | tuple):
        return [rounded(value) for value in values]
    if isinstance(values, float | np.floating):
        return round(float(values), 4) if np.isfinite(values) else None
    return values
