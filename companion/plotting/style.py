"""What all figures share: colours, the floor's line, fields side by side, where they are saved."""

import os
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from io import BytesIO
from itertools import count
from pathlib import Path
from textwrap import fill
from typing import Any, TypeVar

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from companion.frames import interval, put_table
from companion.inference import LEAST_SEEDS
from companion.sections import DEMONSTRATION
from companion.theme import Dash, theme
from fedlib import paths
from fedrun import files

Drawn = tuple[Figure, pd.DataFrame]
Style = dict[str, Any]
COLUMN, PAGE = 3.5, 7.2  # inches: one and two columns of a journal page
BLIND = sns.color_palette("colorblind")
SHADES = ("#9ecae1", "#3182bd", "#08306b", "#e6550d", "#636363")  # light to dark, then others
RED, BLUE = "#c0392b", "#2a6fbb"  # what is wrong, and what is right
FORMS = "os^DvPX<>p"  # a colour of the palette has its form
CALLED = "majority-class baseline"
FLOOR: Style = {"color": (0.3, 0.3, 0.3), "linestyle": (0, (4, 3)), "linewidth": 0.9}
FLOOR |= {"zorder": 1.5, "label": CALLED}
MARK: Style = {"color": "black", "linestyle": ":", "linewidth": 0.9}
LETTERS, MEDIUM, SMALL = 15, 9.1, 7.6  # of a heading to the inch; its size in points, and a smaller
# An interval with its effect and seeds, what else is in brackets, how many seeds, a round, and a
# parameter's value stay on one line.
BRACKETS = re.compile(
    r"([+-][\d.]+ (points )?)?[\[(][^\])]*[\])](, \d+ seeds?)?"
    r"|[\d,]+ (seeds?|rounds)|round \d+|\w+ = [\d.]+"
)
INTERVAL = "95% CI: "
CONTRAST = 3.1  # of letters with white, at least
# The labels of quantities, whose axes start at 0.
FROM_ZERO = re.compile(r" / |ratio|^clients$|distance|divergence|entropy|sent|least used")
PART = "FEDLIB_PART"
UNTRAINED, INITIAL = "did not train", "from the initial model"
CROSSES = {UNTRAINED: "x", INITIAL: "+"}  # of marked runs
REAL = "(standard)", "(paper)"  # the end of a title of real data
# How figures call the scales, as tables of claims do; whoever names rounds has said enough.
SAID = {
    r" \(standard\)(?=, [\d,]+ rounds)": "",
    r"\(standard\)": "(reduced)",
    r"\(paper\)": "(paper scale)",
    r" \(quick\)": "",
}
MOST_ABSENT = 8  # methods that a legend lists as missing
What = TypeVar("What")


class Title(str):
    """The title of a field, and what a figure marks in it.

    ``absent`` tells by method why it is not there, as "2 of 3 seeds"; ``marked`` has by what is
    said of runs, as of those that did not train, their method, seed, and where they stand.
    """

    absent: Mapping[str, str]
    marked: Mapping[str, pd.DataFrame]

    def __new__(
        cls, text: str, absent: Mapping[str, str] | None = None, marked: Any = None
    ) -> "Title":
        """Return a title; what is added to it is still the title of the same field."""
        made = super().__new__(cls, text)
        made.absent = absent or {}
        made.marked = marked or {}
        return made

    def __add__(self, more: str) -> "Title":
        """Return the title followed by more words."""
        return Title(super().__add__(more), self.absent, self.marked)


def use_style() -> None:
    """Set the companion's look: small type, colour-blind palette, no boxes, embedded fonts.

    Tables show all rows and columns, and words whole.
    """
    for part in ("max_colwidth", "max_rows", "max_columns"):
        pd.set_option(f"display.{part}", None)
    sns.set_theme(context="paper", style="ticks", palette="colorblind", font_scale=0.95)
    plt.style.use(Path(__file__).with_name("look.mplstyle"))


def save(figure: Figure, frame: pd.DataFrame, name: str, scale: str) -> Path:
    """Write ``figures/<scale>/<name>`` as PDF, PNG and the CSV behind it; return the PNG's path.

    Scales have folders of their own, so that a quick run never overwrites a larger one.
    """
    numbers = save_table(frame, name, scale)
    put = partial(figure.savefig, format="pdf", metadata={"CreationDate": None})
    files.write(numbers.with_suffix(".pdf"), put, "the figure")
    return save_picture(figure, numbers.with_suffix(".png"))


