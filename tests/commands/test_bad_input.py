# SPDX-License-Identifier: Apache-2.0
"""Invalid input results in exit status 1, one helpful message, and no changed file."""

import hashlib
import json
import os
import shutil

import jax
import jax.numpy as jnp
import oracle
import pytest
from apps import CONFIGS, run

from transformer.checkpoints.identity import Identity
from transformer.checkpoints.manager import Checkpoints
from transformer.config import (
    Config,
    DataConfig,
    DecodeConfig,
    LoggingConfig,
    TrainingConfig,
    TransformerConfig,
)
from transformer.fields import flat
from transformer.models import protocol
from transformer.text.tokenizer import Tokenizer
from transformer.training import optimizers
from transformer.training.step import TrainState

WORDS = ["a b c d", "d c b", "a a", "b d"] * 5
FILES = {
    "words": "".join(line + "\n" for line in WORDS).encode(),
    "shorter": "".join(line + "\n" for line in WORDS[:-2]).encode(),
    "latin": b"a b\nc d\nsch\xf6n\n",
    "empty": b"",
    "blank": b"\n\n\n",
    "long": b"a b c d a b c d a b c d\n" * 20,
    "syntax.py": b"def get_config():\n    return (\n",
    "nothing.py": b"config = {}\n",
    "config.txt": b"def get_config(): pass\n",
}


def config_of(folder):
    """A tiny experiment on the words."""
    words = str(folder / "words")
    return Config(
        model=TransformerConfig(vocab_size=8, num_layers=1, d_model=8, d_ff=8, num_heads=2),
        decode=DecodeConfig(beams=2, extra_length=2),
        data=DataConfig(
            dataset="text_files",
            tokenizer="word",
            max_length=8,
            bucket_lengths=(8,),
            tokens_per_batch=64,
            **{f"{split}_{side}": words for split in SPLITS for side in ("source", "target")},
        ),
        training=TrainingConfig(steps=2, validate_every=1),
        logging=LoggingConfig(tensorboard=False),
    )


SPLITS = ("train", "validation")


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A folder with the files above and an untrained workdir `run` with two checkpoints."""
    folder = tmp_path_factory.mktemp("given")
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    config = config_of(folder)
    (folder / "run").mkdir()
    (folder / "run" / "config.json").write_text(config.to_json())
    tokenizer = Tokenizer.train(WORDS, 8, "word")
    (folder / "run" / "tokenizer.model").write_bytes(tokenizer.model)
    model = protocol.build(config.model)
    params = oracle.random_params(model, seed=0)
    opt_state = optimizers.optimizer(model, config.optimizer, 2).init(params)
    identity = Identity.of(config.model, tokenizer.model, tokenizer.model)
    with Checkpoints(folder / "run", config.training, identity, writing=True) as checkpoints:
        for step in (1, 2):
            state = TrainState(jnp.asarray(step), params, opt_state, jax.random.key(0))
            checkpoints.save(state, {}, {"nll": 1.0})
    return folder


@pytest.fixture
def given_copy(given, tmp_path):
    """A copy of that folder that a test may damage."""
    return shutil.copytree(given, tmp_path / "given_copy")


def training(folder, **changes):
    """The flags of the config of `folder/run`, with changes."""
    fields = {name: value for name, value in flat(config_of(folder)).items() if value is not None}
    fields |= {name.replace("__", "."): value for name, value in changes.items()}
    return [
        f"--config={CONFIGS / 'base.py'}",
        *(f"--config.{name}={value}" for name, value in fields.items() if value is not None),
    ]


def contents(folder):
    """The digest of every file, by relative path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def break_checkpoints(folder):
    """Damage both checkpoints."""
    for step in ("1", "2"):
        (folder / "run" / "checkpoints" / step / "meta" / "metadata").write_bytes(b"{")


def replace_by_fifo(path):
    """Replace a file by a FIFO; reading it would wait for a writer."""
    path.unlink()
    os.mkfifo(path)


def breaking(name, data):
    """Overwrite a file of the workdir."""
    return lambda folder: (folder / "run" / name).write_bytes(data)


def edit_config(group, **changes):
    """Change fields of the config of the workdir."""

    def edit(folder):
        path = folder / "run" / "config.json"
        values = json.loads(path.read_text())
        values[group] |= changes
        path.write_text(json.dumps(values))

    return edit


def new(**changes):
    """Train in a new workdir with changed fields; `{here}` is the folder."""
    return "train", ["--workdir={here}/new"], changes


