"""Bodies of requests: JSON that is read strictly, field by field, each against its limit; every refusal is a 400.

Nothing is converted: true is no number, 5.0 no whole number, an unknown field an error with the nearest name.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from phraseloom.errors import plural
from phraseloom.serving.message import Problem

T = TypeVar("T")
Word = TypeVar("Word", bound=str)
SHOWN = 40


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a body. Problem 400: no UTF-8, no JSON, no object, a key twice, too deep, NaN, huge numbers."""
    try:
        value = json.loads(body.decode("utf-8-sig"), object_pairs_hook=_no_duplicates, parse_constant=_no_constants)
    except RecursionError:
        raise Problem(400, "the body is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise Problem(400, f"the body is not UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise Problem(400, f"the body is not JSON: {error.msg} ({where})") from None
    except ValueError:
        raise Problem(400, "the body holds a number that is too large") from None
    if not isinstance(value, dict):
        raise Problem(400, f'the body is {_kind(value)}, not an object such as {{"text": "…"}}')
    return value


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            raise Problem(400, f"the body holds {_show(key)} twice")
        seen[key] = value
    return seen


def _no_constants(name: str) -> Any:
    raise Problem(400, f"the body holds {name}, which is not JSON")


def _show(value: Any) -> str:
    """A value of the client, cut short, in characters that every terminal and page can take."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    text = _kind(value) if isinstance(value, dict) else json.dumps(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


def _range(most: int) -> str:
    return "1" if most == 1 else f"1 to {most}"


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


class Fields:
    """The fields of an object, taken one by one; `finish` refuses those that nobody took."""

    def __init__(self, value: dict[str, Any]) -> None:
        self._left, self._taken = dict(value), list[str]()

    def _take(self, name: str, read: Callable[[Any], T]) -> T | None:
        """What `read` makes of a field; None where it is missing or null."""
        self._taken.append(name)
        value = self._left.pop(name, None)
        return None if value is None else read(value)

    def integer(self, name: str, *, cap: int, cap_name: str) -> int | None:
        """A whole number from 1 to the limit `cap_name`."""

        def read(value: Any) -> int:
            if isinstance(value, bool) or not isinstance(value, int):
                raise Problem(400, f"{name}: a whole number is needed, not {_show(value)}")
            if value < 1:
                raise Problem(400, f"{name}: {_show(value)} is below 1")
            if value > cap:
                raise Problem(400, f"{name}: {_show(value)} is above the limit of this server, {cap_name} = {cap}")
            return value

        return self._take(name, read)

    def flag(self, name: str) -> bool:
        """True or false; false where it is missing."""

        def read(value: Any) -> bool:
            if not isinstance(value, bool):
                raise Problem(400, f"{name}: true or false is needed, not {_show(value)}")
            return value

        return bool(self._take(name, read))

    def choice(self, name: str, among: Sequence[Word]) -> Word | None:
        """One of some words."""

        def read(value: Any) -> Word:
            if not isinstance(value, str) or value not in among:
                raise Problem(400, f"{name}: {_show(value)} is none of {', '.join(among)}")
            return among[among.index(value)]

        return self._take(name, read)

    def choices(self, name: str, among: Sequence[str], *, most: int) -> list[str] | None:
        """Some different words, in order."""

        def read(value: Any) -> list[str]:
            needed = f"a list of {_range(most)} of {', '.join(among)} is needed"
            if not isinstance(value, list):
                raise Problem(400, f"{name}: {needed}, not {_show(value)}")
            for number, one in enumerate(value, 1):
                if one not in among:
                    raise Problem(400, f"{name} {number}: {_show(one)} is none of {', '.join(among)}")
                if value.index(one) < number - 1:
                    raise Problem(400, f"{name} {number}: {_show(one)} is there twice")
            if not 1 <= len(value) <= most:
                raise Problem(400, f"{name}: {needed}, not {_show(value)}")
            return value

        return self._take(name, read)

    def texts(
        self, name: str, *, most: int, most_name: str, characters: int, characters_name: str, required: bool = False
    ) -> list[str] | None:
        """A text, or a list of texts, as a list; each is one line of valid Unicode within its limit."""

        def read(value: Any) -> list[str]:
            found = value if isinstance(value, list) else [value]
            if len(found) > most:
                raise Problem(
                    400,
                    f"{name}: {plural(len(found), 'text')} are above the limit of this server, {most_name} = {most}",
                )
            for number, text in enumerate(found, 1):
                place = f"{name} {number}" if isinstance(value, list) else name
                _check_text(text, place, characters, characters_name)
            return found

        result = self._take(name, read)
        if result is None and required:
            raise Problem(400, f"{name} is missing: a text, or a list of texts")
        return result

    def finish(self) -> None:
        """Refuse what is left."""
        for name in self._left:
            near = difflib.get_close_matches(name[:SHOWN], self._taken, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"fields: {', '.join(self._taken)}"
            raise Problem(400, f"unknown field {_show(name)}; {hint}")


def _check_text(text: Any, place: str, characters: int, characters_name: str) -> None:
    if not isinstance(text, str):
        raise Problem(400, f"{place}: a text is needed, not {_kind(text)}")
    if len(text) > characters:
        limit = f"{characters_name} = {characters}"
        raise Problem(400, f"{place}: {len(text)} characters are above the limit of this server, {limit}")
    if "\n" in text:
        raise Problem(400, f"{place}: a text is one line; send several as a list")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Problem(400, f"{place}: character {error.start + 1} is half of a surrogate pair") from None
