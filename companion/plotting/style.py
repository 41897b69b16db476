"""What all figures share: colours, the line of the baseline, the layout of panels, and saving."""

import re
import sys
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
from companion.inference import LEAST_SEEDS, looked
from companion.sections import DEMONSTRATION
from companion.theme import Dash, theme
from fedlib import paths
from fedrun import files

Drawn = tuple[Figure, pd.DataFrame]
Style = dict[str, Any]
COLUMN, PAGE = 3.5, 7.2  # inches: one and two columns of a journal page
BLIND = sns.color_palette("colorblind")
SHADES = ("#9ecae1", "#3182bd", "#08306b", "#e6550d", "#636363")  # from light to dark, then others
RED, BLUE = "#c0392b", "#2a6fbb"  # wrong and right reconstructions
FORMS = "os^DvPX<>p"  # the marker of each colour of the palette
CALLED = "majority-class baseline"
MISSING = "not trained yet"  # runs that are planned and not stored
FLOOR: Style = {"color": (0.3, 0.3, 0.3), "linestyle": (0, (4, 3)), "linewidth": 0.9}
FLOOR |= {"zorder": 1.5, "label": CALLED}
MARK: Style = {"color": "black", "linestyle": ":", "linewidth": 0.9}
LETTERS, MEDIUM, SMALL = 15, 9.1, 7.6  # letters per inch of a heading; two font sizes in points
# These stay on one line: an effect with its interval and seeds, other text in brackets, a number of
# seeds or rounds, and the value of a parameter.
BRACKETS = re.compile(
    r"([+-][\d.]+ (points )?)?[\[(][^\])]*[\])](, \d+ seeds?)?"
    r"|(\d+ to )?[\d,]+ (seeds?|rounds)|round \d+|\w+ = [\d.]+"
)
INTERVAL = "95% CI: "
CONTRAST = 3.1  # the least contrast ratio of text and a white background
# The labels of quantities whose axes start at 0.
FROM_ZERO = re.compile(r" / |ratio|^clients$|distance|divergence|entropy|sent|least used")
CHOSEN = ("dataset", "seeds", "rounds")  # parameters of a notebook that change its data
UNTRAINED, INITIAL = "did not train", "from the initial model"
CROSSES = {UNTRAINED: "x", INITIAL: "+"}  # the markers of such runs
REAL = "(standard)", "(paper)"  # how the titles of panels of real data end
# How figures and tables call the scales; a title with its rounds needs no scale.
SAID = {
    r" \(standard\)(?=, [\d,]+ rounds)": "",
    r"\(standard\)": "(reduced)",
    r"\(paper\)": "(paper scale)",
    r" \(quick\)": "",
}
MOST_ABSENT = 8  # the most missing methods that a legend lists
What = TypeVar("What")


class Title(str):
    """The title of a panel, and what the figure says of that panel elsewhere.

    Attributes:
        absent: by method, why the panel lacks it, such as "2 of 3 seeds".
        marked: by label, such as `UNTRAINED`, the runs that the panel marks with a cross: their
            method, seed and place.
        looks: how often results were looked at as seeds were added, by the least number of seeds
            for which it holds; intervals in headings are corrected for it, as those of claims are.
    """

    absent: Mapping[str, str]
    marked: Mapping[str, pd.DataFrame]
    looks: Mapping[int, int]

    def __new__(
        cls,
        text: str,
        absent: Mapping[str, str] | None = None,
        marked: Any = None,
        looks: Mapping[int, int] | None = None,
    ) -> "Title":
        """Return a title; strings that are added to it keep these attributes."""
        made = super().__new__(cls, text)
        made.absent = absent or {}
        made.marked = marked or {}
        made.looks = looks or {}
        return made

    def __add__(self, more: str) -> "Title":
        """Return the title followed by more text."""
        return Title(super().__add__(more), self.absent, self.marked, self.looks)


def use_style() -> None:
    """Set the style of all figures: small type, colour-blind palette, no boxes, embedded fonts.

    pandas shows tables with all of their rows and columns, and texts in full.
    """
    for part in ("max_colwidth", "max_rows", "max_columns"):
        pd.set_option(f"display.{part}", None)
    sns.set_theme(context="paper", style="ticks", palette="colorblind", font_scale=0.95)
    plt.style.use(Path(__file__).with_name("look.mplstyle"))


