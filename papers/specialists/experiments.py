"""The experiments of 001 and 002 at three scales: a generalist, local specialists, and a gate.

002 is the first version of 001.
"""

from dataclasses import KW_ONLY, replace
from itertools import product
from typing import Any, Self

from companion.sections import Run, federated, placed
from fedlib.algorithms import FedAvg, LastClient, Local, MajorityClass, Mixture
from fedlib.models import MLP, Architecture, LeNet
from fedlib.optim import adam
from fedlib.partition import ClientSubset, Dirichlet, OptOut
from fedlib.values import value
from fedrun import CohortEarlyStop, Experiment
from papers import scaled as common


@value
class Stages(common.AtHome):
    """The lengths and rates of the three steps, and the values that are compared.

    Attributes:
        federated: the learning rate of Adam at FedAvg's clients and of the local baseline.
        personal: that of fine-tuning and of the mixture.
        tested: the number of clients, from the first on, that train locally: 001 evaluates 20
            clients.
        balanced: the number of examples, balanced over classes, of the global test set.
        qs: the fractions of clients that opt out, compared at the majority fractions ``opted_ps``.
        opted_ps: see ``qs``.
        alphas: the concentrations of Dirichlet partitions that are compared.
        swept_ps: see ``rates``.
        rates: the learning rates of FedAvg that are compared at ``swept_ps``.
        released_ps: the majority fractions at which the released code is compared.
        select: how FedAvg's state is selected.
        cohort_stop: FedAvg's early stopping, which replaces ``select``.
    """

    _: KW_ONLY
    federated: float
    personal: float
    tested: int
    balanced: int
    qs: tuple[float, ...] = ()
    opted_ps: tuple[float, ...] = ()
    alphas: tuple[float, ...] = ()
    swept_ps: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()
    released_ps: tuple[float, ...] = ()
    select: str = "best"
    cohort_stop: CohortEarlyStop | None = None

    def opted(self, q: float) -> Self:
        """Return the setting in which the fraction q of the clients opts out.

        The cohort keeps its size if enough clients are left.
        """
        if not q:
            return self
        left = self.clients - round(q * self.clients)
        cohort = self.cohort if isinstance(self.cohort, float) else min(self.cohort, left)
        return replace(self, task=replace(self.task, opt_out=OptOut(clients=q)), cohort=cohort)


MIXTURE = "Mixture"
SMALL = f"{MIXTURE}, small specialist and gate"
SOME_P = 0.6  # the majority fraction where networks are compared
LAST_CLIENT = "last client"
# Departures of the released code, which are applied one at a time and all together.
DEPARTURES: dict[str, dict[str, Any]] = {
    LAST_CLIENT: {"kind": LastClient},
    "log pool": {"pool": "log"},
    "fine-tuning at 5x the rate": {"faster": 5.0},
    "last weights": {"keep": "last"},
}
# On Fashion-MNIST the code has a smaller network than the paper. It uses a softmax in place of its
# logarithm: the loss is -p(y), and the log pool mixes probabilities.
OWN_NETWORK = {"own network": {"net": LeNet((6, 12), (84, 42), output="softmax")}}
EVERYTHING = "as released"
EARLY_STOPPING = "early stopping"  # of FedAvg, as 001 states it
# The early stopping of FedAvg that 001 states (sec. 5), with the patience of its released code,
# which checks every 40 rounds the model before the round's update.
PRINTED_STOP = CohortEarlyStop(patience=5)
RELEASED_STOP = CohortEarlyStop(patience=5, before_update=True)
RELEASED_EVERY = 40
RELEASED_DROPOUT = LeNet(dropout=0.5, dropout_in="first")


def generalist(setting: Stages, kind: type[FedAvg] = FedAvg) -> Experiment:
    """Return step 1: the model of the federation, the best one on validation examples."""
    algorithm = kind(client=adam(setting.federated), **setting.local_round)
    here = replace(setting, task=replace(setting.task, balanced=setting.balanced))
    if setting.cohort_stop is not None:
        return federated(here, algorithm, stop=setting.cohort_stop)
    return federated(here, algorithm, select=setting.select)


