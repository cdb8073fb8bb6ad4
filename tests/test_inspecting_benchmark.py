# SPDX-License-Identifier: Apache-2.0
"""The benchmark of looking inside computes every measure it names, of the shapes it says."""

import jax
import jax.numpy as jnp
import pytest

from experiments.benchmarks.inspecting import measures, seconds


@pytest.mark.slow
def test_every_measure_is_of_so_many_sentences_or_of_one_pair(config, params):
    shapes = {
        name: jax.eval_shape(measure)
        for name, measure in measures(params, config, sentences=2, length=4).items()
    }
    assert shapes["ablate_heads"].increase.encoder.shape == (2, 3)
    assert shapes["head_importance"].magnitude.cross.shape == (3, 3)
    assert shapes["patch_sites"].patched.shape == (3, 4)
    assert shapes["attribution_patching"].patched.shape == (3, 4)
    assert shapes["integrated_gradients"].source.shape == (4,)
    assert len(shapes) == 5


def test_what_is_timed_is_computed():
    computed = []
    assert seconds(lambda: computed.append(jnp.ones(2) + 1)) > 0
    assert len(computed) == 1