def save(figure: Figure, frame: pd.DataFrame, name: str, scale: str) -> Path:
    """Write a figure as PDF and PNG, and its numbers as CSV, to ``figures/<scale>/<name>``.

    Every scale has a folder of its own, so that a quick run never overwrites a larger one.

    Returns:
        The path of the PNG.
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

    A notebook whose parameters ``dataset``, ``seeds`` or ``rounds`` are set writes to a folder of
    its own below the scale's, whether papermill or JupyterLab runs it. It thus replaces no complete
    figure and no verdict.
    """
    path = paths.figures() / scale / part_of(_parameters()) / f"{name}.csv"
    put_table(path, frame, "the numbers of a figure", float_format="%.6g")
    return path


def part_of(parameters: Mapping[str, object]) -> str:
    """Return the folder of figures with these parameters, such as "seeds=2"; "" for the default.

    Values other than strings and integers are ignored: they are no parameters of a notebook here.
    """
    given = {name: parameters.get(name) for name in CHOSEN}
    return ",".join(f"{n}={v}" for n, v in given.items() if isinstance(v, str | int) and v)


def _parameters() -> Mapping[str, object]:
    """Return the variables of the running notebook, or an empty mapping outside of notebooks."""
    ipython = sys.modules.get("IPython")  # not imported here: training needs no Jupyter
    shell = ipython.get_ipython() if ipython else None
    return shell.user_ns if shell else {}


def title(name: str, scale: str = "") -> str:
    """Return the title of a data set, a paper or a method as readers know it.

    A name may have a title of its own at a ``scale``.
    """
    titles = theme().titles
    return titles.get(f"{name} ({scale})", titles.get(name, name))


def readable(text: str) -> str:
    """Return a title, a heading or a table in which the scales have the names that readers know."""
    for pattern, said in SAID.items():
        text = re.sub(pattern, said, text)
    return text


