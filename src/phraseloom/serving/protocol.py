"""HTTP/1.1 above the bytes: checks of a request head, its request, the head of a reply, and messages for broken rules.

h11 finds violations of the protocol; the messages for clients are here, and name the header or the limit.

A request body is JSON. `Fields` reads it strictly, field by field, each within its limit; every refusal is a 400. Nothing is
converted: true is not a number, 5.0 is not a whole number, and an unknown field is an error that names the nearest field.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from typing import Any, TypeVar

import h11

from phraseloom import __version__
from phraseloom.errors import plural
from phraseloom.options.serving import ServingConfig
from phraseloom.serving.message import Problem, Reply, Request, StreamedReply

ALWAYS = (
    ("Server", f"phraseloom/{__version__}"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)
NOT_HTTP = "this is not HTTP/1.1"
# Beginnings of messages of h11, and the message for the client.
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
    """Problem 400 for another protocol or a body whose end is ambiguous, 413 for a declared body that is too large, 417 for an
    unknown expectation, 431 for a head that is too long.

    RFC 9112, sections 6.1 and 6.3: a body with both Content-Length and Transfer-Encoding, or with Transfer-Encoding in
    HTTP/1.0, may end elsewhere for another reader of the connection, so what follows cannot be trusted as a request.
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
    """Problem 431 for headers (of a head or a trailer) that are too long together, even if they came in one piece."""
    if more + sum(len(name) + len(value) + 4 for name, value in headers) > config.max_header_bytes:
        raise _head_too_long(config)


def _head_too_long(config: ServingConfig) -> Problem:
    limit = f"max_header_bytes = {config.max_header_bytes}"
    return Problem(431, f"the head is above the limit of this server, {limit}", close=True)


def request_of(head: h11.Request) -> Request:
    """The request of a head, without its body."""
    target = head.target.decode("latin-1")
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
    # The absolute form that proxies send; its host overrides the header.
    if not target.startswith("/") and "://" in target.partition("?")[0]:
        headers["host"], _, path = target.partition("://")[2].partition("/")
        target = "/" + path
    return Request(head.method.decode("latin-1"), target.partition("?")[0], headers)


