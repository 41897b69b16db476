"""Figures: one table of all kinds with the properties of each, and what single kinds must show."""

import sys
from itertools import combinations, product
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from companion import plotting
from companion.claims import judge
from companion.plotting import Cell, numbers, style
from companion.sections import SCALES
from companion.theme import theme
from fedlib import paths
from papers.comparison import EVERY_METHOD
from papers.fedmix import FEDAVG, FEDMIX
from papers.pm_moe import WITH_MOE
from papers.registry import SECTIONS


@pytest.fixture(autouse=True)
def styled():
    """Draw as notebooks do, and close what a test has drawn."""
    with plt.rc_context():
        plotting.use_style()
        yield
    plt.close("all")


def curve(**ends):
    """Return curves that rise to a number by method, of three seeds that differ by little."""
    cells = product(ends.items(), range(3), (0, 2, 4))
    rows = [(m, seed, t, t / 4 * end + 0.01 * seed, t / 2) for (m, end), seed, t in cells]
    return pd.DataFrame(rows, columns=["method", "seed", "round", "value", "gigabytes"])


def at_places(*methods, **places):
    """Return values .5 of two metrics, by method, three seeds and the places."""
    cells = list(product(methods, range(3), *places.values(), "xy"))
    table = pd.DataFrame(cells, columns=["method", "seed", *places, "metric"])
    return table.assign(value=0.5 * table["metric"].eq("x") + 0.1)


def untrained(table, name="here"):
    """Return a field's title in which seed 0 of the rows of a table did not train."""
    gone = table.query("seed == 0").drop(columns=["metric", "value"]).drop_duplicates()
    return style.Title(name, marked={style.UNTRAINED: gone})


def legend(figure):
    return [text.get_text() for one in figure.legends for text in one.get_texts()]


