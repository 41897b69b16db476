"""New clients, on numbers small enough to check by hand (000, Fig. 12 and App. F)."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from companion import plotting
from companion.claims import FAILS, HOLDS, OPEN, UNTESTED, alike
from papers.claims import newcomers
from papers.recipes import (
    BIAS,
    BIASED,
    DENSITIES,
    FEDAVG,
    FEDMIX,
    JOINING,
    LOCAL_GLOBAL,
    NEW_CLIENTS,
    joined,
)

COLUMNS = ["method", "seed", "round", "metric", "client", "expert", "item", "value"]
NOISE = (0.0, 0.001, -0.001)  # by seed


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def course(method, metric, *values, seeds=3):
    """Return a metric's values by round, for seeds that differ a little."""
    return [
        (method, s, t, metric, -1, -1, "", v + NOISE[s] * t)
        for s in range(seeds)
        for t, v in enumerate(values)
    ]


def frame(*parts):
    return pd.DataFrame([row for part in parts for row in part], columns=COLUMNS)


def last(**accuracy):
    names = {"fedavg": FEDAVG, "biased": BIASED, "local": LOCAL_GLOBAL, "mix": FEDMIX, "bias": BIAS}
    return frame(
        *(
            course(names[n], metric, 0.1, v)
            for n, v in accuracy.items()
            for metric in ("global_accuracy", "test_accuracy")
        )
    )


def verdicts(claims):
    return [c.verdict for c in claims]


def test_cifar10_compares_the_last_round_on_a_new_client():
    runs = last(fedavg=0.6, biased=0.3, local=0.2, mix=0.5, bias=0.7)
    # the runs are paired by seed and all differ by the same: intervals of no width
    claims = newcomers.new_client_claims(runs, "cifar10")
    assert verdicts(claims) == [HOLDS, HOLDS, FAILS, HOLDS, HOLDS]
    assert verdicts(newcomers.new_client_claims(runs, "digits")) == verdicts(claims)
    assert newcomers.new_client_claims(runs, "femnist") == []


def test_a_method_that_was_not_run_is_not_judged():
    claims = newcomers.new_client_claims(last(fedavg=0.6, mix=0.7), "cifar10")
    assert verdicts(claims) == [UNTESTED, UNTESTED, HOLDS]


def test_cifar100_asks_for_a_difference_within_a_point():
    claims = newcomers.new_client_claims(last(fedavg=0.5, biased=0.505, mix=0.4), "cifar100")
    assert verdicts(claims) == [HOLDS, HOLDS, HOLDS]
    claims = newcomers.new_client_claims(last(fedavg=0.5, biased=0.45, mix=0.48), "cifar100")
    assert verdicts(claims) == [FAILS, HOLDS, FAILS]


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ((0.001, 0.0, -0.001), HOLDS),
        ((0.03, 0.031, 0.029), FAILS),
        ((-0.03, -0.031, -0.029), FAILS),
        ((0.0, 0.02, -0.02), OPEN),
        ((0.0, 0.0), UNTESTED),
        ((), UNTESTED),
    ],
)
def test_alike_has_two_sides(differences, verdict):
    a, zero = dict(enumerate(differences)), dict.fromkeys(range(3), 0.0)
    claim = alike("same", "here", a, zero)
    assert claim.verdict == verdict and claim.seeds == len(differences)
    assert claim.measured.endswith("(asked: within 0.01 of 0)")


def appendix():
    return frame(
        course(FEDAVG, "validation_accuracy", 0.1, 0.97),
        course(FEDMIX, "validation_accuracy", 0.1, 0.98),
        course(FEDAVG, "global_accuracy", 0.1, 0.96),
        course(FEDMIX, "global_accuracy", 0.1, 0.95),
        course(DENSITIES, "global_accuracy", 0.5, 0.94),
    )


def test_appendix_f_has_the_papers_numbers_beside_the_measured():
    table = newcomers.appendix_f(appendix())
    assert table["published"].tolist() == pytest.approx([0.97, 0.977, 0.969, 0.9663, 0.959])
    assert table["mean"].tolist() == pytest.approx([0.97, 0.98, 0.96, 0.95, 0.94])
    assert table["seeds"].tolist() == [3] * 5
    missing = newcomers.appendix_f(frame(course(FEDAVG, "global_accuracy", 0.5)))
    assert missing["mean"].isna().tolist() == [True, True, False, True, True]
    drawn = newcomers.beside(table)
    assert len(drawn) == 10 and drawn.loc[drawn["group"] != "measured", "low"].isna().all()
    assert verdicts(newcomers.appendix_claims(appendix())) == [HOLDS, HOLDS, HOLDS]


def joining():
    before, after = {FEDMIX: 0.15, FEDAVG: 0.8}, {FEDMIX: 0.9, FEDAVG: 0.8}
    return frame(
        *(course(joined(m), "test_accuracy", before[m], after[m]) for m in (FEDMIX, FEDAVG))
    )


def test_three_ways_to_test():
    first = frame(
        course(FEDMIX, "test_accuracy", 0.1, 0.95), course(FEDMIX, "global_accuracy", 0.1, 0.85)
    )
    ways = newcomers.three_ways(joining(), first)
    mean = ways.groupby(["method", "way"], sort=False)["value"].mean()
    assert list(mean[FEDMIX].index) == list(newcomers.WAYS)
    assert mean[FEDMIX].tolist() == pytest.approx([0.95, 0.9, 0.15, 0.85])
    assert list(mean[FEDAVG].index) == [newcomers.AFTER, newcomers.BEFORE]
    rows = newcomers.by_way(ways)
    assert {"row", "group", "mean", "low", "high"} <= set(rows.columns)
    claims = newcomers.joining_claims(joining(), classes=10)
    assert verdicts(claims) == [HOLDS, HOLDS, HOLDS]


def test_a_first_stage_that_is_not_stored_has_no_rows(tmp_path, monkeypatch):
    for variable in ("FEDLIB_RUNS", "FEDLIB_RESULTS"):
        monkeypatch.setenv(variable, str(tmp_path))
    first = newcomers.first_stage("quick", "two_class_digits")
    assert first.empty
    assert set(newcomers.three_ways(joining(), first)["way"]) == {newcomers.BEFORE, newcomers.AFTER}


@pytest.mark.parametrize("scale", ["quick", "standard", "paper"])
def test_the_claims_know_the_section(scale):
    dataset = next(iter(NEW_CLIENTS.settings(scale)))
    known = {FEDAVG, FEDMIX, DENSITIES, *(joined(m) for m in JOINING)}
    assert known == set(NEW_CLIENTS.methods(scale, dataset))


def test_seen_and_new_are_drawn_against_each_other():
    rows = newcomers.seen_and_new(last(fedavg=0.6, mix=0.7))
    assert rows["method"].tolist() == [FEDAVG] * 3 + [FEDMIX] * 3
    assert rows["x"].tolist() == rows["y"].tolist()
    four = dict.fromkeys("abcd", rows)
    figure, drawn = plotting.versus(four, xlabel="seen", ylabel="new", most=1.0)
    assert len(figure.axes) == 4 and len(drawn) == 8
    assert drawn["x_mean"].tolist()[:2] == pytest.approx([0.6, 0.7])
