"""Matrices as tiles, the labels of clients, and images."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from companion.plotting import style
from companion.plotting.style import Drawn, Style, draw_panels

NARROWEST = 3.6  # inches: two matrices with labels and a colour bar leave room for titles
LIGHTEST = 0.25  # the shade of a share near 0; the largest share adds 1 to it


def heatmaps(
    matrices: Mapping[str, np.ndarray],
    *,
    rows: Sequence[str] | int,
    xlabel: str = "expert z",
    columns: int = 8,
    first: int = 1,
    scale: str = "probability",
    inches: float = 0.0,
    black: float = 1.0,
    each: bool = False,
    crossed: Mapping[str, np.ndarray] | None = None,
    **labels: Any,
) -> Drawn:
    """Draw matrices ``[items, experts]`` side by side in shades of grey, from white 0 to black 1.

    Args:
        matrices: by title, the matrices.
        rows: the names of the rows, or the number of rows, of which every fifth is then numbered.
        xlabel: the label of the x axis.
        columns: the number of panels in a row.
        first: the number of the first column of a matrix.
        scale: the label of the colour bar.
        inches: the width of a panel; 0 takes one that suits the number of columns.
        black: the value that is black.
        each: whether the shades of a matrix go from its least value to its largest, which are then
            part of its title.
        crossed: for some of the titles, bool of the matrix's shape: tiles that have a red cross.
        labels: as of `style.draw_panels`.

    Returns:
        The figure; columns panel, item, expert and value.
    """
    if isinstance(rows, int):
        rows = [str(i) if i % 5 == 0 else "" for i in range(rows)]
    shade: Style = {"cmap": "Greys", "vmin": 0, "vmax": black, "interpolation": "nearest"}

    def draw(ax: Axes, name: str, m: np.ndarray) -> pd.DataFrame:
        ends: Style = {"vmin": m.min(), "vmax": m.max()} if each else {}
        _tiles(ax, m, first, {**shade, **ends})
        if crossed and name in crossed:
            ax.plot(*np.nonzero(crossed[name].T), "x", color=style.RED, markersize=3.5)
        of = f"\n{m.min():.2f} to {m.max():.2f}" if each else ""
        ax.set_title(name + of, fontsize="small")
        ax.set_yticks(range(len(rows)), rows)
        cells = _cells("item", "expert", value=m)
        return pd.DataFrame({"panel": name, **cells}).assign(expert=cells["expert"] + first)

    wide = min(columns, len(matrices))
    inches = inches or (0.95 if max(m.shape[1] for m in matrices.values()) <= 8 else 2.2)
    high = 0.17 if len(rows) <= 15 or "" not in rows else 0.1  # inches; rows without names are thin
    size = (inches + 0.5 / wide, 0.5 + high * len(rows))
    how: Style = {"ylabel": "label y", "sharey": True, "room": 0.5, **labels}
    figure, drawn = draw_panels(matrices, draw, size, columns=columns, least=NARROWEST, **how)
    for ax in style.lowest(figure.axes, wide):
        ax.set_xlabel(xlabel, fontsize="small")
    if not each:
        _shades_bar(figure, scale)
    return figure, drawn


def _tiles(ax: Axes, m: np.ndarray, first: int, shade: Style) -> None:
    """Draw a matrix; of many columns only some are numbered, beginning with ``first``."""
    ax.imshow(m, aspect="auto", **shade)
    ax.grid(visible=False)
    ticks = range(0, m.shape[1], 1 if m.shape[1] <= 6 else 2 if m.shape[1] <= 8 else 5)
    ax.set_xticks(ticks, [str(k + first) for k in ticks])


def _shades_bar(figure: Figure, scale: str) -> None:
    """Draw the colour bar of the shades that all panels of a figure share."""
    image = figure.axes[0].images[0]
    shrink = min(0.8, 2.2 / figure.get_figheight())
    figure.colorbar(image, ax=figure.axes, label=scale, shrink=shrink, aspect=16, pad=0.02)


def label_sets(
    panels: Mapping[str, tuple[np.ndarray, np.ndarray]],
    names: Sequence[str],
    clients: Sequence[int] | None = None,
    **labels: Any,
) -> Drawn:
    """Draw which labels clients hold and which of them were reconstructed, the panels in a column.

    Shades are the true label shares. A dot is a label that was reconstructed, red if the client
    does not hold it; a red cross is a label that the client holds and that was not reconstructed.

    Args:
        panels: by title, the true label shares ``[clients, classes]`` and the reconstructed label
            sets, bool of the same shape.
        names: the names of the classes.
        clients: the clients' numbers; 0, 1, ... by default.
        labels: as of `style.draw_panels`.

    Returns:
        The figure; columns panel, client, label, true and read.
    """
    count, classes = next(iter(panels.values()))[0].shape
    dot, numbers = 2.2 if count > 40 else 4.0, list(range(count) if clients is None else clients)

    def draw(ax: Axes, name: str, panel: tuple[np.ndarray, np.ndarray]) -> pd.DataFrame:
        truth, read = panel
        held = truth > 0
        shade = np.where(held, LIGHTEST + truth / truth.max(), 0)  # small shares are not white
        ax.imshow(shade.T, cmap="Greys", vmin=0, vmax=1.8, aspect="auto")
        ax.grid(visible=False)
        for label, where, mark, colour in (
            ("recovered from phi, and held", read & held, "o", style.BLUE),
            ("recovered, but not held", read & ~held, "o", style.RED),
            ("held, but not recovered", ~read & held, "x", style.RED),
        ):
            ax.plot(*np.nonzero(where), mark, color=colour, markersize=dot, label=label)
        right = int((read == held).all(1).sum())
        ax.set_title(f"{name}: {right} of {count} label sets are right", fontsize="small")
        ax.set_yticks(range(classes), names, fontsize=6)
        if clients is None:
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        else:
            ax.set_xticks(range(count), [*map(str, numbers)], fontsize=6)
        cells = pd.DataFrame({"panel": name, **_cells("client", "label", true=truth, read=read)})
        return cells.assign(client=cells["client"].map(dict(enumerate(numbers))))

    axes: Style = {"xlabel": "client (grey: its share of each label; white: it has none)"}
    axes |= {"ylabel": "label", "sharex": True, **labels}
    size = (style.PAGE, 0.13 * classes + 0.35)
    return draw_panels(panels, draw, size, columns=1, room=0.9, **axes)


def label_bars(
    truth: np.ndarray, guess: np.ndarray, *, clients: Sequence[int], **labels: Any
) -> Drawn:
    """Draw the true and the reconstructed label shares of every client as pairs of bars.

    Every client has a small panel with the classes from left to right; the left bar of each pair is
    the true share.

    Args:
        truth: the true shares ``[clients, classes]``.
        guess: the reconstructed shares ``[clients, classes]``.
        clients: the numbers of the clients.
        labels: as of `style.draw_panels`.

    Returns:
        The figure; columns client, label, true and reconstructed.
    """
    colours = {"true label shares p(y|s)": style.RED, "reconstructed by the server": style.BLUE}

    def draw(ax: Axes, name: str, shares: np.ndarray) -> pd.DataFrame:
        for k, (label, colour) in enumerate(colours.items()):
            at = np.arange(shares.shape[1]) + 0.4 * k
            ax.bar(at, shares[k], 0.4, color=colour, align="edge", linewidth=0, label=label)
        # Shared axes would look the same, but drawing takes quadratic time in their number.
        ax.set(xticks=[], ylim=(0, max(truth.max(), guess.max())))
        ax.label_outer()
        ax.set_title(f"client\N{NO-BREAK SPACE}{name}", fontsize="small", pad=2)
        return pd.DataFrame()

    wide = 10 if len(clients) > 20 else 5
    pairs = {str(c): np.stack(both) for c, *both in zip(clients, truth, guess, strict=True)}
    size = style.PAGE / wide, min(1.0, 6.2 / wide)
    labels["heading"] = f"{labels.get('heading', '')}; in each panel {truth.shape[1]} classes"
    figure, _ = draw_panels(pairs, draw, size, columns=wide, room=0.9, ylabel="share", **labels)
    cells = _cells("client", "label", true=truth, reconstructed=guess)
    return figure, pd.DataFrame(cells).assign(client=np.asarray(clients)[cells["client"]])


def images(
    pictures: dict[str, list[np.ndarray]], captions: dict[str, list[str]], **labels: Any
) -> Drawn:
    """Draw grey images in rows, each below its caption.

    The smallest value of an image is black, and the largest white.

    Args:
        pictures: by name of the row, its images ``[height, width]``.
        captions: by name of the row, the captions of its images.
        labels: as of `style.draw_panels`.

    Returns:
        The figure; columns row, place and caption.
    """
    wide = max(map(len, pictures.values()))
    cells = [
        (captions[name][i], (name, i, row[i])) if i < len(row) else ("", None)
        for name, row in pictures.items()
        for i in range(wide)
    ]

    def draw(ax: Axes, caption: str, cell: tuple[str, int, np.ndarray]) -> pd.DataFrame:
        name, i, image = cell
        ax.imshow(image, cmap="gray", interpolation="nearest")
        ax.grid(visible=False)
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
        ax.set_title(caption, fontsize="small", pad=2)
        if i == 0:
            ax.set_ylabel(name, rotation=0, ha="right", va="center")
        return pd.DataFrame([(name, i + 1, caption)], columns=["row", "place", "caption"])

    size, least = (0.68, 0.86), 0.9 + 0.68 * wide
    figure, drawn = draw_panels(cells, draw, size, columns=wide, least=least, room=0.4, **labels)
    return figure, drawn.drop(columns="panel")


def partitions(
    counts: Mapping[str, np.ndarray], columns: int = 2, most: int = 0, **labels: Any
) -> Drawn:
    """Draw how many examples of each class every client has, a panel per partition.

    Args:
        counts: by title, the numbers of examples ``[clients, classes]``.
        columns: the number of panels in a row.
        most: the count of the darkest tile in all panels; 0 takes the largest count of each.
        labels: as of `style.draw_panels`.

    Returns:
        The figure; columns panel, client, label and examples.
    """

    def draw(ax: Axes, name: str, each: np.ndarray) -> pd.DataFrame:
        counts_picture(each, ax, most=most, bar="")
        least, largest = each.sum(1).min(), each.sum(1).max()
        size = f"{least:,}" if least == largest else f"{least:,} to {largest:,}"
        ax.set(title=f"{name}\n{len(each)} clients, {size} examples each", xlabel="", ylabel="")
        return pd.DataFrame(_cells("client", "label", examples=each))

    size = style.PAGE / columns, 1.75
    figure, drawn = draw_panels(counts, draw, size, columns=columns, **labels)
    figure.supxlabel("client (colours: examples of a class; white: none)", fontsize="medium")
    figure.supylabel("label", fontsize="medium")
    return figure, drawn


def counts_picture(
    counts: np.ndarray,
    ax: Axes,
    names: Sequence[str] = (),
    most: int = 0,
    bar: str = "examples (white: none)",
) -> None:
    """Draw numbers of examples as tiles; a tile is white if the client has no example of the class.

    Args:
        counts: the numbers of examples ``[clients, classes]``. The first class is at the top.
        ax: where to draw.
        names: the names of the classes; numbers by default.
        most: the count of the darkest tile; 0 takes the largest of ``counts``.
        bar: the label of the colour bar.
    """
    clients, classes = counts.shape
    most = max(most or int(counts.max(initial=0)), 2)
    # The palest colours are left out, so that a single example can be seen on white.
    colours = ListedColormap(colormaps["viridis_r"](np.linspace(0.15, 1, 256)))
    shown = np.ma.masked_equal(counts.T, 0)  # masked tiles are white
    marks = ax.imshow(shown, aspect="auto", cmap=colours, vmin=1, vmax=most)
    ax.grid(visible=False)
    ax.set(xlim=(-0.6, clients - 0.4), ylim=(classes - 0.4, -0.6), xlabel="client", ylabel="class")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    if names:
        ax.set_yticks(range(classes), names)
    ax.figure.colorbar(marks, ax=ax, label=bar, pad=0.01)


def _cells(row: str, column: str, **matrices: np.ndarray) -> dict[str, np.ndarray]:
    """Return matrices of one shape as columns: the row and column of each entry, and its values."""
    rows, columns = np.indices(next(iter(matrices.values())).shape)
    places = {row: rows.ravel(), column: columns.ravel()}
    return {**places, **{name: m.ravel() for name, m in matrices.items()}}
