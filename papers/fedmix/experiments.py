"""The experiments of FedMix (000) for each figure, at three scales.

``quick`` runs on scikit-learn's digits in minutes, ``standard`` on the papers' data with fewer
rounds and a smaller model, and ``paper`` is the paper's own setting.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from companion.sections import Run, Setting, federated, placed
from fedlib import algorithms, data
from fedlib.engine import EarlyStop, State, play_round
from fedlib.models import Architecture, FunctionalModel, LeNet, ResNet
from fedlib.optim import Optimizer, adam, sgd
from fedlib.partition import IID, ClientSubset, MatchedHoldout
from fedlib.tasks import Task
from fedlib.values import PositiveInt, value
from fedrun import Experiment, run_with_state
from fedrun.train import initial_state
from papers import fedmix as names
from papers.scaled import BOTH, ONCE, sections, tasks


@value
class Mixtures(Setting):
    """The server's learning rates, and the number of experts K.

    Attributes:
        server_rate: the learning rate of the server's Adam.
        phi_rate: its learning rate for phi. Adam moves a logit by about its rate per round,
            whatever the gradient: at the paper's 1e-3, the rows of q(z|y) need some 2,000 rounds to
            become one-hot. Shorter runs must raise it, or nothing can specialise.
        experts: the number of experts.
        epochs: the epochs of the centralised mixture (Fig. 14b), more of them on small data, where
            an epoch has few steps.
    """

    server_rate: float = 1e-3
    phi_rate: float = 1e-3
    experts: PositiveInt = 4
    epochs: int = 5

    @property
    def server(self) -> Optimizer:
        """The server's Adam, with a learning rate of its own for phi if that differs."""
        rates = (("phi", self.phi_rate),) if self.phi_rate != self.server_rate else ()
        return Optimizer("adam", lr=self.server_rate, rates=rates)


CLIP = 0.03
# The auto-encoders' widths (App. F).
VAE = {
    "two_class_digits": {"hidden": (64, 32), "latent": 8, "samples": 4},
    "two_class_mnist": {"hidden": (256, 128), "latent": 16, "samples": 1},
    "two_class_mnist_paper": {"hidden": (512, 256), "latent": 32, "samples": 4},
}
# The numbers of experts and thresholds of Fig. 11.
ABLATED: dict[str, tuple[tuple[int, ...], tuple[float, ...]]] = {
    "digits": ((2, 4, 8), (0.5, 0.9)),
    "cifar10": ((2, 4, 8, 10, 16), (0.1, 0.5, 0.9)),
}
_LONG = (names.FEDAVG, names.BIASED, names.FEDMIX, names.ENSEMBLE)


# The methods of figures; those of Fig. 4 by data set: digits stand for CIFAR-10.
FIG_3 = (names.FEDAVG, names.FEDMIX, names.ENSEMBLE, names.UNREGULARISED, names.ORIGINAL)
_MIXTURES = (names.TWO, names.FEDMIX, names.PRUNING, names.BIAS)
_SKEWED = (names.FEDAVG, *names.WIDE.values(), names.BIASED, names.LOCAL_GLOBAL, *_MIXTURES)
FIG_4 = {
    "digits": _SKEWED,
    "cifar10": _SKEWED,
    "cifar100": (*names.JOINING, names.TEN, names.TEN_PRUNED),
    "femnist": (names.FEDAVG, names.BIASED, names.TWO, names.FEDMIX),
}
FIG_5 = (names.FEDAVG, names.BIASED, names.BY_LABEL, names.BY_ANGLE)


