# SPDX-License-Identifier: Apache-2.0
"""From a config to everything an experiment needs: model, optimizer, tokenizer, data, mesh."""

import dataclasses
import functools
import logging
import math
import pathlib
import sys
from collections.abc import Callable, Iterator

import flax.linen as nn
import jax
import numpy as np
import optax
from etils import epath
from jax.sharding import Mesh

from experiments import device_memory, user_cache
from experiments.corpora import registry
from experiments.pipeline import token_cache
from experiments.pipeline.batching import Batches
from experiments.pipeline.pairs import SentencePairs
from experiments.pipeline.token_corpus import TokenCorpus
from transformer import paths, sharding
from transformer.arrays import Params
from transformer.checkpoints import workdir_files
from transformer.config import Config, DataConfig
from transformer.errors import InputError
from transformer.models import base
from transformer.text.subword_sampling import SubwordSampler
from transformer.text.tokenizer import Tokenizer, Vocabularies
from transformer.training import optimizers
from transformer.training import step as training
from transformer.training.losses import Sums
from transformer.training.step import Batch, TrainState
from transformer.translator import abstract_params

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Data:
    """The splits that training reads."""

    train: Batches
    validation: registry.Split
    validation_corpus: TokenCorpus


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The parts of one experiment, and its steps compiled for its mesh."""

    config: Config
    model: nn.Module
    optimizer: optax.GradientTransformation
    tokenizer: Tokenizer | None
    """None where there is no text, as in a plan."""
    data: Data
    mesh: Mesh

    @functools.cached_property
    def abstract_state(self) -> TrainState:
        """Shapes, dtypes and shardings of the training state; no array is made."""
        boxed = jax.eval_shape(self._init, self._key())
        rules = sharding.rules_of(self.config.parallel)
        shardings = sharding.shardings_of_state(boxed, self.mesh, rules)
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
            training.train_step,
            model=self.model,
            optimizer=self.optimizer,
            config=self.config,
            gathered=sharding.gathered(shardings.params),
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
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.abstract_state.params)
        gathered = sharding.gathered(shardings)

        def step(params: Params, batch: Batch) -> Sums:
            params = jax.lax.with_sharding_constraint(params, gathered)
            return training.eval_step(params, batch, model=self.model, config=self.config)

        return jax.jit(
            step,
            in_shardings=(shardings, sharding.batch_sharding(self.mesh)),
            out_shardings=sharding.replicated(self.mesh),
        )

    def on_mesh(self, batch: Batch) -> Batch:
        """A training batch, or what this process has read of it, where the step wants it."""
        rows = self.data.train.rows(batch.source.shape[1])
        return sharding.place_rows(batch, sharding.batch_sharding(self.mesh), rows)

    def abstract_batch(self, rows: int, length: int) -> Batch:
        """The shape of a training batch, and how its rows are divided over the mesh."""
        ids = jax.ShapeDtypeStruct(
            (rows, length), np.int32, sharding=sharding.batch_sharding(self.mesh)
        )
        return Batch(ids, ids, ids, ids) if self.config.data.packing else Batch(ids, ids)

    def _init(self, key) -> TrainState:
        average = training.keeps_average(self.config)
        return training.init_state(self.model, self.optimizer, key, with_average=average)

    def _key(self):
        return jax.random.key(self.config.training.seed)


def build(config: Config, workdir: epath.Path | None = None) -> Experiment:
    """Composes the experiment that `config` describes.

    Args:
      config: validated.
      workdir: whose vocabulary and tokenized corpora are used if they are there. Without one, the
        vocabulary is learned anew and tokenized corpora go to the user's cache folder.

    Raises:
      InputError: for data, vocabulary or devices that do not fit the config.
    """
    # Devices that are too few, or do not divide the model, are told before the text is read.
    abstract_params(config)
    where = sharding.batch_sharding(sharding.make_mesh(config.parallel))
    mixture = registry.training_corpora(config.data)
    tokenizer = vocabulary(config, [pairs for _, pairs in mixture], workdir)
    validation = registry.load(config.data, "validation")
    folder = _token_folder(config, workdir)
    train = [(weight, _tokenized(config, pairs, tokenizer, folder)) for weight, pairs in mixture]
    batches = Batches(
        train,
        config.data,
        config.training.seed,
        _sampler(config.data, tokenizer),
        functools.partial(sharding.own_rows, where),
    )
    data = Data(
        batches,
        validation,
        TokenCorpus.encode(validation.sources, validation.targets, Vocabularies.shared(tokenizer)),
    )
    return assembled(config, tokenizer, data)


def assembled(config: Config, tokenizer: Tokenizer | None, data: Data) -> Experiment:
    """The experiment on data that is there already.

    Raises:
      InputError: for devices, micro-batches or memory that do not fit the config.
    """
    optimizer = optimizers.build(config.optimizer, config.model.d_model, config.training.steps)
    mesh, model = sharding.make_mesh(config.parallel), base.build(config.model)
    return _in_parts(Experiment(config, model, optimizer, tokenizer, data, mesh))


def _sampler(data: DataConfig, tokenizer: Tokenizer) -> SubwordSampler | None:
    if not data.subword_sampling:
        return None
    return SubwordSampler(tokenizer, data.tokenizer, data.subword_sampling)


def _token_folder(config: Config, workdir: epath.Path | None) -> pathlib.Path:
    """On this machine, since its files are mapped into memory."""
    if config.data.token_cache is not None:
        return pathlib.Path(paths.local(config.data.token_cache, "data.token_cache"))
    if workdir is None or paths.is_remote(workdir):
        return user_cache.folder("tokens")
    return pathlib.Path(workdir) / workdir_files.TOKENS


def _tokenized(
    config: Config, pairs: SentencePairs, tokenizer: Tokenizer, folder: pathlib.Path
) -> TokenCorpus:
    """The corpus's ids; what of it training cannot use is said."""
    corpus = token_cache.load_or_tokenize(
        pairs, Vocabularies.shared(tokenizer), folder, config.data.tokenizing_threads
    )
    empty = np.flatnonzero(~corpus.nonempty)
    if empty.size:
        logger.warning(
            "%d of %d pairs have an empty side and are left out, the first at %s and %s",
            *(empty.size, len(corpus), *pairs.location(int(empty[0]))),
        )
    return corpus


