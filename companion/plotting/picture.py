"""The picture of a partition: clients along, classes up, a mark where a client holds a class."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection
from matplotlib.colors import ListedColormap
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

DOTS = 60  # with more clients or classes than that, dots would be too small to compare


def counts_picture(
    counts: np.ndarray, ax: Axes, names: Sequence[str] | None = None,
    most: int | None = None, bar: bool = True,
) -> None:  # fmt: skip
    """Draw counts ``[clients, classes]`` as dots whose area is the count, or as tiles where many.

    ``names`` ``[classes]`` is what the classes are called, ``most`` the count of the largest dot,
    the largest of ``counts`` by default, ``bar`` whether colours are explained. ValueError unless
    there is one name per class.
    """
    clients, classes = counts.shape
    if names is not None and len(names) != classes:
        raise ValueError(f"{len(names)} names for {classes} classes")
    most = max(int(counts.max(initial=0)), 1) if most is None else most
    # The palest colours are left out: a single example should be seen on white.
    colours = ListedColormap(colormaps["viridis_r"](np.linspace(0.15, 1, 256)))
    marks: EllipseCollection | AxesImage
    if max(clients, classes) > DOTS:
        shown = np.ma.masked_equal(counts.T, 0)
        marks = ax.imshow(shown, aspect="auto", origin="lower", cmap=colours, vmin=0, vmax=most)
    else:
        client, label = np.nonzero(counts)
        held = counts[client, label]
        # Ellipses in data coordinates: the largest fills its cell, whatever the cell's shape.
        width = 0.95 * np.sqrt(held / most)
        marks = EllipseCollection(
            width, width, np.zeros_like(width), units="xy", linewidths=0, cmap=colours,
            offsets=np.column_stack([client, label]), offset_transform=ax.transData, array=held,
        )  # fmt: skip
        marks.set_clim(0, most)
        ax.add_collection(marks)
    ax.set(xlim=(-0.6, clients - 0.4), ylim=(-0.6, classes - 0.4), xlabel="client", ylabel="class")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    if names is not None:
        ax.set_yticks(range(classes), names)
    ax.spines[["top", "right"]].set_visible(False)
    if bar:
        ax.figure.colorbar(marks, ax=ax, label="examples", pad=0.01)
