"""The steps before `prepare` for a recipe with `data.target_phrases`: from plain text to joined text, labels and vectors.

    DATASET.phrases/steps/NAME-DIGITS/     one folder a step, as `reproduce` has them (execute.py, records.py)

Tokens, word links, candidate phrases, the table of phrases, text with its phrases joined and the fertility of each source word,
and vectors of both. Every step is a command of this program; a second run does only what is missing or whose input has
changed. `prepare` then reads the joined text and the vectors like those of any other recipe.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from phraseloom import files
from phraseloom.align.aligner import WordCoverage, choose_method, load_aligner
from phraseloom.config import validate
from phraseloom.data.shards import REASONS, Dropped, FileInfo, Index, NoTree, SplitInfo, read_index
from phraseloom.data.survey import Progress, locate, read_through, readings, sample, survey
from phraseloom.errors import DataError, FileProblem, UsageError, plural
from phraseloom.files import read_json
from phraseloom.options.data import DataConfig, PhraseFilterConfig, TargetPhrasesConfig
from phraseloom.options.languages import base_language, is_chinese, is_spaced
from phraseloom.options.text import TrainedVectors, VectorTraining, WordsConfig
from phraseloom.phrases.extract import read_candidates
from phraseloom.phrases.stop_words import LANGUAGES, STOP_WORDS, read_stop_words
from phraseloom.reproduce.execute import CONCATENATE, PROGRAM, STDOUT, Execution, duration
from phraseloom.reproduce.records import LOG, RECORD, Record, read_record
from phraseloom.reproduce.steps import ROOT, Step, Steps, StepScope, in_order
from phraseloom.reproduce.table import TableConfig
from phraseloom.text.lines import count_lines, read_lines
from phraseloom.text.normalize import Normaliser
from phraseloom.text.same_language import FEWEST_WORDS, LEAST_OVERLAP, count_words, overlap
from phraseloom.text.words import JOINER, is_phrase

SUFFIX = ".phrases"
SPLITS = ("train", "valid", "test")
CHECKED_LINES = 20_000
ALIGNED_LINES = 1000
LONGEST_WORDS = 8  # characters of a mean word of a language without spaces; whole sentences have more
PASSES = re.compile(r"\b(forward|backward|epoch) (\d+) of (\d+)(?:: (\d+)%)?")
FILTER_OPTION = re.compile(r"--([a-z-]+)(?: (?!--|-o)(\S+))?")
Say = Callable[[str], None]
Commands = dict[str, dict[str, Any]]
BELOW = f"{ROOT}/"  # of the words of `_place`
LINES = "lines.txt"  # of `phrases mwt` and `decontaminate`
LEXICON = "lexicon.tsv"  # of `align lexicon`
ROW, CLEAN, KEPT, SIDES = "data", "clean", "kept", ("source", "target")  # KEPT: the folder that CLEAN writes
VECTORS = "vectors.vec"  # of `embeddings train`
PREPARE_AGAIN = "give train the same KEY=VALUE as prepare, or run phraseloom prepare RECIPE --overwrite"
NO_CANDIDATE = re.compile(r"no candidate: (.*? several target words); (.*? without links);")  # of `phrases extract`
NO_PHRASE = re.compile(r"no candidate passed the filters: (.*?);")  # of `phrases filter`


@dataclass(frozen=True)
class TextOrigin:
    """Where the lines of a text come from: files of the recipe with their numbers of lines, one after the other.

    `kept`: the numbers of the lines that `decontaminate` kept, if pairs are left out.
    """

    files: Sequence[tuple[str, int]]
    kept: Path | None = None

    def place(self, line: int) -> tuple[str, int] | None:
        """The file and the line in it of a line of the text, from 1; None if the files have changed since."""
        rest = line if self.kept is None else int(next(islice(read_lines(self.kept), line - 1, None), line))
        for name, lines in self.files:
            if rest <= lines:
                return name, rest
            rest -= lines
        return None


@dataclass(frozen=True)
class PhraseData:
    """What the steps wrote. `config`: the recipe's data with joined text and a file of vectors; the rest by split."""

    config: DataConfig
    candidates: Path
    table: Path
    joined: Path  # the target of the training text
    vectors: Path
    labels: dict[str, tuple[Path, Path]]  # tokenised source, fertility of its words
    mwt: Path | None  # the multi-word subset of the test text
    test: dict[
        str, Path
    ]  # source and target as plain text, tokens of the source and their labels; empty without test text
    files: dict[str, list[FileInfo]]  # of each split those of the recipe, as they were read
    origins: dict[str, TextOrigin]  # of each text of `config`
    steps: int  # with the dataset, which is the last one
    left_out: int | None  # training pairs; None without data.filter.decontaminate and data.filter.deduplicate
    kept: Path | None  # the numbers of the other ones, from 1

    def summary(self) -> str:
        """How many candidates there were, how many are phrases, and how often the training text has one.

        A line before it says how many pairs were left out before the first step.
        """
        tokens = phrases = 0
        for line in read_lines(self.joined):
            words = [word for word in line.split(" ") if word]
            tokens += len(words)
            phrases += sum(map(is_phrase, words)) if JOINER in line else 0
        candidates, chosen = sum(1 for _ in read_candidates(self.candidates)), count_lines(self.table)
        filters = {"held_out": self.config.filter.decontaminate, "duplicate": self.config.filter.deduplicate}
        why = " or ".join(REASONS[name] for name, value in filters.items() if value)
        first = "" if self.left_out is None else f"left out {plural(self.left_out, 'pair')}: {why}\n"
        return (
            f"{first}phrases: {chosen:,} of {plural(candidates, 'candidate')}; joined {phrases:,} times, "
            f"{phrases / max(1, tokens):.2%} of {tokens:,} target tokens"
        )

    def in_own_files(self, index: Index) -> Index:
        """The index of the dataset with files and lines of the recipe where it names those of steps."""
        splits = {}
        for split, info in index.splits.items():
            changes: dict[str, Any] = {"files": self.files[split]}
            changes |= {name: self._placed(getattr(info, name)) for name in ("blank", "long", "no_tree")}
            changes["dropped"] = {reason: self._placed(count) for reason, count in info.dropped.items()}
            splits[split] = info.model_copy(update=changes)
        return index.model_copy(update={"splits": splits})

    def in_own_file(self, error: DataError, root: Path) -> DataError:
        """The error with a file and line of the recipe if it names those of a step."""
        origins = {root / name: origin for name, origin in self.origins.items()}
        origin = None if error.file is None else origins.get(Path(error.file))
        place = None if origin is None else origin.place(error.line or 1)
        if place is None:
            return error
        return DataError(error.what, file=root / place[0], line=error.line and place[1], hint=error.hint)

    def _placed(self, count: Dropped | NoTree | None) -> Dropped | NoTree | None:
        """A count with the place of its first line in the recipe."""
        origin = None if count is None else self.origins.get(count.first_file)
        place = None if count is None or origin is None else origin.place(count.first_line)
        if count is None or place is None:
            return count
        return count.model_copy(update={"first_file": place[0], "first_line": place[1]})

    def evaluation(self, model: str, *, has_gate: bool, translations: str) -> list[str]:
        """The commands that score `model` on the test text, its multi-word subset and its labels; empty without test text."""
        if self.mwt is None:
            return []
        named = {name: shlex.quote(str(path)) for name, path in self.test.items()}
        lines, model, translations = self.mwt / LINES, shlex.quote(model), shlex.quote(translations)
        score = f"phraseloom evaluate --reference {named['target']} {translations}"
        commands = [f"phraseloom translate {model} < {named['source']} > {translations}", score]
        if count_lines(lines):
            commands.append(f"{score} --lines {shlex.quote(str(lines))}")
        if has_gate:
            commands.append(f"phraseloom fertility evaluate {model} -s {named['tokens']} --labels {named['labels']}")
        return commands


