"""The companion's look, and where figures are saved."""

from __future__ import annotations

import zlib
from pathlib import Path

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from companion.scales import SCALES
from fedlib import paths
from fedlib.values import one_of
from papers import recipes
from papers.fedmix import clusters
from papers.specialists import analysis as specialists

COLUMN, PAGE = 3.5, 7.2  # inches: one and two columns of a journal page
_BLIND = sns.color_palette("colorblind")
SHADES = ("#9ecae1", "#3182bd", "#08306b", "#e6550d", "#636363")  # light to dark, then others
Dash = str | tuple[int, tuple[int, ...]]
METHODS: dict[str, tuple[tuple[float, float, float], Dash]] = {
    recipes.FEDAVG: (_BLIND[7], "--"),
    recipes.WIDE[2]: (_BLIND[7], ":"),
    recipes.WIDE[4]: (_BLIND[7], "-."),
    recipes.BIASED: (_BLIND[1], "--"),
    recipes.EPOCH: (_BLIND[9], "--"),
    recipes.TRAINED: (_BLIND[0], "-"),
    recipes.LOCAL_GLOBAL: (_BLIND[4], "--"),
    recipes.FEDMIX: (_BLIND[0], "-"),
    recipes.with_experts(2): (_BLIND[9], "-"),
    recipes.with_experts(8): (_BLIND[5], "-"),
    recipes.with_experts(10): (_BLIND[6], "-"),
    recipes.with_experts(16): (_BLIND[3], "-"),
    recipes.PRUNING: (_BLIND[2], "-"),
    recipes.with_pruning(0.5): (_BLIND[2], "--"),
    recipes.with_pruning(0.1): (_BLIND[2], ":"),
    recipes.TEN_PRUNED: (_BLIND[2], "-"),
    recipes.BIAS: (_BLIND[3], "-"),
    recipes.LOCAL: (_BLIND[1], "-."),
    recipes.TUNED: (_BLIND[2], "-"),
    recipes.MIXTURE: (_BLIND[0], "-"),
    recipes.SMALL: (_BLIND[9], "-"),
    recipes.MOE: (_BLIND[0], "-"),
    recipes.EAGER: (_BLIND[9], "-"),
    recipes.ALL_EQUAL: (_BLIND[4], "-."),
    recipes.BEST: (_BLIND[3], "-"),
    **{
        f"{method}, no exploration": (_BLIND[place], (0, (2, 1)))
        for method, place in (
            (recipes.MOE, 0),
            (recipes.EAGER, 9),
            (recipes.ALL_EQUAL, 4),
            (recipes.BEST, 3),
            (recipes.TUNED, 2),
        )
    },
    "FedProx": (_BLIND[1], "--"),
    "SCAFFOLD": (_BLIND[2], "--"),
    "MOON": (_BLIND[4], "--"),
    "FedGen": (_BLIND[3], "--"),
    "FedPer": (_BLIND[0], "-"),
    "FedRep": (_BLIND[9], "-"),
    "FedBABU": (_BLIND[2], "-"),
    recipes.UNTUNED: (_BLIND[2], ":"),
    "FedRoD": (_BLIND[3], "-"),
    "FedCP": (_BLIND[4], "-"),
    "GPFL": (_BLIND[1], "-"),
    "LG-FedAvg": (_BLIND[5], "-."),
    "FedGH": (_BLIND[6], "-."),
    "DBE": (_BLIND[8], "-"),
    "bound": (_BLIND[0], "-"),
    "exact": (_BLIND[7], "-"),
    "drawn": (_BLIND[3], ":"),
    recipes.BY_LABEL: (_BLIND[0], "-"),
    recipes.BY_ANGLE: (_BLIND[2], "-"),
    recipes.DENSITIES: (_BLIND[2], "-"),
    recipes.ENSEMBLE: (_BLIND[1], "-."),
    recipes.UNREGULARISED: (_BLIND[2], (0, (5, 1))),
    recipes.ORIGINAL: (_BLIND[4], ":"),
    recipes.CENTRALISED: (_BLIND[3], ":"),
}
METHODS |= {f"{m} {recipes.WITH_MOE}": METHODS[m] for m in recipes.NINE}
# What is no method, and drawn beside its like.
METHODS |= {clusters.SHARED: (_BLIND[1], "-"), clusters.BETWEEN: (_BLIND[0], "-")}
METHODS |= {
    f"{skew}, {of}": (_BLIND[i], dash)
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


def use_style() -> None:
    """Set the companion's look: small type, colour-blind palette, no boxes, embedded fonts."""
    sns.set_theme(context="paper", style="ticks", palette="colorblind", font_scale=0.95)
    mpl.rcParams.update(
        {
            "axes.spines.right": False,
            "axes.spines.top": False,
            "axes.titlesize": "medium",
            "figure.dpi": 110,
            "savefig.dpi": 200,
            "legend.frameon": False,
            "pdf.fonttype": 42,
            "figure.constrained_layout.use": True,
        }
    )


def save(figure: Figure, frame: pd.DataFrame, name: str, scale: str) -> Path:
    """Write ``figures/<scale>/<name>`` as PDF, PNG and the CSV behind it; return the PNG's path.

    Scales have folders of their own, so that a quick run never overwrites a larger one.
    """
    numbers = save_table(frame, name, scale)
    figure.savefig(numbers.with_suffix(".pdf"), metadata={"CreationDate": None})
    figure.savefig(numbers.with_suffix(".png"), metadata={"Software": None})
    return numbers.with_suffix(".png")


def save_table(frame: pd.DataFrame, name: str, scale: str) -> Path:
    """Write a frame as ``figures/<scale>/<name>.csv``; return its path."""
    one_of("scale", scale, SCALES)
    folder = paths.figures() / scale
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.csv"
    frame.to_csv(path, index=False, float_format="%.6g", lineterminator="\n")
    return path


def title(dataset: str) -> str:
    """Return a data set's name as people write it."""
    return TITLES.get(dataset, dataset)


def look_of(method: str) -> tuple[tuple[float, float, float], Dash]:
    """Return a method's colour and dash, the same in every figure."""
    return METHODS.get(method, (_BLIND[zlib.crc32(method.encode()) % 10], "-"))


def ordered(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame's rows with its methods in the order of ``METHODS``, others at the end."""
    place = {method: i for i, method in enumerate(METHODS)}
    return frame.sort_values(
        "method", key=lambda names: names.map(lambda n: place.get(n, len(place))), kind="stable"
    )


def seeds_of(drawn: pd.DataFrame) -> str:
    """Return how many seeds a drawing has, in words."""
    least, most = int(drawn["seeds"].min()), int(drawn["seeds"].max())
    return f"{most} seed{'s' * (most > 1)}" if least == most else f"{least} to {most} seeds"
