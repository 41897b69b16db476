"""The table of every method: its numbers by hand, who is unbeaten, and what runs cost."""

from itertools import product

import pandas as pd
import pytest
from rows import frame_of

from companion import plotting
from companion.claims import CONTRADICTED, HOLDS
from companion.frames import together
from companion.panels import Panel, costs
from fedrun import run
from papers import comparison as board
from papers.comparison import EVERY_METHOD, FAMILIES, PROPOSED, leaderboard_claims
from papers.fedmix import FEDAVG, FEDMIX
from papers.pm_moe import called
from papers.pm_moe.experiments import FOURTEEN, PRIVATE_PARTS
from papers.scaled import TUNED


def standings(ends, seeds=3):
    """Standings of two clients: own accuracies, accuracy on all tests, and a newcomer's."""
    rows = []
    for (method, (own, everywhere, new)), seed in product(ends.items(), range(seeds)):
        here = {"method": method, "seed": seed}
        rows.append({**here, "metric": "global_accuracy", "value": new})
        for client, value in enumerate(own):
            mine = {**here, "client": client}
            rows += [{**mine, "round": t, "value": t * (value + 0.001 * seed)} for t in (0, 1)]
            rows.append({**mine, "metric": "everywhere_accuracy", "value": everywhere})
    return board.standings(frame_of(*rows))


def test_every_method_belongs_to_one_family():
    known = [m for methods in FAMILIES.values() for m in methods]
    assert sorted(known) == sorted(set(known))
    assert set(known) == set(EVERY_METHOD.methods("quick", "digits"))
    assert {m for methods in PROPOSED.values() for m in methods} <= set(known)
    assert board.family(FEDMIX) == "global experts, a gate each" and board.family("?") == ""


def test_methods_that_others_know_are_the_same_runs():
    """Whatever 004 runs where nothing is shared is compared here, but for variants of PM-MoE."""
    ours = {run.method: run.experiment for run in EVERY_METHOD.runs("quick", "digits")}
    found = set()
    for section in (FOURTEEN, PRIVATE_PARTS):
        for one in section.runs("quick", "digits"):
            place = pd.DataFrame([{"method": one.method, "stage": "", **one.where}])
            name = called(place)["method"].item()
            if one.where["S"] == 0 and name in ours:
                assert one.experiment == ours[name]
                found.add(name)
    assert found >= {*FOURTEEN.methods("quick", "digits"), *PROPOSED["PM-MoE"]}


def test_the_best_on_own_tests_comes_first_and_costs_follow():
    table = standings({FEDAVG: ((0.4, 0.8), 0.5, 0.7), TUNED: ((0.9, 0.9), 0.2, 0.3)})
    rows = [(FEDAVG, 0, 10.0, 4.0, 1.0), (FEDAVG, 1, 20.0, 6.0, 1.0), (TUNED, 0, 15.0, 10.0, 2.0)]
    spent = pd.DataFrame(rows, columns=["method", "seed", "megabytes", "seconds", "client_mib"])
    said = table[table["method"].eq(FEDAVG) & table["seed"].eq(0)].set_index("kind")["value"]
    expected = {board.OWN: 0.6, board.WORST: 0.4, board.ALL: 0.5, board.NEW: 0.7}
    assert said.to_dict() == pytest.approx(expected)
    found = board.leaderboard(table, spent)
    assert list(found.index) == [TUNED, FEDAVG]
    assert found.loc[TUNED, board.OWN] == "0.901 ± 0.002"
    assert found["MB down and up"].tolist() == [15.0, 15.0]
    assert found["MiB held"].tolist() == [2.0, 1.0]
    assert found["time over FedAvg's"].tolist() == [2.0, 1.0]


