"""Sockets, connections and the end: what is accepted is answered, also when the server is told to stop."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

from phraseloom.errors import PhraseloomError
from phraseloom.serving.config import ServingConfig
from phraseloom.serving.connection import READ_BYTES, Budget, Connection, Handler, State

logger = logging.getLogger(__name__)

BACKLOG = 256
# No file handle or memory for another connection: wait until some are closed.
SHORTAGE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
# A name may have addresses that this machine has not (::1 where there is no IPv6).
NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
SHORTAGE_SECONDS = 0.5
# So long a client may be silent before it has to make room for a new one, who waits in the queue of the system.
PATIENCE_SECONDS = 0.05
FAREWELL_SECONDS = 1.0


class Server:
    """Gives requests to `handler` until it is told to stop, then lets the work under way end.

    `give_up` is called where that takes longer than `grace_seconds`: every request that still waits must then get a reply.
    """

    def __init__(self, handler: Handler, config: ServingConfig, *, give_up: Callable[[], None] = lambda: None) -> None:
        self.handler, self.config, self._give_up = handler, config, give_up
        self.buffered = Budget(config.max_buffered_bytes)
        self.stopping = False
        self._clients: dict[asyncio.Task[None], Connection | None] = {}
        self._listeners: list[socket.socket] = []

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of every socket that listens."""
        return [listener.getsockname()[:2] for listener in self._listeners]

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._clients)

    def listen(self, host: str, port: int) -> None:
        """Open the sockets; port 0 is a free one. Raises PhraseloomError that names the address."""
        problem: Exception | None = None
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, address in dict.fromkeys((f, a[:2]) for f, _, _, _, a in found):
                at = (str(address[0]), self.addresses[0][1] if self._listeners else int(address[1]))
                try:
                    listener = socket.create_server(at, family=family, backlog=BACKLOG)
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
        """Accept and serve until `stop` is set; then the end, within `grace_seconds`. How many requests got no answer."""
        for listener in self._listeners:
            self._watch(listener)
        try:
            await stop.wait()
        finally:
            self.stopping = True
            for listener in self._listeners:
                asyncio.get_running_loop().remove_reader(listener)
                self._accept(listener)  # those that the system has connected already
            self._close_listeners()
        return await self._drain()

    def _watch(self, listener: socket.socket) -> None:
        if not self.stopping:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        """Every client that waits for a connection."""
        while True:
            if (seconds := self._wait_for_room()) > 0 and not self.stopping:
                self._rest(listener, seconds)
                return
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in SHORTAGE:
                    continue  # a client that is gone again
                if not self.stopping:
                    logger.warning("no further connection for now: %s", error.strerror)
                    self._rest(listener, SHORTAGE_SECONDS)
                return
            self._admit(sock)

    def _rest(self, listener: socket.socket, seconds: float) -> None:
        """Accept nobody for so long."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)
        loop.call_later(seconds, self._watch, listener)

    def _wait_for_room(self) -> float:
        """Seconds until it is known whether there is room for another: all connections are taken, some by clients just come."""
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
        """Break off the connection that has kept us waiting longest; False where all are being answered."""
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
        """Whether every client is gone, within so many seconds."""
        if self._clients:
            await asyncio.wait(list(self._clients), timeout=seconds)
        return not self._clients

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
