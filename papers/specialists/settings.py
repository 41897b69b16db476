"""Settings of 001 and of 002, its first version: tasks, lengths and rates at three scales."""

from __future__ import annotations

from dataclasses import KW_ONLY, replace
from typing import Any

from companion.sections import SCALES, Setting
from fedlib.engine import EarlyStop
from fedlib.models import BiLSTM, LeNet
from fedlib.optim import adam
from fedlib.partition import Dirichlet, Majority, Mirrored, OptOut
from fedlib.tasks import Task
from fedlib.values import value
from papers.scaled import Row, digits, scaled, side_by_side

TENTHS = tuple(i / 10 for i in range(2, 11))
TABLE = (0.3, 0.6, 0.7, 0.8, 1.0)  # 001, Table 1
NEWS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # 001, Table 1e
EARLIER = (0.2, 0.4, 0.6, 0.8, 0.9, 1.0)  # those of 002, Table 1, and the rest of the curve
ALPHAS = (0.05, 0.1, 0.5, 1.0, 10.0, 100.0)
RATES = (1e-7, 5e-7, 1e-6, 5e-6, 1e-5, 5e-5, 1e-4, 5e-4, 1e-3, 5e-3)  # 001, sec. 4
MORE_RATES = (*RATES[:-1], 3e-3, RATES[-1])  # fewer rounds need larger ones
# Local tests mirror a client's classes, at most half of its examples from each.
HELD = Mirrored(pool=5000, validation=200, test=500)


@value
class Stages(Setting):
    """The lengths and rates of the three steps, and where they are compared.

    ``federated`` is the rate of Adam at FedAvg's clients and of the local baseline, ``personal``
    that of fine-tuning and of the mixture. At home clients train for at most ``most`` epochs, until
    ``stop``; only the first ``tested`` clients do, as 001 evaluates 20 clients. ``balanced``
    examples of all classes alike are the global test. The methods are compared at the majority
    fractions ``ps``, with opt-out fractions ``qs`` at ``opted_ps``, at Dirichlet ``alphas``, and
    FedAvg at ``rates`` at ``swept_ps``; at ``released_ps`` as the code does it.
    """

    _: KW_ONLY
    federated: float
    personal: float
    most: int
    stop: EarlyStop
    tested: int
    balanced: int
    ps: tuple[float, ...] = ()
    qs: tuple[float, ...] = ()
    opted_ps: tuple[float, ...] = ()
    alphas: tuple[float, ...] = ()
    swept_ps: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()
    released_ps: tuple[float, ...] = ()

    def home(self, rate: float, **more: Any) -> dict[str, Any]:
        """Return the fields of an algorithm that trains at home, with ``more``."""
        fields = {"epochs": self.most, "batch_size": self.batch_size, "client": adam(rate)}
        return {**fields, "stop": self.stop, **more}

    def at(self, p: float, q: float = 0.0) -> Stages:
        """Return the setting at a majority fraction, where the fraction q of the clients opts out.

        The cohort keeps its size unless those who are left cannot fill it.
        """
        partition = self.task.partition
        assert isinstance(partition, Majority)
        task = replace(self.task, partition=replace(partition, p=p))
        if not q:
            return replace(self, task=task)
        left = partition.clients - round(q * partition.clients)
        cohort = self.cohort if isinstance(self.cohort, float) else min(self.cohort, left)
        return replace(self, task=replace(task, opt_out=OptOut(clients=q)), cohort=cohort)


def _images(scale: str, dataset: str, p: float) -> Task | None:
    real = Task(dataset, Majority(clients=100, size=100, p=p), LeNet(), HELD)
    quick = digits(Majority(clients=20, size=20, p=p))
    return scaled(scale, quick=quick, standard=real, paper=real)


def cifar10(scale: str, p: float = 0.8) -> Task | None:
    """Specialised federated learning: two majority classes make up the fraction p."""
    return _images(scale, "cifar10", p)


def fashion_mnist(scale: str, p: float = 0.8) -> Task | None:
    """001/cifar10 on Fashion-MNIST, with the network that the paper describes."""
    return _images(scale, "fashion_mnist", p)


def ag_news(scale: str, p: float = 0.8) -> Task | None:
    """Specialised federated learning on news of four classes, 1,000 clients, BiLSTM."""
    held = Mirrored(pool=5000, validation=100, test=200)
    short = BiLSTM(vocabulary=5002, embedding=50, hidden=32, tokens=24)
    return scaled(
        scale,
        quick=None,
        standard=Task("ag_news", Majority(clients=100, size=100, p=p), short, held),
        paper=Task("ag_news", Majority(clients=1000, size=100, p=p), BiLSTM(), held),
    )


def dirichlet_cifar10(scale: str, alpha: float = 0.5) -> Task | None:
    """Specialised federated learning, label shares from Dir(alpha) instead of a majority."""
    real = Task("cifar10", Dirichlet(clients=100, alpha=alpha, size=100), LeNet(), HELD)
    quick = digits(Dirichlet(clients=20, alpha=alpha, size=40))
    return scaled(scale, quick=quick, standard=real, paper=real)


def first_cifar10(scale: str, p: float = 0.8) -> Task | None:
    """The first version of 001: 5 clients whose majority classes differ."""
    held = Mirrored(pool=5000, validation=400, test=500)
    partition = Majority(clients=5, size=100, p=p, pairs="disjoint")
    real = Task("cifar10", partition, LeNet(), held)
    return scaled(scale, quick=digits(partition), standard=real, paper=real)


