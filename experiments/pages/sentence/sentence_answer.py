# SPDX-License-Identifier: Apache-2.0
"""The opening of the page of a sentence: what the model answers, and the evidence for why."""

from collections.abc import Sequence

import numpy as np

from experiments.pages.sentence.analyzed_pair import AnalyzedPair
from experiments.pages.sentence.sentence_question import Evidence
from transformer.inspection.html import (
    Html,
    details,
    element,
    escape,
    mark,
    paragraph,
    scale,
    sentence,
    shaded,
    shaded_table,
)
from transformer.inspection.views.attention_kinds import label_text
from transformer.inspection.views.reading_path import ReadingPath
from transformer.models.protocol import Kind

ORDINALS = ("first", "second")
_STACKS = {"encoder": "encoder self-attention", "cross": "cross-attention"}
_MOST = 0.5
"""Share of the difference from which one position is said to carry it."""
_SPACE = "\u2581"


def title(evidence: Evidence) -> str:
    """The question as the title of the page."""
    token, other = answers(evidence)
    return f"“{token}” or “{other}”: what decides?"


def opening(evidence: Evidence) -> Html:
    """The findings, a picture of each sentence, and the same in numbers."""
    cards = [_card(evidence, index) for index in range(len(evidence.pairs))]
    return element(
        "section",
        element("p", Html(" ".join(findings(evidence))), class_="findings"),
        element("div", *cards, class_="twins"),
        _legend(evidence),
        element(
            "dl", *(part for item in evidence_items(evidence) for part in item), class_="evidence"
        ),
        details("The same in numbers", _numbers(evidence)),
        class_="answer",
        id="answer",
    )


# Findings, each a sentence that is true of these measurements.


def findings(evidence: Evidence) -> list[Html]:
    """The answer, and the word that counts most for it."""
    return [_answer_finding(evidence), *_contribution_findings(evidence)]


def evidence_items(evidence: Evidence) -> list[tuple[Html, Html]]:
    """Measurements that explain the answer, each with its name."""
    candidates = {
        "Preference": _preference_finding(evidence),
        "Encoder output": _position_finding(evidence),
    }
    for name, kind in (("Encoder head", "encoder"), ("Decoder head", "cross")):
        if kind in evidence.effects.preference:
            candidates[name] = _head_finding(evidence, kind)
    return [
        (element("dt", name), element("dd", finding))
        for name, finding in candidates.items()
        if finding is not None
    ]


def _answer_finding(evidence: Evidence) -> Html:
    token, other = answers(evidence)
    first, *second = map(evidence.question.probabilities, evidence.pairs)
    text = (
        f"After the same beginning, the model gives {{token}} a probability of {first[0]:.2f} in "
        f"the first sentence, and {{other}} {second[0][1]:.2f} in the second."
        if evidence.is_about_two
        else f"The token of which the model is least sure is {{token}} ({first[0]:.2f}); the best "
        f"other one is {{other}} ({first[1]:.2f})."
    )
    return _prose(text, token=token, other=other)


def _preference_finding(evidence: Evidence) -> Html:
    """The number that everything else explains."""
    token, other = answers(evidence)
    values = [_signed(evidence.question.preference(pair)) for pair in evidence.pairs]
    text = f"log P({{token}}) − log P({{other}}) is {values[0]} nats"
    if evidence.is_about_two:
        text += f" in the first sentence and {values[1]} in the second: "
        text += f"a difference of {evidence.total:.1f}"
    return _prose(f"{text}.", token=token, other=other)


def _position_finding(evidence: Evidence) -> Html | None:
    """Which position of the encoder's output carries the difference between two sentences."""
    if evidence.patched is None:
        return None
    first, second = evidence.pairs
    effects, position = evidence.patched[-1], evidence.focus.source
    words = {"word": _both(first, second, position)}
    share = f"{effects[position]:.0%}"
    if effects[position] < _MOST:
        text = "No single position carries the difference between the sentences: the largest"
        return _prose(f"{text} share, {share}, is at {{word}}.", **words)
    text = (
        f"The vector at {{word}} carries {share} of the difference: that of the first sentence "
        "restores that much of the preference when the model reads the second."
    )
    differing = _differing(first, second)
    if position not in differing and len(differing) == 1:
        [changed] = differing
        words["changed"] = _both(first, second, changed)
        text += f" The word that differs, {{changed}}, carries {effects[changed]:.0%}."
    return _prose(text, **words)


