# SPDX-License-Identifier: Apache-2.0
"""On real text every program does the same work, and padding is nobody's token."""

import importlib.util
import json

import numpy as np
import pytest
from apps import run

from experiments.benchmarks import prepared, text
from experiments.benchmarks.programs import own
from experiments.benchmarks.settings import config_of
from experiments.benchmarks.text import Text
from experiments.benchmarks.work import Work
from experiments.corpora.text_files import TwoFiles
from transformer.errors import InputError

TINY = Work(
    layers=1,
    d_model=16,
    heads=2,
    d_ff=32,
    vocabulary=48,
    rows=8,
    source=16,
    target=16,
    buckets=(8, 16),
)
WORDS = ("the", "old", "dog", "cat", "runs", "sees", "a", "house", "near", "small", "tree")


def sentence(length, first=10):
    """As many ids, the end token last."""
    return np.array([*range(first, first + length - 1), 2], np.int32)


def of_lengths(*pairs, rows, lines=()):
    sources, targets = zip(*pairs, strict=True)
    return Text(
        [sentence(one) for one in sources],
        [sentence(one, 20) for one in targets],
        rows,
        [sentence(one) for one in lines],
    )


def lengths(batches):
    return [[tuple(map(len, pair)) for pair in zip(*batch, strict=True)] for batch in batches]


def test_a_text_is_read_as_it_was_written(tmp_path):
    written = of_lengths((3, 4), (2, 5), rows=[1, 1], lines=[6])
    written.save(tmp_path / "text.npz")
    found = Text.load(tmp_path / "text.npz")
    assert found.rows == [1, 1]
    for name in ("sources", "targets", "lines"):
        for one, other in zip(getattr(written, name), getattr(found, name), strict=True):
            assert one.dtype == other.dtype == np.int32
            assert one.tolist() == other.tolist()
    of_lengths((3, 4), rows=[1]).save(tmp_path / "text.npz")
    assert Text.load(tmp_path / "text.npz").lines == []


def test_peers_train_the_same_batches_or_the_same_pairs_sorted_within_the_same_budget():
    pairs = of_lengths((2, 9), (3, 3), (5, 2), (3, 4), (2, 2), rows=[2, 3])
    assert lengths(pairs.batches()) == [[(2, 9), (3, 3)], [(5, 2), (3, 4), (2, 2)]]
    # By their longer side: 2, 3, 4, 5, 9; 3 x 4 and 2 x 5 fit into 12 positions, 4 x 5 do not.
    assert lengths(pairs.sorted_batches(12)) == [[(2, 2), (3, 3), (3, 4)], [(5, 2)], [(2, 9)]]
    # One that is longer than the budget is not lost.
    assert sum(map(len, lengths(pairs.sorted_batches(1)))) == 5
    assert pairs.target_tokens == 20


def test_padding_goes_to_the_longest_sentence_and_is_counted_on_both_sides():
    ids = text.padded([sentence(2), sentence(4)])
    assert ids.tolist() == [[10, 2, 0, 0], [10, 11, 12, 2]]
    assert text.padded([sentence(2), sentence(3)], padding=47)[0].tolist() == [10, 2, 47]
    # 6 of 8 and 4 of 4 positions hold a token.
    other = text.padded([sentence(2), sentence(2)])
    assert text.padding_share([(ids, other)]) == round(1 - 10 / 12, 4)


def test_a_batch_of_translations_is_one_token_longer_than_its_sources_are_on_average():
    batches = list(of_lengths((2, 2), rows=[1], lines=[9, 3, 4, 5, 7]).translated(2))
    assert [([len(one) for one in ids], length) for ids, length in batches] == [
        ([3, 4], 5),  # 3.5 rounded to an even number, and 1
        ([5, 7], 7),
        ([9], 10),
    ]


@pytest.fixture
def a_text(tmp_path):
    """A folder with a small text, its files, and the text itself."""
    generator = np.random.default_rng(0)
    for name in ("source", "target"):
        drawn = [" ".join(generator.choice(WORDS, generator.integers(1, 6))) for _ in range(60)]
        (tmp_path / name).write_text("".join(f"{line}\n" for line in drawn))
    pairs = TwoFiles(str(tmp_path / "source"), str(tmp_path / "target"))
    lines = ["the old dog", "", "a cat " * 20, "house"]
    found = prepared.prepare(TINY, str(tmp_path), pairs, lines, 3, {})
    return tmp_path, pairs, found


def test_this_program_trains_the_pairs_that_the_peers_are_given(a_text, capsys):
    folder, pairs, found = a_text
    program = own.training_text(TINY, str(folder), pairs.source, pairs.target, 3, {})
    assert program.units == found.target_tokens / 1000
    assert program.about["batches"] == len(found.rows) == 3
    # Its batches are padded to their bucket, those of the peers to their longest sentence.
    least = text.padding_share([tuple(map(text.padded, batch)) for batch in found.batches()])
    assert 0 < least <= program.about["padding_share"] < 1
    program.call()


