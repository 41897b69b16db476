"""Running an experiment: look it up, else train it, resumably."""

from __future__ import annotations

import os
import time
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
from fedlib.algorithms import FedAvg
from fedlib.algorithms.local import Finetuning
from fedlib.engine import Report, State, TrainingDiverged, play_round
from fedlib.engine.evaluate import Scores, encode, evaluate, evaluate_everywhere, evaluate_global
from fedlib.engine.protocol import eval_view, train_view
from fedlib.engine.rounds import SPLITS
from fedlib.federation import Federation
from fedlib.parallel import all_cores, delay_keyboard_interrupt
from fedlib.privacy import audit
from fedlib.progress import Watcher, callback
from fedlib.tasks import pick_device
from fedlib.values import short_repr
from fedrun import provenance, store
from fedrun.experiment import Experiment, Log, Result, key_in, on_host, spec_of
from fedrun.files import Damaged, StoreError
from fedrun.store import Checkpoint, RunDiverged, RunFolder

CHECKPOINT_SECONDS = 60.0
OF_THE_END = ("everywhere_accuracy", "kept_round")  # what only the last round of a run logs
COHORT_NLL = "cohort_validation_nll"  # what `CohortEarlyStop` judges a round by
SCORED = ("validation", "test", "balanced", "balanced_validation")
LOGGED = {  # what no algorithm may log besides
    "train_loss", "bytes_down", "bytes_up", "divergence", "examples", "opted_in", "global_accuracy",
    "client_bytes_down", "client_bytes_up", "label_share", "label_set_from_phi",
    COHORT_NLL, *OF_THE_END,
    *(f"labels_from_{part}" for part in ("bias", "weights", "q", "phi", "phi_cohort")),
    *(f"adapted_{part}_accuracy" for part in SPLITS),
    *(f"{part}_{of}" for part in SCORED for of in ("accuracy", "nll", "gate")),
}  # fmt: skip
Progress = bool | Watcher


