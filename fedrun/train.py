"""``run`` and ``simulate``: train an experiment, or return its stored result."""

from __future__ import annotations

import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fedlib import paths
from fedlib.algorithms import FedAvg, MajorityClass
from fedlib.algorithms.local import LaterStage
from fedlib.engine import Report, State, TrainingDiverged, play_round
from fedlib.engine.evaluate import (
    Scores,
    encode,
    evaluate,
    evaluate_everywhere,
    evaluate_global,
    measure,
)
from fedlib.engine.protocol import eval_view, train_view
from fedlib.engine.rounds import SPLITS as ADAPTED
from fedlib.engine.selection import Selection, cohort_size
from fedlib.federation import Federation
from fedlib.parallel import all_cores, delay_keyboard_interrupt
from fedlib.privacy import audit
from fedlib.privacy.labels import OF_LABELS
from fedlib.progress import Watcher, callback, quiet
from fedlib.tasks import device_name, pick_device
from fedlib.values import check_type, short_repr
from fedrun import provenance, store
from fedrun.baseline import SPLITS, BelowBaseline, by_client, mean_of
from fedrun.experiment import SCORES, Experiment, Log, Result, built, key_in, on_host, spec_of
from fedrun.files import Damaged, StoreError
from fedrun.store import Checkpoint, RunDiverged, RunFolder, load_model, moved

# Seconds between two checkpoints: of a run here, and on a cluster, which sends each to the driver.
CHECKPOINT_SECONDS, CLUSTER_CHECKPOINT_SECONDS = 60.0, 300.0
LEAST_ROUNDS = 5  # after which a model should be better than the majority class
OF_THE_END = ("everywhere_accuracy", "kept_round")  # metrics that only the last round logs
COHORT_NLL = "cohort_validation_nll"  # the loss that `CohortEarlyStop` checks
LOGGED = {  # names that `log_metrics` of an algorithm must not use
    "train_loss", "bytes_down", "bytes_up", "divergence", "examples", "opted_in", "global_accuracy",
    "client_bytes_down", "client_bytes_up", COHORT_NLL, *OF_THE_END, *OF_LABELS,
    *(f"adapted_{part}_accuracy" for part in ADAPTED),
    *(f"{part}_{of}" for part in SPLITS for of in SCORES),
}  # fmt: skip
Progress = bool | Watcher


class RoundInfo(NamedTuple):
    """The state of a run after a round, yielded by ``simulate`` and passed to callbacks.

    Args:
        round: number of completed rounds; 0 is before the first.
        state: the state after the round. Personal parameters are updated in place, so copy what
            must outlast the next round.
        metrics: the mean of every metric that was logged in this round, by name. Round 0 has no
            "train_loss", and rounds without evaluation have no "test_accuracy".
        report: the engine's report of the round; None for round 0.
        experiment: the experiment that is trained.

    >>> losses = [moment.metrics["train_loss"] for moment in simulate(tiny) if moment.round]
    >>> len(losses)
    2
    """

    round: int
    state: State
    metrics: dict[str, float]
    report: Report | None
    experiment: Experiment


Callback = Callable[[RoundInfo], bool | None]  # True stops the run


class RunOptions(NamedTuple):
    """The keyword arguments of ``run``, which are not part of the experiment."""

    device: str = "auto"
    chunk: int | None = None
    progress: Progress = True
    retry: bool = False
    callbacks: tuple[Callback, ...] = ()
    debug: bool = False
    again: bool = False


