"""What a run once paid for and nobody needs, beside what it pays now."""

import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

from benchmarks.cases import CASES, SEED, federation, on_two_cores, one_core
from fedlib.algorithms import FedRep
from fedlib.optim import Stepper, adam
from fedrun.experiment import Log
from fedrun.train import best_of

CPU = torch.device("cpu")
STEPS, TESTERS, SCORINGS, MEMBERS = 300, 2_000, 100, 100
Pair = tuple[Callable[[], object], Callable[[], object]]


def measure(repeat: int) -> pd.DataFrame:
    """Return one row per repetition and way: the seconds of "WHAT, before" and of "WHAT, now".

    Wall time, but CPU seconds of a first optimiser and, of FedRep, of the busiest process.
    """
    rows = []
    for what, pair in {**_pairs(), "FedRep's round, two cores for one": _fedrep()}.items():
        for play in pair:
            play()  # warm up
        for repetition in range(repeat):
            for when, play in zip(("before", "now"), pair, strict=True):
                begin = time.perf_counter()
                took = play()
                spent = took if isinstance(took, float) else time.perf_counter() - begin
                rows.append((repetition, f"{what}, {when}", spent))
    return pd.DataFrame(rows, columns=["repetition", "way", "seconds"])


def text(frame: pd.DataFrame) -> str:
    """Return the ratios as text."""
    wide = frame.pivot(index="repetition", columns="way", values="seconds")
    lines = ["what a run once paid for: seconds before and now, and their ratio"]
    for what in dict.fromkeys(way.rpartition(",")[0] for way in frame["way"]):
        before, now = wide[f"{what}, before"], wide[f"{what}, now"]
        seconds = f"{before.median():>9.4f}{now.median():>9.4f}"
        lines.append(f"   {what:<42}{seconds}   {(now / before).median():.3f}")
    return "\n".join(lines)


def _pairs() -> dict[str, Pair]:
    """Return what is measured, by name: as it was, and as it is."""
    return {
        "a process's first optimiser": (lambda: _fresh(True), lambda: _fresh(False)),
        f"{STEPS} steps of Adam": (lambda: _steps(True), lambda: _steps(False)),
        f"masks of {TESTERS:,} clients' tests": _masks(),
        f"the best of {SCORINGS} scorings": (lambda: _best(True), lambda: _best(False)),
    }


def _optimiser(torchs: bool) -> torch.optim.Optimizer | Stepper:
    """Return Adam over a small network whose gradients are there: of torch's class, or ours."""
    leaves = dict(federation(CASES["B"], CPU).net.module_of(SEED).named_parameters())
    for leaf in leaves.values():
        leaf.grad = torch.ones_like(leaf)
    if torchs:
        return torch.optim.Adam(leaves.values(), fused=True)
    return adam().build(leaves, fused=True)


def _first(torchs: bool) -> float:
    """Return the CPU seconds of this process's first optimiser and its step."""
    begin = time.process_time()
    leaf = torch.ones(9, requires_grad=True)
    leaf.grad = torch.ones(9)
    made = torch.optim.Adam([leaf], fused=True) if torchs else adam().build({"": leaf}, fused=True)
    made.step()
    return time.process_time() - begin


def _fresh(torchs: bool) -> float:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(_first, torchs).result()


def _steps(torchs: bool) -> float:
    optimiser, begin = _optimiser(torchs), time.perf_counter()
    for _ in range(STEPS):
        optimiser.step()
    return time.perf_counter() - begin


def _masks() -> Pair:
    """Return the masks of one client after the other: of everybody, and of its own row."""
    table = federation(replace(CASES["A"], size=20), CPU, TESTERS).train
    everybody = np.arange(TESTERS)

    def everybodys() -> None:
        for row in everybody:
            _ = table.padded(everybody)[1][row]

    def own() -> None:
        for row in everybody[:, None]:
            _ = table.padded(row)[1]

    return everybodys, own


def _best(whole: bool) -> None:
    """Tell the best round at every scoring from all that was logged, or from the best so far."""
    log, members, ids = Log(), np.arange(MEMBERS), range(MEMBERS)
    rivals = log.table()
    for t in range(SCORINGS):
        log.clients(t, "validation_nll", ids, np.full(MEMBERS, float(t)))
        if whole:
            best_of(log.table(), members)
        else:
            now = log.table(t)
            if best_of(pa.concat_tables([rivals, now]), members) == t:
                rivals = now


def _fedrep() -> Pair:
    """Return a round whose phases share programs in part, on one core and on two."""
    case = replace(CASES["M"], algorithm=FedRep(batch_size=10, head_epochs=1), rivals=())
    fed = federation(case, CPU)
    one, two = one_core(case, fed), on_two_cores(case, fed)
    return lambda: _busiest(one), lambda: _busiest(two)


def _busiest(play: Callable[[], None]) -> float:
    """Return the CPU seconds of the process that works longest: this one, or its only copy."""
    start = np.array(os.times()[:4])  # user and system, of this process and of those before it
    play()
    mine, system, copys, copys_system = np.array(os.times()[:4]) - start
    return float(max(mine + system, copys + copys_system))
