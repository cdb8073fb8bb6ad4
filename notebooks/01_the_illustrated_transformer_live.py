# SPDX-License-Identifier: Apache-2.0
"""All figures of The Illustrated Transformer, drawn from the numbers of a trained model."""

# %% [markdown]
# # The Illustrated Transformer, live
#
# Jay Alammar's *The Illustrated Transformer* (2018) explains the model of *Attention Is All You
# Need* (Vaswani et al. 2017) in pictures. This notebook draws the article's pictures, in its order,
# from the numbers of a real model: a small model, trained on this machine, that translates English
# to German. (The article also explains training and its loss; notebook 03 trains.)
#
# It shows, in this order:
#
# 1. the encoder and decoder stacks, with the shapes of their parameters and the parameter counts;
# 2. how a sentence becomes vectors, with position encodings;
# 3. self-attention in six steps with all numbers, then in matrix form, then with all heads;
# 4. what residual connections and layer norm do to the vectors;
# 5. what the decoder reads from the encoder, and how it generates a sentence token by token;
# 6. the output distribution, before and after training;
# 7. the masks;
# 8. statements about the Transformer that are often repeated and false, each checked by a cell.
#
# Below most pictures is a note about what they do **not** show. The last cell asserts the claims of
# the text.

# %%
import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.studies import small_model
from experiments.studies.exercises import Answer
from transformer import inspection
from transformer.inspection import figures, residual, search_log, trace
from transformer.inspection.alignment import untrained_params
from transformer.inspection.views.attention_kinds import trace_attention_kinds
from transformer.inspection.views.attention_steps import attention_steps
from transformer.nn.feed_forward import feed_forward
from transformer.nn.positions import sinusoids

# %% [markdown]
# ## The model
#
# The first call of `small_model.load` trains the model; later calls load it. The training data are
# sentences of a small grammar. German has three words for "it" (*er*, *sie* and *es*), and the
# gender of the noun that "it" refers to selects one. The model must resolve the reference to
# translate "it" correctly.

# %%
translator = small_model.load(seed=0, folder="runs")
model, params, config = translator.model, translator.params, translator.config.model
tokenizer, pieces = translator.tokenizer, translator.tokenizer.pieces
pad_id, bos_id = tokenizer.special_ids.pad, tokenizer.special_ids.bos

TIRED = "The animal didn't cross the street because it was too tired."
WIDE = "The animal didn't cross the street because it was too wide."
tired, wide = translator([TIRED, WIDE])
print(TIRED, "→", tired.text)
print(WIDE, "→", wide.text)

# %% [markdown]
# The next cell runs the first sentence through the model once more and captures all intermediate
# values. `inspection.run` returns the logits and a trace. The decoder input is the model's
# translation shifted right by one position: it begins with BOS, `<s>`.

# %%
run = jax.jit(inspection.run, static_argnames=("model", "capture"))

source = tokenizer.encode([TIRED])[0]
target = list(tired.tokens)
target_in = [bos_id, *target[:-1]]
logits, seen = run(model, params, np.array(source), np.array(target_in), capture="full")

words, read, predicted = pieces(source), pieces(target_in), pieces(target)
rows = figures.read_predict(read, predicted)
print(len(words), "source tokens:", *words)
print(f"{len(rows)} decoder rows (read → predict):", *rows, sep="\n    ")

# %% [markdown]
# The character `▁` represents a space: a token that begins with it begins a word. The label of a
# decoder row has two tokens, because the decoder computes the row while it *reads* one token and
# *predicts* the next.
#
# ## 1. Two stacks
#
# The article's first pictures show a black box, the encoders and decoders inside it, and the stacks
# inside those:

# %%
figures.plot_black_box(config, TIRED, tired.text)

# %% [markdown]
# The sub-layers of the stacks, with the shapes of their parameters. This figure needs no
# computation; it is drawn from the config.

# %%
figures.plot_architecture(config)

# %% [markdown]
# The same call with `TransformerConfig()` draws the paper's base model: 6 + 6 layers, 8 heads,
# d_model 512. The encoder, the decoder and the final linear layer share one embedding table.
#
# ## 2. From words to vectors
#
# A token is an integer: its index in the vocabulary. The article draws it as a one-hot vector, with
# a 1 at that index and 0 at all others.

