"""Pictures of runs and scores as PNG (or SVG, by the name of the file). Needs the extra `plot` (matplotlib).

Colours are those of Okabe and Ito, told apart with any colour vision; every series also has its own marker and dash.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from phraseloom.errors import DataError, PhraseloomError, UsageError
from phraseloom.files import atomic_write
from phraseloom.report.run.history import METRICS, RunHistory, read_history

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 2)), (0, (7, 2)))
GREY = "#555555"
NICE_STEPS = [1, 2, 5, 10]
CURVES = "curves.png"
STYLE: Any = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "svg.hashsalt": "phraseloom",
}


def learning_curves(run_folder: str | Path, output: str | Path | None = None) -> Path | None:
    """Draw loss, validation, learning rate and gradient norm of a run to `curves.png` in its folder.

    Returns the path, or None where there is nothing to draw or no matplotlib (which is said in the log): a picture must
    not end a run. Reads `metrics.jsonl` and `timing.jsonl`; a truncated last line is left out.
    """
    history = read_history(run_folder)
    if len(history.training) + len(history.validation) == 0:
        return None
    if importlib.util.find_spec("matplotlib") is None:
        logging.getLogger("phraseloom").warning("no learning curves drawn: %s", _missing())
        return None
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure, axes = _grid(2, 2, f"Learning curves: {history.name}")
        _loss(axes[0][0], history)
        _validation(axes[0][1], history)
        _training_value(axes[1][0], history, "lr", "Learning rate", "learning rate")
        _training_value(axes[1][1], history, "grad_norm", "Gradient norm before clipping", "L2 norm", log=True)
        last = max(max(history.training, default=0), max(history.validation, default=0), 1)
        for row, ax in ((r, a) for r in (0, 1) for a in axes[r]):
            _updates_axis(ax, last)
            if row == 0:
                _wall_time_axis(ax, history)
        if history.unreadable:
            _footnote(figure, f"unreadable lines left out: {history.unreadable}")
        return _save(figure, Path(output) if output is not None else Path(run_folder) / CURVES)


def draw_after_training(run: Path, say: Callable[[str], None]) -> None:
    """Draw `curves.png` of a run that has ended, unless it is there already; what keeps it from that is said, not raised."""
    curves, metrics = run / CURVES, run / METRICS
    try:
        if curves.is_file() and curves.stat().st_mtime >= metrics.stat().st_mtime:
            return
        if importlib.util.find_spec("matplotlib") is None:
            say("no learning curves drawn: they need matplotlib (pip install 'phraseloom[plot]')")
        elif learning_curves(run) is None:
            say(f"no learning curves drawn: {metrics} has no update")
    except (ImportError, PhraseloomError, OSError, ValueError) as error:
        say(f"no learning curves drawn: {error}")


def comparison(runs: Mapping[str, str | Path], output: str | Path, *, title: str = "Comparison of runs") -> Path:
    """Draw the validation perplexity, BLEU and cosine loss of several runs (label → run folder), against updates and wall time.

    Raises DataError for a run without validation, UsageError without matplotlib.
    """
    can_draw(output)
    import matplotlib
    from matplotlib import ticker

    histories = [read_history(folder, name=label) for label, folder in runs.items()]
    for h in histories:
        if not h.validation:
            raise DataError(f"the run {h.name!r} has no validation yet", file=Path(runs[h.name]) / "metrics.jsonl")
    keys = [k for k in _NAMES if any(len(h.curve(k, of="validation")[0]) for h in histories)]
    unit, seconds = _time_unit(max((float(h.clock()[1].max(initial=0)) for h in histories), default=0))
    with matplotlib.rc_context(STYLE):
        figure, axes = _grid(len(keys), 2, title, legend_rows=1 + (len(runs) - 1) // 3)
        for row, key in zip(axes, keys, strict=True):
            for i, h in enumerate(histories):
                updates, values = h.curve(key, of="validation")
                times = h.at_time(updates)
                row[0].plot(updates, values, label=h.name, **_series(i))
                if times is not None:
                    row[1].plot(times / seconds, values, **_series(i))
            for ax, against in zip(row, ("updates", "wall time"), strict=True):
                _value_axis(ax, key)
                ax.set_title(f"Validation {_NAMES[key]} against {against}")
            _updates_axis(row[0], max(max(h.validation) for h in histories))
            row[1].set_xlabel(f"wall time ({unit})")
            row[1].set_xlim(left=0)
            row[1].xaxis.set_major_locator(ticker.MaxNLocator(7, steps=NICE_STEPS))
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(3, len(runs)))
        return _save(figure, Path(output))


# --- parts ------------------------------------------------------------------------------------------------------------

_NAMES = {"perplexity": "perplexity", "bleu": "BLEU", "cosine_loss": "cosine loss"}
_SCALES = {"perplexity": " (log scale)", "bleu": " (0–100)", "cosine_loss": " (0–2)"}


def _loss(ax: Any, history: RunHistory) -> None:
    updates, nll = history.curve("nll")
    if not len(updates):
        updates, nll = history.curve("loss")
    many = len(updates) > 40
    alpha, label = (0.3, None) if many else (1.0, "training")
    ax.plot(updates, nll, color=COLOURS[0], alpha=alpha, lw=1, label=label, marker=_single(updates))
    if many:
        ax.plot(updates, _smooth(nll), color=COLOURS[0], label="training (running mean)")
    at, perplexity = history.curve("perplexity", of="validation")
    if len(at):
        ax.plot(at, np.log(np.maximum(perplexity, 1e-12)), color=COLOURS[1], marker="o", ls="--", label="validation")
    ax.set_title("Negative log-likelihood")
    ax.set_ylabel("nats per target token")
    ax.legend()


def _single(updates: np.ndarray) -> str | None:
    """The marker of a curve of training values: a single point has no line that would show it."""
    return "o" if len(updates) == 1 else None


def _validation(ax: Any, history: RunHistory) -> None:
    key = "bleu" if len(history.curve("bleu", of="validation")[0]) else "perplexity"
    updates, values = history.curve(key, of="validation")
    ax.set_title(f"Validation {_NAMES[key]}")
    if not len(updates):
        ax.text(0.5, 0.5, "not validated yet", transform=ax.transAxes, ha="center", color=GREY)
        ax.set_yticks([])
        return
    ax.plot(updates, values, color=COLOURS[1], marker="o", ls="--")
    best = int(values.argmax() if key == "bleu" else values.argmin())
    ax.plot(updates[best], values[best], marker="o", ms=11, mfc="none", mec="black", ls="none", clip_on=False)
    place = (0.97, 0.05) if key == "bleu" else (0.97, 0.9)
    text = f"best {values[best]:.2f} at update {int(updates[best]):,}"
    ax.text(*place, text, transform=ax.transAxes, ha="right")
    _value_axis(ax, key)


def _training_value(ax: Any, history: RunHistory, key: str, title: str, label: str, *, log: bool = False) -> None:
    updates, values = history.curve(key)
    alpha = 0.45 if log and len(updates) > 40 else 1.0
    ax.plot(updates, values, color=COLOURS[2], lw=1, alpha=alpha, marker=_single(updates))
    if log and len(updates) > 40:
        ax.plot(updates, _smooth(values), color=COLOURS[2])
    if log and len(values) and values.min() > 0:
        _log_axis(ax)
    elif not log and len(values) and values.max() > 0:
        from matplotlib import ticker

        power = int(np.floor(np.log10(values.max())))
        ax.yaxis.set_major_formatter(ticker.FuncFormatter(lambda v, _: f"{v / 10.0**power:g}"))
        ax.set_ylim(bottom=0)
        label = f"{label} ($×10^{{{power}}}$)"
    ax.set_title(title)
    ax.set_ylabel(label)


def _value_axis(ax: Any, key: str) -> None:
    ax.set_ylabel(_NAMES[key] + _SCALES[key])
    if key == "perplexity":
        _log_axis(ax)
    else:
        ax.set_ylim(bottom=0)


def _log_axis(ax: Any) -> None:
    from matplotlib import ticker

    ax.set_yscale("log")
    low, high = ax.get_ylim()
    digits = (1.0, 2.0, 5.0) if high / low > 8 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
    ax.yaxis.set_major_locator(ticker.LogLocator(subs=digits))
    ax.yaxis.set_major_formatter(ticker.FuncFormatter(lambda v, _: f"{v:g}"))
    ax.yaxis.set_minor_locator(ticker.NullLocator())


def _updates_axis(ax: Any, last: int) -> None:
    from matplotlib import ticker

    ax.set_xlabel("updates")
    ax.set_xlim(0, last * 1.03)
    ax.xaxis.set_major_locator(ticker.MaxNLocator(6, integer=True, steps=NICE_STEPS))
    ax.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))


def _wall_time_axis(ax: Any, history: RunHistory) -> None:
    """A second scale on top: the wall time at which the updates were reached."""
    updates, seconds = history.clock()
    if not len(updates):
        return
    from matplotlib import ticker

    unit, size = _time_unit(float(seconds[-1]))
    left, right = ax.get_xlim()
    marks = np.asarray(ticker.MaxNLocator(6, steps=NICE_STEPS).tick_values(0, float(seconds[-1]) / size))
    marks = marks[marks * size <= seconds[-1]]
    top = ax.twiny()
    top.set_xlim(left, right)
    top.set_xticks(np.interp(marks * size, seconds, updates), [f"{m:g}" for m in marks])
    top.grid(visible=False)
    top.spines["top"].set_visible(True)
    top.spines["top"].set_color(GREY)
    top.tick_params(axis="x", labelsize=8, colors=GREY, pad=1)
    top.set_xlabel(f"wall time ({unit})", size=8, color=GREY)


def _time_unit(seconds: float) -> tuple[str, float]:
    return ("hours", 3600.0) if seconds > 3 * 3600 else ("minutes", 60.0) if seconds > 180 else ("seconds", 1.0)


def _smooth(values: np.ndarray) -> np.ndarray:
    """A centred running mean over a fiftieth of the values, narrower at the ends."""
    half = max(1, len(values) // 100)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    place = np.arange(len(values))
    low, high = np.maximum(place - half, 0), np.minimum(place + half + 1, len(values))
    return np.asarray((sums[high] - sums[low]) / (high - low))


def _series(i: int) -> dict[str, Any]:
    return {"color": COLOURS[i % 7], "marker": MARKERS[i % 7], "ls": DASHES[i % 7]}


def _grid(rows: int, columns: int, title: str, *, legend_rows: int = 0, size: tuple[float, float] | None = None) -> Any:
    from matplotlib.figure import Figure

    size = size or (5.3 * columns, 3.7 * rows + 0.3 * legend_rows + 0.4)
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", size=13)
    return figure, figure.subplots(rows, columns, squeeze=False)


def _footnote(figure: Any, text: str) -> None:
    figure.supxlabel(text, x=0.01, ha="left", size=7, color=GREY)


def can_draw(path: str | Path, num_systems: int = 1) -> None:
    """Raise UsageError without matplotlib, for a name that is not that of a picture, and for too many systems."""
    if importlib.util.find_spec("matplotlib") is None:
        what, hint = _missing().split("; ")
        raise UsageError(f"pictures cannot be drawn: {what}", hint=hint)
    if Path(path).suffix.lower() not in (".png", ".svg", ".pdf"):
        raise UsageError(f"pictures are .png, .svg or .pdf, not {Path(path).name!r}")
    if num_systems > len(COLOURS):
        raise UsageError(f"{num_systems} systems are too many for one picture, at most {len(COLOURS)}")


def _save(figure: Any, path: Path) -> Path:
    atomic_write(path, lambda temporary: figure.savefig(temporary, format=path.suffix.lstrip(".").lower()))
    return path


def _legend_above(ax: Any, columns: int, **style: Any) -> None:
    """The legend of the systems in `columns` above a panel; names are not read as formulas."""
    place = {"loc": "lower left", "bbox_to_anchor": (-0.02, 1.0), "borderaxespad": 0.2}
    for text in ax.legend(ncols=columns, **place, **style).get_texts():
        text.set_parse_math(False)


def _missing() -> str:
    return "matplotlib is not installed; pip install 'phraseloom[plot]'"
