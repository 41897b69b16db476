"""All runs of a scale and of the campaign: each once, in the order asked for, with its cost."""

import re
from dataclasses import replace
from itertools import groupby
from types import SimpleNamespace

import pytest
from rows import settings_of

from companion import panels
from companion.plan import costs_of, epochs_of, kind_of, of_block, planned, progress
from companion.sections import Block
from fedlib import Local, paths
from fedrun import Experiment, Result, find_result, run
from fedrun.experiment import SCHEMA
from fedrun.results import places
from fedrun.sweeps import SweepFailed
from papers.__main__ import main
from papers.pm_moe.experiments import FOURTEEN
from papers.registry import REGISTRY

ONE = FOURTEEN.experiments("quick", "digits", "FedAvg, S = 0")[0]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    monkeypatch.setenv("FEDLIB_QUIET", "1")


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["quick", "standard"])
def test_every_run_of_a_scale_is_planned_once(scale):
    asked = set()
    for section, dataset in settings_of(scale):
        for one in section.runs(scale, dataset):
            asked |= {s for e in section.experiments(scale, dataset, one) for s in e.stages}
    plan = [p.experiment for p in planned(REGISTRY, scale)]
    seeds = [e.seed for e in plan]
    assert seeds == sorted(seeds) and len(set(seeds)) > 1
    place = {e: i for i, e in enumerate(plan)}
    assert len(place) == len(plan) and place.keys() == asked
    assert all(place[stage] < i for e, i in place.items() for stage in e.before)


def test_parts_come_in_the_order_in_which_they_are_asked_for():
    some = planned(REGISTRY, "standard", ["gates:fashion_mnist@2", "rotated", "gates"])
    # Section, data set and seed of each stretch of the plan.
    found = [k for k, _ in groupby(some, lambda p: (p.section, p.dataset, p.experiment.seed))]
    assert found[:2] == [("gates", "fashion_mnist", 0), ("gates", "fashion_mnist", 1)]
    rotated = [seed for name, _, seed in found if name == "rotated"]
    assert rotated == sorted(rotated) and rotated[-1] >= 2
    assert found[-1] == ("gates", "fashion_mnist", 8)
    assert len({p.experiment for p in some}) == len(some)
    alone = planned(REGISTRY, "standard", ["rotated:rotated_mnist"])
    assert {p.dataset for p in alone} == {"rotated_mnist"}


def test_what_the_campaign_trains_is_shown_beside_the_quick_scale():
    for block in REGISTRY.blocks:
        for scale, part in ((scale, p) for scale, parts in block.parts.items() for p in parts):
            assert scale in REGISTRY.sections[re.split("[:/@]", part)[0]].beside, part


def test_what_the_campaign_trains_is_enough_for_a_panel():
    """Otherwise a place that no block trains hides all others when the blocks are whole."""
    trained = {p.experiment for block in REGISTRY.blocks for p in of_block(REGISTRY, block)}
    asked = {(s, part) for b in REGISTRY.blocks for s, parts in b.parts.items() for part in parts}
    for scale, part in asked:
        name, _, dataset = re.split("[/@]", part)[0].partition(":")
        section = REGISTRY.sections[name]
        for data in [dataset] if dataset else section.settings(scale):
            runs = section.by_run(scale, data)
            found = [
                (run, [e if e in trained or find_result(e) else None for e in each])
                for run, each in runs
            ]
            shown, every = map(_numbers, (panels.comparable(found, section.apart), found))
            assert shown == every, f"{part} at the {scale} scale would not show {every - shown}"


def _numbers(runs):
    places = {place for run, _ in runs for place in run.where.items()}
    return {(name, at) for name, at in places if isinstance(at, int | float)}


def test_a_part_can_be_what_stands_somewhere():
    some = planned(REGISTRY, "standard", ["adaptive:cifar10@1/p=0.2,1/method=IFCA", "adaptive@1"])
    first = [p.method for p in some[:4]]
    assert first == [f"IFCA, p = {p}, J = 6, eps = {e}" for p in ("0.2", 1) for e in (0, "0.33")]
    assert len(some) > 4
    slower = planned(REGISTRY, "standard", ["permuted@1/method=K = 4, half the rate,K = 5"])
    assert {p.method for p in slower} == {"K = 4, half the rate", "K = 5"}, "a name with a comma"


