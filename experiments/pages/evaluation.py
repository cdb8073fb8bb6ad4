# SPDX-License-Identifier: Apache-2.0
"""The page that `evaluate` writes: scores, learning curves, sentences and diagnostics."""

import collections
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from experiments.scoring import diagnostics
from experiments.scoring.evaluation import Evaluation
from transformer.config import Config, DecodeConfig
from transformer.inspection import figures
from transformer.inspection.html import (
    Html,
    contents,
    details,
    element,
    page,
    paragraph,
    section,
    sentence_versions,
    table,
)
from transformer.inspection.views.view import figure_html
from transformer.text.metrics import sentence_chrf

NUM_SAMPLES = 8
"""Number of samples, and the largest number of examples of each problem."""

MEASURE_NAMES = {"bleu": "BLEU", "chrf": "chrF", "nll": "NLL"}

MEANINGS = {
    "bleu": "Overlap of word 1- to 4-grams, with a penalty for short translations. 0 to 100.",
    "chrf": "F-score of character 1- to 6-grams, in which recall counts more. 0 to 100.",
    "exact_match": "Share of translations identical to their reference.",
    "nll": "Mean negative log-likelihood of a reference token, in nats. Lower is better.",
    "perplexity": "exp(NLL): the number of equally likely tokens with the same NLL.",
}
"""Explanations of the measures that every evaluation has."""