def first_cifar100(scale: str, p: float = 0.8) -> Task | None:
    """The first version of 001: 50 clients, each with a majority of two of the 100 classes."""
    partition = Majority(clients=50, size=100, p=p, pairs="disjoint")
    fewer = Majority(clients=5, size=60, p=p, pairs="disjoint")
    return scaled(
        scale,
        quick=digits(fewer),
        standard=Task("cifar100_sample", partition, LeNet(), Mirrored(3000, 40, 40)),
        paper=Task("cifar100", partition, LeNet(), Mirrored(25000, 400, 150)),
    )


TASKS = {
    "001/cifar10": cifar10,
    "001/fashion_mnist": fashion_mnist,
    "001/ag_news": ag_news,
    "001/dirichlet_cifar10": dirichlet_cifar10,
    "002/cifar10": first_cifar10,
    "002/cifar100": first_cifar100,
}

# A twelfth of the paper's rounds, in batches twice as large, and a tenth of its epochs need rates
# that are 20 times larger to get as far.
# fmt: off
_CIFAR10: dict[str, Row] = {
    #                   quick                   standard                     paper
    "task":           (*map(cifar10, SCALES),),
    "rounds":         (40,                     100,                         1250),
    "seeds":          (3,                      3,                           4),
    "cohort":         (5,                      5,                           5),
    "batch_size":     (10,                     20,                          10),
    "local_epochs":   (3,                      3,                           3),
    "evaluate_every": (5,                      20,                          50),
    "federated":      (3e-3,                   1e-3,                        5e-5),
    "personal":       (1e-3,                   2e-4,                        1e-5),
    "most":           (40,                     50,                          500),
    "stop":           (EarlyStop(patience=2),  EarlyStop(5, 3, 0.01),       EarlyStop(5, 10, 0.01)),
    "tested":         (20,                     10,                          20),
    "balanced":       (100,                    1000,                        1000),
    "ps":             ((0.2, 0.6, 1.0),        (0.2, *TABLE),               TENTHS),
    "qs":             ((0.75,), (0.1, 0.25, 0.5, 0.75, 0.9, 0.95), (0.5, 0.9, 0.95)),
    "opted_ps":       ((0.2, 1.0),             (0.2, 0.5, 0.8, 1.0),        TENTHS),
    "alphas":         ((0.1, 10.0),            ALPHAS,                      ALPHAS),
    "swept_ps":       ((0.2, 1.0),             (0.2, 0.6, 1.0),             TENTHS),
    "rates":          ((1e-4, 1e-3, 1e-2),     MORE_RATES,                  RATES),
    "released_ps":    ((1.0,),                 (0.8,),                      (0.3, 0.6, 0.8, 1.0)),
}
_FASHION: dict[str, Row] = {
    **_CIFAR10,
    "task":           (*map(fashion_mnist, SCALES),),
    "ps":             (None,                   TABLE,                       TENTHS),
    "swept_ps":       (None,                   (0.3, 0.6, 1.0),             TENTHS),
    "released_ps":    (None,                   TABLE,                       (0.3, 0.6, 0.8, 1.0)),
}
_NEWS: dict[str, Row] = {
    **_CIFAR10,
    "task":           (*map(ag_news, SCALES),),
    "rounds":         (None,                   60,                          1250),
    "cohort":         (None,                   5,                           50),
    "federated":      (None,                   5e-3,                        5e-4),
    "personal":       (None,                   5e-4,                        1e-6),
    "most":           (None,                   20,                          500),
    "ps":             (None,                   NEWS,                        NEWS),
    "swept_ps":       (None,                   (0.5, 0.8, 1.0),             NEWS),
}
# 002: every client takes part in every one of few rounds.
_FIRST_CIFAR10: dict[str, Row] = {
    "task":           (*map(first_cifar10, SCALES),),
    "rounds":         (45,                     45,                          45),
    "seeds":          (3,                      3,                           3),
    "cohort":         (1.0,                    1.0,                         1.0),
    "batch_size":     (10,                     20,                          10),
    "local_epochs":   (3,                      3,                           3),
    "evaluate_every": (5,                      5,                           5),
    "federated":      (3e-3,                   5e-4,                        1e-4),
    "personal":       (3e-3,                   5e-4,                        1e-4),
    "most":           (40,                     60,                          100),
    "stop":           (EarlyStop(patience=2),  EarlyStop(patience=4),       EarlyStop()),
    "tested":         (20,                     10,                          20),
    "balanced":       (100,                    1000,                        1000),
    "qs":             ((0.0,),                 (0.0, 0.5, 0.9),             (0.0, 0.5, 0.9)),
    "opted_ps":       ((0.2, 1.0),             EARLIER,                     TENTHS),
}
_FIRST_CIFAR100: dict[str, Row] = {
    **_FIRST_CIFAR10,
    "task":           (*map(first_cifar100, SCALES),),
    "rounds":         (None,                   20,                          45),
    "seeds":          (None,                   5,                           3),
    "qs":             (None,                   (0.0,),                      (0.0,)),
    "opted_ps":       (None,                   (0.2, 0.4, 0.6, 0.8, 1.0),   TENTHS),
}
# fmt: on

CIFAR10 = side_by_side(Stages, ("digits", "cifar10", "cifar10"), _CIFAR10)
FASHION = side_by_side(Stages, (None, "fashion_mnist", "fashion_mnist"), _FASHION)
AG_NEWS = side_by_side(Stages, (None, "ag_news", "ag_news"), _NEWS)
FIRST_CIFAR10 = side_by_side(Stages, ("digits", "cifar10", "cifar10"), _FIRST_CIFAR10)
FIRST_CIFAR100 = side_by_side(Stages, (None, "cifar100", "cifar100"), _FIRST_CIFAR100)
