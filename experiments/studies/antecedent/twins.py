# SPDX-License-Identifier: Apache-2.0
"""Ambiguous sentences of `pronouns` as tokens, with the role of each token.

The sentences come in twins that differ only in the reason ("... because it was too tired / too
wide"), so that the pronoun refers to one noun in the first and to the other noun in the second.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from experiments.data.grammars.pronouns import words
from transformer.arrays import Array, Bool, Int
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
    "EOS",
)
"""Roles of source tokens. The adjective determines what "it" refers to; the rest of the reason is
"because", the verb and "too"; before a noun come its determiner and its attribute.
"""

NOUNS = ("antecedent", "distractor")
"""Roles of the two nouns that "it" may refer to, and of their translations in the prefix: the
target tokens that are read before the pronoun is predicted.
"""

NO_ROLE = -1
"""Role of padding, and of other target tokens."""

_DETERMINERS = ("the", "this", "a", "an")


@flax.struct.dataclass
class Sentences:
    """B sentence pairs padded to one length; rows 2k and 2k + 1 are twins."""

    source: Int[Array | np.ndarray, "*B S"]
    target_in: Int[Array | np.ndarray, "*B T"]
    """Tokens that the decoder reads: BOS, then the target."""
    target: Int[Array | np.ndarray, "*B T"]
    source_roles: Int[Array | np.ndarray, "*B S"]
    """Index into `ROLES` of each token."""
    prefix_roles: Int[Array | np.ndarray, "*B T"]
    """Index into `NOUNS` of each token of `target_in`."""
    position: Int[Array | np.ndarray, "*B"]
    """Row of the logits that predicts the pronoun."""
    pronoun: Int[Array | np.ndarray, "*B"]
    """The correct pronoun."""
    other: Int[Array | np.ndarray, "*B"]
    """The twin's pronoun; up to it both targets are equal."""

    def __len__(self) -> int:
        return len(self.position)

    def __getitem__(self, rows: Any) -> "Sentences":
        return jax.tree.map(lambda leaf: leaf[rows], self)

    def __iter__(self) -> Iterator["Sentences"]:
        return (self[row] for row in range(len(self)))

    def twins(self) -> "Sentences":
        """The twin of each sentence."""
        return self[np.arange(len(self)) ^ 1]

    @property
    def preference(self) -> LogitDifference:
        """Metric: preference for the correct pronoun over the twin's, in nats."""
        return LogitDifference(*map(jnp.asarray, (self.position, self.pronoun, self.other)))

    def has_role(self, role: str) -> Bool[Array | np.ndarray, "*B S"]:
        """Source tokens with one of `ROLES`."""
        return self.source_roles == ROLES.index(role)

    def has_prefix_role(self, role: str) -> Bool[Array | np.ndarray, "*B T"]:
        """Tokens of the prefix that translate one of `NOUNS`."""
        return self.prefix_roles == NOUNS.index(role)


@dataclasses.dataclass(frozen=True)
class _Tokens:
    """Tokens of one sentence pair, and the word of each."""

    source: list[int]
    target: list[int]
    source_words: list[int]
    target_words: list[int]


def read(
    tokenizer: Tokenizer, examples: Sequence[Mapping[str, Any]], limit: int | None = None
) -> Sentences:
    """The twins that differ in one source token, the adjective.

    Twins whose adjectives are not one token each are skipped, so that positions are comparable.

    Args:
      tokenizer: tokenizer of the model.
      examples: a split of `pronouns`, from `experiments.data.registry.load`.
      limit: number of pairs of twins, from the start; all by default.
    """
    rows: list[dict[str, Any]] = []
    for pair in _pairs(examples):
        if limit is not None and len(rows) == 2 * limit:
            break
        rows += rows_of(tokenizer, pair)
    if not rows:
        raise InputError(
            "no two of the sentences are twins that differ in one token; give examples of a split "
            "of pronouns, and the tokenizer of a model that was trained on it"
        )
    return stacked(tokenizer, rows)


