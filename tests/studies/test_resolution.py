# SPDX-License-Identifier: Apache-2.0
"""Twins as tokens, and the measures of notebook 06 on a tiny model."""

import dataclasses
import random

import jax
import numpy as np
import oracle
import pytest

from experiments.data.grammars.pronouns.grammar import (
    FramePool,
    all_frames,
    draw_twins,
    published_twins,
)
from experiments.data.grammars.pronouns.sentences import example
from experiments.studies.antecedent import resolution, twins
from experiments.studies.antecedent.twins import NO_ROLE, NOUNS, ROLES
from transformer.config import TransformerConfig
from transformer.errors import InputError
from transformer.inspection import patching, run
from transformer.models import protocol
from transformer.models.protocol import KINDS
from transformer.text.tokenizer import Tokenizer


def drawn(number):
    """Examples of a number of twins or one more, the published ones first."""
    rng, pool = random.Random(0), FramePool(all_frames())
    pairs = [published_twins()]
    while len(pairs) < number:
        pairs += [both] if (both := draw_twins(rng, pool)) else []
    return [
        dataclasses.asdict(example(meaning, "de", twin))
        for twin, both in enumerate(pairs)
        for meaning in both
    ]


EXAMPLES = drawn(60)


@pytest.fixture(scope="module")
def tokenizer():
    """A tokenizer in which most of these words are one token."""
    texts = [each[side] for each in EXAMPLES for side in ("source", "target")]
    return Tokenizer.train(texts * 2, 800)


@pytest.fixture(scope="module")
def every(tokenizer):
    """All twins of the examples."""
    return twins.read(tokenizer, EXAMPLES)


# The role of each token.


def test_the_roles_of_the_published_sentence_word_for_word(tokenizer):
    tired, wide = twins.read(tokenizer, EXAMPLES[:2])
    roles = {}
    for piece, role in zip(
        tokenizer.pieces(tired.source.tolist()), tired.source_roles, strict=True
    ):
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
    prefix = tokenizer.pieces(tired.target_in[: tired.position + 1].tolist())
    assert "".join(prefix) == "<s>▁Das▁Tier▁überquerte▁die▁Straße▁nicht,▁weil"
    nouns = [
        "".join(np.array(prefix)[tired.has_prefix_role(noun)[: len(prefix)]]) for noun in NOUNS
    ]
    assert nouns == ["▁Tier", "▁Straße"]
    assert (tired.prefix_roles[tired.position + 1 :] == NO_ROLE).all()


def test_twins_differ_only_in_the_adjective_and_their_nouns_swap_roles(every):
    other = every.twins()
    np.testing.assert_array_equal(every.has_role("antecedent"), other.has_role("distractor"))
    np.testing.assert_array_equal(every.pronoun, other.other)
    np.testing.assert_array_equal(every.position, other.position)
    np.testing.assert_array_equal(every.source != other.source, every.has_role("adjective"))
    np.testing.assert_array_equal(every.source_roles == NO_ROLE, every.source == 0)
    for role in ("it", "adjective", "EOS"):
        assert (every.has_role(role).sum(-1) == 1).all(), role
    for noun in NOUNS:
        assert every.has_role(noun).any(-1).all()
        assert every.has_role(f"before the {noun}").any(-1).all()


def test_if_the_reason_comes_first_no_noun_has_been_read(every, tokenizer):
    first = every.source[:, 0] == tokenizer.encode(["Because it"])[0][0]
    assert 0 < first.sum() < len(every)
    np.testing.assert_array_equal(every.has_prefix_role("antecedent").any(-1), ~first)
    assert (every.position[first] == 1).all()


def test_the_number_of_twins_can_be_limited_but_not_zero(tokenizer):
    assert len(twins.read(tokenizer, EXAMPLES, 3)) == 6
    with pytest.raises(InputError, match="no two of the sentences are twins that differ in one"):
        twins.read(tokenizer, EXAMPLES[:1])


# The measures.


@pytest.fixture(scope="module")
def sentences(every):
    """Ten pairs of twins."""
    return every[:20]


