# SPDX-License-Identifier: Apache-2.0
"""Data of a training: vocabularies, batches of the training split, and the validation split."""

import dataclasses
import functools
import logging
import pathlib
from collections.abc import Callable, Iterator

import numpy as np
from etils import epath
from jax.sharding import NamedSharding

from experiments.data import registry, token_cache
from experiments.data.batching import Batches
from experiments.data.pairs import SentencePairs
from experiments.data.token_corpus import TokenCorpus
from experiments.storage import user_cache
from transformer import paths, sharding, trained_model
from transformer.arrays import Int
from transformer.checkpoints import workdir_files
from transformer.config import Config, DataConfig
from transformer.errors import InputError
from transformer.fields import difference
from transformer.text.metrics import check_tokenization
from transformer.text.sentencepiece_fields import segmentation
from transformer.text.subword_sampling import SubwordSampler
from transformer.text.tokenizer import Tokenizer, Vocabularies

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TrainingData:
    """Vocabularies and splits of one experiment."""

    vocabularies: Vocabularies | None
    """None for data without text, as in `experiments.plan`."""
    train: Batches
    validation: registry.Split
    validation_corpus: TokenCorpus
    """The tokens of `validation`."""


def load(config: Config, workdir: epath.Path | None, rows: NamedSharding) -> TrainingData:
    """Read, tokenize and batch the splits that `config.data` names.

    Args:
      config: validated.
      workdir: its vocabularies and tokenized corpora are used where they exist. Without one, the
        vocabularies are trained anew and tokenized corpora go to the user's cache folder.
      rows: sharding of a batch; a process reads its local rows only.

    Raises:
      InputError: for data or vocabularies that do not fit the config.
    """
    check_tokenization(config.evaluation.bleu_tokenize)
    mixture = registry.training_corpora(config.data)
    vocabularies = load_vocabularies(config, [pairs for _, pairs in mixture], workdir)
    validation = registry.load(config.data, "validation")
    folder = _token_folder(config, workdir)
    corpora = [
        (weight, _tokenized(config, pairs, vocabularies, folder)) for weight, pairs in mixture
    ]
    train = Batches(
        corpora,
        config.data,
        config.training.seed,
        _samplers(config.data, vocabularies),
        functools.partial(sharding.local_rows, rows),
        config.model.special_ids.pad,
    )
    validation_corpus = TokenCorpus.encode(validation.sources, validation.targets, vocabularies)
    require_short_targets(
        config,
        validation_corpus.target.lengths,
        lambda index: f"validation pair {index + 1} of {validation.dataset}",
    )
    return TrainingData(vocabularies, train, validation, validation_corpus)


def load_vocabularies(
    config: Config, corpora: list[SentencePairs], workdir: epath.Path | None = None
) -> Vocabularies:
    """The vocabularies of the workdir, of ``training.init_from``, of the config, or trained.

    Raises:
      InputError: when sizes or special ids differ from those of the model.
    """
    data, separate = config.data, config.data.vocabulary == "separate"
    if config.training.init_from and not (workdir and (workdir / workdir_files.TOKENIZER).exists()):
        return _initial_vocabularies(config)

    def load(side: str, field: str, file: str, model_path: str | None) -> Tokenizer:
        size = getattr(config.model, field)
        if workdir and (workdir / file).exists():
            tokenizer = Tokenizer.load(workdir / file)
        elif model_path is not None:
            tokenizer = Tokenizer.load(paths.reachable(model_path))
        else:
            tokenizer = Tokenizer.train(
                _sentences(corpora, (side,) if separate else ("source", "target")),
                size,
                data.tokenizer,
                character_coverage=data.character_coverage,
                special_ids=config.model.special_ids,
                size_field=f"model.{field}",
            )
        if tokenizer.vocab_size != size:
            raise InputError(
                f"the tokenizer has {tokenizer.vocab_size} tokens, but model.{field} is {size}; "
                f"set --config.model.{field}={tokenizer.vocab_size}"
            )
        if tokenizer.special_ids != config.model.special_ids:
            fields = tokenizer.special_ids._asdict().items()
            flags = " ".join(f"--config.model.{name}_id={value}" for name, value in fields)
            raise InputError(
                f"the tokenizer has pad, bos, eos, unk = {[*tokenizer.special_ids]}, but the model "
                f"has {[*config.model.special_ids]}; set {flags}"
            )
        return tokenizer

    target = load("target", "vocab_size", workdir_files.TOKENIZER, data.tokenizer_model)
    if not separate:
        return Vocabularies.shared(target)
    file = workdir_files.SOURCE_TOKENIZER
    source = load("source", "source_vocab_size", file, data.source_tokenizer_model)
    return Vocabularies(source, target)