def at_home(setting: Stages, algorithm: FedAvg, after: Experiment | None = None) -> Experiment:
    """Return a stage that every tested client trains by itself.

    Clients can opt out of a federation before it only.
    """
    out = setting.task.opt_out if after else None
    task = replace(setting.task, balanced=setting.balanced, opt_out=out)
    if setting.clients > setting.tested:
        task = replace(task, partition=ClientSubset(task.partition, last=setting.tested))
    return Experiment(task, algorithm, **common.ONCE, first_stage=after)


def alone(setting: Stages) -> Experiment:
    """Return the local baseline."""
    return at_home(setting, Local(**setting.home(adam(setting.federated))))


def commonest(setting: Stages) -> Experiment:
    """Return the majority-class baseline of the tested clients."""
    return at_home(setting, MajorityClass())


def steps(
    setting: Stages,
    kind: type[FedAvg] = FedAvg,
    pool: str = "probabilities",
    faster: float = 1.0,
    keep: str = "best",
    net: Architecture | None = None,
) -> dict[str, Experiment]:
    """Return the three steps of 001 (sec. 3); all options are departures of the released code.

    Args:
        setting: the setting.
        kind: the class of the federated algorithm.
        pool: how the mixture combines experts.
        faster: the factor of the learning rate of fine-tuning.
        keep: the weights that early stopping keeps.
        net: another network; it implies the log pool, which mixes its outputs as they are, and
            changes the local baseline, too.
    """
    setting = replace(setting, stop=replace(setting.stop, keep=keep))
    if net is not None:
        setting, pool = replace(setting, task=replace(setting.task, model=net)), "log"
    first = generalist(setting, kind)
    tuned = at_home(setting, Local(**setting.home(adam(faster * setting.personal))), first)
    mixture = Mixture(**setting.home(adam(setting.personal)), pool=pool)
    made = {common.FEDAVG: first, common.TUNED: tuned, MIXTURE: at_home(setting, mixture, tuned)}
    return made if net is None else {**made, common.LOCAL: alone(setting)}


def _without_federation(setting: Stages, ps: tuple[float, ...]) -> list[Run]:
    """Return the local baseline and the majority-class baseline, which have no q."""
    made = {common.LOCAL: alone, common.MAJORITY: commonest}
    return [Run(m, make(setting.at(p)), {"p": p}) for m, make in made.items() for p in ps]


def _by_fraction(setting: Stages, dataset: str) -> list[Run]:
    """Return the methods and the baseline at every majority fraction (Table 1, Fig. 3 and 4)."""
    runs = [run for p in setting.ps for run in placed(steps(setting.at(p)), p=p)]
    return runs + _without_federation(setting, setting.ps)


def _opting_out(setting: Stages, dataset: str) -> list[Run]:
    """Return the methods by the fraction q of clients that opt out (Fig. 6).

    Runs of q = 0 are trained for Table 1 anyway. They are included at its majority fractions only.
    """
    every = product(setting.qs, setting.opted_ps)
    opted = [(q, p) for q, p in every if q > 0 or p in setting.ps]
    runs = [run for q, p in opted for run in placed(steps(setting.at(p).opted(q)), p=p, q=q)]
    return runs + _without_federation(setting, setting.opted_ps)


def _by_alpha(setting: Stages, dataset: str) -> list[Run]:
    """Return the methods with label shares from Dir(alpha) (Fig. 5)."""
    size = setting.task.partition.size  # type: ignore[attr-defined]
    runs: list[Run] = []
    for alpha in setting.alphas:
        here = setting.dealt(Dirichlet(clients=setting.clients, alpha=alpha, size=size))
        runs += placed({**steps(here), common.MAJORITY: commonest(here)}, alpha=alpha)
    return runs


