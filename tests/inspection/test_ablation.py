# SPDX-License-Identifier: Apache-2.0
"""Head ablation, and the gradients of gates."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from transformer.batch import Batch
from transformer.errors import InputError
from transformer.inspection import ablation
from transformer.inspection.readout import LogitDifference
from transformer.models import protocol
from transformer.models.protocol import KINDS
from transformer.nn.positions import shift_right
from transformer.training.step import loss

TARGET = jnp.array([[5, 9, 4, 2], [10, 7, 2, 0], [6, 2, 0, 0]])
TOKENS = 9


@pytest.fixture(scope="module")
def result(shallow, source):
    """Every head removed."""
    return ablation.ablate_heads(*shallow, source, TARGET, heads_at_once=3)


@pytest.fixture(scope="module")
def nll(shallow, source):
    """Compiled: gates -> sum of the negative log-likelihood of the sentences."""
    return jax.jit(lambda gates: ablation.nll_with_gates(*shallow, source, TARGET, gates))


# Head ablation.


def test_the_baseline_is_the_loss_per_token_of_the_unchanged_model(result, shallow, source):
    sums = jax.jit(lambda: loss(*shallow, Batch(source, TARGET), smoothing=0.0))()
    assert float(sums.tokens) == TOKENS
    assert float(result.loss) == pytest.approx(float(sums.nll) / TOKENS, rel=1e-5)


def test_padding_is_what_the_config_says(shallow):
    """With other special ids: the padding of the second sentence does not count, token 0 does."""
    ids = {"pad_id": 10, "eos_id": 0, "bos_id": 1, "unk_id": 2}
    model = protocol.build(shallow[0].config.replace(**ids))
    source, target = jnp.array([[4, 7, 0], [5, 0, 10]]), jnp.array([[4, 5, 0], [6, 0, 10]])

    @jax.jit
    def both(params):
        target_in = shift_right(target, bos_id=1)
        logits = model.apply({"params": params}, source, target_in)
        gates = ablation.open_gates(model)
        return jax.nn.log_softmax(logits), ablation.nll_with_gates(
            model, params, source, target, gates
        )

    log_probs, nll = both(shallow[1])
    tokens = [(0, 0, 4), (0, 1, 5), (0, 2, 0), (1, 0, 6), (1, 1, 0)]
    expected = -sum(float(log_probs[token]) for token in tokens)
    assert float(nll) == pytest.approx(expected, rel=1e-5)


def test_every_head_of_every_kind_is_removed_separately(result, nll, shallow):
    ones = ablation.open_gates(shallow[0])
    shapes = {"encoder": (1, 3), "decoder": (2, 2), "cross": (2, 2)}
    for kind in KINDS:
        increase, gates = getattr(result.increase, kind), getattr(ones, kind)
        assert increase.shape == shapes[kind]
        for index in np.ndindex(shapes[kind]):
            closed = ones.replace(**{kind: gates.at[index].set(0.0)})
            alone = float(nll(closed)) / TOKENS - float(result.loss)
            assert float(increase[index]) == pytest.approx(alone, abs=1e-5)
        assert np.abs(increase).min() > 1e-4


# Gradients of gates.


def test_the_gradient_of_a_gate_is_the_slope_of_the_loss(shallow, source):
    """In float64, where steps are so small that curvature and kinks do not matter."""
    with jax.enable_x64(True):
        model = shallow[0], oracle.float64(shallow[1])
        ones, step = ablation.open_gates(shallow[0]), 1e-5
        nll = jax.jit(lambda gates: ablation.nll_with_gates(*model, source, TARGET, gates))
        gradients = jax.grad(nll)(ones)
        for kind in KINDS:
            gates = getattr(ones, kind)
            assert gates.dtype == jnp.float64
            for index in np.ndindex(gates.shape):
                up, down = (
                    float(nll(ones.replace(**{kind: gates.at[index].add(by)})))
                    for by in (step, -step)
                )
                slope = float(getattr(gradients, kind)[index])
                assert slope == pytest.approx((up - down) / (2 * step), rel=1e-6)


# Metrics of each sentence pair, with zeros, means and other sentences instead of a head.

METRIC = LogitDifference(jnp.array([0, 1, 2]), jnp.array([5, 7, 2]), jnp.array([6, 6, 6]))


@pytest.mark.parametrize(
    ("replacement", "heads_at_once"),
    [pytest.param("zero", None, marks=pytest.mark.slow), ("mean", 1), ("resample", 3)],
)
def test_a_metric_is_that_of_each_pair_without_each_head(
    shallow, source, traced, nothing, replacement, heads_at_once
):
    """A removed head puts out 0, its mean over all tokens, or its output for the next pair."""
    target_in = shift_right(TARGET)
    ablated = ablation.ablate_heads_for_metric(
        *(*shallow, source, target_in, METRIC),
        replacement=replacement,
        heads_at_once=heads_at_once,
    )
    seen = [traced(*pair) for pair in zip(source, target_in, strict=True)]
    metrics = [jax.tree.map(lambda leaf, row=row: leaf[row], METRIC) for row in range(3)]
    for row, (logits, _) in enumerate(seen):
        assert float(ablated.value[row]) == pytest.approx(float(metrics[row](logits)), abs=1e-5)
    for kind in KINDS:
        outputs = np.stack([trace.attention(kind).z for _, trace in seen])  # [B, L, N, T, Hv]
        counted = np.asarray(source if kind == "encoder" else target_in) != 0
        values = {
            "zero": 0 * outputs,
            "mean": np.broadcast_to(
                outputs.transpose(0, 3, 1, 2, 4)[counted].mean(0)[None, :, :, None], outputs.shape
            ),
            "resample": np.roll(outputs, -1, axis=0),
        }[replacement]
        without = np.asarray(getattr(ablated.without, kind))
        for row, *head in np.ndindex(without.shape):
            mask = np.zeros(values.shape[1:], bool)
            mask[tuple(head)] = True
            changed = nothing.patch_heads(kind, "z", jnp.array(mask), jnp.array(values[row]))
            logits, _ = traced(source[row], target_in[row], changed)
            expected = float(metrics[row](logits))
            assert without[(row, *head)] == pytest.approx(expected, abs=1e-4)
        assert np.abs(without - np.asarray(ablated.value)[:, None, None]).max() > 1e-3
        damage = (np.asarray(ablated.value)[:, None, None] - without).mean(0)
        np.testing.assert_allclose(getattr(ablated.damage, kind), damage, atol=1e-6)


# Invalid arguments.


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ([[4, 2]], [[5, 2], [5, 2]], "there are 1 source sentences and 2 targets"),
        ([[4, 2]], [[5, 11]], r"target\[0, 1\] is 11, but this model's tokens are 0 to 10"),
        ([4, 2], [[5, 2]], r"source has the shape \[2\], but it must be sentences padded with 0"),
        ([[4, 2], [2]], [[5, 2]], "source has rows of different lengths; pad them with 0"),
    ],
)
def test_tokens_that_are_not_sentence_pairs_are_rejected(shallow, source, target, message):
    with pytest.raises(InputError, match=message):
        ablation.ablate_heads(*shallow, source, target)


def test_options_and_metrics_that_do_not_match_the_sentences_are_rejected(shallow, source):
    with pytest.raises(InputError, match="heads_at_once is 0, but it must be at least 1"):
        ablation.ablate_heads(*shallow, source, TARGET, heads_at_once=0)
    for metric, options, message in (
        (LogitDifference(0, 5, 6), {}, "there are 3 sentence pairs, but the metric's fields"),
        (lambda logits: logits, {}, "it must return one number"),
        (METRIC, {"heads_at_once": 0}, "heads_at_once is 0"),
        (METRIC, {"replacement": "noise"}, r"'noise' is unknown; choose one of \['zero'"),
    ):
        with pytest.raises(InputError, match=message):
            target_in = shift_right(TARGET)
            ablation.ablate_heads_for_metric(*shallow, source, target_in, metric, **options)
