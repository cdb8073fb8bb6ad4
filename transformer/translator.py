# SPDX-License-Identifier: Apache-2.0
"""Translate raw sentences with a trained model.

translator = Translator.from_workdir("runs/de")
translator("The animal didn't cross the street because it was too tired.").text
"""

import dataclasses
import functools
import hashlib
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import jax
import numpy as np
from etils import epath
from jax.sharding import Mesh, NamedSharding

from transformer import compile_cache as program_cache
from transformer import sharding, trained_model
from transformer.arrays import Params, SpecialIds
from transformer.batched_search import BatchedSearch
from transformer.config import Config, DecodeConfig
from transformer.decoding.constraints import NEG_INF
from transformer.decoding.minimum_bayes_risk import rank_by_similarity
from transformer.errors import InputError
from transformer.models import protocol
from transformer.text import metrics
from transformer.text.tokenizer import Tokenizer, Vocabularies

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Translation:
    """One hypothesis for one sentence."""

    text: str
    score: float
    """Ranks the translations of a sentence: log P / penalty(length), or with minimum Bayes risk
    the mean similarity to the other samples, in 0..100.
    """
    log_prob: float
    """Natural logarithm of the probability, EOS included."""
    tokens: tuple[int, ...]
    """Token ids, EOS last."""


EMPTY_TRANSLATION = Translation("", 0.0, 0.0, ())
"""The translation of an empty line."""

NO_TRANSLATION = Translation("", -math.inf, -math.inf, ())
"""Fills the end of a result list if the search found fewer translations than requested."""