def head_of(reply: Reply | StreamedReply, *, keep_alive: bool) -> h11.Response:
    """The head of a reply; without `keep_alive`, the connection closes after it. h11 adds the framing of a streamed one."""
    headers = [
        ("Content-Type", f"{reply.content_type}; charset=utf-8"),
        *([("Content-Length", str(len(reply.body)))] if isinstance(reply, Reply) else []),
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
    """What the client did wrong: 400; 431 for a head (also of a chunk) that is too long; 501 for an unknown coding."""
    if error.error_status_hint == 431:
        return _head_too_long(config)
    message = next((ours for begin, ours in WORDS.items() if str(error).startswith(begin)), NOT_HTTP)
    return Problem(501 if error.error_status_hint == 501 else 400, message, close=True)


T = TypeVar("T")
Word = TypeVar("Word", bound=str)
SHOWN = 40


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body. Problem 400 if it is not UTF-8, JSON or an object, repeats a key, is nested too deeply, or has
    NaN or a huge number."""
    try:
        value = json.loads(body.decode("utf-8-sig"), object_pairs_hook=_no_duplicates, parse_constant=_no_constants)
    except RecursionError:
        raise Problem(400, "the body is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise Problem(400, f"the body is not UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise Problem(400, f"the body is not JSON: {error.msg} ({where})") from None
    except ValueError:
        raise Problem(400, "the body holds a number that is too large") from None
    if not isinstance(value, dict):
        raise Problem(400, f'the body is {_kind(value)}, not an object such as {{"text": "…"}}')
    return value


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            raise Problem(400, f"the body holds {_show(key)} twice")
        seen[key] = value
    return seen


def _no_constants(name: str) -> Any:
    raise Problem(400, f"the body holds {name}, which is not JSON")


def _show(value: Any) -> str:
    """A value from the client, shortened, in ASCII."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    text = _kind(value) if isinstance(value, dict) else json.dumps(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


def _range(most: int) -> str:
    return "1" if most == 1 else f"1 to {most}"


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


class Fields:
    """The fields of an object, read one by one; `finish` refuses the others."""

    def __init__(self, value: dict[str, Any]) -> None:
        self._left, self._taken = dict(value), list[str]()

    def _take(self, name: str, read: Callable[[Any], T]) -> T | None:
        """A field converted by `read`; None if it is missing or null."""
        self._taken.append(name)
        value = self._left.pop(name, None)
        return None if value is None else read(value)

    def read(self, name: str, read: Callable[[Any], T]) -> T | None:
        """A field of a form of its own, converted by `read`; None if it is missing or null."""
        return self._take(name, read)

    def integer(self, name: str, *, least: int, cap: int, cap_name: str) -> int | None:
        """A whole number from `least` to `cap`, the limit called `cap_name`."""

        def read(value: Any) -> int:
            if isinstance(value, bool) or not isinstance(value, int):
                raise Problem(400, f"{name}: a whole number is needed, not {_show(value)}")
            if value < least:
                raise Problem(400, f"{name}: {_show(value)} is below {least}")
            if value > cap:
                raise Problem(400, f"{name}: {_show(value)} is above the limit of this server, {cap_name} = {cap}")
            return value

        return self._take(name, read)

    def number(self, name: str) -> float | None:
        """A number; `DecodingConfig` checks its bounds."""

        def read(value: Any) -> float:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise Problem(400, f"{name}: a number is needed, not {_show(value)}")
            return value

        return self._take(name, read)

    def flag(self, name: str) -> bool | None:
        """True or false."""

        def read(value: Any) -> bool:
            if not isinstance(value, bool):
                raise Problem(400, f"{name}: true or false is needed, not {_show(value)}")
            return value

        return self._take(name, read)

    def choice(self, name: str, among: Sequence[Word]) -> Word | None:
        """One of the words `among`."""

        def read(value: Any) -> Word:
            if not isinstance(value, str) or value not in among:
                raise Problem(400, f"{name}: {_show(value)} is none of {', '.join(among)}")
            return among[among.index(value)]

        return self._take(name, read)

    def choices(self, name: str, among: Sequence[str], *, most: int) -> list[str] | None:
        """A list of different words from `among`, in order."""

        def read(value: Any) -> list[str]:
            needed = f"a list of {_range(most)} of {', '.join(among)} is needed"
            if not isinstance(value, list):
                raise Problem(400, f"{name}: {needed}, not {_show(value)}")
            for number, word in enumerate(value, 1):
                if word not in among:
                    raise Problem(400, f"{name} {number}: {_show(word)} is none of {', '.join(among)}")
                if value.index(word) < number - 1:
                    raise Problem(400, f"{name} {number}: {_show(word)} is there twice")
            if not 1 <= len(value) <= most:
                raise Problem(400, f"{name}: {needed}, not {_show(value)}")
            return value

        return self._take(name, read)

    def texts(
        self, name: str, *, most: int, most_name: str, characters: int, characters_name: str, required: bool = False
    ) -> list[str] | None:
        """A text or a list of texts, as a list; each is one line of valid Unicode within its limit."""

        def read(value: Any) -> list[str]:
            texts = value if isinstance(value, list) else [value]
            if len(texts) > most:
                raise Problem(
                    400,
                    f"{name}: {plural(len(texts), 'text')} are above the limit of this server, {most_name} = {most}",
                )
            for number, text in enumerate(texts, 1):
                place = f"{name} {number}" if isinstance(value, list) else name
                _check_text(text, place, characters, characters_name)
            return texts

        result = self._take(name, read)
        if result is None and required:
            raise Problem(400, f"{name} is missing: a text, or a list of texts")
        return result

    def table(
        self, name: str, *, most: int, most_name: str, characters: int, characters_name: str
    ) -> dict[str, str] | None:
        """An object whose keys and values are texts, each one line within its limit."""

        def read(value: Any) -> dict[str, str]:
            if not isinstance(value, dict):
                raise Problem(400, f"{name}: an object of texts is needed, not {_kind(value)}")
            if len(value) > most:
                raise Problem(400, f"{name}: {len(value)} are above the limit of this server, {most_name} = {most}")
            for number, pair in enumerate(value.items(), 1):
                for text in pair:
                    _check_text(text, f"{name} {number}", characters, characters_name)
            return value

        return self._take(name, read)

    def finish(self) -> None:
        """Refuse unknown fields."""
        for name in self._left:
            near = difflib.get_close_matches(name[:SHOWN], self._taken, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"fields: {', '.join(self._taken)}"
            raise Problem(400, f"unknown field {_show(name)}; {hint}")


def _check_text(text: Any, place: str, characters: int, characters_name: str) -> None:
    if not isinstance(text, str):
        raise Problem(400, f"{place}: a text is needed, not {_kind(text)}")
    if len(text) > characters:
        limit = f"{characters_name} = {characters}"
        raise Problem(400, f"{place}: {len(text)} characters are above the limit of this server, {limit}")
    if "\n" in text:
        raise Problem(400, f"{place}: a text is one line; send several as a list")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Problem(400, f"{place}: character {error.start + 1} is half of a surrogate pair") from None
