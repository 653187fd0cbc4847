"""The models of a command line, `NAME=FOLDER` or `FOLDER`, by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from phraseloom.errors import UsageError


def named(models: Sequence[str]) -> dict[str, Path]:
    """Folders by name, from `NAME=FOLDER` or `FOLDER`, which is named by its last parts, as many as tell it from the other.

    A checkpoint is named with its run. Raises UsageError for one name twice, and for one folder twice without names.
    """
    given = [_split(text) for text in models]
    folders = [folder for _, folder in given]
    parts = [folder.resolve().parts for folder in folders]
    nameless = [own for (name, _), own in zip(given, parts, strict=True) if not name]
    if len(set(nameless)) < len(nameless):
        again = next(own for i, own in enumerate(nameless) if own in nameless[:i])
        raise UsageError(f"{folders[parts.index(again)]} is given twice", hint="name them: NAME=FOLDER")
    sizes = [_num_parts(own) for own in parts]
    names = [name or "/".join(own[-size:]) for (name, _), own, size in zip(given, parts, sizes, strict=True)]
    more = 1
    while len(set(names)) < len(names) and not all(name for name, _ in given):
        more += 1
        names = [name or "/".join(own[-more:]) for (name, _), own in zip(given, parts, strict=True)]
    if len(set(names)) < len(names):
        both = next(name for i, name in enumerate(names) if name in names[:i])
        raise UsageError(f"two models have the name {both}")
    return dict(zip(names, folders, strict=True))


def _split(text: str) -> tuple[str, Path]:
    name, equals, folder = text.partition("=")
    if not equals or "/" in name:
        return "", Path(text)
    if not name or not folder:
        raise UsageError(f"{text!r} is not NAME=FOLDER")
    return name, Path(folder)


def _num_parts(parts: Sequence[str]) -> int:
    """How many of the last parts of a path name a model."""
    if parts[-1] in ("best", "last") and len(parts) > 1:
        return 2
    return 3 if len(parts) > 2 and parts[-2] == "checkpoints" else 1
