# SPDX-License-Identifier: Apache-2.0
"""One training step: by hand, with padding, with micro-batches, packing and R-Drop."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.nn.initializers import constant

from transformer.batch import Batch, target_log_probs
from transformer.config import Config, OptimizerConfig, TrainingConfig, TransformerConfig
from transformer.errors import InputError
from transformer.models import protocol
from transformer.models.transformer import Transformer
from transformer.nn.embedding import ZEROED
from transformer.nn.parameters import declare
from transformer.training import consistency, optimizers
from transformer.training import step as training
from transformer.training.step import TrainState

CONFIG = Config(
    model=TransformerConfig(vocab_size=12, num_layers=1, d_model=16, num_heads=4, d_ff=32),
    optimizer=OptimizerConfig(warmup_steps=20, learning_rate=0.3),
    training=TrainingConfig(label_smoothing=0.1),
)
DRY = CONFIG.replace(model=CONFIG.model.replace(dropout=0.0))


def copy_batch(rows=8, seed=0):
    """Strings to be copied, of 2 to 5 symbols and EOS."""
    rng = np.random.default_rng(seed)
    tokens = np.zeros((rows, 6), np.int32)
    for row in tokens:
        length = rng.integers(2, 6)
        row[:length] = rng.integers(4, 12, length)
        row[length] = 2
    return Batch(jnp.asarray(tokens), jnp.asarray(tokens))


def parts(config):
    """(model, optimizer) of a config."""
    model = protocol.build(config.model)
    return model, optimizers.optimizer(model, config.optimizer, config.training.steps)


def loss_of(config):
    """The loss of a config, of (params, batch) and of what else `step.loss` takes."""
    return functools.partial(consistency.loss_of(config.training), parts(config)[0])


@functools.cache
def evaluation(config):
    """`eval_step` on one device."""
    loss = consistency.loss_of(config.training)
    return jax.jit(functools.partial(training.eval_step, parts(config)[0], loss=loss))


@jax.jit
def fresh(seed):
    """The state before the first step."""
    return TrainState.create(*parts(CONFIG), jax.random.key(seed))


def averaging(config):
    """The same with a running average, for a config that keeps one."""
    init = functools.partial(TrainState.create, *parts(config), with_average=True)
    return jax.jit(init)(jax.random.key(0))


def stepping(config, optimizer=None):
    """`train_step` of state and batch alone."""
    model, of_config = parts(config)
    options = {
        "loss": consistency.loss_of(config.training),
        "micro_batches": config.training.micro_batches or 1,
        "ema_decay": config.training.ema_decay,
    }
    return functools.partial(training.train_step, model, optimizer or of_config, **options)


@functools.cache
def compiled(config):
    """`train_step` on one device."""
    return jax.jit(stepping(config))


@pytest.fixture(scope="module")
def state_0():
    """The state before the first step, with dropout and without."""
    return fresh(0)


def mean(sums):
    """The loss per token."""
    return float(sums.loss / sums.tokens)


@pytest.mark.slow
def test_the_loss_goes_down_on_a_batch_to_be_copied(state_0):
    step, batch, state = compiled(DRY), copy_batch(), state_0
    losses = []
    for _ in range(60):
        state, sums = step(state, batch)
        losses.append(mean(sums))
    assert losses[0] > 2.0
    assert losses[-1] < 0.4 * losses[0]
    assert float(sums.correct / sums.tokens) > 0.9


def test_two_steps_are_adam_on_the_gradient_of_the_mean_loss(state_0):
    """The dropout of a step is drawn from `fold_in(rng, step)`."""
    batch = copy_batch()

    @jax.jit
    def gradient(params, step):
        def loss(params):
            sums = loss_of(CONFIG)(params, batch, jax.random.fold_in(state_0.rng, step))
            return sums.loss / sums.tokens

        return jax.grad(loss)(params)

    def flat(tree):
        return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(tree)])

    state, params = state_0, flat(state_0.params)
    first = second = np.zeros_like(params)
    for number in (1, 2):
        slope = flat(gradient(state.params, number - 1))
        first = 0.9 * first + 0.1 * slope
        second = 0.98 * second + 0.02 * slope**2
        rate = 0.3 * 16**-0.5 * number * 20**-1.5
        step = first / (1 - 0.9**number) / (np.sqrt(second / (1 - 0.98**number)) + 1e-9)
        params = params - rate * step
        state, _ = compiled(CONFIG)(state, batch)
        assert int(state.step) == number
        np.testing.assert_allclose(flat(state.opt_state[0].mu), first, rtol=1e-3, atol=1e-7)
        np.testing.assert_allclose(flat(state.opt_state[0].nu), second, rtol=1e-3, atol=1e-9)
        # Where a gradient is nearly 0, its sign, and with it the update, depends on rounding.
        close = np.abs(flat(state.params) - params) < 1e-3 * rate
        assert close.mean() > 0.98
        params = flat(state.params)


@pytest.mark.parametrize("micro_batches", [None, pytest.param(4, marks=pytest.mark.slow)])
def test_a_step_returns_the_sums_and_the_norm_of_the_gradient_before_the_update(
    state_0, micro_batches
):
    """Of the mean loss; padding is not counted."""
    batch = copy_batch()

    gradient, of_batch = summed(DRY)(state_0.params, batch, state_0.rng)
    squares = (
        float((np.asarray(leaf, np.float64) ** 2).sum()) for leaf in jax.tree.leaves(gradient)
    )
    expected = np.sqrt(sum(squares)) / float(of_batch.tokens)
    config = DRY.replace(training=DRY.training.replace(micro_batches=micro_batches))
    _, sums = compiled(config)(state_0, batch)
    assert float(sums.gradient_norm) == pytest.approx(expected, rel=1e-5)
    evaluated = evaluation(DRY)(state_0.params, batch).replace(gradient_norm=sums.gradient_norm)
    np.testing.assert_allclose(jax.tree.leaves(sums), jax.tree.leaves(evaluated), rtol=1e-5)
    assert float(sums.tokens) == float((batch.target != 0).sum())
    assert float(sums.loss) > 0


def test_rows_of_padding_have_no_weight(state_0):
    """Four rows and four of padding give the update of those four rows given twice."""
    rows = copy_batch(rows=4).source
    padded, twice = jnp.pad(rows, ((0, 4), (0, 0))), jnp.concatenate([rows, rows])
    (ours, sums), (theirs, double) = (
        compiled(DRY)(state_0, Batch(tokens, tokens)) for tokens in (padded, twice)
    )
    half = jax.tree.map(lambda leaf: leaf / 2, double)
    half = half.replace(gradient_norm=double.gradient_norm)  # of the mean loss, which is the same
    np.testing.assert_allclose(jax.tree.leaves(sums), jax.tree.leaves(half), rtol=1e-5)
    for a, b in zip(
        jax.tree.leaves(ours.opt_state[0].mu), jax.tree.leaves(theirs.opt_state[0].mu), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_a_batch_of_padding_alone_leaves_the_parameters_finite(state_0):
    nothing = Batch(*(jnp.zeros((8, 6), jnp.int32) for _ in range(2)))
    state, sums = compiled(DRY)(state_0, nothing)
    assert jax.tree.leaves(sums) == [0, 0, 0, 0, 0]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))


def test_every_step_has_new_dropout_and_the_key_stays_constant(state_0):
    batch = copy_batch()
    later = state_0.replace(step=state_0.step + 1)
    runs = [compiled(CONFIG)(state, batch) for state in (state_0, state_0, later)]
    losses = [mean(sums) for _, sums in runs]
    assert losses[0] == losses[1] != losses[2]
    for state, _ in runs:
        assert (jax.random.key_data(state.rng) == jax.random.key_data(state_0.rng)).all()


def test_evaluation_has_no_dropout(state_0):
    batch = copy_batch()
    sums = [evaluation(config)(state_0.params, batch) for config in (CONFIG, DRY)]
    np.testing.assert_allclose(jax.tree.leaves(sums[0]), jax.tree.leaves(sums[1]), rtol=1e-5)


def test_the_loss_has_the_smoothing_and_the_mass_of_the_config(state_0):
    batch = copy_batch()
    sums = {}
    for smoothing, mass in ((0.0, "uniform"), (0.2, "uniform"), (0.2, "uniform_others")):
        options = TrainingConfig(label_smoothing=smoothing, label_smoothing_mass=mass)
        config = DRY.replace(training=options)
        sums[smoothing, mass] = evaluation(config)(state_0.params, batch)
    plain, uniform, others = sums.values()
    assert float(plain.loss) == float(plain.nll) == pytest.approx(float(uniform.nll), rel=1e-5)
    assert len({round(float(each.loss), 4) for each in sums.values()}) == 3
    # Both spread 0.2; "uniform" spreads a twelfth of it on the gold token.
    smooth = float(others.loss - plain.loss) * 11 / 12
    assert float(uniform.loss - plain.loss) == pytest.approx(smooth, rel=1e-3, abs=1e-3)


def test_scores_are_log_probabilities_of_target_tokens_and_zero_where_padded(state_0):
    batch = copy_batch()
    model, _ = parts(DRY)
    scores = jax.jit(functools.partial(target_log_probs, model))(state_0.params, batch)
    assert scores.shape == batch.target.shape
    np.testing.assert_array_equal(scores == 0, batch.target == 0)
    sums = evaluation(DRY)(state_0.params, batch)
    assert float(scores.sum()) == pytest.approx(-float(sums.nll), rel=1e-5)


def test_the_state_before_the_first_step_is_a_function_of_the_seed():
    states = fresh(0), fresh(1)
    assert states[0].average is None
    tables = [np.asarray(state.params["embedding"]["table"]) for state in states]
    assert int(states[0].step) == 0
    assert (tables[0] != tables[1]).all()


# Micro-batches.


RECORDER = optax.GradientTransformation(
    lambda params: params,
    lambda gradient, state, params: (jax.tree.map(jnp.zeros_like, params), gradient),
)
"""An optimizer whose state is the last gradient, and which changes nothing."""


@functools.cache
def summed(config):
    """The gradient of the summed loss and the sums: (params, batch, rng) -> both."""

    @jax.jit
    def gradient_and_sums(params, batch, rng):
        state, sums = stepping(config, RECORDER)(TrainState(0, params, params, rng), batch)
        return jax.tree.map(lambda leaf: leaf * sums.tokens, state.opt_state), sums

    return gradient_and_sums


def uneven_batch():
    """Eight rows: one empty, the others of 3 to 6 tokens."""
    batch = copy_batch()
    tokens = batch.target.at[3].set(0)
    lengths = (tokens != 0).sum(-1)
    assert len(set(lengths.tolist())) > 3
    return Batch(tokens, tokens)


def test_micro_batches_give_the_gradient_of_one_pass(state_0):
    """Also with unequal numbers of tokens, where a mean of means would be wrong."""
    batch, micro_batches = uneven_batch(), 4
    apart = DRY.replace(training=DRY.training.replace(micro_batches=micro_batches))
    whole, sums = summed(DRY)(state_0.params, batch, state_0.rng)
    added, sums_apart = summed(apart)(state_0.params, batch, state_0.rng)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(added), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert float(sums.tokens) == float(sums_apart.tokens)
    assert float(sums.loss) == pytest.approx(float(sums_apart.loss), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("generator", ["threefry", "hash"])
def test_micro_batches_have_the_dropout_of_one_pass(state_0, generator):
    """At every site of the model, on rows with unequal numbers of tokens."""
    batch, micro_batches = uneven_batch(), 4
    rates = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.2}
    wet = CONFIG.replace(model=CONFIG.model.replace(dropout_generator=generator, **rates))
    apart = wet.replace(training=wet.training.replace(micro_batches=micro_batches))
    whole, sums = summed(wet)(state_0.params, batch, state_0.rng)
    added, sums_apart = summed(apart)(state_0.params, batch, state_0.rng)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(added), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert float(sums.loss) == pytest.approx(float(sums_apart.loss), rel=1e-5)
    dry, _ = summed(DRY)(state_0.params, batch, state_0.rng)
    assert abs(float(dry["embedding"]["table"].sum() - whole["embedding"]["table"].sum())) > 1e-3


@pytest.mark.slow
def test_equal_examples_have_different_dropout(state_0):
    """Also in different micro-batches."""
    one = copy_batch(rows=1)
    twice = jax.tree.map(lambda rows: jnp.concatenate([rows, rows]), one)

    @jax.jit
    def sums(batch, example_ids):
        return loss_of(CONFIG)(state_0.params, batch, state_0.rng, example_ids)

    def loss(batch, example_ids):
        return float(sums(batch, jnp.asarray(example_ids)).loss)

    first, second = loss(one, [0]), loss(one, [1])
    assert first != second
    assert loss(twice, [0, 1]) == pytest.approx(first + second, rel=1e-5)


# Packed rows.


def packed(rows):
    """Several strings per row, as one side of a batch: ids and segments."""
    ids, segments = np.zeros((len(rows), 16), np.int32), np.zeros((len(rows), 16), np.int32)
    for row, strings in enumerate(rows):
        begin = 0
        for number, string in enumerate(strings, start=1):
            ids[row, begin : begin + len(string)] = string
            segments[row, begin : begin + len(string)] = number
            begin += len(string)
    return ids, segments


@pytest.mark.slow
def test_packed_rows_have_the_loss_and_the_gradient_of_one_sentence_per_row(state_0):
    pairs = [
        ([5, 6, 2], [7, 8, 9, 10, 2]),
        ([4, 9, 9, 11, 10, 2], [4, 2]),
        ([7, 2], [6, 6, 6, 2]),
        ([8, 8, 8, 4, 2], [5, 11, 2]),
    ]
    apart = Batch(*(packed([[pair[side]] for pair in pairs])[0] for side in (0, 1)))
    rows = [[pairs[0], pairs[1], pairs[2]], [pairs[3]]]
    (source, source_segments), (target, target_segments) = (
        packed([[pair[side] for pair in row] for row in rows]) for side in (0, 1)
    )
    together = Batch(source, target, source_segments, target_segments)
    results = []
    for batch in (apart, together):
        gradient, sums = summed(DRY)(state_0.params, batch, jax.random.key(0))
        results.append([*jax.tree.leaves(gradient), sums.loss, sums.nll, sums.correct, sums.tokens])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def test_sentences_packed_into_one_row_do_not_attend_to_each_other(state_0):
    """Another second sentence changes nothing in the first, and vice versa."""
    model, _ = parts(DRY)
    variables = {"params": state_0.params}
    predict = jax.jit(lambda batch: model.apply(variables, **batch.inputs(1)))

    def logits(first, second):
        ids, segments = packed([[first, second]])
        return np.asarray(predict(Batch(ids, ids, segments, segments)))[0]

    before = logits([5, 6, 2], [7, 8, 9, 2])
    np.testing.assert_array_equal(before[:3], logits([5, 6, 2], [10, 4, 4, 2])[:3])
    np.testing.assert_array_equal(before[3:7], logits([9, 4, 2], [7, 8, 9, 2])[3:7])
    assert (before[3:7] != logits([5, 6, 2], [10, 4, 4, 2])[3:7]).any()


# R-Drop.


@pytest.mark.slow
def test_r_drop_is_the_mean_of_two_passes_and_their_divergence(state_0):
    batch = copy_batch()
    model, _ = parts(CONFIG)
    alpha = 3.0
    key = jax.random.key(5)

    @functools.partial(jax.jit, static_argnums=0)
    def sums_of(alpha, key):
        config = CONFIG.replace(training=CONFIG.training.replace(r_drop=alpha))
        return loss_of(config)(state_0.params, batch, key)

    @jax.jit
    def logits_of(key):
        return model.apply({"params": state_0.params}, **batch.inputs(1, key))

    sums = sums_of(alpha, key)
    first, second = (logits_of(each) for each in jax.random.split(key))
    ones = [float(sums_of(0.0, each).loss) for each in jax.random.split(key)]
    p, q = (np.asarray(jax.nn.log_softmax(x), np.float64) for x in (first, second))
    kl = lambda a, b: (np.exp(a) * (a - b)).sum(-1)[np.asarray(batch.target) != 0].sum()  # noqa: E731
    expected = sum(ones) / 2 + alpha * (kl(p, q) + kl(q, p)) / 4
    assert ones[0] != ones[1]
    assert float(sums.loss) == pytest.approx(expected, rel=1e-5)
    assert float(sums.tokens) == float((batch.target != 0).sum())
    dry = float(sums_of(alpha, None).loss)
    assert dry == pytest.approx(float(sums_of(0.0, None).loss))


# SimCut.


def test_cut_tokens_are_of_the_given_share_and_never_special():
    tokens = jnp.tile(jnp.array([5, 6, 1, 7, 8, 2, 0, 9]), (4000, 1))
    cut = np.asarray(consistency.cut_off(tokens, jax.random.key(3), None, 0.3))
    assert ((cut == tokens) | (cut == ZEROED)).all()
    assert (cut[:, [2, 5, 6]] != ZEROED).all()
    share = (cut[:, [0, 1, 3, 4, 7]] == ZEROED).mean(0)
    np.testing.assert_allclose(share, 0.3, atol=5 * (0.3 * 0.7 / 4000) ** 0.5)


def test_what_is_cut_depends_on_the_example_and_not_on_its_place_in_the_batch():
    tokens = jnp.full((6, 20), 7)
    ids = jnp.array([4, 0, 5, 2, 1, 3])
    cut, moved = (
        np.asarray(consistency.cut_off(tokens, jax.random.key(3), each, 0.5))
        for each in (None, ids)
    )
    np.testing.assert_array_equal(moved, cut[ids])
    assert len({row.tobytes() for row in cut}) == 6


def test_the_vector_of_a_cut_token_is_zero(state_0):
    model, _ = parts(CONFIG)
    tokens = jnp.array([[5, ZEROED, 6]])
    vectors = model.bind({"params": state_0.params}).embedding.tokens(tokens)
    assert np.asarray(vectors[0]).any(-1).tolist() == [True, False, True]


@pytest.mark.slow
def test_simcut_is_the_loss_of_one_pass_and_its_divergence_from_a_cut_one(state_0):
    batch = copy_batch()
    model, _ = parts(CONFIG)
    key = jax.random.key(5)
    config = CONFIG.replace(training=CONFIG.training.replace(cutoff=0.3, cutoff_weight=2.0))
    sums = loss_of(config)(state_0.params, batch, key)
    first_key, second_key = jax.random.split(key)
    plain = loss_of(CONFIG)(state_0.params, batch, first_key)
    second_key, *cut_keys = jax.random.split(second_key, 3)
    inputs = batch.inputs(1, second_key)
    for side, cut_key in zip(("source", "target_in"), cut_keys, strict=True):
        inputs[side] = consistency.cut_off(inputs[side], cut_key, None, 0.3)
        assert (inputs[side] == ZEROED).any()
    variables = {"params": state_0.params}
    whole = model.apply(variables, **batch.inputs(1, first_key))
    cut = model.apply(variables, **inputs)
    p, q = (np.asarray(jax.nn.log_softmax(x), np.float64) for x in (whole, cut))
    kl = (np.exp(p) * (p - q)).sum(-1)[np.asarray(batch.target) != 0].sum()
    assert kl > 0.1
    assert float(sums.loss) == pytest.approx(float(plain.loss) + 2 * kl, rel=1e-5)
    assert float(sums.nll) == pytest.approx(float(plain.nll))


def test_r_drop_and_simcut_exclude_each_other():
    with pytest.raises(InputError, match="a step makes two passes; set one of them to 0"):
        CONFIG.replace(training=CONFIG.training.replace(r_drop=1.0, cutoff=0.1))


# Running averages.


def test_the_running_average_by_hand():
    """Decay 0.9, but at most (1 + t) / (10 + t): 2/11 after the first update, 3/12 after it."""
    state = TrainState(
        step=jnp.asarray(1),
        params={"a": jnp.array([4.0])},
        opt_state=(),
        rng=jax.random.key(0),
        average={"a": jnp.array([1.0])},
    )
    first = training.next_average(state, 0.9)
    assert float(first["a"][0]) == pytest.approx(2 / 11 * 1 + 9 / 11 * 4)
    later = training.next_average(state.replace(step=jnp.asarray(10_000)), 0.9)
    assert float(later["a"][0]) == pytest.approx(0.9 * 1 + 0.1 * 4)
    assert training.next_average(state.replace(average=None), 0.9) is None


@pytest.mark.slow
def test_a_step_averages_the_parameters_after_its_update():
    """The decay of the first update is 2/11."""
    config = CONFIG.replace(training=CONFIG.training.replace(ema_decay=0.9))
    before = averaging(config)
    after, _ = compiled(config)(before, copy_batch())
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), before.params, after.params)
    assert max(jax.tree.leaves(moved)) > 1e-4, "otherwise this test shows nothing"
    expected = jax.tree.map(lambda a, p: (2 * a + 9 * p) / 11, before.average, after.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-7), after.average, expected)


@pytest.mark.slow
def test_the_weights_are_the_average_if_one_is_kept():
    optimizer = OptimizerConfig(
        name="schedule_free", schedule="constant", learning_rate=0.01, warmup_steps=1
    )
    config = CONFIG.replace(optimizer=optimizer)
    state = averaging(config)
    for seed in range(3):
        state, _ = compiled(config)(state, copy_batch(seed=seed))
    assert state.weights is state.average
    differ = jax.tree.map(lambda a, b: bool((a != b).any()), state.params, state.average)
    assert any(jax.tree.leaves(differ))
    assert fresh(0).weights["embedding"] is not None


# Steps whose loss or gradient is not finite.


@pytest.fixture(scope="module")
def nan_at_position_5():
    """A step, a state whose position embedding 5 is NaN, and batches of five and six positions."""
    config = DRY.replace(
        model=DRY.model.replace(positions="learned", max_positions=200),
        training=DRY.training.replace(ema_decay=0.9),
    )
    state = averaging(config)

    params = jax.tree.map(
        lambda leaf: leaf.at[5].set(jnp.nan) if leaf.shape == (200, 16) else leaf, state.params
    )
    assert any(jnp.isnan(leaf).any() for leaf in jax.tree.leaves(params))
    bad = copy_batch()
    good = Batch(bad.source[:, :5], bad.target[:, :5])
    return compiled(config), state.replace(params=params), good, bad


def same(one, other):
    """Whether two trees are the same, NaN where NaN is."""
    leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b, equal_nan=True) for a, b in leaves)


def test_a_skipped_step_changes_nothing_but_the_step_number(nan_at_position_5):
    step, state, _, bad = nan_at_position_5
    after, sums = step(state, bad)
    assert int(after.step) == 1
    for kept in ("params", "opt_state", "average"):
        assert same(getattr(after, kept), getattr(state, kept)), kept
    assert [float(value) for value in (sums.loss, sums.nll, sums.correct, sums.tokens)] == [0] * 4


@pytest.mark.slow
def test_the_steps_before_and_after_a_skipped_step_are_those_without_it(nan_at_position_5):
    """The optimizer and its schedule count updates; a skipped step is none."""
    step, state, good, bad = nan_at_position_5
    after, _ = step(state, bad)
    one, sums = step(after, good)
    other, _ = step(state.replace(step=jnp.asarray(1, jnp.int32)), good)
    assert float(sums.tokens) > 0
    assert same(one.params, other.params) and same(one.opt_state, other.opt_state)
    assert not same(one.params, state.params)


@pytest.mark.slow
def test_an_infinite_gradient_of_a_finite_loss_is_skipped():
    """The slope of a square root at 0 is infinite."""

    class Steep(Transformer):
        def setup(self):
            super().setup()
            self.zero = self.param("zero", nn.initializers.zeros, ())

        def __call__(self, *tokens, **options):
            return super().__call__(*tokens, **options) + jnp.sqrt(self.zero)

    steep, (_, optimizer) = Steep(DRY.model), parts(DRY)
    state = jax.jit(functools.partial(TrainState.create, steep, optimizer))(jax.random.key(0))
    step = jax.jit(training.train_step, static_argnums=(0, 1))
    after, sums = step(steep, optimizer, state, copy_batch())
    loss = jax.jit(training.eval_step, static_argnums=0)(steep, state.params, copy_batch()).loss
    assert np.isfinite(loss) and float(sums.tokens) == 0
    assert same(after.params, state.params)


# Losses that modules sow.


class Sowing(Transformer):
    """Sows the square of a parameter, 3, and half of it."""

    def setup(self):
        super().setup()
        self.weight = declare(self, "weight", "scale", ("expert",), constant(3.0), (1,))

    def __call__(self, *tokens, **options):
        self.sow("losses", "square", self.weight[0] ** 2)
        self.sow("losses", "half", self.weight[0] / 2)
        return super().__call__(*tokens, **options)


@pytest.fixture(scope="module")
def sowing_state():
    """The state of a model that sows, before the first step."""
    create = functools.partial(TrainState.create, Sowing(DRY.model), RECORDER)
    return jax.jit(create)(jax.random.key(0))


@pytest.mark.parametrize("micro_batches", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_loss_that_a_module_sows_is_in_the_mean_loss_once(sowing_state, micro_batches):
    """9 + 1.5, whose derivative at 3 is 6.5; with rows of padding, and not in the NLL."""
    batch, sowing, state = uneven_batch(), Sowing(DRY.model), sowing_state
    step = jax.jit(training.train_step, static_argnums=(0, 1), static_argnames="micro_batches")
    after, sums = step(sowing, RECORDER, state, batch, micro_batches=micro_batches)
    params = {name: leaf for name, leaf in state.params.items() if name != "weight"}
    without = evaluation(DRY)(params, batch)
    assert mean(sums) == pytest.approx(mean(without) + 10.5, rel=1e-5)
    assert float(sums.nll) == pytest.approx(float(without.nll), rel=1e-5)
    assert after.opt_state["weight"][0] == pytest.approx(6.5, rel=1e-5)
    evaluated = jax.jit(training.eval_step, static_argnums=0)(sowing, state.params, batch)
    assert mean(evaluated) == pytest.approx(mean(sums), rel=1e-5)


@pytest.mark.parametrize("fields", [{"r_drop": 1.0}, {"cutoff": 0.3, "cutoff_weight": 0.0}])
def test_a_loss_that_is_sown_in_two_passes_is_in_the_mean_loss_once(sowing_state, fields):
    """Without dropout, which would only take longer to compile."""
    loss = consistency.loss_of(CONFIG.training.replace(**fields))
    batch, key, state = copy_batch(), jax.random.key(1), sowing_state
    params = {name: leaf for name, leaf in state.params.items() if name != "weight"}
    sown, plain = (
        mean(jax.jit(functools.partial(loss, model))(tree, batch, key))
        for model, tree in ((Sowing(DRY.model), state.params), (parts(DRY)[0], params))
    )
    assert sown == pytest.approx(plain + 10.5, rel=1e-5)