def save_picture(figure: Figure, path: Path) -> Path:
    """Write a figure as a PNG of few colours; return its path."""
    png = BytesIO()
    figure.savefig(png, format="png")
    small = of_few_colours(png.getvalue())
    files.write(path, partial(Path.write_bytes, data=small), "the figure")
    return path


def of_few_colours(png: bytes) -> bytes:
    """Return a PNG with 16 levels of each primary colour and a palette: a quarter of the size.

    Nearly all of the thousands of colours of a figure are shades of smoothed edges. The same levels
    for all pictures keep grey lines grey, and white and the colours of methods the same everywhere.
    """
    with Image.open(BytesIO(png)) as image:
        levels = [round(shade / 17) * 17 for shade in range(256)]
        coarse, file = image.convert("RGB").point(levels * 3), BytesIO()
        small = coarse.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        small.save(file, "png", optimize=True, dpi=image.info.get("dpi", (72, 72)))
    return min(png, file.getvalue(), key=len)


def save_table(frame: pd.DataFrame, name: str, scale: str) -> Path:
    """Write a frame as ``figures/<scale>/<name>.csv``; return its path.

    In a folder there that $FEDLIB_PART names, if it is set: what is drawn of one data set, or of
    other seeds or rounds than a scale's own, takes no whole figure's and no verdicts' place.
    """
    path = paths.figures() / scale / os.environ.get(PART, "") / f"{name}.csv"
    put_table(path, frame, "the numbers of a figure", float_format="%.6g")
    return path


def title(name: str, scale: str = "") -> str:
    """Return the name of a data set, a paper or a method as people write it.

    At a ``scale`` if it has another one there.
    """
    titles = theme().titles
    return titles.get(f"{name} ({scale})", titles.get(name, name))


def readable(text: str) -> str:
    """Return a title or heading with the names of scales as people know them."""
    for pattern, said in SAID.items():
        text = re.sub(pattern, said, text)
    return text


