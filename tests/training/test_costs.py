# SPDX-License-Identifier: Apache-2.0
"""Costs of a training step: FLOPs by hand and against the traced model, memory by XLA."""

import dataclasses

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.planning import costs
from experiments.training import compose
from transformer.config import (
    ClassifierConfig,
    Config,
    ConvolutionalConfig,
    DataConfig,
    LanguageModelConfig,
    RecurrentConfig,
    TrainingConfig,
    TransformerConfig,
)
from transformer.models import protocol
from transformer.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def experiment():
    """A tiny model on sentences of two lengths, which fill batches of two shapes."""
    config = Config(
        model=TransformerConfig(vocab_size=12, num_layers=1, d_model=8, d_ff=16, num_heads=2),
        data=DataConfig(max_length=8, bucket_lengths=(4, 8), tokens_per_batch=64),
        training=TrainingConfig(steps=10),
    )
    tokenizer = Tokenizer.train(["a b c d e f g h"] * 3, 12, "word")
    short, long = np.full(40, 4, np.int32), np.full(9, 7, np.int32)
    lengths = np.concatenate([short, long])
    return costs.experiment_of_lengths(config, tokenizer, [(1.0, lengths, lengths)])


def test_the_base_model_by_hand():
    # With S = T and N d_k = N d_v = D, an attention is 8 D^2 a position and 4 D T for its T keys.
    # D^2 = 262,144; the feed-forward network is 4 D F = 4,194,304, the logits 2 D V = 37,888,000.
    encoder = 6 * (8 * 262_144 + 4 * 512 * 25 + 4_194_304)
    decoder = 6 * (16 * 262_144 + 8 * 512 * 25 + 4_194_304)
    assert encoder + decoder + 37_888_000 == 126_889_984
    flops = protocol.build(TransformerConfig()).describe().forward_flops(1000, 25, 25)
    assert flops == 1000 * 25 * 126_889_984


def test_a_training_step_is_three_forward_passes_of_every_row_and_r_drop_twice_that():
    """Training the paper's base model takes about 1e18 FLOPs."""
    model = protocol.build(TransformerConfig())
    forward = model.describe().forward_flops(1000, 25, 25)
    assert costs.step_flops(model, 1000, 25) == 3 * forward
    assert costs.step_flops(model, 1000, 25, forward_passes=2) == 6 * forward
    assert 0.9e18 < 100_000 * costs.step_flops(model, 1000, 25) < 1e18


def matmul_flops(jaxpr):
    """FLOPs of all matmuls of a traced function."""
    total = 0
    for equation in jaxpr.eqns:
        steps = equation.params["length"] if equation.primitive.name == "scan" else 1
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            total += steps * matmul_flops(inner)
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            inner = np.prod([left[axis] for axis in contracted], dtype=int)
            total += 2 * int(inner) * int(np.prod(equation.outvars[0].aval.shape, dtype=int))
    return total


@pytest.mark.parametrize(
    "sizes",
    [
        {"encoder_layers": 1, "decoder_layers": 3, "d_k": 5, "d_v": 3},
        {"num_layers": 1, "positions": "shaw", "num_kv_heads": 2, "activation": "swiglu", "d_v": 3},
        {"num_layers": 1, "attention_score": "additive", "tied_embeddings": "none"},
        {"num_layers": 2, "shared_layers": True, "num_kv_heads": 1, "positions": "rotary"},
    ],
)
def test_the_formula_counts_the_matmuls_of_the_traced_transformer(sizes):
    check_formula(
        TransformerConfig(**{"vocab_size": 50, "d_model": 16, "d_ff": 40, "num_heads": 4} | sizes)
    )


