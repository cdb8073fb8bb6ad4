# SPDX-License-Identifier: Apache-2.0
"""Invalid input results in exit status 1, one helpful message, and no changed file."""

import json
import os
import shutil

import pytest
from apps import run
from workdirs import WORDS, contents, training

from transformer.text.tokenizer import Tokenizer

FILES = {
    "shorter": "".join(f"{line}\n" for line in WORDS[:-2]).encode(),
    "latin": b"a b\nc d\nsch\xf6n\n",
    "empty": b"",
    "blank": b"\n\n\n",
    "long": b"a b c d a b c d a b c d\n" * 20,
}


def edited(group, **changes):
    """Change fields of the config of the workdir."""

    def edit(run):
        values = json.loads((run / "config.json").read_text())
        values[group] |= changes
        (run / "config.json").write_text(json.dumps(values))

    return edit


def holding(name, data):
    """Overwrite a file of the workdir."""
    return lambda run: (run / name).write_bytes(data)


def without(name):
    """Remove a file or folder of the workdir."""
    return lambda run: shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink()


def fifo(name):
    """Replace a file with a FIFO; reading it would wait for a writer."""

    def replace(run):
        for path in [run / name] if "*" not in name else [*run.glob(name)]:
            path.unlink()
            os.mkfifo(path)

    return replace


def broken_checkpoints(run):
    """Damage both checkpoints."""
    for step in ("1", "2"):
        (run / "checkpoints" / step / "meta" / "metadata").write_bytes(b"{")


def extra_fifos(run):
    """Put a FIFO beside the files of both checkpoints."""
    for step in ("1", "2"):
        os.mkfifo(run / "checkpoints" / step / "params" / "pipe")


def new(**changes):
    """Train in a new workdir with changed fields; `{here}` is the folder."""
    return "train --workdir={here}/new", changes


def old(**changes):
    """Train in the existing workdir."""
    return "train --workdir={here}/run", changes


TRANSLATE = "translate --workdir={here}/run"
EVALUATE = "evaluate --workdir={here}/run"
SCORE = "score --workdir={here}/run"
SOURCE, TARGET = " --source={here}/words", " --target={here}/words"
OTHER_TOKENIZER = Tokenizer.train(["e f g h"], 8, "word").model
LARGER_TOKENIZER = Tokenizer.train(["e f g h i"], 9, "word").model
FIFO = "is not a regular file"

