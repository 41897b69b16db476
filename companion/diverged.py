"""Runs that diverged: one of their numbers was not finite, and would not be finite again.

A diverged run is a result, too. A campaign does not try it again, no section waits for it, and
figures list it. ``results/diverged.csv`` keeps these runs with the project.
"""

from collections.abc import Collection, Iterable

import pandas as pd

from companion.frames import put_table, read_table
from companion.sections import Run, Section
from fedlib import paths
from fedrun import Experiment, find_result
from fedrun.provenance import committed
from fedrun.store import diverged as diverged_run

COLUMNS = ["key", "run", "rounds"]
DIVERGED = "diverged"  # why a method is absent from a panel


def stored() -> pd.DataFrame:
    """Return the diverged runs that are kept with the project: key, run, rounds completed."""
    file = paths.results() / "diverged.csv"
    if not file.exists():
        return pd.DataFrame(columns=COLUMNS)
    return read_table(file, "list of diverged runs", usecols=COLUMNS, dtype={"key": str})


def diverged(experiments: Iterable[Experiment]) -> dict[Experiment, int]:
    """Return the experiments that diverged, or build on one that did, and after how many rounds.

    A run that has a result has not diverged; failures of uncommitted code do not count.
    """
    known = stored().set_index("key")["rounds"]
    rounds = {e: [_round(stage, known) for stage in e.stages] for e in experiments}
    return {e: max(each) for e, each in rounds.items() if max(each) >= 0}


def lost(section: Section, scale: str, dataset: str) -> list[tuple[Run, int]]:
    """Return the runs of a section that diverged on a data set, each with its seed."""
    asked = {e: run for run, every in section.by_run(scale, dataset) for e in every}
    return [(asked[e], e.seed) for e in diverged(asked)]


def _round(one: Experiment, known: pd.Series) -> int:
    """Return the number of rounds after which a stage diverged, -1 if it did not."""
    failure = diverged_run(one)
    counts = failure is not None and committed(failure.commit)
    after = failure.round if failure and counts else int(known.get(one.key, -1))
    return -1 if after >= 0 and find_result(one) else after


def store(rows: Iterable[tuple[str, str, int]], judged: Collection[str]) -> None:
    """Write diverged runs to ``results/diverged.csv``.

    Args:
        rows: key, run and rounds of the runs.
        judged: the keys of all experiments that were checked; older rows of other keys stay.
    """
    old = stored()
    every = pd.concat([old[~old["key"].isin(judged)], pd.DataFrame(rows, columns=COLUMNS)])
    if len(every) or len(old):
        put_table(paths.results() / "diverged.csv", every.sort_values("key"), "what diverged")
