"""The floor: always the commonest label, by hand, with ties, for newcomers, beside counts."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from conftest import make_federation

from companion import plotting
from companion.claims import FAILS, HOLDS, OPEN
from companion.frames import apart, together
from companion.scorecard.floors import computed, of_rows
from fedlib.algorithms import CommonestLabel, FedAvg
from fedlib.engine import encode, evaluate, evaluate_global, play_round
from fedlib.metrics import majority_floor
from fedlib.models import MLP
from fedlib.partition import Dirichlet, Majority, Mirrored, OptOut
from fedlib.runs import Experiment, run
from fedlib.tasks import Task, named
from papers.claims.floor import floor_claims
from papers.claims.private_parts import beside_floor
from papers.published import floors, published
from papers.recipes import MAJORITY, TRADITIONAL

HELD = Mirrored(pool=600, validation=20, test=30)


def held_by(labels, test):
    """Clients with these training labels, all tested on the same ones."""
    fed = make_federation([len(own) for own in labels])
    y = fed.train.y.clone()
    for row, own in enumerate(labels):
        y[fed.train.index[row, : len(own)]] = torch.tensor(own)
    places = torch.arange(len(y) - len(test), len(y))
    y[places] = torch.tensor(test)
    index = places.expand(len(labels), -1)
    sizes = np.full(len(labels), len(test))
    parts = {n: replace(getattr(fed, n), y=y, index=index, sizes=sizes) for n in ("test",)}
    return replace(fed, train=replace(fed.train, y=y), **parts)


def test_two_clients_by_hand():
    """The first holds 0, 2, 2 and is right on the one 2 of its tests, the second on two 1."""
    fed = held_by([[0, 2, 2], [1, 1, 1, 0]], test=[2, 1, 1, 0])
    floor = CommonestLabel()
    state, report = play_round(floor, fed, floor.init(fed, 0), round=0, seed=0, cohort=2)
    scores = evaluate(fed, floor, state, fed.test)
    assert scores.accuracy.tolist() == [0.25, 0.5]
    mine = -sum(math.log((n + 1) / 6) for n in (2, 0, 0, 1)) / 4
    theirs = -sum(math.log((n + 1) / 7) for n in (0, 3, 3, 1)) / 4
    np.testing.assert_allclose(scores.nll, [mine, theirs], rtol=1e-6)
    assert not report.messages and not int(report.down.sum()) and not int(report.up.sum())


def test_ties_go_to_the_smallest_label():
    fed = held_by([[2, 1, 1, 2], [2, 0]], test=[0, 1, 1, 2, 2])
    state = CommonestLabel().init(fed, 0)
    assert evaluate(fed, CommonestLabel(), state, fed.test).accuracy.tolist() == [0.4, 0.2]


def test_a_newcomer_gets_the_commonest_label_of_all_examples():
    """Two of three clients say 0, and so does their mean vote; but most examples have a 1."""
    fed = held_by([[0, 0, 0, 1, 1], [0, 0, 0, 1, 1], [1] * 5], test=[1, 1, 1, 0])
    state = CommonestLabel().init(fed, 0)
    table = replace(fed.test, x=fed.test.x[fed.test.index[0]], y=fed.test.y[fed.test.index[0]])
    only = replace(fed, test=replace(table, index=torch.arange(4).expand(3, -1)))
    assert evaluate_global(only, CommonestLabel(), state) == 0.75


def test_a_tie_among_all_examples_goes_to_the_smallest_label():
    fed = held_by([[0, 2, 2, 0, 0], [1, 1, 1, 2]], test=[0, 0, 1, 2])
    said = evaluate_global(fed, CommonestLabel(), CommonestLabel().init(fed, 0))
    assert said == float((fed.test.y == 0).double().mean())


@pytest.mark.parametrize("partition", [Majority(12, 30, p=0.7), Dirichlet(9, alpha=0.2, size=25)])
@pytest.mark.parametrize("seed", [0, 3])
def test_it_is_what_counting_says(partition, seed):
    task = Task("digits", partition, MLP((4,)), HELD)
    fed, counts = task.build(seed), task.counts(seed)
    scores = evaluate(fed, CommonestLabel(), CommonestLabel().init(fed, seed), fed.test)
    expected = majority_floor(counts["train"], counts["test"])
    np.testing.assert_allclose(scores.accuracy, expected, rtol=1e-12)
    by_hand = [
        (fed.test.y[fed.test.index[i, :30]] == int(np.argmax(counts["train"][i]))).double().mean()
        for i in range(fed.clients)
    ]
    np.testing.assert_allclose(expected, by_hand, rtol=1e-12)


def test_what_opted_out_counts_at_home_only():
    """At home everything is known; the newcomer's vote is of what takes part."""
    whole = Task("digits", Majority(10, 40, p=0.9), MLP((4,)), HELD)
    fed = replace(whole, opt_out=OptOut(clients=0.7)).build(1).at_home()
    floor, plain = CommonestLabel(), whole.build(1)
    states = floor.init(fed, 1), floor.init(plain, 1)
    same = [
        evaluate(f, floor, s, f.test).accuracy for f, s in zip((fed, plain), states, strict=True)
    ]
    np.testing.assert_array_equal(*same)
    said = floor.ensemble(fed.net, states[0].shared, {"none": torch.zeros(1, 1)}, {})
    inside = fed.taking_part().train.counts(10).sum(0)
    assert inside.sum() == 120 and int(said.argmax()) == int(inside.argmax())
    torch.testing.assert_close(said[0].exp(), (inside + 1) / 130)


