"""``Experiment``, which specifies a run, and ``Result``, which holds its metrics.

An experiment is a value; a hash of it, its ``key``, names the stored result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor, nn

from fedlib import data as datasets
from fedlib.algorithms import FedAvg
from fedlib.engine import Report, Selection
from fedlib.engine.evaluate import Scores
from fedlib.federation import Federation
from fedlib.metrics import Metric, gradient_divergence
from fedlib.tasks import Task
from fedlib.values import (
    NonNegativeInt,
    PositiveInt,
    check_choice,
    former,
    from_dict,
    key_of,
    to_dict,
    value,
)
from fedrun.files import StoreError
from fedrun.source import digest, user_code

# Increase this when the same experiment gives different numbers than before (a changed default, a
# fixed bug): the keys of new runs then differ, and old results are no longer found.
VERSION = 1
SCHEMA = pa.schema(
    {
        "round": pa.int32(),
        "metric": pa.string(),
        "client": pa.int32(),
        "expert": pa.int16(),
        "item": pa.string(),
        "value": pa.float64(),  # null where it is not a number
    }
)
COLUMNS = tuple(SCHEMA.names)
MADE_OF = "made_of"  # the field of a stored spec with digests of user code and data
NONE = -1  # in the columns client and expert: the row belongs to no client or expert
LOSSES = ("nll", "loss")  # ends of the names of metrics of which less is better
SCORES = ("accuracy", "nll", "gate")  # of every client on a split; see `Log.scores`


@value
class CohortEarlyStop:
    """Early stopping of a federation on the validation loss of each checked round's cohort.

    Every ``evaluate_every`` rounds of the experiment, and after its last, the validation negative
    log-likelihood of the global model is averaged over the clients of that round's cohort:

        L_t = mean over s in cohort(t) of NLL_s(w_t)

    The run stops after ``patience`` checks in a row without a new minimum and keeps the state of
    the check with the least L_t. The initial state is never checked, and clients without validation
    examples do not count.

    Args:
        patience: number of consecutive checks without improvement after which the run stops, at
            least 1. Default: 5.
        before_update: if True, L_t is computed with the model at the start of round t instead of
            the one at its end; the state that is kept is the one after the round in both cases.
            Default: False.

    Reference: Listo Zec et al., Specialized federated learning using a mixture of experts, 2021,
    sec. 5, without a patience; the released code has 5, and ``before_update``.

    >>> Experiment(tiny.task, FedAvg(), rounds=9, evaluate_every=1, stop=CohortEarlyStop()).stop
    CohortEarlyStop()
    """

    patience: PositiveInt = 5
    before_update: bool = False

    def best(self, losses: Mapping[int, float]) -> tuple[int, bool]:
        """Return the best round so far and whether to stop.

        Args:
            losses: L_t by checked round, in order. A NaN, which is the loss of a cohort without
                validation examples, is neither an improvement nor a check.

        Returns:
            the round with the least loss, the first of several; and whether ``patience`` checks
            have followed it.
        """
        known = {t: loss for t, loss in losses.items() if not math.isnan(loss)}
        best = min(known, key=known.__getitem__, default=max(losses, default=0))
        return best, sum(t > best for t in known) >= self.patience


@value
class Experiment:
    """An algorithm that is trained on a task for a number of rounds, with one seed.

    Device, chunk and threads are not part of an experiment: they change a result by float rounding
    only, and are recorded in its provenance.

    Args:
        task: the data, their partition over the clients, and the network.
        algorithm: the algorithm with its hyperparameters.
        rounds: number of rounds, at least 1.
        cohort: number of clients per round (an int), a fraction of the participating clients (a
            float), or a ``Selection``, which also determines how they are chosen. Default: 10.
        seed: seed of the data, the initial parameters and all training. Default: 0.
        evaluate_every: the clients are evaluated every N rounds, before the first round and after
            the last; with 0 after the last round only. Default: 10.
        first_stage: an experiment whose final state this one starts from. Default: None.
        audit_labels: whether to log, at evaluated rounds, what the server can infer about the
            clients' labels from their messages. Default: False.
        select: the state that the run ends with, from which a later stage starts: the one after the
            "last" round; after the "best" evaluated round, which has the least mean validation
            negative log-likelihood over the participating clients; or the "best_trained" one, the
            best without the initial state. With ``evaluate_every=0`` this is the last round.
            Default: "last".
        local_stage: an experiment without a server whose personal parameters replace those of
            ``first_stage``. Default: None.
        stop: a rule of early stopping; the run ends with the state that the rule selects. It needs
            ``evaluate_every`` of at least 1 and ``select="last"``. Default: None.
        metrics: further metrics of every client's validation and test examples, such as
            ``(BalancedAccuracy(), AUC())``, logged as "test_balanced_accuracy"; their names must
            differ, also from those that every run logs. Default: none.

    >>> Experiment(tiny.task, FedMix(experts=2), rounds=50, cohort=0.5, seed=1).algorithm
    FedMix(experts=2)
    """

    stored_as: ClassVar[dict[str, str]] = {
        "first_stage": "after", "local_stage": "beside", "select": "keep", "audit_labels": "audit",
    }  # fmt: skip
    task: Task
    algorithm: FedAvg
    rounds: PositiveInt
    cohort: int | float | Selection = 10
    seed: NonNegativeInt = 0
    evaluate_every: NonNegativeInt = 10
    first_stage: Experiment | None = None
    audit_labels: bool = False
    select: Annotated[str, ("last", "best", "best_trained")] = "last"
    local_stage: Experiment | None = None
    stop: CohortEarlyStop | None = None
    metrics: tuple[Metric, ...] = ()
    after, beside = former("after", "first_stage"), former("beside", "local_stage")
    keep, audit = former("keep", "select"), former("audit", "audit_labels")

    def check(self) -> None:
        if not isinstance(self.cohort, Selection):
            Selection(self.cohort)  # raises for an invalid number or fraction
        if self.local_stage is not None and self.first_stage is None:
            raise ValueError("local_stage needs a first stage: set `first_stage` too")
        if self.stop is not None and (self.select != "last" or not self.evaluate_every):
            need = "evaluate_every of at least 1, the interval of its checks, and select='last'"
            raise ValueError(f"stop selects the best of its own checks: it needs {need}")
        names = [metric.name for metric in self.metrics]
        if len({*names, *SCORES}) < len(names) + len(SCORES):
            raise ValueError(f"metrics must have different names, none of {SCORES}, got {names}")

    @property
    def key(self) -> str:
        """The name of the stored result: 16 hexadecimal digits, the same on every machine.

        It is a hash of the spec and of what the experiment is ``made_of`` now.
        """
        return key_of(self, *more, version=VERSION) if (more := self.made_of) else self._key

    @property
    def made_of(self) -> list[str]:
        """Digests of what the spec only names: user-defined code, and each user-defined data set.

        It is empty if the experiment uses only the library and the data sets that it provides.
        """
        return list(vars(self).get("_made_of") or self._outside())

    def pinned(self) -> Experiment:
        """Return a copy whose key does not change when code or data change later."""
        if self._plain or "_made_of" in vars(self):
            return self
        after, beside = (stage and stage.pinned() for stage in (self.first_stage, self.local_stage))
        copy = replace(self, first_stage=after, local_stage=beside)
        vars(copy)["_made_of"] = self._outside()
        return copy

    @property
    def changed(self) -> bool:
        """Whether code or data in this process differ from those at the time of ``pinned``."""
        return vars(self).get("_made_of", now := self._outside()) != now

    @cached_property
    def _key(self) -> str:
        return key_of(self, version=VERSION)

    @cached_property
    def _plain(self) -> bool:
        return not user_code(self) and not self._own_data

    @property
    def _own_data(self) -> list[str]:
        every = dict.fromkeys(stage.task.dataset for stage in self.stages)
        return [name for name in every if datasets.is_own(name)]

    def _outside(self) -> list[str]:
        if self._plain:
            return []
        code = [f"code {digest(roots)}"] if (roots := user_code(self)) else []
        return [*code, *(f"{name} {datasets.fingerprint(name)[:16]}" for name in self._own_data)]

    @property
    def fewest_rounds(self) -> int:
        """The least number of rounds of a finished run: ``rounds``, or fewer with ``stop``."""
        if self.stop is None:
            return self.rounds
        return min(self.rounds, (self.stop.patience + 1) * self.evaluate_every)

    @property
    def before(self) -> tuple[Experiment, ...]:
        """The stages that this one starts from directly: ``first_stage`` and ``local_stage``."""
        return tuple(stage for stage in (self.first_stage, self.local_stage) if stage is not None)

    @property
    def stages(self) -> list[Experiment]:
        """All stages in the order of training; the last one is this experiment."""
        return [*(s for stage in self.before for s in stage.stages), self]

    def evaluates(self, completed: int) -> bool:
        """Return whether the clients are evaluated after ``completed`` rounds."""
        between = self.evaluate_every > 0 and completed % self.evaluate_every == 0
        return between or completed == self.rounds


def built(experiment: Experiment, device: str = "cpu") -> Federation:
    """Return the federation of an experiment's task and seed, on a device.

    A later stage preprocesses examples as the first stage does: with the scale and the vocabulary
    that were fitted to the participating clients of the first stage.
    """
    task, first = experiment.task, experiment.stages[0]
    same = first is not experiment and first.task.dataset == task.dataset
    return task.build(experiment.seed, device, first.task.fit(first.seed) if same else None)


def spec_of(experiment: Experiment) -> dict[str, Any]:
    """Return the spec of an experiment as it is stored, with ``made_of`` if that is not empty."""
    more = experiment.made_of
    return {**to_dict(experiment), **({MADE_OF: more} if more else {})}


def key_in(spec: dict[str, Any]) -> str:
    """Return the key of the experiment that a stored spec describes."""
    plain = {name: v for name, v in spec.items() if name != MADE_OF}
    return key_of(plain, *spec.get(MADE_OF, ()), version=VERSION)


def experiment_of(spec: Any) -> Experiment:
    """Return the experiment that a stored spec describes.

    Raises:
        ValueError, TypeError: if the spec does not describe an experiment.
    """
    plain = {n: v for n, v in spec.items() if n != MADE_OF} if isinstance(spec, dict) else spec
    made = from_dict(plain)
    if not isinstance(made, Experiment):
        raise ValueError(f"not an experiment: {made!r}")
    return made


def on_host(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors on the host, with a single transfer (as float64) if some are on a GPU."""
    if not any(t.is_cuda for t in tensors.values()):
        return tensors
    flat = torch.cat([t.double().flatten() for t in tensors.values()]).cpu()
    parts = flat.split([t.numel() for t in tensors.values()])
    return {n: p.view(t.shape) for (n, t), p in zip(tensors.items(), parts, strict=True)}


