# SPDX-License-Identifier: Apache-2.0
"""What training reads: the tokenizer, the batches of the training split, the validation split."""

import dataclasses
import functools
import logging
import pathlib
from collections.abc import Iterator

import numpy as np
from etils import epath
from jax.sharding import NamedSharding

from experiments import user_cache
from experiments.corpora import registry
from experiments.pipeline import token_cache
from experiments.pipeline.batching import Batches
from experiments.pipeline.pairs import SentencePairs
from experiments.pipeline.token_corpus import TokenCorpus
from transformer import paths, sharding
from transformer.checkpoints import workdir_files
from transformer.config import Config, DataConfig
from transformer.errors import InputError
from transformer.text.subword_sampling import SubwordSampler
from transformer.text.tokenizer import Tokenizer, Vocabularies

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TrainingData:
    """Tokenizer and splits of one experiment."""

    tokenizer: Tokenizer | None
    """None for data without text, as in `experiments.plan`."""
    train: Batches
    validation: registry.Split
    validation_corpus: TokenCorpus
    """The tokens of `validation`."""


def load(config: Config, workdir: epath.Path | None, rows: NamedSharding) -> TrainingData:
    """Read, tokenize and batch the splits that `config.data` names.

    Args:
      config: validated.
      workdir: its tokenizer and tokenized corpora are used where they exist. Without one, the
        tokenizer is trained anew and tokenized corpora go to the user's cache folder.
      rows: sharding of a batch; a process reads its local rows only.

    Raises:
      InputError: for data or a tokenizer that do not fit the config.
    """
    mixture = registry.training_corpora(config.data)
    tokenizer = load_tokenizer(config, [pairs for _, pairs in mixture], workdir)
    validation = registry.load(config.data, "validation")
    folder = _token_folder(config, workdir)
    corpora = [(weight, _tokenized(config, pairs, tokenizer, folder)) for weight, pairs in mixture]
    train = Batches(
        corpora,
        config.data,
        config.training.seed,
        _sampler(config.data, tokenizer),
        functools.partial(sharding.local_rows, rows),
    )
    validation_corpus = TokenCorpus.encode(
        validation.sources, validation.targets, Vocabularies.shared(tokenizer)
    )
    return TrainingData(tokenizer, train, validation, validation_corpus)


def load_tokenizer(
    config: Config, corpora: list[SentencePairs], workdir: epath.Path | None = None
) -> Tokenizer:
    """The tokenizer of the workdir, or of the config, or one trained on the training text.

    Raises:
      InputError: when its vocabulary is not of size ``model.vocab_size``.
    """
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
    """Every sentence of both sides, read in chunks."""
    for pairs in corpora:
        for sources, targets in pairs.chunks():
            yield from sources
            yield from targets


def _token_folder(config: Config, workdir: epath.Path | None) -> pathlib.Path:
    """A local folder for tokenized corpora, which are memory-mapped."""
    if config.data.token_cache is not None:
        return pathlib.Path(paths.local(config.data.token_cache, "data.token_cache"))
    if workdir is None or paths.is_remote(workdir):
        return user_cache.folder("tokens")
    return pathlib.Path(workdir) / workdir_files.TOKENS


def _tokenized(
    config: Config, pairs: SentencePairs, tokenizer: Tokenizer, folder: pathlib.Path
) -> TokenCorpus:
    """The tokens of a corpus; warns of pairs that training leaves out."""
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


def _sampler(data: DataConfig, tokenizer: Tokenizer) -> SubwordSampler | None:
    if not data.subword_sampling:
        return None
    return SubwordSampler(tokenizer, data.tokenizer, data.subword_sampling)
