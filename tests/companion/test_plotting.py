"""Figures: what is drawn, in which order, what is hidden, and the frame that is behind."""

from itertools import pairwise, product

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from companion import plotting
from companion.plotting import Cell, numbers, style
from companion.sections import SCALES
from companion.theme import theme
from fedlib import paths
from papers.comparison import EVERY_METHOD
from papers.fedmix import FEDAVG, FEDMIX
from papers.pm_moe import WITH_MOE
from papers.registry import SECTIONS

LABELS = np.array([[0.8, 0.2], [0.2, 0.8]])  # two clients, two labels


@pytest.fixture(autouse=True)
def closed():
    """Close what a test has drawn."""
    yield
    plt.close("all")


def curve(**ends):
    """Return curves that rise to a number by method, of three seeds that differ by little."""
    cells = product(ends.items(), range(3), (0, 2, 4))
    rows = [(m, seed, t, t / 4 * end + 0.01 * seed, t / 2) for (m, end), seed, t in cells]
    return pd.DataFrame(rows, columns=["method", "seed", "round", "value", "gigabytes"])


def test_save_writes_three_files_whose_bytes_do_not_change():
    written = []
    for _ in range(2):
        figure, frame = plotting.curves({"here": curve(FedAvg=0.5)}, ylabel="y")
        png = plotting.save(figure, frame, "x", "quick")
        written.append({f.name: f.read_bytes() for f in sorted(png.parent.iterdir())})
    assert list(written[0]) == ["x.csv", "x.pdf", "x.png"] and written[0] == written[1]
    assert png.parent == paths.figures() / "quick"
    path = plotting.save_table(pd.DataFrame({"a": [1 / 3]}), "numbers", "quick")
    assert path.read_text() == "a\n0.333333\n"


def test_figures_of_a_part_take_no_place_of_whole_ones(monkeypatch):
    """Verdicts of one data set replaced those of all, and the scorecard counted these alone."""
    whole, part = pd.DataFrame({"a": [1, 2]}), pd.DataFrame({"a": [1]})
    path = plotting.save_table(whole, "01_claims", "standard")
    monkeypatch.setenv("FEDLIB_PART", "dataset=cifar10")
    other = plotting.save_table(part, "01_claims", "standard")
    assert path.read_text() == "a\n1\n2\n" and other.read_text() == "a\n1\n"
    assert other.parent == path.parent / "dataset=cifar10"


def test_a_grid_hides_what_has_no_cell_and_explains_every_method_once():
    one, other = Cell("one", curve(zz=0.4, FedMix=0.6)), Cell("other", curve(FedAvg=0.5), zero=True)
    sent = Cell("sent", curve(FedAvg=0.5), x="gigabytes", mark=1.0, called="budget")
    figure, frame = plotting.grid([[one, other], [sent]], heading="all")
    assert [ax.get_visible() for ax in figure.axes] == [True, True, True, False]
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert named == [FEDAVG, FEDMIX, "zz", "budget"]  # as in every figure, others at the end
    assert figure.get_suptitle() == "all" and figure.axes[2].get_xlabel().startswith("gigabytes")
    assert set(frame["panel"]) == {"one", "other", "sent"} and frame["seeds"].eq(3).all()
    end = frame[(frame["panel"] == "other") & (frame["round"] == 4)]
    assert end["mean"].item() == pytest.approx(0.51)
    assert end["low"].item() < 0.5 and end["high"].item() > 0.52  # of .5, .51 and .52
    assert "3 seeds" in figure.axes[0].get_title()


def test_numbers_behind_a_grid_tell_of_which_quantity_they_are():
    fields = [Cell("here", curve(FedMix=0.6), ylabel=y) for y in ("accuracy", "", "gain")]
    _, frame = plotting.grid([fields[:2], fields[2:]])
    assert [*frame["y"].unique()] == ["accuracy", "gain"] and (frame["y"] == "accuracy").sum() == 6