def old(**changes):
    """Train in the existing workdir."""
    return "train", ["--workdir={here}/run"], changes


def app(name, *arguments, workdir="{here}/run"):
    """Run another app on the existing workdir."""
    return name, [f"--workdir={workdir}", *arguments], None


PAIR = ("--source={here}/words", "--target={here}/words")

CASES = {
    # The data.
    "unequal line counts": (
        new(data__train_target="{here}/shorter"),
        ["words has 20 lines", "shorter has 18"],
    ),
    "bad byte": (new(data__train_source="{here}/latin"), ["latin:3:", "0xf6", "UTF-8", "iconv"]),
    "bad byte in the validation": (
        new(data__validation_target="{here}/latin"),
        ["latin:3:", "UTF-8"],
    ),
    "empty file": (new(data__train_source="{here}/empty"), ["empty is empty"]),
    "only empty lines": (
        new(data__train_source="{here}/blank", data__train_target="{here}/blank"),
        ["training text", "no sentence"],
    ),
    "missing file": (new(data__train_source="{here}/no"), ["{here}/no", "No such file"]),
    "a folder for a file": (new(data__train_source="{here}/run"), ["{here}/run", "directory"]),
    "no training files": (new(data__train_source=None), ["--config.data.train_source=FILE"]),
    "no validation files": (
        new(data__validation_target=None),
        ["--config.data.validation_target=FILE"],
    ),
    "all too long": (
        new(data__train_source="{here}/long", data__train_target="{here}/long"),
        ["of 20 training pairs 0", "20 are longer than data.max_length = 8"],
    ),
    "unknown dataset": (
        new(data__dataset="symbol_grammar/copy"),
        ["'symbol_grammar/copy'", "did you mean 'symbols_grammar/copy'?"],
    ),
    "vocabulary too large": (
        new(model__vocab_size=500),
        ["model.vocab_size is 500", "--config.model.vocab_size=8"],
    ),
    # The config.
    "unknown field": (new(model__num_layer=2), ["'model.num_layer'", "'model.num_layers'"]),
    "wrong type": (new(model__d_ff="wide"), ["model.d_ff", "wide"]),
    "wrong choice": (new(model__norm="middle"), ["model.norm", "'post', 'pre'"]),
    "wrong size": (new(model__num_heads=3), ["model.num_heads is 3", "model.d_model = 8"]),
    "too many devices": (new(parallel__data=512), ["parallel.data", "512"]),
    "no config": (
        ("train", ["--workdir={here}/new"], None),
        ["--config=NAME or --config=FILE.py"],
    ),
    "config missing": (("train", ["--config={here}/no.py"], None), ["no file {here}/no.py"]),
    "config not Python": (("train", ["--config={here}/config.txt"], None), ["not a Python file"]),
    "config with a syntax error": (
        ("train", ["--config={here}/syntax.py"], None),
        ["{here}/syntax.py:2", "never closed"],
    ),
    "config without get_config": (
        ("train", ["--config={here}/nothing.py"], None),
        ["{here}/nothing.py does not define get_config()"],
    ),
    # The workdir.
    "no workdir to train in": (("train", [], {}), ["--workdir=DIRECTORY"]),
    "no workdir to read": (("evaluate", ["--split=test"], None), ["--workdir=DIRECTORY"]),
    "missing workdir": (app("translate", workdir="{here}/no"), ["{here}/no does not exist"]),
    "workdir is a file": (
        ("train", ["--workdir={here}/words"], {}),
        ["{here}/words", "name a directory"],
    ),
    "workdir below a file": (("train", ["--workdir={here}/words/run"], {}), ["{here}/words/run"]),
    "reading a workdir that is a file": (app("translate", workdir="{here}/words"), ["words"]),
    "not a workdir": (app("translate", workdir="{here}"), ["config.json", "workdir of train"]),
    "workdir of another config": (
        old(model__d_ff=16),
        ["model.d_ff: 8 there, 16 now", "another --workdir"],
    ),
    "config.json broken": (
        app("translate"),
        ["config.json:1:", "not JSON"],
        breaking("config.json", b'{"model": '),
    ),
    "config.json broken for training": (
        old(),
        ["config.json:1:", "not JSON"],
        breaking("config.json", b""),
    ),
    "config.json with a field of another version": (
        app("translate"),
        ["config.json", "unknown config field 'decode.beam'"],
        edit_config("decode", beam=3),
    ),
    "config.json nested too deeply": (
        app("translate"),
        ["config.json: nested too deeply"],
        breaking("config.json", b"[" * 100_000),
    ),
    "config.json of another model": (
        app("translate"),
        ["model.d_ff is 32, but", "checkpoints/2 was trained with 8", "restore config.json"],
        edit_config("model", d_ff=32),
    ),
    "config.json with another sinusoid layout": (
        app("score", *PAIR),
        ["model.sinusoid_layout is 'halves'", "checkpoints/2 was trained with 'interleaved'"],
        edit_config("model", sinusoid_layout="halves"),
    ),
    "config.json with another epsilon, to average with": (
        app("translate", "--average=2"),
        ["model.norm_epsilon is 0.001", "checkpoints/1 was trained with 1e-06"],
        edit_config("model", norm_epsilon=1e-3),
    ),
    "config.json with another norm, to continue": (
        old(training__steps=3, model__norm="pre"),
        ["model.norm is 'pre'", "checkpoints/2 was trained with 'post'"],
        edit_config("model", norm="pre"),
    ),
    "another sinusoid layout after training": (
        app("translate", "--config.model.sinusoid_layout=halves"),
        ["model.sinusoid_layout is 'interleaved' in the training", "cannot be 'halves' after it"],
    ),
    "another width after training": (
        app("translate", "--config.model.d_model=64"),
        ["model.d_model is 8 in the training", "cannot be 64", "leave --config.model.d_model out"],
    ),
    "tokenizer.model of another training": (
        app("translate"),
        ["tokenizer.model has the SHA-256", "checkpoints/2", "restore tokenizer.model"],
        breaking("tokenizer.model", Tokenizer.train(["e f g h"], 8, "word").model),
    ),
    "tokenizer.model of another size": (
        app("evaluate", *PAIR),
        ["tokenizer.model has the SHA-256", "restore tokenizer.model"],
        breaking("tokenizer.model", Tokenizer.train(["e f g h i"], 9, "word").model),
    ),
    "tokenizer.model of another training, to continue": (
        old(training__steps=3),
        ["tokenizer.model has the SHA-256", "restore tokenizer.model"],
        breaking("tokenizer.model", Tokenizer.train(["e f g h"], 8, "word").model),
    ),
    "tokenizer.model broken": (
        app("translate"),
        ["tokenizer.model", "from a copy"],
        breaking("tokenizer.model", b"broken"),
    ),
    "tokenizer.model broken for training": (
        old(training__steps=3),
        ["tokenizer.model", "from a copy"],
        breaking("tokenizer.model", b"broken"),
    ),
    "tokenizer.model missing": (
        app("translate"),
        ["tokenizer.model"],
        lambda folder: (folder / "run" / "tokenizer.model").unlink(),
    ),
    "result.json broken": (old(), ["result.json"], breaking("result.json", b"{")),
    "metrics.jsonl broken": (
        old(training__steps=3),
        ["metrics.jsonl:2"],
        breaking("metrics.jsonl", b'{"step": 1, "split": "train"}\n\0\0\0\n'),
    ),
    "no checkpoints": (
        app("translate"),
        ["has no checkpoints; train first"],
        lambda folder: shutil.rmtree(folder / "run" / "checkpoints"),
    ),
    "a FIFO in both checkpoints": (
        app("translate"),
        ["no intact checkpoint left", "step 2: file params/pipe is not a regular file"],
        lambda folder: [
            os.mkfifo(folder / "run" / "checkpoints" / step / "params" / "pipe")
            for step in ("1", "2")
        ],
    ),
    "a FIFO for the metadata of both checkpoints, to continue": (
        old(training__steps=3),
        ["no intact checkpoint left", "step 2: file _CHECKPOINT_METADATA is not a regular file"],
        lambda folder: [
            replace_by_fifo(folder / "run" / "checkpoints" / step / "_CHECKPOINT_METADATA")
            for step in ("1", "2")
        ],
    ),
    "a FIFO for the config": (
        app("translate"),
        ["run/config.json is not a regular file; restore it from a copy"],
        lambda folder: replace_by_fifo(folder / "run" / "config.json"),
    ),
    "a FIFO for the tokenizer": (
        app("translate"),
        ["run/tokenizer.model is not a regular file; restore it from a copy"],
        lambda folder: replace_by_fifo(folder / "run" / "tokenizer.model"),
    ),
    "no intact checkpoint left to translate with": (
        app("translate"),
        ["no intact checkpoint left", "step 1", "step 2", "meta/metadata"],
        break_checkpoints,
    ),
    "no intact checkpoint left to continue from": (
        old(training__steps=3),
        ["no intact checkpoint left", "step 1", "step 2", "meta/metadata"],
        break_checkpoints,
    ),
    "checkpoints without a config": (
        old(),
        ["checkpoints but no config.json"],
        lambda folder: (folder / "run" / "config.json").unlink(),
    ),
    # The flags of the apps.
    "more translations than beams": (app("translate", "--nbest=3"), ["nbest", "decode.beams is 2"]),
    "no translations": (app("translate", "--nbest=0"), ["nbest=0", "decode.beams"]),
    "a word for a number": (app("translate", "--nbest=two"), ["nbest", "two"]),
    "input missing": (app("translate", "--input={here}/no"), ["{here}/no", "No such file"]),
    "input with a bad byte": (app("translate", "--input={here}/latin"), ["latin:3:", "0xf6"]),
    "standard input with a bad byte": (app("translate"), ["standard input:2:", "0xff"]),
    "output in a missing folder": (
        app("translate", "--input={here}/words", "--output={here}/no/out"),
        ["{here}/no/out", "No such file"],
    ),
    "averaging too many": (app("translate", "--average=3"), ["--average=3", "holds 2"]),
    "decoding field unknown": (
        app("translate", "--config.decode.beam=3"),
        ["'decode.beam'", "'decode.beams'"],
    ),
    "source without target": (app("evaluate", PAIR[0]), ["--source and --target go together"]),
    "target without source": (app("evaluate", PAIR[1]), ["--source and --target go together"]),
    "evaluating unequal files": (
        app("evaluate", PAIR[0], "--target={here}/shorter"),
        ["words has 20 lines", "shorter has 18"],
    ),
    "unknown split": (app("evaluate", "--split=tset"), ["'tset'", "train, validation, test"]),
    "split without files": (app("evaluate", "--split=test"), ["--config.data.test_source=FILE"]),
    "scoring without files": (app("score"), ["--source=FILE"]),
    "scoring without a target": (app("score", PAIR[0]), ["--target=FILE"]),
    "scoring unequal files": (
        app("score", PAIR[0], "--target={here}/shorter"),
        ["words has 20 lines", "shorter has 18"],
    ),
    "unknown flag": (app("evaluate", "--splt=test"), ["splt", "split"]),
    "stray argument": (app("translate", "words"), ["'words'"]),
}


