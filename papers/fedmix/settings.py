"""The settings of FedMix (000) at three scales: tasks, and what is run of each section on them.

``quick`` runs on scikit-learn's digits in minutes, ``standard`` on the papers' data with fewer
rounds and a smaller model, ``paper`` is the paper's own setting. What a smaller scale changes is
written beside it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from companion.sections import Setting
from fedlib.models import MLP, LeNet, ResNet, fedmix_lenet5
from fedlib.partition import (
    IID,
    ByColumn,
    Dirichlet,
    LabelPermuted,
    Mirrored,
    Pachinko,
    QuantitySkew,
    Rotated,
    Shards,
)
from fedlib.tasks import CropFlip, Task
from papers.fedmix import (
    BIASED,
    DENSITIES,
    ENSEMBLE,
    FEDAVG,
    FEDMIX,
    SLOWER,
    TEN,
    TURNED,
    TURNED_AND_SKEWED,
    with_experts,
)
from papers.scaled import FEW, OWN_FIFTH, OWN_TENTHS, SMALL

SKEW = Dirichlet(clients=100, alpha=1.0, size=450)


def cifar10(scale: str) -> Task:
    """FedMix, sec. 4.1: 100 clients with label shares from Dir(1.0), 450 examples each."""
    return {
        "quick": Task("digits", Dirichlet(clients=20, alpha=1.0, size=60), SMALL, FEW),
        "standard": Task("cifar10", SKEW, LeNet()),
        "paper": Task("cifar10", SKEW, fedmix_lenet5()),
    }[scale]


def fashion_mnist(scale: str) -> Task:
    """The label skew of 000/cifar10 on Fashion-MNIST, which the paper does not have."""
    return {
        "quick": cifar10("quick"),
        "standard": Task("fashion_mnist", SKEW, LeNet()),
        "paper": Task("fashion_mnist", SKEW, fedmix_lenet5()),
    }[scale]


def cifar100(scale: str) -> Task:
    """FedMix, sec. 4.1: Pachinko allocation to 500 clients; digits have no coarse labels."""
    fewer, test = Pachinko(clients=100, size=100), Mirrored(5000, 20, 50, source="test")
    return {
        "quick": Task("digits", Dirichlet(clients=30, alpha=0.3, size=40), SMALL, FEW),
        "standard": Task("cifar100_sample", fewer, LeNet(), OWN_FIFTH, augment=CropFlip()),
        "paper": Task("cifar100", Pachinko(), ResNet(), test, augment=CropFlip()),
    }[scale]


def femnist(scale: str) -> Task:
    """FedMix, sec. 4.1: one client per writer; digits of unknown writers differ in amount."""
    uneven = QuantitySkew(clients=30, alpha=3.0, least=15)
    return {
        "quick": Task("digits", uneven, SMALL, OWN_FIFTH),
        "standard": Task("mnist", ByColumn("writer_id"), LeNet(), OWN_TENTHS),
        "paper": Task("femnist", ByColumn("writer_id"), fedmix_lenet5(), OWN_TENTHS),
    }[scale]


def rotated(scale: str) -> Task:
    """FedMix, sec. 4.2: every digit turned by one of 8 angles, in each client's own shares."""
    return {
        "quick": Task("digits", Rotated(IID(clients=20, size=60)), SMALL, FEW),
        "standard": Task("mnist", Rotated(IID(clients=100, size=300)), LeNet()),
        "paper": Task("mnist", Rotated(IID(clients=100)), fedmix_lenet5()),
    }[scale]


def rotated_skewed(scale: str) -> Task:
    """FedMix, sec. 4.2: rotated MNIST whose clients also differ in their label shares."""
    return {
        "quick": Task("digits", Rotated(Dirichlet(clients=20, size=60)), SMALL, FEW),
        "standard": Task("mnist", Rotated(Dirichlet(clients=100, size=300)), LeNet()),
        "paper": Task("mnist", Rotated(Dirichlet(clients=100, size=500)), fedmix_lenet5()),
    }[scale]


def two_class(scale: str) -> Task:
    """FedMix, App. F: 100 clients with two shards of one class each."""
    return {
        "quick": Task("digits", Shards(clients=20), MLP((32,)), FEW),
        "standard": Task("mnist", Shards(), MLP()),
        "paper": Task("mnist", Shards(), MLP()),
    }[scale]


def permuted(scale: str) -> Task:
    """FedMix, sec. 4.3: 20 i.i.d. clients that use one of four label permutations."""
    return {
        "quick": Task("digits", LabelPermuted(IID(clients=20, size=60)), SMALL, FEW),
        "standard": Task("cifar10", LabelPermuted(IID(clients=20, size=450)), LeNet()),
        "paper": Task("cifar10", LabelPermuted(IID(clients=20)), fedmix_lenet5()),
    }[scale]


TASKS = {
    "000/cifar10": cifar10,
    "000/fashion_mnist": fashion_mnist,
    "000/cifar100": cifar100,
    "000/femnist": femnist,
    "000/rotated_mnist": rotated,
    "000/rotated_skewed_mnist": rotated_skewed,
    "000/two_class_mnist": two_class,
    "000/permuted_cifar10": permuted,
}

