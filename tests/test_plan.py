# SPDX-License-Identifier: Apache-2.0
"""A plan's figures are those of the compiled step; its estimates are arithmetic done by hand."""

import dataclasses
import json
import typing

import pytest
from apps import CONFIGS, run

from experiments import chips, compiled_cost, compose, plan
from experiments.flags import load_config_file
from experiments.hlo import Collective
from transformer.config import TransformerConfig
from transformer.errors import InputError

FIELDS = {
    "model.vocab_size": 20,  # what the text of the tests has
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
    """A tiny experiment on batches of 32 x 4 and 16 x 8 tokens, whose text is nowhere."""
    own = {group: {} for group in ("model", "data", "training")}
    for path, value in FIELDS.items():
        group, name = path.split(".")
        own[group][name] = value
    base = load_config_file(str(CONFIGS / "wmt14_ende_base.py"))
    return base.replace(
        **{group: getattr(base, group).replace(**fields) for group, fields in own.items()}
    )


@pytest.fixture(scope="module")
def on_mesh(config):
    """The plan for a mesh and a preset, each made once; for one device, of all shapes."""
    made = {}

    def of(mesh, preset="replicated", **training):
        key = mesh, preset, *training.items()
        if key not in made:
            parallel = plan.mesh_of(mesh).replace(preset=preset)
            whole = config.replace(training=config.training.replace(**training))
            experiment = plan.experiment_on(parallel, whole)
            made[key] = plan.planned(experiment, all_shapes=key == ("data:1", "replicated"))
        return made[key]

    return of


def cost_of(planned):
    """Of the step with the most operations."""
    return planned.shapes[0].cost


# The mesh.


@pytest.mark.parametrize(
    ("text", "sizes"),
    [("data:64,model:4", (64, 4)), ("model:2", (1, 2)), (" data:8 , model:1 ", (8, 1))],
)
def test_a_mesh_is_read(text, sizes):
    mesh = plan.mesh_of(text)
    assert (mesh.data, mesh.model) == sizes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data:8,modle:2", "unknown mesh axis 'modle'; did you mean 'model'?"),
        ("8", "'8' has no size; write --mesh=data:64,model:4"),
        ("", "'' has no size"),
        ("data:0", "'0' devices along 'data', but it must be a whole number of at least 1"),
        ("data:-2", "'-2' devices"),
        ("data:two", "'two' devices"),
        ("data:2,data:4", "the axis 'data' is there twice"),
    ],
)
def test_a_mesh_that_cannot_be_is_refused(text, message):
    with pytest.raises(InputError, match=f"--mesh={text}: .*") as refused:
        plan.mesh_of(text)
    assert message in str(refused.value)


# The figures are those of the compiled step.


@pytest.mark.parametrize(
    ("mesh", "preset"),
    [
        ("data:8", "replicated"),
        ("data:2,model:4", "fsdp_tensor"),
        pytest.param("data:2,model:4", "tensor", marks=pytest.mark.slow),
    ],
)
def test_on_eight_devices_the_figures_are_the_compiled_steps(
    config,
    on_mesh,
    texts,
    tmp_path,
    mesh,
    preset,
):
    planned = on_mesh(mesh, preset)
    [shape] = planned.shapes
    fields = dict(flag.removeprefix("--config.data.").split("=", 1) for flag in texts[1])
    data = config.data.replace(dataset="text_files", direction="forward", tokenizer="word")
    parallel = planned.config.parallel
    experiment = compose.build(
        config.replace(data=data.replace(**fields), parallel=parallel), tmp_path
    )
    assert (shape.rows, shape.length) in experiment.data.train.shapes()
    program, cost = compiled_cost.compiled(
        experiment.train_step,
        experiment.abstract_state,
        experiment.abstract_batch(shape.rows, shape.length),
    )
    assert shape.cost == cost
    memory = program.memory_analysis()
    [figures] = plan.figures([planned], 0.4)["plans"][0]["shapes"]
    assert figures["argument_bytes"] == memory.argument_size_in_bytes
    assert figures["temporary_bytes"] == memory.temp_size_in_bytes
    assert figures["flops"] == program.cost_analysis()["flops"]


