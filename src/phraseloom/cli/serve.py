"""`phraseloom serve`: translations over HTTP, and a page to type and look inside."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phraseloom.cli.options import Device, named, options_of
from phraseloom.cli.streams import note, warn
from phraseloom.errors import UsageError
from phraseloom.options.decoding import DecodingConfig
from phraseloom.options.serving import ServingConfig

if TYPE_CHECKING:
    from phraseloom.serving.models import Models

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
EnsembleMembers = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[NAME=]MODEL",
        help="A further model with the same vocabulary that translates together with the model NAME (default: the first). "
        "Repeatable.",
    ),
]
TermTables = Annotated[
    list[str] | None,
    typer.Option(
        "--terms",
        metavar="[NAME=]TABLE",
        help="Terminology of the model NAME (default: the first), as for translate --terms. A request may bring its own. "
        "Repeatable.",
    ),
]
LogRequests = Annotated[bool, typer.Option("--log-requests", help="Log one line per request, without its texts.")]


SECONDS = {"metavar": "SECONDS"}


@options_of(DecodingConfig, only=("workers",), into="decoding")
@options_of(
    ServingConfig,
    without=(
        "max_header_bytes",
        "max_prefix_characters",
        "explain_texts",
        "explain_tokens",
        "idle_seconds",
        "send_seconds",
        "linger_seconds",
        "max_buffered_bytes",
        "explain_waiting",
        "gather_seconds",
    ),
    forms={
        "max_body_bytes": {"names": ["--max-body"], "metavar": "BYTES"},
        "queue_texts": {"names": ["--queue"]},
        "batch_texts": {"names": ["--batch"]},
        "batch_seconds": {"names": ["--batch-timeout"], **SECONDS},
        "read_seconds": {"names": ["--read-timeout"], **SECONDS},
        "request_seconds": {"names": ["--request-timeout"], **SECONDS},
        "answer_seconds": {"names": ["--answer-timeout"], **SECONDS},
        "grace_seconds": {"names": ["--grace"], **SECONDS},
    },
    of_model=False,
    into="limits",
)
def command(
    models: Folders,
    *,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    allow_host: AllowHost = None,
    ensemble: EnsembleMembers = None,
    terms: TermTables = None,
    device: Device = "cpu",
    decoding: dict[str, Any],
    limits: dict[str, Any],
    log_requests: LogRequests = False,
) -> None:
    """Serve translations over HTTP. The page at / lets you type, fix the first words of a translation, and look
    inside the model (docs/serving.md).

    The server listens on this machine only, unless you set --host. SIGTERM stops it: it answers all pending
    requests and exits with code 0.

    Example: phraseloom serve base=runs/base phrasal=runs/phrasal --port 8080
    """
    from phraseloom.config import validate

    buffered = max(ServingConfig.model_fields["max_buffered_bytes"].default, 4 * limits["max_body_bytes"])
    config = validate(ServingConfig, {**limits, "max_buffered_bytes": buffered})
    folders = named(models)
    members = _by_name("--ensemble", ensemble or [], list(folders))
    tables = _by_name("--terms", terms or [], list(folders))
    for name, paths in tables.items():
        if len(paths) > 1:
            raise UsageError(f"--terms: the model {name} has {len(paths)} tables", hint="join them to one file")
    _require_h11()
    served = _load(folders, members, tables, device, decoding, config)
    _serve(served, config, host, port, allow_host or [], log_requests)


def _require_h11() -> None:
    import importlib.util

    if importlib.util.find_spec("h11") is None:
        raise UsageError("serving needs the package h11", hint="pip install 'phraseloom[serve]'")


def _by_name(option: str, values: Sequence[str], names: Sequence[str]) -> dict[str, list[Path]]:
    """The paths of each served model from values [NAME=]PATH. Raises UsageError for a name that is not served."""
    result: dict[str, list[Path]] = {name: [] for name in names}
    for text in values:
        name, equals, path = text.partition("=")
        if not equals or "/" in name:
            name, path = names[0], text
        if name not in result:
            raise UsageError(f"{option} {text}: no served model has the name {name}", hint=f"names: {', '.join(names)}")
        result[name].append(Path(path))
    return result


def _load(
    folders: dict[str, Path],
    members: dict[str, list[Path]],
    tables: dict[str, list[Path]],
    device: str,
    options: dict[str, Any],
    config: ServingConfig,
) -> Models:
    from phraseloom.decoding.translator import Translator
    from phraseloom.serving.models import Models
    from phraseloom.training.distributed import bound_memory

    bound_memory()
    translators = {
        name: Translator.from_pretrained(folder, ensemble=members[name], device=device, **options)
        for name, folder in folders.items()
    }
    terms = {name: translators[name].read_terms(path) for name, paths in tables.items() for path in paths}
    models = Models(translators, config, terms=terms)
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
            note("serve", f"{', '.join(models.names)} at http://{shown}:{number}")
        if not is_loopback(host):
            warn(
                "serve",
                "other machines can reach this server, and it does not authenticate anybody: "
                "put a proxy in front that authenticates, encrypts, and limits requests per client",
            )
        sys.stderr.flush()

    work = serve(models, config, host=host, port=port, allowed_hosts=allowed, log_requests=log_requests, ready=ready)
    lost, busy = asyncio.run(work)
    if lost:
        warn("serve", f"{lost} requests were given up after {config.grace_seconds:g} s")
    if busy:  # the worker stops only at its next step
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
