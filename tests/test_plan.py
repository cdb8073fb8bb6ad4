# SPDX-License-Identifier: Apache-2.0
"""A plan has the figures of the compiled step; its roofline is arithmetic done by hand."""

import dataclasses
import json
import math
import re
import typing

import pytest
from apps import CONFIGS, run

from experiments import plan
from experiments.cli.config_flags import load_config_file
from experiments.planning import costs, roofline
from experiments.planning.collectives import Collective
from experiments.training import compose
from transformer import device_memory
from transformer.config import TransformerConfig
from transformer.errors import InputError
from transformer.models import protocol

FIELDS = {
    "model.vocab_size": 20,  # size of the vocabulary of the test text
    "model.d_model": 16,
    "model.d_ff": 32,
    "model.num_layers": 1,
    "model.num_heads": 4,
    "model.dropout": 0.0,  # compiles twice as fast
    "data.max_length": 8,
    "data.bucket_lengths": (4, 8),
    "data.tokens_per_batch": 128,
    "training.steps": 1000,
}


@pytest.fixture(scope="module")
def config():
    """A tiny experiment on batches of 32 x 4 and 16 x 8 tokens, without text."""
    fields = {group: {} for group in ("model", "data", "training")}
    for path, value in FIELDS.items():
        group, name = path.split(".")
        fields[group][name] = value
    base = load_config_file(str(CONFIGS / "wmt14_ende_base.py"))
    return base.replace(
        **{group: getattr(base, group).replace(**changes) for group, changes in fields.items()}
    )


@pytest.fixture(scope="module")
def on_mesh(config):
    """The plan for a mesh and a preset, computed once."""
    plans = {}

    def of(mesh, preset="replicated", **training):
        key = mesh, preset, *training.items()
        if key not in plans:
            parallel = plan.parse_mesh(mesh).replace(preset=preset)
            changed = config.replace(training=config.training.replace(**training))
            plans[key] = plan.make_plan(plan.build_experiment(changed, parallel), 0.5)
        return plans[key]

    return of


# The mesh.


@pytest.mark.parametrize(
    ("text", "sizes"),
    [("data:64,model:4", (64, 4)), ("model:2", (1, 2)), (" data:8 , model:1 ", (8, 1))],
)
def test_a_mesh_is_parsed(text, sizes):
    mesh = plan.parse_mesh(text)
    assert (mesh.data, mesh.model) == sizes


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("data:8,modle:2", "modle:2"),
        ("8", "8"),
        ("", ""),
        ("data:0", "data:0"),
        ("data:-2", "data:-2"),
        ("data:two", "data:two"),
        ("data:2,data:4", "data:4"),
        ("data:\u0664", "data:\u0664"),  # a digit, but not of ASCII
    ],
)
def test_an_invalid_mesh_is_rejected(text, part):
    message = f"--mesh={text}: {part!r} is not the size of one more mesh axis; write for example"
    with pytest.raises(InputError, match=re.escape(message)):
        plan.parse_mesh(text)


# The figures are those of the compiled step.


def matmul_flops(text):
    """FLOPs of all matmuls in the HLO of a program for the CPU; loop bodies count once."""
    shapes, total = {}, 0
    for name, shape in re.findall(r"^ .*?%([\w.-]+) = \w+\[([\d,]*)\]", text, re.MULTILINE):
        shapes[name] = [int(size) for size in shape.split(",") if size]
    dot = r"%([\w.-]+) = \S+ dot\([^%)]*%([\w.-]+), .*?lhs_contracting_dims=\{([\d,]*)\}"
    for output, left, contracting in re.findall(dot, text):
        inner = [shapes[left][int(axis)] for axis in contracting.split(",")]
        total += 2 * math.prod(inner) * math.prod(shapes[output])
    return total


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "preset"),
    [
        ("data:8", "replicated"),
        ("data:2,model:4", "fsdp_tensor"),
        pytest.param("data:2,model:4", "tensor", marks=pytest.mark.slow),
    ],
)
def test_on_eight_devices_the_figures_are_those_of_the_compiled_step(
    config, on_mesh, texts, tmp_path, mesh, preset
):
    step = on_mesh(mesh, preset)
    fields = dict(flag.removeprefix("--config.data.").split("=", 1) for flag in texts[1])
    data = config.data.replace(dataset="text_files", direction="forward", tokenizer="word")
    parallel = plan.parse_mesh(mesh).replace(preset=preset)
    experiment = compose.build(
        config.replace(data=data.replace(**fields), parallel=parallel), tmp_path
    )
    assert (step["rows"], step["length"]) in experiment.data.train.shapes()
    program = experiment.compile_step(step["rows"], step["length"])
    assert step["peak_bytes"] == device_memory.peak_bytes(program)
    assert step["argument_bytes"] == program.memory_analysis().argument_size_in_bytes
    # Heads, d_ff and the vocabulary are sharded: no matmul is computed on two devices.
    assert step["flops"] == matmul_flops(program.as_text())


