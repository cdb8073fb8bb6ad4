# SPDX-License-Identifier: Apache-2.0
"""Attention of every layer and head: matrices, measures, and ablation."""

# %% [markdown]
# # Attention heads
#
# A Transformer has three kinds of attention, each with many heads: the encoder attends to the
# source, the decoder attends to the target so far, and the decoder attends to the source. This
# notebook draws and measures all heads of a small trained model, and then switches heads off.
#
# It shows:
#
# 1. one head as a matrix, and how to read its rows and columns;
# 2. all layers and heads of the three kinds;
# 3. one word over all heads, in two normalizations, of which only one is attention;
# 4. interactive views;
# 5. the masks;
# 6. measures of every head: its role, its entropy, and the vectors that it adds;
# 7. the effect of switching a head off.
#
# Below most pictures is a note about what they do **not** show. The last cell asserts the claims of
# the text.

# %%
import jax
import numpy as np

from experiments.data import registry
from experiments.studies import small_model
from experiments.studies.exercises import Answer
from transformer import inspection
from transformer.inspection import ablation, figures, measures
from transformer.inspection.views.attention_kinds import trace_attention_kinds
from transformer.inspection.views.head_overview import head_overview
from transformer.inspection.views.head_view import head_view, shares_between_heads

# %% [markdown]
# The first call of `small_model.load` trains the model; later calls load it. It translates
# sentences of a small grammar to German, where "it" is *er*, *sie* or *es*, depending on the gender
# of the noun that "it" refers to.

# %%
translator = small_model.load(seed=0, folder="runs")
model, params = translator.model, translator.params
tokenizer, pieces = translator.tokenizer, translator.tokenizer.pieces
pad_id, bos_id = tokenizer.special_ids.pad, tokenizer.special_ids.bos
run = jax.jit(inspection.run, static_argnames=("model", "capture"))

SENTENCE = "The animal didn't cross the street because it was too tired."
translation = translator([SENTENCE])[0]
source, target = tokenizer.encode([SENTENCE])[0], list(translation.tokens)
target_in = [bos_id, *target[:-1]]
logits, trace = run(model, params, np.array(source), np.array(target_in), capture="full")

words, read, predicted = pieces(source), pieces(target_in), pieces(target)
print(SENTENCE, "→", translation.text)

# %% [markdown]
# ## 1. One head
#
# A row is the query token, a column is the key token. Each row sums to 1.

# %%
encoder = np.asarray(trace.encoder.self_attention.weights)
decoder = np.asarray(trace.decoder.self_attention.weights)
cross = np.asarray(trace.decoder.cross_attention.weights)
figures.plot_attention(encoder[0, 0], words, words, annotate=True, title="Encoder, layer 1, head 1")

# %% [markdown]
# The decoder computes a row while it reads one token and predicts the *next* one. Many viewers
# label the row with only one of the two and do not say which; here the label has both. The row
# "weil → es" therefore shows where the model attends when it predicts the pronoun.

# %%
rows = figures.read_predict(read, predicted)
figures.plot_attention(
    cross[-1].mean(0), rows, words, title="Encoder-decoder attention, last layer, mean over heads"
)

# %% [markdown]
# The mean over heads is not the attention of any single head. Above the first layer a column is no
# longer a word: it is the vector at that word's position, which also contains information from
# other words.
#
# ## 2. All layers and heads

# %%
figures.plot_attention_grid(encoder, words, words, title="Encoder self-attention")

# %%
figures.plot_attention_grid(decoder, rows, read, title="Decoder self-attention")

# %%
figures.plot_attention_grid(cross, rows, words, title="Encoder-decoder attention")

# %% [markdown]
# ## 3. One word over all heads
#
# The best-known figure of *The Illustrated Transformer* (Alammar 2018) shows the word "it" and says
# that one head focuses most on "the animal", another on "tired". Where do the heads of our last
# encoder layer attend for the query "it"?

# %%
it = words.index("▁it")
figures.plot_token_heads(encoder[-1], it, words, words)

# %% [markdown]
# These are the weights that the model computes with: the weights of each head sum to 1 over the
# words. The article's figure is different. It comes from a Tensor2Tensor notebook that divides the
# weights by their sum *over the heads*.
#
# ### Predict, then run
#
# **Exercise 1.** In that normalization, can a head have a high value on a word to which it hardly
# attends? The next figure shows it, the cell after it counts.

