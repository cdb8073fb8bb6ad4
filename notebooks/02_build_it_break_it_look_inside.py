# SPDX-License-Identifier: Apache-2.0
"""The encoder-decoder Transformer in plain JAX, then without each of its parts."""

# %% [markdown]
# # Build it, break it, look inside
#
# This notebook builds the encoder-decoder Transformer of *Attention Is All You Need* (Vaswani et
# al. 2017) in plain JAX, without modules or other libraries:
#
# 1. **Build it.** Each cell is one part: a short function, the reason for the part, and a check
#    that the function equals the library's to 1e-5.
# 2. **Break it.** The model is trained with all its parts, then without positions, residual
#    connections, several heads, the scale of the scores, the causal mask, label smoothing, warm-up,
#    and with one vector instead of the memory. One table compares them.
# 3. **Look inside.** The attention of the trained models shows what each of them learned to read.
#
# The task is to reverse a string of letters. It needs no understanding, but every part of the
# model: the last letter comes first, so the decoder must find a position in the source and read it.

# %%
import functools
import inspect
import itertools
import os
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from experiments.configs import reverse
from experiments.data.grammars import symbols
from experiments.studies.exercises import Answer
from transformer import compile_cache
from transformer.batch import Batch
from transformer.config import DecodeConfig, OptimizerConfig
from transformer.decoding.generate import generate
from transformer.inspection import figures, run
from transformer.models import protocol
from transformer.models.transformer import DecoderLayer, EncoderLayer
from transformer.nn import masks, multi_head_attention, positions
from transformer.nn.attention import attention as library_attention
from transformer.nn.embedding import Embedding
from transformer.nn.feed_forward import feed_forward as library_feed_forward
from transformer.nn.norm import layer_norm as library_layer_norm
from transformer.nn.residual import Residual
from transformer.training import losses, optimizers
from transformer.training.step import loss as batch_loss

FULL_TRAINING = 800
STEPS = int(os.environ.get("TRAINING_STEPS", FULL_TRAINING))
SEEDS, TESTED = ((0, 1, 2), 256) if STEPS == FULL_TRAINING else ((0,), 32)

compile_cache.enable()  # what compiles here need not compile the next time

same = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)

# %% [markdown]
# ## The task
#
# The strings are those of the library's corpus `reverse` with at most 12 letters (of 26); no string
# is in two splits. A token is a letter. Ids 0 to 3 are padding, BOS (begin of sequence), EOS (end
# of sequence) and unknown. Source and target end with EOS and are padded to one length.

# %%
PAD, BOS, EOS, FIRST_LETTER = 0, 1, 2, 4
LONGEST = 12
LENGTH = LONGEST + 1
PIECES = ["<pad>", "<s>", "</s>", "<unk>", *symbols.LETTERS]
config = reverse.get_config().model
VOCABULARY, WIDTH, HEADS, LAYERS = (
    config.vocab_size,
    config.d_model,
    config.num_heads,
    config.num_layers,
)


def to_ids(strings, length=LENGTH):
    """Token ids of strings and of their reversals, [B,S] and [B,T]."""
    source, target = np.zeros((2, len(strings), length), np.int32)
    for row, string in enumerate(strings):
        ids = [PIECES.index(letter) for letter in string]
        source[row, : len(ids) + 1] = *ids, EOS
        target[row, : len(ids) + 1] = *ids[::-1], EOS
    return source, target


splits = symbols.strings()
short = {
    name: [string for string in strings if len(string) <= LONGEST]
    for name, strings in splits.items()
}
train_source, train_target = to_ids(short["train"])
test_source, test_target = to_ids(short["test"][:TESTED])
print(f"{len(train_source):,} strings for training, {len(test_source):,} for the test")
print("source:", *(PIECES[token] for token in test_source[0] if token))
print("target:", *(PIECES[token] for token in test_target[0] if token))

# %% [markdown]
# ## 1. Build it
#
# ### Before attention: one vector for the sentence
#
# The first neural translators had two recurrent networks. The encoder read the source, and its last
# state, one vector, was all that the decoder received (Sutskever et al. 2014). However long the
# sentence is, the vector has the same size. Bahdanau et al. (2015) removed this bottleneck: the
# decoder reads one vector *per source position*, and decides at every step which to read. That is
# attention. The Transformer uses nothing else to move information between positions.
#
# The functions below take `parts`, a set of switches: 1 keeps a part, 0 takes it out. All are 1
# until the second half of the notebook.


# %%
class Parts(NamedTuple):
    """Parts of the model: 1 keeps a part, 0 takes it out."""

    positions: float = 1.0
    """Position encodings are added to the embeddings."""
    scale: float = 1.0
    """Scores are divided by sqrt(d_k)."""
    residuals: float = 1.0
    """Each sub-layer's input is added to its output."""
    causal_mask: float = 1.0
    """A target position cannot attend to later ones."""
    memory: float = 1.0
    """The decoder reads a vector per source position; with 0, only their mean."""


WHOLE = Parts()

# The library's model, with random parameters, for the comparisons.
library_model = protocol.build(config)
tokens = jnp.zeros((1, 1), jnp.int32)
random_params = nn.unbox(library_model.init(jax.random.key(0), tokens, tokens))["params"]
source, target = jnp.asarray(test_source[:8]), jnp.asarray(test_target[:8])

