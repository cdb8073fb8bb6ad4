# SPDX-License-Identifier: Apache-2.0
"""Which target sub-words the sub-words of a source sentence are translated with, learned from
sentence pairs: what shortlists are made of.

The probabilities are those of IBM Model 1 (Brown et al. 1993), the simplest model of translation:
every target sub-word comes from one of the source's sub-words, whatever their order. The end token,
which every source has, takes what comes from none of them.
"""

import dataclasses
import functools
import io
import zipfile
import zlib
from collections.abc import Sequence

import numpy as np
from etils import epath
from numpy.typing import ArrayLike

from transformer import paths
from transformer.arrays import EOS_ID, NUM_SPECIAL_IDS, PAD_ID, Bool, Float, Int
from transformer.errors import InputError

MOST = 100
"""A lexicon has this many translations of each sub-word, and as many frequent sub-words, which are
on every list.
"""
ITERATIONS = 5
"""Of expectation-maximisation; the order of the most probable translations changes little after."""
PAIRS = 100_000
"""Of so many sentence pairs a lexicon is learned, unless told otherwise; of 25 tokens a side they
take about 1 GiB of memory.
"""
PART = 10_000
"""So many pairs are counted at once, to save memory."""


@dataclasses.dataclass(frozen=True)
class Lexicon:
    """What is learned of a training text."""

    translations: Int[np.ndarray, "V k"]
    """Of each source sub-word, the most probable first; where there are fewer, 0 fills the row."""
    frequent: Int[np.ndarray, " _"]
    """The most frequent target sub-words, the end token among them."""

    @classmethod
    def learn(
        cls,
        sources: Sequence[ArrayLike],
        targets: Sequence[ArrayLike],
        vocab_size: int,
    ) -> "Lexicon":
        """From sentence pairs of token ids."""
        pair, probability = translation_probabilities(sources, targets, vocab_size)
        source, target = np.divmod(pair, vocab_size)
        order = np.lexsort((-probability, source))
        source, target = source[order], target[order]
        first = np.searchsorted(source, np.arange(vocab_size))
        rank = np.arange(len(source)) - first[source]
        translations = np.full((vocab_size, MOST), PAD_ID, np.int32)
        best = rank < MOST
        translations[source[best], rank[best]] = target[best]

        counts = np.bincount(np.concatenate([*map(np.asarray, targets)]), minlength=vocab_size)
        frequent = np.argsort(-counts, kind="stable")[: min(MOST, np.count_nonzero(counts))]
        return cls(translations, np.union1d(frequent, [EOS_ID]).astype(np.int32))

    def save(self, path: epath.PathLike) -> None:
        """Writes the lexicon, whole or not at all."""
        file = io.BytesIO()
        np.savez_compressed(file, translations=self.translations, frequent=self.frequent)
        paths.write_atomic(paths.reachable(path), file.getvalue())

    @classmethod
    def load(cls, path: epath.PathLike, vocab_size: int) -> "Lexicon":
        """Reads what `save` wrote.

        Raises:
          InputError: when there is none, or when it is damaged or of another vocabulary.
        """
        path = paths.reachable(path)
        again = f"make it with python -m experiments.learn_lexicon --workdir={path.parent}"
        if not path.exists():
            raise InputError(f"{path} is missing, which decode.shortlist needs; {again}")
        try:
            with np.load(io.BytesIO(path.read_bytes())) as file:
                lexicon = cls(file["translations"], file["frequent"])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise InputError(f"{path} cannot be read ({error}); {again}") from None
        if len(lexicon.translations) != vocab_size:
            raise InputError(
                f"{path} is of {len(lexicon.translations)} sub-words, but the vocabulary has "
                f"{vocab_size}; {again}"
            )
        return lexicon

    def listed(
        self,
        sources: Int[np.ndarray, "B S"],
        translations: int,
        prefix: Int[np.ndarray, "B M"] | None = None,
    ) -> Bool[np.ndarray, "B V"]:
        """Which sub-words are on the list of each source.

        The special ids, the frequent sub-words, the most probable translations of each of the
        source's sub-words and these themselves (names and numbers are often copied), and those of
        the prefix.

        Args:
          sources: padded with 0.
          translations: how many of each sub-word, at most `MOST`.
          prefix: what each translation begins with, padded with 0.
        """
        listed = np.zeros((len(sources), len(self.translations)), bool)
        listed[:, :NUM_SPECIAL_IDS] = listed[:, self.frequent] = True
        row = np.arange(len(sources))[:, None]
        listed[row, sources] = True
        listed[row[..., None], self.translations[sources, :translations]] = True
        if prefix is not None:
            listed[row, prefix] = True
        return listed


def translation_probabilities(
    sources: Sequence[ArrayLike],
    targets: Sequence[ArrayLike],
    vocab_size: int,
    iterations: int = ITERATIONS,
) -> tuple[Int[np.ndarray, " _"], Float[np.ndarray, " _"]]:
    """IBM Model 1's t(target | source) for all that occur in one sentence pair.

    Returns:
      source x `vocab_size` + target in rising order, and the probability of each.
    """
    parts = [slice(start, start + PART) for start in range(0, len(sources), PART)]
    parts = [_together(sources[part], targets[part], vocab_size) for part in parts]
    pair = functools.reduce(np.union1d, (keys for keys, _ in parts), np.zeros(0, np.int64))
    parts = [(np.searchsorted(pair, keys).astype(np.int32), place) for keys, place in parts]
    of_source = pair // vocab_size
    probability = np.ones(len(pair))
    for _ in range(iterations):
        expected = np.zeros(len(pair))
        for which, place in parts:
            weight = probability[which]
            share = weight / np.bincount(place, weight)[place]
            expected += np.bincount(which, share, len(pair))
        probability = expected / np.bincount(of_source, expected)[of_source]
    return pair, probability


def _together(
    sources: Sequence[ArrayLike], targets: Sequence[ArrayLike], vocab_size: int
) -> tuple[Int[np.ndarray, " _"], Int[np.ndarray, " _"]]:
    """Every target token with every source token of its pair, as source x `vocab_size` + target,
    and which of all target tokens it is.
    """
    keys, place, places = [], [], 0
    for source, target in zip(sources, targets, strict=True):
        source, target = np.asarray(source, np.int64), np.asarray(target, np.int64)
        keys.append((source[:, None] * vocab_size + target).ravel())
        here = np.arange(places, places + len(target), dtype=np.int32)
        place.append(np.tile(here, len(source)))
        places += len(target)
    return np.concatenate(keys), np.concatenate(place)
