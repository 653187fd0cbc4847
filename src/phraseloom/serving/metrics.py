"""Counts of the server in the text format of Prometheus (version 0.0.4), for `GET /metrics`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from phraseloom.serving.batcher import Batcher

__all__ = ["CONTENT_TYPE", "ServerMetrics"]

CONTENT_TYPE = "text/plain; version=0.0.4"
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
OTHER = "other"


class ServerMetrics:
    """Requests by path and status, their seconds, and texts and subwords translated; paths outside `paths` are `other`."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = tuple(paths)
        self._requests: Counter[tuple[str, int]] = Counter()
        self._buckets: Counter[tuple[str, float]] = Counter()
        self._seconds: Counter[str] = Counter()
        self._texts: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()

    def observe(self, path: str, status: int, seconds: float) -> None:
        """Count a request that was answered after `seconds`."""
        path = path if path in self._paths else OTHER
        self._requests[path, status] += 1
        self._seconds[path] += seconds  # type: ignore[assignment]
        for bound in BUCKETS:
            self._buckets[path, bound] += seconds <= bound

    def translated(self, model: str, texts: int, tokens: int) -> None:
        """Count the texts of a request, and the subwords of their translations."""
        self._texts[model] += texts
        self._tokens[model] += tokens

    def text(self, batcher: Batcher, uptime: float) -> str:
        """All metrics."""
        lines: list[str] = []

        def add(name: str, kind: str, about: str, *values: tuple[str, float]) -> None:
            lines.extend((f"# HELP phraseloom_{name} {about}", f"# TYPE phraseloom_{name} {kind}"))
            lines.extend(f"phraseloom_{name}{labels} {_number(value)}" for labels, value in values)

        counts = [(_labels(path=p, status=str(s)), n) for (p, s), n in sorted(self._requests.items())]
        add("requests_total", "counter", "Requests by path and status.", *counts)
        lines += ["# HELP phraseloom_request_seconds Time from a whole or refused request to its reply."]
        lines += ["# TYPE phraseloom_request_seconds histogram"]
        for path in sorted(self._seconds):
            total = sum(n for (p, _), n in self._requests.items() if p == path)
            for bound in BUCKETS:
                labels = _labels(path=path, le=f"{bound:g}")
                lines.append(f"phraseloom_request_seconds_bucket{labels} {self._buckets[path, bound]}")
            lines.append(f"phraseloom_request_seconds_bucket{_labels(path=path, le='+Inf')} {total}")
            lines.append(f"phraseloom_request_seconds_sum{_labels(path=path)} {self._seconds[path]:.6f}")
            lines.append(f"phraseloom_request_seconds_count{_labels(path=path)} {total}")
        for name, values, about in (
            ("texts_total", self._texts, "Translated texts by model."),
            ("tokens_total", self._tokens, "Subwords of the translations by model."),
        ):
            add(name, "counter", about, *((_labels(model=m), n) for m, n in sorted(values.items())))
        add("batches_total", "counter", "Batches that the worker has done.", ("", batcher.batches))
        add("waiting_texts", "gauge", "Texts in the queue.", ("", batcher.waiting))
        add("busy_seconds", "gauge", "Time that the worker has spent on its current batch.", ("", batcher.busy_seconds))
        add("uptime_seconds", "gauge", "Time since the start of the server.", ("", uptime))
        return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    """Whole numbers with all their digits: a rate is a difference of large counts."""
    return str(value) if isinstance(value, int) else f"{value:.3f}"


def _labels(**values: str) -> str:
    escaped = {k: v.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for k, v in values.items()}
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}"
