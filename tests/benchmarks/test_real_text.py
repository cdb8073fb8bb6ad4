# SPDX-License-Identifier: Apache-2.0
"""On real text every program does the same work, and padding does not count as tokens."""

import dataclasses
import importlib.util

import numpy as np
import pytest

from experiments.benchmarks import real_text, training_speed
from experiments.benchmarks.comparison import config_of
from experiments.benchmarks.programs import this_project
from experiments.benchmarks.workloads import (
    TEXT,
    Text,
    Workload,
    pad,
    training_batches,
    translation_batches,
)
from transformer.errors import InputError

TINY = Workload(1, 16, 2, 32, 48, 8, 16, 16, buckets=(8, 16))
WORDS = ("the", "old", "dog", "cat", "runs", "sees", "a", "house", "near", "small", "tree")

needs_torch = pytest.mark.skipif(
    not importlib.util.find_spec("torch"), reason="needs the extra bench"
)


def sentence(length, first=10):
    """Token ids of a sentence of this length, EOS last."""
    return [*range(first, first + length - 1), 2]


def text_of(*lengths, lines=()):
    """A text with sentence pairs and lines of these lengths."""
    return Text(
        sources=[sentence(source) for source, _ in lengths],
        targets=[sentence(target, 20) for _, target in lengths],
        lines=["x"] * len(lines),
        line_ids=[sentence(length) for length in lines],
    )


def num_tokens(ids):
    return (ids != 0).sum(axis=1).tolist()


def test_a_text_is_read_as_it_was_written(tmp_path):
    text = text_of((3, 4), (2, 5), lines=[6])
    text.save(tmp_path / TEXT)
    assert Text.load(tmp_path / TEXT) == text


def batches_of_peers(text, tokens):
    """Lengths of the sentence pairs in a peer's batches of this number of tokens."""
    workload = dataclasses.replace(TINY, batch_size=1, target_length=tokens)
    return [
        list(zip(num_tokens(source), num_tokens(target), strict=True))
        for source, target in training_batches(workload, text)
    ]


def test_peers_train_the_same_pairs_sorted_by_length_within_the_same_budget():
    text = text_of((2, 9), (3, 3), (5, 2), (3, 4), (2, 2))
    # By their longer side: 2, 3, 4, 5, 9; 3 x 4 and 2 x 5 fit into 12 positions, 4 x 5 do not.
    assert batches_of_peers(text, 12) == [[(2, 2), (3, 3), (3, 4)], [(5, 2)], [(2, 9)]]
    # A pair that is longer than the budget is not lost.
    assert sum(map(len, batches_of_peers(text, 1))) == 5


def test_sentences_are_padded_to_the_longest():
    ids = pad([sentence(2), sentence(4)])
    assert ids.tolist() == [[10, 2, 0, 0], [10, 11, 12, 2]]
    assert pad([sentence(2), sentence(3)], pad_id=47)[0].tolist() == [10, 2, 47]


def test_a_batch_of_translations_is_one_token_longer_than_its_mean_source():
    text = text_of((2, 2), lines=[9, 3, 4, 5, 7])
    workload = dataclasses.replace(TINY, batch_size=2)
    batches = [
        ([len(ids) for ids in batch], length)
        for batch, length in translation_batches(workload, text)
    ]
    assert batches == [([3, 4], 5), ([5, 7], 7), ([9], 10)]  # 3.5 is rounded to even


def random_pairs():
    """Sources and targets of up to five words."""
    generator = np.random.default_rng(0)
    return [
        [" ".join(generator.choice(WORDS, generator.integers(1, 6))) for _ in range(60)]
        for _ in range(2)
    ]


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """A folder with a prepared text of three batches, and the text."""
    monkeypatch.setattr(real_text, "BATCHES", 3)
    lines = ["the old dog", "", "a cat " * 20, "house"]
    return tmp_path, real_text.prepare(TINY, tmp_path, random_pairs(), lines)


@pytest.mark.slow
def test_this_project_trains_the_pairs_that_the_peers_have(prepared):
    folder, text = prepared
    program = this_project.training_text(TINY, str(folder / TEXT), {})
    assert program.units == sum(map(len, text.targets)) / 1000
    program.call()


@pytest.mark.slow
def test_each_translation_is_one_token_longer_than_its_source(prepared):
    folder, text = prepared
    # The empty line and the one of more than 16 subwords are left out.
    assert text.lines == ["the old dog", "house"]
    program = this_project.translating(TINY, str(folder / TEXT), 2, 8, {})
    assert program.units == 2
    assert program.about["output_tokens"] == sum(len(ids) + 1 for ids in text.line_ids)
    program.call()


def test_a_text_without_a_line_to_translate_is_rejected(tmp_path):
    with pytest.raises(InputError, match="no line of the text to translate has 1 to 15 subwords"):
        real_text.prepare(TINY, tmp_path, random_pairs(), ["", " "])


def test_batches_have_the_lengths_of_the_buckets_and_any_config_field_can_be_overridden():
    data = config_of(TINY).data
    assert (data.bucket_lengths, data.max_length) == ((8, 16), 16)
    assert (data.tokens_per_batch, data.row_multiple) == (128, 8)
    assert config_of(TINY, {"data.packing": True}).data.packing


def test_invalid_options_are_rejected_with_the_remedy(tmp_path):
    short = tmp_path / "short"
    short.write_text(f"{' '.join(WORDS)}\n" * 9)
    for source, target, message in (
        ("a", None, "--train_target=FILE is missing"),
        ("nowhere", "nowhere", "nowhere cannot be read"),
        (str(short), str(short), "--train_source and --train_target have too little text"),
    ):
        with pytest.raises(InputError, match=message):
            training_speed.run(training_speed.Options(train_source=source, train_target=target))


@pytest.mark.slow
@needs_torch
def test_padding_does_not_change_the_loss_of_pytorch(monkeypatch):
    import torch

    from experiments.benchmarks.programs import pytorch

    monkeypatch.setattr(pytorch, "DROPOUT", 0.0)
    workload = dataclasses.replace(TINY, inner_dropout=False)
    torch.manual_seed(0)
    model = pytorch.Model(workload).train()
    source, target = (torch.from_numpy(pad([sentence(5), sentence(3)])) for _ in range(2))
    plain = model(source, target)
    wider = torch.nn.functional.pad(source, (0, 4)), torch.nn.functional.pad(target, (0, 2))
    torch.testing.assert_close(model(*wider), plain)
    # The mean is over tokens: a batch of 5 and 3 is that of both sentences.
    alone = [model(source[:1], target[:1]), model(source[1:, :3], target[1:, :3])]
    torch.testing.assert_close(plain, (5 * alone[0] + 3 * alone[1]) / 8)


@pytest.mark.slow
@needs_torch
def test_pytorch_trains_a_text(tmp_path, monkeypatch):
    from experiments.benchmarks.programs import pytorch

    monkeypatch.setattr(pytorch, "num_cores", lambda: 1)
    text_of((2, 9), (3, 3), (5, 2)).save(tmp_path / TEXT)
    program = pytorch.training(TINY, "float32", path=str(tmp_path / TEXT))
    program.call()
    assert program.units == 14 / 1000
