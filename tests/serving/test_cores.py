# SPDX-License-Identifier: Apache-2.0
"""The cores of this process, and work that threads share."""

import threading
import time

import pytest

from transformer.cores import map_in_threads, num_cores


def test_there_is_a_core():
    assert num_cores() >= 1


@pytest.mark.parametrize("threads", [1, 3])
def test_results_come_in_the_order_of_the_items(threads):
    def later_is_faster(item):
        time.sleep(0.01 * (4 - item))
        return 10 * item

    assert list(map_in_threads(later_is_faster, iter(range(5)), threads)) == [0, 10, 20, 30, 40]


def test_items_are_worked_on_at_the_same_time():
    both = threading.Barrier(2, timeout=20)
    assert sorted(map_in_threads(lambda _: both.wait(), range(2), threads=2)) == [0, 1]


@pytest.mark.parametrize(("items", "threads"), [(3, 1), (1, 3)])
def test_one_thread_or_one_item_needs_no_other_thread(items, threads):
    names = map_in_threads(lambda _: threading.current_thread(), range(items), threads)
    assert set(names) == {threading.current_thread()}


def test_after_an_error_no_further_item_is_begun():
    begun = []

    def fail(item):
        begun.append(item)
        time.sleep(0.05)
        raise ValueError(item)

    with pytest.raises(ValueError, match="^0$"):
        list(map_in_threads(fail, range(100), threads=2))
    assert len(begun) < 10
