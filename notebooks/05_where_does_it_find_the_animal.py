# SPDX-License-Identifier: Apache-2.0
"""Whether a head attends to the noun that "it" refers to, and how models resolve "it"."""

# %% [markdown]
# # Where does "it" find the animal?
#
# > The animal didn't cross the street because **it** was too **tired**.
# >
# > The animal didn't cross the street because **it** was too **wide**.
#
# A head that attends from *it* to *animal* is the best-known picture of a Transformer. It suggests
# how the model resolves "it". This notebook puts that suggestion to a test that can fail: a model
# that must resolve "it", sentences with a known referent, and four questions.
#
# 1. **Where do heads attend?** The weight on the noun that "it" refers to, minus the weight on the
#    other noun, for every head of all three kinds of attention.
# 2. **What is the effect of removing a head?** Each head is removed in turn.
# 3. **Which position carries the answer?** Vectors of one sentence are patched into the run of the
#    other.
# 4. **Which words does the answer depend on?** The answer is attributed to the words.
#
# The notebook trains one model, and its answers are about that model alone: models that differ in
# seed or size may resolve "it" in other ways.

# %%
import numpy as np

from experiments.corpora import registry
from experiments.studies import resolution, small_model, twins
from transformer.inspection import attribution, figures, patching, run
from transformer.inspection.alignment import untrained_params
from transformer.inspection.views.attention_kinds import trace_attention_kinds
from transformer.inspection.views.sentence_comparison import compare_sentences
from transformer.nn.capture import KINDS

translator = small_model.load(seed=0, folder="runs")
params, config = translator.params, translator.config.model

# %% [markdown]
# ## The task
#
# The corpus `pronouns` translates English to German, where "it" is *er*, *sie* or *es*, depending
# on the gender of the noun that it refers to. Only the reason determines the referent: in this
# grammar *tired* describes animals and *wide* describes streets. The model has two layers on each
# side, d_model 64, and 4 heads per layer.

# %%
twin_texts = [
    f"The animal didn't cross the street because it was too {reason}."
    for reason in ("tired", "wide")
]
for sentence, translation in zip(twin_texts, translator(twin_texts), strict=True):
    print(sentence, "->", translation.text)

# %% [markdown]
# It is correct on nearly every unseen sentence, also where the two nouns never occur together in
# the training data (`test_unseen`).

# %%
accuracy = {
    split: resolution.pronoun_accuracy(translator, split, limit=192)
    for split in ("test", "test_unseen")
}
accuracy

# %% [markdown]
# The sentences come in **twins**, which differ only in the reason, and whose "it" refers to one
# noun each. So a head that always attends to the first noun, or to the nearer one, is wrong as
# often as it is correct. The adjective is the only token that differs. The role of each token of
# our sentence:

# %%
examples = registry.load(translator.config.data, "test").examples
sentences = twins.read(translator.tokenizer, examples, 100)
article_twins = [example for example in examples if example["source"] in twin_texts]
tired, wide = twins.read(
    translator.tokenizer, sorted(article_twins, key=lambda example: example["source"])
)

pieces = translator.tokenizer.pieces
source = pieces(tired.source)
for piece, role in zip(source, tired.source_roles, strict=True):
    print(f"{piece:12}{twins.ROLES[role]}")

# %% [markdown]
# The question concerns the decoder row that has read *Das Tier überquerte die Straße nicht, weil*
# and predicts the pronoun. The answer is one number: the preference for the correct pronoun over
# the twin's pronoun, a difference of logits, in nats. Up to this row both translations are equal,
# so only the source can make the difference.

# %%
target_in = pieces(tired.target_in[: tired.position + 1])
target_out = pieces(tired.target[: tired.position + 1])
print(figures.read_predict(target_in, target_out)[-1])

# %% [markdown]
# ## 1. Where do heads attend?
#
# The **coreference score** of a head is its weight on the noun that "it" refers to, minus its
# weight on the other noun: 1 if all the weight is on the correct noun, -1 if all is on the wrong
# one, and 0 on average for a head that does not distinguish them. In the encoder it uses the row of
# "it". In decoder self-attention it uses the row that predicts the pronoun, and the nouns of the
# translation so far. In encoder-decoder attention ("cross") it uses the same row, and the nouns of
# the source. The score is the mean over 200 sentences.

# %%
coreference = resolution.coreference(params, config, sentences)
figures.plot_head_table(
    {kind: coreference[kind].score for kind in KINDS},
    label="coreference score",
    limits=(-1, 1),
    title="Does a head attend to the noun that the pronoun refers to?",
)

