"""Specialists and generalists: local and global expert under one gate (001)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from companion.sections import Run, Section, Setting, placed
from fedlib.algorithms import CommonestLabel, FedAvg, LastClient, Local, Mixture
from fedlib.engine import EarlyStop
from fedlib.models import MLP, Family, LeNet
from fedlib.optim import adam
from fedlib.partition import Clients, Dirichlet, Majority, OptOut
from fedlib.runs import Experiment
from fedlib.tasks import Task
from papers.named import named
from fedlib.values import value
from papers.recipes.floor import MAJORITY
from papers.recipes.label_skew import FEDAVG

LOCAL, TUNED, MIXTURE = "Local", "Fine-tuned", "Mixture"
TENTHS = tuple(i / 10 for i in range(2, 11))
RATES = (1e-7, 5e-7, 1e-6, 5e-6, 1e-5, 5e-5, 1e-4, 5e-4, 1e-3, 5e-3)  # sec. 4


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

    federated: float = 5e-5
    personal: float = 1e-5
    most: int = 500
    stop: EarlyStop = EarlyStop(min_delta=0.01)
    tested: int = 20
    balanced: int = 1000
    ps: tuple[float, ...] = TENTHS
    qs: tuple[float, ...] = (0.5, 0.9, 0.95)
    opted_ps: tuple[float, ...] = TENTHS
    alphas: tuple[float, ...] = (0.05, 0.1, 0.5, 1.0, 10.0, 100.0)
    swept_ps: tuple[float, ...] = TENTHS
    rates: tuple[float, ...] = RATES
    released_ps: tuple[float, ...] = (0.3, 0.6, 0.8, 1.0)

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


def generalist(setting: Stages, kind: type[FedAvg] = FedAvg) -> Experiment:
    """Return step 1: the federation's model, the best on its members' validation examples."""
    algorithm = kind(
        epochs=setting.local_epochs,
        batch_size=setting.batch_size,
        client=adam(setting.federated),
    )
    return Experiment(
        replace(setting.task, balanced=setting.balanced),
        algorithm,
        setting.rounds,
        cohort=setting.cohort,
        evaluate_every=setting.evaluate_every,
        keep="best",
    )


def at_home(setting: Stages, algorithm: FedAvg, after: Experiment | None) -> Experiment:
    """Return a stage that every tested client trains by itself."""
    task = replace(setting.task, balanced=setting.balanced)
    if _clients(task) > setting.tested:
        task = replace(task, partition=Clients(task.partition, last=setting.tested))
    return Experiment(task, algorithm, 1, cohort=1.0, evaluate_every=1, after=after)


def _clients(task: Task) -> int:
    return int(task.partition.clients)  # type: ignore[attr-defined]


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


def alone(setting: Stages) -> Experiment:
    """Return the local baseline: no federation, so that nobody can opt out of it."""
    task = replace(setting.task, opt_out=None)
    local = Local(**setting.home(setting.federated))
    return at_home(replace(setting, task=task), local, None)


def commonest(setting: Stages) -> Experiment:
    """Return the floor, at home too: the tests are those of the clients that train there."""
    task = replace(setting.task, opt_out=None)
    return at_home(replace(setting, task=task), CommonestLabel(), None)


def _by_fraction(setting: Stages, dataset: str) -> list[Run]:
    """Return the four methods and the floor at every majority fraction (Table 1, Fig. 3 and 4)."""
    runs: list[Run] = []
    for p in setting.ps:
        here = setting.at(p)
        runs += placed({**steps(here), LOCAL: alone(here), MAJORITY: commonest(here)}, p=p)
    return runs


def _opting_out(setting: Stages, dataset: str) -> list[Run]:
    """Return the methods where the fraction q of the clients stays at home, or nobody (Fig. 6).

    Nobody can opt out of training alone: that has no q.
    """
    opted = [(q, p) for q in (0.0, *setting.qs) for p in setting.opted_ps]
    runs = [run for q, p in opted for run in placed(steps(setting.at(p, q)), p=p, q=q)]
    for p in setting.opted_ps:
        here = setting.at(p)
        runs += placed({LOCAL: alone(here), MAJORITY: commonest(here)}, p=p)
    return runs


def _by_alpha(setting: Stages, dataset: str) -> list[Run]:
    """Return the methods where label shares come from Dir(alpha) (Fig. 5)."""
    size = setting.task.partition.size  # type: ignore[attr-defined]
    runs: list[Run] = []
    for alpha in setting.alphas:
        partition = Dirichlet(clients=_clients(setting.task), alpha=alpha, size=size)
        here = replace(setting, task=replace(setting.task, partition=partition))
        runs += placed({**steps(here), MAJORITY: commonest(here)}, alpha=alpha)
    return runs


def _by_rate(setting: Stages, dataset: str) -> list[Run]:
    """Return FedAvg at several rates, scored on balanced validation examples (Fig. 2)."""
    runs = []
    for p in setting.swept_ps:
        for rate in setting.rates:
            one = generalist(replace(setting.at(p), federated=rate))
            held = replace(one.task, balanced_on="validation")
            runs.append(Run(FEDAVG, replace(one, task=held), {"p": p, "lr": rate}))
    return runs


# What the released code does otherwise, one departure at a time and all of them together.
DEPARTURES: dict[str, dict[str, Any]] = {
    "last client": {"kind": LastClient},
    "log pool": {"pool": "log"},
    "fine-tuning at 5x the rate": {"faster": 5.0},
    "last weights": {"keep": "last"},
}
# On Fashion-MNIST also a smaller network than the paper says, whose softmax goes where its
# logarithm should: the loss is -p(y), and the log pool mixes probabilities.
OWN_NETWORK = {"own network": {"net": LeNet((6, 12), (84, 42), output="softmax")}}
EVERYTHING = "as released"


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


SMALL = f"{MIXTURE}, small specialist and gate"


def _architectures(setting: Stages, dataset: str) -> list[Run]:
    """Return the mixture with networks of the generalist's kind, and with others (001, sec. 3)."""
    here = setting.at(0.6)
    made = steps(here)
    small = Mixture(**here.home(here.federated), expert=MLP((64,)), gate=MLP((8,)))
    made[SMALL] = at_home(here, small, made[FEDAVG])
    return placed({**made, MAJORITY: commonest(here)})


