# SPDX-License-Identifier: Apache-2.0
"""A bundle is one file that translates like the workdir it was made from."""

import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from apps import run
from workdirs import WORDS

from transformer.checkpoints.workdir_files import load_config, load_inference_config, load_runs
from transformer.errors import InputError
from transformer.fields import difference
from transformer.translator import Translator

TEXT = "".join(f"{line}\n" for line in WORDS[:4]).encode()


@pytest.fixture(scope="module")
def bundle(given, tmp_path_factory):
    """Path of a bundle of the workdir `given`/run, and the finished command."""
    path = tmp_path_factory.mktemp("bundle") / "model.zip"
    finished = run("experiments.bundle", f"--workdir={given / 'run'}", f"--output={path}")
    assert finished.status == 0, finished.err
    return path, finished


def test_fields_on_the_command_line_are_in_the_bundle(given, tmp_path):
    path = tmp_path / "model.zip"
    fields = "--config.decode.beams=3", "--config.model.compute_dtype=bfloat16"
    finished = run("experiments.bundle", f"--workdir={given / 'run'}", f"--output={path}", *fields)
    assert finished.status == 0, finished.err
    before, after = load_config(given / "run"), load_config(path)
    assert difference(before, after) == {
        "decode.beams": (before.decode.beams, 3),
        "model.compute_dtype": ("float32", "bfloat16"),
    }
    assert load_runs(path) == load_runs(given / "run")


def test_a_bundle_has_no_training_state(bundle):
    path, finished = bundle
    assert finished.result == {
        "output": str(path),
        "bytes": path.stat().st_size,
        "dtype": "float32",
    }
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
    assert names == {"README.md", "config.json", "params.msgpack", "tokenizer.model"}


def test_the_model_card_describes_the_model(bundle, given):
    card = (zipfile.Path(bundle[0]) / "README.md").read_text(encoding="utf-8")
    assert card.startswith("# run\n")
    count = sum(leaf.size for leaf in jax.tree.leaves(Translator.from_workdir(bundle[0]).params))
    assert f"| model | transformer, {count:,} parameters (float32) |" in card
    assert "| vocabulary | 8 tokens (word) |" in card
    assert f"| training data | {given / 'words'} (forward) |" in card
    assert "| checkpoints | step 2 |" in card
    assert f"| jax | {jax.__version__} |" in card
    assert '"norm": "post"' in card


def test_the_model_card_has_the_last_validation_of_a_result(given_copy, tmp_path):
    workdir, cards = given_copy / "run", []
    for result in ('{"validation": {"nll": 1.2345, "bleu": 50.0}}', "{"):
        (workdir / "result.json").write_text(result)
        path = tmp_path / f"{len(cards)}.zip"
        assert run("experiments.bundle", f"--workdir={workdir}", f"--output={path}").status == 0
        cards.append((zipfile.Path(path) / "README.md").read_text(encoding="utf-8"))
    assert "| last validation, nll | 1.234 |" in cards[0]
    assert "| last validation, bleu | 50 |" in cards[0]
    assert "validation" not in cards[1].replace("best checkpoint by validation", "")


def test_apps_read_a_bundle_like_the_workdir(bundle, given):
    words = given / "words"
    for app, *flags in (
        ("translate", "--nbest=2", "--scores"),
        ("score", f"--source={words}", f"--target={words}"),
    ):
        outputs = []
        for workdir in (given / "run", bundle[0]):
            finished = run(f"experiments.{app}", f"--workdir={workdir}", *flags, stdin=TEXT)
            assert finished.status == 0, finished.err
            outputs.append(finished.out)
        assert outputs[0] == outputs[1] != ""


def test_bfloat16_takes_half_the_space_and_rounds(bundle, given, tmp_path):
    half = tmp_path / "half.zip"
    arguments = f"--workdir={given / 'run'}", f"--output={half}", "--dtype=bfloat16"
    assert run("experiments.bundle", *arguments).status == 0
    sizes = []
    for path in (half, bundle[0]):
        with zipfile.ZipFile(path) as archive:
            sizes.append(archive.getinfo("params.msgpack").file_size)
    assert sizes[0] < 0.7 * sizes[1]
    exact, rounded = (Translator.from_workdir(path).params for path in (bundle[0], half))

    def check(leaf, other):
        assert other.dtype == leaf.dtype == jnp.float32
        np.testing.assert_array_equal(other, leaf.astype(jnp.bfloat16).astype(jnp.float32))

    jax.tree.map(check, exact, rounded)


def test_a_damaged_bundle_is_refused_with_one_line(bundle, tmp_path):
    intact, path = bundle[0].read_bytes(), tmp_path / "damaged.zip"
    for name in ("params.msgpack", "config.json", "tokenizer.model"):
        data = bytearray(intact)
        with zipfile.ZipFile(bundle[0]) as archive:
            info = archive.getinfo(name)
        data[info.header_offset + 30 + len(name) + info.compress_size // 2] ^= 1
        path.write_bytes(bytes(data))
        finished = run("experiments.translate", f"--workdir={path}", stdin=TEXT)
        assert (finished.status, finished.out) == (1, "")
        assert str(path) in finished.err
        assert finished.err.startswith("error: ") and finished.err.count("\n") == 1, finished.err
    for length in (0, 10, 1000, -30):
        path.write_bytes(intact[:length])
        with pytest.raises(InputError, match="damaged.zip is not a workdir, and cannot be read as"):
            Translator.from_workdir(path)


def test_what_a_bundle_cannot_do_is_refused(bundle, tmp_path):
    for command, message in (
        ("evaluate", "is a bundle, which keeps no evaluations"),
        ("translate --average=2", "--average=2, but the bundle"),
        ("translate --config.model.norm=pre", "model.norm"),
        ("bundle", "missing --output=FILE"),
        ("bundle --output={folder}", "is a directory; name a file"),
        ("bundle --output={folder}/x --ensemble=a", "a bundle holds one model"),
    ):
        app, *flags = command.format(folder=tmp_path).split()
        finished = run(f"experiments.{app}", f"--workdir={bundle[0]}", *flags, stdin=TEXT)
        assert (finished.status, finished.out) == (1, ""), command
        assert message in finished.err
        assert "Traceback" not in finished.err


def test_the_model_of_a_workdir_and_of_a_bundle_cannot_be_changed(bundle, given):
    for path in (bundle[0], given / "run"):
        config = load_inference_config(path)
        other = config.replace(model=config.model.replace(norm="pre"))
        with pytest.raises(InputError, match="model.norm is 'pre', but .*config.json has 'post'"):
            Translator.from_workdir(path, other)
        half = config.replace(model=config.model.replace(compute_dtype="bfloat16"))
        Translator.from_workdir(path, half)