# %% [markdown]
# The best of many heads scores above 0 even if no head has any information. A permutation test
# measures how far: it shuffles the gold a thousand times, swapping the nouns of every pair of twins
# with probability one half. *Chance* is the 95th percentile of the best head's score. And a mean
# does not show how many sentences contribute to it: *sentences* is the share in which the best head
# gives the correct noun more weight than the wrong one; chance is one half.

# %%
untrained = resolution.coreference(untrained_params(config), config, sentences)
for kind in KINDS:
    found = coreference[kind]
    ahead = found.antecedent_ahead.ravel()[found.score.argmax()]
    print(
        f"{kind:8} best score {found.score.max():.3f} (chance {found.chance:.3f}, "
        f"untrained {untrained[kind].score.max():.3f}), sentences {ahead:.0%}"
    )

# %% [markdown]
# For the sentence about the tired animal, this is the layer with the best encoder-decoder head, in
# the row that predicts the pronoun:

# %%
prefix = tired.target_in[: tired.position + 1]
traces = [
    run(params, config, sentence.source, prefix, capture="weights")[1] for sentence in (tired, wide)
]
layer, head = np.unravel_index(
    coreference["cross"].score.argmax(), coreference["cross"].score.shape
)
figures.plot_token_heads(
    traces[0].attention("cross").weights[layer],
    int(tired.position),
    figures.read_predict(target_in, target_out),
    source,
    title=f"Encoder-decoder attention, layer {layer + 1}, row that predicts the pronoun",
)

# %% [markdown]
# And this is the well-known picture, the row of "it" in the encoder's last layer:

# %%
figures.plot_token_heads(
    traces[0].attention("encoder").weights[-1],
    int(np.flatnonzero(tired.has_role("it"))[0]),
    source,
    source,
    title="Encoder, last layer: where each head attends for it",
)

# %% [markdown]
# **What this does not prove.** A weight shows where a head attends, not why the model predicts a
# token: the value at that position may be small, or other heads may outweigh it. From the second
# layer on, a position contains information from several words: a line to *animal* means the
# position of *animal*.
#
# ## 2. What is the effect of removing a head?
#
# The output of one head at a time is multiplied by 0. By how many nats does the preference for the
# correct pronoun decrease?

# %%
removed = resolution.pronoun_ablation(params, config, sentences)
without = removed.right_without.cross[layer, head]
print(f"with all heads: {removed.preference:.1f} nats, correct in {removed.right:.1%} of sentences")
print(f"without head {head + 1} of cross layer {layer + 1}: correct in {without:.1%}")
figures.plot_head_table(
    {kind: getattr(removed.damage, kind) for kind in KINDS},
    label="nats",
    title="Decrease of the preference for the correct pronoun without the head",
)

# %% [markdown]
# **What this does not prove.** Ablation shows only what the other heads cannot compensate for. Two
# heads that do the same work both look useless when removed one by one.
#
# ## 3. Which position carries the answer?
#
# The model reads *... too wide*, and at one position of the encoder's residual stream (one token,
# after one layer) its vector is replaced by the vector from *... too tired*. How much of the
# difference between the two answers does this restore? 0: the answer is still that for *wide*; 1:
# it is that for *tired*.

# %%
metric = tired.preference
patched = patching.patch_sites(params, config, tired.source, wide.source, tired.target_in, metric)
merged_labels = [
    token if token == other else f"{token} / {other}"
    for token, other in zip(source, pieces(wide.source), strict=True)
]
figures.plot_patch_map(
    patched.effect, merged_labels, title="Patching tired into wide: share that one vector restores"
)

# %% [markdown]
# The two sentences side by side: choose a kind of attention, a layer and a head.

# %%
labels = {"target_in": target_in, "target_out": target_out}
compare_sentences(
    trace_attention_kinds(traces[0], source_tokens=source, **labels),
    trace_attention_kinds(traces[1], source_tokens=pieces(wide.source), **labels),
    names=("tired", "wide"),
    layer=int(layer),
    head=int(head),
    title="The animal was too tired, the street was too wide",
)

# %% [markdown]
# One pair of sentences is little evidence. The next cell patches 80 sentences and their twins, and
# averages the effects by the role of the token: "before" a noun are its determiner and attribute,
# and several tokens with one role are averaged. Only twins that the model translates correctly
# count.

