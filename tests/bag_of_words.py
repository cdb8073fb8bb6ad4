# SPDX-License-Identifier: Apache-2.0
"""A model family of a few lines, and a config file that trains it.

The memory is the mean of the source's embeddings. The decoder predicts the next token from the last
one and the memory. There is no attention and no residual stream to look at.
"""

import dataclasses
from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp
from jax.nn.initializers import normal

from transformer.config import Config, ModelConfig
from transformer.models import protocol
from transformer.nn.linear import wide_einsum
from transformer.nn.parameters import declare


@dataclasses.dataclass(frozen=True)
class BagOfWordsConfig(ModelConfig):
    """A bag of words."""

    family: Literal["bag_of_words"] = "bag_of_words"
    d_model: int = 8


class BagOfWords(protocol.TextModel):
    """See `transformer.models.protocol.Model`."""

    config: BagOfWordsConfig

    def setup(self):
        """A table [V,D] for source and target, and the kernel [D,V] of the logits."""
        d = self.config.d_model
        v = self.config.vocab_size
        self.table = declare(self, "table", "embedding", ("vocab", "embed"), normal(1.0), (v, d))
        self.kernel = declare(self, "logits", "kernel", ("embed", "vocab"), normal(d**-0.5), (d, v))

    def __call__(self, source, target_in, **options):
        """Logits of every position; packed rows and dropout are not for this model."""
        return self._logits(target_in, self.encode(source))

    def encode(self, source, **options):
        """[B,D]: the mean of the source's embeddings."""
        mask = self.source_mask(source)[..., None]  # [B, S, 1]
        vectors = jnp.where(mask, self._embedded(source), 0.0)
        return (vectors.sum(1) / jnp.maximum(mask.sum(1), 1)).astype(vectors.dtype)

    def _embedded(self, tokens):
        return self.table[tokens].astype(self.config.compute_dtype)  # [B, S, D]

    def _logits(self, tokens, memory):
        x = self._embedded(tokens) + memory[:, None]  # [B, K, D]
        return wide_einsum("BKD,DV->BKV", jnp.tanh(x), self.kernel.astype(x.dtype))

    def init_cache(self, memory, source, num_beams, length, num_groups=1, *rest: Any):
        """The memory is all that a step needs."""
        return memory

    def step(self, tokens, cache):
        """The same as one position of `__call__`."""
        return self._logits(tokens, cache), cache

    @staticmethod
    def reorder(cache, parents):
        """All beams of a sentence share its memory."""
        return cache

    @staticmethod
    def grow(cache, length):
        """The memory has no target positions."""
        return cache

    @staticmethod
    def take(cache, sentences):
        """The memory of these sentences."""
        return cache[sentences]

    @nn.nowrap
    def describe(self):
        """No attention, no residual stream, one matmul."""
        d, v = self.config.d_model, self.config.vocab_size
        flops = lambda b, s, t: 2 * b * t * d * v  # noqa: E731
        return protocol.Description(d, {}, {}, flops)


protocol.register(BagOfWordsConfig, BagOfWords)


def get_config():
    """An experiment with this family; its data comes from flags."""
    config = Config(model=BagOfWordsConfig(vocab_size=20))
    return config.replace(data=config.data.replace(dataset="text_files"))
