"""Jobs in worker processes: results in order, the first error, and an end that waits for nobody."""

from __future__ import annotations

import multiprocessing
import time

import pytest

from phraseloom.data.workers import Workers
from phraseloom.errors import DataError


def slow(number: int, seconds: float) -> int:
    time.sleep(seconds)
    if number < 0:
        raise DataError("negative", file="f", line=-number, hint="add")
    return number


def test_results_are_in_order_and_few_jobs_are_on_the_way() -> None:
    taken = []

    def jobs() -> object:
        for number in range(12):
            taken.append(number)
            yield number, 0.05 if number % 3 == 0 else 0.0

    with Workers(2) as workers:
        for (number, _), result in workers.run(slow, jobs()):  # type: ignore[arg-type]
            assert number == result and len(taken) <= result + 4
    assert taken == list(range(12)) and not multiprocessing.active_children()


def test_an_error_ends_processes_that_are_busy() -> None:
    began = time.monotonic()
    with pytest.raises(DataError, match="f:1: negative; add") as caught, Workers(2) as workers:
        list(workers.run(slow, [(-1, 0.0), (2, 600.0), (-3, 0.0)]))
    assert caught.value.line == 1 and time.monotonic() - began < 300
    assert not multiprocessing.active_children()


def test_one_process_starts_no_other() -> None:
    for workers, here in ((Workers(1), False), (Workers(2), True)):
        with workers:
            assert [result for _, result in workers.run(slow, [(1, 0.0), (2, 0.0)], here=here)] == [1, 2]
            assert not multiprocessing.active_children()
