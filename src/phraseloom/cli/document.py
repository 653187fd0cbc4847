"""`docs/commands.md` from the commands themselves: `python -m phraseloom.cli.document` writes it to standard output."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

from phraseloom.cli.group import argument, is_argument
from phraseloom.cli.main import VERBS, load_verb
from phraseloom.report.markup import markdown

HEAD = """\
# Commands

This page is generated from the commands: `python -m phraseloom.cli.document > docs/commands.md`. A test compares the two.

Exit codes: 0 done · 1 a problem with data, a file or a model · 2 wrong usage or recipe · 3 interrupted and saved; the
same command resumes · 4 training diverged · 130 stopped by Ctrl-C · 141 the reader of the output went away. An error
is one line on standard error: `phraseloom VERB: file:line: what; what to do`. `phraseloom --debug VERB …`, or
PHRASELOOM_DEBUG=1, shows the traceback.
"""


def commands() -> Iterator[tuple[str, Any]]:
    """(full name, click command) of every verb and subcommand."""
    for name in VERBS:
        command = load_verb(name)
        inner = getattr(command, "commands", None)
        if inner:
            yield from ((f"{name} {sub}", c) for sub, c in inner.items())
        else:
            yield name, command


def document() -> str:
    """The whole page."""
    return HEAD + "".join(f"\n## phraseloom {name}\n\n{_section(command)}" for name, command in commands())


def _section(command: Any) -> str:
    text = inspect.cleandoc(command.help or "")
    rows = []
    for parameter in command.params:
        if parameter.name == "help":
            continue
        names = [argument(parameter, "…")] if is_argument(parameter) else [*parameter.opts, *parameter.secondary_opts]
        rows.append([", ".join(f"`{n}`" for n in names), getattr(parameter, "help", "") or "", _default(parameter)])
    return f"{text}\n\n{markdown(['option', 'what', 'default'], rows)}\n".replace("<", "\\<")


def _default(parameter: Any) -> str:
    default = parameter.default
    if parameter.required:
        return "required"
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    if default is None or default is False or callable(default) or str(default) in ("", "Sentinel.UNSET"):
        return ""
    return str(default)


if __name__ == "__main__":
    sys.stdout.buffer.write(document().encode())