def _initial_vocabularies(config: Config) -> Vocabularies:
    """The vocabularies of ``training.init_from``.

    Raises:
      InputError: when the config asks for another model or other vocabularies.
    """
    path = config.training.init_from
    saved = workdir_files.load_config(path)
    changes = saved.model.changes(config.model)
    fields = difference(saved.data, config.data)
    for name in ("vocabulary", "tokenizer", "tokenizer_model", "source_tokenizer_model"):
        old, new = fields.get(f"data.{name}", (None, None))
        if new is not None:
            changes[f"data.{name}"] = old, new
    for name, (old, new) in changes.items():
        raise InputError(
            f"{name} is {new!r}, but training.init_from={path} was trained with {old!r}, which a "
            "training that starts from it keeps; use --config=fine_tune, or leave the override out"
        )
    return trained_model.load_vocabularies(workdir_files.opened(path), config)


def _sentences(corpora: list[SentencePairs], sides: tuple[str, ...]) -> Iterator[str]:
    """Every sentence of the sides, read in chunks."""
    for pairs in corpora:
        for sources, targets in pairs.chunks():
            for side in sides:
                yield from sources if side == "source" else targets


def _token_folder(config: Config, workdir: epath.Path | None) -> pathlib.Path:
    """A local folder for tokenized corpora, which are memory-mapped."""
    if config.data.token_cache is not None:
        return pathlib.Path(paths.local(config.data.token_cache, "data.token_cache"))
    if workdir is None or paths.is_remote(workdir):
        return user_cache.folder("tokens")
    return pathlib.Path(workdir) / workdir_files.TOKENS


def _tokenized(
    config: Config, pairs: SentencePairs, vocabularies: Vocabularies, folder: pathlib.Path
) -> TokenCorpus:
    """The tokens of a corpus; warns of pairs that training leaves out."""
    corpus = token_cache.load_or_tokenize(
        pairs, vocabularies, folder, config.data.tokenizing_threads or -1
    )
    empty = np.flatnonzero(~corpus.trainable(config.data.empty_sources))
    if empty.size:
        logger.warning(
            "%d of %d pairs have an empty side and are left out, the first at %s and %s",
            *(empty.size, len(corpus), *pairs.location(int(empty[0]))),
        )
    if not config.model.reads_source and (corpus.source.lengths > 1).any():
        logger.warning(
            "model.family %r reads no source: it learns the targets of %s alone",
            *(config.model.family, pairs.name),
        )
    require_short_targets(config, corpus.target.lengths, lambda index: pairs.location(index)[1])
    return corpus


def require_short_targets(
    config: Config, lengths: Int[np.ndarray, " pairs"], location: Callable[[int], str]
) -> None:
    """Check that the model can predict every target.

    Raises:
      InputError: naming the first target that has too many tokens.
    """
    limit = config.model.max_target_tokens
    if limit is None or not (lengths > limit).any():
        return
    index = int(np.argmax(lengths > limit))
    raise InputError(
        f"{location(index)}: the target has {lengths[index]} tokens with EOS, but "
        f"model.family={config.model.family!r} predicts at most {limit}; make each target one "
        "word, and set --config.data.tokenizer=word and --config.data.vocabulary=separate, with "
        "which every word is one token"
    )


def _samplers(data: DataConfig, vocabularies: Vocabularies) -> dict[str, SubwordSampler] | None:
    """The samplers of both sides; None without `data.subword_sampling`.

    Raises:
      InputError: when `data.tokenizer` is not the algorithm of a vocabulary.
    """
    if not data.subword_sampling:
        return None
    for side, tokenizer in vocabularies._asdict().items():
        algorithm = segmentation(tokenizer.sentencepiece_model).algorithm
        if algorithm != data.tokenizer:
            remedy = "--config.data.subword_sampling=0"
            if algorithm in ("bpe", "unigram"):
                # Older versions imported every model as unigram.
                remedy += (
                    f", or --config.data.tokenizer={algorithm} (if training.init_from has the "
                    "other: import its model again)"
                )
            raise InputError(
                f"data.tokenizer is {data.tokenizer!r}, but the SentencePiece model of the {side} "
                f"is {algorithm!r}, which data.subword_sampling must know; set {remedy}"
            )
    return {
        side: SubwordSampler(tokenizer, data.tokenizer, data.subword_sampling)
        for side, tokenizer in vocabularies._asdict().items()
    }
