# SPDX-License-Identifier: Apache-2.0
"""What a compiled program sends and multiplies: by hand, and of programs known by arithmetic."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from experiments import compiled_cost, hlo

MESH = {"data": 2, "model": 4}
ALONG_DATA = [[0, 4], [1, 5], [2, 6], [3, 7]]
ALONG_MODEL = [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize(
    ("written", "groups"),
    [
        ("replica_groups={{0,1,2,3},{4,5,6,7}}, x=1", ALONG_MODEL),
        ("replica_groups={}, x={1}", [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ("channel_id=1", [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ("replica_groups=[2,4]<=[8], x=1", ALONG_MODEL),
        ("replica_groups=[4,2]<=[2,4]T(1,0), x=1", ALONG_DATA),
        ("replica_groups=[4,2]<=[2,2,2]T(0,2,1), x=1", [[0, 2], [1, 3], [4, 6], [5, 7]]),
        ("replica_groups=mesh['a'=2,'b'=4] {'a'}, x={1}", ALONG_DATA),
        ("replica_groups=mesh['a'=2,'b'=1,'c'=4] {'c'}, x={1}", ALONG_MODEL),
        ("replica_groups=mesh['a'=2,'b'=4] {'a','b'}, x=1", [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ("replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a'}, x=1", ALONG_MODEL),
        ("replica_groups=mesh['a'=2,'b'=2], device_ids=(0,2,1,3) {'b'}, x=1", [[0, 2], [1, 3]]),
        # The first half of an axis of 8, its last two devices, and both of them.
        ("replica_groups=mesh['a'=8] {'a':(1)2}, x=1", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("replica_groups=mesh['a'=8] {'a':(4)2}, x=1", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("replica_groups=mesh['a'=8] {'a':(1)2,'a':(4)2}", [[0, 1, 4, 5], [2, 3, 6, 7]]),
        ("source_target_pairs={{0,0},{1,2},{0,3}}, x={{1,2}}", [[0, 3], [1, 2]]),
        ("source_target_pairs={{0,0},{1,1}}", [[0]]),
    ],
)
def test_the_groups_of_devices_are_read_in_every_way_of_writing_them(written, groups):
    assert hlo.device_groups(f"all-reduce(%x), {written}", 8) == groups


BY_HAND = """\
HloModule step, is_scheduled=true

%add.1_promoted (x: f32[], y: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%x, %y)
}

%body (state: (s32[], f32[8,16])) -> (s32[], f32[8,16]) {
  %part = f32[8,16]{1,0} get-tuple-element(%state), index=1
  %gathered = f32[16,16]{1,0} all-gather(%part), replica_groups={{0,4},{1,5},{2,6},{3,7}}
  %product = f32[16,3]{1,0} dot(%gathered, %narrow), lhs_contracting_dims={1}
}

%test (state: (s32[], f32[8,16])) -> pred[] {
  ROOT %less = pred[] compare(%i, %three), direction=LT
}

%unused (z: f32[]) -> f32[] {
  ROOT %nothing = f32[1000]{0} all-reduce(%z), replica_groups={}
}

%branch (b: f32[2]) -> f32[2] {
  %exchanged = (f32[2]{0}, f32[2]{0}) all-to-all(%b, %b), replica_groups=[4,2]<=[2,4]T(1,0)
}

ENTRY %main (a: f32[8,16]) -> f32[8,16] {
  %loop = (s32[], f32[8,16]{1,0}) while(%t), condition=%test, body=%body, \
backend_config={"known_trip_count":{"n":"3"}}
  %sums = (f32[10]{0}, /*index=1*/bf16[3,2]{1,0}, f32[]) all-reduce(%a, %b, %c), replica_groups={}
  %wide = f32[100]{0} all-reduce(%d), replica_groups=[2,4]<=[8], to_apply=%add.1_promoted
  %begun = ((f32[4]{0:T(256)}, u8[2]{0}), (f32[16]{0:T(256)}, u8[8]{0}), u32[]) \
all-gather-start(%e, %f), replica_groups=[2,4]<=[8]
  %ended = (f32[16]{0}, u8[8]{0}) all-gather-done(%begun)
  %part = f32[5]{0} reduce-scatter(%g), replica_groups=[2,4]<=[8]
  %moved = (f32[6]{0}, f32[6]{0}, u32[], u32[]) collective-permute-start(%h), \
source_target_pairs={{0,4},{4,0}}
  %still = f32[6]{0} collective-permute(%h), source_target_pairs={{0,0},{1,1}}
  %alone = f32[6]{0} all-reduce(%h), replica_groups=[8,1]<=[8]
  %chosen = f32[2]{0} conditional(%i, %j), branch_computations={%branch, %branch}
  ROOT %out = f32[8,16]{1,0} get-tuple-element(%loop), index=1
}
"""


def test_collectives_are_counted_by_hand():
    found = hlo.Program.parse(BY_HAND).collectives(MESH)
    told = {(one.kind, one.axes, len(one.group)): (one.count, one.bytes) for one in found}
    assert told == {
        ("all-gather", ("data",), 2): (3, 3 * 16 * 16 * 4),  # in a loop of three passes
        ("all-reduce", ("data", "model"), 8): (1, 40 + 12 + 4),  # a tuple is summed at once
        ("all-reduce", ("model",), 4): (1, 100 * 2),  # bfloat16, widened by the CPU backend
        ("all-gather", ("model",), 4): (1, 16 * 4 + 8),  # the result that stands beside operands
        ("reduce-scatter", ("model",), 4): (1, 5 * 4 * 4),  # a device keeps a quarter
        ("collective-permute", ("data",), 2): (1, 6 * 4),
        ("all-to-all", ("data",), 2): (2, 2 * 2 * 2 * 4),  # in both branches
    }
    assert [one.bytes for one in found] == sorted((one.bytes for one in found), reverse=True)


SCOPES = """\
%fused (x: f32[4,4], y: f32[4,4]) -> f32[4,4] {
  %product = f32[4,4]{1,0} dot(%x, %y), lhs_contracting_dims={1}, metadata={op_name="jit(f)/dot"}
  ROOT %added = f32[4,4]{1,0} add(%product, %y), metadata={op_name="jit(f)/add" source_line=7}
}

