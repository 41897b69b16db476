"""One style, one function per kind of figure. Draws tidy frames and never trains.

Every function returns the figure and the frame behind it; ``save`` writes both.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedlib import paths, recipes
from fedlib.claims.rule import LEAST_SEEDS
from fedlib.frames import bands
from fedlib.partition.picture import counts_picture
from fedlib.values import one_of

COLUMN, PAGE = 3.5, 7.2  # inches: one and two columns of a journal page
_BLIND = sns.color_palette("colorblind")
METHODS: dict[str, tuple[tuple[float, float, float], str]] = {
    recipes.FEDAVG: (_BLIND[7], "--"),
    recipes.FEDMIX: (_BLIND[0], "-"),
    recipes.ENSEMBLE: (_BLIND[1], "-."),
    recipes.UNREGULARISED: (_BLIND[2], (0, (5, 1))),  # type: ignore[dict-item]
    recipes.ORIGINAL: (_BLIND[4], ":"),
    recipes.CENTRALISED: (_BLIND[3], ":"),
}
TITLES = {
    "digits": "Digits",
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
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
    one_of("scale", scale, recipes.SCALES)
    folder = paths.figures() / scale
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.pdf", metadata={"CreationDate": None})
    figure.savefig(folder / f"{name}.png", metadata={"Software": None})
    frame.to_csv(folder / f"{name}.csv", index=False, float_format="%.6g", lineterminator="\n")
    return folder / f"{name}.png"


def title(dataset: str) -> str:
    """Return a data set's name as people write it."""
    return TITLES.get(dataset, dataset)


def label_counts(
    counts: np.ndarray, names: Sequence[str], heading: str = "", most: int | None = None
) -> tuple[Figure, pd.DataFrame]:
    """Draw who holds which labels, ``counts [clients, classes]``, one row per label.

    ``most`` is the count of the largest dot, the largest of ``counts`` by default.
    """
    figure, ax = plt.subplots(figsize=(PAGE, 0.22 * counts.shape[1] + 1.0))
    counts_picture(counts, names, ax, most)
    ax.set(ylabel="label", title=heading)
    return figure, _cells(counts)