def widened(
    model: Architecture, times: float, shape: tuple[int, ...], classes: int
) -> Architecture:
    """Return an architecture with about ``times`` as many parameters as ``model``.

    The channels of a LeNet, or the hidden layers of an MLP, are widened in proportion. For
    ``fedmix_lenet5()`` on CIFAR-10 these are 61 channels for 2 and 113 for 4 (000, sec. 4.1).

    Args:
        model: the architecture.
        times: the factor, at least 1.
        shape: shape of an example.
        classes: number of classes.

    Raises:
        ValueError: if ``times`` is less than 1.
    """
    if times < 1:
        raise ValueError(f"times must be >= 1, got {times}")
    layers = "channels" if hasattr(model, "channels") else "hidden"
    widths = getattr(model, layers)
    wanted = times * FunctionalModel(model, shape, classes).parameters()
    wider = (
        replace(model, **{layers: tuple(round(n * first / widths[0]) for n in widths)})
        for first in range(widths[0], int(widths[0] * times) + 2)
    )
    return min(wider, key=lambda m: abs(FunctionalModel(m, shape, classes).parameters() - wanted))


def fedavg(setting: Mixtures) -> dict[str, Any]:
    """Return the fields that all algorithms of a setting share."""
    return {"server": adam(setting.server_rate), **setting.local_round}


def fedmix(setting: Mixtures, **more: Any) -> dict[str, Any]:
    """Return the fields that every FedMix of a setting shares, with ``more``."""
    return {**fedavg(setting), "experts": setting.experts, "server": setting.server, **more}


def methods(setting: Mixtures, **mixture: Any) -> dict[str, algorithms.FedAvg]:
    """Return every algorithm in the figures by name, with the fields in which it differs.

    Local/Global has the paper's cut: the input layer, or a ResNet's first block.

    Args:
        setting: the setting.
        mixture: further fields of all mixtures.
    """
    plain, mix = fedavg(setting), fedmix(setting, **mixture)
    ten, cut = {**mix, "experts": 10}, 4 if isinstance(setting.task.model, ResNet) else 3
    experts, etas = ABLATED["cifar10"]
    return {
        **{names.with_experts(k): algorithms.FedMix(**{**mix, "experts": k}) for k in experts},
        **{names.with_pruning(eta): algorithms.PrunedFedMix(**mix, eta=eta) for eta in etas},
        names.TEN_PRUNED: algorithms.PrunedFedMix(**ten, eta=names.ETA),
        names.FEDAVG: algorithms.FedAvg(**plain),
        names.BIASED: algorithms.Personal(**plain),
        names.LOCAL_GLOBAL: algorithms.LocalGlobal(**plain, cut=cut),
        names.FEDMIX: algorithms.FedMix(**mix),
        names.ENSEMBLE: algorithms.FedMix(objective="entropy", **mix),
        names.UNREGULARISED: algorithms.FedMix(marginal_entropy=0.0, **mix),
        names.ORIGINAL: algorithms.FedMix(objective="likelihood", **mix),
        names.BIAS: algorithms.FedMix(personal_bias=True, **mix),
        names.BY_LABEL: algorithms.FedMix(**mix),
        names.BY_ANGLE: algorithms.FedMix(condition="angle", **mix),
    }


def _of(*compared: str) -> Callable[[Mixtures, str], list[Run]]:
    """Return a plan: the federations of some methods."""

    def plan(setting: Mixtures, dataset: str) -> list[Run]:
        known = methods(setting)
        return placed({m: federated(setting, known[m]) for m in compared})

    return plan