%simple (x: f32[4,4]) -> f32[4,4] {
  ROOT %negated = f32[4,4]{1,0} negate(%x), metadata={op_name="jit(f)/negate"}
}

%body (state: f32[4,4]) -> f32[4,4] {
  %fused_product = f32[4,4]{1,0} fusion(%a, %b), calls=%fused, metadata={op_name="jit(f)/last"}
  %unknown = f32[4,4]{1,0} fusion(%a), kind=kLoop, calls=%simple
  ROOT %exp.1 = f32[4,4]{1,0} exponential(%unknown), metadata={op_name="jit(f)/while/body/exp"}
}

ENTRY %main (a: f32[4,4]) -> f32[4,4] {
  ROOT %loop = f32[4,4]{1,0} while(%a), condition=%test, body=%body, \
metadata={op_name="jit(f)/while"}
}
"""


def test_each_operation_has_the_scope_it_was_made_in_and_a_loop_none():
    origins = hlo.origins(SCOPES)
    assert origins["exp.1"] == hlo.Origin("jit(f)/while/body/exp", multiplies=False)
    assert origins["product"] == hlo.Origin("jit(f)/dot", multiplies=True)
    # What is fused with a product belongs to it; of other fusions the last operation says it.
    assert origins["fused_product"] == hlo.Origin("jit(f)/dot", multiplies=True)
    assert origins["unknown"] == hlo.Origin("jit(f)/negate", multiplies=False)
    assert "loop" not in origins


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("all-reduce", 1500),  # 2 x 3/4
        ("all-gather", 750),
        ("reduce-scatter", 750),
        ("all-to-all", 750),
        ("collective-permute", 1000),
    ],
)
def test_what_a_device_sends_in_a_ring_of_four(kind, sent):
    assert hlo.Collective(kind, ("model",), (0, 1, 2, 3), 1, 1000).sent_bytes == sent


@pytest.fixture(scope="module")
def mesh():
    """Two by four devices."""
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def test_collectives_of_programs_that_ask_for_them_are_found_along_their_axes(mesh):
    """Each device holds [4, 8] float32, which is 128 bytes."""

    def step(x):
        summed = jax.lax.psum(x, "data")
        gathered = jax.lax.all_gather(summed, "model")
        scattered = jax.lax.psum_scatter(gathered, "model")
        exchanged = jax.lax.all_to_all(scattered, "data", 0, 0, tiled=True)
        passed = jax.lax.ppermute(exchanged, "model", [(i, (i + 1) % 4) for i in range(4)])
        return passed + jax.lax.pmax(passed.max(), ("data", "model"))

    where = P(("data", "model"))
    step = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=where, out_specs=where, check_vma=False))
    x = jax.ShapeDtypeStruct((32, 8), jnp.float32, sharding=NamedSharding(mesh, where))
    found = compiled_cost.compiled(step, x)[1].collectives
    told = {(one.kind, one.axes): (one.count, one.bytes) for one in found}
    assert told == {
        ("all-reduce", ("data",)): (1, 128),
        ("all-gather", ("model",)): (1, 4 * 128),
        ("reduce-scatter", ("model",)): (1, 4 * 128),
        ("all-to-all", ("data",)): (1, 128),
        ("collective-permute", ("model",)): (1, 128),
        ("all-reduce", ("data", "model")): (1, 4),
    }


def test_the_gradient_of_replicated_parameters_is_summed_once_along_data(mesh):
    def step(w, x):
        return jax.grad(lambda w: jnp.square(x @ w).sum())(w)

    places = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    step = jax.jit(step, in_shardings=places, out_shardings=places[0])
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((6, 5), (16, 6))]
    [one] = compiled_cost.compiled(step, *shapes)[1].collectives
    assert (one.kind, one.axes, one.count, one.bytes) == ("all-reduce", ("data",), 1, 6 * 5 * 4)


def test_products_in_a_loop_count_as_often_as_they_run():
    def step(w, xs):
        return jax.lax.scan(lambda total, x: (total + (x @ w).sum(), None), 0.0, xs)[0]

    w, xs = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((20, 30), (7, 10, 20)))
    _, cost = compiled_cost.compiled(jax.jit(step), w, xs)
    one = 2 * 10 * 20 * 30
    assert cost.product_flops == 7 * one
    assert one < cost.flops < 2 * one, "XLA counts the loop's body once"


def test_products_are_counted_by_hand():
    # In three passes [16, 16] x [16, 3].
    assert hlo.Program.parse(BY_HAND).product_flops() == 3 * 2 * 16 * 16 * 3
