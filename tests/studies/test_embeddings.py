# SPDX-License-Identifier: Apache-2.0
"""The study of word vectors: skip-gram, neighbors, analogies and the picture."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from experiments import train as train_app
from experiments.studies.embeddings import __main__ as embeddings
from experiments.studies.embeddings import knowledge, skip_gram, word_vectors
from experiments.studies.embeddings.skip_gram import Settings, WordVectors
from transformer.config import Config, TransformerConfig
from transformer.errors import InputError
from transformer.models import protocol
from transformer.text.tokenizer import Tokenizer
from transformer.translator import Translator

# Skip-gram.


def test_the_objective_is_that_of_a_slow_loop():
    rng = np.random.default_rng(0)
    center, context = rng.standard_normal((2, 4, 3))
    negatives = rng.standard_normal((4, 5, 3))
    expected = []
    for v, u, samples in zip(center, context, negatives, strict=True):
        value = -np.log(1 / (1 + np.exp(-v @ u)))
        for sample in samples:
            value -= np.log(1 / (1 + np.exp(v @ sample)))
        expected.append(value)
    found = skip_gram.objective(*map(jnp.asarray, (center, context, negatives)))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_pairs_stay_within_a_sentence_and_the_window():
    words = np.arange(8, dtype=np.int32)
    sentence = np.array([0, 0, 0, 0, 0, 1, 1, 1], np.int32)
    rng = np.random.default_rng(0)
    epochs = (skip_gram.pairs_of_epoch(words, sentence, np.ones(8), 2, rng) for _ in range(200))
    assert {tuple(pair) for pairs in epochs for pair in pairs} == {
        (a, b)
        for a in range(8)
        for b in range(8)
        if a != b and abs(a - b) <= 2 and sentence[a] == sentence[b]
    }
    # Words that are left out do not separate their neighbors.
    keep = np.array([1.0, 0.0, 1.0])
    pairs = skip_gram.pairs_of_epoch(words[:3], sentence[:3], keep, 1, rng)
    assert {tuple(pair) for pair in pairs} == {(0, 2), (2, 0)}


def test_words_of_the_same_contexts_become_neighbors():
    rng = np.random.default_rng(0)
    groups = [["a", "b", "c"], ["x", "y", "z"]]
    contexts = [["p", "q"], ["r", "s"]]
    sentences = [
        [rng.choice(groups[group]), rng.choice(contexts[group])]
        for group in rng.integers(2, size=600)
    ]
    settings = Settings(width=8, subsampling=1.0, epochs=20, batch_size=64, learning_rate=0.01)
    space = skip_gram.train(sentences, settings)
    assert set(space.words) == set("abcxyzpqrs")
    for group in groups:
        for word in group:
            near = {name for name, _ in word_vectors.nearest(space, word, 2)}
            assert near == set(group) - {word}


def test_little_text_is_refused():
    with pytest.raises(InputError, match="0 words occur at least 5 times"):
        skip_gram.train([["a", "b"]])
    with pytest.raises(InputError, match="no two neighboring words"):
        skip_gram.train([["a"], ["b"]] * 9)


# Geometry.

SQUARE = WordVectors(
    ("king", "queen", "man", "woman", "apple"),
    np.array([[2.0, 1, 0.1], [2, -1, 0.1], [0, 1, 0.1], [0, -1, 0.1], [0.1, 0, 3]]),
)


def test_neighbors_by_hand():
    (first, cosine), (second, _) = word_vectors.nearest(SQUARE, "king", 2)
    assert (first, second) == ("queen", "man")
    assert cosine == pytest.approx((4 - 1 + 0.01) / (4 + 1 + 0.01))
    # The nearest of king is queen, of queen king, of man king, of woman queen.
    labels = {"king": "m", "man": "m", "queen": "f", "woman": "f"}
    share, chance = word_vectors.neighbor_agreement(SQUARE, labels)
    assert (share, chance) == (2 / 4, pytest.approx(1 / 3))


def test_analogies_by_hand():
    """man : king :: woman : queen; a, b and c are no answers, and unknown words do not count."""
    questions = [
        ("man", "king", "woman", "queen"),
        ("man", "king", "woman", "apple"),
        ("man", "king", "woman", "prince"),
    ]
    assert word_vectors.analogy_accuracy(SQUARE, questions) == (0.5, 2)
    assert word_vectors.analogy_accuracy(SQUARE, questions[2:]) == (None, 0)


def test_principal_components_are_the_directions_of_most_variance():
    rng = np.random.default_rng(0)
    points = rng.standard_normal((50, 4)) * [0.1, 5, 0.2, 2]
    found, share = word_vectors.principal_components(points)
    centered = points - points.mean(0)
    values, directions = np.linalg.eigh(centered.T @ centered)
    expected = centered @ directions[:, [-1, -2]]
    np.testing.assert_allclose(np.abs(found), np.abs(expected), rtol=1e-6, atol=1e-9)
    assert share == pytest.approx(values[-2:].sum() / values.sum())
    assert (found[np.abs(found).argmax(0), [0, 1]] > 0).all()


# The dictionary, and the tables of a model.


def test_nouns_have_their_gender_and_english_ones_that_of_their_translation():
    known = knowledge.knowledge("en", "de")
    assert known.labels["gender in German"]["dog"] == "m"
    assert known.labels["kind"]["dogs"] == "animal"
    assert ("mouse", "mice") in known.pairs["number"]
    assert set(knowledge.knowledge("en").labels) == {"kind"}
    for language, noun, gender in (("de", "Hund", "m"), ("fr", "vache", "f")):
        assert knowledge.knowledge(language).labels["gender"][noun] == gender
    questions = [*knowledge.questions_of([("dog", "dogs"), ("cat", "cats")])]
    assert questions == [("dog", "dogs", "cat", "cats"), ("cat", "cats", "dog", "dogs")]


def test_a_word_has_the_mean_of_its_tokens_in_the_table_of_its_side():
    shared = TransformerConfig(vocab_size=11, num_layers=1, d_model=4, num_heads=2, d_ff=8)
    tables = {
        shared: {"source": "table", "target": "table"},
        shared.replace(tied_embeddings="none"): {"source": "source_table", "target": "table"},
    }
    tokenizer = Tokenizer.train(["ab ab c"] * 9, 11, "bpe")
    for model, names in tables.items():
        params = oracle.random_params(protocol.build(model), 0)
        translator = Translator(Config(model=model), params, tokenizer)
        for side, name in names.items():
            space = word_vectors.model_vectors(translator, side, ["ab", "cab"])
            for word, vector in zip(space.words, space.vectors, strict=True):
                ids = np.array(tokenizer.encode([word])[0][:-1])
                expected = np.asarray(params["embedding"][name])[ids].mean(0)
                np.testing.assert_allclose(vector, expected, rtol=1e-5)


# The study.


@pytest.mark.slow
def test_the_study_writes_figures_and_json_and_keeps_the_vectors(tiny, tmp_path, monkeypatch):
    workdir, output = tmp_path / "run", tmp_path / "out"
    train_app.run(train_app.Options(config=tiny(), workdir=str(workdir)))
    options = embeddings.Options(
        workdir=str(workdir), output=str(output), words=("a", "A", "missing")
    )
    first = embeddings.run(options)
    assert json.loads(json.dumps(first)) == json.loads((output / "embeddings.json").read_text())
    assert [*first["source"]["neighbors"]] == ["a"]
    assert first["source"]["words"] == 8
    assert {"source.png", "target.png"} <= {each.name for each in output.iterdir()}
    monkeypatch.setattr(skip_gram, "train", None)
    other = embeddings.run(dataclasses.replace(options, words=("b",)))
    assert [*other["source"]["neighbors"]] == ["b"]