class Translator:
    """A model (or an ensemble), its parameters and its vocabularies, on a mesh.

    The sentences of a batch are divided over the mesh axis ``data``. Results do not depend on the
    mesh. If it spans several processes, each makes the same calls and receives all results. In one
    process, several threads may use a translator at the same time.

    The search is compiled once for each shape of a batch (`warm_up`), which the logger
    ``transformer.decoding.generate`` reports at level INFO. On a CPU, several batches are searched
    at the same time (`search.threads`).
    """

    def __init__(
        self,
        config: Config,
        params: Params,
        vocabularies: Vocabularies | Tokenizer,
        model: protocol.Model | None = None,
        mesh: Mesh | None = None,
        checkpoints: Mapping[str, Sequence[int]] = MappingProxyType({}),
    ):
        """See `from_workdir` for a trained model.

        Args:
          config: config of the model, its data and its search.
          params: on the mesh already, or anywhere; then `config.parallel` decides their sharding.
          vocabularies: tokenizers of source and target, or one tokenizer for both.
          model: replaces the model of `config.model`.
          mesh: replaces the mesh of `config.parallel`.
          checkpoints: steps that the parameters are from; see `TrainedModel.checkpoints`.
        """
        self.config = config
        self.vocabularies = vocabularies
        if isinstance(vocabularies, Tokenizer):
            self.vocabularies = Vocabularies.shared(vocabularies)
        self.checkpoints = checkpoints
        self.model = model or protocol.build(config.model)
        self.mesh = mesh or sharding.make_mesh(config.parallel)
        self.params = params
        if not all(_is_on_mesh(leaf, self.mesh) for leaf in jax.tree.leaves(params)):
            metadata = protocol.parameter_metadata(self.model)
            abstract = sharding.abstract_params(metadata, self.mesh, config.parallel)
            self.params = jax.device_put(params, jax.tree.map(lambda leaf: leaf.sharding, abstract))
        self.search = BatchedSearch(self.model, self.params, self.mesh, config.data)

    @classmethod
    def from_workdir(
        cls,
        workdir: epath.PathLike,
        config: Config | None = None,
        average: int | None = None,
        around: Literal["last", "best"] = "last",
        ensemble: Sequence[epath.PathLike] = (),
        *,
        dtype: Literal["float32", "bfloat16"] | None = None,
        compile_cache: bool = False,
        **decode: Any,
    ) -> "Translator":
        """Load what `experiments.train` or `experiments.bundle` wrote.

        Args:
          workdir: directory of the run, or a bundle.
          config: instead of `workdir_files.load_inference_config(workdir)`, for example with
            `parallel` fields to use several devices.
          average: use the mean of this many checkpoints instead of the best one by validation.
          around: which checkpoints to average: the ``last``, or those around the ``best``.
          ensemble: further workdirs whose models decode together with the first. Only their models
            are used, not their `decode` fields. `average` and `around` apply to each.
          dtype: dtype of the activations instead of `config.model.compute_dtype`.
          compile_cache: keep compiled programs in the user's cache folder for later processes; sets
            JAX's persistent cache for this process (`compile_cache.enable`).
          **decode: other values of fields of `config.decode`, for example ``beams=1``.

        Raises:
          InputError: if a workdir is missing, unfinished or damaged, if the vocabularies differ, if
            `config.model` gives the parameters another function than in training, or if
            `config.parallel` needs more devices than there are.
        """
        if compile_cache:
            program_cache.enable()
        loaded = trained_model.load(workdir, config, average, around, ensemble, dtype, **decode)
        return cls(**vars(loaded))

    @functools.cached_property
    def params_digest(self) -> str:
        """SHA-256 of the parameters, which tells models of the same config apart."""
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves(self.params):
            digest.update(np.ascontiguousarray(leaf).view(np.uint8))
        return digest.hexdigest()

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of a shared vocabulary; an InputError if the vocabularies are separate."""
        return self.vocabularies.tokenizer

    def __call__(
        self, sentences: str | Iterable[str], **decode: Any
    ) -> Translation | list[Translation]:
        """The best translation of a sentence, or a list of those of several sentences, in order.

        Args:
          sentences: raw text; see `nbest`.
          **decode: other values of fields of `config.decode` for this call, for example
            ``beams=8`` or ``method="sample"``.
        """
        if isinstance(sentences, str):
            return self.nbest(sentences, 1, **decode)[0]
        return [best for [best] in self.nbest(sentences, 1, **decode)]

    def nbest(
        self,
        sentences: str | Iterable[str],
        num_results: int,
        first_line: int = 1,
        prefixes: str | Iterable[str] | None = None,
        **decode: Any,
    ) -> list[Translation] | list[list[Translation]]:
        """The best translations of each sentence, best first; samples in the order of drawing.

        A sentence of more than data.max_length tokens is cut to its first data.max_length - 1 and
        EOS, with a warning. An empty sentence (or one of spaces) has the empty translation, with
        any prefix.

        A prefix is tokenized like a sentence; spaces at its end do not count. The translation
        begins with its tokens; the next token may begin a word or continue the last one. An empty
        prefix forces nothing. Scores are those of what follows the prefix.

        Args:
          sentences: raw text without line ends: a string, or several, which may come from a
            generator. For one string the result is a list, for several a list of lists.
          num_results: results for each sentence, at most decode.beams (with minimum Bayes risk:
            decode.mbr_samples). If fewer distinct ones were found, the last are `NO_TRANSLATION`.
          first_line: line number of the first sentence, for warnings and as a seed of samples.
          prefixes: how the translation of each sentence must begin; a string for one string.
          **decode: other values of fields of `config.decode` for this call.

        Raises:
          InputError: if more results than that are requested, if the numbers of prefixes and of
            sentences differ, if a prefix does not fit into the longest output, or for an invalid
            field of `config.decode`.
        """
        if isinstance(sentences, str):
            if not isinstance(prefixes, str | None):
                raise InputError("prefixes is a list, but sentences one string; pass one prefix")
            prefixes = None if prefixes is None else [prefixes]
            return self.nbest([sentences], num_results, first_line, prefixes, **decode)[0]
        _require_several("prefixes", prefixes)
        config = self._decode_config(decode)
        field, limit = config.most_results
        if not 1 <= num_results <= limit:
            raise InputError(
                f"{num_results} translations a sentence requested, but {field} is {limit}; "
                f"set --config.{field}={num_results} or higher"
            )
        sources = self._encode_sources(list(sentences), first_line)
        forced = None
        if prefixes is None and self.vocabularies.target.forced_ids:
            prefixes = [""] * len(sources)
        if prefixes is not None:
            forced = self._encode_prefixes(list(prefixes), sources, first_line, config)
        num_hypotheses = _num_hypotheses(config, num_results)
        translations = [[EMPTY_TRANSLATION] * num_results for _ in sources]
        results = self.search.decode(sources, forced, num_hypotheses, first_line, config)
        for index, raw in results:
            hypotheses = [self._translation(*each) for each in raw]
            if config.method == "mbr":
                hypotheses = _rank_by_risk(hypotheses, config.mbr_metric)
            missing = [NO_TRANSLATION] * (num_results - len(hypotheses))
            translations[index] = [*hypotheses[:num_results], *missing]
        return translations

    def continuations(
        self, prefixes: Sequence[str], num_results: int = 1, first_line: int = 1, **decode: Any
    ) -> list[list[Translation]]:
        """Texts of a language model that begin with each prefix, which may be empty.

        Each has `num_results` samples in the order of drawing, or hypotheses, best first, of which
        a search finds at most `decode.beams`. The other arguments are those of `nbest`.

        Raises:
          InputError: for a model that reads a source, a string instead of several prefixes, a
            prefix that does not fit into the longest output, or an invalid field of
            `config.decode`.
        """
        _require_several("prefixes", prefixes)
        config = self._decode_config(decode)
        if self.config.model.reads_source:
            raise InputError(
                f"model.family {self.config.model.family!r} translates a source, so it does not "
                "continue text; use translate, with --config.decode.method=sample for samples"
            )
        if config.method == "mbr":
            raise InputError("decode.method is 'mbr', which translates; use 'sample' or 'beam'")
        # A source of EOS alone is not read; its length counts in the longest output.
        sources = [[self._special_ids.eos]] * len(prefixes)
        forced = self._encode_prefixes(prefixes, sources, first_line, config)
        results = dict(self.search.decode(sources, forced, num_results, first_line, config))
        return [[self._translation(*each) for each in results[i]] for i in range(len(prefixes))]

    def batch_rows(self, num_results: int = 1, **decode: Any) -> list[int]:
        """The numbers of rows that a batch can have, ascending; the arguments are those of `nbest`.

        `decode.batch_size` sentences are divided over the threads.
        """
        config = self._decode_config(decode)
        return self.search.batch_rows(config, _num_hypotheses(config, num_results))

    def warm_up(
        self,
        num_sentences: Iterable[int] = (),
        num_results: int = 1,
        lengths: Iterable[int] = (),
        **decode: Any,
    ) -> None:
        """Compile the search ahead, so that later calls need not wait for it.

        This does not cover calls with `prefixes`.

        Args:
          num_sentences: numbers of sentences of the later calls, for example ``[1]`` where
            sentences come one by one. By default any number.
          num_results: see `nbest`.
          lengths: numbers of tokens of the later sentences, for their buckets. By default any
            number.
          **decode: see `nbest`.
        """
        config = self._decode_config(decode)
        self.search.warm_up(
            num_sentences,
            lengths,
            _num_hypotheses(config, num_results),
            config,
            prefixed=bool(self.vocabularies.target.forced_ids),
        )

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[tuple[float, int]]:
        """Natural-log probability of each target given its source, and its number of tokens.

        EOS is included in both. Sentences of any length are scored completely.

        Raises:
          InputError: if the numbers of sources and targets differ, or one of them is a string.
        """
        _require_several("sources", sources)
        _require_several("targets", targets)
        if len(sources) != len(targets):
            raise InputError(
                f"{len(sources)} sources and {len(targets)} targets; the numbers must be equal"
            )
        source_ids = self.vocabularies.source.encode(sources)
        target_ids = self.vocabularies.target.encode(targets)
        log_probs = self.search.score(source_ids, target_ids, self.config.decode)
        return list(zip(log_probs, map(len, target_ids), strict=True))

    @property
    def _special_ids(self) -> SpecialIds:
        return self.model.config.special_ids

    def _encode_sources(self, sentences: Sequence[str], first_line: int) -> list[list[int]]:
        """Token ids of each sentence, none for empty ones; long sentences are cut."""
        longest = self.config.data.max_length
        sources = self.vocabularies.source.encode(sentences)
        for index, ids in enumerate(sources):
            if len(ids) > longest:
                logger.warning(
                    "line %d has %d tokens; translating its first %d (data.max_length = %d)",
                    *(index + first_line, len(ids), longest - 1, longest),
                )
                sources[index] = [*ids[: longest - 1], self._special_ids.eos]
            elif ids == [self._special_ids.eos]:
                sources[index] = []
        return sources

    def _decode_config(self, options: dict[str, Any]) -> DecodeConfig:
        """The fields of decoding with those of a call, validated."""
        return self.config.replace(decode=self.config.decode.replace(**options)).decode

    def _encode_prefixes(
        self,
        prefixes: Sequence[str],
        sources: list[list[int]],
        first_line: int,
        config: DecodeConfig,
    ) -> list[list[int]]:
        """Token ids of each prefix, without EOS."""
        if len(prefixes) != len(sources):
            raise InputError(
                f"{len(sources)} sentences and {len(prefixes)} prefixes; the numbers must be equal"
            )
        target = self.vocabularies.target
        encoded = [ids[:-1] or target.forced_ids for ids in target.encode(prefixes)]
        for line, (ids, source) in enumerate(zip(encoded, sources, strict=True), first_line):
            limit = config.longest_output(len(source))
            if source and len(ids) >= limit:
                field = "max_length" if config.max_length else "extra_length"
                raise InputError(
                    f"line {line}: the prefix has {len(ids)} tokens, but the longest output has "
                    f"{limit} including EOS; shorten it, or raise --config.decode.{field}"
                )
        return encoded

    def _translation(self, tokens: list[int], score: float, log_prob: float) -> Translation:
        if score <= NEG_INF / 2:
            return NO_TRANSLATION
        ids = tuple(token for token in tokens if token != self._special_ids.pad)
        # A translation is one line of a file, whatever text the vocabulary was trained on.
        text = self.vocabularies.target.decode(ids).replace("\n", " ")
        return Translation(text, score, log_prob, ids)


def _require_several(name: str, texts: Any) -> None:
    """Refuse a string where several are meant: its characters would be taken for texts."""
    if isinstance(texts, str):
        raise InputError(f"{name} is the string {texts!r}, but must be a list; pass [text]")


def _num_hypotheses(config: DecodeConfig, num_results: int) -> int:
    """Results of a search: with mbr all samples, of which the best are chosen."""
    return config.mbr_samples if config.method == "mbr" else num_results


def _rank_by_risk(samples: list[Translation], metric: str) -> list[Translation]:
    """The distinct samples, the one with the least Bayes risk first."""
    similarity = metrics.sentence_similarity(metric)
    ranking = rank_by_similarity([sample.text for sample in samples], similarity)
    return [dataclasses.replace(samples[index], score=mean) for index, mean in ranking]


def _is_on_mesh(leaf: Any, mesh: Mesh) -> bool:
    where = getattr(leaf, "sharding", None)
    return isinstance(where, NamedSharding) and where.mesh == mesh
