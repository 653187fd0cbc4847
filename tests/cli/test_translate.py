from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.cli.conftest import Command, phraseloom
from tests.helpers import HANGS

from phraseloom.cli.streams import windows
from phraseloom.text.lines import LineReport

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
LINES = "a dog runs\n\ncat sleeps here\n \u3000\na red dog\u2028a cat\n"


def test_one_line_out_per_line_in(command: Command, project: Path) -> None:
    done = command("translate", project / "run", "--beam", "2", stdin=LINES.encode())
    assert done.code == 0, done.err
    out = done.out.split("\n")
    assert len(out) == 6
    assert out[-1] == ""
    assert [bool(line) for line in out[:5]] == [True, False, True, False, True]


def test_model_folder_run_folder_and_checkpoint_mean_the_same(command: Command, project: Path) -> None:
    best = (project / "run" / "best").resolve()
    outs = [command("translate", p, stdin=b"a dog\n").out for p in (project / "run", project / "run" / "best", best)]
    assert outs[0]
    assert len(set(outs)) == 1


def test_an_unfinished_last_line_and_empty_input(command: Command, project: Path) -> None:
    assert command("translate", project / "run", stdin=b"").out == ""
    whole = command("translate", project / "run", stdin=b"a dog\na cat\n").out
    assert command("translate", project / "run", stdin=b"a dog\na cat").out == whole


def test_n_best_list(command: Command, project: Path) -> None:
    several = ("--beam", "4", "--n-best", "3")
    done = command("translate", project / "run", "--output", "nbest", *several, stdin=LINES.encode())
    assert done.code == 0, done.err
    found = command("translate", project / "run", "--output", "json", *several, stdin=LINES.encode()).out
    values = [json.loads(line) for line in found.rstrip("\n").split("\n")]
    sizes = [len(t["tokens"]) for v in values for t in (v, *v.get("alternatives", []))]
    rows = [line.split(" ||| ") for line in done.out.rstrip("\n").split("\n")]
    assert [int(r[0]) for r in rows] == [0, 0, 0, 1, 2, 2, 2, 3, 4, 4, 4]
    for (_, _, features, score), length in zip(rows, sizes, strict=True):
        name, log_prob, size_name, size = features.split(" ")
        assert (name, size_name) == ("LogProb=", "Length=")
        assert float(log_prob) <= float(score) + 1e-6
        assert int(size) == length
    refused = command("translate", project / "run", "--n-best", "3", stdin=b"a\n")
    assert refused.code == 2
    assert "--n-best needs" in refused.err
    refused = command("translate", project / "run", "--output", "nbest", "--min-score", "0.5", stdin=b"a\n")
    assert refused.code == 2
    assert "--min-score needs" in refused.err
    refused = command("translate", project / "run", "--min-score", "nan", stdin=b"a\n")
    assert refused.code == 2 and "--min-score nan: it must be a finite number" in refused.err
    for beam, width in (((), 5), (("--beam", "2"), 2)):
        refused = command("translate", project / "run", "--output", "nbest", *beam, "--n-best", "6", stdin=b"a\n")
        assert (refused.code, refused.err) == (
            2,
            f"phraseloom translate: n_best 6 is larger than beam {width}; set beam to 6\n",
        )


def test_bounds_of_length_that_never_meet_are_refused(command: Command, project: Path) -> None:
    for low, high in (("5,5", "1,1"), ("3", "2"), ("1,1", "1,0"), ("2,0", "1,0")):
        refused = command("translate", project / "run", "--min-length", low, "--max-length", high, stdin=b"a\n")
        assert refused.code == 2 and refused.is_one_line_of("translate")
        assert "for every source: no output is within both" in refused.err
    for low, high in (("2,0", "0,5"), ("0,9", "2,1"), ("3", "3")):  # they meet for some lines
        bounds = ("--min-length", low, "--max-length", high, "--beam", "1")
        assert command("translate", project / "run", *bounds, stdin=b"a dog runs\na\n").code == 0
    assert command("translate", project / "run", "--max-length", "0", "--beam", "1", stdin=b"a\n").code == 0


def test_json_has_everything(command: Command, project: Path) -> None:
    done = command("translate", project / "run", "--output", "json", "--max-length", "3", stdin=LINES.encode())
    values = [json.loads(line) for line in done.out.rstrip("\n").split("\n")]
    assert [v["id"] for v in values] == [0, 1, 2, 3, 4]
    assert [v["blank"] for v in values] == [False, True, False, True, False]
    for value in values:
        assert {"text", "score", "log_prob", "tokens", "words", "alignment", "cropped", "hit_max_length"} <= set(value)
        assert len(value["tokens"]) <= 3
        assert len(value["alignment"]) == len(value["words"])


def test_alignment_file_appears_whole(command: Command, project: Path, tmp_path: Path) -> None:
    target = tmp_path / "links"
    done = command("translate", project / "run", "--alignments", target, stdin=LINES.encode())
    assert done.code == 0, done.err
    rows = target.read_text().split("\n")
    assert len(rows) == 6
    assert (rows[1], rows[3]) == ("", "")
    for row in rows:
        assert all(s.isdigit() and t.isdigit() for s, t in (pair.split("-") for pair in row.split()))
    failed = command("translate", project / "run", "--alignments", tmp_path / "no" / "\0", stdin=b"a\n")
    assert failed.code in (1, 2)