def run(
    experiment: Experiment,
    *,
    device: str = "auto",
    chunk: int | None = None,
    progress: Progress = True,
    retry: bool = False,
    callbacks: Iterable[Callback] = (),
    debug: bool = False,
    again: bool = False,
) -> Result:
    """Return the result of an experiment; train it if the result is not stored.

    A result is found by the hash of the spec and of user-defined code and data. A stored result is
    ignored if its data set or first stage has changed since.

    A run that was killed resumes from its last checkpoint, which is written every minute, or every
    $FEDLIB_CHECKPOINT_SECONDS seconds. Ctrl-C lets the current round end and then stores a
    checkpoint; a second Ctrl-C stops at once. A run with more rounds than a stored one continues
    where the stored one ended. In each case the result is bit-identical to an uninterrupted run,
    provided the chunk and the kind of CPU are the same. On a CPU, a run uses as many cores as torch
    has threads (``fedlib.parallel.all_cores``). If two processes run the same experiment, only one
    trains it.

    Args:
        experiment: the experiment to run.
        device: "auto", "cpu", "cuda" or "cuda:N". Default: "auto", a GPU if there is one.
        chunk: number of clients that are trained at once in one vmapped program. Default: None, a
            number that suits device and model.
        progress: whether to show a progress bar, or a function that is called before the first
            round and after every round, also of earlier stages, with the number of completed
            rounds, the number of all rounds and the training loss (at first NaN). Default: True.
        retry: whether to retry a run that diverged. Default: False.
        callbacks: functions that are called with a ``RoundInfo`` before the first round and after
            every round. If one returns True, the run stops and is stored as unfinished; the same
            call continues it. Default: none.
        debug: whether to train one client after another in this process, without vmap, so that an
            error in a loss has a plain traceback and a debugger stops there. Default: False.
        again: whether to delete the stored run and train from scratch; earlier stages are kept.
            Default: False.

    Returns:
        the result. If a callback stopped the run, it has the metrics up to that round.

    Raises:
        RunDiverged: if a number is not finite, now or in the stored run.
        StoreError: if the result cannot be stored, or code or data have changed in this process
            since the experiment was submitted to it.

    >>> result = run(tiny, progress=False)
    >>> result.curve("test_accuracy").keys()
    dict_keys([0, 2])
    """
    check_type("experiment", experiment, Experiment)
    where, calls = device_name(device), _functions(callbacks)
    how = RunOptions(where, chunk, progress, retry, calls, debug, again)
    folder = RunFolder(experiment.pinned())
    found = None if again else folder.result()
    return replace(found or _trained(folder, how), experiment=experiment)


def run_with_state(experiment: Experiment, **how: Any) -> tuple[Result, State]:
    """Return the result and the final state of an experiment; train it if one is not stored.

    Exported results have no state, so a run of which only these are present is trained again.

    Args:
        experiment: the experiment to run.
        how: keyword arguments of ``run``.

    Returns:
        the result, and the state that the run ended with.

    Raises:
        RunDiverged, StoreError: as for ``run``.

    >>> result, state = run_with_state(tiny, progress=False)
    >>> state.server_params["head.bias"].shape
    torch.Size([10])
    """
    check_type("experiment", experiment, Experiment)
    asked = RunOptions(**how | {"callbacks": _functions(how.get("callbacks", ()))})
    folder, found, kept = RunFolder(experiment.pinned()), None, None
    if folder.complete and not asked.again:
        with suppress(Damaged):
            found, kept = folder.result(), folder.restore()
    if found is None or kept is None:
        found, kept = _trained(folder, asked), folder.restore()
    assert kept is not None
    return replace(found, experiment=experiment), kept.state


def _functions(callbacks: Any) -> tuple[Callback, ...]:
    """Return callbacks as a tuple; raise TypeError unless they are an iterable of functions."""
    made = () if callable(callbacks) else tuple(callbacks)
    if callable(callbacks) or not all(map(callable, made)):
        raise TypeError(f"callbacks must be a list of functions, got {short_repr(callbacks)}")
    return made


def _trained(folder: RunFolder, how: RunOptions) -> Result:
    """Lock the folder of a run, train the run unless it is complete, and return its result."""
    experiment = folder.experiment
    how = how._replace(chunk=1) if how.debug else how
    with folder.locked():
        if how.again:
            store.delete(experiment.key)
        if how.retry:
            folder.forget_failure()
        found = folder.load()
        if isinstance(found, Result):
            return found
        if isinstance(found, RunDiverged):
            raise found
        if experiment.changed:
            why = "code or data in this process differ from those it was submitted with"
            raise StoreError(f"run {experiment.key} is not trained: {why}; restart the process")
        cohort = 1 if how.debug else experiment.cohort  # a cohort of 1 starts no processes
        with all_cores(pick_device(how.device), cohort):
            training = Training(experiment, built(experiment, how.device), how)
            folder.load()  # again, as the data are known now, so their fingerprint can be compared
            folder.write_record(store.SPEC, spec_of(experiment))
            return training.play(folder.restore())