# %%
figures.plot_token_heads(encoder[-1], it, words, words, normalize="heads")

# %% [markdown]
# The values of each *word* sum to 1 over the heads. They answer a different question: not
# "where does this head attend?" but "which head attends to this word more than the other heads do?"
# A head with a weight of 0.02 on a word has a large share of it if the other heads give it 0.001.
# The next cell compares the two normalizations for every head.

# %%
weights = encoder[-1][:, it]
shares = np.asarray(shares_between_heads(encoder[-1]))[:, it]
for head, (weight, share) in enumerate(zip(weights, shares, strict=True), 1):
    top, top_share = weight.argmax(), share.argmax()
    print(
        f"head {head}: highest weight on {words[top]} ({weight[top]:.2f}); highest share of "
        f"{words[top_share]} ({share[top_share]:.2f}), where its weight is {weight[top_share]:.2f}"
    )
largest_on_little = shares[weights < 0.05].max()
Answer(
    f"Yes: the largest share on a word with a weight below 0.05 is {largest_on_little:.2f}. It "
    "only says that the other heads attend to that word even less."
)

# %% [markdown]
# Neither picture explains why the translation has this pronoun. Notebook 06 studies that question
# over hundreds of sentences.
#
# ## 4. Interactive views
#
# Choose the kind of attention, the layer and the heads. Hover over a token, or move through the
# tokens with the arrow keys. Without a running kernel the cell shows a static picture.

# %%
kinds = trace_attention_kinds(trace, source_tokens=words, target_in=read, target_out=predicted)
head_view(kinds, row=it)

# %% [markdown]
# The overview shows every head as a small map, optionally sorted by a measure.

# %%
head_overview(kinds)

# %% [markdown]
# ## 5. Masks
#
# The source below ends with three padding tokens, as in a batch. No head attends to them, and no
# decoder row attends to later positions: these weights are exactly 0.

# %%
padded = np.array([*source, pad_id, pad_id, pad_id])
_, with_padding = run(model, params, padded, np.array(target_in), capture="weights")
masks = inspection.trace.masks_of(padded, len(target_in))
figures.plot_attention(
    with_padding.encoder.self_attention.weights[0, 0],
    pieces(padded.tolist()),
    pieces(padded.tolist()),
    mask=np.broadcast_to(masks.encoder, (len(padded), len(padded))),
    title="Encoder, layer 1, head 1, with padding",
)

# %%
figures.plot_attention(
    decoder[0, 0], rows, read, mask=masks.decoder, annotate=True, title="Decoder, layer 1, head 1"
)

# %% [markdown]
# ## 6. Measures of every head
#
# **Roles.** Some heads attend by position alone: to the previous token, the next, the first, the
# last, or the query's position. The cell below computes the mean weight of each head on these
# positions, and prints the role of every head that gives at least half of its weight to one of
# them.

# %%
kinds = {"encoder": encoder, "decoder": decoder, "cross": cross}
roles = {kind: measures.head_roles(weights) for kind, weights in kinds.items()}
for kind, kind_roles in roles.items():
    for number, layer in enumerate(kind_roles.names(), 1):
        print(f"{kind:8} layer {number}:  " + "  ".join(name or "none" for name in layer))
figures.plot_head_table(
    {kind: kind_roles.previous for kind, kind_roles in roles.items()},
    label="mean weight",
    limits=(0, 1),
    title="Mean weight of each head on the previous token",
)

# %% [markdown]
# In encoder-decoder attention, "previous" compares a target position with a source position, which
# means little.
#
# **Entropy** measures over how many positions a head spreads its weight: 0 bits for one, 1 bit for
# two, 2 bits for four. The first rows of the decoder have few positions to attend to, which lowers
# its mean.

# %%
entropies = {kind: measures.row_mean(measures.entropy(weights)) for kind, weights in kinds.items()}
figures.plot_head_table(entropies, label="bits", title="Entropy of each head, mean over its rows")

