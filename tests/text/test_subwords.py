# SPDX-License-Identifier: Apache-2.0
"""Sampled segmentations have the right text and frequencies, and are the same in every process."""

import collections
import pathlib
import random
import subprocess
import sys

import jax
import pytest
import scipy.stats
from apps import environment
from jax.sharding import NamedSharding, PartitionSpec

from experiments.training import training_data
from transformer.config import Config, DataConfig, TransformerConfig
from transformer.errors import InputError
from transformer.text.subword_sampling import SubwordSampler, merge, sharpen
from transformer.text.tokenizer import Tokenizer

TEXT = [
    "the small house stands there where the others stood",
    "the houses stood here and there, and others were smaller",
    "a house is there; is the smallest one the oldest?",
    "who understands this understands the others, too",
] * 3
SIZES = {"bpe": 60, "unigram": 40}


@pytest.fixture(scope="module", params=SIZES)
def tokenizer(request):
    """(tokenizer, algorithm)."""
    return Tokenizer.train(TEXT, SIZES[request.param], request.param), request.param


SCORES = {"ab": 4.0, "cd": 3.0, "bc": 2.0, "abcd": 1.0}


def test_merges_by_hand():
    """The best-scored merge first; merges in `skipped` never happen."""
    for skipped, expected in (
        ("", ["abcd"]),
        ("ab bc cd", ["a", "b", "c", "d"]),
        ("ab", ["a", "b", "cd"]),  # once c and d are one, b and c no longer meet
        ("ab cd", ["a", "bc", "d"]),
        ("abcd", ["ab", "cd"]),
    ):
        scores = {piece: score for piece, score in SCORES.items() if piece not in skipped.split()}
        assert merge("abcd", scores, lambda: False) == expected
    assert merge("abcd", SCORES, lambda: True) == list("abcd")


def test_without_skipping_merges_are_sentencepieces():
    tokenizer = Tokenizer.train(TEXT, SIZES["bpe"], "bpe")
    scores = tokenizer.scores()
    for ids in tokenizer.encode(TEXT):
        actual = []
        for word in "".join(tokenizer.pieces(ids[:-1])).split("▁")[1:]:
            actual += tokenizer.ids(merge("▁" + word, scores, lambda: False))
        assert actual == ids[:-1]


def test_each_merge_is_skipped_with_the_given_probability():
    """In 4,000 samples of one merge with p = 0.3, the share skipped is 0.3 within 4 sigma."""
    uniform = random.Random(0).random
    samples = [merge("ab", {"ab": 1.0}, lambda: uniform() < 0.3) for _ in range(4000)]
    share = sum(draw == ["a", "b"] for draw in samples) / 4000
    assert abs(share - 0.3) < 4 * (0.3 * 0.7 / 4000) ** 0.5


def test_shares_by_hand():
    assert sharpen([-1.0, -1.0], 0.3) == pytest.approx([0.5, 0.5])
    assert sharpen([0.0, -1.3862944], 0.5) == pytest.approx([2 / 3, 1 / 3])  # p = 1, 1/4
    assert sharpen([0.0, -9.0, -99.0], 0.0) == pytest.approx([1 / 3] * 3)


def test_samples_have_the_same_text(tokenizer):
    vocabulary, algorithm = tokenizer
    sampler = SubwordSampler(vocabulary, algorithm, 0.3)
    different = 0
    for number, (text, ids) in enumerate(zip(TEXT, vocabulary.encode(TEXT), strict=True)):
        sampled = sampler(ids, f"seed {number}")
        assert vocabulary.decode(sampled) == text
        assert sampled == sampler(ids, f"seed {number}")
        different += sampled != ids
    assert different > len(TEXT) / 2


def test_alpha_0_is_no_dropout_with_bpe():
    vocabulary = Tokenizer.train(TEXT, SIZES["bpe"], "bpe")
    sampler = SubwordSampler(vocabulary, "bpe", 0.0)
    assert [sampler(ids, "any") for ids in vocabulary.encode(TEXT)] == vocabulary.encode(TEXT)


def test_unigram_segmentations_have_the_right_frequencies():
    """2,000 samples of one word against p^alpha of its best segmentations: chi-square at 0.1%."""
    vocabulary = Tokenizer.train(TEXT, SIZES["unigram"], "unigram")
    [ids] = vocabulary.encode(["understands"])
    scores, alpha = vocabulary.scores(), 0.1
    best = vocabulary.best_segmentations(ids[:-1], 64)
    log_probs = [sum(scores[piece] for piece in vocabulary.pieces(each)) for each in best]
    sampler = SubwordSampler(vocabulary, "unigram", alpha)
    seen = collections.Counter(tuple(sampler(ids, str(seed))[:-1]) for seed in range(2000))
    expected = [2000 * share for share in sharpen(log_probs, alpha)]
    assert len(best) > 8
    assert min(expected) >= 5
    actual = scipy.stats.chisquare([seen[tuple(each)] for each in best], expected)
    assert actual.pvalue > 0.001