def partitions(counts: Mapping[str, np.ndarray], columns: int = 2) -> tuple[Figure, pd.DataFrame]:
    """Draw several partitions, ``counts [clients, classes]`` by title, each with dots of its own.

    In every panel the largest dot is its largest count.
    """
    high = -(-len(counts) // columns)
    figure, axes = plt.subplots(high, columns, figsize=(PAGE, 1.75 * high), squeeze=False)
    for ax, (name, each) in zip(axes.flat, counts.items(), strict=False):
        counts_picture(each, ax=ax, bar=False)
        least, most = each.sum(1).min(), each.sum(1).max()
        size = f"{least:,} each" if least == most else f"{least:,} to {most:,}"
        ax.set_title(f"{name}: {len(each)} clients, {size}")
        ax.set(xlabel="", ylabel="")
    for ax in axes.flat[len(counts) :]:
        ax.set_visible(False)
    figure.supxlabel("client", fontsize="medium")
    figure.supylabel("label", fontsize="medium")
    frames = [_cells(each).assign(panel=name) for name, each in counts.items()]
    return figure, pd.concat(frames, ignore_index=True)


def _cells(counts: np.ndarray) -> pd.DataFrame:
    client, label = np.indices(counts.shape)
    cells = {"client": client.ravel(), "label": label.ravel(), "examples": counts.ravel()}
    return pd.DataFrame(cells)


def curves(
    panels: Mapping[str, pd.DataFrame],
    *,
    ylabel: str,
    xlabel: str = "communication round",
    band: bool = True,
    heading: str = "",
    share_y: bool = False,
    at: Sequence[float] = (),
) -> tuple[Figure, pd.DataFrame]:
    """Draw curves by method, one panel each: the mean over seeds and its 95% interval.

    With fewer than three seeds no interval is drawn: it would be wider than the figure. ``at`` are
    rounds to mark with a dotted line, one per panel.

    ``panels`` maps a panel's title to a frame with columns method, seed, round and value.
    """
    figure, axes = plt.subplots(
        1, len(panels), figsize=(max(COLUMN * len(panels), 4.6), 2.7), squeeze=False, sharey=share_y
    )
    frames = []
    for ax, (panel, curve) in zip(axes[0], panels.items(), strict=True):
        drawn = bands(curve)
        for method, rows in drawn.groupby("method", sort=False):
            _curve(ax, str(method), rows.sort_values("round"), band)
        ax.set(xlabel=xlabel, title=f"{panel}, {_seeds(drawn)}")
        frames.append(drawn.assign(panel=panel))
    for ax, mark in zip(axes[0], at, strict=False):
        ax.axvline(mark, color="black", linestyle=":", linewidth=0.8)
    axes[0][0].set_ylabel(ylabel)
    _legend(figure, axes[0], heading)
    return figure, pd.concat(frames, ignore_index=True)


def heatmaps(
    matrices: Mapping[str, np.ndarray],
    *,
    rows: Sequence[str],
    ylabel: str = "label y",
    xlabel: str = "expert z",
    heading: str = "",
    columns: int = 8,
    first: int = 1,
    scale: str = "probability",
) -> tuple[Figure, pd.DataFrame]:
    """Draw matrices of probabilities ``[items, experts]`` side by side, white 0 to black 1.

    ``first`` is the number of the first column and ``scale`` names what the shades mean.
    """
    wide = min(columns, len(matrices))
    high = -(-len(matrices) // wide)
    inches = 0.95 if max(m.shape[1] for m in matrices.values()) <= 8 else 2.2
    figure, axes = plt.subplots(
        high,
        wide,
        figsize=(0.5 + inches * wide, (0.5 + 0.17 * len(rows)) * high + 0.5),
        squeeze=False,
        sharey=True,
    )
    frames = []
    for ax, (name, m) in zip(axes.flat, matrices.items(), strict=False):
        image = ax.imshow(m, cmap="Greys", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        ax.set_title(name, fontsize="small")
        step = 1 if m.shape[1] <= 8 else 5
        ax.set_xticks(
            range(0, m.shape[1], step), [str(k + first) for k in range(0, m.shape[1], step)]
        )
        ax.set_yticks(range(len(rows)), rows)
        item, expert = np.indices(m.shape)
        cells = {
            "panel": name,
            "item": item.ravel(),
            "expert": expert.ravel() + first,
            "value": m.ravel(),
        }
        frames.append(pd.DataFrame(cells))
    for ax in axes.flat[len(matrices) :]:
        ax.set_visible(False)
    for ax in axes[:, 0]:
        ax.set_ylabel(ylabel)
    for ax in axes[-1]:
        ax.set_xlabel(xlabel, fontsize="small")
    figure.colorbar(image, ax=axes, label=scale, shrink=0.8, pad=0.02)
    if heading:
        figure.suptitle(heading, fontsize="medium")
    return figure, pd.concat(frames, ignore_index=True)


def points(
    frame: pd.DataFrame, x: str, *, ylabel: str, heading: str = "", log: bool = False
) -> tuple[Figure, pd.DataFrame]:
    """Draw every run and the mean with its 95% interval, by method and ``x``.

    ``frame`` has columns method, seed, value and the one that ``x`` names.
    """
    drawn = bands(frame, by=(x, "method"))
    methods = list(dict.fromkeys(frame["method"]))
    places = list(dict.fromkeys(frame[x]))
    figure, ax = plt.subplots(figsize=(min(PAGE, 2.4 + 1.8 * len(places)), 2.6))
    for j, method in enumerate(methods):
        at = {
            d: i + (j - (len(methods) - 1) / 2) * 0.8 / len(methods) for i, d in enumerate(places)
        }
        _points(
            ax, method, at, x, frame[frame["method"] == method], drawn[drawn["method"] == method]
        )
    crowded = len(places) > 6
    ax.set_xticks(range(len(places)), places, rotation=30 if crowded else 0)
    ax.set_xlim(-0.6, len(places) - 0.4)
    ax.set(ylabel=ylabel, yscale="log" if log else "linear")
    ax.grid(axis="y", alpha=0.3)
    _legend(figure, [ax], heading)
    return figure, drawn


def look_of(method: str) -> tuple[tuple[float, float, float], str]:
    """Return a method's colour and dash, the same in every figure."""
    return METHODS.get(method, (_BLIND[zlib.crc32(method.encode()) % 10], "-"))


def _seeds(drawn: pd.DataFrame) -> str:
    least, most = int(drawn["seeds"].min()), int(drawn["seeds"].max())
    return f"{most} seed{'s' * (most > 1)}" if least == most else f"{least} to {most} seeds"


def _curve(ax: Axes, method: str, rows: pd.DataFrame, band: bool) -> None:
    colour, dash = look_of(method)
    ax.plot(rows["round"], rows["mean"], color=colour, linestyle=dash, label=method, linewidth=1.6)
    if band and rows["seeds"].max() >= LEAST_SEEDS:
        ax.fill_between(
            rows["round"], rows["low"], rows["high"], color=colour, alpha=0.18, linewidth=0
        )


def _points(
    ax: Axes, method: str, at: dict[str, float], x: str, runs: pd.DataFrame, drawn: pd.DataFrame
) -> None:
    colour, _ = look_of(method)
    centre = drawn[x].map(at).to_numpy(dtype=float)
    half = ((drawn["high"] - drawn["low"]) / 2).where(drawn["seeds"] >= LEAST_SEEDS).to_numpy()
    ax.errorbar(
        centre,
        drawn["mean"],
        yerr=half,
        fmt="o",
        color=colour,
        capsize=3,
        label=method,
        markersize=5,
    )
    ax.plot(runs[x].map(at), runs["value"], "_", color=colour, alpha=0.6, markersize=9)


def _legend(figure: Figure, axes: Sequence[Axes], heading: str) -> None:
    handles, labels = axes[0].get_legend_handles_labels()
    across = 2 if figure.get_figwidth() < 6 else 4
    figure.legend(handles, labels, loc="outside lower center", ncols=min(across, len(labels)))
    if heading:
        figure.suptitle(heading, fontsize="medium")
