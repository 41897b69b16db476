"""Train every algorithm in several ways and report whether results have the same bits.

    python -m benchmarks.determinism [--jobs 2] [--folder DIR] [--keep]

The report goes to ``build/DETERMINISM.md``; ``--keep`` writes it next to the benchmarks instead.
Ends with status 1 if a promise of same bits is broken.
"""

import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from string import Template

import torch

from benchmarks import fresh, report
from benchmarks.determinism.deviation import Deviation, compare
from benchmarks.determinism.played import GROWN, Growth, InMemory, growth, in_memory
from benchmarks.determinism.subjects import subjects
from benchmarks.determinism.trained import CHUNKS, THREADS, train_all, trained

# The ways that must have the same bits as the reference, in words.
BITS = {
    "again": "trained twice in one process",
    "elsewhere": "another process, in another order, with another hash seed, locale and time zone",
    "resumed": "interrupted half way, resumed by another process, a checkpoint after every round",
}
ALONE = "a client in a cohort, and alone (chunk 1): message, loss and own leaves of a round"
ROUNDED = (*CHUNKS, THREADS)
# Subjects whose deviation is followed over rounds: a net of each kind, and a mixture.
GROWING = (
    "FedAvg, dense",
    "FedMix, dense",
    "FedAvg, wide dense",
    "FedAvg, convolutional",
    "FedAvg, text",
)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and write the report."""
    parser = report.parser("benchmarks.determinism", __doc__)
    parser.add_argument("--jobs", type=report.count, default=2, help="processes at a time")
    parser.add_argument("--folder", help="keep the runs here; what is there is not trained again")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(asked.folder or scratch)
        train_all(root, asked.jobs)
        ways = {way: _compared(root, way) for way in (*BITS, *ROUNDED)}
        with fresh.pool(asked.jobs) as pool:
            every = {subject.title: subject for subject in subjects()}
            found = pool.map(partial(in_memory, root), every.values())
            played = dict(zip(every, found, strict=True))
            growing = [every[title] for title in GROWING]
            grown = dict(zip(GROWING, pool.map(growth, growing), strict=True))
    bits = {said: [n for n, d in ways[way].items() if not d.same] for way, said in BITS.items()}
    bits[ALONE] = [name for name, one in played.items() if not one.alone]
    page = Template(Path(__file__).with_name("page.md").read_text("utf-8")).substitute(
        machine=", ".join(f"{n} {v}" for n, v in report.machine(torch.device("cpu")).items()),
        bits=_table(
            ("compared", "same bits", "not"),
            [(said, _share(len(every), not_), _listed(not_)) for said, not_ in bits.items()],
        ),
        rounding=_rounding({way: ways[way] for way in ROUNDED}),
        growth=_growth(grown),
        shared=_shared(played),
    )
    print(page)
    report.write("DETERMINISM.md", page, asked.keep)
    sys.exit(any(bits.values()))


def _compared(root: Path, way: str) -> dict[str, Deviation]:
    """Return the deviations of a way from the reference, by title."""
    found = {}
    for subject in subjects():
        ends = [trained(root, name, subject.experiment) for name in ("reference", way)]
        mine, theirs = ((state.flat(), metrics) for state, metrics in ends)
        found[subject.title] = compare(mine, theirs)
    return found


def _rounding(ways: Mapping[str, Mapping[str, Deviation]]) -> str:
    def row(title: str) -> tuple[str, ...]:
        each = [found[title] for found in ways.values()]
        return (
            title,
            *("=" if d.same else f"{d.relative:.1e}" for d in each),
            f"{max(d.largest for d in each):.1e}",
            str(max(d.choices for d in each)),
            f"{max(d.accuracy for d in each):.4f}",
            f"{max(d.client for d in each):.4f}",
        )

    head = ("trained", *ways, "largest", "choices", "mean accuracy", "a client's")
    return _table(head, map(row, ways[THREADS]))


def _growth(grown: Mapping[str, Growth]) -> str:
    head = [f"{what}, after {n}" for what in ("chunk", "float64") for n in GROWN]
    rows = [
        (title, *(f"{v:.1e}" for v in (*g.chunk, *g.double)), f"{g.accuracy:.4f}")
        for title, g in grown.items()
    ]
    return _table(("trained", *head, "mean accuracy, chunk"), rows)


def _shared(played: Mapping[str, InMemory]) -> str:
    worst = max(played, key=lambda title: played[title].shared_alone_relative)
    apart = f"{played[worst].shared_alone_relative:.1e} ({worst})"
    parts = max(p.nll for p in played.values())
    moved = _listed(_where(played, lambda p: p.accuracy > 0))
    rows = [
        (
            "a client alone, and in a program that its cohort shares: a round",
            _share(len(played), _where(played, lambda p: not p.shared_alone)),
            f"relative difference at most {apart}",
        ),
        (
            "evaluated one client and 7 examples at a time, and in large batches",
            _share(len(played), _where(played, lambda p: p.nll > 0)),
            f"nll of a client at most {parts:.1e} apart (relative); accuracy differs for: {moved}",
        ),
    ]
    return _table(("compared", "same bits", "else"), rows)


def _where(played: Mapping[str, InMemory], holds: Callable[[InMemory], bool]) -> list[str]:
    return [title for title, one in played.items() if holds(one)]


def _share(total: int, without: list[str]) -> str:
    return f"{total - len(without)} of {total}"


def _listed(titles: list[str]) -> str:
    return "; ".join(titles) or "none"


def _table(head: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
    return report.table(dict.fromkeys(head, "---"), rows)


if __name__ == "__main__":
    main()
