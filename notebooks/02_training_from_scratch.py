# SPDX-License-Identifier: Apache-2.0
"""From a config to a model that translates, every step on the way shown."""

# %% [markdown]
# # Training a Transformer from scratch
#
# A Transformer is trained by showing it sentence pairs and making the right next token more
# probable. This notebook does so from the first line to a model that translates:
#
# 1. from a config to the gradient in three calls;
# 2. *teacher forcing*: what the decoder reads, and what it has to predict;
# 3. the loss, which is a cross-entropy against smoothed labels and not a difference of
#    distributions;
# 4. the paper's learning rate, and one training step by hand;
# 5. a check that every training program should pass: overfitting a single batch;
# 6. a training in less than a minute, with its loss curve, and what the model predicts before and
#    after it;
# 7. perplexity, accuracy, averaged checkpoints, and the paper's parameter counts.
#
# The corpus comes from a grammar: English sentences in which "it" refers to one of two nouns, and
# their German translations. The model has two layers and four heads on each side.

# %%
import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from experiments import compose
from experiments.configs import pronouns_small
from experiments.corpora import registry
from experiments.monitor import validation_losses
from transformer import Translator
from transformer.arrays import EOS_ID
from transformer.config import Config, OptimizerConfig, TransformerConfig
from transformer.inspection import figures, run
from transformer.nn.positions import shift_right
from transformer.training import optimizers
from transformer.training import step as training
from transformer.training.losses import smoothed_cross_entropy
from transformer.translator import abstract_params

# %% [markdown]
# ## From a config to the gradient in three calls
#
# A config says everything about an experiment. `compose.build` makes of it the model, the
# optimizer, the vocabulary and the data; `train_step` computes the gradient of a batch's loss and
# applies it. These are the three calls, and the command `experiments.train` makes the same ones.
#
# The config is that of the small model of the other notebooks, but with the paper's learning rate,
# which is one of the things that this notebook is about. It does without the paper's dropout: less
# than one epoch is read, so that there is nothing that could be learned by heart.

# %%
config = pronouns_small.get_config()
config = config.replace(optimizer=OptimizerConfig(warmup_steps=100, learning_rate=0.48))
experiment = compose.build(config)
batch = experiment.put_batch(next(experiment.data.train.iterate(0)))
state, sums = experiment.train_step(experiment.init_state(), batch)
print("source [B,S]", batch.source.shape, "  target [B,T]", batch.target.shape)
print("over the batch:", {name: round(value, 3) for name, value in sums.means().items()})

# %% [markdown]
# An untrained model spreads its probability over all words, so the loss begins near log V:

# %%
vocabulary = experiment.tokenizer.pieces(range(config.model.vocab_size))
first_loss, log_v = sums.means()["loss"], math.log(len(vocabulary))
print(f"loss {first_loss:.2f}, log {len(vocabulary)} = {log_v:.2f} nats a token")

# %% [markdown]
# ## Teacher forcing
#
# In training the decoder does not read its own translation but the right one, moved right by one
# behind a start token: at every position it reads a token and predicts the next. One pass gives the
# predictions of all positions; that the decoder writes one token at a time holds only when it
# translates.

# %%
SENTENCE = "The animal didn't cross the street because it was too tired."
TRANSLATION = "Das Tier überquerte die Straße nicht, weil es zu müde war."
source, target = map(jnp.array, experiment.tokenizer.encode([SENTENCE, TRANSLATION]))
target_in = shift_right(target[None])[0]
rows = figures.read_predict(*(experiment.tokenizer.pieces(ids) for ids in (target_in, target)))
print("read → predict:  ", "   ".join(rows))

# %% [markdown]
# The causal mask is what makes this honest. No position can see the token that it must predict:
# when the last token that is read is replaced by another, the predictions before it stay the same.

# %%
fresh = experiment.init_state()
before, _ = run(fresh.params, config.model, source, target_in)
changed, _ = run(fresh.params, config.model, source, target_in.at[-1].set(EOS_ID))
unmoved = np.abs(before - changed).max(-1)
print("largest change of any logit, by position:", *(f"{value:.2g}" for value in unmoved))

# %% [markdown]
# ## The loss
#
# The label of a position is not 1 for the right token and 0 for all others, but smoothed: 0.9 for
# the right one, the remaining 0.1 in equal parts over the others (paper, section 5.4). The loss is
# the cross-entropy of the model's distribution p against this label q, −Σ q log p.

# %%
smoothing = config.training.label_smoothing
right = jax.nn.one_hot(target, len(vocabulary))
label = (1 - smoothing) * right + smoothing / (len(vocabulary) - 1) * (1 - right)

by_hand = -(label * jax.nn.log_softmax(before)).sum()
by_library = smoothed_cross_entropy(before[None], target[None], smoothing).loss
print(f"cross-entropy over the sentence: {by_hand:.4f} by hand, {by_library:.4f} from the library")

# %% [markdown]
# *The Illustrated Transformer* says that the two distributions are compared by subtracting one from
# the other (and refers to cross-entropy for the details). As a loss that cannot be: both sum to 1,
# so their difference always sums to 0. But there is something in it: the *gradient* of the
# cross-entropy with respect to the logits is exactly p − q.

# %%
difference = jax.nn.softmax(before) - label
gradient_of_logits = jax.grad(
    lambda logits: smoothed_cross_entropy(logits[None], target[None], smoothing).loss
)(before)
off = abs(gradient_of_logits - difference).max()
print(f"largest sum of p − q at any position: {abs(difference.sum(-1)).max():.0e}")
print(f"largest difference of the gradient from p − q: {off:.0e}")

# %% [markdown]
# A smoothed label cannot be matched with a loss of 0. The least that is possible is the label's own
# entropy, reached where p = q, and there the right token has a probability of 0.9:

# %%
least = -(1 - smoothing) * math.log(1 - smoothing)
least -= smoothing * math.log(smoothing / (len(vocabulary) - 1))
print(f"least loss {least:.3f} nats a token, with −log p = {-math.log(1 - smoothing):.3f}")

# %% [markdown]
# ## The learning rate
#
# It rises in proportion to the step for a number of *warm-up* steps and then falls with the inverse
# square root of the step: d_model^−0.5 · min(step^−0.5, step · warmup^−1.5) (paper, section 5.3).
# `optimizer.learning_rate` multiplies this; in the paper it is 1.

# %%
updates = np.arange(0, 20_000, 20)
schedules = {
    "base: d_model 512, warm-up 4,000": optimizers.noam(512, 4000),
    "big: d_model 1024, warm-up 4,000": optimizers.noam(1024, 4000),
    "d_model 512, warm-up 8,000": optimizers.noam(512, 8000),
}
figures.plot_curves(
    {name: (updates + 1, rate(updates)) for name, rate in schedules.items()},
    x_label="step",
    y_label="learning rate",
    title="The paper's learning rate",
)

# %%
schedule = optimizers.schedule(config.optimizer, config.model.d_model, config.training.steps)
warmup = config.optimizer.warmup_steps
print(f"base has its peak at step 4,000: {schedules[next(iter(schedules))](3999):.2e}")
print(f"our small model has its own at step {warmup}: {schedule(warmup - 1):.2e}")

# %% [markdown]
# ## One training step by hand
#
# The gradient of the batch's mean loss; then Adam. In Adam's first step the mean of the gradients
# is the gradient, and the mean of their squares its square, so every parameter moves by the
# learning rate, in the direction that lowers the loss, however large or small its gradient is.


# %%
@jax.jit
@jax.value_and_grad
def loss_and_gradient(params):
    """Of the whole batch, for each target token."""
    sums = training.loss_sums(params, batch, experiment.model, config.training)
    return sums.loss / sums.tokens


loss, gradient = loss_and_gradient(fresh.params)
rate = schedule(0)
stepped = jax.tree.map(
    lambda p, g: p - rate * g / (jnp.sqrt(g**2) + config.optimizer.epsilon), fresh.params, gradient
)


