# SPDX-License-Identifier: Apache-2.0
"""The Python of README and of docs/python.md runs as it stands, and shows what it says."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from apps import REPOSITORY
from flax import nnx

from transformer import shift_right
from transformer.config import ModelConfig, TransformerConfig


def blocks(path, title=""):
    """The Python of a page, or of its section with this title."""
    text = (REPOSITORY / path).read_text(encoding="utf-8")
    section = text.split(title, 1)[1].split("\n### ", 1)[0] if title else text
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


@pytest.fixture(scope="module")
def page():
    """The names of docs/python.md after all its blocks."""
    names = {}
    for block in blocks("docs/python.md"):
        exec(compile(block, "docs/python.md", "exec"), names)  # noqa: S102
    return names


def test_the_first_program_of_the_readme_runs():
    names = {}
    exec(compile(blocks("README.md", "### From Python\n")[0], "README.md", "exec"), names)  # noqa: S102
    weights = names["trace"].encoder.self_attention.weights
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-6)
    assert names["logits"].dtype == jnp.float32
    assert int(names["state"].step) == 1
    scores = np.asarray(names["best"].scores)
    assert (np.diff(scores, axis=1) <= 0).all(), "best first"


@pytest.mark.slow
def test_the_page_of_python_runs(page):
    assert jax.tree.structure(page["gradient"]) == jax.tree.structure(page["params"])
    assert float(jnp.abs(page["logits"] - page["without"]).max()) > 0
    assert len(page["tokens"]) == 8


@pytest.mark.slow
def test_a_loss_that_a_layer_of_the_page_sows_is_trained_and_evaluated(page):
    loss, params, batch = page["loss"], page["params"], page["batch"]
    sparse, plain = page["sparse"], page["model"]
    for rng in (None, jax.random.key(3)):
        more = loss(sparse, params, batch, rng).loss - loss(plain, params, batch, rng).loss
        assert float(more) > 0


@pytest.mark.slow
def test_a_subclass_of_a_config_on_the_page_leaves_the_name_of_its_parent(page):
    assert ModelConfig.from_dict({"family": "transformer"}) == TransformerConfig()
    assert issubclass(page["MyConfig"], TransformerConfig)


@pytest.mark.slow
def test_nnx_computes_the_same_logits(page):
    source, target_in = page["source"], shift_right(page["target"])
    params = nnx.to_pure_dict(nnx.state(page["bridged"], nnx.Param))
    logits = page["model"].apply({"params": params}, source, target_in)
    assert (page["bridged"](source, target_in) == logits).all()
