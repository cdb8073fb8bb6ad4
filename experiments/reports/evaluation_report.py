# SPDX-License-Identifier: Apache-2.0
"""The page that `evaluate` writes: scores, learning curves, sentences, and what to look out for."""

import collections
import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

from etils import epath

from experiments.corpora.registry import Split
from experiments.reports import diagnostics
from transformer.config import Config, DecodeConfig
from transformer.fields import difference
from transformer.inspection.html import (
    Html,
    Series,
    element,
    line_chart,
    page,
    paragraph,
    section,
    sentences,
    table,
)
from transformer.text.metrics import sentence_chrf

SAMPLES = 8
"""Sentences shown as they come, and of each kind of problem at most so many."""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """A split, translated and scored."""

    split: Split
    translations: list[str]
    scores: dict[str, Any]
    """What `evaluate` prints."""
    reference_nll: list[float]
    """Of each reference, nats a token."""
    cut_sources: list[int]
    """Places of the sources of which only the beginning was translated."""
    cut_translations: list[int]
    """Places of the translations that are as long as the search allows."""

    def __len__(self) -> int:
        return len(self.split)


def evaluation_page(
    title: str,
    evaluation: Evaluation,
    config: Config,
    *,
    weights: str,
    parameters: int,
    metrics: epath.Path,
) -> str:
    """The report as one HTML file.

    Args:
      title: of the page.
      evaluation: what was found.
      config: the workdir's, with the fields of decoding that were used.
      weights: which weights were used, in words.
      parameters: how many there are.
      metrics: the run's ``metrics.jsonl``; the page says so when it is missing or broken.
    """
    summary = (
        f"{len(evaluation):,} sentence pairs of {evaluation.split.dataset}, translated by a "
        f"{config.model.family} with {parameters:,} parameters: {weights}. "
        f"Decoding: {_decoding(config.decode)}."
    )
    chrf = sentence_chrf(evaluation.translations, evaluation.split.targets)
    return page(
        title,
        paragraph(summary),
        section("Scores", *_scores(evaluation.scores)),
        section("Learning curves", *_learning_curves(metrics)),
        section("Samples", *_samples(evaluation, chrf)),
        section("Worst sentences", *_worst(evaluation, chrf)),
        section("Length", *_lengths(evaluation)),
        section("Checks", *_checks(evaluation, chrf)),
        section("Configuration", *_configuration(config)),
    )


def _decoding(decode: DecodeConfig) -> str:
    """How translations were found, in words."""
    if decode.method != "beam":
        return {"sample": "sampling", "mbr": "minimum Bayes risk"}[decode.method]
    beams = "1 beam" if decode.beams == 1 else f"{decode.beams} beams"
    penalty = f"length penalty {decode.length_penalty} with alpha {decode.alpha:g}"
    return f"beam search with {beams}, {penalty}"


MEANINGS = {
    "bleu": (
        "How many of the translation's sequences of 1 to 4 words are in the reference too, less a "
        "penalty if it is shorter. 0 to 100."
    ),
    "chrf": "The same idea with sequences of 1 to 6 characters; what is missing counts more.",
    "exact_match": "The share of translations that equal their reference, letter by letter.",
    "nll": (
        "How little the model expects the references: the mean of -log P of a token, the true "
        "ones before it given, in nats. Lower is better."
    ),
    "perplexity": "e to the power of the line above: as unsure as between so many equal choices.",
}
"""The measures of every evaluation, in words."""


def score_rows(scores: dict[str, Any]) -> list[tuple[object, ...]]:
    """A row for each measure of `scores`: its name, value, interval, and meaning."""
    names = {"bleu": "BLEU", "chrf": "chrF", "nll": "NLL"}
    rows = []
    for name, value in scores.items():
        if name == "sentences" or isinstance(value, str | list):
            continue
        interval = scores.get(f"{name}_ci")
        rows.append(
            (
                names.get(name, name.replace("_", " ")),
                f"{value:.2f}" if interval else f"{value:.4g}",
                f"{interval[0]:.2f} to {interval[1]:.2f}" if interval else "",
                MEANINGS.get(name, "The dataset's own measure."),
            )
        )
    return rows


