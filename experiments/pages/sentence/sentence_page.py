# SPDX-License-Identifier: Apache-2.0
"""The views of the page that shows what a trained model does with one sentence.

The page opens with `sentence_answer.opening`; its views open on the head and word found there.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from experiments.pages.sentence import sentence_answer
from experiments.pages.sentence.analyzed_pair import AnalyzedPair
from experiments.pages.sentence.sentence_question import GRADIENT_POINTS, Evidence
from transformer.inspection import residual
from transformer.inspection.activations import Trace
from transformer.inspection.html import (
    Html,
    contents,
    details,
    element,
    folded,
    number_table,
    paragraph,
    scale,
    shaded,
    shaded_table,
)
from transformer.inspection.search_log import SearchLog
from transformer.inspection.views.attention_kinds import LabeledAttention, label_text
from transformer.inspection.views.attention_steps import attention_steps, has_scaled_dot_products
from transformer.inspection.views.head_overview import head_overview
from transformer.inspection.views.head_view import head_view
from transformer.inspection.views.search_replay import search_replay
from transformer.inspection.views.sentence_comparison import compare_sentences
from transformer.inspection.views.value_map import value_map
from transformer.inspection.views.view import View, page
from transformer.models.protocol import KINDS

Part = View | Html

# Limits that keep a page of 6 layers, 8 heads and 30 tokens below 2 MB.
MAX_VECTOR_VALUES = 53_000
"""Values of queries, keys, values and outputs for the six steps."""
MAX_COMPARED_WEIGHTS = 40_000
"""Attention weights of the two sentences of a comparison.

