# SPDX-License-Identifier: Apache-2.0
"""The log of a search agrees with beam search: results, hypotheses, predictions, attention."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from transformer.config import DecodeConfig
from transformer.decoding import generate
from transformer.decoding.constraints import NEG_INF
from transformer.errors import InputError
from transformer.inspection import search_log
from transformer.inspection.trace import run
from transformer.models import protocol
from transformer.nn.positions import shift_right

EOS = 2
SOURCE = [4, 7, 5, 10, 2]
LONGEST = 16
SEARCHES = {
    "beams": DecodeConfig(beams=3, max_length=7),
    "greedy": DecodeConfig(beams=1, max_length=7),
    "best 2k": DecodeConfig(beams=3, max_length=7, finish_from="best_2k"),
    "long": DecodeConfig(beams=2, max_length=LONGEST),
    "constrained": DecodeConfig(
        beams=4, max_length=6, min_length=3, block_ngrams=1, length_penalty="length", alpha=1.0
    ),
}


QUICK = ("long",)


@pytest.fixture(scope="module")
def model(shallow):
    """A model that compiles quickly."""
    return shallow[0]


@pytest.fixture(scope="module")
def params(shallow):
    """Its parameters."""
    return shallow[1]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in SEARCHES
    ],
)
def searched(request, model, params):
    """(decode config, log) of several searches for the same sentence."""
    decode = SEARCHES[request.param]
    return decode, search_log.record(model, params, SOURCE, decode=decode, top=4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sentences", "rounding"),
    [
        pytest.param(1, 0.0, id="bit for bit"),
        pytest.param(2, 1e-6, id="sums over a shorter cache are rounded in another order"),
    ],
)
def test_the_results_are_those_of_the_search_that_translates(
    model, params, searched, sentences, rounding
):
    decode, log = searched

    @jax.jit
    def search(params, rows):
        options = {"num_results": 1, "max_length": decode.max_length}
        return generate.generate(model, params, rows, decode, **options)

    hypotheses = search(params, jnp.array([SOURCE] * sentences))
    hypotheses = jax.tree.map(lambda leaf: np.asarray(leaf)[0], hypotheses)
    assert len(log.results) == (hypotheses.scores > NEG_INF / 2).sum() >= 1
    for k, result in enumerate(log.results):
        assert list(result.tokens) == [int(token) for token in hypotheses.tokens[k] if token]
        assert result.score == pytest.approx(hypotheses.scores[k], rel=rounding, abs=0)
        assert result.log_prob == pytest.approx(hypotheses.log_probs[k], rel=rounding, abs=0)


@pytest.fixture(scope="module")
def by_teacher_forcing(model, params):
    """tokens -> (logits `[M, V]`, cross-attention `[L, N, M, S]`), compiled once."""

    @jax.jit
    def forward(target):
        logits, seen = run(model, params, SOURCE, shift_right(target[None])[0], capture="weights")
        return logits, seen.decoder.cross_attention.weights

    def padded(tokens):
        return forward(jnp.array([*tokens, *[0] * (LONGEST - len(tokens))]))

    return padded


@pytest.mark.slow
def test_hypotheses_have_the_log_probability_of_teacher_forcing(by_teacher_forcing, searched):
    _, log = searched
    checked = 0
    for step in log.steps[1:]:
        for tokens, total in zip(step.tokens, step.log_probs, strict=True):
            log_probs = jax.nn.log_softmax(by_teacher_forcing(tokens)[0])
            expected = sum(float(log_probs[t, token]) for t, token in enumerate(tokens))
            np.testing.assert_allclose(total, expected, rtol=1e-4)
            checked += 1
    assert checked >= 4


def test_every_hypothesis_extends_its_parent_by_one_token(searched):
    decode, log = searched
    assert log.steps[0].tokens == ((),)
    assert log.steps[0].parents == ()
    for before, step in zip(log.steps, log.steps[1:], strict=False):
        assert 1 <= len(step.tokens) <= decode.beams
        assert list(step.log_probs) == sorted(step.log_probs, reverse=True)
        for tokens, parent in zip(step.tokens, step.parents, strict=True):
            assert tokens[:-1] == before.tokens[parent]
            assert EOS not in tokens


def test_the_finished_hypotheses_are_the_results_and_others_with_lower_scores(searched):
    decode, log = searched
    finished = {(*step.tokens[one.beam], EOS): one for step in log.steps for one in step.finished}
    assert len(finished) >= len(log.results)
    for result in log.results:
        np.testing.assert_allclose(finished[result.tokens].score, result.score, rtol=1e-5)
        np.testing.assert_allclose(finished[result.tokens].log_prob, result.log_prob, rtol=1e-5)
    kept = {result.tokens for result in log.results}
    others = [one.score for tokens, one in finished.items() if tokens not in kept]
    assert all(score <= log.results[-1].score + 1e-5 for score in others)


def test_the_path_of_a_result_consists_of_the_hypotheses_that_it_begins_with(searched):
    _, log = searched
    for k, result in enumerate(log.results):
        path = log.path(k)
        assert len(path) == len(result.tokens)
        for length, (step, beam) in enumerate(zip(log.steps, path, strict=False)):
            assert step.tokens[beam] == result.tokens[:length]


def test_predictions_and_attention_are_those_of_teacher_forcing(by_teacher_forcing, searched):
    _, log = searched
    for index, step in enumerate(log.steps):
        assert step.top_tokens.shape == step.top_log_probs.shape == (len(step.tokens), 4)
        for k, tokens in enumerate(step.tokens):
            logits, weights = by_teacher_forcing(tokens)
            expected, ids = jax.lax.top_k(jax.nn.log_softmax(logits[index]), 4)
            np.testing.assert_array_equal(step.top_tokens[k], ids)
            np.testing.assert_allclose(step.top_log_probs[k], expected, rtol=1e-3, atol=1e-4)
            np.testing.assert_allclose(step.cross_attention[k], weights[:, :, index], atol=1e-5)


@pytest.mark.slow
def test_a_model_with_a_kernel_without_weights_is_logged_too(config):
    decode, model = SEARCHES["beams"], protocol.build(config)
    params = oracle.random_params(model, seed=0)
    chunked = protocol.build(model.config.replace(attention_kernel="chunked"))
    log, expected = (
        search_log.record(each, params, SOURCE, decode=decode) for each in (chunked, model)
    )
    assert log.results == expected.results
    assert log.steps[-1].cross_attention.shape == (len(log.steps[-1].tokens), 3, 3, 5)


def test_a_forced_prefix_begins_every_hypothesis(model, params):
    decode, prefix = SEARCHES["beams"], [9, 4]
    log = search_log.record(model, params, SOURCE, decode=decode, prefix=prefix, top=11)
    free = search_log.record(model, params, SOURCE, decode=decode)
    assert free.results[0].tokens[:2] != (9, 4)
    for index, step in enumerate(log.steps):
        assert all(tokens[:2] == (9, 4)[:index] for tokens in step.tokens)
    assert [len(step.tokens) for step in log.steps[:4]] == [1, 1, 1, 3]
    assert log.steps[2].log_probs == (0.0,), "forced tokens are free"
    with pytest.raises(InputError, match="the prefix has 7 tokens, but the longest output has 7"):
        search_log.record(model, params, SOURCE, decode=decode, prefix=[9] * 7)


def test_the_best_result_alone_is_found_by_the_program_of_the_log(model, params, caplog):
    decode = SEARCHES["beams"]
    log = search_log.record(model, params, SOURCE, decode=decode)
    other = [*SOURCE[:-2], 9, SOURCE[-1]]
    expected = search_log.record(model, params, other, decode=decode).results[0]
    caplog.clear()
    with jax.log_compiles():
        assert search_log.best_result(model, params, SOURCE, decode) == log.results[0]
        assert search_log.best_result(model, params, other, decode) == expected
    assert "Finished XLA compilation" not in caplog.text


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ([[4, 2]], {}, r"source has the shape \[1, 2\], but it must be one sentence"),
        ([], {}, "source has the shape"),
        ([4, 2, 0], {}, r"source has padding \(0\)"),
        ([4, 11], {}, r"source\[1\] is 11"),
        ([4, 2], {"decode": DecodeConfig(method="sample")}, "decode.method is 'sample'"),
        ([4, 2], {"decode": DecodeConfig(groups=2)}, "decode.groups 2, but only plain"),
        ([4, 2], {"results": 5}, "5 results requested, but decode.beams is 4"),
        ([4, 2], {"top": 0}, "top is 0, but it must be at least 1"),
    ],
)
def test_invalid_requests_raise_an_error(model, params, source, options, words):
    with pytest.raises(InputError, match=words):
        search_log.record(model, params, source, **options)
