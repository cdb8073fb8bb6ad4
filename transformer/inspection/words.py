# SPDX-License-Identifier: Apache-2.0
"""From subwords to words: the word of each token, and attention weights between words.

Gold alignments and pronouns refer to words, but a model reads subwords. The weight of a word as a
key is the sum over its tokens, as a query the mean over its tokens.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from transformer.arrays import Array, Float, Int
from transformer.errors import InputError

NO_WORD = -1
"""Word of BOS, EOS and padding."""

_SPECIAL = ("<pad>", "<s>", "</s>")
_SPACE = "\u2581"


def words_of_pieces(pieces: Sequence[str], words: Sequence[str]) -> list[int]:
    """Index of the word in which each token begins.

    Args:
      pieces: a sentence as `Tokenizer.pieces` returns it; ``▁`` is a space.
      words: the same sentence split into words, with punctuation separate or not.

    Returns:
      one index a piece; `NO_WORD` for special tokens and for a piece that is only a space.

    Raises:
      InputError: when pieces and words differ in their characters.
    """
    word_of_character = [index for index, word in enumerate(words) for _ in word]
    characters = "".join(words)
    indices, position = [], 0
    for piece in pieces:
        text = "" if piece in _SPECIAL else piece.replace(_SPACE, "")
        if not characters.startswith(text, position):
            raise InputError(
                f"the token {piece!r} does not match the words {' '.join(words)!r} at "
                f"{characters[position : position + 20]!r}; give the words of the sentence that "
                "was tokenized"
            )
        indices.append(word_of_character[position] if text else NO_WORD)
        position += len(text)
    if position != len(characters):
        raise InputError(
            f"the tokens end before {characters[position : position + 20]!r}; give the words of "
            "the sentence that was tokenized"
        )
    return indices


def merge(
    weights: Float[Array | np.ndarray, "*L T S"],
    query_words: Int[Array | np.ndarray, " T"],
    key_words: Int[Array | np.ndarray, " S"],
    queries: int,
    keys: int,
) -> Float[Array, "*L W X"]:
    """Attention weights between words: sums over the tokens of a key, means over those of a query.

    Args:
      weights: between tokens.
      query_words: word of each query token, or `NO_WORD`.
      key_words: word of each key token, or `NO_WORD`.
      queries: number W of query words; a word without tokens has weights of 0.
      keys: number X of key words.

    Returns:
      rows that sum to 1 minus the weight of tokens without a word.
    """
    weights = jnp.asarray(weights)
    of_query = jax.nn.one_hot(query_words, queries, dtype=weights.dtype)  # [T, W]
    of_key = jax.nn.one_hot(key_words, keys, dtype=weights.dtype)  # [S, X]
    mean = of_query / jnp.maximum(of_query.sum(0), 1)
    return jnp.einsum("...TS,TW,SX->...WX", weights, mean, of_key)
