# SPDX-License-Identifier: Apache-2.0
"""How a translation is found: the cache, greedy search, beam search, sampling."""

# %% [markdown]
# # Decoding: greedy search and beam search
#
# A trained Transformer gives probabilities for the *next* token. How does a whole translation come
# out of that? This notebook shows it on a small model that translates English into German:
#
# 1. the encoder runs once, and its output goes to every decoder layer as keys and values;
# 2. the decoder writes one token after the other, and keeps what it computed in a *cache*;
# 3. greedy search takes the most probable token every time; beam search keeps several beginnings;
# 4. how beams live, die and finish, what the length penalty does to their ranking, and when the
#    search stops;
# 5. whether any of this matters: on how many of 2,000 unseen sentences do the two searches differ?
# 6. sampling, where the next token is drawn by lot.
#
# Every picture is drawn from what the search really did. The model has two encoder and two decoder
# layers of four heads; it is trained the first time that it is asked for, in about a minute.

# %%
import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.corpora import registry
from experiments.studies import small_model
from transformer import Translator
from transformer.arrays import BOS_ID, EOS_ID
from transformer.config import DecodeConfig
from transformer.decoding.beam_search import length_penalty
from transformer.inspection import figures, run, search_log
from transformer.inspection.views.search_replay import search_replay

translator = small_model.load(seed=0, folder="runs")
config, params, tokenizer = translator.config.model, translator.params, translator.tokenizer
vocabulary = tokenizer.pieces(range(config.vocab_size))

SENTENCE = "The animal didn't cross the street because it was too tired."
print(translator([SENTENCE])[0].text)

# %% [markdown]
# ## The encoder runs once
#
# The sentence is cut into sub-words (`▁` stands for a space) and read by the encoder, all positions
# at the same time. What comes out, the *memory*, has one vector for every source token. Nothing of
# it changes while the translation is written.

# %%
[source] = tokenizer.encode([SENTENCE])
print(*tokenizer.pieces(source))


def call(method, *arguments):
    """Calls a method of the model with the trained parameters."""
    return translator.model.apply({"params": params}, *arguments, method=method)


row = jnp.array([source])
memory, _ = call(translator.model.encode, row)
print("memory [B,S,D]:", memory.shape)

# %% [markdown]
# Each decoder layer makes keys and values of its own from the memory, with matrices of its own
# (that the encoder-decoder attention trains only a query matrix is often said, and false). They
# are computed once a sentence and wait in the cache, beside room for what the decoder will read.

# %%
cache = call(translator.model.init_cache, memory, row, 1, 32)
for number, layer in enumerate(cache.layers, 1):
    own = params["decoder"][f"layer_{number - 1}"]["cross_attention"]
    by_hand = jnp.einsum("BSD,DNH->BNHS", memory, own["key"])
    np.testing.assert_allclose(layer.cross_key, by_hand, rtol=1e-4, atol=1e-4)
    print(
        f"decoder layer {number}: keys of the source {layer.cross_key.shape} [B,N,H,S], "
        f"values {layer.cross_value.shape} [B,N,S,H]"
    )

# %% [markdown]
# ## One token at a time, with a cache
#
# `step` reads one token and gives the logits of the next. Its self-attention needs the keys and
# values of all tokens before: those are in the cache, so each is computed only once. This is the
# whole of greedy search:

# %%
step = jax.jit(functools.partial(call, translator.model.step))

token, tokens, logits_with_cache = BOS_ID, [], []
while token != EOS_ID:
    logits, cache = step(jnp.array([[token]]), cache)
    token = int(logits[0, 0].argmax())
    tokens.append(token)
    logits_with_cache.append(logits[0, 0])
print(tokenizer.decode(tokens))

# %% [markdown]
# Without a cache the decoder would read the whole beginning again for every new token. Because of
# the causal mask a row depends on what stands before it alone, so a single pass over the finished
# translation gives all those rows at once, which is how a model is trained. All three must agree.
# (This is also why the mask is needed when translating, not only in training: without it the two
# would not be the same function.)

# %%
target_in = [BOS_ID, *tokens[:-1]]
logits_at_once, _ = run(params, config, source, target_in)
logits_anew = [run(params, config, source, target_in[: end + 1])[0][-1] for end in range(3)]

with_cache = np.stack(logits_with_cache)
cached_against_uncached = np.abs(with_cache - logits_at_once).max()
print(f"largest difference of any logit, cached and uncached: {cached_against_uncached:.1e}")
positions = len(tokens), sum(range(1, len(tokens) + 1))
print("decoder positions computed with a cache: {}; reading anew each time: {}".format(*positions))

# %% [markdown]
# ## What the search saw
#
# `search_log.record` runs the search that the command `translate` runs, and writes down what
# happened: the hypotheses of every step, what the model thought of the next token, and where the
# encoder-decoder attention read. Greedy search is beam search with one beam.

