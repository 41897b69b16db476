"""The settings of FedMix (000) at three scales: tasks, and what is run of each section on them.

``quick`` runs on scikit-learn's digits in minutes, ``standard`` on the papers' data with fewer
rounds and a smaller model, ``paper`` is the paper's own setting.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from companion.sections import SCALES, Setting
from fedlib import partition as parts
from fedlib.models import MLP, LeNet, ResNet, fedmix_lenet5
from fedlib.partition import IID, ByColumn, Dirichlet, LabelPermuted, Mirrored, Rotated
from fedlib.tasks import CropFlip, Task
from papers import fedmix as names
from papers.scaled import FEW, OWN_FIFTH, OWN_TENTHS, SMALL, Row, merged, scaled, side_by_side

SKEW = Dirichlet(clients=100, alpha=1.0, size=450)


def _task(scale: str, dataset: str, few: Any, some: Any, all_: Any = None) -> Task:
    """Return a task by the partitions of the three scales; the last is ``some`` for None."""
    quick, standard = Task("digits", few, SMALL, FEW), Task(dataset, some, LeNet())
    return scaled(scale, quick, standard, Task(dataset, all_ or some, fedmix_lenet5()))


def cifar10(scale: str) -> Task:
    """FedMix, sec. 4.1: 100 clients with label shares from Dir(1.0), 450 examples each."""
    return _task(scale, "cifar10", Dirichlet(clients=20, alpha=1.0, size=60), SKEW)


def fashion_mnist(scale: str) -> Task:
    """The label skew of 000/cifar10 on Fashion-MNIST, which the paper does not have."""
    here = cifar10(scale)
    return here if scale == "quick" else replace(here, dataset="fashion_mnist")


def cifar100(scale: str) -> Task:
    """FedMix, sec. 4.1: Pachinko allocation to 500 clients; digits have no coarse labels."""
    fewer, test = parts.Pachinko(clients=100, size=100), Mirrored(5000, 20, 50, source="test")
    digits = Task("digits", Dirichlet(clients=30, alpha=0.3, size=40), SMALL, FEW)
    sample = Task("cifar100_sample", fewer, LeNet(), OWN_FIFTH, augment=CropFlip())
    whole = Task("cifar100", parts.Pachinko(), ResNet(), test, augment=CropFlip())
    return scaled(scale, digits, sample, whole)


def femnist(scale: str) -> Task:
    """FedMix, sec. 4.1: one client per writer; digits of unknown writers differ in amount."""
    uneven, writers = parts.QuantitySkew(clients=30, alpha=3.0, least=15), ByColumn("writer_id")
    digits, mnist = Task("digits", uneven, SMALL, OWN_FIFTH), Task("mnist", writers, LeNet())
    whole = Task("femnist", writers, fedmix_lenet5(), OWN_TENTHS)
    return scaled(scale, digits, replace(mnist, held_out=OWN_TENTHS), whole)


def rotated_mnist(scale: str) -> Task:
    """FedMix, sec. 4.2: every digit turned by one of 8 angles, in each client's own shares."""
    few, some = Rotated(IID(clients=20, size=60)), Rotated(IID(clients=100, size=300))
    return _task(scale, "mnist", few, some, Rotated(IID(clients=100)))


def rotated_skewed_mnist(scale: str) -> Task:
    """FedMix, sec. 4.2: rotated MNIST whose clients also differ in their label shares."""
    sizes = ((20, 60), (100, 300), (100, 500))
    return _task(scale, "mnist", *(Rotated(Dirichlet(clients=n, size=size)) for n, size in sizes))


def two_class_mnist(scale: str) -> Task:
    """FedMix, App. F: 100 clients with two shards of one class each."""
    digits = Task("digits", parts.Shards(clients=20), MLP((32,)), FEW)
    return digits if scale == "quick" else Task("mnist", parts.Shards(), MLP())


def permuted_cifar10(scale: str) -> Task:
    """FedMix, sec. 4.3: 20 i.i.d. clients that use one of four label permutations."""
    dealt = (IID(clients=20, size=60), IID(clients=20, size=450), IID(clients=20))
    return _task(scale, "cifar10", *map(LabelPermuted, dealt))


_FIRST = (cifar10, fashion_mnist, cifar100, femnist, rotated_mnist, rotated_skewed_mnist)
TASKS = {f"000/{task.__name__}": task for task in (*_FIRST, two_class_mnist, permuted_cifar10)}

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
# A round costs what its experts cost: K = 10 and 16 would take a CPU as long as six and a half of
# the others, K = 4.
_MANY = ((names.TEN, 0), (names.with_experts(16), 0))
# One seed of each method for now: four methods take a core about four hours.
ONE_SEED = tuple((m, 1) for m in (names.FEDAVG, names.BIASED, names.FEDMIX, names.ENSEMBLE))


