"""Which device computes."""

from __future__ import annotations

import torch

from fedlib.values import one_of


def pick_device(device: str | torch.device = "auto") -> torch.device:
    """Return a device that exists: "auto" is CUDA where there is one, else the CPU.

    RuntimeError for a CUDA device that is not there, ValueError for an unknown kind.
    """
    name = str(device)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = name.partition(":")
    one_of("device", kind, ("auto", "cpu", "cuda"))
    there = torch.cuda.device_count() if kind == "cuda" else 1
    if number and not number.isdigit():
        raise ValueError(f"device {name!r}: the number must be a whole number, e.g. 'cuda:0'")
    if kind == "cuda" and int(number or 0) >= there:
        raise RuntimeError(f"device {name!r} is not there: this machine has {there} CUDA devices")
    return torch.device(name)
