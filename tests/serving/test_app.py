"""What is asked of the server, and what it answers: parameters (H4), long texts (H5), bad JSON (H6), leaks (H7)."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serving.harness import FakeModels, FakeTranslator, Running, running

from phraseloom.errors import DataError, FileProblem, UsageError
from phraseloom.options.serving import ServingConfig
from phraseloom.serving.app import App
from phraseloom.serving.batcher import Batcher
from phraseloom.serving.message import STATUSES, Request

CONFIG = ServingConfig(
    max_texts=5, max_characters=50, max_prefix_characters=10, max_beam=6, max_n_best=4, max_tokens=20
)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    translators = {"fake": FakeTranslator(), "trees": FakeTranslator(trees=True)}
    with running(CONFIG, translators=translators) as found:
        yield found


def message(found) -> str:
    return found[1]["error"]["message"]


def test_translations_in_order(server: Running) -> None:
    status, body, headers = server.call("POST", "/translate", {"text": ["a", "", "b c"], "prefix": ["X ", "", ""]})
    assert status == 200
    assert [t["text"] for t in body["translations"]] == ["X A", "", "B C"]
    assert (body["model"], body["warnings"]) == ("fake", [])
    assert headers["Content-Type"] == "application/json; charset=utf-8"
    assert (
        server.call("POST", "/translate", {"text": "ä\u2028ö\u0000"})[1]["translations"][0]["text"] == "Ä\u2028Ö\u0000"
    )
    assert server.call("POST", "/translate", {"text": []})[1]["translations"] == []
    assert server.call("POST", "/translate", {"text": ["", " \u3000"]})[0] == 200


def test_health_models_and_the_page(server: Running) -> None:
    assert server.call("GET", "/health")[1]["status"] == "ok"
    about = server.call("GET", "/models")[1]
    assert [m["name"] for m in about["models"]] == ["fake", "trees"]
    assert about["limits"] == CONFIG.model_dump()
    status, body, headers = server.call("GET", "/")
    assert (status, body, headers["Content-Type"]) == (200, b"<p>page</p>", "text/html; charset=utf-8")
    assert server.call("HEAD", "/")[:2] == (200, b"")


def test_paths_and_methods(server: Running) -> None:
    assert server.call("GET", "/nothing")[0] == 404
    assert server.call("GET", "/../../etc/passwd")[0] == 404
    for method, path in (("GET", "/translate"), ("DELETE", "/"), ("OPTIONS", "/translate"), ("CONNECT", "/health")):
        status, _, headers = server.call(method, path)
        assert status == 405
        assert headers["Allow"] == {"/translate": "POST"}.get(path, "GET, HEAD")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"beam": 7}, "beam: 7 is above the limit of this server, max_beam = 6"),
        ({"n_best": 5}, "n_best: 5 is above the limit of this server, max_n_best = 4"),
        ({"text": ["a"] * 6}, "text: 6 texts are above the limit of this server, max_texts = 5"),
        ({"text": ["a", "a" * 51]}, "text 2: 51 characters are above the limit of this server, max_characters = 50"),
        ({"prefix": "a" * 11}, "prefix: 11 characters are above the limit of this server, max_prefix_characters = 10"),
        ({"beam": 0}, "beam: 0 is below 1"),
        ({"beam": -1}, "beam: -1 is below 1"),
        ({"beam": 5.0}, "beam: a whole number is needed, not 5.0"),
        ({"beam": "5"}, 'beam: a whole number is needed, not "5"'),
        ({"beam": True}, "beam: a whole number is needed, not true"),
        ({"beam": [5]}, "beam: a whole number is needed, not a list"),
        ({"beam": 10**30}, "max_beam = 6"),
        ({"beam": 2, "n_best": 3}, "n_best 3 is larger than beam 2; set beam to 3"),
        ({"text": None}, "text is missing"),
        ({"text": 7}, "text: a text is needed, not a number"),
        ({"text": ["a", ["b"]]}, "text 2: a text is needed, not a list"),
        ({"text": {"a": "b"}}, "text: a text is needed, not an object"),
        ({"text": "a\nb"}, "text: a text is one line"),
        ({"text": "a\ud800b"}, "text: character 2 is half of a surrogate pair"),
        ({"prefix": ["a", "b"]}, "prefix: 2 for 1 texts"),
        ({"bean": 5}, 'unknown field "bean"; did you mean beam?'),
        ({"x" * 1000: 5}, "unknown field"),
        ({"model": "/etc/passwd"}, 'model: "/etc/passwd" is none of fake, trees'),
        ({"model": ["fake"]}, "model: a list of 1 is none of fake, trees"),
        ({"alignments": 1}, "alignments: true or false is needed, not 1"),
        ({"long_lines": "cut"}, 'long_lines: "cut" is none of crop, split'),
        ({"constraints": "a"}, "constraints: an object is needed, not a text"),
        ({"constraints": [{}, {}]}, "constraints: 2 for 1 text"),
        ({"constraints": [{"include": "a"}]}, "constraints 1: include is not a list of phrases"),
        ({"constraints": {"includes": []}}, "constraints: unknown field 'includes'"),
        ({"constraints": {"include": ["a b"], "exclude": ["b"]}}, "constraints: 'a b' is required and contains 'b'"),
        ({"constraints": {"exclude": [f"a{i}" for i in range(17)]}}, "17 phrases are above the limit of this server"),
        ({"constraints": {"include": ["a" * 201]}}, "201 characters is above the limit of this server"),
        # 10,000 with 10,000: each with each would take minutes
        (
            {"constraints": {k: [f"{k} {i}" for i in range(10_000)] for k in ("include", "exclude")}},
            "20000 phrases are above",
        ),
        ({"terms": []}, "terms: an object of texts is needed, not a list"),
        ({"terms": {"a": 1}}, "terms 1: a text is needed, not a number"),
        ({"terms": {"a": "b", "c\nd": "e"}}, "terms 2: a text is one line"),
        (
            {"terms": {"a" * 201: "b"}},
            "terms 1: 201 characters are above the limit of this server, max_phrase_characters",
        ),
        (
            {"terms": {f"a{i}": "b" for i in range(257)}},
            "terms: 257 are above the limit of this server, max_terms = 256",
        ),
        ({"terms": {"a b": "c", "a  b": "d"}}, "terms 2: 'a b' has another target"),
        ({"terms": {"a": " "}}, "terms 1: a phrase is empty"),
        ({"terms": {"a": "b"}, "split_sentences": True}, "split_sentences: not with prefix, tree, constraints, terms"),
        ({"terms": {"a": "b"}, "stream": True}, "stream: constraints and terms need beam search"),
        ({"model": "trees"}, "tree is missing"),
        ({"tree": "(a)"}, "tree: the model fake reads no parse trees"),
    ],
)
def test_what_is_refused_is_named_with_its_limit(server: Running, body: dict, said: str) -> None:
    """H4: one above each cap, negative, float, text, missing."""
    found = server.call("POST", "/translate", {"text": "a"} | body)
    assert found[0] == 400
    assert said in message(found)
    assert len(message(found)) < 300


def test_at_the_limit_is_within_it(server: Running) -> None:
    body = {"text": ["a" * 50] * 5, "prefix": ["b" * 10] * 5, "beam": 6, "n_best": 4, "long_lines": "split"}
    assert server.call("POST", "/translate", body)[0] == 200
    assert server.call("POST", "/translate", {"model": "trees", "text": "a", "tree": "(a)"})[0] == 200


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[1]", "the body is a list, not an object"),
        (b"null", "the body is null"),
        (b"\xff\xfe", "not UTF-8 (byte 0)"),
        (b'{"text": "a", "text": "b"}', 'holds "text" twice'),
        (b'{"text": "a", "beam": NaN}', "holds NaN, which is not JSON"),
        (b'{"text": "a", "beam": -Infinity}', "holds -Infinity"),
        (b'{"text": "a", "beam": 1e400}', "a whole number is needed"),
        (b'{"text": "a", "beam": ' + b"9" * 5000 + b"}", "too large"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "nested too deeply"),
        (b'{"text": ' + b"[" * 900 + b"]" * 900 + b"}", "a text is needed, not a list"),
    ],
    ids=lambda v: v[:30].decode("latin-1") if isinstance(v, bytes) else "",
)
def test_bodies_that_are_no_request(server: Running, raw: bytes, said: str) -> None:
    found = server.call("POST", "/translate", raw)
    assert found[0] == 400
    assert said in message(found)


def test_other_types_are_refused(server: Running) -> None:
    """A form or a text, which a page of another site could post without asking, and compressed bodies."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        assert server.call("POST", "/translate", b'{"text": "a"}', Content_Type=kind)[0] == 415
    assert server.call("POST", "/translate", {"text": "a"}, Content_Type="Application/JSON; charset=utf-8")[0] == 200
    assert server.call("POST", "/translate", {"text": "a"}, Content_Encoding="gzip")[0] == 415
    for charset in ("utf8", '"UTF-8"', "utf-8; version=1"):
        assert (
            server.call("POST", "/translate", {"text": "ä"}, Content_Type=f"application/json;charset={charset}")[0]
            == 200
        )
    for charset in ("latin1", "utf-16", ""):
        found = server.call("POST", "/translate", b'{"text": "a"}', Content_Type=f"application/json; charset={charset}")
        assert found[0] == 415
        assert f"says charset {charset}" in message(found)


