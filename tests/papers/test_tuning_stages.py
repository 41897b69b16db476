"""The four stages in which 003 tunes: what each changes, and what the next goes on with."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import replace

import pandas as pd
import pytest

from fedlib.models import LeNet
from fedlib.runs import tuning as library
from fedlib.runs.tuning import Space, Uniform
from papers.__main__ import main
from papers.adaptive import tuning
from papers.adaptive.experiments import ADAPTIVE
from papers.adaptive.tuning import STAGES, spaces, stored, where

SETTING = ADAPTIVE.settings("standard")["cifar10"]
NET = {"lr": 0.01, "weight_decay": 0.02, "first": 4, "second": 8, "hidden": 16}
LENET = LeNet(channels=(4, 8), hidden=(16,))
CHANGED = {"local": ("local", "own"), "global": ("cluster", "task"), "gate": ("gate", "chooser")}


@pytest.mark.parametrize("stage", STAGES[:3], ids=lambda stage: stage.name)
def test_every_stage_changes_its_own_part(stage):
    tuned, (optimizer, net) = stage.apply(SETTING, NET), CHANGED[stage.name]
    rates = getattr(tuned, optimizer)
    assert (rates.lr, rates.weight_decay) == (0.01, 0.02)
    assert getattr(tuned, net) == (replace(SETTING.task, model=LENET) if net == "task" else LENET)
    assert replace(tuned, **{name: getattr(SETTING, name) for name in (optimizer, net)}) == SETTING


def test_the_last_stage_changes_exploration_and_every_one_has_a_space():
    explored = STAGES[-1].apply(SETTING, {"eps": 0.5})
    assert explored.eps == (0.0, 0.5) and replace(explored, eps=SETTING.eps) == SETTING
    for scale in ("standard", "paper"):
        assert list(spaces(scale)) == [stage.name for stage in STAGES]
    with pytest.raises(ValueError, match="unknown scale"):
        spaces("quick")


def test_a_trial_is_of_the_searchs_seed_in_all_its_stages(monkeypatch):
    seen = []

    def found(name, experiment, space, **how):
        seen.append((name, how["of"], how["seed"], experiment({"eps": 0.4})))
        return [{"eps": 0.2, "score": 0.1}, {"eps": 0.4, "score": 0.3}]

    monkeypatch.setattr(library, "search", found)
    space = Space((("eps", Uniform(0.1, 0.9, log=False)),))
    table = tuning.search(STAGES[-1], SETTING, space, trials=2)
    assert table["best"].tolist() == [False, True] and table["trial"].tolist() == [0, 1]
    ((name, of, seed, experiment),) = seen
    assert (name, of, seed) == ("exploration", SETTING, 11)
    assert {stage.seed for stage in experiment.stages} == {11}
    assert experiment.after.algorithm.explore.eps == 0.4


def test_a_stage_goes_on_with_the_best_of_those_before(monkeypatch):
    seen = []

    def found(stage, setting, space, **how):
        seen.append((stage.name, setting))
        row = {"eps": 0.4} if stage.name == "exploration" else NET
        worse = {name: type(v)(v * 2) for name, v in row.items()}
        rows = [{**worse, "score": 0.1, "best": False}, {**row, "score": 0.9, "best": True}]
        return pd.DataFrame(rows).assign(stage=stage.name, trial=range(2))

    monkeypatch.setattr(tuning, "search", found)
    monkeypatch.setattr(library, "session", lambda *_: nullcontext())
    tuned, table = tuning.tune(SETTING, spaces("standard"), trials=2)
    assert [name for name, _ in seen] == ["local", "global", "gate", "exploration"]
    assert seen[0][1] == SETTING and seen[2][1].cluster.lr == 0.01 and len(table) == 8
    assert tuned.eps == (0.0, 0.4) and tuned.chooser == LENET


def test_without_ray_the_command_says_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["tune", "--trials", "1"]) == 1
    assert 'fedlib: tuning needs Ray: pip install "fedlib[ray]"' in capsys.readouterr().err


def test_what_is_kept_is_read_again(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDLIB_RESULTS", str(tmp_path))
    assert stored("digits") is None
    where("digits").parent.mkdir()
    pd.DataFrame({"stage": ["local"], "score": [0.5]}).to_csv(where("digits"), index=False)
    assert stored("digits")["score"].tolist() == [0.5]
