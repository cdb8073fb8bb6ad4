# SPDX-License-Identifier: Apache-2.0
"""How well the encoder-decoder attention of each head aligns words, against a gold alignment.

The alignment error rate (Och and Ney 2003) of links A against sure links S and possible links P,
of which the sure ones are a part: 1 - (|A & S| + |A & P|) / (|A| + |S|).

A row of the decoder reads one target token and predicts the next, and it can be taken for the row
of either. Which of the two aligns better differs from model to model, so both are always given. So
are the rates of the same model untrained. A high rate does not mean bad translations.
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

from transformer.arrays import PAD_ID, Array, Bool, Float, Int, Params
from transformer.config import TransformerConfig
from transformer.errors import InputError
from transformer.inspection import words
from transformer.inspection.trace import check_pairs, run
from transformer.models import base
from transformer.nn.positions import shift_right
from transformer.text.tokenizer import Tokenizer

Convention = Literal["predict", "read"]
"""Whose row row t is: the target token's that it predicts, y[t], or that it reads, y[t-1]."""


def target_rows(weights: Float[Array, "*L T S"], convention: str) -> Float[Array, "*L T S"]:
    """Encoder-decoder attention with row t for the target token y[t].

    Args:
      weights: as computed: row t reads y[t-1] and predicts y[t].
      convention: ``predict`` leaves them; ``read`` moves them up by one, and the last token, which
        no row reads, gets weights of 0.

    Raises:
      InputError: for an unknown convention.
    """
    if convention not in get_args(Convention):
        raise InputError(f"row convention {convention!r} is unknown; choose 'predict' or 'read'")
    if convention == "predict":
        return weights
    return jnp.concatenate([weights[..., 1:, :], jnp.zeros_like(weights[..., :1, :])], axis=-2)


def hard_links(weights: Float[Array, "*L T S"]) -> Bool[Array, "*L T S"]:
    """Links each target word to the source word that it reads most, the first of equals.

    A row of zeros, a word that is not there, has no link.
    """
    best = weights.argmax(-1)[..., None] == jnp.arange(weights.shape[-1])
    return best & (weights > 0)


@flax.struct.dataclass
class AlignmentCounts:
    """What the alignment error rate is made of; ``a + b`` counts over both."""

    proposed: Float[Array, "*L"]
    """|A|."""
    sure: Float[Array, "*L"]
    """|S|."""
    in_sure: Float[Array, "*L"]
    """|A & S|."""
    in_possible: Float[Array, "*L"]
    """|A & P|."""

    def __add__(self, other: "AlignmentCounts") -> "AlignmentCounts":
        return jax.tree.map(jnp.add, self, other)

    def error_rate(self) -> Float[Array, "*L"]:
        """The alignment error rate, from 0 to 1; 0 where there is no link in either."""
        links = self.proposed + self.sure
        found = (self.in_sure + self.in_possible) / jnp.maximum(links, 1)
        return jnp.where(links > 0, 1 - found, 0.0)


def count_links(
    links: Bool[Array | np.ndarray, "*L T S"],
    sure: Bool[Array | np.ndarray, "T S"],
    possible: Bool[Array | np.ndarray, "T S"] | None = None,
) -> AlignmentCounts:
    """Counts links against a gold alignment.

    Args:
      links: those proposed, by target word and source word.
      sure: the gold links that must be found.
      possible: those that may be; the sure ones are among them whether they are marked or not, and
        they are all unless given.
    """
    links = jnp.asarray(links)
    sure = jnp.broadcast_to(sure, links.shape)
    possible = sure if possible is None else sure | jnp.asarray(possible)

    def number(of: Bool[Array, "*L T S"]) -> Float[Array, "*L"]:
        return of.sum((-2, -1), dtype=jnp.float32)

    return AlignmentCounts(
        proposed=number(links),
        sure=number(sure),
        in_sure=number(links & sure),
        in_possible=number(links & possible),
    )


# A model against a corpus.


@flax.struct.dataclass
class AlignedBatch:
    """Sentence pairs with the words that their tokens belong to, and which words are aligned."""

    source: Int[Array | np.ndarray, "B S"]
    target: Int[Array | np.ndarray, "B T"]
    """What is to be predicted, the end token last; 0 where padded."""
    source_words: Int[Array | np.ndarray, "B S"]
    """The word of each token, from `words.words_of_pieces`; `words.NO_WORD` where padded."""
    target_words: Int[Array | np.ndarray, "B T"]
    sure: Bool[Array | np.ndarray, "B Q K"]
    """Gold links by target word and source word; false beyond the words of a sentence."""
    possible: Bool[Array | np.ndarray, "B Q K"] | None = None
    """As in `count_links`."""


