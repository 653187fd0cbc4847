"""The document of a report and its page: all numbers, all that is lacking, nothing that a text could break."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from phraseloom.metrics.seeds import TWO_SEEDS
from phraseloom.report.run.measured import ScoredOn, score_parts
from phraseloom.report.run.page import overview, report_page
from phraseloom.report.run.parts import Part, ScoresPart, read_part
from phraseloom.report.run.report import NO_MODEL, RunReport, build
from phraseloom.report.run.runs import Missing, OverRuns, SystemFacts, parse_systems, read_system

from .made_runs import make_run
from .test_evaluation import BASE, NEW, OTHER, REFERENCE
from .test_parts import EXAMPLES, TWO_MODELS, write

VOID = {"meta", "br", "hr", "img", "input", "link"}
BAD = '</script><img src=x onerror=alert(1)>&"\x1b[31m'


class Checker(HTMLParser):
    """Every element is closed where it should be; texts, tags and ids are kept."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        self.ids += [str(given["id"])] if "id" in given else []
        self.links += [str(given[k]) for k in ("href", "src") if k in given]
        assert not any(name.startswith("on") for name in given), tag
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def systems_of(*texts: str) -> list[SystemFacts]:
    return [read_system(system) for system in parse_systems(texts)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_run(Path("base"))
    make_run(Path("s1"), seed=1, width=32, perplexities={10: 7.0, 20: 4.0})
    make_run(Path("s2"), seed=2, width=32, perplexities={10: 9.0, 20: 5.0})
    return tmp_path


@pytest.fixture
def document(folder: Path) -> RunReport:
    """Two systems, one of two runs, a third with translations only, and a part of every kind."""
    outputs = {"base": [BASE], "wide": [NEW, OTHER], "elsewhere": [OTHER]}
    parts: list[Part] = [
        *score_parts(outputs, ScoredOn(REFERENCE, REFERENCE, samples=40, subset=("mwt.txt", range(30))))
    ]
    for kind, value in EXAMPLES.items():
        parts.append(read_part("base", write(Path(f"{kind}.json"), value)))
    return build(systems_of("base", "wide=s1,s2"), parts)


def test_the_document_is_plain_and_the_same_twice(document: RunReport, folder: Path) -> None:
    text = json.dumps(document.as_json(), allow_nan=False)
    again = RunReport.model_validate(json.loads(text))
    assert again == document and json.dumps(again.as_json()) == text
    assert report_page(again) == report_page(document)
    assert [s.name for s in document.systems][:3] == ["base", "wide", "elsewhere"]
    assert document.systems[2].runs == []


def test_the_summary_has_the_figures(document: RunReport) -> None:
    base, wide = (s.summary for s in document.systems[:2])
    assert base.valid_perplexity == OverRuns(mean=5.0, deviation=None, values=[5.0])
    assert wide.valid_perplexity is not None and wide.valid_perplexity.mean == 4.5
    assert (wide.scores["BLEU"].deviation or 0) > 0
    assert base.scores["BLEU"].difference is None
    assert base.subset is not None and base.subset.value != base.scores["BLEU"].value


def test_configuration_by_key(document: RunReport) -> None:
    rows = {r.key: r for r in document.configuration}
    assert (rows["model.width"].values, rows["model.width"].same) == (["16", "32"], False)
    assert rows["training.seed"].values == ["1", "1, 2"]
    assert rows["model.output.kind"].same
    assert rows["data.train.0.source"].values == ["train.de.gz", "train.de.gz"]


def test_every_section_and_number_is_on_the_page(document: RunReport) -> None:
    html = report_page(document)
    page = Checker(html)
    text = "".join(page.texts)
    titles = re.findall(r"<h2>(.*?)</h2>", html)
    for part in document.parts:
        assert any(part.kind in anchor for anchor in page.ids), part.kind
    for start in ("Overview", "Learning curves", "Translation quality: test", "Some lines alone: mwt.txt", "Fertility"):
        assert any(title.startswith(start) for title in titles), start
    for part in document.parts[:2]:
        assert isinstance(part, ScoresPart)
        for system in part.systems:
            for entry in system.scores.values():
                assert f"{entry.value:.2f}" in text
                assert f"{entry.low:.2f} … {entry.high:.2f}" in text
    assert "nrefs:1|case:mixed|eff:no|tok:13a" in text
    assert len(page.ids) == len(set(page.ids))
    assert {f"#{i}" for i in page.ids} >= {link for link in page.links if link.startswith("#")}


def test_two_runs_are_no_verdict(folder: Path) -> None:
    """Said in the overview and with the scores; not if a comparison has one run or three."""
    for runs, times in ((1, 0), (2, 2), (3, 0)):
        outputs = {"base": [BASE, NEW, OTHER], "wide": [NEW, OTHER, BASE][:runs]}
        parts = score_parts(outputs, ScoredOn(REFERENCE, samples=40))
        assert report_page(build(systems_of("base", "wide=s1,s2"), parts)).count(TWO_SEEDS) == times


@pytest.mark.parametrize(("lines", "said"), [(5, True), (30, False)])
def test_intervals_of_few_sentences_are_no_evidence(folder: Path, lines: int, said: bool) -> None:
    outputs = {name: [text[:lines]] for name, text in (("base", BASE), ("wide", NEW))}
    [part] = score_parts(outputs, ScoredOn(REFERENCE[:lines], samples=40))
    page = report_page(build(systems_of("base", "wide=s1"), [part]))
    assert ("too small to mean anything" in page) == said


def test_the_name_of_a_metric_in_an_added_file_is_text(folder: Path) -> None:
    """`--add` takes the JSON of anybody."""
    outputs = {"base": [BASE], "wide": [NEW]}
    (part,) = score_parts(outputs, ScoredOn(REFERENCE, REFERENCE, samples=40))
    assert part.by_length is not None
    named = part.model_copy(update={"by_length": part.by_length.model_copy(update={"metric": BAD})})
    html = report_page(build(systems_of("base", "wide=s1,s2"), [named]))
    assert "by source length" in html and "<img" not in html


def test_the_page_fetches_nothing(document: RunReport) -> None:
    html = report_page(document)
    assert all(link.startswith("#") for link in Checker(html).links)
    assert "default-src 'none'" in html
    assert not re.findall(r"https?://|@import|url\(", html)


def test_what_is_lacking_is_said(folder: Path) -> None:
    make_run(Path("new"), perplexities={}, losses={}, timed=False)
    document = build(systems_of("base", "new"), lacks=[Missing(system="base", what="attention entropy", why="none")])
    said = {(lack.system, lack.what) for lack in document.lacks}
    assert {("new", "learning curves"), ("new", "model"), ("base", "validation BLEU"), (None, "test scores")} <= said
    assert (None, "attention entropy") not in said
    assert ("base", "wall time") not in said
    html = report_page(document)
    for lack in document.lacks:
        assert lack.what in html
        assert lack.why.split(";")[0] in html


def test_a_single_validation_is_marked_and_said(folder: Path) -> None:
    make_run(Path("short"), perplexities={10: 7.0})
    document = build(systems_of("short"))
    assert ("short", "a validation curve") in {(lack.system, lack.what) for lack in document.lacks}
    assert "a validation curve" not in {lack.what for lack in build(systems_of("base")).lacks}
    figure = (
        report_page(document).partition("<figcaption>Validation perplexity</figcaption>")[2].partition("</figure>")[0]
    )
    assert figure.count('class="mark"') == 1 and "update 10: 7.000" in figure


def test_a_language_model_has_no_bleu(folder: Path) -> None:
    (system,) = systems_of("base")
    model = system.runs[0].model_copy(update={"task": "language_model"})
    assert "validation BLEU" not in {lack.what for lack in build([system.model_copy(update={"runs": [model]})]).lacks}


def test_what_makes_runs_hard_to_compare(folder: Path) -> None:
    make_run(Path("other"), output="continuous", data="cd" * 32)
    make_run(Path("again"), seed=1)
    assert build(systems_of("wide=s1,s2", "base")).warnings == []
    (said,) = build(systems_of("mixed=base,s2")).warnings
    assert said.startswith("The runs of mixed differ in more than their seed (model.width)")
    (said,) = build(systems_of("same=base,again")).warnings
    assert "have the same seed" in said
    two = build(systems_of("base", "other")).warnings
    assert ["dataset" in two[0], "kind of output" in two[1]] == [True, True]
    html = report_page(build(systems_of("base", "other")))
    assert "Training loss; pale: validation (softmax output)" in html
    assert "Training loss (continuous output)" in html


def test_files_of_other_verbs_find_their_system(folder: Path) -> None:
    value = json.loads(json.dumps(EXAMPLES["entropy"]))
    value["systems"][0]["model"] = "base"
    value["systems"].append({**value["systems"][0], "model": "s1"})
    value["systems"].append({**value["systems"][0], "model": "stranger"})
    part = read_part("mine", write(Path("e.json"), value))
    document = build(systems_of("first=base", "wide=s1"), [part])
    assert [s.name for s in document.parts[0].systems] == ["first", "wide", "stranger"]
    assert [s.name for s in document.systems] == ["first", "wide", "stranger"]


def test_figures_of_other_test_sets_are_not_in_one_column(folder: Path) -> None:
    """Two files of each kind; the systems of the second have no such figure in the overview, nor a p."""
    parts: list[Part] = []
    for year in ("16", "17"):
        outputs = {f"t{year}.base": [BASE], f"t{year}.new": [NEW]}
        parts += score_parts(outputs, ScoredOn(REFERENCE, REFERENCE, samples=40, subset=("mwt.txt", range(30))))
        for kind in ("contrastive", "alignment"):
            value = json.loads(json.dumps(EXAMPLES[kind]).replace('"m"', f'"t{year}.base"'))
            parts.append(read_part(year, write(Path(f"{kind}{year}.json"), value)))
    document = build(systems_of("base"), parts)
    summaries = {s.name: s.summary for s in document.systems}
    first, second = summaries["t16.base"], summaries["t17.base"]
    assert summaries["t16.new"].scores["BLEU"].p is not None
    assert first.scores and first.subset and first.contrastive and first.alignment
    for summary in (second, summaries["t17.new"]):
        assert (summary.scores, summary.subset, summary.contrastive, summary.alignment) == ({}, None, None, None)
    html = overview(document)
    assert "p vs. t16.base" in html and "all of its first section" in html
    row = next(row for row in html.split("<tr") if "t17.new" in row)
    texts = Checker(f"<table><tr{row.split('</tr>')[0]}</tr></table>").texts
    assert set(texts) == {"t17.new", "–"}


def test_texts_cannot_break_the_page(folder: Path) -> None:
    value = json.loads(json.dumps(EXAMPLES).replace('"m"', json.dumps(BAD)))
    parts = [read_part(BAD, write(Path(f"{kind}.json"), one)) for kind, one in value.items()]
    systems = [system.model_copy(update={"name": BAD}) for system in systems_of("base")]
    lacks = [Missing(system=BAD, what=BAD, why=BAD)]
    document = build(systems, parts, title=BAD, lacks=lacks, about={BAD: BAD})
    html = report_page(document)
    page = Checker(html)
    assert "img" not in page.tags
    assert page.tags.count("script") == 1
    assert "\x1b" not in html


def test_one_bare_run_makes_a_page(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "bare", perplexities={}, losses={}, timed=False)
    page = Checker(report_page(build(systems_of(str(folder)))))
    assert "lacks" in page.ids
    assert "curves" not in page.ids


def test_what_is_cut_and_what_is_near(folder: Path) -> None:
    """The numbers of segments, source phrases and neighbours, as a reader sees them."""
    parts = [read_part("base", write(Path(f"{k}.json"), EXAMPLES[k])) for k in ("segments", "source_phrases")]
    many = {**TWO_MODELS, "tokens": [{**TWO_MODELS["tokens"][0], "piece": f"p{n}"} for n in range(25)]}
    parts.append(read_part("near", write(Path("near.json"), many)))
    html = report_page(build(systems_of("base"), parts))
    text = " ".join(Checker(html).texts)
    assert "1 sentence, given translations, forced; 2 left out" in text
    assert "base: 6 and more 12.5 %" in text  # one source subword of eight wrote seven
    assert "15.0 … 85.0" in text and "idiom: one segment" not in text
    assert "1 sentence; 3 phrases" in text
    assert "decoder layer 1: level 1 75.0 %" in text
    assert re.search(r"80\.0\s+50\.0", text)  # the greatest weight, and that of equal ones
    assert (
        "Overlap: 0.500 of 2 neighbours are the same, by chance 0.04. Cosines of 1 pair of tokens: Pearson 0.900."
        in text
    )
    assert "b 0.75, *c 0.50" in text and "b 0.50, *d 0.25" in text
    assert "All 25 tokens" in text and text.count("p24") == 1 and text.count("p19") == 2


def test_the_format_is_on_its_page(document: RunReport) -> None:
    """docs/file_formats.md names every key of the document, of a system, and every kind of part."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "file_formats.md").read_bytes().decode()
    told = set(re.findall(r"\w+", page[page.index("\n## Report\n") : page.index("\n## Table\n")]))
    value = document.as_json()
    keys = {*value, *value["systems"][0], *value["configuration"][0], *value["lacks"][0]}
    for part in value["parts"]:
        keys |= {part["kind"], *part["systems"][0]}
    assert keys | {"speed"} <= told, keys - told


def reasons(document: RunReport) -> dict[str, str]:
    """What is lacking, with the reason."""
    return {lack.what: lack.why for lack in document.lacks}


def with_bleu(folder: Path, every: int, updates: tuple[int, ...]) -> Path:
    """The run with BLEU at these updates, asked for every so many validations."""
    config = (folder / "config.yaml").read_text().replace("bleu_every: 0", f"bleu_every: {every}")
    (folder / "config.yaml").write_text(config)
    with (folder / "metrics.jsonl").open("a") as log:
        log.writelines(json.dumps({"update": u, "validation": {"bleu": 9.0}}) + "\n" for u in updates)
    return folder


def test_why_there_is_no_bleu(folder: Path) -> None:
    """Not asked for, not yet, or at other updates in each run."""
    assert "training.bleu_every: 0" in reasons(build(systems_of("base")))["validation BLEU"]
    with_bleu(Path("base"), 5, ())
    why = reasons(build(systems_of("base")))["validation BLEU"]
    assert why == "no validation had BLEU yet (training.bleu_every: 5)"
    with_bleu(Path("s1"), 2, (10,)), with_bleu(Path("s2"), 2, (20,))
    why = reasons(build(systems_of("wide=s1,s2")))["validation BLEU"]
    assert why == "its runs have no update in common"


def test_why_curves_are_not_there(folder: Path) -> None:
    """No update yet, no finite value, or no update that all runs have."""
    make_run(Path("new"), perplexities={}, losses={}, timed=False)
    make_run(Path("broken"), perplexities={}, losses={1: float("nan"), 2: float("inf")})
    make_run(Path("even"), perplexities={2: 9.0}, losses={2: 1.0})
    make_run(Path("odd"), seed=2, perplexities={3: 9.0}, losses={3: 1.0})
    assert "no update" in reasons(build(systems_of("new")))["learning curves"]
    assert "finite" in reasons(build(systems_of("broken")))["learning curves"]
    assert "no update in common" in reasons(build(systems_of("both=even,odd")))["learning curves"]
    make_run(Path("unvalidated"), perplexities={})
    make_run(Path("infinite"), perplexities={10: float("inf")})
    make_run(Path("elsewhere"), perplexities={5: 9.0})
    assert "no validation" in reasons(build(systems_of("unvalidated")))["validation"]
    assert "finite" in reasons(build(systems_of("infinite")))["validation"]
    assert "no update in common" in reasons(build(systems_of("both=base,elsewhere")))["validation"]


def test_why_a_validation_curve_has_one_point(folder: Path) -> None:
    make_run(Path("short"), perplexities={10: 7.0})
    make_run(Path("broken"), perplexities={10: 7.0, 20: float("inf")})
    make_run(Path("later"), perplexities={20: 7.0, 30: 6.0})
    with_bleu(Path("base"), 2, (20,))
    whys = {
        "short": "only one validation was run",
        "broken": "only one validation has a finite perplexity",
        "both=s1,later": "its runs have only one validated update in common",
        "base": "only one validation had BLEU",
    }
    for text, why in whys.items():
        assert reasons(build(systems_of(text)))["a validation curve"] == f"{why}: the chart has a single marker"


def test_the_run_without_times_is_named(folder: Path) -> None:
    make_run(Path("untimed"), timed=False)
    why = reasons(build(systems_of("both=base,untimed")))["wall time"]
    assert why == "untimed: timing.jsonl is missing or has no time"


def able(system: SystemFacts, task: str | None = None) -> SystemFacts:
    """The system with a checkpoint in each run, and a task."""
    runs = [run.model_copy(update={"has_model": True, "task": task}) for run in system.runs]
    return system.model_copy(update={"runs": runs})


def test_why_nothing_was_measured(folder: Path) -> None:
    """Only the options that were not given are named, and none where no model can translate."""
    (base,) = systems_of("base")
    given = {"--test-source", "--reference"}
    found = reasons(build([able(base)], options={"--test-source"}))
    assert found["test scores"] == found["attention entropy"] == "not measured; give --reference"
    assert found["alignment error rate"] == "not measured; give --reference and --gold"
    assert (
        reasons(build([able(base)]))["test scores"] == "not measured; give --reference and --test-source or --outputs"
    )
    assert reasons(build([able(base)], options={"--reference", "--outputs"}))["speed of translation"].startswith(
        "not measured; give --test-source without --outputs"
    )
    for system in (base, able(base, "language_model")):
        found = reasons(build([system], options=given))
        assert {found[what] for what in ("attention entropy", "speed of translation", "contrastive accuracy")} == {
            NO_MODEL
        }
        assert found["test scores"] == f"{NO_MODEL}; give --outputs"
    lacks = [Missing(system="base", what="translation", why="there are no trees")]
    found = reasons(build([able(base)], lacks=lacks, options=given))
    assert "test scores" not in found and "speed of translation" not in found


def test_systems_without_a_run_lack_everything_else(document: RunReport) -> None:
    (why,) = (lack.why for lack in document.lacks if lack.system == "elsewhere")
    assert why == "no run or model folder of it was given"


def test_the_header_names_the_base_that_was_used(folder: Path) -> None:
    """The first system with translations; of added results, their own. Nothing where nothing is compared."""

    def lead(*parts: Part) -> str:
        return report_page(build(systems_of("base", "s1", "s2"), parts)).partition("<p")[2].partition("</p>")[0]

    assert "comparisons" not in lead()
    (second,) = score_parts({"s1": [BASE], "s2": [NEW]}, ScoredOn(REFERENCE, samples=40))
    (alone,) = score_parts({"s1": [BASE]}, ScoredOn(REFERENCE, samples=40))
    (other,) = score_parts({"old": [BASE], "s2": [NEW]}, ScoredOn(REFERENCE, samples=40))
    assert "comparisons" not in lead(alone)
    assert "; the base of comparisons is s1." in lead(second)
    assert "different bases of comparisons: s1, old." in lead(second, other)


def test_a_path_finds_its_system_however_it_is_written(folder: Path) -> None:
    """`out.de` of --outputs is `./out.de` or an absolute path in the JSON of `evaluate`; the same for run folders."""
    (base, other) = systems_of("first=base", "s1=./s2")
    base = base.model_copy(update={"outputs": ["out.de"]})
    texts = {"./out.de": "first", str(folder / "out.de"): "first", str(folder / "base"): "first", "base/": "first"}
    texts |= {"s1/../s2": "s1", "s1": "s1", "nul\0": "nul\0", "out": "out"}
    for text, name in texts.items():
        (part,) = score_parts({text: [BASE]}, ScoredOn(REFERENCE, samples=0))
        assert [s.name for s in build([base, other], [part]).parts[0].systems] == [name], text
