# SPDX-License-Identifier: Apache-2.0
"""Convolution, recurrence and self-attention side by side: reach, bottleneck, alignment, cost."""

# %% [markdown]
# # CNN, RNN and self-attention
#
# The Transformer replaced two kinds of layers that also turn a sequence of vectors into another
# one: recurrent layers (RNN) and convolutions (CNN). This notebook compares the three, with layers
# and models of this project:
#
# 1. how a word reaches another: how many layers lie between two positions, measured from Jacobians;
# 2. the bottleneck of the first RNN translators (Sutskever et al. 2014), which gave rise to
#    attention (Bahdanau et al. 2015), measured on a task by length;
# 3. the alignment that attention learns, in an RNN, in a convolutional model (Gehring et al. 2017)
#    and in a Transformer;
# 4. what each kind of layer costs as sentences grow, from the compiled layers.
#
# All four models are trained here by the same trainer; the same search decodes with them, and the
# same functions look inside. The last cell asserts the claims of the text.

# %%
import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.studies.exercises import Answer
from experiments.studies.layer_costs import measurements as layer_measurements
from experiments.studies.layer_costs.layers import LAYERS
from transformer import compile_cache
from transformer.batch import Batch
from transformer.config import (
    Config,
    ConvolutionalConfig,
    DecodeConfig,
    OptimizerConfig,
    RecurrentConfig,
    TrainingConfig,
    TransformerConfig,
)
from transformer.decoding.generate import generate
from transformer.inspection import figures, run
from transformer.models import protocol
from transformer.nn.positions import shift_right
from transformer.training import consistency, optimizers
from transformer.training.step import TrainState, train_step

compile_cache.enable()  # what compiles here need not compile the next time

# %% [markdown]
# ## How a word reaches another
#
# For a prediction at the end of a sentence to use its first word, information must travel from the
# first position to the last. In one step,
#
# - a recurrent layer moves information by one position, from a state to the next;
# - a convolution of width k combines k neighbors, here each position and the two before it (k = 3);
# - a dilated convolution skips positions, k times as many in each layer;
# - self-attention reads all positions.
#
# Which inputs does the last of 27 outputs depend on? The Jacobian knows: where the derivative of
# that output by an input is not zero, information has arrived. Each kind of layer is applied to all
# positions, then again to the result, and so on. The code is that of the study `layer_costs`.
#
# ### Predict, then run
#
# **Exercise 1.** After how many applications does the first word reach the last of 27 outputs, for
# each of the four kinds? And for a convolution of width 5?

# %%
POSITIONS = 27
KINDS = {
    "recurrent": "recurrent (LSTM)",
    "convolution": "convolutional, k = 3",
    "dilated convolution": "convolutional, k = 3, dilated",
    "self-attention": "self-attention",
}
layers = {layer.name: layer for layer in LAYERS}
reached = {
    kind: [
        inputs.sum() for inputs in layer_measurements.reached_inputs(layers[name], POSITIONS, d=4)
    ]
    for kind, name in KINDS.items()
}
applications = np.arange(1, POSITIONS + 1)
figures.plot_curves(
    {kind: (applications, counts) for kind, counts in reached.items()},
    x_label="applications of the layer",
    y_label="inputs that the last output depends on",
    title=f"How far information travels: {POSITIONS} positions",
)

# %%
paths = {kind: 1 + counts.index(POSITIONS) for kind, counts in reached.items()}
for kind, length in paths.items():
    print(f"{kind:20} the first word reaches the last output after {length:2} applications")
five_wide = int(np.ceil((POSITIONS - 1) / (5 - 1)))
three_wide = int(np.ceil((POSITIONS - 1) / (3 - 1)))
Answer(
    f"See above. Each convolution of width k reaches k − 1 positions further, so width 5 needs "
    f"(27 − 1) / 4, rounded up: {five_wide}. The formula gives {three_wide} for width 3, where "
    f"{paths['convolution']} were measured."
)

