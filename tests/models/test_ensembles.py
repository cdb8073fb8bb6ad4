# SPDX-License-Identifier: Apache-2.0
"""An ensemble decodes and scores with the mean probabilities of its members, as in NumPy."""

import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import search_oracle
from tiny_translator import CONFIG, LONGER, TOKENIZER, close, translator_with

from transformer.models import ensemble as ensembles
from transformer.models import protocol
from transformer.translator import Translator

SIZES = [{}, {"num_layers": 2, "d_model": 8, "num_heads": 4, "norm": "pre"}, {"d_ff": 5}]
"""What the models have different from the first."""


def member(number):
    """(model, parameters) of one of them."""
    model = protocol.build(CONFIG.model.replace(**SIZES[number]))
    return model, oracle.random_params(model, seed=3 + number)


def ensemble_of(*numbers):
    """The translator of some of the models."""
    models, params = zip(*map(member, numbers), strict=True)
    model, joined = ensembles.join(list(models), list(params))
    return Translator(CONFIG, joined, TOKENIZER, model)


def mean_of(*numbers):
    """The function from a source to that from a prefix to the mean's log-probabilities."""
    members = [member(number) for number in numbers]

    def next_words(source):
        each = [
            search_oracle.next_words(oracle.arrays(p), model.config, source) for model, p in members
        ]
        return lambda prefix: np.log(np.mean([np.exp(one(prefix)) for one in each], axis=0))

    return next_words


@pytest.fixture(scope="module")
def three():
    """An ensemble of all three."""
    return ensemble_of(0, 1, 2)


def test_the_logits_are_the_logarithm_of_the_mean_probability():
    logits = jnp.array([[[[0.0, 0.0]]], [[[0.0, np.log(3.0)]]]], jnp.float32)
    probabilities = np.exp(ensembles.log_mean(list(logits)))
    np.testing.assert_allclose(
        probabilities[0, 0], [(1 / 2 + 1 / 4) / 2, (1 / 2 + 3 / 4) / 2], rtol=1e-6
    )


@pytest.mark.slow
def test_an_ensemble_searches_as_numpy_does_over_the_mean(three):
    sentences, alone = LONGER[:2], 0
    next_words, first_alone = mean_of(0, 1, 2), mean_of(0)
    for sentence, results in zip(sentences, three.nbest(sentences, 3), strict=True):
        [source] = TOKENIZER.encode([sentence])
        options = (len(source) + 4, 3, 3, "gnmt", 0.6)
        expected, _ = search_oracle.beam(next_words(source), *options)
        assert [result.tokens for result in results] == [tokens for _, _, tokens in expected]
        for result, (score, log_prob, _) in zip(results, expected, strict=True):
            assert result.score == pytest.approx(score, abs=1e-5)
            assert result.log_prob == pytest.approx(log_prob, abs=1e-4)
        best, _ = search_oracle.beam(first_alone(source), *options)
        alone += best[0][2] == expected[0][2]
    assert alone < 2, "or the others would make no difference"


@pytest.mark.slow
def test_an_ensemble_scores_as_numpy_does_over_the_mean(three):
    next_words = mean_of(0, 1, 2)
    sources, targets = ["a b c", "g"], ["b c", "a a a a"]
    for source, target, (total, _) in zip(
        sources, targets, three.score(sources, targets), strict=True
    ):
        [source], [words] = TOKENIZER.encode([source]), TOKENIZER.encode([target])
        log_probs = next_words(source)
        expected = sum(log_probs(tuple(words[:t]))[word] for t, word in enumerate(words))
        assert total == pytest.approx(expected, abs=1e-4)


def test_the_parameters_of_each_member_are_cast_to_its_compute_dtype():
    sizes = [{}, {"compute_dtype": "bfloat16"}]
    models = [protocol.build(CONFIG.model.replace(**some)) for some in sizes]
    ensemble, joined = ensembles.join(models, [oracle.random_params(one, 1) for one in models])
    kernels = [
        member["embedding"]["table"].dtype.name for member in ensemble.cast_params(joined).values()
    ]
    assert kernels == ["float32", "bfloat16"]


@pytest.mark.slow
def test_an_ensemble_of_one_is_the_model():
    alone, ensemble = translator_with(), ensemble_of(0)
    sentences = ["b c", "g"]
    for one, other in zip(alone.nbest(sentences, 3), ensemble.nbest(sentences, 3), strict=True):
        for a, b in zip(one, other, strict=True):
            close(a, b)
    [score], [other] = (each.score(["a b"], ["c d e"]) for each in (alone, ensemble))
    assert other == pytest.approx(score, abs=1e-5)
