# SPDX-License-Identifier: Apache-2.0
"""Attention matrices of every layer and head, what heads do, and what they add."""

# %% [markdown]
# # Attention heads
#
# A Transformer has many attention heads, and three kinds of them: the encoder reads the source,
# the decoder reads what it has written so far, and the decoder reads the source. Here all heads
# of a small trained model are drawn, measured, and one of them is switched off.
#
# You will see:
#
# 1. one head as a matrix, and how its rows and columns are to be read;
# 2. all layers and heads of the three kinds;
# 3. one word over all heads, in two normalisations, of which only one is attention;
# 4. views to play with;
# 5. the masks at work;
# 6. numbers for every head: its role, its entropy, and what it adds;
# 7. what happens without a head.
#
# Below most pictures stands what they do **not** show. The last cell holds the text to the
# numbers.

# %%
import jax
import numpy as np

from experiments.corpora import registry
from experiments.studies import small_model
from transformer import inspection
from transformer.arrays import BOS_ID, PAD_ID
from transformer.inspection import ablation, figures, measures
from transformer.inspection.views.attention_kinds import trace_attention_kinds
from transformer.inspection.views.head_overview import head_overview
from transformer.inspection.views.head_view import head_view, shares_between_heads

# %% [markdown]
# The model is trained the first time, within a few minutes, and opened afterwards. It translates
# sentences of a small grammar to German, in which "it" is *er*, *sie* or *es*, as the noun
# demands that it stands for.

# %%
translator = small_model.load(seed=0, folder="runs")
params, config = translator.params, translator.config.model
tokenizer, pieces = translator.tokenizer, translator.tokenizer.pieces
run = jax.jit(inspection.run, static_argnames=("config", "capture"))

SENTENCE = "The animal didn't cross the street because it was too tired."
translation = translator([SENTENCE])[0]
source, target = tokenizer.encode([SENTENCE])[0], list(translation.tokens)
target_in = [BOS_ID, *target[:-1]]
logits, trace = run(params, config, np.array(source), np.array(target_in), capture="full")

words, read, predicted = pieces(source), pieces(target_in), pieces(target)
print(SENTENCE, "→", translation.text)

# %% [markdown]
# ## 1. One head
#
# A row is the token that asks, a column the token that is read. Each row sums to 1.

# %%
encoder = np.asarray(trace.encoder.self_attention.weights)
decoder = np.asarray(trace.decoder.self_attention.weights)
cross = np.asarray(trace.decoder.cross_attention.weights)
figures.plot_attention(encoder[0, 0], words, words, annotate=True, title="Encoder, layer 1, head 1")

# %% [markdown]
# In the decoder a row is computed while one token is read and the *next* one is predicted. Many
# viewers name the row after one of the two, and leave open which; here both are written. So the
# row "▁weil → ▁es" is where the model reads while it chooses the pronoun.

# %%
rows = figures.read_predict(read, predicted)
figures.plot_attention(
    cross[-1].mean(0), rows, words, title="Decoder reads the source, last layer, mean of its heads"
)

# %% [markdown]
# A mean of heads is not what any head does. And above the first layer a column is not a word any
# more: it is the vector at that word's place, into which other words have been mixed.
#
# ## 2. All layers and heads

# %%
figures.plot_attention_grid(encoder, words, words, title="The encoder reads the source")

# %%
figures.plot_attention_grid(decoder, rows, read, title="The decoder reads what it has written")

# %%
figures.plot_attention_grid(cross, rows, words, title="The decoder reads the source")

# %% [markdown]
# ## 3. One word over all heads
#
# The best-known figure of *The Illustrated Transformer* shows the word "it" and says that one
# head is focusing most on "the animal", another on "tired". What do the heads of our last encoder
# layer read for "it"?

# %%
it = words.index("▁it")
figures.plot_token_heads(encoder[-1], it, words, words)

# %% [markdown]
# These are the weights that the model computes with: each head's sum to 1 over the words. The
# article's figure is made in another way. Its numbers come from a Tensor2Tensor notebook that
# divides the weights by their sum *over the heads*. The same weights, drawn like that:

