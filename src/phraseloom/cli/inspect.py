"""`phraseloom inspect`: what a folder holds, and whether it is whole; or the model that a recipe makes, before any data."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phraseloom.cli.options import Overrides, ReportForm, check_form
from phraseloom.cli.streams import first_sign
from phraseloom.errors import UsageError

if TYPE_CHECKING:
    from phraseloom.recipe import AnyRecipe

YAML = (".yaml", ".yml")


def command(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A model, checkpoint, run or dataset folder, or a recipe (.yaml).")
    ],
    overrides: Overrides = None,
    depth: Annotated[
        int, typer.Option(metavar="N", min=1, help="Group parameters by this many parts of their names.")
    ] = 1,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Skip the checksums, which need every file to be read; of a recipe, skip the measurement of its start.",
        ),
    ] = False,
    rows: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=8,
            help="Of a recipe: the size of both vocabularies. Default: that of its dataset, else what the recipe asks for.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Of a recipe: the seed of its new model. Default: 1.")
    ] = None,
    output: ReportForm = "text",
) -> int:
    """Describe a model, dataset or run folder, and check that it is complete; or describe the model of a recipe.

    Models: languages, configuration, vocabularies, parameters by part. Runs: progress, validations, checkpoints.
    Datasets: pairs kept and left out, sentence lengths. The exit code is 1 if something is damaged.

    Recipes (with KEY=VALUE as for train): the resolved model, its parameters, and how well it separates tokens before
    its first update (docs/training.md). No data are needed.
    """
    from phraseloom.report.run.description import render

    check_form(output)
    if Path(path).suffix in YAML and not Path(path).is_dir():
        start = None if quick else 1 if seed is None else seed
        found = describe_recipe(path, overrides or [], rows=rows, depth=depth, seed=start)
    else:
        from phraseloom.report.run.folders import describe

        found = describe(path, verify=not quick, depth=depth)
        given = {"KEY=VALUE": bool(overrides), "--rows": rows is not None, "--seed": seed is not None}
        if any(given.values()):
            option = next(name for name, is_given in given.items() if is_given)
            raise UsageError(f"{option} is for a recipe (.yaml); {path} is a {found['kind']} folder")
    print(json.dumps(found, ensure_ascii=False) + "\n" if output == "json" else render(found), end="")
    return 1 if found["problems"] else 0


def describe_recipe(
    path: str, overrides: list[str], *, rows: int | None = None, depth: int = 1, seed: int | None = None
) -> dict[str, Any]:
    """The model of a recipe, its parameters and its start as plain data. Raises ConfigError, ModelError.

    `rows`: the size of both vocabularies. `seed`: of the new model, whose start is measured; None: nothing is built.
    """
    from phraseloom.recipe import Recipe, find_recipe, load_recipe
    from phraseloom.report.run.folders import parts
    from phraseloom.reproduce.plan import parameter_sizes

    recipe = load_recipe(path, overrides)
    first_sign("inspect", f"{recipe.name}: building the model")
    source, target, origin = _vocabularies(recipe, rows)
    sizes = parameter_sizes(recipe, source, target)
    data, of_pairs = recipe.data, isinstance(recipe, Recipe)
    languages = {"source": data.source_language, "target": data.target_language}
    of_sides = {"source": source, "target": target}
    return {
        "kind": "recipe",
        "file": str(find_recipe(path)),
        "name": recipe.name,
        "task": recipe.task,
        "languages": languages if of_pairs else {"text": data.target_language},
        "vocabularies": {"sizes": of_sides if of_pairs else {"text": target}, "from": origin},
        "model": recipe.model.model_dump(mode="json"),
        "parameters": sum(size for _, size in sizes),
        "parts": parts(sorted(sizes), depth),
        "start": None if seed is None else _start(recipe, source, target, seed),
        "problems": [],
        "checksums": None,
    }


def _vocabularies(recipe: AnyRecipe, rows: int | None) -> tuple[int, int, str]:
    """The vocabulary size of each side, and where it is from."""
    from phraseloom.reproduce.plan import dataset_sizes, vocabularies
    from phraseloom.reproduce.table import ScaleConfig

    if rows is not None:
        return rows, rows, "--rows"
    remarks: list[str] = []
    subwords: Any = recipe.data.subwords
    asked = ScaleConfig(vocabulary=getattr(subwords, "merges", 0) or None)
    source, target = vocabularies(recipe, asked, remarks)
    origin = "as the recipe asks; there is no dataset yet"
    if dataset_sizes(recipe) is not None:
        origin = f"of the dataset {recipe.data.folder}"
    elif recipe.data.tokenizer is not None:
        origin = f"assumed; {recipe.data.tokenizer} is not read"
    return source, target, origin


def _start(recipe: AnyRecipe, source: int, target: int, seed: int) -> dict[str, Any]:
    """The measurements of a new model (training/start.py)."""
    import torch

    from phraseloom.reproduce.plan import new_model
    from phraseloom.training.guard import naming_memory
    from phraseloom.training.start import measure_start

    def unit_vectors(size: int, width: int) -> torch.Tensor:
        return torch.nn.functional.normalize(torch.randn(size, width), dim=-1)

    torch.manual_seed(seed)
    with naming_memory("while the model was built", "--quick counts its parameters without building it"):
        model = new_model(recipe, source, target, vectors=unit_vectors)
        report = measure_start(model, source_size=source, target_size=target)
    measured = {
        name: {key: _finite(getattr(part, key)) for key in ("separation", "signal", "spread")}
        for name, part in report.parts.items()
    }
    return {"parts": measured, "collapsed": report.collapsed, "text": str(report)}


def _finite(number: float | None) -> float | None:
    """`number`; None if JSON has no such number (a signal without noise)."""
    return number if number is not None and math.isfinite(number) else None
