"""Numbers by method: sorted, by place, in rows with their intervals, and beside the baseline."""

from collections.abc import Collection, Mapping, Sequence
from textwrap import fill
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from companion.frames import bands
from companion.inference import CONTRADICTED, EQUAL, HOLDS, OPEN, TRAINING, Z
from companion.plotting import style
from companion.plotting.style import Drawn, Style, draw_panels
from companion.sections import FAITHFUL

PUBLISHED: Style = {"color": "black", "fillstyle": "none"}  # always a circle
UNJUDGED = "#777777"
JUDGED = {"agrees": "#0072b2", "differs": "#d55e00"}  # a colour-blind reader can tell them apart
NO_ROWS = pd.DataFrame(columns=["row", "group"])
LETTER = 0.065  # the width of a letter in the name of a row, in inches
STEPS = [1, 2, 2.5, 5, 10]  # steps between ticks: few, so that labels such as -0.15 have room


def standings(panels: Mapping[str, pd.DataFrame], *, xlabel: str, **labels: Any) -> Drawn:
    """Draw one number per run by method, the best method at the top.

    A dot is a run, and a stroke the mean.

    Args:
        panels: by title, a frame with columns method, seed and value.
        xlabel: the label of the x axis.
        labels: as of `style.draw_panels`.

    Returns:
        The figure, and the mean, interval and number of seeds by method.
    """

    def draw(ax: Axes, name: str, numbers: pd.DataFrame) -> pd.DataFrame:
        drawn = bands(numbers, by=("method",)).sort_values("mean").reset_index(drop=True)
        for place, of in enumerate(drawn.to_dict("records")):
            colour = style.look_of(of["method"])["color"]
            runs = numbers.loc[numbers["method"] == of["method"], "value"]
            ax.plot(runs, [place] * len(runs), "o", color=colour, alpha=0.6, markersize=4)
            ax.plot([of["mean"]], [place], "|", color=colour, markersize=12, markeredgewidth=2)
        places = dict(zip(drawn["method"], drawn.index, strict=True))
        placed = numbers.assign(place=numbers["method"].map(places))
        style.mark(ax, name, placed, "value", "place")
        ax.set_yticks(range(len(drawn)), [style.title(of) for of in drawn["method"]])
        ax.set_ylim(-0.6, len(drawn) - 0.4)
        ax.xaxis.set_major_locator(MaxNLocator(4, steps=STEPS))
        ax.grid(axis="x", alpha=0.25)
        ax.set_title(f"{name}, {style.seeds_of(drawn)}", fontsize="small")
        return drawn

    most = max((frame["method"].nunique() for frame in panels.values()), default=0)
    return draw_panels(panels, draw, (3.6, 0.24 * most + 0.9), xlabel=xlabel, **labels)


def points(
    frame: pd.DataFrame,
    x: str,
    *,
    ylabel: str,
    heading: str = "",
    marks: Mapping[str, float] | None = None,
    mark: str = "",
) -> Drawn:
    """Draw one number per run by method and place: a dot is a run, and a stroke the mean.

    The baseline is a thin line across each place that has one.

    Args:
        frame: columns method, seed, value and ``x``.
        x: the column of places, which are drawn from left to right.
        ylabel: the label of the y axis.
        heading: the heading of the figure.
        marks: by place, the y of a dotted line.
        mark: what the legend calls these lines.

    Returns:
        The figure, and the mean, interval and number of seeds by place and method.
    """
    frame, floor = style.parted(frame)
    drawn, places = bands(frame, by=(x, "method")), list(dict.fromkeys(frame[x]))
    methods = list(dict.fromkeys(style.ordered(frame)["method"]))  # in the order of the legend
    places = style.real_first(places) if x == "panel" else places
    figure, ax = plt.subplots(figsize=(min(style.PAGE, 2.4 + 1.8 * len(places)), 2.6))
    for j, method in enumerate(methods):
        shift = (j - (len(methods) - 1) / 2) * 0.8 / len(methods)
        at = {place: i + shift for i, place in enumerate(places)}
        colour = style.look_of(method)["color"]
        runs, ends = (rows[rows["method"] == method] for rows in (frame, drawn))
        form = style.form_of(method)
        ax.plot(runs[x].map(at), runs["value"], form, color=colour, ms=4, alpha=0.6, label=method)
        ax.plot(ends[x].map(at), ends["mean"], "_", color=colour, ms=13, markeredgewidth=2)
    for i, place in enumerate(places):
        level = floor.loc[floor[x] == place, "value"]
        if len(level):
            ax.plot([i - 0.45, i + 0.45], [level.mean()] * 2, **style.FLOOR)
        if marks and place in marks:
            ax.plot([i - 0.45, i + 0.45], [marks[place]] * 2, label=mark, **style.MARK)
    ax.set_xticks(range(len(places)), places, rotation=30 if len(places) > 6 else 0)
    ax.set(ylabel=ylabel, xlim=(-0.6, len(places) - 0.4))
    ax.grid(axis="y", alpha=0.25)
    style.finish(figure, heading)
    return figure, drawn


