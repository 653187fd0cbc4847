"""The table files themselves: every table of the papers is there, for every scale, and says what the paper says."""

from __future__ import annotations

import json
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from phraseloom.cli.main import load_verb
from phraseloom.errors import ConfigError, UsageError
from phraseloom.phrases.segmenters import phrase_length
from phraseloom.recipe import load_recipe
from phraseloom.reproduce.claims import Verdict
from phraseloom.reproduce.execute import CONCATENATE
from phraseloom.reproduce.measure import MeasuredValue
from phraseloom.reproduce.result import Judge, Result, paper_result
from phraseloom.reproduce.steps import Step, Steps, StepScope, in_order
from phraseloom.reproduce.stored import read_rows
from phraseloom.reproduce.table import SCALES, TableConfig, load_table, runnable
from phraseloom.reproduce.table_run import TableOptions, counted, open_plan, plan_text

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
TABLES = {
    "000": ("table1", "table2", "table3", "figure2", "language-model", "relative"),
    "001": (
        "table1",
        "table2",
        "table2-times",
        "figure3",
        "figure4",
        "multi30k",
        "long",
        "long-more",
        "long-short",
        "long-dropout",
        "parts",
        "start",
        "glorot",
        "rate",
        "regularised",
        "updates",
        "text",
        "attention",
    ),
    "002": ("table1", "table2", "table3", "table4", "multi30k", "rate", "ladder", "orders", "orders-rate", "layers"),
    "003": (
        "table1",
        "table2",
        "table3",
        "table4",
        "table4-turkish",
        "table5",
        "table6",
        "multi30k",
        "tatoeba",
        "tatoeba-seeds",
        "tatoeba-long",
        "french",
        "french-seeds",
        "converged",
        "annealed",
        "seeds",
        "gate",
        "glorot",
        "ted",
        "rivals",
        "losses",
        "ladder",
        "random",
        "mixed",
        "phrases",
        "npmt",
        "connect",
        "connect-beam",
    ),
    "004": (
        *("table1", "table2", "table3", "table4", "table5", "figure1", "figure2", "recurrent", "starts", "glorot"),
        *("converged", "converged-entropy", "converged-alignment"),
    ),
}
NAMES = [
    *(f"{paper}-{table}" for paper, tables in TABLES.items() for table in tables),
    "guided-alignment",
    "synthetic-data",
]
EVERY = [(name, scale) for name in NAMES for scale in SCALES]


def table(name: str) -> TableConfig:
    return load_table(RECIPES / "tables" / f"{name}.yaml")


def steps_of(name: str, scale: Any, folder: Path) -> list[Step]:
    loaded = table(name)
    steps = Steps(loaded, scale, folder, RECIPES, "root")
    seeds = loaded.scales[scale].seeds[:2]  # further ones differ by their number alone
    return in_order(
        [s for row, task in runnable(loaded, scale) for seed in seeds for s in steps.steps_of(row, task, seed)]
    )


def test_every_table_is_there_and_no_other() -> None:
    assert sorted(p.stem for p in (RECIPES / "tables").glob("*.yaml")) == sorted(NAMES)


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_no_two_trainings_of_a_table_are_the_same_but_for_their_names(name: str, scale: Any, tmp_path: Path) -> None:
    seen: dict[str, str] = {}
    for step in steps_of(name, scale, tmp_path):
        if not step.trains:
            continue
        assert step.recipe is not None
        recipe = load_recipe(step.recipe, list(step.changes)).model_dump(mode="json")
        recipe.pop("name")
        content = json.dumps([recipe, [w for w in step.argv if w.startswith(("data.folder=", "training.seed="))]])
        assert seen.setdefault(content, step.title) == step.title, f"{step.title} trains what {seen[content]} does"


@pytest.mark.parametrize("name", ["002-rate", "002-ladder", "002-orders", "002-orders-rate"])
def test_repetitions_of_a_comparison_have_its_metrics(name: str) -> None:
    """Those of 002-multi30k, with BLEU as the papers have it."""
    here, there = table(name).metrics, table("002-multi30k").metrics
    assert "t2t" in here and {key: here.get(key) for key in there} == there


