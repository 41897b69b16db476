"""What the papers' runs share: tasks and settings at three scales from tables, and the baseline."""

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

BOTH = SCALES[1:]  # of sections with stored results at the paper's own scale, too
ONCE: dict[str, Any] = {"rounds": 1, "cohort": 1.0, "evaluate_every": 1}  # a local stage


@value
class AtHome(Setting):
    """A setting whose clients also train by themselves.

    Attributes:
        most: the largest number of epochs.
        stop: their early stopping.
        ps: the majority fractions at which methods are compared.
    """

    _: KW_ONLY
    most: int
    stop: EarlyStop
    ps: tuple[float, ...] = ()

    def home(self, client: Optimizer) -> dict[str, Any]:
        """Return the fields of an algorithm that clients train by themselves."""
        fields = {"epochs": self.most, "batch_size": self.batch_size}
        return {**fields, "client": client, "stop": self.stop}

    def at(self, p: float) -> Self:
        """Return the setting at a majority fraction."""
        return self.dealt(replace(self.task.partition, p=p))  # type: ignore[call-arg]


def tasks(paper: str) -> dict[str, Callable[..., Task | None]]:
    """Return the tasks of a paper's ``settings.toml`` as functions of a scale and of options.

    A table has the description (``about``), the default ``options``, and the code of the task by
    scale, with options in braces. A function returns None for a scale that the task does not have.
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
    """Return a function that makes a section from its name and plan, with settings from tables.

    The tables are in the paper's ``settings.toml``. A table has the values of each field at the
    three scales; texts are code. Missing fields are those of the table that it is ``like``. Further
    entries are ``data``, the name of the data set at each scale ("" for none), ``task``, one of the
    ``tasks``, and ``units``, the width of the hidden layer of quick tasks: a cohort trains such
    dense networks in a single program. The table of a section names the tables of its settings,
    each with changes.

    Args:
        paper: the folder of the paper.
        kind: the class of its settings.
        tasks: its tasks by name.
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
        apart: str = "",
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
        return Section(name, found, plan, tuple(beside), every_round, apart)

    return section


def _value(cell: Any) -> Any:
    """Return the value of a cell of a table of settings."""
    if isinstance(cell, list):
        return tuple(part if isinstance(part, str) else _value(part) for part in cell)
    return from_code(cell) if isinstance(cell, str) else cell


def floor(task: Task) -> Experiment:
    """Return the experiment of the majority-class baseline, in which nothing is trained."""
    return Experiment(task, MajorityClass(), **ONCE)
