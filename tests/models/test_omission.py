# SPDX-License-Identifier: Apache-2.0
"""Omission is the difference of two scores, for every family."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from apps import run
from bag_of_words import BagOfWordsConfig
from workdirs import make_workdir

from transformer.config import TransformerConfig
from transformer.errors import InputError
from transformer.inspection.omission import omission
from transformer.models import protocol

SOURCE, TARGET = [4, 7, 5, 2], [5, 8, 2]
FAMILIES = {
    "with attention": TransformerConfig(
        vocab_size=11, num_layers=1, d_model=6, num_heads=2, d_ff=8
    ),
    "without attention": BagOfWordsConfig(vocab_size=11),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_omission_is_the_difference_of_the_scores_of_two_sources(family):
    model = protocol.build(FAMILIES[family])
    params = oracle.random_params(model, 0)

    @jax.jit
    def scores(source):
        logits = model.apply({"params": params}, source[None], jnp.array([[1, 5, 8]]))
        return jax.nn.log_softmax(logits[0])[np.arange(3), np.array(TARGET)]

    values = omission(model, params, SOURCE, TARGET)
    assert values.shape == (3, 4)
    for s in range(4):
        without = jnp.array(SOURCE[:s] + SOURCE[s + 1 :])
        expected = scores(jnp.array(SOURCE)) - scores(without)
        np.testing.assert_allclose(values[:, s], expected, atol=1e-5)


def test_a_source_of_one_token_has_nothing_to_leave_out():
    model = protocol.build(FAMILIES["without attention"])
    with pytest.raises(InputError, match="the source has 1 tokens"):
        omission(model, oracle.random_params(model, 0), [2], TARGET)


@pytest.mark.slow
def test_a_picture_is_drawn_of_each_workdir(tmp_path):
    make_workdir(tmp_path / "run", 1)
    arguments = (f"--workdirs={tmp_path / 'run'}", f"--output={tmp_path}", "--sentence=a b c")
    finished = run("experiments.studies.family_pictures", *arguments)
    assert (finished.status, finished.err) == (0, "")
    assert finished.out == f"{tmp_path / 'family_run.png'}\n"
    assert (tmp_path / "family_run.png").read_bytes().startswith(b"\x89PNG")
