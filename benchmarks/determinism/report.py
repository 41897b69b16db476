"""The report: what is promised, and what was measured of it, as Markdown."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.determinism.deviation import EPSILON, Deviation
from benchmarks.determinism.played import GROWN, Growth, InMemory
from benchmarks.determinism.subjects import COHORT, ROUNDS, Subject
from benchmarks.determinism.trained import (
    AGAIN,
    CHUNKS,
    ELSEWHERE,
    GPU,
    GPU_AGAIN,
    RESUMED,
    THREADS,
)

NO_GPU = "no GPU on this machine: not measured"
# The ways that are promised to end with the reference's bits, in words.
BITS = {
    AGAIN: "trained twice in one process",
    ELSEWHERE: "another process, in another order, with another hash seed, locale and time zone",
    RESUMED: "interrupted half way, resumed by another process, a checkpoint after every round",
}
ROUNDED = (*CHUNKS, THREADS)
PROMISES = f"""\
**Promised: the same bits** of every tensor of the state and of every stored metric, given the same
code and versions, a pinned processor of the same maker, the same `chunk` and, where clients are not
dealt to copies of the process, the same number of threads: in one process or another, whatever else
it has trained, whatever its locale and time zone, interrupted or not, however often it stores a
checkpoint. Clients that train one at a time (`chunk=1`) end with the same bits whoever else is in
the cohort, and in whatever order the population's rows are.

**Promised: rounding only** where clients share a program in another way (`chunk`), with another
number of threads in one process, or on another device. Draws (cohorts, batches, noise, initial
weights) stay the same bits; sums are taken in another order. A difference begins at the spacing of
floats, a relative {EPSILON:.1e}, and grows with the steps of training as the one between float32
and float64 does.

