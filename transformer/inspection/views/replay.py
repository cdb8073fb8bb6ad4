# SPDX-License-Identifier: Apache-2.0
"""Decoding, step by step: what was read, what could come next, and which hypotheses lived on."""

from collections.abc import Callable, Sequence

import numpy as np

from transformer.errors import InputError
from transformer.inspection.search_log import SearchLog, SearchStep
from transformer.inspection.views import packing, picture
from transformer.inspection.views.attention import TOLERANCE, labels
from transformer.inspection.views.view import View


def replay(
    log: SearchLog,
    pieces: Callable[[Sequence[int]], Sequence[str]],
    *,
    title: str = "Decoding, step by step",
) -> View:
    """A search that can be gone through step by step; greedy search is the one with one beam.

    Args:
      log: from `search_log.record`, or made by hand.
      pieces: from ids to tokens, for example `Tokenizer.pieces`.
      title: of the page.

    Raises:
      InputError: when the search has no step or no result, or attention that does not sum to one.
    """
    if not log.steps or not log.results:
        raise InputError("the search has no step or no result; record one of a whole sentence")
    source = labels(list(pieces(log.source)))
    beams = max(len(step.tokens) for step in log.steps)
    results = [
        {
            "tokens": [label[0] for label in labels(list(pieces(result.tokens)))],
            "score": round(result.score, 4),
            "path": log.path(place),
        }
        for place, result in enumerate(log.results)
    ]
    best = log.path()
    told = (
        f"Search with {beams} beam{'s' if beams > 1 else ''}: "
        f"{' '.join(picture.joined((token,)) for token in results[0]['tokens'])}"
    )
    return View(
        kind="replay",
        title=title,
        told=told,
        picture=_reading(log, best, source, results[0]["tokens"], told),
        options={
            "source": source,
            "steps": [_packed(step, pieces, len(source)) for step in log.steps],
            "results": results,
        },
        height=900,
    )


def _packed(step: SearchStep, pieces, source: int) -> dict[str, object]:
    """What a page's script reads of one step."""

    def named(ids) -> list[str]:
        return [label[0] for label in labels(list(pieces([int(token) for token in ids])))]

    chances = np.exp(np.asarray(step.top_log_probs, np.float64))
    packed = {
        "tokens": [named(tokens[-1:])[0] if tokens else "" for tokens in step.tokens],
        "scores": [round(value, 4) for value in step.log_probs],
        "parents": step.parents,
        "next": [
            [[token, round(chance, 5)] for token, chance in zip(named(ids), row, strict=True)]
            for ids, row in zip(step.top_tokens, chances.tolist(), strict=True)
        ],
        "finished": [[end.beam, round(end.score, 4)] for end in step.finished],
    }
    if step.cross_attention is not None:
        packed["reads"] = packing.shares(_reads(step, source))
        packed["layers"] = int(step.cross_attention.shape[1])
    return packed


def _reads(step: SearchStep, source: int) -> np.ndarray:
    """Where each hypothesis reads, ``[K,L,S]``: the mean over a layer's heads."""
    weights = np.asarray(step.cross_attention, np.float64)
    if weights.ndim != 4 or weights.shape[-1] != source or len(weights) != len(step.tokens):
        raise InputError(
            f"a step's attention has shape {weights.shape}; [hypotheses, layers, heads, source] "
            f"with {len(step.tokens)} hypotheses and {source} source tokens is needed"
        )
    if np.abs(weights.sum(-1) - 1).max() > TOLERANCE:
        raise InputError("a step's attention has rows that do not sum to 1; give softmax weights")
    return weights.mean(2)


def _reading(log: SearchLog, path: Sequence[int], source, tokens: list[str], told: str):
    """Where the best translation's tokens were read from, in the last layer; or its words."""
    if log.steps[0].cross_attention is None:
        words = picture.text(" ".join(picture.joined((token,)) for token in tokens), 0, 12, 550)
        return picture.svg(560, 24, told, words)
    reads = [
        _reads(step, len(source))[place, -1] for step, place in zip(log.steps, path, strict=False)
    ]
    before = ["(start)", *tokens[:-1]]
    rows = [picture.joined(pair) for pair in zip(before, tokens, strict=True)]
    return picture.heat_map(told, np.array(reads), rows, [picture.joined(s) for s in source])
