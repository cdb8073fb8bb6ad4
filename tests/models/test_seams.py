# SPDX-License-Identifier: Apache-2.0
"""Parts of a user's own in the Transformer, a few lines each: trained, decoded and inspected."""

from typing import NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from families import SOURCE, TARGET_IN, TINY, Calls

from transformer.arrays import gather
from transformer.batch import Batch, target_log_probs
from transformer.config import DecodeConfig, OptimizerConfig
from transformer.decoding.generate import generate
from transformer.inspection.trace import run
from transformer.models.cached_attention import CachedAttention
from transformer.models.transformer import Decoder, DecoderLayer, Transformer
from transformer.nn.dropout import apply_dropout
from transformer.nn.feed_forward import FeedForward
from transformer.nn.linear import project
from transformer.nn.norm import RMSNorm
from transformer.nn.parameters import declare, glorot_uniform
from transformer.nn.positions import NO_POSITIONS
from transformer.training.losses import smoothed_cross_entropy
from transformer.training.optimizers import optimizer
from transformer.training.step import TrainState, loss, train_step

SHALLOW = TINY.replace(decoder_layers=1)
ADAM = OptimizerConfig(schedule="constant", warmup_steps=1, learning_rate=0.01)


def trained(model, batch, steps):
    """Fresh parameters, those after some steps, and the losses before each."""
    adam = optimizer(model, ADAM)
    state = jax.jit(lambda key: TrainState.create(model, adam, key))(jax.random.key(0))
    state = state.replace(params=nn.unbox(state.params))
    step = jax.jit(lambda state: train_step(model, adam, state, batch))
    before, sums = state.params, []
    for _ in range(steps):
        state, of_step = step(state)
        sums.append(float(of_step.loss / of_step.tokens))
    return before, state.params, sums


# Query-key normalization (Henry et al. 2020).


class NormalizedAttention(CachedAttention):
    """Queries and keys have a root mean square of 1, times a learned scale."""

    def setup(self):
        """Two norms over the head size."""
        super().setup()
        self.query_norm, self.key_norm = RMSNorm(1e-6), RMSNorm(1e-6)

    def adjust(self, x, name):
        """Normalized before a rotation."""
        return {"query": self.query_norm, "key": self.key_norm}[name](x)


class NormalizedLayer(DecoderLayer):
    """In both attentions of a decoder layer."""

    attention_class = cross_attention_class = NormalizedAttention


# A decoder with layers of two kinds.


class TwoKindsDecoder(Decoder):
    """The first layer normalizes queries and keys, the others do not."""

    def make_layers(self):
        """One layer of the first kind."""
        others = [DecoderLayer(self.config) for _ in range(self.config.depth("decoder") - 1)]
        return [NormalizedLayer(self.config), *others]


class TwoKinds(Transformer):
    """The same encoder."""

    decoder_class = TwoKindsDecoder


# Linear attention, whose cache is a sum (Katharopoulos et al. 2020).


@flax.struct.dataclass
class LinearCache:
    """The sum over positions of key x (value, 1), for each beam; it needs no capacity."""

    total: jax.Array  # [BG, K, N, H, Hv + 1]

    def grow(self, slots):
        """A sum has no slots."""
        return self

    def reorder(self, parents):
        """Beams continue with their parents' sums."""
        return LinearCache(gather(self.total, parents[:, :, None, None, None]))


class LinearAttention(CachedAttention):
    """Causal attention with the weights phi(q) . phi(k), where phi(x) = elu(x) + 1."""

    def features(self, x, positions):
        """phi(q), and key x (value, 1), of each position."""
        key, value = self.keys_values(x, x, positions)
        value = jnp.concatenate([value, jnp.ones_like(value[..., :1])], axis=-1)
        summand = jnp.einsum("BTNH,BTNV->BTNHV", nn.elu(key) + 1, value)
        query = project("BTD,DNH->BTNH", x, self.query_kernel)
        return nn.elu(positions.rotate(query)) + 1, summand

    def output(self, query, total):
        """phi(q) . sum, divided by the last element, through the output map."""
        z = jnp.einsum("BTNH,BTNHV->BTNV", query, total)
        z = z[..., :-1] / z[..., -1:]
        return project("BTNH,NHD->BTD", z, self.output_kernel, self.output_bias)

    def __call__(self, x, keys_from, values_from, mask=None, *, positions, **options):
        """All positions at once."""
        query, summand = self.features(x, positions)
        return self.output(query, summand.cumsum(axis=1))

    def init_cache(self, groups, num_beams, length, dtype):
        """Zeros."""
        d_k, d_v = self.config.head_widths(self.side)
        shape = (groups, num_beams, self.config.heads(self.side), d_k, d_v + 1)
        return LinearCache(jnp.zeros(shape, dtype))

    def step(self, x, cache, index, mask, positions=NO_POSITIONS):
        """Add the position to the sum of its beam."""
        query, summand = self.features(x, positions)
        total = cache.total + summand
        return self.output(query, total), LinearCache(total)


class LinearLayer(DecoderLayer):
    """Self-attention that is linear."""

    attention_class = LinearAttention


class LinearDecoder(Decoder):
    """In every layer."""

    layer_class = LinearLayer


class Linear(Transformer):
    """The same encoder and cross-attention."""

    decoder_class = LinearDecoder


# A mixture of experts with a loss that balances their load (Fedus et al. 2021).


