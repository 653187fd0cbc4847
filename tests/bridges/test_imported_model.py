"""An imported model is a model like ours: the commands that take a model, fine-tuning, and n-grams grafted onto it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.bridges import marian
from tests.cli.test_serve import serving
from tests.helpers import run_records, training_in_this_process
from tests.serving.harness import call

from phraseloom.bridges.from_marian import import_marian
from phraseloom.cli.main import run
from phraseloom.decoding.translator import Translator
from phraseloom.models.store import load_model
from phraseloom.world.sampling import distinct_pairs

pytest.importorskip("transformers", reason=marian.REASON)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
PAIRS = list(distinct_pairs(7, "test", 30))


@pytest.fixture(scope="module", autouse=True)
def _one_process() -> Iterator[None]:
    with training_in_this_process():
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The imported model `imported`, and beside it s, t and gold links of the built-in world."""
    folder = tmp_path_factory.mktemp("imported")
    import_marian(marian.write_folder(folder / "theirs"), folder / "imported")
    texts = {
        "s": [" ".join(p.source) for p in PAIRS],
        "t": [" ".join(p.target) for p in PAIRS],
        "gold": [" ".join(f"{s}-{t}" for s, t in p.alignment) for p in PAIRS],
    }
    for name, lines in texts.items():
        (folder / name).write_bytes("".join(f"{line}\n" for line in lines).encode())
    return folder


@pytest.fixture
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place)
    return place


FILES = ("-s", "s", "-t", "t")


def test_align_chooses_its_settings_on_gold_links(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["align", "imported", *FILES, "--select", "auto", "--gold", "gold"]) == 0
    table = capsys.readouterr().out.split("\n")
    assert table[0].startswith("30 sentences, ") and "AER" in table[2]
    best = [float(row.split()[3]) for row in table[4:-3]]
    assert best == sorted(best) and 0 < best[0] < 100
    assert run(["align", "imported", *FILES, "-o", "links"]) == 0
    assert run(["align", "evaluate", "--gold", "gold", "links"]) == 0
    assert f"{best[0]:.2f}" in capsys.readouterr().out, "the remembered settings give the AER that was shown"


def test_explain_writes_its_page(here: Path) -> None:
    assert (
        run(
            [
                "explain",
                "imported",
                "-s",
                "s",
                "--reference",
                "t",
                "--max-sentences",
                "2",
                "-o",
                "page.html",
                "--json",
                "x.json",
            ]
        )
        == 0
    )
    document = json.loads(Path("x.json").read_bytes())
    assert Path("page.html").stat().st_size > 10_000
    assert PAIRS[0].source[0] in json.dumps(document)


def test_analyse_entropy_has_a_row_for_each_layer(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyse", "entropy", "imported", *FILES, "--json", "entropy.json"]) == 0
    table = [line.split() for line in capsys.readouterr().out.split("\n")]
    assert table[0] == ["model", "steps", "1", "2", "all", "uniform"] and table[2][0] == "imported"
    assert all(0 < float(value) < float(table[2][-1]) for value in table[2][2:-1])
    assert "NaN" not in Path("entropy.json").read_bytes().decode()


def test_serve_translates_as_the_command_does(here: Path) -> None:
    expected = Translator.from_pretrained("imported").translate([" ".join(PAIRS[0].source)])[0].text
    with serving("imported") as (_, port, _):
        status, reply = call(port, "POST", "/translate", {"text": " ".join(PAIRS[0].source)})[:2]
    assert status == 200 and expected in json.dumps(reply, ensure_ascii=False)


def recipe(place: Path, **model: Any) -> dict[str, Any]:
    """Continue the imported model on the pairs of the world, with its own subwords."""
    own = json.loads((place / "imported/config.json").read_bytes())["model"]
    pairs = {split: [{"source": "s", "target": "t"}] for split in ("train", "valid")}
    data = {
        "folder": "dataset",
        "source_language": "en",
        "target_language": "de",
        "processes": 1,
        "tokenizer": "imported",
    }
    training = {
        "start_from": "imported", "batch_tokens": 300, "max_updates": 6, "checkpoint_every": 3, "processes": 1,
        "schedule": {"kind": "inverse_sqrt_peak", "peak": 0.003, "warmup": 2},
    }  # fmt: skip
    return {"format": 1, "name": "tuned", "data": {**data, **pairs}, "model": {**own, **model}, "training": training}


def test_fine_tuning_and_grafting(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both runs start with the perplexity of the imported model, to the last bits of float32, and lower it."""
    starts = []
    for name, model in (("plain", {}), ("grafted", {"attention": "queryk heterogeneous 1-2 gated"})):
        Path(f"{name}.yaml").write_text(yaml.safe_dump(recipe(here, **model)))
        if name == "plain":
            assert run(["prepare", "plain.yaml"]) == 0, capsys.readouterr().err
        assert run(["train", f"{name}.yaml", "--run", name]) == 0, capsys.readouterr().err
        log = Path(name, "train.log").read_text()
        assert ("grafted   " in log) is (name == "grafted")
        records = run_records(Path(name))
        perplexities = [r["validation"]["perplexity"] for r in records if "validation" in r]
        assert perplexities[-1] < perplexities[0]
        starts.append(perplexities[0])
        assert Translator.from_pretrained(name).translate([" ".join(PAIRS[0].source)])[0].tokens
    assert starts[1] == pytest.approx(starts[0], rel=1e-5)
    model = load_model("grafted")[0]
    gates = [p for n, p in model.named_parameters() if n.endswith("gate")]
    assert gates and all(bool(gate.abs().sum() > 0) for gate in gates)
