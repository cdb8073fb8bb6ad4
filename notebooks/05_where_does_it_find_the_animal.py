# SPDX-License-Identifier: Apache-2.0
"""Whether a head reads what "it" refers to, and what else a model does to find out."""

# %% [markdown]
# # Where does "it" find the animal?
#
# > The animal didn't cross the street because **it** was too **tired**.
# >
# > The animal didn't cross the street because **it** was too **wide**.
#
# A head that reads *animal* from *it* is the best known picture of a Transformer. It suggests how
# the model knows what "it" is. Here that is put to a test which it can fail: a model that must find
# out what "it" refers to, sentences of which we know what "it" refers to, and four questions.
#
# 1. **Where do heads read?** The weight on the noun that "it" refers to, less the weight on the
#    other noun, for every head of all three kinds of attention.
# 2. **What is lost without a head?** Each head removed in turn.
# 3. **Which place carries the answer?** Vectors of one sentence put into the run of the other.
# 4. **Which words does the answer rest on?** The answer divided among the words.
#
# One model is trained here, while you read. Beside it stand the results of several models that were
# trained in the same way from other seeds (`experiments/studies/antecedent.py`), since one model is
# an anecdote. The first of them has the seed of the one trained here.

# %%
import numpy as np

from experiments.corpora import registry
from experiments.studies import resolution, small_model, twins
from transformer.inspection import attribution, figures, patching, run
from transformer.inspection.views.attention_kinds import trace_attention_kinds
from transformer.inspection.views.sentence_comparison import compare_sentences
from transformer.nn.capture import KINDS

translator = small_model.load(seed=0, folder="runs")
params, config = translator.params, translator.config.model
study = resolution.results()["models"]

# %% [markdown]
# ## The task
#
# The corpus `pronouns` translates English into German, where "it" is *er*, *sie* or *es* by the
# gender of what it refers to. Only the reason tells what that is: here *tired* is said of animals
# and *wide* of streets. The model has two layers on each side, is 64 numbers wide, and has 4 heads
# a layer.

# %%
asked = [
    f"The animal didn't cross the street because it was too {reason}."
    for reason in ("tired", "wide")
]
for sentence, translation in zip(asked, translator(asked), strict=True):
    print(sentence, "->", translation.text)

# %% [markdown]
# It is right on nearly every sentence that it has not seen, also where the two nouns have never
# stood in one sentence before (`test_unseen`).

# %%
accuracy = {
    split: resolution.pronoun_accuracy(translator, split, limit=192)
    for split in ("test", "test_unseen")
}
accuracy

# %% [markdown]
# The sentences come in **twins**, which differ in the reason alone, and whose "it" refers to one
# noun each. So a head that always reads the first noun, or the nearer one, is as often wrong as
# right. The adjective is the one token that differs. What each token of ours is:

# %%
examples = registry.load(translator.config.data, "test").examples
sentences = twins.read(translator.tokenizer, examples, 100)
ours = [e for e in examples if e["source"].startswith("The animal didn't cross the street because")]
tired, wide = twins.read(translator.tokenizer, sorted(ours, key=lambda e: e["source"]))

pieces = translator.tokenizer.pieces
source = pieces(tired.source)
for piece, role in zip(source, tired.source_roles, strict=True):
    print(f"{piece:12}{twins.ROLES[role]}")

# %% [markdown]
# What we ask about is the row of the decoder that has read *Das Tier überquerte die Straße nicht,
# weil* and predicts the pronoun. The answer is one number: by how many nats the right pronoun is
# preferred to the twin's. Up to there both translations are the same, so that only the source can
# make the difference.

# %%
target_in = pieces(tired.target_in[: tired.position + 1])
target_out = pieces(tired.target[: tired.position + 1])
print(figures.read_predict(target_in, target_out)[-1])

# %% [markdown]
# ## 1. Where do heads read?
#
# The **coreference score** of a head is its weight on the noun that "it" refers to less its weight
# on the other noun: 1 where all the weight is on the right noun, -1 where all is on the wrong one,
# and 0 on average for a head that does not tell them apart. In the encoder the row is that of "it".
# In the decoder's own attention it is the row that predicts the pronoun, and the nouns are those of
# the translation so far. In encoder-decoder attention ("cross") it is the same row, and the nouns
# are those of the source. The score is the mean over 200 sentences.

# %%
read = resolution.coreference(params, config, sentences)
figures.plot_head_table(
    {kind: read[kind].score for kind in KINDS},
    label="coreference score",
    limits=(-1, 1),
    title="Does a head read the noun that the pronoun refers to?",
)

