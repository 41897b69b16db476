"""The claims about rotated MNIST, on accuracies written by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from companion.claims import FAILS, HOLDS, UNTESTED
from papers.claims import rotated
from papers.recipes import BIASED, BY_ANGLE, BY_LABEL, FEDAVG

SEEDS = range(3)
NOISE = (0.0, 0.004, 0.001)  # of a seed, shared by all methods
OWN = {FEDAVG: 0, BIASED: 0.0005, BY_LABEL: 0.0003, BY_ANGLE: 0.0007}  # ... and of a method


def frame(accuracy, q=0.99, rounds=(0, 10), seeds=SEEDS):
    """Runs by method with the given last accuracy; mixtures have two experts and a sharp q."""
    rows = []
    for method, last in accuracy.items():
        for seed in seeds:
            for t in rounds:
                value = last + NOISE[seed] + OWN[method] * seed if t == rounds[-1] else 0.1
                for metric in ("test_accuracy", "validation_accuracy"):
                    rows += [(method, seed, t, metric, i, -1, "", value) for i in range(2)]
                if method in (BY_ANGLE, BY_LABEL):
                    entropy = -(q * np.log(q) + (1 - q) * np.log(1 - q))
                    rows.append((method, seed, t, "q_entropy", -1, -1, "", entropy))
                    rows += [(method, seed, t, "q", -1, k, "0", (q, 1 - q)[k]) for k in range(2)]
    names = ["method", "seed", "round", "metric", "client", "expert", "item", "value"]
    return pd.DataFrame(rows, columns=names)


def verdicts(tests, accuracy, **more):
    return [c.verdict for c in tests(frame(accuracy, **more))]


def test_the_papers_figure_5_holds():
    paper = {FEDAVG: 0.8, BIASED: 0.8, BY_LABEL: 0.83, BY_ANGLE: 0.88}
    assert set(verdicts(rotated.turned_claims, paper)) == {HOLDS}


def test_the_papers_figure_6_holds():
    paper = {FEDAVG: 0.8, BIASED: 0.83, BY_LABEL: 0.86, BY_ANGLE: 0.85}
    assert set(verdicts(rotated.skewed_claims, paper)) == {HOLDS}


def test_the_other_way_round_does_not_hold():
    upside = {FEDAVG: 0.9, BIASED: 0.85, BY_LABEL: 0.8, BY_ANGLE: 0.7}
    turned = verdicts(rotated.turned_claims, upside, q=0.6)
    assert turned == [FAILS, FAILS, FAILS, HOLDS, FAILS, FAILS, FAILS]
    assert set(verdicts(rotated.skewed_claims, {**upside, BY_ANGLE: 0.7}, q=0.6)) == {FAILS}


@pytest.mark.parametrize(("ahead", "expected"), [(0.02, [FAILS, HOLDS]), (-0.02, [HOLDS, FAILS])])
def test_equality_has_two_sides(ahead, expected):
    accuracy = {FEDAVG: 0.8, BIASED: 0.8 + ahead, BY_LABEL: 0.8, BY_ANGLE: 0.8}
    assert verdicts(rotated.turned_claims, accuracy)[3:5] == expected


def test_missing_methods_and_few_seeds_are_not_tested():
    baselines = {FEDAVG: 0.8, BIASED: 0.8}
    found = verdicts(rotated.turned_claims, baselines)
    assert found[3:5] == [HOLDS, HOLDS]
    assert {v for i, v in enumerate(found) if i not in (3, 4)} == {UNTESTED}
    paper = {FEDAVG: 0.8, BIASED: 0.83, BY_LABEL: 0.86, BY_ANGLE: 0.85}
    assert set(verdicts(rotated.skewed_claims, paper, seeds=range(2))) == {UNTESTED}


def test_one_hotness_is_a_share_of_log_k():
    assert rotated.one_hotness(frame({BY_ANGLE: 0.8}, q=0.5), BY_ANGLE) == pytest.approx([1] * 3)
    assert max(rotated.one_hotness(frame({BY_ANGLE: 0.8}, q=0.999), BY_ANGLE)) < 0.02
    assert rotated.one_hotness(frame({FEDAVG: 0.8}), FEDAVG) == []


def test_ahead_of_fedavg_is_paired():
    stored = pd.concat(
        [frame({FEDAVG: 0.8}, seeds=range(2)), frame({BIASED: 0.85})], ignore_index=True
    )
    gain = rotated.ahead_of_fedavg(stored)
    assert set(gain["method"]) == {BIASED} and set(gain["seed"]) == {0, 1}
    last = gain[gain["round"] == 10].sort_values("seed")["value"].tolist()
    assert last == pytest.approx([0.05, 0.05 + OWN[BIASED]])
    assert rotated.ahead_of_fedavg(frame({BIASED: 0.85})).empty
