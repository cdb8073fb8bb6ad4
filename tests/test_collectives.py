# SPDX-License-Identifier: Apache-2.0
"""Collectives of a compiled program: counted by hand, and in programs known by arithmetic."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from experiments.planning.collectives import Collective, count_collectives, first_group

MESH = {"data": 2, "model": 4}


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("replica_groups={{0,1,2,3},{4,5,6,7}}, x=1", [0, 1, 2, 3]),
        ("replica_groups={}, x={1}", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("channel_id=1", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("replica_groups=[2,4]<=[8], x=1", [0, 1, 2, 3]),
        ("replica_groups=[4,2]<=[2,4]T(1,0), x=1", [0, 4]),
        ("replica_groups=[4,2]<=[2,2,2]T(0,2,1), x=1", [0, 2]),
        ("replica_groups=mesh['a'=2,'b'=4] {'a'}, x={1}", [0, 4]),
        ("replica_groups=mesh['a'=2,'b'=1,'c'=4] {'c'}, x={1}", [0, 1, 2, 3]),
        ("replica_groups=mesh['a'=2,'b'=4] {'a','b'}, x=1", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a'}, x=1", [0, 1, 2, 3]),
        ("replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'}, x=1", [0, 4]),
        ("source_target_pairs={{0,0},{1,2},{0,3}}, x={{1,2}}", [1, 2]),
        ("source_target_pairs={{0,0},{1,1}}", [0]),
    ],
)
def test_the_first_replica_group_is_read_in_every_notation(text, group):
    assert first_group(f"%x), {text}", 8) == group


BY_HAND = """\
HloModule step, is_scheduled=true

%add.1_promoted (x: f32[], y: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%x, %y)
}

%body (state: (s32[], f32[8,16])) -> (s32[], f32[8,16]) {
  %part = f32[8,16]{1,0} get-tuple-element(%state), index=1
  %gathered = f32[16,16]{1,0} all-gather(%part), replica_groups={{0,4},{1,5},{2,6},{3,7}}
}

ENTRY %main (a: f32[8,16]) -> f32[8,16] {
  %loop = (s32[], f32[8,16]{1,0}) while(%t), condition=%test, body=%body
  %sums = (f32[10]{0}, /*index=1*/bf16[3,2]{1,0}, f32[]) all-reduce(%a, %b, %c), replica_groups={}
  %wide = f32[100]{0} all-reduce(%d), replica_groups=[2,4]<=[8], to_apply=%add.1_promoted
  %flags = pred[8]{0:T(256)} all-gather(%f), replica_groups=[2,4]<=[8]
  %scattered = f32[5]{0} reduce-scatter(%g), replica_groups=[2,4]<=[8]
  %moved = f32[6]{0} collective-permute(%h), source_target_pairs={{0,4},{4,0}}
  %still = f32[6]{0} collective-permute(%h), source_target_pairs={{0,0},{1,1}}
  %alone = f32[6]{0} all-reduce(%h), replica_groups=[8,1]<=[8]
  %exchanged = (f32[2]{0}, f32[2]{0}) all-to-all(%b, %b), replica_groups=[4,2]<=[2,4]T(1,0)
  %used = f32[6]{0} add(%moved, %still), metadata={op_name="jit(f)/all-reduce"}
  ROOT %out = f32[8,16]{1,0} get-tuple-element(%loop), index=1
}
"""


def test_collectives_are_counted_by_hand():
    collectives = count_collectives(BY_HAND, MESH, micro_batches=3)
    assert {
        (one.kind, one.axes, len(one.group)): (one.count, one.bytes) for one in collectives
    } == {
        ("all-gather", ("data",), 2): (3, 3 * 16 * 16 * 4),  # in the loop over micro-batches
        ("all-reduce", ("data", "model"), 8): (1, 40 + 12 + 4),  # a tuple is reduced at once
        ("all-reduce", ("model",), 4): (1, 100 * 2),  # bfloat16, promoted by the CPU backend
        ("all-gather", ("model",), 4): (1, 8),
        ("reduce-scatter", ("model",), 4): (1, 5 * 4 * 4),  # a device keeps a quarter
        ("collective-permute", ("data",), 2): (1, 6 * 4),
        ("all-to-all", ("data",), 2): (1, 2 * 2 * 4),
    }
    assert [one.bytes for one in collectives] == sorted(
        (one.bytes for one in collectives), reverse=True
    )


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
def test_bytes_that_a_device_sends_in_a_ring_of_four(kind, sent):
    assert Collective(kind, ("model",), (0, 1, 2, 3), 1, 1000).sent_bytes == sent


@pytest.fixture(scope="module")
def mesh():
    """Two by four devices."""
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def counted(step, *arguments):
    return count_collectives(step.lower(*arguments).compile().as_text(), MESH)


def test_explicit_collectives_are_counted_along_their_axes(mesh):
    """Each device holds [4, 8] float32, which is 128 bytes."""

    def step(x):
        reduced = jax.lax.psum(x, "data")
        gathered = jax.lax.all_gather(reduced, "model")
        scattered = jax.lax.psum_scatter(gathered, "model")
        exchanged = jax.lax.all_to_all(scattered, "data", 0, 0, tiled=True)
        passed = jax.lax.ppermute(exchanged, "model", [(i, (i + 1) % 4) for i in range(4)])
        return passed + jax.lax.pmax(passed.max(), ("data", "model"))

    spec = P(("data", "model"))
    step = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    x = jax.ShapeDtypeStruct((32, 8), jnp.float32, sharding=NamedSharding(mesh, spec))
    assert {(one.kind, one.axes): (one.count, one.bytes) for one in counted(step, x)} == {
        ("all-reduce", ("data",)): (1, 128),
        ("all-gather", ("model",)): (1, 4 * 128),
        ("reduce-scatter", ("model",)): (1, 4 * 128),
        ("all-to-all", ("data",)): (1, 128),
        ("collective-permute", ("model",)): (1, 128),
        ("all-reduce", ("data", "model")): (1, 4),
    }


def test_the_gradient_of_replicated_parameters_is_all_reduced_once_along_data(mesh):
    def step(w, x):
        return jax.grad(lambda w: jnp.square(x @ w).sum())(w)

    shardings = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    step = jax.jit(step, in_shardings=shardings, out_shardings=shardings[0])
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((6, 5), (16, 6))]
    [one] = counted(step, *shapes)
    assert (one.kind, one.axes, one.count, one.bytes) == ("all-reduce", ("data",), 1, 6 * 5 * 4)