# %% [markdown]
# These are the maximum path lengths of the paper's table 1 and section 4: n for recurrence, 1 for
# self-attention, log_k n for dilated convolutions, and O(n / k) for others, which is n / (k − 1)
# when it is counted.
#
# *What this does not prove.* A path is a possibility. A derivative that is not zero can be tiny,
# and a short path helps learning only if the network finds a use for it.
#
# ## The bottleneck
#
# The first neural translators were two RNNs: the *encoder* reads the source and its last state is
# all that the *decoder* gets (Sutskever et al. 2014). A state has a fixed size, whatever the length
# of the sentence. Bahdanau et al. (2015) kept all states of the encoder and let the decoder choose
# among them at every step, by *attention*. Later models kept the attention and replaced the RNN: by
# convolutions (Gehring et al. 2017), then by more attention (Vaswani et al. 2017).
#
# The task shows the bottleneck alone: repeat a string of up to 12 random letters, of 16 kinds, in
# reverse order. Nothing is to be understood; everything must be remembered. All models have the
# same width, batches, number of steps and learning rate.

# %%
LETTERS, LONGEST = "abcdefghijklmnop", 12
FIRST = 4  # ids below are padding, BOS, EOS and unknown
PIECES = ["<pad>", "<s>", "</s>", "<unk>", *LETTERS]
SIZES = {"vocab_size": len(PIECES), "d_model": 64}
MODELS = {
    "RNN without attention": RecurrentConfig(
        **SIZES, cell="lstm", encoder_direction="forward", attention="none"
    ),
    "RNN with attention": RecurrentConfig(**SIZES, attention="additive"),
    "CNN with attention": ConvolutionalConfig(**SIZES, num_layers=2, dropout=0.0),
    "Transformer": TransformerConfig(**SIZES, num_layers=1, num_heads=1, d_ff=128, dropout=0.0),
}
STEPS, ROWS = 400, 96


def strings(seed, rows=ROWS, length=None):
    """Random strings of one length, or of 1 to 12 letters, and their reversals."""
    rng = np.random.default_rng(seed)
    source, target = np.zeros((2, rows, LONGEST + 1), np.int32)
    lengths = np.full(rows, length) if length else rng.integers(1, LONGEST + 1, rows)
    for row, size in enumerate(lengths):
        letters = rng.integers(FIRST, len(PIECES), size)
        source[row, : size + 1] = *letters, 2
        target[row, : size + 1] = *letters[::-1], 2
    return Batch(source, target)


def train(model_config):
    """Train a model for `STEPS` steps; return its parameters and its last loss."""
    config = Config(
        model=model_config,
        optimizer=OptimizerConfig(schedule="cosine", learning_rate=3e-3, warmup_steps=50),
        training=TrainingConfig(steps=STEPS, label_smoothing=0.0),
    )
    model = protocol.build(config.model)
    parts = model, optimizers.optimizer(model, config.optimizer, STEPS)
    state = jax.jit(functools.partial(TrainState.create, *parts))(jax.random.key(0))
    loss = consistency.loss_of(config.training)
    step = jax.jit(functools.partial(train_step, *parts, loss=loss), donate_argnums=0)
    for number in range(STEPS):
        state, sums = step(state, strings(number))
    return state.params, float(sums.nll / sums.tokens)


def exact_by_length(params, model_config, lengths):
    """Share of strings that greedy search reverses without a mistake, by length."""
    search = jax.jit(
        functools.partial(
            generate,
            protocol.build(model_config),
            config=DecodeConfig(beams=1, extra_length=2),
            max_length=LONGEST + 1,
        )
    )
    shares = []
    for length in lengths:
        test = strings(10**6 + length, rows=200, length=length)
        found = np.asarray(search(params, jnp.asarray(test.source)).tokens)[:, 0]
        shares.append((found == test.target).all(-1).mean())
    return shares


# %%
lengths = [2, 4, 6, 8, 10, 12]
trained, exact = {}, {}
print("model                    parameters   loss (nats)")
for name, model_config in MODELS.items():
    params, loss = train(model_config)
    trained[name] = params
    exact[name] = exact_by_length(params, model_config, lengths)
    size = sum(parameter.size for parameter in jax.tree.leaves(params))
    print(f"{name:24} {size:10,}   {loss:11.3f}")

# %%
figures.plot_curves(
    {name: (lengths, shares) for name, shares in exact.items()},
    x_label="letters of the string",
    y_label="share without a mistake",
    title="Reversing strings that were not seen in training",
)

