"""A run whose validation text has a line far beyond what the model takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import phraseloom, write_text

from phraseloom.recipe import load_recipe
from phraseloom.training import run as runs
from phraseloom.training.distributed import World
from phraseloom.training.signals import StopSignal


def test_validation_is_bounded_by_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path)
    for side, word in (("en", "dog "), ("de", "hund ")):
        with (tmp_path / f"valid.{side}").open("a") as file:
            file.write(word * 12_000 + "\n")
    done = phraseloom("prepare", "recipe.yaml", cwd=tmp_path)
    assert done.returncode == 0 and b"valid has 1 pair of more than 1,024 subwords" in done.stdout + done.stderr
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe("recipe.yaml")
    dataset = runs.open_dataset(recipe)
    assert dataset.split("valid").target_lengths.max() > 10_000
    (tmp_path / "run").mkdir()
    with StopSignal() as stop:
        job = runs.make_job(recipe, dataset, tmp_path / "run", World(), stop)
        lengths = job.validate.lengths  # type: ignore[union-attr]
        assert max(side.max() for side in lengths) == 1024
        batch = job.validate.batch_of(np.array([int(np.argmax(lengths[0]))]))  # type: ignore[union-attr]
        assert batch.source_BS.shape[1] == batch.target_in_BT.shape[1] == 1025
        assert job.validate(job)["tokens"] > 1024  # type: ignore[misc]
        job.close()