def test_a_grid_without_seeds_has_one_curve_per_method():
    cell = Cell("one", curve(FedAvg=0.2, FedMix=0.6))
    for seeds, lines in ((True, 2 + 6), (False, 2)):
        figure, _ = plotting.grid([[cell]], seeds=seeds)
        assert len(figure.axes[0].get_lines()) == lines


def test_a_title_that_has_no_room_is_broken_at_its_comma():
    long = "CIFAR-100, a sample of its images (standard)"
    ends = curve(FedAvg=0.2).query("round == 4")
    figure, _ = plotting.standings({"here": ends, long: ends}, xlabel="accuracy", columns=2)
    assert [ax.get_title() for ax in figure.axes] == ["here, 3 seeds", f"{long},\n3 seeds"]
    assert figure.axes[1].title.get_window_extent().x1 <= figure.bbox.width
    matrices = {f"K = {k}, half the rate, round 30": np.eye(4) for k in range(4)}
    figure, _ = plotting.heatmaps(matrices, rows=4, inches=1.4)
    assert figure.axes[0].get_title() == "K = 0, half the rate,\nround 30"
    boxes = [ax.title.get_window_extent() for ax in figure.axes[:4]]
    assert all(box.x1 < after.x0 for box, after in pairwise(boxes))


def test_tiles_are_crossed_where_they_are_said_to_be():
    crossed = np.array([[False, True], [False, False], [True, False]])
    figure, _ = plotting.heatmaps({"q": crossed / 2}, rows=3, crossed={"q": crossed})
    (crosses,) = figure.axes[0].get_lines()
    assert {(y, x) for x, y in crosses.get_xydata()} == {(0, 1), (2, 0)}


def test_points_stand_in_the_order_of_the_legend_and_have_marks_by_place():
    rows = curve(FedMix=0.6, FedAvg=0.2).assign(panel="here")
    figure, _ = plotting.points(rows, "panel", ylabel="y", marks={"here": 0.5}, mark="most")
    (ax,), (legend,) = figure.axes, figure.legends
    named = {line.get_label(): line for line in ax.get_lines()}
    assert [text.get_text() for text in legend.get_texts()] == [FEDAVG, FEDMIX, "most"]
    assert max(named[FEDAVG].get_xdata()) < min(named[FEDMIX].get_xdata())
    assert [*named["most"].get_ydata()] == [0.5, 0.5]


def test_a_data_set_may_have_another_title_at_a_scale():
    assert plotting.title("rotated_mnist") == "Rotated MNIST"
    assert plotting.title("rotated_mnist", "standard") == "Rotated MNIST"
    assert plotting.title("rotated_mnist", "quick") == "Rotated digits"


def test_few_curves_are_named_at_their_ends_and_show_their_seeds():
    figure, frame = plotting.curves({"here": curve(FedAvg=0.2, FedMix=0.6)}, ylabel="y")
    (ax,) = figure.axes
    assert [t.get_text() for t in ax.texts] == [FEDAVG, FEDMIX] and not figure.legends
    dotted = plotting.over({"here": curve(FedAvg=0.2, FedMix=0.6)}, x="round")[0].axes[0]
    radius = max(line.get_markersize() for line in dotted.lines) / 2
    assert all(text.xyann[0] > radius + 4 for text in dotted.texts), "a name is clear of its dot"
    assert len(ax.get_lines()) == 2 + 6 and frame["low"].notna().all()  # of what is not drawn too
    figure, _ = plotting.curves({"here": curve(FedAvg=0.5)}, ylabel="y", at=[2], mark="half")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [FEDAVG, "half"]
    together, _ = plotting.curves({"here": curve(FedAvg=0.2, FedMix=0.201)}, ylabel="y")
    assert together.legends and not together.axes[0].texts


