"""What 004 claims, on runs made up so that the verdicts are known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from companion.claims import FAILS, HOLDS
from papers.claims import private_parts as private
from papers.recipes import DENOISED, NINE, SYNCHRONOUS, TRADITIONAL, WITH_MOE, at

COLUMNS = ["method", "seed", "round", "metric", "client", "expert", "item", "value"]
SIZES = (10, 30)


def run(method, seed, *accuracies):
    """A run of two clients whose last accuracies are given."""
    rows = []
    for client, (n, value) in enumerate(zip(SIZES, accuracies, strict=True)):
        rows.append((method, seed, 0, "examples", client, -1, "", n))
        for t, v in ((0, 0.1), (3, value)):
            for metric in ("test_accuracy", "validation_accuracy"):
                rows.append((method, seed, t, metric, client, -1, "", v))
    return rows


def frame(*runs):
    return pd.DataFrame([row for rows in runs for row in rows], columns=COLUMNS)


def test_clients_count_by_their_examples():
    table = private.scores(frame(run(at("FedPer", S=20), 1, 0.4, 0.8)))
    (row,) = table.to_dict("records")
    assert (row["method"], row["S"], row["seed"]) == ("FedPer", 20.0, 1)
    assert row["value"] == pytest.approx(0.7)


@pytest.mark.parametrize("dataset", private.PRINTED)
def test_every_published_number_of_the_baselines_is_found(dataset):
    known = private.printed("Table 1", dataset)
    for s in (0.0, 20.0):
        methods = set(known[known["S"] == s]["method"])
        assert {*TRADITIONAL, *NINE} <= methods
    second = private.printed("Table 2", dataset)
    assert {f"{m} {WITH_MOE}" for m in NINE} <= set(second["method"])
    assert known["value"].dropna().between(0, 1).all()


def test_an_unknown_data_set_has_no_published_numbers():
    assert private.printed("Table 1", "digits").empty


def test_agreement_is_a_rank_correlation():
    known = pd.DataFrame({"method": ["a", "b", "c"], "S": 0.0, "value": [0.1, 0.2, 0.3]})
    table = pd.DataFrame(
        {
            "method": ["a", "b", "c"] * 2 + ["d"],
            "seed": [0] * 3 + [1] * 3 + [0],
            "S": 0.0,
            "value": [0.5, 0.6, 0.9, 0.9, 0.6, 0.5, 0.7],
        }
    )
    assert private.agreement(table, known, 0.0) == pytest.approx({0: 1.0, 1: -1.0})


def fourteen(helps):
    rows = []
    for seed in range(3):
        for s in (0.0, 20.0):
            for i, m in enumerate((*TRADITIONAL, *NINE)):
                kept = m in NINE
                shared = helps * (0.1 if s else 0.0) * (-1 if kept else 1)
                value = 0.5 + 0.2 * kept + shared + 0.01 * i + 0.001 * seed
                rows.append(run(at(m, S=s), seed, value, value))
    return private.scores(frame(*rows))


def test_the_claims_about_sharing_follow_the_runs():
    known = private.printed("Table 1", "digits")
    for helps, verdicts in ((1, [HOLDS] * 3), (-1, [HOLDS, FAILS, FAILS])):
        claims = private.fourteen_claims(fourteen(helps), known)
        assert [c.verdict for c in claims] == verdicts


def test_the_published_order_is_asked_for_where_it_is_known():
    claims = private.fourteen_claims(fourteen(1), private.printed("Table 1", "cifar10"))
    assert len(claims) == 5 and all(c.seeds == 3 for c in claims)


def test_prefixes_by_hand():
    before, after = np.array([0.5, 0.5, 0.5]), np.array([0.9, 0.1, 0.4])
    course = private.prefixes(before, after, np.array([1.0, 2.0, 1.0]), np.array([0, 2, 1]))
    np.testing.assert_allclose(course, [0.5, 0.6, 0.575, 0.375])


def test_nothing_converted_is_no_gain():
    same = np.array([0.3, 0.8])
    assert np.ptp(private.prefixes(same, same, np.ones(2), np.array([1, 0]))) == 0


def mixtures(gain, cleaned=0.02):
    rows = []
    for seed in range(3):
        for m in NINE:
            base = 0.6 + 0.01 * seed
            rows.append(run(at(m, S=0.0), seed, base, base))
            for name, more in ((WITH_MOE, gain), (DENOISED, gain + cleaned)):
                value = (base + more + 0.001 * seed, base + more)
                rows.append(run(at(f"{m} {name}", S=0.0), seed, *value))
        rows.append(run(at(SYNCHRONOUS, S=0.0), seed, 0.5, 0.5))
    return frame(*rows)


def test_gains_are_paired_by_seed():
    table = private.scores(mixtures(0.05))
    added = private.gains(table)
    assert len(added) == 27 and added["value"].between(0.05, 0.051).all()
    assert private.gains(table, DENOISED, WITH_MOE)["value"].to_numpy() == pytest.approx(0.02)


@pytest.mark.parametrize(("gain", "verdict"), [(0.05, HOLDS), (-0.05, FAILS)])
def test_the_claims_about_mixtures_follow_the_runs(gain, verdict):
    claims = private.mixture_claims(mixtures(gain))
    improves, harms, denoised, synchronous, largest = claims
    assert improves.verdict == harms.verdict == verdict
    assert denoised.verdict == synchronous.verdict == HOLDS
    # If every client gains, the largest evaluation is that of all of them.
    assert (largest.verdict == HOLDS) == (gain < 0)


def test_the_largest_evaluation_is_never_less_than_the_baseline():
    told = private.reporting(mixtures(-0.05))
    assert (told["maximum"] == 0).all() and (told["all"] < 0).all() and len(told) == 27


def test_tables_say_what_is_published():
    table = private.scores(mixtures(0.05))
    text = private.tabled(table, private.printed("Table 2", "cifar10"))
    assert text.loc["FedPer", "S = 0"].startswith("0.610 ± ")
    assert text.loc["FedPer", "S = 0"].endswith("]") and "(3)" in text.loc["FedPer", "S = 0"]
    assert not text.loc[SYNCHRONOUS, "S = 0"].endswith("]")


def test_measured_and_published_stand_beside_each_other():
    known = private.printed("Table 1", "cifar10")
    panels = private.ranges({"here": fourteen(1), "published": known})
    assert list(panels) == ["S = 0", "S = 20"]
    rows = panels["S = 0"].set_index(["row", "group"])
    here, theirs = rows.loc[("FedPer", "here")], rows.loc[("FedPer", "published")]
    assert here["low"] < here["mean"] < here["high"]
    assert theirs["mean"] == pytest.approx(0.8990) and np.isnan(theirs["low"])
    assert len(panels["S = 0"]) == 28


def test_the_released_logs_have_a_best_round_above_what_is_published():
    log = private.released_log()
    assert len(log) == 6 and log.notna().all().all()
    assert log.loc["TINY", "best_round_accuracy"] == 36.153
    assert log.loc["TINY", f"published {WITH_MOE}"] == 31.96
    assert (log["best_round_accuracy"] >= log["last_round_accuracy"]).all()


def test_the_ablation_has_a_row_per_method_and_a_column_per_step():
    runs = [
        run(at(m, S=0), k, 0.5, 0.5 + 0.01 * k)
        for m in ("FedPer", f"FedPer {WITH_MOE}")
        for k in (0, 1)
    ]
    found = private.ablation(private.scores(frame(*runs)))
    assert list(found.index) == ["FedPer"] and list(found.columns) == [
        "alone",
        "PM-MoE",
        "denoised",
    ]
    assert found.loc["FedPer", "alone"] == "0.504 (2)" and found.loc["FedPer", "denoised"] == ""
