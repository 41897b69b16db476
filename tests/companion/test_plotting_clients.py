"""Figures of clients' shares, and of points beside each other."""

from __future__ import annotations

from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from companion import plotting

LABELS = np.array([[0.8, 0.2], [0.2, 0.8]])  # two clients, two labels
DOT = ["row", "group", "mean", "low", "high"]


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_drawn_label_sets_say_what_is_wrong():
    truth = np.array([[0.5, 0.5, 0.0], [0.0, 0.2, 0.8]])
    read = np.array([[True, True, True], [False, True, False]])
    panels = {"one": (truth, truth > 0), "two": (truth, read)}
    figure, drawn = plotting.label_sets(panels, ["a", "b", "c"])
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == ["one: 2 of 2 label sets are right", "two: 0 of 2 label sets are right"]
    marks = {line.get_label(): len(line.get_xdata()) for line in figure.axes[1].lines}
    assert list(marks.values()) == [3, 1, 1]
    two = drawn[drawn["panel"] == "two"]
    assert two["read"].tolist() == read.ravel().tolist()
    assert two["true"].tolist() == truth.ravel().tolist()


def test_bars_return_both_shares_of_every_client():
    _, drawn = plotting.label_bars(LABELS, LABELS + 0.1, clients=[7, 9])
    assert drawn["client"].tolist() == [7, 7, 9, 9]
    assert drawn["true"].tolist() == LABELS.ravel().tolist()
    assert (drawn["reconstructed"] - drawn["true"]).to_numpy() == pytest.approx(0.1)


def test_dots_write_what_is_missing_and_stop_where_an_accuracy_ends():
    one = pd.DataFrame([("a", "g", 0.5, -0.1, 1.1)], columns=DOT)
    two = pd.concat([one, one.assign(row="b")])
    figure, drawn = plotting.dots({"x": one, "y": two}, xlabel="", empty="not sent", most=1.0)
    assert [t.get_text() for t in figure.axes[0].texts] == ["not sent"]
    ends = figure.axes[0].collections[0].get_segments()[0][:, 0]
    assert ends.tolist() == pytest.approx([0.0, 1.0])
    assert drawn["panel"].tolist() == ["x", "y", "y"]


def test_labels_of_dots_have_room():
    rows = [("a", "g", 0.0, -0.2, 0.12), ("b", "g", 0.01, 0.0, 0.02)]
    frame = pd.DataFrame(rows, columns=DOT)
    figure, _ = plotting.dots({"x": frame, "y": frame}, xlabel="")
    figure.set_layout_engine("tight")
    figure.canvas.draw()
    for ax in figure.axes:
        shown = [t.get_window_extent() for t in ax.get_xticklabels() if t.get_text()]
        apart = [b.x0 - a.x1 for a, b in pairwise(shown)]
        assert len(apart) >= 2 and min(apart) > 0.5 * shown[0].height


def test_grouped_bars_return_every_value():
    groups = {"true": LABELS[0], "output bias": LABELS[1]}
    figure, drawn = plotting.grouped(groups, ["cat", "dog"], ylabel="share")
    assert drawn["value"].tolist() == [0.8, 0.2, 0.2, 0.8]
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == ["cat", "dog"]


def test_points_are_drawn_against_each_other():
    rows = [(m, s, v, v) for m, v in (("a", 0.6), ("b", 0.7)) for s in range(3)]
    four = dict.fromkeys("abcd", pd.DataFrame(rows, columns=["method", "seed", "x", "y"]))
    figure, drawn = plotting.versus(four, xlabel="seen", ylabel="new", most=1.0)
    assert len(figure.axes) == 4 and len(drawn) == 8
    assert drawn["x_mean"].tolist()[:2] == pytest.approx([0.6, 0.7])