# %% [markdown]
# ### Embedding and position
#
# A token id selects a row of a table. Attention itself has no order: it is a weighted sum over a
# *set* of vectors. So a position encoding is added to each embedding, sines and cosines of
# geometrically growing wavelengths (paper 3.5). The rows of the table begin with variance
# 1/d_model; the factor √d_model brings them to the size of the encodings (paper 3.4).


# %%
def position_encodings(length, width):
    """PE[p, 2i] = sin(p / 10000^(2i/D)) and PE[p, 2i+1] = cos(the same), [T,D]."""
    angle = np.arange(length)[:, None] / 10000 ** (np.arange(0, width, 2) / width)  # [T, D/2]
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(length, width)


def embed(table, tokens, parts=WHOLE):
    """Embedding times sqrt(d_model), plus position, [B,T,D]."""
    length, width = tokens.shape[1], table.shape[1]
    encodings = jnp.asarray(position_encodings(length, width), jnp.float32)
    return table[tokens] * np.sqrt(width) + parts.positions * encodings


table = random_params["embedding"]["table"]
same(position_encodings(LENGTH, WIDTH), positions.sinusoids(LENGTH, WIDTH))
encodings = jnp.asarray(positions.sinusoids(LENGTH, WIDTH), jnp.float32)
embedding = Embedding(config)
x = embedding.apply({"params": {"table": table}}, source, encodings, method=Embedding.embed)
same(embed(table, source), x)
sizes = {"table": table, "table * sqrt(d_model)": table * np.sqrt(WIDTH), "position": encodings}
print("root mean square of a component")
for name, array in sizes.items():
    print(f"  {name:22} {jnp.sqrt(jnp.mean(array**2)):.2f}")

# %% [markdown]
# ### Scaled dot-product attention
#
# Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V (paper 3.2.1). Every query is compared with every key.
# The softmax turns the scores of a query into weights that sum to 1, and the output is the sum of
# the values with these weights. A mask sets the scores of forbidden keys to −∞ (here a very
# negative number), so their weights are exactly 0.


# %%
def attention(query, key, value, mask, parts=WHOLE):
    """Softmax(Q K^T / sqrt(d_k)) V, [B,T,N,H], and the weights, [B,N,T,S]."""
    scores = jnp.einsum("BTNH,BSNH->BNTS", query, key)
    scores = scores / jnp.where(parts.scale, np.sqrt(query.shape[-1]), 1.0)
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e30), axis=-1)
    return jnp.einsum("BNTS,BSNH->BTNH", weights, value), weights


rng = np.random.default_rng(0)
query, key, value = jnp.asarray(rng.normal(size=(3, 2, 7, HEADS, 16)), jnp.float32)
mask = jnp.asarray(rng.random((2, 1, 7, 7)) < 0.7).at[..., 0].set(True)
z, weights = attention(query, key, value, mask)
tapped = {}  # the values that the library names: scores and weights
expected = library_attention(query, key, value, mask, tap=tapped.setdefault)
same(z, expected)
same(weights, tapped["weights"])

# %% [markdown]
# **Why √d_k?** A dot product of two random vectors of d_k components has a standard deviation of
# √d_k. Without the division the scores grow with d_k, the softmax puts nearly all weight on one
# key, and its gradient vanishes. Measured on random queries and 20 keys:

# %%
print("      without the scale:                   with the scale:")
print(" d_k  std of scores  max weight  gradient   std of scores  max weight  gradient")
scale_effect, COLUMNS = {}, (14, 11, 9, 15, 11, 9)
for d_k in (4, 16, 64, 256):
    queries, keys = rng.normal(size=(2, 400, 20, d_k))
    scores = np.einsum("BH,BSH->BS", queries[:, 0], keys)
    columns = []
    for scaled in (scores, scores / np.sqrt(d_k)):
        weights = np.asarray(jax.nn.softmax(scaled, axis=-1))
        # The derivative of each weight by its own score is w (1 - w).
        gradient = (weights * (1 - weights)).sum(-1).mean()
        columns += [scaled.std(), weights.max(-1).mean(), gradient]
    scale_effect[d_k] = columns
    print(
        f"{d_k:4}"
        + " ".join(f"{each:{width}.2f}" for each, width in zip(columns, COLUMNS, strict=True))
    )

# %% [markdown]
# ### Predict, then run
#
# **Exercise 1.** The encoder reads *a b c* and then *c b a*, both without position encodings. What
# happens to the output of self-attention at the letter *b*? Decide, then run the cell.

# %%
letters = jnp.array([[4, 5, 6], [6, 5, 4]])
without_positions = embed(table, letters, WHOLE._replace(positions=0.0))[:, :, None]  # [2, 3, 1, D]
with_positions = embed(table, letters)[:, :, None]
order_effect = []
for x in (without_positions, with_positions):
    z, _ = attention(x / 3, x / 3, x, jnp.ones((1, 1, 3, 3), bool))  # Small scores: spread weights.
    order_effect.append(float(jnp.abs(z[0, 1] - z[1, 1]).max()))
Answer(
    f"Without positions it stays the same: the largest difference is {order_effect[0]:.0e}. The "
    f"output is a sum over a set, and sums have no order. With positions it differs by up to "
    f"{order_effect[1]:.2f}."
)

