"""Checkpoint files: named tensors, what is said of them, and a checksum of both.

safetensors has no checksum of its own, and training would go on from a flipped weight unawares.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedlib.runs.atomic import reading

CHECKSUM = "crc32"
# A file sorts its names, and a sum over leaves has the bits of an undisturbed run in its order.
ORDER = "order"


def save(path: Path, tensors: dict[str, Tensor], said: dict[str, str]) -> None:
    """Write tensors, and what is said of them, with their checksum."""
    whole = {n: t.detach().cpu().contiguous() for n, t in tensors.items()}
    said = {**said, ORDER: json.dumps([*whole])}
    save_file(whole, path, metadata={**said, CHECKSUM: _checksum(whole, said)})


def header(path: Path) -> tuple[int, dict[str, str]]:
    """Return how many rounds a checkpoint is of, and what else it says; Damaged if it is none."""
    with reading(path, "readable checkpoint"), safe_open(path, framework="pt") as file:
        said = file.metadata() or {}
        completed = int(said["completed"])
        if completed < 0:
            raise ValueError(f"it is of {completed} rounds")
        return completed, said


def load(path: Path) -> tuple[dict[str, Tensor], int, dict[str, str]]:
    """Return the tensors of a checkpoint, its rounds, and what else it says.

    Damaged unless they are those that were written; a file without a checksum is believed.
    """
    completed, said = header(path)
    with reading(path, "readable checkpoint"), safe_open(path, framework="pt") as file:
        tensors = {n: file.get_tensor(n) for n in file.keys()}  # noqa: SIM118
        written = said.pop(CHECKSUM, None)
        if written is not None and written != _checksum(tensors, said):
            raise ValueError("its checksum differs")
        order = json.loads(said.pop(ORDER, "null")) or [*tensors]
        return {n: tensors[n] for n in order}, completed, said


def _checksum(tensors: dict[str, Tensor], said: dict[str, str]) -> str:
    """Return the CRC-32 of names, kinds, shapes and bytes, and of what is said."""
    checksum = zlib.crc32(json.dumps(said, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        checksum = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), checksum)
        checksum = zlib.crc32(tensor.flatten().view(torch.uint8).numpy().data, checksum)
    return f"{checksum:08x}"