class RoundInfo(NamedTuple):
    """A run after a round: what ``simulate`` yields and callbacks are given.

    ``round`` counts completed rounds, 0 is before the first. ``state`` holds all leaves; clients'
    own ones are updated in place, so copy what is to last. ``metrics`` are the means of all that
    was logged of this round, by name: no "train_loss" of round 0, no "test_accuracy" where clients
    are not scored. ``report`` is what the engine returned of it, None of round 0.

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
    """How a run is trained: no part of what it is, and explained at ``run``."""

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
    """Return the result of an experiment, training it only if it is not stored.

    It is stored under what it was made of: its spec, code and data of one's own. With another known
    set, or after another first stage, than are here it counts as not stored.

    A run that was killed continues from its last checkpoint (one a minute, or every
    $FEDLIB_CHECKPOINT_SECONDS), after Ctrl-C from the round that it let end (a second one does not
    wait), one of more rounds from the end of a shorter one that is stored: with the same bits, if
    on a CPU of the same kind with the same chunk. There a run uses as many cores as torch has
    threads (``cores.all_cores``). Two processes asked for the same experiment train it once.

    Args:
        experiment: what to train.
        device: "auto", "cpu", "cuda" or "cuda:N"; "auto" is a GPU where there is one.
        chunk: how many clients share one program; None for a number that suits device and model.
        progress: whether a bar is shown; a function is called after every round with the rounds
            completed, the rounds in all and the training loss (first with NaN), of stages, too.
        retry: whether a run that diverged before is trained again.
        callbacks: called with a ``RoundInfo`` after every round, first of round 0. One that returns
            True stops the run: it is stored as unfinished and goes on when it is asked for again.
        debug: one client after another in this process, without vmap: an error in a loss has its
            plain traceback, and a debugger stops there.
        again: whether what is stored of it is forgotten first; its first stages are not.

    Returns:
        The result; of a run that a callback has stopped the metrics up to there.

    Raises:
        RunDiverged: for a run whose numbers stopped being finite, and again when asked again.
        StoreError: when nothing can be stored, or code is another here than where it was asked for.

    >>> result = run(tiny, progress=False)
    >>> result.curve("test_accuracy").keys()
    dict_keys([0, 2])
    """
    how = RunOptions(device, chunk, progress, retry, _functions(callbacks), debug, again)
    made = experiment.pinned()
    result = (None if again else store.find_result(made)) or _trained(made, how)
    return replace(result, experiment=experiment)


def run_with_state(experiment: Experiment, **how: Any) -> tuple[Result, State]:
    """Return a result and its final state, retraining if only the exported metrics are there.

    Args:
        experiment: what to train.
        how: options of ``run``.

    Returns:
        the result, and the state that the run ended with.

    Raises:
        RunDiverged: as ``run``.
        StoreError: as ``run``.

    >>> result, state = run_with_state(tiny, progress=False)
    >>> state.server_params["head.bias"].shape
    torch.Size([10])
    """
    asked = RunOptions(**how | {"callbacks": _functions(how.get("callbacks", ()))})
    made, kept = experiment.pinned(), None
    here = RunFolder(made)
    stored = here.result() if here.complete and not asked.again else None
    with suppress(Damaged):
        kept = here.restore()
    if stored is None or kept is None:
        stored, kept = _trained(made, asked), here.restore()
    assert kept is not None
    return replace(stored, experiment=experiment), kept.state


def _functions(callbacks: Any) -> tuple[Callback, ...]:
    """Return callbacks as a tuple; TypeError for what is no list of functions."""
    made = () if callable(callbacks) else tuple(callbacks)
    if callable(callbacks) or not all(map(callable, made)):
        raise TypeError(f"callbacks must be functions in a list, got {short_repr(callbacks)}")
    return made


def _trained(experiment: Experiment, how: RunOptions) -> Result:
    """Train a run that is not complete, alone in its folder; return what is stored then."""
    here, stopped = RunFolder(experiment), None
    how = how._replace(chunk=1) if how.debug else how
    with here.locked():
        if how.again:
            store.delete(experiment.key)
        if not here.complete:
            if how.retry:
                here.forget_failure()
            if failure := here.failure():
                raise failure
            if experiment.changed:
                why = "code or data are others in this process than where it was asked for"
                raise StoreError(f"run {experiment.key} is not trained: {why}; restart that")
            cohort = 1 if how.debug else experiment.cohort  # one client is dealt to no copies
            with all_cores(pick_device(how.device), cohort):
                fed = built(experiment, how.device)
                here.repair()  # the data are open now, and can be compared
                here.begin()
                stopped = Training(experiment, fed, how).play()
    result = stopped or here.result()
    assert result is not None
    return result


def built(experiment: Experiment, device: str = "cpu") -> Federation:
    """Return the federation of an experiment's task and seed, on a device.

    A stage after another sees examples as the first one's model does: on the scale, and with the
    ranks of words, that were fitted to the participating clients there.
    """
    task, first = experiment.task, experiment.stages[0]
    same = first is not experiment and first.task.dataset == task.dataset
    return task.build(experiment.seed, device, first.task.fit(first.seed) if same else None)


def rounds(
    experiment: Experiment,
    fed: Federation,
    state: State,
    completed: int = 0,
    chunk: int | None = None,
) -> Iterator[tuple[State, int, Report | None]]:
    """Yield (state, completed rounds, report) after every round; first the given state itself."""
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
    """Play an experiment in memory, in this process, and store nothing; yield its moments.

    The numbers are those of ``run``. Stages before it are played first.

    Args:
        experiment: what to play.
        device, chunk, debug: as for ``run``.

    Yields:
        a ``RoundInfo`` before the first round and one after every round.

    Raises:
        TrainingDiverged: when a number stops being finite.

    >>> [moment.round for moment in simulate(tiny)]
    [0, 1, 2]
    """
    how = RunOptions(device, 1 if debug else chunk)
    return (training.moment(report) for training, report in _played(experiment, how))


def _played(experiment: Experiment, how: RunOptions) -> Iterator[tuple[Training, Report | None]]:
    """Play an experiment and the stages before it; yield its training after every round."""
    training = Training(experiment, built(experiment, how.device), how)
    ends = (deque(_played(stage, how), maxlen=1)[0] for stage in experiment.before)
    first = training.fresh([before.ending for before, _ in ends])
    for state, completed, report in rounds(experiment, training.fed, first, 0, how.chunk):
        training.log_round(state, completed, report)
        yield training, report
        if training.finished:
            return


def initial_state(experiment: Experiment, fed: Federation, earlier: Sequence[State]) -> State:
    """Return the state before round 0, given the final states of ``experiment.before``.

    With a stage ``local_stage`` the first, its clients' own leaves replace those of the first;
    ValueError if it has none.
    """
    first, algorithm = None, experiment.algorithm
    if earlier:
        state, *beside = (moved(each, fed) for each in earlier)
        if beside and not beside[0].client_params:
            kind = type(experiment.before[1].algorithm).__name__
            raise ValueError(f"`local_stage` gives clients' own parameters, and {kind} keeps none")
        first = replace(state, client_params=beside[0].client_params) if beside else state
        of = experiment.before[0].algorithm
        first = of.assign_clusters(eval_view(of, fed), first)
    state = algorithm.init(train_view(algorithm, fed), experiment.seed, first)
    require_leaves(algorithm, state)
    return state


def require_leaves(algorithm: FedAvg, state: State) -> None:
    """ValueError for a phase that trains, or a rate that is of, leaves that there are not.

    A name that is mistyped would train nothing, or at another rate, without a word. Also where no
    phase trains a leaf, and for a phase that trains whole numbers or truth values.
    """
    leaves, kind = {**state.server_params, **state.client_params}, type(algorithm).__name__
    phases = algorithm.phases()
    moving = [phase.trained_names(leaves, state.client_params) for phase in phases]
    asked = [(f"{kind}.server.rates", prefix) for prefix, _ in algorithm.server.rates]
    for phase in phases:
        asked += [(f"{kind}.phases", prefix) for prefix in phase.train]
        asked += [(f"the rates of {kind}'s clients", n) for n, _ in phase.optimizer.rates]
    for where, prefix in asked:
        if prefix not in algorithm.optional and not any(name.startswith(prefix) for name in leaves):
            there = f"no leaf begins with {prefix!r}; there are {', '.join(leaves)}"
            raise ValueError(f"{where}: {there}")
    for name in chain(*moving):
        if not leaves[name].is_floating_point():
            why = f"{name} is {leaves[name].dtype}, which no gradient moves"
            raise ValueError(f"{kind}.phases: {why}; `trained` names the parameters that are trained")
    for phase, names in zip(phases, moving, strict=True):
        idle = not names and (phase.scope != "both" or not any(moving))
        if idle and not isinstance(algorithm, Finetuning):
            local = ", ".join(state.client_params) or "none"
            raise ValueError(f"{kind}: {phase} trains no leaf; local leaves are {local}")


class Training:
    """A run in training: its log, the state after its last round, and what its folder is told."""

    def __init__(self, experiment: Experiment, fed: Federation, how: RunOptions) -> None:
        self.experiment, self.fed, self.how = experiment, fed.full_view(), how
        self.seen = train_view(experiment.algorithm, fed)
        self.folder = RunFolder(experiment)
        self.log, self.start, self.completed = Log(), 0, 0
        self.state = State({}, {})
        self._earlier = list[dict[str, Any]]()
        self._best: State | None = None
        self._rivals = self.log.table()  # the rows that decide which round is the best so far
        self._checks: dict[int, float] = {}  # by round, what early stopping judges it by
        self._following: dict[str, Any] = {}  # what is told of the stages before
        self._since = provenance.clock()

    def play(self) -> Result | None:
        """Train to the end and store it; return the metrics so far if a callback has stopped it.

        RunDiverged if a number stops being finite, unless what it went on from may be to blame:
        then it starts from the beginning.
        """
        interval = float(os.environ.get("FEDLIB_CHECKPOINT_SECONDS") or CHECKPOINT_SECONDS)
        e, kept = self.experiment, self.folder.restore()
        resumed = kept is not None and kept.completed > 0 and self._fits(kept.state)
        kept = kept if resumed else _shorter(e, self.fed.source)
        first, saved = self._resume(kept) if kept else self._begin(), time.monotonic()
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
                        raise KeyboardInterrupt
            except TrainingDiverged as error:
                if resumed:
                    at = f" went on from round {self.start} of its checkpoint, and {error}"
                    self.folder.discard(at)
                    return Training(e, built(e, self.how.device), self.how).play()
                raise self._diverged(error) from error
        self.save()
        made = provenance.of_run(self.fed, self.segments(), self.state, self.ending)
        if not self.finished:
            return Result(e, self.log.table(), made, e)
        self.folder.write_record(store.PROVENANCE, made)
        return None

    def _resume(self, kept: Checkpoint) -> State:
        """Go on from what is stored; return its state."""
        self.log, self.start, self._earlier = Log(kept.metrics), kept.completed, kept.segments
        self._best = moved(kept.best, self.fed) if kept.best else None
        self._rivals = self.log.table()
        checked = kept.metrics.filter(pc.field("metric") == COHORT_NLL)
        at, nll = checked["round"].to_pylist(), checked["value"].to_numpy().tolist()
        self._checks = dict(zip(at, nll, strict=True))
        self.state, self.completed = moved(kept.state, self.fed), kept.completed
        return self.state

    def _begin(self) -> State:
        """Return a fresh state, after the stages before, which are trained unless stored."""
        how = self.how._replace(callbacks=(), again=False)._asdict()
        made = [run_with_state(stage, **how) for stage in self.experiment.before]
        earlier = ((r.experiment.key, r.provenance, ended) for r, ended in made)
        self._following = provenance.following(earlier)
        self._since = provenance.clock()  # what they have cost stands in their own provenance
        return self.fresh([state for _, state in made])

    def _fits(self, state: State) -> bool:
        """Return whether a checkpoint has the leaves of this run; set it aside if it has not.

        What stages before have not left in this store is not trained to find out.
        """
        ends = []
        for stage in self.experiment.before:
            there = RunFolder(stage)
            kept = there.restore() if there.complete else None
            if kept is None:
                return True
            ends.append(kept.state)
        both = initial_state(self.experiment, self.fed, ends), state
        wanted, found = (
            {n: t.shape for n, t in {**s.server_params, **s.client_params}.items()} for s in both
        )
        if wanted == found:
            return True
        name = min(n for n in wanted | found if wanted.get(n) != found.get(n))
        shapes = (list(some.get(name, ["none"])) for some in (found, wanted))
        why = ": its checkpoint has for {} {}, where its model has {}"
        self.folder.discard(why.format(name, *shapes))
        return False

    def fresh(self, earlier: Sequence[State]) -> State:
        """Return the state before round 0, given the final states of the stages before."""
        state = initial_state(self.experiment, self.fed, earlier)
        self.log.clients(0, "examples", self.fed.ids, self.fed.train.sizes)
        if self.fed.participating_view() is not self.fed:  # some opted out
            self.log.clients(0, "opted_in", self.fed.ids, self.fed.participating_view().train.sizes)
        return state

    def log_round(self, state: State, completed: int, report: Report | None) -> float:
        """Log a round and keep its state; return its training loss."""
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
        # Scalars every round, arrays where clients are scored.
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
        """Return the run as it is after its last round."""
        at = self.completed
        return RoundInfo(at, self.state, self.log.means(at), report, self.experiment)

    def _stops(self, report: Report | None) -> bool:
        """Tell callbacks of the last round; return whether one stops the run."""
        if not self.how.callbacks:
            return False
        moment = self.moment(report)
        return any([bool(callback(moment)) for callback in self.how.callbacks])

    def save(self) -> None:
        """Store the last round; at the end the state that the run is to end with."""
        best, last = self._best, None
        if self.finished and best is not None:
            best, last = None, self.state
        told = self.log.table(), self.fed.source, self.segments()
        self.folder.checkpoint(Checkpoint(self.ending, self.completed, *told, best, last))

    @property
    def ending(self) -> State:
        """The last state, or after the last round the one that the run is to end with."""
        return self._best if self.finished and self._best is not None else self.state

    @property
    def finished(self) -> bool:
        """Whether no round is left: all are played, or early stopping has ended the run."""
        return self._ends(self.completed)

    def _ends(self, completed: int) -> bool:
        stop = self.experiment.stop
        early = stop is not None and stop.best(self._checks)[1]
        return completed == self.experiment.rounds or early

    def _diverged(self, error: TrainingDiverged) -> RunDiverged:
        """Store the metrics, and the failure after them; return the error to raise."""
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
        """Return the stretches of rounds that processes have trained, this one's last."""
        if self.completed <= self.start:
            return self._earlier
        rounds = [self.start, self.completed]
        now = provenance.segment(self.fed, rounds, self.how.chunk, self.state, self._since)
        # Only what began the run has seen the stages before.
        return [*self._earlier, now | self._following]

    def _assess(self, state: State, completed: int, report: Report | None) -> None:
        """Score every client on validation and test data, and the federation on all test data.

        After the last round every client also on at most ``costs.MOST`` examples of all test data.
        """
        fed, algorithm, log = self.fed, self.experiment.algorithm, self.log
        judged = algorithm.assign_clusters(eval_view(algorithm, fed), state, for_selection=True)
        held = evaluate(fed, algorithm, judged, fed.validation)
        log.scores(completed, "validation", fed.ids, held)
        if self.experiment.stop is not None and report is not None:
            self._check(held, completed, report)
        test = encode(fed, algorithm, state, fed.test, everything=True)
        log.scores(completed, "test", fed.ids, evaluate(fed, algorithm, state, fed.test, test))
        log.add(completed, "global_accuracy", evaluate_global(fed, algorithm, state, test))
        if self._ends(completed):
            everywhere = evaluate_everywhere(fed, algorithm, state, test)
            log.clients(completed, "everywhere_accuracy", fed.ids, everywhere)
        if fed.balanced is not None:
            on_test = self.experiment.task.balanced_on == "test"
            name = "balanced" if on_test else "balanced_validation"
            log.scores(completed, name, fed.ids, evaluate(fed, algorithm, state, fed.balanced))

    def _check(self, held: Scores, completed: int, report: Report) -> None:
        """Log what early stopping judges a round by: the mean validation nll of its cohort."""
        assert self.experiment.stop is not None
        if self.experiment.stop.before_update:
            fed, algorithm = self.fed, self.experiment.algorithm
            if self.state.client_params:
                kept = ", ".join(self.state.client_params)
                why = f"clients have already trained what they keep: {kept}"
                raise ValueError(f"before_update judges what a round began with, but {why}")
            judged = algorithm.assign_clusters(
                eval_view(algorithm, fed), self.state, for_selection=True
            )
            held = evaluate(fed, algorithm, judged, fed.validation)
        known = held.nll[report.clients]
        known = known[~np.isnan(known)]
        self._checks[completed] = float(known.mean()) if len(known) else float("nan")
        self.log.add(completed, COHORT_NLL, self._checks[completed])

    def _choose(self, state: State, completed: int) -> None:
        """Keep a copy of the state if it is the best so far, where that is asked for."""
        e, now = self.experiment, self._rivals
        some = self.seen.ids[np.flatnonzero(self.seen.validation.sizes)]
        if e.select == "last" and e.stop is None:
            return
        if not len(some):
            raise ValueError("no validation examples: the best round cannot be told, nor a stop")
        if not completed and e.select != "best":
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


