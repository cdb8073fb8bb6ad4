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
# seed or size may resolve "it" in other ways. `python -m experiments.studies.antecedent` asks the
# same questions of many models. The answer at the end is written by a cell, from the numbers of the
# model in front of you.

# %%
import numpy as np
from IPython.display import Markdown

from experiments.data import registry
from experiments.studies import small_model
from experiments.studies.antecedent import resolution, twins
from experiments.studies.exercises import Answer
from transformer.inspection import attribution, figures, patching, run
from transformer.inspection.alignment import untrained_params
from transformer.inspection.views.attention_kinds import Focus, trace_attention_kinds
from transformer.inspection.views.sentence_comparison import compare_sentences
from transformer.models.protocol import KINDS

translator = small_model.load(seed=0, folder="runs")
model, params = translator.model, translator.params

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
# The share of correct pronouns in unseen sentences, and in sentences whose two nouns never occur
# together in the training data (`test_unseen`):

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
# the source. The score is the mean over 200 sentences; in decoder self-attention over those in
# which both nouns precede the pronoun.
#
# ### Predict, then run
#
# **Exercise 1.** In which of the three kinds of attention is the head with the highest score? The
# best-known picture says: in the encoder.

# %%
coreference = resolution.coreference(model, params, sentences)
figures.plot_head_table(
    {kind: coreference[kind].score for kind in KINDS},
    label="coreference score",
    limits=(-1, 1),
    title="Does a head attend to the noun that the pronoun refers to?",
)

# %% [markdown]
# The best of many heads scores above 0 even if no head has any information. A permutation test
# measures how far: it shuffles the gold a thousand times, swapping the nouns of every pair of twins
# with probability one half. *Chance* is the 95th percentile of the largest absolute score of any
# head. A mean does not show how many sentences contribute to it: *sentences* is the share in which
# the best head gives the correct noun more weight than the wrong one; chance is one half.

# %%
untrained = resolution.coreference(model, untrained_params(model), sentences)
for kind in KINDS:
    found = coreference[kind]
    ahead = found.antecedent_ahead.ravel()[found.score.argmax()]
    print(
        f"{kind:8} best score {found.score.max():.3f} (chance {found.chance:.3f}, "
        f"untrained {untrained[kind].score.max():.3f}), sentences {ahead:.0%}"
    )
best_kind = max(KINDS, key=lambda kind: coreference[kind].score.max())
Answer(
    f"In this model: {best_kind}, with a score of {coreference[best_kind].score.max():.2f}. Heads "
    "above chance: "
    + ", ".join(
        f"{kind} {int((coreference[kind].score > coreference[kind].chance).sum())} of "
        f"{coreference[kind].score.size}"
        for kind in KINDS
    )
    + "."
)

# %% [markdown]
# For the sentence about the tired animal, this is the layer with the best encoder-decoder head, in
# the row that predicts the pronoun:

