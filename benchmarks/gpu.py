"""What a GPU makes of it: how fast, how far from a CPU's numbers, and what the papers' scale costs.

    python -m benchmarks.gpu [--device cuda] [--jobs 8] [--parts adaptive:cifar10 ...] [--keep]

Each of three tables is written as soon as it is measured, into ``build/gpu/``, with ``--keep`` into
``benchmarks/gpu/``: ``speed.csv``, rounds of the cases of `benchmarks.cases`, the engine's next to
a plain loop's; ``bits.csv``, what `benchmarks.determinism` trains, on the GPU, on it again, and
with factors of 10 bits (TF32), each next to the CPU; ``cost.csv``, a run of every kind of a part of
the papers' own scale, by a few of its rounds, while as many others train as there are jobs (no
seconds where it failed). The data of these parts must be there. ``GPU.md`` says what came out.
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
PLAYED, EPOCHS = 4, 3  # rounds of a run, and of a stage of one round epochs, that are timed
KEPT = Path(__file__).parent / "gpu"
SPEEDS, BITS, COSTS = "speed", "bits", "cost"
FAR = 1e-5  # relative to all weights, after three rounds: more than rounding


def speed(device: torch.device) -> pd.DataFrame:
    """Return the seconds of a round by case, way and repetition."""
    found = [CASES[name].measure(3, device).assign(case=name) for name in SPEED]
    return pd.concat(found, ignore_index=True)


def bits(subject: Subject, device: str, folder: Path) -> list[dict[str, Any]]:
    """Return how far a subject's ways of training are from the CPU, and the GPU from itself."""
    ways = {CPU: (CPU, CPU), GPU: (device, CPU), AGAIN: (device, GPU), TF32: (device, CPU)}
    ends, found = {}, []
    for way, (place, other) in ways.items():
        torch.backends.cudnn.allow_tf32 = True  # torch's default, which only a freed process keeps
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
    """Return one run of every kind of a part that is worth timing, and how many there are of it."""
    found: dict[Any, list[Experiment]] = {}
    for one in planned(REGISTRY, scale, [part]):
        algorithm = one.experiment.algorithm
        if not isinstance(algorithm, MajorityClass):
            found.setdefault(tuple(_kind(one.experiment).items()), []).append(one.experiment)
    return [(min(of, key=lambda e: len(e.stages)), len(of)) for of in found.values()]


def _kind(experiment: Experiment) -> dict[str, Any]:
    algorithm = experiment.algorithm
    of = type(getattr(algorithm, "of", None)).__name__.removeprefix("NoneType")
    options = {name: getattr(algorithm, name, 0) for name in ("clusters", "epochs")}
    name = type(algorithm).__name__
    return {"algorithm": name, "of": of, "rounds": experiment.rounds, **options}


def cost(asked: tuple[str, Experiment, int], device: str) -> dict[str, Any]:
    """Return what a run of a kind takes, and how many there are of it."""
    part, experiment, runs = asked
    try:
        seconds: float = round(seconds_of(experiment, device))
    except (RuntimeError, ValueError) as error:  # no memory, no data: the other kinds are timed
        print(f"{part}, {experiment.algorithm}: {error}", flush=True)
        seconds = np.nan
    return {"part": part, **_kind(experiment), "runs": runs, "seconds": seconds}


def seconds_of(experiment: Experiment, device: str) -> float:
    """Return the seconds of a run, by a few of its rounds, or epochs where it has one round."""
    short = _short(experiment)
    fed = _federation(experiment, device)
    state = initial_state(short, fed, [_end(stage, device) for stage in experiment.before])
    seconds = [*_timed(short, fed, state)]  # of a single round a warm-up
    if experiment.rounds > 1:
        plain, scored = float(np.mean(seconds[1:-1])), seconds[-1]
        scores = experiment.rounds / (experiment.evaluate_every or experiment.rounds)
        return experiment.rounds * plain + scores * max(0.0, scored - plain)
    return sum(_timed(short, fed, state)) * epochs_of(experiment) / epochs_of(short)


def _short(experiment: Experiment) -> Experiment:
    """Return the experiment with a few of its rounds, or of the epochs of its only one."""
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
    """Return the state after a single round of an experiment and of the stages before it."""
    short, fed = replace(_short(experiment), rounds=1), _federation(experiment, device)
    first = initial_state(short, fed, [_end(stage, device) for stage in experiment.before])
    return [*rounds(short, fed, first)][-1][0]


@cache
def _federation(experiment: Experiment, device: str) -> Federation:
    return built(experiment, device)


def text(folder: Path = KEPT) -> str:
    """Return what the tables of a folder say, in Markdown."""
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
    """Measure, and write each table when it is there."""
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