# %% [markdown]
# ### Several heads
#
# One softmax per position gives one weighted mean. A position that must read two things at once
# (its neighbor, and a word far away) would have to average them. So each layer has N heads:
# separate projections to N small queries, keys and values, N softmaxes, and a matrix W^O that maps
# all outputs back (paper 3.2.2). The cost is that of one head of full width.


# %%
def multi_head_attention_of(params, queries_from, keys_from, mask, parts=WHOLE):
    """Project, attend with every head, and map back, [B,T,D]; also the weights."""
    query = jnp.einsum("BTD,DNH->BTNH", queries_from, params["query"])
    key = jnp.einsum("BSD,DNH->BSNH", keys_from, params["key"])
    value = jnp.einsum("BSD,DNH->BSNH", keys_from, params["value"])
    z, weights = attention(query, key, value, mask, parts)
    return jnp.einsum("BTNH,NHD->BTD", z, params["output"]), weights


x = embed(table, source)
params = random_params["encoder"]["layer_0"]["self_attention"]
module = multi_head_attention.MultiHeadAttention(config, "encoder")
expected = module.apply({"params": params}, x, x, x, masks.padding_mask(source))
output, _ = multi_head_attention_of(params, x, x, (source != PAD)[:, None, None, :])
same(output, expected)

# %% [markdown]
# ### Masks
#
# Padding fills the strings of a batch; no query may attend to it. In training the decoder reads the
# complete target at once, so a position must not see later ones, or it would see the token that it
# is to predict (paper 3.2.3).


# %%
def padding_mask(tokens):
    """True where a key is no padding, [B,1,1,S]."""
    return (tokens != PAD)[:, None, None, :]


def causal_mask(length, parts=WHOLE):
    """True where key position <= query position, [1,1,T,T]; true everywhere without the part."""
    earlier = jnp.tril(jnp.ones((length, length), bool))
    return (earlier | (parts.causal_mask == 0))[None, None]


np.testing.assert_array_equal(padding_mask(source), masks.padding_mask(source))
np.testing.assert_array_equal(causal_mask(LENGTH), masks.causal_mask(LENGTH))

# %% [markdown]
# ### Feed-forward network, layer norm, residual connection
#
# Attention mixes positions, but it only averages values. The **feed-forward network** computes at
# each position alone; but for the layer norm, it is the only nonlinear map of a vector (paper 3.3).
#
# Each sub-layer is wrapped: LayerNorm(x + Sublayer(x)) (paper 3.1). **Layer norm** keeps the scale
# of the vectors constant (Ba et al. 2016). The **residual connection** x + ... keeps what was there
# before: a sub-layer adds to a vector, it does not replace it (He et al. 2016). It also gives the
# gradient a path around every sub-layer.


# %%
def feed_forward(params, x):
    """Max(0, x W1 + b1) W2 + b2 at every position."""
    hidden = jax.nn.relu(x @ params["kernel_in"] + params["bias_in"])
    return hidden @ params["kernel_out"] + params["bias_out"]


def layer_norm(params, x):
    """(x - mean) / sqrt(variance + 1e-6) * scale + bias, over the components of each vector."""
    centered = x - x.mean(-1, keepdims=True)
    variance = (centered**2).mean(-1, keepdims=True)
    return centered / jnp.sqrt(variance + 1e-6) * params["scale"] + params["bias"]


def residual(params, x, output, parts=WHOLE):
    """LayerNorm(x + Sublayer(x)), given the sub-layer's output."""
    return layer_norm(params["norm"], parts.residuals * x + output)


layer = random_params["encoder"]["layer_0"]
norm = {"scale": jnp.asarray(rng.normal(size=WIDTH)), "bias": jnp.asarray(rng.normal(size=WIDTH))}
same(feed_forward(layer["feed_forward"], x), library_feed_forward(x, **layer["feed_forward"]))
same(layer_norm(norm, x), library_layer_norm(x, **norm, epsilon=1e-6))
wrapped = Residual(config).apply({"params": {"norm": norm}}, x, jnp.sin(x))
same(residual({"norm": norm}, x, jnp.sin(x)), wrapped)

# %% [markdown]
# ### One layer of the encoder, one of the decoder
#
# An encoder layer has two sub-layers: self-attention over the source, then the feed-forward
# network. A decoder layer has three: self-attention over the target so far, **encoder-decoder
# attention**, in which the queries come from the decoder and the keys and values from the encoder's
# output (the *memory*), and the feed-forward network.


# %%
def encoder_layer(params, x, mask, parts=WHOLE):
    """Self-attention, then feed-forward; also the attention weights."""
    output, weights = multi_head_attention_of(params["self_attention"], x, x, mask, parts)
    x = residual(params["self_attention_residual"], x, output, parts)
    output = feed_forward(params["feed_forward"], x)
    return residual(params["feed_forward_residual"], x, output, parts), weights


def decoder_layer(params, x, memory, self_mask, cross_mask, parts=WHOLE):
    """Self-attention, encoder-decoder attention, feed-forward; also the weights of the second."""
    output, _ = multi_head_attention_of(params["self_attention"], x, x, self_mask, parts)
    x = residual(params["self_attention_residual"], x, output, parts)
    output, weights = multi_head_attention_of(
        params["cross_attention"], x, memory, cross_mask, parts
    )
    x = residual(params["cross_attention_residual"], x, output, parts)
    output = feed_forward(params["feed_forward"], x)
    return residual(params["feed_forward_residual"], x, output, parts), weights


