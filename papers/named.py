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
from dataclasses import replace
from typing import Any

from companion.scales import SCALES
from fedlib.models import MLP, Family, FastText, LeNet, ResNet, fedmix_lenet5
from fedlib.partition import (
    IID,
    ByColumn,
    ClassDirichlet,
    Dirichlet,
    LabelPermuted,
    Mirrored,
    Own,
    Pachinko,
    QuantitySkew,
    Request,
    Rotated,
    Shards,
)
from fedlib.tasks.augment import CropFlip
from fedlib.tasks.task import Task
from fedlib.values import one_of
from papers.adaptive import settings as adaptive
from papers.scaled import FEW, OWN_FIFTH
from papers.specialists import settings as specialists

Setting = Callable[..., Task | None]
_SETTINGS: dict[str, Setting] = {}

# The networks of the papers, and small ones for the smaller scales.
SMALL = LeNet(channels=(8, 8), hidden=(32,))
FOUR_LAYERS = LeNet(channels=(32, 64), hidden=(512,))  # 004
OWN_TENTHS = Own(test=0.1, validation=0.1)


def names() -> tuple[str, ...]:
    """The settings that ``named`` knows."""
    return tuple(_SETTINGS)


def about(name: str) -> str:
    """What a setting is, in one line, with its options and their defaults."""
    one_of("task", name, _SETTINGS)
    said = " ".join((inspect.getdoc(_SETTINGS[name]) or "").split())
    options = ", ".join(f"{n}={default!r}" for n, default in options_of(name).items())
    return said + (f" [{options}]" if options else "")


def options_of(name: str) -> dict[str, Any]:
    """The options of a setting and their defaults."""
    one_of("task", name, _SETTINGS)
    known = inspect.signature(_SETTINGS[name]).parameters.values()
    return {p.name: p.default for p in known if p.name != "scale"}


def scales_of(name: str) -> tuple[str, ...]:
    """The scales that a setting has: texts have no quick one."""
    one_of("task", name, _SETTINGS)
    return tuple(scale for scale in SCALES if _SETTINGS[name](scale) is not None)


def named(name: str, scale: str = "quick", **options: Any) -> Task:
    """The task of a setting at a scale; ValueError for names, scales and options it has not."""
    one_of("scale", scale, SCALES)
    for option in options:
        one_of(f"option of {name}", option, options_of(name))
    one_of("task", name, _SETTINGS)
    task = _SETTINGS[name](scale, **options)
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


def _private_parts(
    scale: str,
    dataset: str,
    shared: float,
    *,
    sample: str = "",
    model: Family = FOUR_LAYERS,
    less: Family = LeNet(),  # noqa: B008, a value
) -> Task | None:
    """PFLlib's partition: train and test together, 75% of a client's examples for training.

    At the standard scale the partition is the paper's, and only the training parts are smaller:
    a share of the data as a whole would be dealt to another federation.
    """
    skew, own = ClassDirichlet(shared=shared), Own(test=0.25, validation=0.1, merge=True)
    fewer, fifth = ClassDirichlet(clients=10, shared=shared), replace(own, train=0.2)
    return _scaled(
        scale,
        quick=None if dataset == "ag_news" else _digits(fewer, own),
        standard=Task(sample or dataset, skew, less, own if sample else fifth),
        paper=Task(dataset, skew, model, own),
    )


@_setting("004/mnist")
def _private_mnist(scale: str, shared: float = 0.0) -> Task | None:
    """PM-MoE: every class Dir(0.1) over 20 clients; a ratio of each class is shared equally."""
    return _private_parts(scale, "mnist", shared)


@_setting("004/fashion_mnist")
def _private_fashion_mnist(scale: str, shared: float = 0.0) -> Task | None:
    """004/mnist on Fashion-MNIST."""
    return _private_parts(scale, "fashion_mnist", shared)


@_setting("004/cifar10")
def _private_cifar10(scale: str, shared: float = 0.0) -> Task | None:
    """004/mnist on CIFAR-10."""
    return _private_parts(scale, "cifar10", shared)


@_setting("004/cifar100")
def _private_cifar100(scale: str, shared: float = 0.0) -> Task | None:
    """004/mnist on CIFAR-100."""
    return _private_parts(scale, "cifar100", shared, sample="cifar100_sample")


@_setting("004/tiny_imagenet")
def _private_tiny_imagenet(scale: str, shared: float = 0.0) -> Task | None:
    """004/mnist on Tiny-ImageNet with its correct labels, 550 images of each class."""
    sample = "tiny_imagenet_sample"
    return _private_parts(scale, "tiny_imagenet", shared, sample=sample)


@_setting("004/ag_news")
def _private_ag_news(scale: str, shared: float = 0.0) -> Task | None:
    """004/mnist on news of four classes, with fastText."""
    return _private_parts(scale, "ag_news", shared, model=FastText(), less=FastText())


_SETTINGS |= {**specialists.TASKS, **adaptive.TASKS}
