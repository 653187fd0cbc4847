"""Samples, minimum Bayes risk and streams over a socket: replies, limits, refusals, clients that leave, the end."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.decoding.conftest import lines_of_words
from tests.serving.harness import (
    PATIENCE,
    FakeTranslator,
    Running,
    connect,
    post,
    read_all,
    running,
    status_of,
    wait_until,
)

from phraseloom.decoding.cancellation import Cancelled
from phraseloom.decoding.translation import Translation
from phraseloom.decoding.translator import Translator
from phraseloom.errors import UsageError
from phraseloom.options.serving import ServingConfig
from phraseloom.serving.models import Models


class SlowStream(FakeTranslator):
    """Streams the words of a text in capitals, one for each permit; notes whether it ended before its last word."""

    def __init__(self) -> None:
        super().__init__()
        self.permits = threading.Semaphore(0)
        self.cancelled = threading.Event()

    def stream(self, line: str, *, prefix: str = "", should_cancel: Any = None, **options: Any) -> Any:
        self.options = options
        words = (prefix + line).upper().split()
        for word in words:
            while not self.permits.acquire(timeout=0.01):
                if should_cancel():
                    self.cancelled.set()
                    raise Cancelled
            if word == "POISON":
                raise RuntimeError("a secret at /home/somebody")
            yield word + " "
        return Translation(" ".join(words), -1.0, -2.0, words, words)


@pytest.fixture
def slow() -> Iterator[tuple[Running, SlowStream]]:
    translator = SlowStream()
    with running(ServingConfig(max_mbr=8), translators={"it": translator}) as server:
        yield server, translator


def lines_of(raw: bytes) -> list[Any]:
    return [json.loads(line) for line in raw.decode().splitlines()]


def streamed(port: int, value: Any) -> tuple[dict[str, str], list[Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    with contextlib.closing(connection):
        body = json.dumps({"stream": True, **value})
        connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200
        return dict(response.getheaders()), lines_of(response.read())


def test_a_stream_is_the_greedy_translation(translator: Translator) -> None:
    with running(translators={"it": translator}, models=Models) as server:
        for text in [*lines_of_words(4, seed=5), "", "tonight " * 60]:
            prefix = "a" if text else ""  # a blank text takes none
            headers, lines = streamed(server.port, {"text": text, "prefix": prefix, "alignments": True})
            assert headers["Content-Type"] == "application/x-ndjson; charset=utf-8"
            assert headers["Transfer-Encoding"] == "chunked"
            [expected] = translator.translate([text], prefixes=[prefix], beam=1, alignments=True, max_input_tokens=256)
            *pieces, last = lines
            assert "".join(line["piece"] for line in pieces) == expected.text == last["translation"]["text"]
            assert last["translation"] == expected.as_dict() and last["model"] == "it"
        assert (
            streamed(server.port, {"text": "a cow", "sample": True, "seed": 4, "top_p": 0.9})[1][-1]["translation"][
                "text"
            ]
            == translator.translate(["a cow"], sample=True, seed=4, top_p=0.9)[0].text
        )


def test_streamed_translations_are_counted(slow: tuple[Running, SlowStream]) -> None:
    server, translator = slow
    for _ in range(5):
        translator.permits.release()
    for text in ("one two three", "four poison"):
        streamed(server.port, {"text": text})
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        counts = connection.getresponse().read().decode().splitlines()
    assert 'phraseloom_texts_total{model="it"} 1' in counts and 'phraseloom_tokens_total{model="it"} 3' in counts


def test_a_model_that_splits_sentences_by_default_streams(translator: Translator) -> None:
    own = translator.with_options(split_sentences=True)
    with running(translators={"it": own}, models=Models) as server:
        whole = server.call("POST", "/translate", {"text": "a cow", "beam": 1})[1]["translations"][0]
        assert streamed(server.port, {"text": "a cow"})[1][-1]["translation"] == whole


def test_samples_and_mbr_are_those_of_translate(translator: Translator) -> None:
    lines = [*lines_of_words(5, seed=6), ""]
    with running(translators={"it": translator}, models=Models) as server:
        for options in (
            {"sample": True, "n_best": 3, "temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": 7},
            {"mbr": 6, "mbr_metric": "bleu", "n_best": 2, "temperature": 1, "seed": 2},
            {"beam": 3, "no_repeat_ngram_size": 1},
            {"sample": True},
        ):
            status, found, _ = server.call("POST", "/translate", {"text": lines, **options})
            assert status == 200, found
            expected = translator.translate(lines, max_input_tokens=256, **options)
            for ours, theirs in zip(found["translations"], expected, strict=True):
                assert ours["text"] == theirs.text
                assert [a["text"] for a in ours.get("alternatives", [])] == [a.text for a in theirs.alternatives]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"sample": True, "top_p": 0}, "top_p: should be greater than 0 (given: 0)"),
        ({"sample": True, "top_p": 1.5}, "top_p: should be less than or equal to 1 (given: 1.5)"),
        ({"sample": True, "top_k": 2.5}, "top_k: should be a whole number (given: 2.5)"),
        ({"sample": True, "temperature": "hot"}, 'temperature: a number is needed, not "hot"'),
        ({"sample": True, "seed": -1}, "seed: should be greater than or equal to 0"),
        ({"sample": 1}, "sample: true or false is needed, not 1"),
        ({"sample": True, "n_best": 11}, "n_best: 11 is above the limit of this server, max_n_best = 10"),
        ({"top_p": 0.5}, "top_p: only samples have it; add sample: true or mbr"),
        ({"mbr_metric": "bleu"}, "mbr_metric: only samples have it"),
        ({"mbr": 9}, "mbr: 9 is above the limit of this server, max_mbr = 8"),
        ({"mbr": 2, "n_best": 3}, "n_best 3 is larger than mbr 2"),
        ({"mbr": 2, "mbr_metric": "ter"}, 'mbr_metric: "ter" is none of chrf, bleu'),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size: should be greater than or equal to 0"),
        ({"stream": True, "text": ["a", "b"]}, "stream: one text at a time, not 2"),
        ({"stream": True, "beam": 4}, "stream: beam 4 has no final words before its end"),
        ({"stream": True, "sample": True, "n_best": 2}, "stream: n_best 2 has no final words"),
        ({"stream": True, "mbr": 4}, "stream: mbr compares whole translations"),
        ({"stream": "yes"}, 'stream: true or false is needed, not "yes"'),
    ],
)
def test_what_is_refused_is_named(slow: tuple[Running, SlowStream], body: dict, said: str) -> None:
    status, found, _ = slow[0].call("POST", "/translate", {"text": "a"} | body)
    assert status == 400
    assert said in found["error"]["message"]


def test_pieces_come_while_the_rest_is_translated(slow: tuple[Running, SlowStream]) -> None:
    server, translator = slow
    with connect(server.port) as sock:
        sock.sendall(post("/translate", {"text": "one two", "stream": True}) + post("/translate", {"text": "next"}))
        translator.permits.release()
        raw = b""
        while b"ONE" not in raw:
            raw += sock.recv(1000)
        assert b"TWO" not in raw and status_of(raw) == 200
        translator.permits.release()
        while b'"NEXT"' not in raw:  # the connection serves the next request, which came during the stream
            raw += sock.recv(1000)
    assert raw.index(b"TWO") < raw.index(b'"translation"') < raw.index(b'"NEXT"')


def test_a_client_that_leaves_ends_its_work(slow: tuple[Running, SlowStream]) -> None:
    server, translator = slow
    for words in (0, 1):
        translator.cancelled.clear()
        with connect(server.port) as sock:
            sock.sendall(post("/translate", {"text": "one two three", "stream": True}))
            if words:
                translator.permits.release()
                raw = b""
                while b"ONE" not in raw:
                    raw += sock.recv(1000)
            else:
                wait_until(lambda: server.batcher is not None and server.batcher.busy_seconds > 0)
        assert translator.cancelled.wait(PATIENCE)
        wait_until(lambda: server.server.connections == 0)
    assert server.call("POST", "/translate", {"text": "after"})[1]["translations"][0]["text"] == "AFTER"
    wait_until(lambda: server.server.buffered.used == 0)


def test_an_error_is_a_status_before_the_first_piece_and_a_line_after_it(slow: tuple[Running, SlowStream]) -> None:
    server, translator = slow
    for _ in range(3):
        translator.permits.release()
    status, found, _ = server.call("POST", "/translate", {"text": "poison", "stream": True})
    assert status == 500 and "secret" not in json.dumps(found)
    _, lines = streamed(server.port, {"text": "one poison"})
    assert lines[0] == {"piece": "ONE "}
    assert lines[-1]["error"]["status"] == 500 and "secret" not in json.dumps(lines)


def test_limits_of_steps_and_time_hold() -> None:
    translator = SlowStream()
    config = ServingConfig(batch_steps=20, batch_seconds=0.3)
    with running(config, translators={"it": translator}) as server:
        status, found, _ = server.call("POST", "/translate", {"text": "x" * 21, "stream": True})
        assert (status, "batch_steps = 20" in found["error"]["message"]) == (400, True)
        status, found, _ = server.call("POST", "/translate", {"text": "one two", "stream": True})
        assert (status, "batch_seconds = 0.3" in found["error"]["message"]) == (503, True)
        assert translator.cancelled.is_set()


def test_a_stream_ends_before_the_server(slow: tuple[Running, SlowStream]) -> None:
    server, translator = slow
    with connect(server.port) as sock:
        sock.sendall(post("/translate", {"text": "one two", "stream": True}))
        translator.permits.release()
        raw = b""
        while b"ONE" not in raw:
            raw += sock.recv(1000)
        server.loop.call_soon_threadsafe(server.stop.set)
        wait_until(lambda: server.server.stopping)
        translator.permits.release()
        raw += read_all(sock)
    assert b'"translation"' in raw and server.end() == 0


def test_a_client_of_http_1_0_gets_the_lines(slow: tuple[Running, SlowStream]) -> None:
    server, translator = slow
    translator.permits.release()
    with connect(server.port) as sock:
        sock.sendall(post("/translate", {"text": "one", "stream": True}).replace(b"HTTP/1.1", b"HTTP/1.0"))
        raw = read_all(sock)
    head, _, body = raw.partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert lines_of(body)[0] == {"piece": "ONE "}


def test_a_model_above_the_limit_of_mbr_is_not_served() -> None:
    with pytest.raises(UsageError, match="its mbr 9 is above the limit 8; serve with --max-mbr 9"):
        Models({"it": FakeTranslator(mbr=9)}, ServingConfig(max_mbr=8))
