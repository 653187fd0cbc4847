"""Write the built-in corpus as a folder: text, gold annotation, challenge sets, contrastive items.

All data are streamed, so memory does not grow with the number of pairs. `world.json` (counts, SHA-256 of every file) is
written last, and the complete folder is renamed to its final name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from phraseloom.errors import UsageError
from phraseloom.files import atomic_write_json, atomic_write_text, disk
from phraseloom.replace import FolderKind, new_folder
from phraseloom.world.contrastive import EDITS, contrasts
from phraseloom.world.generator import CONTEXTS, held_out_context
from phraseloom.world.lexicon import lexicon
from phraseloom.world.sampling import BLOCK, distinct_pairs, joined, singles, train_block

VERSION = 2  # 2: contrastive items carry the tree of their source
ENDINGS = ("en", "de", "align", "trees", "phrases", "fertility", "agreement", "phenomena")
CHALLENGE = 500
CONTRASTIVE = 210  # items per phenomenon: 10 for each distance of agreement
LINES_AT_ONCE = 500
Join = tuple[int, int]
ALONE: Join = (1, 1)
WORLD = FolderKind("world", listing="world.json", key="sha256")

README = """# The built-in language pair of phraseloom

Written by `phraseloom world` with seed {seed} (format {version}). Synthetic: English-like source, German-like target.

* `train`, `valid`, `test`: `.en` source, `.de` target, one sentence a line, words separated by spaces.
* Beside each, one line a sentence: `.align` (word links i-j, from 0, source first), `.trees` (Penn brackets of the
  source), `.phrases` (`s1:s2-t1:t2=kind`, half-open; target pieces separated by commas), `.fertility` (target words
  of each source word), `.agreement` (`head-verb/head-verb:distance`, source then target), `.phenomena`.
* `challenge-long`: sentences longer than any in training. `challenge-idioms`: known idioms in contexts that training
  never shows them in.
* `contrastive.jsonl`: a right and a wrong translation for each phenomenon; agreement at distances 0 to 20.
* `world.json`: seed, counts, SHA-256 of every file.

The same seed and numbers make the same bytes. No sentence of valid, test or a challenge set is in any training set.
"""


JOINED = """
Each line of `train`, `valid` and `test` joins {low} to {high} sentences, in turn, with all annotation; challenge sets and
`contrastive.jsonl` have single sentences.
"""


def _lines(pairs: Iterable[Any]) -> Iterator[dict[str, str]]:
    """The joined lines of LINES_AT_ONCE pairs at a time, by file extension."""
    rows: list[dict[str, str]] = []
    for pair in pairs:
        rows.append(pair.annotations())
        if len(rows) == LINES_AT_ONCE:
            yield _joined(rows)
            rows = []
    if rows:
        yield _joined(rows)


def _joined(rows: list[dict[str, str]]) -> dict[str, str]:
    return {ending: "".join([row[ending] + "\n" for row in rows]) for ending in ENDINGS}


def _block(job: tuple[int, int, int, Join]) -> list[dict[str, str]]:
    seed, block, count, join = job
    return list(_lines(joined(train_block(seed, block, singles(count, join)), count, join)))


def _train_lines(seed: int, count: int, processes: int, join: Join) -> Iterator[dict[str, str]]:
    jobs = [(seed, block, min(BLOCK, count - start), join) for block, start in enumerate(range(0, count, BLOCK))]
    if processes == 1 or len(jobs) < 2:
        for job in jobs:
            yield from _block(job)
        return
    with get_context("spawn").Pool(min(processes, len(jobs))) as pool:
        for parts in pool.imap(_block, jobs):
            yield from parts


def _write_split(folder: Path, name: str, parts: Iterator[dict[str, str]]) -> dict[str, str]:
    """Write the files of a split in parallel; return the SHA-256 by file name."""
    digests = {ending: hashlib.sha256() for ending in ENDINGS}
    with ExitStack() as stack:
        handles = {e: stack.enter_context(disk.open(folder / f"{name}.{e}", "wb")) for e in ENDINGS}
        for part in parts:
            for ending, handle in handles.items():
                data = part[ending].encode("utf-8")
                digests[ending].update(data)
                disk.write(handle, data)
        for handle in handles.values():
            disk.flush(handle)
            disk.fsync(handle)
    return {f"{name}.{ending}": digest.hexdigest() for ending, digest in digests.items()}


def write_world(
    folder: str | Path,
    *,
    seed: int = 1,
    train: int = 20_000,
    valid: int = 1_000,
    test: int = 1_000,
    challenge: int = CHALLENGE,
    contrastive: int = CONTRASTIVE,
    processes: int = 1,
    join: Join = ALONE,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write the corpus of a seed into `folder`; return the content of `world.json`. Bytes do not depend on `processes`.

    Lines of train, valid and test join `join[0]` to `join[1]` sentences in turn. Raises FileProblem, and UsageError for a
    negative number or a folder that is not empty (without `overwrite`).
    """
    for what, number in {"seed": seed, "train": train, "valid": valid, "test": test}.items():
        if number < 0:
            raise UsageError(f"{what} is {number}", hint="give 0 or more")
    if processes < 1:
        raise UsageError(f"processes is {processes}", hint="give 1 or more")
    with new_folder(folder, WORLD, overwrite=overwrite) as new:
        return _write(
            new,
            seed=seed,
            train=train,
            valid=valid,
            test=test,
            challenge=challenge,
            contrastive=contrastive,
            processes=processes,
            join=join,
        )


def _write(
    folder: Path,
    *,
    seed: int,
    train: int,
    valid: int,
    test: int,
    challenge: int,
    contrastive: int,
    processes: int,
    join: Join,
) -> dict[str, Any]:
    """Write all files into an empty folder; return the content of `world.json`."""
    counts = {"train": train, "valid": valid, "test": test, "challenge-long": challenge, "challenge-idioms": challenge}
    hashes: dict[str, str] = {}
    for name, count in counts.items():
        if name == "train":
            parts = _train_lines(seed, train, processes, join)
        else:
            grouping = join if name in ("valid", "test") else ALONE
            pairs = distinct_pairs(seed, name, singles(count, grouping))
            parts = _lines(joined(pairs, count, grouping))
        hashes |= _write_split(folder, name, parts)
    items = [json.dumps(asdict(item), ensure_ascii=False) + "\n" for item in contrasts(seed, contrastive)]
    texts = {"contrastive.jsonl": "".join(items), "README.md": README.format(seed=seed, version=VERSION)}
    if join != ALONE:
        texts["README.md"] += JOINED.format(low=join[0], high=join[1])
    for file_name, text in texts.items():
        atomic_write_text(folder / file_name, text)
        hashes[file_name] = hashlib.sha256(text.encode("utf-8")).hexdigest()
    words = lexicon()
    summary: dict[str, Any] = {
        "format": VERSION,
        "seed": seed,
        "source_language": "en",
        "target_language": "de",
        "lemmas": words.num_lemmas,
        "pairs": counts,
        **({} if join == ALONE else {"join": list(join)}),
        "contrastive": dict.fromkeys(EDITS, contrastive),
        "idiom_contexts": list(CONTEXTS),
        "idioms_held_out": {
            " ".join((idiom.english, *(word for _, _, word, _ in idiom.tail))): held_out_context(i)
            for i, idiom in enumerate(words.idioms)
        },
        "sha256": hashes,
    }
    atomic_write_json(folder / "world.json", summary)
    return summary
