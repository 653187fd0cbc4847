"""The line before the model: batches, errors, full queues (H3), clients that leave, the end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest
from tests.serving.harness import PATIENCE, FakeTranslator, StillLoop, call, running

from phraseloom.options.serving import ServingConfig
from phraseloom.serving.batcher import POSTPONED, Batcher, ItemError, WorkQueue
from phraseloom.serving.message import Problem

LINE = WorkQueue("texts", 100, 8)
CONFIG = ServingConfig(gather_seconds=0.01, answer_seconds=600.0, batch_seconds=600.0)


class Work:
    """Upper-cases texts, batch by batch; waits for `gate`. A batch with "endless" ends when nobody wants it, or `freed`."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, list[str]]] = []
        self.ended: list[list[str]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.freed = threading.Event()

    def __call__(self, key: str, items: list[str], cancelled: Callable[[], bool]) -> list[str]:
        assert self.gate.wait(PATIENCE)
        while "endless" in items and not self.freed.wait(0.001):
            if cancelled():
                self.ended.append(list(items))
                raise RuntimeError("nobody wants it")
        self.batches.append((key, list(items)))
        if any("poison" in item for item in items):
            raise ValueError("poison")
        return [item.upper() for item in items]


def run(test, config: ServingConfig = CONFIG, *, still: bool = False):
    """`test` with a batcher. `still`: the clocks stand, but for what the test adds to `now` of its loop."""

    async def inside():
        work = Work()
        async with Batcher(work, config, clock=asyncio.get_running_loop().time) as batcher:
            return await asyncio.wait_for(test(batcher, work), PATIENCE)

    with asyncio.Runner(loop_factory=StillLoop if still else None) as runner:
        return runner.run(inside())


async def settled(condition) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0)


async def pass_time(seconds: float) -> None:
    """Let time pass for whoever has begun to wait."""
    for _ in range(10):
        await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, StillLoop)
    loop.now += seconds
    for _ in range(10):
        await asyncio.sleep(0)


def test_texts_of_many_callers_make_batches() -> None:
    async def test(batcher: Batcher, work: Work) -> None:
        calls = [batcher.submit(LINE, "k", [f"a{n}", f"b{n}"]) for n in range(10)]
        assert await asyncio.gather(*calls) == [[f"A{n}", f"B{n}"] for n in range(10)]
        assert [len(items) for _, items in work.batches] == [8, 8, 4]
        assert batcher.answered == 20
        assert batcher.waiting == 0

    run(test)


def test_only_what_goes_together_is_together_and_nobody_starves() -> None:
    async def test(batcher: Batcher, work: Work) -> None:
        work.gate.clear()
        first = asyncio.ensure_future(batcher.submit(LINE, "x", ["first"]))
        await settled(lambda: batcher.busy_seconds > 0)
        others = [asyncio.ensure_future(batcher.submit(LINE, "xy"[n % 2], [str(n)])) for n in range(6)]
        await settled(lambda: batcher.waiting == 6)
        work.gate.set()
        assert await first == ["FIRST"]
        assert [await other for other in others] == [[str(n)] for n in range(6)]
        assert work.batches == [("x", ["first"]), ("x", ["0", "2", "4"]), ("y", ["1", "3", "5"])]

    run(test)


def test_one_text_does_not_spoil_the_others() -> None:
    async def test(batcher: Batcher, work: Work) -> None:
        calls = [batcher.submit(LINE, "k", [f"a{n}"]) for n in range(5)]
        bad = batcher.submit(LINE, "k", ["good", "poison"])
        *found, failed = await asyncio.gather(*calls, bad, return_exceptions=True)
        assert found == [[f"A{n}"] for n in range(5)]
        assert isinstance(failed, ItemError)
        assert (failed.number, str(failed)) == (2, "poison")
        assert len(work.batches[0][1]) == 7
        assert await batcher.submit(LINE, "k", ["after"]) == ["AFTER"]

    run(test)


def test_results_that_are_not_one_per_text_are_an_error() -> None:
    async def inside() -> None:
        async with Batcher(lambda key, items, cancelled: ["one"] * 2, CONFIG) as batcher:
            with pytest.raises(ItemError, match="2 results of 1"):
                await batcher.submit(LINE, "k", ["a"])

    asyncio.run(inside())


