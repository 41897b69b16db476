"""The scorecard: every published number is placed, judged by hand-made cases, and shown."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from companion import claims, panels, scorecard
from companion.claims import OPEN
from companion.plotting import save_table
from companion.scorecard import at_own_scale, judged, not_at_hand, numbers, orders, tables
from companion.scorecard.tables import (
    ABSENT,
    AGREES,
    DIFFERS,
    DIVERGED,
    IMPRECISE,
    NEVER,
    NO,
    OTHER,
    VERDICTS,
)
from companion.sections import OWN, PROTOCOL, REDUCED, ROUNDS, OtherData
from companion.what_ran import what_ran
from fedrun import Result, store
from fedrun.results import export
from papers.pm_moe.experiments import FOURTEEN
from papers.published import published
from papers.registry import REGISTRY
from papers.scaled import MAJORITY

# One table: to look for the runs of all takes half a minute.
ONE = replace(REGISTRY, tables=tuple(e for e in REGISTRY.tables if e.section is FOURTEEN))
COLUMNS = ["round", "metric", "client", "expert", "item", "value"]


# Published and measured numbers, and what is said of them by the stated rule.
JUDGED = pd.read_csv(Path(__file__).with_name("judged.csv")).to_dict("records")


@pytest.mark.parametrize("case", JUDGED, ids=lambda case: case["why"])
def test_a_number_is_judged_by_the_stated_rule(case):
    said, seeds = case["said"], case["seeds"]
    low, high = (case["mean"] + sign * case["half"] for sign in (-1, 1))
    row = {**case, "low": low, "high": high, "why_not": "", "diverged": False}
    row |= {"faithful": OWN, "at_hand": True}
    one = pd.DataFrame([row])
    assert judged(one).item() == said and said in VERDICTS
    assert judged(one.assign(faithful=ROUNDS)).item() == (OTHER if seeds else NEVER)
    assert judged(one.assign(at_hand=False)).item() == (said if seeds else ABSENT)
    assert judged(one.assign(diverged=True)).item() == (said if seeds else DIVERGED)
    assert judged(one.assign(why_not="no")).item() == NO


def test_a_run_that_was_moved_is_of_all_its_devices():
    """Its last segment alone was shown: 94% of a run was another machine's."""
    parts = [{"device": "NVIDIA H200"}, {"device": "NVIDIA H200"}, {"device": "x86_64"}]
    made = {"device": "x86_64", "segments": parts}
    assert scorecard.devices(made) == "NVIDIA H200, then x86_64"
    assert scorecard.devices({"device": "x86_64", "segments": []}) == "x86_64"
    assert scorecard.devices({"commit": "abc"}) == ""


def test_orders_are_judged_within_families_and_against_all_tables():
    names = ["table_or_figure", "group", "family", "value", "mean"]
    places = [(item, p, f) for item in "xyz" for p in ("p = 1", "p = 2") for f in "ab"]
    rows = [(*at, i, i + 100 * (at[2] == "b")) for at in places for i in range(3)]
    table = pd.DataFrame([*rows, ("alone", "p", "a", 1, 1)], columns=names)
    table = table.assign(seeds=3, repeats=False, paper="004", dataset="d")
    table.loc[table["table_or_figure"].eq("z"), "mean"] = [3, 4, 2, 104, 103, 102] * 2
    worst = table[table["table_or_figure"].eq("x")].assign(repeats=True, mean=-table["mean"])
    found = orders(pd.concat([table, worst])).set_index("table_or_figure")
    assert found["verdict"].to_dict() == dict.fromkeys("xy", scorecard.ORDERED) | {"z": OPEN}
    assert found.loc["x", "correlation"] == 1 and found.loc["z", "correlation"] == -0.75
    assert found.loc["x", "p"] == pytest.approx(1 / 6**4, abs=5e-4)


def test_what_the_standard_scale_has_a_sample_of_is_not_at_hand():
    rows = published().set_index("row").loc[not_at_hand(REGISTRY)]
    assert rows["paper"].str.startswith("004").all()
    assert set(rows["dataset"]) == {"Cifar100", "TINY"}
    assert {"FedAvg", "DBE", "FedPer+PM-MOE"} <= set(rows["method"])


