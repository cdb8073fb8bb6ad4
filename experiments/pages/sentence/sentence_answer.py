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
    """What was measured to explain the answer, each with its name."""
    candidates = {
        "Preference": _preference_finding(evidence),
        "Encoder output": _position_finding(evidence),
        **{
            name: _head_finding(evidence, kind)
            for name, kind in (("Encoder head", "encoder"), ("Decoder head", "cross"))
            if kind in evidence.effects.preference
        },
    }
    return [
        (element("dt", name), element("dd", finding))
        for name, finding in candidates.items()
        if finding is not None
    ]


def _answer_finding(evidence: Evidence) -> Html:
    question, pairs = evidence.question, evidence.pairs
    token, other = map(_emphasized, answers(evidence))
    first = question.probabilities(pairs[0])
    if not evidence.is_about_two:
        return _html(
            "The token of which the model is least sure is ",
            *(token, f" ({first[0]:.2f}); the best other one is ", other, f" ({first[1]:.2f})."),
        )
    second = question.probabilities(pairs[1])
    return _html(
        "After the same beginning, the model gives ",
        *(token, f" a probability of {first[0]:.2f} in the first sentence, and "),
        *(other, f" {second[1]:.2f} in the second."),
    )


def _preference_finding(evidence: Evidence) -> Html:
    """The number that everything else explains."""
    token, other = map(_emphasized, answers(evidence))
    values = [evidence.question.preference(pair) for pair in evidence.pairs]
    parts = ["log P(", token, ") − log P(", other, f") is {_signed(values[0])} nats"]
    if evidence.is_about_two:
        parts += [f" in the first sentence and {_signed(values[1])} in the second: "]
        parts += [f"a difference of {evidence.total:.1f}"]
    return _html(*parts, ".")


def _position_finding(evidence: Evidence) -> Html | None:
    """Which position of the encoder's output carries the difference between two sentences."""
    if evidence.patched is None:
        return None
    first, second = evidence.pairs
    effects, position = evidence.patched[-1], evidence.focus.source
    word = _emphasized(_both(first, second, position))
    share = f"{effects[position]:.0%}"
    if effects[position] < _MOST:
        return _html(
            "No single position carries the difference between the sentences: the largest share, "
            f"{share}, is at ",
            *(word, "."),
        )
    differing = [
        index
        for index, (one, other) in enumerate(zip(first.source, second.source, strict=True))
        if one != other
    ]
    parts = [
        "The vector at ",
        word,
        f" carries {share} of the difference: that of the first sentence ",
    ]
    parts += ["restores that much of the preference when the model reads the second."]
    if position not in differing and len(differing) == 1:
        changed = _emphasized(_both(first, second, differing[0]))
        parts += [" The word that differs, ", changed, f", carries {effects[differing[0]]:.0%}."]
    return _html(*parts)


def _head_finding(evidence: Evidence, kind: Kind) -> Html | None:
    """What the strongest head of a kind reads, and what is lost without it."""
    layer, head = evidence.effects.strongest(kind)
    lost, total = evidence.effects.preference[kind][layer, head], evidence.total
    size = "difference" if evidence.is_about_two else "preference"
    name = f"head {layer + 1}.{head + 1} of {_STACKS[kind]}"
    if lost <= 0:
        return _html(f"No single head of {_STACKS[kind]} is needed: the {size} never shrinks.")
    reads = []
    for index, pair in enumerate(evidence.pairs):
        weights = evidence.reads(pair, kind)
        if weights is None:
            continue
        best = int(weights.argmax())
        where = f" in the {ORDINALS[index]}" if evidence.is_about_two else ""
        reads += [
            " and " if index else "",
            _emphasized(pair.text(pair.source[best])),
            f" ({weights[best]:.2f}){where}",
        ]
    if kind == "encoder":
        word = evidence.pairs[0].text(evidence.pairs[0].source[evidence.focus.source])
        reader = ["From ", _emphasized(word), ", "]
    else:
        reader = ["For this prediction, "]
    fall = f"falls from {_plain(total)} to {_plain(total - lost)} nats"
    return _html(*reader, f"{name} reads ", *reads, f"; without it, the {size} {fall}.")


