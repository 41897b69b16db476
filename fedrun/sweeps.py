"""``sweep``: train many experiments on local processes or a Ray cluster."""

from collections.abc import Iterable, Sequence
from typing import Any

from fedlib.progress import SweepProgress
from fedlib.values import check_type
from fedrun import Experiment, Result, find_result, run
from fedrun.store import RunFolder
from fedrun.workers import Processes, Workers


class SweepFailed(RuntimeError):
    """Some runs of a sweep failed; the finished ones are stored.

    >>> wild = Experiment(tiny.task, FedAvg(client=sgd(1e30)), rounds=2, cohort=2)
    >>> try:
    ...     sweep([tiny, wild], progress=False)
    ... except SweepFailed as error:
    ...     str(error).splitlines()[0], find_result(tiny) is not None
    ('1 of 2 runs failed; the others are stored:', True)
    """


def sweep(
    experiments: Iterable[Experiment],
    *,
    workers: int = 1,
    device: str = "auto",
    chunk: int | None = None,
    progress: bool = True,
    retry: bool = False,
    address: str | None = None,
) -> list[Result]:
    """Return the results of experiments, in order; train those that are not stored, in parallel.

    Earlier stages are runs of their own, and a run waits for its stages. Ctrl-C lets the current
    rounds end and stores them, and the same call continues. If the results do not fit into memory,
    call ``fedrun.sweeps.train_missing`` and then ``find_result`` for one experiment at a time. With
    more than one worker, a script must call this below ``if __name__ == "__main__":``, since every
    worker imports the script first.

    Args:
        experiments: the experiments to run.
        workers: number of processes. One worker trains in this process; more are spawned with one
            torch thread each, which on a CPU is faster than one process with many threads.
            Default: 1.
        device: as for ``run``. On a cluster, every run gets a GPU if this is "cuda", or "auto" and
            the cluster has GPUs. Default: "auto".
        chunk: as for ``run``. Default: None.
        progress: whether to show a progress bar. Default: True.
        retry: whether to retry runs that diverged. Default: False.
        address: address of a Ray cluster that trains the runs, "auto" or "HOST:PORT"; the results
            are copied into this store. Default: None, local processes.

    Returns:
        a result for each experiment.

    Raises:
        SweepFailed: if runs failed or their workers were killed, after all other runs have
            finished. A cluster first tries a run whose node was lost on another node.
        ValueError: if ``workers`` is less than 1.

    >>> grid = [Experiment(tiny.task, FedProx(mu=m), 2, 2, s) for m in (0.1, 1.0) for s in (0, 1)]
    >>> results = sweep(grid, workers=1, progress=False)  # workers=4 trains four runs at a time
    >>> [(result.experiment.algorithm.mu, result.experiment.seed) for result in results]
    [(0.1, 0), (0.1, 1), (1.0, 0), (1.0, 1)]
    """
    asked = [experiments] if isinstance(experiments, Experiment) else [*experiments]
    options: Any = {"device": device, "chunk": chunk, "retry": retry}
    train_missing(asked, workers, address, progress=progress, **options)
    return [run(e, device=device, progress=False) for e in asked]


def train_missing(
    experiments: Iterable[Experiment],
    workers: int = 1,
    address: str | None = None,
    *,
    progress: bool = True,
    **options: Any,
) -> None:
    """Train those of ``experiments`` that are not stored; arguments and errors as of ``sweep``."""
    asked = [check_type("experiments", e, Experiment).pinned() for e in experiments]
    if workers < 1:
        raise ValueError(f"workers must be >= 1, got {workers}")
    # Twice: stored runs do not match a first stage that the first pass has trained again.
    for _ in range(2):
        if not (missing := _lacking(asked)):
            return
        with SweepProgress({e.key: _name(e) for e in missing}, show=progress) as tally:
            team = _team(min(workers, len(missing)), address, options, tally)
            try:
                failures = _train(team, missing)
            except KeyboardInterrupt as stop:
                done = f"{tally.ended} of {len(missing)} runs ended, others stored {team.stored}"
                raise KeyboardInterrupt(f"{done}; the same call continues") from stop
        if failures:
            lines = [f"{e}\n  key {e.key}: {_in_words(x)}" for e, x in failures]
            text = f"{len(failures)} of {len(missing)} runs failed; the others are stored:\n\n"
            raise SweepFailed(text + "\n\n".join(lines)) from failures[0][1]


def _lacking(experiments: Sequence[Experiment]) -> list[Experiment]:
    """Return the experiments to train: those not stored, and earlier stages without a state."""
    lacking = [e for e in experiments if find_result(e) is None]
    # A later stage needs the final state of an earlier one, which exported results do not have.
    stages = (s for e in lacking for s in e.stages if s.key == e.key or not RunFolder(s).complete)
    return [*{s.key: s for s in stages}.values()]


def _team(
    workers: int, address: str | None, options: dict[str, Any], tally: SweepProgress
) -> Workers:
    if address is not None:
        from fedrun.ray import Cluster  # slow to import

        return Cluster(address, options, tally)
    return Processes(workers, options, tally) if workers > 1 else Workers(options, tally)


def _train(team: Workers, missing: Sequence[Experiment]) -> list[tuple[Experiment, BaseException]]:
    """Give runs to the workers in order, later stages after earlier ones; return the failures.

    Runs that another process is training come last, as a worker would only wait for it.
    """
    waiting = {e.key: e for e in missing}
    needs = {e.key: {s.key for s in e.stages[:-1]} & waiting.keys() for e in missing}
    left, failed = {*waiting}, dict[str, tuple[Experiment, BaseException]]()

    def end(experiment: Experiment, error: BaseException | None) -> None:
        left.discard(experiment.key)
        if error is not None:
            failed[experiment.key] = experiment, error
        team.tally.end(experiment.key, error)

    def ready() -> Experiment | None:
        able = [e for key, e in waiting.items() if not needs[key] & left]
        return next((e for e in able if not RunFolder(e).in_use), able[0] if able else None)

    try:
        while left:
            while len(left) - len(waiting) < team.slots() and (e := ready()):
                del waiting[e.key]
                if broken := needs[e.key] & failed.keys():
                    end(e, failed[min(broken)][1])
                else:
                    team.give(e)
            for ended in team.ended():
                end(*ended)
    finally:
        team.stop()
    return [*failed.values()]


def _name(e: Experiment) -> str:
    return f"{e.algorithm} on {e.task.dataset}, {e.task.partition}, seed {e.seed}"


def _in_words(error: BaseException) -> str:
    """Return the text of an error with its notes, which name the machine on which it happened."""
    return " ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
