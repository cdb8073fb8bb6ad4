# SPDX-License-Identifier: Apache-2.0
"""The skip-gram model with negative sampling (Mikolov et al. 2013), trained on any sentences.

vectors = train(sentences, Settings())

The objective is section 2.2's. Pairs are trained in batches with Adam, where the paper updates pair
by pair with gradient descent.
"""

import dataclasses
import functools
from collections import Counter
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from transformer.arrays import Array, Float, Int, Key
from transformer.errors import InputError

CHUNK = 256
"""Batches of one compiled program."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Sizes of the model and of its training."""

    width: int = 64
    """D."""
    window: int = 5
    """Largest distance of a context word; drawn from 1 to this for each center."""
    negatives: int = 5
    """Sampled words for each context word."""
    min_count: int = 5
    """Rarer words are left out of the text."""
    subsampling: float = 1e-3
    """t: a word of frequency f is left out with probability 1 - sqrt(t / f) (section 2.3)."""
    epochs: int = 10
    batch_size: int = 1024
    learning_rate: float = 0.003
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class WordVectors:
    """A vector of each word; the most frequent words come first."""

    words: tuple[str, ...]
    vectors: Float[np.ndarray, "words D"]


def objective(
    center: Float[Array, "B D"],
    context: Float[Array, "B D"],
    negatives: Float[Array, "B samples D"],
) -> Float[Array, " B"]:
    """-log sigmoid(v . u) - sum over the samples n of log sigmoid(-v . n) (section 2.2)."""
    attracted = (center * context).sum(-1)  # [B]
    repelled = (center[:, None] * negatives).sum(-1)  # [B, samples]
    return -jax.nn.log_sigmoid(attracted) - jax.nn.log_sigmoid(-repelled).sum(-1)


def vocabulary(sentences: Sequence[Sequence[str]], min_count: int) -> dict[str, int]:
    """Words with at least this count and their counts, the most frequent first."""
    counts = Counter(word for sentence in sentences for word in sentence)
    kept = [item for item in counts.items() if item[1] >= min_count]
    return dict(sorted(kept, key=lambda item: (-item[1], item[0])))


def pairs_of_epoch(
    words: Int[np.ndarray, " tokens"],
    sentence: Int[np.ndarray, " tokens"],
    keep: Float[np.ndarray, " words"],
    window: int,
    rng: np.random.Generator,
) -> Int[np.ndarray, "pairs 2"]:
    """(center, context) of one epoch in random order.

    Args:
      words: the text as one array.
      sentence: the index of each token's sentence; no pair crosses two.
      keep: the probability of each word to be kept.
      window: see `Settings`.
      rng: draws the tokens that are kept, the windows and the order.
    """
    kept = rng.random(len(words)) < keep[words]
    words, sentence = words[kept], sentence[kept]
    windows = rng.integers(1, window + 1, len(words))
    pairs = []
    for distance in range(1, window + 1):
        together = sentence[distance:] == sentence[:-distance]
        before, after = words[:-distance], words[distance:]
        for center, context, reach in (
            (before, after, windows[:-distance]),
            (after, before, windows[distance:]),
        ):
            chosen = together & (reach >= distance)
            pairs.append(np.stack([center[chosen], context[chosen]], -1))
    return rng.permutation(np.concatenate(pairs))


def train(sentences: Sequence[Sequence[str]], settings: Settings = Settings()) -> WordVectors:
    """Train on sentences of words; the vectors are those of the center words."""
    counts = vocabulary(sentences, settings.min_count)
    if len(counts) < 2:
        raise InputError(
            f"{len(counts)} words occur at least {settings.min_count} times; give more text"
        )
    ids = {word: index for index, word in enumerate(counts)}
    known = [[ids[word] for word in sentence if word in ids] for sentence in sentences]
    words = np.array([word for each in known for word in each], np.int32)
    sentence = np.repeat(np.arange(len(known), dtype=np.int32), [*map(len, known)])
    frequencies = np.array([*counts.values()], np.float64)
    noise = np.cumsum(frequencies**0.75)  # the unigram distribution raised to 3/4 (section 2.2)
    share = frequencies / frequencies.sum()
    keep = np.minimum(np.sqrt(settings.subsampling / share), 1.0)
    shape, batch_size = (len(counts), settings.width), settings.batch_size
    rng = np.random.default_rng(settings.seed)
    params = {
        "center": jnp.asarray((rng.random(shape) - 0.5) / settings.width, jnp.float32),
        "context": jnp.zeros(shape, jnp.float32),
    }
    optimizer = optax.adam(settings.learning_rate)
    state = (params, optimizer.init(params))
    step = functools.partial(_train_batches, optimizer=optimizer, negatives=settings.negatives)
    step = jax.jit(step, donate_argnums=0)
    noise = jnp.asarray(noise / noise[-1], jnp.float32)
    for _ in range(settings.epochs):
        pairs = pairs_of_epoch(words, sentence, keep, settings.window, rng)
        if not len(pairs):
            raise InputError("no two neighboring words are left to train on; give more text")
        # Chunks have one static shape; the last one is filled from the start of the epoch.
        batches = -(-len(pairs) // batch_size)
        size = min(CHUNK, batches)
        total = -(-batches // size) * size * batch_size
        for chunk in np.resize(pairs, (total, 2)).reshape(-1, size, batch_size, 2):
            key = jax.random.fold_in(jax.random.key(settings.seed), rng.integers(2**31))
            state = step(state, jnp.asarray(chunk), noise, key)
    return WordVectors(tuple(counts), np.asarray(state[0]["center"]))


def _train_batches(
    state: tuple[dict[str, Array], optax.OptState],
    pairs: Int[Array, "batches B 2"],
    noise: Float[Array, " words"],
    key: Key[Array, ""],
    *,
    optimizer: optax.GradientTransformation,
    negatives: int,
) -> tuple[dict[str, Array], optax.OptState]:
    """Update the parameters with every batch in turn."""

    def loss(
        params: dict[str, Array], batch: Int[Array, "B 2"], samples: Int[Array, "B samples"]
    ) -> Float[Array, ""]:
        center, context = params["center"][batch[:, 0]], params["context"][batch[:, 1]]
        return objective(center, context, params["context"][samples]).mean()

    def update(state: tuple, inputs: tuple) -> tuple[tuple, None]:
        params, moments = state
        batch, key = inputs
        uniform = jax.random.uniform(key, (len(batch), negatives))
        samples = jnp.minimum(jnp.searchsorted(noise, uniform), len(noise) - 1)
        gradients = jax.grad(loss)(params, batch, samples)
        updates, moments = optimizer.update(gradients, moments)
        return (optax.apply_updates(params, updates), moments), None

    keys = jax.random.split(key, len(pairs))
    return jax.lax.scan(update, state, (pairs, keys))[0]
