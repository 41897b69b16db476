"""Progress: live in JupyterLab and on a terminal, silent in executed notebooks, lines in logs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping

from rich.console import Console
from rich.progress import (
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from tqdm.auto import tqdm

# Told after every round: rounds completed, rounds in all, the round's training loss.
Watcher = Callable[[int, int, float], None]


def quiet() -> bool:
    """Return whether FEDLIB_QUIET=1 asks for silence."""
    return os.environ.get("FEDLIB_QUIET", "0") == "1"


def watched() -> bool:
    """Return whether somebody may see what is drawn: a notebook, or a terminal."""
    return "ipykernel" in sys.modules or sys.stderr.isatty()


def bar(total: int, description: str, *, done: int = 0, show: bool = True) -> tqdm:
    """Return a progress bar; FEDLIB_QUIET=1 silences it, and so does output that nobody watches."""
    hidden = not show or not watched() or quiet()
    return tqdm(total=total, initial=done, desc=description, disable=hidden, leave=False)


def note(text: str, *, show: bool = True) -> None:
    """Say one line on stderr, unless nobody watches or silence is asked for."""
    if show and watched() and not quiet():
        print(f"fedlib: {text}", file=sys.stderr, flush=True)


class Rounds:
    """Tells of the rounds of one run: as a bar, or to a function.

    ``progress`` is false for silence, a string for the bar's text, or a ``Watcher``.
    """

    def __init__(
        self, progress: bool | str | Watcher, text: str, total: int, done: int = 0
    ) -> None:
        self._total, self._done = total, done
        self._tell: Watcher = progress if callable(progress) else lambda *_: None
        said, show = progress if isinstance(progress, str) else text, not callable(progress)
        self._bar = bar(total, said, done=done, show=show and bool(progress))
        self._tell(done, total, float("nan"))

    def played(self, loss: float) -> None:
        """Count one more round."""
        self._done += 1
        self._tell(self._done, self._total, loss)
        self._bar.set_postfix_str(f"loss {loss:.4g}", refresh=False)
        self._bar.update()

    def close(self) -> None:
        """Take the bar away."""
        self._bar.close()


WIDTH_OF_NUMBERS = 40  # columns of a row of the table that are not its text
DRAWINGS_A_SECOND = 4


class Table:
    """Counts the runs of a sweep and shows them: a summary, and a row per run under way.

    ``names`` are the runs by key. Drawn in a terminal or notebook; a log gets lines.
    """

    def __init__(self, names: Mapping[str, str], *, show: bool = True) -> None:
        self.finished, self.failed, self._names = 0, 0, names
        shown = show and not quiet()
        self._logged, self._drawn = shown and not watched(), 0.0
        self._rows: dict[str, tuple[TaskID, str, float]] = {}  # where it is trained, since when
        text = TextColumn("{task.description}", markup=False)
        columns = (MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(), text)
        # Drawn by who trains, not by a thread: what is half written is never seen.
        self._bars = Progress(
            *columns,
            console=Console(stderr=True),
            auto_refresh=False,
            disable=not (shown and watched()),
        )
        self._all = self._bars.add_task("runs done", total=len(names))

    def __enter__(self) -> Table:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        for row in self._rows.values():
            self._bars.remove_task(row[0])
        self._bars.stop()

    def start(self, key: str, rounds: int, node: str = "") -> None:
        """A run of so many rounds was given to somebody, on a machine that may have a name."""
        where = f" on {node}" if node else ""
        self._rows[key] = self._bars.add_task("", total=rounds), where, time.monotonic()
        self._tell(key, f"started{where}")

    def wait(self, key: str, why: str) -> None:
        """A run that was given to somebody waits again."""
        self._take_away(key)
        self._tell(key, why)

    def round(self, key: str, done: int, total: int, loss: float) -> None:
        """A run has completed ``done`` of ``total`` rounds; where it begins, the loss is nan."""
        row, where, _ = self._rows[key]
        if loss != loss:  # a stage, or a checkpoint: earlier rounds say nothing of the speed
            self._bars.reset(row, total=total, completed=done)
        said = f"{key[:8]} loss {loss:.4g}{where} {self._names[key]}"
        space = max(20, self._bars.console.width - WIDTH_OF_NUMBERS)
        self._bars.update(row, completed=done, description=said[:space])
        self.draw()

    def end(self, key: str, error: BaseException | None = None) -> None:
        """A run is complete and stored, or has failed."""
        began = self._rows.get(key, (0, "", None))[2]  # a short run may end before it is heard of
        spent = "" if began is None else f" ({duration(time.monotonic() - began)})"
        self.finished, self.failed = self.finished + (not error), self.failed + bool(error)
        failed = f", {self.failed} failed" if self.failed else ""
        self._bars.update(self._all, completed=self.finished, description=f"runs done{failed}")
        self._take_away(key)
        what = f"failed: {type(error).__name__}: {str(error)[:200]}" if error else "done"
        self._tell(key, what + spent)

    def draw(self, always: bool = False) -> None:
        """Draw again if somebody watches: time has passed."""
        now = time.monotonic()
        if always or now - self._drawn > 1 / DRAWINGS_A_SECOND:
            self._bars.refresh()
            self._drawn = now

    def _take_away(self, key: str) -> None:
        if key in self._rows:
            self._bars.remove_task(self._rows.pop(key)[0])

    def _tell(self, key: str, what: str) -> None:
        if self._logged:
            ended = f"[{self.finished + self.failed}/{len(self._names)}]"
            print(f"{ended} {key} {self._names[key]}: {what}", file=sys.stderr, flush=True)
        self.draw(always=True)


def duration(seconds: float) -> str:
    """Return a time in words."""
    for unit, length in (("s", 90.0), ("min", 90.0), ("h", 48.0)):
        if seconds < length:
            return f"{seconds:.1f} h" if unit == "h" else f"{seconds:.0f} {unit}"
        seconds /= 60
    return f"{seconds * 60 / 24:.0f} days"