expected = EncoderLayer(config).apply({"params": layer}, x, masks.padding_mask(source))
memory, _ = encoder_layer(layer, x, padding_mask(source))
same(memory, expected)

params = random_params["decoder"]["layer_0"]
y = embed(table, target)
both_masks = causal_mask(LENGTH), padding_mask(source)
expected = DecoderLayer(config).apply({"params": params}, y, memory, *both_masks)
same(decoder_layer(params, y, memory, *both_masks)[0], expected)

# %% [markdown]
# ### The model
#
# The encoder turns the source into the memory. The decoder reads the target, shifted right by one
# position after BOS, and the memory. The last vector of each position times the *same* embedding
# table gives the logits of the next token (paper 3.4).


# %%
def shift_right(target):
    """What the decoder reads: BOS, then the target without its last token."""
    return jnp.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=BOS)


def encode(params, source, parts=WHOLE):
    """The memory, [B,S,D], and the weights of each layer."""
    x, all_weights = embed(params["embedding"]["table"], source, parts), []
    for number in range(len(params["encoder"])):
        x, weights = encoder_layer(
            params["encoder"][f"layer_{number}"], x, padding_mask(source), parts
        )
        all_weights.append(weights)
    real = (source != PAD)[..., None]
    mean = (x * real).sum(1, keepdims=True) / real.sum(1, keepdims=True)  # [B, 1, D]
    return jnp.where(parts.memory, x, mean), all_weights


def transformer(params, source, target_in, parts=WHOLE):
    """Logits of the next token, [B,T,V], and the encoder-decoder attention of each layer."""
    memory, _ = encode(params, source, parts)
    y, all_weights = embed(params["embedding"]["table"], target_in, parts), []
    both_masks = causal_mask(target_in.shape[1], parts), padding_mask(source)
    for number in range(len(params["decoder"])):
        y, weights = decoder_layer(
            params["decoder"][f"layer_{number}"], y, memory, *both_masks, parts
        )
        all_weights.append(weights)
    return y @ params["embedding"]["table"].T, all_weights


def initialize(key, vocabulary, width, hidden, heads, number_of_layers):
    """Random parameters: kernels of Glorot and Bengio (2010), embeddings of variance 1/D."""
    keys = map(functools.partial(jax.random.fold_in, key), itertools.count())
    size = width // heads

    def kernel(fan_in, fan_out, *shape):
        limit = np.sqrt(6 / (fan_in + fan_out))
        return jax.random.uniform(next(keys), shape, minval=-limit, maxval=limit)

    def attention_kernels():
        names = ("query", "key", "value")
        kernels = {name: kernel(width, heads * size, width, heads, size) for name in names}
        return kernels | {"output": kernel(heads * size, width, heads, size, width)}

    def layer_params(*kinds):
        params = {kind: attention_kernels() for kind in kinds}
        params["feed_forward"] = {
            "kernel_in": kernel(width, hidden, width, hidden),
            "bias_in": jnp.zeros(hidden),
            "kernel_out": kernel(hidden, width, hidden, width),
            "bias_out": jnp.zeros(width),
        }
        norm = {"scale": jnp.ones(width), "bias": jnp.zeros(width)}
        return params | {f"{name}_residual": {"norm": norm} for name in params}

    def stack(*kinds):
        return {f"layer_{number}": layer_params(*kinds) for number in range(number_of_layers)}

    table = jax.random.normal(next(keys), (vocabulary, width)) / np.sqrt(width)
    return {
        "embedding": {"table": table},
        "encoder": stack("self_attention"),
        "decoder": stack("self_attention", "cross_attention"),
    }


logits, _ = transformer(random_params, source, shift_right(target))
expected = library_model.apply({"params": random_params}, source, shift_right(target))
same(logits, expected)

# The same tree of parameters as the library's, with the same shapes and spread.
fresh = initialize(jax.random.key(0), VOCABULARY, WIDTH, config.d_ff, HEADS, LAYERS)
jax.tree.map(lambda ours, library: same(ours.shape, library.shape), fresh, random_params)
jax.tree.map(
    lambda ours, library: np.testing.assert_allclose(ours.std(), library.std(), rtol=0.1),
    *(fresh, random_params),
)
print(
    f"{sum(leaf.size for leaf in jax.tree.leaves(fresh)):,} parameters, as in the library's model"
)

# %% [markdown]
# **Why residual connections?** Attention averages, and averages of averages become equal. Without
# residual connections the vectors of all positions grow alike within a few layers, and the decoder
# cannot tell one position from another (Dong et al. 2021). Residual connections slow this down. The
# mean cosine between the vectors of two positions of one string, in stacks of untrained layers (1:
# all positions have the same direction):

# %%
DEPTHS = (1, 2, 4, 8)


def mean_cosine(vectors):
    """Mean cosine between the vectors of different positions, [S,D]."""
    unit = vectors / jnp.linalg.norm(vectors, axis=-1, keepdims=True)
    cosines = unit @ unit.T
    return float((cosines.sum() - len(unit)) / (len(unit) * (len(unit) - 1)))


longest = test_source[(test_source != PAD).sum(1).argmax()][None]
deep = initialize(jax.random.key(1), VOCABULARY, WIDTH, config.d_ff, HEADS, max(DEPTHS))
collapse = {}
for kept in (1.0, 0.0):
    for depth in DEPTHS:
        shallow = dict(itertools.islice(deep["encoder"].items(), depth))
        params = {"embedding": deep["embedding"], "encoder": shallow}
        vectors, _ = encode(params, jnp.asarray(longest), WHOLE._replace(residuals=kept))
        collapse[kept, depth] = mean_cosine(vectors[0])
