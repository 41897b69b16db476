"""What the papers' runs share: tasks and settings at three scales, read from tables; the floor."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, replace
from inspect import Parameter, Signature
from typing import Any, Self

from companion.sections import SCALES, Run, Section, Setting
from fedlib.algorithms import MajorityClass
from fedlib.engine import EarlyStop
from fedlib.models import MLP
from fedlib.optim import Optimizer
from fedlib.tasks import Task
from fedlib.values import from_code, value
from fedrun import Experiment
from papers.published import tables

# What several papers compare with, under one name.
FEDAVG = "FedAvg"
LOCAL = "Local"
TUNED = "Fine-tuned"
MAJORITY = "Majority class"

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


def tasks(paper: str) -> dict[str, Callable[..., Task | None]]:
    """Return the named tasks of a paper's ``settings.toml`` as functions of a scale and of options.

    Their tables say what they are ``about``, which ``options`` they have by default, and the task's
    code by scale, with options in braces. None where there is no such scale.
    """
    known = tables(paper, "settings.toml")["tasks"]
    return {name: _task(**{"options": {}, **table}) for name, table in known.items()}


def _task(about: str, options: Mapping[str, Any], **code: str) -> Callable[..., Task | None]:
    def task(scale: str, **given: Any) -> Task | None:
        return from_code(code[scale].format(**{**options, **given})) if scale in code else None

    place, word = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY
    known = [Parameter(name, word, default=default) for name, default in options.items()]
    task.__doc__ = about
    task.__signature__ = Signature([Parameter("scale", place), *known])  # type: ignore[attr-defined]
    return task


def sections(
    paper: str, kind: type[Setting], tasks: Mapping[str, Callable[..., Any]]
) -> Callable[..., Section]:
    """Return a function that makes a section of its name and plan, with settings from a table.

    Tables are those of the paper's ``settings.toml``. One has of each field the values at
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
        name: str,
        plan: Callable[..., Sequence[Run]],
        beside: Sequence[str] = SCALES[1:2],
        *,
        every_round: bool = False,
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
        return Section(name, found, plan, tuple(beside), every_round)

    return section


def _value(cell: Any) -> Any:
    """Return what a cell of a table of settings stands for."""
    if isinstance(cell, list):
        return tuple(part if isinstance(part, str) else _value(part) for part in cell)
    return from_code(cell) if isinstance(cell, str) else cell


def floor(task: Task) -> Experiment:
    """Return what always saying its commonest label is worth to a client: nothing is trained."""
    return Experiment(task, MajorityClass(), **ONCE)
