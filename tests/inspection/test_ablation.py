# SPDX-License-Identifier: Apache-2.0
"""Head ablation, and the gradients of gates."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from transformer.batch import Batch
from transformer.config import TransformerConfig
from transformer.errors import InputError
from transformer.inspection import ablation
from transformer.inspection.interventions import no_interventions
from transformer.inspection.readout import LogitDifference
from transformer.inspection.trace import run
from transformer.models import protocol
from transformer.models.protocol import KINDS
from transformer.nn.positions import shift_right
from transformer.training.step import loss

TARGET = jnp.array([[5, 9, 4, 2], [10, 7, 2, 0], [6, 2, 0, 0]])
TOKENS = 9


@pytest.fixture(scope="module")
def result(shallow, source):
    """Every head removed."""
    return ablation.ablate_heads(*shallow, source, TARGET)


@pytest.fixture(scope="module")
def nll(shallow, source):
    """Compiled: gates -> sum of the negative log-likelihood of the sentences."""
    return jax.jit(lambda gates: ablation.nll_with_gates(*shallow, source, TARGET, gates))


def plain_nll(model, params, source):
    """Sum of the negative log-likelihood of a model without gates."""
    return loss(model, params, Batch(source, TARGET), smoothing=0.0)


def changed(params, side, layer, attention, head, factor):
    """The parameters with one head's output kernel multiplied by a factor."""
    params = jax.tree.map(lambda leaf: leaf, params)
    kernels = params[side][layer][attention]
    kernels["output"] = kernels["output"].at[head].multiply(factor)
    return params


# Head ablation.


def test_the_baseline_is_the_loss_per_token_of_the_unchanged_model(result, shallow, source):
    sums = jax.jit(lambda: plain_nll(*shallow, source))()
    assert float(sums.tokens) == TOKENS
    assert float(result.loss) == pytest.approx(float(sums.nll) / TOKENS, rel=1e-5)


def test_padding_is_what_the_config_says():
    """With other special ids: the padding of the second sentence does not count, token 0 does."""
    ids = {"pad_id": 10, "eos_id": 0, "bos_id": 1, "unk_id": 2}
    config = TransformerConfig(vocab_size=11, num_layers=1, d_model=8, d_ff=8, num_heads=2, **ids)
    model = protocol.build(config)
    params = oracle.random_params(model, seed=1)
    source, target = jnp.array([[4, 7, 0], [5, 0, 10]]), jnp.array([[4, 5, 0], [6, 0, 10]])
    targets_in = shift_right(target, bos_id=1)
    logits = [run(model, params, *pair)[0] for pair in zip(source, targets_in, strict=True)]
    log_probs = jax.nn.log_softmax(jnp.stack(logits))
    tokens = [(0, 0, 4), (0, 1, 5), (0, 2, 0), (1, 0, 6), (1, 1, 0)]
    expected = -sum(float(log_probs[token]) for token in tokens)
    nll = ablation.nll_with_gates(model, params, source, target, ablation.open_gates(model))
    assert float(nll) == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_gates_of_one_give_bitwise_the_baseline(shallow, source):
    """Without jit, since XLA may order the sums of two programs differently."""
    gates = ablation.open_gates(shallow[0])
    gated = ablation.nll_with_gates(*shallow, source, TARGET, gates)
    assert gated == plain_nll(*shallow, source).nll


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


@pytest.mark.slow
def test_removing_a_head_without_output_changes_nothing_for_any_heads_at_once(shallow, source):
    model, params = shallow
    emptied = changed(params, "decoder", "layer_1", "cross_attention", head=1, factor=0.0)
    increase = ablation.ablate_heads(model, emptied, source, TARGET, heads_at_once=3).increase
    assert abs(float(increase.cross[1, 1])) < 1e-6
    assert np.abs(np.delete(increase.cross, 3)).min() > 1e-4
    assert np.abs(increase.encoder).min() > 1e-4


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


def test_zero_heads_at_once_are_rejected(shallow, source):
    with pytest.raises(InputError, match="heads_at_once is 0, but it must be at least 1"):
        ablation.ablate_heads(*shallow, source, TARGET, heads_at_once=0)


# A metric of each sentence pair.


METRIC = LogitDifference(jnp.array([0, 1, 2]), jnp.array([5, 7, 2]), jnp.array([6, 6, 6]))