def signatures(scores: dict[str, Any]) -> Html:
    """How BLEU and chrF were computed, as sacreBLEU writes it."""
    parts = [
        paragraph(name, " ", element("code", scores[f"{key}_signature"]))
        for name, key in (("BLEU", "bleu"), ("chrF", "chrf"))
    ]
    return Html("".join(parts))


def _scores(scores: dict[str, Any]) -> list[Html]:
    caption = f"Scores of all {scores['sentences']:,} translations, against untouched references"
    return [
        table(
            caption,
            ("measure", "value", "95% interval", "what it says"),
            score_rows(scores),
            numeric=(1, 2),
        ),
        paragraph(
            "The interval says how much a score depends on which sentences the test set happens to "
            "hold: of 1,000 test sets drawn from these sentences, 95% score within it. It says "
            "nothing about another training with another seed. BLEU and chrF are sacreBLEU's and "
            "compare only with scores on the same sentences and with the same signature:"
        ),
        signatures(scores),
    ]


def read_metrics(path: epath.Path) -> tuple[dict[str, list[dict[str, Any]]], int]:
    """The lines of a ``metrics.jsonl`` by split, in order, and how many could not be read."""
    by_split, broken = collections.defaultdict(list), 0
    text = path.read_bytes().decode("utf-8", "replace") if path.is_file() else ""
    for line in text.split("\n"):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
            step, split = values["step"], values["split"]
        except (ValueError, TypeError, KeyError, RecursionError):
            step = split = None
        if isinstance(split, str) and _is_number(step):
            by_split[split].append(values)
        else:
            broken += 1
    return dict(by_split), broken


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _learning_curves(path: epath.Path) -> list[Html]:
    by_split, broken = read_metrics(path)

    def line(name: str, split: str, measure: str) -> Series:
        rows = by_split.get(split, [])
        values = [row.get(measure) for row in rows]
        steps = [float(row["step"]) for row in rows]
        return Series(name, steps, [float(v) if _is_number(v) else math.nan for v in values])

    measured = {name for row in by_split.get("validation", []) for name in row}
    own = sorted(measured - {"step", "split", "nll", "perplexity", "bleu"})
    losses = [
        line("training loss, as optimised", "train", "loss"),
        line("training NLL", "train", "nll"),
        line("validation NLL", "validation", "nll"),
    ]
    charts = [
        ("Loss", "nats a token", losses, (0,)),
        ("BLEU", "of the validation split", [line("BLEU", "validation", "bleu")], ()),
        (
            "The dataset's own measures",
            "of the validation split",
            [line(name.replace("_", " "), "validation", name) for name in own],
            (0, 1),
        ),
        ("Learning rate", "", [line("learning rate", "train", "learning_rate")], (0,)),
    ]
    parts = [
        line_chart(title, lines, x_label="step", y_label=unit, include=include)
        for title, unit, lines, include in charts
        if any(math.isfinite(value) for series in lines for value in series.y)
    ]
    if parts:
        about = (
            "Training is measured with dropout, while the weights change; validation without. With "
            "label smoothing, what is optimised cannot reach 0; an NLL can."
        )
    else:
        about = f"There are no curves: {path.name} holds no measurements."
    parts.insert(0, paragraph(about))
    if broken:
        lines = "1 line" if broken == 1 else f"{broken:,} lines"
        parts.append(paragraph(f"{lines} of {path.name} could not be read and are left out."))
    return parts


def _shown(evaluation: Evaluation, row: int, *about: str) -> Html:
    split = evaluation.split
    return sentences(
        " · ".join((f"line {row + 1}", *about)),
        (
            ("source", split.sources[row]),
            ("reference", split.targets[row]),
            ("translation", evaluation.translations[row]),
        ),
    )


