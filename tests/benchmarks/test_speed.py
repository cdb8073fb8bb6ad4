# SPDX-License-Identifier: Apache-2.0
"""Speed benchmarks measure the same work in alternating turns and report load and quartiles."""

import dataclasses
import importlib.util
import json
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.benchmarks import (
    alternating,
    attention_memory,
    comparison,
    decoding_speed,
    start,
    training_speed,
    workloads,
)
from experiments.benchmarks.alternating import Sample, Subject, alternate, quartiles, summarize
from experiments.benchmarks.comparison import config_of, parse_overrides
from experiments.benchmarks.programs import this_project
from experiments.benchmarks.workloads import WORKLOADS, Workload
from experiments.planning import costs
from transformer.errors import InputError
from transformer.models import protocol

TINY = Workload(1, 16, 2, 32, 64, 4, 6, 6)


def model_of(workload):
    return protocol.build(config_of(workload).model)


@pytest.mark.parametrize(("name", "gflop"), [("W1", 70.6), ("W2", 374.9), ("R1", 38.2)])
def test_the_workloads_have_their_flops(name, gflop):
    workload = WORKLOADS[name]
    flops = costs.step_flops(model_of(workload), workload.batch_size, workload.source_length)
    assert round(flops / 1e9, 1) == gflop


def test_the_sentences_have_no_special_ids_and_follow_zipfs_law():
    for workload in WORKLOADS.values():
        source, target = workload.token_ids()
        assert source.shape == (workload.batch_size, workload.source_length)
        assert target.shape == (workload.batch_size, workload.target_length)
        both = np.concatenate([source.ravel(), target.ravel()])
        assert both.min() >= workloads.NUM_SPECIAL_IDS
        assert both.max() < workload.vocab_size
        most_frequent = (both == workloads.NUM_SPECIAL_IDS).mean()
        assert most_frequent > 1 / np.log(workload.vocab_size) / 2


def test_the_paper_has_no_dropout_inside_sublayers():
    for inner, dropout in ((False, 0.0), (True, 0.1)):
        model = config_of(dataclasses.replace(TINY, inner_dropout=inner)).model
        assert model.dropout == 0.1
        assert model.attention_dropout == model.activation_dropout == dropout


# Turns and statistics.


def test_both_are_measured_in_turns_and_either_is_first_equally_often(monkeypatch):
    monkeypatch.setattr(alternating.time, "sleep", lambda seconds: None)
    order = []

    def ours():
        order.append("ours")
        return Sample(1.0, 0.0)

    def peer():
        order.append("peer")
        return Sample(2.0, 0.0)

    rounds = alternate(ours, peer, 4)
    assert rounds == [(Sample(1.0, 0.0), Sample(2.0, 0.0))] * 4
    assert order == ["ours", "peer", "peer", "ours"] * 2


def test_the_speedup_is_the_median_over_rounds_and_not_the_ratio_of_medians():
    times = [(1.0, 2.0), (2.0, 8.0), (4.0, 12.0)]
    rounds = [(Sample(ours, 0.1, 10), Sample(peer, peer / 10, 20)) for ours, peer in times]
    figures = summarize(rounds)
    assert figures["speedup"] == 3.0  # of 2, 4, 3; the ratio of medians is 8 / 2
    assert figures["speedup_quartiles"] == [2.5, 3.5]
    assert (figures["ms"], figures["peer_ms"]) == (2000.0, 8000.0)
    assert (figures["peak_mib"], figures["peer_peak_mib"]) == (10, 20)
    assert figures["other_load"] == 0.8


def test_quartiles_are_interpolated():
    assert quartiles([4.0, 1.0, 3.0, 2.0]) == (1.75, 2.5, 3.25)
    assert quartiles([7.0]) == (7.0, 7.0, 7.0)


# Options and results.


def test_overrides_are_config_fields():
    assert parse_overrides("overrides", "") == {}
    fields = parse_overrides("overrides", "model.d_ff=128, model.attention_kernel=fused")
    assert fields == {"model.d_ff": 128, "model.attention_kernel": "fused"}
    config = config_of(WORKLOADS["W1"], {"model.d_ff": 128, "optimizer.name": "adamw"})
    assert (config.model.d_ff, config.optimizer.name) == (128, "adamw")
    assert config.model.d_model == 256
    fields = parse_overrides("overrides", "data.bucket_lengths=(8, 16),data.max_length=16")
    assert fields == {"data.bucket_lengths": (8, 16), "data.max_length": 16}
    for text in ("narrow", "=1", "model.d_ff"):
        with pytest.raises(InputError, match="is not FIELD=VALUE"):
            parse_overrides("overrides", text)


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (training_speed, {"workloads": ["W3"]}, "--workloads=W3: choose from W1, W2"),
        (training_speed, {"only": ["Sockeye*"]}, "matches no program; choose from: PyTorch eager"),
        (training_speed, {"variant": ["plain"]}, "write NAME:FIELD=VALUE"),
        (training_speed, {"variant": ["x:model.dropuot=0"]}, "did you mean 'model.dropout'"),
        (training_speed, {"variant": ["x:model.attention_kernel=chunked"]}, "attention_dropout"),
        (training_speed, {"rounds": 0}, "--rounds=0, but it must be at least 1"),
        (decoding_speed, {"overrides": "model.dropuot=0"}, "did you mean 'model.dropout'"),
        (decoding_speed, {"workloads": ["R1"]}, "its peer does not decode; choose from W1, W2"),
        (decoding_speed, {"against": ["a"], "only": ["Sockeye*"]}, "checkout a"),
        (decoding_speed, {"lines": "a"}, "--train_source=FILE is missing"),
        (attention_memory, {"kernels": ["no"]}, "--kernels=no: choose from einsum, "),
    ],
)
def test_invalid_options_are_rejected_with_the_remedy(module, options, message):
    with pytest.raises(InputError, match=message):
        module.run(module.Options(**options))


