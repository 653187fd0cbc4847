"""`phraseloom serve`: translations over HTTP, and a page to type and look inside."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phraseloom.cli.options import Device, given, named, workers
from phraseloom.errors import UsageError
from phraseloom.options.serving import ServingConfig

if TYPE_CHECKING:
    from phraseloom.serving.models import Models

DEFAULT = ServingConfig()

Folders = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL",
        help="MODEL or NAME=MODEL: model folders, run folders (best "
        "checkpoint), checkpoints; the first is the default.",
    ),
]
Host = Annotated[str, typer.Option(help="Address to listen on. Put a proxy in front for anything but this machine.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free port, which is printed.")]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Also accept requests for this host name (of a proxy). Repeatable."),
]
Workers = Annotated[str | None, typer.Option("--workers", help="Number of parallel threads, or auto: one per core.")]
MaxBody = Annotated[int, typer.Option(min=1, metavar="BYTES", help="Largest request body, in bytes.")]
MaxTexts = Annotated[int, typer.Option(min=1, help="Most texts in a request.")]
MaxCharacters = Annotated[int, typer.Option(min=1, help="Most characters in a text.")]
MaxTokens = Annotated[
    int, typer.Option(min=1, help="Longer texts (in subwords) are cropped or split, and the reply says so.")
]
MaxPrefixTokens = Annotated[int, typer.Option(min=0, help="Most subwords in a prefix.")]
MaxBeam = Annotated[int, typer.Option(min=1, help="Largest beam that a request may ask for.")]
MaxNBest = Annotated[int, typer.Option(min=1, help="Most translations per text.")]
Queue = Annotated[
    int, typer.Option(min=1, help="Texts that may wait. When the queue is full, clients get 503 with Retry-After.")
]
Batch = Annotated[int, typer.Option(min=1, help="Texts per batch.")]
BatchSteps = Annotated[int, typer.Option(min=1, help="Most search steps in a batch (output length times beam size).")]
BatchTimeout = Annotated[
    float,
    typer.Option(metavar="SECONDS", help="Time limit of a batch. After it, its requests are translated one by one."),
]
Connections = Annotated[int, typer.Option(min=1, help="Most simultaneous connections.")]
ReadTimeout = Annotated[float, typer.Option(metavar="SECONDS", help="Longest pause within a request or a reply.")]
RequestTimeout = Annotated[float, typer.Option(metavar="SECONDS", help="Time limit for receiving a whole request.")]
AnswerTimeout = Annotated[float, typer.Option(metavar="SECONDS", help="Time limit for a waiting or running request.")]
Grace = Annotated[float, typer.Option(metavar="SECONDS", help="Time to finish running requests after SIGTERM.")]
LogRequests = Annotated[bool, typer.Option("--log-requests", help="Log one line per request, without its texts.")]


def command(
    models: Folders,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    allow_host: AllowHost = None,
    device: Device = "cpu",
    workers_: Workers = None,
    max_body: MaxBody = DEFAULT.max_body_bytes,
    max_texts: MaxTexts = DEFAULT.max_texts,
    max_characters: MaxCharacters = DEFAULT.max_characters,
    max_tokens: MaxTokens = DEFAULT.max_tokens,
    max_prefix_tokens: MaxPrefixTokens = DEFAULT.max_prefix_tokens,
    max_beam: MaxBeam = DEFAULT.max_beam,
    max_n_best: MaxNBest = DEFAULT.max_n_best,
    queue: Queue = DEFAULT.queue_texts,
    batch: Batch = DEFAULT.batch_texts,
    batch_steps: BatchSteps = DEFAULT.batch_steps,
    batch_timeout: BatchTimeout = DEFAULT.batch_seconds,
    max_connections: Connections = DEFAULT.max_connections,
    read_timeout: ReadTimeout = DEFAULT.read_seconds,
    request_timeout: RequestTimeout = DEFAULT.request_seconds,
    answer_timeout: AnswerTimeout = DEFAULT.answer_seconds,
    grace: Grace = DEFAULT.grace_seconds,
    log_requests: LogRequests = False,
) -> None:
    """Serve translations over HTTP. The page at / lets you type, fix the first words of a translation, and look
    inside the model (docs/serving.md).

    The server listens on this machine only, unless you set --host. SIGTERM stops it: it answers all pending
    requests and exits with code 0.

    Example: phraseloom serve base=runs/base phrasal=runs/phrasal --port 8080
    """
    from phraseloom.config import validate

    config = validate(
        ServingConfig,
        {
            "max_body_bytes": max_body,
            "max_buffered_bytes": max(DEFAULT.max_buffered_bytes, 4 * max_body),
            "max_texts": max_texts,
            "max_characters": max_characters,
            "max_tokens": max_tokens,
            "max_prefix_tokens": max_prefix_tokens,
            "max_beam": max_beam,
            "max_n_best": max_n_best,
            "queue_texts": queue,
            "batch_texts": batch,
            "batch_steps": batch_steps,
            "batch_seconds": batch_timeout,
            "max_connections": max_connections,
            "read_seconds": read_timeout,
            "request_seconds": request_timeout,
            "answer_seconds": answer_timeout,
            "grace_seconds": grace,
        },
    )
    folders = named(models)
    _require_h11()
    served = _load(folders, device, given(workers=workers(workers_)), config)
    _serve(served, config, host, port, allow_host or [], log_requests)


def _require_h11() -> None:
    import importlib.util

    if importlib.util.find_spec("h11") is None:
        raise UsageError("serving needs the package h11", hint="pip install 'phraseloom[serve]'")


def _load(folders: dict[str, Path], device: str, options: dict[str, Any], config: ServingConfig) -> Models:
    from phraseloom.decoding.translator import Translator
    from phraseloom.serving.models import Models
    from phraseloom.training.distributed import bound_memory

    bound_memory()
    models = Models(
        {name: Translator.from_pretrained(folder, device=device, **options) for name, folder in folders.items()}, config
    )
    models.warm_up()
    return models


def _serve(models: Models, config: ServingConfig, host: str, port: int, allowed: list[str], log_requests: bool) -> None:
    import asyncio
    import logging
    import os

    from phraseloom.serving.run import is_loopback, serve

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="phraseloom serve: %(message)s")

    def ready(addresses: list[tuple[str, int]]) -> None:
        for address, number in addresses:
            shown = f"[{address}]" if ":" in address else address
            print(f"phraseloom serve: {', '.join(models.names)} at http://{shown}:{number}", file=sys.stderr)
        if not is_loopback(host):
            warning = (
                "others can reach this server, and it asks nobody who they are: "
                "put a proxy before it that does, encrypts, and limits requests per client"
            )
            print(f"phraseloom serve: warning: {warning}", file=sys.stderr)
        sys.stderr.flush()

    work = serve(models, config, host=host, port=port, allowed_hosts=allowed, log_requests=log_requests, ready=ready)
    lost, busy = asyncio.run(work)
    if lost:
        print(
            f"phraseloom serve: warning: {lost} requests were given up after {config.grace_seconds:g} s",
            file=sys.stderr,
        )
    if busy:  # the worker ends at its next step only
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