# %% [markdown]
# Low entropy does not show that a head is important; section 7 measures that, and Exercise 3
# compares the two.
#
# **Added vectors.** A weight says which share of a value is used, but the value may be short, and
# W^O may shorten it further. This measure multiplies the weight by the norm of the projected value:
# ‖weight · value · W^O‖. These rows do not sum to 1.

# %%
stacks = {kind: trace.attention(kind) for kind in kinds}
added = {
    kind: np.asarray(
        measures.norm_weighted_attention(
            stack.weights, stack.value, measures.output_kernels(model, params, kind)
        )
    )
    for kind, stack in stacks.items()
}
figures.plot_head_table(
    {kind: norms.sum(-1).mean(-1) for kind, norms in added.items()},
    label="norm",
    title="Sum of the norms that a head adds to a position, mean over the rows",
)

# %%
agree = {kind: added[kind].argmax(-1) == kinds[kind].argmax(-1) for kind in kinds}
for kind, same in agree.items():
    print(f"{kind:8} highest weight and longest added vector agree in {same.mean():.0%} of rows")

# %% [markdown]
# This sum of norms treats all vectors as if they had the same direction. Vectors in different
# directions partly cancel. The next cell divides the norm of the sum of the added vectors, which is
# the output of the head, by the sum of their norms: 1 if nothing cancels.

# %%
kept = {
    kind: (np.linalg.norm(stack.head_out, axis=-1) / added[kind].sum(-1)).mean()
    for kind, stack in stacks.items()
}
for kind, share in kept.items():
    print(f"{kind:8} norm of the sum / sum of the norms: {share:.2f} on average")

# %% [markdown]
# ## 7. Switching off a head
#
# Each head's output is multiplied by a gate: 1 keeps the head, 0 switches it off (Voita et al.
# 2019; Michel et al. 2019). The first figure shows, over 128 test sentences, by how much the loss
# increases when one head is off, in nats per target token.

# %%
test = registry.load(translator.config.data, "test").first(128)


def pad(sentences):
    """Token ids [B,S], padded to the longest sentence."""
    ids = tokenizer.encode(sentences)
    longest = max(map(len, ids))
    return np.array([row + [pad_id] * (longest - len(row)) for row in ids])


test_source, test_target = pad(test.sources), pad(test.targets)
ablated = ablation.ablate_heads(model, params, test_source, test_target)
increase = {kind: np.asarray(getattr(ablated.increase, kind)) for kind in kinds}
figures.plot_head_table(
    increase, label="nats per token", form="{:.3f}", title="Increase of the loss without a head"
)

# %% [markdown]
# A small number does not prove that a head does nothing: other heads may do the same and compensate
# for it.
#
# ### Predict, then run
#
# **Exercise 2.** Take the two heads of one layer whose removal costs least. Does removing both cost
# about the sum of the two, less or more?

# %%
gates = ablation.open_gates(model)
sum_of_nll = jax.jit(ablation.nll_with_gates, static_argnames="model")


def loss_with(gates):
    """NLL per token of the test sentences with these gates."""
    return float(sum_of_nll(model, params, test_source, test_target, gates)) / test_tokens


def loss_without(kind, layer, heads):
    """The same without some heads of a layer."""
    closed = getattr(gates, kind).at[layer, np.array(heads)].set(0.0)
    return loss_with(gates.replace(**{kind: closed}))


test_tokens = int((test_target != pad_id).sum())
base_loss = loss_with(gates)
pairs = {}
for kind, values in increase.items():
    for layer, of_layer in enumerate(values):
        heads = np.argsort(of_layer)[:2]
        pairs[kind, layer] = of_layer[heads].sum(), loss_without(kind, layer, heads) - base_loss
print("two heads that cost least     sum of both   removed together")
for (kind, layer), (separate, together) in pairs.items():
    print(f"{kind:8} layer {layer + 1}        {separate:18.3f} {together:18.3f}")
more = sum(together > separate for separate, together in pairs.values())
Answer(
    f"More than the sum in {more} of {len(pairs)} layers. Where removing both costs more, one head "
    "did the work of the other while it was off."
)

# %% [markdown]
# The next cell runs our sentence without the head whose removal increases the loss most.