class Experts(nn.Module):
    """Two networks, of which each token reads the one that the router prefers."""

    config: object
    number = 2

    @nn.compact
    def __call__(self, x, dropout=None):
        """The output of the chosen network, times its probability."""
        shape = (self.config.d_model, self.number)
        router = declare(self, "router", "kernel", ("embed", "expert"), glorot_uniform(0, 1), shape)
        shares = jax.nn.softmax(project("BTD,DE->BTE", x, router).astype(jnp.float32))
        chosen = jax.nn.one_hot(shares.argmax(-1), self.number)  # [B, T, E]
        load = chosen.mean((0, 1)) * shares.mean((0, 1))
        self.sow("losses", "balance", 0.01 * self.number * load.sum())
        experts = [FeedForward(self.config, name=f"expert_{i}") for i in range(self.number)]
        outputs = jnp.stack([expert(x, dropout) for expert in experts], axis=-1)  # [B, T, D, E]
        return jnp.einsum("BTDE,BTE->BTD", outputs, (chosen * shares).astype(x.dtype))


class ExpertLayer(DecoderLayer):
    """The layer of the paper with this network."""

    feed_forward_class = Experts


class ExpertDecoder(Decoder):
    """In every layer."""

    layer_class = ExpertLayer


class MixtureOfExperts(Transformer):
    """In the decoder."""

    decoder_class = ExpertDecoder


def test_a_mixture_of_experts_is_trained_and_evaluated_with_its_balancing_loss():
    """Also with recomputed activations; the least loss, 0.01, is that of equal loads."""
    model = MixtureOfExperts(SHALLOW.replace(dropout=0.0, remat="full"))
    batch = Batch(SOURCE, TARGET_IN)
    before, after, sums = trained(model, batch, 5)
    assert sums[-1] < sums[0]
    for layer in before["decoder"]:
        routers = (params["decoder"][layer]["feed_forward"]["router"] for params in (before, after))
        assert (next(routers) != next(routers)).any()

    @jax.jit
    def losses(params):
        logits, sown = model.apply(
            {"params": params}, **batch.inputs(model.config.bos_id), mutable=["losses"]
        )
        of_tokens = smoothed_cross_entropy(logits, batch.target)
        balance = sum(jax.tree.leaves(sown))
        return loss(model, params, batch), of_tokens.loss, balance * of_tokens.tokens

    evaluated, of_tokens, balance = losses(before)
    assert balance >= 0.01 * evaluated.tokens
    assert float(evaluated.loss - of_tokens) == pytest.approx(float(balance), rel=1e-3)
    assert sums[0] == pytest.approx(float(evaluated.loss / evaluated.tokens), rel=1e-5)


# All of them in a search.


@pytest.mark.parametrize(
    ("model_class", "config", "grow"),
    [(TwoKinds, TINY, False), (Linear, SHALLOW, True), (MixtureOfExperts, SHALLOW, False)],
)
def test_cached_steps_give_the_logits_of_teacher_forcing(model_class, config, grow):
    """Also of beams that are reordered, and of a cache of another kind that grows."""
    model = model_class(config)
    Calls(model, oracle.random_params(model, seed=0)).check_steps(groups=2, grow=grow)


def test_normalized_queries_are_inspected_as_they_are():
    """They are those of the first layer alone."""
    model = TwoKinds(TINY)
    params = oracle.random_params(model, seed=0)
    _, trace = jax.jit(lambda: run(model, params, SOURCE[0], TARGET_IN[0], capture="full"))()
    for kind, name in (("decoder", "self_attention"), ("cross", "cross_attention")):
        query = trace.attention(kind).query  # [L, N, T, H]
        scale = params["decoder"]["layer_0"][name]["query_norm"]["scale"]
        deviations = [float(jnp.square(x).mean(-1).std()) for x in (query[0] / scale, query[1])]
        assert deviations[0] < 1e-4 < deviations[1]


# Frames of speech as the source.


class Speech(NamedTuple):
    """A source that is no text."""

    frames: jax.Array  # [B, S, F]
    mask: jax.Array  # [B, S]


class Listener(Transformer):
    """A linear map of each frame replaces the token embedding."""

    def setup(self):
        """Its kernel [F,D]."""
        super().setup()
        axes, shape = ("feature", "embed"), (4, self.config.d_model)
        self.frame_kernel = declare(self, "frames", "kernel", axes, glorot_uniform(0, 1), shape)

    def example_inputs(self):
        """One frame and one token."""
        return Speech(jnp.zeros((1, 1, 4)), jnp.ones((1, 1), bool)), jnp.zeros((1, 1), jnp.int32)

    def source_mask(self, source):
        """Sentences have frames of different number."""
        return source.mask

    def embed_source(self, source, positions, dropout):
        """W frame + position."""
        x = project("BSF,FD->BSD", source.frames, self.frame_kernel) + positions
        return apply_dropout(self, x, self.config.dropout, dropout)


def test_frames_are_the_source_of_a_transformer_that_is_trained_and_searched():
    model = Listener(SHALLOW)
    frames = jnp.asarray(np.random.default_rng(0).standard_normal((3, 6, 4)), jnp.float32)
    mask = jnp.arange(6) < jnp.array([[6], [4], [5]])
    speech = Speech(frames, mask)
    _, params, sums = trained(model, Batch(speech, TARGET_IN), 5)
    assert sums[-1] < sums[0]

    config = DecodeConfig(beams=1, extra_length=2)
    search = jax.jit(lambda params, speech: generate(model, params, speech, config))
    found = search(params, speech)
    tokens = found.tokens[:, 0]
    score = jax.jit(lambda params, *batch: target_log_probs(model, params, Batch(*batch)))
    log_probs = score(params, speech, tokens).sum(-1)
    np.testing.assert_allclose(found.log_probs[:, 0], log_probs, rtol=1e-4)
    assert (tokens == model.config.eos_id).any(-1).all()
    masked = Speech(jnp.where(mask[..., None], frames, 9.0), mask)
    np.testing.assert_array_equal(search(params, masked).tokens, found.tokens)