# %%
print(*(f"{word}={token_id}" for word, token_id in zip(words, source, strict=True)), sep="  ")
table = params["embedding"]["table"]
one_hot = jax.nn.one_hot(jnp.array(source), config.vocab_size)
print("one-hot vectors", one_hot.shape, "times the embedding table", table.shape)

# %% [markdown]
# A one-hot vector times the embedding table is a row of the table. The program does not multiply:
# it looks the row up. The row times √d_model is the embedding of the token. The position encoding
# is added to it, and the sum is the input of the first layer.

# %%
embedded, positions = seen.encoder.embedded, seen.encoder.positions
figures.plot_vectors(
    {
        "embedding × √d_model": embedded,
        "+ position": positions,
        "= input": seen.encoder.residual[0],
    },
    words,
    title="Input of the encoder",
)

# %% [markdown]
# Position encodings are sines and cosines of different wavelengths. The paper interleaves them
# (sine, cosine, sine, ...). Tensor2Tensor and the article's first picture put all sines before all
# cosines. The two layouts differ in the order of the columns, and slightly in the wavelengths.

# %%
figures.plot_positional_encoding(
    {layout: sinusoids(50, config.d_model, layout) for layout in ("interleaved", "halves")}
)

# %% [markdown]
# The right-hand side shows why they are useful: the dot product of two position encodings depends
# only on the distance between the positions. It does not show which position comes first. The
# picture does not show that the model *uses* this to measure distances.
#
# ### Predict, then run
#
# **Exercise 1.** The words of the source are reversed (EOS stays last). For the word "animal",
# which of these stay the same: its embedding, its input to the first layer, its output of the
# encoder?

# %%
turned = [*source[-2::-1], source[-1]]
_, of_turned = run(model, params, np.array(turned), np.array(target_in), capture="full")
before_turn = words.index("▁animal")
after_turn = len(source) - 2 - before_turn
changes = {
    name: float(jnp.abs(one[before_turn] - other[after_turn]).max())
    for name, one, other in (
        ("embedding", embedded, of_turned.encoder.embedded),
        ("input", seen.encoder.residual[0], of_turned.encoder.residual[0]),
        ("output", seen.encoder.residual[-1], of_turned.encoder.residual[-1]),
    )
}
Answer(
    "The embedding, which depends on the token alone. The position changes the input, and through "
    "it every layer. Largest changes of a component: "
    + ", ".join(f"{name} {change:.2f}" for name, change in changes.items())
    + "."
)

# %% [markdown]
# ### Vectors flow along their paths
#
# Each token has one vector, and one path through the layer. The paths meet in self-attention only;
# the feed-forward network works on every path alone.

# %%
figures.plot_vector_flow(seen.encoder, words)

# %% [markdown]
# ## 3. Self-attention
#
# ### One head, one word, six steps
#
# What does the first head of the encoder's first layer compute for the word "it"?
#
# 1. The vector of every token is projected to a query, a key and a value.
# 2. The dot product of the query of "it" with each key is a score.
# 3. The scores are divided by √d_k, here √16 = 4.
# 4. The softmax turns the scores into weights that sum to 1.
# 5. Each value is multiplied by its weight.
# 6. The sum of the weighted values is the output of the head for "it".

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
# The figure recomputes the steps from x, q, k and v, and raises an error if the result differs from
# the model's output. The next cell shows the same steps interactively for other words and heads.
# Without a running kernel it shows a static picture.

# %%
kinds = trace_attention_kinds(seen, source_tokens=words, target_in=read, target_out=predicted)
heads = [("encoder", 0, 0), ("encoder", 1, 0), ("decoder", 1, 0), ("cross", 1, 0)]
attention_steps(seen, kinds, heads, row=it)

# %% [markdown]
# ### Predict, then run
#
# **Exercise 2.** Someone adds 5 to all scores of the row "it". What happens to the output z? And if
# all scores of the row are multiplied by 5?

# %%
scores_of_it = q[it] @ k.T / np.sqrt(k.shape[-1])
shifted, sharpened = (
    jax.nn.softmax(changed) @ v for changed in (scores_of_it + 5, scores_of_it * 5)
)
shift_effect, sharpen_effect = (
    float(jnp.abs(changed - z[it]).max()) for changed in (shifted, sharpened)
)
largest_weights = [float(jax.nn.softmax(scores_of_it * factor).max()) for factor in (1, 5)]
Answer(
    f"Adding changes nothing (largest difference {shift_effect:.0e}): the softmax only depends on "
    f"differences of scores. Multiplying sharpens the weights, and the largest goes from "
    f"{largest_weights[0]:.2f} to {largest_weights[1]:.2f}; z changes by {sharpen_effect:.2f}."
)