@pytest.mark.parametrize("name", CASES)
def test_one_message_names_the_problem_and_no_file_changes(given, given_copy, name):
    (program, arguments, changes), words, *breakage = CASES[name]
    for make in breakage:
        make(given_copy)
    arguments = [argument.replace("{here}", str(given_copy)) for argument in arguments]
    if changes is not None:
        changes = {
            field: value.replace("{here}", str(given_copy)) if isinstance(value, str) else value
            for field, value in changes.items()
        }
        arguments += training(given, **changes)
    before = contents(given_copy)
    finished = run(f"experiments.{program}", *arguments, stdin=b"a b\n\xff\n")

    assert finished.status == 1, finished
    assert finished.out == ""
    assert "Traceback" not in finished.err
    assert finished.err.count("error: ") == 1
    message = finished.err[finished.err.index("error: ") :]
    assert len(message.splitlines()) <= 4, message
    for word in words:
        assert word.replace("{here}", str(given_copy)) in message
    after = contents(given_copy)
    assert {path: after.get(path) for path in before} == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"model__vocab_size": 500}, id="vocabulary", marks=pytest.mark.slow),
        pytest.param({"data__train_source": "no such file"}, id="path"),
        pytest.param(
            {"data__tokenizer": "bpe", "model__vocab_size": 6},
            id="tokenizer",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"data__max_length": 2, "data__bucket_lengths": "(2,)"},
            id="length",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_corrected_command_works_in_the_same_workdir(given, tmp_path, wrong):
    workdir = f"--workdir={tmp_path / 'new'}"
    refused = run("experiments.train", workdir, *training(given, **wrong))
    assert refused.status == 1, "this one is wrong"
    corrected = run("experiments.train", workdir, *training(given))
    assert corrected.status == 0, corrected.err
    assert corrected.result["step"] == 2