CASES = [
    # The data.
    (new(data__train_target="{here}/shorter"), ["words has 20 lines", "shorter has 18"]),
    (new(data__train_source="{here}/latin"), ["latin:3:", "0xf6", "UTF-8", "iconv"]),
    (new(data__validation_target="{here}/latin"), ["latin:3:", "UTF-8"]),
    (new(data__train_source="{here}/empty"), ["empty is empty"]),
    (
        new(data__train_source="{here}/blank", data__train_target="{here}/blank"),
        ["training text", "no sentence"],
    ),
    (new(data__train_source="{here}/no"), ["{here}/no", "No such file"]),
    (new(data__train_source="{here}/run"), ["{here}/run", "directory"]),
    (new(data__train_source=None), ["--config.data.train_source=FILE"]),
    (new(data__validation_target=None), ["--config.data.validation_target=FILE"]),
    (
        new(data__train_source="{here}/long", data__train_target="{here}/long"),
        ["of 20 training pairs 0", "20 are longer than data.max_length = 8"],
    ),
    (new(data__dataset="symbol_grammar/copy"), ["did you mean 'symbols_grammar/copy'?"]),
    (new(model__vocab_size=500), ["model.vocab_size is 500", "--config.model.vocab_size=8"]),
    (new(parallel__data=512), ["parallel.data", "512"]),
    # The workdir.
    (("train", {}), ["--workdir=DIRECTORY"]),
    ("evaluate --split=test", ["--workdir=DIRECTORY"]),
    ("translate --workdir={here}/no", ["{here}/no does not exist"]),
    ("translate --workdir={here}/words", ["words"]),
    ("translate --workdir={here}", ["config.json", "workdir of train"]),
    (("train --workdir={here}/words", {}), ["{here}/words", "name a directory"]),
    (("train --workdir={here}/words/run", {}), ["words/run cannot be written: Not a directory"]),
    (old(model__d_ff=16), ["model.d_ff: 8 there, 16 now", "another --workdir"]),
    (TRANSLATE, ["config.json:1:", "not JSON"], holding("config.json", b'{"model": ')),
    (old(), ["config.json:1:", "not JSON"], holding("config.json", b"")),
    (TRANSLATE, ["unknown config field 'decode.beam'"], edited("decode", beam=3)),
    (TRANSLATE, ["config.json: nested too deeply"], holding("config.json", b"[" * 100_000)),
    (
        TRANSLATE,
        ["model.d_ff is 32, but", "checkpoints/2 was trained with 8", "restore config.json"],
        edited("model", d_ff=32),
    ),
    (
        SCORE + SOURCE + TARGET,
        ["model.sinusoid_layout is 'halves'", "checkpoints/2 was trained with 'interleaved'"],
        edited("model", sinusoid_layout="halves"),
    ),
    (
        TRANSLATE + " --average=2",
        ["model.norm_epsilon is 0.001", "checkpoints/1 was trained with 1e-06"],
        edited("model", norm_epsilon=1e-3),
    ),
    (
        old(training__steps=3, model__norm="pre"),
        ["model.norm is 'pre'", "checkpoints/2 was trained with 'post'"],
        edited("model", norm="pre"),
    ),
    (
        TRANSLATE + " --config.model.sinusoid_layout=halves",
        ["model.sinusoid_layout is 'interleaved' in the training", "cannot be 'halves' after it"],
    ),
    (
        TRANSLATE + " --config.model.d_model=64",
        ["model.d_model is 8 in the training", "cannot be 64", "leave --config.model.d_model out"],
    ),
    (TRANSLATE + " --config.training.steps=7", ["training.steps is 2 in the training of this"]),
    (
        TRANSLATE,
        ["tokenizer.model has the SHA-256", "checkpoints/2", "restore tokenizer.model"],
        holding("tokenizer.model", OTHER_TOKENIZER),
    ),
    (
        EVALUATE + SOURCE + TARGET,
        ["tokenizer.model has the SHA-256", "restore tokenizer.model"],
        holding("tokenizer.model", LARGER_TOKENIZER),
    ),
    (
        old(training__steps=3),
        ["tokenizer.model has the SHA-256", "restore tokenizer.model"],
        holding("tokenizer.model", OTHER_TOKENIZER),
    ),
    (TRANSLATE, ["tokenizer.model", "from a copy"], holding("tokenizer.model", b"broken")),
    (
        old(training__steps=3),
        ["tokenizer.model", "from a copy"],
        holding("tokenizer.model", b"broken"),
    ),
    (TRANSLATE, ["tokenizer.model"], without("tokenizer.model")),
    (old(), ["result.json is not the result of a training"], holding("result.json", b"{")),
    (old(), ["result.json is not the result of a training"], holding("result.json", b"3")),
    (old(), ["its step is inf"], holding("result.json", b'{"step": Infinity}')),
    (
        old(training__steps=3),
        ["metrics.jsonl:2"],
        holding("metrics.jsonl", b'{"step": 1, "split": "train"}\n\0\0\0\n'),
    ),
    (TRANSLATE, ["has no checkpoints; train first"], without("checkpoints")),
    (
        TRANSLATE,
        ["no intact checkpoint left", f"step 2: file params/pipe {FIFO}"],
        extra_fifos,
    ),
    (
        old(training__steps=3),
        ["no intact checkpoint left", f"step 2: file _CHECKPOINT_METADATA {FIFO}"],
        fifo("checkpoints/*/_CHECKPOINT_METADATA"),
    ),
    (TRANSLATE, [f"run/config.json {FIFO}; restore it from a copy"], fifo("config.json")),
    (TRANSLATE, [f"run/tokenizer.model {FIFO}; restore it from a copy"], fifo("tokenizer.model")),
    (
        TRANSLATE,
        ["no intact checkpoint left", "step 1", "step 2", "meta/metadata"],
        broken_checkpoints,
    ),
    (
        old(training__steps=3),
        ["no intact checkpoint left", "step 1", "step 2", "meta/metadata"],
        broken_checkpoints,
    ),
    (old(), ["checkpoints but no config.json"], without("config.json")),
    # The flags of the apps.
    (TRANSLATE + " --nbest=3", ["nbest", "decode.beams is 2"]),
    (TRANSLATE + " --nbest=0", ["nbest=0", "decode.beams"]),
    (TRANSLATE + " --nbest=two", ["nbest", "two"]),
    (TRANSLATE + " --input={here}/no", ["{here}/no", "No such file"]),
    (TRANSLATE + " --input={here}/latin", ["latin:3:", "0xf6"]),
    (TRANSLATE, ["standard input:2:", "0xff"]),
    (
        TRANSLATE + " --input={here}/words --output={here}/no/out",
        ["{here}/no/out", "No such file"],
    ),
    (
        TRANSLATE + " --input={here}/words --output=/dev/full",
        ["--output=/dev/full cannot be written: No space left"],
    ),
    (TRANSLATE + " --average=3", ["--average=3", "holds 2"]),
    (TRANSLATE + " --config.decode.beam=3", ["'decode.beam'", "'decode.beams'"]),
    (TRANSLATE + " words", ["'words'"]),
    (EVALUATE + SOURCE, ["--source and --target go together"]),
    (EVALUATE + TARGET, ["--source and --target go together"]),
    (EVALUATE + SOURCE + " --target={here}/shorter", ["words has 20 lines", "shorter has 18"]),
    (EVALUATE + " --split=tset", ["'tset'", "train, validation, test"]),
    (EVALUATE + " --split=test", ["--config.data.test_source=FILE"]),
    (EVALUATE + " --bleu_tokenize=13b", ["'13b' is unknown; sacreBLEU has"]),
    (EVALUATE + " --splt=test", ["splt", "split"]),
    (SCORE, ["--source=FILE"]),
    (SCORE + SOURCE, ["--target=FILE"]),
    (SCORE + SOURCE + " --target={here}/shorter", ["words has 20 lines", "shorter has 18"]),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[1][0])