def test_few_runs_of_a_row_are_drawn_themselves_and_clear_ones_are_counted():
    rows = [("a", "ours", 0.5, 0.4, 0.6, [0.4, 0.5, 0.6]), ("b", "ours", 0.1, -0.1, 0.3, [0.1] * 3)]
    frame = pd.DataFrame(rows, columns=["row", "group", "mean", "low", "high", "values"])
    figure, drawn = plotting.dots({"here": frame}, xlabel="x", marks={"here": 0.0}, mark="none")
    assert figure.get_suptitle().strip() == "1 of 2 intervals lie above none, 0 below"
    figure, _ = plotting.dots({"here": frame}, xlabel="x", marks={"here": -1.0}, mark="none")
    assert figure.get_suptitle().strip() == "all 2 intervals lie above none"
    assert [0.4, 0.5, 0.6, 0.1, 0.1, 0.1] in [[*line.get_xdata()] for line in figure.axes[0].lines]
    assert "values" not in drawn
    means, strokes = (
        [t.get_text() for t in f.legends[0].get_texts()]
        for f in (plotting.dots({"here": frame.drop(columns="values")}, xlabel="x")[0], figure)
    )
    assert means == ["ours"] and strokes == ["ours", "single seeds", "none"]
    figure, _ = plotting.dots({"here": frame.drop(columns="values")}, run="a range", xlabel="x")
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["ours", "a range"]


def test_a_forest_draws_measured_effects_beside_the_published_ones():
    """Row by row: interval, effect, and a hollow circle where something is published."""
    names = ["group", "promise", "setting", "verdict", "effect", "low", "high", "published"]
    names += ["published_se"]
    rows = [("001", "a", "own scale", "holds", 2.0, 1.0, 3.0, 1.5, 0.5),
            ("001", "b", "reduced", "undecided", 0.5, -1.0, 2.0, np.nan, np.nan),
            ("002", "c", "own protocol", "contradicted", -20, -30.0, -9.0, 9, np.nan)]  # fmt: skip
    figure, drawn = plotting.forest(pd.DataFrame(rows, columns=names))
    assert drawn[names].equals(pd.DataFrame(rows, columns=names))
    (ax,) = figure.axes
    lines = [([*line.get_xdata()], {*line.get_ydata()}, line) for line in ax.lines]
    assert [0, 0] in [x for x, _, _ in lines], "no effect"
    height = dict(zip([t.get_text() for t in ax.get_yticklabels()], ax.get_yticks(), strict=True))
    assert height["a"] > height["b"] > height["c"] + 1, "a group has a line for its name"
    assert [text.get_text() for text in ax.texts] == ["001", "002"]
    for _, promise, setting, verdict, effect, low, high, published, error in rows:
        here = [(x, line) for x, y, line in lines if y == {height[promise]}]
        (interval,) = [line for x, line in here if x == [low, high]]
        (dot,) = [line for x, line in here if x == [effect]]
        assert dot.get_marker() == numbers.SETTINGS[setting]
        colour = numbers.DECIDED.get(verdict, numbers.UNJUDGED)
        assert interval.get_color() == dot.get_color() == colour
        hollow = [x for x, line in here if line.get_fillstyle() == "none" and not np.isnan(x[0])]
        assert hollow == [[published]] * (not np.isnan(published))
        of_print = [
            x for x, line in here if len(x) == 2 and x == pytest.approx([0.52, 2.48], abs=1e-3)
        ]
        assert len(of_print) == (error == 0.5)  # 1.96 standard errors to each side
        assert ax.get_xlim()[0] <= low and high <= ax.get_xlim()[1]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"own scale", "reduced", "own protocol", "published"} < {*legend}
    assert "own rounds and rates" not in legend