def folder_of(config: DataConfig) -> Path:
    """The folder of the steps, beside the dataset."""
    return Path(f"{Path(config.folder)}{SUFFIX}")  # Path drops a last slash


def make_phrase_data(
    config: DataConfig,
    *,
    data_root: str | Path = ".",
    say: Say = print,
    progress: Progress | None = None,
    program: Sequence[str] = PROGRAM,
) -> PhraseData:
    """Run the steps of a recipe with `target_phrases` that are not done.

    `progress(stage, done, total)` is called while they run, in permille; a total of 0 means that a step does not tell.

    Raises DataError if a step fails, with its last message, and for text in another language; FileProblem for a missing file;
    InterruptedRun after a signal. Completed steps are kept in any case.
    """
    progress = progress or (lambda stage, done, total: None)
    phrases, vectors = _options(config)
    root = Path(data_root)
    read = _check_input(config, phrases, vectors, root, progress)
    language = base_language(config.target_language)
    if phrases.filter == "paper" and phrases.stop_words is None and language not in LANGUAGES:
        hint = "data.target_phrases.stop_words may name a file"
        say(f"there is no list of stop-words for {language}, so phrases are filtered by the English one; {hint}")
    steps = _steps(config, phrases, vectors, root)
    made = _by_name(steps)
    files.disk.mkdir(steps.work)
    written = WrittenLines()
    ordered = in_order([made["table"], *made.values()])  # first what can fail for want of phrases
    with files.FolderLock(folder_of(config)):
        Execution(
            ordered,
            say=say,
            program=program,
            more=1,
            progress=lambda step, name, seconds, line: _tell(
                progress, name, seconds, share_done(line) or written.share(step)
            ),
            ended=_check,
        ).run()
    return _result(config, made, root, read, len(ordered) + 1)


