"""Tuning in stages: spaces, what a stage changes, and a search, with and without Ray."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import pandas as pd
import pytest
from test_adaptive import TASK

from fedlib.cli import main
from fedlib.models import LeNet
from fedlib.runs import Experiment, find, tuning
from fedlib.runs.tuning import STAGES, Choice, Space, Uniform, search, spaces, stored, where
from fedlib.runs.tuning import search as search_function
from fedlib.runs.tuning.search import score
from papers.recipes import ADAPTIVE, Adaptive

SETTING = Adaptive(
    TASK, rounds=2, seeds=1, cohort=4, batch_size=10, evaluate_every=0, js=(2,), most=1
)
EXPLORATION = STAGES[-1]
EPS = Space((("eps", Uniform(0.1, 0.9, log=False)),))
NET = {"lr": 0.01, "weight_decay": 0.02, "first": 4, "second": 8, "hidden": 16}


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


def test_every_stage_changes_its_own_part_and_has_a_space():
    setting = ADAPTIVE.settings("standard")["cifar10"]
    net = LeNet(channels=(4, 8), hidden=(16,))
    local, cluster, gate, explored = (stage.apply(setting, {**NET, "eps": 0.5}) for stage in STAGES)
    assert (local.own, local.local.lr, local.local.weight_decay) == (net, 0.01, 0.02)
    assert replace(local, own=setting.own, local=setting.local) == setting
    assert (cluster.task.model, cluster.cluster.lr) == (net, 0.01)
    assert replace(cluster, task=setting.task, cluster=setting.cluster) == setting
    assert (gate.chooser, gate.gate.lr) == (net, 0.01)
    assert replace(gate, chooser=setting.chooser, gate=setting.gate) == setting
    assert explored.eps == (0.0, 0.5) and replace(explored, eps=setting.eps) == setting
    for scale in ("standard", "paper"):
        assert list(spaces(scale)) == [stage.name for stage in STAGES]
    with pytest.raises(ValueError, match="unknown scale"):
        spaces("quick")


def test_a_space_that_cannot_be_is_refused():
    for wrong in ((2.0, 1.0, True), (0.0, 1.0, True)):
        with pytest.raises(ValueError, match="low must be below high"):
            Uniform(*wrong)
    with pytest.raises(ValueError, match="at least one"):
        Choice(())
    with pytest.raises(ValueError, match="different names"):
        Space((("a", Choice((1,))), ("a", Choice((2,)))))


def test_a_search_scores_its_trials_on_validation_and_continues(fake):
    table = search(EXPLORATION, SETTING, EPS, trials=3)
    assert len(table) == 3 and table["best"].sum() == 1 and table["eps"].between(0.1, 0.9).all()
    assert table.loc[table["best"], "score"].iloc[0] == table["score"].max()
    one = table.iloc[1]
    experiment = EXPLORATION.experiment(EXPLORATION.apply(SETTING, {"eps": float(one["eps"])}))
    experiment = replace(
        experiment,
        seed=11,
        after=replace(experiment.after, seed=11),
        beside=replace(experiment.beside, seed=11),
    )
    rows = find(experiment).select("validation_accuracy").to_pandas().query("round == 1")
    assert one["score"] == pytest.approx(rows["value"].mean()) and len(rows) == 8
    pd.testing.assert_frame_equal(search(EXPLORATION, SETTING, EPS, trials=3), table)
    assert len(FakeTuner.kept) == 1, "the second search went on from the first"


def test_a_run_that_diverges_scores_nothing():
    diverging = replace(SETTING.cluster, lr=1e30)
    experiment = STAGES[1].experiment(replace(SETTING, cluster=diverging))
    assert isinstance(experiment, Experiment) and score(experiment) == 0.0


def test_a_stage_goes_on_with_the_best_of_those_before(monkeypatch, fake):
    module, seen = sys.modules[search_function.__module__], []

    def found(stage, setting, space, **how):
        seen.append((stage.name, setting))
        row = {"eps": 0.4} if stage.name == "exploration" else NET
        worse = {name: type(v)(v * 2) for name, v in row.items()}
        rows = [{**worse, "score": 0.1, "best": False}, {**row, "score": 0.9, "best": True}]
        return pd.DataFrame(rows).assign(stage=stage.name, trial=range(2))

    monkeypatch.setattr(module, "search", found)
    setting = ADAPTIVE.settings("standard")["cifar10"]
    tuned, table = tuning.tune(setting, spaces("standard"), trials=2)
    assert [name for name, _ in seen] == ["local", "global", "gate", "exploration"]
    assert seen[0][1] == setting and seen[2][1].cluster.lr == 0.01 and len(table) == 8
    assert tuned.eps == (0.0, 0.4) and tuned.chooser == LeNet(channels=(4, 8), hidden=(16,))


def test_without_ray_a_search_says_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(tuning.NoRay, match=r'pip install "fedlib\[ray\]"'):
        search(EXPLORATION, SETTING, EPS, trials=1)
    assert main(["tune", "--trials", "1"]) == 1
    assert 'fedlib: tuning needs Ray: pip install "fedlib[ray]"' in capsys.readouterr().err


def test_what_is_kept_is_read_again(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDLIB_RESULTS", str(tmp_path))
    assert stored("digits") is None
    where("digits").parent.mkdir()
    pd.DataFrame({"stage": ["local"], "score": [0.5]}).to_csv(where("digits"), index=False)
    assert stored("digits")["score"].tolist() == [0.5]


def test_a_search_with_ray_itself():
    pytest.importorskip("ray", reason="Ray is an optional extra")
    try:
        table = search(EXPLORATION, SETTING, EPS, trials=2)
    except Exception as error:  # Ray gives its own processes 15 seconds to start
        if "timed out during startup" in str(error):
            pytest.skip(f"Ray does not start here: {error}")
        raise
    assert len(table) == 2 and table["score"].between(0.01, 1).all()
    pd.testing.assert_frame_equal(search(EXPLORATION, SETTING, EPS, trials=2), table)
