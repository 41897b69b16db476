"""The four stages in which 003 tunes: what each changes, and what the next goes on with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fedlib import paths
from fedlib.models import LeNet
from fedlib.runs import tuning
from papers.adaptive.experiments import ADAPTIVE, STAGES, changed, spaces, trials_file, tune

SETTING = ADAPTIVE.settings("standard")["cifar10"]
NET = {"lr": 0.01, "weight_decay": 0.02, "first": 4, "second": 8, "hidden": 16}
LENET = LeNet(channels=(4, 8), hidden=(16,))
CHANGED = {"local": ("local", "own"), "global": ("cluster", "task"), "gate": ("gate", "chooser")}


@pytest.mark.parametrize("stage", CHANGED)
def test_every_stage_changes_its_own_part(stage):
    tuned, (optimizer, net) = changed(SETTING, stage, NET), CHANGED[stage]
    rates = getattr(tuned, optimizer)
    assert (rates.lr, rates.weight_decay) == (0.01, 0.02)
    assert getattr(tuned, net) == (replace(SETTING.task, model=LENET) if net == "task" else LENET)
    assert replace(tuned, **{name: getattr(SETTING, name) for name in (optimizer, net)}) == SETTING


def test_the_last_stage_changes_exploration_and_every_one_has_a_space():
    explored = changed(SETTING, "exploration", {"eps": 0.5})
    assert explored.eps == (0.0, 0.5) and replace(explored, eps=SETTING.eps) == SETTING
    for scale in ("standard", "paper"):
        assert tuple(spaces(scale)) == STAGES
    with pytest.raises(ValueError, match="unknown scale"):
        spaces("quick")


def test_a_stage_goes_on_with_the_best_of_those_before(monkeypatch):
    """Every trial, and all its stages, are of the search's seed."""
    seen = {}

    def found(stage, experiment, space, *, seed, **how):
        best = {"eps": 0.4} if stage == "exploration" else NET
        seen[stage] = experiment(best)
        assert seed == 11 and {one.seed for one in seen[stage].stages} == {11}
        worse = {name: type(v)(v * 2) for name, v in best.items()}
        return [{**worse, "score": 0.1}, {**best, "score": 0.9}]

    monkeypatch.setattr(tuning, "search", found)
    tuned, table = tune(SETTING, spaces("standard"), trials=2)
    assert tuple(seen) == STAGES
    assert seen["gate"].after.algorithm.client.lr == 0.01 and seen["gate"].algorithm.gate == LENET
    assert seen["exploration"].after.algorithm.explore.eps == 0.4
    assert tuned.eps == (0.0, 0.4) and tuned.chooser == LENET
    assert table["best"].tolist() == [False, True] * 4 and table["trial"].tolist() == [0, 1] * 4


def test_the_trials_that_are_kept_are_drawn_again(monkeypatch):
    kept = pd.read_csv(paths.ROOT / "results" / "tuning" / "cifar10_standard.csv")
    monkeypatch.setattr(tuning, "train", lambda *_, **__: None)
    monkeypatch.setattr(tuning, "score", lambda *_: 0.0)
    for stage, space in spaces("standard").items():
        names = [name for name, _ in space.axes]
        stored = kept.loc[kept["stage"] == stage, names].sort_values(names[0])
        drawn = pd.DataFrame(tuning.search(stage, dict, space, trials=len(stored), seed=11))
        np.testing.assert_allclose(drawn[names].sort_values(names[0]), stored, rtol=1e-5)


def test_trials_are_kept_with_the_project(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDLIB_RESULTS", str(tmp_path))
    assert trials_file("digits") == tmp_path / "tuning" / "digits.csv"