# All clients of a cohort in one program.
DENSE = MLP((64,))
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

LABEL_SKEW = {
    "quick": {
        "digits": Setting(
            cifar10("quick"),
            rounds=120,
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
        "cifar10": Setting(cifar10("standard"), rounds=300, seeds=3, phi_rate=0.03),
        "fashion_mnist": Setting(fashion_mnist("standard"), rounds=200, seeds=5, phi_rate=0.03),
    },
    "paper": {
        "cifar10": Setting(cifar10("paper"), rounds=2000, seeds=3),
        "fashion_mnist": Setting(fashion_mnist("paper"), rounds=2000, seeds=3),
    },
}
_SMALL_BATCHES: dict[str, Any] = {"batch_size": 20, "server_rate": 3e-3, "phi_rate": 0.03}
COMMUNICATION = {
    "quick": LABEL_SKEW["quick"],
    "standard": {
        "cifar10": LABEL_SKEW["standard"]["cifar10"],
        "cifar100": Setting(cifar100("standard"), rounds=120, seeds=5, **_SMALL_BATCHES),
        "femnist": Setting(femnist("standard"), rounds=150, seeds=5, **_SMALL_BATCHES),
    },
    "paper": {
        "cifar10": LABEL_SKEW["paper"]["cifar10"],
        "cifar100": Setting(cifar100("paper"), rounds=2000, seeds=3, batch_size=20),
        "femnist": Setting(femnist("paper"), rounds=4000, seeds=3, batch_size=20),
    },
}
PRIVACY = {
    "quick": LABEL_SKEW["quick"],
    "standard": {"cifar10": LABEL_SKEW["standard"]["cifar10"]},
    "paper": {"cifar10": LABEL_SKEW["paper"]["cifar10"]},
}
ABLATION = {
    **PRIVACY,
    "standard": {
        "cifar10": Setting(
            cifar10("standard"),
            rounds=300,
            seeds=3,
            phi_rate=0.03,
            # Left out for the time that they would take a CPU: a round costs what its experts
            # cost, so that K = 10 and 16 would take as long as six and a half of the others, K = 4.
            costly=((TEN, 0), (with_experts(16), 0)),
        )
    },
}
LONG = {
    **PRIVACY,
    "standard": {
        "cifar10": Setting(
            cifar10("standard"),
            rounds=2000,
            seeds=3,
            evaluate_every=50,
            # One seed of each method for now: four methods take a core about four hours.
            costly=((FEDAVG, 1), (BIASED, 1), (FEDMIX, 1), (ENSEMBLE, 1)),
        )
    },
}
_TURNED = {TURNED: rotated, TURNED_AND_SKEWED: rotated_skewed}
ROTATED = {
    "quick": {
        dataset: Setting(
            replace(task("quick"), model=DENSE),
            rounds=150,
            seeds=3,
            cohort=5,
            batch_size=20,
            server_rate=1e-2,
            phi_rate=0.05,
            evaluate_every=15,
        )
        for dataset, task in _TURNED.items()
    },
    "standard": {
        dataset: Setting(
            task("standard"),
            rounds=150,
            seeds=5,
            server_rate=5e-3,
            phi_rate=0.1,
            evaluate_every=10,
        )
        for dataset, task in _TURNED.items()
    },
    "paper": {
        dataset: Setting(task("paper"), rounds=2000, seeds=3) for dataset, task in _TURNED.items()
    },
}
PERMUTED = {
    "quick": {
        "permuted_digits": Setting(
            # Ten rounds at the paper's rate would move no weight by more than 0.01.
            replace(permuted("quick"), model=DENSE),
            rounds=20,
            seeds=3,
            cohort=1.0,
            batch_size=20,
            server_rate=1e-2,
            evaluate_every=2,
            local_epochs=3,
            costly=((SLOWER, 0),),
        )
    },
    "standard": {
        "permuted_cifar10": Setting(
            permuted("standard"),
            rounds=15,
            seeds=5,
            cohort=1.0,
            # 450 examples per client and not 2,500: more and larger steps in as many rounds.
            batch_size=20,
            server_rate=1e-2,
            evaluate_every=1,
            local_epochs=3,
        )
    },
    "paper": {
        "permuted_cifar10": Setting(
            permuted("paper"),
            rounds=50,
            seeds=3,
            cohort=1.0,
            evaluate_every=1,
            local_epochs=3,
        )
    },
}
NEW_CLIENTS = {
    "quick": {
        "two_class_digits": Setting(
            two_class("quick"),
            rounds=100,
            seeds=3,
            cohort=5,
            batch_size=20,
            server_rate=5e-3,
            phi_rate=0.05,
            evaluate_every=10,
        )
    },
    "standard": {
        "two_class_mnist": Setting(
            two_class("standard"),
            rounds=200,
            seeds=3,
            server_rate=3e-3,
            phi_rate=0.03,
            costly=((DENSITIES, 1),),  # an auto-encoder per client takes a CPU longer than all else
        )
    },
    "paper": {"two_class_mnist_paper": Setting(two_class("paper"), rounds=600, seeds=3)},
}
