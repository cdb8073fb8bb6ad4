# SPDX-License-Identifier: Apache-2.0
"""From subwords to words: labels, the word of each token, and attention weights between words.

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
_CONTINUATION = "\u00b7"


def display_tokens(pieces: Sequence[str]) -> list[str]:
    """Labels of SentencePiece tokens: words as words, and ``·`` before a word's further parts.

    ``▁the ▁Schm etter ling .`` becomes ``the Schm ·etter ·ling .``.

    Args:
      pieces: a sentence or a vocabulary. Without any ``▁``, which marks the beginning of a word,
        the tokens are not SentencePiece's and stay as they are.
    """
    if not any(piece.startswith(_SPACE) for piece in pieces):
        return list(pieces)
    return [_display(piece) for piece in pieces]


def _display(piece: str) -> str:
    text = piece.removeprefix(_SPACE).replace(_SPACE, " ")
    if not text:  # a token that is only a space
        return " "
    continues = not piece.startswith(_SPACE) and piece[:1].isalnum()
    return _CONTINUATION + text if continues else text


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
    query_words: Int[Array | np.ndarray, " T"] | Sequence[int],
    key_words: Int[Array | np.ndarray, " S"] | Sequence[int],
    queries: int,
    keys: int,
) -> Float[Array | np.ndarray, "*L W X"]:
    """Attention weights between words: sums over the tokens of a key, means over those of a query.

    Args:
      weights: between tokens.
      query_words: word of each query token, or `NO_WORD`.
      key_words: word of each key token, or `NO_WORD`.
      queries: number W of query words; a word without tokens has weights of 0.
      keys: number X of key words.

    Returns:
      rows that sum to 1 minus the weight of tokens without a word; in NumPy if `weights` is.
    """
    # NumPy weights stay in NumPy, so that nothing is compiled for the numbers of words.
    xp = jnp if isinstance(weights, jax.Array) else np
    query_words, key_words = xp.asarray(query_words)[:, None], xp.asarray(key_words)[:, None]
    of_query = (query_words == xp.arange(queries)).astype(weights.dtype)  # [T, W]
    of_key = (key_words == xp.arange(keys)).astype(weights.dtype)  # [S, X]
    mean = of_query / xp.maximum(of_query.sum(0), 1)
    return xp.einsum("...TS,TW,SX->...WX", weights, mean, of_key, optimize="optimal")
