"""Command-line options that stand over the decoding options of a model; shared by `translate`, `score` and `align`."""

from __future__ import annotations

from typing import Any, Literal

from phraseloom.errors import UsageError

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
    from phraseloom.decoding.config import LengthConfig

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