def test_nobody_beats_the_unbeaten_in_both():
    points = {"a": (0.9, 0.1), "b": (0.5, 0.5), "c": (0.5, 0.4), "d": (0.4, 0.9)}
    ends = {name: ((own, own), everywhere, 0.5) for name, (own, everywhere) in points.items()}
    found = board.frontier(standings(ends))
    best = found.set_index("method")["best"].to_dict()
    assert best == {"a": True, "b": True, "c": False, "d": True}
    figure, drawn = plotting.frontier({"x": found}, xlabel="x", ylabel="y")
    assert {t.get_text() for t in figure.axes[0].texts} == {"a", "b", "d"} and len(drawn) == 4


def test_claims_are_judged_by_what_is_measured():
    ends = {FEDAVG: ((0.5, 0.5), 0.9, 0.9), TUNED: ((0.8, 0.8), 0.5, 0.5)}
    ends |= dict.fromkeys(PROPOSED["FedMix"], ((0.7, 0.7), 0.6, 0.6))
    said = {c.text: c.verdict for c in leaderboard_claims(standings(ends))}
    mine = {t: v for t, v in said.items() if t.startswith("FedMix ")}
    of_fedmix = {t.split(" beats ")[1].split(" on ")[0]: v for t, v in mine.items()}
    # Differences that are the same on every seed: an interval without width.
    assert of_fedmix == {FEDAVG: HOLDS, TUNED: CONTRADICTED}
    trade = "Methods better on the local test sets are worse on the global test set"
    assert said[f"{trade} (rank correlation)"] == HOLDS


@pytest.mark.slow
def test_costs_count_all_stages():
    how = {"seeds": 1, "rounds": 2}
    made = {m: EVERY_METHOD.experiments("quick", "digits", m, **how) for m in (FEDAVG, TUNED)}
    results = [(m, {}, [run(e, progress=False) for e in es]) for m, es in made.items()]
    setting = EVERY_METHOD.settings("quick")["digits"]
    panel = Panel("digits", "quick", setting, together(results), trained=True, rounds=2)
    found = costs(EVERY_METHOD, panel).set_index("method")
    # Fine-tuning sends nothing more than the federation before it did.
    assert found.loc[TUNED, "megabytes"] == found.loc[FEDAVG, "megabytes"] > 0
    assert found.loc[TUNED, "seconds"] >= found.loc[FEDAVG, "seconds"]
    assert found.loc[TUNED, "client_mib"] > found.loc[FEDAVG, "client_mib"] > 0


def test_over_bytes_fewer_are_better_and_who_sends_none_is_a_line():
    ends = dict.fromkeys("abcd", ((0.5, 0.5), 0.5, 0.5)) | {"c": ((0.9, 0.9), 0.1, 0.1)}
    ends["d"] = ((0.4, 0.4), 0.5, 0.5)
    spent = pd.DataFrame({"method": list("abcd"), "megabytes": [1.0, 2.0, 30.0, 0.0]})
    found = board.by_bytes(standings(ends), spent).set_index("method")
    assert found["best"].to_dict() == {"a": True, "b": False, "c": True, "d": True}
    assert found["x"].to_dict() == {"a": 1.0, "b": 2.0, "c": 30.0, "d": 0.0}
    how = {"log": True, "unit": "MB", "xlabel": "x", "ylabel": "y"}
    figure, drawn = plotting.frontier({"x": found.reset_index()}, **how)
    assert {t.get_text() for t in figure.axes[0].texts} == {"a", "c"} and len(drawn) == 4
    (level,) = (line for line in figure.axes[0].lines if line.get_label() == "d, 0 MB")
    assert level.get_ydata()[0] == pytest.approx(0.401)
    unknown = board.by_bytes(standings(ends), spent[:3])  # what "d" costs is not known
    assert {*unknown["method"]} == {*"abc"}
    # Whoever sends and has no more than training alone is beaten by it.
    worse = board.by_bytes(standings(ends | {"d": ((0.6, 0.6), 0.5, 0.5)}), spent)
    assert {*worse["method"][worse["best"]]} == {"c", "d"}
