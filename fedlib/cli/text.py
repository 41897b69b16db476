"""Tables, sparklines, sizes and times."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

_BARS = "▁▂▃▄▅▆▇█"
WIDE = 1000  # columns of what is no terminal: a file or a program gets words whole


def show_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print an aligned table; numbers to the right, words to the left."""
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(head):
        numbers = bool(rows) and all(isinstance(row[i], int | float) for row in rows)
        grid.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        grid.add_row(*map(str, row))
    width = None if sys.stdout.isatty() else WIDE
    Console(width=width, markup=False, highlight=False, emoji=False).print(grid)


def spark(values: Sequence[float], width: int = 60) -> str:
    """Return a curve as one line of bars, averaged into at most ``width`` of them."""
    finite = [v for v in values if abs(v) < float("inf")]
    if not finite:
        return "no finite value"
    low, high = min(finite), max(finite)
    step = max(1, -(-len(values) // width))
    groups = [values[i : i + step] for i in range(0, len(values), step)]
    means = [sum(group) / len(group) for group in groups]
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((m - low) * scale)] if abs(m) < float("inf") else "?" for m in means)


def size(bytes: float) -> str:
    """Return a size in bytes in words."""
    for unit in ("B", "kB", "MB"):
        if bytes < 1000:
            return f"{bytes:.0f} {unit}"
        bytes /= 1000
    return f"{bytes:.1f} GB"


def age(seconds: float) -> str:
    """Return how long ago something was, in words."""
    for unit, length in (("s", 60.0), ("min", 60.0), ("h", 48.0)):
        if seconds < length:
            return f"{seconds:.0f} {unit}"
        seconds /= length if unit != "h" else 24.0
    return f"{seconds:.0f} days"
