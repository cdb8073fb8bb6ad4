# SPDX-License-Identifier: Apache-2.0
"""Speed benchmarks measure the same work in alternating turns and report load and quartiles."""

import dataclasses
import importlib.util
import itertools
import json
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from apps import run

from experiments.benchmarks import reporting, start, workloads
from experiments.benchmarks.alternating import (
    Effort,
    Round,
    Sample,
    Subject,
    alternate,
    quartiles,
    summarize,
)
from experiments.benchmarks.programs import this_project
from experiments.benchmarks.settings import config_of, parse_overrides
from experiments.benchmarks.workloads import WORKLOADS, Workload
from experiments.planning import costs
from transformer.errors import InputError
from transformer.models import protocol

TINY = Workload(
    num_layers=1,
    d_model=16,
    num_heads=2,
    d_ff=32,
    vocab_size=64,
    batch_size=4,
    source_length=6,
    target_length=6,
)

needs_torch = pytest.mark.skipif(
    not importlib.util.find_spec("torch"), reason="needs the extra bench"
)


# Workloads.


def model_of(workload):
    return protocol.build(config_of(workload).model)


@pytest.mark.parametrize(("name", "gflop"), [("W1", 70.6), ("W2", 374.9), ("R1", 38.2)])
def test_the_workloads_have_their_flops(name, gflop):
    one = WORKLOADS[name]
    flops = costs.step_flops(model_of(one), one.batch_size, one.source_length)
    assert round(flops / 1e9, 1) == gflop


@pytest.mark.slow
def test_the_matmuls_of_a_traced_step_are_those_of_the_formula():
    flops = costs.step_flops(model_of(TINY), TINY.batch_size, TINY.source_length)
    program = this_project.step_matmuls(TINY, {})
    assert program.about["flops"] == flops
    program.call()


def test_repeated_matmuls_are_computed_completely_although_one_number_of_each_is_used():
    operands = ((2, 8, 4), jnp.float32), ((2, 4, 6), jnp.float32)
    repeated, left, right = this_project.repeat(*operands, (((2,), (1,)), ((0,), (0,))), 3)
    text = repeated.lower(left, right).compile().as_text()
    assert "f32[2,8,6]" in next(line for line in text.splitlines() if " dot(" in line)
    np.testing.assert_array_equal(repeated(left, right), left)


def test_the_sentences_have_no_special_ids_and_follow_zipfs_law():
    for one in WORKLOADS.values():
        source, target = one.token_ids()
        assert source.shape == (one.batch_size, one.source_length)
        assert target.shape == (one.batch_size, one.target_length)
        both = np.concatenate([source.ravel(), target.ravel()])
        assert both.dtype == np.int32
        assert both.min() >= workloads.NUM_SPECIAL_IDS
        assert both.max() < one.vocab_size
        most_frequent = (both == workloads.NUM_SPECIAL_IDS).mean()
        assert most_frequent > 1 / np.log(one.vocab_size) / 2
    assert np.array_equal(WORKLOADS["W1"].token_ids()[0], WORKLOADS["W1"].token_ids()[0])


def test_the_paper_has_no_dropout_inside_sublayers():
    model = config_of(dataclasses.replace(TINY, inner_dropout=False)).model
    assert (model.dropout, model.attention_dropout, model.activation_dropout) == (0.1, 0.0, 0.0)
    model = config_of(TINY).model
    assert (model.dropout, model.attention_dropout, model.activation_dropout) == (0.1, 0.1, 0.1)


# Alternating turns.


class Fake:
    """Samples from a list; records the order of calls and advances the test's clock."""

    def __init__(self, name, seconds, loads, calls, clock):
        self.name, self.calls, self.clock = name, calls, clock
        self.seconds, self.loads = itertools.cycle(seconds), iter(loads)

    def __call__(self):
        self.calls.append(self.name)
        self.clock.now += 1.0
        return Sample(next(self.seconds), next(self.loads))


class Clock:
    """A clock that fake programs advance."""

    now = 0.0

    def __call__(self):
        return self.now


def measured(effort, our_loads, peer_loads, our_seconds=(1.0,), peer_seconds=(2.0,)):
    calls, clock = [], Clock()
    rounds = alternate(
        Fake("ours", our_seconds, our_loads, calls, clock),
        Fake("peer", peer_seconds, peer_loads, calls, clock),
        effort,
        clock,
        lambda seconds: None,
    )
    return rounds, calls


def test_both_are_measured_in_turns_and_either_is_first_equally_often():
    rounds, calls = measured(Effort(rounds=4), [0.0] * 4, [0.0] * 4)
    assert len(rounds) == 4
    assert calls == ["ours", "peer", "peer", "ours"] * 2


def test_loud_rounds_are_repeated_and_dropped():
    effort = Effort(rounds=2, quiet=0.1, budget=100)
    rounds, calls = measured(
        effort, [0.0, 0.0, 0.5, 0.1], [0.9, 0.0, 0.0, 0.1], our_seconds=(1, 2, 3, 4)
    )
    assert [one.ours.seconds for one in rounds] == [2, 4]
    assert len(calls) == 8


