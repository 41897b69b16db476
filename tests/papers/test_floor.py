"""The floor under what papers publish and runs measure: stored, claimed, and drawn."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from companion import plotting
from companion.claims import CONTRADICTED, HOLDS, OPEN
from companion.scorecard import floors_by_row
from papers.judging import floor_claims, without_floor
from papers.pm_moe import TRADITIONAL
from papers.pm_moe.analysis import beside_floor
from papers.published import floors, published
from papers.registry import REGISTRY
from papers.scaled import MAJORITY


def scored(**by_method):
    """Scores of three seeds at two values of p: ``method=(at the first, at the second)``."""
    cells = product(by_method.items(), (0, 1), range(3))
    rows = [(m, s, (0.2, 1.0)[i], ends[i] + 0.001 * s) for (m, ends), i, s in cells]
    table = pd.DataFrame(rows, columns=["method", "seed", "p", "value"])
    return table.replace({"method": {"floor": MAJORITY}})


def test_a_method_has_to_beat_the_floor_everywhere():
    """On the mean over p both would: 0.6 and 0.5 against 0.3."""
    table = scored(good=(0.6, 0.6), half=(0.6, 0.4), floor=(0.1, 0.5))
    good, half = floor_claims(table, "p")
    assert (good.verdict, half.verdict) == (HOLDS, CONTRADICTED) and good.seeds == 3
    assert half.measured.startswith("0.401 vs 0.501: -10.0 points")
    assert good.text == "good beats the majority-class baseline at every p"
    assert good.place == "majority-class baseline"


def test_a_floor_of_the_same_seed_is_the_one_to_beat():
    table = scored(one=(0.5, 0.5), floor=(0.4, 0.4))
    table.loc[table["method"].eq("one") & table["seed"].eq(2), "value"] = 0.3
    (claim,) = floor_claims(table[table["p"] == 1.0])
    assert claim.verdict == OPEN and claim.text == "one beats the majority-class baseline"


def test_without_a_floor_nothing_is_claimed():
    table = scored(one=(0.5, 0.5), floor=(0.4, 0.4))
    assert not floor_claims(without_floor(table), "p")


def test_stored_floors_are_those_of_the_papers_partitions_by_hand():
    """Of two majority classes with the fraction p of the examples one has half of it."""
    known = floors().set_index(["paper", "dataset", "at"])["floor"]
    for paper in ("001", "002", "003"):
        assert known[paper, "cifar10", 1.0] == pytest.approx(0.5, abs=1e-6)
        assert known[paper, "cifar10", 0.6] == pytest.approx(0.3, abs=1e-6)
    assert known["001", "ag_news", 0.8] == pytest.approx(0.4, abs=1e-6)
    for dataset, shared, floor in (("cifar10", 0.0, 0.745), ("cifar10", 20.0, 0.617)):
        assert known["004", dataset, shared] == pytest.approx(floor, abs=5e-4)
    assert known["004", "fashion_mnist", 0.0] == pytest.approx(0.765, abs=5e-4)


def test_a_published_number_on_own_tests_has_its_floor():
    """Of all methods of a setting the same; none where all classes are tested alike."""
    rows = published().assign(floor=floors_by_row(REGISTRY))
    one = rows[rows["paper"].str.startswith("001") & rows["setting"].str.contains("p=1.0")]
    own = one["metric"].eq("local_test_accuracy")
    assert own.any() and one.loc[own, "floor"].eq(50).all() and one.loc[~own, "floor"].isna().all()
    four = rows[rows["table_or_figure"].eq("Table 1") & rows["dataset"].eq("Cifar10")]
    four = four[four["setting"].str.endswith("S=0")]
    assert four["floor"].round(1).eq(74.5).all()
    below = four.loc[four["value"] < four["floor"], "method"]
    assert {*below} == {"FedAvg", "FedProx", "SCAFFOLD", "MOON", "FedGEN"}


def test_the_floor_is_a_line_and_no_method_in_figures():
    table = scored(FedAvg=(0.6, 0.6), floor=(0.1, 0.5))
    figure, frame = plotting.over({"a": table}, x="p", xlabel="p", ylabel="accuracy")
    named = [t.get_text() for t in figure.legends[0].get_texts()]
    assert named == ["FedAvg", "majority-class baseline"]
    line = next(one for one in figure.axes[0].lines if one.get_label() == named[1])
    np.testing.assert_allclose(line.get_xydata(), [[0.2, 0.101], [1.0, 0.501]])
    assert set(frame["method"]) == {"FedAvg", MAJORITY}
    level = table.assign(p=table["p"].where(table["method"] != MAJORITY))
    figure, _ = plotting.over({"a": level}, x="p", xlabel="p", ylabel="accuracy")
    flat = next(one for one in figure.axes[0].lines if one.get_label() == named[1])
    np.testing.assert_allclose(flat.get_ydata(), 0.301)


def test_published_numbers_below_the_floor_are_marked():
    figure, frame = plotting.against_floor(beside_floor())
    below = frame[frame["below"] & frame["dataset"].eq("cifar10")]
    assert set(below["S"]) == {0.0} and set(below["method"]) == {*TRADITIONAL}
    assert len(figure.axes) == 8 and frame.groupby(["dataset", "S"]).size().eq(14).all()