def rounds(
    experiment: Experiment,
    fed: Federation,
    state: State,
    completed: int = 0,
    chunk: int | None = None,
) -> Iterator[tuple[State, int, Report | None]]:
    """Yield (state, completed rounds, report) after every round; for a new run also before it."""
    if completed == 0:
        yield state, 0, None
    e = experiment
    play = partial(play_round, e.algorithm, fed, seed=e.seed, cohort=e.cohort, chunk=chunk)
    for t in range(completed, e.rounds):
        state, report = play(state, round=t, score=e.evaluates(t + 1))
        yield state, t + 1, report


def simulate(
    experiment: Experiment, *, device: str = "auto", chunk: int | None = None, debug: bool = False
) -> Iterator[RoundInfo]:
    """Train an experiment in this process and yield its state after every round; store nothing.

    The numbers are those of ``run``. Earlier stages are trained first, and are not yielded.

    Args:
        experiment: the experiment to train.
        device, chunk, debug: as for ``run``.

    Yields:
        a ``RoundInfo`` before the first round and one after every round.

    Raises:
        TrainingDiverged: if a number is not finite.

    >>> [moment.round for moment in simulate(tiny)]
    [0, 1, 2]
    """
    check_type("experiment", experiment, Experiment)
    how = RunOptions(device, 1 if debug else chunk)
    return (training.moment(report) for training, report in _played(experiment, how))


def _played(experiment: Experiment, how: RunOptions) -> Iterator[tuple[Training, Report | None]]:
    """Train an experiment and the stages before it; yield its ``Training`` after every round."""
    training = Training(experiment, built(experiment, how.device), how)
    ends = (deque(_played(stage, how), maxlen=1)[0] for stage in experiment.before)
    first = training.fresh([before.ending for before, _ in ends])
    for state, completed, report in rounds(experiment, training.fed, first, 0, how.chunk):
        training.log_round(state, completed, report)
        yield training, report
        if training.finished:
            return


def initial_state(experiment: Experiment, fed: Federation, earlier: Sequence[State]) -> State:
    """Return the state before round 0.

    Args:
        experiment: the experiment.
        fed: its federation.
        earlier: the final states of the stages ``experiment.before``. The personal parameters of
            ``local_stage`` replace those of ``first_stage``.

    Raises:
        ValueError: if ``local_stage`` has no personal parameters.
    """
    first, algorithm = None, experiment.algorithm
    if earlier:
        state, *beside = (moved(each, fed) for each in earlier)
        if beside and not beside[0].client_params:
            kind = type(experiment.before[1].algorithm).__name__
            raise ValueError(f"local_stage must have local parameters, and {kind} has none")
        first = replace(state, client_params=beside[0].client_params) if beside else state
        of = experiment.before[0].algorithm
        first = of.assign_clusters(eval_view(of, fed), first)
    state = algorithm.init(train_view(algorithm, fed), experiment.seed, first)
    require_params(algorithm, state)
    return state


def require_params(algorithm: FedAvg, state: State) -> None:
    """Raise ValueError for phases or learning rates that do not fit the parameters of a state.

    These are names that match no parameter (a misspelt name would otherwise silently train nothing,
    or with another learning rate), phases that train nothing, and phases that train integers or
    booleans.
    """
    params, kind = _params_of(state), type(algorithm).__name__
    phases = algorithm.phases()
    moving = [phase.trained_names(params, state.client_params) for phase in phases]
    server = algorithm
    while isinstance(of := getattr(server, "of", None), FedAvg) and algorithm.communicates:
        server = of  # a wrapper such as Private steps with its `server`
    asked = [(f"{type(server).__name__}.server.rates", name) for name, _ in server.server.rates]
    for phase in phases:
        asked += [(f"{kind}.phases", prefix) for prefix in phase.train]
        asked += [(f"the rates of {kind}'s clients", n) for n, _ in phase.optimizer.rates]
    for where, prefix in asked:
        known = any(name.startswith(prefix) for name in params) or prefix in algorithm._optional
        if not known:
            there = f"no parameter begins with {prefix!r}; there are {', '.join(params)}"
            raise ValueError(f"{where}: {there}")
    for name in chain(*moving):
        if not params[name].is_floating_point():
            why = f"{name} is {params[name].dtype}, which has no gradient"
            raise ValueError(f"{kind}.phases: {why}; `Phase.train` names those to train")
    for phase, names in zip(phases, moving, strict=True):
        idle = not names and (phase.scope != "both" or not any(moving))
        if idle and not isinstance(algorithm, LaterStage):
            local = ", ".join(state.client_params) or "none"
            raise ValueError(f"{kind}: {phase} trains no parameter; local parameters are {local}")


