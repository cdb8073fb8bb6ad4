# SPDX-License-Identifier: Apache-2.0
"""What a beam search (or greedy search, its case of one beam) did, step by step.

The search is `decoding.beam_search` itself, watched through the step and the reordering that it is
given, so that the log cannot tell another story than the result.
"""

import dataclasses
import functools
from collections.abc import Iterator

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from numpy.typing import ArrayLike

from transformer.arrays import EOS_ID, PAD_ID, Array, Float, Int, Params
from transformer.config import DecodeConfig, TransformerConfig
from transformer.decoding.beam_search import Hypotheses, beam_search, length_penalty, search_limits
from transformer.decoding.constraints import NEVER, Constraints, next_log_probs
from transformer.decoding.decode_loop import rooms
from transformer.errors import InputError
from transformer.models import base
from transformer.nn.positions import shift_right


@dataclasses.dataclass(frozen=True)
class Finished:
    """A live hypothesis that was finished by the end token."""

    beam: int
    """Which of the step's live hypotheses."""
    log_prob: float
    """log P of all its tokens, the end token included."""
    score: float
    """log P / penalty(length)."""


@dataclasses.dataclass(frozen=True)
class SearchStep:
    """The hypotheses that were live at one step (K, or fewer), and what the model predicted.

    Hypothesis k reads its last token (`tokens[k][-1]`, the start token at the first step).
    """

    tokens: tuple[tuple[int, ...], ...]
    """Each hypothesis so far, without the start token."""
    log_probs: tuple[float, ...]
    """log P of each so far."""
    parents: tuple[int, ...]
    """Which hypothesis of the step before each goes on from; at the first step, none."""
    top_tokens: Int[np.ndarray, "K k"]
    """The most probable next tokens of each, the most probable first."""
    top_log_probs: Float[np.ndarray, "K k"]
    """Their log-probabilities as the model gives them, whatever may not follow."""
    cross_attention: Float[np.ndarray, "K L N S"] | None
    """Where each reads in the source while it predicts, rows summing to 1; None in a model without
    such attention.
    """
    finished: tuple[Finished, ...]
    """The hypotheses that the end token finished at this step, the best first."""


@dataclasses.dataclass(frozen=True)
class Result:
    """One translation that the search found."""

    tokens: tuple[int, ...]
    """With the end token."""
    score: float
    log_prob: float


@dataclasses.dataclass(frozen=True)
class SearchLog:
    """One sentence's search."""

    source: tuple[int, ...]
    steps: tuple[SearchStep, ...]
    results: tuple[Result, ...]
    """Best first; at most K."""

    def path(self, result: int = 0) -> tuple[int, ...]:
        """The place of a result's hypothesis among the live ones, at each step that led to it."""
        tokens = self.results[result].tokens
        return tuple(
            step.tokens.index(tokens[:read]) for read, step in enumerate(self.steps[: len(tokens)])
        )


def record(
    params: Params,
    config: TransformerConfig,
    source: ArrayLike,
    *,
    decode: DecodeConfig | None = None,
    top: int = 5,
    results: int = 1,
) -> SearchLog:
    """Searches for the translation of one sentence and keeps what happened.

    Args:
      params: the model's parameters.
      config: the model's config.
      source: token ids with the end token, without padding.
      decode: beams, penalty, limits and constraints of the search; the paper's unless given.
      top: how many of the most probable next tokens are kept.
      results: how many of the best must be certain before the search may stop early.

    Raises:
      InputError: when the source is empty, padded, or has an id outside the vocabulary; for another
        method than beam search, for diverse beams or a shortlist, and for more results than beams.
    """
    decode = decode or DecodeConfig()
    _check(config, source, decode, top, results)
    # The other kernels compute the same and keep no weights.
    model = base.build(config.replace(attention_kernel="einsum"))
    row = jnp.asarray(np.asarray(source), jnp.int32)[None]
    found, seen = _watched(params, model, row, decode, results)
    limit = found.tokens.shape[-1]
    steps = list(_steps(seen, limit, decode, min(top, config.vocab_size)))
    attention = _cross_attention(params, model, row, steps)
    steps = [
        dataclasses.replace(step, cross_attention=own)
        for step, own in zip(steps, attention, strict=True)
    ]
    return SearchLog(tuple(row[0].tolist()), tuple(steps), _results(found))


