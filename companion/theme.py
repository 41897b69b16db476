"""How methods and data sets look in figures, and what people call them: handed in by who knows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

Dash = str | tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class Theme:
    """What every figure draws alike.

    ``methods`` are in the order of legends: a place in the colour-blind palette, and a dash.
    ``titles`` are names of data sets as people write them. ``floor`` is the method that is drawn as
    a thin line behind the others.
    """

    methods: Mapping[str, tuple[int, Dash]] = field(default_factory=dict)
    titles: Mapping[str, str] = field(default_factory=dict)
    floor: str = ""


_HANDED: list[Callable[[], Theme]] = []


def use(source: Callable[[], Theme]) -> None:
    """Have figures look as ``source`` says, which is called when the first one is drawn."""
    _HANDED[:] = [source]
    theme.cache_clear()


@cache
def theme() -> Theme:
    """Return what was handed in; without anything methods get colours by their names."""
    return _HANDED[0]() if _HANDED else Theme()
