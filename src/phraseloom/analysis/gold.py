"""A split of a built-in world with its gold annotation: words, instances of every phenomenon, training frequency of phrases.

The folder was written by `phraseloom world`; every line is checked, and errors name file and line.

An instance of a phenomenon (docs/world.md) has a kind and a *realisation*: pieces in target order, each a run of adjacent
words of the gold target.

    idiom compound separable expansion   the target spans of `.phrases`
    agreement                            the finite verb, if words are between it and the head (`.agreement`)
    name pronoun                         the words linked to a proper name (NNP in `.trees`), to "it"
    ambiguous                            the words linked to a noun of two senses, or a verb whose object decides
    gender                               the words linked to an inflected determiner, adjective and noun
    case                                 the words linked to the same of an object; a relative pronoun as object
    verb_final                           a subordinate clause: conjunction; finite verb with the punctuation after it

The last six come from `.trees` and `.align`, and for `ambiguous` from the lexicon. Noun phrases inside idioms are words of the
idiom, not objects. Tests check that these kinds are those of `.phenomena` for every sentence.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

from phraseloom.errors import DataError, FileProblem, UsageError, plural
from phraseloom.files import read_json, require_folder
from phraseloom.text.lines import check_parallel, read_lines
from phraseloom.world.lexicon import lexicon
from phraseloom.world.pair import parse_agreements, parse_phrases, verb_senses

NEEDED = ("en", "de", "align", "trees", "phrases", "agreement")
OF_SEVERAL_WORDS = ("idiom", "compound", "separable", "expansion")
WORD = re.compile(r"[^\s.,]+|[.,]")


def words_of(line: str) -> list[str]:
    """The words of a line; full stop and comma are words, with or without a space before them."""
    return WORD.findall(line)


class GoldSplit(NamedTuple):
    """A split of a world: gold target words, instances, and the groups (rows of the report) of each instance."""

    gold: list[list[str]]
    instances: list[list[Instance]]
    groups: list[list[list[str]]]


def read_world(folder: str | Path, split: str, *, edges: Sequence[int] = ()) -> GoldSplit:
    """Read a split; with `edges`, phrases are also grouped by the training frequency of their source words.

    Raises FileProblem, DataError, UsageError (no such split).
    """
    folder = require_folder(folder, "world folder")
    if not (folder / "world.json").is_file():
        raise FileProblem("not a world folder: it has no world.json", file=folder, hint="phraseloom world writes one")
    summary = read_json(folder / "world.json", "description of the world")
    pairs = summary.get("pairs") if isinstance(summary, dict) else None
    if not isinstance(pairs, dict) or split not in pairs:
        known = ", ".join(pairs) if isinstance(pairs, dict) else "none"
        raise UsageError(f"no split {split!r} in {folder}", hint=f"splits: {known}")
    columns = {str(folder / f"{split}.{e}"): list(read_lines(folder / f"{split}.{e}")) for e in NEEDED}
    check_parallel(columns)
    lines = list(zip(*columns.values(), strict=True))
    line_instances = []
    for number, line in enumerate(lines, 1):
        try:
            line_instances.append(instances(dict(zip(NEEDED, line, strict=True))))
        except DataError as error:
            raise DataError(f"annotation: {error.what}", file=folder / split, line=number, hint=error.hint) from error
    seen = _training_counts(folder) if edges else Counter()
    groups = []
    for line, members in zip(lines, line_instances, strict=True):
        source = line[0].split()
        groups.append([[i.kind, *_frequency_group(i, source, seen, edges)] for i in members])
    return GoldSplit([words_of(line[1]) for line in lines], line_instances, groups)


def _key(kind: str, words: Sequence[str]) -> tuple[str, str]:
    return kind, " ".join(words).lower()


def _training_counts(folder: Path) -> Counter[tuple[str, str]]:
    """How often the training pairs have the source words of each phrase as a phrase of that kind."""
    counts: Counter[tuple[str, str]] = Counter()
    columns = {str(folder / f"train.{e}"): list(read_lines(folder / f"train.{e}")) for e in ("en", "phrases")}
    check_parallel(columns)
    for source, line in zip(*columns.values(), strict=True):
        if line:
            words = source.split()
            counts.update(_key(p.label, words[p.source[0] : p.source[1]]) for p in parse_phrases(line))
    return counts


def _frequency_group(
    instance: Instance, source: Sequence[str], seen: Counter[tuple[str, str]], edges: Sequence[int]
) -> list[str]:
    if not edges or instance.kind not in OF_SEVERAL_WORDS:
        return []
    times = seen[_key(instance.kind, source[instance.source[0] : instance.source[1]])]
    bounds = [0, *edges]
    place = sum(times >= b for b in bounds) - 1
    last = place == len(bounds) - 1
    span = f"{bounds[place]}+" if last else f"{bounds[place]}–{bounds[place + 1] - 1}"
    if not last and bounds[place + 1] - 1 == bounds[place]:
        span = str(bounds[place])
    return [f"{instance.kind}, {span}× in training"]


KINDS = (
    "idiom", "compound", "separable", "expansion",
    "agreement", "ambiguous", "case", "gender", "name", "pronoun", "verb_final",
)  # fmt: skip
BRACKETS = re.compile(r"\(([^\s()]+)|([^\s()]+)\)|(\))")
FINITE = ("MD", "VBZ", "VBP")
Pieces = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Instance:
    """An instance: kind, source words [`source[0]`, `source[1]`), the pieces of the target that realise it."""

    kind: str
    source: tuple[int, int]
    pieces: Pieces
    first: bool  # whether the first piece begins the gold sentence, so that its capital may be a small letter elsewhere


@dataclass
class Node:
    """A constituent: label, children (a word has none), half-open range of source words."""

    label: str
    children: list[Node] = field(default_factory=list)
    word: str = ""
    start: int = 0
    end: int = 0

    def walk(self) -> Iterator[Node]:
        """This constituent and all its descendants, top down."""
        yield self
        for child in self.children:
            yield from child.walk()

    def child(self, *labels: str) -> Node | None:
        """The first child with one of these labels."""
        return next((c for c in self.children if c.label in labels), None)


def parse_tree(line: str) -> Node:
    """Read one line of a `.trees` file. Raises DataError."""
    root = Node("")
    path, position = [root], 0
    for opened, word, _ in BRACKETS.findall(line):
        if opened:
            node = Node(opened, start=position)
            path[-1].children.append(node)
            path.append(node)
            continue
        if len(path) < 2:
            raise DataError("not a tree: a closing bracket without an opening one")
        if word:
            path[-1].word = word
            position += 1
        path.pop().end = position
    if len(path) != 1 or len(root.children) != 1 or BRACKETS.sub("", line).strip():
        raise DataError("not a tree: brackets do not match")
    return root.children[0]


LINK = re.compile("([0-9]{1,7})-([0-9]{1,7})")


def parse_links(line: str) -> list[tuple[int, int]]:
    """Read one line of word links `i-j`. Raises DataError."""
    links = []
    for item in line.split():
        match = LINK.fullmatch(item)
        if match is None:
            raise DataError(f"not a word link: {item[:80]!r}", hint="a link is i-j, source first, from 0")
        links.append((int(match[1]), int(match[2])))
    return links


def instances(row: Mapping[str, str]) -> list[Instance]:
    """All instances of a sentence from its lines (en, de, align, trees, phrases, agreement). Raises DataError."""
    return _Sentence(row).instances()


class _Sentence:
    """The annotation of one sentence, parsed and checked."""

    def __init__(self, row: Mapping[str, str]) -> None:
        self.source, self.target = row["en"].split(), row["de"].split()
        self.phrases, self.agreements = parse_phrases(row["phrases"]), parse_agreements(row["agreement"])
        self.tree = parse_tree(row["trees"])
        self.linked: dict[int, list[int]] = {}
        for i, j in parse_links(row["align"]):
            self.linked.setdefault(i, []).append(j)
        ends_s = [p.source[1] for p in self.phrases] + [a.source_verb + 1 for a in self.agreements]
        ends_t = [span[1] for p in self.phrases for span in p.target] + [a.target_verb + 1 for a in self.agreements]
        ends_t += [j + 1 for targets in self.linked.values() for j in targets]
        for what, words, ends in (("source", self.source, ends_s), ("target", self.target, ends_t)):
            if max(ends, default=0) > len(words):
                raise DataError(f"the annotation names {what} word {max(ends) - 1}, but the sentence has {len(words)}")
        if self.tree.end != len(self.source):
            raise DataError(f"the tree has {plural(self.tree.end, 'word')}, but the sentence has {len(self.source)}")

    def instance(self, kind: str, source: Sequence[int], target: Sequence[int]) -> Instance:
        """An instance; its pieces are the runs of adjacent target positions."""
        runs: list[list[int]] = []
        for j in sorted(set(target)):
            if runs and runs[-1][-1] == j - 1:
                runs[-1].append(j)
            else:
                runs.append([j])
        pieces = tuple(tuple(self.target[j] for j in run) for run in runs)
        return Instance(kind, (min(source), max(source) + 1), pieces, bool(target) and min(target) == 0)

    def linked_to(self, kind: str, start: int, end: int) -> Instance:
        """The instance of the target words linked to source words [start, end)."""
        return self.instance(kind, range(start, end), [j for i in range(start, end) for j in self.linked.get(i, ())])

    def instances(self) -> list[Instance]:
        """Every instance, by source position within each group of annotation."""
        result = []
        for phrase in self.phrases:
            target = [j for start, end in phrase.target for j in range(start, end)]
            result.append(self.instance(phrase.label, range(*phrase.source), target))
        for a in self.agreements:
            if a.distance > 0:
                result.append(self.instance("agreement", (a.source_head, a.source_verb), [a.target_verb]))
        for node in self.tree.walk():
            result += self.below(node)
        return [instance for instance in result if instance.pieces]

    def below(self, node: Node) -> Iterator[Instance]:
        """The instances with this constituent as their root."""
        if self.in_idiom(node):
            return
        if node.label == "NNP":
            yield self.linked_to("name", node.start, node.end)
        elif node.label == "PRP" and node.word.lower() == "it":
            yield self.linked_to("pronoun", node.start, node.end)
        elif node.word and self.is_ambiguous(node):
            yield self.linked_to("ambiguous", node.start, node.end)
        elif node.label == "NP" and node.child("DT", "PRP$") and node.child("NN", "NNS"):
            if not self.is_ambiguous(node.children[-1]):
                yield self.linked_to("gender", node.start, node.end)
        elif node.label == "VP":
            for child in node.children:
                if child.label == "NP" and not self.in_idiom(child):
                    core = child.child("NP") or child
                    yield self.linked_to("case", core.start, core.end)
        elif node.label == "SBAR":
            yield from self.subordinate(node)

    def in_idiom(self, node: Node) -> bool:
        """Whether a constituent is part of an idiom."""
        return any(p.label == "idiom" and p.source[0] <= node.start and node.end <= p.source[1] for p in self.phrases)

    def is_ambiguous(self, word: Node) -> bool:
        """Whether a word has several translations and the sentence decides."""
        if word.label in ("NN", "NNS"):
            return word.word.lower() in ambiguous_nouns()
        if word.label not in ("VB", "VBZ", "VBP"):
            return False
        forms = ambiguous_verbs().get(word.word, frozenset())
        return any(self.target[j] in forms for j in self.linked.get(word.start, ()))

    def subordinate(self, node: Node) -> Iterator[Instance]:
        """Instances of a subordinate clause: its verb at the end, or a relative pronoun as object."""
        opening, clause = node.children[0], node.child("S")
        if clause is None:
            raise DataError("not a tree of this world: a subordinate clause has no clause")
        if opening.label == "WHNP":
            if clause.child("NP"):
                yield self.linked_to("case", opening.start, opening.end)
            return
        verb = clause.child("VP")
        finite = next((w.start for w in verb.walk() if w.label in FINITE), -1) if verb else -1
        target = next((a.target_verb for a in self.agreements if a.source_verb == finite), None)
        if target is None:
            raise DataError("the agreement of a subordinate clause is not annotated")
        yield self.instance(
            "verb_final", (opening.start, finite), [*self.linked.get(opening.start, ()), target, target + 1]
        )


@cache
def ambiguous_nouns() -> frozenset[str]:
    """The English nouns with two senses, in both numbers."""
    return frozenset(form[0] for senses in lexicon().ambiguous.values() for noun in senses for form in noun.english)


@cache
def ambiguous_verbs() -> dict[str, frozenset[str]]:
    """For each English verb form, the German forms of all verbs that its object can select."""
    result: dict[str, frozenset[str]] = {}
    for verbs in verb_senses().values():
        forms = frozenset(
            verb.german.particle + form
            for verb in verbs
            for form in (
                verb.german.infinitive,
                *(verb.german.finite(p, many) for p in (1, 2, 3) for many in (False, True)),
            )
        )
        for verb in verbs:
            result[verb.english] = result[verb.third] = forms
    return result