def _check(
    config: TransformerConfig, source: ArrayLike, decode: DecodeConfig, top: int, results: int
) -> None:
    ids = np.asarray(source)
    if ids.ndim != 1 or not ids.size:
        raise InputError(
            f"source has shape {ids.shape}, but must be the ids of one sentence, [S], with at "
            "least the end token; leave out the batch axis"
        )
    outside = ids[(ids <= PAD_ID) | (ids >= config.vocab_size)]
    if outside.size:
        raise InputError(
            f"source has the id {outside[0]}, but must hold ids from 1 to {config.vocab_size - 1}, "
            "without padding; cut the padding off, or give the model's own tokenizer's ids"
        )
    if decode.method != "beam" or decode.groups > 1:
        raise InputError(
            f"decode.method is {decode.method!r} and decode.groups {decode.groups}, but only plain "
            "beam search can be recorded; set them to 'beam' and 1"
        )
    if decode.shortlist is not None:
        raise InputError(
            f"decode.shortlist is {decode.shortlist}, but only a search over the whole vocabulary "
            "can be recorded; set it to None"
        )
    if not 1 <= results <= decode.beams:
        raise InputError(
            f"{results} results asked for, but decode.beams is {decode.beams}; ask for 1 to "
            f"{decode.beams}"
        )
    if top < 1:
        raise InputError(f"top is {top}, but must be at least 1")


@dataclasses.dataclass(frozen=True)
class _Seen:
    """What one step of the search asked the model, was answered, and kept."""

    read: Int[np.ndarray, " K"]
    """The last token of each hypothesis."""
    logits: Float[np.ndarray, "K V"]
    survivors: Int[np.ndarray, " K"]
    """Which hypotheses those of the next step go on from."""


def _watched(
    params: Params, model: nn.Module, row: Int[Array, "1 S"], decode: DecodeConfig, results: int
) -> tuple[Hypotheses, list[_Seen]]:
    """The search, and its steps."""
    limits = search_limits(jnp.array([row.shape[1]]), decode)
    longest = int(limits[0])
    seen = []

    def see(*values):
        seen.append(_Seen(*(np.asarray(value)[0] for value in values)))

    def search(params, row):
        def call(method, *arguments):
            return model.apply({"params": params}, *arguments, method=method)

        def step(tokens, cache):
            logits, cache = call(model.step, tokens, cache)
            return logits, (cache, tokens, logits)

        def reorder(stepped, parents):
            cache, tokens, logits = stepped
            wide = logits.astype(jnp.float32)
            io_callback(see, None, tokens, wide, parents, ordered=True)
            return model.reorder(cache, parents)

        memory, _ = call(model.encode, row)
        return beam_search(
            step,
            reorder,
            call(model.init_cache, memory, row, decode.beams, rooms(longest)[0]),
            limits,
            beams=decode.beams,
            max_length=longest,
            grow=model.grow,
            results=results,
            penalty=decode.length_penalty,
            alpha=decode.alpha,
            constraints=_constraints(decode),
        )

    found = jax.jit(search)(params, row)
    jax.effects_barrier()
    return found, seen


def _constraints(decode: DecodeConfig) -> Constraints:
    return Constraints(min_length=decode.min_length, block_ngrams=decode.block_ngrams)


def _results(found: Hypotheses) -> tuple[Result, ...]:
    fields = (np.asarray(field)[0] for field in (found.tokens, found.scores, found.log_probs))
    return tuple(
        Result(tuple(int(token) for token in tokens if token != PAD_ID), float(score), float(total))
        for tokens, score, total in zip(*fields, strict=True)
        if score > NEVER / 2
    )


