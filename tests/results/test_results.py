"""Results of commands: each is read and written by one class, with and without `kind`; other files are refused by name.

`without_kind.json` has the files that commands wrote before results had a `kind`, with their lists cut to three items.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from phraseloom import results
from phraseloom.errors import CorruptError, DataError

OLD: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "without_kind.json").read_bytes())


def kind_of(name: str) -> str:
    return name.rsplit("_", 1)[0] if name[-1].isdigit() else name


def write(path: Path, value: Any) -> Path:
    path.write_bytes(json.dumps(value).encode())
    return path


def test_every_kind_has_an_old_file() -> None:
    assert {kind_of(name) for name in OLD} == set(results.BY_KIND)
    assert set(results.KEYS) == set(results.CLASSES)


@pytest.mark.parametrize("name", OLD)
def test_an_old_file_is_read_and_written_again(name: str, tmp_path: Path) -> None:
    """Its keys, their order and all numbers stay as they are; format and kind come first."""
    result = results.read(write(tmp_path / "old.json", OLD[name]))
    assert result.kind == kind_of(name)
    written = json.dumps(result.as_json())
    assert written == json.dumps({"format": 1, "kind": result.kind, **OLD[name]})
    assert results.line(result) == json.dumps(json.loads(written), ensure_ascii=False)
    results.write(tmp_path / "new.json", result)
    again = results.read(tmp_path / "new.json")
    assert again.as_json() == result.as_json() and type(again) is type(result)


def test_keys_of_a_later_version_are_kept(tmp_path: Path) -> None:
    value = {"format": 1, "kind": "links", **OLD["links"], "new": [1]}
    assert results.read(write(tmp_path / "r.json", value)).as_json() == value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "a result of format 2; this version reads format 1"),
        ({"kind": "letters"}, "a result of unknown kind 'letters'"),
        ({"kind": "entropy"}, "not a complete result of analyse entropy: unit: Field required"),
        ({"systems": []}, "not a complete result of align evaluate: systems: "),
        ({"gold": True}, "not a complete result of align evaluate: gold: "),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "r.json", {"format": 1, "kind": "links", **OLD["links"], **change})
    with pytest.raises(DataError) as error:
        results.read(path)
    assert error.value.what.startswith(message)
    assert error.value.file == path


@pytest.mark.parametrize(
    "value", [[], {}, {"systems": []}, 3, {"sentences": 1, "systems": 4}, {"kind": None}, {"kind": []}]
)
def test_json_that_no_command_wrote(value: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not the JSON of a command"):
        results.read(write(tmp_path / "r.json", value))
    (tmp_path / "r.json").write_bytes(b"{")
    with pytest.raises(CorruptError):
        results.read(tmp_path / "r.json")


@pytest.mark.parametrize(("command", "keys", "hint"), results.NOT_RESULTS)
@pytest.mark.parametrize("form", ["{}", "[{}]", "{}\n{}\n"])
def test_json_of_other_commands_is_named(command: str, keys: str, hint: str | None, form: str, tmp_path: Path) -> None:
    """As one object, in a list, and as the first of several lines."""
    path = tmp_path / "r.json"
    path.write_bytes(form.replace("{}", json.dumps(dict.fromkeys(keys.split(), "x"))).encode())
    with pytest.raises(DataError, match=f"JSON of {command}, which is not a result") as error:
        results.read(path)
    assert (error.value.file, error.value.hint) == (path, hint)
