"""A server in a thread of the test, translators that need no model, and clients that send what they like."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from tests.helpers import HANGS

from phraseloom.decoding.sentences import SentenceSplitter
from phraseloom.decoding.translation import Translation
from phraseloom.options.serving import ServingConfig
from phraseloom.serving.app import App
from phraseloom.serving.batcher import Batcher
from phraseloom.serving.message import Reply, Request, json_reply
from phraseloom.serving.models import Measure, Models
from phraseloom.serving.server import Server


class FakeTranslator:
    """The translation of a text is the text in capitals after its prefix, `seconds` a batch; "poison" is a crash."""

    def __init__(self, *, seconds: float = 0.0, trees: bool = False, **config: Any) -> None:
        options = {"beam": 5, "n_best": 1, "max_input_tokens": 1024, "long_lines": "crop"}
        options |= {"split_sentences": False, "tags": [], "sample": False, "mbr": 0, "seed": 1, **config}
        self.config = SimpleNamespace(**options)
        self.can_align = True
        self.tokenizer = SimpleNamespace(tags=("<x>", "<y>"))
        self.needs_trees = trees
        self.seconds, self.batches, self.threads = seconds, list[list[str]](), set[str]()
        self.gate = threading.Event()  # no batch ends before it is set
        self.gate.set()
        self.options: dict[str, Any] = {}
        self.error: Exception = RuntimeError("a secret at /home/somebody/model.bin")

    def sentence_splitter(self) -> SentenceSplitter:
        """That of English."""
        return SentenceSplitter("en")

    def translate(
        self, lines: Sequence[str], *, prefixes=None, trees=None, report=None, **options
    ) -> list[Translation]:
        self.batches.append(list(lines))
        self.threads.add(threading.current_thread().name)
        self.options = options
        time.sleep(self.seconds)
        assert self.gate.wait(PATIENCE)
        if any("poison" in line for line in lines):
            raise self.error
        begins = prefixes or [""] * len(lines)
        return [
            Translation(p + line.upper(), -1.0, -2.0, [], [], cropped="long" in line, hit_max_length="endless" in line)
            for line, p in zip(lines, begins, strict=True)
        ]


class FakeModels(Models):
    """The models of the server with fake translators. A step for each character."""

    def _measure(self, key, texts, should_cancel=None) -> list[Measure]:
        return [Measure(len(t.prefix), key.beam * max(len(t.text), len(t.prefix)), key.beam) for t in texts]

    def _describe(self, name: str) -> dict[str, Any]:
        return {"name": name, "beam": self[name].config.beam}

    def _explain(self, key, sources, cancelled) -> Reply:
        if "poison" in sources.texts:
            raise self[key.models[0]].error
        return json_reply({"models": list(key.models), "sentences": sources.texts, "targets": sources.targets})


PATIENCE = float(HANGS)  # for which a test waits for anything: a busy machine is slow, a broken server is never ready


class StillLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock moves only when it is told to, so that no timeout depends on the machine."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def time(self) -> float:
        return self.now


class Running:
    """A server in a thread: its port, the object itself, what its app is made of."""

    def __init__(self, *, still: bool = False) -> None:
        self.loop = StillLoop() if still else asyncio.new_event_loop()
        self.stop, self.lost = asyncio.Event(), -1
        self.port = 0
        self.server: Server
        self.batcher: Batcher | None = None
        self.app: App
        self.thread: threading.Thread

    def end(self) -> int:
        """Stop the server and wait for it; how many requests were lost."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.stop.set)
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()
        return self.lost

    def advance(self, seconds: float) -> None:
        """Let time pass for a server whose clock stands still; what clients have sent before comes before it."""
        moved = threading.Event()

        def move() -> None:
            assert isinstance(self.loop, StillLoop)
            self.loop.now += seconds
            moved.set()

        self.loop.call_soon_threadsafe(move)
        assert moved.wait(PATIENCE)

    def pass_time(self, sock: socket.socket, step: float) -> float:
        """Advance by steps until the server sends something to `sock` or closes it; the seconds that took."""
        passed = 0.0
        while not select.select([sock], [], [], 0.01)[0]:
            self.advance(step)
            passed += step
            assert passed < 1000 * step
        return passed

    def states(self) -> list[str]:
        """What the connections do now."""
        return [connection.state.name for connection in list(self.server._clients.values()) if connection]

    def call(self, method: str, path: str, value: Any = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
        """Status, decoded body and headers of one request."""
        return call(self.port, method, path, value, **headers)


@contextlib.contextmanager
def running(
    config: ServingConfig | None = None,
    *,
    handler: Callable[[Request], Any] | None = None,
    translators: dict[str, Any] | None = None,
    models: type[Models] = FakeModels,
    hosts: Sequence[str] | None = None,
    page: bytes = b"<p>page</p>",
    still: bool = False,
) -> Iterator[Running]:
    """A server of a bare `handler`, or of the whole app with `translators`. `still`: its clock stands (`advance`)."""
    config, found, started = config or ServingConfig(), Running(still=still), threading.Event()
    failed: list[BaseException] = []

    async def serve() -> None:
        if handler is not None:
            await _run(Server(handler, config))
            return
        chosen = models({"fake": FakeTranslator()} if translators is None else translators, config)
        async with Batcher(chosen.work, config) as found.batcher:
            found.app = app = App(chosen, found.batcher, config, page, hosts=hosts)
            await _run(Server(app.handle, config, give_up=found.batcher.give_up, record=app.record))

    async def _run(server: Server) -> None:
        found.server = server
        server.listen("127.0.0.1", 0)
        found.port = server.addresses[0][1]
        started.set()
        found.lost = await server.run(found.stop)

    def work() -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: found.loop) as runner:
                runner.run(serve())
        except BaseException as error:
            failed.append(error)
        finally:
            started.set()

    found.thread = threading.Thread(target=work, daemon=True)
    found.thread.start()
    started.wait(PATIENCE)
    assert found.port, failed
    try:
        yield found
    finally:
        found.end()
    assert not failed, failed


def call(port: int, method: str, path: str, value: Any = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
    """One request on a connection of its own; a `value` that is no bytes is sent as JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        return exchange(connection, method, path, value, **headers)
    finally:
        connection.close()


def exchange(
    connection: http.client.HTTPConnection, method: str, path: str, value: Any = None, **headers: str
) -> tuple[int, Any, dict[str, str]]:
    """One request on an open connection."""
    body = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
    sent = {} if body is None else {"Content-Type": "application/json"}
    connection.request(method, path, body, sent | {name.replace("_", "-"): text for name, text in headers.items()})
    response = connection.getresponse()
    raw = response.read()
    is_json = (response.getheader("Content-Type") or "").startswith("application/json")
    return response.status, json.loads(raw) if is_json and raw else raw, dict(response.getheaders())


def connect(port: int, *, seconds: float = PATIENCE) -> socket.socket:
    """A bare connection."""
    return socket.create_connection(("127.0.0.1", port), timeout=seconds)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def read_all(sock: socket.socket) -> bytes:
    """Everything until the server closes."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while data := sock.recv(65536):
            parts.append(data)
    return b"".join(parts)


def status_of(raw: bytes) -> int:
    """The status of the first reply in some bytes; 0 for none."""
    return int(raw.split(b" ", 2)[1]) if raw.startswith(b"HTTP/1.1 ") else 0


def post(path: str, value: Any, *headers: str) -> bytes:
    """The bytes of a request with a JSON body."""
    body = json.dumps(value).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