@pytest.fixture(scope="module")
def model():
    """A model that depends on the source and is right about some twins, and its parameters."""
    config = TransformerConfig(
        vocab_size=800, encoder_layers=1, decoder_layers=2, d_model=8, d_ff=8, num_heads=2
    )
    model = protocol.build(config)
    params = oracle.random_params(model, seed=2)
    for layer in params["decoder"].values():
        layer["cross_attention"] = jax.tree.map(lambda leaf: 8 * leaf, layer["cross_attention"])
    return model, params


@pytest.mark.slow
def test_the_queries_are_it_and_the_row_that_predicts_the_pronoun(model, sentences):
    result = resolution.coreference(*model, sentences)
    expected = {kind: [] for kind in KINDS}
    for one in sentences:
        _, trace = run(*model, one.source, one.target_in, capture="weights")
        rows = {
            "encoder": trace.attention("encoder").weights[:, :, one.has_role("it")].mean(2),
            "cross": trace.attention("cross").weights[:, :, one.position],
            "decoder": trace.attention("decoder").weights[:, :, one.position],
        }
        for kind, weights in rows.items():
            has_role = one.has_prefix_role if kind == "decoder" else one.has_role
            if all(has_role(noun).any() for noun in NOUNS):
                antecedent, distractor = (weights[..., has_role(noun)].sum(-1) for noun in NOUNS)
                expected[kind].append(antecedent - distractor)
    for kind in KINDS:
        np.testing.assert_allclose(result[kind].score, np.mean(expected[kind], 0), atol=1e-5)
        assert result[kind].sentences == len(expected[kind])
    assert result["decoder"].sentences < len(sentences)
    # In the first layer "it" is equal in twins, and so is every key except the adjective's.
    assert np.abs(result["encoder"].score).max() < 0.02
    assert (result["encoder"].antecedent_ahead >= 0.4).all()


@pytest.mark.slow
def test_the_preference_is_the_mean_metric_of_the_model(model, sentences):
    result = resolution.pronoun_ablation(*model, sentences)
    each = [float(one.preference(run(*model, one.source, one.target_in)[0])) for one in sentences]
    assert result.preference == pytest.approx(np.mean(each), abs=1e-4)
    assert result.right == pytest.approx(np.mean(np.array(each) > 0))
    assert result.damage.cross.shape == result.right_without.cross.shape == (2, 2)


@pytest.mark.slow
def test_at_the_input_only_the_adjective_carries_the_answer(model, sentences):
    result = resolution.role_patching(*model, sentences)
    adjective = np.array([role == "adjective" for role in ROLES])
    np.testing.assert_allclose(result.encoder[0], adjective, atol=1e-4)
    assert result.encoder.shape == (2, len(ROLES)) and result.decoder.shape == (3, 2)
    # At the end of the decoder only the row that predicts matters.
    np.testing.assert_allclose(result.decoder[-1], [1, 0], atol=1e-4)
    assert result.sentences < len(sentences), "some twins get the same answer"
    assert (np.abs(result.estimate_correlation) <= 1).all()
    exact, _, _ = resolution._patched(*model, sentences)
    one, twin = sentences[4], sentences[5]
    alone = patching.patch_sites(*model, one.source, twin.source, one.target_in, one.preference)
    np.testing.assert_allclose(exact.patched[4], alone.patched, atol=1e-4)
    zero = jax.tree.map(np.zeros_like, model[1])
    with pytest.raises(InputError, match="the model prefers the right pronoun in no pair of twins"):
        resolution.role_patching(model[0], zero, sentences)


def test_a_role_mean_is_over_tokens_and_then_over_sentences_with_the_role():
    values = np.array([[[1.0, 3.0, 5.0, 9.0]], [[2.0, 4.0, 6.0, 9.0]]])
    roles = np.array([[0, 0, 1, -1], [0, 2, 2, -1]])
    means = resolution.role_means(values, roles, 4)
    np.testing.assert_allclose(means, [[2.0, 5.0, 5.0, np.nan]])
