# SPDX-License-Identifier: Apache-2.0
"""Training states to save and restore, shared by the tests of checkpoints."""

import functools
import hashlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from transformer.checkpoints.manager import Checkpoints
from transformer.config import TrainingConfig
from transformer.training.step import TrainState

OPTIMIZER = optax.adam(1e-3)


OPTIMIZERS = ("adam", "adafactor", "muon", "schedule_free")
"""Optimizers whose states differ in structure."""


KEEP_ALL = TrainingConfig(keep_last=9)


@functools.cache
def state_at(step):
    """A state in which every number depends on the step.

    The kernel is too large for TensorStore's database nodes, which have checksums.
    """
    keys = jax.random.split(jax.random.key(step), 7)
    params = {
        "encoder": {
            "kernel": jax.random.uniform(keys[0], (30, 40)),
            "bias": jnp.arange(4.0) + step,
        },
        "scale": jax.random.uniform(keys[1], ()),
    }
    gradients = jax.tree.map(lambda leaf: leaf * 0.1 + step, params)
    _, opt_state = OPTIMIZER.update(gradients, OPTIMIZER.init(params))
    return TrainState(jnp.asarray(step, jnp.int32), params, opt_state, keys[2])


def meta_at(step):
    """The meta data saved with the state."""
    return {"seconds": step / 3, "train_loss": None, "validation": {"nll": 1.5, "text": "für"}}


@pytest.fixture(scope="module")
def abstract():
    """Shapes, dtypes and shardings of the state."""
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), state_at(0)
    )


def save(workdir, steps, keep_last=9, nll=None):
    """Save the states of these steps; `nll` maps validated steps to their score."""
    config = TrainingConfig(keep_last=keep_last)
    with Checkpoints(workdir, config, writing=True) as checkpoints:
        for step in steps:
            metrics = {"nll": nll[step]} if step in (nll or {}) else None
            checkpoints.save(state_at(step), meta_at(step), metrics)


def restored(workdir, abstract):
    """The state and meta that a training would resume from."""
    with Checkpoints(workdir, KEEP_ALL, writing=True) as checkpoints:
        return checkpoints.restore(abstract)


def best_params(workdir, abstract, average=None):
    """The parameters that an app would load."""
    with Checkpoints(workdir, KEEP_ALL) as checkpoints:
        return checkpoints.restore_params(abstract.params, average)


def bits(tree):
    """Dtype, shape and bytes of every leaf, including random keys."""

    def of(leaf):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        leaf = np.asarray(leaf)
        return leaf.dtype.name, leaf.shape, leaf.tobytes()

    return jax.tree.map(of, tree)


def steps_in(workdir):
    """The steps with a directory."""
    paths = (workdir / "checkpoints").iterdir()
    return sorted(int(path.name) for path in paths if path.name.isdigit())


def contents(workdir):
    """The digest of every file, by relative path."""
    return {
        str(path.relative_to(workdir)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in workdir.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def three(tmp_path, saved_three):
    """A workdir with the intact steps 10, 20 and 30, of which 10 is the best."""
    return shutil.copytree(saved_three, tmp_path / "run")


@pytest.fixture(scope="module")
def saved_three(tmp_path_factory):
    """The workdir that `three` copies."""
    workdir = tmp_path_factory.mktemp("three")
    save(workdir, (10, 20, 30), nll={10: 1.0, 20: 3.0, 30: 2.0})
    return workdir