print("layers                       " + "".join(f"{depth:7}" for depth in DEPTHS))
for kept, name in ((1.0, "with residual connections"), (0.0, "without")):
    print(f"{name:29}" + "".join(f"{collapse[kept, depth]:7.2f}" for depth in DEPTHS))

# %% [markdown]
# ### The loss
#
# Cross-entropy against a smoothed label: 0.9 for the correct token, and 0.1 divided equally among
# the others (paper 5.4; Szegedy et al. 2016). A label of 1 could only be reached with infinite
# logits. A label of 0.9 tells the model to stop growing them.


# %%
def loss_sums(params, source, target, smoothing, parts=WHOLE):
    """Sums over the target tokens: smoothed loss, negative log-likelihood, correct, tokens."""
    logits, _ = transformer(params, source, shift_right(target), parts)
    log_probs = jax.nn.log_softmax(logits)
    nll = -jnp.take_along_axis(log_probs, target[..., None], axis=-1)[..., 0]  # [B, T]
    other = smoothing / (logits.shape[-1] - 1)
    loss = (1 - smoothing - other) * nll - other * log_probs.sum(-1)
    real = target != PAD
    correct = logits.argmax(-1) == target
    return tuple((each * real).sum() for each in (loss, nll, correct, jnp.ones_like(nll)))


def mean_loss(params, source, target, smoothing, parts=WHOLE):
    """Smoothed loss per token."""
    loss, _, _, tokens = loss_sums(params, source, target, smoothing, parts)
    return loss / tokens


batch = Batch(source, target)


def library_loss(params):
    """The library's smoothed loss per token."""
    sums = batch_loss(library_model, params, batch)
    return sums.loss / sums.tokens


sums = loss_sums(random_params, source, target, 0.1)
expected = losses.smoothed_cross_entropy(logits, target, 0.1)
same(sums, (expected.loss, expected.nll, expected.correct, expected.tokens))
gradient = jax.jit(jax.grad(mean_loss))(random_params, source, target, 0.1)
jax.tree.map(same, gradient, jax.jit(jax.grad(library_loss))(random_params))
print("loss, NLL and every gradient equal the library's")

# %% [markdown]
# ### Warm-up and Adam
#
# The learning rate rises linearly to a peak during the **warm-up**, then falls with the inverse
# square root of the step (paper 5.3). Adam divides each gradient by the root of its mean square. In
# the first steps that mean comes from a handful of batches, and the layer norms after each residual
# connection amplify the gradients near the output (Xiong et al. 2020); small first steps avoid the
# damage.


# %%
def learning_rate(step, peak, warmup, warm_up=True):
    """The rate of step 1, 2, ...: up to `peak` in `warmup` steps, then peak sqrt(warmup/step)."""
    decayed = peak * min(1.0, (warmup / step) ** 0.5)
    return min(decayed, peak * step / warmup) if warm_up else decayed


def adam(gradient, mean, square, count, rate):
    """One step of Adam (Kingma and Ba 2015) with the paper's constants: update, new moments."""
    mean = 0.9 * mean + 0.1 * gradient
    square = 0.98 * square + 0.02 * gradient**2
    unbiased = mean / (1 - 0.9**count), square / (1 - 0.98**count)
    return -rate * unbiased[0] / (jnp.sqrt(unbiased[1]) + 1e-9), mean, square


def train_step(state, source, target, rate, smoothing, parts):
    """One update of (params, means, squares, count); also the sums of the loss."""
    params, means, squares, count = state
    gradient = jax.grad(mean_loss)(params, source, target, smoothing, parts)
    count = count + 1
    moved = jax.tree.map(
        lambda *arrays: adam(*arrays, count, rate), *(gradient, means, squares)
    )  # A tuple instead of each leaf.
    outer, inner = jax.tree.structure(params), jax.tree.structure((0, 0, 0))
    updates, means, squares = jax.tree.transpose(outer, inner, moved)
    params = jax.tree.map(jnp.add, params, updates)
    return params, means, squares, count


WARMUP, PEAK = 100, 0.004
paper = OptimizerConfig(warmup_steps=WARMUP, learning_rate=PEAK * (WIDTH * WARMUP) ** 0.5)
schedule = optimizers.schedule(paper, WIDTH, STEPS)
for step in (1, 50, 100, 1000):
    same(learning_rate(step, PEAK, WARMUP), schedule(step - 1))

# Three updates of one parameter, by our Adam and by the library's optimizer.
optimizer = optimizers.optimizer(library_model, paper, STEPS)
library_state = optimizer.init(random_params)
mean = square = jnp.zeros_like(table)
for step in (1, 2, 3):
    gradients = jax.tree.map(lambda leaf, n=step: jnp.sin(n * leaf), random_params)
    updates, library_state = optimizer.update(gradients, library_state, random_params)
    ours = gradients["embedding"]["table"], mean, square, step
    update, mean, square = adam(*ours, learning_rate(step, PEAK, WARMUP))
    same(update, updates["embedding"]["table"], atol=1e-8)

