"""Progress: live in JupyterLab and on a terminal, silent in executed notebooks, lines in logs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

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

WIDTH_OF_NUMBERS = 40  # columns of a row of the table that are not its text
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


@contextmanager
def told(progress: bool | Watcher, text: str, total: int, done: int) -> Iterator[Watcher]:
    """Yield whom a run tells of its rounds: ``progress`` itself, or a bar, if it is not False."""
    if callable(progress):
        progress(done, total, float("nan"))
        yield progress
        return
    with bar(total, text, done=done, show=progress) as drawn:

        def tell(done: int, total: int, loss: float) -> None:
            drawn.set_postfix_str(f"loss {loss:.4g}", refresh=False)
            drawn.update(done - drawn.n)

        yield tell


class Table:
    """Counts the runs of a sweep and shows them: a summary, and a row per run under way.

    ``names`` are the runs by key. Drawn in a terminal or notebook; a log gets lines.
    """

    def __init__(self, names: Mapping[str, str], *, show: bool = True) -> None:
        self.finished, self.failed, self._names = 0, 0, names
        shown = show and not quiet()
        self._logged = shown and not watched()
        self._rows: dict[str, TaskID] = {}
        self._bars = Progress(
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),
            console=Console(stderr=True),
            disable=not (shown and watched()),
        )
        self._all = self._bars.add_task("runs done", total=len(names))

    def __enter__(self) -> Table:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        for row in self._rows.values():
            self._bars.remove_task(row)
        self._bars.stop()

    def round(self, key: str, done: int, total: int, loss: float, where: str = "") -> None:
        """A run has completed ``done`` of ``total`` rounds; where it begins, the loss is nan.

        ``where`` is the name of the machine that trains it, if that is another one.
        """
        if key not in self._rows:
            self._rows[key] = self._bars.add_task("", total=total)
        if loss != loss:  # a stage, or a checkpoint: earlier rounds say nothing of the speed
            self._bars.reset(self._rows[key], total=total, completed=done)
        said = f"{key[:8]} loss {loss:.4g} {where} {self._names[key]}"
        space = max(20, self._bars.console.width - WIDTH_OF_NUMBERS)
        self._bars.update(self._rows[key], completed=done, description=said[:space])

    def end(self, key: str, error: BaseException | None = None) -> None:
        """A run is complete and stored, or has failed."""
        self.finished, self.failed = self.finished + (not error), self.failed + bool(error)
        failed = f", {self.failed} failed" if self.failed else ""
        self._bars.update(self._all, completed=self.finished, description=f"runs done{failed}")
        if key in self._rows:  # a short run may end before it is heard of
            self._bars.remove_task(self._rows.pop(key))
        if self._logged:
            ended = f"[{self.finished + self.failed}/{len(self._names)}]"
            what = f"failed: {type(error).__name__}: {str(error)[:200]}" if error else "done"
            print(f"{ended} {key} {self._names[key]}: {what}", file=sys.stderr, flush=True)
