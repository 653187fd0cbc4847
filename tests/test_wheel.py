"""What the wheel holds, without building one: the command of setuptools copies the package, its assets and the recipes."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import phraseloom
from phraseloom import recipe
from tests.lowest import constraints

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_bytes().decode())["project"]
BUILD = """
import runpy, sys
sys.argv = ["setup.py", "-q", "egg_info", "--egg-base", sys.argv[2], "build_py", "--build-lib", sys.argv[1]]
runpy.run_path("setup.py")
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("setuptools")
    lib = tmp_path_factory.mktemp("lib")
    info = lib / "info"
    info.mkdir()
    (lib / "phraseloom" / "recipes").mkdir(parents=True)
    (lib / "phraseloom" / "recipes" / "deleted.yaml").write_text("of an earlier build")
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(lib), str(info)], cwd=ROOT, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return lib / "phraseloom"


def names(folder: Path, pattern: str = "*") -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob(pattern) if path.is_file()}


def test_the_recipes_are_inside(built: Path) -> None:
    assert names(built / "recipes") == names(ROOT / "recipes")


def test_the_package_and_its_assets_are_inside(built: Path) -> None:
    source = ROOT / "src" / "phraseloom"
    assert names(source, "*.py") <= names(built)
    assert names(source / "report" / "assets") == names(built / "report" / "assets")
    assert (built / "py.typed").is_file()


def test_sources_of_the_compiled_library_are_in_the_sdist_alone(built: Path) -> None:
    native = ROOT / "src" / "phraseloom" / "native"
    sources = {path.name for path in native.iterdir() if path.suffix in (".cpp", ".h", ".inc")}
    assert len(sources) == 5 and not sources & names(built / "native")
    (listed,) = (built.parent / "info").glob("*.egg-info/SOURCES.txt")
    assert {f"src/phraseloom/native/{name}" for name in sources} <= set(listed.read_text().splitlines())


def test_recipes_are_found_outside_of_a_checkout(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recipe, "__file__", str(built / "recipe.py"))
    assert recipe.recipes_folder() == built / "recipes"
    loaded = recipe.load_recipe("recipes/demo/world_phrasal.yaml")
    assert loaded.name == "demo-world-phrasal"
    (tmp_path / "recipes" / "demo").mkdir(parents=True)
    mine = tmp_path / "recipes" / "demo" / "world_phrasal.yaml"
    mine.write_bytes((ROOT / "recipes" / "demo" / "world.yaml").read_bytes())
    assert recipe.find_recipe("recipes/demo/world_phrasal.yaml") == Path("recipes/demo/world_phrasal.yaml")


def test_metadata() -> None:
    assert {"classifiers", "authors", "keywords"} <= PROJECT.keys()
    assert not [url for url in PROJECT.get("urls", {}).values() if ".example" in url], "no invented address"
    assert (ROOT / PROJECT["readme"]).is_file() and all((ROOT / name).is_file() for name in PROJECT["license-files"])


def test_lower_bounds_are_constraints() -> None:
    """What `make lowest` installs: every dependency has a lower bound, and a torch that is at hand may take its place."""
    lowest = constraints(ROOT / "pyproject.toml", ["torch=9.9"])
    assert "torch==9.9" in lowest and not any(line.startswith("ruff") for line in lowest)
    assert (
        len([d for d in PROJECT["dependencies"] if d.replace(">=", "==") in lowest]) == len(PROJECT["dependencies"]) - 1
    )
    with pytest.raises(SystemExit, match="no dependency tensorflow"):
        constraints(ROOT / "pyproject.toml", ["tensorflow=1"])


def test_files_of_the_project_are_valid() -> None:
    """Versions and licences agree, and the YAML files are read."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_bytes())
    assert citation["version"] == PROJECT["version"] == phraseloom.__version__ and citation["license"] == "MIT"
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_bytes())
    matrix = workflow["jobs"]["test"]["strategy"]["matrix"]
    assert len(matrix["os"]) == len(matrix["python"]) == 3
    assert all(yaml.safe_load(path.read_bytes())["body"] for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