PLACES = pd.DataFrame({"x": [0.0, 1.0, 2.0], "y": [1.0, 0.0, 1.0], "label": [1, 3, 3]})
LONG = "CIFAR-100, a sample of its images (standard)"
TWO = curve(FedAvg=0.2, FedMix=0.6)
FIVE = pd.concat(TWO.assign(seed=seed) for seed in range(5))
MANY = curve(**{f"{m}, K = {k}": 0.1 * k for m in ("Biased FedAvg", "Mixture") for k in (2, 4, 8)})
# On MNIST all are close, and numbers below the axis are long.
CLOSE = curve(
    **{"FedMix, K = 2 + pruning": 0.9696, "Biased FedAvg": 0.9822, "FedAvg": 0.98, "Local": 0.963}
)
CLOSE = CLOSE.query("round == 4")
GROUPS = ["row", "group", "mean", "low", "high", "values"]
ROWS = pd.DataFrame(
    [("a", "ours", 0.5, 0.4, 0.6, [0.4, 0.5, 0.6]), ("b", "published", 0.1, -0.1, 0.3, [0.1] * 3)],
    columns=GROUPS,
)
EFFECTS = pd.DataFrame(
    [("001", "a" * 70, "paper scale", "holds", 2.0, 1.0, 3.0, 1.5, 0.5),
     ("001", "b", "reduced", "undecided", 0.5, -1.0, 2.0, np.nan, np.nan),
     ("002", "c", "paper protocol", "contradicted", -20, -30.0, -9.0, 9, np.nan)],
    columns=["group", "promise", "setting", "verdict", "effect", "low", "high", "published",
             "published_se"],
)  # fmt: skip
SHARES = np.random.default_rng(0).dirichlet(np.ones(4), size=8)
COUNTS = (100 * SHARES).astype(int)
BOARD = pd.DataFrame({"x": [0.9, 0.5, 0.5, 0.4], "y": [0.1, 0.5, 0.4, 0.9]}).assign(
    method=list("abcd"), best=[True, True, False, True], group=["one", "", "", "one"], named=True
)
PRINTED = ROWS.assign(name=["first", "second"], setting="", value=0.3, floor=0.1, verdict="agrees")
PLANE = at_places(theme().floor, FEDAVG, FEDMIX, p=(0.2, 0.6, 1.0))
COSTS = TWO.query("round > 0").assign(at=TWO["method"] + TWO["round"].astype(str))
WAYS = at_places(FEDMIX, FEDAVG, way=[*"uvw"]).query("metric == 'x'")
SIDES = pd.DataFrame({"method": "a", "seed": [0, 0, 1], "client": [0, 1, 0], "x": 0.1, "y": 0.2})
LOCAL = "mean client test accuracy"
EPOCH = "change of accuracy by the local epoch"
SKEWED = "Rotated MNIST, label skew (reduced)"
FIELDS = {
    "two cells": lambda: plotting.grid([[Cell(n, FIVE, ylabel=LOCAL) for n in ("a", SKEWED)]]),
    "curves": lambda: plotting.curves({"a": TWO, LONG: MANY}, ylabel="y", at=[2], mark="half"),
    "grid": lambda: plotting.grid([[Cell(LONG, MANY, ylabel="y"), Cell("b", TWO)]], heading="all"),
    "over": lambda: plotting.over({LONG: MANY, "b": TWO}, x="round", xlabel="x", ylabel="y"),
    "gaps": lambda: plotting.gaps({"a": PLANE, LONG: PLANE}, [(FEDMIX, FEDAVG)], x="p", xlabel="p"),
    "standings": lambda: plotting.standings(dict.fromkeys(("a", LONG, "c"), CLOSE), xlabel=EPOCH),
    "points": lambda: plotting.points(TWO.assign(at="a"), "at", ylabel="y", marks={"a": 0.5}),
    "cumulative": lambda: plotting.cumulative({"a": TWO, LONG: MANY}, xlabel="x"),
    "dots": lambda: plotting.dots({"a": ROWS, LONG: ROWS}, xlabel="x", black="published"),
    "dumbbells": lambda: plotting.dumbbells({"a": PRINTED}),
    "forest": lambda: plotting.forest(EFFECTS),
    "grouped": lambda: plotting.grouped({"a": SHARES[0], "b": SHARES[1]}, [*"wxyz"], ylabel="y"),
    "versus": lambda: plotting.versus({"a": SIDES, LONG: SIDES}),
    "scattered": lambda: plotting.scattered({"a": PLACES, LONG: PLACES}, [*"wxyz"]),
    "frontier": lambda: plotting.frontier({"a": BOARD}, xlabel="x", ylabel="y"),
    "tradeoff": lambda: plotting.tradeoff({"a": COSTS, LONG: COSTS}, x="gigabytes", xlabel="x"),
    "slopes": lambda: plotting.slopes({"a": WAYS, LONG: WAYS}, [*"uv"]),
    "heatmaps": lambda: plotting.heatmaps(
        {f"K = {k}, half the rate, round 30": np.eye(4) for k in range(4)}, rows=4, inches=1.4
    ),
    "label_sets": lambda: plotting.label_sets({"a": (SHARES, SHARES > 0.2)}, [*"wxyz"]),
    "label_bars": lambda: plotting.label_bars(SHARES, SHARES[::-1], clients=range(8)),
    "partitions": lambda: plotting.partitions({"a": COUNTS, LONG: COUNTS}, heading="where"),
}  # fmt: skip


def texts(figure):
    """Return all that a reader sees written in a figure, ticks within the limits of their axis."""
    found = [] if figure.get_suptitle() == "" else [figure._suptitle]
    for one in figure.legends:
        found += [*one.get_texts(), one.get_title()]
    for ax in (ax for ax in figure.axes if ax.get_visible()):
        found += [ax.title, ax.xaxis.label, ax.yaxis.label, *ax.texts]
        for axis in (ax.xaxis, ax.yaxis) if ax.axison else ():
            low, high = sorted(axis.get_view_interval())
            ticks = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=False)
            found += [label for at, label in ticks if low <= at <= high]
    return [text for text in found if text.get_visible() and text.get_text().strip()]