def test_every_published_number_has_a_run_to_be_compared_with_or_a_reason():
    """Numbers without a reason are those that some table prints, each at one place."""
    reasons = published().set_index("row")["why_not"]
    placed = []
    for item in REGISTRY.tables:
        for dataset in {d for s in ("standard", "paper") for d in item.section.settings(s)}:
            placed += [int(row) for row in item.printed(dataset).dropna(subset="value")["row"]]
    wanted = set(reasons.index[reasons.eq("")])
    # The derived rows stand for those that they correct.
    lacking = published().set_index("row").loc[sorted(wanted - set(placed))]
    assert lacking.empty, f"no table of the registry prints these:\n{lacking.to_csv()}"
    extra = published().set_index("row").loc[sorted(set(placed) - wanted)]
    assert extra["repeats"].ge(0).all() and not set(extra["repeats"]) & set(extra.index)


def test_a_number_that_was_printed_too_small_is_compared_in_its_rescaled_form():
    rows = published("001", "Table 1e").set_index("row")
    said, rescaled = rows["why_not"], rows["metric"].str.endswith("DERIVED")
    assert said[rescaled].eq("").all() and rescaled.sum() == 16
    known = said[~rescaled].value_counts().to_dict()
    assert sorted(known.values()) == [4, 16] and any("7.6 times too small" in why for why in known)


def test_what_a_table_prints_is_what_its_section_can_measure():
    for item in REGISTRY.tables:
        first = next(iter(item.section.settings("paper")))
        bare = {r.method for r in item.section.runs("paper", first, costly=True)}
        for dataset in item.section.settings("paper"):
            printed = item.printed(dataset)
            known = set(printed["method"]) - {"PM-MOE", "all"}
            assert known <= bare, (item.notebook, known - bare)


def stored(section, dataset, name, accuracy, scale="standard", kept=None, first=0.1, apart=0.01):
    """Export made-up runs, so far apart, a client with that accuracy; return their keys.

    ``kept`` is the round whose model they kept, ``first`` the initial model's accuracy.
    """
    made = []
    for experiment in section.experiments(scale, dataset, name):
        value = accuracy + apart * (experiment.seed - 1)
        rows = [(0, "examples", 0, -1, "", 10.0)]
        for metric in ("test_accuracy", "validation_accuracy"):
            rows += [(t, metric, 0, -1, "", v) for t, v in ((0, first), (experiment.rounds, value))]
        rows += [(experiment.rounds, "kept_round", -1, -1, "", kept)] * (kept is not None)
        metrics = pa.Table.from_pandas(pd.DataFrame(rows, columns=COLUMNS), preserve_index=False)
        made.append(Result(experiment, metrics, {"commit": "abc"}))
    export(made, f"{section.name}-{dataset}-{made[0].experiment.key}")
    return [result.experiment.key for result in made]


def test_a_stored_run_is_joined_with_the_number_it_measures():
    keys = stored(FOURTEEN, "cifar10", "FedPer, S = 0", 0.9)
    stored(FOURTEEN, "cifar10", "FedAvg, S = 0", 0.3)
    stored(FOURTEEN, "cifar10", "FedProx, S = 0", 0.3, first=0.4)
    stored(FOURTEEN, "cifar10", "MOON, S = 0", 0.3, kept=0)
    found = numbers(ONE)
    assert len(found) == len(published())
    one = found[found["paper"].str.startswith("004") & found["table_or_figure"].eq("Table 1")]
    one = one[one["dataset"].eq("Cifar10") & one["setting"].str.endswith("S=0")].set_index("method")
    row = one.loc["FedPer"]
    assert row["value"] == 89.90 and row["mean"] == pytest.approx(90.0)
    assert (
        row["low"] < 89.9 < row["high"] and row["verdict"] == OTHER and row["faithful"] == REDUCED
    )
    assert row["values"] == pytest.approx([89, 90, 91]) and row["gap"] == pytest.approx(0.1)
    # By hand: Student's quantile 4.3027, the standard error of three runs a point apart, the angle.
    turn = 4.30265 * 0.01 / 3**0.5 / (2 * (0.9 * 0.1) ** 0.5)
    ends = [100 * np.sin(np.arcsin(0.9**0.5) + s * turn) ** 2 for s in (-1, 1)]
    assert [row["low"], row["high"]] == pytest.approx(ends, rel=1e-5)
    assert (row["seeds"], row["scale"], row["commit"]) == (3, "standard", "abc")
    assert row["notebook"] == "12_fourteen_baselines"
    assert row["key"] == keys[0]
    assert one.loc["DBE", "verdict"] == NEVER and one.loc["FedProx", "verdict"] == OTHER
    # Its kept model is the initial one, although it trained: it counts, and that is told.
    moon = one.loc["MOON"]
    assert (moon["verdict"], moon["initial"]) == (OTHER, 3)
    shown = tables.listed(one.reset_index()).set_index("method")["verdict"]
    assert shown["MOON"].endswith(
        "the kept model is the initial one in 3 of 3 seeds, selected by NLL"
    )
    assert shown.str.contains("initial").sum() == 1
    for dataset, verdict in {"Cifar100": ABSENT, "TINY": ABSENT, "AGNews": NEVER}.items():
        rows = found[found["dataset"].eq(dataset) & found["table_or_figure"].eq("Table 1")]
        rows = rows[rows["paper"].str.startswith("004")]
        assert set(rows["verdict"]) == {verdict}


