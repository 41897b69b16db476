"""Measure every case in every way, interleaved in one run, and print the ratios.

    python -m benchmarks [--cases A D F] [--repeat 5] [--threads 1]

Medians over the repetitions; a ratio is the median of the ratios within a repetition, so that a
machine that slows down slows both sides. Peak memory is that of a fresh process that plays one
round in one way. The numbers go to ``build/bench.parquet`` with a description of the machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from benchmarks.cases import CASES, WAYS, Case, federation
from benchmarks.memory import peak_mib
from fedlib import paths


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and store."""
    asked = _asked(arguments)
    torch.set_num_threads(asked.threads)
    here = machine()
    print(", ".join(f"{name} {value}" for name, value in here.items()))
    frames = []
    for name in asked.cases:
        frame = measure(CASES[name], asked.repeat).assign(case=name)
        frame["peak_mib"] = frame["way"].map({w: peak_mib(CASES[name], w) for w in WAYS})
        print(f"\n{name}  {CASES[name].title}\n{describe(frame)}", flush=True)
        frames.append(frame)
    target = paths.build() / "bench.parquet"
    target.parent.mkdir(parents=True, exist_ok=True)
    pd.concat(frames, ignore_index=True).assign(**here).to_parquet(target, index=False)
    print(f"\nwritten to {target}")


def measure(case: Case, repeat: int) -> pd.DataFrame:
    """Return one row per repetition and way: the seconds of a round."""
    fed = federation(case)
    ways = {way: case.way(way, fed) for way in WAYS}
    for play in ways.values():
        play()  # warm up
    rows = []
    for repetition in range(repeat):
        for offset in range(len(ways)):  # every way comes first in turn
            way = WAYS[(repetition + offset) % len(WAYS)]
            begin = time.perf_counter()
            ways[way]()
            rows.append((repetition, way, time.perf_counter() - begin))
    return pd.DataFrame(rows, columns=["repetition", "way", "seconds"])


def describe(frame: pd.DataFrame) -> str:
    """Return the table and the two ratios as text."""
    lines = ["   way      s/round   (fastest, slowest)   peak MiB"]
    for way in WAYS:
        rows = frame[frame["way"] == way]
        s = rows["seconds"]
        span = f"({s.min():.3f}, {s.max():.3f})"
        lines.append(f"   {way:<8}{s.median():>8.3f}   {span:<20}{rows['peak_mib'].median():>8.0f}")
    for over, under in (("engine", "floor"), ("plain", "engine")):
        lines.append(f"   {over}/{under}: {ratio(frame, over, under):.2f}")
    return "\n".join(lines)


def ratio(frame: pd.DataFrame, over: str, under: str) -> float:
    """Return the median over repetitions of seconds of one way over those of another."""
    wide = frame.pivot(index="repetition", columns="way", values="seconds")
    return float((wide[over] / wide[under]).median())


def machine() -> dict[str, Any]:
    """Return what the numbers depend on besides the code."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "load": round(load, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _processor() -> str:
    try:
        said = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in said if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _asked(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args(arguments)
    if asked.repeat < 1 or asked.threads < 1:
        parser.error("--repeat and --threads must be >= 1")
    return asked


if __name__ == "__main__":
    main()
