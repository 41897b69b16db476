"""Training steps as CUDA graphs on a GPU, compared with the same steps kernel by kernel.

    python -m benchmarks.graphs [--device cuda] [--rounds 5] [--keep]

Every case is played in both ways, each in a process of its own. The table has the median seconds of
a round, after three rounds in which shapes are seen for the first time and steps are captured, the
number of launches by the host in a round, the peak memory, and the distance of all parameters from
those of the other way, relative to their norm. A row is written as soon as it is measured, and a
case that the table has already is not measured again.
"""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from benchmarks import fresh, report
from benchmarks.cases import CASES, SEED, Case, begun, federation
from fedlib import processor
from fedlib.engine import play_round
from fedlib.tasks import pick_device

RIVALS = {"IFCA": ("L", "IFCA, J = 4"), "PM-MoE": ("J", "heads, ten epochs")}
LETTERS = {"A": "A", "C": "C", "FedMix": "D", "BiLSTM": "I"}
WAYS = {"kernels": "0", "graphs": "1"}
BEFORE = 3  # warm-up rounds, which are not timed


def cases() -> dict[str, Case]:
    """Return the measured cases by name."""
    found = {name: CASES[letter] for name, letter in LETTERS.items()}
    for name, (letter, rival) in RIVALS.items():
        case = CASES[letter]
        found[name] = replace(case, algorithm=case.rivals[rival][0], rivals={}, title=rival)
    return found


def measured(name: str, way: str, device: str, rounds: int) -> tuple[dict[str, Any], Tensor]:
    """Return a row of the table, and all parameters at the end, on the host."""
    os.environ[processor.GRAPHS] = WAYS[way]
    case, where = cases()[name], pick_device(device)
    fed = federation(case, where)
    state, seconds = begun(case.algorithm, fed), list[float]()

    def play(round: int) -> None:
        nonlocal state
        how: dict[str, Any] = {"round": round, "seed": SEED, "cohort": case.cohort}
        begin = time.perf_counter()
        state, _ = play_round(case.algorithm, fed, state, **how)
        if where.type == "cuda":
            torch.cuda.synchronize(where)
        seconds.append(time.perf_counter() - begin)

    for round in range(BEFORE + rounds):
        play(round)
    peak = torch.cuda.max_memory_allocated(where) / 2**20 if where.type == "cuda" else 0.0
    row = {"case": name, "way": way, "seconds": float(pd.Series(seconds[BEFORE:]).median())}
    launched = launches(lambda: play(BEFORE + rounds))
    tensors = {**state.server_params, **state.client_params}.values()
    end = torch.cat([t.flatten().double().cpu() for t in tensors])
    return {**row, "launches": launched, "peak_mib": peak}, end


def launches(play: Callable[[], None]) -> int:
    """Return how often the host launches a kernel or a graph."""
    with torch.profiler.profile() as seen:
        play()
    names = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch")
    return sum(e.count for e in seen.key_averages() if e.key.startswith(names))


def text(table: pd.DataFrame) -> str:
    """Return the table in Markdown, a row per case."""
    wide = table.pivot(index="case", columns="way")
    head = {"case": "---"} | dict.fromkeys(
        ("seconds a round", "as graphs", "times as fast", "launches", "as graphs ", "MiB",
         "as graphs  ", "distance"), "---:")  # fmt: skip
    rows = []
    for name, of in wide.iterrows():
        both = [(of[column, "kernels"], of[column, "graphs"]) for column in
                ("seconds", "launches", "peak_mib")]  # fmt: skip
        (slow, fast), (many, few), (small, large) = both
        rows.append([cases()[str(name)].title, f"{slow:.4f}", f"{fast:.4f}", f"{slow / fast:.1f}",
                     f"{many:.0f}", f"{few:.0f}", f"{small:.0f}", f"{large:.0f}",
                     f"{of['distance', 'graphs']:.0e}"])  # fmt: skip
    return report.table(head, rows)


def main(arguments: list[str] | None = None) -> None:
    """Measure the cases that the table does not have yet."""
    parser = report.parser("benchmarks.graphs", __doc__)
    parser.add_argument("--device", type=report.device, default="cuda", help="cuda or cuda:N")
    parser.add_argument("--rounds", type=report.count, default=5, help="that are timed")
    asked = parser.parse_args(arguments)
    file = report.folder(asked.keep) / "gpu" / "graphs.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    table = pd.read_csv(file) if file.exists() else pd.DataFrame(columns=["case"])
    for name in cases():
        if name in {*table["case"]}:
            continue
        ends, rows = list[Tensor](), list[dict[str, Any]]()
        for way in WAYS:
            row, end = fresh.call(measured, name, way, str(asked.device), asked.rounds)
            ends.append(end)
            rows.append({**row, "distance": float((end - ends[0]).norm() / ends[0].norm())})
        table = pd.concat([table, pd.DataFrame(rows)], ignore_index=True)
        table.assign(**report.machine(asked.device)).to_csv(file, index=False)
        print(f"{name} is in {file}", flush=True)
    print(text(table))


if __name__ == "__main__":
    main()