# %%
kind = max(kinds, key=lambda kind: increase[kind].max())
layer, head = np.unravel_index(increase[kind].argmax(), increase[kind].shape)
closed = gates.replace(**{kind: getattr(gates, kind).at[layer, head].set(0.0)})
all_on = inspection.no_interventions(model, len(source), len(target_in))
without, _ = run(
    model,
    params,
    np.array(source),
    np.array(target_in),
    interventions=all_on.with_gates(closed),
)
figures.plot_output_distribution(
    without,
    pieces(range(model.config.vocab_size)),
    read,
    np.array(target),
    top_k=4,
    title=f"The next token, without head {head + 1} of layer {layer + 1} ({kind})",
)

# %%
chosen = np.arange(len(target)), np.array(target)
probs, probs_without = (np.asarray(jax.nn.softmax(x))[chosen] for x in (logits, without))
print("probability of the predicted token:")
for label, prob, prob_without in zip(rows, probs, probs_without, strict=True):
    print(f"{label:25} {prob:.2f}, without the head {prob_without:.2f}")

# %% [markdown]
# The picture shows what the *rest* of the model does when one part is missing, in this sentence. It
# does not show what the head does when it is present.
#
# ### Predict, then run
#
# **Exercise 3.** Heads with low entropy attend to few positions, as if they knew where to look. Is
# the correlation between the entropy of a head and the cost of its removal negative?

# %%
flat_entropy = np.concatenate([np.ravel(entropies[kind]) for kind in kinds])
flat_increase = np.concatenate([increase[kind].ravel() for kind in kinds])
correlation = np.corrcoef(flat_entropy, flat_increase)[0, 1]
Answer(
    f"Over the {flat_entropy.size} heads of this model it is {correlation:+.2f}. The entropies are "
    "those of one sentence, and another seed has other heads: one model settles nothing."
)

# %% [markdown]
# ## References
#
# - Vaswani et al. (2017), *Attention Is All You Need*, section 3.2 and the figures of its appendix;
#   Alammar (2018), *The Illustrated Transformer*.
# - Voita et al. (2019), *Analyzing Multi-Head Self-Attention: Specialized Heads Do the Heavy
#   Lifting, the Rest Can Be Pruned*; Michel, Levy and Neubig (2019), *Are Sixteen Heads Really
#   Better than One?*
# - Kobayashi et al. (2020), *Attention Is Not Only a Weight: Analyzing Transformers with Vector
#   Norms*: the added vectors of section 6.
# - Jain and Wallace (2019), *Attention Is Not Explanation*; Wiegreffe and Pinter (2019), *Attention
#   Is Not Not Explanation*.
#
# ## Checks

# %%
for name, weights_of_kind in kinds.items():
    np.testing.assert_allclose(weights_of_kind.sum(-1), 1, atol=1e-5)
    assert entropies[name].shape == weights_of_kind.shape[:2] == increase[name].shape
    assert (np.asarray(entropies[name]) <= np.log2(weights_of_kind.shape[-1])).all()
np.testing.assert_allclose(shares.sum(0), 1, atol=1e-5)
assert not np.allclose(shares.sum(-1), 1, atol=0.1), "shares are not distributions over words"
assert (shares.argmax(-1) != weights.argmax(-1)).any(), "the normalizations disagree for some head"
assert rows[0].startswith("<s> "), "the first row of the decoder reads BOS"

# The masks.
later = ~np.asarray(masks.decoder)
assert later.any() and (decoder[..., later] == 0).all()
assert (np.asarray(with_padding.encoder.self_attention.weights)[..., len(source) :] == 0).all()
assert (np.asarray(with_padding.decoder.cross_attention.weights)[..., len(source) :] == 0).all()

# The outputs of the heads sum to the output of the sub-layer, and gates of 1 change nothing.
for stack in stacks.values():
    np.testing.assert_allclose(stack.head_out.sum(1), stack.output, atol=1e-4)
unchanged, _ = run(model, params, np.array(source), np.array(target_in), interventions=all_on)
np.testing.assert_allclose(unchanged, logits, atol=1e-4)
assert max(values.max() for values in increase.values()) > 0
assert probs_without.mean() < probs.mean()
np.testing.assert_allclose(base_loss, ablated.loss, rtol=1e-3)
assert largest_on_little > 0.05
assert all(0 < share <= 1 + 1e-4 for share in kept.values())
