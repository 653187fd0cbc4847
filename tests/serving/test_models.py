"""Real models behind the server: what it says is what `translate` and `explain` say, whoever else asks (H11)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.decoding.conftest import lines_of_words
from tests.helpers import tagged_tokenizer
from tests.serving.harness import PATIENCE, Running, connect, post, running
from tests.serving.test_server import ask_many

from phraseloom.analysis.explain.sentence import explain
from phraseloom.decoding.cancellation import Cancelled
from phraseloom.decoding.constraints import Constraints
from phraseloom.decoding.terms import Terms
from phraseloom.decoding.translator import Translator
from phraseloom.errors import UsageError
from phraseloom.models.tasks import build
from phraseloom.options.decoding import DecodingConfig
from phraseloom.options.model import ModelConfig
from phraseloom.options.serving import ServingConfig
from phraseloom.serving.models import Models, RequestText, TranslateKey


def test_the_reply_is_that_of_translate(translator: Translator) -> None:
    lines = [*lines_of_words(12, seed=5), "", " the  old man "]
    prefixes = ["a cow", *[""] * 13]
    options = {"beam": 4, "n_best": 3}
    with running(translators={"it": translator}, models=Models) as server:
        body = {"text": lines, "prefix": prefixes, "alignments": True, **options}
        status, found, _ = server.call("POST", "/translate", body)
    assert status == 200
    wanted = [t.as_dict() for t in translator.translate(lines, prefixes=prefixes, alignments=True, **options)]
    assert found["translations"] == wanted  # to the bit: the same lines in the same batch


def test_many_clients_get_what_each_would_get_alone(translator: Translator) -> None:
    """H11 and batch independence: texts and alignments are equal, scores within 1e-4."""
    alone: dict[tuple[str, int], str] = {}
    lines = lines_of_words(60, seed=6)
    for beam in (1, 2, 5):
        for line, found in zip(lines, translator.translate(lines, beam=beam), strict=True):
            alone[line, beam] = found.text
    with running(translators={"it": translator}, models=Models) as server:
        wrong = ask_many(
            server.port,
            8,
            3,
            lambda client, request, number: lines[(client * 9 + request * 3 + number) % len(lines)],
            lambda body, found: found == [alone[text, body["beam"]] for text in body["text"]],
        )
        assert not wrong, wrong[:3]
        assert server.batcher is not None
        assert server.batcher.batches < server.batcher.answered


@pytest.mark.full
def test_fifty_clients_get_what_each_would_get_alone(translator: Translator) -> None:
    """H11 in full, with a model: 50 clients, 200 requests each."""
    lines = lines_of_words(500, longest=6, seed=7)
    alone = {
        (line, beam): t.text
        for beam in (1, 2, 5)
        for line, t in zip(lines, translator.translate(lines, beam=beam), strict=True)
    }
    with running(translators={"it": translator}, models=Models) as server:
        wrong = ask_many(
            server.port,
            50,
            200,
            lambda client, request, number: lines[(client * 31 + request * 7 + number) % len(lines)],
            lambda body, found: found == [alone[text, body["beam"]] for text in body["text"]],
        )
    assert not wrong, wrong[:3]


def test_scores_do_not_depend_on_the_others(translator: Translator) -> None:
    lines = lines_of_words(20, seed=8)
    with running(translators={"it": translator}, models=Models) as server:
        together = server.call("POST", "/translate", {"text": lines, "alignments": True})[1]["translations"]
        for line, other in zip(lines[:6], together[:6], strict=True):
            alone = server.call("POST", "/translate", {"text": line, "alignments": True})[1]["translations"][0]
            assert (alone["text"], alone["alignment"]) == (other["text"], other["alignment"])
            assert alone["score"] == pytest.approx(other["score"], abs=1e-4)


def test_the_explanation_is_that_of_explain(translator: Translator) -> None:
    lines = lines_of_words(2, seed=9)
    other = translator.with_options(beam=1)
    config = ServingConfig(explain_tokens=6)
    with running(config, translators={"one": translator, "two": other}, models=Models) as server:
        for body, options in (
            ({"prefix": ["a", ""]}, {"prefixes": ["a", ""]}),
            (
                {"target": ["a cow", "them"], "reference": ["x", "y"]},
                {"targets": ["a cow", "them"], "references": ["x", "y"]},
            ),
        ):
            status, found, _ = server.call("POST", "/explain", {"text": lines, "models": ["two", "one"], **body})
            assert status == 200
            wanted = explain({"two": other, "one": translator}, lines, max_tokens=6, **options)
            assert found == wanted
    assert any("6" in note for sentence in found["sentences"] for view in sentence["views"] for note in view["notes"])


def test_the_explanation_of_a_tagged_text_is_that_of_explain_with_the_tag() -> None:
    tokenizer, config = tagged_tokenizer("<2de>", "<2fr>"), ModelConfig.model_validate({"preset": "tiny"})
    torch.manual_seed(1)
    model = Translator(build(config, tokenizer).eval(), tokenizer, DecodingConfig())
    found = {}
    with running(translators={"it": model}, models=Models) as server:
        for tag in ("<2de>", "<2fr>"):
            status, found[tag], _ = server.call("POST", "/explain", {"text": "the old man", "tag": tag})
            assert status == 200
            assert found[tag] == explain({"it": model.with_options(tags=[tag])}, ["the old man"])
    assert found["<2de>"] != found["<2fr>"]


def test_what_models_says_of_it(translator: Translator) -> None:
    models = Models({"it": translator}, ServingConfig(max_tokens=9))
    models.warm_up()
    [about] = models.about()
    assert about["languages"] == ["en", "de"]
    assert about["parameters"] == sum(p.numel() for p in translator.model.parameters())
    assert "transformer encoder of 2 layers" in about["description"]
    assert (about["beam"], about["max_tokens"], about["alignments"], about["trees"]) == (5, 9, True, False)


def test_a_text_that_is_too_long_says_so(translator: Translator) -> None:
    """H5: cropped or split, and flagged; the translation is that of the cropped text."""
    long = " ".join(["the old man sleeps ."] * 10)
    with running(ServingConfig(max_tokens=12), translators={"it": translator}, models=Models) as server:
        _, cropped, _ = server.call("POST", "/translate", {"text": ["a cow", long]})
        _, split, _ = server.call("POST", "/translate", {"text": long, "long_lines": "split"})
    assert [t["cropped"] for t in cropped["translations"]] == [False, True]
    assert "text 2 is longer than max_tokens = 12 subwords: its end was left out" in cropped["warnings"]
    assert cropped["translations"][1]["text"] == translator.translate([long], max_input_tokens=12)[0].text
    assert split["translations"][0]["parts"] > 1
    assert f"translated in {split['translations'][0]['parts']} parts" in split["warnings"][0]


@pytest.mark.parametrize("path", ["/translate", "/explain"])
def test_a_prefix_of_many_subwords_is_refused(path: str, translator: Translator) -> None:
    """H13: a prefix of few characters may be many subwords; it is refused alone, before it costs a step."""
    prefix, calls = "winter garden winter garden", []
    count = len(translator.tokenizer.target.encode(prefix))
    of_translate = translator.translate
    translator = translator.with_options()
    translator.translate = lambda lines, **options: calls.append(list(lines)) or of_translate(lines, **options)
    for limit, status in ((count, 200), (count - 1, 400)):
        config = ServingConfig(max_prefix_tokens=limit)
        with running(config, translators={"it": translator}, models=Models) as server:
            found = server.call("POST", path, {"text": ["a cow", "the man"], "prefix": ["", prefix]})
            assert found[0] == status
    said = found[1]["error"]["message"]
    assert f"{count} subwords are above the limit of this server, max_prefix_tokens = {count - 1}" in said
    assert ("prefix 2" if path == "/explain" else "text 2: prefix") in said
    if path == "/translate":
        assert calls == [["a cow", "the man"], ["a cow"]]


def test_the_steps_of_a_batch_are_bounded(translator: Translator) -> None:
    """H13: a text above the limit is refused; as many of the others as fit are one batch, the rest the next ones."""
    tokens, beam = len(translator.tokenizer.source.encode("a cow")), 2
    steps = beam * translator.config.max_length.of(tokens)
    lines = ["a cow", "a cow", "", "a cow"]
    for limit, batches in ((3 * steps, 1), (3 * steps - 1, 2), (steps, 3)):
        config = ServingConfig(batch_steps=limit)
        with running(config, translators={"it": translator}, models=Models) as server:
            status, body, _ = server.call("POST", "/translate", {"text": lines, "beam": beam})
            assert (status, server.batcher.batches) == (200, batches)
            assert body["translations"][0] == body["translations"][3]
            long = {"text": ["a cow", "the old man sleeps ."], "beam": beam, "long_lines": "split"}
            found = server.call("POST", "/translate", long)
            assert found[0] == (200 if limit > 2 * steps else 400)
    assert "text 2: " in found[1]["error"]["message"]
    assert f"above the limit of this server, batch_steps = {steps}" in found[1]["error"]["message"]


def test_a_prefix_counts_as_steps(translator: Translator) -> None:
    short = translator.with_options(max_length={"factor": 0.0, "constant": 1})
    models = Models({"it": short}, ServingConfig())
    key = TranslateKey("it", 3, 1, "crop", False)
    count = len(short.tokenizer.target.encode("winter garden"))
    measures = models._measure(
        key, [RequestText("a", "", ""), RequestText("a", "winter garden", ""), RequestText("", "winter", "")]
    )
    assert [m.steps for m in measures] == [3, 3 * count, 0]
    split = TranslateKey("it", 1, 1, "split", False)
    models = Models({"it": short}, ServingConfig(max_tokens=2))
    [measure] = models._measure(split, [RequestText("the old man sleeps .", "winter garden", "")])
    parts = short.translate(["the old man sleeps ."], max_input_tokens=2, long_lines="split")[0].parts
    assert measure.steps == count + parts - 1


def test_tags_count_as_steps(translator: Translator) -> None:
    models = Models({"it": translator}, ServingConfig())
    key, text = TranslateKey("it", 2, 1, "crop", False), RequestText("the old man sleeps .", "", "")
    source = len(translator.tokenizer.source.encode(text.text))
    longest = translator.config.max_length.of
    [plain], [tagged] = models._measure(key, [text]), models._measure(key._replace(tags=("<x>", "<y>")), [text])
    assert (plain.steps, tagged.steps) == (2 * longest(source), 2 * longest(source + 2))


def test_a_request_that_takes_longer_than_a_batch_may(slow: Translator, translator: Translator) -> None:
    """H13: 503 after batch_seconds; whoever came with it is served."""
    with running(ServingConfig(batch_seconds=4), translators={"slow": slow, "it": translator}, models=Models) as server:
        status, body, headers = server.call("POST", "/translate", ASKED["/translate"])
        assert status == 503
        assert "batch_seconds = 4" in body["error"]["message"]
        assert int(headers["Retry-After"]) >= 1
        assert server.call("POST", "/translate", {"text": "a cow", "model": "it"})[0] == 200


@pytest.fixture
def slow(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> Translator:
    """A translator whose outputs have 10,000 tokens, one in 20 ms: they take minutes."""
    kind, step = type(translator.model), type(translator.model).step

    def slow_step(*given):
        time.sleep(0.02)
        return step(*given)

    monkeypatch.setattr(kind, "step", slow_step)
    bound = {"factor": 0.0, "constant": 10_000}
    return translator.with_options(max_length=bound, min_length=bound, workers=1)


ASKED = {"/translate": {"text": "a cow", "model": "slow"}, "/explain": {"text": "a cow", "models": ["slow"]}}


@pytest.mark.parametrize("path", ASKED)
def test_what_a_client_that_left_asked_for_is_ended(path: str, slow: Translator, translator: Translator) -> None:
    """H12: whoever comes behind it is served at once."""
    quick = translator.with_options(max_length={"factor": 0.0, "constant": 3})
    with running(translators={"slow": slow, "quick": quick}, models=Models) as server:
        assert server.batcher is not None
        with connect(server.port) as sock:
            sock.sendall(post(path, ASKED[path]))
            while server.batcher.busy_seconds < 0.1:
                time.sleep(0.01)
        assert server.call("POST", "/translate", {"text": "a cow", "model": "quick"})[0] == 200


@pytest.mark.parametrize("path", ASKED)
def test_what_takes_too_long_is_ended(path: str, slow: Translator) -> None:
    """H12: after the 503 the worker is free."""
    with running(ServingConfig(answer_seconds=0.5), translators={"slow": slow}, models=Models) as server:
        status, body, _ = server.call("POST", path, ASKED[path])
        assert status == 503
        assert "answer_seconds = 0.5" in body["error"]["message"]
        end = time.monotonic() + PATIENCE
        while server.batcher is None or server.batcher.busy_seconds > 0:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_constraints_of_a_request(translator: Translator) -> None:
    own = [{"include": ["winter garden"], "exclude": ["the"]}, None]
    with running(translators={"it": translator}, models=Models) as server:
        status, found, _ = server.call("POST", "/translate", {"text": ["a cow", "we"], "constraints": own})
        assert status == 200
        assert found["translations"][0]["unmet"] == [] and "unmet" not in found["translations"][1]
        assert "winter garden" in found["translations"][0]["text"]
        assert found["translations"] == [t.as_dict() for t in translator.translate(["a cow", "we"], constraints=own)]
        status, found, _ = server.call(
            "POST", "/translate", {"text": ["we", "a"], "constraints": [None, {"include": ["Q"]}]}
        )
        assert status == 400
        assert "text 2: the vocabulary of this model cannot spell 'Q'" in found["error"]["message"]
        hard = {"include": ["winter", "garden", "tonight", "sleeps", "invite", "man"]}
        status, found, _ = server.call("POST", "/translate", {"text": "we", "constraints": hard})
        assert status == 200 and found["translations"][0]["unmet"]
        assert "the translation of text 1 does not meet its constraints" in found["warnings"]
    models = Models({"it": translator}, ServingConfig())
    key = TranslateKey("it", 2, 1, "crop", False)
    texts = [RequestText("a", "", ""), RequestText("a", "", "", Constraints(("winter garden",), ("a",)))]
    narrow, wide = (measure.steps for measure in models._measure(key, texts))
    size = len(translator.tokenizer.target.encode("winter garden"))
    assert wide == narrow // 2 * (size + 2)


def test_terms_of_a_request_and_of_the_server(translator: Translator, tmp_path: Path) -> None:
    """A request has the translations of `translate(terms=...)`; its own terms replace those of the server."""
    (tmp_path / "terms.tsv").write_text("old man\twinter garden\ncow\tdark\n")
    table = translator.read_terms(tmp_path / "terms.tsv")
    texts = ["the old man sleeps", "a cow , but small", "we", ""]

    class WithTerms(Models):
        def __init__(self, translators: Any, config: ServingConfig) -> None:
            super().__init__(translators, config, terms={"it": table})

    def texts_of(server: Running, **more: Any) -> list[dict]:
        status, reply, _ = server.call("POST", "/translate", {"text": texts, **more})
        assert status == 200, reply
        return reply["translations"]

    options = {"max_input_tokens": 256}
    with_table = [t.as_dict() for t in translator.translate(texts, terms=table, **options)]
    own = {"old man": "tonight", "we": "them"}
    with_own = [t.as_dict() for t in translator.translate(texts, terms=Terms.of(own), **options)]
    plain = [t.as_dict() for t in translator.translate(texts, **options)]
    assert "winter garden" in with_table[0]["text"] and "tonight" in with_own[0]["text"]
    with running(translators={"it": translator}, models=Models) as server:
        assert texts_of(server, terms=own) == with_own
        assert texts_of(server, terms={}) == texts_of(server) == plain
        status, reply, _ = server.call("POST", "/translate", {"text": texts, "terms": {"cow": "Q"}})
        assert status == 400
        assert reply["error"]["message"] == "text 2: the vocabulary of this model cannot spell 'Q'"
        status, reply, _ = server.call("POST", "/translate", {"text": "we", "terms": {"we": "them"}, "sample": True})
        assert status == 400 and "without sample" in reply["error"]["message"]
    with running(translators={"it": translator}, models=WithTerms) as server:
        assert texts_of(server) == with_table
        assert texts_of(server, terms=own) == with_own
        assert texts_of(server, terms={}) == plain
        for name, value in (("sample", True), ("mbr", 4), ("stream", True), ("split_sentences", True)):
            status, reply, _ = server.call("POST", "/translate", {"text": "a cow", name: value})
            assert status == 400
            assert reply["error"]["message"].startswith(f"{name}: this server has a table of terms")
        assert server.call("POST", "/translate", {"text": "a cow", "sample": True, "terms": {}})[0] == 200
    models = Models({"it": translator}, ServingConfig(), terms={"it": table})
    assert models.about()[0]["terms"] == 2
    key = TranslateKey("it", 2, 1, "crop", False)
    texts_of_key = [RequestText("a cow", "", ""), RequestText("a cow", "", "", terms=table)]
    narrow, wide = (measure.rows for measure in models._measure(key, texts_of_key))
    assert (narrow, wide) == (2, 1 + len(translator.tokenizer.target.encode("dark")))
    with pytest.raises(UsageError, match="it: it splits sentences"):
        Models({"it": translator.with_options(split_sentences=True)}, ServingConfig(), terms={"it": table})


def test_a_model_that_splits_sentences_by_default(translator: Translator) -> None:
    """As in `translate`; a request that cannot be split, or says no, is translated whole."""
    pytest.importorskip("pysbd")
    own = translator.with_options(split_sentences=True)
    text = "A cow is small. We invite them tonight."
    [split], [whole] = own.translate([text], max_input_tokens=256), translator.translate([text], max_input_tokens=256)
    assert split.text != whole.text
    with running(translators={"it": own}, models=Models) as server:
        for more, expected in (({}, split), ({"split_sentences": False}, whole), ({"n_best": 2}, whole)):
            status, reply, _ = server.call("POST", "/translate", {"text": text, **more})
            assert status == 200
            assert reply["translations"][0]["text"] == expected.text


def test_an_explanation_with_a_prefix_is_of_the_whole_text(translator: Translator) -> None:
    """Also by a model that splits sentences by default, as in `/translate`."""
    own = translator.with_options(split_sentences=True)
    body = {"text": "A cow is small. We invite them tonight.", "prefix": "a cow"}
    with running(translators={"it": own}, models=Models) as server:
        status, found, _ = server.call("POST", "/explain", body)
        assert status == 200, found
        assert found == explain({"it": translator}, [body["text"]], prefixes=["a cow"], max_tokens=128)
        _, reply, _ = server.call("POST", "/translate", body)
        assert reply["translations"][0]["text"] == found["sentences"][0]["views"][0]["target"]


def test_what_an_explanation_refuses_names_the_text_only_among_several(translator: Translator) -> None:
    """A prefix above the limit of the model, and above that of the server."""
    prefix = "winter garden winter garden"
    count = len(translator.tokenizer.target.encode(prefix))
    short = translator.with_options(max_length={"factor": 0.0, "constant": 2})
    of_model = f"a prefix of {count} subwords; this model takes at most 2"
    of_server = f"{count} subwords are above the limit of this server, max_prefix_tokens = {count - 1}"
    for limit, single, second in (
        (count, of_model, f"text 2: {of_model}"),
        (count - 1, f"prefix: {of_server}", f"prefix 2: {of_server}"),
    ):
        config = ServingConfig(max_prefix_tokens=limit, explain_tokens=2)
        with running(config, translators={"it": short}, models=Models) as server:
            status, found, _ = server.call("POST", "/explain", {"text": "a cow", "prefix": prefix})
            assert (status, found["error"]["message"]) == (400, single)
            status, found, _ = server.call("POST", "/explain", {"text": ["we", "a cow"], "prefix": ["", prefix]})
            assert (status, found["error"]["message"]) == (400, second)


@pytest.mark.parametrize("split", [False, True])
def test_texts_of_a_client_that_left_are_not_measured(
    split: bool, translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H12: splitting and counting end before the next text, not only the search."""
    models, measured = Models({"it": translator}, ServingConfig()), list[str]()

    def rows(key: TranslateKey, text: RequestText) -> int:
        measured.append(text.text)
        return 1

    def is_gone() -> bool:
        return len(measured) == 2

    monkeypatch.setattr(models, "_rows", rows)
    if split:
        monkeypatch.setattr(translator, "sentence_splitter", lambda: lambda text: ([text], ["", ""]))
    key = TranslateKey("it", 1, 1, "crop", False, split_sentences=split)
    texts = [RequestText(text, "", "") for text in ("a cow", "we", "them", "the man")]
    with pytest.raises(Cancelled):
        models.work(key, texts, is_gone)
    assert measured == ["a cow", "we"]
