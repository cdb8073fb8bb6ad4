# SPDX-License-Identifier: Apache-2.0
"""Step-by-step log of a beam search (or greedy search, the case of one beam).

The search is that of `decoding.generate`, run on a model that reports each of its steps, so the log
always agrees with the translation.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from numpy.typing import ArrayLike

from transformer.arrays import Array, Float, Int, Params, SpecialIds
from transformer.config import DecodeConfig, ModelConfig
from transformer.decoding.beam_search import Hypotheses, length_penalty, output_length_limits
from transformer.decoding.constraints import NEG_INF, Constraints, next_log_probs
from transformer.decoding.generate import generate
from transformer.errors import InputError
from transformer.inspection.trace import apply, check_positive, check_tokens
from transformer.models.protocol import Decodable, Model
from transformer.nn.positions import shift_right


@dataclasses.dataclass(frozen=True)
class Finished:
    """An active hypothesis that EOS finished."""

    beam: int
    """Index of the hypothesis among the active ones of the step."""
    log_prob: float
    """log P of all tokens, EOS included."""
    score: float
    """log P / penalty(length)."""


@dataclasses.dataclass(frozen=True)
class SearchStep:
    """The active hypotheses of one step (K or fewer) and the model's predictions for them.

    Hypothesis k reads its last token, `tokens[k][-1]`; at the first step it reads BOS.
    """

    tokens: tuple[tuple[int, ...], ...]
    """Tokens of each hypothesis, without BOS."""
    log_probs: tuple[float, ...]
    """log P of each hypothesis."""
    parents: tuple[int, ...]
    """Index, among the hypotheses of the previous step, of the one that each extends; empty at the
    first step.
    """
    top_tokens: Int[np.ndarray, "K k"]
    """The most probable next tokens of each hypothesis, the most probable first."""
    top_log_probs: Float[np.ndarray, "K k"]
    """Their log-probabilities according to the model, without constraints."""
    cross_attention: Float[np.ndarray, "K L N S"] | None
    """Attention weights over the source while predicting; None if the model has none."""
    finished: tuple[Finished, ...]
    """Hypotheses that EOS finished at this step, best first."""


@dataclasses.dataclass(frozen=True)
class Result:
    """One translation."""

    tokens: tuple[int, ...]
    """Token ids, EOS included."""
    score: float
    log_prob: float


@dataclasses.dataclass(frozen=True)
class SearchLog:
    """The search for the translation of one sentence."""

    source: tuple[int, ...]
    steps: tuple[SearchStep, ...]
    results: tuple[Result, ...]
    """At most K, best first."""

    def path(self, result: int = 0) -> tuple[int, ...]:
        """For each step, the index of the active hypothesis that a result begins with."""
        tokens = self.results[result].tokens
        return tuple(
            step.tokens.index(tokens[:length])
            for length, step in enumerate(self.steps[: len(tokens)])
        )


def record(
    model: Model,
    params: Params,
    source: ArrayLike,
    *,
    decode: DecodeConfig | None = None,
    top: int = 5,
    results: int = 1,
    prefix: Sequence[int] = (),
) -> SearchLog:
    """Search for the translation of one sentence and log every step.

    Args:
      source: token ids with EOS, without padding.
      decode: beams, penalty, length limit and constraints; the paper's by default.
      top: number of most probable next tokens to log.
      results: number of results that must be certain before the search may stop early.
      prefix: forced first tokens, such as `Tokenizer.forced_ids`.

    Raises:
      InputError: if the source is empty, padded, or has an id outside the vocabulary; for other
        methods than beam search, for diverse beams, for more results than beams, and for a prefix
        that is as long as the longest output.
    """
    decode = decode or DecodeConfig()
    check_positive("top", top)
    search = _search(model, params, source, decode, results, prefix)
    steps = list(_steps(search, model.config, decode, top))
    attention = _cross_attention(model, params, search.source, steps)
    steps = [
        dataclasses.replace(step, cross_attention=weights)
        for step, weights in zip(steps, attention, strict=True)
    ]
    return SearchLog(tuple(search.source[0].tolist()), tuple(steps), search.results)


def best_result(
    model: Model,
    params: Params,
    source: ArrayLike,
    decode: DecodeConfig,
    prefix: Sequence[int] = (),
) -> Result:
    """The best result alone, by the program that `record` compiles."""
    return _search(model, params, source, decode, 1, prefix).results[0]


@dataclasses.dataclass(frozen=True)
class _Event:
    """One step of the search, as the model sees it."""

    tokens: Int[np.ndarray, " K"]
    """The last token of each hypothesis, which the model reads."""
    logits: Float[np.ndarray, "K V"]
    parents: Int[np.ndarray, " K"]
    """Which hypothesis each hypothesis of the next step extends."""


class _ReportingModel(nn.Module):
    """A `protocol.Decodable` that passes the values of every step of a model to `report`.

    Between `step` and `reorder` the cache carries the tokens and the logits of the step.
    """

    model: Decodable
    report: Callable[[Array, Array, Array], None]

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    def encode(self, source: Int[Array, "B S"]) -> Any:
        return self.model.encode(source)

    @nn.nowrap
    def source_mask(self, source: Int[Array, "B S"]) -> Array:
        return self.model.source_mask(source)

    def init_cache(self, *arguments) -> Any:
        return self.model.init_cache(*arguments)

    def step(self, tokens: Int[Array, "B K"], cache: Any) -> tuple[Float[Array, "B K V"], Any]:
        logits, cache = self.model.step(tokens, cache)
        return logits, (cache, tokens, logits)

    @nn.nowrap
    def reorder(self, stepped: tuple[Any, Array, Array], parents: Int[Array, "B K"]) -> Any:
        cache, tokens, logits = stepped
        io_callback(self.report, None, tokens, logits.astype(jnp.float32), parents, ordered=True)
        return self.model.reorder(cache, parents)

    @nn.nowrap
    def grow(self, cache: Any, length: int) -> Any:
        return self.model.grow(cache, length)

    @nn.nowrap
    def take(self, cache: Any, sentences: Int[Array, " B"]) -> Any:
        return self.model.take(cache, sentences)


@dataclasses.dataclass(frozen=True)
class _Search:
    """A search that has ended: its arguments as arrays, its steps and its results."""

    source: Int[Array, "1 S"]
    prefix: Int[Array, "1 M"] | None
    """The forced tokens, if any."""
    max_length: int
    events: list[_Event]
    results: tuple[Result, ...]


def _search(
    model: Model,
    params: Params,
    source: ArrayLike,
    decode: DecodeConfig,
    num_results: int,
    prefix: Sequence[int],
) -> _Search:
    """Check the arguments, and run the search."""
    config = model.config
    source = np.asarray(check_tokens("source", source, config))
    if (source == config.pad_id).any():
        raise InputError(
            f"source has padding ({config.pad_id}), which a search does not read; remove it"
        )
    if decode.method != "beam" or decode.groups > 1:
        raise InputError(
            f"decode.method is {decode.method!r} and decode.groups {decode.groups}, but only plain "
            "beam search can be recorded; set them to 'beam' and 1"
        )
    if not 1 <= num_results <= decode.beams:
        raise InputError(
            f"{num_results} results requested, but decode.beams is {decode.beams}; request 1 to "
            f"{decode.beams}"
        )
    max_length = int(output_length_limits(jnp.array([len(source)]), decode)[0])
    forced = None
    if len(prefix):
        prefix = check_tokens("prefix", prefix, config)
        if len(prefix) >= max_length:
            raise InputError(
                f"the prefix has {len(prefix)} tokens, but the longest output has {max_length} "
                "including EOS; shorten it, or raise decode.max_length or decode.extra_length"
            )
        padding = jnp.full(max_length - len(prefix), config.pad_id, jnp.int32)
        forced = jnp.concatenate([prefix, padding], dtype=jnp.int32)[None]
    batch = jnp.asarray(source, jnp.int32)[None]
    search, events = _compiled_search(model, decode, num_results, max_length)
    events.clear()
    hypotheses = search({"model": params}, batch, prefix=forced)
    jax.effects_barrier()
    fields = (hypotheses.tokens, hypotheses.scores, hypotheses.log_probs)
    results = tuple(
        Result(tuple(tokens[tokens != config.pad_id].tolist()), float(score), float(total))
        for tokens, score, total in zip(*(np.asarray(field)[0] for field in fields), strict=True)
        if score > NEG_INF / 2
    )
    return _Search(batch, forced, max_length, list(events), results)


@functools.lru_cache(maxsize=4)
def _compiled_search(
    model: Model, decode: DecodeConfig, results: int, max_length: int
) -> tuple[Callable[..., Hypotheses], list[_Event]]:
    """The search, compiled once for all sentences of a length, and the list of its steps."""
    events: list[_Event] = []

    def report(*values: Array) -> None:
        events.append(_Event(*(np.asarray(value)[0] for value in values)))

    search = functools.partial(
        generate,
        _ReportingModel(model, report),
        config=decode,
        num_results=results,
        max_length=max_length,
    )
    return jax.jit(search), events


def _steps(
    search: _Search, config: ModelConfig, decode: DecodeConfig, top: int
) -> Iterator[SearchStep]:
    """Reconstruct the hypotheses of each step from the tokens read and the parents chosen."""
    events, max_length = search.events, search.max_length
    sequences = [np.full((decode.beams, max_length), config.pad_id, np.int32)]  # [K, M] each
    for index, (previous, event) in enumerate(itertools.pairwise(events)):
        sequences.append(sequences[-1][previous.parents])
        sequences[-1][:, index] = event.tokens
    predictions = _predictions(
        np.stack([event.logits for event in events]),
        np.stack(sequences),
        np.array([max_length]),
        Constraints(decode.min_length, decode.block_ngrams, search.prefix),
        special_ids=config.special_ids,
        top=min(top, config.vocab_size),
    )
    log_probs = np.where(np.arange(decode.beams) == 0, np.float32(0), np.float32(NEG_INF))  # [K]
    parents = following = None
    for index, (event, next_token, top_log_probs, top_tokens) in enumerate(
        zip(events, *map(np.asarray, predictions), strict=True)
    ):
        if index:
            log_probs = log_probs[parents] + following[parents, event.tokens]
        active = int((log_probs > NEG_INF / 2).sum())
        yield SearchStep(
            tokens=tuple(tuple(row[:index].tolist()) for row in sequences[index][:active]),
            log_probs=tuple(log_probs[:active].tolist()),
            parents=tuple(parents[:active].tolist()) if index else (),
            top_tokens=top_tokens[:active],
            top_log_probs=top_log_probs[:active],
            cross_attention=None,
            finished=_finished(log_probs[:, None] + next_token, index + 1, config.eos_id, decode),
        )
        parents, following = event.parents, next_token


@functools.partial(jax.jit, static_argnames=("special_ids", "top"))
def _predictions(
    logits: Float[Array, "steps K V"],
    sequences: Int[Array, "steps K M"],
    length_limit: Int[Array, " 1"],
    constraints: Constraints,
    *,
    special_ids: SpecialIds,
    top: int,
) -> tuple[Float[Array, "steps K V"], Float[Array, "steps K k"], Int[Array, "steps K k"]]:
    """Log-probabilities of the next tokens under the constraints, and the model's best tokens."""

    def of_step(logits: Float[Array, "K V"], tokens: Int[Array, "K M"], index: Int[Array, ""]):
        batch = (logits[None], tokens[None], index, length_limit)
        return next_log_probs(*batch, constraints, special_ids)[0]

    allowed = jax.vmap(of_step)(logits, sequences, jnp.arange(len(logits)))
    return allowed, *jax.lax.top_k(jax.nn.log_softmax(logits), top)