def _label_skew(setting: Mixtures, dataset: str) -> list[Run]:
    """Return the runs of Fig. 3 and 14: FedMix's variants, and the original mixture.

    The original mixture of Fig. 14b has a single client, and its rounds are epochs.
    """
    apart: Any = setting.task.held_out
    one = MatchedHoldout(apart.pool, validation=apart.pool // 2, test=apart.test * 5)
    task = Task(setting.task.dataset, IID(clients=1), setting.task.model, one)
    mix = {"experts": setting.experts, "batch_size": setting.batch_size, "server": sgd(1.0)}
    plain = algorithms.FedMix(objective="likelihood", **mix)  # type: ignore[arg-type]
    central = Experiment(task, plain, rounds=setting.epochs, cohort=1, evaluate_every=1)
    federations = _of(*FIG_3)(setting, dataset)
    return [*federations, Run(names.CENTRALISED, central)]


def _communication(setting: Mixtures, dataset: str) -> list[Run]:
    """Return the runs of Fig. 4; on FEMNIST gates are averaged, because local ones overfit."""
    known = methods(setting, **({"gates": "averaged"} if dataset == "femnist" else {}))
    times = {name: times for times, name in names.WIDE.items()}

    def of(method: str) -> Experiment:
        wide = method in times
        return wider(setting, times[method]) if wide else federated(setting, known[method])

    return placed({method: of(method) for method in FIG_4[dataset]})


def _long(setting: Mixtures, dataset: str) -> list[Run]:
    """Return the methods of Fig. 1, 3, 4, 13 and 14, and FedAvg with the traffic of FedMix."""
    return [*_of(*_LONG)(setting, dataset), Run(names.WIDE[4], wider(setting, 4))]


@cache
def wider(setting: Mixtures, times: int) -> Experiment:
    """Return FedAvg with a LeNet of ``times`` as many parameters."""
    model: Any = setting.task.model
    wide = replace(setting.task, model=widened(model, times, *data.form(setting.task.dataset)))
    return replace(federated(setting, algorithms.FedAvg(**fedavg(setting))), task=wide)


def _ablation(setting: Mixtures, dataset: str) -> list[Run]:
    """Return the numbers of experts and the thresholds of Fig. 11."""
    experts, etas = ABLATED[dataset]
    mixtures = [*map(names.with_experts, experts), *map(names.with_pruning, etas)]
    return _of(names.FEDAVG, *mixtures)(setting, dataset)


def _permuted(setting: Mixtures, dataset: str) -> list[Run]:
    """Return the numbers of experts of Fig. 8, where clients have one of four permutations.

    Four experts are also run at half the server's rate for twice the rounds, so that permutations
    have time to separate before an expert falls behind.
    """
    slow = replace(setting, server_rate=setting.server_rate / 2, phi_rate=setting.phi_rate / 2)
    slower = {names.SLOWER: _clustered(slow, 4, rounds=2 * setting.rounds)}
    return placed({**{names.with_k(k): _clustered(setting, k) for k in names.KS}, **slower})


def _permuted_as_printed(setting: Mixtures, dataset: str) -> list[Run]:
    """Return these numbers of experts with the classic LeNet-5, and four with the network of A01.

    Data and rates are the paper's, which calls its network "LeNet-5" without further details.
    """
    classic = replace(setting, task=replace(setting.task, model=LeNet()))
    runs = {names.with_k(k): _clustered(classic, k) for k in names.KS}
    return placed({**runs, names.LARGE: _clustered(setting, 4)})


def _clustered(setting: Mixtures, experts: int, **more: int) -> Experiment:
    """Return the federation that finds as many clusters of clients as it has experts."""
    return federated(
        setting, algorithms.ClusteredFedMix(**fedmix(setting, experts=experts)), **more
    )


def _new_clients(setting: Mixtures, dataset: str) -> list[Run]:
    """Return FedAvg and FedMix on all clients, FedMix with p(s|x), and newcomers with labels.

    For the newcomers, four fifths of the clients federate, and the others join.
    """
    known, everyone = methods(setting), setting.task.partition
    clients, first = setting.clients, setting.clients * 4 // 5
    parts = ClientSubset(everyone, last=first), ClientSubset(everyone, first, clients)
    seen, new = map(setting.dealt, parts)
    there = {m: federated(setting, known[m]) for m in (names.FEDAVG, names.FEDMIX)}
    vae: dict[str, Any] = VAE[dataset]
    densities = algorithms.VAEDensity(of=known[names.FEDMIX], **vae)
    there[names.DENSITIES] = federated(setting, densities, first_stage=there[names.FEDMIX], **ONCE)
    stop, joined = EarlyStop(every=1, patience=5), {}
    for m in names.JOINING:
        at_home = {"epochs": 100, "batch_size": setting.batch_size, "stop": stop}
        join = algorithms.NewClients(of=known[m], **at_home)  # type: ignore[arg-type]
        joined[m] = federated(new, join, first_stage=federated(seen, known[m]), **ONCE)
    return [*placed(there), *placed(joined, who=names.NEW)]


def _privacy(setting: Mixtures, dataset: str) -> list[Run]:
    """Return audits of one round with all clients, from an initial or a trained model."""
    known, runs, audited = methods(setting), [], {**ONCE, "audit_labels": True}
    for method in (names.FEDAVG, names.BIASED, names.FEDMIX):
        one = known[method]
        messages = {
            names.STEP: federated(setting, replace(one, batch_size=None), **audited),
            names.EPOCH: federated(setting, one, **audited),
            names.TRAINED: federated(setting, one, first_stage=federated(setting, one), **audited),
        }
        runs += [Run(method, made, {"message": message}) for message, made in messages.items()]
    return runs


def guarded(setting: Mixtures) -> dict[str, Experiment]:
    """Return FedMix's training run without and with differential privacy.

    ``CLIP`` is about the median norm of a client's message in a round of digits; the noise is in
    units of it.
    """
    plain = algorithms.FedMix(**fedmix(setting))
    made: dict[str, algorithms.FedAvg] = {names.FEDMIX: plain}
    for at, noise in (("server", 0.0), ("server", 0.3), ("server", 1.0), ("client", 1.0)):
        name = f"clipped, noise {noise:g}, at the {at}" if noise else "clipped"
        made[name] = algorithms.Private(of=plain, clip=CLIP, noise=noise, at=at)
    return {name: federated(setting, algorithm) for name, algorithm in made.items()}


def overheard(experiment: Experiment) -> tuple[Any, ...]:
    """Return what the server sees of phi in an audited run of FedMix, and the truth.

    The run is replayed on the CPU, in memory, because audits store their findings and not the
    messages; a first stage is trained unless it is stored.

    Returns:
        The clients' updates of phi ``[S, classes, K]``, q(z|y) before the round ``[classes, K]``,
        the clients' label shares ``[S, classes]``, p(s) ``[S]``, and the names of the classes.
    """
    fed = experiment.task.build(experiment.seed, "cpu")
    stages = [run_with_state(stage, device="cpu", progress=False) for stage in experiment.before]
    state = initial_state(experiment, fed, [last for _, last in stages])
    before = State(
        dict(state.server_params), {}, dict(state.server_optimizer), dict(state.server_memory)
    )
    seed, cohort = experiment.seed, experiment.cohort
    _, report = play_round(experiment.algorithm, fed, state, round=0, seed=seed, cohort=cohort)
    q = before.server_params["phi"].double().softmax(-1).numpy()
    of = (each.double().numpy()[report.clients] for each in (fed.shares("label"), fed.sizes))
    return report.messages["phi"].double().numpy(), q, *of, fed.class_names


TASKS = tasks("fedmix")
section = sections("fedmix", Mixtures, TASKS)
LABEL_SKEW = section("label_skew", _label_skew, every_round=True)
COMMUNICATION = section("communication", _communication)
ABLATION = section("ablation", _ablation)
# Fig. 1, 3, 4, 13 and 14 at the paper's time scale: as many rounds, at the paper's rates.
LONG = section("long", _long, every_round=True)
ROTATED = section("rotated", _of(*FIG_5))
ROTATED_LONG = section("rotated_long", _of(*FIG_5))
PERMUTED = section("permuted", _permuted)
PERMUTED_AS_PRINTED = section("permuted_as_printed", _permuted_as_printed, BOTH[1:])
NEW_CLIENTS = section("new_clients", _new_clients, BOTH)
PRIVACY = section("privacy", _privacy)
