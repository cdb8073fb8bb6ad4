# SPDX-License-Identifier: Apache-2.0
"""A plan has the figures of the compiled step."""

import json
import math
import re
import typing

import pytest
from apps import CONFIGS, run

from experiments import plan
from experiments.cli.config_flags import load_config_file
from experiments.planning import costs
from experiments.planning.chips import CHIPS
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


def test_a_mesh_is_parsed_or_rejected_with_the_part_that_is_wrong():
    for text, *sizes in (
        ("data:64,model:4", 64, 4),
        ("model:2", 1, 2),
        (" data:8 , model:1 ", 8, 1),
    ):
        mesh = plan.parse_mesh(text)
        assert [mesh.data, mesh.model] == sizes
    wrong = {"data:8,modle:2": "modle:2", "data:2,data:4": "data:4"}
    # The last is a digit, but not of ASCII.
    for part in ("8", "", "data:0", "data:-2", "data:two", "data:\u0664"):
        wrong[part] = part
    for text, part in wrong.items():
        message = (
            f"--mesh={text}: {part!r} is not the size of one more mesh axis; write for example"
        )
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


@pytest.mark.slow
def test_flops_are_divided_and_fsdp_and_micro_batches_save_memory(on_mesh):
    one, eight = on_mesh("data:1"), on_mesh("data:8")
    assert eight["flops"] * 8 == one["flops"]
    # Scales of layer norms and biases of d_ff stay replicated.
    assert on_mesh("data:8", "fsdp")["argument_bytes"] < eight["argument_bytes"] / 5
    four = on_mesh("data:1", micro_batches=4)
    assert four["flops"] == one["flops"]
    assert four["peak_bytes"] < one["peak_bytes"]


def test_every_chip_has_every_compute_dtype():
    dtypes = typing.get_args(typing.get_type_hints(TransformerConfig)["compute_dtype"])
    assert len(dtypes) == 2
    for chip in CHIPS:
        assert set(chip.peak_flops) == set(dtypes)


# The command.


def command(*arguments):
    """Run the app on the tiny experiment."""
    fields = [f"--config.{path}={value}" for path, value in FIELDS.items()]
    return run(
        "experiments.plan", f"--config={CONFIGS / 'wmt14_ende_base.py'}", *fields, *arguments
    )


@pytest.mark.slow
def test_the_report_has_memory_times_and_assumptions(on_mesh):
    compared = command(
        *("--mesh=data:2,model:4", "--mesh=data:1", "--config.parallel.preset=tensor"),
        "--utilization=0.5",
    )
    assert compared.status == 0, compared.err
    assert "compiling the step for batches of 16 x 8 tokens on 8 devices" in compared.err
    step, second = compared.result["plans"]
    assert step == json.loads(json.dumps(on_mesh("data:2,model:4", "tensor")))
    assert second["mesh"] == {"data": 1, "model": 1}
    for text in (
        "One step on one device, preset tensor",
        "TPU v5p",
        "50% of the peak FLOP/s in float32",
        "simulated CPU devices",
        "not measurements",
    ):
        assert text in compared.out, text
    chip = step["chips"]["H200"]
    seconds = step["flops"] / 0.5 / CHIPS[1].peak_flops["float32"]
    assert (chip["step_seconds"], chip["training_seconds"]) == (seconds, 1000 * seconds)
    assert chip["memory_share"] == step["peak_bytes"] / 141e9


def test_what_train_rejects_is_rejected_before_anything_is_compiled():
    for flags, message in (
        (["--mesh=data:8,modle:2"], "'modle:2' is not the size of one more mesh axis"),
        (["--mesh=data:64,model:64"], "4,096 devices are more than the 2,048"),
        (["--utilization=40"], "--utilization=40.0, but it must be a fraction"),
        (["--config.training.batch_fitting=auto"], "give --config.training.memory_limit_gib=GIB"),
        (["--mesh=model:3", "--config.parallel.preset=tensor"], "parallel.model = 3 does not"),
        (["--mesh=data:5"], "rows"),
    ):
        refused = command("--mesh=data:1", *flags)
        assert refused.status == 1, flags
        assert message in refused.err
        assert refused.err.count("\n") == 1, refused.err
