# SPDX-License-Identifier: Apache-2.0
"""`text_files.py` fits texts of any size and script without an override."""

import itertools
import json
import random

import pytest
from apps import CONFIGS, TINY, run

from experiments.cli.config_flags import completed, load, load_config_file
from experiments.data import recipes, registry
from experiments.data.batching import Batches
from experiments.data.token_corpus import TokenCorpus
from experiments.training import compose, training_data
from transformer.config import DataConfig
from transformer.errors import InputError

SIDES = ("source", "target")
ALPHABETS = {
    "Latin": "abcdefghijklmnopqrstuvwxyzäöüß",
    "Arabic": "".join(map(chr, range(0x0627, 0x064B))),
    "Chinese": "".join(map(chr, range(0x4E00, 0x4E00 + 1500))),
    "Japanese": "".join(map(chr, [*range(0x3041, 0x3097), *range(0x4E00, 0x4E00 + 600)])),
}


def sentences(script, count, seed=0):
    """Random sentences with few frequent and many rare words, of 3 to 15 words.

    Line n has the same number of words in every script.
    """
    lengths = random.Random(count)
    generator = random.Random(f"{script} {seed}")
    alphabet, spaced = ALPHABETS[script], script in ("Latin", "Arabic")
    words = [
        "".join(generator.choices(alphabet, k=generator.randint(1, 9 if spaced else 3)))
        for _ in range(20 + count // 2)
    ]
    weights = [1 / (rank + 2) for rank in range(len(words))]
    return [
        (" " if spaced else "").join(generator.choices(words, weights, k=lengths.randint(3, 15)))
        for _ in range(count)
    ]


@pytest.fixture
def write(tmp_path):
    """A function that writes lines as source and target, and returns the config of the data."""

    def to(sources, targets):
        for name, lines in (("train.a", sources), ("train.b", targets)):
            (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return DataConfig(
            dataset="text_files",
            train_source=str(tmp_path / "train.a"),
            train_target=str(tmp_path / "train.b"),
        )

    return to


def batches_of(config):
    """The vocabularies and the batches that training would make."""
    corpora = registry.training_corpora(config.data)
    vocabularies = training_data.load_vocabularies(config, [pairs for _, pairs in corpora])
    tokens = [
        (weight, TokenCorpus.encode(*pairs.read(), vocabularies)) for weight, pairs in corpora
    ]
    return vocabularies, Batches(tokens, config.data, seed=0)


@pytest.mark.parametrize(
    "counts", [(2, 20, 200), pytest.param((3000,), marks=pytest.mark.slow)], ids=str
)
def test_a_recipe_fits_a_text_of_any_size_and_script(write, counts):
    for script, count in itertools.product(ALPHABETS, counts):
        config = recipes.fit("auto", write(sentences("Latin", count), sentences(script, count)))
        vocabularies, batches = batches_of(config)
        assert vocabularies.target.vocab_size == config.model.vocab_size
        assert batches.too_long <= 0.01 * count
        assert len(batches.shapes()) <= 5


def test_the_batches_of_ordinary_text_are_full_and_its_epochs_few(write):
    text = registry.sentence_pairs(DataConfig(dataset="pronouns_grammar/de"), "train")
    for count, padding in ((200, 0.35), (5000, 0.28)):
        config = recipes.fit("auto", write(*next(text.chunks(count))))
        _, batches = batches_of(config)
        assert batches.too_long == 0
        assert batches.padding_share() < padding
        assert batches.per_epoch >= 8
        assert 20 <= config.training.steps / batches.per_epoch <= 45
    # A text of 5000 pairs gets enough updates for attention to form.
    assert batches.per_epoch >= 60
    # A quarter of the recipe's batch takes steps half as large: 0.004 sqrt(1 / 4).
    assert config.data.tokens_per_batch == pytest.approx(4096 / 4, rel=0.01)
    assert config.optimizer.learning_rate == 0.002


def test_every_recipe_fits_one_pair(write):
    for name in recipes.RECIPES:
        config = recipes.fit(name, write(["a b"], ["x"]))
        assert batches_of(config)[1].per_epoch == 1
        assert config.optimizer.learning_rate > 0


def test_one_line_of_10000_tokens_does_not_lengthen_the_batches(write):
    lines = sentences("Latin", 199)
    long = " ".join(sentences("Latin", 1500, seed=1))
    config = recipes.fit("auto", write([*lines, long], [*lines, long]))
    assert config.data.max_length <= 128
    assert batches_of(config)[1].too_long == 1


def test_characters_outside_the_sample_are_in_the_vocabulary(write, monkeypatch):
    monkeypatch.setattr(recipes, "SAMPLE", 50)
    rare = [chr(0x4E00 + index) for index in range(400)]
    config = recipes.fit("auto", write(rare, sentences("Latin", 400)))
    vocabularies, _ = batches_of(config)
    unk = vocabularies.source.special_ids.unk
    assert not any(unk in ids for ids in vocabularies.source.encode(rare))


def test_separate_vocabularies_on_the_command_line_have_separate_sizes(write):
    data = write(sentences("Chinese", 300), sentences("Latin", 300))
    overrides = [
        *("--config.data.train_source", data.train_source),
        f"--config.data.train_target={data.train_target}",
        "--config.data.vocabulary=separate",
    ]
    config = completed(load_config_file("text_files:small"), overrides)
    vocabularies, _ = batches_of(config)
    assert vocabularies.source.vocab_size == config.model.source_vocab_size
    assert vocabularies.target.vocab_size == config.model.vocab_size


def test_the_size_follows_the_number_of_pairs_and_the_machine(write, monkeypatch, capsys):
    monkeypatch.setattr(registry.text_files.TwoFiles, "count", lambda self: 2_000_000)
    data = write(sentences("Latin", 50), sentences("Latin", 50))
    monkeypatch.setattr(recipes, "has_accelerator", lambda: False)
    assert recipes.fit("auto", data).model.d_model == 256
    monkeypatch.setattr(recipes, "has_accelerator", lambda: True)
    assert recipes.fit("auto", data).model.d_model == 512
    assert "recipe large, for 2,000,000 pairs on an accelerator: " in capsys.readouterr().err


def test_an_unknown_recipe_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match="'tiny', but must be one of 'auto', 'small', 'medium'"):
        load_config_file("text_files:tiny")


def test_a_recipe_keeps_the_fields_that_it_does_not_choose_and_is_applied_once(write, tmp_path):
    text = write(sentences("Latin", 50), sentences("Latin", 50))
    (tmp_path / "mine.py").write_text(
        "from transformer.config import Config, DataConfig, DecodeConfig, TrainingConfig\n\n"
        "def get_config():\n"
        "    training = TrainingConfig(recipe='small', seed=3, steps=7)\n"
        "    data = DataConfig(dataset='text_files', subword_sampling=0.1)\n"
        "    return Config(data=data, decode=DecodeConfig(beams=2), training=training)\n"
    )
    flags = [f"--config.data.train_{side}={getattr(text, f'train_{side}')}" for side in SIDES]
    arguments = [f"--config={tmp_path / 'mine.py'}", "--config.model.dropout=0.3", *flags]
    config, _ = load(arguments, "config")
    assert (config.decode.beams, config.training.seed, config.data.subword_sampling) == (2, 3, 0.1)
    assert (config.model.d_model, config.model.dropout) == (128, 0.3)
    assert config.training.recipe is None
    assert config.training.steps != 7
    with pytest.raises(InputError, match="training.recipe is 'auto', but must be None; "):
        compose.build(load_config_file("text_files"))


@pytest.fixture
def arguments(write):
    """The flags that train a tiny model on eight sentences and their Chinese translations."""
    data = write(sentences("Latin", 8), sentences("Chinese", 8))
    return [
        f"--config={CONFIGS / 'text_files.py'}",
        *(
            f"--config.data.{split}_{side}={getattr(data, f'train_{side}')}"
            for split in ("train", "validation")
            for side in ("source", "target")
        ),
        *TINY,
    ]


@pytest.mark.slow
def test_train_takes_the_recipe_for_the_text_and_flags_take_precedence(arguments, tmp_path):
    arguments.append(f"--workdir={tmp_path / 'run'}")
    first = run("experiments.train", *arguments, "--config.training.steps=1")
    assert first.status == 0, first.err
    assert "recipe small, for 8 pairs on the CPU: --config." in first.err
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (saved["model"]["d_model"], saved["model"]["dropout"]) == (16, 0.2)
    assert saved["training"]["steps"] == 1
    # Chinese has no spaces, at which BLEU's usual tokenization splits.
    assert first.err.count("BLEU is tokenized by zh") == 1
    # The recipe of a workdir was chosen once: a longer training continues with it.
    longer = run("experiments.train", *arguments, "--config.training.steps=2")
    assert longer.status == 0, longer.err
    assert "recipe small" not in longer.err


def test_a_tokenization_that_lacks_its_package_is_refused_before_training(arguments, tmp_path):
    lacking = "--config.evaluation.bleu_tokenize=ko-mecab"
    refused = run("experiments.train", *arguments, f"--workdir={tmp_path / 'run'}", lacking)
    assert refused.status == 1
    assert "ko-mecab' needs more" in refused.err
    assert not (tmp_path / "run" / "tokenizer.model").exists()
