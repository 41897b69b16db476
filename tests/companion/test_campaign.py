"""All runs of a scale: each once, in the order asked for, with a cost that a probe tells."""

from dataclasses import replace
from itertools import groupby

import pytest

from companion.plan import Planned, by_seed, epochs_of, kind_of, planned, probed
from companion.sections import SCALES
from fedlib.algorithms import FedAvg, Local, PMMoE
from fedlib.runs import Experiment, find, run
from fedlib.runs.sweep import SweepFailed
from papers.__main__ import main
from papers.book import BOOK
from papers.fedmix import FEDAVG
from papers.fedmix.experiments import LABEL_SKEW
from papers.pm_moe.experiments import FOURTEEN, PRIVATE_PARTS

ONE = FOURTEEN.experiments("quick", "digits", "FedAvg, S = 0")[0]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    monkeypatch.setenv("FEDLIB_QUIET", "1")


@pytest.mark.slow
@pytest.mark.parametrize("scale", SCALES)
def test_every_run_of_a_scale_is_planned_once(scale):
    groups = by_seed(BOOK, scale)
    asked = {stage for group in groups for e in group for stage in e.stages}
    assert all({*e.before} <= {*group} for group in groups for e in group)
    plan = [p.experiment for p in planned(BOOK, scale)]
    seeds = [e.seed for e in plan]
    assert seeds == sorted(seeds) and len(set(seeds)) > 1
    place = {e: i for i, e in enumerate(plan)}
    assert len(place) == len(plan) and place.keys() == asked
    assert all(place[stage] < i for e, i in place.items() for stage in e.before)


def parts(plan):
    """Return section, data set and seed of each stretch of a plan."""
    return [k for k, _ in groupby(plan, lambda p: (p.section, p.dataset, p.experiment.seed))]


def test_parts_come_in_the_order_in_which_they_are_asked_for():
    some = planned(BOOK, "standard", ["gates:cifar10@2", "rotated", "gates"])
    found = parts(some)
    assert found[:2] == [("gates", "cifar10", 0), ("gates", "cifar10", 1)]
    rotated = [seed for name, _, seed in found if name == "rotated"]
    assert rotated == sorted(rotated) and rotated[-1] >= 2
    assert found[-1] == ("gates", "cifar10", 2)
    assert len({p.experiment for p in some}) == len(some)
    alone = planned(BOOK, "standard", ["rotated:rotated_mnist"])
    assert {p.dataset for p in alone} == {"rotated_mnist"}


@pytest.mark.parametrize(("part", "said"), [("gates@x", "a part is"), ("gates:x", "data set.*'x'")])
def test_an_unknown_part_is_named(part, said):
    with pytest.raises(ValueError, match=said):
        planned(BOOK, "quick", [part])


def of(*runs):
    return [Planned("a", "x", "m", one) for one in runs]