# %% [markdown]
# Without attention the last state of the RNN must hold the complete string. With attention each
# letter stays where the encoder put it. The next cell counts: up to which length does each model
# reverse at least nine strings of ten? Figure 2 of Bahdanau et al. (2015) shows the same for real
# translations: with growing length, BLEU falls without attention and stays with it.
#
# ### Predict, then run
#
# **Exercise 2.** The RNN without attention has a state of 128 numbers for up to 12 letters of 16
# kinds. That is enough memory in principle: 48 bits would do. Why does it fail?

# %%
reliable = {}
for name, shares in exact.items():
    passed = [length for length, share in zip(lengths, shares, strict=True) if share >= 0.9]
    reliable[name] = max(passed, default=0)
    print(f"{name:24} up to {reliable[name]:2} letters; of {LONGEST} letters {shares[-1]:.0%}")
Answer(
    "It could hold the string, but it must learn to: every letter has to be written into the state "
    "so that later letters do not overwrite it, and the gradient of the first letters passes "
    f"through all steps in between. After {STEPS} steps it is reliable up to "
    f"{reliable['RNN without attention']} letters. With attention nothing needs to be packed."
)

# %% [markdown]
# *What this does not prove.* More training helps the RNN without attention too; after these few
# steps it is far from its limit. A string of random letters is the worst case for a fixed state: a
# sentence can be compressed.
#
# ## The alignment
#
# Nothing in the loss says where to look. Reversing has one right answer, though: the letter at
# position t of the output comes from position n − 1 − t of the source. Rows are the letter that is
# read and the one that is predicted; frames mark the source of the predicted one.

# %%
example = strings(7, rows=1, length=10)
source, target = example.source[0, :11], example.target[0, :11]
target_in = np.array([1, *target[:-1]])
gold = {(t, len(source) - 2 - t) for t in range(len(source) - 1)}


def cross_attention(name, source, target_in):
    """Encoder-decoder attention of a model, [L,N,T,S]."""
    _, trace = run(
        protocol.build(MODELS[name]), trained[name], source, target_in, capture="weights"
    )
    return trace.attention("cross").weights


def plot(name, layer):
    """Draw the attention of one layer of a model with one head."""
    source_pieces, read, predicted = (
        [PIECES[token] for token in tokens] for tokens in (source, target_in, target)
    )
    return figures.plot_alignment(
        np.asarray(cross_attention(name, source, target_in)[layer, 0]),
        source_pieces,
        read,
        predicted,
        gold=gold,
        convention="predict",
        title=f"{name}, decoder layer {layer + 1}",
    )


plot("RNN with attention", 0)

# %%
plot("CNN with attention", 1)

# %%
plot("Transformer", 0)

# %% [markdown]
# How much of the weight is on that letter, on average over many strings? The CNN attends in every
# layer.


# %%
def weight_on_source(name, rows=64, length=10):
    """Mean weight of each layer on the letter that is predicted next."""
    test = strings(8, rows=rows, length=length)
    last = length - 1

    def of_string(source, target_in):
        weights = cross_attention(name, source, target_in)[:, 0]  # [L, T, S]
        return weights[:, jnp.arange(length), last - jnp.arange(length)].mean(-1)

    target_in = shift_right(jnp.asarray(test.target))
    return np.asarray(jax.vmap(of_string)(jnp.asarray(test.source), target_in).mean(0))


on_source = {name: weight_on_source(name) for name in MODELS if name != "RNN without attention"}
for name, of_layers in on_source.items():
    shares = "   ".join(f"layer {layer}: {share:.2f}" for layer, share in enumerate(of_layers, 1))
    print(f"{name:20} {shares}      uniform: {1 / 11:.2f}")

# %% [markdown]
# *What these pictures do not prove.* The task has a clean alignment; a translation has not
# (notebook 07 measures one). A layer may look at a neighbor of the letter that it needs, if the
# encoder has put the information there.
#
# ## What a layer costs
#
# Self-attention pays for its short paths: it compares every two positions, n² d operations, where a
# recurrent layer or a convolution multiplies each position by a matrix, n d². So attention is the
# cheapest layer as long as sentences are short compared with the width. XLA counts the operations
# of the compiled layers (the body of a loop once, so the study adds it for every further step).
# Here the width is 64.
#
# ### Predict, then run
#
# **Exercise 3.** From which length on does self-attention cost more than the recurrent layer? The
# leading terms would say n = d, 64.