# %% [markdown]
# The best of many heads is above 0 even if none of them knows anything. So the gold is shuffled a
# thousand times: in every pair of twins the nouns change places or not, by the toss of a coin. What
# the best head stays below in 95 of 100 shuffles is drawn as *chance*. The dots are the best heads
# of the models from other seeds; a model that has not been trained has less than 0.05 everywhere.

# %%
titles = {"encoder": "encoder, row of it", "decoder": "decoder", "cross": "encoder-decoder"}
figures.plot_spread(
    {titles[kind]: [np.max(m["coreference"][kind]["score"]) for m in study] for kind in KINDS},
    label="coreference score of the best head",
    marked=[read[kind].score.max() for kind in KINDS],
    limits=[read[kind].chance for kind in KINDS],
    limits_name="chance, for this model",
    title="The best head of each kind, over seeds",
)

# %% [markdown]
# The seeds do not agree about the encoder-decoder attention. Nor does a mean say how many sentences
# it comes from; so here is the share of sentences in which the best head gives the right noun more
# than the wrong one, one half by chance.

# %%
ahead = {
    kind: [np.ravel(m["coreference"][kind]["antecedent_ahead"]) for m in study] for kind in KINDS
}
best = {kind: [np.argmax(m["coreference"][kind]["score"]) for m in study] for kind in KINDS}
figures.plot_spread(
    {
        titles[kind]: [each[at] for each, at in zip(ahead[kind], best[kind], strict=True)]
        for kind in KINDS
    },
    label="share of sentences in which the best head reads the right noun more",
    marked=[read[kind].antecedent_ahead.ravel()[read[kind].score.argmax()] for kind in KINDS],
    title="In how many sentences, over seeds",
)

# %% [markdown]
# For the sentence about the tired animal, this is the layer with the best encoder-decoder head, in
# the row that predicts the pronoun:

# %%
prefix = tired.target_in[: tired.position + 1]
traces = [run(params, config, one.source, prefix, capture="weights")[1] for one in (tired, wide)]
layer, head = np.unravel_index(read["cross"].score.argmax(), read["cross"].score.shape)
figures.plot_token_heads(
    traces[0].attention("cross").weights[layer],
    int(tired.position),
    figures.read_predict(target_in, target_out),
    source,
    title=f"Encoder-decoder attention, layer {layer + 1}, while the pronoun is predicted",
)

# %% [markdown]
# And this is the picture that everybody knows, from "it" in the encoder's last layer:

# %%
figures.plot_token_heads(
    traces[0].attention("encoder").weights[-1],
    int(np.flatnonzero(tired.has_role("it"))[0]),
    source,
    source,
    title="Encoder, last layer: where each head reads for it",
)

# %% [markdown]
# **What this does not prove.** A weight says where a head reads, not why the model answers: what is
# read may be small, or may be overruled by what others add. And from the second layer on a position
# is a mixture: a line to *animal* means the place where *animal* stood.
#
# ## 2. What is lost without a head?
#
# Each head's output is multiplied by 0, one head at a time. How many nats of the preference for the
# right pronoun are lost?

# %%
removed = resolution.pronoun_ablation(params, config, sentences)
without = removed.right_without.cross[layer, head]
print(f"with all heads: {removed.preference:.1f} nats, right in {removed.right:.1%} of sentences;")
print(f"without cross layer {layer + 1} head {head + 1}: right in {without:.1%}")
figures.plot_head_table(
    {kind: getattr(removed.damage, kind) for kind in KINDS},
    label="nats lost",
    title="By how much the right pronoun is preferred less without the head",
)

# %% [markdown]
# Do the heads that read the right noun do the most damage when they are gone? Over the seeds, the
# rank correlation of score and damage: 1 for the same order of heads, -1 for the opposite one.

# %%
figures.plot_spread(
    {
        titles.get(kind, "all heads"): [m["rank_correlation"][kind] for m in study]
        for kind in [*KINDS, "all"]
    },
    label="rank correlation of coreference score and damage",
    title="Reading and mattering, over seeds",
)

# %% [markdown]
# **What this does not prove.** A removed head shows what the others cannot make up for. Two heads
# that do the same work look useless one by one.
#
# ## 3. Which place carries the answer?
#
# The model reads *... too wide*, and at one place of the encoder's residual stream (one token,
# after one layer) its vector is overwritten with the one from *... too tired*. How much of the
# difference between the two answers comes back? 0: the answer is still that for *wide*; 1: it is
# that for *tired*.

