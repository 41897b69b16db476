"""Figures: what is drawn, in which order, what is hidden, and the frame that is behind."""

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from companion import plotting
from companion.looks import Looks, hand, looks
from companion.plotting import Cell, style
from companion.plotting.matrices import counts_picture
from companion.sections import SCALES
from fedlib import paths
from fedlib.partition import Partition
from papers.book import SECTIONS
from papers.comparison import EVERY_METHOD
from papers.fedmix import FEDAVG, FEDMIX
from papers.pm_moe import WITH_MOE

LABELS = np.array([[0.8, 0.2], [0.2, 0.8]])  # two clients, two labels
DOT = ["row", "group", "mean", "low", "high"]


@pytest.fixture(autouse=True)
def _headless():
    plt.switch_backend("agg")
    yield
    plt.close("all")


def curve(**ends):
    """Return curves that rise to a number by method, of three seeds that differ by little."""
    rows = [
        (method, seed, t, t / 4 * end + 0.01 * seed, t / 2)
        for method, end in ends.items()
        for seed in range(3)
        for t in (0, 2, 4)
    ]
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


def test_a_grid_hides_what_has_no_cell_and_explains_every_method_once():
    one, other = Cell("one", curve(zz=0.4, FedMix=0.6)), Cell("other", curve(FedAvg=0.5), zero=True)
    sent = Cell("sent", curve(FedAvg=0.5), x="gigabytes", mark=1.0)
    figure, frame = plotting.grid([[one, other], [sent]], heading="all")
    assert [ax.get_visible() for ax in figure.axes] == [True, True, True, False]
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert named == [FEDAVG, FEDMIX, "zz"]  # as in every figure, what has no look of its own last
    assert figure.get_suptitle() == "all" and figure.axes[2].get_xlabel().startswith("gigabytes")
    assert set(frame["panel"]) == {"one", "other", "sent"} and frame["seeds"].eq(3).all()
    end = frame[(frame["panel"] == "other") & (frame["round"] == 4)]
    assert end["mean"].item() == pytest.approx(0.51)
    assert end["low"].item() < 0.5 and end["high"].item() > 0.52  # of .5, .51 and .52
    assert "3 seeds" in figure.axes[0].get_title()


def test_standings_put_the_best_at_the_top_and_curves_can_stand_beside_them():
    every = curve(a=0.2, b=0.6, c=0.4)
    figure, frame = plotting.standings({"here": every.query("round == 4")}, xlabel="accuracy")
    assert frame["method"].tolist() == ["a", "c", "b"]  # from below
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["a", "c", "b"]
    assert figure.axes[0].get_title() == "here, 3 seeds"
    figure, frame = plotting.ranked(Cell("here", every), every.query("round == 4"), xlabel="last")
    left, right = figure.axes
    assert len(left.get_lines()) == 3 and right.get_xlabel() == "last"
    assert frame["mean"].tolist() == pytest.approx([0.21, 0.41, 0.61])


def test_dots_write_what_is_missing_and_stop_where_an_accuracy_ends():
    one = pd.DataFrame([("a", "g", 0.5, -0.1, 1.1)], columns=DOT)
    two = pd.concat([one, one.assign(row="b")])
    figure, drawn = plotting.dots({"x": one, "y": two}, xlabel="accuracy", empty="not sent")
    assert [t.get_text() for t in figure.axes[0].texts] == ["not sent"]
    ends = figure.axes[0].collections[0].get_segments()[0][:, 0]
    assert ends.tolist() == pytest.approx([0.0, 1.0])
    assert drawn["panel"].tolist() == ["x", "y", "y"] and drawn["low"].eq(-0.1).all()