@pytest.mark.parametrize("name", ["002-rate", "002-ladder", "002-orders", "002-orders-rate"])
@pytest.mark.parametrize("scale", ["tiny", "small"])
def test_the_reference_is_scored_on_the_test_set(name: str, scale: Any, tmp_path: Path) -> None:
    """By the model that translates it, with the sums of each sentence, so that a difference has an interval."""
    metric = table(name).metrics["test_perplexity"]
    assert metric.reads == ["{score}/score.json", "perplexity", "by_sentence.perplexity"]
    steps = steps_of(name, scale, tmp_path)
    for step in (s for s in steps if s.argv[0] == "score"):
        (translation,) = [s for s in steps if s.argv[:2] == ("translate", step.argv[1])]
        assert step.argv[2] == str(translation.stdin[0]) and step.argv[3] != step.argv[2]
    assert sum(s.argv[0] == "score" for s in steps) == sum(s.argv[0] == "translate" for s in steps) > 0


def peak(by_layer: dict[str, float]) -> list[bool | None]:
    """Whether the comparisons of the peak in 002-table3 at scale small agree with an attention by layer."""
    result = Result(table("002-table3"), "002-table3", "small", [1])
    result.measured["en-de", "interleaved", "pp"] = {1: MeasuredValue(by_layer)}
    (wanted,) = [c for c in result.table.claims if c.metric == "pp" and "small" in c.scales]
    return [comparison.agrees for comparison, _ in Judge(result).comparisons(wanted)]


def test_a_peak_is_above_both_sides() -> None:
    """Attention between phrases that falls from layer to layer has no peak in the middle."""
    assert peak({"1": 10, "2": 30, "3": 20}) == [True, True]
    assert peak({"1": 30, "2": 20, "3": 10}) == [False, True]


def test_phrases_are_compared_with_the_big_model_on_the_longest_sentences() -> None:
    found = [(c.more, c.than, c.labels) for c in table("001-figure3").claims if "paper" in c.scales]
    assert (["pr"], ["big"], ["last"]) in found


def test_no_claim_says_more_than_its_comparison() -> None:
    """A row without an encoder that is better than its like makes up for nothing; the row with an encoder is not compared."""
    assert not [c.says for name in NAMES for c in table(name).claims if "makes up for" in c.says]


WIDENED = {
    "000-language-model": [("wide", "12")],
    "000-relative": [("wide-relative", "12-relative")],
    "001-long": [("wide", "pr"), ("wide", "pr-zero")],
    "001-multi30k": [("wide", "pr")],
    "001-parts": [("wide", "pr"), ("wide", "pr-zero")],
    "001-rate": [("wide", "pr")],
    "001-regularised": [("wide", "both")],
    "001-updates": [("wide", "both")],
    "001-text": [("wide", "pr-zero")],
    "002-orders": [("wide-interleaved", "interleaved"), ("wide-123", "123")],
    "002-orders-rate": [("wide-interleaved", "interleaved"), ("wide-123", "123")],
}


@pytest.mark.parametrize("name", WIDENED)
@pytest.mark.parametrize("scale", [pytest.param("tiny", marks=pytest.mark.full), "small"])
def test_a_widened_row_has_the_parameters_of_its_partner(name: str, scale: Any, tmp_path: Path) -> None:
    rows = list(dict.fromkeys(row for pair in WIDENED[name] for row in pair))
    found = counted(open_plan(name, RECIPES, TableOptions(scale=scale, folder=tmp_path, rows=rows, seeds=[1])))
    (task,) = {task for task, _ in found}
    for wide, partner in WIDENED[name]:
        assert found[task, wide] == pytest.approx(found[task, partner], rel=0.015), (wide, partner)


@pytest.mark.parametrize(
    ("name", "other", "rows", "task"),
    [
        ("001-parts", "001-start", ["base", "pr"], "en-de"),
        ("001-parts", "001-attention", ["base", "pr-zero"], "en-de"),
        ("001-parts", "002-rate", ["base", "queryk"], "en-de"),
        ("001-rate", "001-regularised", ["base", "wide", "pr-zero"], "en-de"),
        ("001-long", "001-long-more", ["base", "pr-zero", "queryk", "wide", "big"], "en-de"),
        ("002-rate", "001-attention", ["base", "wide"], "en-de"),
        ("004-converged", "004-converged-entropy", ["transformer", "noenc", "noenc-nopos"], "de-en"),
        ("004-converged", "004-converged-entropy", ["transformer", "noenc", "noenc-nopos"], "en-de"),
    ],
)
def test_tables_that_read_the_same_trainings_share_them(
    name: str, other: str, rows: list[str], task: str, tmp_path: Path
) -> None:
    here, there = (Steps(table(each), "small", tmp_path, RECIPES, "root") for each in (name, other))
    for row in rows:
        place = StepScope(task, row, 1)
        assert here.step("train", place).identity == there.step("train", place).identity, row


