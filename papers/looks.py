"""How methods and data sets look in every figure of the papers."""

from companion.looks import Dash, Looks
from papers import fedmix, pm_moe
from papers.adaptive import experiments as adaptive
from papers.scaled import LOCAL, MAJORITY, TUNED
from papers.specialists import analysis
from papers.specialists.experiments import MIXTURE, SMALL

# A place in the colour-blind palette, and a dash; in the order of legends.
METHODS: dict[str, tuple[int, Dash]] = {
    fedmix.FEDAVG: (7, "--"),
    fedmix.WIDE[2]: (7, ":"),
    fedmix.WIDE[4]: (7, "-."),
    fedmix.BIASED: (1, "--"),
    fedmix.EPOCH: (9, "--"),
    fedmix.TRAINED: (0, "-"),
    fedmix.LOCAL_GLOBAL: (4, "--"),
    fedmix.FEDMIX: (0, "-"),
    fedmix.with_experts(2): (9, "-"),
    fedmix.with_experts(8): (5, "-"),
    fedmix.with_experts(10): (6, "-"),
    fedmix.with_experts(16): (3, "-"),
    fedmix.PRUNING: (2, "-"),
    fedmix.with_pruning(0.5): (2, "--"),
    fedmix.with_pruning(0.1): (2, ":"),
    fedmix.TEN_PRUNED: (6, "--"),
    fedmix.BIAS: (3, "-"),
    LOCAL: (1, "-."),
    TUNED: (2, "-"),
    MIXTURE: (0, "-"),
    SMALL: (9, "-"),
    adaptive.MOE: (0, "-"),
    adaptive.EAGER: (9, "-"),
    adaptive.ALL_EQUAL: (4, "-"),
    adaptive.BEST: (3, "-"),
    "FedProx": (1, "--"),
    "SCAFFOLD": (2, "-."),
    "MOON": (4, ":"),
    "FedGen": (9, (0, (6, 1))),
    "FedPer": (0, "-"),
    "FedRep": (9, "-"),
    "FedBABU": (2, "-"),
    pm_moe.UNTUNED: (2, ":"),
    "FedRoD": (3, "-"),
    "FedCP": (4, (0, (5, 1))),
    "GPFL": (1, (0, (3, 1, 1, 1))),
    "LG-FedAvg": (5, "-."),
    "FedGH": (6, "-."),
    "DBE": (8, "-"),
    "bound": (0, "-"),
    "exact": (7, "-"),
    "drawn": (3, ":"),
    fedmix.BY_LABEL: (0, "-"),
    fedmix.BY_ANGLE: (2, "-"),
    fedmix.DENSITIES: (2, "-"),
    fedmix.ENSEMBLE: (1, "-."),
    fedmix.UNREGULARISED: (2, (0, (5, 1))),
    fedmix.ORIGINAL: (4, ":"),
    fedmix.CENTRALISED: (3, ":"),
}
METHODS |= {f"{m} {pm_moe.WITH_MOE}": METHODS[m] for m in pm_moe.NINE}
_EXPLORING = (adaptive.MOE, adaptive.EAGER, adaptive.ALL_EQUAL, adaptive.BEST, TUNED)
METHODS |= {f"{m}, no exploration": (METHODS[m][0], (0, (2, 1))) for m in _EXPLORING}
METHODS |= {"K = 3": (0, "-"), "K = 4": (1, "--"), "K = 5": (4, "-.")}
# What is no method, and drawn beside its like.
METHODS |= {fedmix.SHARED: (1, "-"), fedmix.BETWEEN: (0, "-")}
METHODS |= {
    f"{skew}, {of}": (i, dash)
    for i, skew in enumerate(analysis.SKEWS)
    for of, dash in zip(analysis.LOSSES, (":", "-"), strict=True)
}
TITLES = {
    "000": "FedMix",
    "001": "Local and global experts",
    "002": "Local and global experts, first version",
    "003": "Adaptive experts",
    "004": "PM-MoE",
    "digits": "Digits",
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "cifar100_sample": "CIFAR-100, a sample",
    "tiny_imagenet": "Tiny-ImageNet",
    "femnist": "FEMNIST",
    "ag_news": "AG News",
    fedmix.TURNED: "Rotation",
    fedmix.TURNED_AND_SKEWED: "Rotation and labels",
    "permuted_digits": "Digits, permuted labels",
    "permuted_cifar10": "CIFAR-10, permuted labels",
    "two_class_digits": "Digits, two classes per client",
    "two_class_mnist": "MNIST, two classes per client",
    "rotated_digits": "Rotated digits",
    "rotated_cifar10": "Rotated CIFAR-10",
    "uneven_digits": "Uneven digits",
    "writers": "Writers",
}
LOOKS = Looks(METHODS, TITLES, floor=MAJORITY)
