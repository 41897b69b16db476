"""torchvision, made importable beside any torch, and what is downloaded with its help."""

import contextlib
import importlib
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedlib.datasets import cache
from fedlib.datasets.records import DatasetError, Record

# torch forgets the operators when their library object is collected.
_libraries: list[Any] = []
STALLED_AFTER = 60.0  # seconds without a byte


def torchvision() -> Any:
    """Import torchvision, also where its compiled extension does not fit the installed torch.

    The wheels on PyPI are built for CUDA. Beside a CPU-only torch their extension does not load
    and the import dies with "operator torchvision::nms does not exist", though datasets and
    transforms need no compiled operator. Declaring the two operators that it asks for mends
    that; calling one still fails. DatasetError when torchvision is not installed.
    """
    try:
        return importlib.import_module("torchvision")
    except ModuleNotFoundError as error:
        raise DatasetError("torchvision is not installed: pip install torchvision") from error
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    _declare_operators()
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]  # what the failed import left behind
    return importlib.import_module("torchvision")


def _declare_operators() -> None:
    import torch

    if _libraries:
        return
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _libraries.append(library)


def download_allowed() -> bool:
    """Whether the environment leaves downloads on (FEDLIB_DOWNLOAD=0 turns them off)."""
    return os.environ.get("FEDLIB_DOWNLOAD", "1").strip().lower() not in ("0", "false", "no", "off")


def download(name: str, record: Record, target: Path, advice: str) -> None:
    """Download both splits with torchvision, which checks their MD5 sums, and save the arrays.

    advice: how else to get the data, for the error message. DatasetError when it fails.
    """
    source = getattr(torchvision().datasets, str(record.torchvision))
    root = cache.folder().parent / "downloads"
    for split in ("train", "test"):
        try:
            with _stalls_end():
                official = source(root=str(root), train=split == "train", download=True)
        except Exception as error:  # urllib, sockets, tar, gzip and torchvision raise their own
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise DatasetError(
                f"downloading {name!r} to {root} failed: {reason.rstrip('.')}. {advice}"
            ) from error
        features = np.asarray(official.data, np.uint8).reshape(-1, *record.shape)
        cache.save(target, split, "features", features)
        cache.save(target, split, "labels", np.asarray(official.targets, np.int64))


@contextlib.contextmanager
def _stalls_end() -> Iterator[None]:
    """Let a connection that has gone silent fail; torchvision itself would wait for ever."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(STALLED_AFTER)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