def test_a_finding_is_put_into_words_at_the_last_round():
    rows = [(m, s, r, v + 0.1 * s - r) for m, v in (("a", 0.5), ("b", 0.4)) for s in range(3)
            for r in (0, 1)]  # fmt: skip
    table = pd.DataFrame(rows, columns=["method", "seed", "round", "value"])
    alone = {"other": table[table["method"] == "a"]}
    told = "+10.0 points [95% CI: 10.0, 10.0], 3 seeds"
    assert plotting.findings({"here": table}, "a", "b") == f"a minus b: {told}"
    both = {"first": table, "here": table} | alone  # one line, of the last that has both
    assert plotting.findings(both, "a", "b") == f"a minus b (here): {told}"
    real = {"C (standard)": table, "toys": table}
    assert plotting.findings(real, "a", "b") == f"a minus b (C): {told}"
    real |= {"M (standard)": table} | alone
    short = told.removesuffix(", 3 seeds")  # each field's title has them
    plain = short.replace("95% CI: ", "")  # the first one explains the others
    assert plotting.findings(real, "a", "b") == f"a minus b: {short} (C); {plain} (M)"
    each = plotting.findings({"S = 0": table, "S = 20": table}, "a", "b", every=True)
    assert each == f"a minus b: {short} (S = 0); {plain} (S = 20)"
    few = table[table["seed"] < 2]
    assert plotting.findings({"here": few}, "b", "a") == "b minus a: -10.0 points, 2 seeds"
    found = plotting.findings({"here": table, "larger": few}, "a", "b")
    assert found == f"a minus b (here): {told}"
    ends = [style.rounded(v, 1) for v in (-0.04, 0.04, 1e-9, -7.04)]
    assert ends == ["-0.04", "0.0", "0.0", "-7.0"]
    plain = plotting.findings({"here": table}, "a", "b", unit="")
    assert plain == "a minus b: +0.100 [95% CI: 0.100, 0.100], 3 seeds"
    floor = table.replace("b", theme().floor)  # has one name in heading and legend
    assert plotting.findings({"here": floor}, "a", theme().floor).startswith(
        f"a minus {style.CALLED}: "
    )
    wide = [("a", 0, 0.8), ("a", 1, 0.9), ("a", 2, 1.0), *(("b", seed, 0.0) for seed in range(3))]
    ends = pd.DataFrame(wide, columns=["method", "seed", "value"])
    found = plotting.findings({"here": ends}, "a", "b", "")
    assert found.endswith(", 100.0], 3 seeds"), "an interval ends where points do, as in claims"
    gone = pd.DataFrame([("b", 0)], columns=["method", "seed"])
    trained = {style.Title("here", marked={style.UNTRAINED: gone}): table}
    counted = plotting.findings(trained, "a", "b")
    assert counted == f"a minus b: {told}", "as in the claims no run is left out for its outcome"
    led = plotting.findings({"here": table}, "a", "b", start="At last, ")
    assert led.startswith("At last, a minus b: ")
    # Where nothing is told a heading does not end with what leads to it.
    assert plotting.findings(alone, "a", "b", start="At last, ") == ""
    figure, _ = plotting.curves({"here": curve(a=0.5)}, ylabel="y", heading="here, S = 0: \n")
    assert figure.get_suptitle() == "here, S = 0"


def test_a_heading_is_broken_evenly_and_never_within_brackets():
    told = "FedMix minus FedAvg: +1.8 points [0.9, 2.6] (CIFAR-10); -0.1 points [-0.6, 0.5] (MNIST)"
    lines = style.wrapped(f"a short line\n{told}", 75)
    assert lines[0] == "a short line" and len(lines) == 3 and " ".join(lines[1:]) == told
    assert len(lines[1]) < 60 and len(lines[2]) > 25  # greedily the second would be one word
    for wide in range(28, 80):
        assert all(line.count("[") == line.count("]") for line in style.wrapped(told, wide))
    assert style.wrapped("", 10) == []


def test_no_row_of_a_legend_is_nearly_empty():
    ends = {name: 0.2 + i / 1000 for i, name in enumerate(["FedAvg", "Biased FedAvg", "IFCA"])}
    rows = curve(**ends, **{"Mixture, global expert trained": 0.3})
    (legend,) = plotting.curves({"here": rows}, ylabel="y")[0].legends
    assert len(legend.get_texts()) == 4 and legend._ncols == 2