@pytest.mark.parametrize(("apart", "verdict"), [(0.001, AGREES), (0.01, IMPRECISE)])
def test_a_run_of_the_papers_own_scale_is_compared_by_the_margin(apart, verdict):
    stored(FOURTEEN, "cifar10", "FedPer, S = 0", 0.89, "paper", apart=apart)
    stored(FOURTEEN, "cifar10", "FedPer, S = 0", 0.5)
    found = numbers(ONE)
    (row,) = found[found["seeds"].gt(0) & ~found["repeats"]].to_dict("records")
    assert (row["scale"], row["faithful"], row["verdict"]) == ("paper", PROTOCOL, verdict)
    assert row["gap"] == pytest.approx(-0.9)


def test_a_few_seeds_of_a_larger_scale_take_nobodys_place(monkeypatch):
    row = int(published().query("repeats < 0")["row"].iloc[0])
    ends = {"paper": {"mean": 0.9, "seeds": 1}, "standard": {"mean": 0.5, "seeds": 3}}
    rows = [{"row": row, "scale": scale, **end} for scale, end in ends.items()]
    for some, scale in ((rows, "standard"), (rows[:1], "paper")):
        monkeypatch.setattr(scorecard, "_measured", lambda *_, some=some: iter(some))
        found = numbers(ONE).set_index("row").loc[row]
        assert found["scale"] == scale


def test_a_method_that_diverged_is_named_and_nothing_waits_for_it():
    for run in FOURTEEN.runs("standard", "fashion_mnist"):
        if run.name != "FedGH, S = 0":
            accuracy = 0.1 if run.method == MAJORITY else 0.5
            stored(FOURTEEN, "fashion_mnist", run.name, accuracy)
    gone = FOURTEEN.experiments("standard", "fashion_mnist", "FedGH, S = 0")
    (panel,) = panels.stored(FOURTEEN, [], "standard")
    assert panel.absent == {"FedGH": "1 of 2 places"} and not panel.diverged
    said = {"round": 37, "message": "no", "commit": "abc"}
    store.RunFolder(gone[0]).write_record(store.FAILURE, said)
    (panel,) = panels.stored(FOURTEEN, [], "standard")
    assert "FedGH" not in set(panel.frame["method"]) and panel.frame["S"].nunique() == 2
    assert panel.diverged == {"FedGH"}
    assert what_ran(FOURTEEN, [panel]).iloc[-1, 0] == "FedGH, S = 0 (seed 0)"
    found = numbers(ONE)
    found = found[found["paper"].str.startswith("004") & found["table_or_figure"].eq("Table 1")]
    found = found[found["dataset"].eq("FMNIST")]
    said = found[found["method"].eq("FedGH")].set_index("setting")["verdict"]
    assert sorted(said) == [DIVERGED, OTHER] and said.idxmin().endswith("S=0")
    others = found[~found["method"].isin(["FedGH", "PM-MOE"])]
    assert len(others) == 26 and set(others["verdict"]) == {OTHER}


def claims_of(scale, verdict):
    whose = dict(zip(("paper", "name"), REGISTRY.claims()[["paper", "name"]].iloc[0], strict=True))
    more = {**whose, "seeds": 3, "setting": REDUCED, "dataset": "cifar10"}
    claim = claims.Claim("a > b & <c>", "Table 1", "0.5 vs 0.4", verdict, **more)
    save_table(claims.table({"CIFAR-10 (standard)": [claim]}), "12_claims", scale)


