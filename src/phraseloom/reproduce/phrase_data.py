"""The steps before `prepare` for a recipe with `data.target_phrases`: from plain text to joined text, labels and vectors.

    DATASET.phrases/steps/NAME-DIGITS/     one folder a step, as `reproduce` has them (execute.py, records.py)

Tokens, word links, candidate phrases, the table of phrases, text with its phrases joined and the fertility of each source word,
and vectors of both. Every step is a command of this program; a second run does only what is missing or whose input has
changed. `prepare` then reads the joined text and the vectors like those of any other recipe.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from phraseloom import files
from phraseloom.config import validate
from phraseloom.data.survey import check_sha256
from phraseloom.errors import DataError, FileProblem, UsageError, plural
from phraseloom.options.data import DataConfig, TargetPhrasesConfig
from phraseloom.options.text import TrainedVectors, VectorTraining, WordsConfig
from phraseloom.reproduce.execute import PROGRAM, Execution
from phraseloom.reproduce.records import LOG
from phraseloom.reproduce.steps import Step, Steps, StepScope, in_order
from phraseloom.reproduce.table import TableConfig
from phraseloom.text.lines import count_lines, read_lines

SUFFIX = ".phrases"
SPLITS = ("train", "valid", "test")
CHECKED_LINES = 20_000
Say = Callable[[str], None]
Commands = dict[str, dict[str, Any]]
ROW = "data"


@dataclass(frozen=True)
class PhraseData:
    """What the steps wrote. `config`: the recipe's data with joined text and a file of vectors; the rest by split."""

    config: DataConfig
    table: Path
    vectors: Path
    labels: dict[str, tuple[Path, Path]]  # tokenised source, fertility of its words
    mwt: Path | None


def folder_of(config: DataConfig) -> Path:
    """The folder of the steps, beside the dataset."""
    return Path(config.folder + SUFFIX)


def make_phrase_data(
    config: DataConfig, *, data_root: str | Path = ".", say: Say = print, program: Sequence[str] = PROGRAM
) -> PhraseData:
    """Run the steps of a recipe with `target_phrases` that are not done.

    Raises DataError if a step fails, with its last message, and for text in another language; FileProblem for a missing file;
    InterruptedRun after a signal. Completed steps are kept in any case.
    """
    phrases, vectors = _options(config)
    root = Path(data_root)
    for pair in (pair for split in SPLITS for pair in config.files(split)):
        for name, sha256 in pair.all_files.values():
            check_sha256(files.require_file(root / name, "text file"), sha256)
    for name in vectors.text:
        files.require_file(root / name, "text for vectors")
    _check_language(config, vectors.text, root)
    steps = _steps(config, phrases, vectors, root)
    made = {name: steps.step(name, StepScope("", ROW)) for name in steps.config.steps}
    files.disk.mkdir(steps.work)
    with files.FolderLock(folder_of(config)):
        _run(in_order([made["table"]]), say, program)
        table = made["table"].folder / "phrases.tsv"
        if not count_lines(table):
            raise DataError(
                "no phrase is left: no source word is linked to several target words often enough",
                file=table,
                hint="lower data.target_phrases.min_count, or give more text; "
                f"{made['table'].folder / LOG} says how many candidates each filter dropped",
            )
        _run(in_order(list(made.values())), say, program)
    return _result(config, made, root)


def _run(steps: Sequence[Step], say: Say, program: Sequence[str]) -> None:
    records = Execution(steps, say=say, program=program).run()
    for step in steps:
        if (record := records[step.identity]).state != "done":
            hint = f"its log is {step.folder / LOG}; the same command resumes here"
            raise DataError(f"{step.name} failed: {record.message}", hint=hint)


def find_labels(config: DataConfig) -> dict[str, tuple[Path, Path]]:
    """The tokenised source and the fertilities of each split that `make_phrase_data` wrote. Raises FileProblem if missing."""
    phrases, vectors = _options(config)
    steps = _steps(config, phrases, vectors, Path())
    made = {name: steps.step(name, StepScope("", ROW)) for name in steps.config.steps}
    labels = _labels(config, made)
    for pair in labels.values():
        for path in pair:
            if not path.is_file():
                raise FileProblem("no labels for training.fertility", file=path, hint="phraseloom prepare writes them")
    return labels


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
    return Steps(table, "paper", folder_of(config) / "steps", Path(), str(root))


