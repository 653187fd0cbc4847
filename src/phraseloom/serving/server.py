"""Sockets and connections. Every accepted request gets an answer, also while the server stops.

`Connection` serves one client: HTTP/1.1 requests in, replies out, with a deadline for everything that the client does. h11
implements the protocol (framing, limits of heads, when to close); this module moves the bytes, and `serving/protocol.py`
turns them into requests and problems. A request has three deadlines: `idle_seconds` until its first byte, `read_seconds`
between two bytes, and `request_seconds` from the first byte to the last, however slowly bytes trickle in. A reply has
`read_seconds` and `send_seconds`.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import errno
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import h11

from phraseloom.errors import PhraseloomError
from phraseloom.options.serving import ServingConfig
from phraseloom.serving.message import Problem, Reply, Request, StreamedReply, overloaded
from phraseloom.serving.protocol import check_head, check_size, head_of, protocol_problem, request_of, too_large

Handler = Callable[[Request], Awaitable[Reply | StreamedReply]]
Record = Callable[[Request, int, Reply | StreamedReply, float], None]
# What is recorded of a request that is refused before its head is there.
NO_HEAD = Request("-", "-")
READ_BYTES = 16 * 1024
WRITE_BYTES = 64 * 1024
# The most bytes of a refused client that are read and discarded, so that it sees the reply and not a reset.
LINGER_BYTES = 64 * 2**20
# How long a client may still begin a request when the server stops.
LAST_CALL_SECONDS = 0.25


class State(enum.Enum):
    """What a connection is doing."""

    IDLE = "waits for a request"
    READING = "reads a request"
    WORKING = "answers"
    CLOSING = "says goodbye"


class _Gone(Exception):
    """The client closed the connection, or took too long before it sent a request."""


class Budget:
    """The bytes that all connections together may hold."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0

    def take(self, count: int) -> bool:
        """Reserve `count` bytes; return False if the budget is exhausted."""
        if self.used + count > self.limit:
            return False
        self.used += count
        return True

    def give(self, count: int) -> None:
        """Release `count` bytes."""
        self.used -= count


