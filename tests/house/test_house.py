# SPDX-License-Identifier: Apache-2.0
"""The house rules that a program can check: imports, licenses, module names, library boundaries."""

import ast
import functools
import os
import re
import subprocess
import sys

import pytest
from apps import REPOSITORY

PACKAGES = ("transformer", "experiments")
FILES = sorted(
    path
    for folder in (*PACKAGES, "notebooks", "scripts", "tests")
    for path in (REPOSITORY / folder).rglob("*.py")
    if "__pycache__" not in path.parts
)


def python(*arguments, **variables):
    """Run this interpreter in the repository."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=REPOSITORY,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def relative(path):
    """The path below the repository."""
    return str(path.relative_to(REPOSITORY))


@functools.cache
def imported_libraries(path):
    """Top-level names of all modules that a file imports, at any depth of its code."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names


def test_the_import_contracts_hold():
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    finished = python("-c", program, "--no-cache")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "0 broken" in finished.stdout


@pytest.mark.parametrize("command", [("check",), ("format", "--check")], ids=" ".join)
def test_ruff_reports_nothing(command):
    finished = python("-m", "ruff", *command, "--no-cache", ".")
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_the_checked_files_include_every_kind():
    checked = {relative(path) for path in FILES}
    assert {"transformer/models/transformer.py", "experiments/train.py"} <= checked
    assert {"experiments/configs/base.py", "tests/house/test_house.py"} <= checked


def test_every_file_has_a_license_line_and_a_docstring():
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        start = r'# SPDX-License-Identifier: Apache-2.0\n(#.*\n)*"""\S'
        assert re.match(start, text), relative(path)


def test_no_module_is_a_drawer_for_everything():
    drawers = ("utils", "util", "helpers", "misc", "common")
    assert [relative(path) for path in FILES if path.stem.strip("_") in drawers] == []


