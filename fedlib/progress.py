"""Progress: live in JupyterLab and on a terminal, silent in executed notebooks, lines in logs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

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


@contextmanager
def callback(progress: bool | Watcher, text: str, total: int, done: int) -> Iterator[Watcher]:
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


class SweepProgress:
    """Counts the runs of a sweep on a bar, next to what was last heard of one.

    ``names`` are the runs by key. Drawn in a terminal or notebook; a log gets a line for each run.
    """

    def __init__(self, names: Mapping[str, str], *, show: bool = True) -> None:
        self.ended, self.failed, self._names = 0, 0, names
        self._logged = show and not quiet() and not watched()
        self._bar = bar(len(names), "runs done", show=show)

    def __enter__(self) -> SweepProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def round(self, key: str, done: int, total: int, loss: float, where: str = "") -> None:
        """A run has completed ``done`` of ``total`` rounds.

        ``where`` is the name of the machine that trains it, if that is another one.
        """
        self._bar.set_postfix_str(f"{key[:8]} {done}/{total} loss {loss:.4g} {where}")

    def end(self, key: str, error: BaseException | None = None) -> None:
        """A run is complete and stored, or has failed."""
        self.ended, self.failed = self.ended + 1, self.failed + bool(error)
        if self.failed:
            self._bar.set_description(f"runs done, {self.failed} failed", refresh=False)
        self._bar.update()
        if self._logged:
            what = f"failed: {type(error).__name__}: {str(error)[:200]}" if error else "done"
            count = f"[{self.ended}/{len(self._names)}]"
            print(f"{count} {key} {self._names[key]}: {what}", file=sys.stderr, flush=True)