def _check(step: Step, record: Record) -> None:
    """Raise DataError for a step that failed."""
    if record.state == "done":
        return
    if step.name == "candidates" and (match := NO_CANDIDATE.search(record.message)) is not None:
        raise DataError(
            f"no candidate for a phrase: {match[1]} ({match[2]})",
            hint="check that each line of data.train translates the line beside it, give more text, or name another "
            f"data.target_phrases.aligner; the log is {step.folder / LOG}",
        )
    if step.name == "table" and (match := NO_PHRASE.search(record.message)) is not None:
        dropped = re.sub(r"--([a-z-]+)", lambda option: option[1].replace("-", "_"), match[1])
        raise DataError(
            f"no phrase is left of the candidates: {dropped}",
            hint="relax these keys of data.target_phrases, or give more text; "
            f"{step.folder / LOG} says how many candidates each filter dropped",
        )
    hint = f"its log is {step.folder / LOG}; the same command resumes here"
    raise DataError(f"{step.name} failed: {record.message}", hint=hint)


def _tell(progress: Progress, name: str, seconds: float, share: float | None) -> None:
    progress(f"{name}, {duration(seconds)}", round(1000 * (share or 0.0)), 0 if share is None else 1000)


def share_done(line: str) -> float | None:
    """How much of its work a step has done, from the last line of its log; None where its command does not tell.

    `align train` learns forward, then backward; `embeddings train` tells the percentage within an epoch.
    """
    match = PASSES.search(line)
    if match is None:
        return None
    done, of = int(match[2]), int(match[3])
    if match[1] != "epoch":
        return (done + (of if match[1] == "backward" else 0)) / (2 * of)
    return done / of if match[4] is None else (done - 1 + int(match[4]) / 100) / of


class WrittenLines:
    """How much of its work a running step has done that writes one line for each line of its text, as it reads them.

    Those are `tokenize`, `align apply` and `phrases segment`. Their lines are counted here, so their logs stay short.
    """

    def __init__(self) -> None:
        self._identity = ""
        self._read = self._lines = self._of = 0

    def share(self, step: Step) -> float | None:
        """The share of lines written; None before the first one, and for other steps."""
        if step.stdout is None or step.argv[0] == CONCATENATE:
            return None
        if step.identity != self._identity:
            self._identity = step.identity
            self._read = self._lines = self._of = 0
        try:
            with (step.folder / STDOUT).open("rb") as handle:
                handle.seek(self._read)
                while block := handle.read(1 << 20):
                    self._read += len(block)
                    self._lines += block.count(b"\n")
            if self._lines and not self._of:
                self._of = count_lines(_text_of(step.argv))
        except (OSError, FileProblem):  # the step has just ended, or its text has gone, which it will say itself
            return None
        return min(1.0, self._lines / self._of) if self._of else None


def _text_of(argv: Sequence[str]) -> str:
    """A file with as many lines as the output of a step."""
    return argv[argv.index("-s") + 1] if "-s" in argv else argv[2 if argv[0] == "phrases" else 1]


def check_prepared(config: DataConfig) -> None:
    """Raise UsageError if the dataset was prepared with other text options, phrases or vectors than those of `config`."""
    made = _by_name(_steps(config, *_options(config), Path()))
    index = read_index(Path(config.folder))
    _check_texts(config, index, made)
    vectors, step = Path(str(index.config["subwords"].get("vectors"))), made["vectors"]
    if not vectors.as_posix().endswith(f"/{step.folder.name}/{VECTORS}"):
        old = _vector_options(_recorded_words(folder_of(config) / "steps" / vectors.parent.name))
        new = _vector_options(step.argv)
        of_dataset, of_recipe = (", ".join(sorted(a - b)) for a, b in ((old, new), (new, old)))
        what = f"this dataset was prepared with the vectors {vectors}, which are not made with this recipe"
        if old and of_dataset:
            what = f"this dataset was prepared with data.subwords.vectors.train: {of_dataset}, but the recipe has {of_recipe}"
        raise UsageError(what, file=config.folder, hint=PREPARE_AGAIN)


