"""Measure every case in every way, interleaved in one run, and print the ratios.

    python -m benchmarks [--cases A B ...] [--repeat 5] [--threads 1] [--device cpu] [--keep]

Medians over the repetitions; a ratio is the median of the ratios within a repetition, so that a
machine that slows down slows both sides. Peak memory is that of a fresh process that plays one
round in one way. On a processor with AVX-512 all is measured twice: pinned to AVX2, and as torch is
by itself. The numbers go to ``build/measured.parquet`` with a description of the machine, case by
case, and what they say to ``measured.txt`` beside it; ``--keep`` writes both next to the benchmarks
instead. There, cases that were measured before, and now not again, stay.
"""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import torch

from benchmarks import fresh, report
from benchmarks.cases import CASES
from benchmarks.report import FREE, MACHINE
from fedlib import processor


def main(arguments: list[str] | None = None) -> None:
    """Measure cases, print the results and store them."""
    parser = report.parser("benchmarks", __doc__)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--device", type=report.device, default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--repeat", type=report.count, default=5)
    parser.add_argument("--threads", type=report.count, default=1)
    asked = parser.parse_args(arguments)
    torch.set_num_threads(asked.threads)
    processor.keep_freed_memory()  # as the command line does
    here = report.machine(asked.device)
    print(", ".join(f"{name} {value}" for name, value in here.items()))
    for name in asked.cases:
        case, how = CASES[name], (asked.device, asked.threads)
        frame = case.measure(asked.repeat, asked.device)
        peaks = {way: fresh.call(case.peak_mib, way, *how) for way in case.ways}
        frame["peak_mib"] = frame["way"].map(peaks)
        print(f"\n{name}  {case.text(frame)}", flush=True)
        _write(report.folder(asked.keep), frame.assign(case=name, **here))
    print(f"\nwritten to {report.folder(asked.keep) / 'measured.parquet'} and .txt")
    if processor.pinned() and processor.has_wider() and asked.device.type == "cpu":
        words = sys.argv[1:] if arguments is None else arguments
        again = [sys.executable, "-m", "benchmarks", *words]
        subprocess.run(again, env=processor.unpinned_environment(), check=True)


def _write(folder: Path, frame: pd.DataFrame) -> None:
    """Replace the earlier rows of a case; write all cases as a table and as text."""
    file = folder / "measured.parquet"
    if file.exists():
        before = pd.read_parquet(file)
        name, free = frame["case"].iloc[0], frame["processor"].iloc[0].endswith(FREE)
        same = before["case"].eq(name) & before["processor"].str.endswith(FREE).eq(free)
        frame = pd.concat([before[~same & before["case"].isin(CASES)], frame], ignore_index=True)
    frame.to_parquet(file, index=False)
    (folder / "measured.txt").write_text(text(frame), "utf-8")


def text(frame: pd.DataFrame) -> str:
    """Return the results of all cases as text, by machine."""
    parts = []
    for here, rows in frame.groupby(MACHINE, sort=False, dropna=False):
        parts.append(", ".join(f"{n} {value}" for n, value in zip(MACHINE, here, strict=True)))
        parts += [f"{name}  {CASES[name].text(one)}" for name, one in rows.groupby("case")]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
