"""torchvision, made importable beside any torch: it knows the files of MNIST and its kin."""

import gzip
import importlib
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlib.data.records import DatasetError, Record

# torch forgets the operators when their library object is collected.
_libraries: list[Any] = []


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


def resources(record: Record) -> list[tuple[str, str, tuple[str, ...]]]:
    """Name, MD5 and addresses of the files of one of torchvision's sets, as it knows them."""
    source = getattr(torchvision().datasets, str(record.torchvision))
    return [
        (name, md5, tuple(f"{mirror.rstrip('/')}/{name}" for mirror in source.mirrors))
        for name, md5 in source.resources
    ]


def read_idx(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The array of a compressed IDX file, uint8 [N, *shape]. DatasetError when it is none.

    Not torchvision's own reader, because that one also unpickles what older versions left behind.
    """
    try:
        with gzip.open(path) as stream:
            content = stream.read()
        if content[:3] != b"\0\0\x08":
            raise ValueError("no bytes in IDX format")
        sizes = np.frombuffer(content, ">i4", content[3], offset=4)
        pixels = np.frombuffer(content, np.uint8, offset=4 + sizes.nbytes)
        return pixels.reshape(sizes).reshape(-1, *shape)
    except (OSError, EOFError, ValueError, IndexError, zlib.error) as error:
        raise DatasetError(f"{path} is not a readable IDX file: {error}") from error
