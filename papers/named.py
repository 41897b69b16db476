"""The papers' settings by name, at three scales, as values that print as code.

A name is the paper's seed number and the setting. ``paper`` is the paper's own, to the letter where
it says enough (docs/READINGS.md has the rest). ``standard`` uses real data with fewer clients,
examples or a smaller network, so that a CPU can play hundreds of rounds; where the full set is not
at hand it names a sample. ``quick`` is the same idea on scikit-learn's digits. Each setting says
what it is in its docstring, and its options, a majority fraction for one, with their defaults.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from companion.scales import SCALES
from fedlib.models import MLP, BiLSTM, LeNet, ResNet, fedmix_lenet5
from fedlib.partition import (
    IID,
    ByColumn,
    Dirichlet,
    LabelPermuted,
    Majority,
    Mirrored,
    Own,
    Pachinko,
    QuantitySkew,
    Repeated,
    Request,
    Rotated,
    Shards,
)
from fedlib.tasks.augment import CropFlip
from fedlib.tasks.task import Task
from fedlib.values import one_of

Setting = Callable[..., Task | None]
_SETTINGS: dict[str, Setting] = {}

# The networks of the papers, and small ones for the smaller scales.
SMALL = LeNet(channels=(8, 8), hidden=(32,))
MIDDLE = LeNet(channels=(16, 32), hidden=(128,))
CLUSTER = LeNet(channels=(128, 32), hidden=(1024,), dropout=0.8)  # 003, Table 1
WRITERS = LeNet(channels=(32, 64), hidden=(2048,))  # 003, FEMNIST
IFCA = LeNet(channels=(64, 64), hidden=(384, 194), response_norm=4)  # 003, rotated CIFAR-10
# 1,437 training and 360 test digits, 36 per class: parts must be small.
FEW = Mirrored(pool=200, validation=20, test=30)
# 001 and 003: local tests mirror a client's classes, at most half of its examples from each.
LOCAL = Mirrored(pool=5000, validation=200, test=500)
OWN_TENTHS = Own(test=0.1, validation=0.1)
OWN_FIFTH = Own(test=0.2, validation=0.1)


def _known() -> dict[str, Setting]:
    """The settings of every paper, by name."""
    from papers.pm_moe.settings import TASKS  # when asked: it imports what imports this

    return _SETTINGS | TASKS


def names() -> tuple[str, ...]:
    """The settings that ``named`` knows."""
    return tuple(_known())


def about(name: str) -> str:
    """What a setting is, in one line, with its options and their defaults."""
    one_of("task", name, _known())
    said = " ".join((inspect.getdoc(_known()[name]) or "").split())
    options = ", ".join(f"{n}={default!r}" for n, default in options_of(name).items())
    return said + (f" [{options}]" if options else "")


def options_of(name: str) -> dict[str, Any]:
    """The options of a setting and their defaults."""
    one_of("task", name, _known())
    known = inspect.signature(_known()[name]).parameters.values()
    return {p.name: p.default for p in known if p.name != "scale"}


def scales_of(name: str) -> tuple[str, ...]:
    """The scales that a setting has: texts have no quick one."""
    one_of("task", name, _known())
    return tuple(scale for scale in SCALES if _known()[name](scale) is not None)


def named(name: str, scale: str = "quick", **options: Any) -> Task:
    """The task of a setting at a scale; ValueError for names, scales and options it has not."""
    one_of("scale", scale, SCALES)
    for option in options:
        one_of(f"option of {name}", option, options_of(name))
    one_of("task", name, _known())
    task = _known()[name](scale, **options)
    if task is None:
        have = ", ".join(scales_of(name))
        raise ValueError(f"{name} has no {scale} scale: the digits are no texts; it has {have}")
    return task


def _setting(name: str) -> Callable[[Setting], Setting]:
    def keep(make: Setting) -> Setting:
        _SETTINGS[name] = make
        return make

    return keep


def _scaled(scale: str, *, quick: Task | None, standard: Task, paper: Task) -> Task | None:
    return {"quick": quick, "standard": standard, "paper": paper}[scale]


def _digits(partition: Request, held_out: Mirrored | Own = FEW) -> Task:
    return Task("digits", partition, SMALL, held_out)


def _label_skew(scale: str, dataset: str) -> Task | None:
    skew = Dirichlet(clients=100, alpha=1.0, size=450)
    return _scaled(
        scale,
        quick=_digits(Dirichlet(clients=20, alpha=1.0, size=60)),
        standard=Task(dataset, skew, LeNet()),
        paper=Task(dataset, skew, fedmix_lenet5()),
    )


@_setting("000/cifar10")
def _fedmix_cifar10(scale: str) -> Task | None:
    """FedMix, sec. 4.1: 100 clients with label shares from Dir(1.0), 450 examples each."""
    return _label_skew(scale, "cifar10")


@_setting("000/fashion_mnist")
def _fedmix_fashion_mnist(scale: str) -> Task | None:
    """The label skew of 000/cifar10 on Fashion-MNIST, which the paper does not have."""
    return _label_skew(scale, "fashion_mnist")


@_setting("000/cifar100")
def _fedmix_cifar100(scale: str) -> Task | None:
    """FedMix, sec. 4.1: Pachinko allocation to 500 clients; digits have no coarse labels."""
    return _scaled(
        scale,
        quick=_digits(Dirichlet(clients=30, alpha=0.3, size=40)),
        standard=Task(
            "cifar100_sample",
            Pachinko(clients=100, size=100),
            LeNet(),
            OWN_FIFTH,
            augment=CropFlip(),
        ),
        paper=Task(
            "cifar100",
            Pachinko(),
            ResNet(),
            Mirrored(5000, 20, 50, source="test"),
            augment=CropFlip(),
        ),
    )


@_setting("000/femnist")
def _fedmix_femnist(scale: str) -> Task | None:
    """FedMix, sec. 4.1: one client per writer; digits of unknown writers differ in amount."""
    return _scaled(
        scale,
        quick=_digits(QuantitySkew(clients=30, alpha=3.0, least=15), OWN_FIFTH),
        standard=Task("mnist", ByColumn("writer_id"), LeNet(), OWN_TENTHS),
        paper=Task("femnist", ByColumn("writer_id"), fedmix_lenet5(), OWN_TENTHS),
    )


@_setting("000/rotated_mnist")
def _fedmix_rotated(scale: str) -> Task | None:
    """FedMix, sec. 4.2: every digit turned by one of 8 angles, in each client's own shares."""
    return _scaled(
        scale,
        quick=_digits(Rotated(IID(clients=20, size=60))),
        standard=Task("mnist", Rotated(IID(clients=100, size=300)), LeNet()),
        paper=Task("mnist", Rotated(IID(clients=100)), fedmix_lenet5()),
    )