def _samples(evaluation: Evaluation, chrf: Sequence[float]) -> list[Html]:
    count = min(SAMPLES, len(evaluation))
    rows = [place * len(evaluation) // count for place in range(count)]
    return [
        paragraph("At equal distances through the test set, not chosen."),
        *(_shown(evaluation, row, f"chrF {chrf[row]:.1f}") for row in rows),
    ]


def _worst(evaluation: Evaluation, chrf: Sequence[float]) -> list[Html]:
    wrong = [
        row
        for row, (text, reference) in enumerate(
            zip(evaluation.translations, evaluation.split.targets, strict=True)
        )
        if text != reference
    ]
    if not wrong:
        return [paragraph("There are none: every translation equals its reference.")]
    wrong.sort(key=lambda row: (chrf[row], -evaluation.reference_nll[row]))
    return [
        paragraph(
            "Those with the lowest chrF. A high NLL beside it means that the model finds the "
            "reference unlikely; a low one, that it knows the reference and prefers another."
        ),
        *(
            _shown(
                evaluation,
                row,
                f"chrF {chrf[row]:.1f}",
                f"NLL of the reference {evaluation.reference_nll[row]:.2f} nats a token",
            )
            for row in wrong[:SAMPLES]
        ),
    ]


def _lengths(evaluation: Evaluation) -> list[Html]:
    translations, references = evaluation.translations, evaluation.split.targets
    overall = diagnostics.length_ratio(translations, references)
    rows, means, ratios = [], [], []
    for group in diagnostics.length_classes(references):
        chosen = [translations[row] for row in group.rows], [references[row] for row in group.rows]
        means.append(group.mean)
        ratios.append(diagnostics.length_ratio(*chosen))
        rows.append((group.name, f"{len(group.rows):,}", _ratio(ratios[-1])))
    chart = line_chart(
        "Length of the translations by length of the reference",
        [Series("words / words of the reference", means, ratios)]
        + [Series("as long as the reference", means, [1.0] * len(means))] * (len(means) > 1),
        x_label="words in the reference",
        y_label="ratio",
        include=(0.9, 1.1),
    )
    caption = "Length by the number of words in the reference"
    return [
        paragraph(
            f"All translations together have {_ratio(overall)} times as many words as their "
            "references. Below 1, BLEU takes off its penalty for shortness."
        ),
        chart,
        table(caption, ("words", "sentences", "ratio"), rows, numeric=(1, 2)),
    ]


def _ratio(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "–"


def _checks(evaluation: Evaluation, chrf: Sequence[float]) -> list[Html]:
    sources, references = evaluation.split.sources, evaluation.split.targets
    translations = evaluation.translations
    found: list[tuple[str, str, list[int]]] = []
    for n in (1, 2, 3, 4):
        extra = [
            diagnostics.extra_repeats(text, reference, n)
            for text, reference in zip(translations, references, strict=True)
        ]
        rows = sorted((row for row, more in enumerate(extra) if more), key=lambda row: -extra[row])
        words = "a word is" if n == 1 else f"{n} words in a row are"
        found.append(
            (f"repetition, {n}-gram", f"{words} repeated more than in the reference", rows)
        )
    found += [
        ("empty", "no translation at all", diagnostics.empty(sources, translations)),
        (
            "copied",
            "the source itself, where the reference differs from it",
            diagnostics.copied(sources, references, translations),
        ),
        (
            "cut source",
            "longer than data.max_length; only its beginning was translated",
            evaluation.cut_sources,
        ),
        (
            "cut translation",
            "as long as the search allows; it may have been cut there",
            evaluation.cut_translations,
        ),
    ]
    overview = table(
        "Translations to look at",
        ("check", "sentences", "share", "what it means"),
        [
            (name, f"{len(rows):,}", f"{len(rows) / len(evaluation):.2%}", meaning)
            for name, meaning, rows in found
        ],
        numeric=(1, 2),
    )
    examples = [
        element(
            "details",
            element("summary", f"{name}: {min(len(rows), SAMPLES)} of {len(rows):,}"),
            *(_shown(evaluation, row, f"chrF {chrf[row]:.1f}") for row in rows[:SAMPLES]),
        )
        for name, _, rows in found
        if rows
    ]
    return [overview, *examples]


def _configuration(config: Config) -> list[Html]:
    changed = difference(Config(), config)
    rows = [
        (element("code", path), _value(value), _value(default))
        for path, (default, value) in changed.items()
    ]
    return [
        table("Where it differs from the paper's base", ("field", "here", "paper's base"), rows),
        element(
            "details", element("summary", "All fields"), element("pre", config.to_json().rstrip())
        ),
    ]


def _value(value: Any) -> str:
    return "–" if value is None else str(value)