def _params_of(state: State) -> dict[str, torch.Tensor]:
    return {**state.server_params, **state.client_params}


def checkpoint_interval(default: float) -> float:
    """Return the seconds between two checkpoints: those of $FEDLIB_CHECKPOINT_SECONDS, if given.

    Raises:
        ValueError: if the variable is not a number.
    """
    given = os.environ.get("FEDLIB_CHECKPOINT_SECONDS") or default
    try:
        return float(given)
    except ValueError:
        raise ValueError(f"FEDLIB_CHECKPOINT_SECONDS must be a number, got {given!r}") from None


class Training:
    """A run while it is trained: its log, its current state, and the checkpoints it writes."""

    def __init__(self, experiment: Experiment, fed: Federation, how: RunOptions) -> None:
        self.experiment, self.fed, self.how = experiment, fed.full_view(), how
        self.seen = train_view(experiment.algorithm, fed)
        self.folder = RunFolder(experiment)
        self.log, self.start, self.completed = Log(), 0, 0
        self.state = State({}, {})
        self._earlier = list[dict[str, Any]]()
        self._best: State | None = None
        self._rivals = self.log.table()  # the metrics up to the best round so far
        self._checks: dict[int, float] = {}  # the losses that early stopping checks, by round
        self._following: dict[str, Any] = {}  # provenance of the stages before
        self._since = provenance.clock()

    def play(self, kept: Checkpoint | None) -> Result:
        """Train to the end, store the run, and return its result.

        Args:
            kept: the stored checkpoint of the run, from which it is resumed, or None.

        Raises:
            RunDiverged: if a number is not finite. A run that was resumed from a checkpoint, which
                may be the cause, is first trained again from the beginning.
        """
        interval = checkpoint_interval(CHECKPOINT_SECONDS)
        e, saved = self.experiment, time.monotonic()
        resumed = kept is not None and kept.completed > 0 and self._fits(kept.state)
        kept = kept if resumed or self.how.again else _shorter(e)
        first = self._resume(kept) if kept else self._begin()
        bar = callback(self.how.progress, type(e.algorithm).__name__, e.rounds, self.start)
        with bar as tell, delay_keyboard_interrupt(not self.how.debug) as interrupted:
            try:
                every = rounds(e, self.fed, first, self.start, self.how.chunk)
                for state, completed, report in every:
                    loss = self.log_round(state, completed, report)
                    waited = time.monotonic() - saved
                    if completed and not self.finished and waited > interval:
                        self.save()
                        saved = time.monotonic()
                    if report is not None:
                        tell(completed, e.rounds, loss)
                    if self._stops(report) or self.finished:
                        break
                    if interrupted():
                        if completed:
                            self.save()
                        done = f"{completed} of {e.rounds} rounds of run {e.key} are stored"
                        raise KeyboardInterrupt(f"{done}; the same call continues")
            except TrainingDiverged as error:
                if resumed:
                    at = f" was resumed from the checkpoint of round {self.start}, and {error}"
                    self.folder.discard(at)
                    afresh = self.how._replace(again=True)
                    return Training(e, built(e, afresh.device), afresh).play(None)
                raise self._diverged(error) from error
        self.save()
        made = provenance.of_run(self.fed, self.segments(), self.state, self.ending)
        if self.finished:  # otherwise a callback has stopped it
            self.folder.write_record(store.PROVENANCE, made)
            self._warn_of_baseline()
        return Result(e, self.log.table(), made, e, load_model)

    def _warn_of_baseline(self) -> None:
        """Warn if the model that is kept is no better than the majority-class baseline.

        On validation examples, and after five rounds or more: fewer are a trial. FEDLIB_QUIET=1
        silences it.
        """
        e = self.experiment
        if quiet() or e.rounds < LEAST_ROUNDS or isinstance(e.algorithm, MajorityClass):
            return
        found = Result(e, self.log.table(), {}, e, load_model)
        if "validation_accuracy" not in found.logged:
            return
        mine = found.final("validation_accuracy")
        if mine <= (floor := mean_of(by_client(self.fed, "validation"))):
            kind, less = type(e.algorithm).__name__, "no better than the majority-class baseline"
            told = f"{mine:.3f} against {floor:.3f} on the clients' validation examples"
            more = "try larger learning rates or more rounds"
            warnings.warn(f"{kind} is {less}: {told}; {more}", BelowBaseline, stacklevel=2)

    def _resume(self, kept: Checkpoint) -> State:
        """Restore log, state and early stopping from a checkpoint; return its state."""
        self.log, self.start, self._earlier = Log(kept.metrics), kept.completed, kept.segments
        self._best = moved(kept.best, self.fed) if kept.best else None
        self._rivals = self.log.table()
        checked = kept.metrics.filter(pc.field("metric") == COHORT_NLL)
        at, nll = checked["round"].to_pylist(), checked["value"].to_numpy().tolist()
        self._checks = dict(zip(at, nll, strict=True))
        self.state, self.completed = moved(kept.state, self.fed), kept.completed
        return self.state

    def _begin(self) -> State:
        """Return the state before round 0; train earlier stages first unless they are stored."""
        how = self.how._replace(callbacks=(), again=False)._asdict()
        made = [run_with_state(stage, **how) for stage in self.experiment.before]
        earlier = ((r.experiment.key, r.provenance, ended) for r, ended in made)
        self._following = provenance.following(earlier)
        self._since = provenance.clock()  # the cost of earlier stages is in their own provenance
        return self.fresh([state for _, state in made])

    def _fits(self, state: State) -> bool:
        """Return whether a checkpoint has the parameters of this run; discard it if it has not.

        If an earlier stage is not stored, this is not checked, rather than trained to find out.
        """
        before = [RunFolder(stage) for stage in self.experiment.before]
        ends = [kept.state for one in before if one.complete and (kept := one.restore())]
        if len(ends) < len(before):
            return True
        both = initial_state(self.experiment, self.fed, ends), state
        wanted, found = ({n: [*t.shape] for n, t in _params_of(s).items()} for s in both)
        for name in sorted(n for n in wanted | found if wanted.get(n) != found.get(n)):
            shapes = f"{found.get(name)} in its checkpoint and {wanted.get(name)} in its model"
            self.folder.discard(f": {name} has shape {shapes}")
            return False
        return True

    def fresh(self, earlier: Sequence[State]) -> State:
        """Return the state before round 0 and log the clients' numbers of examples.

        ``earlier`` are the final states of the stages before.
        """
        state = initial_state(self.experiment, self.fed, earlier)
        self._require_selectable(state)
        self._warn_of_untrained()
        if (single := int((self.fed.train.sizes == 1).sum())) and not quiet():
            of = f"{single} of {self.fed.num_clients} clients have a single training example"
            warnings.warn(
                f"{of}: a model that such a client trains alone learns one label", stacklevel=2
            )
        self.log.clients(0, "examples", self.fed.ids, self.fed.train.sizes)
        if self.fed.participating_view() is not self.fed:  # some opted out
            self.log.clients(0, "opted_in", self.fed.ids, self.fed.participating_view().train.sizes)
        return state

    def _require_selectable(self, state: State) -> None:
        """Raise ValueError if the best round cannot be selected, or training stopped, as asked."""
        stop, select = self.experiment.stop, self.experiment.select
        if (stop is not None or select != "last") and not self.seen.validation.sizes.any():
            why = "the best round cannot be selected, and training cannot be stopped early"
            raise ValueError(f"no validation examples: {why}")
        if stop is not None and stop.before_update and state.client_params:
            names = ", ".join(state.client_params)
            why = f"{names} of the clients are updated in place"
            raise ValueError(f"before_update needs the model at the start of a round, but {why}")

    def _warn_of_untrained(self) -> None:
        """Warn if clients that train alone are certainly in no cohort."""
        e, clients = self.experiment, self.seen.num_clients
        if e.algorithm.communicates or not e.algorithm.phases() or quiet():
            return
        size = e.cohort.size if isinstance(e.cohort, Selection) else e.cohort
        most = e.rounds * cohort_size(size, clients)
        if most < clients:
            which = f"{type(e.algorithm).__name__} trains at most {most} of {clients} clients"
            warnings.warn(f"{which}: set cohort=1.0 to train all of them", stacklevel=2)

    def log_round(self, state: State, completed: int, report: Report | None) -> float:
        """Log a round and keep its state; return the mean training loss."""
        e, fed, algorithm = self.experiment, self.fed, self.experiment.algorithm
        scored, loss = e.evaluates(completed), float("nan")
        if report is not None:
            check_finite(fed, state, report, completed - 1)
            loss = self.log.report(completed, report, fed.ids)
            cohort = fed.ids[report.clients]
            if fed.participating_view() is not fed:
                for metric, sent in (("bytes_down", report.download), ("bytes_up", report.upload)):
                    self.log.clients(completed, f"client_{metric}", cohort, sent.cpu().numpy())
            if e.audit_labels and scored:
                heard = audit(self.seen, algorithm, self.state, report, completed - 1)
                for metric, shares in heard.items():
                    self.log.clients(completed, metric, cohort, shares)
        assigned = algorithm.assign_clusters(eval_view(algorithm, fed), state) if scored else state
        # Scalars are logged every round, arrays only in evaluated rounds.
        told = observed(algorithm, self.seen, assigned)
        told = {metric: t for metric, t in told.items() if scored or t.ndim == 0}
        for metric, values in on_host(told).items():
            self.log.array(completed, metric, values)
        if scored:
            self._assess(assigned, completed, report)
            self._choose(state, completed)
        self.state, self.completed = state, completed
        return loss

    def moment(self, report: Report | None) -> RoundInfo:
        """Return the ``RoundInfo`` of the last completed round."""
        at = self.completed
        return RoundInfo(at, self.state, self.log.means(at), report, self.experiment)

    def _stops(self, report: Report | None) -> bool:
        """Call all callbacks; return whether one of them stops the run."""
        if not self.how.callbacks:
            return False
        moment = self.moment(report)
        return any([bool(callback(moment)) for callback in self.how.callbacks])

    def save(self) -> None:
        """Write a checkpoint of the last round; at the end of the run, of its final state."""
        best, last = self._best, None
        if self.finished and best is not None:
            best, last = None, self.state
        told = self.log.table(), self.fed.source, self.segments()
        self.folder.checkpoint(Checkpoint(self.ending, self.completed, *told, best, last))

    @property
    def ending(self) -> State:
        """The state that ``select`` or ``stop`` chose if the run is finished, else the current."""
        return self._best if self.finished and self._best is not None else self.state

    @property
    def finished(self) -> bool:
        """Whether all rounds are completed, or early stopping has ended the run."""
        return self._ends(self.completed)

    def _ends(self, completed: int) -> bool:
        stop = self.experiment.stop
        early = stop is not None and stop.best(self._checks)[1]
        return completed == self.experiment.rounds or early

    def _diverged(self, error: TrainingDiverged) -> RunDiverged:
        """Store the metrics and a description of the failure; return the error to raise."""
        self.folder.write_metrics(self.log.table())
        began = {"began_with": self._following.get("began_with", {})}
        failure = {
            "round": self.completed,
            "clients": list(error.clients),
            "message": str(error),
            "commit": provenance.commit(),
            "data": self.fed.source,
            "segments": [*self.segments(), began],
        }
        self.folder.write_record(store.FAILURE, failure)
        return RunDiverged.of(failure, self.folder.path)

    def segments(self) -> list[dict[str, Any]]:
        """Return the segments: consecutive rounds that one process trained, this one's last."""
        if self.completed <= self.start:
            return self._earlier
        rounds = [self.start, self.completed]
        now = provenance.segment(self.fed, rounds, self.how.chunk, self.state, self._since)
        # `_following` is empty for a resumed run, whose first segment has it.
        return [*self._earlier, now | self._following]

    def _assess(self, state: State, completed: int, report: Report | None) -> None:
        """Evaluate every client on its validation and test data, and the global model on all.

        After the last round, every client's model is also evaluated on the test data of all clients
        (a sample of them, if there are many).
        """
        fed, algorithm, log = self.fed, self.experiment.algorithm, self.log
        held = self._validated(state)
        log.scores(completed, "validation", fed.ids, held)
        if self.experiment.stop is not None and report is not None:
            self._check(held, completed, report)
        test = encode(fed, algorithm, state, fed.test, everything=True)
        log.scores(completed, "test", fed.ids, evaluate(fed, algorithm, state, fed.test, test))
        log.add(completed, "global_accuracy", evaluate_global(fed, algorithm, state, test))
        self._measure(state, completed)
        if self._ends(completed):
            everywhere = evaluate_everywhere(fed, algorithm, state, test)
            log.clients(completed, "everywhere_accuracy", fed.ids, everywhere)
        if fed.balanced is not None:
            on_test = self.experiment.task.balanced_on == "test"
            name = "balanced" if on_test else "balanced_validation"
            log.scores(completed, name, fed.ids, evaluate(fed, algorithm, state, fed.balanced))

    def _measure(self, state: State, completed: int) -> None:
        """Log the metrics of the experiment for every client."""
        fed, e = self.fed, self.experiment
        tables = {"validation": fed.validation, "test": fed.test} if e.metrics else {}
        for split, table in tables.items():
            for name, values in measure(fed, e.algorithm, state, table, e.metrics).items():
                self.log.clients(completed, f"{split}_{name}", fed.ids, values)

    def _validated(self, state: State) -> Scores:
        """Return the validation scores of every client, with clusters assigned for selection."""
        fed, algorithm = self.fed, self.experiment.algorithm
        view = eval_view(algorithm, fed)
        judged = algorithm.assign_clusters(view, state, for_selection=True)
        return evaluate(fed, algorithm, judged, fed.validation)

    def _check(self, held: Scores, completed: int, report: Report) -> None:
        """Log the loss that early stopping checks: the cohort's mean validation NLL."""
        assert self.experiment.stop is not None
        if self.experiment.stop.before_update:
            held = self._validated(self.state)
        known = held.nll[report.clients]
        known = known[~np.isnan(known)]
        self._checks[completed] = float(known.mean()) if len(known) else float("nan")
        self.log.add(completed, COHORT_NLL, self._checks[completed])

    def _choose(self, state: State, completed: int) -> None:
        """Copy the state if it is the best so far and the experiment has ``select`` or ``stop``."""
        e, now = self.experiment, self._rivals
        some = self.seen.ids[np.flatnonzero(self.seen.validation.sizes)]
        if (e.select == "last" and e.stop is None) or (not completed and e.select != "best"):
            return
        if e.stop is not None:
            at = e.stop.best(self._checks)[0]
        else:
            now = self.log.table(completed)
            at = best_of(pa.concat_tables([self._rivals, now]), some, int(e.select != "best"))
        if at == completed:
            self._rivals = now
            self._best = State.from_flat({n: t.clone() for n, t in state.flat().items()})
        if self._ends(completed):
            self.log.add(completed, "kept_round", at)