# %% [markdown]
# ### The same in matrix form
#
# Implementations do not compute one word after the other. The vectors of all tokens are the rows of
# one matrix X. Three matrix products give all queries, keys and values; two more give all outputs.
# The same axis has the same length in every picture.

# %%
kernels = params["encoder"][f"layer_{LAYER}"]["self_attention"]
wq, wk, wv = (kernels[name][:, HEAD] for name in ("query", "key", "value"))
figures.plot_attention_matrices(x, wq, wk, wv, words, z=z)

# %% [markdown]
# ### Many heads
#
# A layer has several heads (eight in the paper's base model, four here), each with separate
# projection matrices. The article concatenates their outputs and multiplies by W^O. The lower half
# of the picture shows an equivalent form: the output of each head times its rows of W^O, summed
# over the heads. Heads of one layer do not interact; each adds its output to the residual stream.

# %%
figures.plot_head_assembly(
    attention.z[LAYER], kernels["output"], words, output=attention.output[LAYER]
)

# %% [markdown]
# The article's recap has all of it in one picture: from X to the queries, keys and values of every
# head, to their outputs, to the output of the layer.

# %%
figures.plot_multi_head(x, kernels, words, output=attention.output[LAYER])

# %% [markdown]
# ## 4. Residual connections and layer norm
#
# The output of each sub-layer is added to its input, and layer norm is applied to the sum. The
# vectors before and after, at the first sub-layer:

# %%
flow = residual.residual_flow(seen.encoder)
figures.plot_residual_norm(flow, 0, words)

# %% [markdown]
# The same at every sub-layer, in numbers:

# %%
figures.plot_residual_flow(flow, words)

# %% [markdown]
# A small angle means that the sub-layer hardly changed the direction of the vector. A large norm of
# f(x) does not prove that later layers use what the sub-layer wrote.
#
# ## 5. The decoder
#
# ### What it reads from the encoder
#
# The output of the last encoder layer is the memory. The article says that it is "transformed into
# a set of attention vectors K and V". There is one such set per decoder layer: every layer has
# separate matrices W^K and W^V.

# %%
cross = seen.decoder.cross_attention
memory = seen.encoder.residual[-1]
figures.plot_memory(memory, cross.key, cross.value, words)

# %% [markdown]
# ### Token by token
#
# The article's two animations, as a film strip. The encoder runs once. At each step the decoder
# reads the tokens generated so far, attends to the source (shown: the last layer, mean over heads),
# and computes a probability for every token. Greedy search chooses the most probable one.

# %%
greedy = translator.config.decode.replace(beams=1)
log = search_log.record(model, params, source, decode=greedy)
vocabulary = pieces(range(config.vocab_size))
figures.plot_decoding(log, vocabulary)

# %% [markdown]
# The mean over heads is not the attention of any single head. Notebook 05 shows the heads
# separately; notebook 04 shows beam search.
#
# ## 6. The output
#
# The last vector of each position times the embedding table gives one logit per token of the
# vocabulary. The softmax of the logits is a distribution. At the position that predicts the
# pronoun:

# %%
pronoun = predicted.index("▁es")
figures.plot_output_layer(
    seen.decoder.residual[-1][pronoun], table, vocabulary, logits=logits[pronoun]
)

# %% [markdown]
# The article draws the distributions of the untrained model, the target and the trained model for
# every position of a sentence. The target is not one-hot: with label smoothing it is 0.9 for the
# correct token, and the rest is spread over all others (paper 5.4).
#
# ### Predict, then run
#
# **Exercise 3.** Training cannot reach probability 1 for the correct token, because the target is
# 0.9. Does the trained model stay below 0.9, or is it sometimes more certain than its target?

# %%
before, _ = run(model, untrained_params(model), np.array(source), np.array(target_in))

smoothing = translator.config.training.label_smoothing
smoothed = np.full(logits.shape, smoothing / (config.vocab_size - 1))
smoothed[np.arange(len(target)), target] = 1 - smoothing
figures.plot_target_distributions(before, smoothed, logits, vocabulary, read, np.array(target))

