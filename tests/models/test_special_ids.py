# SPDX-License-Identifier: Apache-2.0
"""The special ids are data: a model with a permuted vocabulary trains and decodes identically."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from transformer.batch import Batch, target_log_probs
from transformer.config import Config, DecodeConfig, TransformerConfig
from transformer.decoding import generate
from transformer.decoding.constraints import NEG_INF
from transformer.models import protocol
from transformer.training import optimizers, step

TARGET = np.array([[5, 6, 2, 0, 0], [7, 2, 0, 0, 0], [4, 8, 9, 10, 2], [0] * 5])
CONFIG = TransformerConfig(
    vocab_size=13, num_layers=1, d_model=12, d_ff=16, num_heads=2, dropout=0.0
)
PERMUTATION = np.array([9, 12, 4, 0, 1, 2, 3, 5, 6, 7, 8, 10, 11], np.int32)
"""`PERMUTATION[i]` is the permuted id of token i: pad 9, bos 12, eos 4, unk 0."""
PERMUTED = CONFIG.replace(pad_id=9, bos_id=12, eos_id=4, unk_id=0)
SOURCE = np.array([[4, 5, 6, 2, 0, 0], [7, 8, 9, 10, 11, 2], [12, 2, 0, 0, 0, 0], [0] * 6])


@pytest.fixture(scope="module")
def params():
    """Parameters of the default model."""
    return oracle.random_params(protocol.build(CONFIG), seed=2)


def permute_rows(params):
    """The same parameters for the permuted vocabulary."""
    table = params["embedding"]["table"]
    table = jnp.zeros_like(table).at[PERMUTATION].set(table)
    return {**params, "embedding": {**params["embedding"], "table": table}}


METHODS = {
    "beam search": ({"groups": 2, "min_length": 2, "block_ngrams": 2}, False),
    "greedy search with prefixes": ({"beams": 1}, True),
    "sampling": ({"method": "sample", "top_k": 12}, True),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "beam search" else pytest.mark.slow)
        for name in METHODS
    ],
)
def test_decoding_is_equivariant_to_a_permutation_of_the_vocabulary(params, name):
    """Of samples, which are drawn by index, only the special ids can be compared."""
    options, with_prefix = METHODS[name]
    prefix = np.array([[6, 7, 0], [0, 0, 0], [11, 0, 0], [0, 0, 0]]) if with_prefix else None
    keys = jax.vmap(functools.partial(jax.random.fold_in, jax.random.key(0)))(jnp.arange(4))
    decode = DecodeConfig(**{"beams": 4, "max_length": 9} | options)

    def translate(config, params, ids):
        model = protocol.build(config)
        search = functools.partial(
            generate.generate, model, config=decode, num_results=decode.beams, max_length=9
        )
        forced = None
        if with_prefix:
            forced = ids[np.pad(prefix, ((0, 0), (0, 6)))]
        return jax.jit(search)(params, ids[SOURCE], prefix=forced, keys=keys)

    expected = translate(CONFIG, params, np.arange(13, dtype=np.int32))
    actual = translate(PERMUTED, permute_rows(params), PERMUTATION)
    if decode.method == "beam":
        np.testing.assert_array_equal(actual.tokens, PERMUTATION[np.asarray(expected.tokens)])
        np.testing.assert_allclose(actual.scores, expected.scores, rtol=1e-5)
        assert len(np.unique(expected.tokens)) > 6, "otherwise this test shows little"
    assert (np.asarray(actual.tokens[3]) == PERMUTED.pad_id).all()
    # Groups that find the same translation have fewer results than beams.
    exists = np.asarray(actual.scores[:3]) > NEG_INF / 2
    assert exists[:, 0].all()
    for tokens in np.asarray(actual.tokens[:3])[exists]:
        [end] = np.flatnonzero(tokens == PERMUTED.eos_id)
        assert (tokens[end + 1 :] == PERMUTED.pad_id).all()
        assert not np.isin(tokens[:end], [PERMUTED.pad_id, PERMUTED.bos_id]).any()
    if with_prefix:
        np.testing.assert_array_equal(actual.tokens[0, 0, :2], PERMUTATION[[6, 7]])


def test_scores_do_not_depend_on_the_special_ids(params):
    score = jax.jit(target_log_probs, static_argnums=0)
    expected = score(protocol.build(CONFIG), params, Batch(SOURCE, TARGET)).sum(-1)
    batch = Batch(PERMUTATION[SOURCE], PERMUTATION[TARGET])
    actual = score(protocol.build(PERMUTED), permute_rows(params), batch).sum(-1)
    assert (np.asarray(expected)[:3] < -1).all()
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_training_does_not_depend_on_the_special_ids(params):
    """Three steps with dropout and label smoothing give equal sums and equal parameters."""

    def train(model_config, params, ids):
        config = Config(model=model_config.replace(dropout=0.1))
        model = protocol.build(config.model)
        optimizer = optimizers.optimizer(model, config.optimizer, 3)
        state = step.TrainState.create(model, optimizer, jax.random.key(0), params=params)
        train_step = jax.jit(functools.partial(step.train_step, model, optimizer))
        for _ in range(3):
            state, sums = train_step(state, Batch(ids[SOURCE], ids[TARGET]))
        return state.params, sums

    expected, sums = train(CONFIG, params, np.arange(13, dtype=np.int32))
    actual, permuted_sums = train(PERMUTED, permute_rows(params), PERMUTATION)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4), permuted_sums, sums)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, actual, permute_rows(expected))
    assert not np.allclose(params["embedding"]["table"], expected["embedding"]["table"])