def find_labels(config: DataConfig) -> dict[str, tuple[Path, Path]]:
    """The tokenised source and the fertilities of each split of the prepared dataset.

    Raises FileProblem if one is missing, UsageError if the dataset was prepared with other phrases than those of `config`, or
    if its text is older than the labels.
    """
    made = _by_name(_steps(config, *_options(config), Path()))
    index = read_index(Path(config.folder))
    _check_texts(config, index, made)
    splits = dict[str, SplitInfo](index.splits.items())
    texts = _texts(config, made)
    labels = {split: pair for split, pair in _labels(config, made).items() if split in splits}
    for split, pair in labels.items():
        file = splits[split].files[0]
        for path in pair:
            if not path.is_file():
                hint = "phraseloom prepare RECIPE --overwrite writes them"
                raise FileProblem("no labels for training.fertility", file=path, hint=hint)
        for side, sha256 in (("source", file.source_sha256), ("target", file.target_sha256)):
            step, within = texts[split][side]
            if read_record(step).content.get("outputs", {}).get(within, {}).get("sha256") != sha256:
                what = (
                    f"the {split} text of this dataset is not the text of the labels for training.fertility, {pair[1]}"
                )
                hint = "an interrupted prepare leaves this: run phraseloom prepare RECIPE --overwrite"
                raise UsageError(what, file=config.folder, hint=hint)
    return labels


def _check_texts(config: DataConfig, index: Index, made: Mapping[str, Step]) -> None:
    """Raise UsageError if the steps of the recipe do not write the training and validation text of the dataset."""
    texts, splits = _texts(config, made), dict[str, SplitInfo](index.splits.items())
    for split in (split for split in ("train", "valid") if split in splits and split in texts):
        file = splits[split].files[0]
        for side, name in (("source", file.source), ("target", file.target)):
            step, within = texts[split][side]
            if not Path(name).as_posix().endswith(f"/{step.folder.name}/{within}"):
                raise _other_phrases(config, index, Path(name), made)


def find_lexicon(config: DataConfig) -> Path:
    """The lexicon that `prepare` made with the phrases of the target. Raises FileProblem if there is none."""
    path = _by_name(_steps(config, *_options(config), Path()))["lexicon"].folder / LEXICON
    if not path.is_file():
        hint = "phraseloom prepare RECIPE --overwrite, with the same KEY=VALUE, writes it"
        raise FileProblem("no lexicon for decoding.lexicon: auto", file=path, hint=hint)
    return path


def _by_name(steps: Steps) -> dict[str, Step]:
    return {name: steps.step(name, StepScope("", ROW)) for name in steps.config.steps}


def _other_phrases(config: DataConfig, index: Index, text: Path, made: Mapping[str, Step]) -> UsageError:
    """The error for a dataset of `text`, which the steps of the recipe do not write."""
    here, there = config.text.model_dump(mode="json"), index.config["text"]
    for key in (key for key in here if here[key] != there.get(key)):
        what = f"this dataset was prepared with data.text.{key}: {there.get(key)}, but the recipe has {here[key]}"
        return UsageError(what, file=config.folder, hint=PREPARE_AGAIN)
    joined = _recorded_words(folder_of(config) / "steps" / text.parent.name)
    table = _recorded_words(Path(joined[joined.index("--table") + 1]).parent) if "--table" in joined[:-1] else []
    old, new = _filter_options(table), _filter_options(made["table"].argv)
    if table and old != new:
        of_dataset, of_recipe = (", ".join(sorted(a - b)) or "the default" for a, b in ((old, new), (new, old)))
        what = f"this dataset was prepared with data.target_phrases: {of_dataset}, but the recipe has {of_recipe}"
        return UsageError(what, file=config.folder, hint=PREPARE_AGAIN)
    what = f"this dataset was prepared from {text}, which is not made with data.target_phrases of this recipe"
    return UsageError(what, file=config.folder, hint=PREPARE_AGAIN)


