"""The whole server, from models to the last reply: `serve` runs until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import signal
from collections.abc import Callable, Sequence

from phraseloom.options.serving import ServingConfig
from phraseloom.serving.app import App, live_page
from phraseloom.serving.batcher import Batcher
from phraseloom.serving.models import Models
from phraseloom.serving.server import Server

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
SIGNALS = (signal.SIGTERM, signal.SIGINT)


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach a server on `host`."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def names_of(host: str, allowed: Sequence[str]) -> list[str] | None:
    """The names under which clients may call a server on `host`; None (any name) only if other machines can reach it."""
    if allowed:
        return [*allowed, *LOOPBACK]
    return [*LOOPBACK, host, f"[{host}]"] if is_loopback(host) else None


async def serve(
    models: Models,
    config: ServingConfig,
    *,
    host: str,
    port: int,
    allowed_hosts: Sequence[str] = (),
    log_requests: bool = False,
    ready: Callable[[list[tuple[str, int]]], None] = lambda addresses: None,
    stop: asyncio.Event | None = None,
) -> tuple[int, bool]:
    """Serve until SIGTERM, SIGINT or `stop`; a second signal ends the process at once.

    `ready` gets the addresses once clients can connect. Returns the number of requests that did not finish within
    `grace_seconds` (they got a 503), and whether the worker is still busy. Raises PhraseloomError if it cannot listen.
    """
    loop, stop = asyncio.get_running_loop(), stop or asyncio.Event()

    def on_signal(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    async with Batcher(models.work, config) as batcher:
        app = App(models, batcher, config, live_page().encode(), hosts=names_of(host, allowed_hosts))
        app.log_requests = log_requests
        server = Server(app.handle, config, give_up=batcher.give_up, record=app.record)
        server.listen(host, port)
        for number in SIGNALS:
            with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C raises KeyboardInterrupt
                loop.add_signal_handler(number, on_signal, number)
        try:
            ready(server.addresses)
            lost = await server.run(stop)
        finally:
            for number in SIGNALS:
                with contextlib.suppress(NotImplementedError):
                    loop.remove_signal_handler(number)
        return lost, batcher.busy_seconds > 0
