"""What a run is: a value whose key names its stored result, its tidy metrics, and that result."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
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
from fedlib.metrics import gradient_divergence
from fedlib.tasks import Task
from fedlib.values import (
    NonNegativeInt,
    PositiveInt,
    check_choice,
    from_dict,
    key_of,
    to_dict,
    value,
)
from fedrun.source import digest, user_code

# Raise this when the same experiment would give other numbers than before (a change of default, a
# repaired bug): old results then keep their key and are no longer found.
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
MADE_OF = "made_of"  # in a stored spec
NONE = -1  # client or expert of a row that belongs to no client or expert


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
        patience: how many checks without an improvement end the run, at least 1. Default: 5.
        before_update: whether the model that the round began with is judged, in place of the one
            that it ended with; the state that is kept is the one after the round all the same.
            Default: False.

    Reference: Listo Zec et al., Specialized federated learning using a mixture of experts (001),
    sec. 5, without a patience; the released code has 5, and ``before_update``.

    >>> Experiment(tiny.task, FedAvg(), rounds=9, evaluate_every=1, stop=CohortEarlyStop()).stop
    CohortEarlyStop()
    """

    patience: PositiveInt = 5
    before_update: bool = False

    def best(self, losses: Mapping[int, float]) -> tuple[int, bool]:
        """Return the round of the least loss so far, the first of equals, and whether to stop.

        Args:
            losses: L_t by checked round, in their order. NaN, of a cohort without validation
                examples, neither improves nor counts as a check.
        """
        known = {t: loss for t, loss in losses.items() if not math.isnan(loss)}
        best = min(known, key=known.__getitem__, default=max(losses, default=0))
        return best, sum(t > best for t in known) >= self.patience


@value
class Experiment:
    """An algorithm on a task for some rounds, with one seed for everything.

    ``cohort`` is the number of clients per round, a fraction of the participating ones, or a
    ``Selection`` that also says which ones. Clients are scored every ``evaluate_every`` rounds,
    before the first and after the last; 0 is after the last only. ``first_stage`` is a first stage
    whose final state this one starts from; ``local_stage`` is another, without a federation, whose
    clients' own leaves take the place of the first one's. ``audit_labels`` logs what the server can
    infer of its clients' labels from their messages, at the rounds that are scored. ``select`` says
    which state the run ends with, for a stage after it: that of the "last" round, of the "best"
    one, which has the least mean validation nll over the clients that take part, or of the
    "best_trained" one, the best of those after round 0: the initial state is no candidate. ``stop``
    ends the run early and keeps the state that its own rule selects. Device, chunk and threads are
    no part of it: they change a result by float rounding only, and stand in its provenance.

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

    def check(self) -> None:
        if not isinstance(self.cohort, Selection):
            Selection(self.cohort)  # an error for what no cohort has
        if self.local_stage is not None and self.first_stage is None:
            raise ValueError("local_stage needs a first stage: give `first_stage` too")
        if self.stop is not None and (self.select != "last" or not self.evaluate_every):
            need = "evaluate_every of at least 1, which is how often it checks, and no `select`"
            raise ValueError(f"stop keeps the best of its own checks: it needs {need}")

    @property
    def key(self) -> str:
        """The name of the stored result: 16 hex digits, the same on every machine.

        It stands for the spec and for what it is ``made_of``, as that is now.
        """
        return key_of(self, *more, version=VERSION) if (more := self.made_of) else self._key

    @property
    def made_of(self) -> list[str]:
        """What the spec does not hold: a digest of foreign code, and of each set of one's own data.

        Empty where there is nothing but the library and data sets that it knows.
        """
        return list(vars(self).get("_made_of") or self._outside())

    def pinned(self) -> Experiment:
        """Return a copy that keeps its key, whatever becomes of code and data from now on."""
        if self._plain or "_made_of" in vars(self):
            return self
        after, beside = (stage and stage.pinned() for stage in (self.first_stage, self.local_stage))
        copy = replace(self, first_stage=after, local_stage=beside)
        vars(copy).update(_made_of=self._outside(), _as_run=self._outside(readable=False))
        return copy

    @property
    def changed(self) -> bool:
        """Whether code or data of a pinned one are others here, in this process, than they were."""
        return "_as_run" in vars(self) and vars(self)["_as_run"] != self._outside(readable=False)

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

    def _outside(self, *, readable: bool = True) -> list[str]:
        if self._plain:
            return []
        code = [f"code {digest(roots, readable=readable)}"] if (roots := user_code(self)) else []
        return [*code, *(f"{name} {datasets.fingerprint(name)[:16]}" for name in self._own_data)]

    @property
    def fewest_rounds(self) -> int:
        """The number of rounds that a finished run has at least: all, unless it may stop early."""
        if self.stop is None:
            return self.rounds
        return min(self.rounds, (self.stop.patience + 1) * self.evaluate_every)

    @property
    def before(self) -> tuple[Experiment, ...]:
        """The stages that this one builds on."""
        return tuple(stage for stage in (self.first_stage, self.local_stage) if stage is not None)

    @property
    def stages(self) -> list[Experiment]:
        """This experiment after all that it builds on, first ones first."""
        return [*(s for stage in self.before for s in stage.stages), self]

    def evaluates(self, completed: int) -> bool:
        """Return whether the clients are scored after ``completed`` rounds."""
        between = self.evaluate_every > 0 and completed % self.evaluate_every == 0
        return between or completed == self.rounds


def spec_of(experiment: Experiment) -> dict[str, Any]:
    """Return the spec that is stored of an experiment, with what else it is made of."""
    more = experiment.made_of
    return {**to_dict(experiment), **({MADE_OF: more} if more else {})}


def key_in(spec: dict[str, Any]) -> str:
    """Return the key of the experiment that a stored spec is of."""
    plain = {name: v for name, v in spec.items() if name != MADE_OF}
    return key_of(plain, *spec.get(MADE_OF, ()), version=VERSION)


def experiment_of(spec: Any) -> Experiment:
    """Return the experiment that a stored spec is of; ValueError, TypeError if it is of none."""
    plain = {n: v for n, v in spec.items() if n != MADE_OF} if isinstance(spec, dict) else spec
    made = from_dict(plain)
    if not isinstance(made, Experiment):
        raise ValueError(f"not an experiment: {made!r}")
    return made


def on_host(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return numbers as float64 on the host, for which a GPU is waited for once."""
    if not any(t.is_cuda for t in tensors.values()):
        return tensors
    flat = torch.cat([t.double().flatten() for t in tensors.values()]).cpu()
    parts = flat.split([t.numel() for t in tensors.values()])
    return {n: p.view(t.shape) for (n, t), p in zip(tensors.items(), parts, strict=True)}


