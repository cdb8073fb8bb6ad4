# SPDX-License-Identifier: Apache-2.0
"""A config passes the command line unchanged except for its overrides, or is refused."""

import dataclasses
import importlib
import inspect
import json
import re
import subprocess
import sys
from typing import Literal

import pytest
from apps import CONFIGS, call, environment, run

from experiments.cli import command_line, config_flags, usage
from transformer.config import Config, DataConfig, DecodeConfig, ParallelConfig
from transformer.errors import InputError
from transformer.fields import flat

BASE = CONFIGS / "base.py"


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of an app."""

    config: Config = Config()
    """The experiment."""
    workdir: str | None = None
    """A folder."""


def app():
    """An app that prints its config."""
    command_line.run(lambda options: print(options.config.to_json()), "config", Options)


def shown(*arguments):
    """The flat config that the app gets from a command line."""
    finished = call(app, *arguments)
    assert (finished.status, finished.err) == (0, "")
    return flat(Config.from_json(finished.out))


def error_of(*arguments, config=BASE):
    """The one message with which a command line is refused."""
    finished = call(app, *([f"--config={config}"] if config else []), *arguments)
    assert (finished.status, finished.out) == (1, "")
    assert finished.err.startswith("error: ")
    assert "Traceback" not in finished.err
    return finished.err


def changed(*arguments):
    """The fields of the base config that flags change."""
    base = flat(config_flags.load_config_file(str(BASE)))
    values = shown(f"--config={BASE}", *arguments)
    return {path: value for path, value in values.items() if value != base[path]}


# The values.


def test_every_field_of_every_config_can_be_written_on_the_command_line():
    for path in CONFIGS.glob("*.py"):
        config = config_flags.load_config_file(str(path))
        written = [f"--config.{name}={value}" for name, value in flat(config).items()]
        assert config_flags.override(config, written) == (config, []), path


def test_values_have_the_type_of_their_field_or_stay_text_for_the_error():
    for text, kind, value in (
        ("32", int | None, 32),
        ("None", int | None, None),
        ("None", int, "None"),
        ("wide", int | None, "wide"),
        ("1.5", int, "1.5"),
        ("1e3", int, 1000),
        ("1e-3", int, "1e-3"),
        ("2", float, 2.0),
        ("1" + "0" * 400, float, float("inf")),
        ("False", bool, False),
        ("1", bool, True),
        ("t", bool, True),
        ("F", bool, False),
        ("yes", bool, "yes"),
        ("(8, 16)", tuple[int, ...], (8, 16)),
        ("8,", tuple[int, ...], (8,)),
        ("8, 16)", tuple[int, ...], "8, 16)"),
        ("1", str | None, "1"),
        ("post", Literal["post", "pre"], "post"),
    ):
        parsed = config_flags.parse_value(text, kind)
        assert (parsed, type(parsed)) == (value, type(value))


def test_none_unsets_an_optional_field():
    config = Config(decode=DecodeConfig(block_ngrams=5, max_length=9))
    arguments = ["app", "--config.decode.block_ngrams=None", "--x=None"]
    expected = config.replace(decode=DecodeConfig(max_length=9))
    assert config_flags.override(config, arguments) == (expected, ["app", "--x=None"])
    with pytest.raises(InputError, match="decode.beams is 'None', but must be a whole number"):
        config_flags.override(config, ["--config.decode.beams=None"])


def test_fields_of_every_type_are_overridden_and_no_other():
    assert changed() == {}
    assert changed(
        "--config.model.num_layers=2",
        "--config.model.d_k=16",
        "--config.model.dropout=0.25",
        "--config.optimizer.learning_rate=2",
        "--config.logging.tensorboard=false",
        "--config.data.bucket_lengths=(8, 256)",
        "--config.data.train_source=a=b.en",
        "--config.model.norm=pre",
        "--config.optimizer.epsilon=1e-8",
    ) == {
        "model.num_layers": 2,
        "model.d_k": 16,
        "model.dropout": 0.25,
        "optimizer.learning_rate": 2.0,
        "logging.tensorboard": False,
        "data.bucket_lengths": (8, 256),
        "data.train_source": "a=b.en",
        "model.norm": "pre",
        "optimizer.epsilon": 1e-8,
    }


def test_flags_are_written_in_the_usual_ways():
    for arguments, change in (
        (["--noconfig.logging.tensorboard"], {"logging.tensorboard": False}),
        (["--config.data.packing"], {"data.packing": True}),
        (["--config.training.steps", "7"], {"training.steps": 7}),
        (["-config.training.steps=7"], {"training.steps": 7}),
        (["--config.training.steps=7", "--config.training.steps=8"], {"training.steps": 8}),
        (
            ["--config.data.max_length=16", "--config.data.bucket_lengths=(16,)"],
            {"data.max_length": 16, "data.bucket_lengths": (16,)},
        ),
    ):
        assert changed(*arguments) == change
    assert shown("--config.training.steps=3", "--config", BASE)["training.steps"] == 3
    arguments = ["--config=a", "--x", "-config", "b", "y"]
    assert config_flags.take_flag(arguments, "config") == ("b", ["--x", "y"])
    with pytest.raises(InputError, match="missing --config=NAME"):
        config_flags.take_flag(["--config=a", "--config="], "config")


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--config.model.num_layer=2", ["'model.num_layer'", "did you mean 'model.num_layers'?"]),
        ("--config.modle.d_ff=2", ["'modle.d_ff'", "did you mean 'model.d_ff'?"]),
        ("--config.d_model=64", ["'d_model'", "did you mean 'model.d_model'?"]),
        ("--config.model=2", ["'model'"]),
        ("--config.model.num_layers=two", ["model.num_layers", "two"]),
        ("--config.model.num_layers=1.5", ["model.num_layers", "1.5"]),
        ("--config.model.dropout=much", ["model.dropout", "much"]),
        ("--config.logging.tensorboard=perhaps", ["logging.tensorboard", "perhaps"]),
        ("--config.data.bucket_lengths=16", ["data.bucket_lengths"]),
        ("--config.data.bucket_lengths[0]=8", ["bucket_lengths[0]: give all elements"]),
        ("--config.data.bucket_lengths=(16,'x')", ["data.bucket_lengths"]),
        ("--config.data.bucket_lengths=(32,16,256)", ["data.bucket_lengths", "ascending"]),
        ("--config.model.norm=middle", ["model.norm is 'middle'", "'post', 'pre'"]),
        ("--config.model.num_heads=7", ["model.num_heads is 7", "model.d_model = 5", "model.d_k"]),
        ("--config.model.num_layers", ["model.num_layers"]),
        ("--confg.model.num_layers=2", ["confg"]),
        ("--jax_debug_nanz", ["jax_debug_nan"]),
        ("stray", ["'stray'"]),
    ],
)
def test_an_invalid_value_is_refused_with_its_field(flag, words):
    message = error_of(flag)
    assert all(word in message for word in words), message
    assert len(message.splitlines()) <= 3


# The config.


def test_a_config_file_takes_an_argument_and_overrides(tmp_path):
    path = tmp_path / "configured.py"
    path.write_text(
        "from transformer.config import Config, TrainingConfig\n"
        "def get_config(seed='1'):\n"
        "    return Config(training=TrainingConfig(seed=int(seed)))\n"
    )
    assert shown(f"--config={path}")["training.seed"] == 1
    both = shown("--config.training.steps=3", f"--config={path}:41")
    assert (both["training.seed"], both["training.steps"]) == (41, 3)


FAMILY = '''
import dataclasses
from typing import Literal
from transformer.config import Config, ModelConfig

@dataclasses.dataclass(frozen=True)
class BagConfig(ModelConfig):
    """A bag of words."""

    family: Literal["bag"] = "bag"
    width: int = 4
    pooling: Literal["mean", "max"] | None = None

def get_config():
    return Config(model=BagConfig())
'''


def test_the_flags_of_another_family_are_the_fields_of_its_config(tmp_path):
    path = tmp_path / "bag.py"
    path.write_text(FAMILY)
    model = json.loads(call(app, f"--config={path}", "--config.model.width=8").out)["model"]
    assert (model["family"], model["width"]) == ("bag", 8)
    assert "num_layers" not in model
    assert "did you mean 'model.width'" in error_of("--config.model.widht=8", config=path)
    assert "model.num_layers" in error_of("--config.model.num_layers=2", config=path)


def test_another_family_keeps_the_fields_that_both_have():
    assert changed("--config.model.family=transformer") == {}
    given = ["--config.model.family=recurrent", "--config.model.num_layers=3"]
    model = shown(f"--config={BASE}", *given, "--config.model.cell=gru")
    assert (model["model.family"], model["model.cell"]) == ("recurrent", "gru")
    assert (model["model.num_layers"], model["model.d_model"]) == (3, 512)
    assert "model.num_heads" in error_of(*given, "--config.model.num_heads=2")
    assert "model.family is 'cnn', but must be one of" in error_of("--config.model.family=cnn")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, ["no file", "one of the configs"]),
        ("def get_config(:\n", [":1:", "invalid syntax"]),
        ("x = 1\n", ["does not define get_config()"]),
        ("def get_config():\n    return {}\n", ["returned dict, not a Config"]),
        ("import no_such_module\n", [":1", "no_such_module"]),
        ("def get_config():\n    return 1 / 0\n", [":2", "division by zero"]),
        ("def get_config(which):\n    return which\n", ["argument"]),
    ],
)
def test_a_file_without_a_config_is_refused_with_its_path(tmp_path, text, words):
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    message = error_of(config=path)
    assert str(path) in message
    assert all(word in message for word in words), message


def test_a_config_that_is_no_file_or_missing_is_refused(tmp_path, monkeypatch):
    assert "takes no argument" in error_of(config=f"{BASE}:de")
    message = error_of(config="pronuons:de")
    assert "--config=pronuons:de: no file pronuons" in message
    assert "base, big, copy" in message
    for arguments in ([], ["--config="], ["--config"]):
        assert "--config=NAME or --config=FILE.py" in error_of(*arguments, config=None)
    # A file comes before a shipped config of the same name.
    (tmp_path / "base").write_text("")
    monkeypatch.chdir(tmp_path)
    assert "base is not a Python file" in error_of(config="base")


def test_a_config_is_named_as_a_file_by_its_name_or_by_its_workdir(tmp_path):
    base = shown(f"--config={BASE}")
    assert shown("--config=base") == base
    assert shown("--config=pronouns:fr")["data.dataset"].endswith("fr")
    saved = config_flags.load_config_file("base").replace(decode=DecodeConfig(beams=7))
    (tmp_path / "config.json").write_text(saved.to_json())
    assert shown(f"--config={tmp_path / 'config.json'}")["decode.beams"] == 7
    config = shown(f"--workdir={tmp_path}", "--config.training.steps=3")
    assert (config["decode.beams"], config["training.steps"]) == (7, 3)
    (tmp_path / "config.json").write_text("{")
    assert "config.json:1: not JSON" in error_of(f"--workdir={tmp_path}", config=None)


PRINTS_A_JAX_OPTION = """
import jax
from experiments.cli import cluster, command_line
command_line.run(lambda _: print(jax.config.jax_debug_nans), None, cluster.Cluster)
"""


def test_flags_of_absl_and_of_jax_are_read(tmp_path):
    file = tmp_path / "flags"
    file.write_text(f"--config={BASE}\n--config.training.steps=3\n")
    assert shown(f"--flagfile={file}")["training.steps"] == 3
    printed = run("experiments.train", f"--config={BASE}", "--config.training.steps=3", "--dry_run")
    assert json.loads(printed.out)["training"]["steps"] == 3
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", run("experiments.train", "--version").out)
    command = [sys.executable, "-c", PRINTS_A_JAX_OPTION, "--jax_debug_nans"]
    assert subprocess.run(command, capture_output=True, env=environment()).stdout == b"True\n"


# The help.


def help_of(name, *arguments):
    """What an app prints."""
    finished = run(f"experiments.{name}", *arguments)
    assert (finished.status, finished.err) == (0, "")
    return finished.out


def fields_in(text):
    """Type and value of each config field in a help text."""
    return dict(re.findall(r"^ +([a-z_]+\.[a-z_0-9]+): (.*)$", text, re.MULTILINE))


@pytest.mark.parametrize("name", ["train", "evaluate", "translate", "score", "compare"])
def test_help_lists_every_flag(name):
    out = help_of(name, "--help")
    options = importlib.import_module(f"experiments.{name}").Options
    texts = usage.meanings(options)
    for field in dataclasses.fields(options):
        assert texts[field.name], field.name
        assert field.name == "config" or f"--{field.name}:" in out
    assert ("--bleu_tokenize" in out) == (name in ("evaluate", "compare"))
    assert max(map(len, out.splitlines())) <= 140
    if name == "compare":  # it has no config
        assert fields_in(out) == fields_in(help_of(name, "--helpfull")) == {}


def test_help_of_train_lists_and_explains_every_field():
    """The texts are those of the classes, including fields inherited from a base class."""
    full, short = help_of("train", "--helpfull"), help_of("train", "--help")
    listed, often = fields_in(full), fields_in(short)
    assert listed.keys() == flat(Config()).keys()
    assert often.keys() == set(usage.OFTEN_CHANGED) < listed.keys()
    assert listed["model.num_layers"] == "int = 6"
    assert listed["model.encoder_layers"] == "int | None = None"
    assert "'post', 'pre'" in listed["model.norm"]
    chosen = fields_in(help_of("train", "--config=big", "--helpfull"))
    assert (listed["model.d_model"], chosen["model.d_model"]) == ("int = 512", "int = 1024")
    words = " ".join(full.split())
    for group in (DecodeConfig, DataConfig, ParallelConfig):
        assert inspect.getdoc(group).splitlines()[0] in words
    for group, field in (("decode", "beams"), ("model", "vocab_size"), ("model", "d_k")):
        assert usage.meanings(type(getattr(Config(), group)))[field] in words


def test_help_of_translate_has_the_values_of_the_workdir_and_no_training_fields(tmp_path):
    decode = DecodeConfig(beams=7)
    (tmp_path / "config.json").write_text(Config(decode=decode).to_json())
    listed = fields_in(help_of("translate", f"--workdir={tmp_path}", "--helpfull"))
    assert listed["decode.beams"] == "int = 7"
    assert "model.compute_dtype" in listed
    assert not listed.keys() & {"model.d_model", "training.steps", "optimizer.name"}
    # Without a workdir, or with one that cannot be read, the defaults are shown.
    (tmp_path / "config.json").write_text("{")
    for arguments in ([], [f"--workdir={tmp_path}"]):
        other = fields_in(help_of("translate", *arguments, "--helpfull"))
        assert other["decode.beams"] == f"int = {DecodeConfig().beams}"
        assert other.keys() == listed.keys()


def test_help_needs_no_config_and_writes_nothing(tmp_path):
    assert "transformer train --config=" in help_of("train", f"--workdir={tmp_path / 'run'}", "-h")
    assert not list(tmp_path.iterdir())


def test_an_app_without_a_config_refuses_overrides_and_unknown_flags():
    for flag, words in (
        ("--config.decode.beams=2", "--config.decode.beams=2: this command has no config"),
        ("--outptus=a,b", "outptus"),
        ("stray", "'stray'"),
    ):
        finished = run("experiments.compare", flag)
        assert (finished.status, finished.out) == (1, "")
        assert finished.err.startswith("error: ")
        assert words in finished.err
