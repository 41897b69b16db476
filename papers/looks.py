"""How methods and data sets look in every figure of the papers."""

from __future__ import annotations

from companion.looks import Dash, Looks
from papers import recipes
from papers.claims import clusters, specialists

# A place in the colour-blind palette, and a dash; in the order of legends.
METHODS: dict[str, tuple[int, Dash]] = {
    recipes.FEDAVG: (7, "--"),
    recipes.WIDE[2]: (7, ":"),
    recipes.WIDE[4]: (7, "-."),
    recipes.BIASED: (1, "--"),
    recipes.EPOCH: (9, "--"),
    recipes.TRAINED: (0, "-"),
    recipes.LOCAL_GLOBAL: (4, "--"),
    recipes.FEDMIX: (0, "-"),
    recipes.with_experts(2): (9, "-"),
    recipes.with_experts(8): (5, "-"),
    recipes.with_experts(10): (6, "-"),
    recipes.with_experts(16): (3, "-"),
    recipes.PRUNING: (2, "-"),
    recipes.with_pruning(0.5): (2, "--"),
    recipes.with_pruning(0.1): (2, ":"),
    recipes.TEN_PRUNED: (2, "-"),
    recipes.BIAS: (3, "-"),
    recipes.LOCAL: (1, "-."),
    recipes.TUNED: (2, "-"),
    recipes.MIXTURE: (0, "-"),
    recipes.SMALL: (9, "-"),
    recipes.MOE: (0, "-"),
    recipes.EAGER: (9, "-"),
    recipes.ALL_EQUAL: (4, "-."),
    recipes.BEST: (3, "-"),
    **{
        f"{method}, no exploration": (place, (0, (2, 1)))
        for method, place in (
            (recipes.MOE, 0),
            (recipes.EAGER, 9),
            (recipes.ALL_EQUAL, 4),
            (recipes.BEST, 3),
            (recipes.TUNED, 2),
        )
    },
    "FedProx": (1, "--"),
    "SCAFFOLD": (2, "--"),
    "MOON": (4, "--"),
    "FedGen": (3, "--"),
    "FedPer": (0, "-"),
    "FedRep": (9, "-"),
    "FedBABU": (2, "-"),
    recipes.UNTUNED: (2, ":"),
    "FedRoD": (3, "-"),
    "FedCP": (4, "-"),
    "GPFL": (1, "-"),
    "LG-FedAvg": (5, "-."),
    "FedGH": (6, "-."),
    "DBE": (8, "-"),
    "bound": (0, "-"),
    "exact": (7, "-"),
    "drawn": (3, ":"),
    recipes.BY_LABEL: (0, "-"),
    recipes.BY_ANGLE: (2, "-"),
    recipes.DENSITIES: (2, "-"),
    recipes.ENSEMBLE: (1, "-."),
    recipes.UNREGULARISED: (2, (0, (5, 1))),
    recipes.ORIGINAL: (4, ":"),
    recipes.CENTRALISED: (3, ":"),
}
METHODS |= {f"{m} {recipes.WITH_MOE}": METHODS[m] for m in recipes.NINE}
# What is no method, and drawn beside its like.
METHODS |= {clusters.SHARED: (1, "-"), clusters.BETWEEN: (0, "-")}
METHODS |= {
    f"{skew}, {of}": (i, dash)
    for i, skew in enumerate(specialists.SKEWS)
    for of, dash in zip(specialists.LOSSES, (":", "-"), strict=True)
}
TITLES = {
    "digits": "Digits",
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "cifar100_sample": "CIFAR-100, a sample",
    "tiny_imagenet": "Tiny-ImageNet",
    "femnist": "FEMNIST",
    "ag_news": "AG News",
    recipes.TURNED: "Rotation",
    recipes.TURNED_AND_SKEWED: "Rotation and labels",
    "permuted_digits": "Digits, permuted labels",
    "permuted_cifar10": "CIFAR-10, permuted labels",
    "two_class_digits": "Digits, two classes per client",
    "two_class_mnist": "MNIST, two classes per client",
    "rotated_digits": "Rotated digits",
    "rotated_cifar10": "Rotated CIFAR-10",
    "uneven_digits": "Uneven digits",
    "writers": "Writers",
}
LOOKS = Looks(METHODS, TITLES, floor=recipes.MAJORITY)
