"""Networks of another width: what a larger single model costs and gains."""

from __future__ import annotations

from dataclasses import replace

from fedlib.models.families import LeNet
from fedlib.models.net import Net


def widened(model: LeNet, times: float, shape: tuple[int, ...], classes: int) -> LeNet:
    """Return ``model`` with more channels and ``times`` as many parameters, as nearly as possible.

    The first layer's channels are a whole number and the others keep their ratio to it; hidden
    layers stay as they are. For ``fedmix_lenet5()`` on CIFAR-10 that is 61 channels for 2 and 113
    for 4 (000, sec. 4.1). ValueError unless ``times`` is at least 1.
    """
    if times < 1:
        raise ValueError(f"times must be >= 1, got {times}")
    wanted = times * Net(model, shape, classes).parameters()
    best, miss = model, float("inf")
    for first in range(model.channels[0], int(model.channels[0] * times) + 2):
        ratio = first / model.channels[0]
        wide = replace(model, channels=tuple(round(c * ratio) for c in model.channels))
        off = abs(Net(wide, shape, classes).parameters() - wanted)
        if off < miss:
            best, miss = wide, off
    return best