def test_options_stand_over_the_model(command: Command, project: Path, tmp_path: Path) -> None:
    run = project / "run"
    greedy = command("translate", run, "--beam", "1", "--batch", "2", "--workers", "2", stdin=LINES.encode())
    assert greedy.code == 0, greedy.err
    for arguments in (
        ["--length-penalty", "sockeye", "--alpha", "1", "--beta", "2"],
        ["--length-penalty", "none"],
        ["--alpha", "0.3"],
        ["--max-length", "1.5,3", "--min-length", "2", "--window", "2", "--stream"],
        ["--max-input-tokens", "2", "--long-lines", "split"],
    ):
        done = command("translate", run, *arguments, stdin=LINES.encode())
        assert (done.code, done.out.count("\n")) == (0, 5), done.err
    (tmp_path / "begin").write_text("ein\n\nkatze\n\n\n")
    done = command("translate", run, "--prefixes", tmp_path / "begin", stdin=LINES.encode())
    assert done.out.split("\n")[0].startswith("ein")
    assert done.out.split("\n")[2].startswith("katze")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--max-length", "x"], "'--max-length': 'x' is neither FACTOR,CONSTANT"),
        (["--workers", "many"], "workers: should be auto or a whole number (given: 'many')"),
        (["--beam", "2", "--n-best", "3", "--output", "json"], "n_best 3 is larger than beam 2; set beam to 3"),
        (["--length-penalty", "none", "--alpha", "1"], "unknown key length_penalty.alpha"),
        (["--prefixes", "nothing"], "nothing: prefix file not found"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(
    command: Command, project: Path, arguments: list[str], text: str
) -> None:
    done = command("translate", project / "run", *arguments, stdin=b"a dog\n")
    assert done.code in (1, 2)
    assert done.is_one_line_of("translate")
    assert text in done.err


def test_fewer_prefixes_than_lines(command: Command, project: Path, tmp_path: Path) -> None:
    (tmp_path / "begin").write_text("ein\n")
    done = command("translate", project / "run", "--prefixes", tmp_path / "begin", stdin=b"a\nb\n")
    assert done.code == 1
    assert "fewer prefixes than input lines" in done.err


def test_more_prefixes_than_lines(command: Command, project: Path, tmp_path: Path) -> None:
    (tmp_path / "begin").write_text("ein\n\nhund\n")
    done = command("translate", project / "run", "--prefixes", tmp_path / "begin", stdin=b"a\nb\n")
    assert done.code == 1
    assert "begin:3: more prefixes than input lines (2); the file must be parallel" in done.err


def test_long_lines_and_broken_bytes_are_counted(command: Command, project: Path) -> None:
    text = b"a dog\n" + b"red " * 200 + b"\na \xff cat\n"
    done = command("translate", project / "run", "--max-input-tokens", "50", "--max-length", "5", stdin=text)
    assert done.code == 0
    assert done.out.count("\n") == 3
    assert "warning: 1 of 3 lines longer than 50 subwords" in done.err
    assert "warning: input: 1 line with invalid UTF-8" in done.err
    assert (
        done.out.split("\n")[0] == command("translate", project / "run", "--max-length", "5", stdin=b"a dog\n").out[:-1]
    )


def test_same_bytes_in_another_locale(command: Command, project: Path) -> None:
    there = phraseloom("translate", "run", cwd=project, stdin=LINES.encode(), LC_ALL="C")
    assert there.returncode == 0, there.stderr
    assert there.stdout.decode() == command("translate", project / "run", stdin=LINES.encode()).out


def test_quiet_end_when_the_reader_goes(project: Path) -> None:
    shell = f"yes 'a dog runs' | {sys.executable} -m phraseloom translate run --window 20 --beam 1 | head -n 2"
    done = subprocess.run(
        shell, shell=True, cwd=project, capture_output=True, env=ENVIRONMENT, timeout=HANGS, check=False
    )
    assert done.stdout.count(b"\n") == 2
    assert b"Traceback" not in done.stderr
    assert b"Broken" not in done.stderr


def test_a_slow_pipe_gets_its_answer_line_by_line(project: Path) -> None:
    call = [sys.executable, "-m", "phraseloom", "translate", "run", "--stream", "--beam", "1"]
    pipe = subprocess.PIPE
    with subprocess.Popen(call, cwd=project, stdin=pipe, stdout=pipe, env=ENVIRONMENT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for text in (b"a dog\n", b"\n", b"a cat\n"):
            process.stdin.write(text)
            process.stdin.flush()
            assert process.stdout.readline().endswith(b"\n")
        process.stdin.close()
        assert process.wait(60) == 0


def test_windows_hold_what_has_arrived() -> None:
    text = "".join(f"{i}\n" for i in range(10)).encode()
    assert [len(w) for w in windows(io.BytesIO(text), 4)] == [4, 4, 2]
    assert [line for w in windows(io.BytesIO(text), 3) for line in w] == [str(i) for i in range(10)]
    report = LineReport()
    assert list(windows(io.BytesIO(b"\xff\n"), 3, report=report)) == [["\ufffd"]]
    assert report.invalid_utf8 == 1


def test_windows_do_not_wait_for_lines_that_do_not_come() -> None:
    read_end, write_end = os.pipe()
    release = threading.Event()

    def write() -> None:
        os.write(write_end, b"one\ntwo\n")
        release.wait(HANGS)
        os.write(write_end, b"three\n")
        os.close(write_end)

    thread = threading.Thread(target=write)
    thread.start()
    with io.FileIO(read_end) as stream:
        found = windows(stream, 100, seconds=0.05)
        assert next(found) == ["one", "two"]
        release.set()
        assert list(found) == [["three"]]
    thread.join()