@pytest.mark.slow
def test_the_shape_with_the_most_operations_is_compiled_or_all(on_mesh):
    one, every = on_mesh("data:8"), on_mesh("data:1")
    assert [(shape.rows, shape.length) for shape in one.shapes] == [(16, 8)]
    assert [(shape.rows, shape.length) for shape in every.shapes] == [(16, 8), (32, 4)]
    assert every.shapes[0].flops > every.shapes[1].flops


# What must hold of any plan.


def test_products_scale_with_one_over_the_devices(on_mesh):
    one, eight = on_mesh("data:1"), on_mesh("data:8")
    assert cost_of(one).product_flops == one.shapes[0].flops, "the formula and the program agree"
    assert cost_of(eight).product_flops * 8 == cost_of(one).product_flops
    assert not cost_of(one).collectives


@pytest.mark.parametrize("preset", ["tensor", "fsdp_tensor"])
def test_no_product_is_computed_twice_where_heads_d_ff_and_vocabulary_are_divided(on_mesh, preset):
    planned = on_mesh("data:2,model:4", preset)
    assert cost_of(planned).product_flops * 8 == planned.shapes[0].flops


def test_replicated_parameters_have_their_gradients_summed_along_data_and_nothing_else(on_mesh):
    planned = on_mesh("data:8")
    assert {(one.kind, one.axes) for one in cost_of(planned).collectives} == {
        ("all-reduce", ("data",))
    }
    total = sum(one.bytes for one in cost_of(planned).collectives)
    # The table's gradient has three parts, which other compilers than the CPU's add up first; and
    # there are sums over the batch, four at least.
    table = 4 * planned.config.model.vocab_size * planned.config.model.d_model
    most = 4 * planned.parameters + 2 * table + 100
    assert 4 * planned.parameters + 16 <= total <= most


def test_fsdp_divides_the_state_and_gathers_every_parameter(on_mesh):
    whole, divided = on_mesh("data:8"), on_mesh("data:8", "fsdp")
    # The scales of layer norms are not divided, nor are biases of d_ff.
    assert cost_of(divided).argument_bytes < cost_of(whole).argument_bytes / 5
    gathered = sum(one.bytes for one in cost_of(divided).collectives if one.kind == "all-gather")
    assert 0.8 * 4 * whole.parameters < gathered < 1.2 * 4 * whole.parameters
    assert cost_of(divided).product_flops == cost_of(whole).product_flops


def test_micro_batches_multiply_what_is_in_their_loop(on_mesh):
    one, four = on_mesh("data:1"), on_mesh("data:1", micro_batches=4)
    assert cost_of(four).product_flops == cost_of(one).product_flops
    assert cost_of(four).flops < 0.5 * cost_of(one).flops, "XLA counts one of them"
    assert cost_of(four).temporary_bytes < cost_of(one).temporary_bytes


# The estimates.

CHIP = chips.Chip("mine", 1000, {"float32": 100.0, "bfloat16": 200.0}, 4, link=50.0, network=5.0)
ALL_REDUCE = Collective("all-reduce", ("data",), (0, 1, 2, 3), 1, 1000)


@pytest.mark.parametrize(
    ("group", "bandwidth"),
    [
        ((0, 1, 2, 3), 50),  # one machine
        ((4, 6), 50),
        ((0, 4), 5),  # one device of each of two
        ((0, 2, 4, 6), 10),  # two of each
        ((3, 4, 5), 5),  # one machine has but one
        (tuple(range(48)), 20),  # all of twelve
    ],
)
def test_a_ring_leaves_a_machine_over_the_network_ports_of_its_members(group, bandwidth):
    assert CHIP.bandwidth(group) == bandwidth


def test_links_are_no_slower_than_the_network():
    assert dataclasses.replace(CHIP, network=40.0).bandwidth(range(8)) == 50


