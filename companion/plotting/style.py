"""The companion's look, and where figures are saved."""

from __future__ import annotations

import zlib
from pathlib import Path

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from companion.looks import Dash, looks
from companion.scales import SCALES
from fedlib import paths
from fedlib.values import one_of

COLUMN, PAGE = 3.5, 7.2  # inches: one and two columns of a journal page
_BLIND = sns.color_palette("colorblind")
SHADES = ("#9ecae1", "#3182bd", "#08306b", "#e6550d", "#636363")  # light to dark, then others


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
    return looks().titles.get(dataset, dataset)


def look_of(method: str) -> tuple[tuple[float, float, float], Dash]:
    """Return a method's colour and dash, the same in every figure."""
    place, dash = looks().methods.get(method, (zlib.crc32(method.encode()) % 10, "-"))
    return _BLIND[place], dash


def ordered(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame's rows with its methods in the order of their looks, others at the end."""
    place = {method: i for i, method in enumerate(looks().methods)}
    return frame.sort_values(
        "method", key=lambda names: names.map(lambda n: place.get(n, len(place))), kind="stable"
    )


def seeds_of(drawn: pd.DataFrame) -> str:
    """Return how many seeds a drawing has, in words."""
    least, most = int(drawn["seeds"].min()), int(drawn["seeds"].max())
    return f"{most} seed{'s' * (most > 1)}" if least == most else f"{least} to {most} seeds"