def _shorter(experiment: Experiment, source: str) -> Checkpoint | None:
    """Return the end of the longest stored run with fewer rounds, as it stands in this one.

    None where there is none on the same data from which this one could go on with the same bits.
    A run that may stop early goes on from none.
    """
    if experiment.stop is not None:
        return None
    spec, stored = spec_of(experiment), {home.name for home in paths.runs().glob("*")}
    fewer = range(experiment.rounds - 1, 0, -1)
    # An experiment's own key asks for its code and data each time.
    for rounds in (n for n in fewer if key_in({**spec, "rounds": n}) in stored):
        less = replace(experiment, rounds=rounds)
        if (there := RunFolder(less)).complete:
            with suppress(Damaged):
                kept = there.restore()
                alike = kept and kept.data.rpartition(" ")[2] == source.rpartition(" ")[2]
                if kept and alike and (found := _lengthened(kept, less, experiment)):
                    return found
    return None


def _lengthened(kept: Checkpoint, less: Experiment, more: Experiment) -> Checkpoint | None:
    """Return the last checkpoint of a run as a longer one has it after as many rounds.

    A last round is scored where a longer run may not score it. What it logged then is taken out
    again, and a best state that only the shorter run could keep is of no use.
    """
    at, metrics, best = less.rounds, kept.metrics, None
    if more.select != "last":
        rows = metrics.filter(pc.field("metric") == "kept_round")
        if kept.last is None or not more.evaluates(int(rows["value"][0].as_py())):
            return None
        best = kept.state
    gone = pc.field("metric").isin(OF_THE_END)
    if not more.evaluates(at):
        plain = [t for t in range(1, at) if not less.evaluates(t)]
        if not plain:
            return None
        usual = metrics.filter(pc.field("round").isin(plain))["metric"].unique()
        gone = ~pc.field("metric").isin(usual)
    metrics = metrics.filter((pc.field("round") != at) | ~gone)
    return kept._replace(state=kept.last or kept.state, metrics=metrics, best=best, last=None)