def test_a_step_by_hand():
    other = dataclasses.replace(ALL_REDUCE, kind="all-gather", group=(0, 4))
    # Products: 4000 / (100 x 0.5). Sums: 2 x 3/4 x 1000 / 50; gathered: 1/2 x 1000 / 5.
    found = chips.estimate(CHIP, 4000, [ALL_REDUCE, other], "float32", 0.5)
    assert (found.products, found.collectives) == (80, 30 + 100)
    assert (found.overlapped, found.in_turn) == (130, 210)
    assert chips.estimate(CHIP, 4000, [], "bfloat16", 0.5).in_turn == 40


def test_the_papers_base_model_on_eight_h100_by_hand():
    h100 = chips.CHIPS[0]
    # 63 million float32 gradients at 7/8 of 2 x 450 GB/s; 1.25e12 of 495e12 operations at 40%.
    sums = Collective("all-reduce", ("data",), tuple(range(8)), 1, 4 * 63_045_632)
    found = chips.estimate(h100, 1.25e12, [sums], "float32", 0.4)
    assert found.products == pytest.approx(1.25 / (494.5 * 0.4))
    assert found.collectives == pytest.approx(2 * 7 / 8 * 4 * 63_045_632 / 450e9)


def test_every_chip_knows_every_compute_dtype():
    dtypes = typing.get_args(typing.get_type_hints(TransformerConfig)["compute_dtype"])
    assert len(dtypes) == 2
    for chip in chips.CHIPS:
        assert set(chip.product_flops) == set(dtypes)


# The command.


def command(*arguments):
    """Runs the app on the tiny experiment."""
    fields = [f"--config.{path}={value}" for path, value in FIELDS.items()]
    return run(
        "experiments.plan", f"--config={CONFIGS / 'wmt14_ende_base.py'}", *fields, *arguments
    )


@pytest.fixture(scope="module")
def compared():
    """What the command says of two meshes."""
    return command(
        *("--mesh=data:2,model:4", "--mesh=data:1", "--config.parallel.preset=tensor"),
        "--utilisation=0.5",
    )


@pytest.mark.slow
def test_a_fresh_process_simulates_the_devices_and_finds_the_same(compared, on_mesh):
    assert compared.status == 0, compared.err
    assert "compiling the step for batches of 16 x 8 tokens on 8 devices" in compared.err
    first, second = compared.result["plans"]
    assert first["mesh"] == {"data": 2, "model": 4}
    expected = plan.figures([on_mesh("data:2,model:4", "tensor")], 0.5)["plans"][0]
    assert first == json.loads(json.dumps(expected))
    assert second["mesh"] == {"data": 1, "model": 1}
    assert second["shapes"][0]["collectives"] == []


def test_the_report_says_what_fits_how_fast_and_under_which_assumptions(compared):
    for said in (
        "Mesh data:2,model:4 (8 devices), preset tensor",
        "all-reduce  model        4",
        "TPU v5p",
        "The meshes compared",
        "Products reach 50% of the chip's dense rate in float32",
        "simulated CPU devices",
    ):
        assert said in compared.out, said
    estimate = compared.result["plans"][0]["shapes"][0]["chips"]["H200"]
    low, high = estimate["step_seconds"]
    assert low == max(estimate["product_seconds"], estimate["collective_seconds"])
    assert estimate["target_positions_per_second"] == [128 / low, 128 / high]
    assert estimate["training_seconds"] == [1000 * low, 1000 * high]
    assert estimate["fits"] is True


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--mesh=data:8,modle:2"], "did you mean 'model'"),
        (["--mesh=data:64,model:64"], "4,096 devices are more than the 2,048"),
        (["--utilisation=40"], "--utilisation=40.0, but it must be a share"),
        (["--config.training.batch_fitting=auto"], "give --config.training.memory_limit_gib=GIB"),
        (["--mesh=model:3", "--config.parallel.preset=tensor"], "parallel.model = 3 does not"),
        (["--mesh=data:5"], "rows"),
    ],
)
def test_what_train_would_refuse_is_refused_before_anything_is_compiled(flags, message):
    refused = command("--mesh=data:1", *flags)
    assert refused.status == 1
    assert message in refused.err
    assert refused.err.count("\n") == 1, refused.err
