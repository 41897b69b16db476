"""Who trains what on which data: tasks as values, and the named ones of the five papers."""

from typing import Any

from fedlib.tasks.augment import CropFlip
from fedlib.tasks.device import pick_device
from fedlib.tasks.task import Task

__all__ = ["CropFlip", "Task", "about", "named", "names", "pick_device", "scales_of"]


def __getattr__(name: str) -> Any:
    """Return what the papers know of settings by name; they import this package themselves."""
    if name not in ("about", "named", "names", "scales_of"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from papers import named

    return getattr(named, name)