@pytest.mark.parametrize(
    "model",
    [
        ConvolutionalConfig(vocab_size=50, encoder_layers=3, decoder_layers=1, kernel_width=5),
        RecurrentConfig(
            vocab_size=50, d_model=16, num_layers=2, cell="lstm", attention="concat", local_window=3
        ),
        RecurrentConfig(vocab_size=50, d_model=16, attention="general", input_feeding=True),
        pytest.param(
            RecurrentConfig(
                **{"vocab_size": 50, "d_model": 16, "num_layers": 3, "attention": "dot"},
                encoder_direction="forward",
            ),
            marks=pytest.mark.slow,
        ),
        RecurrentConfig(vocab_size=50, d_model=16, attention="none", cell="gru_reset_before"),
        LanguageModelConfig(vocab_size=50, num_layers=2, d_model=16, d_ff=40, num_heads=4),
        ClassifierConfig(vocab_size=50, num_layers=2, d_model=16, d_ff=40, num_heads=4),
    ],
)
def test_the_formula_counts_the_matmuls_of_other_traced_families(model):
    check_formula(model)


def check_formula(config):
    """Compare `forward_flops` with the matmuls of the traced model, for unequal lengths."""
    module = protocol.build(config)
    source, target = jnp.ones((3, 7), jnp.int32), jnp.ones((3, 9), jnp.int32)
    params = jax.eval_shape(lambda: module.init(jax.random.key(0), source, target)["params"])
    traced = jax.make_jaxpr(lambda p: module.apply({"params": p}, source, target)[0])(params)
    assert matmul_flops(traced.jaxpr) == module.describe().forward_flops(3, 7, 9)


def test_batches_are_counted_by_shape(experiment):
    # 40 sentence pairs of 4 tokens, 16 a batch; 9 padded to 8 tokens, 8 a batch.
    assert costs.batches_by_shape(experiment) == {(16, 4): 3, (8, 8): 2}


@pytest.fixture(scope="module")
def compiled(experiment):
    """The step for one batch shape, compiled once for both tests of it."""
    return costs.compile_step(experiment, 16, 4, 3)


@pytest.mark.slow
def test_memory_is_xlas_and_the_new_state_reuses_the_memory_of_the_old_one(experiment, compiled):
    program, cost = compiled
    memory = program.memory_analysis()
    arguments = memory.argument_size_in_bytes
    # Parameters and the two moments of Adam in float32, and both sides of the batch in int32.
    leaves = jax.tree.leaves(experiment.abstract_state.params)
    floor = 4 * (3 * sum(leaf.size for leaf in leaves) + 2 * 16 * 4)
    assert floor <= arguments < floor + 100
    outputs = cost.peak_bytes - arguments - memory.temp_size_in_bytes
    assert 0 < outputs < floor / 10
    assert cost.flops == costs.step_flops(experiment.model, 16, 4)


@pytest.mark.slow
def test_a_step_is_timed_on_a_batch_of_the_epoch(experiment, compiled):
    program, cost = compiled
    timed = dataclasses.replace(cost)
    costs.time_steps(experiment, [(program, timed)])
    assert (timed.rows, timed.length, timed.batches) == (16, 4, 3)
    assert 0 < timed.seconds < 5


def test_a_step_that_would_take_too_long_is_not_started(experiment, monkeypatch):
    monkeypatch.setattr(costs, "matmul_flops_per_second", lambda: 1.0)
    monkeypatch.setattr(compose.Experiment, "init_state", lambda self: pytest.fail("started"))
    cost = costs.StepCost(16, 4, batches=3, flops=100, peak_bytes=0)
    costs.time_steps(experiment, [(None, cost)])
    assert cost.seconds is None
    assert costs.mean_step_seconds([cost]) is None


def test_the_mean_step_weighs_shapes_by_their_batches_and_extrapolates_to_those_not_timed():
    measured = [
        costs.StepCost(8, 4, batches=3, flops=100, peak_bytes=0, seconds=1.0),
        costs.StepCost(8, 8, batches=1, flops=200, peak_bytes=0, seconds=3.0),
        costs.StepCost(8, 16, batches=1, flops=400, peak_bytes=0),
    ]
    # 6 s for 500 FLOPs; therefore 4.8 s for the last shape's 400.
    assert costs.mean_step_seconds(measured) == pytest.approx((3 * 1.0 + 3.0 + 4.8) / 5)
