# SPDX-License-Identifier: Apache-2.0
"""Decoding: the cache, greedy search, beam search, sampling."""

# %% [markdown]
# # Decoding: greedy search and beam search
#
# A trained Transformer gives probabilities for the *next* token. How does decoding turn them into a
# complete translation? This notebook shows it on a small model that translates English to German:
#
# 1. the encoder runs once, and every decoder layer projects its output to keys and values;
# 2. the decoder generates one token at a time and stores keys and values in a *cache*;
# 3. greedy search chooses the most probable token at each step; beam search keeps several
#    hypotheses;
# 4. how hypotheses survive, are dropped and finish, how the length penalty changes their ranking,
#    and when the search stops;
# 5. how much this matters: on how many of 2,000 unseen sentences do the two searches differ?
# 6. sampling, which draws the next token at random.
#
# Every picture is drawn from a log of the search. The model has two encoder and two decoder layers
# of four heads; the first call of `small_model.load` trains it, later calls load it. "Paper" is
# Vaswani et al. (2017). The last cell asserts the claims of the text.

# %%
import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.data import registry
from experiments.studies import small_model
from experiments.studies.exercises import Answer
from transformer import Translator
from transformer.config import DecodeConfig
from transformer.decoding.beam_search import length_penalty
from transformer.inspection import figures, run, search_log
from transformer.inspection.views.search_replay import search_replay

translator = small_model.load(seed=0, folder="runs")
model, params, tokenizer = translator.model, translator.params, translator.tokenizer
vocabulary = tokenizer.pieces(range(model.config.vocab_size))
bos_id, eos_id = tokenizer.special_ids.bos, tokenizer.special_ids.eos

SENTENCE = "The animal didn't cross the street because it was too tired."
print(translator([SENTENCE])[0].text)

# %% [markdown]
# ## The encoder runs once
#
# The tokenizer splits the sentence into subwords (`▁` represents a space), and the encoder
# processes all positions in parallel. Its output, the *memory*, has one vector per source token. It
# stays constant during decoding.

# %%
[source] = tokenizer.encode([SENTENCE])
print(*tokenizer.pieces(source))


def call(method, *arguments):
    """Call a method of the model with the trained parameters."""
    return model.apply({"params": params}, *arguments, method=method)


batch = jnp.array([source])
memory = call(model.encode, batch)
print("memory [B,S,D]:", memory.shape)

# %% [markdown]
# Each decoder layer computes keys and values from the memory with separate matrices. (That
# encoder-decoder attention trains only a query matrix is often repeated, and false.) They are
# computed once per sentence and stored in the cache, next to preallocated slots for the decoder's
# keys and values.

# %%
cache = call(model.init_cache, memory, batch, 1, 32)
for number, layer in enumerate(cache.layers, 1):
    kernels = params["decoder"][f"layer_{number - 1}"]["cross_attention"]
    by_hand = jnp.einsum("BSD,DNH->BNHS", memory, kernels["key"])
    np.testing.assert_allclose(layer.cross_attention.key, by_hand, rtol=1e-4, atol=1e-4)
    print(
        f"decoder layer {number}: source keys {layer.cross_attention.key.shape} [B,N,H,S], "
        f"values {layer.cross_attention.value.shape} [B,N,S,H]"
    )

# %% [markdown]
# ## One token at a time, with a cache
#
# `step` reads one token and returns the logits of the next. Its self-attention needs the keys and
# values of all earlier tokens. They are in the cache, so each is computed only once. This loop is a
# complete greedy search:

# %%
step = jax.jit(functools.partial(call, model.step))

token, tokens, logits_with_cache = bos_id, [], []
while token != eos_id:
    logits, cache = step(jnp.array([[token]]), cache)
    token = int(logits[0, 0].argmax())
    tokens.append(token)
    logits_with_cache.append(logits[0, 0])
print(tokenizer.decode(tokens))

# %% [markdown]
# Without a cache the decoder would process the complete prefix again for every new token. Because
# of the causal mask, a row depends only on earlier positions. So a single pass over the finished
# translation computes all rows at once, as in training. All three computations must agree. (This is
# also why the mask is needed at inference: without it, cached decoding and the single pass would
# compute different functions.)

# %%
target_in = [bos_id, *tokens[:-1]]
logits_at_once, _ = run(model, params, source, target_in)
logits_recomputed = [run(model, params, source, target_in[: end + 1])[0][-1] for end in range(3)]

