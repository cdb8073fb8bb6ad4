# SPDX-License-Identifier: Apache-2.0
"""A config names a dataset, a metric or an optimizer by a function of the user's own file."""

import json

import jax.numpy as jnp
import pytest
from apps import TINY, run

from experiments.data import registry
from transformer.config import (
    Config,
    DataConfig,
    EvaluationConfig,
    OptimizerConfig,
    TransformerConfig,
)
from transformer.errors import InputError
from transformer.models import protocol as families
from transformer.training import optimizers

MINE = """
import optax
from transformer.config import Config, DataConfig, EvaluationConfig, OptimizerConfig, TrainingConfig

SIZES = {"train": 64, "validation": 4, "test": 4}

def squares(split):
    for number in range(SIZES[split]):
        digits = " ".join(str(number))
        yield digits, " ".join(reversed(digits.split()))

def mean_length(sources, translations, references):
    return sum(map(len, translations)) / len(references)

def plain(learning_rate):
    return optax.sgd(learning_rate)

def get_config():
    return Config(
        data=DataConfig(dataset=f"{__file__}:squares", tokenizer="word", max_length=4,
                        bucket_lengths=(4,), tokens_per_batch=64),
        evaluation=EvaluationConfig(metrics=(f"{__file__}:mean_length",)),
        optimizer=OptimizerConfig(name=f"{__file__}:plain", schedule="constant"),
        training=TrainingConfig(steps=4, validate_every=2),
    )
"""


@pytest.fixture
def mine(tmp_path):
    """A config file with functions."""
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


@pytest.mark.slow
def test_a_config_file_names_its_own_dataset_metric_and_optimizer(mine, tmp_path):
    workdir = f"--workdir={tmp_path / 'run'}"
    trained = run(
        "experiments.train", f"--config={mine}", workdir, *TINY, "--config.model.vocab_size=14"
    )
    assert trained.status == 0, trained.err
    assert trained.result["step"] == 4
    assert trained.result["validation"]["mean_length"] >= 0
    evaluated = run("experiments.evaluate", workdir)
    assert evaluated.status == 0, evaluated.err
    assert evaluated.result["sentences"] == 4
    texts = (tmp_path / "run" / "evaluations").glob("*.txt")
    lines = next(texts).read_text().splitlines()
    assert evaluated.result["mean_length"] == pytest.approx(sum(map(len, lines)) / 4)
    # A copy on another machine translates without the file.
    mine.unlink()
    translated = run("experiments.translate", workdir, stdin=b"1 2\n")
    assert translated.status == 0, translated.err


def test_the_pairs_of_a_function_are_read_in_both_directions(mine):
    data = DataConfig(dataset=f"{mine}:squares")
    pairs = registry.sentence_pairs(data, "train")
    assert pairs.count() == 64
    assert pairs.read()[0][12] == "1 2"
    assert pairs.read()[1][12] == "2 1"
    backward = registry.sentence_pairs(data.replace(direction="backward"), "train")
    assert backward.read() == pairs.read()[::-1]
    assert pairs.location(3)[0] == f"{mine}:squares train pair 3"
    # The identity of a function is that of its pairs.
    before = pairs.identity()
    assert pairs.identity() == before
    mine.write_text(MINE.replace("64", "65"))
    assert pairs.identity() != before


def test_an_error_in_the_users_function_is_one_message_with_its_line(mine):
    for text, message in (
        ("", "does not define a function squares"),
        ("def squares(split):\n    return [('a', 'b'), ('c', 1)]\n", r"pair 1 is \('c', 1\), not"),
        ("def squares(split):\n    yield 'a', 'b'\n    1 / 0\n", "mine.py:3: ZeroDivisionError"),
        ("def squares(split):\n    return {}[split]\n", "mine.py:2: KeyError: 'train'"),
        ("def squares(", "mine.py:1: "),
    ):
        mine.write_text(text)
        with pytest.raises(InputError, match=message):
            registry.load(DataConfig(dataset=f"{mine}:squares"), "train")
    mine.write_text("def words(sources, translations, references):\n    return 'many'\n")
    split = registry.Split("text_files", ["a"], ["b"])
    with pytest.raises(InputError, match="words returned 'many', not a number"):
        split.corpus_metrics(["b"], [f"{mine}:words"])
    with pytest.raises(InputError, match="evaluation.metrics is .'bleu',.*functions, each as FILE"):
        EvaluationConfig(metrics=("bleu",))
    with pytest.raises(InputError, match="'sgd', but must be one of adam, .*, or FILE.py:FUNC"):
        OptimizerConfig(name="sgd")


def test_an_optimizer_gets_the_schedule_and_is_optax_s(mine):
    model = families.build(TransformerConfig(vocab_size=9, num_layers=1, d_model=16, d_ff=8))
    config = OptimizerConfig(name=f"{mine}:plain", schedule="constant", warmup_steps=2)
    optimizer = optimizers.optimizer(model, config, 10)
    gradient = {"w": jnp.ones(1)}
    updates, _ = optimizer.update(gradient, optimizer.init(gradient))
    # The first step of two warms up to half of the learning rate, 1.
    assert updates["w"].tolist() == [-0.5]
    mine.write_text("def plain(learning_rate):\n    return learning_rate\n")
    with pytest.raises(InputError, match="must return an optax.Grad"):
        optimizers.optimizer(model, config, 10)


def test_functions_survive_a_json_round_trip(mine):
    config = Config(evaluation=EvaluationConfig(metrics=(f"{mine}:mean_length",)))
    assert Config.from_json(config.to_json()) == config
    assert json.loads(config.to_json())["evaluation"]["metrics"] == [f"{mine}:mean_length"]