@pytest.mark.parametrize(
    ("name", "stored", "rows"),
    [
        ("001-parts", "001-attention", {"base", "pr-zero"}),
        ("001-long-more", "001-long", {"base", "pr-zero"}),
    ],
)
def test_a_stored_table_has_rows_of_another(name: str, stored: str, rows: set[str]) -> None:
    """What `--rows-from` asks for, and that no row of the same name is another model."""
    folder = RECIPES.parent / "docs" / "results" / "small" / stored
    found = read_rows(folder, table(name), name, "small")
    assert {row for (_, row), facts in found.facts.items() if facts} == rows
    assert all(set(facts) == {1, 2, 3} for facts in found.facts.values())


def trained(name: str, scale: Any, folder: Path) -> dict[str, Any]:
    """The recipe of each row of a table with one task, as its training reads it."""
    found = {}
    for step in steps_of(name, scale, folder):
        if step.trains and step.recipe is not None:
            found[step.title.split(" ")[-3]] = load_recipe(step.recipe, list(step.changes))
    return found


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_every_row_of_a_claim_has_its_metric(name: str, scale: Any, tmp_path: Path) -> None:
    """A row that `rows` of a step forgets would have no number, without a reason."""
    loaded = table(name)
    steps, able = Steps(loaded, scale, tmp_path, RECIPES, "root"), set(runnable(loaded, scale))
    for claim in [] if loaded.scales[scale].not_done else loaded.claims:
        metric = loaded.metrics_at(scale).get(claim.metric)
        for row in claim.rows if metric is not None and scale in claim.scales else []:
            for task in claim.tasks or list(loaded.tasks) or [""]:
                if (row, task) in able and task in loaded.tasks_of(row):
                    for text in metric.reads:
                        steps.fill(text, StepScope(task, row, loaded.scales[scale].seeds[0]))


def test_every_row_of_a_table_at_one_rate_has_it(tmp_path: Path) -> None:
    rates = {
        "001-parts": 0.008,
        "001-start": 0.008,
        "001-long-short": 0.008,
        "001-long-dropout": 0.008,
        "002-layers": 0.004,
    }
    for name, rate in rates.items():
        for row, recipe in trained(name, "small", tmp_path).items():
            assert recipe.training.schedule.peak == rate, (name, row)
            assert recipe.training.precision == "bf16"


def test_the_table_of_starts_changes_one_thing_a_row(tmp_path: Path) -> None:
    models = {
        row: recipe.model.model_dump(mode="json") for row, recipe in trained("001-start", "small", tmp_path).items()
    }
    changed = {
        row: [key for key, value in model.items() if value != models["pr" if model["phrases"] else "base"][key]]
        for row, model in models.items()
    }
    assert changed == {
        "base": [],
        "pr": [],
        "base-xavier": ["init"],
        "pr-xavier": ["init"],
        "base-post": ["norm", "embedding_norm"],
        "pr-post": ["norm", "embedding_norm"],
        "pr-no-dropout": ["phrases"],
        "pr-token": ["phrases"],
    }


@pytest.mark.parametrize("scale", ["tiny", "small"])
def test_the_table_of_layers_has_as_many_as_the_paper(scale: Any, tmp_path: Path) -> None:
    (recipe,) = trained("002-layers", scale, tmp_path).values()
    assert recipe.model.encoder.layers == recipe.model.decoder.layers == 6


def test_short_phrases_have_three_tokens_on_long_lines(tmp_path: Path) -> None:
    recipes = trained("001-long-short", "small", tmp_path)
    for row in ("attention-3", "pr-zero-3"):
        segments = recipes[row].model.phrases.segments.model_dump(include={"max_tokens", "min_chunks", "floor"})
        assert {phrase_length(n, **segments) for n in (3, 12, 36, 60)} == {3}, row


