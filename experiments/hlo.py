# SPDX-License-Identifier: Apache-2.0
"""What a compiled program computes and sends, counted in its text (HLO).

XLA's own account counts the body of a loop once and says nothing of collectives. Here both are
counted as often as they run: the body of a loop as often as XLA knows that it does (micro-batches
are such a loop) and otherwise once, and every branch of a condition once.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from typing import Self

import numpy as np

Groups = list[list[int]]
"""Places in the mesh, counted row by row, of the devices that work together."""

KINDS = (
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all"),
    *("collective-permute", "collective-broadcast"),
)

_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"  (?:ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([a-z][a-z0-9-]*)\(")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.-]+)"
)
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_SCOPE = re.compile(r'\bop_name="([^"]*)"')
_PROMOTED = re.compile(r"\bto_apply=%?[\w.-]+_promoted\b")
_ARRAY = re.compile(r"\b[a-z]+(\d*)\w*\[([\d,<=]*)\]")
_GROUPS = re.compile(r"\breplica_groups=(\{.*?\}\}|\{\}|\[\S+|\w+\[.*?\{.*?\})")
_PAIRS = re.compile(r"\bsource_target_pairs=(\{.*?\}\}|\{\})")
_IOTA = re.compile(r"(?:\[([\d,]+)\]<=)?\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"\w+\[(.*?)\](?:, device_ids=\((.*)\))? \{(.*?)\}")


@dataclasses.dataclass(frozen=True)
class Collective:
    """All the collectives of one kind over the same devices that one call runs."""

    kind: str
    axes: tuple[str, ...]
    """The mesh axes along which the devices of a group differ."""
    group: tuple[int, ...]
    """The devices of one group, by their places in the mesh; the others lie likewise."""
    count: int
    bytes: int
    """Of the whole arrays that a group sums, gathers, scatters or exchanges, all counted."""

    @property
    def sent_bytes(self) -> float:
        """What one device sends in a call when n devices form a ring: of a sum 2 (n - 1) / n of its
        bytes, (n - 1) / n of what is gathered, scattered or exchanged, and all of what is handed
        from one to another.
        """
        if self.kind in ("collective-permute", "collective-broadcast"):
            return float(self.bytes)
        devices = len(self.group)
        rounds = 2 if self.kind == "all-reduce" else 1
        return rounds * (devices - 1) / devices * self.bytes


@dataclasses.dataclass(frozen=True)
class _Instruction:
    name: str
    type: str
    opcode: str
    rest: str
    """The line from the opcode on."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A program's instructions, computation by computation, and how often each of those runs."""

    computations: tuple[tuple[int, tuple[_Instruction, ...]], ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads what `jax.stages.Compiled.as_text` returns."""
        parts: dict[str, list[_Instruction]] = {}
        entry, inside = "", []
        for line in text.splitlines():
            if not line.startswith("  "):
                begins = _COMPUTATION.match(line)
                if begins:
                    inside = parts.setdefault(begins.group(2), [])
                    entry = begins.group(2) if begins.group(1) else entry
            elif found := _INSTRUCTION.match(line):
                inside.append(_Instruction(*found.groups(), line[found.start(3) :]))
        times = dict.fromkeys(parts, 0) | {entry: 1}
        # A computation stands before those that call it.
        for name, instructions in reversed(parts.items()):
            for one in instructions if times[name] else ():
                for called, passes in _calls(one):
                    times[called] += passes * times[name]
        return cls(tuple((times[name], tuple(parts[name])) for name in parts if times[name]))

    def product_flops(self) -> int:
        """Floating-point operations of the matrix products of one device in one call.

        A product of [m, k] and [k, n] counts as 2 m k n. All of them are found in a program for the
        CPU; those for other devices leave some to libraries, and these are missing.
        """
        total = 0
        for times, instructions in self.computations:
            types = {one.name: one.type for one in instructions}
            for one in instructions:
                if one.opcode == "dot":
                    left = re.match(r"dot\([^%)]*%?([\w.-]+)", one.rest).group(1)
                    summed = re.search(r"\blhs_contracting_dims=\{([\d,]*)\}", one.rest).group(1)
                    [(_, left_shape)], [(_, shape)] = _arrays(types[left]), _arrays(one.type)
                    inner = math.prod(left_shape[axis] for axis in _numbers(summed))
                    total += times * 2 * inner * math.prod(shape)
        return total

    def collectives(self, mesh: Mapping[str, int]) -> tuple[Collective, ...]:
        """The collectives of one call, those of the most bytes first.

        XLA's CPU backend widens sums of bfloat16 to float32, and marks them; they are counted as
        the bfloat16 that other devices send.

        Args:
          mesh: the sizes of the axes of the program's mesh, in their order.
        """
        found: dict[tuple, np.ndarray] = {}
        for times, instructions in self.computations:
            for one in instructions:
                kind = one.opcode.removesuffix("-start")
                if kind not in KINDS:
                    continue
                groups = device_groups(one.rest, math.prod(mesh.values()))
                if max(map(len, groups)) == 1:  # nothing is sent
                    continue
                key = kind, _axes_of(groups, mesh), tuple(groups[0])
                size = _whole_bytes(kind, one, len(groups[0]))
                found[key] = found.get(key, 0) + times * np.array([1, size])
        every = [Collective(*key, *numbers.tolist()) for key, numbers in found.items()]
        return tuple(sorted(every, key=lambda one: -one.bytes))


@dataclasses.dataclass(frozen=True)
class Origin:
    """What an instruction was made of."""

    scope: str
    """From the outermost function to the operation: ``jit(f)/Transformer/encoder/.../add``; of
    several operations in one instruction, that of a matrix product or else of the last. Empty where
    XLA does not know.
    """
    multiplies: bool
    """Whether there is a matrix product in it."""


def origins(text: str) -> dict[str, Origin]:
    """The origin of each instruction that computes something itself, by its name; loops and
    branches are none.

    Args:
      text: as `Program.parse` takes it.
    """
    found: dict[str, Origin] = {}
    scopes: dict[str, str] = {}
    products: dict[str, str] = {}
    inside = ""
    for line in text.splitlines():
        if begins := _COMPUTATION.match(line):
            inside = begins.group(2)
        one = _INSTRUCTION.match(line)
        if one is None:
            continue
        name, _, opcode = one.groups()
        called, own = _CALLED.findall(line), _SCOPE.search(line)
        scope = (
            own.group(1) if own else next((scopes[part] for part in called if part in scopes), "")
        )
        of_products = [products[part] for part in called if part in products]
        multiplies = opcode == "dot" or bool(of_products)
        if multiplies:
            scope = products[inside] = next(filter(None, of_products), scope)
        if scope:
            scopes[inside] = scope
        if opcode not in ("while", "conditional"):
            found[name] = Origin(scope, multiplies)
    return found


def device_groups(text: str, devices: int) -> Groups:
    """The groups of a collective's line, in any of the ways of writing them.

    ``{{0,1},{2,3}}``: as lists. ``[2,2]<=[4]``: the devices 0 to 3 in two rows.
    ``[2,2]<=[2,2]T(1,0)``: transposed before that. ``mesh['a'=2,'b'=2] {'a'}``: along an axis of a
    mesh. ``{}`` or nothing: all devices. A permutation has its pairs, the farthest apart first.

    Args:
      text: the line.
      devices: how many there are.
    """
    pairs = _PAIRS.search(text)
    if pairs:
        moves = [pair for pair in _lists(pairs.group(1)) if pair[0] != pair[1]]
        return sorted(moves, key=lambda pair: -abs(pair[0] - pair[1])) or [[0]]
    found = _GROUPS.search(text)
    written = found.group(1) if found else "{}"
    if written.startswith("{"):
        return _lists(written) or [list(range(devices))]
    if written.startswith("["):
        shape, tiles, order = _IOTA.match(written).groups()
        return _tiled(tiles, order).reshape(_numbers(shape)).tolist()
    return _along_mesh_axes(*_MESH.match(written).groups())


def _along_mesh_axes(axes: str, ids: str | None, grouped: str) -> Groups:
    """Groups of a mesh ``'a'=8,'b'=2`` whose devices differ along the axes ``'a'`` or, of an axis
    seen as [2, 4, the rest], along the middle: ``'a':(2)4``.
    """
    parts: dict[str, list[tuple[int, int | None]]] = {}
    for axis in filter(None, grouped.split(",")):
        name, _, part = axis.partition(":")
        begin, width = map(int, part[1:].split(")")) if part else (1, None)
        parts.setdefault(name, []).append((begin, width))
    shape, together = [], []
    for name, size in (axis.split("=") for axis in axes.split(",")):
        size = int(size)
        named = [(begin, begin * (width or size)) for begin, width in parts.get(name, ())]
        cuts = sorted({1, size, *itertools.chain(*named)})
        for before, after in itertools.pairwise(cuts):
            shape.append(after // before)
            together.append(any(begin <= before < end for begin, end in named))
    devices = np.arange(math.prod(shape))
    if ids is not None:
        iota = _IOTA.match(ids)
        devices = _tiled(*iota.groups()[1:]) if iota else np.array(_numbers(ids))
    last = sorted(range(len(shape)), key=together.__getitem__)
    width = math.prod(itertools.compress(shape, together))
    return devices.reshape(shape).transpose(last).reshape(-1, width).tolist()


def _axes_of(groups: Groups, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The axes along which the devices of any group differ."""
    differ = np.zeros(len(mesh), bool)
    for group in groups:
        places = np.array(np.unravel_index(group, tuple(mesh.values())))
        differ |= (places != places[:, :1]).any(axis=1)
    return tuple(itertools.compress(mesh, differ))


def _calls(one: _Instruction) -> Iterator[tuple[str, int]]:
    """The computations that an instruction runs, and how often."""
    if one.opcode.endswith(("-done", "-update")):
        return  # of what its start runs
    trips = _TRIPS.search(one.rest) if one.opcode == "while" else None
    passes = int(trips.group(1)) if trips else 1
    called = _CALLED.findall(one.rest)
    for branches in _BRANCHES.findall(one.rest):
        called += [branch.strip(" %") for branch in branches.split(",")]
    for name in called:
        yield name, passes


def _whole_bytes(kind: str, one: _Instruction, devices: int) -> int:
    """Of the arrays that a group makes together."""
    result = one.type
    if one.opcode.endswith("-start") and result.startswith("(") and kind != "all-reduce":
        result = _elements(result)[1]  # beside the operands
    size = sum(-(-math.prod(shape) * bits // 8) for bits, shape in _arrays(result))
    if kind == "reduce-scatter":
        return size * devices
    return size // 2 if kind == "all-reduce" and _PROMOTED.search(one.rest) else size


def _elements(text: str) -> list[str]:
    """The elements of a tuple's type: of ``(a, (b, c))`` they are ``a`` and ``(b, c)``."""
    parts, depth, begin = [], 0, 1
    for place, letter in enumerate(text):
        depth += (letter in "({[") - (letter in ")}]")
        if (letter == "," and depth == 1) or depth == 0:
            parts.append(text[begin:place].strip())
            begin = place + 1
    return parts


def _arrays(text: str) -> list[tuple[int, tuple[int, ...]]]:
    """Bits an element and shape of the arrays in a type; what names no width takes a byte."""
    return [
        (int(bits or 8), tuple(_numbers(shape.replace("<=", ""))))
        for bits, shape in _ARRAY.findall(text)
    ]


def _tiled(shape: str, order: str | None) -> np.ndarray:
    """The devices in order, as an array of a shape, transposed."""
    sizes = _numbers(shape)
    devices = np.arange(math.prod(sizes)).reshape(sizes)
    return devices if order is None else devices.transpose(_numbers(order))


def _lists(text: str) -> Groups:
    return [_numbers(inner) for inner in re.findall(r"\{(\d[\d,]*)\}", text)]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]
