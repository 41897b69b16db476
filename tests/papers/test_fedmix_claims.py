"""FedMix's claims about training and traffic (000), on numbers small enough to check by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from companion.claims import FAILS, HOLDS, OPEN, UNTESTED, alike
from papers.fedmix import (
    BIAS,
    BIASED,
    BY_ANGLE,
    BY_LABEL,
    DENSITIES,
    FEDAVG,
    FEDMIX,
    LOCAL_GLOBAL,
    NEW,
    PRUNING,
    TEN,
    TEN_PRUNED,
    TWO,
    WIDE,
    analysis,
    claims,
    with_pruning,
)
from papers.fedmix.experiments import COMMUNICATION

COLUMNS = ["method", "seed", "round", "metric", "client", "expert", "item", "value"]
NOISE = (0.0, 0.001, -0.001)  # by seed


def frame(*parts):
    return pd.DataFrame([row for part in parts for row in part], columns=COLUMNS)


def verdicts(tested):
    return [claim.verdict for claim in tested]


# Traffic and ablations.


def run(method, ends, cost, new=None, rounds=(0, 10, 20)):
    """Rows of three seeds whose accuracy rises in a line to ``ends``, at ``cost`` bytes a round."""
    rows = []
    for seed in range(3):
        for t in rounds:
            share, noise = t / rounds[-1], 1e-4 * seed
            rows.append((method, seed, t, "test_accuracy", 0, -1, "", ends * share + noise))
            rows.append((method, seed, t, "global_accuracy", -1, -1, "", (new or ends) * share))
        for t in range(1, rounds[-1] + 1):
            for way in ("down", "up"):
                rows.append((method, seed, t, f"bytes_{way}", -1, -1, "", cost / 2))
    return rows


SKEWED = frame(
    run(FEDAVG, 0.5, 1e6),
    run(WIDE[4], 0.7, 4e6),
    run(FEDMIX, 0.6, 4e6),
    run(PRUNING, 0.6, 1e6),
    run(BIAS, 0.6, 4e6),
)
OTHERS = frame(
    run(FEDAVG, 0.5, 1e6),
    run(BIASED, 0.505, 1e6),
    run(TWO, 0.4, 2e6),
    run(FEDMIX, 0.45, 4e6),
    run(TEN, 0.6, 1e7),
    run(TEN_PRUNED, 0.6, 1e6),
)
SAID = {
    "FedMix (K = 4) beats FedAvg at equal rounds": HOLDS,  # .6 against .5 after 20 rounds
    "FedMix (K = 4) beats FedAvg with as": FAILS,  # .6 against .7 of the wide network
    "FedMix (K = 2) beats FedAvg with as": UNTESTED,
    "FedMix (K = 4) beats FedAvg at equal gigabytes": FAILS,  # 20 MB pay for 5 rounds of it: .15
    "FedMix (K = 2) beats FedAvg at equal gigabytes": UNTESTED,
    "FedMix with pruning beats": HOLDS,  # as many bytes as FedAvg, and .6
    "A personal bias": OPEN,  # it changes nothing
    "Pruning sends fewer bytes": HOLDS,
}
HUNDRED = {
    "FedMix (K = 4) beats": FAILS,
    "FedMix (K = 10) beats": HOLDS,
    "FedMix (K = 4) learns faster": FAILS,
    "FedMix (K = 10) with pruning": HOLDS,
    "Biased FedAvg beats FedAvg": HOLDS,
    "Biased FedAvg is the better": FAILS,
}


@pytest.mark.parametrize(
    ("rows", "dataset", "expected"),
    [
        (SKEWED, "cifar10", SAID),
        (SKEWED, "digits", SAID),
        (OTHERS, "cifar100", HUNDRED),
        (
            OTHERS,
            "femnist",
            {
                "FedMix (K = 2)": HOLDS,
                "More experts help": HOLDS,
                "Biased FedAvg": HOLDS,
                "...": HOLDS,
            },
        ),
    ],
)
def test_each_data_set_is_asked_its_own_claims(rows, dataset, expected):
    said = {c.text: c.verdict for c in claims.communication_claims(rows, dataset)}
    assert len(said) == len(expected)
    for start, verdict in expected.items():
        assert [v for text, v in said.items() if text.startswith(start)] == [verdict], start


def test_similar_means_within_a_point_on_both_sides():
    rows = frame(run(FEDAVG, 0.5, 1e6), run(BIASED, 0.52, 1e6))
    assert verdicts(claims.communication_claims(rows, "femnist"))[-2:] == [HOLDS, FAILS]


def test_a_local_epoch_is_judged_on_the_same_clients():
    rows = []
    for seed in range(3):
        for t in range(10, 101, 10):
            loss = 0.001 * t + 1e-4 * seed
            for client, server in ((0, 0.5), (1, 0.9)):
                rows.append((FEDAVG, seed, t, "test_accuracy", client, -1, "", server))
            # Only the weaker client was in the cohort.
            rows.append((FEDAVG, seed, t, "adapted_test_accuracy", 0, -1, "", 0.5 - loss))
    fedavg, *others, more = verdicts(claims.tuning_claims(frame(rows)))
    assert fedavg == more == HOLDS and set(others) == {UNTESTED}
    assert set(verdicts(claims.tuning_claims(frame(run(FEDAVG, 0.5, 1e6))))) == {UNTESTED}


def test_ablations_compare_what_is_there():
    rows = frame(
        run(FEDAVG, 0.5, 1e6, new=0.6),
        run(FEDMIX, 0.6, 4e6, new=0.5),
        run(with_pruning(0.5), 0.595, 3e6),
        run(PRUNING, 0.5, 2e6),
    )
    assert analysis.experts_of(rows) == [1, 4] and analysis.etas_of(rows) == [0.0, 0.5, 0.9]
    assert verdicts(claims.ablation_claims(rows)) == [
        HOLDS,  # K = 4 against 1, local
        FAILS,  # ... new shard
        HOLDS,  # bytes, eta 0 against .5
        HOLDS,  # ... .5 against .9
        HOLDS,  # half a point lost at .5
        HOLDS,  # ten at .9
    ]


def test_every_class_may_have_an_expert_of_its_own():
    q = np.eye(3)
    both = [q[[0, 1, 1]], q]
    rows = [
        (TEN, seed, 10, "q", -1, k, str(c), both[seed][c][k])
        for seed in range(2)
        for c in range(3)
        for k in range(3)
    ]
    assert analysis.own_experts(frame(rows), TEN) == pytest.approx({0: 1 / 3, 1: 1.0})


@pytest.mark.parametrize(
    ("dataset", "method", "megabytes"),
    [
        ("cifar10", FEDAVG, 35.5),
        ("cifar10", WIDE[2], 70.7),
        ("cifar10", WIDE[4], 142.4),
        ("cifar10", TWO, 70.9),
        ("cifar10", FEDMIX, 141.9),
        ("cifar100", FEDAVG, 22.3),
        ("cifar100", FEDMIX, 89.1),
        ("cifar100", TEN, 222.7),
        ("femnist", FEDAVG, 25.7),
    ],
)
def test_traffic_of_the_papers_rounds_by_arithmetic(dataset, method, megabytes):
    experiment = COMMUNICATION.experiments("paper", dataset, method)[0]
    _, down, up = analysis.expected_traffic(experiment)
    assert (down + up) / 1e6 == pytest.approx(megabytes, abs=0.05)


def test_runs_send_what_the_arithmetic_says():
    asked = {m: COMMUNICATION.experiments("quick", "digits", m)[0] for m in (FEDMIX, PRUNING)}
    _, down, up = analysis.expected_traffic(asked[FEDMIX])
    sent = frame(
        (method, 0, 1, f"bytes_{way}", -1, -1, "", value)
        for method in asked
        for way, value in (("down", down), ("up", up))
    )
    assert claims.traffic_claim(sent, asked).verdict == HOLDS
    assert claims.traffic_claim(sent.assign(value=sent["value"] - 4), asked).verdict == FAILS


# Rotated MNIST.

PULL = (0.0, 0.004, 0.001)  # of a seed, shared by all methods
OWN = {FEDAVG: 0, BIASED: 0.0005, BY_LABEL: 0.0003, BY_ANGLE: 0.0007}  # ... and of a method
FIG_5 = {FEDAVG: 0.8, BIASED: 0.8, BY_LABEL: 0.83, BY_ANGLE: 0.88}
FIG_6 = {FEDAVG: 0.8, BIASED: 0.83, BY_LABEL: 0.86, BY_ANGLE: 0.85}
UPSIDE = {FEDAVG: 0.9, BIASED: 0.85, BY_LABEL: 0.8, BY_ANGLE: 0.7}


def rotated(accuracy, q=0.99, rounds=(0, 10), seeds=3):
    """Runs by method with the given last accuracy; mixtures have two experts and a sharp q."""
    rows = []
    for method, last in accuracy.items():
        for seed in range(seeds):
            for t in rounds:
                value = last + PULL[seed] + OWN[method] * seed if t == rounds[-1] else 0.1
                rows += [(method, seed, t, "test_accuracy", i, -1, "", value) for i in range(2)]
                if method in (BY_ANGLE, BY_LABEL):
                    entropy = -(q * np.log(q) + (1 - q) * np.log(1 - q))
                    rows.append((method, seed, t, "q_entropy", -1, -1, "", entropy))
                    rows += [(method, seed, t, "q", -1, k, "0", (q, 1 - q)[k]) for k in range(2)]
    return frame(rows)


@pytest.mark.parametrize(
    ("tests", "runs", "expected"),
    [
        (claims.turned_claims, rotated(FIG_5), [HOLDS] * 7),
        (claims.skewed_claims, rotated(FIG_6), [HOLDS] * 6),
        (claims.skewed_claims, rotated(FIG_6, seeds=2), [UNTESTED] * 6),
        (claims.turned_claims, rotated(UPSIDE, q=0.6), [FAILS] * 3 + [HOLDS] + [FAILS] * 3),
        (claims.skewed_claims, rotated(UPSIDE, q=0.6), [FAILS] * 6),
        # An equality has two sides, and baselines alone leave the rest untested.
        (
            claims.turned_claims,
            rotated({FEDAVG: 0.8, BIASED: 0.82}),
            [UNTESTED] * 3 + [FAILS, HOLDS] + [UNTESTED] * 2,
        ),
        (
            claims.turned_claims,
            rotated({FEDAVG: 0.8, BIASED: 0.78}),
            [UNTESTED] * 3 + [HOLDS, FAILS] + [UNTESTED] * 2,
        ),
    ],
)
def test_the_papers_figures_5_and_6_and_the_other_way_round(tests, runs, expected):
    assert verdicts(tests(runs)) == expected


def test_one_hotness_is_a_share_of_log_k():
    even = rotated({BY_ANGLE: 0.8}, q=0.5)
    assert analysis.one_hotness(even, BY_ANGLE) == pytest.approx([1] * 3)
    assert max(analysis.one_hotness(rotated({BY_ANGLE: 0.8}, q=0.999), BY_ANGLE)) < 0.02
    assert analysis.one_hotness(rotated({FEDAVG: 0.8}), FEDAVG) == []
    assert analysis.one_hotness(even, BY_ANGLE, rate=0.2) == pytest.approx([1] * 3)  # round 10
    assert analysis.one_hotness(even, BY_ANGLE, rate=0.1) == []  # would be round 20


def test_ahead_of_fedavg_is_paired():
    stored = pd.concat([rotated({FEDAVG: 0.8}, seeds=2), rotated({BIASED: 0.85})])
    gain = analysis.ahead_of_fedavg(stored)
    assert set(gain["method"]) == {BIASED} and set(gain["seed"]) == {0, 1}
    last = gain[gain["round"] == 10].sort_values("seed")["value"].tolist()
    assert last == pytest.approx([0.05, 0.05 + OWN[BIASED]])
    assert analysis.ahead_of_fedavg(rotated({BIASED: 0.85})).empty


# New clients.


def course(method, metric, *values):
    """Return a metric's values by round, for three seeds that differ a little."""
    return [
        (method, s, t, metric, -1, -1, "", v + NOISE[s] * t)
        for s in range(3)
        for t, v in enumerate(values)
    ]


