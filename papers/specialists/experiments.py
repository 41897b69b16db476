"""What 001 and 002 run: a generalist, specialists at home, and a gate between them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from companion.sections import Run, Section, federated, placed
from fedlib.algorithms import CommonestLabel, FedAvg, LastClient, Local, Mixture
from fedlib.models import MLP, Family, LeNet
from fedlib.optim import adam
from fedlib.partition import Clients, Dirichlet
from fedlib.runs import Experiment
from papers.floor import FEDAVG, LOCAL, MAJORITY, TUNED
from papers.scaled import merged, with_seeds
from papers.specialists import settings
from papers.specialists.settings import CIFAR10, FASHION, Stages

MIXTURE = "Mixture"
SMALL = f"{MIXTURE}, small specialist and gate"
LAST_CLIENT = "last client"
# What the released code does otherwise, one departure at a time and all of them together.
DEPARTURES: dict[str, dict[str, Any]] = {
    LAST_CLIENT: {"kind": LastClient},
    "log pool": {"pool": "log"},
    "fine-tuning at 5x the rate": {"faster": 5.0},
    "last weights": {"keep": "last"},
}
# On Fashion-MNIST also a smaller network than the paper says, whose softmax goes where its
# logarithm should: the loss is -p(y), and the log pool mixes probabilities.
OWN_NETWORK = {"own network": {"net": LeNet((6, 12), (84, 42), output="softmax")}}
EVERYTHING = "as released"


def generalist(setting: Stages, kind: type[FedAvg] = FedAvg) -> Experiment:
    """Return step 1: the federation's model, the best on its members' validation examples."""
    rounds = {"epochs": setting.local_epochs, "batch_size": setting.batch_size}
    algorithm = kind(client=adam(setting.federated), **rounds)  # type: ignore[arg-type]
    here = replace(setting, task=replace(setting.task, balanced=setting.balanced))
    return federated(here, algorithm, keep="best")


def at_home(setting: Stages, algorithm: FedAvg, after: Experiment | None = None) -> Experiment:
    """Return a stage that every tested client trains by itself.

    Without a federation before it nobody can opt out of it.
    """
    out = setting.task.opt_out if after else None
    task = replace(setting.task, balanced=setting.balanced, opt_out=out)
    if _clients(setting) > setting.tested:
        task = replace(task, partition=Clients(task.partition, last=setting.tested))
    return Experiment(task, algorithm, 1, cohort=1.0, evaluate_every=1, after=after)


def _clients(setting: Stages) -> int:
    return int(setting.task.partition.clients)  # type: ignore[attr-defined]


def alone(setting: Stages) -> Experiment:
    """Return the local baseline."""
    return at_home(setting, Local(**setting.home(setting.federated)))


def commonest(setting: Stages) -> Experiment:
    """Return the floor, at home too: the tests are those of the clients that train there."""
    return at_home(setting, CommonestLabel())


def steps(
    setting: Stages,
    kind: type[FedAvg] = FedAvg,
    pool: str = "probabilities",
    faster: float = 1.0,
    keep: str = "best",
    net: Family | None = None,
) -> dict[str, Experiment]:
    """Return the three steps of 001 (sec. 3); the options are what ``DEPARTURES`` change.

    A network of its own (``net``) goes with the log pool, in which what it says is mixed as it is.
    """
    setting = replace(setting, stop=replace(setting.stop, keep=keep))
    if net is not None:
        setting, pool = replace(setting, task=replace(setting.task, model=net)), "log"
    first = generalist(setting, kind)
    tuned = at_home(setting, Local(**setting.home(faster * setting.personal)), first)
    mixture = Mixture(**setting.home(setting.personal), pool=pool)
    return {FEDAVG: first, TUNED: tuned, MIXTURE: at_home(setting, mixture, tuned)}


def _without_federation(setting: Stages, ps: tuple[float, ...]) -> list[Run]:
    """Return the local baseline and the floor, which nobody can opt out of: they have no q."""
    made = {LOCAL: alone, MAJORITY: commonest}
    return [Run(m, make(setting.at(p)), {"p": p}) for m, make in made.items() for p in ps]


def _by_fraction(setting: Stages, dataset: str) -> list[Run]:
    """Return the four methods and the floor at every majority fraction (Table 1, Fig. 3 and 4)."""
    runs = [run for p in setting.ps for run in placed(steps(setting.at(p)), p=p)]
    return runs + _without_federation(setting, setting.ps)


def _opting_out(setting: Stages, dataset: str) -> list[Run]:
    """Return the methods where the fraction q of the clients stays at home, or nobody (Fig. 6)."""
    opted = product((0.0, *setting.qs), setting.opted_ps)
    runs = [run for q, p in opted for run in placed(steps(setting.at(p, q)), p=p, q=q)]
    return runs + _without_federation(setting, setting.opted_ps)


def _by_alpha(setting: Stages, dataset: str) -> list[Run]:
    """Return the methods where label shares come from Dir(alpha) (Fig. 5)."""
    size = setting.task.partition.size  # type: ignore[attr-defined]
    runs: list[Run] = []
    for alpha in setting.alphas:
        partition = Dirichlet(clients=_clients(setting), alpha=alpha, size=size)
        here = replace(setting, task=replace(setting.task, partition=partition))
        runs += placed({**steps(here), MAJORITY: commonest(here)}, alpha=alpha)
    return runs


def _by_rate(setting: Stages, dataset: str) -> list[Run]:
    """Return FedAvg at several rates, scored on balanced validation examples (Fig. 2)."""

    def swept(p: float, rate: float) -> Run:
        one = generalist(replace(setting.at(p), federated=rate))
        held = replace(one, task=replace(one.task, balanced_on="validation"))
        return Run(FEDAVG, held, {"p": p, "lr": rate})

    return [swept(p, rate) for p in setting.swept_ps for rate in setting.rates]


def _architectures(setting: Stages, dataset: str) -> list[Run]:
    """Return the mixture with networks of the generalist's kind, and with others (001, sec. 3)."""
    here = setting.at(0.6)
    made = steps(here)
    small = Mixture(**here.home(here.federated), expert=MLP((64,)), gate=MLP((8,)))
    made[SMALL] = at_home(here, small, made[FEDAVG])
    return placed({**made, MAJORITY: commonest(here)})