def test_a_word_with_an_unknown_character_keeps_its_segmentation(tokenizer):
    vocabulary, algorithm = tokenizer
    sampler = SubwordSampler(vocabulary, algorithm, 0.9)
    [ids] = vocabulary.encode(["the hoЖuse stood there"])
    for seed in range(10):
        sampled = sampler(ids, str(seed))
        assert sampled.count(3) == ids.count(3) == 1
        assert vocabulary.decode(sampled) == vocabulary.decode(ids)


def test_a_word_of_unknown_characters_alone_stays_as_it_is():
    """Not even those of SentencePiece's own `<unk>` are in the vocabulary."""
    text = ["мама мыла раму очень долго", "рама была мылом мыта", "долго мама была очень"] * 20
    vocabulary = Tokenizer.train(text, 40, "unigram", at_most=True)
    [ids] = vocabulary.encode(["мама Z мыла"])
    sampled = SubwordSampler(vocabulary, "unigram", 0.2)(ids, "1")
    assert sampled.count(3) == ids.count(3) == 1
    assert vocabulary.decode(sampled) == vocabulary.decode(ids)


def data_config(folder, **fields):
    """A corpus of two files, with a trained vocabulary and sampled subwords."""
    path = folder / "text"
    path.write_text("\n".join(TEXT) + "\n")
    sides = {f"{split}_{side}": str(path) for split in SPLITS for side in ("source", "target")}
    return DataConfig(
        **{"dataset": "text_files", "subword_sampling": 0.3, **sides},
        **{"max_length": 64, "bucket_lengths": (64,), "token_cache": str(folder / "tokens")},
        **fields,
    )


SPLITS = ("train", "validation")


@pytest.mark.parametrize(
    ("algorithm", "other", "remedy"),
    [
        ("bpe", "unigram", "--config.data.tokenizer=bpe (if training.init_from has the other: "),
        ("unigram", "bpe", "--config.data.tokenizer=unigram (if training.init_from has the other"),
        ("word", "bpe", ""),
    ],
    ids=["bpe", "unigram", "word"],
)
def test_subwords_are_sampled_with_the_algorithm_of_the_vocabulary_or_not_at_all(
    algorithm, other, remedy, tmp_path
):
    vocabulary = Tokenizer.train(TEXT, SIZES.get(algorithm, 30), algorithm, at_most=True)
    (tmp_path / "tokenizer.model").write_bytes(vocabulary.model)
    model = TransformerConfig(vocab_size=vocabulary.vocab_size)
    rows = NamedSharding(jax.make_mesh((1,), "x"), PartitionSpec())

    def load(name):
        data = data_config(
            tmp_path, tokenizer=name, tokenizer_model=str(tmp_path / "tokenizer.model")
        )
        return training_data.load(Config(model=model, data=data), None, rows)

    with pytest.raises(InputError) as error:
        load(other)
    start = f"data.tokenizer is {other!r}, but the SentencePiece model of the source is "
    assert str(error.value).startswith(f"{start}{algorithm!r}")
    assert "--config.data.subword_sampling=0" in str(error.value)
    assert (f", or {remedy}" if remedy else "=0") in str(error.value)
    assert remedy or "data.tokenizer=" not in str(error.value)
    if algorithm != "word":
        batch = load(algorithm).train.global_batch(0)
        sampled = {tuple(row[row > 0].tolist()) for row in batch.source} - {()}
        assert len(sampled) > len({*TEXT})


PROGRAM = """
import sys
from test_subwords import SIZES, TEXT
from transformer.text.subword_sampling import SubwordSampler
from transformer.text.tokenizer import Tokenizer
for algorithm, size in SIZES.items():
    vocabulary = Tokenizer.train(TEXT, size, algorithm)
    sampler = SubwordSampler(vocabulary, algorithm, 0.4)
    print([sampler(ids, f"{number}") for number, ids in enumerate(vocabulary.encode(TEXT))])
"""


@pytest.mark.slow
def test_samples_are_the_same_in_every_process():
    """Those of SentencePiece itself are not, which is why they are not used."""
    sampled = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=environment() | {"PYTHONHASHSEED": seed},
            cwd=pathlib.Path(__file__).parent,
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(sampled) == 1
    assert sampled != {b""}