# %%
prefix = tired.target_in[: tired.position + 1]
traces = [
    run(model, params, sentence.source, prefix, capture="weights")[1] for sentence in (tired, wide)
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
removed = resolution.pronoun_ablation(model, params, sentences)
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
# heads that do the same work both look useless when removed one by one. And a head that is set to 0
# gives the next layer an input that it never saw in training, so a part of the damage can come from
# that.
#
# ## 3. Which position carries the answer?
#
# The model reads *... too wide*, and at one position of the encoder's residual stream (one token,
# after one layer) its vector is replaced by the vector from *... too tired* (activation patching,
# Vig et al. 2020). How much of the difference between the two answers does this restore? 0: the
# answer is still that for *wide*; 1: it is that for *tired*.
#
# ### Predict, then run
#
# **Exercise 2.** At the input of the encoder, which position must restore everything? After the
# last layer, which position do you expect: *it*, *animal*, *street*, or the adjective?

# %%
metric = tired.preference
patched = patching.patch_sites(model, params, tired.source, wide.source, tired.target_in, metric)
merged_labels = [
    token if token == other else f"{token} / {other}"
    for token, other in zip(source, pieces(wide.source), strict=True)
]
figures.plot_patch_map(
    patched.effect, merged_labels, title="Patching tired into wide: share that one vector restores"
)

# %%
last_row = np.asarray(patched.effect)[-1]
strongest = int(last_row.argmax())
Answer(
    "At the input only the adjective differs, so it restores everything. After the encoder's last "
    f"layer, *{merged_labels[strongest].replace('▁', '')}* restores {last_row[strongest]:.2f}, the "
    f"most; *it* restores {last_row[source.index('▁it')] + 0.0:.2f}."
)

# %% [markdown]
# The two sentences side by side. The view opens on the encoder-decoder head with the best score
# above, in the row that predicts the pronoun; choose another kind of attention, layer or head.

# %%
labels = {"target_in": target_in, "target_out": target_out}
found = Focus(
    "cross", int(layer), int(head), source=source.index("▁it"), target=int(tired.position)
)
compare_sentences(
    trace_attention_kinds(traces[0], source_tokens=source, **labels),
    trace_attention_kinds(traces[1], source_tokens=pieces(wide.source), **labels),
    names=("tired", "wide"),
    focus=found,
    title="The animal was too tired, the street was too wide",
)

# %% [markdown]
# One pair of sentences is little evidence. The next cell patches 80 sentences and their twins, and
# averages the effects by the role of the token: "before" a noun are its determiner and attribute,
# and several tokens with one role are averaged. Only twins that the model translates correctly
# count.

# %%
carried = resolution.role_patching(model, params, sentences[:80])
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
# Integrated gradients (Sundararajan et al. 2017) follow a path from a baseline without words to the
# sentence, and attribute the preference to the words of the source and of the translation so far.
# The attributions must sum to the total change of the preference; the completeness gap is the
# remainder.

# %%
parts = [
    attribution.integrated_gradients(
        model, params, sentence.source, sentence.target_in, sentence.preference, steps=512
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
# words, which never occurs in the data. If both nouns matter, one for the pronoun and one against
# it, then the model compares their genders; that does not show in which head, or that the model
# understands anything.
#
# ### Predict, then run
#
# **Exercise 3.** In the sentence below the two nouns are exchanged. Which pronoun does the model
# choose, that of the animal (*es*) or that of the street (*sie*)?

# %%
SWAPPED = "The street didn't cross the animal because it was too tired."
[swapped] = translator([SWAPPED])
crossing = sum(
    "street" in before and bool(cross)
    for before, cross, _ in (example["source"].partition("cross") for example in examples)
)
Answer(
    f"{swapped.text}\n\nThe data hardly has sentences like it: *street* comes before *cross* in "
    f"{crossing} of the {len(examples)} test sentences. Nothing guarantees either answer."
)

# %% [markdown]
# ## The answer
#
# The next cell writes it from the numbers above.

# %%
it, adjective = twins.ROLES.index("it"), twins.ROLES.index("adjective")
encoder_best, cross_best = (coreference[kind].score.max() for kind in ("encoder", "cross"))
in_encoder = encoder_best > coreference["encoder"].chance
in_decoder = cross_best > coreference["cross"].chance
ahead = coreference["cross"].antecedent_ahead[layer, head]
at_it, at_adjective = carried.encoder[-1][it], carried.encoder[-1][adjective]


def percent(share):
    """A share in whole percent, without a negative zero."""
    return f"{round(100 * float(share))}%"


if at_it > at_adjective:
    carrier = 'The encoder moves the answer to "it".'
else:
    carrier = "The encoder leaves the answer at the adjective."
Markdown(
    f"""\
**Does an encoder head attend from "it" to the noun? {"Yes" if in_encoder else "No"}.**
In the row of "it" the best score of an encoder head is {encoder_best:.2f}; chance is
{coreference["encoder"].chance:.2f}. After the encoder the vector at "it" carries
{percent(at_it)} of the answer and the vector at the adjective {percent(at_adjective)}. {carrier}

**Does a decoder head? {"Yes" if in_decoder else "No"}.** In the row that predicts the pronoun, head
{head + 1} of encoder-decoder layer {layer + 1} has a score of {cross_best:.2f} (chance
{coreference["cross"].chance:.2f}) and gives the correct noun more weight in {ahead:.0%} of the
sentences. Without it {without:.1%} of the pronouns are correct, with it {removed.right:.1%}. At the
decoder's input that row carries {percent(carried.decoder[0, 0])} of the difference between the
twins, after layer 1 {percent(carried.decoder[1, 0])}, after layer 2
{percent(carried.decoder[2, 0])}."""
)

# %% [markdown]
# ## What none of this proves
#
# - **Attention is not explanation** (Jain and Wallace 2019). The weights of the best head suggest a
#   mechanism; only the ablation shows whether the head matters, and only the patches what it needs.
# - **One model.** A model from another seed, or of another size, may resolve "it" in another way
#   with the same accuracy; then its heads and its patch map look different.
# - **One grammar.** The grammar has a hundred nouns and some fifty adjectives: a model can learn
#   which adjectives go with which nouns without knowing what tiredness is.
# - **The sentence pairs and the measure are choices.** Twins differ in the adjective; other pairs,
#   for example with a replaced noun, would answer a different question. The measure compares only
#   two logits.
# - **Averages.** The effect of a role is a mean over sentences; single sentences differ.
#
# ## References
#
# - Voita et al. (2018), *Context-Aware Neural Machine Translation Learns Anaphora Resolution*;
#   Tang, Sennrich and Nivre (2018), *An Analysis of Attention Mechanisms: The Case of Word Sense
#   Disambiguation in Neural Machine Translation*; Voita et al. (2019), *Analyzing Multi-Head
#   Self-Attention*.
# - Jain and Wallace (2019), *Attention Is Not Explanation*; Vig et al. (2020), *Investigating
#   Gender Bias in Language Models Using Causal Mediation Analysis*; Nanda (2023), *Attribution
#   Patching*; Sundararajan, Taly and Yan (2017), *Axiomatic Attribution for Deep Networks*.
# - Levesque, Davis and Morgenstern (2012), *The Winograd Schema Challenge*: twins of this kind.
#
# ## Checks
#
# What the method guarantees in every model, and what makes this model worth the study.

# %%
assert min(accuracy.values()) > 0.9
only_adjective = np.eye(len(twins.ROLES))[adjective]
np.testing.assert_allclose(carried.encoder[0], only_adjective, atol=1e-3)
assert int(np.asarray(patched.effect)[0].argmax()) == int(
    np.flatnonzero(tired.has_role("adjective"))[0]
)
assert max(each.score.max() for each in untrained.values()) < 0.05
assert abs(carried.decoder[0, 0]) < 1e-3 and carried.decoder[-1, 0] > 0.9
assert removed.right > 0.9
assert coreference[best_kind].score.max() > coreference[best_kind].chance
assert max(float(part.relative_gap) for part in parts) < 0.02
