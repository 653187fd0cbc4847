"""The OpenAPI description, the metrics of Prometheus, tags and sentences of requests."""

from __future__ import annotations

import logging
import re
import socket
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from tests.serving.harness import FakeTranslator, Running, connect, read_all, running, status_of

from phraseloom.options.serving import ServingConfig
from phraseloom.serving.metrics import ServerMetrics
from phraseloom.serving.openapi import REQUESTS

CONFIG = ServingConfig(max_texts=5, max_characters=50, max_beam=6, max_n_best=4)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(CONFIG, translators={"fake": FakeTranslator()}) as found:
        yield found


def message(found) -> str:
    return found[1]["error"]["message"]


@pytest.mark.parametrize("path", [*REQUESTS])
def test_the_description_has_the_fields_that_the_server_reads(server: Running, path: str) -> None:
    text = message(server.call("POST", path, {"text": "a", "zzzzzzzz": 1}))
    assert set(text.split("; fields: ")[1].split(", ")) == set(REQUESTS[path].model_fields)


def test_the_description_is_openapi_and_names_every_path(server: Running) -> None:
    status, document, headers = server.call("GET", "/openapi.json")
    assert status == 200 and headers["Content-Type"].startswith("application/json")
    assert document["openapi"].startswith("3.1") and document["info"]["title"] == "phraseloom"
    paths = message(server.call("GET", "/nothing")).split("paths: ")[1].split(", ")
    assert set(document["paths"]) == set(paths)
    schemas = document["components"]["schemas"]
    references = set(re.findall(r"#/components/schemas/(\w+)", str(document)))
    assert references <= set(schemas)
    properties = schemas["TranslateRequest"]["properties"]
    assert properties["beam"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 6}
    assert properties["text"]["anyOf"][1]["maxItems"] == 5 and properties["text"]["anyOf"][0]["maxLength"] == 50
    assert properties["model"]["anyOf"][0]["enum"] == ["fake"]
    translation = server.call("POST", "/translate", {"text": "a"})[1]["translations"][0]
    required = set(schemas["TranslationReply"]["required"])
    assert required <= set(translation)


def test_metrics_count_requests_texts_and_tokens(server: Running) -> None:
    before = server.call("GET", "/metrics")[1].decode()
    for _ in range(3):
        server.call("POST", "/translate", {"text": ["a", "b"]})
    server.call("POST", "/translate", {"text": 3})
    server.call("GET", "/somewhere/else")
    status, body, headers = server.call("GET", "/metrics")
    text = body.decode()
    assert status == 200 and headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"

    def value(name: str, text: str = text) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.M)
        return float(found[1]) if found else 0.0

    good = 'phraseloom_requests_total{path="/translate",status="200"}'
    assert value(good) - value(good, before) == 3
    assert value('phraseloom_requests_total{path="/translate",status="400"}') >= 1
    assert value('phraseloom_requests_total{path="other",status="404"}') >= 1
    name = 'phraseloom_texts_total{model="fake"}'
    assert value(name) - value(name, before) == 6
    for line in text.splitlines():
        assert re.fullmatch(r"# (HELP|TYPE) phraseloom_\w+ .+|phraseloom_\w+(\{[^{}]*\})? [0-9.e+-]+", line), line
    types = re.findall(r"^# TYPE (\w+) ", text, re.M)
    assert len(types) == len(set(types))