# %%
of_correct = np.asarray(jax.nn.softmax(logits))[np.arange(len(target)), target]
above = int((of_correct > 1 - smoothing).sum())
Answer(
    f"In {above} of {len(target)} positions the correct token has more than {1 - smoothing:.1f}; "
    f"it has {of_correct.min():.2f} to {of_correct.max():.2f}. The target is the optimum on "
    "average over the training data; a trained network scatters around it."
)

# %% [markdown]
# The most probable tokens of every position, before and after training:

# %%
figures.plot_output_distribution(
    logits, vocabulary, read, np.array(target), before=before, target=smoothed, top_k=4
)

# %% [markdown]
# Probabilities are between 0 and 1, and so is the color scale here; the color bar in the article
# goes from about −1 to 1. One sentence is little evidence about a model; `experiments.evaluate`
# measures a complete test set.
#
# ## 7. Which positions may attend to which
#
# Padding fills the sentences of a batch up to one length, and a target position must not see the
# token that it predicts. Masks implement both. Here the source ends with three padding tokens.

# %%
padded = np.array([*source, pad_id, pad_id, pad_id])
masks = trace.masks_of(jnp.asarray(padded), len(target_in))
figures.plot_masks(
    pieces(padded.tolist()), read, source_mask=masks.encoder[0], causal=masks.decoder
)

# %% [markdown]
# ## 8. Often repeated, and false
#
# **"The encoder-decoder attention has only queries to train; keys and values come from the
# encoder."** Only the *input* of its keys and values comes from the encoder. Each decoder layer has
# separate key and value matrices, and they are trained: their gradient is not zero.


# %%
def loss(params):
    """Mean negative log-probability of the translation, in nats per token."""
    logits, _ = inspection.run(model, params, np.array(source), np.array(target_in))
    return -jax.nn.log_softmax(logits)[jnp.arange(len(target)), jnp.array(target)].mean()


gradient = jax.jit(jax.grad(loss))(params)
layers = [
    params["decoder"][f"layer_{n}"]["cross_attention"] for n in range(config.depth("decoder"))
]
for n in range(len(layers)):
    gradients = gradient["decoder"][f"layer_{n}"]["cross_attention"]
    norms = {name: jnp.linalg.norm(gradients[name]) for name in ("query", "key", "value")}
    print(f"layer {n + 1}, norm of the gradient:", end="  ")
    print(*(f"{name} {norm:.3f}" for name, norm in norms.items()))

# %% [markdown]
# **"Each position has a separate feed-forward network."** There is one feed-forward network per
# layer, and it is applied to every position: reversing the order of the input vectors reverses the
# order of the outputs.

# %%
kernels_and_biases = params["encoder"]["layer_0"]["feed_forward"]
for name, array in kernels_and_biases.items():
    print(f"{name:10} {array.shape}, for any number of positions")

network = functools.partial(feed_forward, **kernels_and_biases)
stream = seen.encoder.sublayers[0, 0][None]
one_by_one = [network(stream[:, position : position + 1]) for position in range(len(source))]
reversed_twice = network(stream[:, ::-1])[:, ::-1]

# %% [markdown]
# **"The decoder works on one position at a time."** Only when it generates. Where the translation
# is known, as in training, one pass computes all positions. The causal mask ensures that each row
# equals the one that step-by-step decoding would compute.
#
# **"The mask is needed in training only."** Without it, the rows of the tokens already generated
# would change with every further token. The next cell compares the rows of the complete sentence
# with those of its first half. From the unmasked scores it also computes how much weight a row
# would give to later positions.

# %%
HALF = len(target_in) // 2
first_half, _ = run(model, params, np.array(source), np.array(target_in[:HALF]))
difference = float(jnp.abs(logits[:HALF] - first_half).max())
print(f"first {HALF} of {len(target_in)} rows, with and without the rest:", end=" ")
print(f"the logits differ by at most {difference:.1e}")

decoder_attention = seen.decoder.self_attention
unmasked = jax.nn.softmax(decoder_attention.scores, axis=-1)
later = np.triu(np.ones((len(target_in),) * 2, bool), k=1)
leaked = float((unmasked * later).sum(-1)[..., :-1].mean())
masked = float((decoder_attention.weights * later).sum())
print(f"weight on later positions: {leaked:.0%} without the mask, {masked:.0%} with it")

# %% [markdown]
# **"Short sentences are padded with −∞."** They are padded with a token id, which has an embedding
# like any other. The *scores* of these positions are masked, so their weights are exactly 0, and
# the other rows are the same as without padding.