def test_rows_with_more_dropout_differ_by_dropout_alone(tmp_path: Path) -> None:
    rows = {row: recipe.model.model_dump() for row, recipe in trained("001-long-dropout", "small", tmp_path).items()}
    for more, less in (("base-25", "base"), ("attention-25", "attention-3")):
        assert rows[more] == {**rows[less], "dropout": 0.25}
    assert rows["wide-25"]["dropout"] == 0.25 and rows["wide-25"]["width"] > rows["base"]["width"]


def test_rows_with_few_rivals_differ_by_them_alone(tmp_path: Path) -> None:
    rows = {row: recipe.model.model_dump() for row, recipe in trained("003-rivals", "small", tmp_path).items()}
    of_rows = {
        "drawn": {"rivals": 2000},
        "frequent": {"rivals": 2000, "frequent_rivals": 2000},
        "words": {"rivals": 500, "frequent_rivals": "words"},
    }
    for row, rivals in of_rows.items():
        output = {**rows["pconmt"]["output"], **rivals}
        assert rows[f"pconmt-{row}"] == {**rows["pconmt"], "output": output}


@pytest.mark.parametrize(
    ("name", "alone", "network"),
    [("001-attention", "attention", "pr-zero"), ("001-long-short", "attention-3", "pr-zero-3")],
)
@pytest.mark.parametrize("scale", ["tiny", "small"])
def test_attention_to_phrases_alone_meets_a_base_with_more_parameters(
    name: str, alone: str, network: str, scale: Any, tmp_path: Path
) -> None:
    found = counted(open_plan(name, RECIPES, TableOptions(scale=scale, folder=tmp_path)))
    sizes = [found["en-de", row] for row in ("base", alone, "wide", network)]
    assert sizes == sorted(set(sizes))


def test_models_that_converge_have_one_rate_but_for_one_row(tmp_path: Path) -> None:
    """0.008 is the best of those tried for the Transformer and for recurrent models; it was not tried for Trans-noEnc."""
    for row, recipe in trained("004-converged", "small", tmp_path).items():
        assert recipe.training.schedule.rate == (0.004 if row == "noenc-rate" else 0.008), row


@pytest.mark.parametrize("scale", ["tiny", "small"])
def test_embeddings_come_from_the_transformer_of_the_same_direction(scale: Any, tmp_path: Path) -> None:
    found = {step.title: step for step in steps_of("004-converged", scale, tmp_path) if step.trains}
    borrowed = [step for step in found.values() if step.place.row in ("fixed", "not-fixed")]
    assert borrowed
    for step in borrowed:
        origin = found[f"train {StepScope(step.place.task, 'transformer', step.place.seed)}"]
        assert step.recipe is not None and origin in step.needs
        recipe = load_recipe(step.recipe, list(step.changes)).model_dump(mode="json")
        embeddings = recipe["training"]["embeddings"]
        assert embeddings["source"] == embeddings["target"] == f"{origin.folder}/run"
        assert embeddings["fixed"] == (step.place.row == "fixed")


def test_the_language_models_are_tested_on_lines_of_their_own(tmp_path: Path) -> None:
    """Training, validation and test take disjoint ranges of a file whose lines are shuffled."""
    ranges = {
        s.title.split()[0]: s.argv[1]
        for s in steps_of("000-language-model", "small", tmp_path)
        if s.argv[0] == CONCATENATE
    }
    assert ranges == {"news_train": "1-9105", "news_valid": "9106-10105", "news_test": "10106-"}


def test_every_file_of_steps_is_used() -> None:
    used = {
        name
        for path in (RECIPES / "tables").rglob("*.yaml")
        for name in re.findall(r"use: (?:steps/)?(\w+\.yaml)", path.read_text())
    }
    assert used == {p.name for p in (RECIPES / "tables" / "steps").glob("*.yaml")}


