"""Settings of 003: tasks, clusters, optimisers and networks at three scales."""

from dataclasses import KW_ONLY, replace
from typing import Self

from companion.sections import SCALES
from fedlib.algorithms.ifca import ClusterStop
from fedlib.engine import EarlyStop
from fedlib.models import Family, LeNet
from fedlib.optim import Optimizer
from fedlib.partition import IID, ByColumn, Majority, Mirrored, QuantitySkew, Repeated, Rotated
from fedlib.tasks import Task
from fedlib.values import value
from papers.scaled import OWN_FIFTH, AtHome, Row, digits, scaled, side_by_side

MIDDLE = LeNet(channels=(16, 32), hidden=(128,))
SMALL_GATE = LeNet(channels=(2, 4), hidden=(8,))
# 003, Table 1: a cluster's model, a local expert and a gate; then FEMNIST's, rotated CIFAR-10's.
CLUSTER = LeNet(channels=(128, 32), hidden=(1024,), dropout=0.8)
OWN = LeNet(channels=(32, 256), hidden=(256,), dropout=0.76)
GATE = LeNet(channels=(12, 12), hidden=(8,), dropout=0.78, channel_dropout=0.78)
WRITER = LeNet(channels=(32, 64), hidden=(2048,))
TURNED = LeNet(channels=(64, 64), hidden=(384, 194), response_norm=4)


@value
class Adaptive(AtHome):
    """The clusters, how they are explored, and what clients train for themselves.

    ``js`` are the numbers of clusters and ``eps`` the rates of exploration that are compared, at
    each majority fraction of ``ps``; where ``whole`` names some of them, at the others only the
    most clusters, explored most and not at all. ``cluster``, ``local`` and ``gate`` are the
    optimisers of 003, Table 1, ``tuned`` is that of fine-tuning as released, ``own`` and
    ``chooser`` are the networks of the local expert and the gate (None: the task's). ``eager`` is
    how many times larger the rate of a gate is that does leave its initial weights (D11). At
    ``some_p`` the released protocol is judged and other ways to find ``some`` clusters are
    compared: initial models are redrawn until each suits ``least_share`` of the clients,
    ``converged`` clusters leave. So are the ``cohorts``, numbers of clients in a round or fractions
    as ``cohort`` is, at equal local work.
    """

    _: KW_ONLY
    js: tuple[int, ...]
    eps: tuple[float, ...]
    cluster: Optimizer
    local: Optimizer
    gate: Optimizer
    tuned: Optimizer
    eager: float
    own: Family | None = None
    chooser: Family | None = None
    whole: tuple[float, ...] = ()
    some: int = 3
    some_p: float = 0.6
    least_share: float = 0.1
    converged: ClusterStop = ClusterStop()
    cohorts: tuple[int | float, ...] = ()

    def turned(self, count: int) -> Self:
        """Return the setting with as many clients and examples in ``count`` orientations.

        Clusters are one, or as many as there are orientations.
        """
        groups = self.task.partition.of  # type: ignore[attr-defined]
        turned = _turned(groups.of.clients * groups.times, groups.of.size, count)
        return replace(self.dealt(turned), js=(1, count))