def last(**accuracy):
    names = {"fedavg": FEDAVG, "biased": BIASED, "local": LOCAL_GLOBAL, "mix": FEDMIX, "bias": BIAS}
    return frame(
        *(
            course(names[n], metric, 0.1, v)
            for n, v in accuracy.items()
            for metric in ("global_accuracy", "test_accuracy")
        )
    )


ALL_FIVE = {"fedavg": 0.6, "biased": 0.3, "local": 0.2, "mix": 0.5, "bias": 0.7}


@pytest.mark.parametrize(
    ("dataset", "accuracy", "expected"),
    [
        # The runs are paired by seed and all differ by the same: intervals of no width.
        ("cifar10", ALL_FIVE, [HOLDS, HOLDS, FAILS, HOLDS, HOLDS]),
        ("digits", ALL_FIVE, [HOLDS, HOLDS, FAILS, HOLDS, HOLDS]),
        ("femnist", ALL_FIVE, []),
        ("cifar10", {"fedavg": 0.6, "mix": 0.7}, [UNTESTED, UNTESTED, HOLDS]),
        ("cifar100", {"fedavg": 0.5, "biased": 0.505, "mix": 0.4}, [HOLDS, HOLDS, HOLDS]),
        ("cifar100", {"fedavg": 0.5, "biased": 0.45, "mix": 0.48}, [FAILS, HOLDS, FAILS]),
    ],
)
def test_the_last_round_on_a_new_client_is_compared(dataset, accuracy, expected):
    assert verdicts(claims.new_client_claims(last(**accuracy), dataset)) == expected


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


