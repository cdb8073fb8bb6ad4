# SPDX-License-Identifier: Apache-2.0
"""Sentences of `pronouns` whose "it" takes understanding, as tokens, and what each token is.

They come in twins, which differ in the reason alone ("... because it was too tired / too wide"), so
that the pronoun of one refers to the one noun and the pronoun of the other to the other.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from experiments.corpora.pronouns import words
from transformer.arrays import BOS_ID, PAD_ID, Array, Bool, Int
from transformer.errors import InputError
from transformer.inspection.readout import LogitDifference
from transformer.inspection.words import words_of_pieces
from transformer.text.tokenizer import Tokenizer

ROLES = (
    "it",
    "adjective",
    "rest of the reason",
    "antecedent",
    "before the antecedent",
    "distractor",
    "before the distractor",
    "rest of the event",
    "punctuation",
    "end token",
)
"""What a source token is. The adjective is the word that tells what "it" is; the rest of the reason
is "because", the verb and "too"; before a noun stand its determiner and its attribute.
"""

PREFIX_ROLES = ("start token", "antecedent", "distractor", "rest of the prefix")
"""What a token is that the decoder has read before it predicts the pronoun."""

NO_ROLE = -1
"""Of padding, and of what the decoder reads after that."""

_DETERMINERS = ("the", "this", "a", "an")


@flax.struct.dataclass
class Sentences:
    """B sentence pairs padded to one length; row 2k and row 2k + 1 are twins."""

    source: Int[Array | np.ndarray, "*B S"]
    target_in: Int[Array | np.ndarray, "*B T"]
    """What the decoder reads: the start token, then the target."""
    target: Int[Array | np.ndarray, "*B T"]
    source_roles: Int[Array | np.ndarray, "*B S"]
    """An index of `ROLES` for each token."""
    prefix_roles: Int[Array | np.ndarray, "*B T"]
    """An index of `PREFIX_ROLES` for each token of `target_in`."""
    position: Int[Array | np.ndarray, "*B"]
    """The row of the logits that predicts the pronoun."""
    pronoun: Int[Array | np.ndarray, "*B"]
    """The token it should predict."""
    other: Int[Array | np.ndarray, "*B"]
    """The token that the twin has there; up to it the two targets are the same."""

    def __len__(self) -> int:
        return len(self.position)

    def __getitem__(self, rows: Any) -> "Sentences":
        return jax.tree.map(lambda leaf: leaf[rows], self)

    def __iter__(self) -> Iterator["Sentences"]:
        return (self[row] for row in range(len(self)))

    def twins(self) -> "Sentences":
        """The twin of each sentence, in its place."""
        return self[np.arange(len(self)) ^ 1]

    @property
    def preference(self) -> LogitDifference:
        """By how many nats a model prefers the right pronoun to the twin's."""
        return LogitDifference(*map(jnp.asarray, (self.position, self.pronoun, self.other)))

    def has_role(self, role: str) -> Bool[Array | np.ndarray, "*B S"]:
        """Which source tokens are of one of `ROLES`."""
        return self.source_roles == ROLES.index(role)

    def has_prefix_role(self, role: str) -> Bool[Array | np.ndarray, "*B T"]:
        """Which tokens that the decoder reads are of one of `PREFIX_ROLES`."""
        return self.prefix_roles == PREFIX_ROLES.index(role)


@dataclasses.dataclass(frozen=True)
class _Tokens:
    """One sentence pair as tokens."""

    source: list[int]
    target: list[int]
    source_words: list[int]
    """The word of each token."""
    target_words: list[int]


