"""Measure every case in every way, interleaved in one run, and print the ratios.

    python -m benchmarks [--cases A B ...] [--repeat 5] [--threads 1] [--device cpu] [--keep]

Medians over the repetitions; a ratio is the median of the ratios within a repetition, so that a
machine that slows down slows both sides. Peak memory is that of a fresh process that plays one
round in one way. T compares the throughput of two processes with that of one. The numbers go to
``build/measured.parquet`` with a description of the machine, and what is printed to
``measured.txt`` beside it; ``--keep`` writes both next to the benchmarks instead.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import time
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from benchmarks import throughput
from benchmarks.cases import CASES, Case
from benchmarks.memory import peak_mib
from fedlib import memory, paths
from fedlib.tasks import pick_device

THROUGHPUT = "T"
THROUGHPUT_ROUNDS = 10
LEAST_GAIN = 1.8


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and store."""
    asked = _asked(arguments)
    torch.set_num_threads(asked.threads)
    memory.keep_freed()  # as a run does
    device = pick_device(asked.device)
    here = machine(device)
    said, frames = [", ".join(f"{name} {value}" for name, value in here.items())], []
    print(said[0])
    for name in asked.cases:
        text, frame = _case(name, asked.repeat, device)
        print(f"\n{text}", flush=True)
        said.append(text)
        frames.append(frame.assign(case=name))
    folder = Path(__file__).parent if asked.keep else paths.build()
    folder.mkdir(parents=True, exist_ok=True)
    measured = pd.concat(frames, ignore_index=True).assign(**here)
    measured.to_parquet(folder / "measured.parquet", index=False)
    (folder / "measured.txt").write_text("\n\n".join(said) + "\n")
    print(f"\nwritten to {folder / 'measured.parquet'} and .txt")


def _case(name: str, repeat: int, device: torch.device) -> tuple[str, pd.DataFrame]:
    """Return what is said of a case and what was measured."""
    if name == THROUGHPUT:
        frame = throughput.measure(CASES["A"], THROUGHPUT_ROUNDS, max(2, repeat // 2))
        return f"{name}  {throughput_text(frame)}", frame
    case = CASES[name]
    frame = measure(case, repeat, device)
    frame["peak_mib"] = frame["way"].map({w: peak_mib(case, w, device) for w in case.ways})
    return f"{name}  {case.title}\n{describe(case, frame)}", frame


def measure(case: Case, repeat: int, device: torch.device) -> pd.DataFrame:
    """Return one row per repetition and way: the seconds of a round."""
    plays = case.plays(case.ways, device)
    for play in plays.values():
        play()  # warm up
    rows = []
    for repetition in range(repeat):
        for offset in range(len(plays)):  # every way comes first in turn
            way = case.ways[(repetition + offset) % len(plays)]
            begin = time.perf_counter()
            plays[way]()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            rows.append((repetition, way, time.perf_counter() - begin))
    return pd.DataFrame(rows, columns=["repetition", "way", "seconds"])


def describe(case: Case, frame: pd.DataFrame) -> str:
    """Return the table and the ratios as text."""
    lines = [f"   {'way':<16}s/round   (fastest, slowest)   peak MiB"]
    for way in case.ways:
        rows = frame[frame["way"] == way]
        s = rows["seconds"]
        span = f"({s.min():.3f}, {s.max():.3f})"
        lines.append(
            f"   {way:<14}{s.median():>9.3f}   {span:<20}{rows['peak_mib'].median():>8.0f}"
        )
    for over, under, most in case.ratios:
        wanted = f"   (wanted: at most {most})" if math.isfinite(most) else ""
        lines.append(f"   {over} / {under}: {ratio(frame, over, under):.2f}{wanted}")
    return "\n".join(lines)


def throughput_text(frame: pd.DataFrame) -> str:
    """Return the throughput of two processes as text."""
    return (
        f"A, {THROUGHPUT_ROUNDS} rounds in each process of one thread\n"
        f"   two processes / one: {throughput.gain(frame):.2f} times the throughput"
        f"   (wanted on two cores: at least {LEAST_GAIN})"
    )


def ratio(frame: pd.DataFrame, over: str, under: str) -> float:
    """Return the median over repetitions of seconds of one way over those of another."""
    wide = frame.pivot(index="repetition", columns="way", values="seconds")
    return float((wide[over] / wide[under]).median())


def machine(device: torch.device) -> dict[str, Any]:
    """Return what the numbers depend on besides the code."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else "cpu",
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
    every = [*CASES, THROUGHPUT]
    parser.add_argument("--cases", nargs="+", choices=every, default=every)
    parser.add_argument("--keep", action="store_true", help="write into benchmarks/")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args(arguments)
    if asked.repeat < 1 or asked.threads < 1:
        parser.error("--repeat and --threads must be >= 1")
    return asked


if __name__ == "__main__":
    main()
