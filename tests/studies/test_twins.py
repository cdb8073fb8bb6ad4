# SPDX-License-Identifier: Apache-2.0
"""Twins as tokens: the role of each token, and the one token in which they differ."""

import dataclasses
import random

import numpy as np
import pytest

from experiments.data.grammars.pronouns.grammar import (
    FramePool,
    all_frames,
    draw_twins,
    published_twins,
)
from experiments.data.grammars.pronouns.sentences import example
from experiments.studies.antecedent import twins
from experiments.studies.antecedent.twins import NO_ROLE, PREFIX_ROLES, ROLES
from transformer.errors import InputError
from transformer.text.tokenizer import Tokenizer


def drawn(pairs):
    """Examples of at least `pairs` twins, the published ones first."""
    rng, pool = random.Random(0), FramePool(all_frames())
    pairs_drawn = [published_twins()]
    while len(pairs_drawn) < pairs:
        pairs_drawn += [both] if (both := draw_twins(rng, pool)) else []
    return [
        dataclasses.asdict(example(meaning, "de", twin))
        for twin, both in enumerate(pairs_drawn)
        for meaning in both
    ]


EXAMPLES = drawn(60)


@pytest.fixture(scope="module")
def tokenizer():
    """A tokenizer in which most of these words are one token."""
    texts = [each[side] for each in EXAMPLES for side in ("source", "target")]
    return Tokenizer.train(texts * 2, 800)


@pytest.fixture(scope="module")
def sentences(tokenizer):
    """The sentences of these examples."""
    return twins.read(tokenizer, EXAMPLES)


def test_the_roles_of_the_published_sentence_word_for_word(tokenizer):
    tired, wide = twins.read(tokenizer, EXAMPLES[:2])
    pieces = tokenizer.pieces(tired.source.tolist())
    roles = {}
    for piece, role in zip(pieces, tired.source_roles, strict=True):
        roles.setdefault(ROLES[role], []).append(piece)
    joined = {role: "".join(tokens).replace("▁", " ").split() for role, tokens in roles.items()}
    assert joined == {
        "before the antecedent": ["The"],
        "antecedent": ["animal"],
        "rest of the event": ["didn't", "cross"],
        "before the distractor": ["the"],
        "distractor": ["street"],
        "rest of the reason": ["because", "was", "too"],
        "it": ["it"],
        "adjective": ["tired"],
        "punctuation": ["."],
        "EOS": ["</s>"],
    }
    assert tokenizer.pieces([int(tired.pronoun), int(tired.other)]) == ["▁es", "▁sie"]
    assert (wide.pronoun, wide.other) == (tired.other, tired.pronoun)
    read = tokenizer.pieces(tired.target_in[: tired.position + 1].tolist())
    assert "".join(read) == "<s>▁Das▁Tier▁überquerte▁die▁Straße▁nicht,▁weil"
    nouns = {
        noun: "".join(np.array(read)[tired.has_prefix_role(noun)[: len(read)]])
        for noun in ("antecedent", "distractor")
    }
    assert nouns == {"antecedent": "▁Tier", "distractor": "▁Straße"}
    assert PREFIX_ROLES[tired.prefix_roles[0]] == "BOS"
    assert (tired.prefix_roles[tired.position + 1 :] == NO_ROLE).all()


def test_twins_differ_only_in_the_adjective_and_their_nouns_swap_roles(sentences):
    other = sentences.twins()
    np.testing.assert_array_equal(sentences.has_role("antecedent"), other.has_role("distractor"))
    np.testing.assert_array_equal(sentences.pronoun, other.other)
    np.testing.assert_array_equal(sentences.position, other.position)
    differs = sentences.source != other.source
    np.testing.assert_array_equal(differs, sentences.has_role("adjective"))
    assert (differs.sum(-1) == 1).all()


def test_every_token_has_a_role_and_padding_has_none(sentences):
    np.testing.assert_array_equal(sentences.source_roles == NO_ROLE, sentences.source == 0)
    for role in ("it", "adjective", "EOS"):
        assert (sentences.has_role(role).sum(-1) == 1).all(), role
    for role in ("antecedent", "distractor", "before the antecedent", "before the distractor"):
        assert (sentences.has_role(role).sum(-1) >= 1).all(), role


def test_if_the_reason_comes_first_no_noun_has_been_read(sentences, tokenizer):
    first = sentences.source[:, 0] == tokenizer.encode(["Because it"])[0][0]
    both = sentences.has_prefix_role("antecedent").any(-1)
    assert 0 < first.sum() < len(sentences)
    np.testing.assert_array_equal(both, ~first)
    assert (sentences.position[first] == 1).all()


def test_the_number_of_twins_can_be_limited_but_not_zero(tokenizer):
    assert len(twins.read(tokenizer, EXAMPLES, 3)) == 6
    with pytest.raises(InputError, match="no two of the sentences are twins that differ in one"):
        twins.read(tokenizer, EXAMPLES[:1])
