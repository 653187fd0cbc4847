"""Listening (H10), the end (H9), replies that belong to their clients (H11), and memory (H8)."""

from __future__ import annotations

import contextlib
import errno
import gc
import http.client
import random
import socket
import threading
import time
import tracemalloc
from pathlib import Path

import pytest
from tests.serving.harness import (
    PATIENCE,
    FakeTranslator,
    call,
    connect,
    exchange,
    post,
    read_all,
    running,
    status_of,
    wait_until,
)

from phraseloom.errors import PhraseloomError
from phraseloom.options.serving import ServingConfig
from phraseloom.serving.run import is_loopback, names_of
from phraseloom.serving.server import Server


def test_an_address_that_cannot_be_had() -> None:
    async def nothing(request):
        raise NotImplementedError

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for host in ("127.0.0.1", "no such host", "x" * 300):
            server = Server(nothing, ServingConfig())
            with pytest.raises(PhraseloomError, match=f"port {port}: .*; choose another --host or --port"):
                server.listen(host, port)
            assert server.addresses == []


def test_a_name_with_an_address_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no IPv6, localhost is 127.0.0.1 alone; both addresses have one port where there is."""
    real = socket.create_server

    def create(address, **options):
        if ":" in address[0]:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        return real(address, **options)

    server = Server(None, ServingConfig())
    server.listen("localhost", 0)
    assert len({port for _, port in server.addresses}) == 1
    server._close_listeners()
    monkeypatch.setattr(socket, "create_server", create)
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda *_, **__: [(f, 1, 6, "", (h, 0)) for f, h in ((10, "::1"), (2, "127.0.0.1"))]
    )
    server.listen("localhost", 0)
    assert [host for host, _ in server.addresses] == ["127.0.0.1"]
    server._close_listeners()


def test_who_can_reach_it() -> None:
    """H10."""
    for host in ("127.0.0.1", "localhost", "::1", "127.1.2.3"):
        assert is_loopback(host)
        assert "localhost" in (names_of(host, []) or [])
    for host in ("0.0.0.0", "::", "192.168.1.2", "example.org"):
        assert not is_loopback(host)
        assert names_of(host, []) is None
        assert "a.example" in (names_of(host, ["a.example"]) or [])


def test_what_was_asked_before_the_end_is_answered() -> None:
    """H9: requests in the queue, at work, half sent and on idle connections, when the server is told to stop."""
    translator = FakeTranslator(seconds=0.1)
    config = ServingConfig(grace_seconds=600, batch_texts=2, idle_seconds=600, read_seconds=600, request_seconds=600)
    with running(config, translators={"it": translator}) as server, contextlib.ExitStack() as stack:
        busy = [stack.enter_context(connect(server.port)) for _ in range(10)]
        for number, sock in enumerate(busy):
            sock.sendall(post("/translate", {"text": f"t{number}"}))
        half = stack.enter_context(connect(server.port))
        whole = post("/translate", {"text": "half"})
        half.sendall(whole[:50])
        idle = stack.enter_context(connect(server.port))
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(1000)
        while len(translator.batches) < 1:
            time.sleep(0.005)
        late = stack.enter_context(connect(server.port))
        late.sendall(post("/translate", {"text": "late"}))
        server.loop.call_soon_threadsafe(server.stop.set)
        half.sendall(whole[50:])
        assert read_all(idle) == b""
        replies = [read_all(sock) for sock in (*busy, half, late)]
        assert [status_of(raw) for raw in replies] == [200] * 12
        assert all(b"Connection: close" in raw for raw in replies)
        assert b'"HALF"' in replies[10]
        assert server.end() == 0
        with pytest.raises(ConnectionRefusedError):
            connect(server.port)


def test_who_is_connected_when_the_end_comes_is_answered() -> None:
    """H9: the system has connected a client that the busy server has not looked at yet."""
    with running() as server:

        def block() -> None:
            blocked.set()
            assert sent.wait(PATIENCE)
            server.stop.set()

        blocked, sent = threading.Event(), threading.Event()
        server.loop.call_soon_threadsafe(block)
        assert blocked.wait(PATIENCE)
        with connect(server.port) as sock:
            sock.sendall(post("/translate", {"text": "just in time"}))
            sent.set()
            assert b'"JUST IN TIME"' in read_all(sock)


def test_after_the_grace_everybody_gets_a_reply() -> None:
    translator = FakeTranslator()
    translator.gate.clear()
    with running(ServingConfig(grace_seconds=0.2), translators={"it": translator}) as server:
        with connect(server.port) as at_work, connect(server.port) as half:
            at_work.sendall(post("/translate", {"text": "a"}))
            half.sendall(b"POST / HTTP/1.1\r\n")
            wait_until(lambda: bool(translator.batches) and "READING" in server.states())
            server.loop.call_soon_threadsafe(server.stop.set)
            assert status_of(read_all(at_work)) == 503
            assert read_all(half) == b""
        assert server.end() == 2
        translator.gate.set()


def ask_many(port: int, clients: int, requests: int, text_of, check) -> list[str]:
    """So many clients at once, each with a connection that it keeps; what went wrong."""
    wrong: list[str] = []

    def client(number: int) -> None:
        draw = random.Random(number)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        try:
            for n in range(requests):
                texts = [text_of(number, n, i) for i in range(draw.randint(1, 3))]
                body = {"text": texts, "beam": draw.choice([1, 2, 5])}
                status, found, _ = exchange(connection, "POST", "/translate", body)
                while status == 503:
                    time.sleep(0.01)
                    status, found, _ = exchange(connection, "POST", "/translate", body)
                if status != 200 or not check(body, [t["text"] for t in found["translations"]]):
                    wrong.append(f"client {number}, request {n}: {status} {found}")
        except Exception as error:
            wrong.append(f"client {number}: {error!r}")
        finally:
            connection.close()

    threads = [threading.Thread(target=client, args=(n,)) for n in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def tag(client: int, request: int, number: int) -> str:
    return f"client {client} request {request} text {number}"


@pytest.mark.parametrize(
    ("clients", "requests"), [(20, 10), pytest.param(50, 200, marks=pytest.mark.full)], ids=["short", "full"]
)
def test_every_client_gets_its_own_reply(clients: int, requests: int) -> None:
    """H11: tagged requests through dynamic batching."""
    translator = FakeTranslator(seconds=0.001)
    with running(translators={"it": translator}) as server:
        wrong = ask_many(
            server.port, clients, requests, tag, lambda body, found: found == [t.upper() for t in body["text"]]
        )
        assert not wrong, wrong[:3]
        assert max(map(len, translator.batches)) > 1


def memory() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * 4096


def work_through(port: int, requests: int) -> None:
    """Good, refused, unfinished and unanswered requests."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    for number in range(requests):
        kind = number % 10
        if kind == 0:
            assert call(port, "POST", "/translate", {"text": "a", "beam": 0})[0] == 400
        elif kind == 1:
            with connect(port) as sock:
                sock.sendall(post("/translate", {"text": "left"}))
        elif kind == 2:
            with connect(port) as sock:
                sock.sendall(b"nonsense\r\n\r\n")
                assert status_of(read_all(sock)) == 400
        else:
            assert exchange(connection, "POST", "/translate", {"text": ["a b c"] * kind})[0] == 200
    connection.close()