def test_it_is_an_experiment_of_one_round_that_ends_with_the_floor():
    task = Task("digits", Majority(6, 30, p=1.0), MLP((4,)), HELD)
    result = run(Experiment(task, CommonestLabel(), 1, cohort=1.0), progress=False)
    rows = apart(together({"floor": [result]}))
    last = rows[rows["metric"].eq("test_accuracy") & rows["round"].eq(1)]["value"]
    counts = task.counts(0)
    np.testing.assert_allclose(last, majority_floor(counts["train"], counts["test"]))
    sent = rows[rows["metric"].isin(["bytes_up", "bytes_down"])]["value"]
    assert not sent.any() and np.isfinite(rows["value"].to_numpy(float)).all()


def test_it_follows_no_stage():
    fed = make_federation()
    with pytest.raises(ValueError, match="give it no stage as `after`"):
        CommonestLabel().init(fed, 0, FedAvg().init(fed, 0))


def test_it_looks_at_no_example():
    fed = make_federation()
    state = CommonestLabel().init(fed, 0)
    code = encode(fed, CommonestLabel(), state, fed.test).code
    assert {n: t.shape[1:] for n, t in code.items()} == {"none": (1,)} and not code["none"].any()


def test_a_floor_of_counts_by_hand():
    train = np.array([[3, 3, 0], [0, 1, 4], [0, 0, 0]])
    test = np.array([[1, 2, 1], [0, 0, 0], [1, 0, 3]])
    floor = majority_floor(train, test)
    assert floor[0] == floor[2] == 0.25 and np.isnan(floor[1])


@pytest.mark.parametrize(
    ("name", "shared", "floor"),
    [("cifar10", 0.0, 0.745), ("cifar10", 0.2, 0.617), ("fashion_mnist", 0.0, 0.765)],
)
def test_the_golden_partitions_of_004(name, shared, floor):
    root = os.environ.get("FEDLIB_DATA")
    if not root or not (Path(root) / name).is_dir():
        pytest.skip(f"$FEDLIB_DATA holds no {name}")
    counts = named(f"004/{name}", "paper", shared=shared).counts(0)
    tests = counts["test"].sum(1)
    own = majority_floor(counts["train"], counts["test"])
    assert (own * tests).sum() / tests.sum() == pytest.approx(floor, abs=5e-4)


def scored(**by_method):
    """Scores of three seeds at two values of p: ``method=(at the first, at the second)``."""
    rows = [
        (method, seed, p, value + 0.001 * seed)
        for method, values in by_method.items()
        for p, value in zip((0.2, 1.0), values, strict=True)
        for seed in range(3)
    ]
    table = pd.DataFrame(rows, columns=["method", "seed", "p", "value"])
    return table.replace({"method": {"floor": MAJORITY}})


