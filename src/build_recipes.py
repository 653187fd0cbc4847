"""The recipes inside the wheel, as `phraseloom/recipes` (pyproject.toml, `tool.setuptools.cmdclass`)."""

import shutil
from pathlib import Path

from setuptools.command.build_py import build_py

RECIPES = Path(__file__).resolve().parents[1] / "recipes"


class BuildPy(build_py):
    """The package and a copy of recipes/; an editable installation reads those of the checkout."""

    def run(self) -> None:
        """Build, then copy in place of the recipes of an earlier build."""
        super().run()
        if not self.editable_mode:
            copied = Path(self.build_lib) / "phraseloom" / "recipes"
            if copied.is_dir():
                shutil.rmtree(copied)
            shutil.copytree(RECIPES, copied)
