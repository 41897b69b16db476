"""Figures of many fields and lists of numbers: what is drawn, in which order, what is hidden."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from companion import plotting
from companion.plotting import Cell
from fedlib import paths
from papers.fedmix import FEDAVG, FEDMIX


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
    assert end["mean"].item() == pytest.approx(0.51) and end["low"].item() < 0.51


def test_standings_put_the_best_at_the_top():
    numbers = curve(a=0.2, b=0.6, c=0.4).query("round == 4")
    figure, frame = plotting.standings({"here": numbers}, xlabel="accuracy")
    assert frame["method"].tolist() == ["a", "c", "b"]  # from below
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["a", "c", "b"]
    assert figure.axes[0].get_title() == "here, 3 seeds"


def test_ranked_draws_curves_and_names_methods_at_their_numbers():
    every = curve(a=0.2, b=0.6)
    figure, frame = plotting.ranked(Cell("here", every), every.query("round == 4"), xlabel="last")
    left, right = figure.axes
    assert len(left.get_lines()) == 2 and right.get_xlabel() == "last"
    assert frame["mean"].tolist() == pytest.approx([0.21, 0.61])


def test_agreement_draws_each_verdict_over_the_diagonal():
    rows = pd.DataFrame(
        {
            "value": [50.0, 60.0, 70.0],
            "mean": [52.0, 61.0, 40.0],
            "low": [50.0, 60.0, 38.0],
            "high": [54.0, 62.0, 42.0],
            "verdict": ["same", "same", "not"],
        }
    )
    panels = {"a": rows, "b": rows, "c": rows}
    figure, frame = plotting.agreement(panels, ("same", "not"), xlabel="x", ylabel="y")
    assert [ax.get_visible() for ax in figure.axes] == [True, True, True, False]
    dots = {line.get_label(): len(line.get_xdata()) for line in figure.axes[0].get_lines()[:2]}
    assert dots == {"same": 2, "not": 1} and len(frame) == 9


def test_images_stand_below_their_captions():
    pictures = {"client 0": [np.zeros((2, 2)), np.ones((2, 2))], "client 1": [np.eye(2)]}
    captions = {"client 0": ["3", "7"], "client 1": ["1"]}
    figure, frame = plotting.images(pictures, captions)
    assert frame["caption"].tolist() == ["3", "7", "1"]
    assert [len(ax.get_images()) for ax in figure.axes] == [1, 1, 1, 0]
    assert figure.axes[1].get_title() == "7" and figure.axes[2].get_ylabel() == "client 1"


def test_trials_ring_the_best_of_every_stage():
    table = pd.DataFrame(
        {
            "stage": ["gate", "gate", "exploration"],
            "lr": [1e-3, 1e-2, np.nan],
            "eps": [np.nan, np.nan, 0.3],
            "score": [0.4, 0.5, 0.6],
            "best": [False, True, True],
        }
    )
    figure, _ = plotting.trials(table, ylabel="accuracy")
    gate, exploration = figure.axes
    rings = [ax.collections[1].get_offsets().tolist() for ax in figure.axes]
    assert rings == [[[1e-2, 0.5]], [[0.3, 0.6]]]
    assert gate.get_xscale() == "log" and exploration.get_xscale() == "linear"


def test_a_table_is_written_beside_the_figures():
    path = plotting.save_table(pd.DataFrame({"a": [1 / 3]}), "numbers", "quick")
    assert path == paths.figures() / "quick" / "numbers.csv"
    assert path.read_text() == "a\n0.333333\n"
    assert plotting.title("cifar10") == "CIFAR-10" and plotting.title("new") == "new"


def test_a_figure_in_the_companions_style_has_no_box():
    with plt.rc_context():
        plotting.use_style()
        assert not plt.rcParams["axes.spines.top"] and plt.rcParams["pdf.fonttype"] == 42


def test_claims_are_shown_by_colour_and_kept_for_the_scorecard():
    pytest.importorskip("ipywidgets")
    from companion import claims
    from companion.widgets import claims_table

    table = claims.table({"here": [claims.equal("one is one", "Sec. 1", 1, 1)]})
    shown = claims_table(table, "00_claims", "quick").data
    assert '<b style="color:#0173b2">holds</b>' in shown and "clear" not in shown
    kept = pd.read_csv(paths.figures() / "quick" / "00_claims.csv")
    assert kept["verdict"].tolist() == ["holds"] and kept["clear"].tolist() == [True]