**Not promised.** Rounding does not stay small: training amplifies it, and where something is
*decided* (IFCA's cluster, the experts that pruning sends, the step at which early stopping stops,
the round that a run keeps) a tie can go the other way, and what follows is another run, as valid
as the first. The same happens where a gradient is zero but for rounding and Adam turns it into full
steps: a bias that batch normalisation takes out again (FedGen's generator; no prediction changes),
the gate of a `Mixture` whose specialists still equal the generalist. To compare single runs to
the last digit, fix `chunk` and threads: they are not in an experiment's key, but in a run's
provenance, segment by segment. Other versions of torch, instruction sets and BLAS libraries round
differently, too. On a GPU some of torch's kernels add in no fixed order, and nothing here forbids
them.
"""


@dataclass
class Findings:
    """All that was measured: by way and title, by title, and by title."""

    subjects: Sequence[Subject]
    machine: Mapping[str, Any]
    deviations: dict[str, dict[str, Deviation]] = field(default_factory=dict)
    played: dict[str, InMemory] = field(default_factory=dict)
    grown: dict[str, Growth] = field(default_factory=dict)

    def broken(self) -> dict[str, list[str]]:
        """Return the titles of the subjects that break a promise of same bits, by promise."""
        found = {said: _not(self.deviations[way], lambda d: d.same) for way, said in BITS.items()}
        alone = "a client in a cohort, and alone (chunk 1): message, loss and own leaves of a round"
        found[alone] = _not(self.played, lambda p: p.alone)
        rows = "rows of the population in another order (chunk 1): a round of the first stage"
        found[rows] = _not(self.played, lambda p: p.permuted)
        return found


def text(found: Findings) -> str:
    """Return the report."""
    here = ", ".join(f"{name} {value}" for name, value in found.machine.items())
    return "\n".join(
        [
            "# Determinism, measured",
            f"\nWritten by `python -m benchmarks.determinism --keep` on: {here}.\n",
            f"Every exported algorithm and some of their options, on digits: {ROUNDS} rounds of "
            f"{COHORT} of 6 clients of unequal size.\n",
            PROMISES,
            "## The same bits\n",
            _bits(found),
            "\n## Rounding: other chunks, other numbers of threads\n",
            "`=` is the same bits as the default chunk with one thread; else, the norm of the "
            "difference of all weights over their norm; 0 where only a stored metric or a "
            "server's memory differs. The last columns are the largest differences of "
            "these ways: of one number of the state, the count of integers (choices), "
            "the mean test accuracy and a single client's.\n",
            _rounding(found),
            "\n## Growth over rounds\n",
            "The relative difference of all weights, one client at a time against all in one "
            "program, beside the one between float32 and float64, after some rounds.\n",
            _growth(found.grown),
            "\n## A client in a shared program, and evaluation in parts\n",
            _shared(found.played),
            "\n## On a GPU\n",
            _gpu(found),
            "",
        ]
    )


def _bits(found: Findings) -> str:
    rows = [
        (said, f"{len(found.subjects) - len(not_same)} of {len(found.subjects)}", _listed(not_same))
        for said, not_same in found.broken().items()
    ]
    return _table(("compared", "same bits", "not"), rows)


def _rounding(found: Findings) -> str:
    rows = []
    for subject in found.subjects:
        each = [found.deviations[way][subject.title] for way in ROUNDED]
        rows.append(
            (
                subject.title,
                *("=" if d.same else f"{d.relative:.1e}" for d in each),
                f"{max(d.largest for d in each):.1e}",
                str(max(d.choices for d in each)),
                f"{max(d.accuracy for d in each):.4f}",
                f"{max(d.client for d in each):.4f}",
            )
        )
    head = ("trained", *ROUNDED, "largest", "choices", "mean accuracy", "a client's")
    return _table(head, rows)


def _growth(grown: Mapping[str, Growth]) -> str:
    head = (
        "trained",
        *(f"chunk, after {n}" for n in GROWN),
        *(f"float64, after {n}" for n in GROWN),
        "mean accuracy, chunk",
    )
    rows = [
        (title, *(f"{v:.1e}" for v in (*g.chunk, *g.double)), f"{g.accuracy:.4f}")
        for title, g in grown.items()
    ]
    return _table(head, rows)


def _shared(played: Mapping[str, InMemory]) -> str:
    worst = max(played, key=lambda title: played[title].shared_alone_relative)
    moved = _not(played, lambda p: p.accuracy == 0)
    rows = [
        (
            "a client alone, and in a program that its cohort shares: a round",
            _count(played, lambda p: p.shared_alone),
            f"relative difference at most {played[worst].shared_alone_relative:.1e} ({worst})",
        ),
        (
            "evaluated one client and 7 examples at a time, and in large batches",
            _count(played, lambda p: p.nll == 0),
            f"nll of a client at most {max(p.nll for p in played.values()):.1e} apart (relative); "
            f"accuracy differs for: {_listed(moved)}",
        ),
    ]
    return _table(("compared", "same bits", "else"), rows)


def _gpu(found: Findings) -> str:
    if GPU not in found.deviations:
        return NO_GPU
    said = {
        GPU: "CPU and GPU, each with its default chunk",
        GPU_AGAIN: "twice on the GPU",
    }
    rows = []
    for way, words in said.items():
        each = found.deviations[way]
        worst = max(each, key=lambda title: each[title].relative)
        rows.append(
            (
                words,
                _count(each, lambda d: d.same),
                f"{each[worst].relative:.1e} ({worst})",
                f"{max(d.accuracy for d in each.values()):.4f}",
            )
        )
    return _table(("compared", "same bits", "largest relative difference", "mean accuracy"), rows)


def _count(each: Mapping[str, Any], holds: Callable[[Any], bool]) -> str:
    return f"{len(each) - len(_not(each, holds))} of {len(each)}"


def _not(each: Mapping[str, Any], holds: Callable[[Any], bool]) -> list[str]:
    return [title for title, one in each.items() if not holds(one)]


def _listed(titles: Sequence[str]) -> str:
    return "; ".join(titles) or "none"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