# %%
carried = resolution.role_patching(params, config, sentences[:80])
figures.plot_patch_map(
    carried.encoder,
    twins.ROLES,
    title=f"Restored share by role of the token, over {carried.sentences} sentences",
)

# %% [markdown]
# And in the decoder? The same patches are applied to the row that predicts the pronoun: at the
# decoder's input, where the row contains nothing of the source yet, and after each layer.

# %%
for site, share in zip(("input", "layer 1", "layer 2"), carried.decoder[:, 0], strict=True):
    print(f"{site:8} {share:.3f}")

# %% [markdown]
# **Attribution patching** is a cheaper estimate: it multiplies gradients by the difference of the
# two runs instead of running the model for each position. Its correlation with the exact effects,
# after each layer of the encoder:

# %%
carried.estimate_correlation

# %% [markdown]
# ## 4. Which words does the answer depend on?
#
# Integrated gradients follow a path from a baseline without words to the sentence, and attribute
# the preference to the words of the source and of the translation so far. The attributions must sum
# to the total change of the preference; the completeness gap is the remainder.

# %%
parts = [
    attribution.integrated_gradients(
        params, config, sentence.source, sentence.target_in, sentence.preference, steps=512
    )
    for sentence in (tired, wide)
]
for name, part in zip(("tired", "wide"), parts, strict=True):
    print(f"{name}: {part.value:.2f} nats, completeness gap {part.relative_gap:.2%}")
figures.plot_attribution(
    [[*part.source, *part.target[: len(target_in)]] for part in parts],
    merged_labels,
    target_in,
    [f"{pieces([tired.pronoun])[0]} (tired)", f"{pieces([wide.pronoun])[0]} (wide)"],
    title="Attribution of the preference for the correct pronoun",
)

# %% [markdown]
# **What this does not prove.** Integrated gradients depend on the baseline, here a sentence without
# words, which never occurs in the data. That both nouns matter, one for the pronoun and one against
# it, shows that the model compares their genders; it does not show in which head, or that the model
# understands anything.
#
# ## The answer
#
# **Does a head attend from "it" to the animal? Not in this model.** In the row of "it", the score
# of every encoder head is below chance, and the vector at "it" carries none of the answer. The
# well-known picture does not show how this model resolves "it", although it is correct on nearly
# every sentence. The encoder leaves the information at its position: the difference between *tired*
# and *wide* is at the adjective when the decoder attends to the source.
#
# **Does any head attend to it? One of the decoder does.** After the first layer of the decoder, the
# row that predicts the pronoun has nearly all of the difference: it has read the adjective. Then a
# head of the second layer attends to the noun that the adjective describes, and hardly to the other
# one, in nearly all sentences. Without that head, many more pronouns are wrong. Weights, ablation
# and patches agree.
#
# ## What none of this proves
#
# - **Attention is not explanation.** The weights of the best head suggest a mechanism; only the
#   ablation showed that the head matters, and only the patches what it needs.
# - **One model.** A model from another seed, or of another size, may resolve "it" in another way
#   with the same accuracy; then its heads and its patch map look different.
# - **One grammar.** The grammar has a hundred nouns and some fifty adjectives: a model can learn
#   which adjectives go with which nouns without knowing what tiredness is.
# - **The sentence pairs and the measure are choices.** Twins differ in the adjective; other pairs,
#   for example with a replaced noun, would answer a different question. The measure compares only
#   two logits.
# - **Averages.** The effect of a role is a mean over sentences; single sentences differ.
#
# The last cell checks the claims of the text.

# %%
it, adjective = twins.ROLES.index("it"), twins.ROLES.index("adjective")
assert min(accuracy.values()) > 0.9
only_adjective = np.eye(len(twins.ROLES))[adjective]
np.testing.assert_allclose(carried.encoder[0], only_adjective, atol=1e-3)
assert coreference["encoder"].score.max() < coreference["encoder"].chance
assert carried.encoder[-1][it] < 0.1 and carried.encoder[-1][adjective] > 0.9
assert max(each.score.max() for each in untrained.values()) < 0.05
assert carried.decoder[1, 0] > 0.9 and layer == 1
assert coreference["cross"].score.max() > max(0.5, coreference["cross"].chance)
assert coreference["cross"].antecedent_ahead[layer, head] > 0.9
assert removed.right > 0.9 and without < removed.right - 0.05
assert max(float(part.relative_gap) for part in parts) < 0.02