# %% [markdown]
# ### Greedy search
#
# The encoder runs once. The decoder then generates one token at a time: it reads what it has
# generated so far and appends the most probable next token. (The library caches keys and values, so
# that each position is computed once. Here the decoder computes all positions again, which is slow
# and short. A random model does not end its strings, so the comparison with the library's search
# follows after the training.)


# %%
@functools.partial(jax.jit, static_argnames="length")
def greedy(params, source, parts=WHOLE, length=LENGTH):
    """Generate `length` tokens for every source, [B,length]; padding after EOS."""

    def extend(position, state):
        tokens, active = state
        logits, _ = transformer(params, source, tokens[:, :-1], parts)
        chosen = jnp.where(active, logits[:, position].argmax(-1), PAD)
        return tokens.at[:, position + 1].set(chosen), active & (chosen != EOS)

    tokens = jnp.full((len(source), length + 1), PAD).at[:, 0].set(BOS)
    tokens, _ = jax.lax.fori_loop(0, length, extend, (tokens, jnp.ones(len(source), bool)))
    return tokens[:, 1:]


BUILT = (
    *(position_encodings, embed, attention, multi_head_attention_of, padding_mask, causal_mask),
    *(feed_forward, layer_norm, residual, encoder_layer, decoder_layer, shift_right, encode),
    *(transformer, initialize, loss_sums, mean_loss, learning_rate, adam, train_step, greedy),
)
lines = sum(len(inspect.getsource(part).splitlines()) for part in BUILT)
print(f"{len(BUILT)} functions, {lines} lines: model, loss, optimizer and search")

# %% [markdown]
# ## 2. Break it
#
# The same model is now trained with all parts, from three seeds, and without one part at a time.
# The three seeds show by how much the result of a training differs by chance. Each training takes
# less than half a minute of one core. As in the paper, the parameters of the last five checkpoints
# are averaged; they are 20 steps apart.
#
# | run | what is missing |
# |---|---|
# | whole | nothing |
# | no positions | the position encodings of source and target |
# | no residuals | x in LayerNorm(x + Sublayer(x)) |
# | one head | three of the four heads; the one head has the width of all four |
# | no scale | the division of the scores by √d_k |
# | no causal mask | the mask of the decoder's self-attention |
# | one vector | the memory: the decoder reads only its mean over the source positions |
# | no label smoothing | the smoothed labels: the correct token has probability 1 |
# | no warm-up | the first steps at a small rate: the first step has the peak rate |
#
# ### Predict, then run
#
# **Exercise 2.** Which runs will reverse almost no string? Which will hardly differ from the whole
# model? One run will have a loss as low as the whole model's and still fail: which? The answers are
# below the table.


# %%
class Run(NamedTuple):
    """What differs between the trainings."""

    parts: Parts = WHOLE
    heads: int = HEADS
    smoothing: float = 0.1
    warm_up: bool = True


RUNS = {
    "whole": Run(),
    "no positions": Run(WHOLE._replace(positions=0.0)),
    "no residuals": Run(WHOLE._replace(residuals=0.0)),
    "one head": Run(heads=1),
    "no scale": Run(WHOLE._replace(scale=0.0)),
    "no causal mask": Run(WHOLE._replace(causal_mask=0.0)),
    "one vector": Run(WHOLE._replace(memory=0.0)),
    "no label smoothing": Run(smoothing=0.0),
    "no warm-up": Run(warm_up=False),
}
ROWS = 32
compiled_step = jax.jit(train_step)
compiled_sums = jax.jit(loss_sums)


def train(run, seed):
    """Train for `STEPS` steps; return averaged parameters and the NLL of every tenth batch."""
    size = VOCABULARY, WIDTH, config.d_ff, run.heads, LAYERS
    params = initialize(jax.random.key(seed), *size)
    moments = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
    state, history, last = (params, *moments, jnp.zeros(())), {}, []
    order = np.random.default_rng(seed).integers(len(train_source), size=(STEPS, ROWS))
    for step, rows in enumerate(order, 1):
        batch = train_source[rows], train_target[rows]
        if step % 10 == 0:
            _, nll, _, count = compiled_sums(state[0], *batch, run.smoothing, run.parts)
            history[step] = float(nll / count)
        rate = learning_rate(step, PEAK, WARMUP, run.warm_up)
        state = compiled_step(state, *batch, rate, run.smoothing, run.parts)
        if step % 20 == 0:
            last = [*last[-4:], state[0]]
    return jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *last), history


def evaluate(params, run, source=test_source, target=test_target):
    """Teacher-forced NLL and token accuracy, and which strings greedy search reverses."""
    _, nll, correct, count = compiled_sums(params, source, target, run.smoothing, run.parts)
    generated = np.asarray(greedy(params, source, run.parts, source.shape[1]))
    return float(nll / count), float(correct / count), (generated == target).all(-1)


trained, curves, scores = {}, {}, {}
for name, seed in [("whole", seed) for seed in SEEDS] + [(name, 0) for name in [*RUNS][1:]]:
    trained[name, seed], curves[name, seed] = train(RUNS[name], seed)
    scores[name, seed] = evaluate(trained[name, seed], RUNS[name])

# %%
letters_of_test = (test_source != PAD).sum(1) - 1
LONG = letters_of_test > 8


def row_of(name, seed=0):
    """NLL, token accuracy, and the share of exact strings: all, 5 to 8 letters, 9 to 12."""
    nll, accuracy, exact = scores[name, seed]
    return nll, accuracy, exact.mean(), exact[~LONG].mean(), exact[LONG].mean()


