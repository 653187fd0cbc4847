"""Options that several commands share, and `option`, which makes an option of a field of a configuration class.

`ParallelFile` reads a file parallel to the input lines of a command (`--prefixes`, `--trees`); `named` reads the models of
a command line, `NAME=FOLDER` or `FOLDER`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phraseloom.errors import DataError, UsageError
from phraseloom.files import require_file
from phraseloom.text.lines import read_lines

if TYPE_CHECKING:
    from phraseloom.config import Config
    from phraseloom.options.decoding import DecodingConfig


def option(config: type[Config], field: str, *names: str, **settings: Any) -> Any:
    """The option that sets a field of `config`; its help and its bounds are those of the field.

    `names` are its names, `--field` if there are none; `settings` are further arguments of `typer.Option`.
    """
    from phraseloom.config import bounds

    least, greatest = bounds(config, field)
    return typer.Option(
        *names, **{"min": least, "max": greatest, "help": config.model_fields[field].description, **settings}
    )


def model_option(config: type[Config], field: str, *names: str, **settings: Any) -> Any:
    """As `option`, for a field whose default is stored with the model."""
    return option(config, field, *names, **{"show_default": "the model's setting", **settings})


def given(**options: Any) -> dict[str, Any]:
    """The options that are not None."""
    return {k: v for k, v in options.items() if v is not None}


def fields_of(config: type[Config], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a command that are named after fields of `config` and are not None."""
    return given(**{name: value for name, value in arguments.items() if name in config.model_fields})


def number_or_word(text: str) -> int | str:
    """An option such as `--workers 4` or `--workers auto`; its configuration class checks the value."""
    return int(text) if text.isascii() and text.isdigit() else text


def length(text: str) -> dict[str, Any]:
    """`FACTOR,CONSTANT` or `CONSTANT` as a bound on the length of the output."""
    factor, comma, constant = text.rpartition(",")
    try:
        return {"factor": float(factor) if comma else 0.0, "constant": int(constant)}
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither FACTOR,CONSTANT (such as 2.0,20) nor a whole number") from None


def penalty(config: DecodingConfig, **changes: Any) -> dict[str, Any]:
    """`length_penalty` of a model with those of `kind`, `alpha` and `beta` that are not None; empty if all are."""
    from phraseloom.config import merge

    changes = given(**changes)
    now = {"length_penalty": config.length_penalty.model_dump()}
    return merge(now, {"length_penalty": changes}) if changes else {}


def _usable(device: str) -> str:
    """Raise UsageError if the device is not available; the default needs no torch."""
    if device != "cpu":
        from phraseloom.models.device import usable

        usable(device)
    return device


Device = Annotated[str, typer.Option("--device", callback=_usable, help="Device: cpu, cuda, cuda:1.")]


Rule = Literal["released", "aligned"]


class ParallelFile:
    """The lines of a file, one window at a time. `what`: a plural noun for them. Raises FileProblem if there is no file."""

    def __init__(self, path: Path, what: str, kind: str) -> None:
        self.path, self.what = require_file(path, kind), what
        self._lines, self._taken, self._before = read_lines(path), 0, 0

    def take(self, count: int) -> list[str]:
        """The next `count` lines. Raises DataError if there are fewer."""
        lines = list(islice(self._lines, count))
        if len(lines) != count:
            raise DataError(f"fewer {self.what} than input lines ({self._taken + len(lines)})", file=self.path)
        self._before, self._taken = self._taken, self._taken + count
        return lines

    def finish(self) -> None:
        """Raise DataError if more lines follow."""
        if next(self._lines, None) is not None:
            raise DataError(
                f"more {self.what} than input lines ({self._taken})",
                file=self.path,
                line=self._taken + 1,
                hint="the file must be parallel to the input line by line",
            )

    @contextlib.contextmanager
    def places(self) -> Iterator[None]:
        """Make errors about the last window name the line in this file."""
        try:
            yield
        except DataError as error:
            if error.file != self.what or error.line is None:
                raise
            raise DataError(error.what, file=self.path, line=self._before + error.line, hint=error.hint) from error


BySentence = Annotated[
    bool,
    typer.Option(
        "--by-sentence",
        help="Add to the JSON the numerator and denominator of each number per sentence, for resampling.",
    ),
]


def require_json(by_sentence: bool, is_json: bool, option: str) -> None:
    """Raise UsageError if `--by-sentence` is given without JSON output."""
    if by_sentence and not is_json:
        raise UsageError(f"--by-sentence needs {option}: that is where it writes")


def named(models: Sequence[str]) -> dict[str, Path]:
    """Folders by name, from `NAME=FOLDER` or `FOLDER`. The latter is named by its last parts, as few as are unique.

    The name of a checkpoint includes its run. Raises UsageError for a repeated name, or a repeated folder without names.
    """
    pairs = [_split(text) for text in models]
    folders = [folder for _, folder in pairs]
    parts = [folder.resolve().parts for folder in folders]
    nameless = [own for (name, _), own in zip(pairs, parts, strict=True) if not name]
    if len(set(nameless)) < len(nameless):
        again = next(own for i, own in enumerate(nameless) if own in nameless[:i])
        raise UsageError(f"{folders[parts.index(again)]} is given twice", hint="name them: NAME=FOLDER")
    sizes = [_num_parts(own) for own in parts]
    names = [name or "/".join(own[-size:]) for (name, _), own, size in zip(pairs, parts, sizes, strict=True)]
    more = 1
    while len(set(names)) < len(names) and not all(name for name, _ in pairs):
        more += 1
        names = [name or "/".join(own[-more:]) for (name, _), own in zip(pairs, parts, strict=True)]
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
    """The number of last parts of a path that name a model."""
    if parts[-1] in ("best", "last") and len(parts) > 1:
        return 2
    return 3 if len(parts) > 2 and parts[-2] == "checkpoints" else 1
