"""Who trains what on which data: tasks as values, and the federations that are built of them."""

from fedlib.tasks.augment import CropFlip
from fedlib.tasks.device import pick_device
from fedlib.tasks.task import Task

__all__ = ["CropFlip", "Task", "pick_device"]
