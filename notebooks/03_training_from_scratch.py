# SPDX-License-Identifier: Apache-2.0
"""From a config to a trained translation model, with every step in between."""

# %% [markdown]
# # Training a Transformer from scratch
#
# Training shows the model sentence pairs and increases the probability of the correct next token.
# This notebook goes from a config to a model that translates:
#
# 1. from a config to the gradient in three calls;
# 2. *teacher forcing*: what the decoder reads and what it predicts;
# 3. the loss: a cross-entropy against smoothed labels, not a difference of distributions;
# 4. the paper's learning rate, and one training step by hand;
# 5. a check that every training program should pass: overfitting a single batch;
# 6. a training run with its loss curve, and the predictions before and after it;
# 7. perplexity, accuracy, averaged checkpoints, and the paper's parameter counts.
#
# A grammar generates the corpus: English sentences in which "it" refers to one of two nouns, and
# their German translations. The model has two layers and four heads on each side. "Paper" is
# Vaswani et al. (2017), *Attention Is All You Need*. The last cell asserts the claims of the text.

# %%
import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from experiments.configs import pronouns_small
from experiments.data import registry
from experiments.studies.exercises import Answer
from experiments.training import compose
from experiments.training.monitor import validation_losses
from transformer import Translator, compile_cache
from transformer.config import Config, OptimizerConfig, TransformerConfig
from transformer.inspection import figures, run
from transformer.nn.positions import shift_right
from transformer.trained_model import abstract_params
from transformer.training import optimizers
from transformer.training.losses import smoothed_cross_entropy

compile_cache.enable()  # what compiles here need not compile the next time

# %% [markdown]
# ## From a config to the gradient in three calls
#
# A config defines an experiment. `compose.build` creates the model, the optimizer, the tokenizer
# and the data from it. `train_step` computes the gradient of a batch's loss and applies it.
# `experiments.train` makes the same three calls.
#
# This is the config of the small model of the other notebooks, but with the paper's learning rate
# schedule, one of the subjects of this notebook. It uses no dropout: the run reads less than one
# epoch, so the model sees no example twice.

# %%
config = pronouns_small.get_config()
config = config.replace(optimizer=OptimizerConfig(warmup_steps=100, learning_rate=0.48))
experiment = compose.build(config)
batch = experiment.put_batch(next(experiment.data.train.iterate(0)))
state, sums = experiment.train_step(experiment.init_state(), batch)
print("source [B,S]", batch.source.shape, "  target [B,T]", batch.target.shape)
print("metrics of the batch:", {name: round(value, 3) for name, value in sums.means().items()})

# %% [markdown]
# ### Predict, then run
#
# **Exercise 1.** The loss is measured in nats per token, and the model has not been trained. Which
# value do you expect? (The vocabulary has 1,600 tokens.)

# %%
vocabulary = experiment.tokenizer.pieces(range(config.model.vocab_size))
first_loss, log_v = sums.means()["loss"], math.log(len(vocabulary))
Answer(
    f"An untrained model spreads its probability over all V tokens, so the loss starts near log V: "
    f"log {len(vocabulary)} = {log_v:.2f}, and the loss is {first_loss:.2f}."
)

# %% [markdown]
# ## Teacher forcing
#
# In training the decoder does not read its own output but the reference translation, shifted right
# by one position after BOS: at every position it reads one token and predicts the next. One pass
# computes the predictions of all positions. The decoder generates one token at a time only when it
# translates.

# %%
SENTENCE = "The animal didn't cross the street because it was too tired."
TRANSLATION = "Das Tier überquerte die Straße nicht, weil es zu müde war."
source, target = map(jnp.array, experiment.tokenizer.encode([SENTENCE, TRANSLATION]))
target_in = shift_right(target[None])[0]
rows = figures.read_predict(*(experiment.tokenizer.pieces(ids) for ids in (target_in, target)))
print("read → predict:  ", "   ".join(rows))

# %% [markdown]
# This is valid because of the causal mask: no position can see the token that it predicts. When the
# last decoder input is replaced by another token, the predictions of the earlier positions stay the
# same.

# %%
fresh = experiment.init_state()
before, _ = run(experiment.model, fresh.params, source, target_in)
changed, _ = run(
    *(experiment.model, fresh.params, source),
    target_in.at[-1].set(experiment.tokenizer.special_ids.eos),
)
change_by_position = np.abs(before - changed).max(-1)
print(
    "largest change of any logit, by position:", *(f"{value:.2g}" for value in change_by_position)
)

# %% [markdown]
# ## The loss
#
# The label of a position is not 1 for the correct token and 0 for all others. Label smoothing gives
# 0.9 to the correct token and divides the remaining 0.1 equally among the others (paper 5.4). The
# loss is the cross-entropy of the model's distribution p against this label q, −Σ q log p.

# %%
smoothing = config.training.label_smoothing
correct = jax.nn.one_hot(target, len(vocabulary))
smoothed_label = (1 - smoothing) * correct + smoothing / (len(vocabulary) - 1) * (1 - correct)

by_hand = -(smoothed_label * jax.nn.log_softmax(before)).sum()
by_library = smoothed_cross_entropy(before[None], target[None], smoothing).loss
print(f"cross-entropy of the sentence: {by_hand:.4f} by hand, {by_library:.4f} from the library")

# %% [markdown]
# *The Illustrated Transformer* says that the two distributions are compared by subtracting one from
# the other (and refers to cross-entropy for the details). This cannot be the loss: both
# distributions sum to 1, so their difference always sums to 0. But the difference does occur: the
# *gradient* of the cross-entropy with respect to the logits is exactly p − q.

# %%
difference = jax.nn.softmax(before) - smoothed_label
logit_gradient = jax.grad(
    lambda logits: smoothed_cross_entropy(logits[None], target[None], smoothing).loss
)(before)
largest_sum = abs(difference.sum(-1)).max()
largest_difference = abs(logit_gradient - difference).max()
print(f"largest sum of p − q at any position: {largest_sum:.0e}")
print(f"largest difference between the gradient and p − q: {largest_difference:.0e}")

# %% [markdown]
# With smoothed labels the loss cannot reach 0. Its minimum is the entropy of the label, reached at
# p = q, where the correct token has probability 0.9:

# %%
min_loss = -(1 - smoothing) * math.log(1 - smoothing)
min_loss -= smoothing * math.log(smoothing / (len(vocabulary) - 1))
nll_at_minimum = -math.log(1 - smoothing)
print(f"minimum of the loss: {min_loss:.3f} nats per token, with −log p = {nll_at_minimum:.3f}")

# %% [markdown]
# ## The learning rate
#
# The learning rate increases linearly for a number of *warm-up* steps, then decreases with the
# inverse square root of the step: d_model^−0.5 · min(step^−0.5, step · warmup^−1.5) (paper 5.3).
# `optimizer.learning_rate` is a factor; in the paper it is 1.

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
print(f"peak of the base model at step 4,000: {schedules[next(iter(schedules))](3999):.2e}")
print(f"peak of the small model at step {warmup}: {schedule(warmup - 1):.2e}")

# %% [markdown]
# ## One training step by hand
#
# First the gradient of the batch's mean loss, then Adam. In Adam's first step the mean of the
# gradients is the gradient, and the mean of their squares is its square. So every parameter moves
# by the learning rate, in the direction that decreases the loss, however large or small its
# gradient is.


# %%
@jax.jit
@jax.value_and_grad
def loss_and_gradient(params):
    """Mean loss per target token of the batch, and its gradient."""
    sums = experiment.loss(experiment.model, params, batch)
    return sums.loss / sums.tokens


loss, gradient = loss_and_gradient(fresh.params)
rate = schedule(0)
stepped = jax.tree.map(
    lambda p, g: p - rate * g / (jnp.sqrt(g**2) + config.optimizer.epsilon), fresh.params, gradient
)


def flat(params):
    """All parameters as one vector."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])


moved = np.abs(flat(state.params) - flat(fresh.params)) / rate
step_difference = np.abs(flat(state.params) - flat(stepped)) / rate
print(f"loss {loss:.4f} by hand, {first_loss:.4f} from train_step; learning rate {rate:.2e}")
print(f"parameters moved by the learning rate (within 1%): {np.mean(abs(moved - 1) < 0.01):.1%}")
print(f"parameters where train_step agrees (within 1%): {np.mean(step_difference < 0.01):.2%}")

# %% [markdown]
# (The steps differ for parameters whose gradient is nearly 0: rounding decides their direction.)
#
# ## Overfitting one batch
#
# A model that cannot memorize eight sentences has a bug somewhere: in the data, the mask, the loss
# or the optimizer. With a constant learning rate, the loss on one small batch must fall to its
# minimum.

# %%
one_batch = dataclasses.replace(batch, source=batch.source[:8], target=batch.target[:8])
constant = OptimizerConfig(schedule="constant", learning_rate=2e-3, warmup_steps=20)
check = compose.build(config.replace(optimizer=constant), data=experiment.data)
overfitted, sums_per_step = check.init_state(), []
for _ in range(150):
    overfitted, sums = check.train_step(overfitted, one_batch)
    sums_per_step.append(sums)
one_batch_means = [sums.means() for sums in jax.device_get(sums_per_step)]
figures.plot_curves(
    {"loss on the one batch": (range(1, 151), [means["loss"] for means in one_batch_means])},
    x_label="step",
    y_label="nats per token",
    levels={"minimum": min_loss},
    title="Overfitting one batch",
)

# %% [markdown]
# *What this does not prove.* A model that memorizes these sentences need not generalize. The check
# detects bugs; it does not prove that there are none.
#
# ## Training
#
# Now the training run on the corpus. At some steps the current model translates the sentence above
# and 63 others. None of them is in the training data.


# %%
def translate(params, sentences):
    """Translate with greedy search."""
    greedy = config.replace(decode=config.decode.replace(beams=1))
    translator = Translator(greedy, params, experiment.tokenizer)
    return [translation.text for translation in translator(sentences)]


REPORT_AT = (50, 100, 150, 200, 300, 400, config.training.steps)
AVERAGED_STEPS = range(config.training.steps - 80, config.training.steps + 1, 20)

test = registry.load(config.data, "test")
watched = [test.sources.index(SENTENCE), *range(63)]


def exact_matches(params):
    """Count the watched sentences whose translation is the reference; show the first one."""
    hypotheses = translate(params, [test.sources[index] for index in watched])
    pairs = zip(hypotheses, [test.targets[index] for index in watched], strict=True)
    matches = sum(hypothesis == reference for hypothesis, reference in pairs)
    return f"{matches:2} of 64 correct   {hypotheses[0][:80]}"


state, history, validation, snapshots = experiment.init_state(), [], {}, []
print("step    0", exact_matches(state.weights))
batches = itertools.islice(experiment.data.train.iterate(0), config.training.steps)
for step, batch in enumerate(batches, 1):
    state, sums = experiment.train_step(state, experiment.put_batch(batch))
    history.append(sums)
    if step in AVERAGED_STEPS:
        snapshots.append(jax.device_get(state.params))
    if step in REPORT_AT:
        validation[step] = validation_losses(experiment, state.weights)["nll"]
        print(f"step {step:4}", exact_matches(state.weights))

# %% [markdown]
# ## The loss curve
#
# Training minimizes the smoothed loss. The figure also shows the negative log-likelihood (NLL),
# −log p of the correct token, on the training batches and on the validation split.

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
    y_label="nats per token",
    levels={"minimum of the smoothed loss": min_loss},
    title="Learning to translate",
)

# %% [markdown]
# The run is shorter than one epoch, so every batch is new to the model, and the two NLL curves can
# differ by noise alone. (With several epochs on a small corpus, the training NLL keeps falling
# while the validation NLL rises again: the model overfits.)
#
# ## Predictions before and after training
#
# Each row is a position: token read → token to predict. The upper half shows the untrained model,
# the lower half the trained one; each cell is one of the most probable tokens.

# %%
after, _ = run(experiment.model, state.weights, source, target_in)
figures.plot_output_distribution(
    after,
    vocabulary,
    experiment.tokenizer.pieces(target_in),
    target,
    before=before,
    target=smoothed_label,
    top_k=4,
    title="Output distribution before and after training",
)

# %% [markdown]
# *What this does not prove.* Here the decoder reads the reference at every position. When it
# translates, it reads its own output, and an early error changes everything after it. The next test
# therefore decodes without the reference.
#
# ## Perplexity and accuracy
#
# Perplexity is e to the power of the NLL. It can be read as the number of equally probable tokens
# among which the model would be undecided. Accuracy can be measured per token, given the correct
# prefix, or per sentence, decoded without the reference.
#
# ### Predict, then run
#
# **Exercise 2.** If a share a of the tokens is correct given a correct prefix, and errors were
# independent, which share of sentences of n tokens would be entirely correct? Would the true share
# be higher or lower? The next cell prints the accuracies, the one after it the answer.

# %%
subset = test.first(400)


def accuracies(params):
    """Share of exactly correct sentences, and of correct pronouns."""
    hypotheses = translate(params, subset.sources)
    pairs = zip(hypotheses, subset.targets, strict=True)
    exact = np.mean([hypothesis == reference for hypothesis, reference in pairs])
    return exact, subset.corpus_metrics(hypotheses)["pronoun_accuracy"]


exact, pronouns = accuracies(state.weights)
final_nll = validation[config.training.steps]
print(f"validation: NLL {final_nll:.3f}, perplexity {math.exp(final_nll):.2f}")
print(f"token accuracy in the last {window} batches: {means[-1]['accuracy']:.1%}")
print(f"{len(subset)} test sentences: exactly correct {exact:.1%}, pronoun correct {pronouns:.1%}")

# %%
token_accuracy = means[-1]["accuracy"]
lengths = [len(ids) for ids in experiment.tokenizer.encode(subset.targets)]
independent = np.mean([token_accuracy**length for length in lengths])
Answer(
    f"aⁿ: {independent:.1%} for the {np.mean(lengths):.0f} tokens of a mean sentence and "
    f"a = {token_accuracy:.1%}. The true share is {exact:.1%}. It is higher if errors gather in "
    "difficult sentences, and lower if greedy search, which has no correct prefix to continue "
    "after a wrong word, makes errors that the accuracy does not count."
)

# %% [markdown]
# ## Averaged checkpoints
#
# The paper reports results of averaged checkpoints: the base model averages the last five.
# Averaging removes some of the noise of the last steps. This cell averages five checkpoints, 20
# steps apart.
#
# ### Predict, then run
#
# **Exercise 3.** Are the averaged parameters better, equal or worse than the last ones here? At
# this point of the schedule the learning rate is still far from 0.

# %%
averaged = jax.tree.map(lambda *leaves: np.mean(leaves, axis=0), *snapshots)
nll_averaged = validation_losses(experiment, jax.device_put(averaged))["nll"]
exact_averaged, _ = accuracies(averaged)
count = len(snapshots)
print(f"validation NLL: last checkpoint {final_nll:.3f}, mean of {count}: {nll_averaged:.3f}")
print(f"exactly correct: last checkpoint {exact:.1%}, mean of {count}: {exact_averaged:.1%}")
verdict = "lower" if nll_averaged < final_nll else "not lower"
Answer(
    f"The validation NLL of the mean is {verdict} ({nll_averaged:.3f} against {final_nll:.3f}). "
    f"The learning rate is still {schedule(config.training.steps) / schedule(warmup - 1):.0%} of "
    "its peak, so single checkpoints scatter around a better point."
)

# %% [markdown]
# ## How many parameters?
#
# The rows of the paper's table 3 that state a parameter count, counted from the configs alone (no
# array is allocated). The paper names a vocabulary of about 37,000, which gives 63.0 million
# parameters for the base model. All counts of the table except that of the big model fit a
# vocabulary of 41,100; the big model fits 36,000.

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
    """Count the parameters of the paper's base model with these fields changed."""
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
# ## References
#
# - Vaswani et al. (2017), *Attention Is All You Need*; Alammar (2018), *The Illustrated
#   Transformer*.
# - Szegedy et al. (2016), *Rethinking the Inception Architecture for Computer Vision*: label
#   smoothing. Kingma and Ba (2015), *Adam*. Popel and Bojar (2018), *Training Tips for the
#   Transformer Model*.
# - Williams and Zipser (1989), *A Learning Algorithm for Continually Running Fully Recurrent Neural
#   Networks*: teacher forcing.
#
# ## Checks