# %%
metric = tired.preference
patched = patching.patch_sites(params, config, tired.source, wide.source, tired.target_in, metric)
both = [
    one if one == other else f"{one} / {other}"
    for one, other in zip(source, pieces(wide.source), strict=True)
]
figures.plot_patch_map(
    patched.effect, both, title="From tired to wide: what one vector brings back"
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
# One pair is one pair. So the same is done with 80 sentences and their twins, and the effects are
# put together by what the tokens are: "before" a noun stand its determiner and attribute, and where
# several tokens have one role it is their mean. Only twins count that the model gets right.

# %%
carried = resolution.role_patching(params, config, sentences[:80])
figures.plot_patch_map(
    carried.encoder, twins.ROLES, title=f"Over {carried.sentences} sentences, by what the token is"
)

# %%
figures.plot_spread(
    {
        role: [m["patching"]["encoder"][-1][place] for m in study]
        for place, role in enumerate(twins.ROLES)
    },
    label="share of the answer that a token carries after the encoder's last layer",
    marked=carried.encoder[-1],
    title="Where the encoder leaves the answer, over seeds",
)

# %% [markdown]
# And in the decoder? There the same patches are put into the row that predicts the pronoun: at the
# decoder's input, where nothing of the source has been read yet, and after each layer.

# %%
figures.plot_spread(
    {
        place: [m["patching"]["decoder"][layer][0] for m in study]
        for layer, place in enumerate(("input", "after layer 1", "after layer 2"))
    },
    label="share of the answer in the row that predicts the pronoun",
    marked=carried.decoder[:, 0],
    title="When the decoder has the answer, over seeds",
)

# %% [markdown]
# A cheaper estimate, **attribution patching**, multiplies gradients with the difference of the two
# runs in place of running the model for each site. Its correlation with the exact effects, after
# each layer of the encoder:

# %%
carried.estimate_correlation

# %% [markdown]
# ## 4. Which words does the answer rest on?
#
# Integrated gradients go from a baseline in which no position has a word to the sentence as it is,
# and divide the preference among the words of the source and of the translation so far. All parts
# together must be the whole: what is missing is the completeness gap.

# %%
parts = [
    attribution.integrated_gradients(
        params, config, one.source, one.target_in, one.preference, steps=512
    )
    for one in (tired, wide)
]
for name, part in zip(("tired", "wide"), parts, strict=True):
    print(f"{name}: {part.value:.2f} nats, completeness gap {part.relative_gap:.2%}")
figures.plot_attribution(
    [[*part.source, *part.target[: len(target_in)]] for part in parts],
    both,
    target_in,
    [f"{pieces([one.pronoun])[0]} ({name})" for name, one in (("tired", tired), ("wide", wide))],
    title="For the right pronoun and against the other",
)

# %% [markdown]
# Over seeds, 40 sentences each, by what the word is:

# %%
names = [*twins.ROLES, *(f"read so far: {role}" for role in twins.PREFIX_ROLES)]
amounts = [[*m["attribution"]["source"], *m["attribution"]["prefix"]] for m in study]
figures.plot_spread(
    {name: [one[place] for one in amounts] for place, name in enumerate(names)},
    label="nats for the right pronoun",
    title="Which words the answer rests on, over seeds",
)

# %% [markdown]
# **What this does not prove.** Integrated gradients depend on the baseline, here a sentence without
# words, which no one would say. That both nouns count, one for the pronoun and one against it, says
# that their genders are compared; it does not say by which head, or that anything was understood.
#
# ## The answer
#
# One line for each model of the study, all trained alike from different seeds:
#
# - *unseen*: the share of right pronouns where the two nouns have never met;
# - *it reads*: the best score of an encoder head in the row of "it";
# - *it holds*: how much of the answer the vector at "it" carries when it leaves the encoder, and
#   beside it the vector at the *adjective*;
# - *decoder reads*: the best score of an encoder-decoder head in the row that predicts the pronoun,
#   and in how many *sentences* this head gives the right noun more than the wrong one;
# - *without it*: the share of sentences that are still right without that head;
# - *after layer 1*: how much of the answer that row has by then.

# %%
print(
    "seed unseen | it reads it holds adjective | decoder reads sentences without it after layer 1"
)
for model in study:
    encoder, cross = (model["coreference"][kind] for kind in ("encoder", "cross"))
    place = np.argmax(cross["score"])
    leaving = dict(zip(twins.ROLES, model["patching"]["encoder"][-1], strict=True))
    print(
        f"{model['seed']:4} {model['pronoun_accuracy']['test_unseen']:6.1%} | "
        f"{np.max(encoder['score']):8.3f} {leaving['it']:8.3f} {leaving['adjective']:9.3f} | "
        f"{np.max(cross['score']):13.3f} {np.ravel(cross['antecedent_ahead'])[place]:9.0%} "
        f"{np.ravel(model['ablation']['right_without']['cross'])[place]:10.0%} "
        f"{model['patching']['decoder'][1][0]:13.3f}"
    )

# %% [markdown]
# **Does a head read the animal from "it"? In none of these models.** In the row of "it" no head of
# the encoder gives the one noun more than some hundredths above the other, and the vector at "it"
# carries nothing of the answer. The picture that everybody knows is not how these models do it,
# though they are right on nearly every sentence. The encoder leaves words at their places: what
# tells *tired* from *wide* is at the adjective when the decoder comes to read.
#
# **Does any head read it? That depends on the seed.** Models that are trained alike, and are right
# about equally often, do it in different ways:
#
# - *Adjective first.* The first layer of the decoder reads the adjective: after it, the row that
#   predicts the pronoun has nearly all that makes the difference. Then a head of the second layer
#   reads the noun that this was said of, and next to nothing of the other, in nearly all sentences.
#   Without that head more pronouns are wrong. Here weights, removal and patches tell one story.
# - *Nouns first.* After the first layer of the decoder the row has nothing yet of the adjective,
#   which the second layer brings. No head anywhere gives the right noun more than the wrong one in
#   clearly more than half of the sentences: the choice is made of what has been read, not by
#   reading the one noun and not the other. Who looks for the head that finds the animal finds none,
#   in a model that finds the animal.
#
# A mean can hide the second kind: where a head of it has a high score, it reads one noun or, in
# place of it, the adjective, so that the score comes from half of the sentences and says nothing of
# the others. This is why the share of sentences stands beside the mean.
#
# The names are a reading of these numbers: an order of steps that fits all of them, not a proof
# that there is no other.
#
# ## What none of this proves
#
# - **Attention is not explanation.** A model of the second kind knows what "it" is, and its weights
#   do not show it. In one of the first kind they do, but that the head matters was shown by
#   removing it. One seed would have given one of the two stories, and no sign of the other.
# - **One grammar.** A hundred nouns and some fifty adjectives: a model can learn which adjectives
#   go with which nouns, and need not know what tiredness is.
# - **A small model.** With two layers in the encoder, and a decoder that may do the work, nothing
#   forces "it" to be resolved in the encoder. A deeper model, or one trained on text in which more
#   depends on "it", may do it there.
# - **The pair and the measure are chosen.** Twins differ in the adjective; other pairs, with a noun
#   swapped for example, would ask another question. The measure is one logit against another.
# - **Averages.** A role's effect is a mean over sentences; single sentences differ.
#
# What the text says is checked here: of the model of this notebook what holds for every seed, and
# of the study the rest.

# %%
it, adjective = twins.ROLES.index("it"), twins.ROLES.index("adjective")
assert min(accuracy.values()) > 0.9
only_adjective = np.eye(len(twins.ROLES))[adjective]
np.testing.assert_allclose(carried.encoder[0], only_adjective, atol=1e-3)
assert np.abs(read["encoder"].score).max() < 0.1
assert carried.encoder[-1][it] < 0.1 and carried.encoder[-1][adjective] > 0.9
assert max(float(part.relative_gap) for part in parts) < 0.02

ways = []
for model in study:
    score = {kind: np.array(model["coreference"][kind]["score"]) for kind in KINDS}
    leaving, after = model["patching"]["encoder"][-1], model["patching"]["decoder"]
    assert min(model["pronoun_accuracy"].values()) > 0.9
    assert np.abs(score["encoder"]).max() < 0.1
    assert leaving[it] < 0.1 and leaving[adjective] > 0.9
    assert max(np.abs(each["score"]).max() for each in model["untrained"].values()) < 0.05
    ahead = {kind: np.array(model["coreference"][kind]["antecedent_ahead"]) for kind in KINDS}
    best = score["cross"].argmax()
    if after[1][0] > 0.9:
        ways.append("adjective first")
        assert best // config.heads("decoder") == 1
        assert score["cross"].max() > max(0.5, model["coreference"]["cross"]["chance"])
        assert ahead["cross"].ravel()[best] > 0.9
        without = np.ravel(model["ablation"]["right_without"]["cross"])[best]
        assert without < model["ablation"]["right"] - 0.05
    else:
        ways.append("nouns first")
        assert after[1][0] < 0.1
        assert max(share.max() for share in ahead.values()) < 0.6
assert set(ways) == {"adjective first", "nouns first"}
ways
