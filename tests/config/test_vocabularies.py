# SPDX-License-Identifier: Apache-2.0
"""Separate vocabularies of source and target, from training to translation."""

import json

import pytest
from apps import run

from transformer.config import Config, DataConfig, TransformerConfig
from transformer.errors import InputError
from transformer.text.tokenizer import Tokenizer
from transformer.translator import Translator

SEPARATE = (
    "--config.data.vocabulary=separate",
    "--config.model.source_vocab_size=12",
    "--config.model.vocab_size=12",
)
"""Eight letters in the source, their capitals in the target, and four special ids."""
SHORT = ("--config.training.steps=40", "--config.training.validate_every=40")


@pytest.fixture(scope="module")
def workdir(tmp_path_factory, train):
    """A workdir with separate vocabularies."""
    directory = tmp_path_factory.mktemp("separate") / "run"
    finished = run("experiments.train", *train(directory, *SEPARATE, *SHORT))
    assert finished.status == 0, finished.err
    assert finished.result["validation"]["nll"] < 2.4, "below the uniform distribution"
    return directory


@pytest.mark.slow
def test_a_workdir_has_a_tokenizer_for_each_side(workdir):
    source, target = (
        Tokenizer.load(workdir / name) for name in ("tokenizer.source.model", "tokenizer.model")
    )
    [source_ids], [target_ids] = source.encode(["a b"]), target.encode(["A B"])
    assert source.special_ids.unk not in source_ids
    assert target.special_ids.unk not in target_ids
    assert target.special_ids.unk in target.encode(["a"])[0]


@pytest.mark.slow
def test_translate_reads_source_tokens_and_writes_target_tokens(workdir):
    finished = run("experiments.translate", f"--workdir={workdir}", stdin=b"a b c\n\n")
    assert finished.status == 0, finished.err
    first, second, *rest = finished.out.split("\n")
    assert rest == [""]
    assert second == ""
    assert set(first) <= set("ABCDEFGH ⁇")
    translator = Translator.from_workdir(workdir)
    [result], [score] = translator(["a b c"]), translator.score(["a b c"], [first])
    assert result.text == first
    assert score[0] == pytest.approx(result.log_prob, abs=1e-4)
    prefixed = translator.nbest(["a b c"], 1, prefixes=["H G"])[0][0]
    assert prefixed.text.startswith("H G")


def test_a_workdir_without_its_source_tokenizer_raises_an_error(given_copy):
    file = given_copy / "run" / "config.json"
    config = json.loads(file.read_text())
    config["data"]["vocabulary"], config["model"]["source_vocab_size"] = "separate", 8
    file.write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"tokenizer\.source\.model"):
        Translator.from_workdir(file.parent)


def test_inconsistent_configs_raise_an_error():
    for data, model, words in (
        ({"vocabulary": "separate"}, {}, "model.source_vocab_size is None"),
        ({}, {"source_vocab_size": 9}, "data.vocabulary is 'shared', but model.source_vocab"),
        ({"source_tokenizer_model": "x"}, {}, "left out with a shared vocabulary"),
    ):
        with pytest.raises(InputError, match=words):
            Config(model=TransformerConfig(**model), data=DataConfig(**data))
