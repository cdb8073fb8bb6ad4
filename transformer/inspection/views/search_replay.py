# SPDX-License-Identifier: Apache-2.0
"""Decoding replayed step by step: attention, next-token probabilities, surviving hypotheses."""

from collections.abc import Sequence

import numpy as np

from transformer.errors import InputError
from transformer.inspection import figures
from transformer.inspection.argument_checks import check_weights
from transformer.inspection.search_log import SearchLog, SearchStep
from transformer.inspection.views.attention_kinds import label_text, token_labels, visible_token
from transformer.inspection.views.view import View
from transformer.inspection.words import display_tokens


def search_replay(
    log: SearchLog,
    vocabulary: Sequence[str],
    *,
    step: int = 0,
    title: str = "Decoding, step by step",
) -> View:
    """A search that the reader can step through; greedy search is beam search with one beam.

    Args:
      vocabulary: Every token, in the order of the ids.
      step: Step shown first; at most the last.

    Raises:
      InputError: The search has no step or no result, or the attention does not sum to one.
    """
    if not log.steps or not log.results:
        raise InputError("the search has no step or no result; record one of a complete sentence")
    vocabulary = display_tokens(vocabulary)
    # First, because it checks that the vocabulary has every id.
    tree = figures.plot_beam_tree(log, vocabulary)
    results = [
        {
            "tokens": _tokens(vocabulary, result.tokens),
            "score": round(result.score, 4),
            "path": log.path(index),
        }
        for index, result in enumerate(log.results)
    ]
    beams = max(len(step.tokens) for step in log.steps)
    best = " ".join(label_text((token,)) for token in results[0]["tokens"])
    return View(
        script="searchReplay",
        title=title,
        description=f"Search with {beams} beam{'s' if beams > 1 else ''}: {best}",
        static=tree,
        options={
            "source": token_labels([vocabulary[token] for token in log.source]),
            "steps": [_step_data(step, vocabulary) for step in log.steps],
            "results": results,
            "first": min(step, len(log.steps) - 1),
        },
        height=1600,
    )


def _tokens(vocabulary: Sequence[str], ids: Sequence[int]) -> list[str]:
    return [visible_token(vocabulary[token]) for token in ids]


def _step_data(step: SearchStep, vocabulary: Sequence[str]) -> dict[str, object]:
    """The data of one step that a page's script reads."""
    probabilities = np.exp(np.asarray(step.top_log_probs, np.float64)).round(5).tolist()
    data = {
        "tokens": ["".join(_tokens(vocabulary, tokens[-1:])) for tokens in step.tokens],
        "logProbs": [round(value, 4) for value in step.log_probs],
        "parents": step.parents,
        "next": [
            list(zip(_tokens(vocabulary, ids), row, strict=True))
            for ids, row in zip(np.asarray(step.top_tokens).tolist(), probabilities, strict=True)
        ],
        "finished": [{"beam": end.beam, "score": round(end.score, 4)} for end in step.finished],
    }
    if step.cross_attention is not None:
        weights = np.asarray(step.cross_attention, np.float64)  # [K, L, N, S]
        check_weights(weights, name="a step's attention")
        data["attention"] = weights.mean(2).round(4).tolist()  # [K, L, S]
    return data
