"""The colours of methods and the titles of data sets in figures, provided by the papers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

Dash = str | tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class Theme:
    """What all figures have in common.

    Attributes:
        methods: by name, in the order of legends, the position in the colour-blind palette and the
            line style.
        titles: the names of data sets as readers know them.
        floor: the method that is drawn as a thin line behind the others: the baseline.
    """

    methods: Mapping[str, tuple[int, Dash]] = field(default_factory=dict)
    titles: Mapping[str, str] = field(default_factory=dict)
    floor: str = ""


_HANDED: list[Callable[[], Theme]] = []


def use(source: Callable[[], Theme]) -> None:
    """Use the theme that ``source`` returns; it is called when the first figure is drawn."""
    _HANDED[:] = [source]
    theme.cache_clear()


@cache
def theme() -> Theme:
    """Return the theme in use; without one, the colours of methods depend on their names."""
    return _HANDED[0]() if _HANDED else Theme()
