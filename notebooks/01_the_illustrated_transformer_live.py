# SPDX-License-Identifier: Apache-2.0
"""Every figure of The Illustrated Transformer, drawn from a model that translates."""

# %% [markdown]
# # The Illustrated Transformer, live
#
# Jay Alammar's *The Illustrated Transformer* explains the model of *Attention Is All You Need* in
# pictures. Here every one of those pictures is drawn again, not by hand but from the numbers of a
# real model: a small one, trained on the spot, that translates English to German.
#
# You will see, in this order:
#
# 1. the two stacks, with the shape and the number of their parameters;
# 2. a sentence that becomes vectors, and where its words stand;
# 3. self-attention in six steps with every number, then as products of matrices, then with all
#    heads;
# 4. what residual connections and layer norm do to the vectors;
# 5. what the decoder takes from the encoder, and how it writes a sentence word by word;
# 6. the output distribution, before and after training;
# 7. the masks;
# 8. statements about the Transformer that are often repeated and false, each checked by a cell.
#
# Below most pictures stands what they do **not** show. The last cell holds the text to the
# numbers.

# %%
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from experiments.studies import small_model
from transformer import inspection
from transformer.arrays import BOS_ID, PAD_ID
from transformer.inspection import figures, residual, search_log, trace
from transformer.inspection.views.attention_kinds import trace_attention_kinds
from transformer.inspection.views.attention_steps import attention_steps
from transformer.models import base
from transformer.nn.layers import feed_forward
from transformer.nn.positions import sinusoids

# %% [markdown]
# ## The model
#
# `small_model.load` trains the model the first time, within a few minutes, and opens it
# afterwards. It has learned from sentences of a small grammar, in which "it" can only be
# translated by finding out what it stands for: German has three words for it, *er*, *sie* and
# *es*, and the noun decides.

# %%
translator = small_model.load(seed=0, folder="runs")
params, config = translator.params, translator.config.model
tokenizer, pieces = translator.tokenizer, translator.tokenizer.pieces

TIRED = "The animal didn't cross the street because it was too tired."
WIDE = "The animal didn't cross the street because it was too wide."
tired, wide = translator([TIRED, WIDE])
print(TIRED, "→", tired.text)
print(WIDE, "→", wide.text)

# %% [markdown]
# Now the first sentence goes through the model once more, and everything on the way is kept.
# `inspection.run` gives the logits and a trace. The decoder reads the translation that the model
# itself has found, moved one place to the right: it begins with the start token `<s>`.

# %%
run = jax.jit(inspection.run, static_argnames=("config", "capture"))

source = tokenizer.encode([TIRED])[0]
target = list(tired.tokens)
target_in = [BOS_ID, *target[:-1]]
logits, seen = run(params, config, np.array(source), np.array(target_in), capture="full")

words, read, predicted = pieces(source), pieces(target_in), pieces(target)
rows = figures.read_predict(read, predicted)
print(len(words), "source tokens:", *words)
print(len(rows), "rows of the decoder:", *rows, sep="\n    ")

# %% [markdown]
# The sign `▁` stands for a space: a token that begins with it begins a word. A row of the decoder
# is named after two tokens, because it is computed while the decoder *reads* one and *predicts*
# the next.
#
# ## 1. Two stacks
#
# The article's first pictures: a black box, inside it encoders and decoders, inside those their
# sub-layers. Nothing is computed for this one; it is what the config says.

# %%
figures.plot_architecture(config)

# %% [markdown]
# The paper's own model is drawn by the same line, from `TransformerConfig()`: 6 + 6 layers, 8
# heads, d_model 512. There is one embedding table: encoder, decoder and the final linear layer
# share it.
#
# ## 2. From words to vectors
#
# A token is a number: its place in the vocabulary. In the article's picture it is a "one-hot"
# vector, with a 1 at that place and 0 everywhere else.

# %%
print(*(f"{word}={number}" for word, number in zip(words, source, strict=True)), sep="  ")
table = params["embedding"]["table"]
one_hot = jax.nn.one_hot(jnp.array(source), config.vocab_size)
print("one-hot vectors", one_hot.shape, "times the embedding table", table.shape)

# %% [markdown]
# Such a vector times the embedding table is a row of the table. Nobody multiplies: the row is
# looked up. Times the root of d_model it is the token's vector. To it the vector of its place in
# the sentence is added. The sum is what the first layer reads.