def _head_finding(evidence: Evidence, kind: Kind) -> Html:
    """The tokens that the strongest head of a kind reads, and the loss without it."""
    layer, head = evidence.effects.strongest(kind)
    lost, total = evidence.effects.preference[kind][layer, head], evidence.total
    size = "difference" if evidence.is_about_two else "preference"
    if lost <= 0:
        return _prose(f"No single head of {_STACKS[kind]} is needed: the {size} never shrinks.")
    reads, words = [], {}
    for index, pair in enumerate(evidence.pairs):
        weights = evidence.reads(pair, kind)
        if weights is None:
            continue
        best = int(weights.argmax())
        words[f"word_{index}"] = pair.text(pair.source[best])
        where = f" in the {ORDINALS[index]}" if evidence.is_about_two else ""
        reads.append(f"{{word_{index}}} ({weights[best]:.2f}){where}")
    reader = "For this prediction"
    if kind == "encoder":
        first = evidence.pairs[0]
        reader, words["reader"] = "From {reader}", first.text(first.source[evidence.focus.source])
    return _prose(
        f"{reader}, head {layer + 1}.{head + 1} of {_STACKS[kind]} reads {' and '.join(reads)}; "
        f"without it, the {size} falls from {_plain(total)} to {_plain(total - lost)} nats.",
        **words,
    )


def _contribution_findings(evidence: Evidence) -> list[Html]:
    """The source token that counts most for each sentence's answer."""
    if evidence.contributions is None:
        return []
    method = "integrated gradients" if evidence.contributions.integrated else "gradient times input"
    parts, words = [], {}
    pairs = zip(evidence.pairs, evidence.contributions.preferences, strict=False)
    for index, (pair, values) in enumerate(pairs):
        of_source = (-values if index else values)[: len(pair.source)]
        best = int(of_source.argmax())
        words[f"word_{index}"] = pair.text(pair.source[best])
        words[f"answer_{index}"] = answers(evidence)[index]
        parts.append(f"{{word_{index}}} for {{answer_{index}}} ({_signed(of_source[best])} nats)")
    text = f"The source word that counts most is {' and '.join(parts)}, by {method}."
    return [_prose(text, **words)]


# Cards.


def _card(evidence: Evidence, index: int) -> Html:
    """One sentence: source, translation, and the path of its answer."""
    pair, question = evidence.pairs[index], evidence.question
    differing = _differing(*evidence.pairs) if evidence.is_about_two else set()
    probabilities = question.probabilities(pair)
    candidates = list(zip(answers(evidence), probabilities, strict=True))[:: -1 if index else 1]
    readings = {
        kind: evidence.reads(pair, kind) for kind in _STACKS if kind in evidence.effects.preference
    }
    position = evidence.focus.source
    if len(pair.source) != len(evidence.pairs[0].source):
        # The position of another word: follow the one that is read for the answer.
        position = int(readings["cross"].argmax()) if "cross" in readings else 0
    path = ReadingPath(
        words=pair.source_labels,
        position=position,
        predictions=candidates,
        encoder=readings.get("encoder"),
        cross=readings.get("cross"),
        shades=None if evidence.patched is None else evidence.patched[-1],
    )
    description = (
        f"{_sentence_text(pair.pieces, pair.source)}: what the prediction {candidates[0][0]} reads."
    )
    return element(
        "article",
        paragraph(_marked(pair, pair.source, differing)),
        element("p", _marked(pair, pair.target, {question.position}), class_="translation"),
        element("figure", path.drawing(description)),
    )


def _legend(evidence: Evidence) -> Html:
    """How to read the drawings."""
    named = []
    for kind, side in (("encoder", "Left"), ("cross", "Right")):
        if kind in evidence.effects.preference:
            layer, head = evidence.effects.strongest(kind)
            named.append(f"{side} lines: head {layer + 1}.{head + 1} of {_STACKS[kind]}. ")
    parts = ["".join(named), "Heads are named layer.head. The framed word is the one followed."]
    legends = [scale("attention weight (lines)")]
    if evidence.patched is not None:
        signed = bool(evidence.patched[-1].min() < -0.005)
        legends.append(scale("share of the difference restored (boxes)", signed=signed))
    return element("div", element("p", *parts, class_="hint"), *legends)


