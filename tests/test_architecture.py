"""The rules that the whole package keeps: who imports whom, what starts without torch, and calls that nobody makes."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "phraseloom"
MODULES = sorted(PACKAGE.rglob("*.py"))
TREES = {path: ast.parse(path.read_bytes()) for path in MODULES}

BASE = {"errors", "reading", "files", "replace", "config", "options"}
TEXT = BASE | {"text"}
MODEL = {"layers", "losses", "outputs", "models"}
# Whom a part may import (docs/map.md draws it), imports inside functions counted.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "reading": {"errors"},
    "files": {"errors", "reading"},
    "replace": {"errors", "files"},
    "other_names": set(),
    "parent": set(),
    "config": {"errors", "files", "reading", "other_names"},
    "options": {"errors", "config"},
    "recipe": {"config", "options"},
    "results": {"errors", "config", "files"},
    "text": BASE,
    "align": TEXT,
    "phrases": TEXT | {"align"},
    "world": TEXT,
    "data": TEXT | {"align", "phrases"},
    "layers": {"errors", "options"},
    "losses": {"errors", "layers"},
    "outputs": {"errors", "layers", "losses"},
    "metrics": {"errors", "text", "align"},
    "hub": BASE,
    "models": TEXT | MODEL | {"hub", "data", "phrases"},
    "native": TEXT | MODEL,
    "decoding": TEXT | MODEL | {"align", "phrases", "data", "native"},
    "training": TEXT | MODEL | {"align", "phrases", "data", "native", "decoding", "metrics", "recipe", "parent"},
    "analysis": TEXT | MODEL | {"align", "phrases", "world", "data", "decoding", "metrics", "training"},
    "npmt": TEXT | MODEL | {"data", "decoding", "metrics", "analysis"},
    "report": TEXT | {"phrases", "data", "metrics", "analysis", "results"},
    "serving": TEXT | MODEL | {"decoding", "analysis", "report"},
    "bridges": TEXT | MODEL | {"decoding"},
    "reproduce": TEXT | MODEL | {"align", "phrases", "data", "metrics", "recipe", "report", "training", "parent"},
    "__init__": {"decoding"},
    "__main__": {"cli"},
}
WITH_TORCH = {
    "layers",
    "losses",
    "outputs",
    "models",
    "npmt",
    "native",
    "decoding",
    "training",
    "analysis",
    "serving",
    "bridges",
}


def name_of(path: Path) -> str:
    return ".".join(("phraseloom", *path.relative_to(PACKAGE).with_suffix("").parts))


def ids(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Every call with the text of what is called, such as `torch.load`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def test_imports_point_one_way() -> None:
    wrong = []
    for path, tree in TREES.items():
        part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if part == "cli":
            continue
        assert part in ALLOWED, f"{part}: a new part of the package needs its line in ALLOWED"
        for module in imports(tree):
            target = [*module.split("."), ""][1] if module.startswith("phraseloom") else ""
            if target and target != part and target not in ALLOWED[part]:
                wrong.append(f"{ids(path)} imports {module}")
    assert not wrong, wrong


def test_no_cycle_between_parts() -> None:
    """The table above has an order: each part may import only parts whose turn is over."""
    done: set[str] = set()
    waiting = ALLOWED | {"cli": set(ALLOWED) - {"__main__"}}
    while waiting:
        ready = [part for part, others in waiting.items() if others - {part} <= done]
        assert ready, f"these import each other: {sorted(waiting)}"
        done.update(ready)
        for part in ready:
            waiting.pop(part)


def test_npmt_is_reached_through_tables() -> None:
    """Model, search and analysis of segments are named in tables, as text, and imported by nobody but the command."""
    importers = {
        ids(p).split("/")[0] for p, t in TREES.items() if any(m.startswith("phraseloom.npmt") for m in imports(t))
    }
    assert importers <= {"npmt", "cli"}


def test_relative_imports_are_not_used() -> None:
    found = [ids(p) for p, t in TREES.items() for n in ast.walk(t) if isinstance(n, ast.ImportFrom) and n.level]
    assert not found


def test_light_parts_start_without_torch() -> None:
    """Texts, alignments, phrases, metrics, reports, recipes and the modules of all verbs import no torch."""
    light = []
    for path in MODULES:
        parts = path.relative_to(PACKAGE).parts
        if parts[0] in WITH_TORCH or path.name in ("tensors.py", "__main__.py"):
            continue
        light.append(name_of(path).removesuffix(".__init__"))
    code = f"import importlib, sys\nfor m in {light!r}: importlib.import_module(m)\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False"


BANNED_MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "codecs", "imp"}


@pytest.mark.parametrize("path", MODULES, ids=ids)
def test_nothing_that_can_run_code_is_imported(path: Path) -> None:
    assert not [m for m in imports(TREES[path]) if m.split(".")[0] in BANNED_MODULES]


def _zip_without_strict(name: str, call: ast.Call) -> bool:
    return name == "zip" and not any(k.arg == "strict" for k in call.keywords)


def _unsafe(name: str, call: ast.Call) -> bool:
    """`torch.load` with `weights_only=True`, written out, makes tensors only; `test_one_place_reads_pickles` counts it."""
    if name == "torch.load" and any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in call.keywords):
        return False
    plain = {"eval", "exec", "compile", "__import__", "torch.load", "torch.save", "yaml.load", "yaml.load_all"}
    return name in plain or name.startswith("yaml.unsafe") or any(k.arg == "allow_pickle" for k in call.keywords)


def _splits_lines(name: str, call: ast.Call) -> bool:
    return name.split(".")[-1] in ("splitlines", "readlines", "readline")


def _reads_or_writes_text(name: str, call: ast.Call) -> bool:
    """Opening in text mode turns a lone carriage return into a line end; writing belongs to files.py."""
    last = name.split(".")[-1]
    if name == "open" or last in ("read_text", "write_text", "write_bytes", "fdopen"):
        return True
    owner = name.removesuffix(".open")
    is_class = re.fullmatch(r"[A-Z]\w*", owner) and owner != "Path"  # Dataset.open
    if last != "open" or owner in ("disk", "files.disk", "os") or is_class:
        return False
    modes = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    modes += [k.value.value for k in call.keywords if k.arg == "mode" and isinstance(k.value, ast.Constant)]
    return modes != ["rb"]


def _removes(name: str, call: ast.Call) -> bool:
    """`str.replace` takes two arguments, `Path.replace` one."""
    last = name.split(".")[-1]
    return (
        last in ("rmtree", "remove_tree", "unlink", "rmdir", "removedirs", "rename", "renames", "truncate")
        or name in ("os.remove", "os.replace", "shutil.move")
        or (last == "replace" and len(call.args) == 1 and not call.keywords)
    )


RULES: dict[str, tuple[Callable[[str, ast.Call], bool], set[str]]] = {
    "zip without strict": (_zip_without_strict, set()),
    "a call that can run code from data": (_unsafe, set()),
    "splitting lines elsewhere than in text/lines.py": (_splits_lines, {"text/lines.py"}),
    "removing or renaming elsewhere than in replace.py": (_removes, {"files.py", "replace.py"}),
    "text mode, or writing elsewhere than in files.py": (_reads_or_writes_text, {"files.py", "text/lines.py"}),
}


@pytest.mark.parametrize("rule", RULES)
def test_nobody_calls(rule: str) -> None:
    broken, exempt = RULES[rule]
    found = [
        f"{ids(path)}:{call.lineno} {name}"
        for path, tree in TREES.items()
        if ids(path) not in exempt
        for name, call in calls(tree)
        if broken(name, call)
    ]
    assert not found, found


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("zip(a, b)", "zip without strict"),
        ("torch.load(f)", "a call that can run code from data"),
        ("torch.load(f, weights_only=False)", "a call that can run code from data"),
        ("np.load(f, allow_pickle=True)", "a call that can run code from data"),
        ("x.splitlines()", "splitting lines elsewhere than in text/lines.py"),
        ("shutil.rmtree(p)", "removing or renaming elsewhere than in replace.py"),
        ("p.unlink()", "removing or renaming elsewhere than in replace.py"),
        ("p.replace(q)", "removing or renaming elsewhere than in replace.py"),
        ("files.disk.rename(p, q)", "removing or renaming elsewhere than in replace.py"),
        ("open(p)", "text mode, or writing elsewhere than in files.py"),
        ("p.open()", "text mode, or writing elsewhere than in files.py"),
        ("Path(p).open('wb')", "text mode, or writing elsewhere than in files.py"),
        ("p.open(mode='a')", "text mode, or writing elsewhere than in files.py"),
        ("p.write_text('x')", "text mode, or writing elsewhere than in files.py"),
    ],
)
def test_the_rules_catch(source: str, rule: str) -> None:
    assert any(RULES[rule][0](name, call) for name, call in calls(ast.parse(source)))


def test_one_place_reads_pickles() -> None:
    places = [ids(path) for path, tree in TREES.items() for name, _ in calls(tree) if name == "torch.load"]
    assert places == ["bridges/marian_format.py"]


def test_masks_are_minus_infinity() -> None:
    """A large negative number instead of -inf leaves weight on padding when all scores are small (reliability N2)."""
    found = []
    for path, tree in TREES.items():
        if path.relative_to(PACKAGE).parts[0] not in ("layers", "outputs", "models"):
            continue
        for node in ast.walk(tree):
            negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
            value = node.operand.value if negated and isinstance(node.operand, ast.Constant) else None
            if isinstance(value, int | float) and value >= 1e3:
                found.append(f"{ids(path)}:{node.lineno} -{value:g}")
    assert not found, found


def test_a_class_name_stands_for_one_class() -> None:
    places: dict[str, list[str]] = {}
    for path, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(ids(path))
    assert not {name: where for name, where in places.items() if len(where) > 1}


def test_the_map_names_files_that_exist(root: Path) -> None:
    path = root / "docs" / "map.md"
    assert path.is_file(), "docs/map.md (where is …?) is missing"
    text = path.read_bytes().decode()
    named = set(re.findall(r"`([\w./*-]+\.(?:py|md|yaml|toml|txt))`", text))
    assert named, "docs/map.md names no file in backticks"
    missing = []
    for name in named:
        places = (root / name, PACKAGE / name, root / "src" / name, root / "docs" / name, root / "tests" / name)
        if "*" not in name and not any(place.exists() for place in places):
            missing.append(name)
    assert not missing, f"named in docs/map.md, but not there: {sorted(missing)}"


def test_every_package_is_on_the_map(root: Path) -> None:
    path = root / "docs" / "map.md"
    assert path.is_file(), "docs/map.md (where is …?) is missing"
    text = path.read_bytes().decode()
    folders = {p.name for p in PACKAGE.iterdir() if (p / "__init__.py").is_file()}
    assert not {f for f in folders if f"{f}/" not in text}