def test_a_full_line_refuses() -> None:
    async def test(batcher: Batcher, work: Work) -> None:
        work.gate.clear()
        first = asyncio.ensure_future(batcher.submit(LINE, "k", ["first"]))
        await settled(lambda: batcher.busy_seconds > 0)
        waiting = [asyncio.ensure_future(batcher.submit(LINE, "k", ["w"] * 50)) for _ in range(2)]
        await settled(lambda: batcher.waiting == 100)
        with pytest.raises(Problem, match="limit 100") as refused:
            await batcher.submit(LINE, "k", ["one more"])
        assert refused.value.status == 503
        assert 1 <= int(refused.value.headers["Retry-After"]) <= 60
        other = asyncio.ensure_future(batcher.submit(WorkQueue("others", 1, 1), "k", ["of another line"]))
        work.gate.set()
        await asyncio.gather(first, other, *waiting)
        assert await batcher.submit(LINE, "k", ["again"]) == ["AGAIN"]

    run(test)


def test_what_nobody_waits_for_is_not_done() -> None:
    async def test(batcher: Batcher, work: Work) -> None:
        work.gate.clear()
        first = asyncio.ensure_future(batcher.submit(LINE, "k", ["first"]))
        await settled(lambda: batcher.busy_seconds > 0)
        left, stays = (asyncio.ensure_future(batcher.submit(LINE, "k", [name])) for name in ("left", "stays"))
        await settled(lambda: batcher.waiting == 2)
        left.cancel()
        await settled(left.done)
        assert batcher.waiting == 1
        work.gate.set()
        assert await asyncio.gather(first, stays) == [["FIRST"], ["STAYS"]]
        assert [items for _, items in work.batches] == [["first"], ["stays"]]

    run(test)


def test_a_batch_that_nobody_wants_any_more_ends_at_once() -> None:
    """H12: its callers left, or were told that it took too long; the next one is served at once."""

    async def test(batcher: Batcher, work: Work) -> None:
        for callers in (1, 3):
            calls = [asyncio.ensure_future(batcher.submit(LINE, "k", ["endless"])) for _ in range(callers)]
            await settled(lambda callers=callers: len(batcher._current) == callers)
            behind = asyncio.ensure_future(batcher.submit(LINE, "k", ["behind"]))
            for one in calls:
                one.cancel()
            assert await behind == ["BEHIND"]
        late = asyncio.ensure_future(batcher.submit(LINE, "k", ["endless"]))
        await settled(lambda: len(batcher._current) == 1)
        await pass_time(1.1)
        with pytest.raises(Problem, match="answer_seconds = 1"):
            await late
        assert await batcher.submit(LINE, "k", ["next"]) == ["NEXT"]
        assert work.ended == [["endless"], ["endless"] * 3, ["endless"]]  # and halves of it were not tried
        assert batcher.answered == 3

    run(test, ServingConfig(gather_seconds=0, answer_seconds=1.0), still=True)


def test_who_stays_gets_the_result_of_a_batch_that_others_have_left() -> None:
    async def test(batcher: Batcher, work: Work) -> None:
        leaves, stays = (asyncio.ensure_future(batcher.submit(LINE, "k", [t])) for t in ("endless", "stays"))
        await settled(lambda: batcher.busy_seconds > 0)
        leaves.cancel()
        await settled(leaves.done)
        await asyncio.sleep(0.05)
        assert not stays.done()
        work.freed.set()
        assert await stays == ["STAYS"]
        assert (work.ended, work.batches) == ([], [("k", ["endless", "stays"])])

    run(test)


def test_after_an_error_an_endless_text_is_done_as_well() -> None:

    async def test(batcher: Batcher, work: Work) -> None:
        work.gate.clear()
        texts = ("endless", "poison")
        leaves, fails = (asyncio.ensure_future(batcher.submit(LINE, "k", [t])) for t in texts)
        await settled(lambda: batcher.busy_seconds > 0)
        work.freed.set()
        work.gate.set()
        with pytest.raises(ItemError, match="poison"):
            await fails
        assert await leaves == ["ENDLESS"]
        assert [items for _, items in work.batches] == [["endless", "poison"], ["endless"], ["poison"]]

    run(test)