# %%
figures.plot_token_heads(encoder[-1], it, words, words, normalize="heads")

# %% [markdown]
# Now the numbers of each *word* sum to 1 over the heads. They answer another question: not "where
# does this head read?" but "which head reads this word more than the others do?" A head that
# gives a word a weight of 0.02 has a large share of it if the others give it 0.001. The next cell
# looks for the words at which that turns the story round.

# %%
weights = encoder[-1][:, it]
shares = np.asarray(shares_between_heads(encoder[-1]))[:, it]
for head, (own, share) in enumerate(zip(weights, shares, strict=True), 1):
    most, largest = own.argmax(), share.argmax()
    print(
        f"head {head} reads {words[most]} most (weight {own[most]:.2f}); its largest share is of "
        f"{words[largest]} ({share[largest]:.2f}), where its weight is {own[largest]:.2f}"
    )

# %% [markdown]
# Neither picture says why the translation has the pronoun that it has. Notebook 05 asks that,
# over hundreds of sentences.
#
# ## 4. Views to play with
#
# Choose the kind of attention, the layer and the heads; hover over a token, or go through them
# with the arrow keys. Where a notebook is shown without being run, you see a still picture.

# %%
kinds = trace_attention_kinds(trace, source_tokens=words, target_in=read, target_out=predicted)
head_view(kinds, row=it)

# %% [markdown]
# And the overview: every head as a small map, in the order of a measure if you like.

# %%
head_overview(kinds)

# %% [markdown]
# ## 5. Masks at work
#
# The source is filled up with three places of padding, as in a batch. No head reads them, and no
# row of the decoder reads what comes after it: those weights are not small but exactly 0.

# %%
padded = np.array([*source, PAD_ID, PAD_ID, PAD_ID])
_, with_padding = run(params, config, padded, np.array(target_in), capture="weights")
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
# ## 6. Numbers for every head
#
# **Roles.** Some heads read by position alone: the previous token, the next, the first, the last,
# their own. Here is the mean weight of each head on these places, and the name of the role where
# it has at least half of the weight.

# %%
kinds = {"encoder": encoder, "decoder": decoder, "cross": cross}
roles = {kind: measures.head_roles(weights) for kind, weights in kinds.items()}
for kind, of_kind in roles.items():
    for number, layer in enumerate(of_kind.names(), 1):
        print(f"{kind:8} layer {number}:  " + "  ".join(name or "none" for name in layer))
figures.plot_head_table(
    {kind: of_kind.previous for kind, of_kind in roles.items()},
    label="mean weight",
    limits=(0, 1),
    title="How much each head reads the previous token",
)

# %% [markdown]
# In encoder-decoder attention the "previous" place is one of the source, by number; it says
# little there.
#
# **Entropy** says how many places a head divides its weight among: 0 bits for one, 1 bit for two,
# 2 bits for four. The first rows of the decoder have few places to choose from, which lowers its
# mean.

# %%
entropies = {kind: measures.row_mean(measures.entropy(weights)) for kind, weights in kinds.items()}
figures.plot_head_table(
    entropies, label="bits", title="Entropy of each head's rows, mean over the rows"
)

# %% [markdown]
# A head that is sure where it reads need not matter.
#
# **What a head adds.** A weight says how much of a value is taken; the value may be short, and
# W^O may shorten it more. So the weight is multiplied by the length of what it moves, |weight ·
# value · W^O|. These rows do not sum to 1.

# %%
stacks = {kind: trace.attention(kind) for kind in kinds}
added = {
    kind: np.asarray(
        measures.norm_weighted_attention(
            stack.weights, stack.value, measures.output_kernels(params, config, kind)
        )
    )
    for kind, stack in stacks.items()
}
figures.plot_head_table(
    {kind: lengths.sum(-1).mean(-1) for kind, lengths in added.items()},
    label="length",
    title="Lengths of all that a head adds to a position, mean over the rows",
)