@_setting("000/rotated_skewed_mnist")
def _fedmix_rotated_skewed(scale: str) -> Task | None:
    """FedMix, sec. 4.2: rotated MNIST whose clients also differ in their label shares."""
    return _scaled(
        scale,
        quick=_digits(Rotated(Dirichlet(clients=20, size=60))),
        standard=Task("mnist", Rotated(Dirichlet(clients=100, size=300)), LeNet()),
        paper=Task("mnist", Rotated(Dirichlet(clients=100, size=500)), fedmix_lenet5()),
    )


@_setting("000/two_class_mnist")
def _fedmix_two_class(scale: str) -> Task | None:
    """FedMix, App. F: 100 clients with two shards of one class each."""
    return _scaled(
        scale,
        quick=Task("digits", Shards(clients=20), MLP((32,)), FEW),
        standard=Task("mnist", Shards(), MLP()),
        paper=Task("mnist", Shards(), MLP()),
    )


@_setting("000/permuted_cifar10")
def _fedmix_permuted(scale: str) -> Task | None:
    """FedMix, sec. 4.3: 20 i.i.d. clients that use one of four label permutations."""
    return _scaled(
        scale,
        quick=_digits(LabelPermuted(IID(clients=20, size=60))),
        standard=Task("cifar10", LabelPermuted(IID(clients=20, size=450)), LeNet()),
        paper=Task("cifar10", LabelPermuted(IID(clients=20)), fedmix_lenet5()),
    )


def _specialists(scale: str, dataset: str, p: float) -> Task | None:
    return _scaled(
        scale,
        quick=_digits(Majority(clients=20, size=20, p=p)),
        standard=Task(dataset, Majority(clients=100, size=100, p=p), LeNet(), LOCAL),
        paper=Task(dataset, Majority(clients=100, size=100, p=p), LeNet(), LOCAL),
    )


@_setting("001/cifar10")
def _specialists_cifar10(scale: str, p: float = 0.8) -> Task | None:
    """Specialised federated learning: two majority classes make up the fraction p."""
    return _specialists(scale, "cifar10", p)