def test_a_file_of_steps_may_use_another_but_not_itself(tmp_path: Path) -> None:
    shutil.copytree(RECIPES / "tables", tmp_path / "tables")
    steps = tmp_path / "tables" / "steps"
    assert "aligner" in load_table(tmp_path / "tables" / "003-table2.yaml").scales["small"].steps
    (steps / "continuous.yaml").write_bytes(b"use: continuous_tr.yaml\n" + (steps / "continuous.yaml").read_bytes())
    with pytest.raises(ConfigError, match=r"continuous.yaml:1: continuous_tr.yaml uses itself"):
        load_table(tmp_path / "tables" / "003-table2.yaml")


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_every_command_line_is_one(name: str, scale: Any, tmp_path: Path) -> None:
    """The verbs parse what the steps say, every recipe can be read with its changes, and no name is left in braces."""
    config = table(name).scales[scale]
    if config.not_done is not None:
        assert len(config.not_done) > 20
        return
    steps = steps_of(name, scale, tmp_path)
    assert steps
    for step in steps:
        verb, *arguments = step.argv
        if verb != CONCATENATE:
            parse(verb, arguments)
        for word in (*step.argv, *map(str, step.stdin)):
            assert not re.search(r"\{[a-z_0-9@]+\}", word), f"{step.title}: {word}"
        if step.recipe is not None:
            load_recipe(step.recipe, list(step.changes))


command_of = cache(load_verb)


def parse(verb: str, arguments: list[str]) -> None:
    command = command_of(verb)
    if hasattr(command, "commands"):
        with command.make_context(verb, [*arguments], resilient_parsing=True) as context:
            _, command, arguments = command.resolve_command(context, arguments)
    command.make_context(verb, list(arguments))


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_every_number_can_be_measured_from_some_step(name: str, scale: Any, tmp_path: Path) -> None:
    loaded = table(name)
    if loaded.scales[scale].not_done is not None:
        return
    steps = Steps(loaded, scale, tmp_path, RECIPES, "root")
    for key, metric in loaded.metrics_at(scale).items():
        texts = metric.reads
        able = 0
        for row, task in runnable(loaded, scale):
            place = StepScope(task, row, 1)
            try:
                able += all("{" not in steps.fill(text, place) for text in texts)
            except UsageError:  # a step that this row does not have
                continue
        assert able, f"{key}: no row has the steps that it reads"


AVERAGES = {("000", "paper"), ("001", "paper"), ("002", "paper")}  # papers that translate with an average


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_rows_are_judged_by_the_best_checkpoint_unless_the_paper_averages(
    name: str, scale: Any, tmp_path: Path
) -> None:
    steps = steps_of(name, scale, tmp_path)
    averaged = any(word.endswith("/averaged") for step in steps for word in step.argv)
    assert not averaged or (name[:3], scale) in AVERAGES
    for step in steps:
        if step.recipe is not None and (name[:3], scale) not in AVERAGES:
            training = load_recipe(step.recipe, list(step.changes)).training
            assert training.average_last == 0, f"{step.title}: an average that nothing reads"


def paper_verdicts(loaded: TableConfig) -> list[tuple[str, Verdict]]:
    """What the claims would say of the paper's own numbers, exact as they are printed."""
    return [(judged.claim.says, judged.verdict) for judged in Judge(paper_result(loaded, "paper")).verdicts()]


WITHOUT_NUMBERS = {
    "continuous output trains faster than softmax",  # 003-table3 has no speed of a softmax
    "continuous output reaches its best checkpoint sooner than a softmax (our question, not the paper's)",  # nor its time
    "at the rate of 0.008, RNNS2S translates better from Glorot's start than from ours",
    "the longest sentences gain more than the shortest",  # the paper has them in a plot, Figure 3
}
SHOWN_AS_A_PLOT = {
    "000-figure2",
    "001-figure3",
    "001-figure4",
    "004-figure1",
    "004-table2",
    "001-long",
    "001-long-more",
    "002-ladder",
    "002-orders",
    "002-orders-rate",
    "003-npmt",
    "003-connect",
    "003-connect-beam",
    "004-starts",
    "004-converged",
    "004-converged-entropy",
    "guided-alignment",
    "synthetic-data",
}  # the paper tells no numbers to check


@pytest.mark.parametrize("name", NAMES)
def test_the_papers_numbers_bear_out_its_claims(name: str) -> None:
    """A claim that the paper's own numbers do not bear out is one that we have misread."""
    for says, verdict in paper_verdicts(table(name)):
        has_numbers = name not in SHOWN_AS_A_PLOT and says not in WITHOUT_NUMBERS
        assert verdict == ("held" if has_numbers else "not measured"), says