def test_requests_that_the_connection_refuses_are_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Under their path if the head was there, else under `other`; the log has `-` for what is not known."""
    head = b"POST /translate HTTP/1.1\r\nHost: x\r\n"
    chunk = b"3c\r\n" + b"x" * 60 + b"\r\n"
    refused = {
        b"nonsense\r\n\r\n": ("other", 400, "- - 400, 0 bytes in"),
        head + b"X: " + b"x" * 1050 + b"\r\n\r\n": ("/translate", 431, "POST /translate 431, 0 bytes in"),
        head + b"Content-Length: 101\r\n\r\n": ("/translate", 413, "POST /translate 413, 0 bytes in"),
        head + b"Transfer-Encoding: chunked\r\n\r\n" + 2 * chunk: (
            "/translate",
            413,
            "POST /translate 413, 60 bytes in",
        ),
        head + b"Expect: miracles\r\n\r\n": ("/translate", 417, "POST /translate 417, 0 bytes in"),
        head + b"Content-Length: 5\r\n\r\nabc": ("/translate", 400, "POST /translate 400, 3 bytes in"),
    }
    config = ServingConfig(max_body_bytes=100, max_header_bytes=1024)
    with running(config, translators={"it": FakeTranslator()}) as server, caplog.at_level(logging.INFO):
        server.app.log_requests = True
        for raw, (_, status, _) in refused.items():
            with connect(server.port) as sock:
                sock.sendall(raw)
                sock.shutdown(socket.SHUT_WR)
                assert status_of(read_all(sock)) == status
        text = server.call("GET", "/metrics")[1].decode()
    counts = Counter((path, status) for path, status, _ in refused.values())
    for (path, status), count in counts.items():
        assert f'phraseloom_requests_total{{path="{path}",status="{status}"}} {count}\n' in text
    log = [record.getMessage() for record in caplog.records if record.name == "phraseloom.serving.app"]
    assert len(log) == len(refused) + 1
    for line, (*_, beginning) in zip(log, refused.values(), strict=False):
        assert line.startswith(beginning)


def test_a_reply_that_has_no_room_counts_as_what_the_client_gets() -> None:
    config = ServingConfig(max_body_bytes=100, max_buffered_bytes=2**16)
    with running(config, translators={"it": FakeTranslator()}, page=bytes(2**16 + 1)) as server:
        assert server.call("GET", "/")[0] == 503
        text = server.call("GET", "/metrics")[1].decode()
    assert re.findall(r'^phraseloom_requests_total\{path="/",status="(\d+)"} (\d+)', text, re.M) == [("503", "1")]


def test_buckets_are_cumulative() -> None:
    metrics = ServerMetrics(["/x"])
    for seconds in (0.001, 0.3, 99.0):
        metrics.observe("/x", 200, seconds)
    metrics.translated('a"b', 2, 30)
    metrics.translated("busy", 1_234_567, 98_765_432)
    text = metrics.text(SimpleNamespace(batches=4, waiting=1, busy_seconds=0.0), 7.0)  # type: ignore[arg-type]
    counts = [int(n) for n in re.findall(r'seconds_bucket\{path="/x",le="[^"]+"\} (\d+)', text)]
    assert counts == sorted(counts) and counts[0] == 1 and counts[-2:] == [2, 3]
    assert 'phraseloom_request_seconds_sum{path="/x"} 99.301000' in text
    assert 'phraseloom_tokens_total{model="a\\"b"} 30' in text and "phraseloom_uptime_seconds 7.000" in text
    assert 'texts_total{model="busy"} 1234567\n' in text and 'tokens_total{model="busy"} 98765432\n' in text


@pytest.mark.parametrize("path", ["/translate", "/explain"])
def test_a_request_may_have_tags_of_the_model(server: Running, path: str) -> None:
    assert server.call("POST", path, {"text": "a", "tag": "<x>"})[0] == 200
    assert server.call("POST", path, {"text": "a", "tag": ["<y>", "<x>"]})[0] == 200
    found = server.call("POST", path, {"text": "a", "tag": "<z>"})
    assert found[0] == 400
    assert message(found) == "tag: the model fake does not know <z>; its tags: <x>, <y>"


def test_sentences_exclude_prefixes_and_n_best(server: Running) -> None:
    pytest.importorskip("pysbd")
    assert server.call("POST", "/translate", {"text": "A. B.", "split_sentences": True})[0] == 200
    for more in ({"prefix": "X"}, {"n_best": 2}):
        found = server.call("POST", "/translate", {"text": "A.", "split_sentences": True, **more})
        assert (
            found[0] == 400
            and message(found) == "split_sentences: not with prefix, tree, constraints, terms, stream or n_best above 1"
        )