def test_a_method_has_to_beat_the_floor_everywhere():
    """On the mean over p both would: 0.6 and 0.5 against 0.3."""
    table = scored(good=(0.6, 0.6), half=(0.6, 0.4), floor=(0.1, 0.5))
    good, half = floor_claims(table, "p")
    assert (good.verdict, half.verdict) == (HOLDS, FAILS) and good.seeds == 3
    assert half.measured.startswith("0.401 vs 0.501; difference -0.100")
    assert good.text == "good beats always the commonest label at every p"
    assert good.source == "not in the paper (floor)"


def test_a_floor_of_the_same_seed_is_the_one_to_beat():
    table = scored(one=(0.5, 0.5), floor=(0.4, 0.4))
    table.loc[table["method"].eq("one") & table["seed"].eq(2), "value"] = 0.3
    (claim,) = floor_claims(table[table["p"] == 1.0])
    assert claim.verdict == OPEN and claim.text == "one beats always the commonest label"


def test_without_a_floor_nothing_is_claimed():
    table = scored(one=(0.5, 0.5), floor=(0.4, 0.4))
    assert not floor_claims(table[table["method"] != MAJORITY], "p")


def test_stored_floors_are_those_of_the_papers_partitions_by_hand():
    """Of two majority classes with the fraction p of the examples one has half of it."""
    known = floors().set_index(["paper", "dataset", "at"])["floor"]
    for paper in ("001", "002", "003"):
        assert known[paper, "cifar10", 1.0] == pytest.approx(0.5, abs=1e-6)
        assert known[paper, "cifar10", 0.6] == pytest.approx(0.3, abs=1e-6)
    assert known["001", "ag_news", 0.8] == pytest.approx(0.4, abs=1e-6)
    assert known["004", "cifar10", 0.0] == pytest.approx(0.745, abs=5e-4)


@pytest.mark.parametrize("paper", ["002", "004"])
def test_stored_floors_are_what_counting_says(paper):
    root = os.environ.get("FEDLIB_DATA")
    if not root or not (Path(root) / "cifar10").is_dir():
        pytest.skip("$FEDLIB_DATA holds no cifar10")
    known = floors().set_index(["paper", "dataset", "at"])["floor"]
    again = [row for row in computed(paper) if row[1] == "cifar10"]
    assert again
    for *at, floor in again:
        assert known[tuple(at)] == pytest.approx(floor, abs=1e-6)


def test_a_published_number_on_own_tests_has_its_floor():
    """Of all methods of a setting the same; none where all classes are tested alike."""
    rows = published().assign(floor=of_rows())
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
    assert named == ["FedAvg", "always the commonest label"]
    line = next(one for one in figure.axes[0].lines if one.get_label() == named[1])
    np.testing.assert_allclose(line.get_xydata(), [[0.2, 0.101], [1.0, 0.501]])
    assert set(frame["method"]) == {"FedAvg", MAJORITY}
    level = table.assign(p=table["p"].where(table["method"] != MAJORITY))
    figure, _ = plotting.over({"a": level}, x="p", xlabel="p", ylabel="accuracy")
    flat = next(one for one in figure.axes[0].lines if one.get_label() == named[1])
    np.testing.assert_allclose(flat.get_ydata(), 0.301)
    plt.close("all")


def test_a_legend_tells_of_a_floor_that_the_first_field_lacks():
    table = scored(FedAvg=(0.6, 0.6), floor=(0.1, 0.5))
    fields = {"a": table[table["method"] != MAJORITY], "b": table}
    figure, _ = plotting.over(fields, x="p", xlabel="p", ylabel="accuracy")
    named = [t.get_text() for t in figure.legends[0].get_texts()]
    assert named == ["FedAvg", "always the commonest label"]
    plt.close("all")


def test_published_numbers_below_the_floor_are_marked():
    figure, frame = plotting.against_floor(beside_floor())
    below = frame[frame["below"] & frame["dataset"].eq("cifar10")]
    assert set(below["S"]) == {0.0} and set(below["method"]) == {*TRADITIONAL}
    assert len(figure.axes) == 8 and frame.groupby(["dataset", "S"]).size().eq(14).all()
    plt.close("all")