with_cache = np.stack(logits_with_cache)
largest = np.abs(with_cache - logits_at_once).max()
print(f"largest difference of any logit, cached and uncached: {largest:.1e}")
positions = len(tokens), sum(range(1, len(tokens) + 1))
print("decoder positions computed with a cache: {}; without: {}".format(*positions))

# %% [markdown]
# ## The steps of the search
#
# `search_log.record` runs the search of `experiments.translate` and records it: the hypotheses of
# every step, the probabilities of the next token, and the weights of encoder-decoder attention.
# Greedy search is beam search with one beam.

# %%
greedy = search_log.record(model, params, source, decode=DecodeConfig(beams=1))
figures.plot_decoding(greedy, vocabulary, title="Greedy search, step by step")

# %% [markdown]
# Each row is one step: the decoder reads the token on the left of the arrow and predicts the one on
# the right. The framed cell is the chosen token. The model is trained with label smoothing, which
# reserves some probability for every other token, so no probability reaches 1; the next cell prints
# the extremes.
#
# *What this does not prove.* The left half shows the mean over the heads of the last layer. The
# mean is not the attention of any single head, and a weight shows where a head attends, not why the
# model predicts a token.

# %%
probabilities = np.asarray(jax.nn.softmax(with_cache, axis=-1)).max(-1)
print(
    f"highest probability of a step: {probabilities.max():.3f}, lowest: {probabilities.min():.3f}"
)

# %% [markdown]
# ## Beam search
#
# The most probable first token need not begin the most probable translation. Beam search keeps the
# *K* best hypotheses (here 4, as in the paper). At each step it extends every hypothesis by every
# token. The best extensions that do not end in EOS stay active; those among the best K that end in
# EOS are *finished*.

# %%
beam = search_log.record(model, params, source, decode=DecodeConfig(beams=4), results=4)
figures.plot_beam_tree(beam, vocabulary)

# %% [markdown]
# Read the tree from the top. Each row shows the active hypotheses with their last token and log P
# so far; lines lead to the hypothesis that each one extends. A hypothesis without a line to the
# next row was dropped; one with several lines branched. The results, best first:
#
# *What this does not prove.* The tree shows what the search explored, not everything that the model
# considers probable; a good translation that begins with an improbable token is never explored.

# %%
for result in beam.results:
    print(f"log P {result.log_prob:7.2f}   {tokenizer.decode(result.tokens)}")

# %% [markdown]
# The next cell shows the same search interactively, step by step (the arrow keys work, too).
# Without a running kernel it shows a static picture.

# %%
search_replay(beam, vocabulary)

# %% [markdown]
# ## Finished hypotheses, and the length penalty
#
# log P is a sum of negative numbers, so it decreases with the length of a translation, however good
# it is. The paper divides by a *length penalty*, ((5 + length) / 6)^α with α = 0.6, where the
# length includes EOS. α = 0 compares log P itself, α = 1 nearly in the order of its mean per token.

# %%
lengths = np.arange(1, 31)
figures.plot_curves(
    {
        f"α = {alpha}": (lengths, length_penalty(lengths, "gnmt", alpha))
        for alpha in (0.0, 0.6, 1.0)
    },
    x_label="length in tokens, EOS included",
    y_label="divisor of log P",
    title="The paper's length penalty",
)

# %% [markdown]
# The finished hypotheses of the search above, in the order in which they finished, with their
# scores for three values of α:

# %%
print("    log P    α = 0  α = 0.6    α = 1   tokens   text")
ends = [(number, step, end) for number, step in enumerate(beam.steps, 1) for end in step.finished]
for number, step, end in ends:
    text = tokenizer.decode(step.tokens[end.beam])
    scores = [end.log_prob / length_penalty(number, "gnmt", alpha) for alpha in (0.0, 0.6, 1.0)]
    print("".join(f"{value:9.2f}" for value in (end.log_prob, *scores)), f"{number:8}  ", text)

# %% [markdown]
# The search stops when the number of finished hypotheses equals the number of beams and no active
# hypothesis has a better score than the last requested result. It also stops when no active
# hypothesis can still enter the results, since log P can only decrease. It does not stop at the
# first finished hypothesis: a poor hypothesis that ends early must not hide a better one that is
# still active.
#
# ## Does it matter? Two thousand unseen sentences
#
# This cell translates the complete test split with one beam and with four, and counts. From the
# four results of each beam search it also selects the one that would be best without a length
# penalty, the most probable one.
#
# ### Predict, then run
#
# **Exercise 1.** In what share of the sentences do greedy and beam search differ here: 50%, 10% or
# 1%? And where they differ, is beam search's result always the more probable one?

