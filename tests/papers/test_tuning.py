"""Tuning: spaces, and a search."""

from dataclasses import replace

import pytest
from playing import SKEWED
from small import running

from fedlib import FedAvg, sgd
from fedrun import Experiment, find_result
from papers.adaptive.tuning import Choice, Uniform, score
from papers.adaptive.tuning import search as search_function

RATE = {"lr": Uniform(0.01, 0.1)}


def experiment(chosen):
    algorithm = FedAvg(batch_size=10, client=sgd(chosen["lr"]))
    return Experiment(SKEWED, algorithm, 2, cohort=4, evaluate_every=0)


def search(name="rate", **options):
    return search_function(name, experiment, RATE, trials=3, seed=11, **options)


def test_a_search_scores_its_trials_on_validation_and_continues(monkeypatch):
    found = search()
    assert len(found) == 3 and all(0.01 <= one["lr"] <= 0.1 for one in found)
    for one in found:
        rows = find_result(experiment(one)).select("validation_accuracy").to_pandas()
        last = rows.loc[rows["round"] == 2, "value"]
        assert one["score"] == pytest.approx(last.mean()) and len(last) == 8
    assert search("another")[0] != found[0]
    monkeypatch.setattr(running, "play_round", None)
    assert search() == found, "the second found all that the first has stored"


def test_a_trial_that_diverges_scores_nothing_and_stops_no_other():
    space = {"lr": Choice((1e30, 0.1))}
    found = search_function("odd", experiment, space, trials=6, seed=2, progress=False)
    assert {one["lr"]: one["score"] > 0 for one in found} == {1e30: False, 0.1: True}


def test_a_state_that_was_kept_is_the_one_that_is_scored():
    kept = replace(experiment({"lr": 0.1}), select="best", evaluate_every=1)
    value = score(kept)
    result = find_result(kept)
    by_round = result.select("validation_accuracy").to_pandas().groupby("round")["value"].mean()
    assert value == pytest.approx(by_round[int(result.select("kept_round")["value"][0].as_py())])