def test_a_claim_is_taken_from_the_largest_scale_and_never_from_figures_that_are_not_kept():
    claims_of("quick", "contradicted")
    assert scorecard.collected().empty
    claims_of("standard", "undecided")
    claims_of("paper", "holds")
    found = scorecard.collected()
    assert len(found) == 1 and found["verdict"].item() == "holds"
    assert found["notebook"].item() == "12_fourteen_baselines"


def test_what_is_of_one_data_set_has_nothing_of_those_whose_names_hold_its_name():
    """Of "mnist" there was FMNIST too, of "cifar10" Cifar100, and every claim of all."""
    table = numbers(ONE)
    names = "MNIST (standard)", "Fashion-MNIST (standard)", "MNIST (standard), 9 rounds"
    claims_of_all = pd.DataFrame({"tested on": names})
    rows, tested = scorecard.of_data(ONE, "mnist", table, claims_of_all)
    assert {*rows["dataset"]} == {"MNIST"} and [*tested.index] == [0, 2]
    rows, tested = scorecard.of_data(ONE, "fashion_mnist", table, claims_of_all)
    assert {*rows["dataset"]} == {"FMNIST"} and [*tested.index] == [1]
    assert scorecard.of_data(ONE, "", table, claims_of_all) == (table, claims_of_all)
    with pytest.raises(OtherData, match="unknown data set at scale 'paper' 'digits'"):
        scorecard.of_data(ONE, "digits", table, claims_of_all)


def test_every_number_and_claim_is_listed_whether_or_not_it_was_measured():
    nothing, said = numbers(ONE), ONE.claims()
    assert set(nothing["verdict"]) == {NEVER, ABSENT, NO} and nothing["mean"].isna().all()
    assert (tables.listed(nothing)["measured"] == "").all()
    stored(FOURTEEN, "cifar10", "FedPer, S = 0", 0.9)
    claims_of("standard", "contradicted")
    table, told = numbers(ONE), claims.answers(scorecard.collected(), said)
    listed = tables.listed(table)
    assert len(listed) == len(table) == len(published()) and len(told) == len(said)
    (row,) = listed[listed["measured"].ne("")].to_dict("records")
    assert row["paper"] == "PM-MoE" and row["seeds"] == "3" and len(row["run"]) > 8
    assert row["95% interval"].count(" to ") == 1 and row["verdict"] == OTHER
    assert [*tables.by_table(table)] == ["PM-MoE, Table 1"]
    ((where, gaps),) = tables.gaps_by_paper(tables.by_table(table)["PM-MoE, Table 1"]).items()
    assert where == "smaller settings" and [*gaps["row"], *gaps["group"]] == ["PM-MoE", OTHER]
    assert told["verdict"].tolist() == ["contradicted", *["not tested"] * (len(said) - 1)]


def test_at_their_own_scale_numbers_are_counted_and_the_rest_has_its_command():
    of = {"000": "new_clients", "002": "first_version"}
    registry = replace(REGISTRY, tables=tuple(e for e in REGISTRY.tables if e.paper in of))
    rows = published().assign(repeats=False, why_not="", seeds=3, faithful=OWN, gap=-2.5)
    rows = rows.assign(verdict=np.where(rows["method"].eq("FedAvg"), AGREES, DIFFERS))
    rows.loc[rows["paper"].str.startswith("000"), "faithful"] = ROUNDS
    found = at_own_scale(registry, rows).set_index("section")
    told = {AGREES: 3, DIFFERS: 9, "left": 0, "gap": -2.5}
    told |= {"CPU hours": 0, "GPU hours": 0, "command": ""}
    assert found.loc["first_version", [*told]].to_dict() == told
    left = found.loc["new_clients"]
    assert left["left"] == left["numbers"] and left[DIFFERS] == 0 and np.isnan(left["gap"])
    assert (left["CPU hours"], left["command"]) == (2.5, "make campaign BLOCKS=10")
    of = {"new_clients:two_class_mnist_paper": 1.5}
    none = replace(registry, blocks=(), gpu_hours=of)
    alone = at_own_scale(none, rows).set_index("section").loc["new_clients"]
    assert np.isnan(alone["CPU hours"]) and alone["GPU hours"] == 1.5
    assert alone["command"] == f"make paper SCALE=paper SECTIONS=new_clients:{alone['data']}"