@pytest.mark.slow
def test_a_metric_is_computed_for_each_sentence_pair_without_each_head(shallow, source):
    model, params = shallow
    target_in = shift_right(TARGET)
    ablated = ablation.ablate_heads_for_metric(model, params, source, target_in, METRIC)
    ones = ablation.open_gates(model)
    for row in range(len(source)):
        nothing = no_interventions(model, source.shape[1], TARGET.shape[1])
        metric = jax.tree.map(lambda leaf, row=row: leaf[row], METRIC)
        plain, _ = run(model, params, source[row], target_in[row])
        assert float(ablated.value[row]) == pytest.approx(float(metric(plain)), abs=1e-5)
        closed = ones.replace(cross=ones.cross.at[1, 0].set(0.0))
        without, _ = run(
            model,
            params,
            source[row],
            target_in[row],
            interventions=nothing.with_gates(closed),
        )
        assert float(ablated.without.cross[row, 1, 0]) == pytest.approx(
            float(metric(without)), abs=1e-5
        )
    expected = np.mean(ablated.value[:, None, None] - ablated.without.encoder, axis=0)
    np.testing.assert_allclose(ablated.damage.encoder, expected, rtol=1e-5)


def test_a_metric_does_not_depend_on_heads_at_once(shallow, source):
    arguments = (*shallow, source, shift_right(TARGET), METRIC)
    together = ablation.ablate_heads_for_metric(*arguments)
    apart = ablation.ablate_heads_for_metric(*arguments, heads_at_once=1)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), together, apart)


def test_a_metric_that_does_not_match_the_sentences_is_rejected(shallow, source):
    target_in = shift_right(TARGET)
    with pytest.raises(InputError, match="there are 3 sentence pairs, but the metric's fields"):
        one = LogitDifference(0, 5, 6)
        ablation.ablate_heads_for_metric(*shallow, source, target_in, one)
    with pytest.raises(InputError, match="it must return one number"):
        ablation.ablate_heads_for_metric(*shallow, source, target_in, lambda logits: logits)
    with pytest.raises(InputError, match="heads_at_once is 0"):
        ablation.ablate_heads_for_metric(*shallow, source, target_in, METRIC, heads_at_once=0)


# Means and other sentences instead of zeros.


def replaced(model, source, **options):
    """The ablation of the metric of each sentence pair."""
    target_in = shift_right(TARGET)
    return ablation.ablate_heads_for_metric(*model, source, target_in, METRIC, **options)


def test_resampling_from_an_equal_sentence_changes_nothing(shallow, source):
    same = jnp.broadcast_to(source[0], (2, 5))
    target_in = jnp.broadcast_to(shift_right(TARGET)[0], (2, 4))
    metric = jax.tree.map(lambda leaf: leaf[:2] * 0 + leaf[:1], METRIC)
    ablated = ablation.ablate_heads_for_metric(
        *shallow, same, target_in, metric, replacement="resample"
    )
    for kind in KINDS:
        expected = jnp.broadcast_to(
            ablated.value[:, None, None], getattr(ablated.without, kind).shape
        )
        np.testing.assert_allclose(getattr(ablated.without, kind), expected, atol=1e-5)


@pytest.mark.parametrize("replacement", ["mean", "resample"])
def test_a_removed_head_puts_out_the_mean_or_the_next_sentences_output(
    shallow, source, replacement
):
    ablated = replaced(shallow, source, replacement=replacement)
    model, params = shallow
    target_in = shift_right(TARGET)
    outputs = [
        run(*shallow, source[row], target_in[row], capture="full")[1].encoder.self_attention.z
        for row in range(3)
    ]
    real = [np.asarray(z)[:, :, np.asarray(source[row]) != 0] for row, z in enumerate(outputs)]
    mean = np.concatenate(real, 2).mean(2, keepdims=True)  # [L, N, 1, Hv]
    value = outputs[1] if replacement == "resample" else jnp.broadcast_to(mean, outputs[0].shape)
    mask = jnp.zeros((1, 3, 5, 1), bool).at[0, 2].set(True)
    changed = no_interventions(model, 5, 4).patch_heads("encoder", "z", mask, value)
    logits, _ = run(model, params, source[0], target_in[0], interventions=changed)
    expected = float(logits[0, 5] - logits[0, 6])
    assert float(ablated.without.encoder[0, 0, 2]) == pytest.approx(expected, abs=1e-4)
    assert abs(float(ablated.value[0]) - expected) > 1e-3


def test_an_unknown_replacement_is_rejected(shallow, source):
    with pytest.raises(InputError, match=r"replacement 'noise' is unknown; choose one of \['zero'"):
        replaced(shallow, source, replacement="noise")
