# SPDX-License-Identifier: Apache-2.0
"""A tiny config of every model family and variant, and the calls of a search over their models."""

import dataclasses
import functools

import bag_of_words
import jax
import jax.numpy as jnp
import numpy as np
import oracle

from transformer.config import (
    ClassifierConfig,
    ConvolutionalConfig,
    LanguageModelConfig,
    RecurrentConfig,
    TransformerConfig,
)
from transformer.models import ensemble, protocol

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
SIZES = {"vocab_size": 11, "d_model": 6, "num_heads": 2, "d_ff": 8}
TINY = TransformerConfig(**SIZES, encoder_layers=1, decoder_layers=2, max_positions=9)
SHAW = TINY.replace(
    positions="shaw",
    max_relative_position=2,
    num_heads=4,
    d_k=3,
    d_v=3,
    num_kv_heads=2,
    attention_window=5,
    activation="swiglu",
    tied_embeddings="none",
)
UNIVERSAL = TINY.replace(
    positions="rotary",
    d_k=4,
    shared_layers=True,
    timestep_encoding=True,
    norm="pre",
    norm_kind="rms_norm",
    num_kv_heads=1,
    tied_embeddings="target_output",
    embedding_scale="positions",
)
ADDITIVE = TINY.replace(
    attention_score="additive",
    positions="alibi",
    attention_window=3,
    activation="geglu",
    tied_embeddings="source_target",
)
RELATIVE = TINY.replace(positions="t5", position_buckets=4, position_max_distance=5)
CONVOLUTIONAL = ConvolutionalConfig(
    vocab_size=11, encoder_layers=1, decoder_layers=2, d_model=6, max_positions=150
)
LANGUAGE_MODEL = LanguageModelConfig(**SIZES, num_layers=2, max_positions=9)
CLASSIFIER = ClassifierConfig(**SIZES, num_layers=2, source_vocab_size=13)
BAHDANAU = RecurrentConfig(vocab_size=11, d_model=6, output_bias=True)
SUTSKEVER = BAHDANAU.replace(
    attention="none", cell="lstm", num_layers=2, encoder_direction="backward", source_vocab_size=13
)
LUONG = SUTSKEVER.replace(attention="dot", encoder_direction="forward", source_vocab_size=None)
BAG = bag_of_words.BagOfWordsConfig(vocab_size=11)

REPRESENTATIVE = {
    "Transformer": TINY,
    "rotary positions, shared layers, pre-norm, multi-query": UNIVERSAL,
    "convolutional": CONVOLUTIONAL,
    "recurrent, additive attention": BAHDANAU,
    "language model": LANGUAGE_MODEL,
    "classifier": CLASSIFIER,
}
"""Together they have all capabilities of the protocol."""
OTHERS = {
    "relative positions": RELATIVE,
    "Shaw's positions, grouped-query, window, SwiGLU, untied": SHAW,
    "bag of words": BAG,
    "pre-norm, learned positions, biases": TINY.replace(
        norm="pre", positions="learned", max_positions=150, attention_bias=True, output_bias=True
    ),
    "a vocabulary for each side": TINY.replace(source_vocab_size=13, decoder_heads=3),
    "additive score, ALiBi, window, GEGLU": ADDITIVE,
    "language model, rotary positions, multi-query, window, shared layers": LANGUAGE_MODEL.replace(
        norm="pre",
        positions="rotary",
        d_k=4,
        num_kv_heads=1,
        attention_window=3,
        shared_layers=True,
        tied_embeddings="source_target",
    ),
    "classifier, first token, Shaw's positions": CLASSIFIER.replace(
        source_vocab_size=None,
        pooling="first",
        positions="shaw",
        max_relative_position=2,
        norm_kind="rms_norm",
        tied_embeddings="target_output",
    ),
    "convolutional, a vocabulary for each side": CONVOLUTIONAL.replace(
        source_vocab_size=13, kernel_width=5
    ),
    "recurrent, no attention": SUTSKEVER,
    "recurrent, multiplicative attention": LUONG,
    "recurrent, input feeding": LUONG.replace(
        attention="general", input_feeding=True, encoder_direction="both", tied_embeddings="none"
    ),
    "recurrent, local attention": BAHDANAU.replace(
        attention="concat", local_window=2, cell="gru_reset_before"
    ),
}
ENSEMBLES = {"ensemble": (TINY, RELATIVE), "ensemble of two families": (TINY, BAG)}
SOURCE = jnp.array([[4, 7, 5, 10, 2], [6, 9, 2, 0, 0], [8, 5, 4, 2, 0]])
TARGET_IN = jnp.array([[1, 5, 9, 4, 8], [1, 10, 7, 2, 0], [1, 6, 2, 0, 0]])
LENGTH = TARGET_IN.shape[1]


@dataclasses.dataclass(frozen=True)
class Calls:
    """A model with random parameters, its calls compiled."""

    model: protocol.Model
    params: dict

    @functools.cached_property
    def forward(self):
        """(source, target_in) -> logits."""
        return jax.jit(lambda *tokens: self.model.apply({"params": self.params}, *tokens))

    def apply(self, method, *arguments):
        """A call of the protocol that needs parameters."""
        return self.model.apply({"params": self.params}, *arguments, method=method)

    @functools.cached_property
    def step(self):
        """(tokens, cache) -> logits, cache."""
        return jax.jit(functools.partial(self.apply, "step"))

    def fresh(self, length, groups):
        """A cache of four beams at position 0."""
        return self.apply("init_cache", self.apply("encode", SOURCE), SOURCE, 4, length, groups)

    def check_steps(self, groups, grow=False):
        """Check that cached steps give the logits of teacher forcing.

        Four beams, in one group or two, read random tokens, survive and multiply at random within
        their group. If `grow`, the cache begins with three slots and grows after three steps, from
        where two of three sentences continue alone.
        """
        rng, size = np.random.default_rng(groups), 4 // groups
        sentences, histories = np.arange(3), np.zeros((3, 4, 0), np.int32)
        cache = jax.jit(functools.partial(self.fresh, 3 if grow else LENGTH, groups))()
        for t in range(LENGTH):
            if grow and t == 3:
                cache = self.model.grow(cache, LENGTH)
                complete = jax.eval_shape(functools.partial(self.fresh, LENGTH, groups))
                assert jax.tree.map(jnp.shape, cache) == jax.tree.map(jnp.shape, complete)
                chosen = np.array([2, 0])
                cache = self.model.take(cache, jnp.asarray(chosen))
                sentences, histories = chosen, histories[chosen]
            tokens = rng.integers(3, 11, (len(sentences), 4))
            histories = np.concatenate([histories, tokens[..., None]], axis=-1)  # [B, K, t + 1]
            logits, cache = self.step(jnp.asarray(tokens), cache)
            padded = np.zeros((3, 4, LENGTH), np.int32)
            padded[sentences, :, : t + 1] = histories
            for beam in range(4):
                expected = self.forward(SOURCE, jnp.asarray(padded[:, beam]))[sentences, t]
                np.testing.assert_allclose(logits[:, beam], expected, **CLOSE)
            parents = rng.integers(0, size, tokens.shape) + np.arange(4) // size * size
            histories = np.take_along_axis(histories, parents[..., None], axis=1)
            cache = self.model.reorder(cache, jnp.asarray(parents, jnp.int32))


@functools.cache
def built(*configs):
    """The calls of a model, or of the ensemble of several."""
    models = [protocol.build(config) for config in configs]
    params = [oracle.random_params(model, seed) for seed, model in enumerate(models)]
    if len(models) > 1:
        return Calls(*ensemble.join(models, params))
    return Calls(models[0], params[0])