def test_intervals_and_ticks_stay_where_a_quantity_can_be():
    wide = pd.DataFrame({"low": [-0.2], "high": [1.3]})
    for label, ends in (
        ("mean client accuracy", [0.0, 1.0]),
        ("gain in accuracy", [-0.2, 1.0]),
        ("global accuracy / FedAvg's", [0.0, 1.3]),
        ("clients", [0.0, 1.3]),
        ("a sum", [-0.2, 1.3]),
    ):
        assert style.inside(wide, label).loc[0].tolist() == ends
    rows = [("a", s, p, v) for p in (0, 1) for s, v in enumerate((0.6, 0.99, 1.0))]
    few = pd.DataFrame(rows, columns=["method", "seed", "p", "value"])
    labels = {"xlabel": "p", "ylabel": "accuracy"}
    figure, _ = plotting.over({"x": few}, x="p", **labels)
    assert not figure.axes[0].collections, "three seeds are dots, and no band"
    assert [len(line.get_xdata()) for line in figure.axes[0].lines] == [2, 6]
    many = pd.concat([few, few.assign(seed=few["seed"] + 3)])
    (band,) = plotting.over({"x": many}, x="p", **labels)[0].axes[0].collections
    assert band.get_paths()[0].vertices[:, 1].max() == 1.0