print(f"{STEPS} steps of {ROWS} strings each; {len(test_source)} unseen strings")
print("                        NLL   token accuracy    exact   5-8 letters   9-12 letters")
for name, seed in scores:
    label = name + (f", seed {seed}" if name == "whole" else "")
    values = row_of(name, seed)
    print(f"{label:20} {values[0]:6.3f}   {values[1]:14.1%}  {values[2]:7.1%}", end="   ")
    print(f"{values[3]:11.1%}   {values[4]:12.1%}")

# %% [markdown]
# *NLL* is the negative log-likelihood per token and *token accuracy* the share of correct tokens,
# both while the decoder reads the correct target. *Exact* is the share of strings that greedy
# search reverses without a mistake; then the same by length. The library's search, with its cache,
# must generate the same tokens with these parameters, in every string that ends:

# %%
search = functools.partial(generate, library_model, config=DecodeConfig(beams=1), max_length=LENGTH)
expected = np.asarray(jax.jit(search)(trained["whole", 0], test_source).tokens)[:, 0]
generated = np.asarray(greedy(trained["whole", 0], test_source))
ended = (generated == EOS).any(-1)
np.testing.assert_array_equal(generated[ended], expected[ended])
print(f"{ended.sum()} of {len(ended)} strings end, all with the tokens of the library's search")

# %%
figures.plot_curves(
    {name: (list(curves[name, 0]), list(curves[name, 0].values())) for name in RUNS},
    x_label="step",
    y_label="NLL per token of the training batch",
    title="Training with and without each part, first seed",
)

# %%
exact = {name: row_of(name)[2] for name in RUNS}
nll = {name: row_of(name)[0] for name in RUNS}
whole = [row_of("whole", seed)[2] for seed in SEEDS]
few = [name for name in RUNS if exact[name] < 0.1]
worse = [name for name in RUNS if name not in few and exact[name] < min(whole)]
equal = [name for name in RUNS if name not in (*few, *worse, "whole")]
deceptive = [name for name in few if row_of(name)[1] > 0.99]


def listed(names):
    """The names with their share of exact strings."""
    return ", ".join(f"*{name}* ({exact[name]:.0%})" for name in names) or "none"


Answer(
    f"The whole model reverses {min(whole):.0%} to {max(whole):.0%} of the strings, by seed. "
    f"Fewer than 10%: {listed(few)}. More than that, but fewer than the whole model with any "
    f"seed: {listed(worse)}. Not worse, so this experiment does not show that the task needs the "
    f"part: {listed(equal)}.\n\nMore than 99% of the tokens right while the decoder reads the "
    f"target, and almost no string right: {', '.join(deceptive) or 'none'}."
)

# %% [markdown]
# ### What the table shows
#
# - **No positions.** Encoder and decoder see sets of letters. The source *a b c* is the
#   same set as *c b a*, so no training can help. (The causal mask gives the decoder a trace of
#   order: how many letters it has read.)
# - **No causal mask.** In training, a position sees the token that it must predict, one position to
#   its right, and copies it. The loss falls as far as the whole model's, to what label smoothing
#   leaves, and nothing useful is learned: in generation there is nothing to copy.
# - **One vector.** This is the bottleneck. One vector must hold the complete string and its order;
#   strings of 5 to 8 letters suffer less than longer ones.
# - **No label smoothing.** The NLL is lower, because the model may be as certain as it likes. The
#   paper reports the same: smoothing increases perplexity, and improved BLEU there (paper 5.4).
# - **No residuals.** The cosines above say what happens: after two layers all source positions look
#   alike, and the decoder cannot find the letter that it needs.
# - **No scale, no warm-up, one head.** The table decides for this size: d_k is 16, the network has
#   two layers, and a string in reverse has one letter to read at a time. Larger models depend more
#   on the scale and on warm-up, translation more on several heads (table 3 of the paper).
#
# *What this does not prove.* These are short trainings on one task, one for each part. A part that
# this task does not need may decide another one. Three seeds give a hint of the spread, not an
# interval.
#
# ### Predict, then run
#
# **Exercise 3.** The run without causal mask had a low NLL. Give that trained model the mask in the
# test: does the NLL stay low?

# %%
_, masked_nll, _, count = compiled_sums(
    trained["no causal mask", 0], test_source, test_target, 0.1, WHOLE
)
masked_nll = float(masked_nll / count)
Answer(
    f"No: the NLL rises from {scores['no causal mask', 0][0]:.3f} to {masked_nll:.2f}. The uniform "
    f"distribution over {VOCABULARY} tokens has {np.log(VOCABULARY):.2f}. The model had learned to "
    "look up the answer, and the mask hides it."
)

# %% [markdown]
# ## 3. Look inside
#
# The parameters have the library's names and shapes, so every tool of the library works on the
# models trained here. The encoder-decoder attention of the whole model, on one test string: rows
# are decoder positions (token read → token predicted), columns the source. A diagonal from the
# upper right to the lower left would be the reversal itself. The head is the one with the highest
# weight on the letter that comes next.

# %%
example = int(np.flatnonzero(letters_of_test == 10)[0])
one_source = test_source[example][: letters_of_test[example] + 1]
one_target = test_target[example][: letters_of_test[example] + 1]
one_target_in = np.array([BOS, *one_target[:-1]])
_, trace = run(library_model, trained["whole", 0], one_source, one_target_in, capture="weights")
cross = np.asarray(trace.attention("cross").weights)  # [L, N, T, S]