def _contribution_findings(evidence: Evidence) -> list[Html]:
    """The source token that counts most for each sentence's answer."""
    if evidence.contributions is None:
        return []
    method = "integrated gradients" if evidence.contributions.integrated else "gradient times input"
    parts = []
    pairs = zip(evidence.pairs, evidence.contributions.preferences, strict=False)
    for index, (pair, values) in enumerate(pairs):
        sign = -1 if index else 1
        of_source = sign * values[: len(pair.source)]
        best = int(of_source.argmax())
        answer = answers(evidence)[index]
        parts += [
            " and " if index else "",
            _emphasized(pair.text(pair.source[best])),
            " for ",
            _emphasized(answer),
            f" ({_signed(of_source[best])} nats)",
        ]
    return [_html("The source word that counts most is ", *parts, f", by {method}.")]


# Cards.


def _card(evidence: Evidence, index: int) -> Html:
    """One sentence: source, translation, and the path of its answer."""
    pair, question = evidence.pairs[index], evidence.question
    differing: set[int] = set()
    if evidence.is_about_two:
        other = evidence.pairs[1 - index]
        if len(other.source) == len(pair.source):
            same = zip(pair.source, other.source, strict=True)
            differing = {position for position, (one, two) in enumerate(same) if one != two}
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
        shades=_shades(evidence, index),
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


def _shades(evidence: Evidence, index: int) -> np.ndarray | None:
    """The values of the encoder's output: what each position restores, or contributes."""
    return None if evidence.patched is None else evidence.patched[-1]


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
    pairs, question = evidence.pairs, evidence.question
    one_length = len({len(pair.source) for pair in pairs}) == 1
    shown = pairs if one_length else pairs[:1]
    columns, values, limits, digits = [], [], [], []

    def add(name: str, column: np.ndarray, limit: float, decimals: int) -> None:
        columns.append(name)
        values.append(column)
        limits.append(limit)
        digits.append(decimals)

    if evidence.patched is not None:
        for level, effects in enumerate(evidence.patched):
            name = f"restored after layer {level}" if level else "restored at the input"
            add(name, effects, 1.0, 2)
    for kind in _STACKS:
        if kind not in evidence.effects.preference:
            continue
        for index, pair in enumerate(shown):
            layer, head = evidence.effects.strongest(kind)
            which = f", {ORDINALS[index]}" if len(shown) > 1 else ""
            name = f"{kind} {layer + 1}.{head + 1} reads{which}"
            add(name, evidence.reads(pair, kind), 1.0, 2)
    if evidence.contributions is not None:
        source = [each[: len(pairs[0].source)] for each in evidence.contributions.preferences]
        limit = max(float(np.abs(each).max()) for each in source)
        for index, each in enumerate(source):
            which = f", {ORDINALS[index]}" if len(source) > 1 else ""
            add(f"contributes, nats{which}", each, limit, 1)
    rows = []
    for position in range(len(pairs[0].source)):
        word = _both(pairs[0], shown[-1], position)
        cells = [
            shaded(float(column[position]), limit, digits=decimals)
            for column, limit, decimals in zip(values, limits, digits, strict=True)
        ]
        rows.append((word, cells))
    token, other = answers(evidence)
    caption = (
        f"Every source token, for {token} rather than {other} at target token "
        f"{question.position + 1}"
    )
    return shaded_table(caption, ["source", *columns], rows, chosen=evidence.focus.source)


# Text.


def answers(evidence: Evidence) -> tuple[str, str]:
    """Both tokens of the question, isolated from the direction of the text around them."""
    pair, question = evidence.pairs[0], evidence.question
    return label_text(pair.label(question.token)), label_text(pair.label(question.other))


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


def _emphasized(text: str) -> Html:
    return element("strong", text)


def _html(*parts: str) -> Html:
    """Text and markup, concatenated."""
    return element("span", *parts)
