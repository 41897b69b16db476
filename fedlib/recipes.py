"""The papers' experiments as values, at three scales.

``quick`` runs on scikit-learn's digits in minutes, ``standard`` on the papers' data with fewer
rounds and a smaller model, ``paper`` is the paper's own setting. What a smaller scale changes is
written beside it.
"""

from __future__ import annotations

from fedlib.algorithms import FedAvg, FedMix
from fedlib.experiment import Experiment
from fedlib.optim import Optimizer, adam
from fedlib.partition import IID, Mirrored
from fedlib.tasks import SCALES, Task, named
from fedlib.values import one_of, value

FEDAVG = "FedAvg"
FEDMIX = "FedMix"
ENSEMBLE = "FedMix with H(q)"
UNREGULARISED = "FedMix without marginal entropy"
ORIGINAL = "Mixture of experts (eq. 3)"
CENTRALISED = "Mixture of experts (eq. 3), S = 1"
METHODS = (FEDAVG, FEDMIX, ENSEMBLE, UNREGULARISED, ORIGINAL, CENTRALISED)


@value
class Setting:
    """One data set at one scale: task, rounds, seeds, and the rates that the time scale asks for.

    ``phi_rate`` is the server's rate for phi. Adam moves a logit by about its rate per round,
    whatever the gradient, so that at the paper's 1e-3 the rows of q(z|y) need some 2,000 rounds to
    become one-hot; shorter runs must raise it or nothing can specialise. ``epochs`` are those of
    the centralised mixture (Fig. 14b): on small data an epoch has few steps.
    """

    task: Task
    rounds: int
    seeds: int
    cohort: int = 10
    batch_size: int = 64
    server_rate: float = 1e-3
    phi_rate: float = 1e-3
    experts: int = 4
    evaluate_every: int = 20
    epochs: int = 5


LABEL_SKEW: dict[str, dict[str, Setting]] = {
    "quick": {
        "digits": Setting(
            named("000/cifar10", "quick"),
            rounds=150,
            seeds=3,
            cohort=5,
            batch_size=20,
            server_rate=5e-3,
            phi_rate=0.05,
            evaluate_every=10,
            epochs=12,
        )
    },
    "standard": {
        "cifar10": Setting(named("000/cifar10", "standard"), 300, 3, phi_rate=0.03),
        "fashion_mnist": Setting(named("000/fashion_mnist", "standard"), 200, 3, phi_rate=0.03),
    },
    "paper": {
        "cifar10": Setting(named("000/cifar10", "paper"), 2000, 3),
        "fashion_mnist": Setting(named("000/fashion_mnist", "paper"), 2000, 3),
    },
}


def settings(scale: str, dataset: str = "") -> dict[str, Setting]:
    """Return the label-skew settings of a scale by data set: the named one, or all of them."""
    one_of("scale", scale, SCALES)
    known = LABEL_SKEW[scale]
    if not dataset:
        return known
    one_of(f"data set at scale {scale!r}", dataset, known)
    return {dataset: known[dataset]}


def fedmix_variants(setting: Setting) -> dict[str, FedAvg | FedMix]:
    """Return FedAvg, FedMix and the variants of Fig. 3 and 14, which differ by one option each."""
    rates = (("phi", setting.phi_rate),) if setting.phi_rate != setting.server_rate else ()
    server = Optimizer("adam", lr=setting.server_rate, rates=rates)
    local = {"batch_size": setting.batch_size}
    mix = {"experts": setting.experts, "server": server, **local}
    return {
        FEDAVG: FedAvg(server=adam(setting.server_rate), **local),  # type: ignore[arg-type]
        FEDMIX: FedMix(**mix),  # type: ignore[arg-type]
        ENSEMBLE: FedMix(objective="entropy", **mix),  # type: ignore[arg-type]
        UNREGULARISED: FedMix(marginal_entropy=0.0, **mix),  # type: ignore[arg-type]
        ORIGINAL: FedMix(objective="likelihood", **mix),  # type: ignore[arg-type]
    }


def experiments(
    setting: Setting, method: str, *, seeds: int = 0, rounds: int = 0
) -> list[Experiment]:
    """Return the runs of one method, one per seed; 0 takes the setting's own numbers.

    ``CENTRALISED`` is the original mixture of experts with S = 1 client (Fig. 14b): its rounds are
    epochs, and ``rounds`` does not change their number.
    """
    variants = fedmix_variants(setting)
    one_of("method", method, METHODS)
    chosen = range(seeds or setting.seeds)
    if method == CENTRALISED:
        return [_centralised(setting, seed) for seed in chosen]
    return [
        Experiment(
            setting.task,
            variants[method],
            rounds=rounds or setting.rounds,
            cohort=setting.cohort,
            seed=seed,
            evaluate_every=setting.evaluate_every,
        )
        for seed in chosen
    ]


def _centralised(setting: Setting, seed: int) -> Experiment:
    apart = setting.task.held_out
    assert isinstance(apart, Mirrored)
    one = Mirrored(apart.pool, validation=apart.pool // 2, test=apart.test * 5)
    task = Task(setting.task.dataset, IID(clients=1), setting.task.model, one)
    plain = FedMix(
        experts=setting.experts,
        objective="likelihood",
        server=Optimizer("sgd", lr=1.0),
        batch_size=setting.batch_size,
    )
    return Experiment(task, plain, rounds=setting.epochs, cohort=1, seed=seed, evaluate_every=1)