def test_costs_are_those_of_stored_runs_of_the_kind(monkeypatch):
    """Thirty CPU seconds for twenty rounds are sixty for forty; of other kinds none is known."""
    monkeypatch.setattr("companion.plan.find_result", lambda one: stored.get(one))
    stored = {ONE: Result(ONE, SCHEMA.empty_table(), {"cpu_seconds": 30.0, "seconds": 500.0})}
    home = Experiment(ONE.task, Local(epochs=5), 1, cohort=1.0, evaluate_every=1)
    old = replace(ONE, seed=1)
    stored[old] = Result(old, SCHEMA.empty_table(), {"seconds": 500.0})  # before CPU seconds
    longer = replace(ONE, rounds=40, seed=2)
    assert costs_of([ONE, old, longer, home]) == {ONE: 30.0, old: 30.0, longer: 60.0}
    stored[home] = Result(home, SCHEMA.empty_table(), {"cpu_seconds": 5.0})
    more = replace(home, algorithm=replace(home.algorithm, epochs=70))
    assert costs_of([home, more])[more] == 70.0
    assert kind_of(replace(ONE, cohort=3)) != kind_of(ONE) == kind_of(replace(ONE, seed=3))
    assert epochs_of(more) == 70 and epochs_of(ONE) == 1


# Of every block the seeds of each part, as they were fixed before the first run of it.
SEEDS = {
    1: (3, 3), 2: (3, 5, 5, 5), 3: (3, 5), 4: (5, 5, 5),
    5: (3,), 6: (3, 3, 3), 7: (12,), 8: (6, 6), 9: (5, 5), 10: (5,), 11: (5, 5),
    12: (3, 3), 13: (3, 3),
    14: (3,), 15: (3, 5, 3),
    16: ({"cifar10": 5, "fashion_mnist": 6},), 17: ({"cifar10": 5, "fashion_mnist": 6},),
    18: (4,), 19: (12, 45), 20: (3, 5), 21: (5,), 22: (3, 3),
    23: (3, 3, 5), 24: (3, 3), 25: (9, 9, 9),
    26: (8, 22), 27: (3,), 28: (3, 3), 29: (3,), 30: (3,),
}  # fmt: skip


@pytest.fixture(scope="module")
def campaign():
    """What each part of every block plans: by block, a list of plans in the order of its parts."""
    parts = {
        b.number: [(s, p) for s, some in b.parts.items() for p in some] for b in REGISTRY.blocks
    }
    return {b: [planned(REGISTRY, scale, [p]) for scale, p in parts[b]] for b in parts}


@pytest.mark.slow
def test_the_campaign_has_the_seeds_that_were_fixed_before_it(campaign):
    assert [*campaign] == [*SEEDS], "a block has its seeds in SEEDS"
    for block, plans in campaign.items():
        for plan, seeds in zip(plans, SEEDS[block], strict=True):
            found = {}
            for p in plan:
                found.setdefault(p.dataset, set()).add(p.experiment.seed)
            asked = seeds if isinstance(seeds, dict) else dict.fromkeys(found, seeds)
            assert found == {name: {*range(n)} for name, n in asked.items()}, block


# Of three seeds, two are stored, and the third was dropped when the campaign was fixed.
DROPPED = {"label_skew on fashion_mnist, FedMix, seed 0"}


@pytest.mark.slow
def test_the_standard_scale_plans_what_is_stored_and_the_campaign(campaign, monkeypatch):
    """And nothing else, so that no run is left over that no block trains."""
    monkeypatch.setenv("FEDLIB_RESULTS", str(paths.ROOT / "results"))
    trained = {p.experiment for plans in campaign.values() for plan in plans for p in plan}
    left = [p for p in planned(REGISTRY, "standard") if p.experiment not in trained]
    stored = places()
    assert {f"{p}" for p in left if p.experiment.key not in stored} <= DROPPED


