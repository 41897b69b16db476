"""What the papers' runs share: three scales side by side, the quick one's digits, the floor."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, replace
from typing import Any, Self, TypeVar

from companion.sections import SCALES, Setting
from fedlib.algorithms import CommonestLabel
from fedlib.engine import EarlyStop
from fedlib.models import MLP, LeNet
from fedlib.optim import Optimizer
from fedlib.partition import LocalHoldout, MatchedHoldout, Request
from fedlib.runs import Experiment
from fedlib.tasks import Task
from fedlib.values import value

S = TypeVar("S", bound=Setting)
Row = tuple[Any, ...]
Known = Mapping[str, Mapping[str, Setting]]  # by scale and data set, as a section has it

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


def side_by_side(kind: type[S], names: Row, rows: Mapping[str, Row]) -> dict[str, dict[str, S]]:
    """Return settings by scale, of which ``rows`` have each field at quick, standard and paper.

    ``names`` are those of the data set at the three scales, None where it has no such scale.
    """
    return {
        scale: {name: kind(**{field: row[i] for field, row in rows.items()})} if name else {}
        for i, (scale, name) in enumerate(zip(SCALES, names, strict=True))
    }


def merged(*known: Known) -> Known:
    """Return the settings of several data sets."""
    return {scale: {n: s for each in known for n, s in each[scale].items()} for scale in SCALES}


def floor(task: Task) -> Experiment:
    """Return what always saying its commonest label is worth to a client: nothing is trained."""
    return Experiment(task, CommonestLabel(), **ONCE)
