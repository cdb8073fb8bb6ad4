# SPDX-License-Identifier: Apache-2.0
"""Workdirs that no training made: of any model, and of an experiment on twenty lines of words."""

import hashlib
import shutil

import jax
import jax.numpy as jnp
import oracle
import pytest
from apps import CONFIGS

from transformer.checkpoints.identity import Identity
from transformer.checkpoints.manager import Checkpoints
from transformer.config import (
    Config,
    DataConfig,
    DecodeConfig,
    LoggingConfig,
    TrainingConfig,
    TransformerConfig,
)
from transformer.fields import flat
from transformer.models import protocol
from transformer.text.tokenizer import Tokenizer
from transformer.training import optimizers
from transformer.training.step import TrainState

CONFIG = Config(
    model=TransformerConfig(vocab_size=11, num_layers=1, d_model=8, d_ff=8, num_heads=2),
    decode=DecodeConfig(beams=2, extra_length=4),
    data=DataConfig(max_length=6, bucket_lengths=(6,), tokens_per_batch=48),
)


def make_workdir(folder, seed, words="a b c d e f g", family=CONFIG.model, **model):
    """The workdir of a run: a config, a tokenizer and a checkpoint with random parameters."""
    folder.mkdir()
    config = CONFIG.replace(model=family.replace(**model))
    (folder / "config.json").write_text(config.to_json(), encoding="utf-8")
    (folder / "tokenizer.model").write_bytes(Tokenizer.train([words], 11, "word").model)
    params = oracle.random_params(protocol.build(config.model), seed=seed)
    with Checkpoints(folder, config.training, writing=True) as checkpoints:
        state = TrainState(jnp.asarray(1), params, jnp.zeros(()), jax.random.key(0))
        checkpoints.save(state, {}, {"nll": 1.0})


WORDS = ["a b c d", "d c b", "a a", "b d"] * 5
SPLITS = ("train", "validation")


def config_of(folder):
    """A tiny experiment on the words."""
    words = str(folder / "words")
    return Config(
        model=TransformerConfig(vocab_size=8, num_layers=1, d_model=8, d_ff=8, num_heads=2),
        decode=DecodeConfig(beams=2, extra_length=2),
        data=DataConfig(
            dataset="text_files",
            tokenizer="word",
            max_length=8,
            bucket_lengths=(8,),
            tokens_per_batch=64,
            **{f"{split}_{side}": words for split in SPLITS for side in ("source", "target")},
        ),
        training=TrainingConfig(steps=2, validate_every=1),
        logging=LoggingConfig(tensorboard=False),
    )


@pytest.fixture(scope="session")
def given(tmp_path_factory):
    """A folder with the words in a file and an untrained workdir `run` with two checkpoints."""
    folder = tmp_path_factory.mktemp("given")
    (folder / "words").write_text("".join(f"{line}\n" for line in WORDS))
    config = config_of(folder)
    (folder / "run").mkdir()
    (folder / "run" / "config.json").write_text(config.to_json())
    tokenizer = Tokenizer.train(WORDS, 8, "word")
    (folder / "run" / "tokenizer.model").write_bytes(tokenizer.model)
    model = protocol.build(config.model)
    params = oracle.random_params(model, seed=0)
    opt_state = optimizers.optimizer(model, config.optimizer, 2).init(params)
    identity = Identity.of(config.model, tokenizer.model, tokenizer.model)
    with Checkpoints(folder / "run", config.training, identity, writing=True) as checkpoints:
        for step in (1, 2):
            state = TrainState(jnp.asarray(step), params, opt_state, jax.random.key(0))
            checkpoints.save(state, {}, {"nll": 1.0})
    return folder


@pytest.fixture
def given_copy(given, tmp_path):
    """A copy of that folder that a test may damage."""
    return shutil.copytree(given, tmp_path / "given_copy")


def training(folder, **changes):
    """The flags of the config of `folder/run`, with changes."""
    fields = {name: value for name, value in flat(config_of(folder)).items() if value is not None}
    fields |= {name.replace("__", "."): value for name, value in changes.items()}
    return [
        f"--config={CONFIGS / 'base.py'}",
        *(f"--config.{name}={value}" for name, value in fields.items() if value is not None),
    ]


def contents(folder):
    """The digest of every file, by relative path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }
