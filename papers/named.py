"""The papers' settings by name, at three scales, as values that print as code.

A name consists of the number of the paper and the setting. ``paper`` is the paper's own setting, as
far as it is stated (docs/READINGS.md has the rest). ``standard`` uses real data with fewer clients,
fewer examples or a smaller network, so that a CPU can play hundreds of rounds; if the full data set
is not available, it names a sample. ``quick`` is the same on scikit-learn's digits. Descriptions
and options of settings, such as a majority fraction, are in their paper's ``settings.toml``.
"""

import inspect
from collections.abc import Callable
from typing import Any

from companion.sections import SCALES
from fedlib.tasks import Task
from fedlib.values import check_choice
from papers.adaptive import experiments as adaptive
from papers.fedmix import experiments as fedmix
from papers.pm_moe import experiments as pm_moe
from papers.specialists import experiments as specialists

Setting = Callable[..., Task | None]
TASKS: dict[str, Setting] = fedmix.TASKS | specialists.TASKS | adaptive.TASKS | pm_moe.TASKS


def names() -> tuple[str, ...]:
    """Return the names of all settings."""
    return tuple(TASKS)


def about(name: str) -> str:
    """Return the description of a setting in one line, with its options and their defaults."""
    options = ", ".join(f"{n}={default!r}" for n, default in options_of(name).items())
    said = " ".join((inspect.getdoc(TASKS[name]) or "").split())
    return said + (f" [{options}]" if options else "")


def options_of(name: str) -> dict[str, Any]:
    """Return the options of a setting and their defaults."""
    check_choice("task", name, TASKS)
    known = inspect.signature(TASKS[name]).parameters.values()
    return {p.name: p.default for p in known if p.name != "scale"}


def scales_of(name: str) -> tuple[str, ...]:
    """Return the scales of a setting; those of texts have no quick one."""
    return tuple(scale for scale in SCALES if TASKS[name](scale) is not None)


def named(name: str, scale: str = "quick", **options: Any) -> Task:
    """Return the task of a setting at a scale.

    Raises:
        ValueError: for an unknown name, scale or option.
    """
    check_choice("scale", scale, SCALES)
    known = options_of(name)
    for option in options:
        check_choice(f"option of {name}", option, known)
    task = TASKS[name](scale, **options)
    if task is None:
        have = ", ".join(scales_of(name))
        raise ValueError(f"{name} has no {scale} scale; it has {have}")
    return task
