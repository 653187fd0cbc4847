"""docs/phrase_attention.md: its code runs as it stands and does what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from phraseloom.layers import PhraseAttention
from phraseloom.options import attention as naming


def page(root: Path) -> str:
    return (root / "docs" / "phrase_attention.md").read_text(encoding="utf-8")


def run(code: str) -> dict[str, Any]:
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    exec(compile(code, "phrase_attention.md", "exec"), names)
    return names


@pytest.fixture
def blocks(root: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page(root), re.DOTALL)


def test_the_layer_in_ten_lines(blocks: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert len([line for line in blocks[0].split("\n") if line.strip()]) == 10
    names = run(blocks[0])
    assert names["output"].shape == (2, 5, 64)
    assert names["tokens"].shape == names["bigrams"].shape == (2, 8, 5, 5)
    torch.testing.assert_close(names["words"].sum(-1), torch.ones(2, 8, 5))
    assert not names["bigrams"][..., 0].any() and not names["bigrams"][1, ..., 3:].any()
    shown = float(capsys.readouterr().out.split("weight on bigrams: ")[1])
    assert 0.1 < shown < 0.9


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_the_replacement(blocks: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    names = run(blocks[1])
    assert float(re.findall(r"largest change: (\S+)", capsys.readouterr().out)[0]) < 1e-5
    layers = [m for m in names["model"].modules() if isinstance(m, PhraseAttention)]
    assert len(layers) == 6
    assert all(layer.gate is not None and layer.gate.all() for layer in layers)


def test_nothing_else_is_shown_as_python(blocks: list[str]) -> None:
    assert len(blocks) == 2


def test_every_line_of_the_table_builds_a_layer(root: Path) -> None:
    lines = [line for line in re.findall(r"^\| `([^`]+)` \|", page(root), re.MULTILINE) if "…" not in line]
    assert len(lines) == 6
    for line in [*lines, "queryk homogeneous 3-2-3", *(line.replace("queryk", "convkv") for line in lines[2:5])]:
        assert naming.parse(line)["score"] == line.split()[0]
        x = torch.randn(1, 3, 16)
        assert PhraseAttention(16, 8, line)(x, x, x)[0].shape == x.shape
