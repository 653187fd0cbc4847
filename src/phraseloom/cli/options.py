"""Command-line options that stand over the decoding options of a model; shared by `translate`, `score` and `align`.

`--device` of every verb that computes, checked before anything is read.

The rules by which words of aligned text are joined, as an option (`phrases/merge.py`).

A file parallel to the input lines of a command (`--prefixes`, `--trees`), read as far as these have come.

The option `--by-sentence` of the verbs whose numbers are means over sentences.

The models of a command line, `NAME=FOLDER` or `FOLDER`, by name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from phraseloom.errors import DataError, UsageError
from phraseloom.files import require_file
from phraseloom.text.lines import read_lines

PenaltyName = Literal["wu", "sockeye", "none"]


Stop = Literal["finished", "exact", "transformers"]


LongLines = Literal["crop", "split"]


AlignmentMethod = Literal[
    "target-to-source",
    "source-to-target",
    "intersection",
    "union",
    "grow-diag",
    "grow-diag-final",
    "grow-diag-final-and",
]


Unknown = Literal["forbid", "keep", "replace"]


def given(**options: Any) -> dict[str, Any]:
    """The options that were given (not None)."""
    return {k: v for k, v in options.items() if v is not None}


def length(text: str | None, name: str) -> dict[str, Any] | None:
    """`FACTOR,CONSTANT` or `CONSTANT` as a length bound. Raises UsageError."""
    if text is None:
        return None
    factor, comma, constant = text.rpartition(",")
    try:
        return {"factor": float(factor) if comma else 0.0, "constant": int(constant)}
    except ValueError:
        hint = "write FACTOR,CONSTANT (such as 2.0,20) or one whole number"
        raise UsageError(f"--{name} {text!r} is not a length bound", hint=hint) from None


def lengths(longest: str | None, shortest: str | None) -> dict[str, Any]:
    """`--max-length` and `--min-length` as options. Raises UsageError where no output could be within both."""
    from phraseloom.config import validate
    from phraseloom.options.decoding import LengthConfig

    bounds = {"max_length": length(longest, "max-length"), "min_length": length(shortest, "min-length")}
    if None not in bounds.values():
        high, low = (validate(LengthConfig, bound) for bound in bounds.values())
        if low.always_above(high):
            raise UsageError(
                f"--min-length {shortest} is above --max-length {longest} for every line: no output is within both",
                hint=f"such as --max-length {max(high.factor, low.factor):g},{max(high.constant, low.constant) + 20}",
            )
    return given(**bounds)


def enough_beam(n_best: int | None, beam: int) -> None:
    """UsageError where more translations are asked for than the beam of this width holds."""
    if n_best is not None and n_best > beam:
        raise UsageError(f"--n-best {n_best} is larger than the beam, {beam}", hint=f"give --beam {n_best}")


def penalty(
    now: dict[str, Any], kind: PenaltyName | None, alpha: float | None, beta: float | None
) -> dict[str, Any] | None:
    """The length penalty `now` with the given changes; None when nothing was given."""
    changes = given(alpha=alpha, beta=beta)
    if kind is None:
        return {**now, **changes} if changes else None
    kept = now if now["kind"] == kind else {"kind": kind}
    return {**kept, **changes}


def head(text: str | None, name: str) -> dict[str, int | str | None]:
    """The head that aligns as an option: a number from 1, or `mean` or `max` of all heads. Raises UsageError."""
    if text is None:
        return {}
    if text == "mean":
        return {"alignment_head": None}
    if text == "max":
        return {"alignment_head": text}
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UsageError(f"--{name} {text!r} is neither a number from 1 nor mean or max")
    return {"alignment_head": int(text)}


def workers(text: str | None) -> int | str | None:
    """`auto` or a number of threads. Raises UsageError."""
    if text is None or text == "auto":
        return text
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"--workers {text!r} is neither a number nor auto")
    return int(text)


def _usable(device: str) -> str:
    """UsageError for a device that is not there; the default needs no torch."""
    if device != "cpu":
        from phraseloom.models.device import usable

        usable(device)
    return device


Device = Annotated[str, typer.Option("--device", callback=_usable, help="Device: cpu, cuda, cuda:1.")]


Rule = Literal["released", "aligned"]


class ParallelFile:
    """The lines of a file, a window at a time; `what` they are, in the plural. Raises FileProblem where there is none."""

    def __init__(self, path: Path, what: str, kind: str) -> None:
        self.path, self.what = require_file(path, kind), what
        self._lines, self._taken, self._before = read_lines(path), 0, 0

    def take(self, count: int) -> list[str]:
        """The next `count` lines. Raises DataError where there are fewer."""
        lines = list(islice(self._lines, count))
        if len(lines) != count:
            raise DataError(f"fewer {self.what} than input lines ({self._taken + len(lines)})", file=self.path)
        self._before, self._taken = self._taken, self._taken + count
        return lines

    def finish(self) -> None:
        """Raise DataError where more lines follow."""
        if next(self._lines, None) is not None:
            raise DataError(
                f"more {self.what} than input lines ({self._taken})",
                file=self.path,
                line=self._taken + 1,
                hint="the file must be parallel to the input line by line",
            )

    @contextlib.contextmanager
    def places(self) -> Iterator[None]:
        """Let an error about one of the lines that were taken last name its line of this file."""
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
    """Raise UsageError where there is no JSON to hold them."""
    if by_sentence and not is_json:
        raise UsageError(f"--by-sentence needs {option}: that is where it writes")


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
