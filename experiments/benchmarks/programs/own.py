# SPDX-License-Identifier: Apache-2.0
"""This program itself, on the path that `train` and `translate` take."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from experiments import cache, compose, costs
from experiments.benchmarks import products
from experiments.benchmarks.program import Program
from experiments.benchmarks.settings import config_of
from experiments.benchmarks.work import Work
from transformer import sharded_decoding, sharding
from transformer.training import Batch


def training(work: Work, overrides: Mapping[str, Any]) -> Program:
    """One step of `train` after the other, on a batch that is on the device; each is waited for."""
    experiment = _experiment(work, overrides)
    batch = experiment.on_mesh(Batch(*work.token_ids()))
    state = experiment.init_state()

    def call() -> None:
        nonlocal state
        state, sums = experiment.train_step(state, batch)
        jax.block_until_ready((state, sums))

    return Program(call, _about(experiment))


def decoding(work: Work, beams: int, overrides: Mapping[str, Any]) -> Program:
    """One batch searched as `translate` does, from ids to ids, each translation as long as the work
    says: the end token is not allowed earlier, and nothing else is at the limit.

    Raises:
      AssertionError: when a translation has another length.
    """
    own = {
        "decode.beams": beams,
        "decode.batch_size": work.rows,
        "decode.min_length": work.target - 1,
        "decode.max_length": work.target,
    }
    experiment = _experiment(work, own | dict(overrides))
    params = experiment.init_state().params
    source = sharding.place(work.token_ids()[0], sharding.batch_sharding(experiment.mesh))

    def call() -> np.ndarray:
        found = sharded_decoding.decode(
            params,
            source,
            None,
            None,
            np.uint32(0),
            mesh=experiment.mesh,
            model=experiment.model,
            config=experiment.config.decode,
            results=1,
            max_length=work.target,
        )
        return np.asarray(found.tokens)[:, 0]

    assert ((call() != 0).sum(-1) == work.target).all()
    return Program(call, _about(experiment))


def matrix_products(work: Work) -> Program:
    """The matrix products of a training step and nothing else, each in its fastest form; a sample
    is the time that all of them take.
    """
    timed = products.Timed(products.of_step(config_of(work).model, *_shape(work)))
    return Program(seconds=timed, about=_versions())


def _shape(work: Work) -> tuple[int, int, int]:
    return work.rows, work.source, work.target


def _experiment(work: Work, overrides: Mapping[str, Any]) -> compose.Experiment:
    cache.keep_compiled_programs()
    return costs.experiment_of_shapes(config_of(work, overrides))


def _about(experiment: compose.Experiment) -> dict[str, Any]:
    return _versions() | {"devices": experiment.mesh.size}


def _versions() -> dict[str, Any]:
    return {"version": f"jax {jax.__version__}"}