# %%
embedded, positions = seen.encoder.embedded, seen.encoder.positions
figures.plot_vectors(
    {
        "embedding × √d_model": embedded,
        "+ position": positions,
        "= input": seen.encoder.residual[0],
    },
    words,
    title="What the encoder reads",
)

# %% [markdown]
# The vectors of the places are sines and cosines of different wavelengths. The paper lays them
# out in turn (sine, cosine, sine, ...); Tensor2Tensor, and after it the article's first picture,
# puts all sines before all cosines. The two differ in the order of the columns, and a little in
# the wavelengths.

# %%
figures.plot_positional_encoding(
    {layout: sinusoids(50, config.d_model, layout) for layout in ("interleaved", "halves")}
)

# %% [markdown]
# What makes them useful stands on the right: the product of two places depends on their distance
# alone. It does not say which of the two comes first. That the model *uses* this for distances is
# not shown by the picture.
#
# ## 3. Self-attention
#
# ### One head, one word, six steps
#
# What does the first head of the encoder's first layer do for the word "it"? (1) From the vector
# of every token come a query, a key and a value. (2) The query of "it" times each key is a score.
# (3) Scores are divided by the root of d_k, here √16 = 4. (4) The softmax makes shares of them
# that sum to 1. (5) Each value is multiplied by its share, (6) and the sum of these is what the
# head says about "it".

# %%
LAYER, HEAD = 0, 0
it = words.index("▁it")
attention = seen.encoder.self_attention
x = seen.encoder.residual[LAYER]
q, k, v, z = (
    part[LAYER, HEAD] for part in (attention.query, attention.key, attention.value, attention.z)
)
figures.plot_attention_steps(x, q, k, v, it, words, z=z)

# %% [markdown]
# The figure computes the steps anew from x, q, k and v, and refuses to be drawn if the result is
# not the model's own. The next cell lets you walk through the same steps for other words and
# heads (where a notebook is shown without being run, you see a still picture).

# %%
kinds = trace_attention_kinds(seen, source_tokens=words, target_in=read, target_out=predicted)
heads = [("encoder", 0, 0), ("encoder", 1, 0), ("decoder", 1, 0), ("cross", 1, 0)]
attention_steps(seen, kinds, heads, row=it)

# %% [markdown]
# ### The same as products of matrices
#
# Nobody computes one word after the other. All vectors are the rows of one matrix X; three
# products give all queries, keys and values; two more give all results. The same axis has the
# same length everywhere.

# %%
kernels = params["encoder"][f"layer_{LAYER}"]["self_attention"]
wq, wk, wv = (kernels[name][:, HEAD] for name in ("query", "key", "value"))
figures.plot_attention_matrices(x, wq, wk, wv, words, z=z)

# %% [markdown]
# ### Many heads
#
# A layer has several heads (eight in the paper, four here), each with matrices of its own. The
# article puts their results side by side and multiplies by W^O. The lower half of the picture
# shows what this comes to: each head's result times its own rows of W^O, added up. Heads do not
# see each other; each adds its own vector to the stream.

# %%
figures.plot_head_assembly(
    attention.z[LAYER], kernels["output"], words, output=attention.output[LAYER]
)

# %% [markdown]
# ## 4. Residual connections and layer norm
#
# Around each sub-layer: what came in is added to what it computed, and the sum is normalised.

# %%
flow = residual.residual_flow(seen.encoder)
figures.plot_residual_flow(flow.before, flow.added, flow.after, flow.names, words)

# %% [markdown]
# A cosine near 1 means that the sub-layer hardly turned the vector. A long f(x) is no proof that
# what it wrote is used later.
#
# ## 5. The decoder
#
# ### What it takes from the encoder
#
# The output of the last encoder layer is the memory. The article says that it is "transformed
# into a set of attention vectors K and V". Into one set for each decoder layer: every layer has
# its own W^K and W^V.

# %%
cross = seen.decoder.cross_attention
memory = seen.encoder.residual[-1]
figures.plot_vectors(
    {"memory": memory}
    | {f"keys of layer {n + 1}, head 1": cross.key[n, 0] for n in range(config.depth("decoder"))}
    | {
        f"values of layer {n + 1}, head 1": cross.value[n, 0]
        for n in range(config.depth("decoder"))
    },
    words,
    title="The encoder's output, and what the decoder layers make of it",
)

# %% [markdown]
# ### Word by word
#
# The article's two animations, as a film strip. The encoder has run once. At each step the
# decoder reads what it has written so far, reads in the source (here the last layer, the mean of
# its heads), and gives a probability to every token. Greedy search takes the most probable one.

