# SPDX-License-Identifier: Apache-2.0
"""The study of word vectors: skip-gram, neighbors, analogies and the picture."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from apps import run

from experiments.studies import skip_gram, word_vectors
from experiments.studies.skip_gram import Settings, WordVectors
from transformer.config import Config, ConvolutionalConfig, TransformerConfig
from transformer.errors import InputError
from transformer.models import protocol
from transformer.text.tokenizer import Tokenizer
from transformer.translator import Translator

SIZES = {"vocab_size": 11, "num_layers": 1, "d_model": 4}

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


def test_the_vocabulary_has_the_frequent_words_first():
    sentences = [["b", "a"], ["a", "c", "b"], ["a"]]
    assert skip_gram.vocabulary(sentences, 2) == {"a": 3, "b": 2}


def test_pairs_stay_within_a_sentence_and_the_window():
    words = np.array([0, 1, 2, 3, 4, 5, 6, 7], np.int32)
    sentence = np.array([0, 0, 0, 0, 0, 1, 1, 1], np.int32)
    rng = np.random.default_rng(0)
    pairs = {
        tuple(pair)
        for _ in range(200)
        for pair in skip_gram.pairs_of_epoch(words, sentence, np.ones(8), 2, rng)
    }
    assert pairs == {
        (a, b)
        for a in range(8)
        for b in range(8)
        if a != b and abs(a - b) <= 2 and sentence[a] == sentence[b]
    }


def test_words_that_are_left_out_do_not_separate_their_neighbors():
    keep = np.array([1.0, 0.0, 1.0])
    text = np.array([0, 1, 2], np.int32), np.zeros(3, np.int32)
    pairs = skip_gram.pairs_of_epoch(*text, keep, 1, np.random.default_rng(0))
    assert {tuple(pair) for pair in pairs} == {(0, 2), (2, 0)}


def test_words_of_the_same_contexts_become_neighbors():
    rng = np.random.default_rng(0)
    groups = [["a", "b", "c"], ["x", "y", "z"]]
    contexts = [["p", "q"], ["r", "s"]]
    sentences = []
    for _ in range(600):
        group = rng.integers(2)
        sentences.append([rng.choice(groups[group]), rng.choice(contexts[group])])
    settings = Settings(width=8, subsampling=1.0, epochs=20, batch_size=64, learning_rate=0.01)
    space = skip_gram.train(sentences, settings)
    assert set(space.words) == set("abcxyzpqrs")
    for group in groups:
        for word in group:
            near = {name for name, _ in word_vectors.nearest(space, word, 2)}
            assert near == set(group) - {word}
    again = skip_gram.train(sentences, settings)
    np.testing.assert_array_equal(again.vectors, space.vectors)


def test_too_little_text_is_refused():
    with pytest.raises(InputError, match="0 words occur at least 5 times"):
        skip_gram.train([["a", "b"]])


# Geometry.

SQUARE = WordVectors(
    ("king", "queen", "man", "woman", "apple"),
    np.array([[2.0, 1, 0.1], [2, -1, 0.1], [0, 1, 0.1], [0, -1, 0.1], [0.1, 0, 3]]),
)


def test_neighbors_by_hand():
    names = [name for name, _ in word_vectors.nearest(SQUARE, "king", 2)]
    assert names == ["queen", "man"]
    cosine = word_vectors.nearest(SQUARE, "king", 1)[0][1]
    assert cosine == pytest.approx((4 - 1 + 0.01) / (4 + 1 + 0.01))


def test_analogies_by_hand():
    """man : king :: woman : queen; a, b and c are no answers, and unknown words do not count."""
    questions = [
        ("man", "king", "woman", "queen"),
        ("man", "king", "woman", "apple"),
        ("man", "king", "woman", "prince"),
    ]
    assert word_vectors.analogy_accuracy(SQUARE, questions) == (0.5, 2)
    assert word_vectors.analogy_accuracy(SQUARE, questions[2:]) == (None, 0)


def test_agreement_of_neighbors_by_hand():
    """The nearest of king is queen, of queen king, of man king, of woman queen."""
    labels = {"king": "m", "man": "m", "queen": "f", "woman": "f"}
    share, chance = word_vectors.neighbor_agreement(SQUARE, labels)
    assert share == 2 / 4
    assert chance == pytest.approx(1 / 3)


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


def test_pairs_of_one_relation_make_every_question():
    questions = [*word_vectors.questions_of([("dog", "dogs"), ("cat", "cats")])]
    assert questions == [("dog", "dogs", "cat", "cats"), ("cat", "cats", "dog", "dogs")]


# The dictionary and the user's files.


def test_english_nouns_have_the_gender_of_their_translation():
    known = word_vectors.knowledge("en", "de")
    assert known.labels["gender in German"]["dog"] == "m"
    assert known.labels["kind"]["dogs"] == "animal"
    assert ("mouse", "mice") in known.pairs["number"]
    assert set(word_vectors.knowledge("en").labels) == {"kind"}


@pytest.mark.parametrize(
    ("language", "noun", "gender"), [("de", "Hund", "m"), ("fr", "vache", "f")]
)
def test_nouns_of_a_translation_have_their_own_gender(language, noun, gender):
    assert word_vectors.knowledge(language).labels["gender"][noun] == gender


def test_a_file_of_analogies_has_sections_and_bad_lines_are_named(tmp_path):
    path = tmp_path / "analogies"
    path.write_text(": capitals\nParis France Rome Italy\n\n: plural\na b c d\ne f g h\n")
    assert word_vectors.read_analogies(str(path)) == {
        "capitals": [("Paris", "France", "Rome", "Italy")],
        "plural": [("a", "b", "c", "d"), ("e", "f", "g", "h")],
    }
    path.write_text("a b c d\na b c\n")
    with pytest.raises(InputError, match=r"analogies:2: 'a b c' has 3 words"):
        word_vectors.read_analogies(str(path))


@pytest.mark.parametrize(
    ("model", "tables"),
    [
        (TransformerConfig(**SIZES, num_heads=2, d_ff=8), ["['embedding']['table']"] * 2),
        (
            TransformerConfig(**SIZES, num_heads=2, d_ff=8, tied_embeddings="none"),
            ["['embedding']['source_table']", "['embedding']['table']"],
        ),
        (
            ConvolutionalConfig(**SIZES),
            ["['source_embedding']['table']", "['target_embedding']['table']"],
        ),
    ],
)
def test_a_word_has_the_mean_of_its_tokens_in_the_table_of_its_side(model, tables):
    built = protocol.build(model)
    params = oracle.random_params(built, 0)
    tokenizer = Tokenizer.train(["ab ab c"] * 9, 11, "bpe")
    translator = Translator(Config(model=model), params, tokenizer)
    named = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(params)}
    for side, name in zip(("source", "target"), tables, strict=True):
        space = word_vectors.model_vectors(translator, side, ["ab", "cab"])
        for word, vector in zip(space.words, space.vectors, strict=True):
            ids = np.array(tokenizer.encode([word])[0][:-1])
            np.testing.assert_allclose(vector, np.asarray(named[name])[ids].mean(0), rtol=1e-5)


# The study.


@pytest.mark.slow
def test_the_study_writes_tables_figures_and_json_and_keeps_the_vectors(train, tmp_path):
    workdir, output = tmp_path / "run", tmp_path / "out"
    finished = run("experiments.train", *train(workdir, "--config.training.steps=20"))
    assert finished.status == 0, finished.err
    analogies = tmp_path / "analogies"
    analogies.write_text("a b c d\n: unknown\nP Q R S\n")
    command = (
        "experiments.studies.embeddings",
        f"--workdir={workdir}",
        f"--output={output}",
        f"--analogies={analogies}",
        "--words=a,A,missing",
    )
    first = run(*command)
    assert first.status == 0, first.err
    assert first.result == json.loads((output / "embeddings.json").read_text())
    assert [*first.result["source"]["neighbors"]] == ["a"]
    assert first.result["source"]["words"] == 8
    assert {"source.png", "target.png", "embeddings.md"} <= {each.name for each in output.iterdir()}
    kept = (output / "skip_gram_source.npz").stat()
    assert run(*command).result == first.result
    assert (output / "skip_gram_source.npz").stat().st_mtime_ns == kept.st_mtime_ns