# %%
WIDTH, SIZES_N = 64, (32, *range(64, 513, 64))
flops = {
    kind: [layer_measurements.measured_flops(layers[name], n, WIDTH) / 1e6 for n in SIZES_N]
    for kind, name in KINDS.items()
    if kind != "dilated convolution"
}
figures.plot_curves(
    {kind: (SIZES_N, values) for kind, values in flops.items()},
    x_label="positions n",
    y_label="million operations",
    title=f"Floating-point operations of one layer of width {WIDTH}",
)

# %%
costs = zip(SIZES_N, flops["self-attention"], flops["recurrent"], strict=True)
dearer = [n for n, of_attention, of_recurrence in costs if of_attention > of_recurrence]
Answer(
    f"Among the lengths above: from n = {min(dearer)}. The leading terms leave out constants. The "
    "LSTM has four gates with two matrices each, eight terms n d²; attention without its "
    "projections has two terms n² d. So they are equal near n = 4 d."
)

# %%
print("                 exponent of n   of d    sequential matmuls, n = 64   n = 128")
exponents = {}
for kind, values in flops.items():
    layer, widths = layers[KINDS[kind]], (64, 128, 256)
    by_width = [layer_measurements.measured_flops(layer, 128, d) for d in widths]
    exponents[kind] = (
        layer_measurements.exponent(SIZES_N, values),
        layer_measurements.exponent(widths, by_width),
    )
    chains = [layer_measurements.measured_sequential(layer, n, WIDTH) for n in (64, 128)]
    of_n, of_d = exponents[kind]
    print(f"{kind:16} {of_n:13.2f}   {of_d:4.2f}    {chains[0]:26}   {chains[1]:7}")

# %% [markdown]
# The last columns are what made the difference in practice: the longest chain of matmuls in which
# each needs the result of the one before. It grows with the sentence for an RNN, whatever the
# hardware; for convolution and attention it stays the same, so that all positions are computed at
# once.
#
# *What this does not prove.* Operations are not seconds: `python -m
# experiments.studies.layer_costs` measures both. Table 1 of the paper counts attention without its
# four projections; with them it costs n d² too.
#
# ## References
#
# - Hochreiter and Schmidhuber (1997), *Long Short-Term Memory*; Sutskever, Vinyals and Le (2014),
#   *Sequence to Sequence Learning with Neural Networks*.
# - Bahdanau, Cho and Bengio (2015), *Neural Machine Translation by Jointly Learning to Align and
#   Translate*; Luong, Pham and Manning (2015), *Effective Approaches to Attention-based Neural
#   Machine Translation*.
# - Kalchbrenner et al. (2016), *Neural Machine Translation in Linear Time*: dilated convolutions;
#   Gehring et al. (2017), *Convolutional Sequence to Sequence Learning*.
# - Vaswani et al. (2017), *Attention Is All You Need*, section 4 and table 1.
#
# ## Checks

# %%
# The paths are those of table 1.
assert paths == {
    "recurrent": 27,
    "convolution": 13,
    "dilated convolution": 3,
    "self-attention": 1,
}
# Without attention the RNN fails on long strings; with attention every model is better there.
bottleneck = exact["RNN without attention"]
assert bottleneck[0] > 0.9 and bottleneck[-1] < 0.2
assert reliable["RNN without attention"] < min(
    length for name, length in reliable.items() if name != "RNN without attention"
)
assert five_wide < three_wide == paths["convolution"]
assert dearer
for name, shares in exact.items():
    if name != "RNN without attention":
        assert min(shares[:-2]) > 0.8 and shares[-1] > bottleneck[-1] + 0.2
# Some layer of every model reads the letter that it writes.
for of_layers in on_source.values():
    assert of_layers.max() > 0.3
# The exponents of n and d are those of the theory.
theory = {"recurrent": (1, 2), "convolution": (1, 2), "self-attention": (2, 1)}
for kind, expected in theory.items():
    np.testing.assert_allclose(exponents[kind], expected, atol=0.15)
# Attention costs least for short sentences and most for long ones.
assert flops["self-attention"][0] < min(flops["recurrent"][0], flops["convolution"][0])
assert flops["self-attention"][-1] > max(flops["recurrent"][-1], flops["convolution"][-1])
