"""HTTP as clients speak it, well or badly: huge bodies (H1), stalled clients (H2), broken requests (H6)."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import select
import socket
import threading
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serving.harness import (
    PATIENCE,
    Running,
    StillLoop,
    call,
    connect,
    exchange,
    post,
    read_all,
    running,
    status_of,
    wait_until,
)

from phraseloom.options.serving import ServingConfig
from phraseloom.serving.message import STATUSES, Reply, Request

QUICK = ServingConfig(read_seconds=0.3, request_seconds=0.8, idle_seconds=1.0, send_seconds=0.5, max_body_bytes=100_000)


async def echo(request: Request) -> Reply:
    return Reply(200, request.body or request.path.encode(), "text/plain")


@pytest.fixture(scope="module")
def quick():
    with running(QUICK, handler=echo, still=True) as server:
        yield server


def test_replies_on_one_connection(quick: Running) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", quick.port, timeout=PATIENCE)
    for number in range(5):
        assert exchange(connection, "POST", "/x", {"n": number})[1] == json.dumps({"n": number}).encode()
    assert exchange(connection, "HEAD", "/path?query=1")[:2] == (200, b"")
    status, body, headers = exchange(connection, "GET", "http://elsewhere/path?query=1")
    assert (status, body) == (200, b"/path")
    assert headers["X-Content-Type-Options"] == "nosniff"
    connection.close()


def test_requests_in_one_piece_and_byte_by_byte(quick: Running) -> None:
    whole = post("/x", 1) + post("/x", 2) + post("/x", 3, "Connection: close")
    with connect(quick.port) as sock:
        sock.sendall(whole)
        assert [part[-1:] for part in read_all(sock).split(b"HTTP/1.1 200 OK")[1:]] == [b"1", b"2", b"3"]
    with connect(quick.port) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in post("/x", 7, "Connection: close"):
            sock.sendall(bytes([byte]))
        assert read_all(sock).endswith(b"7")


def test_an_upgrade_is_not_taken_and_nonsense_after_a_head_is_answered(quick: Running) -> None:
    with connect(quick.port) as sock:
        sock.sendall(b"GET /up HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        assert status_of(sock.recv(1000)) == 200
        sock.sendall(b"HEAD /x HTTP/1.1\r\nHost: x\r\n\r\nnonsense\r\n\r\n")
        raw = read_all(sock)
    assert raw.count(b"HTTP/1.1 200 OK") == 1
    assert raw.endswith(b'"this is not HTTP/1.1"}}\n')


def test_a_chunked_body_and_the_old_protocol(quick: Running) -> None:
    with connect(quick.port) as sock:
        sock.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n")
        sock.sendall(b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n")
        assert read_all(sock).endswith(b"\r\n\r\nabcde")
    with connect(quick.port) as sock:
        sock.sendall(b"GET /old HTTP/1.0\r\n\r\n")
        assert read_all(sock).endswith(b"/old")


def test_whoever_waits_is_told_to_continue_but_not_for_too_much(quick: Running) -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    with connect(quick.port) as sock:
        sock.sendall(head % (b"100-continue", 2))
        assert sock.recv(100).startswith(b"HTTP/1.1 100")
        sock.sendall(b"ok")
        assert read_all(sock).endswith(b"ok")
    with connect(quick.port) as sock:
        sock.sendall(head % (b"100-continue", 10**9))
        assert status_of(read_all(sock)) == 413
    with connect(quick.port) as sock:
        sock.sendall(head % (b"miracles", 2))
        assert status_of(read_all(sock)) == 417


def test_a_declared_gigabyte_is_refused_before_it_is_read(quick: Running) -> None:
    """H1: 413 that the client can read although it goes on sending, and no memory for it."""
    with connect(quick.port) as sock:
        sock.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1073741824\r\n\r\n")
        assert select.select([sock], [], [], PATIENCE)[0]
        for _ in range(20):
            sock.sendall(bytes(65536))  # no reset, which could overtake the reply
            time.sleep(0.005)
        raw = read_all(sock)
    assert status_of(raw) == 413
    assert b"max_body_bytes = 100000" in raw
    assert quick.server.buffered.used == 0


@pytest.mark.parametrize("chunk", [b"8000\r\n" + bytes(0x8000) + b"\r\n", b"1;" + b"x" * 9000 + b"\r\na\r\n"])
def test_a_body_without_length_is_counted_while_it_is_read(quick: Running, chunk: bytes) -> None:
    """H1: in chunks; the second kind hides 9 kB in each byte of body."""
    tracemalloc.start()
    with connect(quick.port) as sock:
        sock.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(40):
                sock.sendall(chunk)
        raw = read_all(sock)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert status_of(raw) == 413
    assert peak < 2e6


@pytest.mark.parametrize(("size", "status"), [(100_000, 200), (100_001, 413)])
def test_the_limit_of_a_body_is_exact(quick: Running, size: int, status: int) -> None:
    """H1: declared and in chunks."""
    heads = (f"Content-Length: {size}\r\n\r\n", f"Transfer-Encoding: chunked\r\n\r\n{size:x}\r\n")
    for head, tail in zip(heads, (b"", b"\r\n0\r\n\r\n"), strict=True):
        with connect(quick.port) as sock:
            sock.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + head.encode() + bytes(size) + tail)
            assert status_of(read_all(sock)) == status


def test_all_bodies_together_are_bounded() -> None:
    config = ServingConfig(max_body_bytes=60_000, max_buffered_bytes=100_000)
    with running(config, handler=echo, still=True) as server, contextlib.ExitStack() as stack:
        half = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 50000\r\n\r\n" + bytes(45_000)
        first, second, third = (stack.enter_context(connect(server.port)) for _ in range(3))
        for sock in (first, second):
            sock.sendall(half)
        wait_until(lambda: server.server.buffered.used == 90_000)
        third.sendall(half)
        raw = read_all(third)
        assert status_of(raw) == 503
        assert b"Retry-After" in raw
        second.close()
        wait_until(lambda: server.server.buffered.used == 45_000)  # a reply is counted as well
        first.sendall(bytes(5_000))
        assert first.recv(100).startswith(b"HTTP/1.1 200")
        wait_until(lambda: server.server.buffered.used == 0)


def test_seven_of_500_000_bytes(quick: Running) -> None:
    """H2, SNAGLINE#130: a client that stalls inside its body is told so after read_seconds, and put out."""
    with connect(quick.port) as sock:
        sock.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 50000\r\n\r\n1234567")
        wait_until(lambda: "READING" in quick.states())
        passed = quick.pass_time(sock, 0.1)
        raw = read_all(sock)
    assert status_of(raw) == 408
    assert b"read_seconds = 0.3" in raw
    assert passed > 0.25