def test_tiles_of_counts_begin_at_the_top_and_their_colours_at_one():
    counts = np.array([[3, 0], [1, 2]])  # two clients, two classes
    figure, _ = plotting.label_counts(counts, ["a", "b"])
    image, bar = figure.axes[0].images[0], figure.axes[1]
    assert image.get_clim() == (1, 3) and bar.get_ylim()[0] == 1  # what is none is white
    low, high = figure.axes[0].get_ylim()
    assert low > high and image.get_array().mask[1, 0]
    figure, _ = plotting.partitions({"here": counts}, heading="where")
    assert figure.get_suptitle() == "where"


def test_published_marks_are_hollow_and_others_easy_to_see():
    rows = [("a", group, 0.5, 0.4, 0.6) for group in ("ours", "published")]
    frame = pd.DataFrame(rows, columns=["row", "group", "mean", "low", "high"])
    figure, _ = plotting.dots({"here": frame}, xlabel="x", black="published")
    marks = {line.get_label(): line for line in figure.axes[0].lines}
    hollow = marks["published"]
    looks = hollow.get_color(), hollow.get_fillstyle(), hollow.get_marker()
    assert looks == ("black", "none", "o")
    assert marks["ours"].get_color() == style.SHADES[1]
    tall = figure.get_figheight()
    figure, _ = plotting.dots({"here": frame}, xlabel="x", colours={"published": "red"})
    marks = {line.get_label(): line for line in figure.axes[0].lines}
    assert [marks[group].get_color() for group in ("ours", "published")] == ["#777777", "red"]
    assert [*marks["ours"].get_ydata()] == [*marks["published"].get_ydata()] == [0]
    assert figure.get_figheight() < tall


def test_noise_about_a_level_is_not_stretched_to_the_height_of_a_field():
    rows = pd.DataFrame([("a", s, x, 1e-4 * s * x) for s in range(3) for x in (1, 2)])
    fields = {"here": rows.set_axis(["method", "seed", "k", "value"], axis=1)}
    figure, _ = plotting.over(fields, x="k", level=0, least=0.01)
    low, high = figure.axes[0].get_ylim()
    assert low <= -0.01 and high >= 0.01


def test_a_run_is_crossed_only_where_it_stands():
    rows = [("a", seed, q, 0.2, m, 0.5) for seed in range(3) for q in (0.0, 0.9) for m in "xy"]
    table = pd.DataFrame(rows, columns=["method", "seed", "q", "p", "metric", "value"])
    gone = pd.DataFrame([("a", 0, 0.9, 0.2)], columns=["method", "seed", "q", "p"])
    fields = {
        style.Title(f"q = {q:g}", marked={style.UNTRAINED: gone}): rows
        for q, rows in table.groupby("q")
    }
    figure, _ = plotting.plane(fields, x="x", y="y", by="p")
    crosses = [[line for line in ax.lines if line.get_marker() == "x"] for ax in figure.axes[:2]]
    assert [len(each) for each in crosses] == [0, 1]
    assert len(crosses[1][0].get_xdata()) == 1


@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS)
def test_no_two_methods_of_a_figure_look_the_same(section):
    if section is EVERY_METHOD:  # more than there are looks: its figures go by family
        return
    for scale in SCALES:
        for dataset in section.settings(scale):
            known = [m for m in section.methods(scale, dataset) if m in theme().methods]
            # A second stage looks as its first one, which it is drawn above or beside.
            known = [m for m in known if not m.endswith(f" {WITH_MOE}")]
            assert len({str(style.look_of(m)) for m in known}) == len(known)


def test_matrices_may_each_have_shades_of_their_own():
    fields = {"a": np.array([[0.1, 0.2]]), "b": np.array([[0.0, 0.9]])}
    figure, drawn = plotting.heatmaps(fields, rows=[""], each=True)
    assert [ax.get_title() for ax in figure.axes] == ["a\n0.10 to 0.20", "b\n0.00 to 0.90"]
    assert [ax.images[0].get_clim() for ax in figure.axes] == [(0.1, 0.2), (0.0, 0.9)]
    assert drawn["value"].tolist() == [0.1, 0.2, 0.0, 0.9]
    assert len(plotting.heatmaps(fields, rows=[""])[0].axes) == 3  # the shades' bar


