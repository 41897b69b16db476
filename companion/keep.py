"""Keep finished runs with the project: `make results SCALE=standard`.

A run lies in the file of the section and data set that first ask for it,
``results/<section>-<dataset>.parquet``. What is there stays as it is. Runs that diverged have no
result: ``results/diverged.csv`` names them.
"""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from companion import diverged
from companion.plan import by_seed, listed, planned
from companion.sections import SCALES, Book
from fedlib.runs import Experiment, Result, export, exported, find
from fedlib.runs.exported import files, held, refusal, writing
from fedlib.runs.provenance import dirty


class Kept(NamedTuple):
    """What ``keep`` did: all files of results, and which runs it has not kept.

    ``missing`` have not been run, ``dirty`` come from uncommitted code or build on what does and
    are not kept, ``dropped`` were kept before and are in no plan any more.
    """

    files: list[Path]
    missing: list[Experiment]
    dirty: list[Result]
    dropped: list[Experiment]


def homes(book: Book) -> dict[str, str]:
    """Return the name of the file of every planned run, by key."""
    every = [p for scale in SCALES for p in planned(book, scale)]
    return {p.experiment.key: f"{p.section}-{p.dataset}" for p in reversed(every)}


def keep(book: Book, scale: str) -> Kept:
    """Export the finished seeds of a scale, and leave out what is no longer planned at any.

    A seed of a section's data set is exported when all of its runs are there or have diverged: with
    half of it, methods would be compared over different seeds.
    """
    with writing():
        before = {r.experiment: r for r in exported()}
        places = homes(book)
        kept = {e: r for e, r in before.items() if e.key in places}
        plan = {p.experiment: p for p in planned(book, scale)}
        found = {e: kept.get(e) or find(e) for e in plan}
        runs = {**kept, **{e: r for e, r in found.items() if r is not None}}
        bad = {e: r for e, r in runs.items() if dirty(r.provenance)}
        gone = diverged.diverged(found)
        for group in by_seed(book, scale):
            whole = {e: r for e in group if (r := found[e]) is not None and e not in bad}
            if {*group} <= whole.keys() | gone.keys():
                kept |= whole
        files = arrange([r for e, r in kept.items() if e not in bad], places)
        first = [e for e in gone if gone.keys().isdisjoint(e.before)]
        diverged.keep(
            [(e.key, f"{plan[e]}", gone[e]) for e in first], places.keys() - {e.key for e in plan}
        )
    missing = [e for e, result in found.items() if result is None and e not in gone]
    return Kept(files, missing, [*bad.values()], [e for e in before if e.key not in places])


def arrange(results: Iterable[Result], places: Mapping[str, str]) -> list[Path]:
    """Have ``results/`` hold these results and nothing else; return its files.

    Files whose runs stay are not touched. A run that moves is written to its new file before it
    leaves the old one, so that whoever reads meanwhile finds it.
    """
    every = {r.experiment.key: r for r in results}
    there = {path.stem: {*held(path)} for path in files()}
    for staying in ({*every}, set[str]()):  # at first also those that move elsewhere
        for name in {*there, *(places[key] for key in every)}:
            now = there.get(name, set())
            there[name] = {key for key in every if places[key] == name} | now & staying
            if there[name] != now:
                export([every[key] for key in there[name]], name)
    return files()


def main(book: Book, scale: str = "standard") -> int:
    """Export one scale and say what was written and what has not been run; 1 if some is refused."""
    kept = keep(book, scale)
    size = sum(f.stat().st_size for f in kept.files) / 1e6
    count = sum(len(held(f)) for f in kept.files)
    print(f"{count} results in {len(kept.files)} files of {size:.1f} MB")
    for _, run, rounds in diverged.kept().itertuples(index=False):
        print(f"  diverged after {rounds} rounds: {run}")
    for experiment in kept.dropped:
        print(f"  dropped, nothing names it any more: {experiment.key} {experiment}")
    print(f"{len(kept.missing)} experiments have not been run")
    lacking = {*kept.missing}
    if lacking:
        print(listed(p for p in planned(book, scale) if p.experiment in lacking))
    if kept.dirty:
        print(f"fedlib: {refusal(kept.dirty)}", file=sys.stderr)
    return 1 if kept.dirty else 0