def best_of(metrics: pa.Table, members: np.ndarray, since: int = 0) -> int:
    """Return the first round, from ``since`` on, with the least mean validation nll of clients."""
    theirs = pc.field("client").isin(pa.array(members, pa.int32()))
    rows = metrics.filter((pc.field("metric") == "validation_nll") & theirs)
    means = rows.group_by("round", use_threads=False).aggregate([("value", "mean")])
    means = means.filter(pc.field("value_mean").is_valid() & (pc.field("round") >= since))
    if not len(means):
        raise ValueError("no validation examples: the best round cannot be told; use keep='last'")
    order = [("value_mean", "ascending"), ("round", "ascending")]
    return int(means.sort_by(order)["round"][0].as_py())


def observed(algorithm: FedAvg, fed: Federation, state: State) -> dict[str, torch.Tensor]:
    """Return what an algorithm observes, as tensors; an error for what is no number by name.

    ValueError also for a name that every run logs by itself: both would be averaged as one.
    """
    found, where = algorithm.log_metrics(fed, state), f"{type(algorithm).__name__}.log_metrics"
    if not isinstance(found, dict):
        raise TypeError(f"{where} must return numbers by name, a dict, got {short_repr(found)}")
    told = {name: torch.as_tensor(t).detach() for name, t in found.items()}
    for name, t in told.items():
        if name in LOGGED or t.ndim > 2:
            may = "a name of its own, and be a number, [experts] or [items, experts]"
            raise ValueError(f"{where}: {name!r} must have {may}, got {[*t.shape]}")
    return told