def flat(params):
    """All parameters in a row."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])


moved = np.abs(flat(state.params) - flat(fresh.params)) / rate
off = np.abs(flat(state.params) - flat(stepped)) / rate
print(f"loss {loss:.4f} by hand, {first_loss:.4f} from train_step; learning rate {rate:.2e}")
print(f"parameters moved by the learning rate (within 1%): {np.mean(abs(moved - 1) < 0.01):.1%}")
print(f"parameters that train_step moved as we did (within 1%): {np.mean(off < 0.01):.2%}")

# %% [markdown]
# (What differs are parameters whose gradient is nearly 0, of which rounding decides the direction.)
#
# ## Overfitting one batch
#
# A model that cannot learn eight sentences by heart has a mistake somewhere: in the data, the mask,
# the loss or the optimizer. With a constant learning rate the loss on one small batch must fall to
# the least that is possible.

# %%
one_batch = dataclasses.replace(batch, source=batch.source[:8], target=batch.target[:8])
constant = OptimizerConfig(schedule="constant", learning_rate=2e-3, warmup_steps=20)
check = compose.build(config.replace(optimizer=constant), data=experiment.data)
overfitted, by_heart = check.init_state(), []
for _ in range(150):
    overfitted, sums = check.train_step(overfitted, one_batch)
    by_heart.append(sums)
by_heart = [sums.means() for sums in jax.device_get(by_heart)]
figures.plot_curves(
    {"loss on the one batch": (range(1, 151), [means["loss"] for means in by_heart])},
    x_label="step",
    y_label="nats a token",
    levels={"least that is possible": least},
    title="Overfitting one batch",
)

# %% [markdown]
# *What this does not prove.* That the model can learn these sentences by heart says nothing of
# others; it finds mistakes, it does not show that there are none.
#
# ## Training
#
# Now in earnest, on the corpus. At some steps we translate the sentence and 63 others, none of
# which is in the corpus, with what has been learned so far.


# %%
def translate(params, sentences):
    """Greedy translations."""
    greedy = config.replace(decode=config.decode.replace(beams=1))
    return [one.text for one in Translator(greedy, params, experiment.tokenizer)(sentences)]


LOOK_AT = (50, 100, 150, 200, 300, 400, config.training.steps)
LAST = range(config.training.steps - 80, config.training.steps + 1, 20)

test = registry.load(config.data, "test")
watched = [test.sources.index(SENTENCE), *range(63)]


def number_right(params):
    """How many of the watched sentences are translated exactly right, and how the first is."""
    found = translate(params, [test.sources[place] for place in watched])
    right = sum(one == test.targets[place] for place, one in zip(watched, found, strict=True))
    return f"{right:2} of 64 right   {found[0][:80]}"


state, history, validation, snapshots = experiment.init_state(), [], {}, []
print("step    0", number_right(state.weights))
batches = itertools.islice(experiment.data.train.iterate(0), config.training.steps)
for step, batch in enumerate(batches, 1):
    state, sums = experiment.train_step(state, experiment.put_batch(batch))
    history.append(sums)
    if step in LAST:
        snapshots.append(jax.device_get(state.params))
    if step in LOOK_AT:
        validation[step] = validation_losses(experiment, state.weights)["nll"]
        print(f"step {step:4}", number_right(state.weights))

# %% [markdown]
# ## The loss curve
#
# The smoothed loss is what is minimised. Beside it stands −log p of the right token, the negative
# log-likelihood (NLL), in training and on sentences that were not trained on.

# %%
window = 10
means = [
    sum(history[end - window : end], start=type(sums).zero()).means()
    for end in range(window, len(history) + 1, window)
]
ends = range(window, len(history) + 1, window)
figures.plot_curves(
    {
        "smoothed loss, training": (ends, [mean["loss"] for mean in means]),
        "NLL, training": (ends, [mean["nll"] for mean in means]),
        "NLL, validation": (list(validation), list(validation.values())),
    },
    x_label="step",
    y_label="nats a token",
    levels={"least smoothed loss": least},
    title="Learning to translate",
)

# %% [markdown]
# The NLL in training and on sentences that were not trained on fall together: every batch is new to
# the model when it is trained on it. (Where a small corpus is read again and again, the curve of
# training goes on falling and that of validation turns up again: the model learns by heart.)
#
# ## What the model predicts, before and after
#
# Every row is a position: what the decoder reads → what it must predict. On the left the untrained
# model, on the right the trained one; each cell is one of the most probable tokens.

# %%
after, _ = run(state.weights, config.model, source, target_in)
figures.plot_output_distribution(
    after,
    vocabulary,
    experiment.tokenizer.pieces(target_in),
    target,
    before=before,
    target=label,
    top_k=4,
    title="Output distribution before and after training",
)

# %% [markdown]
# *What this does not prove.* Here the decoder reads the right translation at every position. When
# it translates it reads its own, and a slip early on changes everything after it. So the test below
# translates freely.
#
# ## Perplexity and accuracy
#
# Perplexity is e to the power of the NLL: among how many tokens the model is in doubt, in a way, as
# if all were equally probable. Accuracy can be asked for single tokens with the right beginning
# given, or for whole sentences that are translated freely, which is much harder.

# %%
some = test.first(400)


def accuracies(params):
    """The shares of sentences that are exactly right, and of pronouns."""
    found = translate(params, some.sources)
    right = np.mean([one == other for one, other in zip(found, some.targets, strict=True)])
    return right, some.corpus_metrics(found)["pronoun_accuracy"]


whole, pronouns = accuracies(state.weights)
final = validation[config.training.steps]
print(f"validation: NLL {final:.3f}, perplexity {math.exp(final):.2f}")
print(f"tokens right in the last {window} batches: {means[-1]['accuracy']:.1%}")
print(f"{len(some)} test sentences: exactly right {whole:.1%}, pronoun right {pronouns:.1%}")

# %% [markdown]
# ## Averaged checkpoints
#
# The paper's results are those of the mean of the last checkpoints. Averaging takes away some of
# the noise of the last steps; here is what it does for the mean of five, 20 steps apart.

# %%
averaged = jax.tree.map(lambda *leaves: np.mean(leaves, axis=0), *snapshots)
nll_averaged = validation_losses(experiment, jax.device_put(averaged))["nll"]
whole_averaged, _ = accuracies(averaged)
print(f"validation NLL: last {final:.3f}, mean of {len(snapshots)} {nll_averaged:.3f}")
print(f"exactly right: last {whole:.1%}, mean of {len(snapshots)} {whole_averaged:.1%}")

# %% [markdown]
# ## How many parameters?
#
# The rows of the paper's table 3 that give a number, counted from the configs alone (no array is
# made). The paper names a vocabulary of about 37,000, with which base has 63.0 million; all its
# counts but that of the big model fit one of 41,100, and the big one 36,000.

# %%
PAPER = {
    "base": (65, {}),
    "d_k 16": (58, {"d_k": 16}),
    "d_k 32": (60, {"d_k": 32}),
    "2 layers": (36, {"num_layers": 2}),
    "4 layers": (50, {"num_layers": 4}),
    "8 layers": (80, {"num_layers": 8}),
    "d_model 256": (28, {"d_model": 256, "d_k": 32, "d_v": 32}),
    "d_model 1024": (168, {"d_model": 1024, "d_k": 128, "d_v": 128}),
    "d_ff 1024": (53, {"d_ff": 1024}),
    "d_ff 4096": (90, {"d_ff": 4096}),
    "big": (213, {"d_model": 1024, "d_ff": 4096, "num_heads": 16}),
}


def parameters(**fields):
    """The number of parameters of a model with these fields, the paper's base else."""
    shapes = abstract_params(Config(model=TransformerConfig(**fields)))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


