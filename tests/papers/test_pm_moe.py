"""004: its settings, what it publishes, and its claims on runs whose verdicts are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from companion.claims import FAILS, HOLDS
from companion.frames import together
from fedlib.models import MLP
from fedlib.runs import Result
from papers.fedmix import FEDAVG
from papers.pm_moe import (
    DENOISED,
    NINE,
    STAGE,
    SYNCHRONOUS,
    TRADITIONAL,
    WITH_MOE,
    analysis,
    called,
)
from papers.pm_moe.claims import fourteen_claims, mixture_claims
from papers.pm_moe.experiments import DATASETS, FOURTEEN, PRIVATE_PARTS, fourteen, task

COLUMNS = ["round", "metric", "client", "expert", "item", "value"]
SIZES = (10, 30)
RUNS = {(r.method, *r.where.values()): r for r in PRIVATE_PARTS.runs("quick", "digits")}


def run(method, seed, *accuracies, s=0.0, stage=""):
    """A run of two clients whose last accuracies are given, as `together` takes it."""
    rows = [(0, "examples", client, -1, "", n) for client, n in enumerate(SIZES)]
    for client, last in enumerate(accuracies):
        for t, value in ((0, 0.1), (3, last)):
            for metric in ("test_accuracy", "validation_accuracy"):
                rows.append((t, metric, client, -1, "", value))
    experiment = replace(RUNS[SYNCHRONOUS, 0.0].experiment, seed=seed)
    where = {"S": s} | ({STAGE: stage} if stage else {})
    metrics = pa.Table.from_pandas(pd.DataFrame(rows, columns=COLUMNS), preserve_index=False)
    return method, where, [Result(experiment, metrics, {})]


def table_1(helps):
    """Sharing adds ``helps`` / 10 to methods that share all, and takes as much from the nine."""
    return analysis.scores(
        together(
            run(m, seed, value, value, s=s)
            for seed in range(3)
            for s in (0.0, 20.0)
            for i, m in enumerate((*TRADITIONAL, *NINE))
            for shared in [helps * (0.1 if s else 0.0) * (-1 if m in NINE else 1)]
            for value in [0.5 + 0.2 * (m in NINE) + shared + 0.01 * i + 0.001 * seed]
        )
    )


def mixtures(gain, cleaned=0.02):
    """All nine at S = 0, with PM-MoE ``gain`` better, and denoised ``cleaned`` better than that."""
    runs = []
    for seed in range(3):
        base = 0.6 + 0.01 * seed
        runs.append(run(SYNCHRONOUS, seed, 0.5, 0.5))
        for m in NINE:
            runs.append(run(m, seed, base, base))
            for stage, more in ((WITH_MOE, gain), (DENOISED, gain + cleaned)):
                runs.append(run(m, seed, base + more + 0.001 * seed, base + more, stage=stage))
    return together(runs)


def test_a_second_stage_is_a_column_until_it_is_read():
    """The same method with and without it: what runs are told apart by is data."""
    second = RUNS["FedPer", 0.0, WITH_MOE]
    assert second.where == {"S": 0.0, STAGE: WITH_MOE}
    assert second.experiment.after == RUNS["FedPer", 0.0].experiment
    table = pd.DataFrame({"method": ["FedPer", "DBE"], STAGE: ["", DENOISED], "value": [1, 2]})
    assert called(table)["method"].tolist() == ["FedPer", f"DBE {DENOISED}"]
    assert called(called(table)).equals(called(table)) and STAGE not in called(table)


def test_clients_count_by_their_examples():
    (row,) = analysis.scores(together([run("FedPer", 1, 0.4, 0.8, s=20.0)])).to_dict("records")
    assert (row["method"], row["S"], row["seed"], row[STAGE]) == ("FedPer", 20.0, 1, "")
    assert row["value"] == pytest.approx(0.7)


@pytest.mark.parametrize("dataset", analysis.PRINTED)
def test_every_published_number_is_found_with_its_stage(dataset):
    first, second, third, fourth = (analysis.printed(f"Table {i}", dataset) for i in range(1, 5))
    for s in (0.0, 20.0):
        assert {*TRADITIONAL, *NINE} <= {*first[first["S"] == s]["method"]}
        mixed = second[second["S"].eq(s) & second[STAGE].eq(WITH_MOE)]
        assert {*NINE} == {*mixed["method"]}
    assert first["value"].dropna().between(0, 1).all() and first[STAGE].eq("").all()
    if len(third):
        best = "LG-FedAvg" if dataset == "ag_news" else "FedCP"
        assert {*third["method"]} == {best} and {*third[STAGE]} == {"", WITH_MOE, DENOISED}
    assert {*fourth["method"]} <= {"PM-MOE", SYNCHRONOUS}


def test_an_unknown_data_set_has_no_published_numbers():
    assert analysis.printed("Table 1", "digits").empty


def test_agreement_is_a_rank_correlation():
    known = pd.DataFrame({"method": [*"abc"], "S": 0.0, "value": [0.1, 0.2, 0.3]})
    values = [0.5, 0.6, 0.9, 0.9, 0.6, 0.5, 0.7]
    table = pd.DataFrame(
        {"method": [*"abcabcd"], "seed": [0, 0, 0, 1, 1, 1, 0], "S": 0.0, "value": values}
    )
    assert analysis.agreement(table, known, 0.0) == pytest.approx({0: 1.0, 1: -1.0})


@pytest.mark.parametrize(("helps", "said"), [(1, [HOLDS] * 3), (-1, [HOLDS, FAILS, FAILS])])
def test_the_claims_about_sharing_follow_the_runs(helps, said):
    """The published order is asked for where it is known."""
    for dataset, orders in (("digits", 0), ("cifar10", 2)):
        claims = fourteen_claims(table_1(helps), analysis.printed("Table 1", dataset))
        assert [c.verdict for c in claims][:3] == said and len(claims) == 3 + orders
        assert all(c.seeds == 3 for c in claims)


@pytest.mark.parametrize(
    ("before", "after", "sizes", "order", "course"),
    [
        ((0.5, 0.5, 0.5), (0.9, 0.1, 0.4), (1, 2, 1), (0, 2, 1), (0.5, 0.6, 0.575, 0.375)),
        ((0.3, 0.8), (0.3, 0.8), (1, 1), (1, 0), (0.55,) * 3),  # nothing is gained
    ],
)
def test_clients_are_converted_one_by_one(before, after, sizes, order, course):
    arrays = (np.array(values, dtype=float) for values in (before, after, sizes))
    np.testing.assert_allclose(analysis.prefixes(*arrays, np.array(order)), course)


@pytest.mark.parametrize(("gain", "verdict"), [(0.05, HOLDS), (-0.05, FAILS)])
def test_the_claims_about_mixtures_follow_the_runs(gain, verdict):
    improves, harms, denoised, synchronous, largest = mixture_claims(mixtures(gain))
    assert improves.verdict == harms.verdict == verdict
    assert denoised.verdict == synchronous.verdict == HOLDS
    # If every client gains, the largest evaluation is that of all of them.
    assert (largest.verdict == HOLDS) == (gain < 0)


def test_gains_are_paired_by_seed_and_stand_in_the_order_of_the_nine():
    table = analysis.scores(mixtures(0.05))
    added = analysis.gains(table.iloc[::-1])
    assert len(added) == 27 and added["value"].between(0.05, 0.051).all()
    assert tuple(added["method"].unique()) == NINE
    np.testing.assert_allclose(analysis.gains(table, DENOISED, WITH_MOE)["value"], 0.02)


def test_the_largest_evaluation_is_never_less_than_the_baseline():
    told = analysis.reporting(mixtures(-0.05))
    assert (told["maximum"] == 0).all() and (told["all"] < 0).all() and len(told) == 27
    np.testing.assert_allclose(told["all"], -0.05 + told["seed"] * 0.001 * SIZES[0] / sum(SIZES))


def test_tables_say_what_is_published():
    table = analysis.scores(mixtures(0.05))
    text = analysis.tabled(table, analysis.printed("Table 2", "cifar10"))["S = 0"]
    for name, mean in (("FedPer", "0.610"), (f"FedPer {WITH_MOE}", "0.660")):
        assert text[name].startswith(f"{mean} ± ") and "(3) [" in text[name]
    assert not text[SYNCHRONOUS].endswith("]")
    steps = analysis.ablation(table.query("seed < 2 and method == 'FedPer' and stage != @DENOISED"))
    assert list(steps.index) == ["FedPer"] and list(steps) == ["alone", "PM-MoE", "denoised"]
    assert steps.loc["FedPer"].tolist() == ["0.605 (2)", "0.655 (2)", ""]


def test_measured_and_published_stand_beside_each_other():
    known = analysis.printed("Table 1", "cifar10")
    panels = analysis.ranges({"here": table_1(1), "published": known})
    assert list(panels) == ["S = 0", "S = 20"] and len(panels["S = 0"]) == 28
    rows = panels["S = 0"].set_index(["row", "group"])
    here, theirs = rows.loc[("FedPer", "here")], rows.loc[("FedPer", "published")]
    assert here["low"] < here["mean"] < here["high"]
    assert theirs["mean"] == pytest.approx(0.8990) and np.isnan(theirs["low"])


def test_the_released_logs_have_a_best_round_above_what_is_published():
    log = analysis.released_log()
    assert len(log) == 6 and log.notna().all().all()
    assert log.loc["TINY", ["best_round_accuracy", f"published {WITH_MOE}"]].tolist() == [
        36.153,
        31.96,
    ]
    assert (log["best_round_accuracy"] >= log["last_round_accuracy"]).all()


def test_a_method_may_train_at_a_rate_of_its_own():
    setting = FOURTEEN.settings("standard", "cifar10")["cifar10"]
    made = fourteen(replace(setting, rate=0.5, rates=(("SCAFFOLD", 0.125),)))
    assert {m: a.client.lr for m, a in made.items() if a.client.lr != 0.5} == {"SCAFFOLD": 0.125}
    assert made == fourteen(replace(setting, rate=0.5, rates=())) | {"SCAFFOLD": made["SCAFFOLD"]}
    assert TRADITIONAL[0] == FEDAVG and {*made} == {*TRADITIONAL, *NINE}


def test_the_standard_scale_thins_the_papers_partition_and_the_quick_one_has_digits():
    """A portion of the data would be dealt to another federation, with other tests."""
    small, paper = (FOURTEEN.settings(scale) for scale in ("standard", "paper"))
    for dataset, setting in small.items():
        mine, whole = setting.task, paper[dataset].task
        assert (mine.partition, mine.portion) == (whole.partition, whole.portion)
        assert replace(mine.held_out, train=1.0) == whole.held_out and mine.held_out.train < 1
    quick = {name: task(name, "quick", shared=0.2) for name in DATASETS}
    assert quick.pop("ag_news") is None and {t.model for t in quick.values()} == {MLP((32,))}
    assert all(t.dataset == "digits" and t.partition.shared == 0.2 for t in quick.values())


def test_the_papers_scale_is_004s():
    """2,000 rounds of SGD at 0.005, batches of 10; gates of 50 epochs at 0.1, gamma 0.2."""
    setting = FOURTEEN.settings("paper")["cifar10"]
    assert (setting.rounds, setting.rate, setting.batch_size, setting.clients) == (
        2000,
        5e-3,
        10,
        20,
    )
    assert (setting.gated, setting.gate_rate, setting.gamma, setting.kappa) == (50, 0.1, 0.2, 50)
    texts = FOURTEEN.settings("paper")["ag_news"]
    assert (texts.kappa, texts.near, texts.decay) == (0.1, 1e-4, 0.0)