def _turned(clients: int, size: int, count: int) -> Rotated:
    """Return groups of clients that see the same images, each turned its way."""
    angles = tuple(360.0 / count * i for i in range(count))
    return Rotated(Repeated(IID(clients // count, size), count), angles, alpha=None)


def cifar10(scale: str, p: float = 0.6) -> Task:
    """Adaptive expert models: 500 examples per client, two majority classes make up p."""
    held, many = Mirrored(pool=5000, validation=100, test=100), Majority(clients=50, size=500, p=p)
    few, some = digits(Majority(clients=10, size=40, p=p)), Task("cifar10", many, MIDDLE, held)
    return scaled(scale, few, some, replace(some, model=CLUSTER))


def rotated_cifar10(scale: str, orientations: int = 2) -> Task:
    """Adaptive expert models and IFCA: every group of clients sees all images, turned its way."""
    if orientations not in (2, 4):
        raise ValueError(f"orientations must be 2 or 4, got {orientations}")
    sizes, test = ((20, 60), (20, 200), (200, 500)), Mirrored(2000, 100, 100, source="test")
    few, some, many = (_turned(clients, size, orientations) for clients, size in sizes)
    standard = Task("cifar10", some, LeNet(), test, portion=0.4)
    return scaled(scale, digits(few), standard, Task("cifar10", many, TURNED, test))


def femnist(scale: str) -> Task:
    """Adaptive expert models: one client per writer, 182 of them."""
    quick = digits(QuantitySkew(clients=20, alpha=3.0, least=20), OWN_FIFTH)
    some, every = (ByColumn("writer_id", clients=n) for n in (40, 182))
    standard = Task("mnist", some, LeNet(), OWN_FIFTH)
    return scaled(scale, quick, standard, Task("femnist", every, WRITER, OWN_FIFTH))


TASKS = {f"003/{task.__name__}": task for task in (cifar10, rotated_cifar10, femnist)}


def _adamw(lr: float, decay: float = 0.0) -> Optimizer:
    return Optimizer("adamw", lr=lr, weight_decay=decay)


def _sgd(lr: float, decay: float = 0.0) -> Optimizer:
    return Optimizer("sgd", lr=lr, weight_decay=decay)


# The paper's gate moves a weight by at most about 0.03 in its 200 epochs of 50 steps, those of the
# smaller scales by about as much in theirs.
# fmt: off
_EACH: dict[str, Row] = {
    #                   quick                  standard                     paper
    "seeds":          (3,                     5,                           6),
    "evaluate_every": (5,                     15,                          10),
    "batch_size":     (10,                    25,                          10),
    "local_epochs":   (3,                     3,                           3),
    "js":             ((1, 3),                (1, 2, 3, 6),                (1, 2, 3, 6, 9)),
    "eps":            ((0.0, 0.33),           (0.0, 0.1, 0.33),            (0.0, 0.1, 0.33)),
    "cluster":        (_sgd(0.1),             _sgd(0.05, 1.1e-3),          _sgd(5.86e-3, 1.10e-3)),
    "local":          (_adamw(3e-3),          _adamw(1e-3, 9.89e-3),      _adamw(2.69e-4, 9.89e-3)),
    "gate":           (_adamw(1e-4),          _adamw(3e-4, 6.88e-4),       _adamw(3e-6, 6.88e-4)),
    "tuned":          (_adamw(3e-3),          _adamw(3e-4),                _adamw(1e-4)),
    "chooser":        (None,                  SMALL_GATE,                  GATE),
    "most":           (40,                    12,                          200),
    "stop":           (EarlyStop(patience=2), EarlyStop(2, 2),             EarlyStop(5, 10)),
    "eager":          (100.0,                 10.0,                        300.0),
}
# Half of the clients in a round: with a tenth, six clusters have a client each, and nothing is
# averaged. On validation examples of seed 100, p = 0.2, six explored clusters rise to 0.554 in 20
# rounds, one to 0.561. Gates have 16 epochs of 20 steps.
CIFAR10 = side_by_side(Adaptive, ("digits", "cifar10", "cifar10"), {
    **_EACH,
    "task":           (*map(cifar10, SCALES),),
    "rounds":         (30,                    24,                          500),
    "seeds":          (3,                     3,                           6),
    "cohort":         (5,                     25,                          0.1),
    "evaluate_every": (5,                     6,                           10),
    "gate":           (_adamw(1e-4),          _adamw(1e-4, 6.88e-4),       _adamw(3e-6, 6.88e-4)),
    "own":            (None,                  None,                        OWN),
    "most":           (40,                    16,                          200),
    "eager":          (100.0,                 30.0,                        300.0),
    "ps":             ((0.2, 0.6, 1.0), (0.2, 0.4, 0.6, 0.8, 1.0), (0.2, 0.4, 0.6, 0.8, 1.0)),
    "whole":          ((),                    (0.6,),                      ()),
    "converged":      (ClusterStop(2, 2),     ClusterStop(2, 3),           ClusterStop(10, 10)),
    "cohorts":        ((3, 5, 10),            (5, 10, 25),                 (0.1, 0.2, 0.5)),
})
ROTATED = side_by_side(Adaptive, ("rotated_digits", "rotated_cifar10", "rotated_cifar10"), {
    **_EACH,
    "task":           (*map(rotated_cifar10, SCALES),),
    "rounds":         (30,                    30,                          600),
    "cohort":         (5,                     5,                           0.1),
    "batch_size":     (10,                    25,                          50),
    "local_epochs":   (3,                     3,                           5),
    "eps":            ((0.0, 0.33),           (0.0, 0.1, 0.33),            (0.0, 0.1, 0.82)),
})
WRITERS = side_by_side(Adaptive, ("uneven_digits", "writers", "writers"), {
    **_EACH,
    "task":           (*map(femnist, SCALES),),
    "rounds":         (30,                    30,                          4000),
    "cohort":         (5,                     5,                           0.03),
    "js":             ((1, 3),                (1, 3),                      (1, 2, 3, 6, 9)),
    "eps":            ((0.0, 0.33),           (0.0, 0.33),                 (0.0, 0.0615, 0.33)),
})
# fmt: on
