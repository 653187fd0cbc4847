"""HTTP/1.1 as far as it is not bytes: what a head may say, the request that it makes, the head of a reply, broken rules.

h11 finds what breaks the protocol; what a client is told of it is said here, with the header or the limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus

import h11

from phraseloom import __version__
from phraseloom.serving.config import ServingConfig
from phraseloom.serving.message import Problem, Reply, Request

ALWAYS = (
    ("Server", f"phraseloom/{__version__}"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)
NOT_HTTP = "this is not HTTP/1.1"
# How h11 begins to say what is wrong, and what a client is told.
WORDS = {
    "illegal request line": NOT_HTTP,
    "Missing mandatory Host": "the header Host is missing",
    "Found multiple Host": "there is more than one header Host",
    "conflicting Content-Length": "there are several headers Content-Length, of different values",
    "bad Content-Length": "the header Content-Length is not a number of bytes",
    "multiple Transfer-Encoding": "there is more than one header Transfer-Encoding",
    "Only Transfer-Encoding": "no Transfer-Encoding is known but chunked",
    "illegal header line": "a line of the head is not NAME: VALUE",
    "Illegal header": "a line of the head is not NAME: VALUE",
    "continuation line": "a line of the head is not NAME: VALUE",
    "malformed chunk": "a chunk of the body does not end where it should",
    "illegal chunk": "a chunk of the body does not begin with its size",
    "peer closed": "the body ended too early",
}


def check_head(head: h11.Request, config: ServingConfig) -> None:
    """Problem 400 for another protocol and a body whose end is unsure, 413 for a declared body that is too large, 417 for an
    unknown expectation, 431 for a head that is too long.

    RFC 9112, sections 6.1 and 6.3: of a body with Content-Length and Transfer-Encoding, and of one with Transfer-Encoding in
    HTTP/1.0, another reader of the connection may think that it ends elsewhere; what comes behind it is no request.
    """
    if not head.http_version.startswith(b"1."):
        raise Problem(400, NOT_HTTP, close=True)
    check_size(head.headers, config, more=len(head.method) + len(head.target))
    names = {name for name, _ in head.headers}
    if {b"content-length", b"transfer-encoding"} <= names:
        raise Problem(400, "Content-Length and Transfer-Encoding exclude each other", close=True)
    if b"transfer-encoding" in names and head.http_version == b"1.0":
        raise Problem(400, "HTTP/1.0 has no Transfer-Encoding", close=True)
    for name, value in head.headers:
        if name == b"content-length" and int(value) > config.max_body_bytes:
            raise too_large(config)
        if name == b"expect" and value.lower() != b"100-continue":
            raise Problem(417, "only 100-continue can be expected of this server", close=True)


def check_size(headers: Iterable[tuple[bytes, bytes]], config: ServingConfig, *, more: int = 0) -> None:
    """Problem 431 for headers (of a head or a trailer) that are too long together, also where they came in one piece."""
    if more + sum(len(name) + len(value) + 4 for name, value in headers) > config.max_header_bytes:
        raise _head_too_long(config)


def _head_too_long(config: ServingConfig) -> Problem:
    limit = f"max_header_bytes = {config.max_header_bytes}"
    return Problem(431, f"the head is above the limit of this server, {limit}", close=True)


def request_of(head: h11.Request, body: bytes) -> Request:
    """The request of a head and its whole body."""
    target = head.target.decode("latin-1")
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
    if "://" in target.partition("?")[0]:  # the absolute form, as proxies send it; its host is the one that counts
        headers["host"], _, rest = target.partition("://")[2].partition("/")
        target = "/" + rest
    return Request(head.method.decode("latin-1"), target.partition("?")[0], headers, body)


def head_of(reply: Reply, *, keep_alive: bool) -> h11.Response:
    """The head of a reply; without `keep_alive` its connection ends with it."""
    headers = [
        ("Content-Type", f"{reply.content_type}; charset=utf-8"),
        ("Content-Length", str(len(reply.body))),
        *ALWAYS,
        *reply.headers.items(),
        *([] if keep_alive else [("Connection", "close")]),
    ]
    return h11.Response(status_code=reply.status, headers=headers, reason=HTTPStatus(reply.status).phrase.encode())


def too_large(config: ServingConfig) -> Problem:
    """413: a body above the limit."""
    return Problem(
        413, f"the body is above the limit of this server, max_body_bytes = {config.max_body_bytes}", close=True
    )


def protocol_problem(error: h11.RemoteProtocolError, config: ServingConfig) -> Problem:
    """What the client broke: 400; 431 for a head (or that of a chunk) that is too long; 501 for an unknown coding."""
    if error.error_status_hint == 431:
        return _head_too_long(config)
    said = next((ours for begin, ours in WORDS.items() if str(error).startswith(begin)), NOT_HTTP)
    return Problem(501 if error.error_status_hint == 501 else 400, said, close=True)
