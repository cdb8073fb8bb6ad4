# SPDX-License-Identifier: Apache-2.0
"""Pronoun accuracy of translations, with two baselines."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.data.grammars.pronouns.word_forms import words

_PRONOUNS = frozenset({"er", "sie", "es", "il", "elle", "ils", "elles"})


def pronoun_in(hypothesis: str) -> str | None:
    """Return the one pronoun in a translation, in lower case; None for none, or several."""
    pronouns = {word.lower() for word in words(hypothesis)} & _PRONOUNS
    return pronouns.pop() if len(pronouns) == 1 else None


def _gold(example: Mapping[str, Any]) -> str:
    return words(example["target"])[example["target_pronoun"]].lower()


def pronoun_metrics(
    examples: Sequence[Mapping[str, Any]], hypotheses: Sequence[str]
) -> dict[str, float]:
    """Score the pronouns of translations, over the resolution sentences only.

    Returns:
      Shares from 0 to 1: `pronoun_accuracy`; `twin_accuracy`, the share of twins with both pronouns
      right; and two baselines on the same sentences: `majority` always chooses the most frequent
      pronoun, `subject` takes the main clause's subject as the antecedent. Empty without resolution
      sentences; without twins, `twin_accuracy` is missing.
    """
    gold: list[str] = []
    right: list[bool] = []
    subject: list[bool] = []
    twins: defaultdict[int, list[bool]] = defaultdict(list)
    for example, hypothesis in zip(examples, hypotheses, strict=True):
        if not example["resolution"]:
            continue
        gold.append(_gold(example))
        right.append(pronoun_in(hypothesis) == gold[-1])
        subject.append(example["subject_pronoun"] == gold[-1])
        twins[int(example["twin"])].append(right[-1])
    if not gold:
        return {}
    scores = {
        "pronoun_accuracy": sum(right) / len(gold),
        "majority": Counter(gold).most_common(1)[0][1] / len(gold),
        "subject": sum(subject) / len(gold),
    }
    complete = [both for both in twins.values() if len(both) == 2]
    if complete:
        scores["twin_accuracy"] = sum(map(all, complete)) / len(complete)
    return scores