def test_after_the_budget_the_least_loud_rounds_are_used_and_counted_as_loud():
    effort = Effort(rounds=3, quiet=0.1, budget=9)  # two seconds a round: five rounds
    our_loads, peer_loads = [0.9, 0.0, 0.3, 0.8, 0.2], [0.0, 0.0, 0.4, 0.0, 0.0]
    rounds, calls = measured(effort, our_loads, peer_loads)
    assert len(calls) == 10
    assert [one.load for one in rounds] == [0.0, 0.4, 0.2]
    assert summarize(rounds, effort)["loud_rounds"] == 2
    assert summarize(rounds, effort)["other_load"] == 0.2


def test_all_rounds_are_measured_even_without_budget():
    rounds, _ = measured(Effort(rounds=3, budget=0), [2.0] * 3, [2.0] * 3)
    assert len(rounds) == 3


def test_the_speedup_is_the_median_over_rounds_and_not_the_ratio_of_medians():
    times = [(1.0, 2.0), (2.0, 8.0), (4.0, 12.0)]
    rounds = [Round(Sample(ours, 0.0, 10), Sample(peer, 0.0, 20)) for ours, peer in times]
    figures = summarize(rounds, Effort())
    assert figures["speedup"] == 3.0  # of 2, 4, 3; the ratio of medians is 8 / 2
    assert figures["speedup_quartiles"] == [2.5, 3.5]
    assert (figures["ms"], figures["peer_ms"]) == (2000.0, 8000.0)
    assert (figures["peak_mib"], figures["peer_peak_mib"]) == (10, 20)
    assert figures["loud_rounds"] == 0


def test_quartiles_are_interpolated():
    assert quartiles([4.0, 1.0, 3.0, 2.0]) == (1.75, 2.5, 3.25)
    assert quartiles([7.0]) == (7.0, 7.0, 7.0)


# Options.


def test_overrides_are_config_fields():
    assert parse_overrides("overrides", "") == {}
    fields = parse_overrides("overrides", "model.d_ff=128, model.attention_kernel=fused")
    assert fields == {"model.d_ff": 128, "model.attention_kernel": "fused"}
    config = config_of(WORKLOADS["W1"], {"model.d_ff": 128, "optimizer.name": "adamw"})
    assert (config.model.d_ff, config.optimizer.name) == (128, "adamw")
    assert config.model.d_model == 256
    fields = parse_overrides("overrides", "data.bucket_lengths=(8, 16),data.max_length=16")
    assert fields == {"data.bucket_lengths": (8, 16), "data.max_length": 16}


@pytest.mark.parametrize("text", ["narrow", "=1", "model.d_ff"])
def test_overrides_of_another_form_are_rejected(text):
    with pytest.raises(InputError, match="is not FIELD=VALUE"):
        parse_overrides("overrides", text)


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        ("training_speed", ["--workloads=W3"], "--workloads=W3: choose from W1, W2"),
        ("training_speed", ["--only=Sockeye*"], "matches no program; choose from: PyTorch eager"),
        ("training_speed", ["--variant=plain"], "write NAME:FIELD=VALUE"),
        ("training_speed", ["--variant=x:model.dropuot=0"], "did you mean 'model.dropout'"),
        ("training_speed", ["--variant=x:model.attention_kernel=chunked"], "attention_dropout"),
        ("training_speed", ["--lengths=0"], "--lengths=0: '0' is not a whole number of at least"),
        ("decoding_speed", ["--overrides=model.dropuot=0"], "did you mean 'model.dropout'"),
        ("decoding_speed", ["--workloads=R1"], "its peer does not decode; choose from W1, W2"),
        ("decoding_speed", ["--beams=1,none"], "'none' is not a whole number of at least 1"),
        ("decoding_speed", ["--against=a", "--only=Sockeye*"], "checkout a"),
        ("decoding_speed", ["--lines=a"], "--train_source=FILE is missing"),
        ("attention_memory", ["--kernels=no"], "--kernels=no: choose from einsum, "),
        ("training_speed", ["--rounds=0"], "--rounds=0, but it must be at least 1"),
    ],
)
def test_invalid_options_are_rejected_with_the_remedy(module, arguments, message):
    finished = run(f"experiments.benchmarks.{module}", *arguments)
    assert finished.status == 1
    assert message in finished.err
    assert "Traceback" not in finished.err


def test_fields_need_to_be_valid_only_for_the_measured_workloads():
    # The workloads have dropout on attention weights by default, which this kernel lacks.
    fields = "model.attention_kernel=chunked"
    finished = run(
        "experiments.benchmarks.training_speed",
        "--dropout=paper",
        f"--overrides={fields}",
        f"--variant=chunked:{fields}",
        "--only=Sockeye*",
    )
    assert "matches no program; choose from: PyTorch eager" in finished.err
    assert "variant chunked" in finished.err