def test_a_batch_that_takes_too_long_is_ended_and_its_requests_are_done_one_by_one() -> None:
    """H13: the slow one gets a 503; those that came with it, and those that came later, get what they asked for."""

    async def test(batcher: Batcher, work: Work) -> None:
        texts = (["endless"], ["large", "two"], ["small"])
        calls = [asyncio.ensure_future(batcher.submit(LINE, "k", one, size=len("".join(one)))) for one in texts]
        await settled(lambda: len(batcher._current) == 4)
        behind = asyncio.ensure_future(batcher.submit(LINE, "k", ["behind"]))
        await pass_time(19.0)
        assert not work.ended
        await pass_time(1.1)
        assert await calls[2] == ["SMALL"]
        await settled(lambda: [job.item for job in batcher._current] == ["endless"])
        assert not behind.done()
        await pass_time(20.1)
        with pytest.raises(Problem, match=r"not done within batch_seconds = 20; send fewer or shorter texts") as late:
            await calls[0]
        assert late.value.status == 503
        assert await calls[1] == ["LARGE", "TWO"]
        assert await behind == ["BEHIND"]
        assert work.ended == [["endless", "large", "two", "small"], ["endless"]]
        assert [items for _, items in work.batches] == [["small"], ["large", "two"], ["behind"]]
        assert (batcher.answered, batcher.waiting, batcher._counts["texts"]) == (4, 0, 0)

    run(test, ServingConfig(gather_seconds=0), still=True)


def test_after_an_error_no_further_time_is_given() -> None:
    """The halves of a batch with an error are done within the time of the batch."""

    async def test(batcher: Batcher, work: Work) -> None:
        work.gate.clear()
        calls = [asyncio.ensure_future(batcher.submit(LINE, "k", [t])) for t in ("poison", "a", "b")]
        await settled(lambda: len(batcher._current) == 3)
        await pass_time(20.1)
        work.gate.set()
        assert await asyncio.gather(*calls[1:]) == [["A"], ["B"]]
        with pytest.raises(ItemError, match="poison"):
            await calls[0]
        assert [items for _, items in work.batches] == [["poison", "a", "b"], ["poison"], ["a"], ["b"]]

    run(test, ServingConfig(gather_seconds=0), still=True)


def test_what_the_work_postpones_comes_first_in_the_next_batch() -> None:
    batches: list[list[str]] = []

    def work(key: str, items: list[str], cancelled: Callable[[], bool]) -> list[object]:
        batches.append(list(items))
        return [items[0].upper(), *[ValueError("no") if item == "bad" else POSTPONED for item in items[1:]]]

    async def inside() -> None:
        async with Batcher(work, CONFIG) as batcher:
            calls = [batcher.submit(LINE, "k", texts) for texts in (["a", "b"], ["c", "bad"], ["d"])]
            found = await asyncio.gather(*calls, return_exceptions=True)
            assert (found[0], found[2]) == (["A", "B"], ["D"])
            assert isinstance(found[1], ItemError)
            assert batches == [["a", "b", "c", "bad", "d"], ["b", "d"], ["d"]]
            assert batcher._counts["texts"] == 0

    asyncio.run(inside())


@pytest.mark.parametrize("together", [8, 1])
def test_a_request_of_many_batches_lets_the_others_have_a_turn(together: int) -> None:
    """H13: after `batch_seconds` of work, its texts go to the end after each batch, whether postponed or not yet taken."""
    batches: list[str] = []

    async def inside() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, StillLoop)

        def work(key: str, items: list[str], cancelled: Callable[[], bool]) -> list[object]:
            batches.append("".join(items))
            loop.now += 8.0
            return [items[0], *[POSTPONED] * (len(items) - 1)]

        line = WorkQueue("texts", 100, together)
        config = ServingConfig(gather_seconds=0, answer_seconds=600, batch_seconds=20)
        async with Batcher(work, config, clock=loop.time) as batcher:
            calls = [
                batcher.submit(line, key, list(texts)) for key, texts in (("k", "abcdef"), ("k", "y"), ("l", "mnop"))
            ]
            assert await asyncio.gather(*calls) == [list("abcdef"), ["y"], list("mnop")]
            assert (batcher.waiting, batcher._counts["texts"]) == (0, 0)

    with asyncio.Runner(loop_factory=StillLoop) as runner:
        runner.run(inside())
    if together == 8:
        assert batches == ["abcdefy", "bcdefy", "cdefy", "y", "mnop", "nop", "op", "def", "p", "ef", "f"]
    else:
        assert "".join(batches) == "abcymnodpef"


