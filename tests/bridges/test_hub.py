"""`phraseloom hub` and hf:// addresses, against a Hub on the loopback: whole or nothing, and never unasked."""

from __future__ import annotations

import json
import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.bridges import fake_hub
from tests.bridges.fake_hub import FakeHub
from tests.golden.make import MODEL
from tests.helpers import LINES, content, tiny_tokenizer
from tests.test_replace import tree

from phraseloom import hub as bridge
from phraseloom.cli.hub import recorded_scores
from phraseloom.cli.main import run
from phraseloom.config import validate
from phraseloom.decoding.translator import Translator
from phraseloom.errors import CorruptError, FileProblem, UsageError
from phraseloom.files import verify_manifest, write_manifest
from phraseloom.models.store import change_generation, find_model, save_model
from phraseloom.models.tasks import build
from phraseloom.options.model import ModelConfig
from phraseloom.options.text import TextConfig
from phraseloom.text.tokenizer import Tokenizer
from phraseloom.text.truecase import learn_truecaser

huggingface_hub = pytest.importorskip(
    "huggingface_hub", reason="huggingface_hub is not installed: pip install 'phraseloom[hub]'"
)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of huggingface_hub, when it uploads
GOLDEN = MODEL / "model"
SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A Hub, this test's token, and no pauses between attempts."""
    from huggingface_hub import constants, file_download
    from huggingface_hub.utils import _http

    with fake_hub.running() as result:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HF_ENDPOINT", result.url)
        monkeypatch.setenv("HF_TOKEN", fake_hub.TOKEN)
        monkeypatch.setenv("PHRASELOOM_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        for name, value in (("ENDPOINT", result.url), ("HF_HUB_DISABLE_XET", True), ("HF_HUB_DISABLE_TELEMETRY", True)):
            monkeypatch.setattr(constants, name, value)
        template = result.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        for module in (file_download, _http):
            monkeypatch.setattr(module.time, "sleep", lambda _: None)
        bridge._fetched.cache_clear()
        yield result


def fails(capsys: pytest.CaptureFixture[str], match: str, *arguments: str, code: int = 1) -> None:
    """One line of error, and nothing written."""
    before = tree(Path.cwd())
    capsys.readouterr()
    assert run(list(arguments)) == code
    err = capsys.readouterr().err
    assert match in err and err.count("\n") == 1, err
    assert tree(Path.cwd()) == before


def test_there_and_back(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["hub", "push", str(GOLDEN), "ann/world", "--license", "mit"]) == 0
    commit = hub.branches["ann/world", "main"]
    assert capsys.readouterr().out == f"{hub.url}/ann/world/commit/{commit}\n"
    there = hub.files("ann/world")
    head, _, body = there["README.md"].decode()[4:].partition("\n---\n")
    assert yaml.safe_load(head) == {
        "language": ["en", "de"], "license": "mit", "library_name": "phraseloom", "pipeline_tag": "translation",
        "tags": ["phraseloom"],
    }  # fmt: skip
    assert body.strip() == (GOLDEN / "README.md").read_bytes().decode().strip()

    assert run(["hub", "pull", "ann/world", "model"]) == 0
    out = capsys.readouterr()
    assert out.out.endswith(f"commit {commit}\n") and out.err == ""
    pulled = content(Path("model"))
    assert {n: d for n, d in pulled.items() if n not in ("README.md", "manifest.json")} == {
        n: d for n, d in content(GOLDEN).items() if n not in ("README.md", "manifest.json")
    }
    verify_manifest("model")
    line = (MODEL / "source.en").read_bytes().decode().split("\n")[0]
    assert Translator.from_pretrained("model").translate([line]) == Translator.from_pretrained(GOLDEN).translate([line])
    fails(capsys, "not empty", "hub", "pull", "ann/world", "model", code=2)
    assert run(["hub", "pull", "ann/world", "model", "--overwrite"]) == 0
    assert run(["hub", "push", "model", "ann/again", "--private"]) == 0, "a pulled model is pushed"
    again = hub.files("ann/again")["README.md"].decode()
    assert again.count("license: mit") == 1 and again.count("\n---\n") == 1 and hub.private == {"ann/again"}


def test_a_model_of_truecased_text_goes_there_and_back(hub: FakeHub, tmp_path: Path) -> None:
    subwords = tiny_tokenizer(tmp_path).source.subwords
    cases = {side: learn_truecaser(LINES) for side in ("source", "target")}
    tokenizer = Tokenizer(TextConfig(tokenize="moses", truecase=True), "en", "de", subwords, subwords, truecasers=cases)
    config = validate(ModelConfig, {"preset": "tiny"})
    save_model(tmp_path / "model", build(config, tokenizer), config, tokenizer)
    assert run(["hub", "push", str(tmp_path / "model"), "ann/case"]) == 0
    assert run(["hub", "pull", "ann/case", "pulled"]) == 0
    assert content(Path("pulled"))["tokenizer/source.truecase"]


def test_an_address_is_a_model(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    first = hub.put("ann/world", content(GOLDEN))
    changed = hub.put("ann/world", {**content(GOLDEN), "notes.txt": b"x"})
    line = (MODEL / "source.en").read_bytes().decode().split("\n")[0]
    expected = Translator.from_pretrained(GOLDEN).translate([line])
    assert Translator.from_pretrained("hf://ann/world").translate([line]) == expected
    assert {p.name for p in Path("cache/hub/ann--world").iterdir()} == {changed, ".lock"}
    asked = len(hub.asked)
    assert find_model("hf://ann/world").name == changed and len(hub.asked) == asked, "once a process"
    bridge._fetched.cache_clear()
    assert find_model(Path("hf://ann/world")).name == changed and len(hub.asked) == asked + 1, "only what main means"
    assert find_model(f"hf://ann/world@{first}").name == first
    asked = len(hub.asked)
    bridge._fetched.cache_clear()
    assert find_model(f"hf://ann/world@{first}").name == first and len(hub.asked) == asked, "a commit never changes"
    capsys.readouterr()
    for name, text in (("a.en", line), ("a.de", expected[0].text)):
        Path(name).write_bytes(f"{text}\n".encode())
    outputs = []
    for model in ("hf://ann/world", str(GOLDEN)):
        assert run(["score", model, "a.en", "a.de"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] != ""
    with pytest.raises(UsageError, match="a model on the Hub is not changed; phraseloom hub pull it"):
        change_generation("hf://ann/world", {"beam": 2})
    hub.put("ann/other", {"config.json": b"{}", "source.spm": b"x"})
    with pytest.raises(FileProblem, match=r"hf://ann/other: this is no model of phraseloom .* convert from-marian"):
        Translator.from_pretrained("hf://ann/other")
    for wrong in ("hf://world", "hf://ann/world@", "hf://ann/../world", "hf://a/b/c"):
        with pytest.raises(UsageError, match="owner/name"):
            find_model(wrong)


def test_a_plain_path_never_reaches_the_network(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    Translator.from_pretrained(GOLDEN)
    shutil.copytree(GOLDEN, "hf:/ann/world")
    assert find_model(Path("hf:/ann/world")) == Path("hf:/ann/world"), "a folder that is there"
    for missing in ("ann/world", "hf", "hf:ann/world"):
        with pytest.raises(FileProblem, match="not found"):
            find_model(missing)
    assert hub.asked == []
    code = "import sys, phraseloom.models.store; print([m for m in sys.modules if m.startswith('huggingface_hub')])"
    import subprocess

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_repository_of_others_is_copied_without_its_pickles(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    there = {
        "config.json": b"{}", "source.spm": b"1", "model.safetensors": b"w" * 99, "pytorch_model.bin": b"pickle",
        "onnx/model.json": b"{}", "run.py": b"print()", ".gitattributes": b"",
    }  # fmt: skip
    hub.put("others/opus", there)
    assert run(["hub", "pull", "others/opus", "theirs", "--revision", "main"]) == 0
    out = capsys.readouterr()
    assert "theirs: no model of phraseloom, 3 files" in out.out
    assert out.err == "left on the Hub: onnx/model.json, pytorch_model.bin, run.py\n"
    assert content(Path("theirs")).keys() == {"config.json", "source.spm", "model.safetensors", "export.json"}
    assert run(["hub", "pull", "others/opus", "theirs", "--overwrite"]) == 0
    hub.put("others/opus", {**there, "manifest.json": b"[1]"})
    assert run(["hub", "pull", "others/opus", "with-manifest"]) == 0
    assert content(Path("with-manifest"))["manifest.json"] == b"[1]"
    del there["model.safetensors"]
    hub.put("others/opus", there)
    fails(capsys, "its weights are no safetensors but pytorch_model.bin", "hub", "pull", "others/opus", "other")


def test_a_file_of_the_same_size_with_another_content_is_damaged(
    hub: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.put("others/opus", {"config.json": b'{"a": 1}', "model.safetensors": b"w" * 99})
    hub.change = {"config.json": b'{"a": 2}'}
    fails(capsys, "config.json: the download is damaged", "hub", "pull", "others/opus", "theirs")


def test_who_wants_a_model_that_another_fetches_waits(hub: FakeHub) -> None:
    """Threads in place of processes: the lock is one of open files, and excludes both alike."""
    commit = hub.put("ann/world", content(GOLDEN))
    hub.hold["model.safetensors"] = threading.Event()
    address, place = bridge.HubAddress("ann/world"), Path("cache/hub/ann--world")
    with ThreadPoolExecutor(2) as pool:
        try:
            both = [pool.submit(bridge.fetched, address) for _ in range(2)]
            done = wait(both, timeout=1.0).done  # the download is held, so the second comes upon it
            assert [future.exception() for future in done] == []
            assert place.is_dir() and not (place / commit).exists(), "half a model is not visible"
        finally:
            hub.hold["model.safetensors"].set()
        assert [future.result().name for future in both] == [commit, commit]
    verify_manifest(place / commit)
    assert {p.name for p in place.iterdir()} == {commit, ".lock"}
    assert hub.asked.count(f"GET /ann/world/resolve/{commit}/model.safetensors") == 1


def test_tags_of_the_card_in_the_repository_are_kept(hub: FakeHub) -> None:
    hub.put("ann/world", {"README.md": b"---\ntags: [legal, phraseloom]\n---\n\n# Old\n"})
    shutil.copytree(GOLDEN, "model")
    Path("model/README.md").write_bytes(b"---\ntags:\n- news\n- legal\n---\n\n# New\n")
    write_manifest("model", [name for name in content(Path("model")) if name != "manifest.json"])
    for _ in range(2):
        bridge.push(Path("model"), "ann/world")
        head, _, body = hub.files("ann/world")["README.md"].decode()[4:].partition("\n---\n")
        assert yaml.safe_load(head)["tags"] == ["legal", "phraseloom", "news"] and body == "\n# New\n"


def test_what_others_wrote_into_the_card_is_kept(hub: FakeHub) -> None:
    """Every push replaces what it writes itself: the text above the first section, languages and scores."""
    there = (
        "---\nlicense: mit\ndatasets: [ann/news]\nlanguage: [fr]\nmodel-index: [{name: old}]\n---\n\n# Old\n\n    use it\n\n"
        "## Limits\n\nIt makes mistakes.\n\n## Scores\n\n| BLEU | 1 |\n\n## Thanks\n\nTo all.\n"
    )
    hub.put("ann/world", {"README.md": there.replace("\n", "\r\n").encode()})
    own = (GOLDEN / "README.md").read_bytes().decode()
    kept = "\n## Limits\n\nIt makes mistakes.\n\n## Thanks\n\nTo all.\n"
    score = bridge.HubScore("BLEU", 30.5, SIGNATURE, "test text")
    for scores in ([], [score], []):
        bridge.push(GOLDEN, "ann/world", scores=scores)
        head, _, body = hub.files("ann/world")["README.md"].decode()[4:].partition("\n---\n\n")
        metadata = yaml.safe_load(head)
        assert (metadata["license"], metadata["datasets"], metadata["language"]) == ("mit", ["ann/news"], ["en", "de"])
        assert ("model-index" in metadata) == ("## Scores" in body) == bool(scores)
        assert body.startswith(own) and body.endswith(kept) and "Old" not in body
        assert body.count("## Limits") == body.count("## Thanks") == 1
    bridge.push(GOLDEN, "ann/world", licence="cc0-1.0")
    assert "license: cc0-1.0" in hub.files("ann/world")["README.md"].decode()


def _forged(hub: FakeHub, name: str) -> None:
    Path("forged").mkdir()
    folder = Path("forged/model")
    shutil.copytree(GOLDEN, folder)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["files"][name] = {"bytes": 1, "sha256": "0" * 64}
    hub.put("ann/world", {**content(folder), "manifest.json": json.dumps(manifest).encode(), name: b"x"})


@pytest.mark.parametrize("name", ["weights.bin", "../escape.json", ".hidden.json", "tokenizer/run.pkl", "x.py"])
def test_a_manifest_cannot_ask_for_other_files(hub: FakeHub, capsys: pytest.CaptureFixture[str], name: str) -> None:
    _forged(hub, name)
    fails(capsys, "is not a file of a model, and is not fetched", "hub", "pull", "ann/world", "model")


def test_a_card_edited_on_the_hub_is_no_damage(hub: FakeHub) -> None:
    hub.put("ann/world", {**content(GOLDEN), "README.md": b"# Edited\n"})
    bridge.pull("ann/world", "model")
    verify_manifest("model")
    assert Path("model/README.md").read_bytes() == b"# Edited\n"


def test_half_a_download_leaves_nothing(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.put("ann/world", content(GOLDEN))
    pull = ("hub", "pull", "ann/world", "model")
    for name in ("manifest.json", "model.safetensors", "tokenizer/tokenizer.json"):
        hub.cut = {name: 70}
        fails(capsys, "the Hub was not reached, or its answer was cut", *pull)
        with pytest.raises(FileProblem, match="was cut"):
            find_model("hf://ann/world")
        assert {p.name for p in Path().rglob("*") if p.is_file()} == {".lock"}
        shutil.rmtree("cache")
    hub.cut = {}
    hub.change = {"model.safetensors": b"short"}
    fails(capsys, "model.safetensors: 5 bytes of", *pull)
    weights = content(GOLDEN)["model.safetensors"]
    hub.change = {"model.safetensors": weights[:-1] + bytes([weights[-1] ^ 1])}
    fails(capsys, "model.safetensors: the download is damaged", *pull)
    config = content(GOLDEN)["config.json"]
    hub.change = {"config.json": config[:-2] + b" \n"}
    fails(capsys, "config.json: the download is damaged", *pull)
    hub.change = {}
    hub.put("ann/world", {**content(GOLDEN), "config.json": config[:-2] + b" \n"})
    fails(capsys, "config.json: checksum differs from the manifest", *pull)
    there = content(GOLDEN)
    del there["generation_config.json"]
    hub.put("ann/world", there)
    fails(capsys, "the manifest names generation_config.json, which the repository lacks", *pull)
    hub.put("ann/world", content(GOLDEN))
    hub.cut = {"model.safetensors": 70}
    bridge.push(GOLDEN, "ann/old")
    shutil.copytree(GOLDEN, "model")
    fails(capsys, "was cut", *pull, "--overwrite")
    hub.cut = {}
    assert run([*pull, "--overwrite"]) == 0


def test_what_the_hub_says_is_one_line(
    hub: FakeHub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pull, push = ("hub", "pull", "ann/world", "model"), ("hub", "push", str(GOLDEN), "ann/world")
    fails(capsys, "hf://ann/world: no such repository, or a private one; check the name", *pull)
    hub.put("ann/world", content(GOLDEN))
    fails(capsys, "no such revision", *pull, "--revision", "v9")
    fails(capsys, "'world' does not name a repository of the Hub; owner/name", "hub", "pull", "world", "model", code=2)
    hub.broken = 403
    fails(capsys, "no permission (the Hub answered 403)", *pull)
    hub.broken = 503
    fails(capsys, "the Hub answered 503", *pull)
    hub.broken = None
    monkeypatch.setenv("HF_TOKEN", "of-a-reader")
    fails(capsys, "no permission (the Hub answered 403); log in with `hf auth login`", *push)
    monkeypatch.delenv("HF_TOKEN")
    hub.private.add("ann/world")
    fails(capsys, "no such repository, or a private one", *pull)
    assert not [line for line in hub.asked if "/commit/" in line]


def test_offline(hub: FakeHub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free.getsockname()[1]}")
        fails(capsys, "the Hub was not reached", "hub", "pull", "ann/world", "model")
        fails(capsys, "the Hub was not reached", "hub", "push", str(GOLDEN), "ann/world")
    from huggingface_hub import constants
    from huggingface_hub.utils import close_session

    close_session()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    fails(capsys, "HF_HUB_OFFLINE is set, so nothing is fetched", "hub", "pull", "ann/world", "model")
    fails(capsys, "HF_HUB_OFFLINE is set", "translate", "hf://ann/world")
    close_session()


def test_without_the_extra(hub: FakeHub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    line = "the package huggingface_hub is missing; pip install 'phraseloom[hub]'"
    fails(capsys, line, "hub", "pull", "ann/world", "model", code=2)
    fails(capsys, line, "hub", "push", str(GOLDEN), "ann/world", code=2)
    fails(capsys, line, "translate", "hf://ann/world", code=2)
    assert hub.asked == []


def test_a_damaged_model_is_not_pushed(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(GOLDEN, "model")
    Path("model/config.json").write_bytes(Path("model/config.json").read_bytes() + b" ")
    with pytest.raises(CorruptError, match=r"config\.json"):
        bridge.push(Path("model"), "ann/world")
    assert hub.asked == []


def test_the_scores_of_a_run_stand_in_its_card(hub: FakeHub) -> None:
    checkpoint = Path("run/checkpoints/step_00000020")
    checkpoint.parent.mkdir(parents=True)
    shutil.copytree(GOLDEN, checkpoint)
    (checkpoint / "state.json").write_bytes(b"{}")
    write_manifest(checkpoint, [name for name in content(checkpoint) if name != "manifest.json"])
    Path("run/best").symlink_to("checkpoints/step_00000020")
    records = [
        {"update": 10, "validation": {"perplexity": 9.5, "bleu": 1.0, "signature": "other"}},
        {"update": 20, "loss": 2.0},
        {"update": 20, "validation": {"perplexity": 7.25, "bleu": 31.4159, "signature": SIGNATURE}, "best": True},
    ]
    Path("run/metrics.jsonl").write_bytes(b"".join(json.dumps(r).encode() + b"\n" for r in records))
    assert run(["hub", "push", "run", "ann/scored"]) == 0
    there = hub.files("ann/scored")
    assert "state.json" not in there
    head, _, body = there["README.md"].decode()[4:].partition("\n---\n")
    (result,) = yaml.safe_load(head)["model-index"][0]["results"]
    assert result["metrics"] == [
        {"type": "bleu", "name": "BLEU", "value": 31.4159, "args": {"signature": SIGNATURE}},
        {"type": "perplexity", "name": "perplexity", "value": 7.25},
    ]
    assert f"| BLEU | 31.4159 | `{SIGNATURE}` |\n| perplexity | 7.25 |  |\n" in body
    assert huggingface_hub.ModelCard(there["README.md"].decode()).data.eval_results[0].metric_value == 31.4159
    assert recorded_scores(GOLDEN) == []
