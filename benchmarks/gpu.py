"""A GPU: its speed, the deviation of its results from a CPU's, and the cost of the papers' scale.

    python -m benchmarks.gpu [--device cuda] [--jobs 8] [--parts adaptive:cifar10 ...] [--keep]

Three tables are written as soon as they are measured, to ``build/gpu/``, or to ``benchmarks/gpu/``
with ``--keep``. ``speed.csv`` has rounds of the cases of `benchmarks.cases`, of the engine and of a
plain loop. ``bits.csv`` compares the subjects of `benchmarks.determinism` with the CPU: trained on
the GPU, on it again, and with factors of 10 bits (TF32). ``cost.csv`` has the cost of a run of
every kind of a part of the papers' own scale, extrapolated from a few rounds, while as many runs
train as there are jobs (without seconds if the run failed); this needs the data of these parts.
``GPU.md`` summarises the tables.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from string import Template
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch

from benchmarks import fresh, report
from benchmarks.cases import CASES
from benchmarks.determinism.deviation import compare
from benchmarks.determinism.subjects import Subject, subjects
from benchmarks.determinism.trained import Way, runs_in, train_one, trained
from companion.plan import epochs_of, planned
from fedlib import processor
from fedlib.algorithms import MajorityClass
from fedlib.engine import State
from fedlib.federation import Federation
from fedrun import Experiment
from fedrun.experiment import built
from fedrun.train import initial_state, rounds
from papers.registry import REGISTRY, hours_of

SPEED = ("A", "B", "C", "D", "F", "I", "H")
CPU, GPU, AGAIN, TF32 = "cpu", "gpu", "gpu again", "tf32"
PARTS = ("adaptive:cifar10", "specialists:ag_news", "fourteen:cifar10", "fourteen:ag_news")
PLAYED, EPOCHS = 4, 3  # timed rounds of a run, and timed epochs of a stage of one round
KEPT = Path(__file__).parent / "gpu"
SPEEDS, BITS, COSTS = "speed", "bits", "cost"
FAR = 1e-5  # a relative distance of weights after three rounds that exceeds rounding


def speed(device: torch.device) -> pd.DataFrame:
    """Return the seconds of a round by case, way and repetition."""
    found = [CASES[name].measure(3, device).assign(case=name) for name in SPEED]
    return pd.concat(found, ignore_index=True)


def bits(subject: Subject, device: str, folder: Path) -> list[dict[str, Any]]:
    """Return the deviations of a subject's GPU runs from the CPU's, and of two GPU runs."""
    ways = {CPU: (CPU, CPU), GPU: (device, CPU), AGAIN: (device, GPU), TF32: (device, CPU)}
    ends, found = {}, []
    for way, (place, other) in ways.items():
        torch.backends.cudnn.allow_tf32 = True  # torch's default; pinned processes turn it off
        free = {processor.VARIABLE: "0" if way == TF32 else "1"}
        with runs_in(folder / way), patch.dict(os.environ, free):
            train_one(subject, Way(device=place))
        state, metrics = trained(folder, way, subject.experiment)
        ends[way] = state.flat(), metrics
        if way != CPU:
            apart = compare(ends[other], ends[way])
            found.append({"trained": subject.title, "way": way, **vars(apart)})
    return found


def kinds(part: str, scale: str = "paper") -> list[tuple[Experiment, int]]:
    """Return one run of every kind of a part that is worth timing, and the number of such runs."""
    found: dict[Any, list[Experiment]] = {}
    for one in planned(REGISTRY, scale, [part]):
        algorithm = one.experiment.algorithm
        if not isinstance(algorithm, MajorityClass):
            found.setdefault(tuple(_kind(one.experiment).items()), []).append(one.experiment)
    return [(min(of, key=lambda e: len(e.stages)), len(of)) for of in found.values()]


def _kind(experiment: Experiment) -> dict[str, Any]:
    """Return the fields that runs of one kind share."""
    algorithm = experiment.algorithm
    of = type(getattr(algorithm, "of", None)).__name__.removeprefix("NoneType")
    options = {name: getattr(algorithm, name, 0) for name in ("clusters", "epochs")}
    name = type(algorithm).__name__
    return {"algorithm": name, "of": of, "rounds": experiment.rounds, **options}


def cost(asked: tuple[str, Experiment, int], device: str) -> dict[str, Any]:
    """Return the cost of a run of a kind, and the number of such runs."""
    part, experiment, runs = asked
    try:
        seconds: float = round(seconds_of(experiment, device))
    except (RuntimeError, ValueError) as error:  # no memory or no data: time the other kinds
        print(f"{part}, {experiment.algorithm}: {error}", flush=True)
        seconds = np.nan
    return {"part": part, **_kind(experiment), "runs": runs, "seconds": seconds}


def seconds_of(experiment: Experiment, device: str) -> float:
    """Return the seconds of a run, extrapolated from a few of its rounds or epochs."""
    short = _short(experiment)
    fed = _federation(experiment, device)
    state = initial_state(short, fed, [_end(stage, device) for stage in experiment.before])
    seconds = [*_timed(short, fed, state)]  # a single round is only a warm-up
    if experiment.rounds > 1:
        plain, scored = float(np.mean(seconds[1:-1])), seconds[-1]
        scores = experiment.rounds / (experiment.evaluate_every or experiment.rounds)
        return experiment.rounds * plain + scores * max(0.0, scored - plain)
    return sum(_timed(short, fed, state)) * epochs_of(experiment) / epochs_of(short)


def _short(experiment: Experiment) -> Experiment:
    """Return the experiment with a few of its rounds, or with a few epochs of its only one."""
    if experiment.rounds > 1:
        return replace(experiment, rounds=PLAYED, evaluate_every=PLAYED)
    algorithm: Any = experiment.algorithm
    if not hasattr(algorithm, "epochs"):
        return experiment
    return replace(experiment, algorithm=replace(algorithm, epochs=min(EPOCHS, algorithm.epochs)))


def _timed(experiment: Experiment, fed: Federation, state: State) -> Iterator[float]:
    """Play the rounds of an experiment; yield the seconds of each."""
    played = rounds(experiment, fed, state)
    next(played)
    for _ in range(experiment.rounds):
        begin = time.perf_counter()
        next(played)
        if fed.device.type == "cuda":
            torch.cuda.synchronize(fed.device)
        yield time.perf_counter() - begin


@cache
def _end(experiment: Experiment, device: str) -> State:
    """Return the state after one round of an experiment and of each stage before it."""
    short, fed = replace(_short(experiment), rounds=1), _federation(experiment, device)
    first = initial_state(short, fed, [_end(stage, device) for stage in experiment.before])
    return [*rounds(short, fed, first)][-1][0]


@cache
def _federation(experiment: Experiment, device: str) -> Federation:
    return built(experiment, device)


def text(folder: Path = KEPT) -> str:
    """Return a page in Markdown about the tables of a folder."""
    fast, apart, costs = (pd.read_csv(folder / f"{name}.csv") for name in (SPEEDS, BITS, COSTS))
    ways = {name: of.set_index("trained")["relative"] for name, of in apart.groupby("way")}
    again = apart[apart["way"].eq(AGAIN)]
    convolutions = ways[GPU].index.str.contains("convolutional|dropout")
    tf32 = ways[TF32][convolutions]
    far = ways[GPU][ways[GPU] > FAR].sort_values(ascending=False)
    return Template((KEPT / "page.md").read_text("utf-8")).substitute(
        speed=_speeds(fast),
        costs=_costs(costs.assign(hours=costs["seconds"] / costs["jobs"] / 3600)),
        machine=", ".join(f"{name} {fast[name].iloc[0]}" for name in report.MACHINE),
        jobs=" or ".join(map(str, sorted({*costs["jobs"]}))),
        trained=len(again),
        same=again["same"].sum(),
        others="; ".join(sorted(again.loc[~again["same"], "trained"])),
        median=f"{ways[GPU].median():.0e}",
        near=ways[GPU].le(FAR).sum(),
        far="; ".join(f"{name} ({by:.0e})" for name, by in far.items()),
        convolutions=f"{ways[GPU][convolutions].median():.0e}",
        tf32=f"{tf32.median():.0e}",
        worst=f"{tf32.max():.0e}",
    )


def _speeds(fast: pd.DataFrame) -> str:
    wide = fast.pivot(index=["case", "repetition"], columns="way", values="seconds")
    wide = wide.dropna(subset=["engine", "plain"])
    wide["ratio"] = wide["plain"] / wide["engine"]
    return "\n".join(
        f"| {CASES[name].title} | {of['engine'].median():.3f} | {of['ratio'].median():.1f} |"
        for name, of in wide.groupby("case")
    )


def _costs(costs: pd.DataFrame) -> str:
    return "\n".join(
        f"| `{part}` | {of['runs'].sum():,} | {of['hours'].min():.2f} to {of['hours'].max():.2f} "
        f"| {hours_of(of):.0f} |"
        for part, of in costs.groupby("part")
    )


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write each table as soon as it is complete."""
    parser = report.parser("benchmarks.gpu", __doc__)
    parser.add_argument("--device", type=report.device, default="cuda", help="cuda or cuda:N")
    parser.add_argument("--jobs", type=report.count, default=8, help="processes at a time")
    parser.add_argument("--parts", nargs="*", default=PARTS, help="of the papers' own scale")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    folder, device = report.folder(asked.keep) / "gpu", str(asked.device)
    folder.mkdir(parents=True, exist_ok=True)
    here = report.machine(asked.device)

    def write(name: str, rows: pd.DataFrame) -> None:
        rows.assign(jobs=asked.jobs, **here).to_csv(folder / f"{name}.csv", index=False)
        print(f"{name} is in {folder / name}.csv", flush=True)

    write(SPEEDS, speed(asked.device))
    with tempfile.TemporaryDirectory() as scratch, fresh.pool(asked.jobs) as pool:
        one = partial(bits, device=device, folder=Path(scratch))
        write(BITS, pd.DataFrame([row for of in pool.map(one, subjects()) for row in of]))
        every = [(part, *kind) for part in asked.parts for kind in kinds(part)]
        write(COSTS, pd.DataFrame(pool.map(partial(cost, device=device), every)))
    report.write("GPU.md", text(folder), asked.keep)


if __name__ == "__main__":
    main()