def test_each_translation_is_one_token_longer_than_its_source(a_text, capfd):
    folder, _, found = a_text
    # The empty line and the one of more than 16 sub-words are left out.
    assert (folder / prepared.LINES).read_text() == "the old dog\nhouse\n"
    assert len(found.lines) == 2
    program = own.translating(TINY, str(folder), 2, 8, {})
    assert program.units == 2
    assert program.about["output_tokens"] == sum(len(ids) + 1 for ids in found.lines)
    program.call()


def test_a_text_of_which_no_line_can_be_translated_is_refused(tmp_path):
    for name in ("source", "target"):
        (tmp_path / name).write_text(f"{' '.join(WORDS)}\n" * 9)
    pairs = TwoFiles(str(tmp_path / "source"), str(tmp_path / "target"))
    work = Work(**(vars(TINY) | {"buckets": (16, 64), "source": 64, "target": 64}))
    with pytest.raises(InputError, match="no line of the text to translate has 1 to 63 sub-words"):
        prepared.prepare(work, str(tmp_path), pairs, ["", " "], 1, {})


def test_batches_come_in_the_lengths_of_the_buckets_and_any_config_field_can_be_given():
    data = config_of(TINY).data
    assert (data.bucket_lengths, data.max_length) == ((8, 16), 16)
    assert (data.tokens_per_batch, data.row_multiple) == (128, 8)
    assert config_of(TINY, {"data.packing": True}).data.packing


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--source=FILE is missing"),
        (["--source=a"], "--target=FILE is missing"),
        (["--source=nowhere", "--target=nowhere"], "nowhere cannot be read"),
        (["--tokens=100"], "of sentences of 64 tokens at least 512; raise it"),
        (["--buckets=8,x"], "--buckets=8,x: 'x' is not a whole number of at least 1"),
        (["--beams=0"], "--beams=0: '0' is not a whole number of at least 1"),
        (["--own=model.dropuot=0"], "did you mean 'model.dropout'"),
        (["--variant=x:model.dropuot=0"], "did you mean 'model.dropout'"),
        (["--works=W1", "--vocabulary=9000"], "set --vocabulary="),
        (["--works=W1", "--vocabulary=30", "--only=Sockeye*"], "nothing has such a name"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_the_remedy(arguments, message, tmp_path):
    if arguments and not arguments[0].startswith("--source"):
        for name in ("source", "target"):
            (tmp_path / name).write_text(f"{' '.join(WORDS)}\n" * 9)
        arguments = [
            f"--source={tmp_path / 'source'}",
            f"--target={tmp_path / 'target'}",
            *arguments,
        ]
    finished = run("experiments.benchmarks.real_text", *arguments)
    assert finished.status == 1
    assert message in finished.err
    assert "Traceback" not in finished.err


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs the extra bench")
def test_padding_changes_nothing_for_pytorch(monkeypatch):
    import torch

    from experiments.benchmarks.programs import pytorch

    monkeypatch.setattr(pytorch, "DROPOUT", 0.0)
    work = Work(**(vars(TINY) | {"dropout_inside": False}))
    torch.manual_seed(0)
    model = pytorch.Model(work).train()
    source, target = (torch.from_numpy(text.padded([sentence(5), sentence(3)])) for _ in range(2))
    plain = model(source, target)
    wider = torch.nn.functional.pad(source, (0, 4)), torch.nn.functional.pad(target, (0, 2))
    torch.testing.assert_close(model(*wider), plain)
    # The mean is over tokens: a batch of 5 and 3 is that of both sentences.
    alone = [model(source[:1], target[:1]), model(source[1:, :3], target[1:, :3])]
    torch.testing.assert_close(plain, (5 * alone[0] + 3 * alone[1]) / 8)


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs the extra bench")
@pytest.mark.parametrize("by_length", [False, True])
def test_pytorch_trains_a_text(tmp_path, by_length, monkeypatch):
    from experiments.benchmarks import threads
    from experiments.benchmarks.programs import pytorch

    monkeypatch.setattr(threads, "cores", lambda: 1)
    pairs = of_lengths((2, 9), (3, 3), (5, 2), rows=[2, 1])
    pairs.save(tmp_path / "text.npz")
    found = pytorch.training_text(TINY, tmp_path / "text.npz", by_length, "float32")
    found.call()
    assert found.units == 14 / 1000
    # 6 + 10 of sources and targets in 2 x 3 + 2 x 9, and 5 + 2 in as many; or all in 3 x 5 + 3 x 9.
    share = 1 - 24 / 42 if by_length else 1 - 24 / 31
    assert found.about["padding_share"] == round(share, 4)
    assert found.about["batches"] == (1 if by_length else 2)


@pytest.mark.slow
def test_each_number_of_pairs_is_read_and_told_in_a_line_of_its_own():
    finished = run(
        "experiments.benchmarks.reading", "--pairs=1000,1200", "--vocabulary=500", "--batches=2"
    )
    assert finished.status == 0, finished.err
    assert [json.loads(line)["pairs"] for line in finished.out.splitlines()] == [1000, 1200]
    finished = run("experiments.benchmarks.reading", "--pairs=1000,10")
    assert "--pairs=1000,10: '10' is not a whole number of at least 1000" in finished.err