# %%
greedy = search_log.record(params, config, source, decode=DecodeConfig(beams=1))
figures.plot_decoding(greedy, vocabulary, title="Greedy search, step by step")

# %% [markdown]
# Each row is one step: the decoder reads the token on the left of the arrow and predicts the one on
# the right. The framed cell is what was taken. No probability reaches 1: the model was trained with
# label smoothing, which tells it to leave something to every other token.
#
# *What this does not prove.* The left half shows the mean of the last layer's heads. A mean over
# heads is not what any head does, and a weight says where a head reads, not why the model answers.

# %% [markdown]
# ## Beam search
#
# The most probable first token need not begin the most probable translation. Beam search keeps the
# *K* best beginnings (here 4, as in the paper). At each step every one is extended by every token;
# the best that do not end live on, and those among the best K that end are *finished*.

# %%
beam = search_log.record(params, config, source, decode=DecodeConfig(beams=4), results=4)
figures.plot_beam_tree(beam, vocabulary)

# %% [markdown]
# Read it from the top. Each row holds the live hypotheses with their last token and log P so far;
# lines lead to the beginning that each goes on from. Some beginnings die out, others branch off
# from the best, and what survives to the end are small variations of one sentence.
#
# *What this does not prove.* The tree shows what the search looked at, not all that the model
# finds likely; a good translation that begins with an unlikely token is never seen.
#
# Here is the same search to go through step by step (the keyboard's arrow keys work, too). Where no
# scripts run, its picture is shown.

# %%
search_replay(beam, vocabulary)

# %% [markdown]
# ## Finished hypotheses, and the length penalty
#
# log P is a sum of negative numbers, so a longer translation has a lower one, however good it is.
# The paper divides by a *length penalty*, ((5 + length) / 6)^α with α = 0.6; the end token counts.
# α = 0 would compare log P itself, α = 1 nearly its mean a token.

# %%
lengths = np.arange(1, 31)
figures.plot_curves(
    {
        f"α = {alpha}": (lengths, length_penalty(lengths, "gnmt", alpha))
        for alpha in (0.0, 0.6, 1.0)
    },
    x_label="tokens, the end token included",
    y_label="what log P is divided by",
    title="The length penalty of the paper",
)

# %% [markdown]
# The finished hypotheses of the search above, in the order in which they finished, with the score
# that they would have for three values of α:

# %%
print("    log P    α = 0  α = 0.6    α = 1   tokens   text")
ends = [(number, step, end) for number, step in enumerate(beam.steps, 1) for end in step.finished]
for number, step, end in ends:
    text = tokenizer.decode(step.tokens[end.beam])
    scores = [end.log_prob / length_penalty(number, "gnmt", alpha) for alpha in (0.0, 0.6, 1.0)]
    print("".join(f"{value:9.2f}" for value in (end.log_prob, *scores)), f"{number:8}  ", text)

# %% [markdown]
# The search is over when as many hypotheses have finished as there are beams and no live one is
# worth more than the last of the results asked for; or when no live one can still come among them,
# since log P can only fall. It does not stop at the first finished hypothesis: a bad one that ends
# early must not hide a good one that is under way.
#
# ## Does it matter? Two thousand unseen sentences
#
# We translate the whole test split with one beam and with four, and count. Of the four results of
# each beam search we also take the one that would be the best without a length penalty, the most
# probable one.

# %%
test = registry.load(translator.config.data, "test")


def results(beams):
    """Of a search with so many beams, as many results of every sentence, best first."""
    decode = translator.config.decode.replace(beams=beams)
    searching = Translator(translator.config.replace(decode=decode), params, tokenizer)
    return searching.nbest(test.sources, beams)


by_greedy = [found[0] for found in results(beams=1)]
four = results(beams=4)
by_beam = [found[0] for found in four]
unpenalised = [max(found, key=lambda one: one.log_prob) for found in four]


def number_right(found):
    """How many translations are the reference, to the letter."""
    return sum(one.text == target for one, target in zip(found, test.targets, strict=True))


def different(some, others):
    """The sentences of which the two translations differ."""
    pairs = enumerate(zip(some, others, strict=True))
    return [number for number, (one, other) in pairs if one.text != other.text]


differing, decided = different(by_greedy, by_beam), different(by_beam, unpenalised)
print(f"{len(test)} sentences")
print(f"exactly right: greedy {number_right(by_greedy)}, beam {number_right(by_beam)}, ", end="")
print(f"most probable of four {number_right(unpenalised)}")
print(f"greedy and beam differ in {len(differing)}; the penalty decides {len(decided)}")

# %% [markdown]
# That is the size of the effect *here*: the grammar leaves the model little doubt, and where there
# is no doubt all searches find the same. These are the sentences (the first five) in which greedy
# and beam search differ:

# %%
for n in differing[:5]:
    print("source   ", test.sources[n])
    print("reference", test.targets[n])
    for name, found in (("greedy", by_greedy[n]), ("beam", by_beam[n])):
        right = "right" if found.text == test.targets[n] else "wrong"
        print(f"{name:9} {found.text}   ({right}; log P {found.log_prob:.2f})")
    print()