def _recorded_words(step: Path) -> list[str]:
    """The command line in the record of the folder of a step; empty if there is none."""
    try:
        words = read_json(step / RECORD, "record of a step").get("argv", [])
    except (FileProblem, AttributeError):
        return []
    return [str(word) for word in words] if isinstance(words, list) else []


def _vector_options(argv: Sequence[str]) -> set[str]:
    """The options of a command `embeddings train`, named as in a recipe."""
    return {
        f"{name.replace('-', '_')} {value}"
        for name, value in FILTER_OPTION.findall(" ".join(argv))
        if name.replace("-", "_") in VectorTraining.model_fields
    }


def _filter_options(argv: Sequence[str]) -> set[str]:
    """The options of a command `phrases filter`, named as in a recipe."""
    pairs = FILTER_OPTION.findall(" ".join(argv).replace("--preset", "--filter"))
    return {f"{name.replace('-', '_')} {value.rpartition('/')[2]}".strip() for name, value in pairs}


def _options(config: DataConfig) -> tuple[TargetPhrasesConfig, VectorTraining]:
    subwords = config.subwords
    if config.target_phrases is None or not isinstance(subwords, WordsConfig):
        raise UsageError("the recipe has no data.target_phrases")
    assert isinstance(subwords.vectors, TrainedVectors)  # DataConfig checks it
    return config.target_phrases, subwords.vectors.train


def _steps(config: DataConfig, phrases: TargetPhrasesConfig, vectors: VectorTraining, root: Path) -> Steps:
    """The steps as a table of one row, which `reproduce/steps.py` fills in and identifies."""
    commands = _commands(config, phrases, vectors)
    table = validate(
        TableConfig,
        {
            "format": 1,
            "paper": "",
            "title": f"phrases of {config.folder}",
            "metrics": {"seconds": {"kind": "run", "title": "seconds", "read": "seconds"}},
            "rows": {ROW: {"label": ROW}},
            "scales": {
                "paper": {"steps": commands},
                **{scale: {"not_done": "one scale only"} for scale in ("tiny", "small")},
            },
        },
    )
    words = {word for command in commands.values() for word in [*command["run"], *command["stdin"]]}
    own = {word: word.removeprefix(BELOW) for word in words if word.startswith(BELOW) or Path(word).is_absolute()}
    return Steps(table, "paper", folder_of(config) / "steps", Path(), str(root), files=own)


def _splits(config: DataConfig) -> list[str]:
    return [split for split in SPLITS if config.files(split)]


def _step(*words: str, stdin: Sequence[str] = (), stdout: str | None = None) -> dict[str, Any]:
    run = {"each": "table", "run": list(words), "stdin": list(stdin)}
    return run if stdout is None else {**run, "stdout": stdout}


def _tokens(config: DataConfig, side: str, text: str, truecaser: str | None) -> dict[str, Any]:
    """The step that makes the tokens of a file, `source.txt` or `target.txt`. `truecaser`: None for none, "" learns one."""
    options = ["--method", config.text.tokenize]
    options += [f"--{option}" for option, on in _flags(config).items() if on]
    if truecaser is not None:
        options += ["--truecaser", truecaser] if truecaser else ["--learn-truecaser", "{here}/truecaser"]
    language = base_language(config.source_language if side == "source" else config.target_language)
    return _step("tokenize", text, "-l", language, *options, stdout=f"{side}.txt")


def _text_commands(config: DataConfig) -> Commands:
    """The steps up to the tokens of every split, without training pairs that are held out or repeated, and to the trees."""
    commands: Commands = {}
    splits, words, deduplicate = _splits(config), config.filter.decontaminate, config.filter.deduplicate
    for split in splits:
        for side in SIDES:
            named = [_place(pair.sides[side][0]) for pair in config.files(split)]
            commands[f"{side}_{split}_text"] = _step("concatenate", stdin=named, stdout="out.txt")
    if words is not None or deduplicate:
        held_out = [
            word
            for split in splits[1:]
            for side in SIDES
            for word in (f"--held-out-{side}", f"{{{side}_{split}_text}}/out.txt")
        ]
        pair = ["-s", "{source_train_text}/out.txt", "-t", "{target_train_text}/out.txt"]
        which = [] if words is None else [*held_out, "--words", str(words)]
        which += ["--deduplicate"] * deduplicate
        commands[CLEAN] = _step("decontaminate", *pair, *which, "-o", f"{{here}}/{KEPT}")
    for split in splits:
        for side in SIDES:
            is_clean = split == "train" and CLEAN in commands
            raw = f"{{{CLEAN}}}/{KEPT}/{side}.txt" if is_clean else f"{{{side}_{split}_text}}/out.txt"
            commands[f"{side}_{split}"] = _tokens(config, side, raw, _truecaser(config, side, split))
        trees = [_place(pair.all_files["trees"][0]) for pair in config.files(split) if "trees" in pair.all_files]
        if trees:
            commands[f"trees_{split}"] = _step("concatenate", stdin=trees, stdout="out.txt")
    return commands


def _truecaser(config: DataConfig, side: str, split: str) -> str | None:
    """That of `_tokens`: training text learns one, which other text has."""
    if not config.text.truecase:
        return None
    return "" if split == "train" else f"{{{side}_train}}/truecaser"


def _commands(config: DataConfig, phrases: TargetPhrasesConfig, vectors: VectorTraining) -> Commands:
    """Each step: its command line, standard input and output, with names in braces (`reproduce/table.py`)."""
    commands, splits = _text_commands(config), _splits(config)

    def step(name: str, *words: str, stdin: Sequence[str] = (), stdout: str | None = None) -> None:
        commands[name] = _step(*words, stdin=stdin, stdout=stdout)

    def both(split: str) -> list[str]:
        return ["-s", f"{{source_{split}}}/source.txt", "-t", f"{{target_{split}}}/target.txt"]

    aligner = _place(phrases.aligner) if phrases.aligner is not None else "{aligner}/aligner"
    if phrases.aligner is None:
        step("aligner", "align", "train", *both("train"), "-o", "{here}/aligner", "--links", "{here}/links")
    for split in splits:
        if split == "train" and phrases.aligner is None:
            continue
        step(f"links_{split}", "align", "apply", aligner, *both(split), stdout="links")

    def links(split: str) -> str:
        return "{aligner}/links" if split == "train" and phrases.aligner is None else f"{{links_{split}}}/links"

    pairs = [*both("train"), "-a", links("train")]
    step("lexicon", "align", "lexicon", *pairs, "-o", f"{{here}}/{LEXICON}", "--min-count", "2")
    step("candidates", "phrases", "extract", *pairs, "-o", "{here}/candidates.tsv")
    limits = ["--preset", phrases.filter, *_limits(phrases, base_language(config.target_language))]
    text = ["-t", "{target_train}/target.txt"]
    step("table", "phrases", "filter", "{candidates}/candidates.tsv", *text, *limits, "-o", "{here}/phrases.tsv")
    table = ["--table", "{table}/phrases.tsv"]
    for split in splits:
        aligned = ["-s", f"{{source_{split}}}/source.txt", "-a", links(split), "--rule", phrases.rule]
        labels = ["--fertility", "{here}/fertility"]
        step(f"joined_{split}", "phrases", "segment", f"{{target_{split}}}/target.txt", *table, *aligned, *labels,
             stdout="out.txt")  # fmt: skip
    if "test" in splits:
        step("mwt", "phrases", "mwt", *both("test"), "-a", links("test"), *table, "--rule", phrases.rule,
             "-o", "{here}/mwt")  # fmt: skip
    learned = ["{joined_train}/out.txt", "{target_train}/target.txt"]
    if vectors.text:
        more = [_place(name) for name in vectors.text]
        step("target_more_text", "concatenate", stdin=more, stdout="out.txt")
        commands["target_more"] = _tokens(
            config, "target", "{target_more_text}/out.txt", _truecaser(config, "target", "more")
        )
        step("joined_more", "phrases", "segment", "{target_more}/target.txt", *table, stdout="out.txt")
        learned += ["{joined_more}/out.txt", "{target_more}/target.txt"]
    step("text_for_vectors", "concatenate", stdin=learned, stdout="out.txt")
    options: dict[str, float] = {"width": vectors.width, "epochs": vectors.epochs, "min-count": vectors.min_count}
    options |= {"sample": vectors.sample, "seed": vectors.seed}
    given = [word for name, value in options.items() for word in (f"--{name}", str(value).removesuffix(".0"))]
    step("vectors", "embeddings", "train", "{text_for_vectors}/out.txt", "-o", f"{{here}}/{VECTORS}",
         "--vocabulary", "{table}/phrases.tsv", *given)  # fmt: skip
    return commands


def _limits(phrases: TargetPhrasesConfig, language: str) -> list[str]:
    """The options of `phrases filter`; what it takes from the preset is left out."""
    words = [] if phrases.filter == "paper" else ["--no-parts-of-speech"]
    if phrases.filter == "paper" and phrases.stop_words is None and language in LANGUAGES - {"en"}:
        phrases = phrases.model_copy(update={"stop_words": language})
    for name in PhraseFilterConfig.model_fields:
        value = getattr(phrases, name)
        if name == "stop_words" and value is not None and value not in STOP_WORDS:
            value = _place(value)
        if value is not None and value is not False:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return words


def _flags(config: DataConfig) -> dict[str, bool]:
    return {"normalize": config.text.normalize == "moses", "lowercase": config.text.lowercase}


def _place(name: str) -> str:
    """A file of the recipe in a command: below the data root, unless its path is absolute."""
    return name if Path(name).is_absolute() else BELOW + name


def _labels(config: DataConfig, made: dict[str, Step]) -> dict[str, tuple[Path, Path]]:
    return {
        split: (made[f"source_{split}"].folder / "source.txt", made[f"joined_{split}"].folder / "fertility")
        for split in ("train", "valid")
        if config.files(split)
    }


def _texts(config: DataConfig, made: Mapping[str, Step]) -> dict[str, dict[str, tuple[Step, str]]]:
    """Of each split, the step that writes the source, the target and the trees of the dataset, and the file in its folder."""
    texts: dict[str, dict[str, tuple[Step, str]]] = {}
    for split in _splits(config):
        names = {"source": f"source_{split}_text", "target": f"joined_{split}", "trees": f"trees_{split}"}
        texts[split] = {side: (made[name], "out.txt") for side, name in names.items() if name in made}
    if CLEAN in made:
        texts["train"]["source"] = (made[CLEAN], f"{KEPT}/source.txt")
    return texts


def _result(
    config: DataConfig, made: dict[str, Step], root: Path, read: dict[str, list[FileInfo]], steps: int
) -> PhraseData:
    def named(path: Path) -> str:
        return os.path.relpath(
            os.path.realpath(path), os.path.realpath(root)
        )  # `..` after a link goes up from its target

    changes: dict[str, Any] = {"target_phrases": None}
    kept = made[CLEAN].folder / KEPT / LINES if CLEAN in made else None
    origins = {}
    for split, texts in _texts(config, made).items():
        changes[split] = [{side: named(step.folder / within) for side, (step, within) in texts.items()}]
        for side, name in changes[split][0].items():
            lines = [(getattr(file, side), file.lines) for file in read[split]]
            origins[name] = TextOrigin(lines, kept if split == "train" else None)
    vectors = made["vectors"].folder / VECTORS
    content = config.model_dump(mode="json") | changes
    content["subwords"] |= {"vectors": named(vectors)}
    return PhraseData(
        config=validate(DataConfig, content),
        candidates=made["candidates"].folder / "candidates.tsv",
        table=made["table"].folder / "phrases.tsv",
        joined=made["joined_train"].folder / "out.txt",
        vectors=vectors,
        labels=_labels(config, made),
        mwt=made["mwt"].folder / "mwt" if "mwt" in made else None,
        test=_test_files(config, made, root) if "mwt" in made else {},
        files=read,
        origins=origins,
        steps=steps,
        left_out=_left_out(made),
        kept=kept,
    )


def _test_files(config: DataConfig, made: Mapping[str, Step], root: Path) -> dict[str, Path]:
    """The files of `PhraseData.test`: the texts of the recipe, or of a step if there are several or compressed ones."""
    test = {"tokens": made["source_test"].folder / "source.txt", "labels": made["joined_test"].folder / "fertility"}
    for side in SIDES:
        own = [root / pair.sides[side][0] for pair in config.test]
        is_plain = len(own) == 1 and own[0].suffix not in (".gz", ".xz")
        test[side] = own[0] if is_plain else made[f"{side}_test_text"].folder / "out.txt"
    return test


def _left_out(made: dict[str, Step]) -> int | None:
    if CLEAN not in made:
        return None
    read, left = made["source_train_text"].folder / "out.txt", made[CLEAN].folder / KEPT / "source.txt"
    return count_lines(read) - count_lines(left)


