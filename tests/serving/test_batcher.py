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
        self.threads = set()
        self.may_go = threading.Event()
        self.may_go.set()
        self.entered = threading.Event()

    def __call__(self, sentences, num_results, first_line):
        self.threads.add(threading.get_ident())
        self.batches.append((list(sentences), num_results, first_line))
        self.entered.set()
        assert self.may_go.wait(30)
        if any("bad" in sentence for sentence in sentences):
            raise ValueError("a bad sentence")
        return [[sentence.upper()] * num_results for sentence in sentences]

    def hold(self):
        self.may_go.clear()
        self.entered.clear()


@pytest.fixture
def translate():
    """Recorder of the batches."""
    return Recorder()


def bucket(length):
    """Buckets are multiples of four characters."""
    return -(-length // 4) * 4


class BucketingBatcher(Batcher):
    """A batcher of sentences with as many tokens as characters."""

    def submit(self, sentences, *arguments):
        return super().submit(sentences, *arguments, lengths=[len(text) for text in sentences])


def batcher(translate, costs=LINEAR, **options):
    return BucketingBatcher(translate, costs=lambda _: costs, bucket=bucket, **options)


def held(translate, one):
    """A batcher that computes a first sentence and holds there: what follows is queued."""
    translate.hold()
    first = one.submit(["first"])
    assert translate.entered.wait(30)
    return first


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
def test_the_size_of_a_batch_is_the_cheapest_a_sentence(count, costs, taken):
    assert choose([12] * count, costs, bucket) == list(range(taken))


def test_the_oldest_sentence_is_in_the_batch_and_shorter_ones_fill_its_rows():
    lengths = [16, 12, 36, 15, 14, 4, 16, 13, 11, 9]
    # The longest is not in it, and of the others that fit the shortest ones are left out.
    assert choose(lengths, {8: 1.0}, bucket) == [0, 6, 3, 4, 7, 1, 8, 9]
    assert choose([4, *[12] * 9], {8: 1.0}, bucket) == [0], "longer ones would make it wait"


def test_a_batch_has_the_lengths_with_the_lowest_cost_a_token():
    def chosen(lengths, costs):
        return sorted(choose(lengths, costs, bucket))

    # Eight of 12 have 8 * 12 / 96 a token, with one of 16 instead 8 * 16 / 100.
    assert chosen([*[12] * 8, 16], {8: 8.0}) == list(range(8))
    # One of 12 alone has 8 * 12 / 12, with seven of 16 it has 8 * 16 / 124.
    assert chosen([12, *[16] * 7], {8: 8.0}) == list(range(8))
    # 9 and 10 have the bucket of 12: eight of these have 8 * 10 / 72, with the oldest 8 * 12 / 75.
    assert chosen([9, *[9] * 6, 10, 12], {8: 8.0}) == list(range(8))
    # Four of 12 have 8 * 12 / 48, with one of 16 besides 8 * 16 / 64, and one alone has 3.
    assert chosen([*[12] * 4, 16], {1: 3.0, 8: 8.0}) == [0, 1, 2, 3, 4]


def test_an_error_of_the_thread_reaches_the_callers_that_wait(translate):
    def costs(num_results):
        raise ValueError("no costs")

    with Batcher(translate, costs=costs) as one:
        with pytest.raises(ValueError, match="no costs"):
            one.submit(["a", "b"]).result(30)
        with pytest.raises(BatcherClosed):
            one.submit(["c"])


def test_sentences_without_buckets_share_a_batch(translate):
    with Batcher(translate, costs=lambda _: FLAT, window=0.01) as one:
        assert one.submit(["a", "bb", "ccc"]).result(30) == [["A"], ["BB"], ["CCC"]]


def test_each_of_many_threads_gets_its_own_results(translate):
    def call(number):
        generator = random.Random(number)
        words = ["w" * generator.randint(1, 20) + f"{number}.{i}" for i in range(number % 5)]
        num_results = 1 + number % 2
        return words, num_results, one.submit(words, num_results).result(30)

    with (
        batcher(translate, window=0.001) as one,
        concurrent.futures.ThreadPoolExecutor(16) as threads,
    ):
        for words, num_results, results in threads.map(call, range(300)):
            assert results == [[word.upper()] * num_results for word in words]
    assert len(translate.threads) == 1, "one thread by default"
    assert threading.get_ident() not in translate.threads
    assert sum(len(sentences) for sentences, *_ in translate.batches) == 600
    for sentences, *_ in translate.batches:
        assert len(sentences) <= 64


def test_waiting_sentences_share_batches(translate):
    with batcher(translate) as one:
        first = held(translate, one)
        futures = [one.submit([f"s{n:02}"]) for n in range(64)]
        assert one.waiting == 64
        translate.may_go.set()
        assert [future.result(30) for future in futures] == [[[f"S{n:02}"]] for n in range(64)]
        assert first.result() == [["FIRST"]]
    assert [len(sentences) for sentences, *_ in translate.batches] == [1, 64]


def test_a_sentence_waits_for_others_until_the_window_ends(translate):
    with batcher(translate, {8: 1.0}, window=0.3) as one:
        began = time.monotonic()
        futures = [one.submit(["a"])]
        time.sleep(0.05)
        futures.append(one.submit(["b"]))
        assert [future.result(30) for future in futures] == [[["A"]], [["B"]]]
        assert time.monotonic() - began >= 0.3
        full = [one.submit(["a"]) for _ in range(8)]
        began = time.monotonic()
        for future in full:
            future.result(30)
        assert time.monotonic() - began < 0.3, "a full batch does not wait"
    assert [len(sentences) for sentences, *_ in translate.batches] == [2, 8]


def test_different_numbers_of_results_are_not_mixed(translate):
    with batcher(translate, {8: 1.0}) as one:
        held(translate, one)
        futures = [one.submit([f"s{n}"], 1 + n % 2) for n in range(6)]
        translate.may_go.set()
        for number, future in enumerate(futures):
            assert future.result(30) == [[f"S{number}"] * (1 + number % 2)]
    assert translate.batches[1:] == [(["s0", "s2", "s4"], 1, 1), (["s1", "s3", "s5"], 2, 1)]


def test_lines_of_one_request_stay_together_if_results_depend_on_their_numbers(translate):
    with batcher(translate, {1: 1.0, 3: 1.0}, combine=False) as one:
        held(translate, one)
        futures = [one.submit(["a", "bbbbbbbbb", "c", "d"], 1, 7), one.submit(["e"], 1, 9)]
        translate.may_go.set()
        assert futures[0].result(30) == [["A"], ["BBBBBBBBB"], ["C"], ["D"]]
        assert futures[1].result(30) == [["E"]]
    lines = [(["a", "bbbbbbbbb", "c"], 1, 7), (["d"], 1, 10), (["e"], 1, 9)]
    assert translate.batches[1:] == lines


def test_a_full_queue_refuses_a_request_and_keeps_none_of_it(translate):
    with batcher(translate, capacity=5) as one:
        held(translate, one)
        kept = one.submit(["a", "b", "c"])
        with pytest.raises(QueueFull, match="3 sentences are waiting") as refusal:
            one.submit(["d", "e", "f"])
        assert 1 <= refusal.value.retry_after <= 60
        also = one.submit(["g", "h"])
        with pytest.raises(QueueFull):
            one.call(lambda: None)
        assert one.waiting == 5
        translate.may_go.set()
        assert kept.result(30) == [["A"], ["B"], ["C"]]
        assert also.result(30) == [["G"], ["H"]]


def test_a_cancelled_request_is_dropped_from_the_queue(translate):
    with batcher(translate) as one:
        held(translate, one)
        dropped, kept = one.submit(["gone"] * 9), one.submit(["kept"])
        assert dropped.cancel()
        translate.may_go.set()
        assert kept.result(30) == [["KEPT"]]
    assert [sentences for sentences, *_ in translate.batches] == [["first"], ["kept"]]


def test_a_request_that_is_cancelled_while_it_is_computed_harms_nobody(translate):
    with batcher(translate) as one:
        first = held(translate, one)
        assert first.cancel()
        translate.may_go.set()
        assert one.submit(["next"]).result(30) == [["NEXT"]]


def test_a_sentence_that_fails_fails_only_its_own_request(translate):
    with batcher(translate, {8: 1.0}) as one:
        held(translate, one)
        futures = [one.submit([text]) for text in ("good", "bad!", "fine")]
        translate.may_go.set()
        assert futures[0].result(30) == [["GOOD"]]
        assert futures[2].result(30) == [["FINE"]]
        with pytest.raises(ValueError, match="a bad sentence"):
            futures[1].result(30)
    assert translate.batches[1][0] == ["good", "bad!", "fine"]


def test_several_threads_translate_at_the_same_time_and_finish_what_was_accepted(translate):
    translate.hold()
    with batcher(translate, {1: 1.0}, threads=2) as one:
        results = [one.submit([word]) for word in ("a", "b", "c")]
        deadline = time.monotonic() + 30
        while len(translate.batches) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (len(translate.batches), one.waiting) == (2, 1), "both threads are busy"
        translate.may_go.set()
    assert [result.result(0) for result in results] == [[["A"]], [["B"]], [["C"]]]
    assert len(translate.threads) == 2


def test_functions_are_called_in_turn_in_the_same_thread(translate):
    with batcher(translate) as one:
        assert one.call(threading.get_ident).result(30) not in (threading.get_ident(), None)
        one.submit(["a"]).result(30)
        assert one.call(lambda: translate.threads).result(30) == {
            one.call(threading.get_ident).result(30)
        }
        with pytest.raises(ZeroDivisionError):
            one.call(lambda: 1 / 0).result(30)
        assert one.submit(["b"]).result(30) == [["B"]]


def test_closing_finishes_what_was_accepted_and_refuses_the_rest(translate):
    one = batcher(translate, {1: 1.0, 4: 1.0}, window=60)
    first = one.submit(["a"])  # waits for its window, which closing ends
    others = [one.submit([f"{n}", f"{n}{n}"]) for n in range(20)]
    one.close()
    assert first.done()
    assert [future.result(0) for future in others] == [[[f"{n}"], [f"{n}{n}"]] for n in range(20)]
    with pytest.raises(BatcherClosed):
        one.submit(["late"])
    one.close()


def test_batches_are_reported_with_their_rows(translate):
    records = []
    with batcher(translate, {1: 1.0, 8: 1.0}, observe=records.append) as one:
        held(translate, one)
        futures = [one.submit(["a"]) for _ in range(3)]
        translate.may_go.set()
        for future in futures:
            future.result(30)
    assert [(record.sentences, record.rows) for record in records] == [(1, 1), (3, 8)]


def test_a_request_without_sentences_is_answered_at_once(translate):
    with batcher(translate) as one:
        assert one.submit([]).result(0) == []
    assert translate.batches == []