def test_one_message_names_the_problem_and_no_file_changes(given, given_copy, case):
    command, words, *damage = case
    for name, data in FILES.items():
        (given_copy / name).write_bytes(data)
    for do in damage:
        do(given_copy / "run")
    command, changes = (command, None) if isinstance(command, str) else command
    app, *arguments = command.split(" ")
    if changes is not None:
        arguments += training(given, **changes)
    arguments = [argument.replace("{here}", str(given_copy)) for argument in arguments]
    before = contents(given_copy)
    finished = run(f"experiments.{app}", *arguments, stdin=b"a b\n\xff\n")

    assert (finished.status, finished.out) == (1, ""), finished
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
        {"model__vocab_size": 500},
        {"data__train_source": "no such file"},
        {"data__tokenizer": "bpe", "model__vocab_size": 6},
        {"data__max_length": 2, "data__bucket_lengths": "(2,)"},
    ],
    ids=str,
)
def test_the_corrected_command_works_in_the_same_workdir(given, tmp_path, wrong):
    workdir = f"--workdir={tmp_path / 'new'}"
    refused = run("experiments.train", workdir, *training(given, **wrong))
    assert refused.status == 1, "this one is wrong"
    corrected = run("experiments.train", workdir, *training(given))
    assert corrected.status == 0, corrected.err
    assert corrected.result["step"] == 2
