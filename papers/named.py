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
from fedlib.models import Family, FastText, LeNet
from fedlib.partition import ClassDirichlet, Own
from fedlib.tasks.task import Task
from fedlib.values import one_of
from papers.adaptive import settings as adaptive
from papers.fedmix import settings as fedmix
from papers.scaled import SMALL
from papers.specialists import settings as specialists

Setting = Callable[..., Task | None]
_SETTINGS: dict[str, Setting] = {**fedmix.TASKS, **specialists.TASKS, **adaptive.TASKS}
FOUR_LAYERS = LeNet(channels=(32, 64), hidden=(512,))  # 004


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
        quick=None if dataset == "ag_news" else Task("digits", fewer, SMALL, own),
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
