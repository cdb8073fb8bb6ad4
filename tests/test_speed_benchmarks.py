# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of speed count what they should, measure in turns, and hold loud samples against
nobody.
"""

import dataclasses
import importlib.util
import itertools
import json
import os
import re
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from apps import run

from experiments import costs
from experiments.benchmarks import load, matmul_rate, reporting, start, work
from experiments.benchmarks.alternating import (
    PROGRAMS,
    Effort,
    Round,
    Sample,
    Spread,
    Subject,
    alternate,
    figures,
)
from experiments.benchmarks.programs import own
from experiments.benchmarks.settings import config_of, parse_own, parse_variant
from experiments.benchmarks.work import WORKS, Work
from transformer.config import TransformerConfig
from transformer.errors import InputError

TINY = Work(layers=1, d_model=16, heads=2, d_ff=32, vocabulary=64, rows=4, source=6, target=6)


@pytest.mark.parametrize(("name", "gflop"), [("W1", 70.6), ("W2", 374.9)])
def test_a_step_has_the_operations_that_its_matrix_products_have(name, gflop):
    one = WORKS[name]
    model = config_of(one).model
    step = costs.step_flops(model, one.rows, one.source)
    assert round(step / 1e9, 1) == gflop
    counts = matmul_rate.of_step(model, one.rows, one.source, one.target)
    assert sum(product.flops * times for product, times in counts.items()) == step


def test_the_products_of_uneven_models_and_lengths_are_counted_too():
    model = TransformerConfig(
        vocab_size=50,
        encoder_layers=2,
        decoder_layers=3,
        d_model=8,
        d_ff=12,
        encoder_heads=2,
        decoder_heads=3,
        d_k=5,
        d_v=7,
    )
    counts = matmul_rate.of_forward(model, 4, source=6, target=9)
    total = sum(product.flops * times for product, times in counts.items())
    assert total == 4 * costs.forward_flops(model, 6, 9)


def test_a_search_of_one_step_is_a_forward_pass_and_each_beam_is_one_more_query():
    model = config_of(TINY).model
    assert matmul_rate.of_search(model, 4, 6, 1, beams=1) == matmul_rate.of_forward(model, 4, 6, 1)
    once, twice = (matmul_rate.of_search(model, 4, 6, steps, beams=3) for steps in (1, 2))
    logits = matmul_rate.Product(m=4 * 3, k=model.d_model, n=model.vocab_size)
    assert (once[logits], twice[logits]) == (1, 2)
    over_the_keys = matmul_rate.Product(m=3, k=model.head_widths("decoder")[0], n=3, batch=4 * 2)
    assert (once[over_the_keys], twice[over_the_keys]) == (1, 2)


def test_a_product_has_two_gradients_with_as_many_operations():
    product = matmul_rate.Product(m=2, k=3, n=5, batch=7)
    itself, left, right = product.with_gradients()
    assert itself == product
    # [m, n] x [n, k] gives the left operand's, [k, m] x [m, n] the right one's.
    assert left == matmul_rate.Product(m=2, k=5, n=3, batch=7)
    assert right == matmul_rate.Product(m=3, k=2, n=5, batch=7)
    assert {one.flops for one in (itself, left, right)} == {2 * 7 * 2 * 3 * 5}


def test_all_forms_of_a_product_are_the_same_product():
    left, right = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    for transposed in matmul_rate.FORMS:
        operands = (
            jnp.array(one.T if lies else one)
            for one, lies in zip((left, right), transposed, strict=True)
        )
        np.testing.assert_array_equal(matmul_rate._form(*operands, *transposed), left @ right)


def test_products_that_are_timed_are_computed_whole_though_one_number_of_each_is_used():
    left, right = jnp.ones((2, 8, 4)), jnp.ones((2, 4, 6))
    repeated = matmul_rate._repeated(False, False).lower(left, right, 3).compile()
    assert re.search(r"= f32\[2,8,6\]\S* dot\(", repeated.as_text())
    np.testing.assert_array_equal(repeated(left, right, 3), left)


def test_each_product_counts_in_its_fastest_form():
    timed = matmul_rate.Timed.__new__(matmul_rate.Timed)
    one, two = matmul_rate.Product(1, 1, 1), matmul_rate.Product(2, 2, 2)
    timed._counts = {one: 3, two: 1}
    timed._timers = {one: [lambda: 0.2, lambda: 0.1], two: [lambda: 1.0, lambda: 2.0]}
    assert timed() == pytest.approx(3 * 0.1 + 1.0)


STATISTICS = """\
cpu  900 90 90 9000 90 9 9 9 5 5
cpu0 100 10 20 1000 50 1 2 3 4 4
cpu1 200 0 0 2000 0 0 0 0 0 0
cpu11 7 0 0 0 0 0 0 0 0 0
intr 5 0 1
"""


def test_busy_time_is_all_but_idle_and_waiting_of_the_cores_that_may_be_used():
    # 100 + 10 + 20 + 1 + 2 + 3; guests are within the first.
    assert load.busy_seconds(STATISTICS, {0}, 100) == pytest.approx(1.36)
    assert load.busy_seconds(STATISTICS, {0, 1}, 100) == pytest.approx(3.36)


@pytest.mark.skipif(not load._STATISTICS.exists(), reason="no /proc")
def test_the_load_of_another_process_is_seen_and_ones_own_is_not(monkeypatch):
    counts = iter([(10.0, 100.0, 50.0), (12.0, 103.0, 52.0)])
    monkeypatch.setattr(load, "_counts", lambda: next(counts))
    with load.OtherLoad() as other:
        pass
    # 3 busy seconds, 2 of them one's own, in 2 seconds.
    assert other.cores == 0.5
    monkeypatch.undo()
    assert all(value > 0 for value in load._counts())


class Fake:
    """A program that takes its samples from a list, writes down when it is asked, and takes time on
    a clock of the test's.
    """

    def __init__(self, name, seconds, loads, asked, clock):
        self.name, self.asked, self.clock = name, asked, clock
        self.seconds, self.loads = itertools.cycle(seconds), iter(loads)

    def sample(self):
        self.asked.append(self.name)
        self.clock.now += 1.0
        return Sample(next(self.seconds), next(self.loads))


class Clock:
    """Goes on when a fake program measures."""

    now = 0.0

    def __call__(self):
        return self.now


def measured(effort, own_loads, other_loads, own_seconds=(1.0,), other_seconds=(2.0,)):
    asked, clock = [], Clock()
    rounds = alternate(
        Fake("own", own_seconds, own_loads, asked, clock),
        Fake("other", other_seconds, other_loads, asked, clock),
        effort,
        clock,
        lambda seconds: None,
    )
    return rounds, asked


def test_both_are_measured_in_turns_and_either_is_first_as_often():
    rounds, asked = measured(Effort(rounds=4), [0.0] * 4, [0.0] * 4)
    assert len(rounds) == 4
    assert asked == ["own", "other", "other", "own"] * 2


def test_loud_rounds_are_measured_again_and_dropped():
    effort = Effort(rounds=2, quiet=0.1, budget=100)
    rounds, asked = measured(
        effort, [0.0, 0.0, 0.5, 0.1], [0.9, 0.0, 0.0, 0.1], own_seconds=(1, 2, 3, 4)
    )
    assert [one.own.seconds for one in rounds] == [2, 4]
    assert len(asked) == 8


def test_when_the_time_is_spent_the_least_loud_rounds_are_taken_and_counted_as_loud():
    effort = Effort(rounds=3, quiet=0.1, budget=9)  # two seconds a round: five rounds
    own_loads, other_loads = [0.9, 0.0, 0.3, 0.8, 0.2], [0.0, 0.0, 0.4, 0.0, 0.0]
    rounds, asked = measured(effort, own_loads, other_loads)
    assert len(asked) == 10
    assert [one.load for one in rounds] == [0.0, 0.4, 0.2]
    assert figures(rounds, effort)["loud_rounds"] == 2
    assert figures(rounds, effort)["other_load"] == 0.2


def test_as_many_rounds_as_asked_for_are_measured_however_little_time_there_is():
    rounds, _ = measured(Effort(rounds=3, budget=0), [2.0] * 3, [2.0] * 3)
    assert len(rounds) == 3


def test_where_the_load_cannot_be_told_every_sample_counts():
    rounds, asked = measured(Effort(rounds=2), [None] * 2, [None] * 2)
    assert len(asked) == 4
    assert figures(rounds, Effort())["other_load"] == 0.0


def test_the_ratio_is_the_median_of_the_rounds_and_not_that_of_the_medians():
    times = [(1.0, 2.0), (2.0, 8.0), (4.0, 12.0)]
    rounds = [Round(Sample(own, 0.0, 10), Sample(other, 0.0, 20)) for own, other in times]
    found = figures(rounds, Effort())
    assert found["ratio"] == 3.0  # of 2, 4, 3; the medians have 8 / 2
    assert found["ratio_quartiles"] == [2.5, 3.5]
    assert (found["own_ms"], found["ms"]) == (2000.0, 8000.0)
    assert (found["own_peak_mib"], found["peak_mib"]) == (10, 20)
    assert found["loud_rounds"] == 0


def test_quartiles_lie_between_figures_in_proportion():
    assert Spread.of([4.0, 1.0, 3.0, 2.0]) == Spread(2.5, 1.75, 3.25)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0)


def test_a_variant_is_a_name_and_config_fields():
    name, fields = parse_variant("narrow: model.d_ff=128,model.attention_kernel=fused")
    assert name == "narrow"
    assert fields == {"model.d_ff": 128, "model.attention_kernel": "fused"}
    changed = config_of(WORKS["W1"], {"model.d_ff": 128, "optimizer.name": "adamw"})
    assert (changed.model.d_ff, changed.optimizer.name) == (128, "adamw")
    assert changed.model.d_model == 256
    name, fields = parse_variant("short:data.bucket_lengths=(8, 16),data.max_length=16")
    assert fields == {"data.bucket_lengths": (8, 16), "data.max_length": 16}


@pytest.mark.parametrize("text", ["narrow", ":model.d_ff=1", "narrow:", "narrow:model.d_ff"])
def test_a_variant_of_another_form_is_refused(text):
    with pytest.raises(InputError, match="write NAME:FIELD=VALUE"):
        parse_variant(text)


def test_this_program_is_as_users_have_it_unless_fields_are_given():
    assert parse_own("") == {}
    fields = parse_own("model.dropout=0.2, model.attention_kernel=fused")
    assert fields == {"model.dropout": 0.2, "model.attention_kernel": "fused"}


def test_a_variant_of_a_field_that_there_is_not_is_refused():
    with pytest.raises(InputError, match="did you mean 'model.dropout'"):
        config_of(WORKS["W1"], {"model.dropuot": 0.1})


def test_the_sentences_hold_no_special_ids_and_few_words_often():
    for one in WORKS.values():
        source, target = one.token_ids()
        assert source.shape == (one.rows, one.source)
        assert target.shape == (one.rows, one.target)
        both = np.concatenate([source.ravel(), target.ravel()])
        assert both.dtype == np.int32
        assert both.min() >= work.SMALLEST_ID
        assert both.max() < one.vocabulary
        assert (both == work.SMALLEST_ID).mean() > 1 / np.log(one.vocabulary) / 2
    assert np.array_equal(WORKS["W1"].token_ids()[0], WORKS["W1"].token_ids()[0])


def test_the_paper_has_no_dropout_inside_sublayers():
    model = config_of(dataclasses.replace(TINY, dropout_inside=False)).model
    assert (model.dropout, model.attention_dropout, model.activation_dropout) == (0.1, 0.0, 0.0)
    model = config_of(TINY).model
    assert (model.dropout, model.attention_dropout, model.activation_dropout) == (0.1, 0.1, 0.1)


def test_a_training_step_of_this_program_is_measured():
    program = own.training(TINY, {})
    program.call()
    program.call()
    assert program.about["version"].startswith("jax ")


@pytest.mark.parametrize("beams", [1, 3])
def test_every_translation_has_exactly_as_many_tokens_as_the_work_says(beams):
    found = own.decoding(dataclasses.replace(TINY, target=9), beams, {}).call()
    assert (found != 0).sum(-1).tolist() == [9] * 4
    assert set(found[:, -1].tolist()) == {2}
    assert not (found[:, :-1] == 2).any()


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs the extra bench")
def test_the_model_of_pytorch_has_as_many_parameters_as_this_program():
    from experiments.benchmarks.programs import pytorch
    from transformer.models import base

    peer = pytorch.Model(TINY)
    numbers = sum(parameter.numel() for parameter in peer.parameters())
    # Beside ours, nn.Transformer has biases in attention and a last norm of each stack.
    attentions, norms = 3, 2
    extra = attentions * 4 * TINY.d_model + norms * 2 * TINY.d_model
    tokens = jnp.zeros((1, 1), jnp.int32)
    own_params = base.build(config_of(TINY).model).init(jax.random.key(0), tokens, tokens)
    assert numbers == sum(leaf.size for leaf in jax.tree.leaves(own_params)) + extra
    assert peer(*map(pytorch.torch.from_numpy, (ids.astype(np.int64) for ids in TINY.token_ids())))


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        ("training_speed", ["--works=W3"], "--works=W3: there are W1, W2"),
        (
            "training_speed",
            ["--only=Sockeye*"],
            "nothing has such a name; there are: PyTorch eager",
        ),
        ("training_speed", ["--variant=plain"], "write NAME:FIELD=VALUE"),
        ("training_speed", ["--variant=x:model.dropuot=0"], "did you mean 'model.dropout'"),
        ("training_speed", ["--own=plain"], "--own=plain: write FIELD=VALUE"),
        ("decoding_speed", ["--own=model.dropuot=0"], "did you mean 'model.dropout'"),
        ("training_speed", ["--variant=x:model.attention_kernel=chunked"], "attention_dropout"),
        ("training_speed", ["--lengths=0"], "--lengths=0: '0' is not a whole number of at least 1"),
        ("decoding_speed", ["--beams=1,none"], "'none' is not a whole number of at least 1"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_the_remedy(module, arguments, message):
    finished = run(f"experiments.benchmarks.{module}", *arguments)
    assert finished.status == 1
    assert message in finished.err
    assert "Traceback" not in finished.err


def test_fields_need_only_be_possible_for_the_works_that_are_measured():
    # Attention weights have dropout in the works as they are, which this kernel does not have.
    fields = "model.attention_kernel=chunked"
    finished = run(
        "experiments.benchmarks.training_speed",
        "--dropout=paper",
        f"--own={fields}",
        f"--variant=chunked:{fields}",
        "--only=Sockeye*",
    )
    assert "nothing has such a name; there are: PyTorch eager" in finished.err
    assert "this program, chunked" in finished.err


def test_a_result_is_one_line_of_json(capsys):
    subject = Subject("PyTorch", f"{PROGRAMS}.pytorch.training", keep_pages=True)
    this = Subject("this program", f"{PROGRAMS}.own.training", {"overrides": {"model.dropout": 0}})
    rounds = [Round(Sample(1.0, 0.0), Sample(2.0, 0.0))]
    reporting.result("training", "W1", WORKS["W1"], this, subject, figures(rounds, Effort()))
    printed = json.loads(capsys.readouterr().out)
    assert (printed["own"], printed["against"]) == ({"model.dropout": 0}, "PyTorch")
    assert printed["ratio"] == 2.0
    assert printed["keep_pages"] is True


def test_the_time_to_a_line_ends_with_the_line():
    program = "import sys, time; print('other'); print('step 1/9', flush=True); time.sleep(1)"
    command = [sys.executable, "-c", program]
    began = time.perf_counter()
    seconds = start.seconds_until(start.FIRST_STEP, command, os.environ)
    # The command was left to end.
    assert time.perf_counter() - began > seconds + 0.9
    program = "import sys; print(input(), file=sys.stderr)"
    command = [sys.executable, "-c", program]
    assert start.seconds_until(
        start.FIRST_STEP, command, os.environ, text="step 1/9\n", of_errors=True
    )


@pytest.mark.parametrize("program", ["exit('error: no')", "print('error: no')"])
def test_a_command_that_never_gives_the_line_is_an_error_with_what_it_said(program):
    command = [sys.executable, "-c", f"import sys; sys.stdout = sys.stderr; {program}"]
    with pytest.raises(InputError, match="ended with [01]: error: no"):
        start.seconds_until(start.FIRST_STEP, command, os.environ, of_errors=True)


@pytest.mark.parametrize("kernel", ["einsum", "fused"])
def test_attention_is_measured_forward_and_backward(kernel):
    gradients = own.attention(TINY, kernel).call()
    assert [gradient.shape for gradient in gradients] == [(4, 6, 2, 8)] * 3
    assert all(np.abs(gradient).max() > 0 for gradient in gradients)