def _dense(task: Any, width: int = 64) -> Row:
    """Return a task at the three scales; quick ones train a cohort in one program."""
    return replace(task("quick"), model=MLP((width,))), task("standard"), task("paper")


_sides = partial(side_by_side, Setting)
_CIFAR: Row = ("digits", "cifar10", "cifar10")
# fmt: off
_USUAL: dict[str, Row] = {
    #                  quick     standard   paper
    "rounds":         (120,      300,       2000),
    "seeds":          (3,        3,         3),
    "cohort":         (5,        10,        10),
    "batch_size":     (20,       64,        64),
    "server_rate":    (5e-3,     1e-3,      1e-3),
    "phi_rate":       (0.05,     0.03,      1e-3),
    "evaluate_every": (10,       20,        20),
}
_CIFAR10: dict[str, Row] = {
    **_USUAL,
    # Six units are too few for ten digits, and enough for the two or three of one expert.
    "task":           _dense(cifar10, 6),
    "epochs":         (12,       5,         5),
}
_FASHION: dict[str, Row] = {
    **_CIFAR10,
    "task":           (*map(fashion_mnist, SCALES),),
    "rounds":         (None,     200,       2000),
    "seeds":          (None,     5,         3),
}
_CIFAR100: dict[str, Row] = {
    **_USUAL,
    "task":           (*map(cifar100, SCALES),),
    "rounds":         (None,     120,       2000),
    "seeds":          (None,     5,         3),
    "batch_size":     (None,     20,        20),
    "server_rate":    (None,     3e-3,      1e-3),
}
_FEMNIST: dict[str, Row] = {
    **_CIFAR100,
    "task":           (*map(femnist, SCALES),),
    "rounds":         (None,     150,       4000),
}
ABLATION = _sides(_CIFAR, {
    **_CIFAR10,
    "costly":         ((),       _MANY,     ()),
})
LONG = _sides(_CIFAR, {
    **_CIFAR10,
    "rounds":         (120,      2000,      2000),
    "phi_rate":       (0.05,     1e-3,      1e-3),
    "evaluate_every": (10,       50,        20),
    "costly":         ((),       ONE_SEED,      ()),
})
_ROTATED: dict[str, Row] = {
    **_USUAL,
    "task":           _dense(rotated_mnist),
    "rounds":         (150,      150,       2000),
    "seeds":          (3,        5,         3),
    "server_rate":    (1e-2,     5e-3,      1e-3),
    "phi_rate":       (0.05,     0.1,       1e-3),
    "evaluate_every": (15,       10,        20),
}
# Ten rounds at the paper's rate would move no weight of the digits' network by more than 0.01; at
# the standard scale 450 examples per client and not 2,500 take more and larger steps a round.
PERMUTED = _sides(("permuted_digits", "permuted_cifar10", "permuted_cifar10"), {
    "task":           _dense(permuted_cifar10),
    "rounds":         (20,       15,        50),
    "seeds":          (3,        5,         3),
    "cohort":         (1.0,      1.0,       1.0),
    "batch_size":     (20,       20,        64),
    "server_rate":    (1e-2,     1e-2,      1e-3),
    "evaluate_every": (2,        1,         1),
    "local_epochs":   (3,        3,         3),
    "costly":         (((names.SLOWER, 0),), (), ()),
})
# An auto-encoder per client takes a CPU longer than all else.
NEW_CLIENTS = _sides(tuple(VAE), {
    **_USUAL,
    "task":           (*map(two_class_mnist, SCALES),),
    "rounds":         (100,      200,       600),
    "server_rate":    (5e-3,     3e-3,      1e-3),
    "costly":         ((),       ((names.DENSITIES, 1),), ()),
})
# fmt: on

PRIVACY = _sides(_CIFAR, _CIFAR10)
LABEL_SKEW = merged(PRIVACY, _sides((None, "fashion_mnist", "fashion_mnist"), _FASHION))
COMMUNICATION = merged(
    PRIVACY,
    _sides((None, "cifar100", "cifar100"), _CIFAR100),
    _sides((None, "femnist", "femnist"), _FEMNIST),
)
ROTATED = merged(
    _sides((names.TURNED,) * 3, _ROTATED),
    _sides((names.TURNED_AND_SKEWED,) * 3, {**_ROTATED, "task": _dense(rotated_skewed_mnist)}),
)