# %%
agree = {kind: added[kind].argmax(-1) == kinds[kind].argmax(-1) for kind in kinds}
for kind, same in agree.items():
    print(f"{kind:8} what is read most also adds the longest vector in {same.mean():.0%} of rows")

# %% [markdown]
# Lengths are added up here as if all vectors pointed the same way. They do not: some cancel each
# other.
#
# ## 7. Without a head
#
# Each head has a gate, with which its output is multiplied: 1 leaves it, 0 switches it off.
# First, what each head is worth to 128 sentences that the model has not seen: by how much the
# loss rises without it, in nats a target token.

# %%
test = registry.load(translator.config.data, "test").first(128)


def filled(sentences):
    """Ids [B,S], filled up with padding."""
    ids = tokenizer.encode(sentences)
    longest = max(map(len, ids))
    return np.array([one + [PAD_ID] * (longest - len(one)) for one in ids])


lost = ablation.ablate_heads(params, config, filled(test.sources), filled(test.targets))
increase = {kind: np.asarray(getattr(lost.increase, kind)) for kind in kinds}
figures.plot_head_table(
    increase, label="nats a token", form="{:.3f}", title="What the loss rises by without a head"
)

# %% [markdown]
# A small number is no proof that a head does nothing: others may do the same, and take over. Now
# our own sentence without the head that is missed most.

# %%
kind = max(kinds, key=lambda kind: increase[kind].max())
layer, head = np.unravel_index(increase[kind].argmax(), increase[kind].shape)
gates = ablation.open_gates(config)
closed = gates.replace(**{kind: getattr(gates, kind).at[layer, head].set(0.0)})
everything_on = inspection.trace.no_interventions(config, len(source), len(target_in))
without, _ = run(
    params,
    config,
    np.array(source),
    np.array(target_in),
    interventions=everything_on.with_gates(closed),
)
figures.plot_output_distribution(
    without,
    pieces(range(config.vocab_size)),
    read,
    np.array(target),
    top_k=4,
    title=f"The next token, without head {head + 1} of layer {layer + 1} ({kind})",
)

# %%
chosen = np.arange(len(target)), np.array(target)
right, right_without = (np.asarray(jax.nn.softmax(x))[chosen] for x in (logits, without))
for label, one, other in zip(rows, right, right_without, strict=True):
    print(f"{label:25} right with probability {one:.2f}, without the head {other:.2f}")

# %% [markdown]
# The picture shows what the *rest* of the model does when one part is missing, in this sentence.
# It does not show what the head does when it is there.
#
# ## Held to the numbers

# %%
for name, of_kind in kinds.items():
    np.testing.assert_allclose(of_kind.sum(-1), 1, atol=1e-5)
    assert entropies[name].shape == of_kind.shape[:2] == increase[name].shape
    assert (np.asarray(entropies[name]) <= np.log2(of_kind.shape[-1])).all()
np.testing.assert_allclose(shares.sum(0), 1, atol=1e-5)
assert not np.allclose(shares.sum(-1), 1, atol=0.1), "shares are no distribution over words"
assert (shares.argmax(-1) != weights.argmax(-1)).any(), "the story turns round at some head"
assert rows[0].startswith("<s> "), "the first row of the decoder reads the start token"

# The masks.
later = ~np.asarray(masks.decoder)
assert later.any() and (decoder[..., later] == 0).all()
assert (np.asarray(with_padding.encoder.self_attention.weights)[..., len(source) :] == 0).all()
assert (np.asarray(with_padding.decoder.cross_attention.weights)[..., len(source) :] == 0).all()

# What heads add is what the sub-layer adds, and gates of 1 change nothing.
for stack in stacks.values():
    np.testing.assert_allclose(stack.head_out.sum(1), stack.output, atol=1e-4)
unchanged, _ = run(
    params, config, np.array(source), np.array(target_in), interventions=everything_on
)
np.testing.assert_allclose(unchanged, logits, atol=1e-4)
assert max(values.max() for values in increase.values()) > 0
assert right_without.mean() < right.mean()
