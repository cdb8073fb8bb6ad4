# SPDX-License-Identifier: Apache-2.0
"""The recurrent family computes what its papers say, and what PyTorch's LSTM and GRU compute.

The oracle is NumPy in float64, one sentence, one position and one unit of a gate at a time.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from transformer.config import RecurrentConfig
from transformer.errors import InputError
from transformer.inspection import trace
from transformer.inspection.interventions import no_interventions
from transformer.models import protocol
from transformer.models.recurrent import attention
from transformer.models.recurrent.cells import CELLS
from transformer.models.recurrent.layers import RecurrentEncoder

CLOSE = {"rtol": 0, "atol": 1e-9}
SIZES = {"vocab_size": 11, "d_model": 4, "output_bias": True}
BAHDANAU = RecurrentConfig(**SIZES, cell="gru_reset_before")
SUTSKEVER = RecurrentConfig(
    **SIZES, cell="lstm", num_layers=2, encoder_direction="backward", attention="none"
)
LUONG = SUTSKEVER.replace(attention="dot", encoder_direction="forward")
FEEDING = BAHDANAU.replace(attention="general", input_feeding=True, num_layers=2, cell="gru")
LOCAL = BAHDANAU.replace(attention="concat", local_window=2, cell="lstm")
MODELS = {
    "Bahdanau": BAHDANAU,
    "Sutskever": SUTSKEVER,
    "Luong": LUONG,
    "input feeding": FEEDING,
    "local-p": LOCAL,
}
SLOW = pytest.mark.slow
SOURCE = jnp.array([[4, 7, 5, 10, 2], [6, 9, 2, 0, 0]])
TARGET_IN = jnp.array([[1, 5, 9, 4], [1, 10, 7, 0]])


# The oracle.


def sigmoid(x):
    """1 / (1 + e^-x)."""
    return 1 / (1 + math.exp(-x))


def cell_step(p, cell, x, state, context=None):
    """The next state, unit by unit, from the equations of `transformer.models.recurrent.cells`."""
    h, width = state[0], len(state[0])
    inputs = x @ p["input"] + p["bias"]
    if context is not None:
        inputs = inputs + context @ p["context"]
    new = []
    reset = [
        sigmoid(inputs[j] + sum(h * p["recurrent"][:, j])) if cell != "lstm" else None
        for j in range(width)
    ]
    for j in range(width):
        gate = [inputs[j + k * width] for k in range(CELLS[cell].gates)]
        recurrent = [sum(h * column) for column in p["recurrent"].T[j::width]]
        if cell == "lstm":
            i, f, g, o = (a + b for a, b in zip(gate, recurrent, strict=True))
            c = sigmoid(f) * state[1][j] + sigmoid(i) * math.tanh(g)
            new.append((sigmoid(o) * math.tanh(c), c))
            continue
        z = sigmoid(gate[1] + recurrent[1])
        if cell == "gru":
            n = math.tanh(gate[2] + reset[j] * (recurrent[2] + p["recurrent_bias"][j]))
        else:
            n = math.tanh(gate[2] + sum(np.array(reset) * h * p["candidate"][:, j]))
        new.append(((1 - z) * n + z * h[j],))
    return tuple(np.array(part) for part in zip(*new, strict=True))


def encode(p, config, source):
    """The states of every token, and the last state of every layer."""
    words = [word for word in source if word != oracle.PAD]
    x = [p["embedding"]["table"][word] * math.sqrt(config.d_model) for word in words]
    directions = {"both": ("forward", "backward")}
    last = []
    for layer in range(config.num_layers):
        outputs = []
        for name in directions.get(config.encoder_direction, (config.encoder_direction,)):
            state = (np.zeros(config.d_model),) * CELLS[config.cell].state_size
            states = []
            for vector in x if name == "forward" else x[::-1]:
                state = cell_step(p["encoder"][f"{name}_{layer}"], config.cell, vector, state)
                states.append(state[0])
            outputs.append(states if name == "forward" else states[::-1])
        x = [np.concatenate(parts) for parts in zip(*outputs, strict=True)]
        last.append(state)
    return x, last


def attend(p, config, annotations, query):
    """The context: softmax of the scores, in local-p within a window and under a Gaussian."""
    scores = {}
    for s, annotation in enumerate(annotations):
        if config.attention in ("additive", "concat"):
            hidden = np.tanh(query @ p["query"] + annotation @ p["key"])
            scores[s] = hidden @ p["score"][:, 0]
        else:
            key = annotation if config.attention == "dot" else annotation @ p["key"]
            scores[s] = query @ key
    if config.local_window:
        score = np.tanh(query @ p["position"]) @ p["position_score"][:, 0]
        center, deviation = len(annotations) * sigmoid(score), config.local_window / 2
        scores = {
            s: score - (s - center) ** 2 / (2 * deviation**2)
            for s, score in scores.items()
            if abs(s - center) <= config.local_window
        }
    total = sum(map(math.exp, scores.values()))
    return sum(math.exp(score) / total * annotations[s] for s, score in scores.items())


def logits(p, config, source, target_in):
    """The logits of every target position."""
    annotations, states = encode(p, config, source)
    p, table = p["decoder"] | {"embedding": p["embedding"]}, p["embedding"]["table"]
    if config.encoder_direction == "both":
        states = [
            tuple(np.tanh(part @ p[f"bridge_{i}_{j}"]) for j, part in enumerate(state))
            for i, state in enumerate(states)
        ]
    fed, rows = np.zeros(config.d_model), []
    for word in target_in:
        embedded = table[word] * math.sqrt(config.d_model)
        context = fed if config.input_feeding else None
        if config.attention == "additive":
            context = attend(p, config, annotations, states[-1][0])
        x = embedded
        for index in range(config.num_layers):
            layer, into = p[f"layer_{index}"], None if index else context
            states[index] = cell_step(layer, config.cell, x, states[index], into)
            x = states[index][0]
        if config.attention == "additive":
            both = np.concatenate([x, embedded, context]) @ p["maxout"]
            x = np.array([max(both[2 * j], both[2 * j + 1]) for j in range(config.d_model)])
        elif config.attention != "none":
            context = attend(p, config, annotations, x)
            x = fed = np.tanh(np.concatenate([context, x]) @ p["combine"])
        rows.append(x @ table.T + p["embedding"]["output_bias"])
    return np.array(rows)


@functools.cache
def built(name):
    """(model, parameters)."""
    model = protocol.build(MODELS[name])
    return model, oracle.random_params(model, seed=0)


@pytest.mark.parametrize("name", MODELS)
def test_the_model_is_the_oracles(name):
    model, params = built(name)
    with jax.enable_x64(True):
        of = oracle.float64(params)
        ours = jax.jit(model.apply)({"params": of}, SOURCE, TARGET_IN)
    pairs = zip(np.asarray(SOURCE), np.asarray(TARGET_IN), strict=True)
    for row, (source, target_in) in enumerate(pairs):
        expected = logits(oracle.arrays(params), MODELS[name], source, target_in)
        real = target_in != 0
        np.testing.assert_allclose(ours[row][real], expected[real], **CLOSE)


# PyTorch, in float64.


def copy_layers(torch, cell, ours, theirs):
    """Put the parameters of our encoder into PyTorch's LSTM or GRU; returns the names.

    PyTorch has two biases of each gate, of which ours is the first; the second is used only in the
    candidate of a GRU.
    """
    names = {}
    for layer in range(theirs.num_layers):
        for direction, suffix in (("forward", ""), ("backward", "_reverse")):
            p, end = ours[f"{direction}_{layer}"], f"_l{layer}{suffix}"
            second = np.zeros_like(p["bias"])
            if cell == "gru":
                second[-len(p["recurrent_bias"]) :] = p["recurrent_bias"]
            values = {
                "weight_ih": p["input"].T,
                "weight_hh": p["recurrent"].T,
                "bias_ih": p["bias"],
                "bias_hh": second,
            }
            for name, value in values.items():
                with torch.no_grad():
                    getattr(theirs, name + end).copy_(torch.tensor(value.copy()))
            names[direction, layer] = end
    return names


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_bidirectional_encoder_and_its_gradients_are_pytorchs_on_packed_sequences(torch, cell):
    config = RecurrentConfig(**SIZES, cell=cell, num_layers=2, attention="general")
    encoder = RecurrentEncoder(config)
    rng = np.random.default_rng(1)
    x, lengths = rng.standard_normal((3, 6, 4)), [6, 3, 1]
    mask = np.arange(6) < np.array(lengths)[:, None]
    weighting = rng.standard_normal((3, 6, 8)) * mask[..., None]
    model = protocol.build(config)
    params = oracle.random_params(model, seed=2)["encoder"]
    with jax.enable_x64(True):
        of = oracle.float64(params)

        @jax.jit
        def ours(params, x):
            memory = encoder.apply({"params": params}, x, jnp.asarray(mask))
            last = sum((part**2).sum() for state in memory.states for part in state)
            return (memory.annotations * weighting).sum() + last, memory

        gradients, memory = jax.grad(ours, argnums=(0, 1), has_aux=True)(of, jnp.asarray(x))

    module = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[cell]
    theirs = module(4, 4, 2, batch_first=True, bidirectional=True, dtype=torch.float64)
    names = copy_layers(torch, cell, oracle.arrays(params), theirs)
    tensor = torch.tensor(x, requires_grad=True)
    pack = torch.nn.utils.rnn.pack_padded_sequence
    packed, last = theirs(pack(tensor, torch.tensor(lengths), batch_first=True))
    outputs, _ = torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
    last = last if cell == "lstm" else (last,)
    backward = [part[1::2] for part in last]  # [layers, B, D]
    total = (outputs * torch.tensor(weighting)).sum() + sum((part**2).sum() for part in backward)
    total.backward()

    np.testing.assert_allclose(
        np.asarray(memory.annotations) * mask[..., None], outputs.detach().numpy(), **CLOSE
    )
    for layer, state in enumerate(memory.states):
        for part, expected in zip(state, backward, strict=True):
            np.testing.assert_allclose(part[:, 0], expected[layer].detach().numpy(), **CLOSE)
    np.testing.assert_allclose(gradients[1], tensor.grad.numpy(), **CLOSE)
    for (direction, layer), end in names.items():
        gradient = gradients[0][f"{direction}_{layer}"]
        of_name = {"input": "weight_ih", "recurrent": "weight_hh", "bias": "bias_ih"}
        for name, their_name in of_name.items():
            expected = getattr(theirs, their_name + end).grad.numpy()
            np.testing.assert_allclose(gradient[name].T, expected, **CLOSE)
        if cell == "gru":
            expected = getattr(theirs, "bias_hh" + end).grad.numpy()[-4:]
            np.testing.assert_allclose(gradient["recurrent_bias"], expected, **CLOSE)


# Attention.


def test_a_sum_of_tanh_has_the_gradients_of_the_formula():
    rng = np.random.default_rng(3)
    with jax.enable_x64(True):
        query, key, vector, cotangent = (
            jnp.asarray(rng.standard_normal(shape))
            for shape in ((2, 3, 4), (2, 5, 4), (4,), (2, 3, 5))
        )

        def formula(query, key, vector):
            hidden = jnp.tanh(query[:, :, None] + key[:, None])
            return jnp.einsum("BTSD,D->BTS", hidden, vector)

        @functools.partial(jax.jit, static_argnums=0)
        def gradients(scores, *inputs):
            return jax.vjp(scores, *inputs)[1](cotangent)

        ours, expected = (
            gradients(scores, query, key, vector) for scores in (attention.additive_scores, formula)
        )
        for one, other in zip(ours, expected, strict=True):
            np.testing.assert_allclose(one, other, **CLOSE)


def test_local_attention_is_within_the_window_of_the_predicted_position():
    # v . tanh(0) = 0, so p is half the length of the sentence: 4 of 8 tokens, 2 of 4.
    mask = jnp.arange(8) < jnp.array([8, 4])[:, None, None]  # [B, 1, S]
    hidden, vector = jnp.zeros((2, 1, 3)), jnp.ones(3)
    bias, window = jax.jit(attention.local_window, static_argnums=3)(hidden, vector, mask, 2)
    assert [np.flatnonzero(row).tolist() for row in window[:, 0]] == [[2, 3, 4, 5, 6], [0, 1, 2, 3]]
    np.testing.assert_allclose(bias[0, 0, 2:7], [-2, -0.5, 0, -0.5, -2], atol=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        "Bahdanau",
        *(pytest.param(name, marks=SLOW) for name in ("local-p", "Luong", "input feeding")),
    ],
)
def test_attention_is_captured_gated_and_patched_within_the_loop_over_time(name):
    """A patch has the axis T, as everywhere; that of one position changes later ones too."""
    model, params = built(name)
    pair, nothing = (SOURCE[1], TARGET_IN[0]), no_interventions(model, 5, 4)

    @jax.jit
    def run(params, interventions):
        return trace.run(model, params, *pair, capture="full", interventions=interventions)

    logits, captured = run(params, nothing)
    plain, _ = jax.jit(lambda: trace.run(model, params, *pair))()
    np.testing.assert_allclose(logits, plain, rtol=1e-5, atol=1e-6)
    attention = captured.attention("cross")
    assert attention.weights.shape == (1, 1, 4, 5)
    np.testing.assert_array_equal(attention.weights[..., 3:], 0)
    np.testing.assert_allclose(attention.weights.sum(-1), 1, rtol=1e-6)
    assert attention.z.shape == (1, 1, 4, model.config.memory_width)
    assert captured.attention("encoder") is captured.attention("decoder") is None

    z, at_2 = attention.z, jnp.arange(4)[:, None] == 2  # [1, 1, T, A]
    same = nothing.patch_heads("cross", "z", jnp.ones_like(z, bool), z)
    np.testing.assert_allclose(run(params, same)[0], plain, rtol=1e-5, atol=1e-6)
    mask = jnp.broadcast_to(at_2, z.shape)
    changed, patched = run(params, nothing.patch_heads("cross", "z", mask, jnp.zeros_like(z)))
    np.testing.assert_allclose(changed[:2], plain[:2], rtol=1e-5, atol=1e-6)
    assert not np.allclose(changed[2], plain[2], atol=1e-4)
    assert not patched.attention("cross").z[:, :, 2].any()

    if "combine" in params["decoder"]:  # a gate of 0 removes the context
        gates = jax.tree.map(jnp.zeros_like, nothing.gates)
        kernel = params["decoder"]["combine"].at[: model.config.memory_width].set(0)
        without = params | {"decoder": params["decoder"] | {"combine": kernel}}
        removed, _ = run(params, nothing.with_gates(gates))
        np.testing.assert_allclose(removed, run(without, nothing)[0], rtol=1e-5, atol=1e-6)


# Options.


@pytest.mark.parametrize(
    "name",
    ["input feeding", *(pytest.param(name, marks=SLOW) for name in ("Sutskever", "Bahdanau"))],
)
def test_dropout_of_an_example_depends_on_its_number_alone(name):
    model = protocol.build(MODELS[name].replace(dropout=0.4, num_layers=2))
    params = oracle.random_params(model, seed=4)

    @jax.jit
    def forward(source, target_in, example_ids, seed):
        options = {
            "train": True,
            "example_ids": example_ids,
            "rngs": {"dropout": jax.random.key(seed)},
        }
        return model.apply({"params": params}, source, target_in, **options)

    both = forward(SOURCE, TARGET_IN, jnp.array([0, 1]), 0)
    swapped = forward(SOURCE[::-1], TARGET_IN[::-1], jnp.array([1, 0]), 0)
    np.testing.assert_allclose(both, swapped[::-1], rtol=1e-5, atol=1e-6)
    other = forward(SOURCE, TARGET_IN, jnp.array([0, 1]), 1)
    assert not np.allclose(both, other)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attention": "dot"}, "model.attention is 'dot', but must be 'general' or 'concat' with"),
        ({"input_feeding": True}, "model.input_feeding is True, but must be False, except with"),
        ({"local_window": 3}, "model.local_window is 3, but must be left out, except with"),
        (
            {"tied_embeddings": "source_target", "source_vocab_size": 9},
            "be another value with model.",
        ),
        ({"cell": "rnn"}, "model.cell is 'rnn', but must be one of"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(fields, message):
    with pytest.raises(InputError, match=message):
        RecurrentConfig(**fields)


def test_packed_rows_are_refused_by_the_model_too():
    model, params = built("Bahdanau")
    with pytest.raises(InputError, match="cannot keep the sentences of a packed row apart"):
        model.apply(
            *({"params": params}, SOURCE, TARGET_IN),
            source_segments=jnp.ones_like(SOURCE),
            target_segments=jnp.ones_like(TARGET_IN),
        )


def test_an_lstm_first_remembers():
    model = protocol.build(SUTSKEVER)

    @jax.jit
    def fresh(key):
        return model.init(key, SOURCE, TARGET_IN)["params"]["encoder"]["backward_0"]

    params = fresh(jax.random.key(0))
    np.testing.assert_array_equal(params["bias"], np.repeat([0, 1, 0, 0], 4))
    for gate in np.split(params["recurrent"], 4, axis=1):
        np.testing.assert_allclose(gate @ gate.T, np.eye(4), atol=1e-5)
