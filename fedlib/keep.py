"""Keep finished runs with the project: `make results SCALE=standard`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fedlib.experiment import Experiment, StoreError, export, find
from fedlib.recipes.plan import planned


def of_scale(scale: str) -> list[Experiment]:
    """Return every experiment that the recipes name at one scale, first stages included."""
    return [p.experiment for p in planned(scale)]


def keep(scale: str) -> tuple[list[Path], list[Experiment]]:
    """Export the finished runs of a scale; return the files written and what is missing."""
    found = [(e, find(e)) for e in of_scale(scale)]
    files = [export(result) for _, result in found if result is not None]
    return files, [e for e, result in found if result is None]


def main() -> int:
    """Export one scale and say what was written and what has not been run."""
    parser = argparse.ArgumentParser(prog="python -m fedlib.keep", description=__doc__)
    parser.add_argument("--scale", default="standard")
    try:
        files, missing = keep(parser.parse_args().scale)
    except (ValueError, StoreError) as error:
        print(f"fedlib: {error}", file=sys.stderr)
        return 1 if isinstance(error, StoreError) else 2
    size = sum(f.stat().st_size for f in files) / 1e6
    print(f"{len(files)} results in {size:.1f} MB; {len(missing)} experiments have not been run")
    for experiment in missing:
        print(f"  missing: {experiment}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
