# SPDX-License-Identifier: Apache-2.0
"""From a config to everything an experiment needs: model, optimizer, tokenizer, data, mesh."""

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable

import flax.linen as nn
import jax
import optax
from jax.sharding import Mesh

from experiments import datasets
from experiments.datasets.batching import Batches, Corpus
from transformer import families, optimizers, sharding, training
from transformer.arrays import Params
from transformer.config import Config
from transformer.errors import InputError
from transformer.losses import Sums
from transformer.tokenizer import Tokenizer
from transformer.training import Batch, TrainState


@dataclasses.dataclass(frozen=True)
class Data:
    """The splits that training reads."""

    train: Batches
    validation: datasets.Split
    validation_corpus: Corpus


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The parts of one experiment, and its steps compiled for its mesh."""

    config: Config
    model: nn.Module
    optimizer: optax.GradientTransformation
    tokenizer: Tokenizer
    data: Data
    mesh: Mesh

    @functools.cached_property
    def abstract_state(self) -> TrainState:
        """Shapes, dtypes and shardings of the training state; no array is made."""
        boxed = jax.eval_shape(self._init, self._key())
        shardings = sharding.shardings_of(boxed, self.mesh, self.config.parallel.preset)
        return jax.tree.map(
            lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
            nn.unbox(boxed),
            shardings,
        )

    def init_state(self) -> TrainState:
        """The fresh state, made where it belongs on the mesh."""
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.abstract_state)
        make = jax.jit(lambda key: nn.unbox(self._init(key)), out_shardings=shardings)
        return make(self._key())

    @functools.cached_property
    def train_step(self) -> Callable[[TrainState, Batch], tuple[TrainState, Sums]]:
        """`training.train_step`, compiled; the old state is given up to the new one."""
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.abstract_state)
        step = functools.partial(
            training.train_step, model=self.model, optimizer=self.optimizer, config=self.config
        )
        return jax.jit(
            step,
            in_shardings=(shardings, sharding.batch_sharding(self.mesh)),
            out_shardings=(shardings, sharding.replicated(self.mesh)),
            donate_argnums=0,
        )

    @functools.cached_property
    def eval_step(self) -> Callable[[Params, Batch], Sums]:
        """`training.eval_step`, compiled."""
        step = functools.partial(training.eval_step, model=self.model, config=self.config)
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.abstract_state.params)
        return jax.jit(
            step,
            in_shardings=(shardings, sharding.batch_sharding(self.mesh)),
            out_shardings=sharding.replicated(self.mesh),
        )

    def _init(self, key) -> TrainState:
        return training.init_state(self.model, self.optimizer, key)

    def _key(self):
        return jax.random.key(self.config.training.seed)


def build(config: Config, tokenizer_path: pathlib.Path | None = None) -> Experiment:
    """Composes the experiment that `config` describes.

    Args:
      config: validated.
      tokenizer_path: a vocabulary to use if it is there; otherwise one is learned from the
        training split.

    Raises:
      InputError: for data, vocabulary or devices that do not fit the config.
    """
    mesh = sharding.make_mesh(config.parallel)
    train = datasets.load(config.data, "train")
    tokenizer = _tokenizer(config, train, tokenizer_path)
    validation = datasets.load(config.data, "validation")
    data = Data(
        Batches(Corpus.tokenized(train, tokenizer), config.data, config.training.seed),
        validation,
        Corpus.tokenized(validation, tokenizer),
    )
    model = families.build(config.model)
    optimizer = optimizers.build(config.optimizer, config.model.d_model)
    return Experiment(config, model, optimizer, tokenizer, data, mesh)


def _tokenizer(config: Config, train: datasets.Split, path: pathlib.Path | None) -> Tokenizer:
    if path is not None and path.exists():
        tokenizer = Tokenizer.load(path)
    else:
        sentences = itertools.chain(train.sources, train.targets)
        tokenizer = Tokenizer.train(sentences, config.model.vocab_size, config.data.tokenizer)
    if tokenizer.vocab_size != config.model.vocab_size:
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, but model.vocab_size is "
            f"{config.model.vocab_size}; set --config.model.vocab_size={tokenizer.vocab_size}"
        )
    return tokenizer