counts = {}
print("                 paper       counted")
for name, (millions, fields) in PAPER.items():
    counts[name] = parameters(vocab_size=36_000 if name == "big" else 41_100, **fields)
    print(f"{name:14} {millions:5} M {counts[name]:13,}")
named = parameters(vocab_size=37_000)
print(f"{'this notebook':14} {flat(state.params).size:21,}")

# %% [markdown]
# ## What this notebook claims, checked

# %%
# Training begins near log V, and no position sees what it must predict.
assert abs(first_loss - log_v) < 1.5
assert (unmoved[:-1] < 1e-5).all() and unmoved[-1] > 1e-3
# The loss is the cross-entropy; a difference of distributions sums to 0, and is the gradient.
np.testing.assert_allclose(by_hand, by_library, rtol=1e-5)
np.testing.assert_allclose(difference.sum(-1), 0, atol=1e-5)
np.testing.assert_allclose(gradient_of_logits, difference, atol=1e-5)
# The schedule's peak is the paper's; a wider model's is lower, a longer warm-up's too.
base, big, longer = (rate(updates) for rate in schedules.values())
assert abs(schedules["base: d_model 512, warm-up 4,000"](3999) - 6.99e-4) < 1e-6
assert base.max() > big.max() and base.max() > longer.max()
# The step by hand is the library's.
np.testing.assert_allclose(loss, first_loss, rtol=1e-5)
assert np.mean(off < 0.01) > 0.99
assert np.mean(abs(moved - 1) < 0.01) > 0.9
# One batch can be learned by heart: the loss comes down to the least that is possible.
assert least <= min(means["loss"] for means in by_heart) < least + 0.1
assert max(means["accuracy"] for means in by_heart) == 1
# What was learned: the loss fell and never below the least, every token is predicted, most
# sentences are right, and the perplexity is e to the power of the NLL.
assert means[-1]["loss"] < means[0]["loss"] / 3 and min(mean["loss"] for mean in means) > least
assert (after.argmax(-1) == target).mean() > 0.9 and (before.argmax(-1) == target).mean() < 0.5
assert config.training.steps < experiment.data.train.per_epoch
assert abs(final - means[-1]["nll"]) < 0.1
assert whole > 0.8 and pronouns > 0.8
# Averaging neighbouring checkpoints harms nothing.
assert nll_averaged < final + 0.02
# The parameter counts are the paper's, to the million.
assert all(round(counts[name] / 1e6) == millions for name, (millions, _) in PAPER.items())
assert round(named / 1e6, 1) == 63.0