# %%
# The initial loss is near log V, and no position sees the token that it predicts.
assert abs(first_loss - log_v) < 1.5
assert (change_by_position[:-1] < 1e-5).all() and change_by_position[-1] > 1e-3
# The loss is the cross-entropy. p − q sums to 0 and is the gradient.
np.testing.assert_allclose(by_hand, by_library, rtol=1e-5)
np.testing.assert_allclose(difference.sum(-1), 0, atol=1e-5)
np.testing.assert_allclose(logit_gradient, difference, atol=1e-5)
# The schedule has the paper's peak. A wider model or a longer warm-up lowers it.
base, big, longer = (rate(updates) for rate in schedules.values())
assert abs(schedules["base: d_model 512, warm-up 4,000"](3999) - 6.99e-4) < 1e-6
assert base.max() > big.max() and base.max() > longer.max()
# The step by hand equals the step of the library.
np.testing.assert_allclose(loss, first_loss, rtol=1e-5)
assert np.mean(step_difference < 0.01) > 0.99
assert np.mean(abs(moved - 1) < 0.01) > 0.9
# The model memorizes one batch: the loss falls to its minimum.
assert min_loss <= min(means["loss"] for means in one_batch_means) < min_loss + 0.1
assert max(means["accuracy"] for means in one_batch_means) == 1
# The training loss falls and stays above the minimum, the trained model predicts nearly every
# token, the run is shorter than an epoch, and most test sentences are correct.
assert means[-1]["loss"] < means[0]["loss"] / 3 and min(mean["loss"] for mean in means) > min_loss
assert (after.argmax(-1) == target).mean() > 0.9 and (before.argmax(-1) == target).mean() < 0.5
assert config.training.steps < experiment.data.train.per_epoch
assert abs(final_nll - means[-1]["nll"]) < 0.1
assert exact > 0.8 and pronouns > 0.8
# Averaging neighboring checkpoints does not increase the loss.
assert nll_averaged < final_nll + 0.02
# The parameter counts equal the paper's, rounded to millions.
assert all(round(counts[name] / 1e6) == millions for name, (millions, _) in PAPER.items())
assert round(named / 1e6, 1) == 63.0