def test_nothing_is_kept_of_a_request() -> None:
    """H8, the short form: no objects of ours stay."""
    with running(ServingConfig(gather_seconds=0)) as server:
        work_through(server.port, 40)
        gc.collect()
        tracemalloc.start()
        first = tracemalloc.take_snapshot()
        work_through(server.port, 300)
        wait_until(lambda: server.server.connections <= 1)
        gc.collect()
        last = tracemalloc.take_snapshot()
        tracemalloc.stop()
        ours = [tracemalloc.Filter(True, "*/phraseloom/*"), tracemalloc.Filter(True, "*/h11/*")]
        grown = last.filter_traces(ours).compare_to(first.filter_traces(ours), "lineno")
        assert sum(line.size_diff for line in grown) < 20_000, grown[:5]
        assert server.server.buffered.used == 0


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads memory from /proc")
def test_ten_thousand_requests_take_no_more_memory_than_two_thousand() -> None:
    """H8: at most 5 %."""
    with running(ServingConfig(gather_seconds=0)) as server:
        work_through(server.port, 2_000)
        before = memory()
        work_through(server.port, 10_000)
        assert memory() < 1.05 * before


def test_no_file_handles_left(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """EMFILE: the server waits a moment and goes on; it does not spin, and loses no client."""
    monkeypatch.setattr("phraseloom.serving.server.SHORTAGE_SECONDS", 0.2)
    with running() as server:
        real, calls = server.server._listeners[0], []

        class Short:
            def __getattr__(self, name: str):
                return getattr(real, name)

            def accept(self):
                calls.append(1)
                if len(calls) < 3:
                    raise OSError(errno.EMFILE, "Too many open files")
                return real.accept()

        short = Short()
        server.loop.call_soon_threadsafe(server.loop.remove_reader, real)
        server.server._listeners[:] = [short]
        server.loop.call_soon_threadsafe(server.server._watch, short)
        assert server.call("GET", "/health")[0] == 200
        assert 3 <= len(calls) < 10
    assert "Too many open files" in caplog.text