@pytest.mark.parametrize(
    "begin", [b"", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 50000\r\n\r\n"], ids=["head", "body"]
)
def test_a_trickle_does_not_put_off_the_deadline(quick: Running, begin: bytes) -> None:
    """H2, uvicorn#157: a byte every 50 ms passes every timeout between reads, but not request_seconds."""
    with connect(quick.port) as sock:
        sock.sendall(begin)
        passed = 0.0
        while passed < 5 and not select.select([sock], [], [], 0.01)[0]:
            sock.sendall(b"G")
            quick.advance(0.05)
            passed += 0.05
        assert 0.75 < passed < 5
        assert status_of(read_all(sock)) == 408


def test_bytes_that_came_while_the_clock_rang_are_taken() -> None:
    """A server that was busy for longer than the timeout finds both: the bytes win, also at the last call."""

    entered, gate = threading.Event(), threading.Event()

    async def busy(request: Request) -> Reply:
        if not entered.is_set():
            entered.set()
            assert gate.wait(PATIENCE)  # the event loop stands
            loop = asyncio.get_running_loop()
            assert isinstance(loop, StillLoop)
            loop.now += 0.5
        return await echo(request)

    config = ServingConfig(read_seconds=0.2, request_seconds=10)
    with (
        running(config, handler=busy, still=True) as server,
        connect(server.port) as half,
        connect(server.port) as blocking,
    ):
        whole = post("/x", 1, "Connection: close")
        half.sendall(whole[:30])
        wait_until(lambda: "READING" in server.states())
        blocking.sendall(post("/x", 2, "Connection: close"))
        assert entered.wait(PATIENCE)
        half.sendall(whole[30:])
        gate.set()
        assert [status_of(read_all(sock)) for sock in (half, blocking)] == [200, 200]


def test_silence_is_ended_without_a_reply(quick: Running) -> None:
    with connect(quick.port) as sock:
        assert quick.pass_time(sock, 0.1) > 0.95
        assert read_all(sock) == b""
    with connect(quick.port) as sock:
        sock.sendall(post("/x", 1))
        assert b"200 OK" in sock.recv(1000)
        assert quick.pass_time(sock, 0.1) > 0.95  # and the connection ends after idle_seconds


def test_two_hundred_stalled_clients_and_a_good_one() -> None:
    """H2: a good client is served at once, even where the stalled ones have taken every connection and keep it."""
    config = ServingConfig(max_connections=150, read_seconds=600, request_seconds=600, idle_seconds=600)
    with running(config, handler=echo) as server, contextlib.ExitStack() as stack:
        for number in range(200):
            sock = stack.enter_context(connect(server.port))
            sock.sendall([b"", b"POST / HT", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n1"][number % 3])
        wait_until(lambda: server.server.connections == 150)
        for number in range(3):
            assert call(server.port, "POST", "/", {"n": number})[0] == 200
        assert server.server.connections <= 150


def test_a_burst_of_more_clients_than_connections_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody who has just come is put out, or turned away, because many came at once."""
    monkeypatch.setattr("phraseloom.serving.server.PATIENCE_SECONDS", 0.5)
    with running(ServingConfig(max_connections=10), handler=echo) as server, contextlib.ExitStack() as stack:
        gate = threading.Event()
        server.loop.call_soon_threadsafe(gate.wait, PATIENCE)
        clients = [stack.enter_context(connect(server.port)) for _ in range(60)]
        for number, sock in enumerate(clients):
            sock.sendall(post("/x", number, "Connection: close"))
        gate.set()
        assert [status_of(read_all(sock)) for sock in clients] == [200] * 60


def test_who_is_being_answered_is_not_put_out_for_a_new_client() -> None:
    gate = threading.Event()

    async def slow(request: Request) -> Reply:
        while request.path == "/slow" and not gate.is_set():
            await asyncio.sleep(0.01)
        return await echo(request)

    with running(ServingConfig(max_connections=2), handler=slow) as server, contextlib.ExitStack() as stack:
        at_work = [stack.enter_context(connect(server.port)) for _ in range(2)]
        for sock in at_work:
            sock.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        wait_until(lambda: server.states() == ["WORKING"] * 2)
        with connect(server.port) as third:
            assert read_all(third) == b""
        gate.set()
        assert [status_of(read_all(sock)) for sock in at_work] == [200, 200]


def test_who_does_not_take_a_reply_is_put_out() -> None:
    async def large(request: Request) -> Reply:
        return Reply(200, bytes(20_000_000), "text/plain")

    with running(QUICK, handler=large, still=True) as server, connect(server.port) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: server.server.buffered.used == 20_000_000)
        while server.server.buffered.used or server.server.connections:
            server.advance(0.1)
            time.sleep(0.005)


def test_nothing_is_done_for_a_client_that_has_left() -> None:
    ended: list[str] = []

    async def slow(request: Request) -> Reply:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return await echo(request)

    with running(handler=slow) as server:
        with connect(server.port) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            wait_until(lambda: "WORKING" in server.states())
        wait_until(lambda: ended == ["cancelled"])
        wait_until(lambda: server.server.connections == 0)


POST = b"POST / HTTP/1.1\r\nHost: x\r\n"
NO_HTTP = "this is not HTTP/1.1"
BAD = {
    b"nonsense\r\n\r\n": (400, NO_HTTP),
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n": (400, NO_HTTP),
    b"GET / HTTP/1.1\r\n\r\n": (400, "the header Host is missing"),
    b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n": (400, "more than one header Host"),
    POST + b"Content-Length: -1\r\n\r\n": (400, "Content-Length is not a number of bytes"),
    POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n": (400, "several headers Content-Length"),
    POST + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n": (400, "Content-Length is not a number of bytes"),
    POST + b"Content-Length: 5\r\n\r\nabc": (400, "the body ended too early"),
    POST + b"Transfer-Encoding: gzip\r\n\r\n": (501, "no Transfer-Encoding is known but chunked"),
    POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n": (501, "more than one header Transfer"),
    POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n": (400, "does not begin with its size"),
    POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n": (400, "does not end where it should"),
    b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 40_000 + b"\r\n\r\n": (431, "max_header_bytes = 16384"),
    b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n": (431, "max_header_bytes = 16384"),
    b"GET / HTTP/1.1\r\nHost: x\r\nBad Name: 1\r\n\r\n": (400, "not NAME: VALUE"),
    POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n": (400, "exclude each other"),
}


@pytest.mark.parametrize("raw", BAD, ids=lambda raw: raw[:60].decode("latin-1"))
def test_what_is_not_http(quick: Running, raw: bytes) -> None:
    """The reply says which rule is broken, in our words."""
    with connect(quick.port) as sock:
        sock.sendall(raw)
        sock.shutdown(socket.SHUT_WR)
        reply = read_all(sock)
    status, said = BAD[raw]
    assert status_of(reply) == status
    assert said in reply.decode("latin-1").partition("\r\n\r\n")[2]


def test_what_comes_behind_a_body_of_two_lengths_is_no_request(quick: Running) -> None:
    """Request smuggling, RFC 9112 section 6.3: a proxy that goes by Content-Length sees one request here, we would see two."""
    for headers in (
        b"Content-Length: 4\r\nTransfer-Encoding: chunked",
        b"transfer-encoding: Chunked\r\nCONTENT-LENGTH: 4",
    ):
        with connect(quick.port) as sock:
            sock.sendall(POST + headers + b"\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
            raw = read_all(sock)
        assert raw.count(b"HTTP/1.1 ") == 1
        assert status_of(raw) == 400
        assert b"Connection: close" in raw
        assert b"smuggled" not in raw


VALID = (
    post("/translate", {"text": "a"})
    + b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"
)


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=300),
        st.tuples(st.integers(0, len(VALID) - 1), st.binary(max_size=6)).map(
            lambda t: VALID[: t[0]] + t[1] + VALID[t[0] + len(t[1]) :]
        ),
    )
)
def test_no_bytes_break_the_server(quick: Running, raw: bytes) -> None:
    """H6: whatever is sent, every reply has a status of the closed set, and none says that the server failed."""
    with connect(quick.port) as sock:
        sock.sendall(raw)
        sock.shutdown(socket.SHUT_WR)
        found = [int(part[:3]) for part in read_all(sock).split(b"HTTP/1.1 ")[1:] if part[:3].isdigit()]
    assert all(status in (*STATUSES, 100) and status not in (500, 503) for status in found)
    assert call(quick.port, "GET", "/health")[0] == 200
