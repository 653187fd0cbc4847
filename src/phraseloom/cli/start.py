"""Print how well a new model of a recipe separates tokens, without data:

    python -m phraseloom.cli.start RECIPE [key=value …] [--rows 8000] [--seed 1]

`--rows` is the size of both vocabularies, on which the start of embeddings depends unless it is normal.
"""

from __future__ import annotations

import argparse
import sys

from phraseloom.errors import PhraseloomError


def line(recipe_path: str, overrides: list[str], *, rows: int, seed: int) -> str:
    """The measurements of a new model and, if it is collapsed, in which parts. Raises ConfigError, ModelError."""
    import torch

    from phraseloom.models.build import build_language_model, build_model
    from phraseloom.recipe import LanguageModelRecipe, load_recipe
    from phraseloom.training.start import measure_start

    recipe = load_recipe(recipe_path, overrides)
    torch.manual_seed(seed)
    if isinstance(recipe, LanguageModelRecipe):
        model = build_language_model(recipe.model, rows)
    else:
        model = build_model(recipe.model, rows, rows)
    report = measure_start(model, source_size=rows, target_size=rows)
    return f"{report}; collapsed: {', '.join(report.collapsed) or 'nothing'}"


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0, or 1 for a recipe that cannot be built."""
    parser = argparse.ArgumentParser(prog="python -m phraseloom.cli.start", description=__doc__.split("\n")[0])
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_intermixed_args(arguments)
    try:
        print(line(options.recipe, options.overrides, rows=options.rows, seed=options.seed))
    except PhraseloomError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
