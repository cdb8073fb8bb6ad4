# SPDX-License-Identifier: Apache-2.0
"""Eight simulated CPU devices, shapes and types checked in every call, one tiny model for all."""

import pathlib
import signal

# Libraries that a module of the package imports first are compiled anew: the import hook below has
# other names for bytecode.
import flax.nnx  # noqa: F401
import jax
import jax.numpy as jnp
import jaxtyping
import matplotlib.figure  # noqa: F401
import optax  # noqa: F401
import orbax.checkpoint  # noqa: F401
import pytest
import scipy.special  # noqa: F401
import typechecks  # noqa: F401

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_enable_compilation_cache", False)
jax.config.update("jax_traceback_in_locations_limit", 0)

# A shell makes what it starts in the background ignore Ctrl-C, and nohup makes it ignore SIGHUP; so
# would what tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


# `config` and `fields` are left out: their dataclasses check their own fields, which is tested.
_UNCHECKED = {"__init__", "__pycache__", "config", "fields"}
_PACKAGE = pathlib.Path(__file__).parent.parent / "transformer"
jaxtyping.install_import_hook(
    sorted(f"transformer.{p.stem}" for p in _PACKAGE.iterdir() if p.stem not in _UNCHECKED),
    "typechecks.once",
)

import oracle  # noqa: E402 (nothing of the package may be imported before the hook)
from apps import texts, train  # noqa: E402, F401 - fixtures of several files, and so are these:
from browsing import browser, show  # noqa: E402, F401
from saving import abstract, saved_three, three  # noqa: E402, F401
from workdirs import given, given_copy  # noqa: E402, F401

from transformer.config import TransformerConfig  # noqa: E402
from transformer.models import protocol  # noqa: E402


@pytest.fixture(scope="session")
def config():
    """A model in which no two widths are the same, so that no axis can pass for another."""
    return TransformerConfig(
        vocab_size=11,
        encoder_layers=2,
        decoder_layers=3,
        d_model=12,
        num_heads=3,
        d_k=5,
        d_v=4,
        d_ff=20,
    )


@pytest.fixture(scope="session")
def model(config):
    """The tiny model."""
    return protocol.build(config)


@pytest.fixture(scope="session")
def params(model):
    """Its parameters, none of them 0 or 1 as the biases and scales of fresh ones are."""
    return oracle.random_params(model, seed=0)


@pytest.fixture(scope="session")
def shallow():
    """A model that compiles quickly, whose stacks differ in all they can, and its parameters."""
    config = TransformerConfig(
        vocab_size=11,
        encoder_layers=1,
        decoder_layers=2,
        encoder_heads=3,
        decoder_heads=2,
        d_model=6,
        d_ff=8,
    )
    model = protocol.build(config)
    return model, oracle.random_params(model, seed=0)


@pytest.fixture(scope="session")
def forward(model):
    """The compiled forward pass: (params, source, target_in) -> logits."""
    return jax.jit(lambda params, *tokens: model.apply({"params": params}, *tokens))


@pytest.fixture(scope="session")
def torch():
    """PyTorch in one thread."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    return torch


@pytest.fixture(scope="session")
def source():
    """Three source sentences, two of them padded."""
    return jnp.array([[4, 7, 5, 10, 2], [6, 9, 2, 0, 0], [8, 5, 4, 2, 0]])


@pytest.fixture(scope="session")
def target_in():
    """What the decoder reads for them."""
    return jnp.array([[1, 5, 9, 4], [1, 10, 7, 2], [1, 6, 2, 0]])
