"""One pass of `phraseloom translate` over standard input: windows of lines, forms of output, files of alignments."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from phraseloom.cli.parallel import ParallelFile
    from phraseloom.decoding.translator import Translation


Output = Literal["text", "nbest", "json"]


class _StandardOutputError(Exception):
    """Carries an OSError of standard output past the writers of the alignment files."""


class Run:
    """One pass over standard input."""

    def __init__(
        self,
        translator: Any,
        output: Output,
        beside: Mapping[str, ParallelFile],
        *,
        want_alignments: bool,
        stream: bool,
    ) -> None:
        from phraseloom.decoding.translation import TranslationReport
        from phraseloom.text.lines import LineReport

        self.translator, self.output, self.beside, self.stream = translator, output, beside, stream
        self.alignments = want_alignments or (output == "json" and translator.can_align)
        self.report, self.lines = TranslationReport(), LineReport()

    def write(self, files: Mapping[Path, Callable[[Translation], str]]) -> None:
        """Translate everything to standard output, with one line a translation to each of `files`.

        The files appear whole at the end or not at all. Raises as `Translator.translate`, FileProblem, OSError.
        """
        try:
            _with_files(self, files)
        except _StandardOutputError as failure:
            raise failure.__cause__ or failure from None

    def to_stdout(self, also: Callable[[list[Translation]], None]) -> None:
        """Translate everything, print it, and hand each window to `also`."""
        write = FORMATS[self.output]
        number = 0
        for translations in self._translated():
            text = "".join(write(number + i, t) for i, t in enumerate(translations))
            number += len(translations)
            also(translations)
            try:
                sys.stdout.write(text)
                sys.stdout.flush()
            except OSError as error:
                raise _StandardOutputError from error

    def _translated(self) -> Iterator[list[Translation]]:
        from phraseloom.cli.windows import GATHER_SECONDS, standard_input, windows

        seconds = 0.0 if self.stream else GATHER_SECONDS
        for lines in windows(standard_input(), self.translator.config.window, seconds=seconds, report=self.lines):
            beside = {name: file.take(len(lines)) for name, file in self.beside.items()}
            with contextlib.ExitStack() as places:
                for file in self.beside.values():
                    places.enter_context(file.places())
                done = self.translator.translate(lines, alignments=self.alignments, report=self.report, **beside)
            yield done
        for file in self.beside.values():
            file.finish()

    def warn(self) -> None:
        """Say on standard error what did not come out as it was meant."""
        for text in self.report.warnings(self.translator.config.max_input_tokens) + self.lines.warnings():
            print(f"phraseloom translate: warning: {text}", file=sys.stderr)


def _with_files(run: Run, files: Mapping[Path, Callable[[Translation], str]]) -> None:
    """Run with one line per translation going to each file, all of which appear whole at the end or not at all."""
    from phraseloom.files import atomic_write, disk

    left, handles = list(files), []

    def write(temporary: Path) -> None:
        with disk.open(temporary, "wb") as handle:
            handles.append(handle)
            open_next()
            disk.flush(handle)

    def open_next() -> None:
        if left:
            atomic_write(left.pop(0), write)
        else:
            run.to_stdout(also)

    def also(window: list[Translation]) -> None:
        for handle, line in zip(handles, files.values(), strict=True):
            disk.write(handle, "".join(line(t) + "\n" for t in window).encode("ascii"))

    open_next()


def pharaoh(translation: Translation) -> str:
    """A line of word links."""
    return translation.pharaoh()


def pharaoh_phrases(translation: Translation) -> str:
    """A line of phrase links."""
    return translation.pharaoh_phrases()


def _text(number: int, translation: Translation) -> str:
    return translation.text + "\n"


def _nbest(number: int, translation: Translation) -> str:
    """Moses: `id ||| text ||| features ||| score`; `|||` inside a text is written `&#124;&#124;&#124;`."""
    return "".join(
        f"{number} ||| {t.text.replace('|||', '&#124;&#124;&#124;')} ||| "
        f"LogProb= {t.log_prob:.6f} Length= {len(t.tokens)} ||| {t.score:.6f}\n"
        for t in translation.n_best
    )


def _json(number: int, translation: Translation) -> str:
    return json.dumps({"id": number, **translation.as_dict()}, ensure_ascii=False, allow_nan=False) + "\n"


FORMATS: dict[Output, Callable[[int, Any], str]] = {"text": _text, "nbest": _nbest, "json": _json}