class Connection:
    """Serves one client until it leaves, breaks the protocol, or the server stops."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: Server) -> None:
        self._reader, self._writer, self._server = reader, writer, server
        self._config: ServingConfig = server.config
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=self._config.max_header_bytes)
        self._clock: asyncio.Timeout | None = None
        self._held = 0
        self._request = NO_HEAD
        self.state, self.since = State.IDLE, asyncio.get_running_loop().time()

    async def run(self) -> None:
        """Serve requests one after the other, then close; raises nothing but the cancellation of this task."""
        try:
            again = True
            while again:
                again = await self._exchange()
                self._release()
            await self._close()
        except (_Gone, OSError):  # TimeoutError is one
            pass
        finally:
            self._release()
            self.drop()

    @property
    def is_silent(self) -> bool:
        """Whether the server waits for the client."""
        return self.state is not State.WORKING

    def last_call(self) -> None:
        """The server stops: an idle client has `LAST_CALL_SECONDS` left to begin a request."""
        if self.state is State.IDLE and self._clock is not None:
            with contextlib.suppress(RuntimeError):  # the clock has just rung
                self._clock.reschedule(asyncio.get_running_loop().time() + LAST_CALL_SECONDS)

    def drop(self) -> None:
        """Abort the connection."""
        self._writer.transport.abort()

    def _release(self) -> None:
        self._server.buffered.give(self._held)
        self._held = 0

    def _enter(self, state: State) -> None:
        self.state, self.since = state, asyncio.get_running_loop().time()

    def _enter_once(self, state: State) -> None:
        if self.state is not state:
            self._enter(state)

    async def _exchange(self) -> bool:
        """Handle one request; return whether another one may follow."""
        self._enter(State.IDLE)
        self._request, keep_alive = NO_HEAD, True
        try:
            request = await self._receive()
            self._enter(State.WORKING)
            reply = await self._answer(request)
        except Problem as problem:
            self._enter(State.WORKING)
            reply, keep_alive = problem.reply(), not problem.close
        size = self._held  # of the body as far as it has come
        if isinstance(reply, Reply):
            reply = self._hold(reply)
        self._server.record(self._request, size, reply, asyncio.get_running_loop().time() - self.since)
        keep_alive = keep_alive and not self._server.stopping
        if isinstance(reply, StreamedReply):
            await self._send_parts(reply, keep_alive=keep_alive)
        else:
            await self._send(reply, keep_alive=keep_alive)
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        return False

    async def _read(self, seconds: float) -> bytes:
        """The next bytes, b"" at the end; raises TimeoutError. Yields to other tasks even if bytes are always available.

        Bytes that arrived together with the deadline (a busy server sees both at once) are returned.
        """
        try:
            async with asyncio.timeout(seconds) as self._clock:
                data = await self._reader.read(READ_BYTES)
        except TimeoutError:
            late = asyncio.ensure_future(self._reader.read(READ_BYTES))
            await asyncio.sleep(0)  # it now has what has arrived
            if not late.done():
                late.cancel()
                await asyncio.gather(late, return_exceptions=True)
                raise
            return late.result()
        await asyncio.sleep(0)
        return data

    async def _receive(self) -> Request:
        """A whole request. Raises Problem (with `close`) if it breaks a rule or a limit, and _Gone."""
        config = self._config
        body: list[bytes] = []
        length = raw = 0
        started: float | None = None
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                raise protocol_problem(error, config) from None
            if event is h11.NEED_DATA:
                started, count = await self._more(started)
                raw += count
                if raw > 2 * config.max_body_bytes + config.max_header_bytes:
                    raise too_large(config)
            elif isinstance(event, h11.Request):
                self._request = request_of(event)
                check_head(event, config)
            elif isinstance(event, h11.Data):
                length += len(event.data)
                if length > config.max_body_bytes:
                    raise too_large(config)
                if not self._server.buffered.take(len(event.data)):
                    raise overloaded("too much is being sent to this server at once", close=True)
                self._held += len(event.data)
                body.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                check_size(event.headers, config)
                return replace(self._request, body=b"".join(body))
            else:  # ConnectionClosed
                raise _Gone

    async def _more(self, started: float | None) -> tuple[float, int]:
        """Feed h11 more bytes; return when the request began, and their number. Raises Problem 408, _Gone.

        `started` is None before the first byte.
        """
        loop, config = asyncio.get_running_loop(), self._config
        if self._http.they_are_waiting_for_100_continue:
            await self._write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
        if started is None and self._http.trailing_data[0]:  # came with the request before
            started = loop.time()
        if started is None:
            limit = min(config.idle_seconds, LAST_CALL_SECONDS) if self._server.stopping else config.idle_seconds
        else:
            self._enter_once(State.READING)
            limit = min(config.read_seconds, started + config.request_seconds - loop.time())
        try:
            data = await self._read(limit)
        except TimeoutError:
            if started is None:
                raise _Gone from None
            raise Problem(
                408,
                f"the request did not come in time (read_seconds = {config.read_seconds:g}, "
                f"request_seconds = {config.request_seconds:g})",
                close=True,
            ) from None
        if not data and started is not None and self._http.our_state is h11.IDLE:  # half a head, then the end
            raise _Gone
        self._enter_once(State.READING)
        self._http.receive_data(data)
        return loop.time() if started is None else started, len(data)

    async def _answer(self, request: Request) -> Reply | StreamedReply:
        """The reply of the handler, which is cancelled if the client leaves in the meantime."""
        work = asyncio.ensure_future(self._server.handler(request))
        watch = asyncio.ensure_future(self._reader.read(READ_BYTES))
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                if watch.exception() is not None or not watch.result():
                    raise _Gone
                await asyncio.wait({work})
            return work.result()
        finally:
            work.cancel()
            watch.cancel()
            await asyncio.gather(work, watch, return_exceptions=True)
            if not watch.cancelled() and watch.exception() is None:  # the beginning of the next request
                self._http.receive_data(watch.result())

    def _hold(self, reply: Reply) -> Reply:
        """The reply; 503 in its place if there is no room for it."""
        if not self._server.buffered.take(len(reply.body)):
            return overloaded("too many replies are on their way").reply()
        self._held += len(reply.body)
        return reply

    async def _send(self, reply: Reply, *, keep_alive: bool) -> None:
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            raise _Gone
        body = b"" if self._request.method == "HEAD" else reply.body
        async with asyncio.timeout(self._config.send_seconds * (1 + len(body) / 2**20)):
            data = self._http.send(head_of(reply, keep_alive=keep_alive)) or b""
            for start in range(0, len(body), WRITE_BYTES):
                await self._write(data + (self._http.send(h11.Data(data=body[start : start + WRITE_BYTES])) or b""))
                data = b""
            await self._write(data + (self._http.send(h11.EndOfMessage()) or b""))

    async def _send_parts(self, reply: StreamedReply, *, keep_alive: bool) -> None:
        """Send each part when it is there; if the client leaves or does not read, the work behind the reply ends."""
        watch = asyncio.ensure_future(self._reader.read(READ_BYTES))
        try:
            async with asyncio.timeout(self._config.answer_seconds + self._config.send_seconds):
                await self._write(self._http.send(head_of(reply, keep_alive=keep_alive)) or b"")
                while (part := await self._next_part(reply, watch)) is not None:
                    if not self._server.buffered.take(len(part)):
                        raise _Gone
                    self._held += len(part)
                    await self._write(self._http.send(h11.Data(data=part)) or b"")
                    self._release()
                await self._write(self._http.send(h11.EndOfMessage()) or b"")
        finally:
            reply.cancel()
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            await reply.parts.aclose()
        if not watch.cancelled() and watch.exception() is None:  # the beginning of the next request
            self._http.receive_data(watch.result())

    async def _next_part(self, reply: StreamedReply, watch: asyncio.Future[Any]) -> bytes | None:
        """The next part, None at the end; raises _Gone if the client closes the connection before it comes."""
        part: asyncio.Future[Any] = asyncio.ensure_future(anext(reply.parts, None))
        try:
            await asyncio.wait([part, watch], return_when=asyncio.FIRST_COMPLETED)
            if watch.done() and (watch.exception() is not None or not watch.result()):
                raise _Gone
            data: bytes | None = await part
            return data
        finally:
            part.cancel()
            await asyncio.gather(part, return_exceptions=True)

    async def _write(self, data: bytes) -> None:
        """Send bytes as fast as the client reads them; TimeoutError if it reads nothing for `read_seconds`."""
        self._writer.write(data)
        async with asyncio.timeout(self._config.read_seconds):
            await self._writer.drain()

    async def _close(self) -> None:
        """Close once the client has had time to read the last reply, whatever it still sends."""
        self._enter(State.CLOSING)
        if self._http.their_state in (h11.SEND_BODY, h11.IDLE, h11.ERROR):
            self._writer.write_eof()
            left = LINGER_BYTES
            async with asyncio.timeout(self._config.linger_seconds):
                while left > 0 and (data := await self._read(self._config.linger_seconds)):
                    left -= len(data)
        self._writer.close()
        async with asyncio.timeout(self._config.read_seconds):
            await self._writer.wait_closed()


logger = logging.getLogger(__name__)

BACKLOG = 256
# No file handle or memory for another connection: wait until some close.
SHORTAGE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
# A name may have addresses that this machine lacks (::1 without IPv6).
NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
SHORTAGE_SECONDS = 0.5
# A client that is silent for longer may be closed to make room for a new one, which waits in the queue of the system.
PATIENCE_SECONDS = 0.05
FAREWELL_SECONDS = 1.0


class Server:
    """Passes requests to `handler` until it is stopped, then lets running requests finish.

    `give_up` is called after `grace_seconds`; it must then answer every request that still waits. `record` gets every request
    that has a reply, also one that was refused before it was whole (without its body), with the bytes of its body that came,
    the reply, and the seconds from the whole request to the reply.
    """

    def __init__(
        self,
        handler: Handler,
        config: ServingConfig,
        *,
        give_up: Callable[[], None] = lambda: None,
        record: Record = lambda *_: None,
    ) -> None:
        self.handler, self.config, self._give_up, self.record = handler, config, give_up, record
        self.buffered = Budget(config.max_buffered_bytes)
        self.stopping = False
        self._clients: dict[asyncio.Task[None], Connection | None] = {}
        self._listeners: list[socket.socket] = []

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of every listening socket."""
        return [listener.getsockname()[:2] for listener in self._listeners]

    @property
    def connections(self) -> int:
        """Number of connected clients."""
        return len(self._clients)

    def listen(self, host: str, port: int) -> None:
        """Open the sockets; port 0 takes a free port. Raises PhraseloomError with the address."""
        problem: Exception | None = None
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, address in dict.fromkeys((f, a[:2]) for f, _, _, _, a in infos):
                where = (str(address[0]), self.addresses[0][1] if self._listeners else int(address[1]))
                try:
                    listener = socket.create_server(where, family=family, backlog=BACKLOG)
                except OSError as error:
                    if error.errno not in NOT_HERE:
                        raise
                    problem = error
                    continue
                listener.setblocking(False)
                self._listeners.append(listener)
        except (OSError, UnicodeError, OverflowError) as error:
            self._close_listeners()
            problem = error
        if not self._listeners:
            reason = getattr(problem, "strerror", None) or str(problem)
            raise PhraseloomError(
                f"cannot listen on {host}, port {port}: {reason}", hint="choose another --host or --port"
            ) from problem

    async def run(self, stop: asyncio.Event) -> int:
        """Serve until `stop` is set, then finish within `grace_seconds`; return the number of unanswered requests."""
        for listener in self._listeners:
            self._watch(listener)
        try:
            await stop.wait()
        finally:
            self.stopping = True
            for listener in self._listeners:
                asyncio.get_running_loop().remove_reader(listener)
                self._accept(listener)  # clients that the system has connected already
            self._close_listeners()
        return await self._drain()

    def _watch(self, listener: socket.socket) -> None:
        if not self.stopping:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        """Accept every client that waits for a connection."""
        while True:
            if (seconds := self._wait_for_room()) > 0 and not self.stopping:
                self._pause(listener, seconds)
                return
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in SHORTAGE:
                    continue  # the client has left
                if not self.stopping:
                    logger.warning("no further connection for now: %s", error.strerror)
                    self._pause(listener, SHORTAGE_SECONDS)
                return
            self._admit(sock)

    def _pause(self, listener: socket.socket, seconds: float) -> None:
        """Accept no client for `seconds`."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)
        loop.call_later(seconds, self._watch, listener)

    def _wait_for_room(self) -> float:
        """Seconds to wait before closing a silent client for a new one; 0 if there is room, or no silent client."""
        if len(self._clients) < self.config.max_connections:
            return 0.0
        now = asyncio.get_running_loop().time()
        silent = [now if c is None else c.since for c in self._clients.values() if c is None or c.is_silent]
        return PATIENCE_SECONDS - (now - min(silent)) if silent else 0.0

    def _admit(self, sock: socket.socket) -> None:
        if len(self._clients) >= self.config.max_connections and not self._make_room():
            sock.close()
            return
        sock.setblocking(False)
        task = asyncio.ensure_future(self._serve(sock))
        self._clients[task] = None
        task.add_done_callback(self._forget)

    async def _serve(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=READ_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, sock)
        connection = Connection(reader, asyncio.StreamWriter(transport, protocol, reader, loop), self)
        task = asyncio.current_task()
        if task in self._clients:
            self._clients[task] = connection
        await connection.run()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._clients.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a connection failed", exc_info=error)

    def _make_room(self) -> bool:
        """Close the connection that has been silent longest; return False if all are being answered."""
        waiting = [(c.since, t) for t, c in self._clients.items() if c is not None and c.is_silent]
        if not waiting:
            return False
        _, task = min(waiting, key=lambda pair: pair[0])
        del self._clients[task]
        task.cancel()
        return True

    async def _drain(self) -> int:
        for connection in self._clients.values():
            if connection is not None:
                connection.last_call()
        lost = 0
        if not await self._ended(self.config.grace_seconds):
            lost = sum(c is not None and c.state in (State.READING, State.WORKING) for c in self._clients.values())
            self._give_up()
            if not await self._ended(FAREWELL_SECONDS):
                for task in self._clients:
                    task.cancel()
                await self._ended(FAREWELL_SECONDS)
        return lost

    async def _ended(self, seconds: float) -> bool:
        """Whether every client leaves within `seconds`."""
        if self._clients:
            await asyncio.wait(list(self._clients), timeout=seconds)
        return not self._clients

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
