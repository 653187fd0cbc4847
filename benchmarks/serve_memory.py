"""Memory of `phraseloom serve` over many requests of many clients; it should not grow once it is warm.

Run: python benchmarks/serve_memory.py [--requests 50000] [--clients 20] [--model FOLDER] [--quick]
The server is the command itself, in a process of its own on 127.0.0.1; the clients are threads of this one. Each keeps
its connection and sends a text of 1 to 6 words, with a beam of 1 or 2. Without --model the model is one of
random weights (--width, --layers), whose outputs have the length of a translation: between 0.8 and 1.2 times that of the
source, as its bounds of length say. Memory is VmRSS of /proc; the first `--warm-up` requests are not counted.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

from common import finish, parser, table, take_cores
from phraseloom.models.build import build_model
from phraseloom.models.store import save_model
from phraseloom.options.model import ModelConfig
from phraseloom.options.text import SentencepieceConfig, TextConfig
from phraseloom.text.tokenizer import Tokenizer, learn_subwords

QUICK = {"requests": 60, "warm_up": 30, "clients": 4, "width": 16, "layers": 1, "report_every": 30}
LENGTHS = {"max_length": {"factor": 1.2, "constant": 2}, "min_length": {"factor": 0.8, "constant": 0}}


def words(count: int) -> list[str]:
    """Made-up words, always the same."""
    draw = random.Random(1)
    return ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(count)]


def sentence(draw: random.Random, among: list[str]) -> str:
    """1 to 6 words, the frequent ones first in `among`."""
    return " ".join(among[int(len(among) * draw.random() ** 3)] for _ in range(draw.randint(1, 6)))


def random_model(folder: Path, width: int, layers: int) -> Path:
    """A Transformer of random weights with subwords of made-up text."""
    draw, among = random.Random(2), words(5000)
    subwords = learn_subwords([sentence(draw, among) for _ in range(5000)], SentencepieceConfig(size=2000))
    tokenizer = Tokenizer(TextConfig(), "en", "de", subwords, subwords)
    shape = {"width": width, "heads": 4, "ffn_width": 4 * width}
    config = ModelConfig.model_validate({**shape, "encoder": {"layers": layers}, "decoder": {"layers": layers}})
    torch.manual_seed(1)
    size = len(tokenizer.source.vocabulary)
    model = build_model(config, size, size)
    save_model(folder, model, config, tokenizer, languages=("en", "de"), generation=LENGTHS)
    return folder


def resident(pid: int) -> int:
    """Bytes of a process in memory."""
    found = re.search(r"^VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found, "the system does not tell"
    return int(found[1]) * 1024


class Clients:
    """Threads that send `total` requests together; `done` of them have their reply, `refused` of those are no 200."""

    def __init__(self, port: int, count: int, total: int) -> None:
        self._port, self._total, self._lock = port, total, threading.Lock()
        self._begun = self.done = self.refused = self.words = 0
        self.errors: list[str] = []
        self._threads = [threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(count)]
        for thread in self._threads:
            thread.start()

    @property
    def running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _next(self) -> bool:
        with self._lock:
            self._begun += 1
            return self._begun <= self._total

    def _run(self, number: int) -> None:
        draw, among = random.Random(number), words(5000)
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=300)
        try:
            while self._next():
                text = sentence(draw, among)
                body = json.dumps({"text": text, "beam": draw.choice([1, 2])}).encode()
                connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
                reply = connection.getresponse()
                reply.read()
                with self._lock:
                    self.done += 1
                    self.words += len(text.split())
                    self.refused += reply.status != 200
        except Exception as error:
            self.errors.append(repr(error))
        finally:
            connection.close()


def watch(server: subprocess.Popen[bytes], clients: Clients, every: int) -> list[tuple[int, int]]:
    """Requests done and bytes in memory, after each `every` requests and at the end."""
    found, start = list[tuple[int, int]](), time.monotonic()
    while True:
        running = clients.running
        if clients.done >= every * (len(found) + 1) or not running:
            found.append((clients.done, resident(server.pid)))
            took = time.monotonic() - start
            print(f"{clients.done:>8,} requests {found[-1][1] / 2**20:>8.1f} MiB {took:>7.0f} s", flush=True)
        if not running:
            return found
        time.sleep(0.05)


def measure(model: Path, options: argparse.Namespace) -> tuple[list[tuple[int, int]], Clients]:
    command = [sys.executable, "-m", "phraseloom", "serve", str(model), "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        assert server.stderr is not None
        line = server.stderr.readline().decode()
        address = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        if address is None:
            sys.exit(f"the server does not start: {line}{server.stderr.read().decode()}")
        clients = Clients(int(address[1]), options.clients, options.requests)
        return watch(server, clients, options.report_every), clients
    finally:
        server.terminate()
        server.wait(60)


def main() -> None:
    arguments = parser(__doc__, quick=QUICK)
    arguments.add_argument("--model", type=Path, help="model or run folder; without it one of random weights")
    arguments.add_argument("--requests", type=int, default=50_000)
    arguments.add_argument("--clients", type=int, default=20)
    arguments.add_argument("--warm-up", type=int, default=5_000, help="requests after which growth counts")
    arguments.add_argument("--report-every", type=int, default=2_500, help="requests between two readings")
    arguments.add_argument("--width", type=int, default=128)
    arguments.add_argument("--layers", type=int, default=3, help="of the encoder, and as many of the decoder")
    options = arguments.parse_args()
    options.cores = take_cores(options.cores)
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or random_model(Path(folder) / "model", options.width, options.layers)
        readings, clients = measure(model, options)
    if clients.errors:
        sys.exit(f"{len(clients.errors)} clients failed: {clients.errors[0]}")
    warm = next((size for done, size in readings if done >= options.warm_up), readings[0][1])
    rows = [[done, size / 2**20, size / warm] for done, size in readings]
    table(["requests", "MiB", "ratio"], rows)
    print(f"{clients.done:,} requests, {clients.words:,} words, {clients.refused:,} refused")
    growth = max(size for done, size in readings if done >= min(options.warm_up, clients.done)) / warm
    figures = {"readings": readings, "words": clients.words, "refused": clients.refused, "warm_up": options.warm_up}
    finish("serve_memory", options, ratios={"largest after warm-up / warm": growth}, figures=figures)


if __name__ == "__main__":
    main()