def _shorter(experiment: Experiment) -> Checkpoint | None:
    """Return a checkpoint made of the longest stored run that differs only by fewer rounds.

    The result is None if there is no such run that can be continued to the same bits, and for a run
    with early stopping, which always starts from its own checkpoint.
    """
    spec, stored = spec_of(experiment), {home.name for home in paths.runs().glob("*")}
    for fewer in range(experiment.rounds - 1, 0, -1) if experiment.stop is None else ():
        # Keys are computed from the spec, as `Experiment.key` would digest code and data each time.
        if key_in({**spec, "rounds": fewer}) in stored:
            less = RunFolder(replace(experiment, rounds=fewer))
            with suppress(Damaged):
                kept = less.restore() if less.complete else None
                if kept and (found := _lengthened(kept, less.experiment, experiment)):
                    return found
    return None


def _lengthened(kept: Checkpoint, less: Experiment, more: Experiment) -> Checkpoint | None:
    """Return the last checkpoint of a run as a longer run has it after as many rounds.

    The last round of a run is always evaluated, and a longer run may not evaluate that round: it
    keeps the metrics that rounds without evaluation have. The result is None if there was no such
    round, or if the shorter run selected a state that the longer run could not select.
    """
    round_, metric = pc.field("round"), pc.field("metric")
    gone, metrics = metric.isin(OF_THE_END), kept.metrics
    if more.select != "last":
        at = metrics.filter(metric == "kept_round")["value"][0].as_py()
        if kept.last is None or not more.evaluates(int(at)):
            return None
    if not more.evaluates(less.rounds):
        plain = [t for t in range(1, less.rounds) if not less.evaluates(t)]
        gone = ~metric.isin(metrics.filter(round_.isin(plain))["metric"].unique())
        if not plain:
            return None
    metrics = metrics.filter((round_ != less.rounds) | ~gone)
    best = kept.state if more.select != "last" else None
    return kept._replace(state=kept.last or kept.state, metrics=metrics, best=best, last=None)