def test_a_result_is_one_line_of_json(capsys, monkeypatch):
    ours = Subject("this project", "module.function", {"overrides": {"model.dropout": 0}})
    peer = Subject("PyTorch", "module.function")
    monkeypatch.setattr(reporting, "compare", lambda *_: iter([(peer, {"speedup": 2.0})]))
    reporting.measure(reporting.Options(), ours, [peer], WORKLOADS["W1"], {"workload": "W1"})
    printed = json.loads(capsys.readouterr().out)
    assert (printed["overrides"], printed["peer"]) == ({"model.dropout": 0}, "PyTorch")
    assert (printed["workload"], printed["batch_size"], printed["speedup"]) == ("W1", 64, 2.0)


# Programs.


@pytest.mark.slow
def test_a_training_step_of_this_project_is_measured():
    program = this_project.training(TINY, {})
    program.call()
    program.call()
    assert program.about["version"].startswith("jax ")
    assert program.about["temporaries_mib"] >= 0


@pytest.mark.slow
def test_a_measured_batch_has_the_tokens_and_the_length_of_the_flags():
    finished = run(
        "experiments.benchmarks.training_speed",
        *("--workloads=W1", "--tokens=64", "--lengths=8", "--rounds=1", "--only=matmuls"),
    )
    result = json.loads(finished.out)
    assert (result["batch_size"], result["source_length"], result["target_length"]) == (8, 8, 8)


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 3])
def test_every_translation_has_exactly_the_length_of_the_workload(beams):
    workload = dataclasses.replace(TINY, target_length=9)
    tokens = this_project.decoding(workload, beams, {}).call()
    assert (tokens != 0).sum(-1).tolist() == [9] * 4
    assert set(tokens[:, -1].tolist()) == {2}
    assert not (tokens[:, :-1] == 2).any()


@pytest.mark.parametrize("kernel", ["einsum", "fused"])
def test_attention_is_measured_forward_and_backward(kernel):
    gradients = this_project.attention(TINY, kernel).call()
    assert [gradient.shape for gradient in gradients] == [(4, 6, 2, 8)] * 3
    assert all(np.abs(gradient).max() > 0 for gradient in gradients)


@needs_torch
def test_the_model_of_pytorch_has_the_parameters_of_this_project():
    from experiments.benchmarks.programs import pytorch

    peer = pytorch.Model(TINY)
    parameters = sum(parameter.numel() for parameter in peer.parameters())
    # nn.Transformer also has biases in attention and a final norm of each stack.
    attentions, norms = 3, 2
    extra = attentions * 4 * TINY.d_model + norms * 2 * TINY.d_model
    tokens = jnp.zeros((1, 1), jnp.int32)
    ours = model_of(TINY).init(jax.random.key(0), tokens, tokens)
    assert parameters == sum(leaf.size for leaf in jax.tree.leaves(ours)) + extra
    assert peer(*map(pytorch.torch.from_numpy, (ids.astype(np.int64) for ids in TINY.token_ids())))


@needs_torch
def test_the_recurrent_model_of_pytorch_has_the_parameters_of_this_project():
    from experiments.benchmarks.programs import pytorch

    workload = dataclasses.replace(TINY, family="recurrent", num_layers=2)
    peer = pytorch.RecurrentModel(workload)
    tokens = jnp.zeros((1, 1), jnp.int32)
    shapes = jax.eval_shape(model_of(workload).init, jax.random.key(0), tokens, tokens)
    # nn.LSTM has a second bias of each of the four gates, in two layers of both sides.
    extra = 2 * 2 * 4 * TINY.d_model
    parameters = sum(parameter.numel() for parameter in peer.parameters())
    assert parameters == sum(leaf.size for leaf in jax.tree.leaves(shapes)) + extra
    assert peer(*map(pytorch.torch.from_numpy, (ids.astype(np.int64) for ids in TINY.token_ids())))


# Start-up time.


def seconds_of_app(tmp_path, monkeypatch, program, *arguments):
    """`start.seconds_until` for an app of another package `experiments`."""
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "app.py").write_text(f"import sys, time\n{program}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return start.seconds_until(*arguments, str(tmp_path), "app")


def test_the_time_to_a_line_ends_with_the_line(tmp_path, monkeypatch):
    program = "print('other'); print('step 1/9', flush=True); time.sleep(1)"
    began = time.perf_counter()
    seconds = seconds_of_app(tmp_path, monkeypatch, program, "stdout", "step 1/")
    assert time.perf_counter() - began > seconds + 0.9, "the command ran to its end"


def test_the_time_to_a_line_on_standard_error(tmp_path, monkeypatch):
    program = "print(input(), file=sys.stderr)"
    assert seconds_of_app(tmp_path, monkeypatch, program, "stderr", "The book") > 0


@pytest.mark.parametrize(("program", "status"), [("exit('error: no')", 1), ("print('no')", 0)])
def test_a_command_that_never_prints_the_line_is_an_error(
    tmp_path, monkeypatch, capfd, program, status
):
    program = f"sys.stdout = sys.stderr; {program}"
    with pytest.raises(InputError, match=f"app ended with status {status} and without a line"):
        seconds_of_app(tmp_path, monkeypatch, program, "stderr", "step 1/")
    assert "no" in capfd.readouterr().err