def test_texts_that_were_only_postponed_cost_their_request_nothing() -> None:
    """A small request behind a large one in its batches stays before those that came later."""
    order: list[str] = []

    async def inside() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, StillLoop)

        def work(key: str, items: list[str], cancelled: Callable[[], bool]) -> list[object]:
            order.append(items[0])
            loop.now += 8.0
            return [items[0], *[POSTPONED] * (len(items) - 1)]

        config = ServingConfig(gather_seconds=0, answer_seconds=600, batch_seconds=20)
        async with Batcher(work, config, clock=loop.time) as batcher:
            calls = [batcher.submit(LINE, key, list(texts)) for key, texts in (("k", "abcd"), ("k", "xy"), ("l", "z"))]
            await asyncio.gather(*calls)

    with asyncio.Runner(loop_factory=StillLoop) as runner:
        runner.run(inside())
    assert "".join(order) == "abcxyzd"


def test_giving_up_ends_the_work() -> None:
    async def test(batcher: Batcher, work: Work) -> None:
        endless = asyncio.ensure_future(batcher.submit(LINE, "k", ["endless"]))
        await settled(lambda: batcher.busy_seconds > 0)
        batcher.give_up()
        with pytest.raises(Problem, match="stopping"):
            await endless
        await asyncio.wait_for(settled(lambda: work.ended == [["endless"]]), 5)

    run(test)


def test_who_waits_too_long_is_told_so() -> None:
    async def test(batcher: Batcher, work: Work) -> None:
        work.gate.clear()
        slow = asyncio.ensure_future(batcher.submit(LINE, "k", ["slow"]))
        await pass_time(0.06)
        with pytest.raises(Problem, match=r"answer_seconds = 0\.05") as late:
            await slow
        assert late.value.status == 503
        work.gate.set()
        await settled(lambda: batcher.busy_seconds == 0)
        assert await batcher.submit(LINE, "k", ["next"]) == ["NEXT"]

    run(test, ServingConfig(answer_seconds=0.05, gather_seconds=0), still=True)


def test_giving_up_answers_everybody() -> None:
    async def test(batcher: Batcher, work: Work) -> None:
        work.gate.clear()
        calls = [asyncio.ensure_future(batcher.submit(LINE, "k", [str(n)])) for n in range(12)]
        await settled(lambda: batcher.busy_seconds > 0)
        batcher.give_up()
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert [getattr(error, "status", None) for error in found] == [503] * 12
        with pytest.raises(Problem, match="stopping"):
            await batcher.submit(LINE, "k", ["late"])
        work.gate.set()

    run(test)


def test_ten_times_what_fits() -> None:
    """H3: some are answered, the others told when to come again; one worker thread, whatever comes."""
    translator = FakeTranslator(seconds=0.02)
    translator.gate.clear()  # until somebody is refused
    config = ServingConfig(queue_texts=8, max_texts=8, batch_texts=4)
    statuses: list[int] = []
    with running(config, translators={"it": translator}) as server:
        before = threading.active_count()

        def ask(number: int) -> None:
            status, body, headers = call(server.port, "POST", "/translate", {"text": f"text {number}"})
            assert status == 200 or int(headers["Retry-After"]) >= 1
            assert status == 503 or body["translations"][0]["text"] == f"TEXT {number}"
            statuses.append(status)
            if status == 503:
                translator.gate.set()

        clients = [threading.Thread(target=ask, args=(n,)) for n in range(80)]
        for client in clients:
            client.start()
        most = 0
        while any(client.is_alive() for client in clients):
            alive = sum(client.is_alive() for client in clients)
            most = max(most, threading.active_count() - alive)
            time.sleep(0.002)
        for client in clients:
            client.join()
        assert most <= before + 1
        assert server.call("POST", "/translate", {"text": "after"})[0] == 200
    assert len(statuses) == 80
    assert set(statuses) == {200, 503}
    assert translator.threads == {"model_0"}