@pytest.mark.slow
def test_the_batch_shape_with_the_most_flops_is_compiled(config, on_mesh):
    made = on_mesh("data:8")
    model = protocol.build(config.model)
    assert costs.step_flops(model, 16, 8) > costs.step_flops(model, 32, 4)
    assert (made["rows"], made["length"]) == (16, 8)


# What must hold of any plan.


def test_one_device_computes_all_flops_and_sends_nothing(on_mesh):
    one, eight = on_mesh("data:1"), on_mesh("data:8")
    assert eight["flops"] * 8 == one["flops"]
    assert one["collectives"] == []


def test_replicated_parameters_have_their_gradients_all_reduced_along_data_only(on_mesh):
    made = on_mesh("data:8")
    collectives = made["collectives"]
    assert {(one["kind"], one["axes"]) for one in collectives} == {("all-reduce", ("data",))}
    total = sum(one["bytes"] for one in collectives)
    # The gradient of the embedding table has three parts, which compilers other than the CPU's add
    # before the all-reduce; and there are at least four sums over the batch.
    table = 4 * FIELDS["model.vocab_size"] * FIELDS["model.d_model"]
    assert 4 * made["parameters"] + 16 <= total <= 4 * made["parameters"] + 2 * table + 100


@pytest.mark.slow
def test_fsdp_shards_the_state_and_all_gathers_every_parameter(on_mesh):
    replicated, sharded = on_mesh("data:8"), on_mesh("data:8", "fsdp")
    # Scales of layer norms and biases of d_ff stay replicated.
    assert sharded["argument_bytes"] < replicated["argument_bytes"] / 5
    gathered = sum(one["bytes"] for one in sharded["collectives"] if one["kind"] == "all-gather")
    assert 0.8 * 4 * replicated["parameters"] < gathered < 1.2 * 4 * replicated["parameters"]


@pytest.mark.slow
def test_micro_batches_save_memory_and_repeat_their_collectives(on_mesh):
    one, four = on_mesh("data:1"), on_mesh("data:1", micro_batches=4)
    assert four["flops"] == one["flops"]
    assert four["peak_bytes"] < one["peak_bytes"]
    tensor = on_mesh("model:4", "tensor")["collectives"]
    repeated = on_mesh("model:4", "tensor", micro_batches=4)["collectives"]
    assert sum(one["count"] for one in repeated) > 3 * sum(one["count"] for one in tensor)


# The roofline.

CHIP = roofline.Chip(
    "mine",
    memory_bytes=1000,
    memory_bandwidth=20.0,
    peak_flops={"float32": 100.0, "bfloat16": 200.0},
    domain=4,
    link_bandwidth=50.0,
    network_bandwidth=5.0,
)
ALL_REDUCE = Collective("all-reduce", ("data",), (0, 1, 2, 3), 1, 1000)


@pytest.mark.parametrize(
    ("group", "bandwidth"),
    [
        ((0, 1, 2, 3), 50),  # one machine
        ((4, 6), 50),
        ((0, 4), 5),  # one device of each of two machines
        ((0, 2, 4, 6), 10),  # two of each
        (tuple(range(48)), 20),  # all of twelve
    ],
)
def test_a_ring_leaves_a_machine_over_the_network_ports_of_its_members(group, bandwidth):
    assert CHIP.bandwidth(group) == bandwidth


def test_links_are_no_slower_than_the_network():
    assert CHIP._replace(network_bandwidth=40.0).bandwidth(range(8)) == 50