def weight_on_the_letter(name, seed=0):
    """Mean weight of every layer and head on the source of the next letter, [L,N]."""
    details = RUNS[name]
    _, weights = transformer(
        trained[name, seed], test_source, shift_right(jnp.asarray(test_target)), details.parts
    )
    weights = np.stack(weights)  # [L, B, N, T, S]
    total = 0
    for row, count in enumerate(letters_of_test):
        position = np.arange(count)
        total = total + weights[:, row, :, position, count - 1 - position].sum(0)
    return total / letters_of_test.sum()


on_letter = {name: weight_on_the_letter(name) for name in RUNS}
layer, head = np.unravel_index(on_letter["whole"].argmax(), on_letter["whole"].shape)
figures.plot_attention(
    cross[layer, head],
    figures.read_predict(
        [PIECES[token] for token in one_target_in], [PIECES[token] for token in one_target]
    ),
    [PIECES[token] for token in one_source],
    title=f"Encoder-decoder attention of the whole model, layer {layer + 1}, head {head + 1}",
)

# %% [markdown]
# How much weight does the best head of each model put on the letter that comes next, on average
# over the test strings? A head that reads at random has about 0.1.

# %%
print("run                  weight of the best head   exact")
for name, weights in on_letter.items():
    print(f"{name:19} {weights.max():24.2f}   {scores[name, 0][2].mean():5.1%}")

# %% [markdown]
# *What this does not prove.* A weight shows where a head reads, not what it does with it. And the
# vector at a source position is not its letter alone: after the encoder it can hold its neighbors,
# so a head may read beside the letter that it needs.
#
# ### Predict, then run
#
# **Exercise 4.** The whole model saw strings of at most 12 letters. What share of strings of 13 to
# 20 letters does it reverse?

# %%
longer = [string for string in splits["test"] if len(string) > LONGEST][: TESTED // 2]
longer_source, longer_target = to_ids(longer, symbols.LONGEST + 1)
_, _, longer_exact = evaluate(trained["whole", 0], RUNS["whole"], longer_source, longer_target)
Answer(
    f"{longer_exact.mean():.0%}, against {scores['whole', 0][2].mean():.0%} up to 12 letters. The "
    "encodings of the new positions are defined, but no training step ever asked the model to use "
    "them. Relative positions (`model.positions` of the config) are one remedy."
)

# %% [markdown]
# ## Where to go on
#
# - Change the code: give the decoder two memories, put the layer norm before the sub-layer
#   (*pre-norm*, Xiong et al. 2020), share one layer for all depths. Train it with `train` and add a
#   row to the table.
# - Notebook 03 trains the library's model on translation, step by step.
# - `python -m experiments.studies.variants` compares all variants that the library has.
#
# ## References
#
# - Vaswani et al. (2017), *Attention Is All You Need*; Rush (2018), *The Annotated Transformer*,
#   the classic line-by-line implementation.
# - Sutskever, Vinyals and Le (2014), *Sequence to Sequence Learning with Neural Networks*;
#   Bahdanau, Cho and Bengio (2015), *Neural Machine Translation by Jointly Learning to Align and
#   Translate*.
# - He et al. (2016), *Deep Residual Learning*; Ba, Kiros and Hinton (2016), *Layer Normalization*;
#   Szegedy et al. (2016), *Rethinking the Inception Architecture* (label smoothing); Kingma and Ba
#   (2015), *Adam*; Glorot and Bengio (2010), *Understanding the Difficulty of Training Deep
#   Feedforward Neural Networks*.
# - Dong, Cordonnier and Loukas (2021), *Attention Is Not All You Need: Pure Attention Loses Rank
#   Doubly Exponentially with Depth*; Xiong et al. (2020), *On Layer Normalization in the
#   Transformer Architecture* (warm-up).
#
# ## Checks

# %%
# Every part above was compared with the library's in its cell; here are the claims of the text.
assert all(abs(columns[3] - 1) < 0.1 for columns in scale_effect.values())
assert all(abs(columns[0] / d_k**0.5 - 1) < 0.1 for d_k, columns in scale_effect.items())
assert scale_effect[256][2] < 0.25 < scale_effect[256][5]
assert order_effect[0] < 1e-5 < order_effect[1]
assert all(collapse[0.0, depth] > collapse[1.0, depth] for depth in DEPTHS)
assert collapse[0.0, 2] > 0.95 > 0.8 > collapse[1.0, 2]
assert lines < 300
_, expected = transformer(
    trained["whole", 0], jnp.asarray(one_source)[None], jnp.asarray(one_target_in)[None]
)
np.testing.assert_allclose(cross, np.stack(expected)[:, 0], atol=1e-4)
if STEPS == FULL_TRAINING:
    assert min(whole) > 0.5 and ended.mean() > 0.5
    assert {"no positions", "no causal mask", "no residuals"} <= {*few}
    assert deceptive == ["no causal mask"]
    assert exact["one vector"] < min(whole)
    assert row_of("one vector")[4] <= row_of("one vector")[3]
    assert nll["no label smoothing"] < nll["whole"]
    assert masked_nll > 1 > nll["no causal mask"]
    assert on_letter["whole"].max() > 2 * on_letter["no positions"].max()
    assert longer_exact.mean() < min(whole)