def look_of(method: str) -> Style:
    """Return a method's colour and dash, the same in every figure."""
    if method == theme().floor:
        return {name: FLOOR[name] for name in ("color", "linestyle")}
    unknown = zlib.crc32(method.encode())
    dash: Dash = ("-", "--", "-.", ":")[unknown // 10 % 4]
    place, dash = theme().methods.get(method, (unknown % 10, dash))
    return {"color": BLIND[place], "linestyle": dash}


def legible(colour: Any) -> Sequence[float]:
    """Return a colour, darkened until its contrast with white is enough for letters (WCAG 2.2)."""
    rgb = np.array(to_rgb(colour))
    while 1.05 / (rgb**2.2 @ (0.2126, 0.7152, 0.0722) + 0.05) < CONTRAST:
        rgb = 0.95 * rgb
    return tuple(rgb)


def form_of(method: str) -> str:
    """Return a method's marker: the same for methods of one colour."""
    return FORMS[BLIND.index(look_of(method)["color"]) if method != theme().floor else 0]


def ordered(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame's rows with its methods in the order of the theme, others at the end."""
    places = _places()
    order = frame["method"].map(places).fillna(len(places)).argsort(kind="stable")
    return frame.iloc[order]


def _places() -> dict[str, int]:
    return {method: i for i, method in enumerate(theme().methods)}


def seeds_of(drawn: pd.DataFrame, what: str = "seed") -> str:
    """Return how many seeds, or other runs, a drawing has, in words."""
    least, most = int(drawn["seeds"].min()), int(drawn["seeds"].max())
    return f"{most} {what}{'s' * (most > 1)}" if least == most else f"{least} to {most} {what}s"


def finding(numbers: pd.DataFrame, method: str, other: str, unit: str) -> str:
    """Return by how much a method differs from another on the same seeds, in words.

    The effect, its 95% interval and the seeds: "+1.8 points [0.9, 2.6], 3 seeds". ``numbers`` has
    columns method, seed and value; of accuracies the ``unit`` is points, of others "".
    """
    wide = numbers.pivot_table("value", "seed", "method").reindex(columns=[method, other])
    gaps = (wide[method] - wide[other]).dropna() * (100 if unit else 1)
    mean, low, high = interval(gaps, (-100, 100) if unit else None)  # as claims have it
    digits = precision((mean, low, high), 1 if unit else 3)
    ends = "" if np.isnan(low) else f" [{low:.{digits}f}, {high:.{digits}f}]"
    seeds = f"{len(gaps)} seed{'s' * (len(gaps) != 1)}"
    sign = "+" * (mean >= 0)
    return f"{sign}{mean:.{digits}f} {unit}".strip() + f"{ends}, {seeds}"


def precision(values: Sequence[float], least: int) -> int:
    """Return with how many digits, ``least`` or more, none of the values is a negative zero."""

    def lost(digits: int) -> bool:
        return any(v < -1e-6 and not float(f"{v:.{digits}f}") for v in values)

    return next(digits for digits in count(least) if not lost(digits))


def findings(
    panels: Mapping[str, pd.DataFrame], method: str, other: str, x: str = "round",
    unit: str = "points", *, every: bool = False, start: str = "",
) -> str:  # fmt: skip
    """Return a heading of one line: the ``finding`` of every real data set with both methods.

    Where no name tells of real data it is that of the last panel with both methods, of enough seeds
    if there is one, or of ``every`` panel. It is at the largest ``x`` that enough seeds of both
    have, or of all rows where ``x`` is "". All runs count, as for the claims, also those that did
    not train. The first interval has its name. What is told follows ``start``.
    """
    real, told, most = dict[str, str](), dict[str, str](), 0
    for name, rows in panels.items():
        rows = rows[rows["method"].isin([method, other])]
        least = min(LEAST_SEEDS, rows["seed"].nunique())
        rows, last = _at_the_end(rows, x, least)
        if rows["method"].nunique() == 2:
            where = name if len(panels) > 1 else ""
            if x not in ("", "round"):
                where += f"{', ' * bool(where)}{x} = {last:g}"
            where = re.sub(r" \((paper .*?)\)", r", \1", readable(where.replace(" (standard)", "")))
            where = where.replace("\n", ", ")
            here = {where: finding(rows, method, other, unit)}
            real |= here if every or name.endswith(REAL) else {}
            seeds = min(LEAST_SEEDS, rows["seed"].nunique())
            told, most = (here, seeds) if seeds >= most else (told, most)
    shown = [*(real or told).items()]
    each = [f"{how.rpartition(',')[0]} ({where})" for where, how in shown]  # titles have seeds
    method, other = (CALLED if m == theme().floor else title(m) for m in (method, other))
    line = f"{method} minus {other}: {'; '.join(each)}"
    if len(shown) < 2:
        line = "".join(f"{method} minus {other}{f' ({p})' * bool(p)}: {how}" for p, how in shown)
    return start * bool(line) + line.replace(" [", f" [{INTERVAL}", 1)


def _at_the_end(rows: pd.DataFrame, x: str, least: int) -> tuple[pd.DataFrame, float]:
    """Return the rows of two methods at the largest x, and that: of all of them if x is "".

    None where the methods have fewer than the ``least`` seeds in common.
    """
    place = rows[x] if x else pd.Series(0.0, rows.index)
    methods = rows["method"].groupby([place, rows["seed"]]).nunique()
    pairs = methods[methods == 2].groupby(level=0).size()
    last = pairs.index[pairs >= least].max() if (pairs >= least).any() else float("nan")
    return rows[place == last], last


def marked(name: str) -> Mapping[str, pd.DataFrame]:
    """Return the runs of a field that are marked; ``name`` is its title, which knows a panel's."""
    return getattr(name, "marked", {})


def mark(ax: Axes, name: str, rows: pd.DataFrame, x: str, y: str) -> None:
    """Mark those runs of a field of which something is to be said, behind its means.

    ``name`` is its title; ``rows`` have columns method, seed, x, y, and places of runs.
    """
    for label, runs in marked(name).items():
        keys = [c for c in runs.columns if c in rows]
        if len(runs) and len(some := rows.merge(runs[keys].drop_duplicates(), on=keys)):
            look: Style = {"color": "black", "ms": 6, "zorder": 1.9, "label": label}
            ax.plot(some[x], some[y], CROSSES[label], **look)


def parted(frame: pd.DataFrame, column: str = "method") -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return a frame without the floor's rows, and these."""
    of_floor = frame[column] == theme().floor
    return frame[~of_floor], frame[of_floor]


def draw_floor(
    ax: Axes, level: pd.Series, at: pd.Series | None = None, *, upright: bool = False
) -> None:
    """Draw the floor's mean as a line across a field, or as a curve over ``at`` where it differs.

    ``upright`` where accuracies go to the right. Nothing where the floor was not run.
    """
    if not len(level):
        return
    if at is None or at.isna().all():
        (ax.axvline if upright else ax.axhline)(float(level.mean()), **FLOOR)
    else:
        means = level.groupby(at).mean()
        ax.plot(means.index, means, **FLOOR)


def fit(ax: Axes, values: pd.Series, floor: pd.Series) -> None:
    """Fit the axis of y to values where the floor lies so far below that it would squeeze them.

    The floor is then a number in the corner.
    """
    low, high = values.min(), values.max()
    if len(floor) and floor.max() < low - (high - low):
        room = 0.08 * (high - low) or 0.05
        ax.set_ylim(low - room, high + room)
        corner: Style = {"transform": ax.transAxes, "color": FLOOR["color"], "fontsize": "x-small"}
        ax.text(0.02, 0.02, f"{CALLED}: {floor.mean():.2f}, below", **corner)


def real_first(names: Iterable[Any]) -> list[Any]:
    """Return the names of fields in their order, those of demonstrations on digits at the end."""
    return sorted(names, key=lambda name: DEMONSTRATION in name)


def fields(
    panels: Mapping[str, What] | Sequence[tuple[str, What | None]],
    draw: Callable[[Axes, str, What], pd.DataFrame],
    size: tuple[float, float],
    *,
    columns: int = 0,
    least: float = 4.6,
    room: float = 0.0,
    left: float = 0.0,
    xlabel: str = "",
    ylabel: str = "",
    heading: str = "",
    **share: Any,
) -> Drawn:
    """Draw fields in rows of ``columns``, three by default, with one legend and heading.

    Of a mapping the fields of real data come first.

    ``draw(ax, name, what)`` draws one of the ``panels``, whose name is its title, and returns the
    frame behind it; nothing is drawn where there is none, or a frame has no rows. A field's
    ``size`` is width and height in inches; the figure is at least so wide, for the legend's sake,
    and has some ``room`` below, and to the ``left``, for the names of rows.
    Labels of y stand at the left, of x below if fields share it. Returns the figure and all frames,
    with a column panel.
    """
    given: list[tuple[str, Any]]
    if isinstance(panels, Mapping):
        names = [name for name, what in panels.items() if not _empty(what)]
        given = [(name, panels[name]) for name in real_first(names)]
    else:
        given = [(name, None if _empty(what) else what) for name, what in panels]
    if not any(what is not None for _, what in given):
        return blank(heading)
    wide = min(columns or (2 if len(given) == 4 else 3), len(given))
    high = -(-len(given) // wide)
    whole = (max(size[0] * wide, least), size[1] * high + room)
    share = {"squeeze": False, "layout": "constrained", **share}
    figure, axes = plt.subplots(high, wide, figsize=whole, **share)
    drawn = []
    given += [("", None)] * (axes.size - len(given))
    for ax, (name, what) in zip(axes.flat, given, strict=True):
        ax.set_visible(what is not None)
        if what is not None:
            ax.set_title(name)
            ax.grid(alpha=0.25)
            drawn.append(draw(ax, name, what).assign(panel=name))
            ax.title.set_text(readable(ax.get_title()))
            _break(ax.title, (whole[0] - left) / wide - 0.5)  # it begins beside the labels
    for ax in (lowest(axes.flat, wide) if "sharex" in share else axes.flat) if xlabel else ():
        ax.set_xlabel(xlabel)
        ax.tick_params(axis="x", labelbottom=True)
    for ax in axes[:, 0] if ylabel else ():
        ax.set_ylabel(ylabel)
    for label in (ax.yaxis.label for ax in axes.flat):
        if label.get_rotation():
            _break(label, size[1] - 0.9)
    finish(figure, heading, absent_of([name for name, _ in given]))
    return figure, pd.concat(drawn, ignore_index=True)


def lowest(axes: Iterable[Axes], wide: int) -> list[Axes]:
    """Return the lowest visible panel of each column of a grid that is ``wide`` columns wide.

    The last row may have fewer panels than the others: its other axes are hidden.
    """
    columns = {i % wide: ax for i, ax in enumerate(axes) if ax.get_visible()}
    return [*columns.values()]


def _empty(what: Any) -> bool:
    """Return whether there is nothing to draw: a frame, or a cell's curve, without rows."""
    frame = getattr(what, "curve", what)
    return isinstance(frame, pd.DataFrame) and not len(frame)


def blank(heading: str = "") -> Drawn:
    """Return a figure that tells that its runs are still to be trained, and an empty frame."""
    figure, ax = plt.subplots(figsize=(4.6, 0.8))
    ax.set_axis_off()
    ax.text(0.5, 0.5, "not trained yet", color="grey", ha="center", va="center")
    finish(figure, heading)
    return figure, pd.DataFrame(columns=["panel"])


def absent_of(titles: Sequence[str]) -> str:
    """Return in words which methods the fields with these titles lack, and why, a line each."""
    lines = []
    for title in dict.fromkeys(t for t in titles if getattr(t, "absent", {})):
        whys: dict[str, list[str]] = {}
        for method, why in title.absent.items():  # type: ignore[attr-defined]
            whys.setdefault(why, []).append(method)
        told = [
            f"{why}: {'; '.join(of[:MOST_ABSENT])}"
            + f"; and {len(of) - MOST_ABSENT} more" * (len(of) > MOST_ABSENT)
            for why, of in whys.items()
        ]
        lines.append(f"{title}, {'. '.join(told)}")
    return "\n".join(lines)


def finish(figure: Figure, heading: str = "", absent: str = "") -> None:
    """Put ``heading`` above a figure and below it a legend of what its fields have drawn.

    Methods are in the order of the theme, then comes what else was drawn; the floor is last.
    Above them stands in grey what is ``absent``. A heading's line does not end with the colon of
    what nothing is told of.
    """
    inches = figure.get_figwidth()
    told = [line.rstrip(" ,:") for line in readable(heading).splitlines()]
    size = MEDIUM if max(map(len, told), default=0) <= LETTERS * inches else SMALL
    if heading := "\n".join(in_lines(line, inches, size) for line in told if line):
        figure.suptitle(heading, fontsize=size)
    known: dict[str, Any] = {}
    for ax in figure.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            known.setdefault(label, handle)
    places = _places()
    names = sorted(known, key=lambda name: (name == CALLED, places.get(name, len(places))))
    if not names and not absent:
        _keep_inside(figure)
        return
    # As many columns as fit: of each a handle, and letters of its longest name, in inches.
    columns = max(len(names), 1)
    while columns > 2 and inches < sum(
        0.6 + 0.065 * max(len(title(name)) for name in column)
        for column in np.array_split(names, columns)
    ):
        columns -= 1
    columns = -(-len(names) // -(-len(names) // columns)) if names else 1  # of equal lengths
    above = "\n".join(in_lines(line, inches, SMALL) for line in readable(absent).splitlines())
    how: Style = {"loc": "outside lower center", "ncols": columns, "title_fontsize": "small"}
    handles, called = [known[name] for name in names], [title(name) for name in names]
    legend = figure.legend(handles, called, title=above or None, **how)
    legend.get_title().set_color("grey")
    _keep_inside(figure)


def _keep_inside(figure: Figure) -> None:
    """Break titles and labels of x that leave the figure into lines as wide as their axes.

    How much of a figure its axes take is only known once it is laid out.
    """
    figure.draw_without_rendering()
    for ax in figure.axes:
        for text in (ax.title, ax.xaxis.label):
            box = text.get_window_extent()
            if box.x0 < 0 or box.x1 > figure.bbox.x1:
                _break(text, ax.get_window_extent().width / figure.dpi)


def _break(text: Text, inches: float) -> None:
    """Break a text into lines that have room in so many inches."""
    text.set_text(in_lines(text.get_text(), inches, float(text.get_fontsize())))


def in_lines(text: str, inches: float, points: float = MEDIUM) -> str:
    """Return a text in lines of at most so many inches; what is in brackets stays on one line."""
    letters = max(int(LETTERS * inches * MEDIUM / points), 8)
    glued = BRACKETS.sub(lambda part: part[0].replace(" ", "\N{NO-BREAK SPACE}"), text)
    how: Style = {"break_long_words": False, "break_on_hyphens": False}
    lines = "\n".join(fill(line, letters, **how) for line in glued.splitlines())
    return lines.replace("\N{NO-BREAK SPACE}", " ")