At least one layer is shown, and always that of the focus.
"""

HEADINGS = {
    "patch": "Where the encoder holds the answer",
    "comparison": "Both sentences, head by head",
    "heads": "One head: who reads whom",
    "overview": "Every layer and head",
    "steps": "One head in six steps",
    "search": "The search, step by step",
    "layers": "Layer by layer",
    "lens": "Logit lens",
    "attribution": "Attribution of each prediction",
    "residual": "Residual stream",
    "about": "The model, and what this page does not show",
}


def sentence_page(
    evidence: Evidence, log: SearchLog, second: AnalyzedPair | None, about: Html, target_name: str
) -> str:
    """The complete page.

    Args:
      evidence: The question of the page and its evidence.
      log: The search for the translation of the first sentence.
      second: The sentence to compare with, if any.
      about: The sentences, the model, and the limits of the method.
      target_name: What the decoder reads, such as "the model's own translation".
    """
    parts = [
        *([] if second is None else comparison(evidence, second)),
        *attention(evidence, target_name),
        search(log, evidence),
        *layer_by_layer(evidence),
        folded(
            HEADINGS["about"], "Sentences, sizes, weights, and the limits of the method.", about
        ),
    ]
    first = [sentence_answer.opening(evidence), contents(_headings(parts))]
    return page(sentence_answer.title(evidence), [*first, *parts], folded=True)


def _headings(parts: Sequence[Part]) -> Iterator[str]:
    """The heading of each part."""
    for part in parts:
        if isinstance(part, View):
            yield part.title
        else:
            yield next(each for each in HEADINGS.values() if f"<h2>{each}</h2>" in part)


# Attention.


def attention(evidence: Evidence, target_name: str) -> list[Part]:
    """The head view, the overview with measures of every head, and the six steps."""
    pair, focus = evidence.pairs[0], evidence.focus
    kinds = pair.attention
    return [
        head_view(kinds, focus=focus, title=HEADINGS["heads"]).introduced(
            "Lines from each token to those that it reads, one color a head."
        ),
        head_overview(
            kinds, measures=_head_measures(evidence), focus=focus, title=HEADINGS["overview"]
        ).introduced(
            "A small map of every head, and what is lost without it.",
            paragraph(
                f"Heads are removed one by one while the decoder reads {target_name}. The loss is "
                "a mean over all tokens of the first sentence. Beside it is what is lost at the "
                f"one token of the question{', in both sentences' * evidence.is_about_two}."
            ),
        ),
        _six_steps(evidence, kinds),
    ]


def _head_measures(evidence: Evidence) -> dict[str, dict[str, np.ndarray]]:
    """Measures of every head: name -> kind of attention -> values [L,N]."""
    computed, effects = evidence.pairs[0].computed, evidence.effects
    token, other = sentence_answer.answers(evidence)
    # Positions of queries and keys are comparable in self-attention only, and in the decoder no key
    # follows its query.
    roles = {
        "previous position": ("previous", ("encoder", "decoder")),
        "next position": ("next", ("encoder",)),
        "same position": ("diagonal", ("encoder", "decoder")),
        "first position": ("first", KINDS),
        "last position": ("end", ("encoder", "cross")),
    }
    all_measures = {
        f"{token} over {other}, lost without the head (nats)": effects.preference,
        "loss increase without the head (nats per token)": effects.loss,
        "mean distance": {k: v for k, v in computed.distance.items() if k != "cross"},
        **{
            f"weight on the {name}": {
                kind: getattr(of_kind, role)
                for kind, of_kind in computed.roles.items()
                if kind in kinds
            }
            for name, (role, kinds) in roles.items()
        },
    }
    return {name: of_kinds for name, of_kinds in all_measures.items() if of_kinds}


def _six_steps(evidence: Evidence, kinds: tuple[LabeledAttention, ...]) -> Part:
    """The steps of scaled dot-product attention, of which alone the vectors are captured."""
    title = HEADINGS["steps"]
    about = "Query, key and value as colors and as numbers, down to the head's output."
    trace = evidence.pairs[0].computed.trace
    available = _heads_with_steps(trace)
    if not available:
        reason = (
            "There are no attention steps: no kind of attention has plain dot products as scores."
        )
        return folded(title, about, paragraph(reason))
    heads = _heads_that_fit(trace, available, evidence)
    notes = []
    if len(heads) < len(available):
        notes = [
            paragraph(
                f"{len(heads)} of {len(available)} heads are here, those without which most of the "
                "answer is lost; the vectors of all would make the page too large."
            )
        ]
    view = attention_steps(trace, kinds, heads, focus=evidence.focus, title=title)
    return view.introduced(about, *notes)


def _heads_with_steps(trace: Trace) -> list[tuple[str, int, int]]:
    """(kind, layer, head) of the heads whose scores are scaled dot products."""
    heads = []
    for kind in KINDS:
        vectors = trace.attention(kind)
        if vectors is not None and vectors.query is not None and has_scaled_dot_products(vectors):
            heads += [(kind, *indices) for indices in np.ndindex(vectors.query.shape[:2])]
    return heads


def _heads_that_fit(
    trace: Trace, heads: list[tuple[str, int, int]], evidence: Evidence
) -> list[tuple[str, int, int]]:
    """The heads whose vectors fit on a page, preferring those with the largest effect."""

    def size(kind: str) -> int:
        vectors = trace.attention(kind)
        arrays = (vectors.query, vectors.key, vectors.value, vectors.z)  # [L, N, T or S, H]
        return sum(array[0, 0].size for array in arrays)

    def effect(head: tuple[str, int, int]) -> float:
        kind, layer, index = head
        return -evidence.effects.preference[kind][layer, index]

    count = max(MAX_VECTOR_VALUES // max(size(kind) for kind, _, _ in heads), 1)
    chosen = set(sorted(heads, key=effect)[:count])
    return [head for head in heads if head in chosen]


def search(log: SearchLog, evidence: Evidence) -> View:
    """The search for the translation."""
    return search_replay(
        log, evidence.pairs[0].pieces, step=evidence.question.position, title=HEADINGS["search"]
    ).introduced("The search for the translation: its hypotheses, and what each of them reads.")


# Layer by layer.


def layer_by_layer(evidence: Evidence) -> list[Part]:
    """The logit lens, attributions and the residual streams, or that the family has none."""
    pair = evidence.pairs[0]
    if pair.has_residual_streams:
        return [logit_lens(evidence), attributions(evidence), residual_stream(pair)]
    return [
        folded(
            HEADINGS["layers"],
            "What this model family does not show.",
            paragraph(
                f"The model family {pair.config.family!r} captures no residual streams, so this "
                "page has no logit lens, no norms of sub-layers and no attributions."
            ),
        )
    ]


def logit_lens(evidence: Evidence) -> Html:
    """The most probable token of every position, from the residual stream after every layer."""
    pair = evidence.pairs[0]
    probabilities = pair.computed.lens  # [L+1, T, V]
    best = probabilities.argmax(-1)
    last = len(best) - 1
    columns = ["input", *(f"layer {layer}" for layer in range(1, last)), f"layer {last}: output"]

    def cell(layer: int, position: int) -> Html:
        token = best[layer, position]
        value = float(probabilities[layer, position, token])
        text = f"{label_text(pair.label(token))} {value:.2f}"
        tag = "strong" if token == pair.target[position] else "span"
        return shaded(value, text=element(tag, text))

    rows = [
        (label_text(label), [cell(layer, position) for layer in range(last + 1)])
        for position, label in enumerate(pair.decoder_labels)
    ]
    return folded(
        HEADINGS["lens"],
        "What the decoder would predict if it ended at each layer.",
        paragraph(
            "The most probable token and its probability if the decoder ended at each layer, bold "
            "where it is the target. Early layers are not trained for this."
        ),
        scale("probability"),
        shaded_table(
            "Rows: the token read → the token to predict",
            ["", *columns],
            rows,
            chosen=evidence.question.position,
        ),
    )


def residual_stream(pair: AnalyzedPair) -> Html:
    """The norms of what every sub-layer reads, adds and outputs."""
    tables = [_flow_table(side, pair.computed.flows[side]) for side in ("encoder", "decoder")]
    return folded(
        HEADINGS["residual"],
        "How much every sub-layer adds to the stream of vectors.",
        paragraph(
            "Euclidean norms of the input x of every sub-layer, of what it adds, f(x), of the sum, "
            "and of its output, and the cosine of x and x + f(x); all are means over the positions."
        ),
        *tables,
    )


def _flow_table(side: str, flow: residual.ResidualFlow) -> Html:
    norms = {name: np.asarray(each).mean(-1) for name, each in flow.norms().items()}
    cosine = np.asarray(flow.cosine()).mean(-1)
    limit = max(float(each.max()) for each in norms.values())
    rows = [
        (
            name,
            [
                *(shaded(float(each[index]), limit) for each in norms.values()),
                shaded(float(cosine[index])),
            ],
        )
        for index, name in enumerate(flow.names)
    ]
    caption = f"{side.capitalize()}: mean norms, and the cosine of x and x + f(x)"
    table = shaded_table(caption, ["sub-layer", *norms, "cosine"], rows)
    return Html(table + scale("norm", limit, digits=1))


# Attribution.


def attributions(evidence: Evidence) -> View:
    """The contribution of every source and prefix token to every prediction."""
    pair, result = evidence.pairs[0], evidence.contributions
    values = result.predictions  # [T, S + T]
    totals = values.sum(1)
    gaps = np.abs(totals - (result.value - result.baseline))
    method = (
        f"Integrated gradients with {GRADIENT_POINTS} points. The contributions should add up to "
        "the log-probability minus that of the baseline; the gap is the error."
        if result.integrated
        else "Gradient times input, because integrated gradients would take too long here. The "
        "contributions need not add up to the difference from the baseline; the gap is the error."
    )
    rows, sources = pair.decoder_labels, pair.source_labels
    sums = number_table(
        "Sum of the contributions, in nats",
        ["prediction", "log-probability", "baseline", "contributions", "gap"],
        zip(
            map(label_text, rows),
            np.stack([result.value, result.baseline, totals, gaps], axis=1),
            strict=True,
        ),
    )
    # A prediction cannot depend on the prefix tokens after its position.
    positions = np.array(
        [evidence.question.position] * len(result.preferences) + [*range(len(rows))]
    )
    shown = np.concatenate([result.preferences, values]).astype(np.float64)
    shown[:, len(sources) :][np.arange(len(rows)) > positions[:, None]] = np.nan
    token, other = sentence_answer.answers(evidence)
    which = [" (first)", " (second)"] if len(result.preferences) > 1 else [""]
    preferences = [(f"{token} over {other}{each}",) for each in which]
    return value_map(
        shown,
        [*preferences, *rows],
        [*sources, *pair.prefix_labels],
        name="Contribution of each token to the log-probability of the prediction",
        unit="nats",
        digits=3,
        cursor=(0, int(np.nanargmax(np.abs(shown[0])))),
        title=HEADINGS["attribution"],
    ).introduced(
        "What every source token and every earlier target token contributes.",
        paragraph(
            f"{method} The baseline has the same positions without tokens. Another baseline "
            "would give other numbers. The first rows are the question of this page, "
            f"log P({token}) − log P({other}); the others are the log-probabilities of the "
            "first sentence's tokens. Columns: the source, then the prefix that the decoder has "
            "read."
        ),
        details("Sums and errors", sums),
    )


# Two sentences.


def comparison(evidence: Evidence, second: AnalyzedPair) -> list[Part]:
    """The patch map of the first difference, and the attention of two sentences.

    Args:
      evidence: Of the first sentence, or of both.
      second: Another sentence with its translation.
    """
    first, title = evidence.pairs[0], HEADINGS["comparison"]
    about = "The attention of both sentences, and its difference."
    lengths = len(first.source), len(second.source)
    if lengths[0] != lengths[1]:
        reason = paragraph(
            f"The first sentence has {lengths[0]} tokens and the second {lengths[1]}, so positions "
            "cannot be compared one by one. There is no difference and no patch map; below is the "
            "attention of the second sentence."
        )
        return [head_view(second.attention, title=title).introduced(about, reason)]
    pairs = [each.attention for each in (first, first.with_source(second.source))]
    weights_per_layer = 2 * sum(kind.weights[0].size for kind in pairs[0])
    count = max(MAX_COMPARED_WEIGHTS // weights_per_layer, 1)
    notes = [
        "The decoder reads the first sentence's target in both, so that the rows are the same."
    ]
    if max(len(kind.weights) for kind in pairs[0]) > count:
        kept = [
            tuple(kind.consecutive_layers(count, evidence.focus) for kind in pair) for pair in pairs
        ]
        notes.append(_kept_layers(kept[0], pairs[0]))
        pairs = kept
    view = compare_sentences(*pairs, focus=evidence.focus, title=title)
    return [_patch_map(evidence, second), view.introduced(about, *map(paragraph, notes))]


def _kept_layers(kept: Sequence[LabeledAttention], every: Sequence[LabeledAttention]) -> str:
    """Which layers of each kind of attention are in the comparison, and why."""
    layers = [
        f"{kind.title.lower()} {_numbers(kind.first_layer + 1, len(kind.weights))} of "
        f"{len(complete.weights)}"
        for kind, complete in zip(kept, every, strict=True)
    ]
    return (
        "The weights of all layers of both sentences would make the page too large. These layers "
        f"are here, among them that of the head in the answer: {'; '.join(layers)}."
    )


def _numbers(first: int, count: int) -> str:
    """Consecutive numbers, such as ``3 to 5``."""
    return str(first) if count == 1 else f"{first} to {first + count - 1}"


def _patch_map(evidence: Evidence, second: AnalyzedPair) -> Part:
    """Where the encoder's residual stream determines the first difference of the translations."""
    heading, first = HEADINGS["patch"], evidence.pairs[0]
    about = "The patch map: one vector of the first sentence, put into the second."
    reason = None
    if not first.has_residual_streams:
        reason = "the model captures no residual stream"
    elif first.source == second.source:
        reason = "the sentences are the same"
    elif not evidence.is_about_two:
        reason = "the translations are the same"
    elif evidence.patched is None:
        reason = "both sentences give the model the same preference"
    if reason is not None:
        return folded(heading, about, paragraph(f"There is no patch map: {reason}."))
    effect, question = evidence.patched, evidence.question
    token, other = sentence_answer.answers(evidence)
    columns = [
        one if one == two else (f"{one[0]} / {two[0]}",)
        for one, two in zip(first.source_labels, second.source_labels, strict=True)
    ]
    levels = [("input",), *((f"after layer {layer}",) for layer in range(1, len(effect)))]
    return value_map(
        effect,
        levels,
        columns,
        name=f"Share of the preference for {token} over {other} that is restored",
        unit="of the preference restored",
        limit=max(1.0, float(np.abs(effect).max())),
        digits=3,
        cursor=(len(effect) - 1, evidence.focus.source),
        title=heading,
    ).introduced(
        about,
        paragraph(
            f"The translations first differ at target token {question.position + 1}: {token} in "
            f"the first, {other} in the second. The model reads the second sentence, with the "
            "vector of the first at one site of the encoder's residual stream. The map shows the "
            "share of the first answer that this restores: 0 is nothing, 1 all of it. It holds for "
            "these two sentences and tokens."
        ),
    )
