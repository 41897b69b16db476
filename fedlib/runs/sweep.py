"""Many runs: a list of experiments over local processes, or over a Ray cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from fedlib.runs import Experiment, Result, find, run, store
from fedlib.runs.local import here, in_processes
from fedlib.runs.table import Failures, Table

__all__ = ["SweepFailed", "sweep", "train"]


class SweepFailed(RuntimeError):
    """Some runs of a sweep failed; what finished is stored."""


def sweep(experiments: Sequence[Experiment], *, device: str = "auto", **how: Any) -> list[Result]:
    """Return the results of ``experiments`` in order, after ``train``, which says what is what.

    Thousands of results may be more than the memory holds: then train, and find them one by one.
    """
    train(experiments, device=device, **how)
    return [run(e, device=device, progress=False) for e in experiments]


def train(
    experiments: Sequence[Experiment],
    *,
    workers: int = 1,
    device: str = "auto",
    chunk: int | None = None,
    progress: bool = True,
    retry: bool = False,
    address: str | None = None,
) -> None:
    """Train those of ``experiments`` that are not stored.

    A first stage that several of them share is trained first, and once. One worker trains in this
    process; more are spawned processes with one torch thread each, which on a CPU is faster than
    one process with many threads. With the ``address`` of a Ray cluster ("auto", "HOST:PORT") the
    cluster trains, and the results come into this store: with one GPU per run if ``device`` is
    "cuda", or "auto" and the cluster has GPUs. ``progress`` shows a live table; ``retry`` trains
    runs again that diverged before.

    Failures, a killed worker among them, are collected and raised together as SweepFailed after
    everything else has finished; on a cluster a run that was lost is first tried elsewhere.
    Interrupted with Ctrl-C, the workers store where they are and stop, KeyboardInterrupt says how
    far they came, and the same call continues.
    """
    if workers < 1:
        raise ValueError(f"workers must be >= 1, got {workers}")
    missing = list({e.key: e for e in experiments if find(e) is None}.values())
    missing = [*_shared_first_stages(missing), *missing]
    options = {"device": device, "chunk": chunk, "retry": retry}
    failures = _train(missing, workers, options, progress, address) if missing else []
    if failures:
        said = [f"{e}\n  key {e.key}: {_in_words(x)}" for e, x in failures]
        text = f"{len(failures)} of {len(missing)} runs failed, what finished is stored:\n\n"
        raise SweepFailed(text + "\n\n".join(said)) from failures[0][1]


def _in_words(error: BaseException) -> str:
    """Return an error with its short notes: on which machine it happened, not its traceback."""
    notes = [note for note in getattr(error, "__notes__", ()) if "\n" not in note]
    return " ".join([f"{type(error).__name__}: {error}", *notes])


def _train(
    missing: Sequence[Experiment],
    workers: int,
    options: dict[str, Any],
    progress: bool,
    address: str | None,
) -> Failures:
    with Table(missing, show=progress) as table:
        try:
            if address is not None:
                from fedlib.runs.cluster import on_cluster

                return on_cluster(missing, address, options, table)
            if workers == 1 or len(missing) < 2:
                return here(missing, options, table)
            return in_processes(missing, min(workers, len(missing)), options, table)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"the sweep was interrupted: {table.finished} of {len(missing)} runs are done, "
                "those under way are stored up to their last round; the same call continues"
            ) from None


def _shared_first_stages(missing: Sequence[Experiment]) -> list[Experiment]:
    """Return the first stages for which two would wait otherwise.

    Those with their state: of an exported result it is missing, and nothing can follow it.
    """
    firsts = {first.key: first for e in missing for first in e.before}
    often = Counter(first.key for e in missing for first in e.before)
    known = {e.key for e in missing}
    left = [e for k, e in firsts.items() if often[k] > 1 and k not in known]
    return [e for e in left if not store.complete(e)]