def vocabulary(
    config: Config, corpora: list[SentencePairs], workdir: epath.Path | None = None
) -> Tokenizer:
    """The workdir's vocabulary, or the config's, or one that is learned from the training text."""
    saved = workdir and workdir / workdir_files.TOKENIZER
    if saved and saved.exists():
        tokenizer = Tokenizer.load(saved)
    elif config.data.tokenizer_model is not None:
        tokenizer = Tokenizer.load(paths.reachable(config.data.tokenizer_model))
    else:
        tokenizer = Tokenizer.train(
            _sentences(corpora),
            config.model.vocab_size,
            config.data.tokenizer,
            character_coverage=config.data.character_coverage,
        )
    if tokenizer.vocab_size != config.model.vocab_size:
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, but model.vocab_size is "
            f"{config.model.vocab_size}; set --config.model.vocab_size={tokenizer.vocab_size}"
        )
    return tokenizer


def _sentences(corpora: list[SentencePairs]) -> Iterator[str]:
    """Every sentence of both sides; a large corpus is read once for it."""
    for pairs in corpora:
        for sources, targets in pairs.chunks():
            yield from sources
            yield from targets


def _in_parts(experiment: Experiment) -> Experiment:
    """The same experiment with a number of micro-batches that divides its batches, and with which,
    where ``training.batch_fitting`` is ``auto``, the step fits the memory.

    Raises:
      InputError: when there is no such number.
    """
    config, shapes = experiment.config, experiment.data.train.shapes()
    rows = math.gcd(*(rows for rows, _ in shapes))
    possible = [parts for parts in range(1, rows + 1) if rows % parts == 0]
    given = config.training.micro_batches
    if given is not None and given not in possible:
        raise InputError(
            f"training.micro_batches is {given}, which does not divide "
            f"batches of {', '.join(str(rows) for rows, _ in shapes)} rows; choose one of "
            f"{', '.join(map(str, possible))}, or raise data.row_multiple"
        )
    sharding.require_rows(shapes, experiment.mesh, given or 1)
    if given is not None or config.training.batch_fitting == "fixed":
        return experiment
    possible = [parts for parts in possible if rows % (parts * config.parallel.data) == 0]
    gib = config.training.memory_limit_gib
    limit = device_memory.available_bytes() if gib is None else gib * 2**30
    for parts in possible:
        changed = config.training.replace(micro_batches=parts)
        attempt = dataclasses.replace(experiment, config=config.replace(training=changed))
        needed = max(
            device_memory.required_bytes(
                attempt.train_step, attempt.abstract_state, attempt.abstract_batch(*shape)
            )
            for shape in shapes
        )
        print(
            f"batch fitting: with micro_batches={parts} the step needs {needed / 2**30:.3g} GiB of "
            f"{limit / 2**30:.3g}",
            file=sys.stderr,
            flush=True,
        )
        if needed <= limit:
            return attempt
    raise InputError(
        f"the step needs {needed / 2**30:.2f} GiB even in {parts} micro-batches, but there are "
        f"{limit / 2**30:.2f} GiB; lower data.tokens_per_batch or data.max_length, raise "
        "data.row_multiple so that more parts are possible, or use a smaller model"
    )
