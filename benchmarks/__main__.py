"""Measure every case in every way, interleaved in one run, and print the ratios.

    python -m benchmarks [--cases A B ...] [--repeat 5] [--threads 1] [--device cpu] [--keep]

Medians over the repetitions; a ratio is the median of the ratios within a repetition, so that a
machine that slows down slows both sides. Peak memory is that of a fresh process that plays one
round in one way. T compares the throughput of two processes with that of one, S what a
run once paid for with what it pays now, U builds tasks of many and of unequal clients. On a
processor with AVX-512 all is measured twice: pinned to AVX2, and as torch is by itself. The numbers
go to ``build/measured.parquet`` with a description of the machine, case by case, and what they say
to ``measured.txt`` beside it; ``--keep`` writes both next to the benchmarks instead. There, cases
that were measured before, and now not again, stay.
"""

import argparse
import math
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from benchmarks import sizes, spared, throughput
from benchmarks.cases import CASES, Case
from benchmarks.memory import peak_mib
from fedlib import paths, processor
from fedlib.tasks import pick_device
from fedlib.values import UnknownName

THROUGHPUT = "T"
THROUGHPUT_ROUNDS = 10
LEAST_GAIN = 1.8
SPARED = "S"
SIZES = "U"
EVERY = (*CASES, SPARED, SIZES, THROUGHPUT)
MACHINE = ["device", "processor", "cores", "threads", "load", "system", "python", "torch"]
FREE = " with AVX-512"


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and store."""
    asked = _asked(arguments)
    torch.set_num_threads(asked.threads)
    processor.keep_freed_memory()  # as the command line does
    device = asked.device
    here = machine(device)
    print(", ".join(f"{name} {value}" for name, value in here.items()))
    folder = Path(__file__).parent if asked.keep else paths.build()
    folder.mkdir(parents=True, exist_ok=True)
    for name in asked.cases:
        frame = _case(name, asked.repeat, device)
        print(f"\n{said(name, frame)}", flush=True)
        _write(folder, frame.assign(case=name, **here))
    print(f"\nwritten to {folder / 'measured.parquet'} and .txt")
    if processor.pinned() and processor.has_wider() and device.type == "cpu":
        words = sys.argv[1:] if arguments is None else arguments
        again = [sys.executable, "-m", "benchmarks", *words]
        subprocess.run(again, env=processor.free(), check=True)


def _case(name: str, repeat: int, device: torch.device) -> pd.DataFrame:
    """Return what was measured of a case."""
    if name == THROUGHPUT:
        return throughput.measure(CASES["A"], THROUGHPUT_ROUNDS, max(2, repeat // 2))
    if name == SPARED:
        return spared.measure(repeat)
    if name == SIZES:
        return sizes.measure(repeat)
    case = CASES[name]
    frame = measure(case, repeat, device)
    frame["peak_mib"] = frame["way"].map({w: peak_mib(case, w, device) for w in case.ways})
    return frame


def said(name: str, frame: pd.DataFrame) -> str:
    """Return what is said of a case."""
    if name == THROUGHPUT:
        return f"{name}  {throughput_text(frame)}"
    if name == SPARED:
        return f"{name}  {spared.text(frame)}"
    if name == SIZES:
        return f"{name}  {sizes.text(frame)}"
    return f"{name}  {CASES[name].title}\n{describe(CASES[name], frame)}"


def _write(folder: Path, frame: pd.DataFrame) -> None:
    """Put a case's rows in the place of what was measured of it before, and say all anew."""
    file = folder / "measured.parquet"
    if file.exists():
        before = pd.read_parquet(file)
        name, free = frame["case"].iloc[0], frame["processor"].iloc[0].endswith(FREE)
        same = before["case"].eq(name) & before["processor"].str.endswith(FREE).eq(free)
        before = before[~same & before["case"].isin(EVERY)]
        frame = pd.concat([before, frame], ignore_index=True)
    frame.to_parquet(file, index=False)
    parts = []
    for here, rows in frame.groupby(MACHINE, sort=False, dropna=False):
        parts.append(", ".join(f"{n} {value}" for n, value in zip(MACHINE, here, strict=True)))
        parts += [said(str(name), one) for name, one in rows.groupby("case")]
    (folder / "measured.txt").write_text("\n\n".join(parts) + "\n", "utf-8")


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
    """Return the table and the ratios as text, of those ways that were measured."""
    ways = [way for way in case.ways if way in {*frame["way"]}]
    wide = max(14, *map(len, ways))
    lines = [f"   {'way':<{wide}}  s/round   (fastest, slowest)   peak MiB"]
    for way in ways:
        rows = frame[frame["way"] == way]
        s = rows["seconds"]
        span = f"({s.min():.3f}, {s.max():.3f})"
        lines.append(
            f"   {way:<{wide}}{s.median():>9.3f}   {span:<20}{rows['peak_mib'].median():>8.0f}"
        )
    for over, under, most in case.ratios:
        if not {over, under} <= {*ways}:
            continue
        wanted = f"   (wanted: at most {most:.3g})" if math.isfinite(most) else ""
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
    device_name = torch.cuda.get_device_name(device) if cuda else "cpu"
    cores, threads = os.cpu_count() or 0, torch.get_num_threads()
    versions = platform.system(), platform.python_version(), torch.__version__
    free = FREE if processor.has_wider() and not processor.pinned() else ""
    model = f"{processor.model()}{free}"
    values = device_name, model, cores, threads, round(load, 1), *versions
    return dict(zip(MACHINE, values, strict=True))


def there(device: str) -> torch.device:
    """Return a device by its name, as an argument of a command line that says where none is."""
    try:
        return pick_device(device)
    except UnknownName as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _asked(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--cases", nargs="+", choices=EVERY, default=EVERY)
    parser.add_argument("--keep", action="store_true", help="write into benchmarks/")
    parser.add_argument("--device", type=there, default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args(arguments)
    if asked.repeat < 1 or asked.threads < 1:
        parser.error("--repeat and --threads must be >= 1")
    return asked


if __name__ == "__main__":
    main()