# %%
with_padding, padded_trace = run(model, params, padded, np.array(target_in), capture="weights")
at_padding = padded_trace.encoder.self_attention.weights[..., len(source) :]
print("largest weight on padding:", float(at_padding.max()))
print(f"largest change of a logit: {float(jnp.abs(with_padding - logits).max()):.1e}")

# %% [markdown]
# **"A word's own position has the highest softmax score."** Not necessarily. The next figure shows,
# for each head of the encoder, the share of rows whose highest weight is on the diagonal.

# %%
highest = np.asarray(attention.weights).argmax(-1) == np.arange(len(source))
diagonal_share = highest.mean(-1)
figures.plot_head_table(
    {"encoder": diagonal_share},
    label="share of rows",
    limits=(0, 1),
    title="Rows with the highest weight on the diagonal",
)

# %% [markdown]
# **"To compare two distributions, we simply subtract one from the other."** The loss is a
# cross-entropy: −Σ target · log p. A difference does occur in its gradient: with respect to the
# logits, the gradient of this loss is p − target.


# %%
def cross_entropy(logits):
    """Cross-entropy against the smoothed labels in nats, summed over the positions."""
    return -(smoothed * jax.nn.log_softmax(logits)).sum()


logit_gradient = jax.grad(cross_entropy)(logits)
print(f"cross-entropy per token: {float(cross_entropy(logits)) / len(target):.3f} nats")
print(f"before training:         {float(cross_entropy(before)) / len(target):.3f} nats")
largest = float(jnp.abs(logit_gradient - (jax.nn.softmax(logits) - smoothed)).max())
print(f"gradient and p − target: largest difference {largest:.1e}")

# %% [markdown]
# Notebook 05 covers one more: the article's well-known figures of "it" and "animal" do not show
# attention.
#
# ## References
#
# - Alammar (2018), *The Illustrated Transformer*; Vaswani et al. (2017), *Attention Is All You
#   Need*.
# - Vaswani et al. (2018), *Tensor2Tensor for Neural Machine Translation*: the notebook and the code
#   from which the article's figures come.
#
# ## Checks
#
# This cell asserts the claims above, both about this model and about every Transformer. If an
# assertion fails, the text is wrong.

# %%
close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-4)

# The values that the pictures show.
close(one_hot @ table * np.sqrt(config.d_model), embedded)
close(embedded + positions, seen.encoder.residual[0])
close(jax.nn.softmax(q[it] @ k.T / np.sqrt(k.shape[-1])) @ v, z[it], atol=1e-5)
close(x @ wq, q)
close(attention.head_out.sum(1), attention.output)
for kind in (attention, decoder_attention, cross):
    close(kind.weights.sum(-1), 1.0, atol=1e-5)
assert masked == 0

# The encoder-decoder attention.
for n, layer in enumerate(layers):
    close(jnp.einsum("SD,DNH->NSH", memory, layer["key"]), cross.key[n])
    close(jnp.einsum("SD,DNH->NSH", memory, layer["value"]), cross.value[n])
    gradients = gradient["decoder"][f"layer_{n}"]["cross_attention"]
    assert all(float(jnp.abs(gradients[name]).max()) > 0 for name in ("query", "key", "value"))
assert not np.allclose(layers[0]["key"], layers[1]["key"], atol=0.01)

# The feed-forward network, the masks, the padding.
close(jnp.concatenate(one_by_one, axis=1)[0], seen.encoder.feed_forward[0])
close(reversed_twice[0], seen.encoder.feed_forward[0])
close(logits[:HALF], first_half)
assert leaked > 0.05
close(with_padding, logits)
assert float(at_padding.max()) == 0
assert np.isfinite(np.asarray(table)[pad_id]).all()

# Weights on the diagonal, the loss, the output.
assert diagonal_share.min() < 0.5, "some head reads another position most in most rows"
close(logit_gradient, jax.nn.softmax(logits) - smoothed)
assert float(cross_entropy(logits)) < float(cross_entropy(before))
assert len(log.steps) == len(log.results[0].tokens), "one step per generated token"
assert " es " in tired.text and " sie " in wide.text
assert changes["embedding"] == 0 < min(changes["input"], changes["output"])
assert shift_effect < 1e-4 < sharpen_effect
assert np.argmax(logits[pronoun]) == target[pronoun]