def _by_rate(setting: Stages, dataset: str) -> list[Run]:
    """Return FedAvg at several learning rates, scored on balanced validation examples (Fig. 2)."""
    runs = []
    for p, rate in product(setting.swept_ps, setting.rates):
        one = generalist(replace(setting.at(p), federated=rate))
        held = replace(one, task=replace(one.task, balanced_on="validation"))
        runs.append(Run(common.FEDAVG, held, {"p": p, "lr": rate}))
    return runs


def _architectures(setting: Stages, dataset: str) -> list[Run]:
    """Return mixtures with the generalist's network, and with smaller ones (001, sec. 3)."""
    here = setting.at(SOME_P)
    made = steps(here)
    small = Mixture(**here.home(adam(here.federated)), expert=MLP((64,)), gate=MLP((8,)))
    made[SMALL] = at_home(here, small, made[common.FEDAVG])
    return placed({**made, common.MAJORITY: commonest(here)})


def _as_released(setting: Stages, dataset: str) -> list[Run]:
    """Return 001's methods with each departure of its released code, and with all of them.

    Experiments that a departure does not change are left out; equal ones are included once.
    """
    changes = {**DEPARTURES, **(OWN_NETWORK if dataset == "fashion_mnist" else {})}
    every = {name: value for change in changes.values() for name, value in change.items()}
    runs: list[Run] = []
    for p in setting.released_ps:
        known = [*steps(setting.at(p)).values()]
        for departure, change in {**changes, EVERYTHING: every}.items():
            for method, experiment in steps(setting.at(p), **change).items():
                if experiment not in known:
                    runs.append(Run(method, experiment, {"p": p, "departure": departure}))
                    known.append(experiment)
    return runs


def _as_printed(setting: Stages, dataset: str) -> list[Run]:
    """Return 001's methods with the early stopping of FedAvg that it states (sec. 5).

    At ``released_ps`` they are also run with the released code's rate of fine-tuning, and with all
    of its departures, including its early stopping.
    """
    printed = replace(setting, cohort_stop=PRINTED_STOP)
    released = replace(setting, cohort_stop=RELEASED_STOP, evaluate_every=RELEASED_EVERY)
    own = OWN_NETWORK["own network"] if dataset == "fashion_mnist" else {"net": RELEASED_DROPOUT}
    every = {name: value for change in DEPARTURES.values() for name, value in change.items()}
    faster = "fine-tuning at 5x the rate"
    runs: list[Run] = []
    for p in setting.ps:
        runs += placed(steps(printed.at(p)), p=p, departure=EARLY_STOPPING)
    for p in setting.released_ps:
        tuned = steps(printed.at(p), **DEPARTURES[faster])
        del tuned[common.FEDAVG]  # the one as printed
        runs += placed(tuned, p=p, departure=faster)
        runs += placed(steps(released.at(p), **{**every, **own}), p=p, departure=EVERYTHING)
    return runs


def _first_version(setting: Stages, dataset: str) -> list[Run]:
    """Return the methods of 002: local specialists, and the global expert trained as well."""
    runs = _without_federation(setting, setting.opted_ps)
    for q, p in product(setting.qs, setting.opted_ps):
        here = setting.at(p).opted(q)
        made = steps(here)
        mix = Mixture(**here.home(adam(here.personal)), train_global=True)
        trained = at_home(here, mix, made[common.FEDAVG])
        made[MIXTURE] = replace(trained, local_stage=alone(setting.at(p)))
        runs += placed(made, p=p, q=q)
    return runs


TASKS = common.tasks("specialists")
section = common.sections("specialists", Stages, TASKS)
SPECIALISTS = section("specialists", _by_fraction, common.BOTH)
RATE_SWEEP = section("specialists_rates", _by_rate)
DIRICHLET = section("specialists_dirichlet", _by_alpha)
ARCHITECTURES = section("architectures", _architectures)
AS_RELEASED = section("as_released", _as_released, common.BOTH)
PRINTED = section("as_printed", _as_printed, common.BOTH[1:], apart="departure")
OPT_OUT = section("opt_out", _opting_out, common.BOTH)
FIRST_VERSION = section("first_version", _first_version, common.BOTH)
FIRST_OPTED = section("first_version_opted", _first_version, common.BOTH[1:])