def best_of(metrics: pa.Table, members: np.ndarray, since: int = 0) -> int:
    """Return the first round, from ``since`` on, with the least mean validation NLL.

    Args:
        metrics: the metrics of a run.
        members: ids of the clients to average over.
        since: the first round to consider. Default: 0.

    Raises:
        ValueError: if no client has validation examples.
    """
    theirs = pc.field("client").isin(pa.array(members, pa.int32()))
    rows = metrics.filter((pc.field("metric") == "validation_nll") & theirs)
    means = rows.group_by("round", use_threads=False).aggregate([("value", "mean")])
    means = means.filter(pc.field("value_mean").is_valid() & (pc.field("round") >= since))
    if not len(means):
        why = "no validation examples: the best round cannot be selected; use select='last'"
        raise ValueError(why)
    order = [("value_mean", "ascending"), ("round", "ascending")]
    return int(means.sort_by(order)["round"][0].as_py())


def observed(algorithm: FedAvg, fed: Federation, state: State) -> dict[str, torch.Tensor]:
    """Return the metrics of ``algorithm.log_metrics`` as detached tensors.

    Raises:
        TypeError: if they are not a dict.
        ValueError: for more than two dimensions, and for a name that every run logs, since both
            would be averaged together.
    """
    found, where = algorithm.log_metrics(fed, state), f"{type(algorithm).__name__}.log_metrics"
    if not isinstance(found, dict):
        raise TypeError(f"{where} must return a dict of numbers by name, got {short_repr(found)}")
    told = {name: torch.as_tensor(t).detach() for name, t in found.items()}
    for name, t in told.items():
        if name in LOGGED or t.ndim > 2:
            may = "be a number or have shape [experts] or [items, experts]"
            why = f"{name!r} must not be a metric that every run logs, and must {may}"
            raise ValueError(f"{where}: {why}; its shape is {[*t.shape]}")
    return told


