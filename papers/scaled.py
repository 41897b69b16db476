"""What the papers' runs share: three scales side by side, the quick one's digits, the floor."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, replace
from typing import Any, Self

from companion.sections import SCALES, Run, Section, Setting
from fedlib.algorithms import CommonestLabel
from fedlib.engine import EarlyStop
from fedlib.models import MLP, LeNet
from fedlib.optim import Optimizer
from fedlib.partition import LocalHoldout, MatchedHoldout, Request
from fedlib.runs import Experiment
from fedlib.tasks import Task
from fedlib.values import from_code, value
from papers.published import tables

# What several papers compare with, under one name.
FEDAVG = "FedAvg"
LOCAL = "Local"
TUNED = "Fine-tuned"
MAJORITY = "Majority class"

# 1,437 training and 360 test digits, 36 per class: parts must be small.
FEW = MatchedHoldout(pool=200, validation=20, test=30)
OWN_FIFTH = LocalHoldout(test=0.2, validation=0.1)
OWN_TENTHS = LocalHoldout(test=0.1, validation=0.1)
SMALL = LeNet(channels=(8, 8), hidden=(32,))
BOTH = SCALES[1:]  # what is trained at the paper's own scale, too
ONCE: dict[str, Any] = {"rounds": 1, "cohort": 1.0, "evaluate_every": 1}  # what trains at home


@value
class AtHome(Setting):
    """A setting whose clients also train by themselves: ``most`` epochs at most, until ``stop``.

    Methods are compared at the majority fractions ``ps``.
    """

    _: KW_ONLY
    most: int
    stop: EarlyStop
    ps: tuple[float, ...] = ()

    def home(self, client: Optimizer) -> dict[str, Any]:
        """Return the fields of an algorithm that trains at home."""
        fields = {"epochs": self.most, "batch_size": self.batch_size}
        return {**fields, "client": client, "stop": self.stop}

    def at(self, p: float) -> Self:
        """Return the setting at a majority fraction."""
        return self.dealt(replace(self.task.partition, p=p))  # type: ignore[call-arg]


def digits(partition: Request, held_out: MatchedHoldout | LocalHoldout = FEW) -> Task:
    """Return a quick task; small dense nets of all clients share a program."""
    return Task("digits", partition, MLP((32,)), held_out)


def scaled(scale: str, *three: Any) -> Any:
    """Return the task of a scale of the three; texts have None at the quick one."""
    return three[SCALES.index(scale)]


def sections(
    paper: str, kind: type[Setting], tasks: Mapping[str, Callable[..., Any]]
) -> Callable[..., Section]:
    """Return a function that makes a section of its name and plan, with settings from a table.

    Tables are those of ``settings.toml`` in the paper's folder. One has of each field the values at
    the three scales, side by side; text is the code of a value. What it does not say is as in the
    table that it is ``like``. ``data`` are the names of the data set, "" where it has no such
    scale, ``task`` is one of the ``tasks``, and ``units`` the width of the one hidden layer that
    quick tasks have: dense nets, with which a cohort trains in one program. The table of a section
    names those that it is made of, each with what is otherwise there.
    """
    known = tables(paper, "settings.toml")

    def rows(table: Mapping[str, Any]) -> dict[str, Any]:
        return {**(rows(known[table["like"]]) if "like" in table else {}), **table}

    def section(
        name: str, plan: Callable[..., Sequence[Run]], beside: Sequence[str] = SCALES[1:2]
    ) -> Section:
        found: dict[str, dict[str, Setting]] = {scale: {} for scale in SCALES}
        for like, changed in known["sections"][name].items():
            each = rows({"like": like, **changed})
            units, task = each.pop("units", 0), tasks[each.pop("task")]
            for i, (scale, data) in enumerate(zip(SCALES, each.pop("data"), strict=True)):
                if data:
                    made = task(scale)
                    made = replace(made, model=MLP((units,))) if units and not i else made
                    numbers = {n: _value(row[i]) for n, row in each.items() if n != "like"}
                    found[scale][data] = kind(task=made, **numbers)
        return Section(name, found, plan, tuple(beside))

    return section


def _value(cell: Any) -> Any:
    """Return what a cell of a table of settings stands for."""
    if isinstance(cell, list):
        return tuple(part if isinstance(part, str) else _value(part) for part in cell)
    return from_code(cell) if isinstance(cell, str) else cell


def floor(task: Task) -> Experiment:
    """Return what always saying its commonest label is worth to a client: nothing is trained."""
    return Experiment(task, CommonestLabel(), **ONCE)