# %%
test = registry.load(translator.config.data, "test")


def search(beams):
    """Decode the test split with beam search; return `beams` results per sentence, best first."""
    decode = translator.config.decode.replace(beams=beams)
    changed = Translator(translator.config.replace(decode=decode), params, tokenizer)
    return changed.nbest(test.sources, beams)


by_greedy = [results[0] for results in search(beams=1)]
four_best = search(beams=4)
by_beam = [results[0] for results in four_best]
most_probable = [max(results, key=lambda result: result.log_prob) for results in four_best]


def exact_matches(results):
    """Count the translations that equal the reference."""
    pairs = zip(results, test.targets, strict=True)
    return sum(result.text == reference for result, reference in pairs)


def differences(results, others):
    """Indices of the sentences with different translations."""
    pairs = enumerate(zip(results, others, strict=True))
    return [index for index, (result, other) in pairs if result.text != other.text]


differing, decided = differences(by_greedy, by_beam), differences(by_beam, most_probable)
print(f"{len(test)} sentences")
print(
    f"exactly correct: greedy {exact_matches(by_greedy)}, beam {exact_matches(by_beam)}, ", end=""
)
print(f"most probable of four {exact_matches(most_probable)}")
print(f"greedy and beam differ in {len(differing)}; the penalty decides {len(decided)}")

# %% [markdown]
# This is the size of the effect *here*: where a model is certain, all searches return the same
# result. Up to five of the sentences on which greedy and beam search differ:

# %%
print(f"{len(differing[:5])} of {len(differing)} sentences", end="\n\n")
for n in differing[:5]:
    print("source   ", test.sources[n])
    print("reference", test.targets[n])
    for name, result in (("greedy", by_greedy[n]), ("beam", by_beam[n])):
        verdict = "correct" if result.text == test.targets[n] else "wrong"
        print(f"{name:9} {result.text}   ({verdict}; log P {result.log_prob:.2f})")
    print()

beam_more_probable = sum(by_beam[n].log_prob > by_greedy[n].log_prob for n in differing)
beam_correct, greedy_correct = (
    sum(results[n].text == test.targets[n] for n in differing) for results in (by_beam, by_greedy)
)
Answer(
    f"They differ in {len(differing) / len(test):.1%}. In {beam_more_probable} of these "
    f"{len(differing)} sentences beam search's result is more probable. Beam search is correct in "
    f"{beam_correct} of them, greedy search in {greedy_correct}."
)

# %% [markdown]
# A more probable translation is not always a better one: where the model's probabilities are wrong,
# a better search returns the model's errors more reliably. Where the beam search result is less
# probable, either the length penalty preferred it, or the greedy hypothesis was dropped from the
# beam. Up to three of the sentences on which the penalty decides follow; it prefers the longer
# result:

# %%
print(f"{len(decided[:3])} of {len(decided)} sentences", end="\n\n")
for n in decided[:3]:
    print("source   ", test.sources[n])
    for name, result in (("α = 0.6", by_beam[n]), ("α = 0", most_probable[n])):
        length = len(result.tokens)
        print(f"{name:9} {result.text}   (log P {result.log_prob:.2f}, {length} tokens)")
    print()

# %% [markdown]
# The next figure is the tree of one sentence: of the sentences on which the searches differ (or of
# all, if there are none), the one with the lowest log P under greedy search. Dashed frames mark the
# choices of greedy search, the most probable token at each step; the thick line leads to the best
# result. Where the two separate, compare the numbers: a choice that is better for one token can be
# worse a few tokens later.

# %%
least_probable = min(differing or range(len(test)), key=lambda n: by_greedy[n].log_prob)
[least_probable_source] = tokenizer.encode([test.sources[least_probable]])
tree = search_log.record(model, params, least_probable_source, decode=DecodeConfig(beams=4))
figures.plot_beam_tree(tree, vocabulary, title=f"Beam search: {test.sources[least_probable]}")

# %% [markdown]
# *What this does not prove.* A few sentences of one model on one grammar say little about greedy
# and beam search elsewhere: real text has many good translations of a sentence, and the searches
# have more alternatives.
#
# ## Sampling
#
# Instead of searching, decoding can draw each next token at random, from the model's distribution
# or from a sharper one. With label smoothing of 0.1 the labels leave a tenth of the probability to
# tokens that are wrong, and the model learns to do the same. `top_p=0.8` draws only from the
# smallest set of tokens with a total probability of at least 0.8 (Holtzman et al. 2020), which
# removes this tail.
#
# ### Predict, then run
#
# **Exercise 2.** If the best token has a probability of 0.9 at every step, how probable is a
# translation of 14 tokens? In how many of 64 samples do you expect to see the best one? And with
# `top_p=0.8`?


