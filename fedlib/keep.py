"""Keep finished runs with the project: `make results SCALE=standard`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from fedlib.experiment import Experiment, Result, StoreError, export, find
from fedlib.experiment.exported import path_of
from fedlib.recipes.plan import by_seed, planned


def of_scale(scale: str) -> list[Experiment]:
    """Return every experiment that the recipes name at one scale, first stages included."""
    return [p.experiment for p in planned(scale)]


def keep(scale: str) -> tuple[list[Path], list[Experiment]]:
    """Export the finished seeds of a scale; return the files written and what is missing.

    A seed of a section's data set is exported when all of its runs are there: with half of it,
    methods would be compared over different seeds.
    """
    found = {e: find(e) for e in of_scale(scale)}
    whole = [group for group in by_seed(scale) if all(found[e] is not None for e in group)]
    kept = dict.fromkeys(e for group in whole for e in group)
    files = [_kept(result) for e in kept if (result := found[e]) is not None]
    return files, [e for e, result in found.items() if result is None]


def _kept(result: Result) -> Path:
    """Return the exported file of a run; one that is there stays, byte by byte."""
    there = path_of(result.experiment)
    return there if there.exists() else export(result)


def main() -> int:
    """Export one scale and say what was written and what has not been run."""
    parser = argparse.ArgumentParser(prog="python -m fedlib.keep", description=__doc__)
    parser.add_argument("--scale", default="standard")
    scale = parser.parse_args().scale
    try:
        files, missing = keep(scale)
    except (ValueError, StoreError) as error:
        print(f"fedlib: {error}", file=sys.stderr)
        return 1 if isinstance(error, StoreError) else 2
    size = sum(f.stat().st_size for f in files) / 1e6
    print(f"{len(files)} results in {size:.1f} MB; {len(missing)} experiments have not been run")
    lacking = set(missing)
    left = Counter(
        (p.section, p.dataset, p.experiment.seed) for p in planned(scale) if p.experiment in lacking
    )
    for (section, dataset, seed), count in left.items():
        print(f"  {section} on {dataset}, seed {seed}: {count} to run")
    return 0


if __name__ == "__main__":
    sys.exit(main())