def _as_released(setting: Stages, dataset: str) -> list[Run]:
    """Return 001's methods with the departures of its released code that change them.

    Where FedAvg as released is FedAvg with the last client's model, it has that name only.
    """
    changes = {**DEPARTURES, **(OWN_NETWORK if dataset == "fashion_mnist" else {})}
    every = {name: value for change in changes.values() for name, value in change.items()}
    runs: list[Run] = []
    for p in setting.released_ps:
        known = [*steps(setting.at(p)).values()]
        for departure, change in {**changes, EVERYTHING: every}.items():
            made = steps(setting.at(p), **change)
            if "net" in change:
                made[LOCAL] = _alone_with(setting.at(p), **change)
            for method, experiment in made.items():
                if experiment not in known:
                    runs.append(Run(method, experiment, {"p": p, "departure": departure}))
                    known.append(experiment)
    return runs


def _alone_with(setting: Stages, net: Family, keep: str = "best", **others: object) -> Experiment:
    """Return the local baseline with another network; departures of ``others`` do not touch it."""
    task, stop = replace(setting.task, model=net), replace(setting.stop, keep=keep)
    return alone(replace(setting, task=task, stop=stop))


def _first_version(setting: Stages, dataset: str) -> list[Run]:
    """Return 002's methods: specialists from scratch, and the global expert trained as well."""
    runs = _without_federation(setting, setting.opted_ps)
    for q, p in product(setting.qs, setting.opted_ps):
        here = setting.at(p, q)
        made = steps(here)
        mix = Mixture(**here.home(here.personal), train_global=True)
        made[MIXTURE] = replace(at_home(here, mix, made[FEDAVG]), beside=alone(setting.at(p)))
        runs += placed(made, p=p, q=q)
    return runs


# What runs fastest has more seeds at the standard scale.
_MORE_CIFAR10, _MORE_FASHION = (with_seeds(known, "standard", 5) for known in (CIFAR10, FASHION))
_IMAGES, _FIRST = merged(CIFAR10, FASHION), merged(settings.FIRST_CIFAR10, settings.FIRST_CIFAR100)
_TABLE_1, _SWEPT = (merged(CIFAR10, f, settings.AG_NEWS) for f in (_MORE_FASHION, FASHION))
SPECIALISTS = Section("specialists", _TABLE_1, _by_fraction)
RATE_SWEEP = Section("specialists_rates", _SWEPT, _by_rate)
DIRICHLET = Section("specialists_dirichlet", merged(_MORE_CIFAR10, _MORE_FASHION), _by_alpha)
ARCHITECTURES = Section("architectures", CIFAR10, _architectures)
AS_RELEASED = Section("as_released", _IMAGES, _as_released)
OPT_OUT = Section("opt_out", _MORE_CIFAR10, _opting_out)
FIRST_VERSION = Section("first_version", _FIRST, _first_version)
_001 = (SPECIALISTS, RATE_SWEEP, DIRICHLET, ARCHITECTURES, AS_RELEASED, OPT_OUT)
SECTIONS = (*_001, FIRST_VERSION)