def test_appendix_f_has_the_papers_numbers_beside_the_measured():
    runs = frame(
        course(FEDAVG, "validation_accuracy", 0.1, 0.97),
        course(FEDMIX, "validation_accuracy", 0.1, 0.98),
        course(FEDAVG, "global_accuracy", 0.1, 0.96),
        course(FEDMIX, "global_accuracy", 0.1, 0.95),
        course(DENSITIES, "global_accuracy", 0.5, 0.94),
    ).assign(who="")
    joined = frame(course(FEDMIX, "global_accuracy", 0.0, 0.0)).assign(who=NEW)
    table = analysis.appendix_f(pd.concat([runs, joined]))
    assert table["published"].tolist() == pytest.approx([0.97, 0.977, 0.969, 0.9663, 0.959])
    assert table["mean"].tolist() == pytest.approx([0.97, 0.98, 0.96, 0.95, 0.94])
    assert table["seeds"].tolist() == [3] * 5
    missing = analysis.appendix_f(frame(course(FEDAVG, "global_accuracy", 0.5)).assign(who=""))
    assert missing["mean"].isna().tolist() == [True, True, False, True, True]
    drawn = analysis.beside(table)
    assert len(drawn) == 10 and drawn.loc[drawn["group"] != "measured", "low"].isna().all()
    assert verdicts(claims.appendix_claims(pd.concat([runs, joined]))) == [HOLDS] * 3