@pytest.mark.parametrize("kind", FIELDS)
def test_of_no_figure_do_texts_overlap_or_leave_it(kind):
    figure, frame = FIELDS[kind]()
    figure.canvas.draw()
    page, boxes = figure.bbox, [(t.get_text(), t.get_window_extent()) for t in texts(figure)]
    for text, box in boxes:
        assert page.x0 - 1 <= box.x0 and box.x1 <= page.x1 + 1, f"{text} leaves the figure"
        assert page.y0 - 1 <= box.y0 and box.y1 <= page.y1 + 1, f"{text} leaves the figure"
    for (text, a), (other, b) in combinations(boxes, 2):
        wide, high = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
        assert wide < 1 or high < 1, f"{text} lies over {other}"
    assert len(boxes) > 3 and len(frame)


def test_titles_have_the_number_of_seeds():
    """The figures of notebooks 11 to 15 did not have it, and data sets differ in it."""
    strokes = pd.DataFrame({"row": ["u", "v", "v"], "group": ["m", "m", "published"]})
    strokes = strokes.assign(mean=0.5, low=0.4, high=0.6)
    strokes["values"] = [np.array([0.4, 0.6]), np.array([0.4, 0.5, 0.6]), np.array([0.5])]
    clients = pd.DataFrame({"method": "FedAvg", "seed": [0, 0, 1, 1], "value": 0.5})
    plain = strokes.drop(columns="values")
    for (figure, _), title in (
        (plotting.dots({"a": strokes}, xlabel="x"), "a, 2 to 3 seeds"),
        (plotting.dots({"a": strokes}, xlabel="x", run="single methods"), "a"),
        (plotting.dots({"a": plain}, xlabel="x"), "a"),
        (plotting.cumulative({"a": clients}, xlabel="x"), "a, 2 seeds"),
        (plotting.cumulative({"a": clients.drop(columns="seed")}, xlabel="x"), "a"),
    ):
        assert " ".join(figure.axes[0].get_title().split()) == title


def test_save_writes_three_files_whose_bytes_do_not_change():
    written = []
    for _ in range(2):
        figure, frame = plotting.curves({"here": curve(FedAvg=0.5)}, ylabel="y")
        png = plotting.save(figure, frame, "x", "quick")
        written.append({f.name: f.read_bytes() for f in sorted(png.parent.iterdir())})
    assert list(written[0]) == ["x.csv", "x.pdf", "x.png"] and written[0] == written[1]
    assert png.parent == paths.figures() / "quick"


def test_figures_of_a_part_take_no_place_of_whole_ones(monkeypatch):
    """Verdicts of one data set replaced those of all, and the scorecard counted these alone."""
    whole, part = pd.DataFrame({"a": [1 / 3, 2]}), pd.DataFrame({"a": [1]})
    path = plotting.save_table(whole, "01_claims", "standard")
    shell = SimpleNamespace(user_ns={"dataset": "cifar10", "seeds": 2, "rounds": 0, "other": 1})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    other = plotting.save_table(part, "01_claims", "standard")
    assert path.read_text() == "a\n0.333333\n2\n" and other.read_text() == "a\n1\n"
    assert other.parent == path.parent / "dataset=cifar10,seeds=2"
    shell.user_ns = {"dataset": part, "seeds": np.arange(2), "rounds": None}  # another notebook's
    assert plotting.save_table(part, "mine", "standard").parent == path.parent


def test_a_grid_hides_what_has_no_cell_and_explains_every_method_once():
    one, other = Cell("one", curve(zz=0.4, FedMix=0.6)), Cell("other", curve(FedAvg=0.5), zero=True)
    sent = Cell("sent", curve(FedAvg=0.5), x="gigabytes", mark=1.0, called="budget", ylabel="gain")
    figure, frame = plotting.grid([[one, other], [sent]], heading="all")
    assert [ax.get_visible() for ax in figure.axes] == [True, True, True, False]
    assert legend(figure) == [FEDAVG, FEDMIX, "zz", "budget"]  # others than the papers' at the end
    assert set(frame["panel"]) == {"one", "other", "sent"} and frame["seeds"].eq(3).all()
    assert frame.loc[frame["panel"].eq("sent"), "y"].eq("gain").all()
    end = frame[(frame["panel"] == "other") & (frame["round"] == 4)]
    assert end["mean"].item() == pytest.approx(0.51)
    assert end["low"].item() < 0.5 and end["high"].item() > 0.52  # of .5, .51 and .52


