# SPDX-License-Identifier: Apache-2.0
"""A search on a CPU has a kernel [D,V] for its logits, which are those of the shared table."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_families
from test_families import TINY, built
from test_shortlist import lexicon_of
from test_shortlist import translator as translator_with

from transformer.decoding import generate
from transformer.decoding.output_kernel import with_output_kernel
from transformer.models import base
from transformer.models.transformer import Transformer
from transformer.nn.matmul import use_cpu_forms

pytestmark = pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="searches have this kernel on a CPU only"
)

SHARED = (
    "transformer",
    "a vocabulary for each side",
    "rotary positions, shared layers, RMSNorm, multi-query",
    "language model",
    "recurrent, additive attention",
    "recurrent, no attention",
)
"""Models whose output map is a table of tokens."""
OTHERS = (
    "convolutional",
    "bag of words",
    "classifier",
    "Shaw's positions, grouped-query, window, SwiGLU, untied",
    "additive score, ALiBi, window, GEGLU",
)


def step(model, params):
    """The logits of the second target position of four beams."""

    def logits(params):
        def call(method, *arguments):
            return model.apply({"params": params}, *arguments, method=method)

        memory, _ = call("encode", test_families.SOURCE)
        cache = call("init_cache", memory, test_families.SOURCE, 4, 3)
        for tokens in (jnp.ones((3, 4), jnp.int32), jnp.array([[4, 5, 6, 7]] * 3)):
            logits, cache = call("step", tokens, cache)
        return logits

    return jax.jit(logits)(params)


def sizes(params):
    return {jax.tree_util.keystr(path): leaf.shape for path, leaf in leaves(params)}


def leaves(params):
    return jax.tree_util.tree_leaves_with_path(params)


@pytest.mark.parametrize("name", SHARED)
def test_the_logits_are_those_of_the_shared_table(name):
    model, params = built(name).model, built(name).params
    searched, with_kernel = with_output_kernel(model, params)
    assert sizes(with_kernel) == sizes(params) | {
        "['embedding']['output']": params["embedding"]["table"].shape[::-1]
    }
    np.testing.assert_allclose(
        step(searched, with_kernel), step(model, params), **test_families.CLOSE
    )


def test_no_other_parameter_is_copied():
    params = built("transformer").params
    _, with_kernel = with_output_kernel(built("transformer").model, params)
    assert with_kernel["encoder"] is params["encoder"]
    assert with_kernel["decoder"] is params["decoder"]


def test_each_member_of_an_ensemble_has_a_kernel_where_it_shares_a_table():
    calls = built("ensemble of two families")
    searched, with_kernel = with_output_kernel(calls.model, calls.params)
    added = sizes(with_kernel).keys() - sizes(calls.params).keys()
    assert added == {"['models_0']['embedding']['output']"}
    np.testing.assert_allclose(
        step(searched, with_kernel), step(calls.model, calls.params), **test_families.CLOSE
    )


@pytest.mark.parametrize("name", OTHERS)
def test_a_model_whose_steps_share_no_table_is_left_as_it_is(name):
    model, params = built(name).model, built(name).params
    assert with_output_kernel(model, params) == (model, params)


def test_accelerators_and_bfloat16_read_the_table():
    model, params = built("transformer").model, built("transformer").params
    with use_cpu_forms(False):
        assert with_output_kernel(model, params)[1] is params
    bfloat16 = base.build(TINY.replace(compute_dtype="bfloat16"))
    assert with_output_kernel(bfloat16, params)[1] is params


def test_a_model_that_is_not_that_of_its_config_is_left_as_it_is():
    class Changed(Transformer):
        pass

    model, params = Changed(TINY), built("transformer").params
    assert with_output_kernel(model, params)[0] is model


def test_a_shortlist_is_taken_from_the_table_and_all_other_searches_have_the_kernel(monkeypatch):
    searched, decode = [], generate.decode
    search = translator_with(lexicon_of(3), shortlist=None)

    def recorded(params, *arguments, **options):
        searched.append("output" in params["embedding"])
        return decode(params, *arguments, **options)

    monkeypatch.setattr(generate, "decode", recorded)
    search("a b")
    search("a b", shortlist=2)
    assert searched == [True, False]