def _numbers(evidence: Evidence) -> Html:
    """Every source token with all that is known of it, a color for each value."""
    pairs, effects = evidence.pairs, evidence.effects
    one_length = len({len(pair.source) for pair in pairs}) == 1
    shown = pairs if one_length else pairs[:1]
    columns = []  # (name, values, limit of the scale, decimals)
    for level, restored in enumerate(() if evidence.patched is None else evidence.patched):
        name = f"restored after layer {level}" if level else "restored at the input"
        columns.append((name, restored, 1.0, 2))
    for kind in filter(effects.preference.__contains__, _STACKS):
        layer, head = effects.strongest(kind)
        for index, pair in enumerate(shown):
            which = f", {ORDINALS[index]}" if len(shown) > 1 else ""
            name = f"{kind} {layer + 1}.{head + 1} reads{which}"
            columns.append((name, evidence.reads(pair, kind), 1.0, 2))
    if evidence.contributions is not None:
        source = [each[: len(pairs[0].source)] for each in evidence.contributions.preferences]
        limit = max(float(np.abs(each).max()) for each in source)
        for index, each in enumerate(source):
            which = f", {ORDINALS[index]}" if len(source) > 1 else ""
            columns.append((f"contributes, nats{which}", each, limit, 1))
    rows = [
        (
            _both(pairs[0], shown[-1], position),
            [
                shaded(float(values[position]), limit, digits=decimals)
                for _, values, limit, decimals in columns
            ],
        )
        for position in range(len(pairs[0].source))
    ]
    token, other = answers(evidence)
    caption = (
        f"Every source token, for {token} rather than {other} at target token "
        f"{evidence.question.position + 1}"
    )
    names = [name for name, *_ in columns]
    return shaded_table(caption, ["source", *names], rows, chosen=evidence.focus.source)


# Text.


def answers(evidence: Evidence) -> tuple[str, str]:
    """Both tokens of the question, isolated from the direction of the text around them."""
    pair, question = evidence.pairs[0], evidence.question
    return label_text(pair.label(question.token)), label_text(pair.label(question.other))


def _differing(first: AnalyzedPair, second: AnalyzedPair) -> set[int]:
    """The source positions in which two sentences of the same length differ."""
    if len(first.source) != len(second.source):
        return set()
    both = zip(first.source, second.source, strict=True)
    return {position for position, (one, other) in enumerate(both) if one != other}


def _both(first: AnalyzedPair, second: AnalyzedPair, position: int) -> str:
    """The token at a source position; those of both sentences where they differ."""
    one, other = (pair.label(pair.source[position]) for pair in (first, second))
    texts = [label_text(one), label_text(other)]
    return texts[0] if one == other else " / ".join(texts)


def _marked(pair: AnalyzedPair, ids: Sequence[int], marked: set[int]) -> Html:
    """A sentence with some of its tokens highlighted."""
    parts = []
    for index, token in enumerate(ids):
        if token in pair.config.special_ids[:3]:
            continue
        piece = pair.pieces[token]
        text = piece.removeprefix(_SPACE).replace(_SPACE, " ")
        if piece.startswith(_SPACE) and parts:
            parts.append(" ")
        parts.append(mark(text) if index in marked else text)
    return sentence(*parts)


def _sentence_text(pieces: Sequence[str], ids: Sequence[int]) -> str:
    """The text of token ids, for a description."""
    return "".join(pieces[token] for token in ids).replace(_SPACE, " ").strip()


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def _plain(value: float) -> str:
    return f"{round(value, 1) + 0.0:.1f}".replace("-", "−")


def _prose(text: str, **words: str) -> Html:
    """A text whose ``{name}`` are words, which are emphasized."""
    strong = {name: element("strong", word) for name, word in words.items()}
    return element("span", Html(escape(text).format(**strong)))