def test_more_models_than_can_be_explained() -> None:
    with running(translators={name: FakeTranslator() for name in ("base", "seg", "noenc")}) as server:
        found = server.call("POST", "/explain", {"text": "a", "models": ["base", "seg", "noenc"]})
        assert message(found) == "models: a list of 1 to 2 of base, seg, noenc is needed, not a list of 3"
    with running(translators={"base": FakeTranslator()}) as server:
        assert "a list of 1 of base is needed" in message(server.call("POST", "/explain", {"text": "a", "models": []}))


def test_other_names_and_origins_are_refused() -> None:
    """DNS rebinding, and pages of other sites."""
    with running(hosts=["localhost", "127.0.0.1", "[::1]"]) as server:
        for host in ("localhost", "LOCALHOST:80", "127.0.0.1:9", "[::1]", "[::1]:8080"):
            assert server.call("GET", "/health", Host=host)[0] == 200
        for host in ("evil.example", "localhost.evil.example:80", "[::2]:80", ":80"):
            assert server.call("GET", "/health", Host=host)[0] == 421
        assert server.call("GET", "http://evil.example/health", Host="localhost")[0] == 421
        assert server.call("GET", "http://LOCALHOST/health?x", Host="evil.example")[0] == 200
        for target in ("/x://localhost:80/health", "//x://localhost/health", "/http://localhost/health"):
            assert server.call("GET", target, Host="evil.example")[0] == 421
            assert server.call("GET", target, Host="localhost")[0] == 404
        body = {"text": "a"}
        assert server.call("POST", "/translate", body, Host="localhost:8", Origin="http://localhost:8")[0] == 200
        bad = (
            "http://[",
            "http://[::1",
            "//localhost:8",
            "http://localhost:8/",
            "http://u@localhost:8",
            "",
            "http://\xb2",
        )
        for origin in ("http://evil.example", "null", "http://localhost:9", *bad):
            assert server.call("POST", "/translate", body, Host="localhost:8", Origin=origin)[0] == 403