def test_a_roofline_by_hand():
    other = dataclasses.replace(ALL_REDUCE, kind="all-gather", group=(0, 4))
    # 4000 / 100; 600 / 20; all-reduce 2 x 3/4 x 1000 / 50, all-gather 1/2 x 1000 / 5.
    seconds = CHIP.roofline(4000, "float32", 600, [ALL_REDUCE, other])
    assert seconds == {"compute": 40, "memory": 30, "network": 30 + 100}
    assert CHIP.roofline(4000, "bfloat16", 0, [])["compute"] == 20


def test_the_papers_base_model_on_eight_h100_by_hand():
    # 63 million float32 gradients at 7/8 of 2 x 450 GB/s; 1.25e12 of 494.5e12 FLOPs.
    gradients = Collective("all-reduce", ("data",), tuple(range(8)), 1, 4 * 63_045_632)
    h100 = roofline.CHIPS[0]
    seconds = h100.roofline(1.25e12, "float32", 0, [gradients])
    assert seconds["compute"] == pytest.approx(1.25 / 494.5)
    assert seconds["network"] == pytest.approx(2 * 7 / 8 * 4 * 63_045_632 / 450e9)


def test_every_chip_has_every_compute_dtype():
    dtypes = typing.get_args(typing.get_type_hints(TransformerConfig)["compute_dtype"])
    assert len(dtypes) == 2
    for chip in roofline.CHIPS:
        assert set(chip.peak_flops) == set(dtypes)


# The command.


def command(*arguments):
    """Run the app on the tiny experiment."""
    fields = [f"--config.{path}={value}" for path, value in FIELDS.items()]
    return run(
        "experiments.plan", f"--config={CONFIGS / 'wmt14_ende_base.py'}", *fields, *arguments
    )


@pytest.fixture(scope="module")
def compared():
    """Output of the command for two meshes."""
    return command(
        *("--mesh=data:2,model:4", "--mesh=data:1", "--config.parallel.preset=tensor"),
        "--utilization=0.5",
    )


@pytest.mark.slow
def test_a_fresh_process_simulates_the_devices_and_reports_the_same(compared, on_mesh):
    assert compared.status == 0, compared.err
    assert "compiling the step for batches of 16 x 8 tokens on 8 devices" in compared.err
    first, second = compared.result["plans"]
    assert first == json.loads(json.dumps(on_mesh("data:2,model:4", "tensor")))
    assert second["mesh"] == {"data": 1, "model": 1}
    assert second["collectives"] == []


@pytest.mark.slow
def test_the_report_has_memory_collectives_roofline_and_assumptions(compared):
    for text in (
        "One step on one device, preset tensor",
        "data:2,model:4  all-reduce  model      4",
        "TPU v5p",
        "50% of the peak FLOP/s in float32",
        "simulated CPU devices",
        "not measurements",
    ):
        assert text in compared.out, text
    step = compared.result["plans"][0]
    chip = step["chips"]["H200"]
    resources = [chip[f"{name}_seconds"] for name in ("compute", "memory", "network")]
    low, high = chip["step_seconds"]
    assert (low, high) == (max(resources), sum(resources))
    assert resources[0] == step["flops"] / 0.5 / roofline.CHIPS[1].peak_flops["float32"]
    assert chip["training_seconds"] == [1000 * low, 1000 * high]
    assert chip["memory_share"] == step["peak_bytes"] / 141e9


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--mesh=data:8,modle:2"], "'modle:2' is not the size of one more mesh axis"),
        (["--mesh=data:64,model:64"], "4,096 devices are more than the 2,048"),
        (["--utilization=40"], "--utilization=40.0, but it must be a fraction"),
        (["--config.training.batch_fitting=auto"], "give --config.training.memory_limit_gib=GIB"),
        (["--mesh=model:3", "--config.parallel.preset=tensor"], "parallel.model = 3 does not"),
        (["--mesh=data:5"], "rows"),
    ],
)
def test_what_train_rejects_is_rejected_before_anything_is_compiled(flags, message):
    refused = command("--mesh=data:1", *flags)
    assert refused.status == 1
    assert message in refused.err
    assert refused.err.count("\n") == 1, refused.err
