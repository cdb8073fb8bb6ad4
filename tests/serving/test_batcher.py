# SPDX-License-Identifier: Apache-2.0
"""The batching core: every caller gets its own results, in shared batches of few sizes."""

import concurrent.futures
import random
import threading
import time

import pytest

from experiments.serving.batcher import Batcher, BatcherClosed, QueueFull, choose

LINEAR = {1: 2.5, 8: 9.5, 64: 65.5}
"""Costs where rows cost time, as on a CPU."""
FLAT = {1: 1.0, 8: 1.0, 64: 1.0}
"""Costs where they do not, as on an accelerator."""


class Recorder:
    """Translates to capitals and records every batch; may be held back."""

    def __init__(self):
        self.batches = []
        self.may_go = threading.Event()
        self.may_go.set()
        self.entered = threading.Semaphore(0)

    def __call__(self, sentences, num_results, first_line):
        self.batches.append(list(sentences))
        self.entered.release()
        assert self.may_go.wait(30)
        if any("bad" in sentence for sentence in sentences):
            raise ValueError("a bad sentence")
        return [[sentence.upper()] * num_results for sentence in sentences]


@pytest.fixture
def translate():
    """Recorder of the batches."""
    return Recorder()


def bucket(length):
    """Buckets are multiples of four characters."""
    return -(-length // 4) * 4


class BucketingBatcher(Batcher):
    """A batcher of sentences with as many tokens as characters."""

    def submit(self, sentences, num_results=1):
        return super().submit(sentences, num_results, [len(text) for text in sentences])


def batcher(translate, costs=LINEAR, **options):
    return BucketingBatcher(translate, costs=lambda _: costs, bucket=bucket, **options)


def held(translate, one):
    """Hold a first sentence while it is computed, so that what follows is queued."""
    translate.may_go.clear()
    [first] = one.submit(["first"])
    assert translate.entered.acquire(timeout=30)
    return first


def results(futures):
    return [future.result(30) for future in futures]


@pytest.mark.parametrize(
    ("count", "costs", "taken"),
    [
        (1, LINEAR, 1),
        (2, LINEAR, 1),  # two alone cost 5, a batch of 8 rows 9.5
        (4, LINEAR, 4),  # 10 alone, 9.5 together
        (9, LINEAR, 8),  # 64 rows for 9 sentences would cost as much as 7 batches of 8
        (50, LINEAR, 8),
        (60, LINEAR, 60),
        (70, LINEAR, 64),
        (2, FLAT, 2),
        (9, FLAT, 9),
        (70, FLAT, 64),
    ],
)
def test_the_size_of_a_batch_has_the_lowest_cost_per_sentence(count, costs, taken):
    assert choose([12] * count, costs, bucket) == list(range(taken))


def test_a_batch_contains_the_oldest_sentence_and_adjacent_lengths():
    lengths = [16, 12, 36, 15, 14, 4, 16, 13, 11, 9]
    # The longest has more than twice the bucket; of the others the shortest do not fit.
    assert choose(lengths, {8: 1.0}, bucket) == [0, 6, 3, 4, 7, 1, 8, 9]
    assert choose([4, *[12] * 9], {8: 1.0}, bucket) == [0], "longer ones would make it wait"


@pytest.mark.parametrize(
    ("lengths", "costs", "chosen"),
    [
        # Eight of 12 have 8 * 12 / 96 a token, with one of 16 instead 8 * 16 / 100.
        ([*[12] * 8, 16], {8: 8.0}, range(8)),
        # One of 12 alone has 8 * 12 / 12, with seven of 16 it has 8 * 16 / 124.
        ([12, *[16] * 7], {8: 8.0}, range(8)),
        # Four of 12 have 8 * 12 / 48, with one of 16 besides 8 * 16 / 64, and one alone has 3.
        ([*[12] * 4, 16], {1: 3.0, 8: 8.0}, range(5)),
    ],
)
def test_a_batch_has_the_lengths_with_the_lowest_cost_per_token(lengths, costs, chosen):
    assert sorted(choose(lengths, costs, bucket)) == list(chosen)


def test_each_of_many_threads_gets_its_own_results(translate):
    def call(number):
        generator = random.Random(number)
        words = ["w" * generator.randint(1, 20) + f"{number}.{i}" for i in range(number % 5)]
        return words, number % 2 + 1, results(one.submit(words, number % 2 + 1))

    with (
        batcher(translate, window=0.001) as one,
        concurrent.futures.ThreadPoolExecutor(16) as threads,
    ):
        for words, num_results, found in threads.map(call, range(300)):
            assert found == [[word.upper()] * num_results for word in words]
    assert sum(map(len, translate.batches)) == 600
    assert max(map(len, translate.batches)) <= 64


def test_waiting_sentences_of_different_callers_share_batches(translate):
    with batcher(translate) as one:
        first = held(translate, one)
        futures = [one.submit([f"s{n:02}"])[0] for n in range(64)]
        assert one.waiting == 64
        translate.may_go.set()
        assert results(futures) == [[f"S{n:02}"] for n in range(64)]
        assert first.result() == ["FIRST"]
    assert [len(sentences) for sentences in translate.batches] == [1, 64]


def test_a_sentence_waits_for_others_until_the_window_ends(translate):
    with batcher(translate, {8: 1.0}, window=0.3) as one:
        began = time.monotonic()
        futures = one.submit(["a"])
        time.sleep(0.05)
        futures += one.submit(["b"])
        assert results(futures) == [["A"], ["B"]]
        assert time.monotonic() - began >= 0.3
    assert translate.batches == [["a", "b"]]


def test_a_full_batch_does_not_wait(translate):
    with batcher(translate, {8: 1.0}, window=60) as one:
        assert results(one.submit(["a"] * 8)) == [["A"]] * 8


def test_different_numbers_of_results_are_not_mixed(translate):
    with batcher(translate, {8: 1.0}) as one:
        held(translate, one)
        futures = [one.submit([f"s{n}"], 1 + n % 2)[0] for n in range(6)]
        translate.may_go.set()
        assert results(futures) == [[f"S{n}"] * (1 + n % 2) for n in range(6)]
    assert translate.batches[1:] == [["s0", "s2", "s4"], ["s1", "s3", "s5"]]


def test_a_full_queue_refuses_a_request_and_keeps_none_of_it(translate):
    with batcher(translate, capacity=5) as one:
        held(translate, one)
        kept = one.submit(["a", "b", "c"])
        with pytest.raises(QueueFull, match="3 sentences are waiting"):
            one.submit(["d", "e", "f"])
        kept += one.submit(["g", "h"])
        assert one.waiting == 5
        translate.may_go.set()
        assert results(kept) == [["A"], ["B"], ["C"], ["G"], ["H"]]


def test_a_cancelled_sentence_is_dropped_from_the_queue(translate):
    with batcher(translate) as one:
        first = held(translate, one)
        dropped, kept = one.submit(["gone"] * 9), one.submit(["kept"])
        assert all(future.cancel() for future in dropped)
        assert not first.cancel(), "it is being computed"
        translate.may_go.set()
        assert results(kept) == [["KEPT"]]
    assert translate.batches == [["first"], ["kept"]]


def test_a_sentence_that_fails_fails_only_its_own_request(translate):
    with batcher(translate, {8: 1.0}) as one:
        held(translate, one)
        good, bad, fine = one.submit(["good", "bad!", "fine"])
        translate.may_go.set()
        assert results([good, fine]) == [["GOOD"], ["FINE"]]
        with pytest.raises(ValueError, match="a bad sentence"):
            bad.result(30)
    assert translate.batches[1] == ["good", "bad!", "fine"]


def test_several_threads_translate_at_the_same_time(translate):
    translate.may_go.clear()
    with batcher(translate, {1: 1.0}, threads=2) as one:
        futures = one.submit(["a", "b", "c"])
        assert all(translate.entered.acquire(timeout=30) for _ in range(2))
        assert one.waiting == 1
        translate.may_go.set()
        assert results(futures) == [["A"], ["B"], ["C"]]


def test_closing_finishes_what_was_accepted_and_refuses_the_rest(translate):
    one = batcher(translate, {1: 1.0, 4: 1.0}, window=60)
    futures = one.submit(["a"])  # waits for its window, which closing ends
    futures += one.submit([f"{n}" for n in range(20)])
    one.close()
    assert [future.result(0) for future in futures] == [["A"], *[[f"{n}"] for n in range(20)]]
    with pytest.raises(BatcherClosed):
        one.submit(["late"])
    one.close()


def test_batches_are_reported_with_their_rows(translate):
    records = []
    with batcher(
        translate, {1: 1.0, 8: 1.0}, observe=lambda *record: records.append(record[:2])
    ) as one:
        held(translate, one)
        futures = one.submit(["a"] * 3)
        translate.may_go.set()
        results(futures)
    assert records == [(1, 1), (3, 8)]