def test_long_texts_are_flagged(server: Running) -> None:
    """H5: never silent."""
    body = server.call("POST", "/translate", {"text": ["a", "long", "endless"]})[1]
    assert [t["cropped"] for t in body["translations"]] == [False, True, False]
    assert body["warnings"] == [
        "text 2 is longer than max_tokens = 20 subwords: its end was left out",
        "the translation of text 3 reached the maximal length and may be incomplete",
    ]


def test_options_reach_the_model(server: Running) -> None:
    translator = FakeTranslator(beam=3, n_best=2, long_lines="split", max_input_tokens=7)
    with running(CONFIG, translators={"it": translator}) as found:
        for asked, got in (({}, (3, 2)), ({"beam": 1}, (1, 1)), ({"beam": 5}, (5, 2)), ({"n_best": 1}, (3, 1))):
            assert found.call("POST", "/translate", {"text": "a"} | asked)[0] == 200
            assert (translator.options["beam"], translator.options["n_best"]) == got
            assert (translator.options["long_lines"], translator.options["max_input_tokens"]) == ("split", 7)
        translator.can_align = False
        refused = found.call("POST", "/translate", {"text": "a", "alignments": True})
        assert refused[0] == 400
        assert "attends to no source tokens" in message(refused)


SECRETS = [
    RuntimeError("a secret at /home/somebody/model.bin"),
    FileProblem("lexicon not found", file="/home/somebody/secret"),
    MemoryError(),
    OSError(2, "No such file", "/home/somebody/secret"),
]


