# SPDX-License-Identifier: Apache-2.0
"""Word alignment by cross-attention heads, compared with a gold alignment.

The alignment error rate (Och and Ney 2003) of links A against sure links S and possible links P,
which include the sure ones, is ``1 - (|A & S| + |A & P|) / (|A| + |S|)``.

A decoder row reads one target token and predicts the next, and may be taken as the row of either.
Which of the two aligns better depends on the model, so both are reported, next to those of an
untrained model. A high error rate does not imply bad translations.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from transformer.arrays import Array, Bool, Float, Int, Params
from transformer.errors import InputError
from transformer.inspection import words
from transformer.inspection.trace import check_pairs, describe, run
from transformer.models.protocol import Model
from transformer.nn.positions import shift_right
from transformer.text.tokenizer import Tokenizer

Convention = Literal["predict", "read"]
"""The target token of row t: the one it predicts, y[t], or the one it reads, y[t-1]."""


def target_rows(weights: Float[Array, "*L T S"], convention: str) -> Float[Array, "*L T S"]:
    """Cross-attention weights with row t for the target token y[t].

    Args:
      weights: as computed: row t reads y[t-1] and predicts y[t].
      convention: ``predict`` returns them unchanged; ``read`` moves them up by one, and the last
        token, which no row reads, has weights of 0.

    Raises:
      InputError: for an unknown convention.
    """
    if convention not in get_args(Convention):
        raise InputError(f"row convention {convention!r} is unknown; choose 'predict' or 'read'")
    if convention == "predict":
        return weights
    return jnp.concatenate([weights[..., 1:, :], jnp.zeros_like(weights[..., :1, :])], axis=-2)


def hard_links(weights: Float[Array, "*L T S"]) -> Bool[Array, "*L T S"]:
    """Link each target word to the source word with the highest weight, the first of ties.

    A row of zeros, of a word that does not exist, has no link.
    """
    best = weights.argmax(-1)[..., None] == jnp.arange(weights.shape[-1])
    return best & (weights > 0)


@flax.struct.dataclass
class AlignmentCounts:
    """Counts of links for the alignment error rate; ``a + b`` adds the counts of two corpora."""

    proposed: Float[Array, "*L"]
    """Number of proposed links, ``|A|``."""
    sure: Float[Array, "*L"]
    """Number of sure links, ``|S|``."""
    in_sure: Float[Array, "*L"]
    """``|A & S|``."""
    in_possible: Float[Array, "*L"]
    """``|A & P|``."""

    def __add__(self, other: "AlignmentCounts") -> "AlignmentCounts":
        return jax.tree.map(jnp.add, self, other)

    def error_rate(self) -> Float[Array, "*L"]:
        """The alignment error rate, from 0 to 1; 0 if there are no links."""
        links = self.proposed + self.sure
        correct = (self.in_sure + self.in_possible) / jnp.maximum(links, 1)
        return jnp.where(links > 0, 1 - correct, 0.0)


def count_links(
    links: Bool[Array | np.ndarray, "*L T S"],
    sure: Bool[Array | np.ndarray, "T S"],
    possible: Bool[Array | np.ndarray, "T S"] | None = None,
) -> AlignmentCounts:
    """Count links against a gold alignment.

    Args:
      links: proposed links, by target word and source word.
      sure: gold links that must be found.
      possible: gold links that may be found, in addition to the sure ones; none by default.
    """
    links = jnp.asarray(links)
    sure = jnp.broadcast_to(sure, links.shape)
    possible = sure if possible is None else sure | jnp.asarray(possible)

    def count(links: Bool[Array, "*L T S"]) -> Float[Array, "*L"]:
        return links.sum((-2, -1), dtype=jnp.float32)

    return AlignmentCounts(
        proposed=count(links),
        sure=count(sure),
        in_sure=count(links & sure),
        in_possible=count(links & possible),
    )


# A model on a corpus.


@flax.struct.dataclass
class AlignedBatch:
    """Tokenized sentence pairs with the words of their tokens and a gold word alignment."""

    source: Int[Array | np.ndarray, "B S"]
    target: Int[Array | np.ndarray, "B T"]
    """The tokens to predict, ending with EOS, padded."""
    source_words: Int[Array | np.ndarray, "B S"]
    """The word of each token, from `words.words_of_pieces`; `words.NO_WORD` for padding."""
    target_words: Int[Array | np.ndarray, "B T"]
    sure: Bool[Array | np.ndarray, "B W X"]
    """Gold links by target word and source word; false beyond the words of a sentence."""


def aligned_batch(
    tokenizer: Tokenizer,
    sources: Sequence[str],
    targets: Sequence[str],
    links: Sequence[ArrayLike],
    *,
    split: Callable[[str], Sequence[str]] = str.split,
) -> AlignedBatch:
    """Tokenize and pad sentence pairs with their gold alignment.

    Args:
      links: for each pair the aligned indices (source word, target word), from 0; all are sure.
      split: splits a sentence into the words that the indices count.

    Raises:
      InputError: when the numbers of sources, targets and alignments differ, or for an index that
        is out of range.
    """
    if not len(sources) == len(targets) == len(links):
        raise InputError(
            f"there are {len(sources)} sources, {len(targets)} targets and {len(links)} "
            "alignments; give one of each for every pair"
        )
    source, source_words, keys = _tokens_and_words(tokenizer, sources, split)
    target, target_words, queries = _tokens_and_words(tokenizer, targets, split)
    sure = np.zeros((len(sources), max(queries, default=0), max(keys, default=0)), bool)
    for number, pairs in enumerate(links):
        indices = np.asarray(pairs, int).reshape(-1, 2)
        size = keys[number], queries[number]
        outside = ((indices < 0) | (indices >= size)).any(-1)
        if outside.any():
            raise InputError(
                f"pair {number} aligns the words {indices[outside][0].tolist()}, but has {size[0]} "
                f"source and {size[1]} target words, counted from 0; give indices of the words "
                "into which `split` splits it"
            )
        sure[number, indices[:, 1], indices[:, 0]] = True
    return AlignedBatch(source, target, source_words, target_words, sure)


def _tokens_and_words(
    tokenizer: Tokenizer, sentences: Sequence[str], split: Callable[[str], Sequence[str]]
) -> tuple[Int[np.ndarray, "B S"], Int[np.ndarray, "B S"], list[int]]:
    """Token ids, the word of each token, and the number of words of each sentence."""
    ids, split_sentences = tokenizer.encode(sentences), list(map(split, sentences))
    longest = max(map(len, ids), default=0)
    padded = np.full((len(ids), longest), tokenizer.special_ids.pad, np.int32)
    word_indices = np.full((len(ids), longest), words.NO_WORD, np.int32)
    for row, (tokens, sentence) in enumerate(zip(ids, split_sentences, strict=True)):
        padded[row, : len(tokens)] = tokens
        pieces = tokenizer.pieces(tokens)
        word_indices[row, : len(tokens)] = words.words_of_pieces(pieces, sentence)
    return padded, word_indices, list(map(len, split_sentences))


@flax.struct.dataclass
class AlignmentErrors:
    """Alignment error rates of cross-attention."""

    heads: Float[Array, "L N"]
    layers: Float[Array, " L"]
    """Rates of the mean over a layer's heads, which may align better than every single head."""


