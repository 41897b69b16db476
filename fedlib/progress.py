"""Progress bars: live in JupyterLab and on a terminal, silent in logs and executed notebooks."""

from __future__ import annotations

import os
import sys

from tqdm.auto import tqdm


def bar(total: int, description: str, *, done: int = 0, show: bool = True) -> tqdm:
    """Return a progress bar; FEDLIB_QUIET=1 silences it, and so does output that nobody watches."""
    watched = "ipykernel" in sys.modules or sys.stderr.isatty()
    hidden = not show or not watched or os.environ.get("FEDLIB_QUIET", "0") == "1"
    return tqdm(total=total, initial=done, desc=description, disable=hidden, leave=False)