def test_costs_grow_with_rounds_and_epochs_at_home(monkeypatch):
    """Two seconds a round and three a scoring, whatever the machine."""
    monkeypatch.setattr("companion.plan._measured", lambda one, device: (2.0, 3.0))
    home = Experiment(ONE.task, Local(epochs=5), 1, cohort=1.0, evaluate_every=1)
    runs = [ONE, replace(ONE, rounds=40, evaluate_every=0), home]
    costs = probed(of(*runs))
    # Before the first round and after every third of twenty; the last one counts as the next.
    assert costs[ONE] == 20 * 2 + (1 + 20 // 3) * 3
    assert costs[runs[1]] == 40 * 2 + 3 and costs[home] == 5 * 2 + 2 * 3
    longer = replace(home, algorithm=replace(home.algorithm, epochs=70))
    assert kind_of(home) == kind_of(longer)
    assert kind_of(replace(ONE, cohort=3)) != kind_of(ONE) == kind_of(replace(ONE, seed=3))
    assert epochs_of(longer) == 70 and epochs_of(ONE) == 1


def test_a_probe_plays_what_will_be_played_or_says_why_not(monkeypatch, capsys):
    stage = PRIVATE_PARTS.experiments("quick", "digits", "FedPer, S = 0, + PM-MoE")[0]
    assert isinstance(stage.algorithm, PMMoE)
    costs = probed(of(ONE, stage, replace(ONE, seed=2)), "cpu")
    assert capsys.readouterr().out.count("  a, x, m: about ") == 2
    assert len(costs) == 3 and all(isinstance(c, float) and c > 0 for c in costs.values())
    assert find(ONE) is None  # nothing is stored

    def measured(one, device):
        raise OSError("no")

    monkeypatch.setattr("companion.plan._measured", measured)
    assert probed(of(ONE)) == {ONE: "OSError: no"}


@pytest.mark.slow
def test_the_command_plans_trains_and_continues(monkeypatch, capsys):
    first = LABEL_SKEW.experiments("quick", "digits", FEDAVG)[0]
    few = [replace(first, rounds=2, seed=s, algorithm=FedAvg(batch_size=50)) for s in (0, 1)]
    plan = [p for p in planned(BOOK, "quick", ["label_skew"])][:2]
    plan = [replace(p, experiment=e) for p, e in zip(plan, few, strict=True)]
    monkeypatch.setattr("companion.plan.planned", lambda *asked: plan)
    assert main(["campaign", "--plan", "--scale", "quick", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "2 runs at the quick scale, 2 of them to be trained" in said and "label_skew" in said
    assert find(few[0]) is None
    assert main(["campaign", "--scale", "quick", "--no-probe", "--device", "cpu"]) == 0
    assert "all runs are stored" in capsys.readouterr().out
    assert all(find(e) is not None for e in few)
    assert main(["campaign", "--scale", "quick"]) == 0
    assert "0 of them to be trained" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop", "code"),
    [(KeyboardInterrupt("stopped"), 130), (SystemExit(143), 143), (SweepFailed("no"), 1)],
)
def test_a_campaign_that_ends_says_what_is_left(monkeypatch, capsys, stop, code):
    first = planned(BOOK, "quick", ["label_skew"])[0]
    runs = (replace(first.experiment, rounds=1, seed=seed) for seed in (0, 1, 2))
    plan = [replace(first, experiment=one) for one in runs]
    monkeypatch.setattr("companion.plan.planned", lambda *asked: plan)

    def trained(runs, **how):
        run(plan[0].experiment, device="cpu", progress=False)
        raise stop

    monkeypatch.setattr("companion.plan.train", trained)
    try:
        ended = main(["campaign", "--scale", "quick", "--no-probe"])
    except SystemExit as terminated:  # by a signal, and handed on
        ended = terminated.code
    assert ended == code
    said = capsys.readouterr().out
    assert "2 runs are left:\n  label_skew on digits, seed 1: 1 to run" in said
    assert "all runs are stored" not in said


def test_uncommitted_code_trains_nothing_that_is_to_be_kept(monkeypatch, capsys):
    plan, trained = planned(BOOK, "standard", ["rotated"]), []
    monkeypatch.setattr("companion.plan.planned", lambda *asked: plan)
    monkeypatch.setattr("companion.plan.train", lambda runs, **how: trained.append(runs))
    monkeypatch.setattr("companion.plan.commit", lambda: "0123-dirty")
    for scale in ("standard", "paper"):
        assert main(["campaign", "--scale", scale, "--no-probe"]) == 2
        said = capsys.readouterr().err
        assert "0123-dirty" in said
        assert main(["campaign", "--plan", "--scale", scale, "--no-probe"]) == 0
    assert not trained
    main(["campaign", "--scale", "quick", "--no-probe"])
    monkeypatch.setattr("companion.plan.commit", lambda: "0123")
    main(["campaign", "--scale", "standard", "--no-probe"])
    assert trained == [[p.experiment for p in plan]] * 2