def alignment_errors(
    model: Model, params: Params, batch: AlignedBatch, convention: Convention
) -> AlignmentErrors:
    """Compute the alignment error rate of every head and of each layer's mean, over all sentences.

    Every target word is linked to the source word with the highest weight; subwords are merged by
    `words.merge`. Special tokens are never linked.

    Raises:
      InputError: for tokens that are not sentence pairs of the vocabulary, an unknown convention,
        or a model that cannot capture cross-attention weights.
    """
    check_pairs(batch.source, batch.target, model.config)
    if "cross" not in describe(model).attention:
        raise InputError(
            f"the model family {model.config.family!r} has no cross-attention to align with"
        )
    heads, layers = _counts(model, params, batch, convention)
    return AlignmentErrors(heads.error_rate(), layers.error_rate())


def alignment_errors_against_untrained(
    model: Model, params: Params, batch: AlignedBatch
) -> dict[Literal["trained", "untrained"], dict[Convention, AlignmentErrors]]:
    """Compute both conventions for a trained model and for the same model untrained."""
    models = {"trained": params, "untrained": untrained_params(model)}
    return {
        name: {
            convention: alignment_errors(model, weights, batch, convention)
            for convention in get_args(Convention)
        }
        for name, weights in models.items()
    }


def untrained_params(model: Model, seed: int = 0) -> Params:
    """Initial parameters of the model."""
    tokens = jnp.full((1, 1), model.config.eos_id, jnp.int32)
    return nn.unbox(jax.jit(model.init)(jax.random.key(seed), tokens, tokens)["params"])


@functools.partial(jax.jit, static_argnames=("model", "convention"))
def _counts(
    model: Model, params: Params, batch: AlignedBatch, convention: Convention
) -> tuple[AlignmentCounts, AlignmentCounts]:
    """Counts of every head [L,N] and of every layer's mean [L], summed over sentences."""

    def count_pair(pair: AlignedBatch, target_in: Int[Array, " T"]):
        _, trace = run(model, params, pair.source, target_in, capture="weights")
        heads = target_rows(trace.attention("cross").weights, convention)  # [L, N, T, S]
        sizes = pair.sure.shape

        def count(weights: Float[Array, "*L T S"]) -> AlignmentCounts:
            merged = words.merge(weights, pair.target_words, pair.source_words, *sizes)
            return count_links(hard_links(merged), pair.sure)

        return count(heads), count(heads.mean(1))

    target_in = shift_right(jnp.asarray(batch.target), bos_id=model.config.bos_id)
    counts = jax.vmap(count_pair)(batch, target_in)
    return jax.tree.map(lambda each: each.sum(0), counts)
