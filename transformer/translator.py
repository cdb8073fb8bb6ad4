# SPDX-License-Identifier: Apache-2.0
"""Sentences in, translations out: what a trained workdir is for.

translator = Translator.from_workdir("runs/pronouns")
translator(["The animal didn't cross the street because it was too tired."])
"""

import dataclasses
import functools
import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax.sharding import Mesh, NamedSharding

from transformer import paths, sharding
from transformer.arrays import EOS_ID, PAD_ID, Params
from transformer.checkpoints import workdir_files
from transformer.checkpoints.manager import Checkpoints
from transformer.config import Config, ParallelConfig
from transformer.decoding import generate, minimum_bayes_risk
from transformer.decoding.constraints import NEVER
from transformer.decoding.shortlist import Shortlist
from transformer.errors import InputError
from transformer.models import base
from transformer.models import ensemble as ensembles
from transformer.text import metrics
from transformer.text.lexicon import Lexicon
from transformer.text.tokenizer import Tokenizer
from transformer.training.step import Batch

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Translation:
    """One hypothesis for one sentence."""

    text: str
    score: float
    """What the translations of a sentence are ranked by: log P / penalty(length), or with minimum
    Bayes risk the mean similarity to the other samples, in 0..100.
    """
    log_prob: float
    """Natural logarithm, the end token included."""
    tokens: tuple[int, ...]
    """Ids, the end token last."""


NOTHING = Translation("", 0.0, 0.0, ())
"""The translation of an empty line."""

NOT_FOUND = Translation("", -math.inf, -math.inf, ())
"""Stands in the last places where fewer translations were found than asked for."""