def _check_input(
    config: DataConfig, phrases: TargetPhrasesConfig, vectors: VectorTraining, root: Path, progress: Progress
) -> dict[str, list[FileInfo]]:
    """Read all files of the recipe once, before the first step: names, hashes, line counts, UTF-8, aligner, languages.

    A step would find the same later, and name a file of its own. Returns the files of each split.
    """
    read: dict[str, list[FileInfo]] = {}
    lines: dict[str, int] = {}
    for split in SPLITS:
        for pair in config.files(split):
            progress(f"reading {pair.sides['source'][0]}", 0, 0)
            results = (read_through(path, sha256) for path, sha256, _ in readings(pair, root))
            read.setdefault(split, []).append(survey(pair, root, results))
        lines[split] = sum(file.lines for file in read.get(split, []))
        if config.files(split) and not lines[split]:
            raise DataError(f"the {split} files are empty", file=root / config.files(split)[0].sides["source"][0])
    for side in SIDES:
        _check_words(config, side, root)
    if phrases.aligner is not None:
        _check_aligner(config, root / phrases.aligner, root)
    if phrases.stop_words is not None and phrases.stop_words not in STOP_WORDS:
        read_stop_words(locate(root, phrases.stop_words))
    if vectors.text:
        _check_language(config, vectors.text, root, lines)
    return read


def _normaliser(config: DataConfig, side: str) -> Normaliser:
    """The normaliser of a side, without a truecaser, which the training text has yet to train."""
    language = config.source_language if side == "source" else config.target_language
    return Normaliser(config.text.model_copy(update={"truecase": False}), language)


def _check_words(config: DataConfig, side: str, root: Path) -> None:
    """Raise DataError for text of a language without spaces that is not cut into words: its lines would be the words."""
    language = config.source_language if side == "source" else config.target_language
    if is_spaced(language):
        return
    path, normalise = root / config.files("train")[0].sides[side][0], _normaliser(config, side)
    words = [word for line in islice(read_lines(path), ALIGNED_LINES) for word in normalise(line).split()]
    length = sum(map(len, words)) / max(1, len(words))
    if length > LONGEST_WORDS:
        jieba = "set data.text.tokenize: jieba, or " if is_chinese(language) else ""
        hint = f"{jieba}cut all texts of the language into words, with a space between two"
        what = f"the {side} text has no words: {length:.1f} characters from one space to the next in its first lines"
        raise DataError(what, file=path, hint=hint)


def _check_aligner(config: DataConfig, path: Path, root: Path) -> None:
    """Raise DataError for an aligner that knows less than half of the words of the beginning of a side of the text."""
    aligner = load_aligner(path)
    choose_method(None, aligner.tables)
    coverage, left = WordCoverage(aligner), ALIGNED_LINES
    normalisers = [_normaliser(config, side) for side in SIDES]
    for pair in config.files("train"):
        texts = [islice(read_lines(root / pair.sides[side][0]), left) for side in SIDES]
        lines = [list(map(normalise, text)) for normalise, text in zip(normalisers, texts, strict=True)]
        coverage.add(*lines)
        left -= len(lines[0])
    problem = coverage.problem()
    if problem is not None:
        read = plural(ALIGNED_LINES - left, "line")
        hint = f"it read {read}; name one of these languages and of text tokenised by data.text, or leave it out to train one"
        what = f"data.target_phrases.aligner {problem}"
        raise DataError(what, file=path, hint=hint)


def _check_language(config: DataConfig, more: Sequence[str], root: Path, lines: Mapping[str, int]) -> None:
    """Raise DataError if a text for vectors is not in the language of the target (`text/same_language.py`)."""

    def words(side: str) -> Counter[str]:
        paths = [root / pair.sides[side][0] for pair in config.files("train")]
        return count_words(sample(paths, lines["train"], CHECKED_LINES))

    target = words("target")
    source = words("source") if config.source_language != config.target_language else Counter[str]()
    for name in more:
        path = locate(root, name)
        text = count_words(sample([path], count_lines(path), CHECKED_LINES))
        common, of_source = overlap(target, text), overlap(source, text)
        if not text:
            what = "has no words"
        elif of_source > max(common, LEAST_OVERLAP):
            what = f"looks like the source language: {_common(of_source, 'source')}, {common:.0%} with the target"
        elif min(text.total(), target.total()) >= FEWEST_WORDS and common < LEAST_OVERLAP:
            least = f"at least {LEAST_OVERLAP:.0%} are expected"
            what = f"is not in the target language: {_common(common, 'target')}, {least}"
        else:
            continue
        hint = f"give text in {config.target_language}; {plural(CHECKED_LINES, 'line')} of each text are compared"
        raise DataError(f"data.subwords.vectors.train.text {what}", file=path, hint=hint)


def _common(share: float, side: str) -> str:
    return f"{share:.0%} of its words in common with the {side} of the training text"