def aligned_batch(
    tokenizer: Tokenizer,
    sources: Sequence[str],
    targets: Sequence[str],
    links: Sequence[ArrayLike],
    *,
    split: Callable[[str], Sequence[str]] = str.split,
) -> AlignedBatch:
    """Sentence pairs with their gold alignment, tokenized and padded.

    Args:
      tokenizer: the model's.
      sources: raw text.
      targets: as many translations.
      links: for each pair the places (source word, target word) that are aligned, from 0; all are
        sure.
      split: from a sentence to the words that the places count.

    Raises:
      InputError: when there are not equally many of each, or for a place that no word has.
    """
    if not len(sources) == len(targets) == len(links):
        raise InputError(
            f"there are {len(sources)} sources, {len(targets)} targets and {len(links)} "
            "alignments; give one of each a pair"
        )
    source, source_words, keys = _tokens_and_words(tokenizer, sources, split)
    target, target_words, queries = _tokens_and_words(tokenizer, targets, split)
    sure = np.zeros((len(sources), max(queries, default=0), max(keys, default=0)), bool)
    for number, pairs in enumerate(links):
        places = np.asarray(pairs, int).reshape(-1, 2)
        size = keys[number], queries[number]
        outside = ((places < 0) | (places >= size)).any(-1)
        if outside.any():
            raise InputError(
                f"pair {number} aligns the words {places[outside][0].tolist()}, but has {size[0]} "
                f"source and {size[1]} target words, counted from 0; give the places of the words "
                "into which `split` divides it"
            )
        sure[number, places[:, 1], places[:, 0]] = True
    return AlignedBatch(source, target, source_words, target_words, sure)


def _tokens_and_words(
    tokenizer: Tokenizer, sentences: Sequence[str], split: Callable[[str], Sequence[str]]
) -> tuple[Int[np.ndarray, "B S"], Int[np.ndarray, "B S"], list[int]]:
    """Token ids, the word of each token, and how many words each sentence has."""
    ids, divided = tokenizer.encode(sentences), list(map(split, sentences))
    longest = max(map(len, ids), default=0)
    tokens = np.full((len(ids), longest), PAD_ID, np.int32)
    owners = np.full((len(ids), longest), words.NO_WORD, np.int32)
    for place, (own, of_sentence) in enumerate(zip(ids, divided, strict=True)):
        tokens[place, : len(own)] = own
        owners[place, : len(own)] = words.words_of_pieces(tokenizer.pieces(own), of_sentence)
    return tokens, owners, list(map(len, divided))


@flax.struct.dataclass
class AlignmentErrors:
    """Alignment error rates of the encoder-decoder attention."""

    heads: Float[Array, "L N"]
    layers: Float[Array, " L"]
    """Of the mean of a layer's heads, which aligns as no single head does."""


def alignment_errors(
    params: Params, config: TransformerConfig, batch: AlignedBatch, convention: Convention
) -> AlignmentErrors:
    """The alignment error rate of every head and of each layer's mean, over all sentences.

    Every target word is linked to the source word it reads most, sub-words merged by
    `words.merge`; start, end and padding are no words and are never linked.

    Args:
      params: of the model that `config` describes.
      config: of the model, with ``attention_kernel="einsum"``.
      batch: the sentence pairs and their gold alignment.
      convention: as in `target_rows`.

    Raises:
      InputError: for tokens that are not sentence pairs of the vocabulary, an unknown convention,
        or a kernel that keeps no weights.
    """
    check_pairs(batch.source, batch.target, config)
    heads, layers = _counts(params, config, batch, convention)
    return AlignmentErrors(heads.error_rate(), layers.error_rate())


def alignment_errors_against_untrained(
    params: Params, config: TransformerConfig, batch: AlignedBatch, *, seed: int = 0
) -> dict[Literal["trained", "untrained"], dict[Convention, AlignmentErrors]]:
    """Both conventions, for a trained model and for the same model with fresh parameters.

    Args:
      params: trained.
      config: of the model.
      batch: the sentence pairs and their gold alignment.
      seed: of the fresh parameters.
    """
    both = {"trained": params, "untrained": untrained_params(config, seed)}
    return {
        name: {
            convention: alignment_errors(weights, config, batch, convention)
            for convention in get_args(Convention)
        }
        for name, weights in both.items()
    }


def untrained_params(config: TransformerConfig, seed: int = 0) -> Params:
    """The parameters with which training of this model would begin."""
    tokens = jnp.zeros((1, 1), jnp.int32)
    init = jax.jit(base.build(config).init)
    return nn.unbox(init(jax.random.key(seed), tokens, tokens)["params"])


@functools.partial(jax.jit, static_argnames=("config", "convention"))
def _counts(
    params: Params, config: TransformerConfig, batch: AlignedBatch, convention: Convention
) -> tuple[AlignmentCounts, AlignmentCounts]:
    """The counts of every head [L,N] and of every layer's mean [L], summed over sentences."""

    def of_pair(pair: AlignedBatch, target_in: Int[Array, " T"]):
        _, trace = run(params, config, pair.source, target_in, capture="weights")
        heads = target_rows(trace.attention("cross").weights, convention)
        sizes = pair.sure.shape

        def count(weights: Float[Array, "*L T S"]) -> AlignmentCounts:
            merged = words.merge(weights, pair.target_words, pair.source_words, *sizes)
            return count_links(hard_links(merged), pair.sure, pair.possible)

        return count(heads), count(heads.mean(1))

    counts = jax.vmap(of_pair)(batch, shift_right(jnp.asarray(batch.target)))
    return jax.tree.map(lambda each: each.sum(0), counts)
