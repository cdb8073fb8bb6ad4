# SPDX-License-Identifier: Apache-2.0
"""Decoding, step by step: what was read, what could come next, and which hypotheses lived on."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from transformer.errors import InputError
from transformer.inspection.attention_checks import check_weights
from transformer.inspection.html import Html
from transformer.inspection.search_log import SearchLog, SearchStep
from transformer.inspection.views import number_packing, picture
from transformer.inspection.views.attention_data import Label, labels
from transformer.inspection.views.view import View

Pieces = Callable[[Sequence[int]], Sequence[str]]
"""From ids to tokens."""


def replay(
    log: SearchLog,
    pieces: Pieces,
    *,
    layers: Sequence[int] | None = None,
    title: str = "Decoding, step by step",
) -> View:
    """A search that can be gone through step by step; greedy search is the one with one beam.

    Args:
      log: from `search_log.record`, or made by hand.
      pieces: from ids to tokens, for example `Tokenizer.pieces`.
      layers: whose cross-attention can be shown, the last of them first; all if None.
      title: of the page.

    Raises:
      InputError: when the search has no step or no result, when there is no such layer, or when
        attention does not sum to one.
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
    shown = _layers(log.steps[0], layers)
    told = (
        f"Search with {beams} beam{'s' if beams > 1 else ''}: "
        f"{' '.join(picture.joined((token,)) for token in results[0]['tokens'])}"
    )
    return View(
        kind="replay",
        title=title,
        told=told,
        picture=_reading(log, best, shown, source, results[0]["tokens"], told),
        options={
            "source": source,
            "layers": shown,
            "steps": [_packed(step, pieces, shown, len(source)) for step in log.steps],
            "results": results,
        },
        height=900,
    )


def _layers(step: SearchStep, layers: Sequence[int] | None) -> list[int]:
    """Places of the layers that are shown; none in a search without attention."""
    if step.cross_attention is None:
        return []
    depth = np.asarray(step.cross_attention).shape[1]
    for layer in layers or ():
        if not -depth <= layer < depth:
            raise InputError(f"layer {layer} does not exist: the decoder has {depth}, from 0")
    return [layer % depth for layer in (range(depth) if layers is None else layers)]


def _packed(
    step: SearchStep, pieces: Pieces, layers: Sequence[int], source: int
) -> dict[str, object]:
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
    if layers:
        packed["reads"] = number_packing.shares(_reads(step, layers, source))
    return packed


def _reads(step: SearchStep, layers: Sequence[int], source: int) -> Float[np.ndarray, "K L S"]:
    """Where each hypothesis reads, ``[K,L,S]``: the mean over a layer's heads."""
    weights = np.asarray(step.cross_attention, np.float64)
    if weights.ndim != 4 or weights.shape[-1] != source or len(weights) != len(step.tokens):
        raise InputError(
            f"a step's attention has shape {weights.shape}; [hypotheses, layers, heads, source] "
            f"with {len(step.tokens)} hypotheses and {source} source tokens is needed"
        )
    check_weights(weights, name="a step's attention")
    return weights.mean(2)[:, layers]


def _reading(
    log: SearchLog,
    path: Sequence[int],
    layers: Sequence[int],
    source: Sequence[Label],
    tokens: Sequence[str],
    told: str,
) -> Html:
    """Where the best translation's tokens were read from, in the last layer; or its words."""
    if not layers:
        words = picture.text(" ".join(picture.joined((token,)) for token in tokens), 0, 12, 550)
        return picture.svg(560, 24, told, words)
    reads = [
        _reads(step, layers, len(source))[place, -1]
        for step, place in zip(log.steps, path, strict=False)
    ]
    before = ["(start)", *tokens[:-1]]
    rows = [picture.joined(pair) for pair in zip(before, tokens, strict=True)]
    return picture.heat_map(told, np.array(reads), rows, [picture.joined(s) for s in source])