def joining():
    """Newcomers' accuracy before and after they fit, among runs of those who were there."""
    new = frame(
        course(FEDMIX, "test_accuracy", 0.15, 0.9), course(FEDAVG, "test_accuracy", 0.8, 0.8)
    )
    there = frame(course(FEDMIX, "test_accuracy", 0.99, 0.1))
    return pd.concat([there.assign(who=""), new.assign(who=NEW)])


def test_three_ways_to_test():
    first = frame(
        course(FEDMIX, "test_accuracy", 0.1, 0.95), course(FEDMIX, "global_accuracy", 0.1, 0.85)
    )
    ways = analysis.three_ways(joining(), first)
    mean = ways.groupby(["method", "way"], sort=False)["value"].mean()
    assert list(mean[FEDMIX].index) == list(analysis.WAYS)
    assert mean[FEDMIX].tolist() == pytest.approx([0.95, 0.9, 0.15, 0.85])
    assert list(mean[FEDAVG].index) == [analysis.AFTER, analysis.BEFORE]
    assert {"row", "group", "mean", "low", "high"} <= set(analysis.by_way(ways).columns)
    assert verdicts(claims.joining_claims(joining(), classes=10)) == [HOLDS] * 3


def test_a_first_stage_that_is_not_stored_has_no_rows(tmp_path, monkeypatch):
    for variable in ("FEDLIB_RUNS", "FEDLIB_RESULTS"):
        monkeypatch.setenv(variable, str(tmp_path))
    first = analysis.first_stage("quick", "two_class_digits")
    assert first.empty
    assert set(analysis.three_ways(joining(), first)["way"]) == {analysis.BEFORE, analysis.AFTER}


def test_seen_and_new_are_beside_each_other():
    rows = analysis.seen_and_new(last(fedavg=0.6, mix=0.7))
    assert rows["method"].tolist() == [FEDAVG] * 3 + [FEDMIX] * 3
    assert rows["x"].tolist() == rows["y"].tolist()
    assert rows.groupby("method")["x"].mean().tolist() == pytest.approx([0.6, 0.7])
