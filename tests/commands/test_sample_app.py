# SPDX-License-Identifier: Apache-2.0
"""The language model and the classifier through the apps; `experiments.sample`."""

import jax
import numpy as np
import oracle
import pytest
from apps import CONFIGS, TINY, parameters, run

from transformer.config import Config, DecodeConfig, LanguageModelConfig, TransformerConfig
from transformer.errors import InputError
from transformer.models import protocol
from transformer.text.tokenizer import Tokenizer
from transformer.translator import Translator

SIZES = {"vocab_size": 11, "num_layers": 1, "d_model": 8, "d_ff": 8, "num_heads": 2}
SMALL = (
    "--config.data.dataset=text_files",
    "--config.data.tokenizer=word",
    "--config.data.max_length=8",
    "--config.data.bucket_lengths=(8,)",
    "--config.data.tokens_per_batch=128",
    "--config.training.validate_every=10",
    "--config.logging.tensorboard=false",
)


@pytest.fixture(scope="module")
def train(texts):
    """The command that trains a family to a number of steps: (name, workdir, steps) -> result.

    The label of a string of letters is its first letter, capital.
    """
    folder, flags = texts
    for split in ("train", "validation", "test"):
        rows = (folder / f"{split}.target").read_text().splitlines()
        (folder / f"{split}.label").write_text("".join(f"{row[0]}\n" for row in rows))
    sources = [flag for flag in flags if "_source=" in flag]
    targets = [flag for flag in flags if "_target=" in flag]
    data = {
        "language_model": [*targets, "--config.model.vocab_size=12"],
        "antecedent_classifier": [
            *sources,
            *(flag.replace(".target", ".label") for flag in targets),
            "--config.model.vocab_size=12",
            "--config.model.source_vocab_size=12",
        ],
    }

    def trained(name, workdir, steps):
        finished = run(
            "experiments.train",
            f"--config={CONFIGS / f'{name}.py'}",
            f"--workdir={workdir}",
            *(flag for flag in TINY if "beams" not in flag),
            *SMALL,
            *data[name],
            f"--config.training.steps={steps}",
        )
        assert finished.status == 0, finished.err
        return finished

    return trained


@pytest.fixture(scope="module")
def workdir(train, tmp_path_factory):
    """The workdir of a language model of capital letters, trained for 30 steps."""
    workdir = tmp_path_factory.mktemp("sample") / "lm"
    finished = train("language_model", workdir, 30)
    assert finished.result["validation"]["perplexity"] < 12
    assert "as empty" in finished.err and "0 as empty" in finished.err
    return workdir


def sample(workdir, *flags):
    finished = run("experiments.sample", f"--workdir={workdir}", *flags)
    assert finished.status == 0, finished.err
    return finished.out.splitlines()


@pytest.mark.slow
def test_samples_begin_with_the_prompt_and_depend_on_the_seed_alone(workdir):
    flags = ("--prompt=A B", "--num_samples=6")
    first = sample(workdir, *flags)
    assert len(first) == 6 and all(line.startswith("A B") for line in first)
    assert len(set(first)) > 1
    assert sample(workdir, "--num_samples=2", "--prompt=A B") == first[:2]
    assert sample(workdir, *flags, "--config.decode.seed=1") != first
    # The best texts come with their scores.
    rows = [row.split("\t") for row in sample(workdir, "--best", "--num_samples=3", "--scores")]
    assert len({text for _, text in rows}) == 3
    assert all(float(score) < 0 for score, _ in rows)


@pytest.mark.slow
def test_bad_input_is_refused_with_one_message(workdir):
    for app, flag, message in (
        ("sample", "--num_samples=0", "--num_samples=0"),
        ("sample", "--prompt=a\udcff", "--prompt has the byte 0xFF as character 2"),
        (
            "translate",
            "--scores",
            "'language_model' reads no source, so it does not translate",
        ),
    ):
        refused = run(f"experiments.{app}", f"--workdir={workdir}", flag, stdin=b"a b\n")
        assert refused.status == 1 and message in refused.err
        assert "Traceback" not in refused.err


@pytest.mark.slow
def test_look_shows_the_one_stack_and_evaluate_the_perplexity(workdir, tmp_path):
    page = tmp_path / "page.html"
    flags = (f"--workdir={workdir}", "--sentence=ignored", "--target=A B C", f"--output={page}")
    finished = run("experiments.look", *flags, "--config.decode.method=beam")
    assert finished.status == 0, finished.err
    text = page.read_text(encoding="utf-8")
    assert (
        "decoder self-attention in 1 layers" in text and "cross" not in text.partition("<script")[0]
    )
    finished = run("experiments.evaluate", f"--workdir={workdir}", "--split=validation")
    assert finished.status == 0, finished.err
    assert 1 < finished.result["perplexity"] < 12


@pytest.mark.slow
@pytest.mark.parametrize("name", ["language_model", "antecedent_classifier"])
def test_a_run_in_two_parts_is_that_in_one_bit_for_bit(train, tmp_path, name):
    train(name, tmp_path / "parts", 10)
    train(name, tmp_path / "parts", 20)
    result = train(name, tmp_path / "straight", 20).result
    assert parameters(tmp_path / "parts") == parameters(tmp_path / "straight")
    assert result["step"] == 20


@pytest.mark.slow
def test_the_classifier_translates_to_labels(train, texts, tmp_path):
    train("antecedent_classifier", tmp_path / "run", 300)
    finished = run("experiments.evaluate", f"--workdir={tmp_path / 'run'}")
    assert finished.status == 0, finished.err
    assert finished.result["exact_match"] > 0.8


# The translator.


def translator(config_class, **fields):
    """A translator with random parameters, whose words are single letters."""
    config = Config(model=config_class(**SIZES, **fields), decode=DecodeConfig(extra_length=6))
    params = oracle.random_params(protocol.build(config.model), 0)
    return Translator(config, params, Tokenizer.train(["a b c d e f g"], 11, "word"))


def test_continuations_have_the_log_probabilities_of_score_without_those_of_the_prompt():
    model = translator(LanguageModelConfig)
    texts = model.continuations(["a b", "", "c"], 3, method="sample")
    assert [len(each) for each in texts] == [3, 3, 3]
    assert all(text.text.startswith("a b") for text in texts[0])
    of_prompt, of_nothing = (
        [model.score(["ignored"], [text.text])[0][0] - text.log_prob for text in each]
        for each in texts[:2]
    )
    np.testing.assert_allclose(of_nothing, 0, atol=1e-3)
    np.testing.assert_allclose(of_prompt, of_prompt[0], atol=1e-3)
    assert of_prompt[0] < -1


@pytest.mark.slow
def test_samples_do_not_depend_on_the_mesh():
    model = translator(LanguageModelConfig)
    config = model.config.replace(parallel=model.config.parallel.replace(data=8))
    eight = Translator(config, jax.device_get(model.params), model.vocabularies)
    prompts = ["a", "b", ""]
    texts = [
        [[text.text for text in each] for each in one.continuations(prompts, 4, method="sample")]
        for one in (model, eight)
    ]
    assert texts[0] == texts[1]


def test_translation_models_and_minimum_bayes_risk_are_refused():
    with pytest.raises(InputError, match="'transformer' translates a source.*method=sample"):
        translator(TransformerConfig).continuations(["a"])
    with pytest.raises(InputError, match="decode.method is 'mbr'"):
        translator(LanguageModelConfig).continuations(["a"], method="mbr")