def dots(
    panels: Mapping[str, pd.DataFrame],
    *,
    marks: Mapping[str, float] | None = None,
    mark: str = "",
    empty: str = "",
    black: str = "",
    counted: bool = True,
    run: str = "",
    colours: Mapping[str, str] | None = None,
    **labels: Any,
) -> Drawn:
    """Draw means in rows, with their runs or their ranges.

    Rows go from top to bottom, and groups differ by colour and marker. A stroke is a run; where
    runs are single seeds, titles have their number. The baseline is a thin vertical line.

    Args:
        panels: by title, a frame with columns row, group, mean, low and high, and values if the
            ranges are 95% intervals of these values, which are drawn in place of the ranges.
        marks: by title, the x of a dotted line. With it and values, panels do not share their x
            axis unless ``sharex`` says so.
        mark: what the legend calls the dotted line.
        empty: the text in a row of which a panel has nothing.
        black: the group that is drawn as hollow black circles.
        counted: whether the heading counts the intervals beyond ``marks``.
        run: what the legend calls a stroke or a range; by default, a stroke is a single seed.
        colours: the colours of some groups; the others are grey, and the groups of a row share a
            line.
        labels: as of `style.draw_panels`.

    Returns:
        The figure, and the rows of all panels, those of the baseline at the end.
    """
    split = {name: style.parted(frame, "row") for name, frame in panels.items()}
    every = pd.concat([frame for frame, _ in split.values()]) if split else NO_ROWS
    rows, groups = (list(dict.fromkeys(every[c])) for c in ("row", "group"))
    looks, lines = _looks(groups, black, colours), 1 if colours else len(groups)
    shifts = (np.arange(len(groups)) - (lines - 1) / 2) * 0.75 / lines * (lines > 1)
    seeds = "single seeds" * ("values" in every)

    def draw(ax: Axes, name: str, parts: tuple[pd.DataFrame, pd.DataFrame]) -> pd.DataFrame:
        frame, floor = parts
        for (group, look), shift in zip(looks.items(), shifts, strict=True):
            _means(ax, _at(frame[frame["group"] == group], rows, shift), look, group)
        ax.plot([], [], "|" if seeds else "-", color=UNJUDGED, ms=6, label=run or seeds or None)
        _rows(ax, rows, set(rows) - set(frame["row"]), empty)
        if marks and name in marks:
            ax.axvline(marks[name], label=mark, **style.MARK)
        style.draw_floor(ax, floor["mean"], upright=True)
        ax.xaxis.set_major_locator(MaxNLocator(4, steps=STEPS))
        if seeds and not run:
            ax.set_title(f"{name}, {style.seeds_of(_runs(frame))}")
        return frame

    across = min(labels.get("columns", len(panels)), len(panels))
    wide = min(style.PAGE, max(4.6, 1.4 + 2.3 * across)) / max(across, 1)
    tall = (0.19 * lines + 0.12) * len(rows) + 1.3
    share: Style = {"sharex": True, "sharey": True, **labels}
    if marks and seeds:
        told = [labels.get("heading", ""), _beyond(panels, marks, mark) if counted else ""]
        share |= {"sharex": labels.get("sharex", False), "heading": ", ".join(filter(None, told))}
    names = LETTER * max((len(line) for row in rows for line in row.splitlines()), default=0)
    figure, drawn = draw_panels(split, draw, (wide, tall), left=names, **share)
    return figure, _told(drawn, {name: floor for name, (_, floor) in split.items()})


