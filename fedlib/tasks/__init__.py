"""Who trains what on which data: tasks as values, and the named ones of the five papers."""

from fedlib.tasks.augment import CropFlip
from fedlib.tasks.device import pick_device
from fedlib.tasks.task import Task
from papers.named import about, named, names, scales_of

__all__ = ["CropFlip", "Task", "about", "named", "names", "pick_device", "scales_of"]