def _finished(
    extensions: Float[np.ndarray, "K V"], length: int, eos_id: int, decode: DecodeConfig
) -> tuple[Finished, ...]:
    """The extensions that end with EOS among the best K (or 2K)."""
    num_beams, vocab_size = extensions.shape
    candidates = 2 * num_beams if decode.finish_from == "best_2k" and num_beams > 1 else num_beams
    penalty = float(length_penalty(jnp.array(length), decode.length_penalty, decode.alpha))
    best = np.argsort(-extensions, axis=None, kind="stable")[:candidates]
    beams, tokens = np.divmod(best, vocab_size)
    totals = [(int(beam), float(extensions[beam, eos_id])) for beam in beams[tokens == eos_id]]
    return tuple(
        Finished(beam, total, total / penalty) for beam, total in totals if total > NEG_INF / 2
    )


def _cross_attention(
    model: Model, params: Params, source: Int[Array, "1 S"], steps: list[SearchStep]
) -> Iterator[Float[np.ndarray, "K L N S"] | None]:
    """Cross-attention weights of every active hypothesis at every step.

    Cached decoding keeps no weights. One teacher-forced pass over the hypotheses that no other
    hypothesis extends has those of all steps, because decoding is causal.
    """
    if "cross" not in model.describe().attention:
        yield from [None] * len(steps)
        return
    row_of: dict[tuple[int, ...], int] = {}  # each hypothesis -> a row of which it is the beginning
    longest = []
    for step in reversed(steps):
        for tokens in step.tokens:
            if tokens not in row_of:
                prefixes = (tokens[:end] for end in range(len(tokens) + 1))
                row_of = dict.fromkeys(prefixes, len(longest)) | row_of
                longest.append(tokens)
    target = np.full((len(longest), len(steps)), model.config.pad_id, np.int32)
    for row, tokens in zip(target, longest, strict=True):
        row[: len(tokens)] = tokens
    weights = _teacher_forced_attention(model, params, source, jnp.asarray(target))
    for index, step in enumerate(steps):
        rows = [row_of[tokens] for tokens in step.tokens]
        at_step = np.asarray(weights)[:, :, :, index]  # [L, B, N, S]
        yield at_step[:, rows].swapaxes(0, 1)  # [K, L, N, S]


@functools.partial(jax.jit, static_argnums=0)
def _teacher_forced_attention(
    model: Model, params: Params, source: Int[Array, "1 S"], target: Int[Array, "B T"]
) -> Float[Array, "L B N T S"]:
    sources = jnp.broadcast_to(source, (target.shape[0], source.shape[1]))  # [B, S]
    target_in = shift_right(target, bos_id=model.config.bos_id)
    _, trace = apply(model, params, sources, target_in, capture="weights")
    return trace.attention("cross").weights
