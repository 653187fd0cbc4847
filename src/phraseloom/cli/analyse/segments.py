"""`phraseloom analyse segments`: how a segmental model segments sentences, and whether known phrases are segments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phraseloom.cli.options import Device, Model, SourceText, TextForm, options_of, warn_without_tag
from phraseloom.errors import DataError, UsageError, escape_controls
from phraseloom.options.decoding import DecodingConfig
from phraseloom.text.lines import read_parallel

if TYPE_CHECKING:
    from phraseloom.npmt.analysis import Forced, Segmented, TargetPhrase
    from phraseloom.results import SegmentsResult

SegmentedTarget = Annotated[
    Path | None,
    typer.Option(
        "-t",
        "--target",
        metavar="FILE",
        help="Its translation, which is segmented. Default: the model's own output.",
    ),
]


@options_of(DecodingConfig, only=("tags",))
def command(
    model: Model,
    source: SourceText,
    target: SegmentedTarget = None,
    phrases: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Known phrases of the pairs, s1:s2-t1:t2=kind, as in the built-in world."),
    ] = None,
    kinds: Annotated[
        str | None, typer.Option(metavar="KINDS", help="Only phrases of these kinds, such as idiom,separable.")
    ] = None,
    reverse: Annotated[
        bool, typer.Option("--reverse", help="The phrase file has source and target exchanged.")
    ] = False,
    sentences: Annotated[
        int, typer.Option("-n", "--sentences", min=0, help="Number of sentences to print, from the first.")
    ] = 10,
    output: TextForm = "text",
    *,
    options: dict[str, Any],
    device: Device = "cpu",
) -> None:
    """Print which source subword writes which words, how long segments are, and how many known phrases are
    segments.

    Subwords that write nothing are not shown. A known phrase counts if it is a contiguous run of two or more target
    words. The table shows how many known phrases are one segment, lie inside a longer segment, or are split. It also
    shows how many would be one segment by chance, and the probability of the segment given both sides.

    Example: phraseloom analyse segments runs/npmt -s test.de -t test.en --phrases test.phrases --reverse
    """
    if phrases is None and (kinds is not None or reverse):
        raise UsageError(
            f"{'--kinds' if kinds is not None else '--reverse'} is about known phrases", hint="give --phrases"
        )
    if phrases is not None and target is None:
        raise UsageError("--phrases are those of a given target", hint="give it with -t")
    from phraseloom import results
    from phraseloom.decoding.translator import Translator
    from phraseloom.npmt.analysis import lengths_of, of_pairs, of_translations

    lines = read_parallel(source, target, phrases)
    gold = None if phrases is None else _known_phrases(lines[phrases], phrases, kinds, reverse)
    translator = Translator.from_pretrained(model, device=device, **options)
    warn_without_tag("analyse", {model: translator})
    forced = None
    if target is not None:
        files = (source, target, phrases or "phrases")
        forced = of_pairs(translator, lines[source], lines[target], gold, files=files)
    segmented: Sequence[Segmented | None] = (
        of_translations(translator, lines[source]) if forced is None else forced.sentences
    )
    sizes = lengths_of(segmented)
    if output == "json":
        print(results.line(_result(segmented, sizes, forced)))
    else:
        print("\n".join(_text(segmented[:sentences], sizes, forced)))


def _known_phrases(lines: list[str], file: Path, kinds: str | None, reverse: bool) -> list[list[TargetPhrase]]:
    """The phrases of each line. Raises DataError if there is none of these kinds."""
    from phraseloom.npmt.analysis import read_target_phrases

    requested = [kind.strip() for kind in (kinds or "").split(",") if kind.strip()]
    gold = read_target_phrases(lines, file=file, kinds=requested, reverse=reverse)
    if not any(gold):
        of = f" of the kind {', '.join(requested)}" if requested else ""
        raise DataError(f"no phrase{of} that is a run of two and more target words", file=file)
    return gold


def _result(segmented: Sequence[Segmented | None], sizes: Mapping[int, int], forced: Forced | None) -> SegmentsResult:
    from phraseloom.results import SegmentsResult

    content: dict[str, Any] = {"lengths": {str(size): count for size, count in sizes.items()}}
    if forced is not None:
        content |= {"left_out": forced.left_out}
        content |= {"phrases": forced.phrases} if forced.phrases else {}
    sentences = [
        None if sentence is None else {**asdict(sentence), "segments": [s._asdict() for s in sentence.segments]}
        for sentence in segmented
    ]
    return SegmentsResult.model_validate({**content, "sentences": sentences})


def _text(segmented: Sequence[Segmented | None], sizes: Mapping[int, int], forced: Forced | None) -> Iterator[str]:
    from phraseloom.report.markup import terminal

    for number, sentence in enumerate(segmented, 1):
        yield escape_controls(f"{number}  " + ("(left out)" if sentence is None else _sentence(sentence)))
    total = sum(sizes.values())
    yield ("\n" if segmented else "") + "subwords that a source subword writes"
    yield terminal(["subwords", "times", "%"], [[size, n, 100 * n / total] for size, n in sizes.items()])
    if forced is None:
        return
    reasons = {
        "blank": "with a blank side",
        "too_long": "too long",
        "impossible": "too long for the segments of the source",
    }
    left = [f"{n:,} {reasons[why]}" for why, n in forced.left_out.items() if n]
    yield f"\npairs left out: {', '.join(left) or 'none'}"
    if forced.phrases:
        yield "\nknown phrases of two and more target words, in %; in brackets 95 %\n"
        headers = ["kind", "phrases", "segment", "", "chance", "inside", "split", "posterior", "from its source"]
        yield terminal(headers, [_row(kind, entry) for kind, entry in forced.phrases.items()])


def _sentence(sentence: Segmented) -> str:
    source, target = sentence.source, sentence.target
    return " ".join(f"{source[s.source]}→[{' '.join(target[s.start : s.end])}]" for s in sentence.segments)


def _row(kind: str, entry: Mapping[str, Any]) -> list[object]:
    def percent(name: str) -> float | None:
        return None if entry[name] is None else 100 * entry[name]

    low, high = (100 * bound for bound in entry["interval"])
    names = ("chance", "inside", "split", "posterior", "from_its_source")
    return [kind or "all", entry["phrases"], percent("segment"), f"({low:.1f} … {high:.1f})", *map(percent, names)]
