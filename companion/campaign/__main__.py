"""Plan all runs of a scale, say what they cost, and train them: `make paper`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence

import pandas as pd

from companion.campaign.costs import Costs, probed
from fedlib import paths
from fedlib.runs import Experiment, StoreError, find
from fedlib.runs.cluster import NoCluster, UnfitNode
from fedlib.runs.provenance import DIRTY, commit
from fedlib.runs.store import complete
from fedlib.runs.sweep import SweepFailed, train
from fedlib.runs.table import duration
from papers.recipes.plan import Planned, in_order, planned


def main(argv: Sequence[str] | None = None) -> int:
    """Print the plan and train it; 0 if all is there in the end, 1 if runs failed."""
    asked = _parser().parse_args(argv)
    try:
        plan = planned(asked.scale, asked.section or in_order(asked.scale))
        missing = [p for p in plan if find(p.experiment) is None]
        print(f"{len(plan)} runs at the {asked.scale} scale, {len(missing)} of them to be trained")
        # What a cluster will need, a probe of this machine does not say.
        probes = not asked.no_probe and (asked.plan or asked.address is None)
        costs = _estimated(missing, asked.device) if probes else {}
        if missing:
            print(_table(plan, missing, costs, asked.workers).to_string())
        if asked.plan or not missing:
            return 0
        _refuse_uncommitted(asked)
        return _train(missing, asked)
    except (ValueError, StoreError, NoCluster, UnfitNode) as error:
        print(f"fedlib: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m companion.campaign", description=__doc__)
    parser.add_argument("--scale", default="paper")
    parser.add_argument(
        "--section",
        action="append",
        default=[],
        metavar="NAME[:DATASET][@SEEDS]",
        help="only this part, e.g. fourteen:mnist@3; several in the order in which they are given",
    )
    parser.add_argument("--plan", action="store_true", help="print the plan and train nothing")
    parser.add_argument("--no-probe", action="store_true", help="do not estimate costs")
    parser.add_argument(
        "--dirty-anyway",
        action="store_true",
        help="a pilot: train uncommitted code, whose runs cannot be exported",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--workers", type=int, default=1, help="processes at once (1)")
    parser.add_argument(
        "--address",
        default=os.environ.get("RAY_ADDRESS") or None,
        help="a Ray cluster, auto or HOST:PORT (RAY_ADDRESS)",
    )
    return parser


def _estimated(missing: Sequence[Planned], device: str) -> Costs:
    """Return the probed costs, and say what is being probed."""
    names = {p.experiment: f"{p.section}, {p.dataset}, {p.method}" for p in missing}

    def told(experiment: Experiment, cost: float | str) -> None:
        said = cost if isinstance(cost, str) else f"about {duration(cost)}"
        print(f"  {names[experiment]}: {said}", flush=True)

    print("probing a few rounds of every kind of run:")
    return probed([p.experiment for p in missing], device, told)


def _table(
    plan: Sequence[Planned], missing: Sequence[Planned], costs: Costs, workers: int
) -> pd.DataFrame:
    """Return runs, what is left, and estimated hours by section and data set."""
    left = {p.experiment for p in missing}
    rows = [
        (p.section, p.dataset, 1, int(p.experiment in left), costs.get(p.experiment)) for p in plan
    ]
    table = pd.DataFrame(rows, columns=["section", "data set", "runs", "left", "cost"])
    table["hours"] = pd.to_numeric(table["cost"], errors="coerce").fillna(0.0) / 3600
    table["no estimate"] = [
        int(bool(due) and not isinstance(cost, float))
        for due, cost in zip(table["left"], table["cost"], strict=True)
    ]
    numbers = ["runs", "left", "hours", "no estimate"]
    sums = table.groupby(["section", "data set"], sort=False)[numbers].sum()
    sums.loc[("all", ""), :] = sums.sum()
    sums[f"hours / {workers}"] = sums["hours"] / workers
    counts = {name: int for name in ("runs", "left", "no estimate")}
    return sums.astype(counts).round(2)


def _refuse_uncommitted(asked: argparse.Namespace) -> None:
    """ValueError for a scale whose runs are to be kept and a checkout that names no code."""
    if asked.scale == "quick" or asked.dirty_anyway or not commit().endswith(DIRTY):
        return
    raise ValueError(
        f"{paths.ROOT} has uncommitted changes in fedlib/ (commit {commit()}): runs that it trains "
        "could never be exported. Commit them, or train from a checkout of its own (git worktree "
        "add --detach ../campaign) with FEDLIB_RUNS outside of it. A pilot, whose runs are to be "
        "thrown away: --dirty-anyway, and a FEDLIB_RUNS of its own."
    )


def _train(missing: Sequence[Planned], asked: argparse.Namespace) -> int:
    """Train what is missing, in the order of the plan; the same command continues."""
    runs = [p.experiment for p in missing]
    try:
        train(runs, workers=asked.workers, device=asked.device, address=asked.address)
    except SweepFailed as error:
        print(f"fedlib: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stop:
        print(f"fedlib: {stop or 'interrupted'}; the same command continues", file=sys.stderr)
        return 130
    finally:
        print(_left([p for p in missing if not complete(p.experiment)]), flush=True)
    return 0


def _left(missing: Sequence[Planned]) -> str:
    """Return what has not been trained, by section and data set in the order of the plan."""
    if not missing:
        return "all runs are stored"
    counts = Counter((p.section, p.dataset) for p in missing)
    lines = [f"  {section} on {dataset}: {n}" for (section, dataset), n in counts.items()]
    return "\n".join([f"{len(missing)} runs are left:", *lines])


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as Ctrl-C: what is trained is stored
    sys.exit(main())