@pytest.mark.parametrize("path", ["/translate", "/explain"])
@pytest.mark.parametrize("error", SECRETS, ids=lambda e: type(e).__name__)
def test_nothing_of_an_error_of_ours_gets_out(path: str, error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """H7: no path, no traceback, no name of a class; the log has them, under the number that the client gets."""
    translator = FakeTranslator()
    translator.error = error
    with running(translators={"it": translator}) as server, caplog.at_level(logging.ERROR):
        found = server.call("POST", path, {"text": "poison"})
        assert server.call("POST", path, {"text": "fine"})[0] == 200
    assert found[0] == 500
    shown = json.dumps(found[1]["error"]["message"]) + json.dumps(found[2])
    for leak in ("secret", "somebody", "Error", "Traceback", "File", ".py"):
        assert leak not in shown
    number = message(found).split("number ")[1].split()[0]
    assert number in caplog.text
    assert type(error).__name__ in caplog.text


@pytest.mark.parametrize("error", [DataError("tree of other words", file="/home/x", line=1), UsageError("no, /thanks")])
def test_what_a_model_refuses_is_the_fault_of_the_request(error: Exception) -> None:
    translator = FakeTranslator()
    translator.error = error
    with running(translators={"it": translator}) as server:
        found = server.call("POST", "/translate", {"text": ["a", "poison"]})
        assert found[0] == 400
        assert message(found) == f"text 2: {error.what}"


def test_numbers_that_json_cannot_say() -> None:
    from phraseloom.serving.message import json_reply

    assert json_reply({"a": [float("nan"), -float("inf"), 1.5], "b": {"c": float("inf")}}).body == (
        b'{"a":[null,null,1.5],"b":{"c":null}}\n'
    )


def test_explanations(server: Running) -> None:
    body = {"text": ["a", "b"], "models": ["trees", "fake"], "target": ["x", "y"], "tree": ["", ""], "beam": 2}
    status, found, _ = server.call("POST", "/explain", body)
    assert (status, found) == (200, {"models": ["trees", "fake"], "sentences": ["a", "b"], "targets": ["x", "y"]})
    for wrong, said in (
        ({"text": ["a"] * 5}, "explain_texts = 4"),
        ({"models": ["fake", "fake"]}, 'models 2: "fake" is there twice'),
        ({"models": []}, "a list of 1 to 2 of fake, trees is needed, not a list of 0"),
        ({"models": ["fake", "other"]}, 'models 2: "other" is none of fake, trees'),
        ({"models": [["fake"]]}, "models 1: a list of 1 is none of fake, trees"),
        ({"models": "fake"}, 'a list of 1 to 2 of fake, trees is needed, not "fake"'),
        ({"models": ["fake", "trees"]}, "tree is missing"),
        ({"target": "x", "prefix": "y"}, "prefix: a target is forced as a whole"),
        ({"target": ["x", "y"]}, "target: 2 for 1 texts"),
        ({"beam": 7}, "max_beam = 6"),
        ({"n_best": 1}, "unknown field"),
    ):
        refused = server.call("POST", "/explain", {"text": "a"} | wrong)
        assert refused[0] == 400
        assert said in message(refused)


def test_a_model_above_the_limits_is_not_served() -> None:
    with pytest.raises(UsageError, match=r"its beam 9 is above the limit 6.*--max-beam 9"):
        FakeModels({"it": FakeTranslator(beam=9)}, CONFIG)
    with pytest.raises(UsageError, match="--max-n-best 5"):
        FakeModels({"it": FakeTranslator(n_best=5)}, CONFIG)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 12) | st.floats() | st.text(max_size=8) | st.just("fake"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
NAMES = [
    "text",
    "prefix",
    "tree",
    "beam",
    "n_best",
    "model",
    "models",
    "alignments",
    "long_lines",
    "target",
    "reference",
]


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), VALUES, max_size=6) | VALUES,
    st.sampled_from(["/translate", "/explain"]),
)
def test_no_json_breaks_the_server(value: object, path: str) -> None:
    """H6: 200, or 400 with a reason; never our fault."""
    _check_json(value, path)


@pytest.mark.full
@settings(max_examples=10_000, deadline=None)
@given(
    st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), VALUES, max_size=6) | VALUES,
    st.sampled_from(["/translate", "/explain"]),
)
def test_no_json_breaks_the_server_10_000_times(value: object, path: str) -> None:
    _check_json(value, path)


def _check_json(value: object, path: str) -> None:
    async def ask() -> tuple[int, dict]:
        config = ServingConfig(gather_seconds=0)
        models = FakeModels({"fake": FakeTranslator(), "other": FakeTranslator()}, config)
        async with Batcher(models.work, config) as batcher:
            body = json.dumps(value).encode("utf-8", "surrogatepass")
            request = Request("POST", path, {"content-type": "application/json"}, body)
            reply = await App(models, batcher, config, b"").handle(request)
            return reply.status, json.loads(reply.body)

    status, body = asyncio.run(ask())
    assert status in STATUSES
    assert status in (200, 400)
    assert status == 200 or body["error"]["message"]
