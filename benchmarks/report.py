"""Common parts of all benchmarks: options, the machine, tables, and the place of reports."""

import argparse
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedlib import paths, processor
from fedlib.tasks import pick_device
from fedlib.values import UnknownName

KEPT = Path(__file__).parent
MACHINE = ["device", "processor", "cores", "threads", "load", "system", "python", "torch"]
FREE = " with AVX-512"


def parser(module: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the command line with the option that every benchmark has."""
    made = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--keep", action="store_true", help="write into benchmarks/, not build/")
    return made


def count(text: str) -> int:
    """Return a number of the command line, which must be at least 1."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError("must be >= 1")
    return int(text)


def device(name: str) -> torch.device:
    """Return a device of the command line; one that does not exist is an error of one line."""
    try:
        return pick_device(name)
    except UnknownName as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def machine(device: torch.device) -> dict[str, Any]:
    """Return what the measurements depend on besides the code."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    free = FREE if processor.has_wider() and not processor.pinned() else ""
    cores, threads = os.cpu_count() or 0, torch.get_num_threads()
    versions = platform.system(), platform.python_version(), torch.__version__
    values = name, f"{processor.model()}{free}", cores, threads, round(load, 1), *versions
    return dict(zip(MACHINE, values, strict=True))


def folder(keep: bool) -> Path:
    """Return the folder of reports: ``build/``, or ``benchmarks/`` if they are kept."""
    found = KEPT if keep else paths.build()
    found.mkdir(parents=True, exist_ok=True)
    return found


def write(name: str, text: str, keep: bool) -> None:
    """Write a report; print its path."""
    file = folder(keep) / name
    file.write_text(text, "utf-8")
    print(f"written to {file}", flush=True)


def table(head: Mapping[str, str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown, given the alignment of each column, and the rows."""
    lines = [[*head], [*head.values()], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
