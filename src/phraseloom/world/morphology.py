"""Inflection of the built-in German: articles, adjectives, nouns, verbs.

Genders are "m", "f", "n"; the plural is a fourth column "p" of every table. Cases are "nom", "acc", "dat". All forms are
regular German; the lexicon has the stem of the second and third person for verbs whose vowel changes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

Endings = dict[str, dict[str, str]]


def _endings(nominative: str, accusative: str, dative: str) -> Endings:
    """A table case → column → ending, from four endings per case in the order m f n p ("-" is no ending)."""
    rows = {"nom": nominative, "acc": accusative, "dat": dative}
    return {
        case: {column: "" if ending == "-" else ending for column, ending in zip("mfnp", row.split(), strict=True)}
        for case, row in rows.items()
    }


DEFINITE = _endings("der die das die", "den die das die", "dem der dem den")
RELATIVE = _endings("der die das die", "den die das die", "dem der dem denen")
EIN_ENDINGS = _endings("- e - e", "en e - e", "em er em en")
DIES_ENDINGS = _endings("er e es e", "en e es e", "em er em en")
WEAK_ADJECTIVE = _endings("e e e en", "en e e en", "en en en en")
MIXED_ADJECTIVE = _endings("er e es en", "en e es en", "en en en en")
STRONG_ADJECTIVE = _endings("er e es e", "en e es e", "em er em en")

CONTRACTIONS = {
    ("in", "dem"): "im",
    ("an", "dem"): "am",
    ("zu", "dem"): "zum",
    ("zu", "der"): "zur",
    ("von", "dem"): "vom",
    ("bei", "dem"): "beim",
    ("in", "das"): "ins",
}


def dative_plural(plural: str) -> str:
    """The dative plural adds n unless the plural ends in n or s."""
    return plural if plural[-1] in "ns" else plural + "n"


def weak_singular(nominative: str) -> str:
    """Accusative and dative singular of a weak noun: der Junge, den Jungen; der Soldat, den Soldaten."""
    return nominative + ("n" if nominative.endswith("e") else "en")


@dataclass(frozen=True, slots=True, eq=False)
class VerbForms:
    """Present-tense forms of one German verb, without its separable particle."""

    infinitive: str
    first: str
    second: str
    third: str
    plural: str
    particle: str = ""

    def finite(self, person: int, plural: bool) -> str:
        """The form for a person (1, 2, 3) and number."""
        if plural:
            return self.plural
        return (self.first, self.second, self.third)[person - 1]

    def joined(self) -> VerbForms:
        """The verb with its particle attached to every form, as at the end of a clause."""
        forms = (self.infinitive, self.first, self.second, self.third, self.plural)
        return VerbForms(*(self.particle + form for form in forms))


_IRREGULAR = {
    "sein": ("bin", "bist", "ist", "sind"),
    "haben": ("habe", "hast", "hat", "haben"),
    "werden": ("werde", "wirst", "wird", "werden"),
    "wissen": ("weiß", "weißt", "weiß", "wissen"),
    "können": ("kann", "kannst", "kann", "können"),
    "müssen": ("muss", "musst", "muss", "müssen"),
    "sollen": ("soll", "sollst", "soll", "sollen"),
    "wollen": ("will", "willst", "will", "wollen"),
}
_NEEDS_E = re.compile(r"([dt]|(ch|[bdfgkpt])[nm])$")


def conjugate(infinitive: str, changed_stem: str = "") -> VerbForms:
    """Present-tense forms of an infinitive written with "+" after a separable particle ("auf+heben").

    `changed_stem` is the stem of the second and third person singular if its vowel changes ("sieh" for sehen).
    """
    particle, _, verb = infinitive.rpartition("+")
    if verb in _IRREGULAR:
        return VerbForms(verb, *_IRREGULAR[verb], particle)
    if verb.endswith(("eln", "ern")):
        stem = verb[:-1]
        first = stem[:-2] + "le" if verb.endswith("eln") else stem + "e"
    else:
        stem = verb[:-2]
        first = stem + "e"
    singular = changed_stem or stem
    link = "e" if _NEEDS_E.search(stem) and not changed_stem else ""
    second = singular + link + ("t" if singular[-1] in "sßzx" else "st")
    third = singular if changed_stem and singular.endswith("t") else singular + link + "t"
    return VerbForms(verb, first, second, third, verb, particle)
