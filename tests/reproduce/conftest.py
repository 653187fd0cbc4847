"""The steps of these tests take a moment: whether they have ended is asked more often."""

from __future__ import annotations

import pytest

from phraseloom.reproduce import execute


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "PAUSE", 0.005)
    monkeypatch.setattr(execute, "PAUSE_FOR_OTHERS", 0.05)
