# SPDX-License-Identifier: Apache-2.0
"""The glossary of axis letters, special ids, gathers, and that tests check shapes."""

import ast
import collections
import pathlib
import re

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from transformer import arrays
from transformer.arrays import SpecialIds, gather
from transformer.batch import Batch
from transformer.nn import masks, positions
from transformer.training.step import TrainState

PACKAGE = pathlib.Path(arrays.__file__).parent
TYPES = {"Bool", "Float", "Int", "Key", "UInt"}


def axes_of_annotation(text):
    """``*#B T L+1 rows 3`` as the names B, T, L and rows."""
    return re.findall(r"[A-Za-z]\w*", text)


def axes_in(tree):
    """The axis names of every array annotation and every einsum string of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") in TYPES:
            shape = node.slice.elts[-1]
            if isinstance(shape, ast.Constant):
                yield from axes_of_annotation(shape.value)
        if isinstance(node, ast.Constant) and re.fullmatch(
            r"[A-Za-z.]+(,[A-Za-z.]+)*->[A-Za-z.]*", str(node.value)
        ):
            yield from re.findall("[A-Za-z]", node.value)


def used():
    """From each axis name to the files that use it."""
    files = collections.defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for axis in axes_in(ast.parse(path.read_text(encoding="utf-8"))):
            files[axis].add(path.relative_to(PACKAGE).as_posix())
    return files


def glossary():
    """From each letter in the table of `transformer.arrays` to its meaning."""
    table = "\n".join(line for line in arrays.__doc__.splitlines() if line.startswith("    "))
    entries = re.findall(r"(?<!\S)([A-Za-z])  (\S+(?: \S+)*)", table)
    assert len(entries) == len(dict(entries)), "a letter has two meanings"
    return dict(entries)


def test_the_glossary_has_every_letter_that_names_an_axis():
    letters = {axis: files for axis, files in used().items() if len(axis) == 1}
    known = set(glossary()) | set("rxy")
    assert {axis: files for axis, files in letters.items() if axis not in known} == {}


def test_every_letter_of_the_glossary_is_used():
    assert set(glossary()) <= set("".join(axis for axis in used() if axis.isupper())) | set("k")


def test_names_that_begin_with_a_letter_of_the_glossary_are_those_it_explains():
    """Any other axis has a lower-case name."""
    names = {axis: files for axis, files in used().items() if len(axis) > 1}
    explained = {"Hv", "BG"}
    assert {n: f for n, f in names.items() if not n.islower() and n not in explained} == {}


def test_special_ids_are_the_first_and_differ():
    assert list(SpecialIds()) == [0, 1, 2, 3]


def test_every_call_in_these_tests_is_checked_for_shape_and_type():
    with pytest.raises(jaxtyping.TypeCheckError):
        masks.padding_mask(jnp.zeros((2, 3, 4), jnp.int32))
    with pytest.raises(jaxtyping.TypeCheckError):
        positions.shift_right(jnp.zeros((2, 3)))


def test_a_gather_is_numpys():
    values = np.arange(24).reshape(2, 3, 4)
    indices = np.array([[2, 0], [1, 1]])[..., None]
    expected = np.take_along_axis(values, indices, axis=1)
    np.testing.assert_array_equal(gather(jnp.asarray(values), jnp.asarray(indices)), expected)


def test_a_pytree_prints_shapes_and_not_numbers():
    batch = Batch(jnp.zeros((2, 3), jnp.int32), np.zeros((2, 4), np.int32))
    assert repr(batch) == "Batch(source=int32[2,3], target=int32[2,4])"
    state = TrainState(jnp.int32(7), {"a": jnp.zeros((2, 3))}, (), jax.random.key(0))
    assert repr(state) == (
        "TrainState(step=7, params={1 arrays, 6 elements}, opt_state=(), rng=key<fry>[])"
    )