class Translator:
    """A model (or an ensemble of several), its parameters and its tokenizer, on a mesh.

    The sentences of a batch are divided along the mesh's axis ``data``. No result depends on the
    mesh. Where it spans several processes, each of them makes the same calls and has all results.
    """

    def __init__(
        self,
        config: Config,
        params: Params,
        tokenizer: Tokenizer,
        model: nn.Module | None = None,
        mesh: Mesh | None = None,
        lexicon: Lexicon | None = None,
    ):
        """See `from_workdir` for a trained one.

        Args:
          config: validated.
          params: on the mesh already, or anywhere; then they are laid out by `config.parallel`.
          tokenizer: of the model's vocabulary.
          model: in place of the one of `config.model`.
          mesh: in place of the one of `config.parallel`.
          lexicon: what `config.decode.shortlist` makes its shortlists of.

        Raises:
          InputError: when there are fewer devices than `config.parallel` asks for, or when there is
            no lexicon for shortlists.
        """
        if config.decode.shortlist is not None and lexicon is None:
            raise InputError(
                f"decode.shortlist is {config.decode.shortlist}, but no lexicon is given; give "
                "lexicon=Lexicon.load(...), or leave decode.shortlist out"
            )
        self.lexicon = lexicon
        self.config = config
        self.tokenizer = tokenizer
        self.model = model or base.build(config.model)
        self.mesh = mesh or sharding.make_mesh(config.parallel)
        self.params = params
        if not all(_lies_on(self.mesh, leaf) for leaf in jax.tree.leaves(params)):
            abstract = _abstract_params(self.model, config.parallel, self.mesh)
            self.params = jax.device_put(params, jax.tree.map(lambda leaf: leaf.sharding, abstract))

    @classmethod
    def from_workdir(
        cls,
        workdir: epath.PathLike,
        config: Config | None = None,
        average: int | None = None,
        around: Literal["last", "best"] = "last",
        ensemble: Sequence[epath.PathLike] = (),
    ) -> "Translator":
        """Loads what `experiments.train` left in a workdir.

        Args:
          workdir: the run's directory.
          config: instead of `workdir_files.load_inference_config(workdir)`, for example with other
            `decode` fields, or with `parallel` fields to divide the work over several devices.
          average: use the mean of that many checkpoints instead of the best by validation.
          around: which of them: the ``last``, or those about the ``best``.
          ensemble: further workdirs, whose models decode together with this one's. Only their
            models are used, not how they would decode; `average` and `around` hold for each.

        Raises:
          InputError: when a workdir is missing, unfinished or damaged, when the vocabularies
            differ, when there are fewer devices than `config.parallel` asks for, or when there is
            no lexicon for `config.decode.shortlist`.
        """
        workdir = paths.reachable(workdir)
        config = config or workdir_files.load_inference_config(workdir)
        mesh = sharding.make_mesh(config.parallel)
        tokenizer = Tokenizer.load(workdir / workdir_files.TOKENIZER)
        others = [paths.reachable(other) for other in ensemble]
        configs = [config, *(_member(other, workdir, config, tokenizer) for other in others)]
        params = []
        for directory, own in zip([workdir, *others], configs, strict=True):
            with Checkpoints(directory, own.training) as checkpoints:
                params.append(checkpoints.restore_params(abstract_params(own), average, around))
        lexicon = None
        if config.decode.shortlist is not None:
            lexicon = Lexicon.load(workdir / workdir_files.LEXICON, config.model.vocab_size)
        if not others:
            return cls(config, params[0], tokenizer, mesh=mesh, lexicon=lexicon)
        model, joined = ensembles.join([base.build(own.model) for own in configs], params)
        return cls(config, joined, tokenizer, model, mesh, lexicon)

    @functools.cached_property
    def _cast_params(self) -> Params:
        """The parameters, cast once and not at every batch."""
        return jax.jit(self.model.cast_params)(self.params)

    def __call__(self, sentences: Sequence[str]) -> list[Translation]:
        """The best translation of each sentence, in order."""
        return [best[0] for best in self.nbest(sentences, 1)]

    def nbest(
        self,
        sentences: Sequence[str],
        results: int,
        first_line: int = 1,
        prefixes: Sequence[str] | None = None,
    ) -> list[list[Translation]]:
        """The best `results` translations of each sentence, best first; of decode.method=sample as
        many samples, in the order in which they were drawn.

        A sentence of more than data.max_length tokens is cut to its first data.max_length - 1 and
        the end token, with a warning. An empty sentence (or one of spaces) has the empty
        translation, whatever its prefix.

        A prefix is tokenized as if it were a whole sentence; spaces at its end do not count. The
        translation begins with its tokens, so that the next one may begin a word or go on with the
        prefix's last. An empty prefix forces nothing. Scores count the prefix's tokens too.

        Args:
          sentences: raw text, without line ends.
          results: at most decode.beams (decode.mbr_samples with minimum Bayes risk). Where fewer
            different ones were found, the last are `NOT_FOUND`.
          first_line: the number of the first sentence, in warnings and for what samples depend on.
          prefixes: one a sentence: how its translation must begin.

        Raises:
          InputError: when more results are asked for than that, when there are not as many prefixes
            as sentences, or when a prefix does not fit into the longest output.
        """
        config = self.config.decode
        field, most = config.most_results
        if not 1 <= results <= most:
            raise InputError(
                f"{results} translations a sentence asked for, but {field} is {most}; "
                f"set --config.{field}={results} or higher"
            )
        sources = self._cut(self.tokenizer.encode(sentences), first_line)
        forced = None if prefixes is None else self._forced(prefixes, sources, first_line)
        drawn = config.mbr_samples if config.method == "mbr" else results
        translations = [[NOTHING] * results for _ in sentences]
        for row, found in self._decoded(sources, forced, drawn, first_line):
            translations[row] = self._chosen(found, results)
        return translations

    def _decoded(
        self,
        sources: list[list[int]],
        forced: list[list[int]] | None,
        results: int,
        first_line: int,
    ) -> Iterator[tuple[int, list[Translation]]]:
        """The place of each sentence that is not empty, and so many hypotheses or samples of it."""
        config = self.config.decode
        together = config.batch_size
        if config.method == "mbr":
            # No more samples at once than beam search has beams.
            together = max(config.batch_size * config.beams // results, 1)
        for rows, source in self._batches(sources, together):
            height, length = source.shape
            longest = config.max_length or length + config.extra_length
            prefix = lines = None
            if forced is not None:
                prefix = _pad([forced[row] for row in rows], (height, longest))
            if config.method != "beam":
                lines = np.full(height, -1, np.int32)
                lines[: len(rows)] = [first_line + row for row in rows]
            found = generate.decode(
                self._cast_params,
                *self._placed((source, prefix, lines)),
                np.uint32(config.seed),
                self._shortlist(source, prefix),
                mesh=self.mesh,
                model=self.model,
                # Seed and shortlist are arguments, so that the program is the same for all.
                config=config.replace(seed=0, shortlist=None),
                results=results,
                max_length=longest,
            )
            found = jax.tree.map(lambda leaf: np.asarray(leaf)[:, :results], found)
            hypotheses = zip(found.tokens, found.scores, found.log_probs, strict=True)
            for row, fields in zip(rows, hypotheses, strict=False):
                yield row, [self._translation(*one) for one in zip(*fields, strict=True)]

    def _shortlist(self, source: np.ndarray, prefix: np.ndarray | None) -> Shortlist | None:
        """What the translations of a batch may consist of, on the mesh."""
        number = self.config.decode.shortlist
        if number is None:
            return None
        of_batch = Shortlist.of(self.lexicon.listed(source, number, prefix))
        everywhere = sharding.replicated(self.mesh)
        return Shortlist(sharding.place(of_batch.ids, everywhere), self._placed(of_batch.listed))

    def _chosen(self, found: list[Translation], results: int) -> list[Translation]:
        """The first so many of what was found; with minimum Bayes risk, of what is least risky."""
        if self.config.decode.method == "mbr":
            similarity = metrics.sentence_similarity(self.config.decode.mbr_metric)
            ranked = minimum_bayes_risk.by_mean_similarity([one.text for one in found], similarity)
            found = [dataclasses.replace(found[place], score=mean) for place, mean in ranked]
        return [*found[:results], *[NOT_FOUND] * (results - len(found))]

    def _forced(
        self, prefixes: Sequence[str], sources: list[list[int]], first_line: int
    ) -> list[list[int]]:
        """The tokens of each prefix, without an end token."""
        if len(prefixes) != len(sources):
            raise InputError(
                f"{len(sources)} sentences and {len(prefixes)} prefixes; there must be equally many"
            )
        config = self.config.decode
        forced = [ids[:-1] for ids in self.tokenizer.encode(prefixes)]
        for line, (ids, source) in enumerate(zip(forced, sources, strict=True), first_line):
            limit = config.max_length or len(source) + config.extra_length
            if len(ids) >= limit and source != [EOS_ID]:
                field = "max_length" if config.max_length else "extra_length"
                raise InputError(
                    f"line {line}: the prefix has {len(ids)} tokens, but the longest output has "
                    f"{limit} with its end token; shorten it, or raise --config.decode.{field}"
                )
        return forced

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[tuple[float, int]]:
        """The natural-log probability of each target given its source, and its number of tokens.

        The end token is in both. Nothing is cut: sentences of any length are scored whole.

        Raises:
          InputError: when there are not equally many of both.
        """
        if len(sources) != len(targets):
            raise InputError(
                f"{len(sources)} sources and {len(targets)} targets; there must be equally many"
            )
        source_ids, target_ids = self.tokenizer.encode(sources), self.tokenizer.encode(targets)
        longer = [s if len(s) > len(t) else t for s, t in zip(source_ids, target_ids, strict=True)]
        scores = [(0.0, 0)] * len(sources)
        for rows, shaped in self._batches(longer, self.config.decode.batch_size, keep_empty=True):
            batch = Batch(
                _pad([source_ids[row] for row in rows], shaped.shape),
                _pad([target_ids[row] for row in rows], shaped.shape),
            )
            totals = np.asarray(
                generate.score(
                    self._cast_params, self._placed(batch), mesh=self.mesh, model=self.model
                )
            )
            for place, row in enumerate(rows):
                scores[row] = (float(totals[place]), len(target_ids[row]))
        return scores

    def _cut(self, sources: list[list[int]], first_line: int) -> list[list[int]]:
        longest = self.config.data.max_length
        cut = [index for index, ids in enumerate(sources) if len(ids) > longest]
        for index in cut:
            logger.warning(
                "line %d has %d tokens; translating its first %d (data.max_length = %d)",
                *(index + first_line, len(sources[index]), longest - 1, longest),
            )
            sources[index] = [*sources[index][: longest - 1], EOS_ID]
        return sources

    def _batches(
        self, rows: list[list[int]], most: int, keep_empty: bool = False
    ) -> Iterator[tuple[list[int], np.ndarray]]:
        """Puts rows of like length together, in few shapes: their places, and their ids padded.

        The longest come first, so that the batch that is left with rows of padding is the cheapest.
        The number of rows is a multiple of the mesh's axis ``data``.
        """
        devices = self.mesh.shape["data"]
        chosen = [index for index, ids in enumerate(rows) if keep_empty or ids != [EOS_ID]]
        chosen.sort(key=lambda index: -len(rows[index]))
        for start in range(0, len(chosen), most):
            chunk = chosen[start : start + most]
            length = self.config.data.bucket(len(rows[chunk[0]]))
            height = next((h for h in (1, 8) if len(chunk) <= h < most), most)
            height = -(-height // devices) * devices
            yield chunk, _pad([rows[index] for index in chunk], (height, length))

    def _placed(self, rows: Any) -> Any:
        """Arrays of rows, divided over the devices."""
        return sharding.place(rows, sharding.batch_sharding(self.mesh))

    def _translation(self, tokens, score, log_prob) -> Translation:
        if score <= NEVER / 2:
            return NOT_FOUND
        ids = tuple(int(token) for token in tokens if token != PAD_ID)
        return Translation(self.tokenizer.decode(ids), float(score), float(log_prob), ids)


def _member(
    directory: epath.Path, workdir: epath.Path, config: Config, tokenizer: Tokenizer
) -> Config:
    """A further workdir's config in the ensemble that begins with `workdir`: its own model, but
    decoding the other's way.
    """
    own = workdir_files.load_config(directory)
    if Tokenizer.load(directory / workdir_files.TOKENIZER).model != tokenizer.model:
        raise InputError(
            f"{workdir} and {directory} have different vocabularies (tokenizer.model differs), so "
            "they cannot form an ensemble; train both with the same --config.data.tokenizer_model"
        )
    try:
        return config.replace(model=own.model, training=own.training)
    except InputError as error:
        raise InputError(f"{directory}: {error}") from None


def abstract_params(config: Config) -> Params:
    """Shapes, dtypes and shardings of a config's parameters, without computing any."""
    mesh = sharding.make_mesh(config.parallel)
    return _abstract_params(base.build(config.model), config.parallel, mesh)


def _abstract_params(model: nn.Module, parallel: ParallelConfig, mesh: Mesh) -> Params:
    tokens = jnp.zeros((1, 1), jnp.int32)
    boxed = jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)["params"]
    return jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
        nn.unbox(boxed),
        sharding.shardings_of(boxed, mesh, sharding.rules_of(parallel)),
    )


def _lies_on(mesh: Mesh, leaf: Any) -> bool:
    where = getattr(leaf, "sharding", None)
    return isinstance(where, NamedSharding) and where.mesh == mesh


def _pad(rows: list[list[int]], shape: tuple[int, int]) -> np.ndarray:
    padded = np.full(shape, PAD_ID, np.int32)
    for row, ids in zip(padded, rows, strict=False):
        row[: len(ids)] = ids
    return padded