def look_of(method: str) -> Style:
    """Return a method's colour and line style, which are the same in every figure."""
    if method == theme().floor:
        return {name: FLOOR[name] for name in ("color", "linestyle")}
    unknown = zlib.crc32(method.encode())
    dash: Dash = ("-", "--", "-.", ":")[unknown // 10 % 4]
    place, dash = theme().methods.get(method, (unknown % 10, dash))
    return {"color": BLIND[place], "linestyle": dash}


def legible(colour: Any) -> Sequence[float]:
    """Return a colour, darkened until text in it can be read on white.

    The contrast ratio is that of WCAG 2.2, and at least ``CONTRAST``.
    """
    rgb = np.array(to_rgb(colour))
    while 1.05 / (rgb**2.2 @ (0.2126, 0.7152, 0.0722) + 0.05) < CONTRAST:
        rgb = 0.95 * rgb
    return tuple(rgb)


def form_of(method: str) -> str:
    """Return the marker of a method, which depends on its colour only."""
    return FORMS[BLIND.index(look_of(method)["color"]) if method != theme().floor else 0]


def ordered(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a frame sorted by method, in the order of the theme; others come last."""
    places = _places()
    order = frame["method"].map(places).fillna(len(places)).argsort(kind="stable")
    return frame.iloc[order]


def _places() -> dict[str, int]:
    return {method: i for i, method in enumerate(theme().methods)}


def seeds_of(drawn: pd.DataFrame, what: str = "seed") -> str:
    """Return the number of seeds, or of other runs, behind a panel, such as "2 to 3 seeds"."""
    least, most = int(drawn["seeds"].min()), int(drawn["seeds"].max())
    return f"{most} {what}{'s' * (most > 1)}" if least == most else f"{least} to {most} {what}s"


def finding(
    numbers: pd.DataFrame,
    method: str,
    other: str,
    unit: str,
    looks: Mapping[int, int] | None = None,
) -> str:
    """Return the paired difference of two methods in words: "+1.8 points [0.9, 2.6], 3 seeds".

    That is the mean, its 95% interval and the number of seeds.

    Args:
        numbers: columns method, seed and value.
        method: the method.
        other: the method that is subtracted.
        unit: "points" for accuracies, "" for all else.
        looks: see `Title`.
    """
    wide = numbers.pivot_table("value", "seed", "method").reindex(columns=[method, other])
    gaps = (wide[method] - wide[other]).dropna() * (100 if unit else 1)
    limits, times = (-100, 100) if unit else None, looked(looks or {}, len(gaps))
    mean, low, high = interval(gaps, limits, times)  # as claims have it
    digits = precision((mean, low, high), 1 if unit else 3)
    ends = "" if np.isnan(low) else f" [{low:.{digits}f}, {high:.{digits}f}]"
    seeds = f"{len(gaps)} seed{'s' * (len(gaps) != 1)}"
    sign = "+" * (mean >= 0)
    return f"{sign}{mean:.{digits}f} {unit}".strip() + f"{ends}, {seeds}"


def precision(values: Sequence[float], least: int) -> int:
    """Return the least number of digits, from ``least`` on, at which no value prints as "-0.0"."""

    def lost(digits: int) -> bool:
        return any(v < -1e-6 and not float(f"{v:.{digits}f}") for v in values)

    return next(digits for digits in count(least) if not lost(digits))


def findings(
    panels: Mapping[str, pd.DataFrame], method: str, other: str, x: str = "round",
    unit: str = "points", *, every: bool = False, start: str = "",
) -> str:  # fmt: skip
    """Return one line for the heading of a figure: the `finding` of every panel of real data.

    If no panel has real data, it is that of the last panel with both methods, preferably one with
    ``LEAST_SEEDS`` seeds. All runs count, also those that did not train, as they do for claims. The
    first interval is labelled as a 95% interval.

    Args:
        panels: by title, a frame with columns method, seed, value and ``x``.
        method: the method.
        other: the method that is subtracted.
        x: the column at whose largest value with enough seeds of both methods the difference is
            taken; "" takes all rows.
        unit: "points" for accuracies, "" for all else.
        every: whether panels of demonstrations count as well.
        start: the words before the findings.
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
            here = {where: finding(rows, method, other, unit, getattr(name, "looks", None))}
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
    """Return the rows of two methods at the largest x that they share, and this x.

    At least ``least`` seeds must have both methods there: otherwise no row is returned, and NaN. If
    x is "", all rows are one place.
    """
    place = rows[x] if x else pd.Series(0.0, rows.index)
    methods = rows["method"].groupby([place, rows["seed"]]).nunique()
    pairs = methods[methods == 2].groupby(level=0).size()
    last = pairs.index[pairs >= least].max() if (pairs >= least).any() else float("nan")
    return rows[place == last], last


def marked(name: str) -> Mapping[str, pd.DataFrame]:
    """Return the runs that a panel marks; ``name`` is its title, a `Title` if there are any."""
    return getattr(name, "marked", {})


def mark(ax: Axes, name: str, rows: pd.DataFrame, x: str, y: str) -> None:
    """Draw a cross behind the means for every run that the title of a panel marks.

    Args:
        ax: the panel.
        name: its title.
        rows: columns method, seed, ``x``, ``y``, and the places of runs.
        x: the column of the horizontal coordinate.
        y: the column of the vertical coordinate.
    """
    for label, runs in marked(name).items():
        keys = [c for c in runs.columns if c in rows]
        if len(runs) and len(some := rows.merge(runs[keys].drop_duplicates(), on=keys)):
            look: Style = {"color": "black", "ms": 6, "zorder": 1.9, "label": label}
            ax.plot(some[x], some[y], CROSSES[label], **look)


def parted(frame: pd.DataFrame, column: str = "method") -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows of a frame without those of the baseline, and the baseline's rows."""
    of_floor = frame[column] == theme().floor
    return frame[~of_floor], frame[of_floor]


def draw_floor(
    ax: Axes, level: pd.Series, at: pd.Series | None = None, *, upright: bool = False
) -> None:
    """Draw the mean of the baseline as a line across a panel; nothing if ``level`` is empty.

    Args:
        ax: the panel.
        level: the values of the baseline.
        at: their x, if the baseline depends on it: a curve is drawn then.
        upright: whether the axis of accuracies is the horizontal one.
    """
    if not len(level):
        return
    if at is None or at.isna().all():
        (ax.axvline if upright else ax.axhline)(float(level.mean()), **FLOOR)
    else:
        means = level.groupby(at).mean()
        ax.plot(means.index, means, **FLOOR)


def fit(ax: Axes, values: pd.Series, floor: pd.Series) -> None:
    """Fit the y axis to the values if the baseline lies so far below that it would squeeze them.

    The value of the baseline is then written in the corner.
    """
    low, high = values.min(), values.max()
    if len(floor) and floor.max() < low - (high - low):
        room = 0.08 * (high - low) or 0.05
        ax.set_ylim(low - room, high + room)
        corner: Style = {"transform": ax.transAxes, "color": FLOOR["color"], "fontsize": "x-small"}
        ax.text(0.02, 0.02, f"{CALLED}: {floor.mean():.2f}, below", **corner)


def real_first(names: Iterable[Any]) -> list[Any]:
    """Return the titles of panels in their order, but demonstrations on digits at the end."""
    return sorted(names, key=lambda name: DEMONSTRATION in name)


def draw_panels(
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
    """Draw panels in rows, with one legend and one heading.

    Panels without rows are left out. Those of a mapping are sorted: real data come first.

    Args:
        panels: by title, the data of each panel; or pairs of both, with None for an empty place.
        draw: draws a panel, given its axes, title and data; returns the frame behind it.
        size: the width and height of a panel in inches.
        columns: the number of panels in a row; 0 takes three, or two if there are four panels.
        least: the least width of the figure in inches, which leaves room for the legend.
        room: inches that are added to the height, for the legend.
        left: inches at the left that the names of rows take.
        xlabel: the label of the x axis: below each column if panels share the axis, or else below
            every panel.
        ylabel: the label of the y axis, at the left of each row.
        heading: the heading of the figure; empty for none.
        share: further arguments of ``plt.subplots``.

    Returns:
        The figure, and the frames of all panels with their titles in the column panel.
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
            _break(ax.title, (whole[0] - left) / wide - 0.5)  # the labels of y take half an inch
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
    """Return whether there is nothing to draw: no row in a frame, or in the curve of a cell."""
    frame = getattr(what, "curve", what)
    return isinstance(frame, pd.DataFrame) and not len(frame)


def blank(heading: str = "") -> Drawn:
    """Return a figure that says that its runs are not trained yet, and an empty frame."""
    figure, ax = plt.subplots(figsize=(4.6, 0.8))
    ax.set_axis_off()
    ax.text(0.5, 0.5, MISSING, color="grey", ha="center", va="center")
    finish(figure, heading)
    return figure, pd.DataFrame(columns=["panel"])


def absent_of(titles: Sequence[str]) -> str:
    """Return in words which methods each of the panels lacks and why, a line per panel."""
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
    """Put a heading above a figure, and below it the legend of all that its panels have drawn.

    Methods are in the order of the theme, other entries follow, and the baseline is last.

    Args:
        figure: the figure, whose panels are drawn.
        heading: its lines; a line that ends in a colon, because nothing follows, loses it.
        absent: what the figure lacks (`absent_of`), which is written in grey above the legend.
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
    # As many columns as fit: each needs inches for a handle and for its longest name.
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
    """Break the titles and x labels that leave the figure into lines as wide as their axes.

    The width of axes is known only after the layout of the figure.
    """
    figure.draw_without_rendering()
    for ax in figure.axes:
        for text in (ax.title, ax.xaxis.label):
            box = text.get_window_extent()
            if box.x0 < 0 or box.x1 > figure.bbox.x1:
                _break(text, ax.get_window_extent().width / figure.dpi)


def _break(text: Text, inches: float) -> None:
    """Break a text into lines that fit into a width in inches."""
    text.set_text(in_lines(text.get_text(), inches, float(text.get_fontsize())))


def in_lines(text: str, inches: float, points: float = MEDIUM) -> str:
    """Return a text in lines of at most ``inches``; text in brackets stays on one line."""
    letters = max(int(LETTERS * inches * MEDIUM / points), 8)
    glued = BRACKETS.sub(lambda part: part[0].replace(" ", "\N{NO-BREAK SPACE}"), text)
    how: Style = {"break_long_words": False, "break_on_hyphens": False}
    lines = "\n".join(fill(line, letters, **how) for line in glued.splitlines())
    return lines.replace("\N{NO-BREAK SPACE}", " ")