def test_the_ends_of_a_curve_have_their_values_and_crosses_lie_behind_means():
    ps = 0.2, 0.6, 1
    rows = [("a", s, p, m, p * (m == "x")) for s in range(3) for p in ps for m in "xy"]
    table = pd.DataFrame(rows, columns=["method", "seed", "p", "metric", "value"])
    gone = pd.DataFrame([("a", 0, 1.0)], columns=["method", "seed", "p"])
    figure, _ = plotting.plane(
        {style.Title("here", marked={style.UNTRAINED: gone}): table}, x="x", y="y", by="p"
    )
    (ax,) = figure.axes
    assert [text.get_text() for text in ax.texts] == ["0.2", "1"]
    (cross,) = [line for line in ax.lines if line.get_marker() == "x"]
    (means,) = [line for line in ax.lines if line.get_label() == "a"]
    assert cross.get_zorder() < means.get_zorder()


def test_a_floor_at_one_place_is_seen_and_planes_tell_their_seeds():
    rows = [(m, s, 0.2, k, 0.5) for m in ("a", theme().floor) for s in range(3) for k in "xy"]
    table = pd.DataFrame(rows, columns=["method", "seed", "p", "metric", "value"])
    figure, _ = plotting.plane({"here": table}, x="x", y="y", by="p")
    (floor,) = [line for line in figure.axes[0].lines if line.get_label() == style.CALLED]
    assert floor.get_marker() == "+"
    sides = pd.DataFrame(
        {"method": "a", "seed": [0, 0, 1], "client": [0, 1, 0], "x": 0.1, "y": 0.2}
    )
    figure, _ = plotting.versus({"here": sides})
    assert figure.axes[0].get_title() == "here, 2 seeds"


def test_real_data_come_first_and_digits_last():
    names = ["Digits (quick)", "MNIST (standard)"]
    rows = {name: curve(FedAvg=0.2, FedMix=0.6) for name in names}
    cells = [plotting.Cell(n, c, ylabel=y) for (n, c), y in zip(rows.items(), "ab", strict=True)]
    for figure, _ in (plotting.curves(rows, ylabel="y"), plotting.grid([cells])):
        assert [ax.get_title().split(",")[0] for ax in figure.axes] == names[::-1]
    assert [ax.get_ylabel() for ax in figure.axes] == ["a", "b"]


def test_numbers_below_fields_do_not_run_into_each_other():
    """On MNIST, where all are close, they were one long number."""
    ends = {"FedMix, K = 2": (0.9696, 0.9822), "Biased FedAvg": (0.9695, 0.9815)}
    ends |= {"FedAvg": (0.9695, 0.981), "FedMix": (0.9629, 0.981)}
    rows = [(m, seed, v) for m, values in ends.items() for seed, v in enumerate(values)]
    frame = pd.DataFrame(rows, columns=["method", "seed", "value"])
    with plt.rc_context():
        plotting.use_style()
        for fields in (["MNIST"], ["MNIST", "other", "third"]):
            figure, _ = plotting.standings(dict.fromkeys(fields, frame), xlabel="accuracy")
            for ax in figure.axes:
                labels = [t.get_window_extent() for t in ax.get_xticklabels()]
                assert all(a.x1 + 5 < b.x0 for a, b in pairwise(labels)) and len(labels) > 2
        gains = pd.DataFrame({"row": ["a", "b"], "group": "ours", "mean": [-0.0051, 0.006]})
        gains = gains.assign(low=gains["mean"], high=gains["mean"])
        ax = plotting.dots(dict.fromkeys("abc", gains), xlabel="gain")[0].axes[1]
        labels = [t.get_window_extent() for t in ax.get_xticklabels()]
        assert all(a.x1 + 5 < b.x0 for a, b in pairwise(labels)) and len(labels) > 1