def _steps(seen: list[_Seen], limit: int, decode: DecodeConfig, top: int) -> Iterator[SearchStep]:
    """The hypotheses of each step, from what was read and who survived."""
    produced = np.full((decode.beams, limit), PAD_ID, np.int32)
    log_probs = np.where(np.arange(decode.beams) == 0, np.float32(0), np.float32(NEVER))
    parents, following = None, None
    for index, event in enumerate(seen):
        if parents is not None:
            produced = produced[parents]
            produced[:, index - 1] = event.read
            log_probs = log_probs[parents] + following[parents, event.read]
        following = np.asarray(
            next_log_probs(
                jnp.asarray(event.logits[None]),
                jnp.asarray(produced[None]),
                jnp.asarray(index),
                jnp.array([limit]),
                _constraints(decode),
            )[0]
        )
        live = int((log_probs > NEVER / 2).sum())
        ranked, tokens = jax.lax.top_k(jax.nn.log_softmax(jnp.asarray(event.logits[:live])), top)
        yield SearchStep(
            tokens=tuple(tuple(row[:index].tolist()) for row in produced[:live]),
            log_probs=tuple(log_probs[:live].tolist()),
            parents=() if parents is None else tuple(parents[:live].tolist()),
            top_tokens=np.asarray(tokens),
            top_log_probs=np.asarray(ranked),
            cross_attention=None,
            finished=_finished(log_probs[:, None] + following, index + 1, decode),
        )
        parents = event.survivors


def _finished(
    extended: Float[np.ndarray, "K V"], length: int, decode: DecodeConfig
) -> tuple[Finished, ...]:
    """Those among the best K extensions that the end token ends."""
    beams, vocabulary = extended.shape
    penalty = float(length_penalty(jnp.array(length), decode.length_penalty, decode.alpha))
    best = np.argsort(-extended, axis=None, kind="stable")[:beams]
    ended = [place // vocabulary for place in best.tolist() if place % vocabulary == EOS_ID]
    totals = [(beam, float(extended[beam, EOS_ID])) for beam in ended]
    return tuple(
        Finished(beam, total, total / penalty) for beam, total in totals if total > NEVER / 2
    )


def _cross_attention(
    params: Params, model: nn.Module, row: Int[Array, "1 S"], steps: list[SearchStep]
) -> Iterator[Float[np.ndarray, "K L N S"] | None]:
    """Where every live hypothesis reads at every step.

    A step of cached decoding keeps no weights. One pass over all hypotheses that none goes on from
    has those of every step: a decoder row depends on the tokens up to its own alone.
    """
    leaves: dict[tuple[int, ...], int] = {}
    for step in reversed(steps):
        for tokens in step.tokens:
            if tokens not in leaves:
                place = len(set(leaves.values()))
                leaves |= {tokens[:end]: place for end in range(len(tokens) + 1)} | leaves
    longest = len(steps)
    target = np.full((len(set(leaves.values())), longest), PAD_ID, np.int32)
    for tokens, place in leaves.items():
        target[place, : len(tokens)] = tokens
    weights = _decoder_reads(params, row, jnp.asarray(target), model)
    for index, step in enumerate(steps):
        if weights is None:
            yield None
        else:
            places = [leaves[tokens] for tokens in step.tokens]
            yield np.asarray(weights)[:, :, :, index][:, places].swapaxes(0, 1)


@functools.partial(jax.jit, static_argnums=3)
def _decoder_reads(
    params: Params, row: Int[Array, "1 S"], target: Int[Array, "B T"], model: nn.Module
) -> Float[Array, "L B N T S"] | None:
    sources = jnp.broadcast_to(row, (target.shape[0], row.shape[1]))
    _, trace = model.apply({"params": params}, sources, shift_right(target), capture="weights")
    attention = trace.decoder.cross_attention
    return None if attention is None else attention.weights