# %%
def samples(**decode):
    """Draw 64 samples for the sentence."""
    options = translator.config.decode.replace(method="sample", beams=64, **decode)
    changed = translator.config.replace(decode=options)
    [results] = Translator(changed, params, tokenizer).nbest([SENTENCE], 64)
    return [result.text for result in results]


best = beam.results[0]
best_text = tokenizer.decode(best.tokens)
sampled, without_tail = samples(), samples(top_p=0.8)
for text in sampled[:5]:
    print(text)

# %%
prob = np.exp(best.log_prob)
Answer(
    f"The best translation has {len(best.tokens)} tokens and a probability of {prob:.2f}, so about "
    f"{64 * prob:.0f} of 64 samples equal it; here {sampled.count(best_text)} do. A tail that is "
    f"small at each step adds up. With `top_p=0.8`: {without_tail.count(best_text)} of 64."
)

# %% [markdown]
# ### Predict, then run
#
# **Exercise 3.** The length penalty with α = 0.6 favors longer translations than α = 0. With α = 3,
# do the best of the four results get longer still? And do more of them equal the reference?

# %%
by_alpha = {}
for alpha in (0.0, 0.6, 3.0):
    best_of_four = [
        max(
            results,
            key=lambda result, alpha=alpha: (
                result.log_prob / length_penalty(len(result.tokens), "gnmt", alpha)
            ),
        )
        for results in four_best
    ]
    mean_length = np.mean([len(result.tokens) for result in best_of_four])
    by_alpha[alpha] = mean_length, exact_matches(best_of_four)
Answer(
    "\n".join(
        f"- α = {alpha}: {length:.3f} tokens on average, {matches} of {len(test)} correct"
        for alpha, (length, matches) in by_alpha.items()
    )
    + "\n\nThe four results are those of a search with α = 0.6; a search with another α could find "
    "others."
)

# %% [markdown]
# ## References
#
# - Sutskever, Vinyals and Le (2014), *Sequence to Sequence Learning with Neural Networks*: beam
#   search for neural translation. Wu et al. (2016), *Google's Neural Machine Translation System*:
#   the length penalty.
# - Stahlberg and Byrne (2019), *On NMT Search Errors and Model Errors*: the most probable
#   translation is often the empty one. Koehn and Knowles (2017), *Six Challenges for Neural Machine
#   Translation*: larger beams can be worse.
# - Holtzman et al. (2020), *The Curious Case of Neural Text Degeneration*: top-p sampling.
#
# ## Checks

# %%
# Decoding with a cache, one pass, and recomputing every prefix agree.
np.testing.assert_allclose(with_cache, logits_at_once, atol=1e-3)
np.testing.assert_allclose(with_cache[:3], np.stack(logits_recomputed), atol=1e-3)
assert positions[0] < positions[1]
# Greedy search by hand, the log, and beam search with one beam agree.
assert list(greedy.results[0].tokens) == tokens
assert all(len(step.tokens) == 1 for step in greedy.steps)
# The log has the result of the translator.
assert best_text == translator([SENTENCE])[0].text
# Encoder-decoder attention is a distribution over the source.
for step in (*greedy.steps, *beam.steps):
    np.testing.assert_allclose(step.cross_attention.sum(-1), 1, atol=1e-4)
# The best result has the highest score, and the score uses the penalty of its length.
assert best.score == max(result.score for result in beam.results)
np.testing.assert_allclose(
    best.score, best.log_prob / length_penalty(len(best.tokens), "gnmt", 0.6), rtol=1e-4
)
# Greedy and beam search rarely differ, and where they do, the beam's result is mostly more
# probable.
assert len(differing) < 0.1 * len(test)
assert beam_more_probable >= len(differing) / 2
assert len(decided) < 0.1 * len(test)
# The results that the penalty prefers are always longer.
assert all(len(by_beam[n].tokens) > len(most_probable[n].tokens) for n in decided)
# A higher α never selects a shorter result of the four. No step is certain.
assert by_alpha[0.0][0] <= by_alpha[0.6][0] <= by_alpha[3.0][0]
assert probabilities.max() < 1
# A sample equals the best translation with the probability of that translation.
assert abs(sampled.count(best_text) / 64 - np.exp(best.log_prob)) < 0.25
assert without_tail.count(best_text) > sampled.count(best_text)