@pytest.mark.parametrize("name", NAMES)
def test_every_table_has_claims_and_every_scale_says_what_it_is(name: str) -> None:
    loaded = table(name)
    for scale, config in loaded.scales.items():
        assert config.says or config.not_done
        assert config.not_done or [c for c in loaded.claims if scale in c.scales], f"{scale}: nothing to check"


@pytest.mark.parametrize("name", NAMES)
def test_every_table_states_what_its_baseline_must_learn(name: str) -> None:
    """But those that compare the speed of training alone. Scale tiny has no floor: it gives no verdict."""
    loaded = table(name)
    costs = all(
        m.kind == "time" or (m.kind == "run" and m.read not in ("perplexity", "bleu")) for m in loaded.metrics.values()
    )
    assert (loaded.floor is None) == costs
    for scale in ("small", "paper"):
        assert loaded.floor is None or loaded.scales[scale].not_done or loaded.floor.bound(scale) is not None


@pytest.mark.parametrize("name", ["000-table1", "001-table2", "004-table4"])
def test_parameters_at_the_papers_scale_are_the_papers(name: str, tmp_path: Path) -> None:
    """Counted from the recipes, within 1 % of what the paper tells (and 3 % where recurrent biases differ)."""
    plan = open_plan(name, RECIPES, TableOptions(scale="paper", folder=tmp_path))
    found = counted(plan)
    told = {
        (task, row): plan.steps.table.paper_of(row, task)["parameters"]
        for task, row in plan.chosen
        if "parameters" in plan.steps.table.paper_of(row, task)
    }
    assert told
    different = {"mean": 1.08, "max-attn": 0.82, "max-attn-ta": 0.82}  # recipes/paper001/README.md says why
    for place, number in told.items():
        assert found[place] / number == pytest.approx(different.get(place[1], 1.0), abs=0.02), place


@pytest.mark.parametrize("scale", SCALES)
def test_the_row_of_shorter_phrases_differs_from_max_in_their_lengths_alone(scale: Any, tmp_path: Path) -> None:
    """+Max with the 8/4/2 of the released plain encoder, beside the 8/6/3 of paper 001's Table 2."""
    trained = {}
    for step in steps_of("001-table2", scale, tmp_path):
        if not step.trains or step.recipe is None:
            continue
        row = step.title.split(" ")[2]
        if row in ("max", "max-842"):
            trained[row] = load_recipe(step.recipe, list(step.changes)).model
    longer, shorter = (trained[row].model_dump(mode="json") for row in ("max", "max-842"))
    lengths = [model["phrases"].pop("segments") for model in (longer, shorter)]
    assert longer == shorter
    fixed = {"kind": "fixed", "max_tokens": 8, "basis": "sentence", "random_start": False}
    assert lengths == [{**fixed, "min_chunks": 6, "floor": 3}, {**fixed, "min_chunks": 4, "floor": 2}]


def test_the_plan_of_the_papers_scale_names_its_assumptions(tmp_path: Path) -> None:
    options = TableOptions(scale="paper", folder=tmp_path, rows=["base"])
    text = plan_text(open_plan("000-table1", RECIPES, options), options)
    assert "63,047,680" in text
    assert (
        "speed (bf16): one A100: 40% of its 312.0 TFLOP/s in bf16, assumed and not measured; the peak is NVIDIA's"
        in text
    )
    assert "tokens per sentence" in text
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_a_scale_says_how_its_rows_are_trained(name: str, tmp_path: Path) -> None:
    """Learning rate, updates and precision, where the text of the scale names them for all rows."""
    says = " ".join((table(name).scales["small"].says or "").split())
    rate, updates = re.search(r"\brate (0\.\d+)", says), re.search(r"(\d+(?:,\d{3})*) updates of", says)
    for row, recipe in trained(name, "small", tmp_path).items():
        training = recipe.training
        if rate is not None and "but for" not in says:
            schedule = training.schedule
            assert getattr(schedule, "rate" if schedule.kind == "plateau" else "peak") == float(rate[1]), row
        if updates is not None:
            assert training.max_updates == int(updates[1].replace(",", "")), row
        for precision in ("fp32", "bf16"):
            assert f"products in {precision}" not in says or training.precision == precision, row