@_setting("001/fashion_mnist")
def _specialists_fashion_mnist(scale: str, p: float = 0.8) -> Task | None:
    """001/cifar10 on Fashion-MNIST, with the network that the paper describes."""
    return _specialists(scale, "fashion_mnist", p)


@_setting("001/ag_news")
def _specialists_ag_news(scale: str, p: float = 0.8) -> Task | None:
    """Specialised federated learning on news of four classes, 1,000 clients, BiLSTM."""
    held = Mirrored(pool=5000, validation=100, test=200)
    short = BiLSTM(vocabulary=5002, embedding=50, hidden=32, tokens=24)
    return _scaled(
        scale,
        quick=None,
        standard=Task("ag_news", Majority(clients=100, size=100, p=p), short, held),
        paper=Task("ag_news", Majority(clients=1000, size=100, p=p), BiLSTM(), held),
    )


@_setting("001/dirichlet_cifar10")
def _specialists_dirichlet(scale: str, alpha: float = 0.5) -> Task | None:
    """Specialised federated learning, label shares from Dir(alpha) instead of a majority."""
    return _scaled(
        scale,
        quick=_digits(Dirichlet(clients=20, alpha=alpha, size=40)),
        standard=Task("cifar10", Dirichlet(clients=100, alpha=alpha, size=100), LeNet(), LOCAL),
        paper=Task("cifar10", Dirichlet(clients=100, alpha=alpha, size=100), LeNet(), LOCAL),
    )


@_setting("002/cifar10")
def _first_version_cifar10(scale: str, p: float = 0.8) -> Task | None:
    """The first version of 001: 5 clients whose majority classes differ."""
    held = Mirrored(pool=5000, validation=400, test=500)
    task = Task("cifar10", Majority(clients=5, size=100, p=p, pairs="disjoint"), LeNet(), held)
    quick = Majority(clients=5, size=100, p=p, pairs="disjoint")
    return _scaled(scale, quick=_digits(quick), standard=task, paper=task)


@_setting("002/cifar100")
def _first_version_cifar100(scale: str, p: float = 0.8) -> Task | None:
    """The first version of 001: 50 clients, each with a majority of two of the 100 classes."""
    partition = Majority(clients=50, size=100, p=p, pairs="disjoint")
    fewer = Majority(clients=5, size=60, p=p, pairs="disjoint")
    return _scaled(
        scale,
        quick=_digits(fewer),
        standard=Task("cifar100_sample", partition, LeNet(), Mirrored(3000, 40, 40)),
        paper=Task("cifar100", partition, LeNet(), Mirrored(25000, 400, 150)),
    )


@_setting("003/cifar10")
def _adaptive_cifar10(scale: str, p: float = 0.6) -> Task | None:
    """Adaptive expert models: 500 examples per client, two majority classes make up p."""
    held = Mirrored(pool=5000, validation=100, test=100)
    return _scaled(
        scale,
        quick=_digits(Majority(clients=10, size=40, p=p)),
        standard=Task("cifar10", Majority(clients=50, size=500, p=p), MIDDLE, held),
        paper=Task("cifar10", Majority(clients=50, size=500, p=p), CLUSTER, held),
    )


@_setting("003/rotated_cifar10")
def _adaptive_rotated(scale: str, orientations: int = 2) -> Task | None:
    """Adaptive expert models and IFCA: every group of clients sees all images, turned its way."""
    if orientations not in (2, 4):
        raise ValueError(f"orientations must be 2 or 4, got {orientations}")
    angles = tuple(360.0 / orientations * i for i in range(orientations))

    def turned(clients: int, size: int) -> Rotated:
        each = IID(clients=clients // orientations, size=size)
        return Rotated(Repeated(each, orientations), angles, alpha=None)

    test = Mirrored(pool=2000, validation=100, test=100, source="test")
    return _scaled(
        scale,
        quick=_digits(turned(20, 60)),
        standard=Task("cifar10", turned(20, 200), LeNet(), test, portion=0.4),
        paper=Task("cifar10", turned(200, 500), IFCA, test),
    )


@_setting("003/femnist")
def _adaptive_femnist(scale: str) -> Task | None:
    """Adaptive expert models: one client per writer, 182 of them."""
    return _scaled(
        scale,
        quick=_digits(QuantitySkew(clients=20, alpha=3.0, least=20), OWN_FIFTH),
        standard=Task("mnist", ByColumn("writer_id", clients=40), LeNet(), OWN_FIFTH),
        paper=Task("femnist", ByColumn("writer_id", clients=182), WRITERS, OWN_FIFTH),
    )
