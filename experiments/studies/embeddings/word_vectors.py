# SPDX-License-Identifier: Apache-2.0
"""Word vectors: neighbors, analogies, principal components, and the vectors of a model."""

from collections.abc import Mapping, Sequence
from typing import Literal

import jax
import numpy as np

from experiments.studies.embeddings.skip_gram import WordVectors
from transformer.arrays import Float
from transformer.errors import InputError
from transformer.models import protocol
from transformer.nn.parameters import is_parameter
from transformer.translator import Translator

Side = Literal["source", "target"]


def normalized(vectors: Float[np.ndarray, "words D"]) -> Float[np.ndarray, "words D"]:
    """Each vector divided by its length."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-30)


def nearest(space: WordVectors, word: str, count: int) -> list[tuple[str, float]]:
    """The words with the highest cosine to a word, and the cosines."""
    unit, index = normalized(space.vectors), space.words.index(word)
    cosines = unit @ unit[index]
    cosines[index] = -np.inf
    order = np.argsort(-cosines, kind="stable")[:count]
    return [(space.words[i], float(cosines[i])) for i in order]


def analogy_accuracy(
    space: WordVectors, questions: Sequence[tuple[str, str, str, str]]
) -> tuple[float | None, int]:
    """Share of questions a : b :: c : d in which d is nearest to b - a + c.

    The vectors have length 1, and a, b and c are no answers (Mikolov et al. 2013). Questions with a
    word that has no vector do not count.

    Returns:
      the share, None without questions, and the number of questions.
    """
    ids = {word: index for index, word in enumerate(space.words)}
    known = [[ids[word] for word in each] for each in questions if all(w in ids for w in each)]
    if not known:
        return None, 0
    unit = normalized(space.vectors)
    a, b, c, d = np.array(known).T
    scores = (unit[b] - unit[a] + unit[c]) @ unit.T  # [questions, words]
    np.put_along_axis(scores, np.stack([a, b, c], -1), -np.inf, axis=1)
    return float((scores.argmax(1) == d).mean()), len(known)


def neighbor_agreement(
    space: WordVectors, labels: Mapping[str, str]
) -> tuple[float | None, float | None]:
    """Share of labeled words whose nearest labeled word has the same label.

    Returns:
      the share, and the share by chance: of the pairs of different labeled words. None for fewer
      than two labeled words.
    """
    chosen = [word for word in space.words if word in labels]
    if len(chosen) < 2:
        return None, None
    unit = normalized(space.vectors[[space.words.index(word) for word in chosen]])
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    names = np.array([labels[word] for word in chosen])
    same = names[:, None] == names
    chance = (same.sum() - len(chosen)) / (len(chosen) * (len(chosen) - 1))
    return float((names[cosines.argmax(1)] == names).mean()), float(chance)


def principal_components(
    vectors: Float[np.ndarray, "points D"],
) -> tuple[Float[np.ndarray, "points 2"], float]:
    """Coordinates along the two directions of most variance, and their share of the variance.

    The coordinate of largest size is positive in each direction, so pictures are reproducible.
    """
    centered = vectors - vectors.mean(0)
    u, singular, _ = np.linalg.svd(centered, full_matrices=False)
    points = u[:, :2] * singular[:2]
    signs = np.sign(points[np.abs(points).argmax(0), [0, 1]])
    return points * signs, float((singular[:2] ** 2).sum() / (singular**2).sum())


def model_vectors(translator: Translator, side: Side, words: Sequence[str]) -> WordVectors:
    """The mean of the rows of each word's tokens in the side's embedding table.

    The tables are the parameters that their declarations call embeddings of a vocabulary. If there
    are several, the source's has ``source`` in its path.
    """
    metadata = protocol.parameter_metadata(translator.model)
    declared = jax.tree_util.tree_leaves_with_path(metadata, is_leaf=is_parameter)
    tables = {
        "source" in jax.tree_util.keystr(path): array
        for (path, parameter), array in zip(
            declared, jax.tree.leaves(translator.params), strict=True
        )
        if parameter.kind == "embedding" and parameter.names[0] in ("vocab", "source_vocab")
    }
    if not tables:
        raise InputError(
            f"model.family {translator.config.model.family!r} has no embedding of its vocabulary; "
            "give the workdir of another family, such as 'transformer'"
        )
    table = np.asarray(tables.get(side == "source", next(iter(tables.values()))), np.float64)
    tokens = getattr(translator.vocabularies, side).encode(words)  # EOS last
    return WordVectors(tuple(words), np.stack([table[ids[:-1]].mean(0) for ids in tokens]))