def _commands(config: DataConfig, phrases: TargetPhrasesConfig, vectors: VectorTraining) -> Commands:
    """Each step: its command line, standard input and output, with names in braces (`reproduce/table.py`)."""
    commands: Commands = {}

    def step(name: str, *words: str, stdin: Sequence[str] = (), stdout: str | None = None) -> None:
        run = {"each": "table", "run": list(words), "stdin": list(stdin)}
        commands[name] = run if stdout is None else {**run, "stdout": stdout}

    def tokens(name: str, language: str, stdin: Sequence[str], truecaser: str | None) -> None:
        """Two steps: the files as one, and their tokens in `source.txt` or `target.txt`. `truecaser`: "" learns one."""
        step(f"{name}_text", "concatenate", stdin=stdin, stdout="out.txt")
        options = ["--method", config.text.tokenize]
        options += [f"--{option}" for option, on in _flags(config).items() if on]
        if truecaser is not None:
            options += ["--truecaser", truecaser] if truecaser else ["--learn-truecaser", "{here}/truecaser"]
        step(name, "tokenize", f"{{{name}_text}}/out.txt", "-l", language, *options, stdout=f"{name.split('_')[0]}.txt")

    splits = [split for split in SPLITS if config.files(split)]
    truecasers: dict[str, str | None] = dict.fromkeys(("source", "target"), "" if config.text.truecase else None)
    for split in splits:
        for side, language in (("source", config.source_language), ("target", config.target_language)):
            named = [_place(pair.sides[side][0]) for pair in config.files(split)]
            tokens(f"{side}_{split}", language, named, truecasers[side])
            if config.text.truecase:
                truecasers[side] = f"{{{side}_train}}/truecaser"
        trees = [_place(pair.all_files["trees"][0]) for pair in config.files(split) if "trees" in pair.all_files]
        if trees:
            step(f"trees_{split}", "concatenate", stdin=trees, stdout="out.txt")

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

    step("candidates", "phrases", "extract", *both("train"), "-a", links("train"), "-o", "{here}/candidates.tsv")
    limits = ["--preset", phrases.filter, "--min-count", str(phrases.min_count), "--max-words", str(phrases.max_words)]
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
        tokens("target_more", config.target_language, more, truecasers["target"])
        step("joined_more", "phrases", "segment", "{target_more}/target.txt", *table, stdout="out.txt")
        learned += ["{joined_more}/out.txt", "{target_more}/target.txt"]
    step("text_for_vectors", "concatenate", stdin=learned, stdout="out.txt")
    options: dict[str, float] = {"width": vectors.width, "epochs": vectors.epochs, "min-count": vectors.min_count}
    options |= {"sample": vectors.sample, "seed": vectors.seed}
    given = [word for name, value in options.items() for word in (f"--{name}", f"{value:g}")]
    step("vectors", "embeddings", "train", "{text_for_vectors}/out.txt", "-o", "{here}/vectors.vec",
         "--vocabulary", "{table}/phrases.tsv", *given)  # fmt: skip
    return commands


def _flags(config: DataConfig) -> dict[str, bool]:
    return {"normalize": config.text.normalize == "moses", "lowercase": config.text.lowercase}


def _place(name: str) -> str:
    """A file of the recipe in a command: below the data root, unless its path is absolute."""
    return name if Path(name).is_absolute() else f"{{root}}/{name}"


def _labels(config: DataConfig, made: dict[str, Step]) -> dict[str, tuple[Path, Path]]:
    return {
        split: (made[f"source_{split}"].folder / "source.txt", made[f"joined_{split}"].folder / "fertility")
        for split in ("train", "valid")
        if config.files(split)
    }


def _result(config: DataConfig, made: dict[str, Step], root: Path) -> PhraseData:
    def named(path: Path) -> str:
        return os.path.relpath(path, root)

    changes: dict[str, Any] = {"target_phrases": None}
    for split in SPLITS:
        steps = {"source": f"source_{split}_text", "target": f"joined_{split}", "trees": f"trees_{split}"}
        if config.files(split):
            changes[split] = [
                {key: named(made[name].folder / "out.txt") for key, name in steps.items() if name in made}
            ]
    vectors = made["vectors"].folder / "vectors.vec"
    content = config.model_dump(mode="json") | changes
    content["subwords"] |= {"vectors": named(vectors)}
    return PhraseData(
        config=validate(DataConfig, content),
        table=made["table"].folder / "phrases.tsv",
        vectors=vectors,
        labels=_labels(config, made),
        mwt=made["mwt"].folder / "mwt" if "mwt" in made else None,
    )


def _check_language(config: DataConfig, more: Sequence[str], root: Path) -> None:
    """Raise DataError if the words of a text for vectors are those of the source rather than those of the target."""
    if not more or config.source_language == config.target_language:
        return
    words = {
        side: Counter(w for f in config.train for w in _words(root / f.sides[side][0])) for side in ("source", "target")
    }
    for name in more:
        seen = Counter(_words(root / name))
        total = sum(seen.values())
        shares = {side: sum(n for w, n in seen.items() if w in known) / max(1, total) for side, known in words.items()}
        if not total or shares["source"] > shares["target"]:
            what = "has no words" if not total else (
                f"looks like the source language: {100 * shares['source']:.0f} % of its words stand in the source of the "
                f"training text, {100 * shares['target']:.0f} % in the target"
            )  # fmt: skip
            raise DataError(
                f"data.subwords.vectors.train.text {what}",
                file=root / name,
                hint=f"give text in {config.target_language}; the first {plural(CHECKED_LINES, 'line')} were read",
            )


def _words(path: Path) -> list[str]:
    return [word.lower() for line in islice(read_lines(path), CHECKED_LINES) for word in line.split()]