def _runs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers of values of the rows that have several, or else of all rows."""
    counts = rows["values"].map(np.size)
    return counts[counts > 1 if counts.gt(1).any() else counts > 0].to_frame("seeds")


def _told(drawn: pd.DataFrame, floors: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return what is drawn without its single values, and below it the rows of the baseline."""
    there = [floor.assign(panel=name) for name, floor in floors.items() if len(floor)]
    return pd.concat([drawn, *there], ignore_index=True).drop(columns="values", errors="ignore")


def _at(rows: pd.DataFrame, places: Sequence[str], shift: float) -> pd.DataFrame:
    """Return the rows with a column ``at``: the height at which each of them is drawn."""
    return rows.assign(at=[places.index(row) + shift for row in rows["row"]])


def _looks(
    groups: Sequence[str], black: str, colours: Mapping[str, str] | None
) -> dict[str, Style]:
    """Return the colour and the marker of each group.

    If there are few groups, the lightest colours, which are hard to see, are left out.
    """
    shades = style.SHADES[len(groups) - groups.count(black) < 3 :]
    looks: dict[str, Style] = {}
    for j, group in enumerate(groups):
        of = shades[j % len(shades)] if colours is None else colours.get(group, UNJUDGED)
        looks[group] = {"color": of, "marker": style.FORMS[j % len(style.FORMS)]}
        looks[group] |= {"zorder": 1.9} if of == UNJUDGED else {}  # behind the others
    return looks | ({black: {**PUBLISHED, "marker": "o"}} if black in groups else {})


def _means(ax: Axes, rows: pd.DataFrame, look: Style, label: str) -> None:
    """Draw the means of a group, each in its row, with their runs or else their ranges."""
    colour = look["color"]
    if "values" in rows:
        runs = rows[rows["values"].map(np.size) > 1].explode("values")
        ax.plot(runs["values"], runs["at"], "|", color=colour, markersize=6)
    else:
        ax.hlines(rows["at"], rows["low"], rows["high"], color=colour, linewidth=1.3)
    ax.plot(rows["mean"], rows["at"], linestyle="", markersize=4.5, label=label, **look)


