"""Progress bars: live in JupyterLab and on a terminal, silent in logs and executed notebooks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

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
        self._tell = progress if callable(progress) else None
        shown = progress if isinstance(progress, str) else text
        self._bar = bar(total, shown, done=done, show=bool(progress) and self._tell is None)
        if self._tell is not None:
            self._tell(done, total, float("nan"))

    def played(self, loss: float) -> None:
        """Count one more round."""
        self._done += 1
        if self._tell is not None:
            self._tell(self._done, self._total, loss)
        self._bar.set_postfix_str(f"loss {loss:.4g}", refresh=False)
        self._bar.update()

    def close(self) -> None:
        """Take the bar away."""
        self._bar.close()