def evaluation_page(
    title: str,
    evaluation: Evaluation,
    config: Config,
    *,
    weights: str,
    parameters: int,
    metrics: epath.Path,
    changes: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The report as an HTML file.

    Args:
      evaluation: The evaluation to show.
      config: Config of the workdir, including overrides of decoding fields.
      weights: Description of the weights used.
      parameters: Number of parameters.
      metrics: Path of ``metrics.jsonl``; the page says so if it is missing or damaged.
      changes: changes of the config during training, from `workdir_files.load_changes`.
    """
    chrf = sentence_chrf(evaluation.translations, evaluation.split.targets)
    sections = {
        "Scores": _scores(evaluation.scores),
        "Learning curves": [
            *_learning_curves(metrics, config.training.label_smoothing),
            *_changes(changes),
        ],
        "Samples": _samples(evaluation, chrf),
        "Worst sentences": _worst_sentences(evaluation, chrf),
        "Length": _lengths(evaluation),
        "Diagnostics": _diagnostics(evaluation, chrf),
    }
    return page(
        title,
        paragraph(
            f"{len(evaluation):,} sentence pairs of {evaluation.split.dataset}, translated by a "
            f"{config.model.family} with {parameters:,} parameters: {weights}. "
            f"Decoding: {_decoding(config.decode)}."
        ),
        contents(sections),
        *(section(heading, *content) for heading, content in sections.items()),
    )


def _decoding(decode: DecodeConfig) -> str:
    """The decoding method in words."""
    if decode.method != "beam":
        return {"sample": "sampling", "mbr": "minimum Bayes risk"}[decode.method]
    beams = "1 beam" if decode.beams == 1 else f"{decode.beams} beams"
    penalty = f"length penalty {decode.length_penalty} with alpha {decode.alpha:g}"
    return f"beam search with {beams}, {penalty}"


# Scores.


def _scores(scores: dict[str, Any]) -> list[Html]:
    return [
        table(
            f"Scores of all {scores['sentences']:,} translations against untouched references",
            ("measure", "value", "95% interval", "meaning"),
            list(_score_rows(scores)),
            numeric=(1, 2),
        ),
        paragraph(
            "The interval is a bootstrap over the sentences of the test set: the score's range in "
            "95% of 1,000 resampled test sets. It does not include the variation between training "
            "runs. BLEU and chrF are computed by sacreBLEU and are comparable only for the same "
            "sentences and signature:"
        ),
        signatures(scores),
    ]


def _score_rows(scores: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Name, value, interval and meaning of each measure."""
    for measure, value in scores.items():
        if measure == "sentences" or not isinstance(value, int | float):
            continue
        interval = scores.get(f"{measure}_ci")
        yield (
            measure_name(measure),
            f"{value:.2f}" if interval else f"{value:.4g}",
            f"{interval[0]:.2f} to {interval[1]:.2f}" if interval else "",
            MEANINGS.get(measure, "A measure of the dataset."),
        )


def measure_name(measure: str) -> str:
    """Display name of a measure."""
    return MEASURE_NAMES.get(measure, measure.replace("_", " "))


def signatures(scores: dict[str, Any]) -> Html:
    """The sacreBLEU signatures of BLEU and chrF."""
    paragraphs = (
        paragraph(MEASURE_NAMES[measure], " ", element("code", scores[f"{measure}_signature"]))
        for measure in ("bleu", "chrf")
    )
    return Html("".join(paragraphs))


# Learning curves.


def read_metrics(path: epath.Path) -> tuple[dict[str, list[dict[str, Any]]], int]:
    """Read ``metrics.jsonl``: the records of each split, and the number of unreadable lines."""
    by_split, unreadable = collections.defaultdict(list), 0
    text = path.read_bytes().decode("utf-8", "replace") if path.is_file() else ""
    for line in filter(str.strip, text.split("\n")):
        try:
            record = json.loads(line)
            step, split = record["step"], record["split"]
        except (ValueError, TypeError, KeyError, RecursionError):
            step = split = None
        if isinstance(split, str) and _is_number(step) and math.isfinite(step):
            by_split[split].append(record)
        else:
            unreadable += 1
    return dict(by_split), unreadable


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _learning_curves(path: epath.Path, label_smoothing: float) -> list[Html]:
    by_split, unreadable = read_metrics(path)
    train, validation = by_split.get("train", []), by_split.get("validation", [])
    dataset_measures = sorted(
        {measure for record in validation for measure in record}
        - {"step", "split", "nll", "perplexity", "bleu"}
    )
    losses = {
        "training loss, as optimized": curve(train, "loss"),
        "training NLL": curve(train, "nll"),
        "validation NLL": curve(validation, "nll"),
    }
    charts = {
        ("Loss", "nats per token"): losses,
        ("BLEU", "BLEU, validation"): {"BLEU": curve(validation, "bleu")},
        ("Measures of the dataset", "validation"): {
            measure_name(measure): curve(validation, measure) for measure in dataset_measures
        },
        ("Learning rate", "learning rate"): {"learning rate": curve(train, "learning_rate")},
        ("Gradient norm", "norm"): {"gradient norm": curve(train, "gradient_norm")},
    }
    parts = []
    for (title, y_label), curves in charts.items():
        finite = {name: curve for name, curve in curves.items() if np.isfinite(curve[1]).any()}
        if finite:
            figure = figures.plot_curves(finite, x_label="step", y_label=y_label, title=title)
            parts.append(figure_html(figure))
    about = f"There are no curves: {path.name} has no measurements."
    if parts:
        about = "Training is measured with dropout while the weights change, validation without."
        if label_smoothing > 0:
            about += " The optimized loss includes label smoothing and cannot reach 0; an NLL can."
    if unreadable:
        lines = "1 line" if unreadable == 1 else f"{unreadable:,} lines"
        parts.append(paragraph(f"{lines} of {path.name} could not be read."))
    return [paragraph(about), *parts]


def _changes(changes: Sequence[Mapping[str, Any]]) -> list[Html]:
    """The fields of the config that changed while the model trained."""
    rows = [
        (f"{change['step']:,}", field, *(json.dumps(value) for value in values))
        for change in changes
        for field, values in change["changes"].items()
    ]
    columns = ("from step", "field", "before", "after")
    return [table("Changes of the config during training", columns, rows)] if rows else []


def curve(records: list[dict[str, Any]], measure: str) -> tuple[list[float], list[float]]:
    """Return the steps and the values of a measure, NaN where it is missing."""
    ordered = sorted(records, key=lambda record: record["step"])
    values = [record.get(measure) for record in ordered]
    steps = [float(record["step"]) for record in ordered]
    return steps, [float(value) if _is_number(value) else math.nan for value in values]


# Sentences.


def _example(evaluation: Evaluation, row: int, *about: str) -> Html:
    """Source, reference and translation of one sentence."""
    return sentence_versions(
        " · ".join((f"line {row + 1}", *about)),
        (
            ("source", evaluation.split.sources[row]),
            ("reference", evaluation.split.targets[row]),
            ("translation", evaluation.translations[row]),
        ),
    )


def _samples(evaluation: Evaluation, chrf: Sequence[float]) -> list[Html]:
    count = min(NUM_SAMPLES, len(evaluation))
    rows = [index * len(evaluation) // count for index in range(count)]
    return [
        paragraph("At equal intervals through the test set, not selected."),
        *(_example(evaluation, row, f"chrF {chrf[row]:.1f}") for row in rows),
    ]


def _worst_sentences(evaluation: Evaluation, chrf: Sequence[float]) -> list[Html]:
    pairs = zip(evaluation.translations, evaluation.split.targets, strict=True)
    wrong = [row for row, (text, reference) in enumerate(pairs) if text != reference]
    if not wrong:
        return [paragraph("There are none: every translation is identical to its reference.")]
    nll = evaluation.reference_nll
    wrong.sort(key=lambda row: (chrf[row], -nll[row]))
    return [
        paragraph(
            "Translations with the lowest chrF. With a high NLL, the model finds the reference "
            "unlikely; with a low NLL, the model finds it likely but prefers another."
        ),
        *(
            _example(
                evaluation,
                row,
                f"chrF {chrf[row]:.1f}",
                f"NLL of the reference {nll[row]:.2f} nats per token",
            )
            for row in wrong[:NUM_SAMPLES]
        ),
    ]


def _lengths(evaluation: Evaluation) -> list[Html]:
    translations, references = evaluation.translations, evaluation.split.targets
    buckets = diagnostics.length_buckets(references)
    ratios = [
        diagnostics.length_ratio(
            [translations[row] for row in bucket.rows], [references[row] for row in bucket.rows]
        )
        for bucket in buckets
    ]
    charts = []
    if np.isfinite(ratios).any():
        figure = figures.plot_curves(
            {"translation / reference": ([bucket.mean for bucket in buckets], ratios)},
            levels={"equal length": 1.0},
            x_label="words in the reference",
            y_label="ratio of the numbers of words",
            title="Length of the translations by length of the reference",
        )
        charts.append(figure_html(figure))
    return [
        paragraph(
            "Words in all translations, divided by words in all references: "
            f"{_ratio(diagnostics.length_ratio(translations, references))}. "
            "Below 1, BLEU's brevity penalty applies. Words are separated by spaces; in scripts "
            "without spaces, such as Chinese, each character counts as a word."
        ),
        *charts,
        table(
            "Length by the number of words in the reference",
            ("words", "sentences", "ratio"),
            [
                (bucket.name, f"{len(bucket.rows):,}", _ratio(ratio))
                for bucket, ratio in zip(buckets, ratios, strict=True)
            ],
            numeric=(1, 2),
        ),
    ]


def _ratio(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "–"


# Diagnostics.


def _problems(evaluation: Evaluation) -> Iterator[tuple[str, str, list[int]]]:
    """Name, meaning and rows of each kind of suspicious translation, the worst rows first."""
    sources, references = evaluation.split.sources, evaluation.split.targets
    translations = evaluation.translations
    for n in (1, 2, 3, 4):
        extra = [
            diagnostics.extra_repeats(text, reference, n)
            for text, reference in zip(translations, references, strict=True)
        ]
        rows = sorted((row for row in range(len(extra)) if extra[row]), key=lambda row: -extra[row])
        repeated = "a word is" if n == 1 else f"{n} consecutive words are"
        yield f"repetition, {n}-gram", f"{repeated} repeated more than in the reference", rows
    yield "empty", "no words at all", diagnostics.empty(sources, translations)
    copied = diagnostics.copied(sources, references, translations)
    yield "copied", "identical to the source, unlike the reference", copied


def _diagnostics(evaluation: Evaluation, chrf: Sequence[float]) -> list[Html]:
    problems = list(_problems(evaluation))
    overview = table(
        "Suspicious translations",
        ("problem", "sentences", "share", "meaning"),
        [
            (name, f"{len(rows):,}", f"{len(rows) / len(evaluation):.2%}", meaning)
            for name, meaning, rows in problems
        ],
        numeric=(1, 2),
    )
    examples = [
        details(
            f"{name}: {min(len(rows), NUM_SAMPLES)} of {len(rows):,}",
            *(_example(evaluation, row, f"chrF {chrf[row]:.1f}") for row in rows[:NUM_SAMPLES]),
        )
        for name, _, rows in problems
        if rows
    ]
    return [overview, *examples]
