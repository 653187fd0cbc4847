"""O8: each line of a log is whole or absent; a run reads its logs back wherever they were cut."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import toy

from phraseloom.training.logbook import METRICS, Display, Logbook, duration, read_records


def test_metrics_cut_anywhere_are_read_and_the_run_goes_on(tmp_path: Path) -> None:
    toy.finish(tmp_path / "whole")
    data = (tmp_path / "whole" / METRICS).read_bytes()
    lines = data.split(b"\n")[:-1]
    for cut in range(0, len(data) + 1, 7):
        (tmp_path / METRICS).write_bytes(data[:cut])
        records, kept = read_records(tmp_path / METRICS)
        assert [json.loads(x) for x in lines[: data[:cut].count(b"\n")]] == records
        assert data.startswith(kept)


@pytest.mark.parametrize(
    "tail", [b'{"update": 11, "los', b"\0\0\0\0", b"nonsense\n", b'{"update": "x"}\n[1]\n', b"\xff\n"]
)
def test_a_torn_tail_leaves_no_trace_in_the_resumed_run(tmp_path: Path, tail: bytes) -> None:
    toy.finish(tmp_path / "whole", toy.config(max_updates=12))
    toy.finish(tmp_path / "run", toy.config(max_updates=10))
    with (tmp_path / "run" / METRICS).open("ab") as handle:
        handle.write(tail)
    toy.finish(tmp_path / "run", toy.config(max_updates=12))
    assert (tmp_path / "run" / METRICS).read_bytes() == (tmp_path / "whole" / METRICS).read_bytes()


def test_lost_records_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    toy.finish(tmp_path, toy.config(max_updates=10))
    (tmp_path / METRICS).unlink()
    toy.finish(tmp_path, toy.config(max_updates=12))
    assert "metrics.jsonl has no record of 10 earlier updates" in capsys.readouterr().err


def test_clock_goes_on_where_it_was(tmp_path: Path) -> None:
    one = Logbook(tmp_path)
    one.before = 100.0
    one.count(7, 8)
    one.timing(3)
    one.close()
    two = Logbook(tmp_path, 3)
    two.close()
    assert 100 <= two.seconds() < 110 and two.tokens == (7, 8)
    three = Logbook(tmp_path, 2)
    three.close()
    assert three.seconds() < 10


def test_log_escapes_controls(tmp_path: Path) -> None:
    log = Logbook(tmp_path)
    log.say("a\x1b[31mb\nc")
    log.close()
    assert rb"a\x1b[31mb\nc" in (tmp_path / "train.log").read_bytes()


def record(update: int) -> dict[str, object]:
    values = {"epoch": 0, "loss": 2.0, "nll": 1.0, "lr": 0.001, "grad_norm": 1.0, "tokens": 50, "source_tokens": 40}
    return {"update": update, **values}


def test_a_line_every_n_updates_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    display = Display(toy.config(max_updates=40), start=0, updates_per_epoch=5, stream=stream)
    for update in range(1, 21):
        display.update(record(update), update * 0.5)
    display.say("a\x1b[2Jb")
    display.close()
    first, second, said, _ = stream.getvalue().split("\n")
    assert first == "update 10 epoch 1 loss 2.0000 ppl 2.72 lr 0.001 80+100 tok/s time 0:00:05 left 0:00:15"
    assert second.startswith("update 20") and second.endswith("left 0:00:10")
    assert said == "a\\x1b[2Jb"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_on_a_terminal() -> None:
    stream = Terminal()
    display = Display(toy.config(max_updates=40), start=0, updates_per_epoch=5, stream=stream)
    for update in range(1, 12):
        display.update(record(update), update * 0.5)
    display.say("hello")
    display.close()
    text = stream.getvalue()
    assert "training" in text and "ppl 2.72" in text and "hello" in text


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00:00"), (3725.9, "1:02:05"), (float("inf"), "?"), (-1, "?")])
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
