"""Write the scorecard, `make report`; with `--floors` the floors beside published numbers."""

from __future__ import annotations

import sys

from companion.scorecard import write
from companion.scorecard.floors import FILE, write_floors
from fedlib import paths
from fedlib.runs import StoreError


def main() -> int:
    """Write page, tables and numbers; say where, and how verdicts are spread."""
    if sys.argv[1:] == ["--floors"]:
        print(f"{len(write_floors())} floors: {FILE}")
        return 0
    if sys.argv[1:]:
        print("usage: python -m companion.scorecard [--floors]", file=sys.stderr)
        return 2
    try:
        files, numbers, claims = write()
    except StoreError as error:
        print(f"fedlib: {error}", file=sys.stderr)
        return 1
    for name, table in (("published numbers", numbers), ("claims", claims)):
        said = ", ".join(f"{n} {v}" for v, n in table["verdict"].value_counts().items())
        print(f"{len(table)} {name}: {said or 'none tested yet, run make figures'}")
    for file in files:
        print(file.relative_to(paths.ROOT) if file.is_relative_to(paths.ROOT) else file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
