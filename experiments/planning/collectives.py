# SPDX-License-Identifier: Apache-2.0
"""Collectives of a compiled program, counted by a scan of the lines of its HLO text.

A collective is one line; its result type gives the bytes, its replica groups the mesh axes:

  %all-gather.1 = f32[16,8]{1,0} all-gather(%param.4), replica_groups=[4,2]<=[2,4]T(1,0), ...
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping

import numpy as np

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")

_LINE = re.compile(rf"^  .*? = (.*?) ({'|'.join(KINDS)})\((.*)")
_ARRAY = re.compile(r"\b(?:pred|[a-z]+(\d+)\w*)\[([\d,]*)\]")
# The notations of replica groups: {{0,4},{1,5}}; [4,2]<=[2,4]T(1,0), which stands for
# arange(8).reshape(2, 4).T.reshape(4, 2); mesh['a'=2,'b'=4] {'a'}, optionally with device_ids.
_LISTS = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_IOTA = re.compile(r"replica_groups=\[\d+,(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r"replica_groups=mesh\[(.*?)\](?:, device_ids=\(\[([\d,]+)\]T\(([\d,]+)\)\))? \{(.*?)\}"
)
_PAIRS = re.compile(r"source_target_pairs=\{(.*?)\}\}")


@dataclasses.dataclass(frozen=True)
class Collective:
    """All collectives of one kind along the same mesh axes in one call."""

    kind: str
    axes: tuple[str, ...]
    group: tuple[int, ...]
    """Device indices of the first replica group."""
    count: int
    bytes: int
    """Size of the complete arrays that a group reduces, gathers, scatters or exchanges."""

    @property
    def sent_bytes(self) -> float:
        """Bytes that each of the n devices of a group sends in a ring."""
        if self.kind == "collective-permute":
            return float(self.bytes)
        rounds = 2 if self.kind == "all-reduce" else 1
        return rounds * (len(self.group) - 1) / len(self.group) * self.bytes


def count_collectives(
    text: str, mesh: Mapping[str, int], micro_batches: int = 1
) -> tuple[Collective, ...]:
    """Count the collectives of one call, those of the most bytes first.

    XLA's CPU backend promotes all-reduces of bfloat16 to float32 and marks them; they count as the
    bfloat16 that other backends send.

    Args:
      text: HLO of the compiled program (`jax.stages.Compiled.as_text`).
      mesh: size of each mesh axis, in order.
      micro_batches: iterations of the loop over micro-batches, the only loop that communicates; its
        lines are those outside the entry computation.
    """
    totals: dict[tuple, np.ndarray] = {}
    times = 1
    for line in text.splitlines():
        if line[:1] not in (" ", ""):
            times = 1 if line.startswith("ENTRY") else micro_batches
        if not (match := _LINE.match(line)):
            continue
        result, kind, rest = match.groups()
        group = first_group(rest, math.prod(mesh.values()))
        if len(group) == 1:  # nothing is sent
            continue
        size = sum(
            math.prod(_integers(shape)) * int(bits or 8) // 8
            for bits, shape in _ARRAY.findall(result)
        )
        size *= len(group) if kind == "reduce-scatter" else 1
        size //= 2 if "_promoted" in rest else 1
        key = kind, _axes_of(group, mesh), tuple(group)
        totals[key] = totals.get(key, 0) + times * np.array([1, size])
    collectives = [Collective(*key, *total.tolist()) for key, total in totals.items()]
    return tuple(sorted(collectives, key=lambda one: -one.bytes))


def first_group(text: str, devices: int) -> list[int]:
    """Device indices of the first replica group, or of the first pair of a permute.

    Args:
      text: the line, from the operands on.
      devices: number of devices; they form one group if the line names none.
    """
    if match := _PAIRS.search(text):
        pairs = [_integers(pair.strip("{}")) for pair in match.group(1).split("},")]
        return next((pair for pair in pairs if pair[0] != pair[1]), [0])
    if match := _LISTS.search(text):
        return _integers(match.group(1))
    if match := _IOTA.search(text):
        size, shape, order = match.groups()
        return _device_indices(shape, order).ravel()[: int(size)].tolist()
    if match := _MESH.search(text):
        axes, shape, order, members = match.groups()
        sizes = {name: int(size) for name, size in re.findall(r"('\w+')=(\d+)", axes)}
        indices = _device_indices(shape or ",".join(map(str, sizes.values())), order)
        # An axis in parts, 'a':(1)2, counts as the complete axis.
        chosen = tuple(slice(None) if name in members else 0 for name in sizes)
        return indices.reshape(tuple(sizes.values()))[chosen].ravel().tolist()
    return list(range(devices))


def _axes_of(group: list[int], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Mesh axes along which the devices of a group differ."""
    coordinates = np.array(np.unravel_index(group, tuple(mesh.values())))
    return tuple(itertools.compress(mesh, (coordinates != coordinates[:, :1]).any(axis=1)))


def _device_indices(shape: str, order: str | None) -> np.ndarray:
    sizes = _integers(shape)
    indices = np.arange(math.prod(sizes)).reshape(sizes)
    return indices.transpose(_integers(order)) if order else indices


def _integers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]
