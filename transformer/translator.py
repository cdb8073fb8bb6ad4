# SPDX-License-Identifier: Apache-2.0
"""Sentences in, translations out: what a trained workdir is for.

translator = Translator.from_workdir("runs/pronouns")
translator(["The animal didn't cross the street because it was too tired."])
"""

import collections
import dataclasses
import functools
import logging
import pathlib
from collections.abc import Iterator, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from transformer import decoding, families
from transformer.arrays import EOS_ID, PAD_ID, Array, Int, Params
from transformer.checkpoints import Checkpoints
from transformer.config import Config, DecodeConfig
from transformer.errors import InputError
from transformer.tokenizer import Tokenizer
from transformer.training import Batch, score_step

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Translation:
    """One hypothesis for one sentence."""

    text: str
    score: float
    """log P / penalty(length): what the search ranks by."""
    log_prob: float
    """Natural logarithm, the end token included."""
    tokens: tuple[int, ...]
    """Ids, the end token last."""


NOTHING = Translation("", 0.0, 0.0, ())
"""The translation of an empty line."""


class Translator:
    """A model, its parameters and its tokenizer."""

    def __init__(self, config: Config, params: Params, tokenizer: Tokenizer):
        """See `from_workdir` for a trained one."""
        self.config = config
        self.params = params
        self.tokenizer = tokenizer
        self.model = families.build(config.model)

    @classmethod
    def from_workdir(
        cls,
        workdir: str | pathlib.Path,
        config: Config | None = None,
        average: int | None = None,
    ) -> "Translator":
        """Loads what `experiments.train` left in a workdir.

        Args:
          workdir: the run's directory.
          config: in place of the saved one, for example with other `decode` fields.
          average: use the mean of the last that many checkpoints instead of the best by validation.

        Raises:
          InputError: when the workdir is missing, unfinished or damaged.
        """
        workdir = pathlib.Path(workdir)
        config = config or load_config(workdir)
        tokenizer = Tokenizer.load(workdir / "tokenizer.model")
        with Checkpoints(workdir) as checkpoints:
            params = checkpoints.restore_params(abstract_params(config), average)
        return cls(config, params, tokenizer)

    def __call__(self, sentences: Sequence[str]) -> list[Translation]:
        """The best translation of each sentence, in order."""
        return [best[0] for best in self.nbest(sentences, 1)]

    def nbest(
        self, sentences: Sequence[str], results: int, first_line: int = 1
    ) -> list[list[Translation]]:
        """The best `results` translations of each sentence, best first.

        A sentence of more than data.max_length tokens is cut to its first data.max_length - 1 and
        the end token, with a warning. An empty sentence (or one of spaces) has the empty
        translation.

        Args:
          sentences: raw text, without line ends.
          results: at most decode.beams.
          first_line: the number that warnings give to the first sentence.

        Raises:
          InputError: when more results are asked for than there are beams.
        """
        config = self.config.decode
        if not 1 <= results <= config.beams:
            raise InputError(
                f"{results} translations a sentence asked for, but decode.beams is {config.beams}; "
                f"set --config.decode.beams={results} or higher"
            )
        sources = self._cut(self.tokenizer.encode(sentences), first_line)
        translations: list[list[Translation]] = [[NOTHING] * results for _ in sentences]
        for rows, source in self._batches(sources, config.batch_size):
            length = source.shape[1]
            longest = config.max_length or length + config.extra_length
            found = _decode(
                self.params,
                source,
                model=self.model,
                config=config,
                results=results,
                max_length=longest,
            )
            found = jax.tree.map(np.asarray, found)
            for place, row in enumerate(rows):
                translations[row] = [
                    self._translation(
                        found.tokens[place, k], found.scores[place, k], found.log_probs[place, k]
                    )
                    for k in range(results)
                ]
        return translations

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
            totals = np.asarray(_score(self.params, batch, model=self.model).sum(-1))
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
        """Groups rows of like length into few shapes: their places, and their ids padded."""
        groups = collections.defaultdict(list)
        for index, ids in enumerate(rows):
            if keep_empty or ids != [EOS_ID]:
                groups[self.config.data.bucket(len(ids))].append(index)
        for length, members in sorted(groups.items()):
            members.sort(key=lambda index: len(rows[index]))
            for start in range(0, len(members), most):
                chunk = members[start : start + most]
                height = next((h for h in (1, 8) if len(chunk) <= h < most), most)
                yield chunk, _pad([rows[index] for index in chunk], (height, length))

    def _translation(self, tokens, score, log_prob) -> Translation:
        ids = tuple(int(token) for token in tokens if token != PAD_ID)
        return Translation(self.tokenizer.decode(ids), float(score), float(log_prob), ids)


def load_config(workdir: str | pathlib.Path) -> Config:
    """The config a workdir was trained with.

    Raises:
      InputError: when the directory or the file is missing or unreadable.
    """
    workdir = pathlib.Path(workdir)
    path = workdir / "config.json"
    if not workdir.is_dir():
        raise InputError(f"--workdir={workdir} does not exist; train first, or check the path")
    try:
        return Config.from_json(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}); is this a workdir of train?") from None


def abstract_params(config: Config) -> Params:
    """Shapes and dtypes of a config's parameters, without computing any."""
    model = families.build(config.model)
    tokens = jnp.zeros((1, 1), jnp.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)["params"]
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), nn.unbox(shapes)
    )


@functools.partial(jax.jit, static_argnames=("model", "config", "results", "max_length"))
def _decode(
    params: Params,
    source: Int[Array, "B S"],
    *,
    model: nn.Module,
    config: DecodeConfig,
    results: int,
    max_length: int,
) -> decoding.Hypotheses:
    """Encodes once, then searches; rows of padding are not searched."""

    def call(method, *arguments):
        return model.apply({"params": params}, *arguments, method=method)

    memory, _ = call(model.encode, source)
    lengths = (source != PAD_ID).sum(-1)
    limits = decoding.search_limits(lengths, config)
    return decoding.beam_search(
        lambda tokens, cache: call(model.step, tokens, cache),
        model.reorder,
        call(model.init_cache, memory, source, config.beams, max_length),
        jnp.where(lengths > 0, limits, 0),
        beams=config.beams,
        max_length=max_length,
        results=results,
        penalty=config.length_penalty,
        alpha=config.alpha,
    )


_score = functools.partial(jax.jit, static_argnames="model")(score_step)


def _pad(rows: list[list[int]], shape: tuple[int, int]) -> np.ndarray:
    padded = np.full(shape, PAD_ID, np.int32)
    for row, ids in zip(padded, rows, strict=False):
        row[: len(ids)] = ids
    return padded
