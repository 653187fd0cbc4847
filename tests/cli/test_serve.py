"""`phraseloom serve` as a process: where it listens (H10), how it ends (H9), what it refuses before it starts."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Command
from tests.helpers import HANGS
from tests.serving.harness import call, connect, post, read_all, status_of

from phraseloom.cli.options import named
from phraseloom.errors import UsageError

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


@contextlib.contextmanager
def serving(*arguments: str | Path) -> Iterator[tuple[subprocess.Popen[bytes], int, list[str]]]:
    """The process, its port, and the lines of its standard error so far."""
    command = [sys.executable, "-m", "phraseloom", "serve", *map(str, arguments), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT)
    assert process.stderr is not None
    lines = [process.stderr.readline().decode()]
    found = re.search(r"http://[^ ]*:(\d+)$", lines[0].rstrip())
    assert found, lines
    reader = threading.Thread(target=lambda: lines.extend(x.decode() for x in process.stderr or []), daemon=True)
    reader.start()
    try:
        yield process, int(found[1]), lines
    finally:
        process.kill()
        process.wait(HANGS)
        reader.join(HANGS)
        assert process.stdout is not None
        assert process.stdout.read() == b""
        process.stdout.close()
        process.stderr.close()


def test_it_serves_until_it_is_told_to_stop(project: Path) -> None:
    """H9 under load: every request that began before the signal is answered; exit code 0. H10: on this machine only."""
    with serving(project / "run", "--log-requests") as (process, port, lines):
        assert f"run at http://127.0.0.1:{port}\n" in lines[0]
        with pytest.raises(OSError):
            socket.create_connection((own_address(), port), timeout=2).close()
        assert call(port, "GET", "/models")[1]["models"][0]["languages"] == ["en", "de"]
        assert b"<html" in call(port, "GET", "/")[1]
        assert call(port, "GET", "/health", Host="other.example")[0] == 421
        socks = [connect(port) for _ in range(20)]
        for sock in socks:
            sock.sendall(post("/translate", {"text": ["a dog runs here"] * 8}))
        time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        replies = [read_all(sock) for sock in socks]
        for sock in socks:
            sock.close()
        assert [status_of(raw) for raw in replies] == [200] * 20
        assert process.wait(HANGS) == 0
    log = "".join(lines)
    assert "Traceback" not in log
    assert log.count("POST /translate 200") == 20
    assert "dog" not in log


def own_address() -> str:
    """An address of this machine that is not its loopback; the test is skipped where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return "127.0.0.2"
        return str(sock.getsockname()[0])


def test_a_server_that_others_can_reach_says_so(project: Path) -> None:
    """H10."""
    with serving(project / "run", "--host", "0.0.0.0") as (process, port, lines):
        assert call(port, "GET", "/health", Host="any.example")[0] == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(HANGS) == 0
    assert "warning: other machines can reach this server" in "".join(lines)


def test_what_cannot_be_served(command: Command, project: Path) -> None:
    run = project / "run"
    for arguments, code, said in (
        (["nowhere"], 1, "nowhere: model or run folder not found"),
        ([run, run], 2, "run is given twice; name them: NAME=FOLDER"),
        ([f"a={run}", f"b={run}", "--max-beam", "2"], 2, "a: its beam 5 is above the limit 2; serve with --max-beam 5"),
        ([run, "--queue", "3"], 2, "max_texts 64 is above queue_texts 3"),
        ([run, "--terms", "other=t.tsv"], 2, "--terms other=t.tsv: no served model has the name other; names: run"),
        ([run, "--terms", "a.tsv", "--terms", "run=b.tsv"], 2, "--terms: the model run has 2 tables"),
        ([run, "--terms", "nowhere.tsv"], 1, "nowhere.tsv: table of terms not found"),
        ([run, "--port", "70000"], 2, "Invalid value for '--port'"),
        ([run, "--device", "abacus"], 2, ""),
        ([], 2, ""),
    ):
        done = command("serve", *arguments)
        assert (done.code == code or not said) and done.code, done.err
        assert done.is_one_line_of("serve") or not said
        assert said in done.err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = command("serve", run, "--port", str(taken.getsockname()[1]))
    assert done.code == 1
    assert "cannot listen on 127.0.0.1" in done.err


def test_without_its_package(command: Command, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = command("serve", project / "run")
    assert (done.code, "pip install 'phraseloom[serve]'" in done.err) == (2, True)


def test_names_of_models() -> None:
    assert named(["runs/a", "b=runs/a", "./runs/x=1/c"]) == {
        "a": Path("runs/a"),
        "b": Path("runs/a"),
        "c": Path("./runs/x=1/c"),
    }
    for wrong in (["=x"], ["x="]):
        with pytest.raises(UsageError):
            named(wrong)