def tidy(table: pa.Table) -> pa.Table:
    """Return a table with the columns and types of ``SCHEMA``; those of a file may be wider."""
    return table.select(COLUMNS).cast(SCHEMA)


Loader = Callable[[Experiment, int | str | None, str], tuple[Federation, nn.Module]]


@dataclass(frozen=True, eq=False)
class Result:
    """The result of a finished run: its experiment, tidy metrics and provenance.

    Every round logs train_loss, bytes_down, bytes_up and divergence. An evaluated round also logs
    validation_accuracy, validation_nll, test_accuracy and test_nll of every client on its own
    examples; adapted_validation_accuracy and adapted_test_accuracy of the cohort directly after
    local training; and global_accuracy. The last round also logs everywhere_accuracy. Algorithms
    add metrics of their own; ``logged`` lists all of them.

    Args:
        experiment: the experiment that was run.
        metrics: a table with the columns round, metric, client, expert, item and value
            (``SCHEMA``). ``metrics.to_pandas()`` and ``polars.from_arrow(metrics)`` return frames.
        provenance: commit, versions, devices, times and data of the run.
        pinned: the experiment as it was when the result was found; its key does not change when
            code or data change later. Default: None.
        loader: the function that returns the federation and the model of a stored run, given the
            experiment, the client and the device: ``fedrun.store.load_model``. None for a result
            without a model, such as one read from a file of exported results. Default: None.

    >>> result = run(tiny)
    >>> sorted(result.curve("train_loss"))
    [1, 2]
    >>> result.model(client=3).state_dict()["head.bias"].shape
    torch.Size([10])
    """

    experiment: Experiment
    metrics: pa.Table = field(repr=False)
    provenance: dict[str, Any] = field(repr=False)
    pinned: Experiment | None = field(default=None, repr=False)
    loader: Loader | None = field(default=None, repr=False)

    def model(self, client: int | str | None = None, *, device: str = "cpu") -> nn.Module:
        """Return the trained model as a ``torch.nn.Module`` in eval mode.

        This is the network itself if the algorithm predicts with one network, and otherwise a
        ``fedlib.engine.as_module.Trained``, which holds what the algorithm's ``predict`` needs. Its
        ``forward`` takes examples ``[B, ...]``, images as ``[B, channels, height, width]``, and
        returns logits ``[B, classes]``, whose softmax is p(y|x). It expects inputs as in training:
        ``fitted = experiment.task.fit(experiment.seed)``, or that of ``experiment.stages[0]`` if
        an earlier stage has the same data set; then numbers (x - ``fitted.mean``) / ``fitted.std``,
        pixels after division by 255, and the token ids ``fitted.ids[x]``. ``fedrun.predict`` does
        this itself. ``state_dict`` and torch's exporters work as for any module.

        Args:
            client: id or name of the client whose model is returned, or None for the model that a
                new client would use, which is the global model if there is one. Default: None.
            device: the device of the module. Default: "cpu".

        Raises:
            ValueError: if there is no such client.
            StoreError: if the final state of the run is not stored.
        """
        if self.loader is None:
            where = "find_result(experiment) looks for its model"
            raise StoreError(f"only the metrics of run {self.experiment.key} were read: {where}")
        return self.loader(self.pinned or self.experiment, client, device)[1]

    @property
    def client_names(self) -> tuple[str, ...]:
        """The names of the clients by id, such as the values of a column; () without names."""
        return tuple(self.provenance.get("client_names", ()))

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes by label."""
        return datasets.class_names(self.experiment.task.dataset)

    @property
    def logged(self) -> list[str]:
        """The names of the logged metrics, in alphabetical order."""
        return sorted(self.metrics["metric"].unique().to_pylist())

    def select(self, metric: str) -> pa.Table:
        """Return the rows of one metric.

        Args:
            metric: one of ``logged``.

        Raises:
            UnknownName: if the run never logged the metric.
        """
        check_choice("metric of this run", metric, self.logged)
        return self.metrics.filter(pc.field("metric") == metric)

    def curve(self, metric: str) -> dict[int, float]:
        """Return the mean of a metric over clients, experts and items, by round.

        Args:
            metric: one of ``logged``.

        Returns:
            the mean by round; missing values are left out, and the mean of no values is NaN.

        Raises:
            UnknownName: if the run never logged the metric.
        """
        rows = self.select(metric).group_by("round")
        means = rows.aggregate([("value", "mean")]).sort_by("round")
        values = means["value_mean"].to_numpy().tolist()
        return dict(zip(means["round"].to_pylist(), values, strict=True))

    def final(self, metric: str) -> float:
        """Return a metric of the state that the run ended with, averaged as in ``curve``.

        This is the state after the last round, or after the selected round if the experiment has
        ``select`` or ``stop``.

        Args:
            metric: one of ``logged``.

        Raises:
            ValueError: if the metric was not logged for that state, for instance because a callback
                stopped the run between two evaluated rounds.
            UnknownName: if the run never logged the metric.

        >>> result = run(tiny)
        >>> result.final("test_accuracy") == result.curve("test_accuracy")[2]
        True
        """
        return self.curve(metric)[self._end(metric)]

    ended = former("ended", "final")

    def per_client(self, metric: str = "test_accuracy") -> dict[int | str, float]:
        """Return a metric of every client for the state that the run ended with, as in ``final``.

        Args:
            metric: one of ``logged`` that has a value per client. Default: "test_accuracy".

        Returns:
            the value by the client's name, or by its id if the clients have no names.

        Raises:
            ValueError: as for ``final``, and for a metric that is not one of clients.

        >>> [*run(tiny).per_client("test_accuracy")]
        [0, 1, 2, 3, 4, 5]
        """
        rows = self.select(metric).filter(pc.field("round") == self._end(metric))
        means = rows.group_by("client").aggregate([("value", "mean")]).sort_by("client")
        ids, values = means["client"].to_pylist(), means["value_mean"].to_numpy().tolist()
        if NONE in ids:
            raise ValueError(f"{metric!r} has no values per client; use final({metric!r})")
        names = self.client_names
        return {names[i] if names else i: v for i, v in zip(ids, values, strict=True)}

    def _end(self, metric: str) -> int:
        """Return the round of the final state; ValueError if the metric was not logged then."""
        rounds, last = self.curve(metric).keys(), pc.max(self.metrics["round"]).as_py()
        kept = [*self.curve("kept_round").values()] if "kept_round" in self.logged else []
        at, e = int(kept[0]) if kept else last, self.experiment
        if at not in rounds:
            what = f"{e} logged no {metric!r} for its final state, after round {at}"
            done = f"unfinished: {at} of {e.rounds} rounds; call run again"
            raise ValueError(what if kept or at >= e.fewest_rounds else f"{what} ({done})")
        return at


class Log:
    """The metrics of a run while it is trained: rows with the columns ``COLUMNS``.

    In all methods ``round`` is the number of completed rounds; 0 is the initial state.

    Args:
        table: metrics to start from, as returned by ``table``. Default: None, no rows.
    """

    def __init__(self, table: pa.Table | None = None) -> None:
        self._rows: list[tuple[int, str, int, int, str, float]] = []
        if table is not None:
            columns = [table[name].to_pylist() for name in COLUMNS[:-1]]
            values = table["value"].to_numpy().tolist()  # converts null to NaN
            self._rows = list(zip(*columns, values, strict=True))

    def add(
        self, round: int, metric: str, value: float, client: int = NONE, item: str = ""
    ) -> None:
        """Add one row."""
        self._rows.append((round, metric, client, NONE, item, float(value)))

    def array(self, round: int, metric: str, values: Tensor | np.ndarray, item: str = "") -> None:
        """Add a scalar, a vector over experts, or a matrix (item, expert)."""
        a = np.asarray(values.cpu() if isinstance(values, Tensor) else values, dtype=float)
        if a.ndim == 2:
            for i, row in enumerate(a):
                self.array(round, metric, row, str(i))
        else:
            experts = enumerate(np.atleast_1d(a).tolist(), 0 if a.ndim else NONE)
            self._rows += [(round, metric, NONE, k, item, v) for k, v in experts]

    def clients(self, round: int, metric: str, ids: Iterable[int], values: Any) -> None:
        """Add one row per client, or one per client and item if ``values`` is a matrix."""
        own = np.asarray(values, dtype=float)
        items = [str(at) for at in range(own.shape[1])] if own.ndim > 1 else [""]
        for i, row in zip(ids, np.atleast_2d(own.T).T.tolist(), strict=True):
            pairs = zip(items, row, strict=True)
            self._rows += [(round, metric, int(i), NONE, item, v) for item, v in pairs]

    def report(self, round: int, report: Report, ids: np.ndarray) -> float:
        """Add the engine's report of a round and return the mean training loss.

        These are the loss, the bytes sent, the gradient divergence of every tensor, and
        ``adapted_*``: the accuracies of the cohort with the parameters that it has just trained.
        """
        loss = float(report.losses[~report.losses.isnan()].double().mean())
        self.add(round, "train_loss", loss)
        self.add(round, "bytes_down", int(report.download.sum()))
        self.add(round, "bytes_up", int(report.upload.sum()))
        weights = sorted(report.weights.items())
        found = {n: gradient_divergence(report.messages[n], w) for n, w in weights}
        for name, gd in on_host(found).items():
            self.array(round, "divergence", gd, name)
        for split, accuracy in report.adapted.items():
            self.clients(round, f"adapted_{split}_accuracy", ids[report.clients], accuracy.numpy())
        return loss

    def scores(self, round: int, split: str, ids: np.ndarray, scores: Scores) -> None:
        """Add the accuracy and negative log-likelihood of every client on one split."""
        self.clients(round, f"{split}_accuracy", ids, scores.accuracy)
        self.clients(round, f"{split}_nll", ids, scores.nll)
        if scores.gate is not None:
            self.array(round, f"{split}_gate", scores.gate)

    def means(self, round: int) -> dict[str, float]:
        """Return the mean of every metric of a round, computed as in ``Result.curve``.

        The result is empty unless ``round`` is the last round that was logged.
        """
        values: dict[str, list[float]] = {}
        for row in self._last(round):
            values.setdefault(row[1], []).append(row[-1])
        numbers = {n: [v for v in some if v == v] for n, some in reversed(values.items())}
        return {n: float(np.mean(some)) if some else math.nan for n, some in numbers.items()}

    def _last(self, round: int) -> list[tuple[int, str, int, int, str, float]]:
        """Return the rows of a round, latest first; none unless it is the last one logged."""
        return [*takewhile(lambda row: row[0] == round, reversed(self._rows))]

    def table(self, last: int | None = None) -> pa.Table:
        """Return all rows, or only those of round ``last``, which must be the last one logged."""
        rows = self._rows if last is None else self._last(last)[::-1]
        columns = zip(*rows, strict=True) if rows else [()] * len(COLUMNS)
        pairs = zip(columns, SCHEMA.types, strict=True)
        return pa.table([pa.array(c, t, from_pandas=True) for c, t in pairs], schema=SCHEMA)
