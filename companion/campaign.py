"""Plan all runs of a scale, say what they cost, and train them: `make plan`, `make paper`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

import pandas as pd
from rich.console import Console
from rich.table import Table

from companion.book import Book
from companion.costs import Costs, probed
from companion.plan import Planned, in_order, planned
from fedlib import paths
from fedlib.progress import duration
from fedlib.runs import Experiment, find
from fedlib.runs.provenance import DIRTY, commit
from fedlib.runs.store import complete
from fedlib.runs.sweep import SweepFailed, train


def show(
    book: Book,
    scale: str,
    sections: Sequence[str] = (),
    *,
    device: str = "auto",
    workers: int = 1,
    probe: bool = True,
) -> list[Planned]:
    """Print how many runs a scale has and what they would cost; return those not stored yet.

    ``sections`` are parts as `planned` takes them, none for all in the order of the book.
    """
    plan = planned(book, scale, sections or in_order(book, scale))
    missing = [p for p in plan if find(p.experiment) is None]
    print(f"{len(plan)} runs at the {scale} scale, {len(missing)} of them to be trained")
    costs = _estimated(missing, device) if probe else {}
    if missing:
        _print(summed(plan, missing, costs), workers)
    return missing


def campaign(
    book: Book,
    scale: str,
    sections: Sequence[str] = (),
    *,
    device: str = "auto",
    workers: int = 1,
    probe: bool = True,
    address: str | None = None,
    dirty_anyway: bool = False,
) -> int:
    """Print the plan and train it; 0 if all is there in the end, 1 if runs failed.

    What a cluster will need, a probe of this machine does not say: with an ``address`` none is
    made. The same command continues what was interrupted (130).
    """
    probe = probe and address is None
    missing = show(book, scale, sections, device=device, workers=workers, probe=probe)
    if not missing:
        return 0
    if scale != "quick" and not dirty_anyway:
        _refuse_uncommitted()
    try:
        train([p.experiment for p in missing], workers=workers, device=device, address=address)
    except SweepFailed as error:
        print(f"fedlib: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stop:
        print(f"fedlib: {stop or 'interrupted'}; the same command continues", file=sys.stderr)
        return 130
    finally:
        print(_left([p for p in missing if not complete(p.experiment)]), flush=True)
    return 0


def summed(plan: Sequence[Planned], missing: Sequence[Planned], costs: Costs) -> pd.DataFrame:
    """Return runs, what is left, and estimated hours by section and data set, and of all."""
    left = {p.experiment for p in missing}
    rows = []
    for p in plan:
        cost = costs.get(p.experiment)
        due, known = p.experiment in left, isinstance(cost, float)
        hours = cost / 3600 if isinstance(cost, float) else 0.0
        rows.append((p.section, p.dataset, 1, int(due), hours, int(due and not known)))
    names = ["section", "data set", "runs", "left", "hours", "no estimate"]
    table = pd.DataFrame(rows, columns=names).groupby(names[:2], sort=False).sum()
    table.loc[("all", ""), :] = table.sum()
    return table.astype({"runs": int, "left": int, "no estimate": int})


def _print(sums: pd.DataFrame, workers: int) -> None:
    table = Table("section", "data set", box=None)
    for name in ("runs", "left", "hours", f"hours / {workers}", "no estimate"):
        table.add_column(name, justify="right")
    for section, dataset, runs, left, hours, unknown in sums.reset_index().to_numpy().tolist():
        numbers = f"{runs}", f"{left}", f"{hours:.2f}", f"{hours / workers:.2f}", f"{unknown}"
        table.add_row(section, dataset, *numbers)
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _estimated(missing: Sequence[Planned], device: str) -> Costs:
    """Return the probed costs, and say what is being probed."""
    names = {p.experiment: f"{p.section}, {p.dataset}, {p.method}" for p in missing}

    def told(experiment: Experiment, cost: float | str) -> None:
        said = cost if isinstance(cost, str) else f"about {duration(cost)}"
        print(f"  {names[experiment]}: {said}", flush=True)

    print("probing a few rounds of every kind of run:")
    return probed([p.experiment for p in missing], device, told)


def _refuse_uncommitted() -> None:
    """ValueError in a checkout that names no code: what it trains could not be kept."""
    if not commit().endswith(DIRTY):
        return
    raise ValueError(
        f"{paths.ROOT} has uncommitted changes in fedlib/ (commit {commit()}): runs that it trains "
        "could never be exported. Commit them, or train from a checkout of its own (git worktree "
        "add --detach ../campaign) with FEDLIB_RUNS outside of it. A pilot, whose runs are to be "
        "thrown away: --dirty-anyway, and a FEDLIB_RUNS of its own."
    )


def _left(missing: Sequence[Planned]) -> str:
    """Return what has not been trained, by section and data set in the order of the plan."""
    if not missing:
        return "all runs are stored"
    counts = Counter((p.section, p.dataset) for p in missing)
    lines = [f"  {section} on {dataset}: {n}" for (section, dataset), n in counts.items()]
    return "\n".join([f"{len(missing)} runs are left:", *lines])
