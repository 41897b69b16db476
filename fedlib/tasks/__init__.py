"""Who trains what on which data: tasks as values, and the federations that are built of them."""

from fedlib.tasks.seen import CropFlip, rotate
from fedlib.tasks.task import Task, pick_device

__all__ = ["CropFlip", "Task", "pick_device", "rotate"]
