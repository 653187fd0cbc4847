"""Requests nobody should send: attacks by hand, each with its answer, and drawn mutations of good requests.

Whatever comes, the server replies with a status of its closed set or closes the connection; it never replies 500, its log has
no error, and a good request is answered after each group. Its clock stands still, so that no timeout depends on the
machine. Loopback only.
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
import socket
import struct
from collections.abc import Iterator

import pytest
from tests.serving.harness import FakeTranslator, Running, call, connect, post, read_all, running

from phraseloom.options.serving import ServingConfig
from phraseloom.serving.message import STATUSES

CONFIG = ServingConfig(gather_seconds=0, max_body_bytes=20_000, max_header_bytes=4096, max_texts=8, max_characters=300)
GROUP = 25


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    translators = {"fake": FakeTranslator(), "trees": FakeTranslator(trees=True)}
    with running(CONFIG, translators=translators, hosts=["localhost", "127.0.0.1"], still=True) as found:
        yield found


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """The log of the server has no error and no traceback."""
    yield
    assert "Traceback" not in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def statuses(raw: bytes) -> list[int]:
    """The status of each reply in `raw`, all of which must be replies: a head, and a body of the declared length or, to
    HEAD, none."""
    found = []
    while raw:
        head, end, rest = raw.partition(b"\r\n\r\n")
        assert end, raw[:200]
        first, *lines = head.split(b"\r\n")
        version, status, _ = first.split(b" ", 2)
        assert version == b"HTTP/1.1"
        headers = dict(line.lower().split(b": ", 1) for line in lines)
        found.append(int(status))
        size = int(headers.get(b"content-length", b"0"))
        has_body = size > 0 and rest[:9] not in (b"", b"HTTP/1.1 ")
        body, raw = (rest[:size], rest[size:]) if has_body else (b"", rest)
        if has_body and headers[b"content-type"].startswith(b"application/json"):
            assert len(body) == size
            json.loads(body)
    return found


def send(server: Running, raw: bytes) -> list[int]:
    """The statuses of the replies to some bytes; the client says that it has no more once the server is at rest, as
    a client that ends before has left."""
    with connect(server.port) as sock:
        with contextlib.suppress(ConnectionError):
            sock.sendall(raw)
            settle(server)
            sock.shutdown(socket.SHUT_WR)
        return statuses(read_all(sock))


def settle(server: Running) -> None:
    """Let the server do what there is to do: turns of its loop, and the work on a batch."""
    while True:
        for _ in range(60):
            server.advance(0)
        if "WORKING" not in server.states():
            return


def is_well(server: Running) -> None:
    status, body, _ = call(server.port, "POST", "/translate", {"text": "still here"})
    assert (status, body["translations"][0]["text"]) == (200, "STILL HERE")


def get(path: str, *lines: str, method: str = "GET", version: str = "1.1") -> bytes:
    """A request without a body."""
    head = [f"{method} {path} HTTP/{version}", *(lines or ("Host: localhost",))]
    return "\r\n".join(head).encode("latin-1", "replace") + b"\r\n\r\n"


def posted(body: bytes, *lines: str, path: str = "/translate", length: int | str | None = None) -> bytes:
    """A request with any bytes as its JSON body."""
    size = len(body) if length is None else length
    head = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {size}",
        *lines,
    ]
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body


def chunked(*chunks: bytes, lines: tuple[str, ...] = ()) -> bytes:
    """A request whose body comes as these bytes."""
    names = ["Host: localhost", "Content-Type: application/json", "Transfer-Encoding: chunked", *lines]
    return "\r\n".join(["POST /translate HTTP/1.1", *names]).encode() + b"\r\n\r\n" + b"".join(chunks)


GOOD = b'{"text":"a"}'
ONE = b"c\r\n" + GOOD + b"\r\n"
NEXT = get("/health")
HOST = "Host: localhost"
ATTACKS: dict[str, tuple[bytes, list[int]]] = {
    # Where a request ends, and who says so.
    "two lengths, alike": (posted(GOOD, "Content-Length: 12"), [200]),
    "two lengths in one": (posted(GOOD, length="12, 12"), [200]),
    "two lengths in one, apart": (posted(GOOD, length="12, 13"), [400]),
    "length with plus": (posted(GOOD, length="+12"), [400]),
    "length in hex": (posted(GOOD, length="0xc"), [400]),
    "length with underscore": (posted(GOOD, length="1_2"), [400]),
    "length of other digits": (posted(GOOD, length="\xb2"), [400]),
    "length with space": (posted(GOOD, length="1 2"), [400]),
    "length empty": (posted(GOOD, length=""), [400]),
    "length with zeros": (posted(GOOD, length="0" * 15 + "12"), [200]),
    "length negative": (posted(GOOD, length="-0"), [400]),
    "length one too few": (posted(GOOD, length=11), [400]),
    "length zero with a body": (posted(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", length=0), [400, 200]),
    "length of 20 digits": (posted(GOOD, length="9" * 20), [413]),
    "name of length with space": (posted(GOOD, "Content-Length : 5"), [400]),
    "length and chunked": (chunked(b"0\r\n\r\n", NEXT, lines=("Content-Length: 5",)), [400]),
    "chunked and length": (posted(b"0\r\n\r\n" + NEXT, "Transfer-Encoding: chunked"), [400]),
    "chunked and length 0": (posted(ONE + b"0\r\n\r\n" + NEXT, "Transfer-Encoding: chunked", length=0), [400]),
    "xchunked": (get("/translate", HOST, "Transfer-Encoding: xchunked", method="POST") + NEXT, [501]),
    "chunked twice": (chunked(ONE, b"0\r\n\r\n", NEXT, lines=("Transfer-Encoding: chunked",)), [501]),
    "gzip, chunked": (get("/translate", HOST, "Transfer-Encoding: gzip, chunked", method="POST") + NEXT, [501]),
    "chunked, identity": (get("/translate", HOST, "Transfer-Encoding: chunked, identity", method="POST") + NEXT, [501]),
    "chunked with tab": (get("/translate", HOST, "Transfer-Encoding:\tchunked", method="POST") + b"0\r\n\r\n", [415]),
    "chunked with vertical tab": (get("/health", HOST, "Transfer-Encoding: \x0bchunked") + NEXT, [400]),
    "chunk size negative": (chunked(b"-1\r\n", NEXT), [400]),
    "chunk size with 0x": (chunked(b"0xc\r\n" + GOOD + b"\r\n0\r\n\r\n", NEXT), [400]),
    "chunk size of 40 digits": (chunked(b"f" * 40 + b"\r\n"), [400]),
    "chunk size of 20 digits": (chunked(b"f" * 20 + b"\r\n" + b"a" * 100), [400]),
    "chunk too long": (chunked(b"c\r\n" + GOOD + b"GET / HTTP/1.1\r\n"), [400]),
    "chunk ended by LF": (chunked(b"c\n" + GOOD + b"\n0\n\n"), [400]),
    "chunk extension of 5 kB": (chunked(b"c;" + b"x" * 5000 + b"\r\n" + GOOD + b"\r\n0\r\n\r\n"), [200]),
    "chunk extension with LF": (chunked(b"c;a=\n" + GOOD + b"\r\n0\r\n\r\n"), [400]),
    "trailer": (chunked(ONE, b"0\r\nContent-Length: 5\r\nHost: evil.example\r\n\r\n", NEXT), [200, 200]),
    "trailer of 5 kB": (chunked(ONE, b"0\r\nX: " + b"x" * 5000 + b"\r\n\r\n", NEXT), [431]),
    "2,000 chunks of a byte": (chunked(b"1\r\na\r\n" * 2000, b"0\r\n\r\n"), [400]),
    "a body with GET": (posted(GOOD).replace(b"POST", b"GET", 1) + NEXT, [405, 200]),
    # Heads.
    "bare LF": (get("/health").replace(b"\r\n", b"\n"), [200]),
    "bare CR": (get("/health").replace(b"\r\n", b"\r"), []),
    "CR CR LF": (get("/health").replace(b"\r\n", b"\r\r\n"), []),
    "a continued line": (get("/health", HOST, "X: a\r\n b"), [200]),
    "a continued length": (get("/translate", HOST, "Content-Length: 1\r\n 2", method="POST") + GOOD, [400]),
    "a continuation first": (b"GET /health HTTP/1.1\r\n Host: localhost\r\nHost: localhost\r\n\r\n", [400]),
    "NUL in a value": (get("/health", HOST, "X: a\0b"), [400]),
    "NUL in a name": (get("/health", HOST, "X\0: b"), [400]),
    "NUL in the target": (get("/health\0"), [400]),
    "no name": (get("/health", HOST, ": a"), [400]),
    "no colon": (get("/health", HOST, "abc"), [400]),
    "500 headers": (get("/health", HOST, *["A: b"] * 500), [200]),
    "2,000 headers": (get("/health", HOST, *["A: b"] * 2000), [431]),
    "no end of the head": (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 9000, [431]),
    "many empty lines first": (b"\r\n" * 50 + NEXT, [400]),
    "one empty line first": (b"\r\n" + NEXT, [400]),
    "an empty line between": (NEXT + b"\r\n" + NEXT, [200, 400]),
    "only empty lines": (b"\r\n" * 3000, [400]),
    "only LF": (b"\n" * 3000, [400]),
    "spaces": (b" " * 3000, [400]),
    "HTTP/0.9": (b"GET /health\r\n\r\n", [400]),
    "HTTP/1.0": (get("/health", version="1.0") + NEXT, [200]),
    "HTTP/1.0 without Host": (b"GET /health HTTP/1.0\r\n\r\n", [421]),
    "HTTP/1.0 that stays": (get("/health", HOST, "Connection: keep-alive", version="1.0") + NEXT, [200]),
    "HTTP/1.0 in chunks": (chunked(ONE, b"0\r\n\r\n", NEXT).replace(b"HTTP/1.1", b"HTTP/1.0", 1), [400]),
    "HTTP/2.0": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [400]),
    "HTTP/1.2": (get("/health", version="1.2"), [200]),
    "HTTP/11.1": (get("/health", version="11.1"), [400]),
    "lower case": (b"get /health http/1.1\r\nhost: localhost\r\n\r\n", [400]),
    "two spaces": (b"GET  /health HTTP/1.1\r\nHost: localhost\r\n\r\n", [400]),
    "tabs": (b"GET\t/health\tHTTP/1.1\r\nHost: localhost\r\n\r\n", [400]),
    "TLS": (b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + bytes(100) + b"\r\n\r\n", [400]),
    "a method of 3 kB": (get("/health", method="X" * 3000), [405]),
    "an override": (get("/translate", HOST, "X-HTTP-Method-Override: POST"), [405]),
    "an override of a form": (get("/health?_method=POST"), [200]),
    "TRACE": (get("/", HOST, "Cookie: secret", method="TRACE"), [405]),
    "CONNECT": (get("localhost:80", method="CONNECT"), [404]),
    "OPTIONS *": (get("*", method="OPTIONS"), [404]),
    "Upgrade: h2c": (get("/health", HOST, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c") + NEXT, [200, 200]),
    "100-continue without a body": (get("/health", HOST, "Expect: 100-continue"), [200]),
    "100-continue with its body": (posted(GOOD, "Expect: 100-continue"), [200]),
    "100-continue twice": (posted(GOOD, "Expect: 100-continue", "Expect: 100-continue"), [200]),
    "100-continue, 200-ok": (posted(GOOD, "Expect: 100-continue, 200-ok"), [417]),
    "close and keep-alive": (get("/health", HOST, "Connection: close, keep-alive") + NEXT, [200]),
    "Connection: Host": (get("/health", HOST, "Connection: host, content-length") + NEXT, [200, 200]),
    # Targets.
    "dots": (get("/../../../etc/passwd"), [404]),
    "dots, encoded": (get("/%2e%2e/%2e%2e/etc/passwd"), [404]),
    "dots in assets": (get("/assets/../serve.js"), [404]),
    "backslashes": (get("/..\\..\\windows\\win.ini"), [404]),
    "a file": (get("file:///etc/passwd"), [421]),
    "an absolute form": (get("http://localhost/health"), [200]),
    "an absolute form of another": (get("http://evil.example/health"), [421]),
    "an absolute form, broken": (get("http://[/health"), [421]),
    "an absolute form with a user": (get("http://localhost@evil.example/health"), [421]),
    "an absolute form of nothing": (get("http:///health"), [421]),
    "two slashes": (get("//health"), [404]),
    "a query of 2 kB": (get("/health?" + "a" * 2000), [200]),
    "a query with another address": (get("/health?http://evil.example/"), [200]),
    "a fragment": (get("/health#a"), [404]),
    "percent": (get("/%"), [404]),
    "a path in Latin-1": (get("/h\xe9alth"), [400]),
    # Hosts and origins.
    "two hosts": (get("/health", HOST, HOST), [400]),
    "no host": (get("/health", "X: y"), [400]),
    "an empty host": (get("/health", "Host:"), [421]),
    "a host with a path": (get("/health", "Host: localhost/evil.example"), [421]),
    "a host with a user": (get("/health", "Host: localhost@evil.example"), [421]),
    "a host with a dot": (get("/health", "Host: localhost."), [421]),
    "a host with two ports": (get("/health", "Host: evil.example:localhost:80"), [421]),
    "a host list": (get("/health", "Host: localhost, evil.example"), [421]),
    "X-Forwarded-Host": (get("/health", "Host: evil.example", "X-Forwarded-Host: localhost"), [421]),
    "an origin without an end": (get("/health", HOST, "Origin: http://["), [403]),
    "two origins": (get("/health", HOST, "Origin: http://localhost", "Origin: http://evil.example"), [403]),
    "an origin that begins well": (get("/health", HOST, "Origin: http://localhost.evil.example"), [403]),
    "an origin with a user": (get("/health", HOST, "Origin: http://localhost:x@evil.example"), [403]),
    "an origin in Latin-1": (get("/health", HOST, "Origin: http://\xb5"), [403]),
    # Types and bodies.
    "two types": (posted(GOOD, "Content-Type: text/plain"), [415]),
    "a type with NUL": (posted(GOOD).replace(b"on/json", b"on/json\0", 1), [400]),
    "charset twice": (posted(GOOD).replace(b"/json", b"/json; charset=utf-8; charset=utf-7", 1), [415]),
    "gzip, said": (posted(GOOD, "Content-Encoding: GZIP"), [415]),
    "identity, in capitals": (posted(GOOD, "Content-Encoding: Identity"), [200]),
    "a mark before": (posted(b"\xef\xbb\xbf" + GOOD), [200]),
    "two marks before": (posted(b"\xef\xbb\xbf\xef\xbb\xbf" + GOOD), [400]),
    "UTF-16": (posted(GOOD.decode().encode("utf-16")), [400]),
    "overlong UTF-8": (posted(b'{"text":"\xc0\x80"}'), [400]),
    "a surrogate in UTF-8": (posted(b'{"text":"\xed\xa0\x80"}'), [400]),
    "a surrogate": (posted(b'{"text":"\\ud800"}'), [400]),
    "a surrogate in a key": (posted(b'{"text":"a","\\ud800":1}'), [400]),
    "a surrogate in a model": (posted(b'{"text":"a","model":"\\udfff"}'), [400]),
    "a pair": (posted(b'{"text":"\\ud83d\\ude00"}'), [200]),
    "NUL in a text": (posted(b'{"text":"a\\u0000b"}'), [200]),
    "a raw NUL": (posted(b'{"text":"a\0b"}'), [400]),
    "NUL after the end": (posted(GOOD + b"\0"), [400]),
    "two objects": (posted(GOOD + GOOD), [400]),
    "a key twice, once escaped": (posted(b'{"text":"a","\\u0074ext":"b"}'), [400]),
    "a key twice, deep": (posted(b'{"text":"a","x":{"a":1,"a":2}}'), [400]),
    "__proto__": (posted(b'{"text":"a","__proto__":{"beam":99}}'), [400]),
    "9,000 brackets": (posted(b'{"text":' + b"[" * 9000 + b"]" * 9000 + b"}"), [400]),
    "2,000 objects": (posted(b'{"a":' * 2000 + b"1" + b"}" * 2000), [400]),
    "a number of 9,000 digits": (posted(b'{"text":"a","beam":' + b"1" * 9000 + b"}"), [400]),
    "a number of 4,000 digits": (posted(b'{"text":"a","beam":' + b"1" * 4000 + b"}"), [400]),
    "a number of 4,000 digits below 0": (posted(b'{"text":"a","beam":-' + b"1" * 4000 + b"}"), [400]),
    "1e999": (posted(b'{"text":"a","beam":1e999}'), [400]),
    "-0": (posted(b'{"text":"a","beam":-0}'), [400]),
    "1.0": (posted(b'{"text":"a","n_best":1.0}'), [400]),
    "true": (posted(b'{"text":"a","n_best":true}'), [400]),
    "NaN": (posted(b'{"text":"a","beam":NaN}'), [400]),
    "Infinity in a text": (posted(b'{"text":Infinity}'), [400]),
    "null": (posted(b'{"text":"a","beam":null,"prefix":null,"model":null,"tree":null}'), [200]),
    "a text of null": (posted(b'{"text":[null]}'), [400]),
    "a prefix of null": (posted(b'{"text":["a"],"prefix":[null]}'), [400]),
    "CR in a text": (posted(b'{"text":"a\\rb"}'), [200]),
    "a comment": (posted(b'{"text":"a"/**/}'), [400]),
    "single quotes": (posted(b"{'text':'a'}"), [400]),
    "a trailing comma": (posted(b'{"text":"a",}'), [400]),
    "no body": (get("/translate", HOST, "Content-Type: application/json", method="POST"), [400]),
    "a model that is a list": (posted(b'{"text":"a","models":[{}]}', path="/explain"), [400]),
    "explain nothing": (posted(b'{"text":[]}', path="/explain"), [200]),
    "explain itself twice": (posted(b'{"text":"a","models":["fake","fake"]}', path="/explain"), [400]),
    "a tree for a model without": (posted(b'{"text":"a","tree":"((((("}'), [400]),
    # One behind the other.
    "200 in a row": (NEXT * 200, [200] * 200),
    "HEAD, then GET": (get("/health", method="HEAD") + NEXT, [200, 200]),
    "POST, nonsense": (posted(GOOD) + b"nonsense\r\n\r\n" + NEXT, [200, 400]),
    "an error, then good": (posted(b"{") + posted(GOOD), [400, 200]),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks(server: Running, name: str) -> None:
    raw, wanted = ATTACKS[name]
    assert [status for status in send(server, raw) if status != 100] == wanted
    is_well(server)


def test_clients_that_leave_in_the_middle(server: Running) -> None:
    """After each tenth byte of a request, with and without a reset; also while their batch is worked on."""
    raw = posted(b'{"text":["a","b","c"]}')
    for size in range(0, len(raw) + 1, 10):
        for reset in (False, True):
            with connect(server.port) as sock:
                sock.sendall(raw[:size])
                if reset:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    is_well(server)


INSERTS = [
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b"\0",
        b" ",
        b"\t",
        b":",
        b",",
        b";",
        b"\x0b",
        b"\xff",
        b"\xc3\x28",
        b"%00",
        b"../",
        b"\\u0000",
    ),
    *(b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n", b"Host: evil.example\r\n"),
    *(b"Connection: close\r\n", b"Expect: 100-continue\r\n", b"Origin: http://[\r\n", b"Content-Encoding: gzip\r\n"),
    *(b"0\r\n\r\n", b"ffffffff\r\n", b"HTTP/1.1", b"HTTP/1.0", b"GET / HTTP/1.1\r\n\r\n", b"9" * 30, b"-1", b"1e999"),
    *(b"[", b"{", b'"', b"]", b"}", b"null", b"true", b"NaN", b'"text":', b"\\ud800", b"[" * 500, b"a" * 5000),
]
FULL = {"text": ["a", "b c"], "prefix": ["x", ""], "beam": 2, "n_best": 2, "alignments": True, "long_lines": "split"}
SEEDS = [
    post("/translate", FULL),
    post("/explain", {"text": ["a"], "models": ["fake"], "target": ["b"], "reference": ["c"]}),
    post("/translate", {"text": "a", "model": "trees", "tree": "(S (A a))"}),
    chunked(ONE, b"0\r\n\r\n", NEXT),
    posted(GOOD, "Expect: 100-continue", "Origin: http://localhost"),
    get("http://localhost/models?x=y") + get("/", method="HEAD") + NEXT,
]


def mutated(draw: random.Random) -> bytes:
    """One of the good requests with 1 to 6 changes."""
    raw = bytearray(draw.choice(SEEDS))
    for _ in range(draw.randint(1, 6)):
        at, end = sorted((draw.randrange(len(raw) + 1), draw.randrange(len(raw) + 1)))
        end = min(end, at + 60)
        match draw.randrange(7):
            case 0:
                raw[at:at] = draw.choice(INSERTS)
            case 1:
                raw[at:end] = draw.choice(INSERTS)
            case 2:
                del raw[at:end]
            case 3:
                raw[at:at] = raw[at:end]
            case 4 if at < len(raw):
                raw[at] = draw.randrange(256)
            case 5:
                other = draw.choice(SEEDS)
                start = draw.randrange(len(other))
                raw[at:at] = other[start : start + draw.randint(1, 80)]
            case _:  # a line of the head
                lines = bytes(raw).split(b"\r\n")
                draw.shuffle(lines) if draw.random() < 0.2 else lines.insert(
                    draw.randrange(len(lines)), draw.choice(lines)
                )
                raw = bytearray(b"\r\n".join(lines))
    return bytes(raw)


def attack(server: Running, seed: int, groups: int) -> None:
    draw = random.Random(seed)
    for _ in range(groups):
        for _ in range(GROUP):
            raw = mutated(draw)
            try:
                found = send(server, raw)
                assert all(status in (100, *STATUSES) and status not in (500, 503) for status in found), found
            except (AssertionError, ValueError, OSError) as error:
                raise AssertionError(f"seed {seed}, the bytes {raw!r}: {error}") from error
        is_well(server)


def test_mutated_requests(server: Running) -> None:
    attack(server, 1, 24)


@pytest.mark.full
@pytest.mark.parametrize("seed", [None, *range(2, 6)])
def test_many_mutated_requests(server: Running, seed: int | None) -> None:
    """20,000 requests; the first seed is another one each time."""
    attack(server, random.SystemRandom().randrange(10**9) if seed is None else seed, 160)
