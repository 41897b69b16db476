"""Tuning: spaces, and a search, with and without Ray."""

import random
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
from playing import TASK

from fedlib.algorithms import FedAvg
from fedlib.optim import sgd
from fedlib.runs import Experiment, find
from fedlib.runs.tuning import Choice, NoRay, Space, Uniform, score
from fedlib.runs.tuning import search as search_function

RATE = Space((("lr", Uniform(0.01, 0.1)),))


def experiment(chosen):
    algorithm = FedAvg(batch_size=10, client=sgd(chosen["lr"]))
    return Experiment(TASK, algorithm, 2, cohort=4, evaluate_every=0)


def search(name="rate", **options):
    return search_function(name, experiment, RATE, trials=3, seed=11, **options)


class FakeTuner:
    """Draws from the domains that it is given, and remembers what it has run."""

    kept: ClassVar[dict[str, list]] = {}

    def __init__(self, trial, *, param_space, tune_config, run_config):
        self.trial, self.space, self.config, self.run = trial, param_space, tune_config, run_config

    @classmethod
    def can_restore(cls, path):
        return path in cls.kept

    @classmethod
    def restore(cls, path, trial, restart_errored):
        return SimpleNamespace(fit=lambda: cls.kept[path])

    def fit(self):
        draw = random.Random(self.config["search_alg"]["random_state"])
        found = []
        for _ in range(self.config["num_samples"]):
            config = {name: domain(draw) for name, domain in self.space.items()}
            found.append(SimpleNamespace(config=config, metrics=self.trial(config)))
        self.kept[f"{self.run['storage_path']}/{self.run['name']}"] = found
        return found


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(FakeTuner, "kept", {})
    ray = SimpleNamespace(
        is_initialized=lambda: False, init=lambda **_: None, shutdown=lambda: None
    )
    tune = SimpleNamespace(
        Tuner=FakeTuner,
        TuneConfig=dict,
        RunConfig=dict,
        with_resources=lambda trial, _: trial,
        uniform=lambda low, high: lambda draw: draw.uniform(low, high),
        loguniform=lambda low, high: lambda draw: draw.uniform(low, high),
        choice=lambda values: lambda draw: draw.choice(values),
    )
    module = sys.modules[search_function.__module__]
    monkeypatch.setattr(module, "_ray", lambda: (ray, tune, dict))


def test_a_space_that_cannot_be_is_refused():
    for wrong in ((2.0, 1.0, True), (0.0, 1.0, True)):
        with pytest.raises(ValueError, match="low must be below high"):
            Uniform(*wrong)
    with pytest.raises(ValueError, match="at least one"):
        Choice(())
    with pytest.raises(ValueError, match="different names"):
        Space((("a", Choice((1,))), ("a", Choice((2,)))))


def test_a_search_scores_its_trials_on_validation_and_continues(fake):
    found = search()
    assert len(found) == 3 and all(0.01 <= one["lr"] <= 0.1 for one in found)
    for one in found:
        rows = find(experiment(one)).select("validation_accuracy").to_pandas()
        last = rows.loc[rows["round"] == 2, "value"]
        assert one["score"] == pytest.approx(last.mean()) and len(last) == 8
    assert search() == found and len(FakeTuner.kept) == 1, "the second went on from the first"
    others = search("another"), search(of="something else")
    assert others[0] != found == others[1] and len(FakeTuner.kept) == 3


def test_a_state_that_was_kept_is_the_one_that_is_scored():
    kept = replace(experiment({"lr": 0.1}), keep="best", evaluate_every=1)
    value = score(kept)
    result = find(kept)
    by_round = result.select("validation_accuracy").to_pandas().groupby("round")["value"].mean()
    assert value == pytest.approx(by_round[int(result.select("kept_round")["value"][0].as_py())])


def test_a_run_that_diverges_scores_nothing():
    assert score(experiment({"lr": 1e30})) == 0.0


def test_without_ray_a_search_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(NoRay, match=r'pip install "fedlib\[ray\]"'):
        search()


def test_a_search_with_ray_itself():
    pytest.importorskip("ray", reason="Ray is an optional extra")
    try:
        found = search()
    except Exception as error:  # Ray gives its own processes 15 seconds to start
        if "timed out during startup" in str(error):
            pytest.skip(f"Ray does not start here: {error}")
        raise
    assert len(found) == 3 and all(0.01 <= one["score"] <= 1 for one in found)
    assert search() == found
