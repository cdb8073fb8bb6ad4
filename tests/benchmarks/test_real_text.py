# SPDX-License-Identifier: Apache-2.0
"""On real text every program translates the same lines, to equally many tokens."""

import dataclasses

import numpy as np
import pytest

from experiments.benchmarks import decoding_speed
from experiments.benchmarks.comparison import config_of
from experiments.benchmarks.programs import this_project
from experiments.benchmarks.workloads import TEXT, Text, Workload, pad, translation_batches
from transformer.errors import InputError

TINY = Workload(1, 16, 2, 32, 48, 8, 16, 16, buckets=(8, 16))
WORDS = ("the", "old", "dog", "cat", "runs", "sees", "a", "house", "near", "small", "tree")


def sentence(length):
    """Token ids of a sentence of this length, EOS last."""
    return [*range(10, 9 + length), 2]


def text_of(*lengths):
    """A text with lines of these lengths."""
    return Text(["x"] * len(lengths), [sentence(length) for length in lengths])


def test_a_text_is_read_as_it_was_written(tmp_path):
    text = text_of(6, 3)
    text.save(tmp_path / TEXT)
    assert Text.load(tmp_path / TEXT) == text


def test_sentences_are_padded_to_the_longest():
    ids = pad([sentence(2), sentence(4)])
    assert ids.tolist() == [[10, 2, 0, 0], [10, 11, 12, 2]]
    assert pad([sentence(2), sentence(3)], pad_id=47)[0].tolist() == [10, 2, 47]


def test_a_batch_of_translations_is_one_token_longer_than_its_mean_source():
    text = text_of(9, 3, 4, 5, 7)
    workload = dataclasses.replace(TINY, batch_size=2)
    batches = [
        ([len(ids) for ids in batch], length)
        for batch, length in translation_batches(workload, text)
    ]
    assert batches == [([3, 4], 5), ([5, 7], 7), ([9], 10)]  # 3.5 is rounded to even


@pytest.fixture
def options(tmp_path):
    """The lines to translate, and a training text of random words."""
    generator = np.random.default_rng(0)
    for side in ("source", "target"):
        lines = [" ".join(generator.choice(WORDS, generator.integers(1, 6))) for _ in range(60)]
        (tmp_path / side).write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "lines").write_text(f"the old dog\n\n{'a cat ' * 20}\nhouse\n")
    sides = {f"train_{side}": str(tmp_path / side) for side in ("source", "target")}
    return decoding_speed.Options(lines=str(tmp_path / "lines"), **sides)


@pytest.mark.slow
def test_each_translation_is_one_token_longer_than_its_source(options, tmp_path):
    path = decoding_speed.prepare_text(options, TINY, tmp_path)
    text = Text.load(path)
    # The empty line and the one of more than 16 subwords are left out.
    assert text.lines == ["the old dog", "house"]
    program = this_project.translating(TINY, path, 2, 8, {})
    assert program.units == 2
    assert program.about["output_tokens"] == sum(len(ids) + 1 for ids in text.line_ids)
    program.call()


def test_batches_have_the_lengths_of_the_buckets_and_any_config_field_can_be_overridden():
    data = config_of(TINY).data
    assert (data.bucket_lengths, data.max_length) == ((8, 16), 16)
    assert (data.tokens_per_batch, data.row_multiple) == (128, 8)
    assert config_of(TINY, {"data.packing": True}).data.packing


def test_invalid_options_are_rejected_with_the_remedy(options, tmp_path):
    (tmp_path / "empty").write_text(" \n\n")
    large = dataclasses.replace(TINY, vocab_size=8000)
    for message, changed, workload in (
        ("--train_target=FILE is missing", {"train_target": None}, TINY),
        ("nowhere cannot be read", {"train_source": "nowhere"}, TINY),
        ("--train_source and --train_target have too little text", {}, large),
        ("no line of 1 to 15 subwords", {"lines": str(tmp_path / "empty")}, TINY),
    ):
        with pytest.raises(InputError, match=message):
            decoding_speed.prepare_text(dataclasses.replace(options, **changed), workload, tmp_path)
