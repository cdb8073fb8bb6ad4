# SPDX-License-Identifier: Apache-2.0
"""The small model of the tests of inspection, compiled once for all of them."""

from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.inspection.interventions import Site, no_interventions
from transformer.inspection.trace import run
from transformer.models.protocol import KINDS
from transformer.nn.taps import Patch


@pytest.fixture(scope="session")
def nothing(shallow):
    """Interventions in five source and four target tokens that change nothing."""
    return no_interventions(shallow[0], 5, 4)


@pytest.fixture(scope="session")
def traced(shallow, nothing):
    """The shallow model: (source [5], target_in [4], interventions, params) -> logits, trace."""
    model, random_params = shallow

    @jax.jit
    def compiled(params, source, target_in, interventions):
        options = {"capture": "full", "interventions": interventions}
        return run(model, params, source, target_in, **options)

    # Absent patches are filled up with ones that change nothing, so that one program does for all.
    tokens = np.array([4, 7, 5, 10, 2]), np.array([1, 5, 9, 4])
    _, trace = jax.eval_shape(lambda: run(*shallow, *tokens, capture="full"))

    def absent(array):
        return Patch(jnp.zeros(array.shape, bool), jnp.zeros(array.shape))

    every_patch = nothing
    for kind in KINDS:
        for site in get_args(Site):
            patch = absent(getattr(trace.attention(kind), site))
            every_patch = every_patch.patch_heads(kind, site, patch.mask, patch.value)
    stacks = {
        side: getattr(every_patch, side).replace(
            feed_forward=absent(getattr(trace, side).feed_forward)
        )
        for side in ("encoder", "decoder")
    }
    every_patch = every_patch.replace(**stacks)

    def filled(given, absent):
        if isinstance(given, Patch) and given.value.ndim == 4:  # of heads, with any mask
            return Patch(np.broadcast_to(given.mask, given.value.shape), given.value)
        return absent if given is None else given

    def is_whole(node):
        return node is None or isinstance(node, Patch)

    def call(source=tokens[0], target_in=tokens[1], interventions=nothing, params=None):
        interventions = jax.tree.map(filled, interventions, every_patch, is_leaf=is_whole)
        given = np.asarray(source), np.asarray(target_in)
        return compiled(params or random_params, *given, interventions)

    return call