def read(
    tokenizer: Tokenizer, examples: Sequence[Mapping[str, Any]], most: int | None = None
) -> Sentences:
    """The twins among these sentences that are one another token for token, but for the adjective.

    Their targets are the same up to the pronoun. Twins whose adjectives are not one token each are
    left out, so that positions can be compared and each sentence has one that tells.

    Args:
      tokenizer: of the model.
      examples: of a split of `pronouns`, as `experiments.datasets.load` gives them.
      most: so many pairs of twins, the first; all unless given.

    Raises:
      InputError: when there are none.
    """
    found: list[dict[str, Any]] = []
    for first, second in _pairs(examples):
        if most is not None and len(found) == 2 * most:
            break
        tokens = [_tokens(tokenizer, each) for each in (first, second)]
        if _one_token_differs(*(each.source for each in tokens)):
            found.append(_row(first, tokens[0], tokens[1]))
            found.append(_row(second, tokens[1], tokens[0]))
    if not found:
        raise InputError(
            "no two of the sentences are twins that differ in one token; give examples of a split "
            "of pronouns, and the tokenizer of a model that was trained on it"
        )
    columns = {name: [row[name] for row in found] for name in found[0]}
    return Sentences(**{name: _padded(name, rows) for name, rows in columns.items()})


def _pairs(examples: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """The resolution sentences by twos, in the order in which the first of them come."""
    twins: dict[int, list[Mapping[str, Any]]] = {}
    for example in examples:
        if example["resolution"]:
            twins.setdefault(int(example["twin"]), []).append(example)
    return [pair for pair in twins.values() if len(pair) == 2]


def _tokens(tokenizer: Tokenizer, example: Mapping[str, Any]) -> _Tokens:
    ids, owners = [], []
    for side in ("source", "target"):
        [tokens] = tokenizer.encode([example[side]])
        ids.append(tokens)
        owners.append(words_of_pieces(tokenizer.pieces(tokens), words(example[side])))
    return _Tokens(*ids, *owners)


def _one_token_differs(first: list[int], second: list[int]) -> bool:
    return (
        len(first) == len(second) and sum(a != b for a, b in zip(first, second, strict=True)) == 1
    )


def _row(example: Mapping[str, Any], own: _Tokens, twin: _Tokens) -> dict[str, Any]:
    """The fields of `Sentences` for one sentence."""
    pairs = list(zip(own.target, twin.target, strict=False))
    position = next(place for place, (one, other) in enumerate(pairs) if one != other)
    differs = [one != other for one, other in zip(own.source, twin.source, strict=True)]
    adjective = own.source_words[differs.index(True)]
    word_roles = _word_roles(example, adjective)
    prefix = [_prefix_role(example, word) for word in own.target_words[:position]]
    return {
        "source": own.source,
        "target_in": [BOS_ID, *own.target[:-1]],
        "target": own.target,
        "source_roles": [
            ROLES.index("end token" if word < 0 else word_roles[word]) for word in own.source_words
        ],
        "prefix_roles": [PREFIX_ROLES.index(role) for role in ["start token", *prefix]]
        + [NO_ROLE] * (len(own.target) - 1 - position),
        "position": position,
        "pronoun": own.target[position],
        "other": twin.target[position],
    }


def _word_roles(example: Mapping[str, Any], adjective: int) -> list[str]:
    """The role of each word of the source."""
    text = [word.lower() for word in words(example["source"])]
    reason = range(text.index("because"), adjective + 1)
    roles = [f"rest of the {'reason' if at in reason else 'event'}" for at in range(len(text))]
    for noun in ("antecedent", "distractor"):
        place = example[noun]
        roles[place] = noun
        while text[place] not in _DETERMINERS:
            place -= 1
            roles[place] = f"before the {noun}"
    roles[example["pronoun"]], roles[adjective] = "it", "adjective"
    return ["punctuation" if word in ",." else role for word, role in zip(text, roles, strict=True)]


def _prefix_role(example: Mapping[str, Any], word: int) -> str:
    """The role of a word of the target."""
    for noun in ("antecedent", "distractor"):
        if [example[noun], word] in np.asarray(example["alignment"]).tolist():
            return noun
    return "rest of the prefix"


def _padded(name: str, rows: list[Any]) -> Int[np.ndarray, "B *S"]:
    """A field of all sentences as one array."""
    if isinstance(rows[0], int):
        return np.array(rows, np.int32)
    fill = NO_ROLE if name.endswith("_roles") else PAD_ID
    array = np.full((len(rows), max(map(len, rows))), fill, np.int32)
    for place, row in enumerate(rows):
        array[place, : len(row)] = row
    return array
