# SPDX-License-Identifier: Apache-2.0
"""From sub-words to words: which word a token belongs to, and attention weights between words.

Gold alignments and pronouns are given by words, a model reads sub-words. A word's weight as a key
is the sum over its tokens, as a query the mean over its tokens.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from transformer.arrays import Array, Float, Int
from transformer.errors import InputError

NO_WORD = -1
"""The word of the start and end tokens and of padding."""

_SPECIAL = ("<pad>", "<s>", "</s>")
_SPACE = "\u2581"


def words_of_pieces(pieces: Sequence[str], words: Sequence[str]) -> list[int]:
    """For each token the number of the word that it begins in, from 0.

    Args:
      pieces: a sentence as `Tokenizer.pieces` gives it; ``▁`` stands for a space.
      words: the same sentence divided into words, punctuation apart or not. A token of two words
        counts as the first one's.

    Returns:
      one number a piece; `NO_WORD` for special tokens, and for a piece that is a space alone.

    Raises:
      InputError: when the pieces are not the words, letter by letter.
    """
    owner = [number for number, word in enumerate(words) for _ in word]
    letters = "".join(words)
    numbers, read = [], 0
    for piece in pieces:
        text = "" if piece in _SPECIAL else piece.replace(_SPACE, "")
        if not letters.startswith(text, read):
            raise InputError(
                f"the token {piece!r} does not go on where the words {' '.join(words)!r} have "
                f"{letters[read : read + 20]!r}; give the words of the sentence that was tokenized"
            )
        numbers.append(owner[read] if text else NO_WORD)
        read += len(text)
    if read != len(letters):
        raise InputError(
            f"the tokens end before {letters[read : read + 20]!r}; give the words of the sentence "
            "that was tokenized"
        )
    return numbers


def merge(
    weights: Float[Array | np.ndarray, "*L T S"],
    query_words: Int[Array | np.ndarray, " T"],
    key_words: Int[Array | np.ndarray, " S"],
    queries: int,
    keys: int,
) -> Float[Array, "*L Q K"]:
    """Attention weights between words: the sum over a key's tokens, the mean over a query's.

    Args:
      weights: between tokens.
      query_words: for each query token the number of its word, or `NO_WORD`.
      key_words: the same for the keys.
      queries: the number Q of query words; one without a token has weights of 0.
      keys: the number K of key words.

    Returns:
      rows that sum to 1 less what the tokens without a word receive.
    """
    weights = jnp.asarray(weights)
    of_query = jax.nn.one_hot(query_words, queries, dtype=weights.dtype)
    of_key = jax.nn.one_hot(key_words, keys, dtype=weights.dtype)
    mean = of_query / jnp.maximum(of_query.sum(0), 1)
    return jnp.einsum("...TS,TQ,SK->...QK", weights, mean, of_key)