beam_more_probable = sum(by_beam[n].log_prob > by_greedy[n].log_prob for n in differing)
beam_right, greedy_right = (
    sum(found[n].text == test.targets[n] for n in differing) for found in (by_beam, by_greedy)
)
print(f"Of these {len(differing)}, beam search's is more probable in {beam_more_probable}.")
print(f"Beam search is right in {beam_right}, greedy search in {greedy_right}.")

# %% [markdown]
# A more probable translation is not always a better one: where the model is wrong about what is
# probable, a better search finds its mistakes more surely. And where beam search's own is the less
# probable one, the length penalty has preferred it, or greedy's beginning fell out of the beams.
# These are the sentences (the first three) in which the penalty decides; what it prefers is longer:

# %%
for n in decided[:3]:
    print("source   ", test.sources[n])
    for name, found in (("α = 0.6", by_beam[n]), ("α = 0", unpenalised[n])):
        length = len(found.tokens)
        print(f"{name:9} {found.text}   (log P {found.log_prob:.2f}, {length} tokens)")
    print()

# %% [markdown]
# And the one that greedy search is least sure of, of those in which greedy and beam search differ
# (if none do, of all), as a tree. The dashed frames are what greedy search would take, the most
# probable token every time; the thick line leads to the best result. Where they part, follow the
# numbers: what looked better for one token looks worse a few tokens later.

# %%
least_sure = min(differing or range(len(test)), key=lambda n: by_greedy[n].log_prob)
[doubtful] = tokenizer.encode([test.sources[least_sure]])
tree = search_log.record(params, config, doubtful, decode=DecodeConfig(beams=4))
figures.plot_beam_tree(tree, vocabulary, title=f"Beam search: {test.sources[least_sure]}")

# %% [markdown]
# *What this does not prove.* A handful of sentences of one model on one grammar say little about
# greedy and beam search elsewhere: in real text many translations of a sentence are good, and the
# searches have more to choose from.
#
# ## Sampling
#
# Instead of searching, one can draw each next token by lot, from the model's own distribution or
# from a sharper one. With label smoothing of 0.1 the model leaves about a tenth of the probability
# to tokens that it holds to be wrong, and over a dozen tokens that adds up: many samples have a
# slip somewhere. `top_p=0.8` draws only from the fewest tokens that together have a probability of
# 0.8, which takes that tail away.


# %%
def samples(**decode):
    """64 samples of the sentence."""
    options = translator.config.decode.replace(method="sample", beams=64, **decode)
    changed = translator.config.replace(decode=options)
    [found] = Translator(changed, params, tokenizer).nbest([SENTENCE], 64)
    return [one.text for one in found]


best = beam.results[0]
drawn, without_tail = samples(), samples(top_p=0.8)
for text in drawn[:5]:
    print(text)
found = tokenizer.decode(best.tokens)
as_expected = len(best.tokens), np.exp(best.log_prob)
print("\nProbability of the best translation, of {} tokens: {:.2f}".format(*as_expected))
print(f"samples that are that translation: {drawn.count(found)} of 64;", end=" ")
print(f"with top_p=0.8: {without_tail.count(found)} of 64")

# %% [markdown]
# ## What this notebook claims, checked

# %%
# Cached and uncached decoding are one function, and so is reading every beginning anew.
np.testing.assert_allclose(with_cache, logits_at_once, atol=1e-3)
np.testing.assert_allclose(with_cache[:3], np.stack(logits_anew), atol=1e-3)
assert positions[0] < positions[1]
# Greedy search by hand is what the log says, and what beam search of one beam finds.
assert list(greedy.results[0].tokens) == tokens
assert all(len(step.tokens) == 1 for step in greedy.steps)
# The logs found what the translator finds.
assert found == translator([SENTENCE])[0].text
# Where a hypothesis reads is a distribution over the source.
for step in (*greedy.steps, *beam.steps):
    np.testing.assert_allclose(step.cross_attention.sum(-1), 1, atol=1e-4)
# The best result has the highest score, with the penalty of its length.
assert best.score == max(result.score for result in beam.results)
np.testing.assert_allclose(
    best.score, best.log_prob / length_penalty(len(best.tokens), "gnmt", 0.6), rtol=1e-4
)
# Greedy and beam search seldom differ, and where they do, the beam's is mostly more probable.
assert len(differing) < 0.1 * len(test)
assert beam_more_probable >= len(differing) / 2
assert len(decided) < 0.1 * len(test)
# What the penalty prefers is longer, always.
assert all(len(by_beam[n].tokens) > len(unpenalised[n].tokens) for n in decided)
# A sample's chance of being the best translation is that translation's probability.
assert abs(drawn.count(found) / 64 - np.exp(best.log_prob)) < 0.25
assert without_tail.count(found) > drawn.count(found)
