"""Progress bars in JupyterLab and terminals, and lines in logs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from tqdm.auto import tqdm

# Called after every round with: completed rounds, number of all rounds, training loss of the round.
Watcher = Callable[[int, int, float], None]


def quiet() -> bool:
    """Return whether FEDLIB_QUIET=1 silences progress, and notes at the end of a run."""
    return os.environ.get("FEDLIB_QUIET", "0") == "1"


def watched() -> bool:
    """Return whether output is interactive: a notebook or a terminal."""
    return "ipykernel" in sys.modules or sys.stderr.isatty()


def bar(total: int, description: str, *, done: int = 0, show: bool = True) -> tqdm:
    """Return a progress bar, which is hidden with FEDLIB_QUIET=1 and in output to a file.

    Args:
        total: number of steps.
        description: text before the bar.
        done: number of steps that are completed already. Default: 0.
        show: if False, the bar is hidden. Default: True.
    """
    hidden = not show or not watched() or quiet()
    return tqdm(total=total, initial=done, desc=description, disable=hidden, leave=False)


@contextmanager
def callback(progress: bool | Watcher, text: str, total: int, done: int) -> Iterator[Watcher]:
    """Yield the function that a run calls after every round.

    Args:
        progress: a function, which is yielded itself, or whether to show a progress bar.
        text: text before the bar.
        total: number of rounds.
        done: number of rounds that are completed already.
    """
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
    """A progress bar that counts the runs of a sweep; a log gets a line for each run instead.

    Args:
        names: names of the runs by key.
        show: whether to show progress. Default: True.
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
        """Show that a run has completed some rounds.

        Args:
            key: key of the run.
            done: number of completed rounds.
            total: number of all rounds.
            loss: training loss of the last round.
            where: the machine that trains it. Default: "", this one.
        """
        self._bar.set_postfix_str(f"{key[:8]} {done}/{total} loss {loss:.4g} {where}")

    def end(self, key: str, error: BaseException | None = None) -> None:
        """Count a run that has finished, or failed with ``error``."""
        self.ended, self.failed = self.ended + 1, self.failed + bool(error)
        if self.failed:
            self._bar.set_description(f"runs done, {self.failed} failed", refresh=False)
        self._bar.update()
        if self._logged:
            what = f"failed: {type(error).__name__}: {str(error)[:200]}" if error else "done"
            count = f"[{self.ended}/{len(self._names)}]"
            print(f"{count} {key} {self._names[key]}: {what}", file=sys.stderr, flush=True)
