"""What a sweep shows: a live table in a terminal, a bar in a notebook, lines in a log."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

from fedlib.progress import bar, quiet
from fedlib.runs import Experiment
from fedlib.values import as_code

Failures = list[tuple[Experiment, BaseException]]

DRAWINGS_A_SECOND = 4


@dataclasses.dataclass
class _Row:
    """A run under way."""

    done: int
    total: int
    loss: float = float("nan")
    first: int = 0  # where it continued: rounds of an earlier process say nothing of the speed
    since: float = dataclasses.field(default_factory=time.monotonic)
    began: float = dataclasses.field(default_factory=time.monotonic)
    node: str = ""

    def remaining(self) -> float:
        played = self.done - self.first
        if played < 1:
            return float("nan")
        return (time.monotonic() - self.since) / played * (self.total - self.done)


class Table:
    """Counts the runs of a sweep and shows them: one row per run under way, and a summary."""

    def __init__(self, experiments: Sequence[Experiment], *, show: bool = True) -> None:
        self.total, self.finished, self.failed = len(experiments), 0, 0
        self._rows: dict[str, _Row] = {}
        self._runs, self._names = {e.key: e for e in experiments}, names(experiments)
        self._began, self._drawn = time.monotonic(), 0.0
        self._played = 0  # rounds of runs that have ended
        shown = show and not quiet()
        notebook = "ipykernel" in sys.modules
        self._live: Live | None = None
        if shown and not notebook and sys.stderr.isatty():
            # Drawn by who trains, not by a thread: what is half written is never seen.
            self._live = Live(console=Console(stderr=True), auto_refresh=False)
        self._logged = shown and not notebook and self._live is None
        rounds = sum(e.rounds for e in experiments)
        self._bar = bar(rounds, f"0 of {self.total} runs", show=shown and notebook)

    def __enter__(self) -> Table:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
        self._rows.clear()
        self.draw(always=True)
        if self._live is not None:
            self._live.stop()

    def start(self, experiment: Experiment, node: str = "") -> None:
        """A run has been given to somebody, on a machine that may have a name."""
        self._rows[experiment.key] = _Row(0, experiment.rounds, node=node)
        self._say(experiment, f"started on {node}" if node else "started")
        self.draw(always=True)

    def wait(self, experiment: Experiment, why: str) -> None:
        """A run that was given to somebody waits again."""
        self._rows.pop(experiment.key, None)
        self._count()
        self._say(experiment, why)
        self.draw(always=True)

    def round(self, experiment: Experiment, done: int, total: int, loss: float) -> None:
        """A run has completed ``done`` of ``total`` rounds; where it begins, the loss is nan."""
        row = self._rows[experiment.key]
        if loss != loss:  # a stage begins: the first, the second, or a checkpoint's
            row.first, row.since = done, time.monotonic()
        row.done, row.total, row.loss = done, total, loss
        self._count()
        self.draw()

    def done(self, experiment: Experiment) -> None:
        """A run is complete and stored."""
        self.finished += 1
        self._end(experiment, "done")

    def fail(self, experiment: Experiment, error: BaseException) -> None:
        """A run has failed."""
        self.failed += 1
        self._end(experiment, f"failed: {type(error).__name__}: {str(error)[:200]}")

    def _end(self, experiment: Experiment, what: str) -> None:
        row = self._rows.pop(experiment.key, None)  # a short one may end before it is heard of
        what += f" ({duration(time.monotonic() - row.began)})" if row else ""
        self._played += experiment.rounds
        self._count()
        failed = f", {self.failed} failed" if self.failed else ""
        self._bar.set_description(f"{self.finished} of {self.total} runs{failed}")
        self._say(experiment, what)
        self.draw(always=True)

    def _count(self) -> None:
        """Bring the bar to the rounds played, those of first stages left out."""
        rows = [(row, self._runs[key].rounds) for key, row in self._rows.items()]
        played = self._played + sum(row.done for row, total in rows if row.total == total)
        self._bar.update(played - self._bar.n)

    def _say(self, experiment: Experiment, what: str) -> None:
        if self._logged:
            ended = self.finished + self.failed
            head = f"[{ended}/{self.total}] {experiment.key} {self._names[experiment.key]}"
            print(f"{head}, seed {experiment.seed}: {what}", file=sys.stderr, flush=True)

    def draw(self, always: bool = False) -> None:
        """Draw again if this is a terminal: time has passed."""
        now = time.monotonic()
        if self._live is not None and (always or now - self._drawn > 1 / DRAWINGS_A_SECOND):
            self._live.update(self.drawn(), refresh=True)
            self._drawn = now

    def drawn(self) -> Group:
        """Return the summary and a row per run under way; a low terminal shows the first ones."""
        grid = Grid(box=None, pad_edge=False, show_header=bool(self._rows))
        for name in ("key", "round", "loss", "left", "seed"):
            grid.add_column(name, justify="left" if name == "key" else "right", no_wrap=True)
        grid.add_column("run", no_wrap=True, overflow="ellipsis")
        for key, row in self._rows.items():
            loss = "" if row.loss != row.loss else f"{row.loss:.4g}"
            name = self._names[key] + (f" on {row.node}" if row.node else "")
            cells = (f"{row.done}/{row.total}", loss, duration(row.remaining()))
            grid.add_row(key[:8], *cells, str(self._runs[key].seed), Text(name))
        waiting = self.total - self.finished - self.failed - len(self._rows)
        counts = {"running": len(self._rows), "waiting": waiting, "failed": self.failed}
        said = [f"{n} {what}" for what, n in counts.items() if n]
        spent = duration(time.monotonic() - self._began)
        done = f"{self.finished} of {self.total} runs done"
        return Group(Text(", ".join([done, *said, spent])), grid)


def names(experiments: Sequence[Experiment]) -> dict[str, str]:
    """Return, by key, what tells each run from the others: data set, partition, algorithm."""
    parts = [
        [e.task.dataset for e in experiments],
        _varied([e.task.partition for e in experiments], always=False),
        _varied([e.algorithm for e in experiments]),
    ]
    rows = zip(experiments, zip(*parts, strict=True), strict=True)
    return {e.key: " ".join(part for part in row if part) for e, row in rows}


def _varied(items: Sequence[Any], always: bool = True) -> list[str]:
    """Return each value's kind with the fields that differ from others of its kind."""
    kinds = {type(item) for item in items}
    seen: dict[tuple[type, str], set[Any]] = {}
    for item in items:
        for field in dataclasses.fields(item):
            seen.setdefault((type(item), field.name), set()).add(getattr(item, field.name))
    out = []
    for item in items:
        own = [f.name for f in dataclasses.fields(item) if len(seen[type(item), f.name]) > 1]
        said = ", ".join(f"{n}={as_code(getattr(item, n))}" for n in own)
        name = type(item).__name__ if always or said or len(kinds) > 1 else ""
        out.append(f"{name}({said})" if said else name)
    return out


def duration(seconds: float) -> str:
    """Return a time in words, "" for an unknown one."""
    if seconds != seconds:
        return ""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