def _rows(ax: Axes, rows: Sequence[str], lacking: Collection[str], empty: str) -> None:
    """Name the rows of a panel, separate them by lines, and write ``empty`` in the missing ones."""
    across: Any = ax.get_yaxis_transform()  # x goes from 0 at the left of a panel to 1 at its right
    ax.grid(visible=False, axis="y")
    ax.hlines(np.arange(len(rows) - 1) + 0.5, 0, 1, "0.9", lw=0.6, transform=across)
    for row in lacking:
        middle: Style = {"ha": "center", "va": "center", "transform": across}
        ax.text(0.5, rows.index(row), empty, color="grey", fontsize="small", **middle)
    ax.set_yticks(range(len(rows)), [style.readable(row) for row in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)


def _beyond(panels: Mapping[str, pd.DataFrame], marks: Mapping[str, float], mark: str) -> str:
    """Return in words how many intervals of each group lie wholly above or below their mark.

    Examples are "all 18 intervals lie above 1" and "ours: 3 of 9 intervals lie above 1, 2 below".
    """
    every = pd.concat(
        rows.assign(above=rows["low"] > marks[name], below=rows["high"] < marks[name])
        for name, rows in panels.items()
    )
    told = []
    for name, of in every.dropna(subset="low").groupby("group", sort=False):
        above, below = of["above"].sum(), of["below"].sum()
        sides = {above: f"above {mark}", below: f"below {mark}"}
        mixed = f"{above} of {len(of)} intervals lie above {mark}, {below} below"
        all_of = f"all {len(of)} intervals lie {sides[len(of)]}" if len(of) in sides else mixed
        told.append(f"{name}: {all_of}" if every["group"].nunique() > 1 else all_of)
    return "; ".join(told)


def grouped(
    groups: Mapping[str, np.ndarray], names: Sequence[str], *, ylabel: str, heading: str = ""
) -> Drawn:
    """Draw several numbers of each class: bars for the first group, and markers for the others.

    Args:
        groups: by name, the numbers ``[classes]``.
        names: the names of the classes.
        ylabel: the label of the y axis.
        heading: the heading of the figure.

    Returns:
        The figure; columns group, name and value.
    """
    table = pd.DataFrame(dict(groups), index=pd.Index(names, name="name"))
    figure, ax = plt.subplots(figsize=(style.PAGE, 2.6))
    crowded = max(map(len, names)) > 5
    truth, *guesses = groups
    table[truth].plot.bar(ax=ax, color="0.85", width=0.8, rot=30 if crowded else 0, label=truth)
    for k, group in enumerate(guesses):
        at = np.arange(len(table)) + (k - (len(guesses) - 1) / 2) * 0.7 / len(guesses)
        look: Style = {"color": style.SHADES[k % len(style.SHADES)], "markersize": 4.5}
        ax.plot(at, table[group], style.FORMS[k], label=group, **look)
    ax.axhline(0, color="black", linewidth=0.6)
    ax.set(xlabel="", ylabel=ylabel)
    style.finish(figure, heading)
    long = table.reset_index().melt("name", var_name="group")
    return figure, long[["group", "name", "value"]]


def against_floor(table: pd.DataFrame) -> Drawn:
    """Draw published accuracies by method beside the baseline, a panel per data set and S.

    Accuracies below the baseline are red.

    Args:
        table: columns dataset, S, method, value and floor (the accuracy of the baseline); methods
            are drawn from top to bottom.

    Returns:
        The figure, and the table with the column below: whether a value is less than its floor.
    """
    table = table.assign(below=table["value"] < table["floor"])
    sets, ratios, methods = (list(dict.fromkeys(table[c])) for c in ("dataset", "S", "method"))
    lost: Style = {"label": "published, below the baseline", "marker": "D", "color": style.RED}
    looks = {False: {"label": "published", "marker": "o", **PUBLISHED}, True: lost}

    def draw(ax: Axes, name: str, here: pd.DataFrame) -> pd.DataFrame:
        for below, look in looks.items():
            dots = here[here["below"] == below]
            at = [methods.index(m) for m in dots["method"]]
            ax.plot(dots["value"], at, linestyle="", markersize=4, **look)
        style.draw_floor(ax, here["floor"], upright=True)
        ax.set_title(name, fontsize="small")
        ax.set_yticks(range(len(methods)), methods, fontsize="small")
        ax.set_ylim(len(methods) - 0.5, -0.5)
        return here

    cells = [
        (f"{style.title(d)}, S = {s:g}", table[(table["S"] == s) & (table["dataset"] == d)])
        for s in ratios
        for d in sets
    ]
    size = (style.PAGE / len(sets), 0.17 * len(methods) + 0.5)
    told = f"{table['below'].sum()} of {len(table)} published accuracies"
    share: Style = {"sharex": True, "sharey": True, "xlabel": "accuracy"}
    share["heading"] = f"{told} are below the {style.CALLED}"
    figure, _ = draw_panels(cells, draw, size, columns=len(sets), room=0.6, **share)
    return figure, table


def dumbbells(panels: Mapping[str, pd.DataFrame], **labels: Any) -> Drawn:
    """Draw published and measured numbers at the ends of a line, a row each, the widest gap on top.

    A hollow circle is the published number and a filled one the measured mean: blue if they agree,
    orange if they differ, and grey if that is not judged. Strokes are the runs, a cross is the
    floor.

    Args:
        panels: by title, a frame with columns name, setting (which follows a name that several
            rows have), value (published), mean (measured), values (by seed), floor (NaN for none)
            and verdict.
        labels: as of `style.draw_panels`.

    Returns:
        The figure, and the rows with the column gap, measured minus published.
    """

    def draw(ax: Axes, name: str, numbers: pd.DataFrame) -> pd.DataFrame:
        rows = numbers.assign(gap=numbers["mean"] - numbers["value"])
        rows = rows.sort_values("gap", key=lambda gap: gap.abs()).reset_index(drop=True)
        ax.plot(rows["value"], rows.index, "o", label="published", markersize=5, **PUBLISHED)
        floor = rows["floor"].dropna()
        if len(floor):
            ax.plot(floor, floor.index, "x", color=style.FLOOR["color"], label=style.CALLED)
        for at, of in enumerate(rows.to_dict("records")):
            judged = of["verdict"] in JUDGED
            look: Style = {"color": JUDGED.get(of["verdict"], UNJUDGED), "zorder": 1}
            ax.plot([of["value"], of["mean"]], [at, at], linewidth=0.8, **look)
            label = f"measured: {of['verdict'] if judged else 'not judged'}"
            ax.plot([of["mean"]], [at], "o", markersize=4, label=label, **look)
            ax.plot(of["values"], [at] * len(of["values"]), "|", markersize=7, **look)
        ax.set_yticks(rows.index, rows["label"], fontsize="x-small")
        ax.set_ylim(-0.6, len(rows) - 0.4)
        return rows.drop(columns=["values", "label"])

    named, high = {}, []
    for item, rows in panels.items():
        alike = rows["name"].duplicated(keep=False)
        label = rows["name"].mask(alike, rows["name"] + "\n" + rows["setting"])
        named[item] = rows.assign(label=label.map(lambda name: fill(name, 40)))
        high.append(len(rows) * (0.06 + 0.1 * named[item]["label"].str.count("\n").add(1).max()))
    axes: Style = {"xlabel": "percent", "height_ratios": high, **labels}
    size = style.PAGE, sum(high) / len(high) + 0.75
    return draw_panels(named, draw, size, columns=1, room=0.4, **axes)


SETTINGS = dict(zip(FAITHFUL, "o^sDv", strict=True))
# The colours of verdicts; others are grey, and `TRAINING` has a hollow marker.
DECIDED = {HOLDS: "#0072b2", CONTRADICTED: "#d55e00", EQUAL: "#009e73"}


POINTS = """percentage points, 95% intervals
(linear to \u00b13, then logarithmic)
to the right: as the paper says"""


def forest(rows: pd.DataFrame) -> Drawn:
    """Draw measured effects with their intervals beside the published ones, in rows.

    The axis is linear up to three points to each side of zero, where verdicts are decided, and
    logarithmic beyond.

    Args:
        rows: columns group, promise, setting (one of ``SETTINGS``), verdict, effect, low, high,
            published and published_se (both NaN for none). A positive effect is in the direction
            of the promise. Rows of a group must be adjacent; they are drawn below its name.

    Returns:
        The figure, and the rows.
    """
    table = rows.reset_index(drop=True)
    heads = ~table["group"].duplicated()
    place = -(np.arange(len(table)) + heads.cumsum().to_numpy())
    figure, ax = plt.subplots(figsize=(8.2, 0.205 * (len(table) + heads.sum()) + 1.3))
    for y, of in zip(place, table.to_dict("records"), strict=True):
        colour = DECIDED.get(of["verdict"], UNJUDGED)
        fill = "white" if of["verdict"] == TRAINING else colour
        ends = of["published"] + Z * of["published_se"] * np.array([-1, 1])
        ax.plot(ends, [y, y], color="black", linewidth=0.6)
        ax.plot([of["low"], of["high"]], [y, y], color=colour, linewidth=1.4)
        ax.plot(of["effect"], y, SETTINGS[of["setting"]], color=colour, ms=5, mfc=fill)
        ax.plot(of["published"], y, "o", markersize=8, markeredgewidth=1.0, **PUBLISHED)
    title: Style = {"transform": ax.get_yaxis_transform(), "ha": "right", "weight": "bold"}
    for y, name in zip(place[heads] + 1, table["group"][heads], strict=True):
        ax.text(-0.01, y, name, va="center", **title)
    ax.axvline(0, color="black", linewidth=0.8)
    ax.axvspan(-1, 1, color=UNJUDGED, alpha=0.12, linewidth=0)
    ax.set_yticks(place, table["promise"].tolist())
    ax.tick_params(axis="y", length=0)
    ax.set(ylim=(place.min() - 0.7, 0.5), xlabel=POINTS)
    ax.set_xscale("symlog", linthresh=3, linscale=1.2)
    ticks = [-30, -10, -3, -1, 0, 1, 3, 10, 30]
    ax.set_xticks(ticks, [f"{t:+d}" if t else "0" for t in ticks])
    ax.grid(axis="x", alpha=0.25)
    shapes = {name: form for name, form in SETTINGS.items() if name in {*table["setting"]}}
    marks = [ax.plot([], [], form, color=UNJUDGED, label=name)[0] for name, form in shapes.items()]
    colours = {**DECIDED, OPEN: UNJUDGED}
    marks += [ax.plot([], [], "-", color=c, label=name)[0] for name, c in colours.items()]
    marks += [ax.plot([], [], "D", color=UNJUDGED, ms=5, mfc="white", label=TRAINING)[0]]
    marks += [ax.plot([], [], "o", label="published", **PUBLISHED)[0]]
    how: Style = {"loc": "outside upper center", "fontsize": "small", "frameon": False}
    figure.legend(handles=marks, ncols=3, **how)
    return figure, table
