"""A whole request, a reply, and a problem that becomes a reply.

Every reply is JSON except the page. A problem is `{"error": {"status", "reason", "message"}}`; the message gives the client
the value, the limit and what to do, never a path or a traceback.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

JSON_TYPE = "application/json"
LINES_TYPE = "application/x-ndjson"  # one JSON object per line
# The only statuses that a reply has.
STATUSES = (200, 400, 403, 404, 405, 408, 413, 415, 417, 421, 431, 500, 501, 503)


@dataclass(frozen=True)
class Request:
    """`path` has no query; header names are lower case, and the last of two with the same name counts."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True)
class Reply:
    """A status of `STATUSES`, a body, and headers beyond those that every reply has."""

    status: int
    body: bytes
    content_type: str = JSON_TYPE
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StreamedReply:
    """A reply whose body is sent part by part while it is made. `cancel` ends the work behind it."""

    parts: AsyncGenerator[bytes, None]
    cancel: Callable[[], object]
    content_type: str = LINES_TYPE
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 200


class Problem(Exception):
    """A request that is refused, and why. `close`: nothing more is read from its connection."""

    def __init__(
        self, status: int, message: str, *, close: bool = False, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.close, self.headers = status, message, close, dict(headers or {})

    def reply(self) -> Reply:
        """The problem as a reply."""
        error = {"status": self.status, "reason": HTTPStatus(self.status).phrase, "message": self.message}
        return json_reply({"error": error}, status=self.status, headers=self.headers)


def overloaded(message: str, *, retry_after: float = 1.0, close: bool = False) -> Problem:
    """503 with `Retry-After` in whole seconds, from 1 to 60."""
    seconds = min(60, max(1, math.ceil(retry_after)))
    return Problem(503, message, close=close, headers={"Retry-After": str(seconds)})


def plain(value: Any) -> Any:
    """`value` with null for numbers that JSON cannot write."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def json_reply(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    """`value` as JSON in UTF-8."""
    text = json.dumps(plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Reply(status, text.encode() + b"\n", headers=dict(headers or {}))