def _setting(scale: str, dataset: str, **more: Any) -> Stages:
    """Return a setting of 001.

    A twelfth of the paper's rounds, in batches twice as large, and a tenth of its epochs need rates
    that are 20 times larger to get as far.
    """
    task = named("001/cifar10" if dataset == "digits" else f"001/{dataset}", scale)
    common: dict[str, Any] = {"batch_size": 10, "local_epochs": 3}
    if scale == "quick":
        # Small dense nets of all clients share a program.
        task = replace(task, model=MLP((32,)))
        common |= {"federated": 3e-3, "personal": 1e-3, "most": 40, "stop": EarlyStop(patience=2)}
        common |= {"balanced": 100, "ps": (0.2, 0.6, 1.0), "qs": (0.75,), "opted_ps": (0.2, 1.0)}
        common |= {"alphas": (0.1, 10.0), "rates": (1e-4, 1e-3, 1e-2), "released_ps": (1.0,)}
        common |= {"swept_ps": (0.2, 1.0)}
        return Stages(task, 40, 3, cohort=5, evaluate_every=5, **{**common, **more})
    if scale == "standard":
        common |= {"batch_size": 20, "federated": 1e-3, "personal": 2e-4, "tested": 10}
        common |= {"most": 50, "stop": EarlyStop(patience=3, min_delta=0.01)}
        fashion = dataset == "fashion_mnist"
        ps = (0.3, 0.6, 0.7, 0.8, 1.0)  # Table 1
        common |= {"ps": ps if fashion else (0.2, *ps)}
        common |= {"qs": (0.1, 0.25, 0.5, 0.75, 0.9, 0.95), "opted_ps": (0.2, 0.5, 0.8, 1.0)}
        # Fewer rounds need larger rates: one more among the largest.
        common |= {"rates": tuple(sorted((*RATES, 3e-3)))}
        common |= {"swept_ps": (0.3 if fashion else 0.2, 0.6, 1.0)}
        common |= {"released_ps": ps if fashion else (0.8,)}
        return Stages(task, 100, 3, cohort=5, evaluate_every=20, **{**common, **more})
    cohort = 50 if dataset == "ag_news" else 5
    return Stages(task, 1250, 4, cohort=cohort, evaluate_every=50, **{**common, **more})


NEWS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def _news(scale: str) -> Stages:
    if scale == "standard":
        more: dict[str, Any] = {"federated": 5e-3, "personal": 5e-4, "most": 20}
        ps = {"ps": NEWS, "swept_ps": (0.5, 0.8, 1.0)}
        return replace(_setting(scale, "ag_news", **more, **ps), rounds=60)
    ps = {"ps": NEWS, "swept_ps": NEWS}
    return _setting(scale, "ag_news", federated=5e-4, personal=1e-6, **ps)


SETTINGS: dict[str, dict[str, Setting]] = {
    "quick": {"digits": _setting("quick", "digits")},
    **{
        scale: {
            "cifar10": _setting(scale, "cifar10"),
            "fashion_mnist": _setting(scale, "fashion_mnist"),
            "ag_news": _news(scale),
        }
        for scale in ("standard", "paper")
    },
}


def _section(
    name: str, plan: Callable[..., Any], *datasets: str, five: tuple[str, ...] = ()
) -> Section:
    """Return a section on some data sets, some with ``five`` seeds at the standard scale."""
    chosen = {
        scale: {
            dataset: replace(setting, seeds=5)
            if scale == "standard" and dataset in five
            else setting
            for dataset, setting in each.items()
            if dataset in ("digits", *datasets)
        }
        for scale, each in SETTINGS.items()
    }
    return Section(name, chosen, plan)


IMAGES = ("cifar10", "fashion_mnist")
ALL = (*IMAGES, "ag_news")
SPECIALISTS = _section("specialists", _by_fraction, *ALL, five=("fashion_mnist",))
RATE_SWEEP = _section("specialists_rates", _by_rate, *ALL)
DIRICHLET = _section("specialists_dirichlet", _by_alpha, *IMAGES, five=IMAGES)
OPT_OUT = _section("opt_out", _opting_out, "cifar10", five=("cifar10",))
ARCHITECTURES = _section("architectures", _architectures, "cifar10")
AS_RELEASED = _section("as_released", _as_released, *IMAGES)