def test_the_architecture_page_lists_every_room():
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(.*)/` \|", page, re.MULTILINE)
    rooms = {
        relative(path.parent) for path in FILES if path.relative_to(REPOSITORY).parts[0] in PACKAGES
    }
    assert sorted(listed) == sorted(rooms)


def test_an_import_defines_no_flag_of_an_app():
    """absl would accept it in every app, and nothing would read it."""
    defining = {
        relative(path)
        for path in FILES
        if path.relative_to(REPOSITORY).parts[0] in PACKAGES
        and "flags.DEFINE_" in path.read_text(encoding="utf-8")
    }
    # `dry_run`, which every app has, and the flags of the options of the app that runs.
    assert defining == {"experiments/cli/command_line.py", "experiments/cli/options.py"}


def test_fast_moving_libraries_are_imported_in_one_module_each():
    homes = {
        "orbax": {"transformer/checkpoints/manager.py"},
        "sentencepiece": {"transformer/text/tokenizer.py"},
        "sacrebleu": {"transformer/text/metrics.py"},
    }
    importers = {library: set() for library in homes}
    for path in FILES:
        if path.relative_to(REPOSITORY).parts[0] in PACKAGES:
            for library in imported_libraries(path) & homes.keys():
                importers[library].add(relative(path))
    assert importers == homes


BACKENDS = {"cpu", "cuda", "gpu", "rocm", "tpu", "default_backend", "platform"}


def words_of(path):
    """The names and the string constants of a file's code, docstrings left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    prose = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield from node.name.split(".")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in prose:
            yield node.value


def test_no_module_of_the_model_names_a_backend():
    """`transformer.platforms` chooses the forms of operations."""
    named = {
        relative(path): BACKENDS & set(words_of(path))
        for folder in ("nn", "models", "kernels", "decoding")
        for path in (REPOSITORY / "transformer" / folder).rglob("*.py")
    }
    found = {path: words for path, words in named.items() if words}
    assert found == {"transformer/kernels/fused.py": {"cuda", "platform"}}


def test_the_library_draws_only_in_its_figures():
    figures = "transformer/inspection/figures/"
    library = [path for path in FILES if relative(path).startswith("transformer/")]
    drawing = {relative(path) for path in library if "matplotlib" in imported_libraries(path)}
    assert drawing, "some module draws"
    assert {path for path in drawing if not path.startswith(figures)} == set()


def test_nothing_patches_another_library():
    # Code of the packages replaces no attribute of a library and installs no global hook.
    forbidden = (
        "unittest.mock",
        "from unittest import mock",
        "sys.unraisablehook",
        "sys.excepthook",
    )
    patching = [
        relative(path)
        for path in FILES
        if path.relative_to(REPOSITORY).parts[0] in PACKAGES
        and any(word in path.read_text(encoding="utf-8") for word in forbidden)
    ]
    assert patching == []


ALONE = '''
import builtins, importlib.metadata, re, sys

OWN = {"jax", "jaxlib", "flax", "optax", "orbax", "etils", "jaxtyping", "numpy"}
"""What the library itself may import, beside the standard library."""

def needed_by(names):
    """The distributions of these names and all that they require."""
    found = set()
    while names:
        name = re.sub(r"[-_.]+", "-", names.pop()).lower()
        if name not in found:
            try:
                requirements = importlib.metadata.requires(name) or ()
            except importlib.metadata.PackageNotFoundError:
                continue
            found.add(name)
            names += [re.match(r"[\\w.-]+", r)[0] for r in requirements if "extra ==" not in r]
    return found

needed = needed_by(["jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "jaxtyping", "numpy"])
UNNEEDED = {
    module
    for module, distributions in importlib.metadata.packages_distributions().items()
    if not any(re.sub(r"[-_.]+", "-", name).lower() in needed for name in distributions)
} - {"transformer"}
ABSENT = ("sentencepiece", "sacrebleu", "matplotlib", "tensorflow_datasets", "grain",
          "ml_collections", "tensorboard", "beartype", "experiments", "tensorflow", "torch")

class Finder:
    """Another finder, to which what is not needed is not installed."""

    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in UNNEEDED | set(ABSENT):
            return None
        return self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Finder, sys.meta_path)
plain = builtins.__import__

def checked(name, globals=None, locals=None, fromlist=(), level=0):
    importer, top = (globals or {}).get("__name__", ""), name.partition(".")[0]
    if importer.partition(".")[0] == "transformer" and level == 0:
        if top not in OWN | {"transformer", *sys.stdlib_module_names}:
            sys.exit(f"{importer} imports {name}")
    return plain(name, globals, locals, fromlist, level)

builtins.__import__ = checked

import tempfile
import flax.linen as nn
import jax
import jax.numpy as jnp
import transformer
from transformer.checkpoints.manager import Checkpoints
from transformer.decoding import beam_search

config = transformer.Config(model=transformer.TransformerConfig(
    vocab_size=11, num_layers=1, d_model=8, d_ff=8, num_heads=2))
model = transformer.build(config.model)
optimizer = transformer.optimizer(model)
state = jax.jit(lambda key: transformer.TrainState.create(model, optimizer, key))(jax.random.key(0))
source = jnp.array([[4, 5, 6, 2], [7, 2, 0, 0]])
step = jax.jit(transformer.train_step, static_argnums=(0, 1))
state, sums = step(model, optimizer, state, transformer.Batch(source, source))
assert int(state.step) == 1 and float(sums.tokens) == 6, sums

def translate(params):
    call = lambda method, *a: model.apply({"params": params}, *a, method=method)
    memory = call(model.encode, source)
    return beam_search.beam_search(
        lambda tokens, cache: call(model.step, tokens, cache),
        model.reorder,
        call(model.init_cache, memory, source, 2, 5),
        jnp.array([5, 3]),
        num_beams=2,
        max_length=5,
    )

found = jax.jit(translate)(state.params)
assert found.tokens.shape == (2, 2, 5), found
assert ((found.tokens[:, 0] == 2).sum(-1) == 1).all(), found

here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
abstract = jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), state)
with tempfile.TemporaryDirectory() as folder:
    with Checkpoints(folder, config.training, writing=True) as checkpoints:
        checkpoints.save(state, {})
    with Checkpoints(folder, config.training) as checkpoints:
        checkpoints.restore_params(abstract.params)

for name in ABSENT:
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    sys.exit(f"{name} was to be absent")
print("imported, trained, decoded")
'''
"""A program for an interpreter in which only what the library needs is installed."""


def test_the_library_imports_trains_and_decodes_with_jax_flax_optax_orbax_and_jaxtyping_alone():
    finished = python("-c", ALONE, JAX_DISABLE_MOST_OPTIMIZATIONS="1")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == "imported, trained, decoded\n"