def test_fields_need_to_be_valid_only_for_the_measured_workloads():
    # The workloads have dropout on attention weights by default, which this kernel lacks.
    fields = "model.attention_kernel=chunked"
    options = training_speed.Options(
        dropout="paper", overrides=fields, variant=[f"chunked:{fields}"], only=["Sockeye*"]
    )
    with pytest.raises(InputError, match="choose from: PyTorch eager .* variant chunked"):
        training_speed.run(options)


def test_a_result_is_one_line_of_json(capsys, monkeypatch):
    peer = Subject("PyTorch eager float32", "module.function")
    chosen = []

    def compare(ours, peers, workload, *_):
        chosen.extend([*peers, workload])
        figures = {"speedup": 2.0, "ms": 1.0, "peer_ms": 2.0, "other_load": 0.0}
        yield peer, figures | {"speedup_quartiles": [1.9, 2.1]}

    monkeypatch.setattr(comparison, "compare", compare)
    training_speed.run(
        training_speed.Options(
            workloads=["W1"],
            tokens=64,
            lengths=[8],
            only=["PyTorch*eager*"],
            overrides="model.dropout=0",
        )
    )
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert (result["overrides"], result["peer"]) == ({"model.dropout": 0}, peer.name)
    assert (result["workload"], result["speedup"]) == ("W1 8", 2.0)
    assert (result["batch_size"], result["source_length"], result["target_length"]) == (8, 8, 8)
    assert [each.name for each in chosen[:-1]] == [peer.name, "PyTorch eager bfloat16"]
    assert chosen[-1].batch_size == 8
    assert "1.90..2.10" in err


# Programs.


@pytest.mark.slow
def test_a_training_step_of_this_project_is_measured():
    program = this_project.training(TINY, {})
    program.call()
    program.call()
    assert program.about["version"].startswith("jax ")
    assert program.about["temporaries_mib"] >= 0


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


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs the extra bench")
@pytest.mark.parametrize(
    ("changes", "extra"),
    [
        # nn.Transformer also has biases in three attentions and a final norm of each stack.
        ({}, 3 * 4 * 16 + 2 * 2 * 16),
        # nn.LSTM has a second bias of each of the four gates, in two layers of both sides.
        ({"family": "recurrent", "num_layers": 2}, 2 * 2 * 4 * 16),
    ],
)
def test_the_models_of_pytorch_have_the_parameters_of_this_project(changes, extra):
    from experiments.benchmarks.programs import pytorch

    workload = dataclasses.replace(TINY, **changes)
    peer = pytorch.MODELS[workload.family](workload)
    tokens = jnp.zeros((1, 1), jnp.int32)
    shapes = jax.eval_shape(model_of(workload).init, jax.random.key(0), tokens, tokens)
    ours = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    assert sum(parameter.numel() for parameter in peer.parameters()) == ours + extra
    assert peer(*(pytorch.torch.from_numpy(ids.astype(np.int64)) for ids in TINY.token_ids()))


# Start-up time.


def seconds_of_app(tmp_path, monkeypatch, program, *arguments):
    """`start.seconds_until` for an app of another package `experiments`."""
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "app.py").write_text(f"import sys, time\n{program}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return start.seconds_until(*arguments, str(tmp_path), "app")


def test_the_time_to_a_line_ends_with_the_line(tmp_path, monkeypatch):
    program = "print('other'); print('step 1/9', input(), flush=True); time.sleep(1)"
    began = time.perf_counter()
    seconds = seconds_of_app(tmp_path, monkeypatch, program, "stdout", "step 1/9 The book")
    assert time.perf_counter() - began > seconds + 0.5, "the command ran to its end"


@pytest.mark.parametrize(("program", "status"), [("exit('error: no')", 1), ("print('no')", 0)])
def test_a_command_that_never_prints_the_line_is_an_error(
    tmp_path, monkeypatch, capfd, program, status
):
    program = f"sys.stdout = sys.stderr; {program}"
    with pytest.raises(InputError, match=f"app ended with status {status} and without a line"):
        seconds_of_app(tmp_path, monkeypatch, program, "stderr", "step 1/")
    assert "no" in capfd.readouterr().err