# %%
greedy = translator.config.decode.replace(beams=1)
log = search_log.record(params, config, source, decode=greedy)
vocabulary = pieces(range(config.vocab_size))
figures.plot_decoding(log, vocabulary)

# %% [markdown]
# A mean of heads is not what any head does; notebook 03 takes them apart, notebook 04 shows beam
# search.
#
# ## 6. The output
#
# The last vector of each place, times the embedding table, gives a number for each token of the
# vocabulary: the logits. Their softmax is a distribution. The article draws the untrained
# model's, the target, and the trained model's; here they are for every place of the sentence. The
# target is not a one, but 0.9 for the right token and the rest spread over all others: smoothed
# labels, which the model was trained with.

# %%
untrained = nn.unbox(
    base.build(config).init(jax.random.key(0), jnp.zeros((1, 1), int), jnp.zeros((1, 1), int))
)["params"]
before, _ = run(untrained, config, np.array(source), np.array(target_in))

smoothing = translator.config.training.label_smoothing
smoothed = np.full(logits.shape, smoothing / (config.vocab_size - 1))
smoothed[np.arange(len(target)), target] = 1 - smoothing
figures.plot_output_distribution(
    logits, vocabulary, read, np.array(target), before=before, target=smoothed, top_k=4
)

# %% [markdown]
# Probabilities are between 0 and 1, and so is the scale here; the article's own has a colour bar
# from about −1 to 1. One sentence says little about a model; `experiments.evaluate` counts over a
# whole test set.
#
# ## 7. Who may attend to whom
#
# Sentences of a batch are filled up to one length with padding, and a target position must not
# see what it has to predict. Both are masks. Here the source has three places of padding.

# %%
padded = np.array([*source, PAD_ID, PAD_ID, PAD_ID])
masks = trace.masks_of(jnp.asarray(padded), len(target_in))
figures.plot_masks(
    pieces(padded.tolist()), read, source_mask=masks.encoder[0], causal=masks.decoder
)

# %% [markdown]
# ## 8. Often said, and false
#
# **"The encoder-decoder attention has only queries to train; keys and values come from the
# encoder."** The *input* of its keys and values comes from the encoder. The matrices that make
# them are each layer's own, and they are trained: their gradient is not zero.


# %%
def loss(params):
    """The mean negative log-probability of the translation, in nats."""
    logits, _ = inspection.run(params, config, np.array(source), np.array(target_in))
    return -jax.nn.log_softmax(logits)[jnp.arange(len(target)), jnp.array(target)].mean()


gradient = jax.jit(jax.grad(loss))(params)
layers = [
    params["decoder"][f"layer_{n}"]["cross_attention"] for n in range(config.depth("decoder"))
]
for n in range(len(layers)):
    slopes = gradient["decoder"][f"layer_{n}"]["cross_attention"]
    lengths = {name: jnp.linalg.norm(slopes[name]) for name in ("query", "key", "value")}
    print(f"layer {n + 1}, length of the gradient:", end="  ")
    print(*(f"{name} {length:.3f}" for name, length in lengths.items()))

# %% [markdown]
# **"Each position has a feed-forward network of its own."** There is one in each layer, which is
# applied to every position: exchange two vectors, and its results are exchanged.

# %%
kernels_and_biases = params["encoder"]["layer_0"]["feed_forward"]
for name, array in kernels_and_biases.items():
    print(f"{name:10} {array.shape}, for any number of positions")

network = functools.partial(feed_forward, **kernels_and_biases)
stream = seen.encoder.sublayers[0, 0][None]
one_by_one = [network(stream[:, place : place + 1]) for place in range(len(source))]
turned_round = network(stream[:, ::-1])[:, ::-1]

# %% [markdown]
# **"The decoder works on one position at a time."** Only when it writes. Where the translation is
# known, as in training, one pass computes all positions, and the causal mask sees to it that each
# row is the one that step by step would have given.
#
# **"The mask is needed in training only."** Without it the rows that are already written would
# change with every further word. Here are the rows of the whole sentence beside those of its
# beginning; and, computed from the unmasked scores, how much of its weight a row would have given
# to what comes later.

# %%
HALF = len(target_in) // 2
beginning, _ = run(params, config, np.array(source), np.array(target_in[:HALF]))
difference = float(jnp.abs(logits[:HALF] - beginning).max())
print(
    f"the first {HALF} rows of {len(target_in)} are those of the beginning, within {difference:.1e}"
)