def check_finite(fed: Federation, state: State, report: Report, round: int) -> None:
    """Raise TrainingDiverged unless all that a round has changed is finite.

    The loss of a client's last step is computed before that step, and a server's optimiser may
    explode on finite messages: so the leaves are looked at, too, with one reduction each.
    """
    rows = torch.as_tensor(report.clients, device=fed.device)
    own = {n: t[rows] for n, t in state.client_params.items()}
    kept = [*state.server_optimizer.items(), *state.server_memory.items()]
    leaves = [*state.server_params.items(), *own.items(), *kept]
    # torch.optim keeps its step counts on the CPU, whatever the device of what it moves.
    sound = [t.isfinite().all().to(fed.device) for _, t in leaves]
    if not sound or bool(torch.stack(sound).all()):
        return
    bad = torch.zeros(len(rows), dtype=torch.bool, device=fed.device)
    for leaf in (*report.messages.values(), *own.values()):
        bad |= ~leaf.unsqueeze(-1).flatten(1).isfinite().all(1)
    if bool(bad.any()):
        who = fed.ids[report.clients[bad.cpu().numpy()]].tolist()
        named = fed.called(who)
        raise TrainingDiverged(f"round {round}: the weights of client {named} are not finite", who)
    names = ", ".join([n for n, t in leaves if not bool(t.isfinite().all())][:3])
    raise TrainingDiverged(f"round {round}: after the server's step {names} is not finite")


def moved(state: State, fed: Federation) -> State:
    """Return a stored state on the federation's device."""
    # torch.optim keeps its step counts on the CPU, whatever the device of what it moves.
    flat = {n: t if n.endswith("/step") else t.to(fed.device) for n, t in state.flat().items()}
    return State.from_flat(flat)