def check_finite(fed: Federation, state: State, report: Report, round: int) -> None:
    """Raise TrainingDiverged unless everything that a round has changed is finite.

    Finite losses are not enough: the loss of a client's last step is computed before that step, and
    a server optimiser may diverge on finite updates. So the parameters are checked too, with one
    reduction each.
    """
    rows = torch.as_tensor(report.clients, device=fed.device)
    own = {n: t[rows] for n, t in state.client_params.items()}
    kept = [*state.server_optimizer.items(), *state.server_memory.items()]
    params = [*state.server_params.items(), *own.items(), *kept]
    # torch.optim keeps its step counts on the CPU, whatever the device of the parameters.
    sound = [t.isfinite().all().to(fed.device) for _, t in params]
    if not sound or bool(torch.stack(sound).all()):
        return
    bad = torch.zeros(len(rows), dtype=torch.bool, device=fed.device)
    for param in (*report.messages.values(), *own.values()):
        bad |= ~param.unsqueeze(-1).flatten(1).isfinite().all(1)
    if bool(bad.any()):
        who = fed.ids[report.clients[bad.cpu().numpy()]].tolist()
        named = fed.called(who)
        raise TrainingDiverged(f"round {round}: the weights of client {named} are not finite", who)
    names = ", ".join([n for n, t in params if not bool(t.isfinite().all())][:3])
    raise TrainingDiverged(f"round {round}: after the server's step {names} is not finite")