def tidy(table: pa.Table) -> pa.Table:
    """Return a table with the columns and types of ``SCHEMA``: a file may hold wider ones."""
    return table.select(COLUMNS).cast(SCHEMA)


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run: its experiment, tidy metrics and provenance.

    ``metrics`` has the columns round, metric, client, expert, item and value (``SCHEMA``);
    ``metrics.to_pandas()`` and ``polars.from_arrow(metrics)`` make frames of it. ``pinned`` is the
    experiment as it was found, which keeps its key whatever becomes of code and data later.

    Every round logs train_loss, bytes_down, bytes_up and divergence; a round that is scored
    validation_accuracy, validation_nll, test_accuracy and test_nll of every client on its own
    examples, adapted_validation_accuracy and adapted_test_accuracy of the cohort just after it has
    trained, and global_accuracy; the last also everywhere_accuracy. Algorithms add their own:
    ``logged`` are all that there are.

    >>> result = run(tiny)
    >>> sorted(result.curve("train_loss"))
    [1, 2]
    >>> result.model(client=3).state_dict()["head.bias"].shape
    torch.Size([10])
    """

    experiment: Experiment
    metrics: pa.Table
    provenance: dict[str, Any]
    pinned: Experiment | None = field(default=None, repr=False)

    def model(self, client: int | str | None = None, *, device: str = "cpu") -> nn.Module:
        """Return what was trained, as a plain module of torch in eval mode.

        It is the network itself where that is all a prediction is made of, and else a
        ``fedlib.engine.as_module.Trained``, which holds what the algorithm's ``predict`` reads. Its
        ``forward`` takes examples ``[B, ...]``, images as ``[B, channels, height, width]``, and
        returns scores ``[B, classes]``, whose softmax is p(y|x). Numbers are normalised as
        ``task.fit(seed)`` of the experiment says, (x - mean) / std, pixels after division by 255;
        ``predict`` does so by itself. ``state_dict`` and torch's exporters work as for any module.

        Args:
            client: whose model, by id or by name; None for what all predict together for a new
                client, which is the global model where there is one.
            device: where it is to be.

        Raises:
            ValueError: for a client that there is not.
            StoreError: where only the metrics of the run are stored, or nothing any more.
        """
        from fedrun.using import loaded

        return loaded(self, client, device)[1]

    @property
    def client_names(self) -> tuple[str, ...]:
        """What its clients are called, by id, as by the values of a column; () without names."""
        return tuple(self.provenance.get("client_names", ()))

    @property
    def class_names(self) -> tuple[str, ...]:
        """What its classes are called, by label."""
        return datasets.class_names(self.experiment.task.dataset)

    @property
    def logged(self) -> list[str]:
        """The names of its metrics, in alphabetical order."""
        return sorted(self.metrics["metric"].unique().to_pylist())

    def select(self, metric: str) -> pa.Table:
        """Return the rows of one metric; UnknownName for one that it never ``logged``."""
        check_choice("metric of this run", metric, self.logged)
        return self.metrics.filter(pc.field("metric") == metric)

    def curve(self, metric: str) -> dict[int, float]:
        """Return a metric by round, averaged over all else that it has: clients, experts, items.

        It is nan where no value is a number. UnknownName for a metric that it never ``logged``.
        """
        rows = self.select(metric).group_by("round")
        means = rows.aggregate([("value", "mean")]).sort_by("round")
        values = means["value_mean"].to_numpy().tolist()
        return dict(zip(means["round"].to_pylist(), values, strict=True))

    def final(self, metric: str) -> float:
        """Return a metric of the state that the run ended with, averaged as by `curve`.

        That is the last round's, or of a run that kept its best state that of the round it kept.
        ValueError where it logged none of that state, as of one that a callback has stopped between
        two rounds that are scored; UnknownName, which is one, for a metric never ``logged``.

        >>> result = run(tiny)
        >>> result.final("test_accuracy") == result.curve("test_accuracy")[2]
        True
        """
        curve, last = self.curve(metric), pc.max(self.metrics["round"]).as_py()
        kept = [*self.curve("kept_round").values()] if "kept_round" in self.logged else []
        at = int(kept[0]) if kept else last
        if at not in curve:
            what = f"logged no {metric!r} of its last state, after round {at}"
            raise ValueError(f"{self.experiment} {what}")
        return curve[at]


class Log:
    """Rows of a run's metrics, with the columns ``COLUMNS``.

    ``round`` counts completed rounds: 0 is the initial state.
    """

    def __init__(self, table: pa.Table | None = None) -> None:
        self._rows: list[tuple[int, str, int, int, str, float]] = []
        if table is not None:
            columns = [table[name].to_pylist() for name in COLUMNS[:-1]]
            values = table["value"].to_numpy().tolist()  # a null is nan again
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
        """Add one row per client, or one per client and item where ``values`` are a matrix."""
        own = np.asarray(values, dtype=float)
        items = [str(at) for at in range(own.shape[1])] if own.ndim > 1 else [""]
        for i, row in zip(ids, np.atleast_2d(own.T).T.tolist(), strict=True):
            pairs = zip(items, row, strict=True)
            self._rows += [(round, metric, int(i), NONE, item, v) for item, v in pairs]

    def report(self, round: int, report: Report, ids: np.ndarray) -> float:
        """Add what a round said of itself: loss, bytes, every tensor's divergence, and accuracies.

        ``adapted_*`` are those of the cohort with the leaves that it has just trained. Returns the
        mean training loss.
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
        """Add every client's accuracy and negative log-likelihood on one split."""
        self.clients(round, f"{split}_accuracy", ids, scores.accuracy)
        self.clients(round, f"{split}_nll", ids, scores.nll)
        if scores.gate is not None:
            self.array(round, f"{split}_gate", scores.gate)

    def means(self, round: int) -> dict[str, float]:
        """Return what was last logged, if it is of a round, averaged over all that it is of.

        As by ``Result.curve``: what is no number is left out, and nan where nothing else is there.
        """
        values: dict[str, list[float]] = {}
        for row in self._last(round):
            values.setdefault(row[1], []).append(row[-1])
        numbers = {n: [v for v in some if v == v] for n, some in reversed(values.items())}
        return {n: float(np.mean(some)) if some else math.nan for n, some in numbers.items()}

    def _last(self, round: int) -> list[tuple[int, str, int, int, str, float]]:
        """Return the rows of a round if it is the last, the latest first."""
        return [*takewhile(lambda row: row[0] == round, reversed(self._rows))]

    def table(self, last: int | None = None) -> pa.Table:
        """Return all rows, or those of the last round, which ``last`` is."""
        rows = self._rows if last is None else self._last(last)[::-1]
        columns = zip(*rows, strict=True) if rows else [()] * len(COLUMNS)
        pairs = zip(columns, SCHEMA.types, strict=True)
        return pa.table([pa.array(c, t, from_pandas=True) for c, t in pairs], schema=SCHEMA)