def test_a_shared_axis_is_labelled_below_each_column_also_where_the_last_row_is_not_full():
    tiles = plotting.heatmaps(dict.fromkeys("abc", np.eye(2)), rows=2, columns=2, xlabel="x")
    for figure, _ in (plotting.dots(dict.fromkeys("abcde", ROWS), xlabel="x"), tiles):
        *shown, hidden = [ax for ax in figure.axes if ax.get_label() != "<colorbar>"]
        assert hidden.get_visible() is False and shown[-1].get_xlabel() == "x"
        above = shown[len(shown) // 2]  # what stands above the place that is not taken
        assert above.get_xlabel() == "x" and above.xaxis.get_tick_params()["labelbottom"]


def test_real_data_come_first_and_digits_last():
    rows = dict.fromkeys(("Digits (quick)", "MNIST (standard)"), TWO)
    cells = [Cell(name, table) for name, table in rows.items()]
    for figure, _ in (plotting.curves(rows, ylabel="y"), plotting.grid([cells])):
        assert [ax.get_title()[0] for ax in figure.axes] == ["M", "D"]


def test_a_data_set_may_have_another_title_at_a_scale():
    asked = [("rotated_mnist",), ("rotated_mnist", "standard"), ("rotated_mnist", "quick")]
    assert [plotting.title(*of) for of in asked] == ["Rotated MNIST"] * 2 + ["Rotated digits"]


NAMED = {
    "CIFAR-10 (standard)": "CIFAR-10 (reduced)",
    "CIFAR-10 (standard), 2,000 rounds": "CIFAR-10, 2,000 rounds",
    "MNIST (paper), global test": "MNIST (paper scale), global test",
    "Digits (quick)": "Digits",
}


@pytest.mark.parametrize(("name", "said"), NAMED.items())
def test_figures_name_scales_as_people_know_them(name, said):
    figure, drawn = plotting.curves({name: TWO}, ylabel="y", heading=f"{name}, 3 seeds")
    assert said in figure.axes[0].get_title() and figure.get_suptitle().startswith(said)
    assert drawn["panel"].unique().tolist() == [name], "what is stored keeps the scale's own name"


def test_a_method_has_its_title_in_legends_and_headings():
    rows = curve(**{"FedMix": 0.2, "FedMix with H(q)": 0.6})
    figure, drawn = plotting.curves({"C": rows}, ylabel="y")
    assert legend(figure) == ["FedMix", "Ensemble (with H(q))"]
    told = plotting.findings({"C": rows}, "FedMix", "FedMix with H(q)")
    assert told.startswith("FedMix minus Ensemble (with H(q)): -40.0 points")
    assert "FedMix with H(q)" in {*drawn["method"]}


MARKED = {
    0.0: "1 of 2 intervals lie above none, 0 below",
    -1.0: "all 2 intervals lie above none",
}


@pytest.mark.parametrize("at", MARKED)
def test_intervals_beyond_a_mark_are_counted_and_their_runs_drawn(at):
    rows = {"here": ROWS.assign(group="ours")}
    figure, drawn = plotting.dots(rows, xlabel="x", marks={"here": at}, mark="none")
    assert figure.get_suptitle().strip() == MARKED[at]
    assert legend(figure) == ["ours", "single seeds", "none"]
    at = {x for line in figure.axes[0].lines for x in line.get_xdata()}
    assert at >= {*ROWS["values"].sum()}
    assert "values" not in drawn


def test_gaps_are_paired_by_seed_in_points_with_the_published_difference_hollow():
    at = [(0, 0.5), (1, 0.5), (0, 1.0), (1, 1.0), (2, 1.0)]
    rows = pd.DataFrame(
        [("A", s, p, 0.5 + 0.1 * s) for s, p in at]
        + [("B", s, p, 0.4 + 0.1 * s - 0.02 * s * (p == 1)) for s, p in at[:4]],
        columns=["method", "seed", "p", "value"],
    )  # the third seed of A has no partner
    theirs = pd.DataFrame({"method": ["A", "B"], "p": [1.0, 1.0], "value": [0.7, 0.65]})
    figure, drawn = plotting.gaps({"d": rows}, [("A", "B")], x="p", printed={"d": theirs})
    assert drawn["mean"].tolist() == pytest.approx([10, 11])
    assert drawn["seeds"].tolist() == [2, 2]
    assert {*drawn["method"]} == {"A minus B"}
    hollow = [c for c in figure.axes[0].collections if type(c).__name__ == "PathCollection"]
    assert hollow[0].get_offsets().tolist()[0] == pytest.approx([1.0, 5.0])


def test_a_tradeoff_names_every_setting_at_its_mean_cost_and_marks_the_costs_of_the_first():
    at = [("K", "K = 1", 1.0, 0.0), ("K", "K = 2", 2.0, 1.0), ("eta", "eta = 1", 1.5, -1.0)]
    rows = [(*one[:2], s, one[2] + 0.1 * s, one[3] + s - 1) for one in at for s in range(3)]
    table = pd.DataFrame(rows, columns=["method", "at", "seed", "gigabytes", "value"])
    figure, drawn = plotting.tradeoff({"d": table}, x="gigabytes")
    assert drawn["mean"].tolist() == [0, 1, -1] and drawn["seeds"].eq(3).all()
    assert drawn["gigabytes"].tolist() == pytest.approx([1.1, 2.1, 1.6])
    (ax,) = figure.axes
    places = {text.get_text(): text.xy for text in ax.texts}
    assert places["eta = 1"] == pytest.approx((1.6, -1)) and len(places) == 3
    assert [*ax.get_xticks()] == pytest.approx([1.1, 2.1])


def test_slopes_go_through_the_places_that_are_named_in_their_order():
    table = WAYS.assign(value=np.linspace(0.1, 1, len(WAYS)))
    figure, drawn = plotting.slopes({"d": table}, ["v", "u"])
    assert {*drawn["way"]} == {"u", "v"}, "w is not asked for"
    means = drawn.query("method == @FEDMIX").set_index("way")["mean"]
    (line,) = [line for line in figure.axes[0].lines if line.get_label() == FEDMIX]
    assert [*line.get_ydata()] == [means["v"], means["u"]] and [*line.get_xdata()] == [0, 1]


def test_names_of_methods_do_not_overlap_below_a_legend_of_several_lines():
    """They were placed before the legend, which moves the dots."""
    names, rng = [f"method number {i}" for i in range(9)], np.random.default_rng(7)
    points = {
        "method": names,
        "x": 10 ** rng.choice([1, 1.05, 2], 9),
        "y": rng.uniform(0.7, 0.9, 9),
    }
    points = pd.DataFrame(points).assign(group=[f"group {i % 8}" for i in range(9)])
    points = points.assign(best=False, named=True)
    labels = {"xlabel": "x", "ylabel": "y", "heading": "a heading\nof two lines"}
    figure, _ = plotting.frontier({"a": points}, log=True, **labels)
    figure.draw_without_rendering()
    written = [text for text in figure.axes[0].texts if text.get_text() in names]
    boxes = [Text.get_window_extent(text) for text in written]  # without their lines
    assert len(boxes) == 9
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_a_forest_draws_measured_effects_beside_the_published_ones():
    """Row by row: interval, effect, and a hollow circle where something is published."""
    figure, drawn = plotting.forest(EFFECTS)
    assert drawn[[*EFFECTS]].equals(EFFECTS)
    (ax,) = figure.axes
    height = dict(zip([t.get_text() for t in ax.get_yticklabels()], ax.get_yticks(), strict=True))
    assert height["a" * 70] > height["b"] > height["c"] + 1, "a group has a line for its name"
    for row in EFFECTS.itertuples():
        at = [line for line in ax.lines if {*line.get_ydata()} == {height[row.promise]}]
        here = [([*line.get_xdata()], line) for line in at]
        (interval,) = [line for x, line in here if x == [row.low, row.high]]
        (dot,) = [line for x, line in here if x == [row.effect]]
        assert dot.get_marker() == numbers.SETTINGS[row.setting]
        colour = numbers.DECIDED.get(row.verdict, numbers.UNJUDGED)
        assert interval.get_color() == dot.get_color() == colour
        hollow = [x for x, line in here if line.get_fillstyle() == "none" and not np.isnan(x[0])]
        assert hollow == [[row.published]] * (not np.isnan(row.published))
        of_print = [x for x, _ in here if x == pytest.approx([0.52, 2.48], abs=1e-3)]
        assert len(of_print) == (row.published_se == 0.5)  # 1.96 standard errors to each side


ENDS = [("a", s, 0.5 + 0.1 * s) for s in range(3)] + [("b", s, 0.4 + 0.1 * s) for s in range(3)]
TABLE = pd.DataFrame(ENDS, columns=["method", "seed", "value"])
GONE = style.Title("here", marked={style.UNTRAINED: pd.DataFrame({"method": ["b"], "seed": [0]})})
SURE = "+10.0 points [95% CI: 10.0, 10.0]"
PLAIN = SURE.replace("95% CI: ", "")  # the first one explains the others
ONE = TABLE[TABLE["method"].eq("a")]
FINDINGS = [
    ({"here": TABLE}, {}, f"a minus b: {SURE}, 3 seeds"),
    # One line, of the last that has both; and of real data each.
    ({"first": TABLE, "here": TABLE, "other": ONE}, {}, f"a minus b (here): {SURE}, 3 seeds"),
    ({"C (standard)": TABLE, "toys": TABLE}, {}, f"a minus b (C): {SURE}, 3 seeds"),
    ({"C (standard)": TABLE, "M (standard)": TABLE, "other": ONE}, {},
     f"a minus b: {SURE} (C); {PLAIN} (M)"),
    ({"S = 0": TABLE, "S = 20": TABLE}, {"every": True},
     f"a minus b: {SURE} (S = 0); {PLAIN} (S = 20)"),
    ({"here": TABLE[TABLE["seed"] < 2]}, {}, "a minus b: +10.0 points, 2 seeds"),
    ({"here": TABLE}, {"unit": ""}, "a minus b: +0.100 [95% CI: 0.100, 0.100], 3 seeds"),
    ({"here": TABLE}, {"start": "At last, "}, f"At last, a minus b: {SURE}, 3 seeds"),
    # As in claims no run is left out for its outcome; where nothing is told, nothing leads to it.
    ({GONE: TABLE}, {}, f"a minus b: {SURE}, 3 seeds"),
    ({"here": ONE}, {"start": "At last, "}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "how", "told"), FINDINGS)
def test_a_finding_is_put_into_words(fields, how, told):
    assert plotting.findings(fields, "a", "b", "", **how) == told


def test_a_finding_is_of_the_last_round_and_its_interval_ends_where_points_do():
    late = pd.concat([TABLE.assign(round=0, value=0.0), TABLE.assign(round=1)])
    assert plotting.findings({"here": late}, "a", "b") == f"a minus b: {SURE}, 3 seeds"
    wide = [("a", 0, 0.8), ("a", 1, 0.9), ("a", 2, 1.0), *(("b", seed, 0.0) for seed in range(3))]
    ends = pd.DataFrame(wide, columns=["method", "seed", "value"])
    assert plotting.findings({"here": ends}, "a", "b", "").endswith(", 100.0], 3 seeds")
    assert [style.precision(v, 1) for v in ((1e-9, -7.04), (-0.04, 1.0))] == [1, 2]


def test_an_interval_in_a_heading_is_corrected_for_looks_as_that_of_a_claim():
    gaps = dict(enumerate((0.01, 0.03, 0.02, 0.05)))
    runs = pd.DataFrame({"seed": [*gaps], "method": "a", "value": [*gaps.values()]})
    runs = pd.concat([runs, runs.assign(method="b", value=0.0)])
    for looks in ({}, {5: 2}, {4: 2}):
        claim = judge("", "", gaps, 0.0, ">", looks=looks)
        name = style.Title("here", looks=looks) + ""
        ends = f"[95% CI: {100 * claim.low:.1f}, {100 * claim.high:.1f}]"
        assert ends in plotting.findings({name: runs}, "a", "b", ""), looks


def test_a_heading_is_broken_where_it_has_no_room_and_never_within_brackets():
    told = "FedMix minus FedAvg: +1.8 points [0.9, 2.6] (CIFAR-10); -0.1 points [-0.6, 0.5] (MNIST)"
    for inches in np.arange(2.5, 6, 0.5):
        lines = style.in_lines(told, inches).splitlines()
        assert all(line.count("[") == line.count("]") for line in lines)
        assert " ".join(lines) == told and max(map(len, lines)) <= style.LETTERS * inches
    assert style.in_lines("one\ntwo", 5) == "one\ntwo" and style.in_lines("", 1) == ""


def test_tiles_begin_at_the_top_and_are_crossed_where_they_are_said_to_be():
    figure, _ = plotting.partitions({"a": np.array([[3, 0], [1, 2]])})
    ax = figure.axes[0]
    assert ax.get_ylim()[0] > ax.get_ylim()[1] and ax.images[0].get_array().mask[1, 0]
    crossed = np.array([[False, True], [False, False], [True, False]])
    figure, drawn = plotting.heatmaps({"q": crossed / 2}, rows=3, crossed={"q": crossed})
    (crosses,) = figure.axes[0].get_lines()
    assert {(y, x) for x, y in crosses.get_xydata()} == {(0, 1), (2, 0)}
    assert drawn["value"].tolist() == (crossed / 2).ravel().tolist()


def test_a_run_is_crossed_only_where_it_stands_and_behind_means():
    table = at_places("a", q=(0.0, 0.9), p=(0.2,)).query("metric == 'x'")
    fields = {
        untrained(table.query("q == 0.9"), f"q = {q}"): rows for q, rows in table.groupby("q")
    }
    figure, _ = plotting.over(fields, x="p")
    lines = [ax.lines for ax in figure.axes[:2]]
    crosses = [[line for line in each if line.get_marker() == "x"] for each in lines]
    assert [len(each) for each in crosses] == [0, 1] and len(crosses[1][0].get_xdata()) == 1
    (means,) = [line for line in lines[1] if line.get_label() == "a"]
    assert crosses[1][0].get_zorder() < means.get_zorder()


def test_a_label_has_the_same_look_in_every_plane():
    """The second panel lacks the first label of the other."""
    figure, drawn = plotting.scattered({"a": PLACES, "b": PLACES[1:]}, [*"wxyz"])
    looks = [
        {line.get_label(): (line.get_color(), line.get_marker()) for line in ax.lines}
        for ax in figure.axes
    ]
    assert [*looks[0]] == ["x", "z"] and looks[0] == looks[1] and len({*looks[0].values()}) == 2
    assert [len(line.get_xdata()) for ax in figure.axes for line in ax.lines] == [1, 2, 0, 2]
    assert len(drawn) == 5


@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS)
def test_no_two_methods_of_a_figure_look_the_same(section):
    if section is EVERY_METHOD:  # more than there are looks: its figures go by family
        return
    for scale in SCALES:
        for dataset in section.settings(scale):
            known = {*section.methods(scale, dataset)} & {*theme().methods}
            # A second stage looks as its first one, which it is drawn above or beside.
            known = {m for m in known if not m.endswith(f" {WITH_MOE}")}
            assert len({str(style.look_of(m)) for m in known}) == len(known)