def test_the_blocks_are_listed_with_what_is_done(monkeypatch, capsys):
    block = Block(1, "a first look", {"quick": ["label_skew@1"]}, 0.5)
    monkeypatch.setattr("papers.__main__.REGISTRY", replace(REGISTRY, blocks=(block,)))
    assert main(["blocks"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed[-1].split()[-5:] == ["6", "0", "0.00", "0.00", "0.50"]
    assert main(["campaign", "--plan", "--block", "1"]) == 0
    assert "6 runs of block 1 of the campaign, 6 of them" in capsys.readouterr().out


def test_hours_on_a_gpu_are_counted_apart(monkeypatch):
    on_cpu = {"device": "x86_64", "seconds": 900.0, "cpu_seconds": 1800.0}
    of_old = {"device": "x86_64", "seconds": 900.0}
    on_gpu = {"device": "NVIDIA H200", "seconds": 3600.0}
    made = {"segments": [on_cpu, of_old, on_gpu]}  # no CPU seconds as a whole
    monkeypatch.setattr("companion.plan.find_result", lambda e: SimpleNamespace(provenance=made))
    block = Block(1, "a first look", {"quick": ["label_skew@1"]}, 0.5)
    assert progress(replace(REGISTRY, blocks=(block,))).loc[1].tolist()[1:] == [6, 6, 3.0, 6.0, 0.5]


@pytest.fixture
def few(monkeypatch):
    """A plan of three short runs in place of a scale's; return their experiments."""
    first = planned(REGISTRY, "quick", ["label_skew"])[0]
    runs = [replace(first.experiment, rounds=1, seed=seed) for seed in range(3)]
    plan = [replace(first, experiment=one) for one in runs]
    monkeypatch.setattr("companion.plan.planned", lambda *asked: plan)
    return runs


@pytest.mark.slow
def test_the_command_plans_trains_and_continues(few, capsys):
    assert main(["campaign", "--plan", "--scale", "quick", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "3 runs of the quick scale, 3 of them to be trained" in said and "label_skew" in said
    assert find_result(few[0]) is None
    assert main(["campaign", "--scale", "quick", "--device", "cpu"]) == 0
    assert "all runs are stored" in capsys.readouterr().out
    assert all(find_result(e) is not None for e in few)
    assert main(["campaign", "--scale", "quick"]) == 0
    assert "0 of them to be trained" in capsys.readouterr().out


STOPS = [(KeyboardInterrupt("stopped"), 130), (SystemExit(143), 143), (SweepFailed("no"), 1)]


@pytest.mark.slow
@pytest.mark.parametrize(("stop", "code"), STOPS)
def test_a_campaign_that_ends_says_what_is_left(few, monkeypatch, capsys, stop, code):
    def trained(runs, **how):
        run(few[0], device="cpu", progress=False)
        raise stop

    monkeypatch.setattr("companion.plan.train_missing", trained)
    try:
        ended = main(["campaign", "--scale", "quick"])
    except SystemExit as terminated:  # by a signal, and handed on
        ended = terminated.code
    assert ended == code
    said = capsys.readouterr().out
    assert "2 runs are left:\n  label_skew on digits: 2 to run, of seeds 1, 2" in said
    assert "all runs are stored" not in said


def test_uncommitted_code_trains_nothing_that_is_to_be_kept(monkeypatch, capsys):
    plan, trained = planned(REGISTRY, "standard", ["rotated"]), []
    monkeypatch.setattr("companion.plan.planned", lambda *asked: plan)
    monkeypatch.setattr("companion.plan.train_missing", lambda runs, **how: trained.append(runs))
    for scale, commit in (("standard", "0123-dirty"), ("paper", "unknown")):
        monkeypatch.setattr("companion.plan.commit", lambda commit=commit: commit)
        assert main(["campaign", "--scale", scale]) == 2
        assert f"(commit {commit})" in capsys.readouterr().err
        assert main(["campaign", "--plan", "--scale", scale]) == 0
    assert not trained
    main(["campaign", "--scale", "quick"])
    monkeypatch.setattr("companion.plan.commit", lambda: "0123")
    main(["campaign", "--scale", "standard"])
    assert trained == [[p.experiment for p in plan]] * 2