own = seen.decoder.self_attention
unmasked = jax.nn.softmax(own.scores, axis=-1)
later = np.triu(np.ones((len(target_in),) * 2, bool), k=1)
leaked = float((unmasked * later).sum(-1)[..., :-1].mean())
print(f"without a mask {leaked:.0%} of the weight would go to later positions, with it", end=" ")
print(f"{float((own.weights * later).sum()):.0%}")

# %% [markdown]
# **"Short sentences are padded with −∞."** They are padded with a token id, which has an
# embedding like any other. It is the *scores* of these places that are masked, so that their
# weights are exactly 0, and the other rows are what they would be without padding.

# %%
with_padding, padded_trace = run(params, config, padded, np.array(target_in), capture="weights")
at_padding = padded_trace.encoder.self_attention.weights[..., len(source) :]
print("largest weight on padding:", float(at_padding.max()))
print(f"logits change by {float(jnp.abs(with_padding - logits).max()):.1e}")

# %% [markdown]
# **"A word's own position has the highest softmax score."** It may, and it need not. Here is the
# share of rows in which it has, for each head of the encoder.

# %%
highest = np.asarray(attention.weights).argmax(-1) == np.arange(len(source))
own_share = highest.mean(-1)
figures.plot_head_table(
    {"encoder": own_share},
    label="share of rows",
    limits=(0, 1),
    title="How often a position reads itself most",
)

# %% [markdown]
# **"To compare two distributions, we simply subtract one from the other."** The loss is a
# cross-entropy: −Σ target · log p. A difference does occur, one step later: it is the gradient of
# that loss with respect to the logits, p − target.


# %%
def cross_entropy(logits):
    """Against the smoothed labels, in nats, summed over the positions."""
    return -(smoothed * jax.nn.log_softmax(logits)).sum()


slope = jax.grad(cross_entropy)(logits)
print(f"cross-entropy a token: {float(cross_entropy(logits)) / len(target):.3f} nats")
print(f"before training:       {float(cross_entropy(before)) / len(target):.3f} nats")
off = float(jnp.abs(slope - (jax.nn.softmax(logits) - smoothed)).max())
print(f"its gradient and p − target differ by {off:.1e}")

# %% [markdown]
# One more is in notebook 03: the article's well-known figures of "it" and "animal" do not show
# attention.
#
# ## Held to the numbers
#
# Everything above that was said of *this* model, or of every Transformer, as assertions. If one
# fails, the text is wrong.

# %%
close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-4)

# What the pictures are drawn from.
close(one_hot @ table * np.sqrt(config.d_model), embedded)
close(embedded + positions, seen.encoder.residual[0])
close(jax.nn.softmax(q[it] @ k.T / np.sqrt(k.shape[-1])) @ v, z[it], atol=1e-5)
close(x @ wq, q)
close(attention.head_out.sum(1), attention.output)
for kind in (attention, own, cross):
    close(kind.weights.sum(-1), 1.0, atol=1e-5)
assert float((own.weights * later).sum()) == 0

# The encoder-decoder attention.
for n, layer in enumerate(layers):
    close(jnp.einsum("SD,DNH->NSH", memory, layer["key"]), cross.key[n])
    close(jnp.einsum("SD,DNH->NSH", memory, layer["value"]), cross.value[n])
    slopes = gradient["decoder"][f"layer_{n}"]["cross_attention"]
    assert all(float(jnp.abs(slopes[name]).max()) > 0 for name in ("query", "key", "value"))
assert not np.allclose(layers[0]["key"], layers[1]["key"], atol=0.01)

# The feed-forward network, the masks, the padding.
close(jnp.concatenate(one_by_one, axis=1)[0], seen.encoder.feed_forward[0])
close(turned_round[0], seen.encoder.feed_forward[0])
close(logits[:HALF], beginning)
assert leaked > 0.05
close(with_padding, logits)
assert float(at_padding.max()) == 0
assert np.isfinite(np.asarray(table)[PAD_ID]).all()

# The own position, the loss, the output.
assert own_share.min() < 0.5, "some head reads another place more often than its own"
close(slope, jax.nn.softmax(logits) - smoothed)
assert float(cross_entropy(logits)) < float(cross_entropy(before))
assert len(log.steps) == len(log.results[0].tokens), "a step for each token that was written"
assert " es " in tired.text and " sie " in wide.text
