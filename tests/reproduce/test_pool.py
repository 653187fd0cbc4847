"""The mean of a comparison over several stored tables: its estimator, and which tables may be pooled."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from phraseloom.cli.main import run
from phraseloom.errors import UsageError
from phraseloom.metrics.seeds import SeedScores, compare_seeds, mean_of_comparisons, quantile
from phraseloom.reproduce.pool import pool
from phraseloom.reproduce.result import Judge, compare
from phraseloom.reproduce.stored import read_numbers
from phraseloom.reproduce.writing import write

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results" / "small"
TABLES = [RESULTS / "003-multi30k", RESULTS / "003-converged"]


def test_the_variance_of_the_mean_is_that_of_its_parts() -> None:
    """Each system has its own runs; the sentences are shared, so that their noise is added before it is squared."""
    rng = np.random.default_rng(3)
    noise = rng.normal(0, 1, (4, 500))
    scores = [[1.0, 2.0, 4.0], [0.0, 1.0, 3.0, 4.0], [5.0, 7.0], [2.0, 2.5, 2.0]]
    a, b, c, d = (SeedScores(np.array(s), np.array(s)[:, None] + n) for s, n in zip(scores, noise, strict=True))
    found = mean_of_comparisons([(a, b), (c, d)])
    assert found.mean == pytest.approx((compare_seeds(a, b).mean + compare_seeds(c, d).mean) / 2)
    parts = [np.var(s, ddof=1) / len(s) / 4 for s in scores]
    variance = sum(parts) + np.var((noise[0] - noise[1] + noise[2] - noise[3]) / 2, ddof=1)
    freedom = variance**2 / sum(p**2 / (len(s) - 1) for p, s in zip(parts, scores, strict=True))
    assert found.standard_error == pytest.approx(math.sqrt(variance))
    assert found.freedom == pytest.approx(freedom)
    assert found.high == pytest.approx(found.mean + quantile(freedom) * math.sqrt(variance))
    assert found.seeds == 2 and "3 and 4 and 2 and 3 seeds" in found.how
    one = mean_of_comparisons([(a, b)])
    assert (one.mean, one.low, one.p) == (compare_seeds(a, b).mean, compare_seeds(a, b).low, compare_seeds(a, b).p)


def test_tables_of_one_test_set_are_pooled() -> None:
    whole, subset = pool(TABLES, "pconmt", "conmt")
    assert (whole.task, whole.score, subset.score) == ("de-en", "BLEU", "BLEU of the multi-word subset")
    assert list(whole.by_table) == [str(folder) for folder in TABLES]
    differences = [difference for _, _, difference in whole.by_table.values()]
    assert whole.mean.mean == pytest.approx(sum(d.mean for d in differences) / 2)
    assert (whole.mean.standard_error or 0) < min(d.standard_error or 0 for d in differences)
    turned = pool(TABLES, "conmt", "pconmt")[0].mean
    assert turned.mean == pytest.approx(-whole.mean.mean) and turned.p == pytest.approx(whole.mean.p)


def test_rows_with_the_same_models_are_compared_seed_by_seed() -> None:
    folders = [RESULTS / "003-french", RESULTS / "003-french-seeds"]
    whole = pool(folders, "weighed", "pconmt")[0]
    assert whole.score == "BLEU"
    for folder, (_, _, difference) in zip(folders, whole.by_table.values(), strict=True):
        judged = Judge(read_numbers(folder)).rows("fr-en", "bleu", "weighed", "pconmt")
        assert (
            judged is not None
            and difference.low == pytest.approx(judged.low)
            and difference.p == pytest.approx(judged.p)
        )
    assert (whole.mean.p or 1) < 0.01


def test_two_tables_of_one_name_are_two_tables(tmp_path: Path) -> None:
    """Such as those of other seeds, from two machines."""
    for number, seeds in ((1, {1, 2}), (2, {3})):
        folder = shutil.copytree(TABLES[0], tmp_path / str(number) / "003-multi30k")
        result = read_numbers(folder)
        for cell, measured in result.measured.items():
            result.measured[cell] = {seed: value for seed, value in measured.items() if seed in seeds}
        compare(result)
        write(result, folder)
    whole = pool([tmp_path / "1" / "003-multi30k", tmp_path / "2" / "003-multi30k"], "pconmt", "conmt")[0]
    counts = [len(one.scores) for one, _, _ in whole.by_table.values()]
    assert counts == [2, 1] and whole.mean.one_seed
    assert whole.mean.mean == pytest.approx(sum(d.mean for _, _, d in whole.by_table.values()) / 2)


def test_what_cannot_be_pooled(tmp_path: Path) -> None:
    shutil.copytree(TABLES[0], tmp_path / "copy")
    for folders, rows, match in (
        ([TABLES[0], tmp_path / "copy"], ("pconmt", "conmt"), "the tables share a training"),
        (TABLES[:1], ("pconmt", "conmt"), "one table has no mean"),
        (TABLES, ("pconmt", "pconmt"), "compared with another one"),
        (TABLES, ("pconmt", "npmt"), "no row npmt; its rows: attn"),
        ([TABLES[0], RESULTS / "003-tatoeba"], ("pconmt", "conmt"), "no task and score"),
    ):
        with pytest.raises(UsageError, match=match):
            pool(folders, *rows)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    folders = [word for folder in TABLES for word in ("--pool", str(folder))]
    assert run(["reproduce", *folders, "--compare", "pconmt,conmt"]) == 0
    out = capsys.readouterr().out
    mean = pool(TABLES, "pconmt", "conmt")[0].mean
    assert f"{mean.mean:+.2f} ({mean.low:+.2f} … {mean.high:+.2f})" in out and "decides no claim" in out
    assert run(["reproduce", *folders, "--compare", "pconmt"]) == 2
    assert run(["reproduce", *folders]) == 2
    assert run(["reproduce", "--compare", "pconmt,conmt"]) == 2
    assert run(["reproduce", "--evidence", str(RESULTS.parent), "--compare", "pconmt,conmt"]) == 2
    assert run(["reproduce", "--evidence", str(RESULTS.parent), *folders, "--compare", "pconmt,conmt"]) == 2
    assert run(["reproduce", "003-multi30k", *folders, "--compare", "pconmt,conmt"]) == 2
