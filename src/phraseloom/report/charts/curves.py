"""Learning curves of one or several systems, for the report and for `curves.png` in the folder of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from phraseloom.errors import PhraseloomError
from phraseloom.report.charts.chart import Axes, Chart, Series
from phraseloom.report.charts.picture import INSTALL, draw, has_matplotlib
from phraseloom.report.run.history import METRICS
from phraseloom.report.run.runs import LearningCurve, System, SystemFacts, read_system

PICTURE = "curves.png"
VALIDATION = (
    ("perplexity", "Validation perplexity", "perplexity (log scale)", True),
    ("bleu", "Validation BLEU", "BLEU", False),
    ("cosine_loss", "Validation cosine loss", "1 − cosine with the vector of the word", False),
)
STEPS = (
    ("lr", "Learning rate", "learning rate", False),
    ("grad_norm", "Gradient norm before clipping", "L2 norm (log scale)", True),
)


class CurveCharts(NamedTuple):
    """Training loss by kind of output, validation by updates, validation by wall time, and the steps of the optimiser."""

    loss: list[Chart]
    validation: list[Chart]
    by_time: list[Chart]
    steps: list[Chart]


def curve_charts(systems: Sequence[SystemFacts]) -> CurveCharts:
    """The learning curves of systems; charts without a point are left out."""
    kinds = list(dict.fromkeys(_output(system) for system in systems if "nll" in system.curves))
    unit, seconds = _unit(systems)

    def chart(key: str, title: str, y: str, log: bool, *, timed: bool = False) -> Chart:
        known = [(s, curve) for s in systems if (curve := s.curves.get(key)) and not (timed and curve.seconds is None)]
        series = [_series(s, key, curve, seconds if timed else None) for s, curve in known]
        x = f"wall time ({unit})" if timed else "updates"
        return Chart(f"{title} by wall time" if timed else title, series, Axes(x, y, y_log=log, x_zero=True))

    charts = CurveCharts(
        [
            _loss([s for s in systems if "nll" in s.curves and _output(s) == kind], kind, alone=len(kinds) == 1)
            for kind in kinds
        ],
        [chart(*row) for row in VALIDATION],
        [chart(*row, timed=True) for row in VALIDATION[:2]],
        [chart(*row) for row in STEPS],
    )
    return CurveCharts(*([one for one in group if one.shown] for group in charts))


def draw_curves(run: Path, output: Path) -> bool:
    """Draw the learning curves of a run. Returns False if it has none. Raises UsageError without matplotlib."""
    system = read_system(System(run.resolve().name, (run,)))
    charts = [chart for group in curve_charts([system]) for chart in group]
    if charts:
        lines = sum(facts.unreadable_lines for facts in system.runs)
        note = f"unreadable lines left out: {lines}" if lines else ""
        draw(charts, output, title=f"Learning curves: {system.name}", note=note, columns=2)
    return bool(charts)


def draw_after_training(run: Path, say: Callable[[str], None]) -> None:
    """Draw `curves.png` of a run that has ended, unless it is there already; what keeps it from that is said, not raised."""
    picture, metrics = run / PICTURE, run / METRICS
    try:
        if picture.is_file() and picture.stat().st_mtime >= metrics.stat().st_mtime:
            return
        if not has_matplotlib():
            say(f"no learning curves drawn: they need matplotlib ({INSTALL})")
        elif not draw_curves(run, picture):
            say(f"no learning curves drawn: {metrics} has no update")
    except (ImportError, PhraseloomError, OSError, ValueError) as error:
        say(f"no learning curves drawn: {error}")


def _output(system: SystemFacts) -> str:
    return next((run.output for run in system.runs if run.output), "")


def _loss(systems: Sequence[SystemFacts], kind: str, *, alone: bool) -> Chart:
    """The training loss of models with the same kind of output; of a softmax also that of validation, pale."""
    softmax = kind in ("", "softmax")
    series = []
    for system in systems:
        series.append(_series(system, "nll", system.curves["nll"]))
        valid = system.curves.get("perplexity") if softmax else None
        if valid is not None:
            logs = [math.log(max(value, 1e-12)) for value in valid.values]
            validation = valid.model_copy(update={"values": logs, "deviation": None})
            series.append(_series(system, "validation", validation, faint=True))
    title = "Training loss" + ("; pale: validation" if any(one.faint for one in series) else "")
    label = "nats per target subword" if softmax else f"loss of {kind} output"
    return Chart(title + ("" if alone else f" ({kind or 'other'} output)"), series, Axes("updates", label, x_zero=True))


def _series(
    system: SystemFacts, key: str, curve: LearningCurve, seconds: float | None = None, *, faint: bool = False
) -> Series:
    """A curve by updates, or by wall time in units of `seconds`; the band is one standard deviation over runs."""
    places = [s / seconds for s in curve.seconds or ()] if seconds else curve.updates
    ends = [(v - d, v + d) for v, d in zip(curve.values, curve.deviation or (), strict=False)]
    numbers = [f"{v:.{5 if key == 'lr' else 3}f}" if abs(v) < 1e9 else f"{v:.3g}" for v in curve.values]
    what = f"{system.name}, {key}" if faint else system.name
    return Series(
        system.name,
        list(zip(places, curve.values, strict=True)),
        system.look,
        ends,
        band=True,
        marked=len(places) <= 40,
        faint=faint,
        tips=[f"{what}, update {u:,.0f}: {number}" for u, number in zip(curve.updates, numbers, strict=True)],
    )


def _unit(systems: Sequence[SystemFacts]) -> tuple[str, float]:
    longest = max((max(c.seconds or [0]) for s in systems for c in s.curves.values()), default=0)
    return ("hours", 3600.0) if longest > 3 * 3600 else ("minutes", 60.0) if longest > 180 else ("seconds", 1.0)
