from __future__ import annotations

import itertools
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import HANGS

from phraseloom.decoding.batching import cut_line, map_batches, num_workers, plan_batches


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 9), st.integers(1, 200), st.integers(1, 4))
def test_batches_hold_every_piece_once_within_the_bounds(lengths, sentences, tokens, workers) -> None:
    batches = plan_batches(lengths, sentences=sentences, tokens=tokens, workers=workers)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    flat = [lengths[i] for batch in batches for i in batch]
    assert flat == sorted(lengths, reverse=True)
    for batch in batches:
        assert len(batch) <= sentences
        assert len(batch) == 1 or lengths[batch[0]] * len(batch) <= tokens


def test_a_small_input_is_shared_by_the_workers() -> None:
    assert [len(b) for b in plan_batches([5] * 10, sentences=64, tokens=9999, workers=2)] == [5, 5]


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(1, 12), st.sampled_from(["crop", "split"]))
def test_a_long_line_is_cut_at_words(starts, limit, how) -> None:
    words = [sum(starts[1 : i + 1]) for i in range(len(starts))]
    ids = list(range(100, 100 + len(words)))
    pieces = cut_line(3, ids, lambda _: words, limit=limit, how=how)
    assert all(p.line == 3 and 1 <= len(p.ids) <= limit for p in pieces)
    joined = [i for p in pieces for i in p.ids]
    assert joined == (ids if how == "split" else ids[:limit])
    for before, after in itertools.pairwise(pieces):
        at = after.ids[0] - 100
        torn = words[at] == words[at - 1]
        assert after.first_word == words[at]
        assert not torn or len({words[i - 100] for i in before.ids}) == 1


def test_an_empty_line_has_no_piece() -> None:
    assert cut_line(0, [], lambda ids: [], limit=5, how="crop") == []


def test_threads_work_side_by_side_with_one_torch_thread_each() -> None:
    barrier, seen = threading.Barrier(2, timeout=HANGS), set()

    def work(batch: list[int]) -> int:
        barrier.wait()
        seen.add((threading.current_thread().name, torch.get_num_threads()))
        return batch[0] * 2

    assert map_batches(work, [[1], [2], [3], [4]], workers=2) == [2, 4, 6, 8]
    assert len(seen) == 2
    assert {threads for _, threads in seen} == {1}


def test_the_error_of_a_thread_is_raised() -> None:
    def work(batch: list[int]) -> int:
        if batch[0] == 2:
            raise ValueError("two")
        return 0

    with pytest.raises(ValueError, match="two"):
        map_batches(work, [[i] for i in range(6)], workers=2)


def test_number_of_workers() -> None:
    assert num_workers("auto", torch.device("cuda")) == 1
    assert num_workers(3, torch.device("cpu")) == 3
    assert num_workers("auto", torch.device("cpu")) == torch.get_num_threads()