def rows_of(tokenizer: Tokenizer, pair: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The fields of `Sentences` of two twins; none if they do not differ in one source token."""
    first, second = (_tokenize(tokenizer, example) for example in pair)
    sources = first.source, second.source
    if len({*map(len, sources)}) > 1 or sum(a != b for a, b in zip(*sources, strict=True)) != 1:
        return []
    bos = tokenizer.special_ids.bos
    return [_row(pair[0], first, second, bos), _row(pair[1], second, first, bos)]


def stacked(
    tokenizer: Tokenizer,
    rows: Sequence[Mapping[str, Any]],
    lengths: Mapping[Literal["source", "target"], int] | None = None,
) -> Sentences:
    """Rows of `rows_of` as arrays, padded to the longest or to these lengths."""

    def padded(name: str) -> Int[np.ndarray, "B *S"]:
        values = [row[name] for row in rows]
        if isinstance(values[0], int):
            return np.array(values, np.int32)
        side = "source" if name.startswith("source") else "target"
        length = max((lengths or {}).get(side, 0), *map(len, values))
        fill = NO_ROLE if name.endswith("_roles") else tokenizer.special_ids.pad
        return np.array([[*value, *[fill] * (length - len(value))] for value in values], np.int32)

    return Sentences(**{name: padded(name) for name in rows[0]})


def _pairs(examples: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Pairs of twins, in the order of their first sentences."""
    twins: dict[int, list[Mapping[str, Any]]] = {}
    for example in examples:
        if example["resolution"]:
            twins.setdefault(int(example["twin"]), []).append(example)
    return [pair for pair in twins.values() if len(pair) == 2]


def _tokenize(tokenizer: Tokenizer, example: Mapping[str, Any]) -> _Tokens:
    source, target = tokenizer.encode([example["source"], example["target"]])
    return _Tokens(
        source,
        target,
        words_of_pieces(tokenizer.pieces(source), words(example["source"])),
        words_of_pieces(tokenizer.pieces(target), words(example["target"])),
    )


def _row(example: Mapping[str, Any], tokens: _Tokens, twin: _Tokens, bos: int) -> dict[str, Any]:
    """The fields of `Sentences` for one sentence."""
    position = _first_difference(tokens.target, twin.target)
    adjective = tokens.source_words[_first_difference(tokens.source, twin.source)]
    word_roles = _word_roles(example, adjective)
    source_roles = ["EOS" if word < 0 else word_roles[word] for word in tokens.source_words]
    prefix_roles = [NO_ROLE] * len(tokens.target)
    alignment = np.asarray(example["alignment"]).tolist()
    for index, word in enumerate(tokens.target_words[:position], 1):
        for role, noun in enumerate(NOUNS):
            if [example[noun], word] in alignment:
                prefix_roles[index] = role
    return {
        "source": tokens.source,
        "target_in": [bos, *tokens.target[:-1]],
        "target": tokens.target,
        "source_roles": [ROLES.index(role) for role in source_roles],
        "prefix_roles": prefix_roles,
        "position": position,
        "pronoun": tokens.target[position],
        "other": twin.target[position],
    }


def _first_difference(first: list[int], second: list[int]) -> int:
    return next(i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)


def _word_roles(example: Mapping[str, Any], adjective: int) -> list[str]:
    """Role of each source word."""
    text = [word.lower() for word in words(example["source"])]
    reason = range(text.index("because"), adjective + 1)
    roles = [f"rest of the {'reason' if i in reason else 'event'}" for i in range(len(text))]
    for noun in NOUNS:
        index = example[noun]
        roles[index] = noun
        while text[index] not in _DETERMINERS:
            index -= 1
            roles[index] = f"before the {noun}"
    roles[example["pronoun"]], roles[adjective] = "it", "adjective"
    return ["punctuation" if word in ",." else role for word, role in zip(text, roles, strict=True)]