def test_a_finding_is_put_into_words_at_the_last_round():
    rows = [(m, s, r, v + 0.1 * s - r) for m, v in (("a", 0.5), ("b", 0.4)) for s in range(3)
            for r in (0, 1)]  # fmt: skip
    table = pd.DataFrame(rows, columns=["method", "seed", "round", "value"])
    alone = {"other": table[table["method"] == "a"]}
    told = "here, last round: "
    assert plotting.findings({"here": table} | alone, "a", "b") == f"{told}a is 0.100 above b"
    assert plotting.findings({"here": table}, "b", "a") == f"{told}b is 0.100 below a"
    few = table[table["seed"] < 2]
    assert plotting.findings({"here": few}, "a", "b") == f"{told}too few seeds to tell a from b"
    table["value"] += [0.0, 0.0, 0.0, 0.3, 0.0, -0.3, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert "no clear difference between a and b" in plotting.findings({"here": table}, "a", "b")


def test_numbers_are_drawn_against_each_other():
    rows = [(m, s, v, v) for m, v in (("a", 0.6), ("b", 0.7)) for s in range(3)]
    four = dict.fromkeys("abcd", pd.DataFrame(rows, columns=["method", "seed", "x", "y"]))
    figure, drawn = plotting.versus(four, xlabel="seen", ylabel="new")
    assert len(figure.axes) == 4 and len(drawn) == 8
    assert drawn["x_mean"].tolist()[:2] == pytest.approx([0.6, 0.7])


def test_trials_ring_the_best_of_every_stage():
    rows = [("gate", 1e-3, None, 0.4, False), ("gate", 1e-2, None, 0.5, True),
            ("exploration", None, 0.3, 0.6, True)]  # fmt: skip
    table = pd.DataFrame(rows, columns=["stage", "lr", "eps", "score", "best"])
    figure, _ = plotting.trials(table.astype({"lr": float, "eps": float}), ylabel="accuracy")
    rings = [ax.collections[1].get_offsets().tolist() for ax in figure.axes]
    assert rings == [[[1e-2, 0.5]], [[0.3, 0.6]]]
    assert [ax.get_xscale() for ax in figure.axes] == ["log", "linear"]


def test_heatmaps_are_white_to_black_and_images_stand_below_their_captions():
    figure, frame = plotting.heatmaps({"round 0": np.eye(3)}, rows=("a", "b", "c"))
    image = figure.axes[0].get_images()[0]
    assert image.get_clim() == (0, 1) and image.get_cmap().name == "Greys"
    assert frame["value"].sum() == 3 and set(frame["expert"]) == {1, 2, 3}
    pictures = {"client 0": [np.zeros((2, 2)), np.ones((2, 2))], "client 1": [np.eye(2)]}
    captions = {"client 0": ["3", "7"], "client 1": ["1"]}
    figure, frame = plotting.images(pictures, captions)
    assert frame["caption"].tolist() == ["3", "7", "1"] and frame["place"].tolist() == [1, 2, 1]
    assert [len(ax.get_images()) for ax in figure.axes] == [1, 1, 1, 0]


def test_drawn_label_sets_say_what_is_wrong():
    truth = np.array([[0.5, 0.5, 0.0], [0.0, 0.2, 0.8]])
    read = np.array([[True, True, True], [False, True, False]])
    panels = {"one": (truth, truth > 0), "two": (truth, read)}
    figure, drawn = plotting.label_sets(panels, ["a", "b", "c"])
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == ["one: 2 of 2 label sets are right", "two: 0 of 2 label sets are right"]
    assert [len(line.get_xdata()) for line in figure.axes[1].lines] == [3, 1, 1]
    two = drawn[drawn["panel"] == "two"]
    assert two["read"].tolist() == read.ravel().tolist()
    assert two["true"].tolist() == truth.ravel().tolist()


def test_bars_return_both_shares_of_every_client_and_every_value_of_a_group():
    _, drawn = plotting.label_bars(LABELS, LABELS + 0.1, clients=[7, 9])
    assert drawn["client"].tolist() == [7, 7, 9, 9]
    assert drawn["true"].tolist() == LABELS.ravel().tolist()
    assert (drawn["reconstructed"] - drawn["true"]).to_numpy() == pytest.approx(0.1)
    groups = {"true": LABELS[0], "output bias": LABELS[1]}
    figure, drawn = plotting.grouped(groups, ["cat", "dog"], ylabel="share")
    assert drawn["value"].tolist() == [0.8, 0.2, 0.2, 0.8]
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == ["cat", "dog"]


def test_partitions_return_what_they_draw():
    counts = {"even": np.full((4, 3), 5), "uneven": np.array([[1, 0, 0], [2, 3, 0]])}
    figure, frame = plotting.partitions(counts)
    titles = [ax.get_title() for ax in figure.axes if ax.get_visible()]
    assert titles == ["even: 4 clients, 15 each", "uneven: 2 clients, 1 to 5"]
    assert frame.groupby("panel")["examples"].sum().to_dict() == {"even": 60, "uneven": 6}
    _, frame = plotting.label_counts(np.array([[1, 2], [3, 4], [5, 6]]), ("a", "b"))
    assert frame["examples"].sum() == 21 and len(frame) == 6


def test_the_picture_has_a_tile_for_every_class_that_a_client_holds():
    counts, ax = Partition.from_lists([[0, 1, 2, 3], [4]]).counts([0, 0, 0, 0, 2], 3), plt.gca()
    counts_picture(counts, ax, ["cat", "dog", "cow"])
    shown = ax.images[0].get_array()
    assert shown.filled(0).tolist() == [[4, 0], [0, 0], [0, 1]] and shown.mask.sum() == 4
    assert [text.get_text() for text in ax.get_yticklabels()] == ["cat", "dog", "cow"]


@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS)
def test_no_two_methods_of_a_figure_look_the_same(section):
    if section is EVERY_METHOD:  # more than there are looks: its figures go by family
        return
    for scale in SCALES:
        for dataset in section.settings(scale):
            known = [m for m in section.methods(scale, dataset) if m in looks().methods]
            # A second stage looks as its first one, which it is drawn above or beside.
            known = [m for m in known if not m.endswith(f" {WITH_MOE}")]
            assert len({str(plotting.look_of(m)) for m in known}) == len(known)


def test_figures_look_as_they_were_told_to():
    own = looks()
    assert own.methods[FEDAVG] == (7, "--") and plotting.title("cifar10") == "CIFAR-10"
    assert plotting.look_of("something new") == plotting.look_of("something new")
    try:
        hand(lambda: Looks({"a": (1, ":")}, {"x": "X"}, floor="a"))
        assert plotting.title("x") == "X" and plotting.title("cifar10") == "cifar10"
        order = plotting.ordered(pd.DataFrame({"method": [FEDAVG, "a"]}))
        assert order["method"].tolist() == ["a", FEDAVG]
        hand(lambda: Looks({"a": (1, ":")}))
        assert plotting.look_of("a")["linestyle"] == ":"
    finally:
        hand(lambda: own)
