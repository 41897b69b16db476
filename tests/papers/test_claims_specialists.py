"""Scores of generalists and specialists: taken apart, set beside the papers', and judged."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

from companion import frames, plotting
from companion.claims import FAILS, HOLDS, UNTESTED
from papers.claims import opt_out, specialists
from papers.claims import released as released_code
from papers.claims.specialists import GLOBAL, HELD, OWN
from papers.recipes import FEDAVG, LOCAL, MIXTURE, SMALL, TUNED, at, departed

COLUMNS = ["method", "seed", "round", "metric", "client", "value"]


def frame_of(*rows):
    return pd.DataFrame(rows, columns=COLUMNS)


def test_methods_are_taken_apart_as_recipes_name_them():
    names = [at(MIXTURE, p=0.8, q=0.95), at(LOCAL, p=1), FEDAVG, at(FEDAVG, lr=1e-7)]
    frame = frames.apart(pd.DataFrame({"method": names, "value": range(4)}))
    assert frame["method"].tolist() == [MIXTURE, LOCAL, FEDAVG, FEDAVG]
    np.testing.assert_array_equal(frame["p"], [0.8, 1, np.nan, np.nan])
    np.testing.assert_array_equal(frame["q"], [0.95, np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(frame["lr"], [np.nan, np.nan, np.nan, 1e-7])
    assert frames.apart(pd.DataFrame({"method": ["FedAvg, 2x parameters"]}))["method"][0] == (
        "FedAvg, 2x parameters"
    )


def test_a_run_ends_with_the_state_that_it_kept():
    rows = [("a", 0, t, "m", c, 10 * t + c) for t in (0, 2, 4) for c in range(3)]
    rows += [("b", 0, t, "m", c, 10 * t + c) for t in (0, 2, 4) for c in range(3)]
    frame = frame_of(*rows, ("b", 0, 4, "kept_round", -1, 2.0))
    assert frames.ended(frame, "m")["value"].tolist() == [41.0, 21.0]
    assert frames.ended(frame, "m", clients=2)["value"].tolist() == [40.5, 20.5]


def table_of(values, ps=(0.2, 1.0), seeds=3, **more):
    """Scores by (method, metric), with a little noise by seed that all methods share."""
    rows = [
        {"method": m, "metric": metric, "p": p, "seed": s, "value": v + 0.001 * s, **more}
        for ((m, metric), v), p, s in itertools.product(values.items(), ps, range(seeds))
    ]
    return pd.DataFrame(rows)


PUBLISHED = {
    (FEDAVG, GLOBAL): 0.40,
    (MIXTURE, GLOBAL): 0.38,
    (TUNED, GLOBAL): 0.35,
    (LOCAL, GLOBAL): 0.20,
    (FEDAVG, OWN): 0.40,
    (MIXTURE, OWN): 0.60,
    (TUNED, OWN): 0.605,
    (LOCAL, OWN): 0.50,
}


def test_what_looks_as_published_holds():
    table = table_of(PUBLISHED)
    table["value"] += 1e-4 * table["seed"] * np.arange(len(table)) / len(table)
    skew = table["p"] == 1.0
    falls = table["method"].eq(FEDAVG) & skew
    grows = table["method"].eq(LOCAL) & skew & (table["metric"] == OWN)
    table.loc[falls, "value"] -= 0.01
    table.loc[grows, "value"] += 0.01
    found = specialists.generalisation_claims(table)
    assert [c.verdict for c in found] == [HOLDS] * 8
    assert all(c.seeds == 3 for c in found)


def test_what_is_the_other_way_round_does_not_hold():
    swapped = {**PUBLISHED, (TUNED, GLOBAL): 0.39, (MIXTURE, OWN): 0.58}
    table = table_of(swapped)
    table["value"] += 1e-4 * table["seed"] * np.arange(len(table)) / len(table)
    found = specialists.generalisation_claims(table)
    assert [c.verdict for c in found[:2]] == [FAILS, FAILS]


def test_one_seed_tests_nothing():
    verdicts = {c.verdict for c in specialists.generalisation_claims(table_of(PUBLISHED, seeds=1))}
    assert verdicts == {UNTESTED}


def test_opting_out_is_judged_at_every_fraction():
    high = {**PUBLISHED, (FEDAVG, GLOBAL): 0.3, (FEDAVG, OWN): 0.3}
    alone = table_of({(LOCAL, GLOBAL): 0.2, (LOCAL, OWN): 0.5}, q=np.nan)
    table = pd.concat([*(table_of(high, q=q) for q in (0.9, 0.95)), alone], ignore_index=True)
    table["value"] += 1e-4 * table["seed"] * np.arange(len(table)) / len(table)
    found = opt_out.opt_out_claims(table)
    assert len(found) == 6 and {c.verdict for c in found} == {HOLDS}
    assert sum("q = 0.95, i.i.d." in c.text for c in found) == 2


def test_the_first_version_is_judged_on_what_it_reports():
    held = {(FEDAVG, HELD): 0.3, (LOCAL, HELD): 0.5, (TUNED, HELD): 0.45, (MIXTURE, HELD): 0.55}
    table = table_of(held, q=0.0)
    table["value"] += 1e-4 * table["seed"] * np.arange(len(table)) / len(table)
    table.loc[table["method"].eq(FEDAVG) & (table["p"] == 1.0), "value"] -= 0.05
    assert [c.verdict for c in opt_out.first_version_claims(table)] == [HOLDS] * 4


def test_published_tables_are_scores():
    table = specialists.printed()
    assert len(table) == 3 * 2 * 5 * 4 and table["value"].between(0, 1).all()
    news = table[(table["data"] == "ag_news") & (table["metric"] == GLOBAL)]
    first = news[news["method"] == FEDAVG].set_index("p")["value"]
    assert first[0.5] == 0.8031 and first[0.7] == pytest.approx(7.6 * 0.1042, abs=1e-3)
    earlier = specialists.printed("002")
    assert len(earlier) == 12 and set(earlier["metric"]) == {HELD}


def test_measured_stands_beside_published():
    table = specialists.beside(
        table_of(PUBLISHED, ps=(0.3,)), specialists.printed().query("data == 'cifar10'")
    )
    assert table.loc[("global test", 0.3), FEDAVG] == "0.401 ± 0.002 (3) [0.426]"
    assert table.loc[("own test", 0.3), MIXTURE].endswith("[0.439]")
    assert (
        specialists.beside(table_of(PUBLISHED, ps=(0.25,)), specialists.printed()).loc[
            ("own test", 0.25), LOCAL
        ]
        == "0.501 ± 0.002 (3)"
    )


def test_ratios_are_taken_on_the_same_seed_and_value():
    table = table_of({(FEDAVG, GLOBAL): 0.4, (MIXTURE, GLOBAL): 0.2}, seeds=2)
    table.loc[table["p"] == 1.0, "value"] *= 2
    ratio = specialists.of_fedavg(table, GLOBAL, "p")
    assert set(ratio["method"]) == {MIXTURE} and len(ratio) == 4
    np.testing.assert_allclose(ratio["value"], [0.5, 0.201 / 0.401] * 2, rtol=1e-6)


def test_departures_are_differences_to_the_papers_reading():
    plain = table_of({(MIXTURE, OWN): 0.5, (TUNED, OWN): 0.4}, seeds=2)
    other = table_of({(departed(MIXTURE, "log pool"), OWN): 0.53}, seeds=2)
    moved = released_code.moved(other, plain)
    assert set(moved["departure"]) == {"log pool"} and set(moved["method"]) == {MIXTURE}
    np.testing.assert_allclose(moved["value"], 0.03)


def test_rates_are_compared_on_validation_examples():
    rows = [
        (at(FEDAVG, p=p, lr=lr), s, 5, "balanced_validation_accuracy", c, 100 * p + lr)
        for p, lr, s, c in itertools.product((0.2, 1.0), (1e-4, 1e-3), (0, 1), (0, 1))
    ]
    table = specialists.tried(frame_of(*rows))
    assert set(table["method"]) == {"p = 0.2", "p = 1"} and len(table) == 8
    np.testing.assert_allclose(table[table["lr"] == 1e-3]["value"] % 1, 1e-3, rtol=1e-9)


def test_the_plane_and_the_curves_draw_what_they_are_given():
    table = table_of(PUBLISHED)
    printed = specialists.printed().query("data == 'cifar10'")
    figure, drawn = plotting.plane(
        {"CIFAR-10": table}, x=GLOBAL, y=OWN, by="p", xlabel="x", ylabel="y",
        printed={"CIFAR-10": printed},
    )  # fmt: skip
    assert len(drawn) == 8 and {"mean_x", "low_y"} <= set(drawn)
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert {FEDAVG, LOCAL, TUNED, MIXTURE, "published"} == set(labels)
    numbers = [t.get_text() for t in figure.axes[0].texts]
    assert numbers.count("0.2") == 4 and numbers.count("0.3") == 4
    ratio = specialists.of_fedavg(table, GLOBAL, "p")
    figure, drawn = plotting.over({"x": ratio}, x="p", xlabel="p", ylabel="r", one=True, log=True)
    assert len(drawn) == 6 and figure.axes[0].get_xscale() == "log"
    theirs = pd.DataFrame({"method": [MIXTURE], "p": [0.3], "value": [0.9]})
    figure, _ = plotting.over(
        {"x": ratio}, x="p", xlabel="p", ylabel="r", printed={"x": theirs}
    )  # fmt: skip
    assert figure.axes[0].collections[-1].get_offsets().tolist() == [[0.3, 0.9]]


def clients_of(values, clients=3):
    rows = [
        (at(m, p=0.6, q=0.5), s, 5, metric, c, v + 0.01 * c)
        for ((m, metric), v), s, c in itertools.product(values.items(), (0, 1), range(clients))
    ]
    return frame_of(*rows)


def test_every_client_is_a_dot():
    frame = clients_of({(FEDAVG, GLOBAL): 0.4, (FEDAVG, OWN): 0.5, (TUNED, OWN): 0.6})
    dots = specialists.of_clients(frame, 2)
    assert len(dots) == 3 * 2 * 2 and set(dots["q"]) == {0.5} and set(dots["client"]) == {0, 1}
    figure, drawn = plotting.cloud({"x": dots}, x=GLOBAL, y=OWN, xlabel="x", ylabel="y")
    assert len(drawn) == 4, "a client without both numbers is no dot"
    np.testing.assert_allclose(drawn[drawn["client"] == 1][[GLOBAL, OWN]], [[0.41, 0.51]] * 2)
    assert figure.axes[0].get_legend_handles_labels()[1] == [FEDAVG]


def test_departures_stand_beside_what_is_published():
    plain = table_of({(MIXTURE, OWN): 0.5, (TUNED, OWN): 0.4, (FEDAVG, OWN): 0.3}, ps=(0.8, 1.0))
    other = table_of(
        {(departed(MIXTURE, "log pool"), OWN): 0.6, (departed(TUNED, "as released"), OWN): 0.2},
        ps=(0.8,),
    )
    printed = specialists.printed().query("data == 'cifar10'")
    table = released_code.explained(other, plain, printed, OWN)
    assert list(table.columns) == ["published", "as described", "log pool", "as released"]
    assert set(table.index) == {(0.8, MIXTURE), (0.8, TUNED)}
    row = table.loc[(0.8, MIXTURE)]
    assert row["as described"] == pytest.approx(0.501) and row["log pool"] == pytest.approx(0.601)
    assert np.isnan(row["as released"]) and 0 < row["published"] < 1


def test_the_ledger_tells_who_sent():
    name = at(FEDAVG, p=0.2, q=0.5)
    rows = [(name, 0, 0, "opted_in", c, 20.0 * (c < 2)) for c in range(4)]
    rows += [(name, 0, t, "client_bytes_up", c, 3e6) for t in (1, 2) for c in range(2)]
    rows += [(at(FEDAVG, p=0.2, q=0), 0, 1, "train_loss", -1, 0.1)]
    row = opt_out.ledger(frame_of(*rows)).loc[0.5]
    assert row["clients that take part"] == 2 == row["clients that opted out"]
    assert row["smallest cohort"] == 2 == row["largest cohort"]
    assert row["MB sent by the former"] == 12 and row["MB sent by the latter"] == 0


def test_experts_of_other_architectures_are_judged():
    rows = [(m, s, 1, k, c, v) for m, k, v in (
        (FEDAVG, GLOBAL, 0.5), (FEDAVG, OWN, 0.5), (SMALL, GLOBAL, 0.4), (SMALL, OWN, 0.6)
    ) for s in range(3) for c in range(2)]  # fmt: skip
    # A stage for two of three clients is compared on these two.
    rows += [(FEDAVG, s, 1, k, 2, 0.9) for s in range(3) for k in (GLOBAL, OWN)]
    found = specialists.architecture_claims(specialists.scores(frame_of(*rows), 2))
    assert [c.verdict for c in found] == [HOLDS, FAILS]
    assert found[0].measured.startswith("0.600 vs 0.500")


def test_which_fedavg_is_published_is_told_by_the_distance():
    printed = specialists.printed().query("data == 'cifar10'")
    plain = table_of({(FEDAVG, GLOBAL): 0.36, (FEDAVG, OWN): 0.17}, ps=(0.8,))
    last = departed(FEDAVG, "last client")
    released = table_of({(last, GLOBAL): 0.21, (last, OWN): 0.3}, ps=(0.8,))
    released["value"] += 1e-3 * released["seed"]
    found = released_code.released_claims(released, plain, printed)
    assert [c.verdict for c in found] == [HOLDS, FAILS]
    assert "0.161 vs 0.01" in found[0].measured  # published: 0.2000, here 0.361 and 0.212


def test_dirichlet_shares_are_judged_over_all_alphas():
    table = table_of(PUBLISHED).rename(columns={"p": "alpha"})
    table["value"] += 1e-4 * table["seed"] * np.arange(len(table)) / len(table)
    assert [c.verdict for c in specialists.alpha_claims(table)] == [HOLDS]
    worse = table.assign(value=table["value"].where(table["method"] != MIXTURE, 0.1))
    assert [c.verdict for c in specialists.alpha_claims(worse)] == [FAILS]


def test_who_cannot_opt_out_counts_at_every_fraction():
    rows = [(MIXTURE, 0.0, 0.2), (MIXTURE, 0.9, 0.2), (LOCAL, np.nan, 0.2), (LOCAL, np.nan, 1.0)]
    table = pd.DataFrame(rows, columns=["method", "q", "p"])
    here = opt_out.at_q(table, 0.9)
    assert here["method"].tolist() == [MIXTURE, LOCAL]
    assert here["p"].tolist() == [0.2, 0.2]  # a p that nothing is compared at does not count


def test_training_alone_is_all_there_is_where_everybody_opts_out():
    qs = (0.0, 0.5, 0.75, 0.9, 0.95)
    parts = [table_of({(MIXTURE, OWN): 0.6 - q / 10, (MIXTURE, GLOBAL): 0.9}, q=q) for q in qs]
    table = pd.concat([*parts, table_of({(LOCAL, OWN): 0.5}, q=np.nan)], ignore_index=True)
    drawn = opt_out.over_q(table, 0.2, OWN)
    at = {m: rows.groupby("q")["value"].mean() for m, rows in drawn.groupby("method")}
    assert [*at[MIXTURE].index] == [*qs] and [*at[LOCAL].index] == [*qs, 1.0]
    assert at[LOCAL].tolist() == pytest.approx([0.501] * 6)
    assert at[MIXTURE].tolist() == pytest.approx([0.601 - q / 10 for q in qs])
    assert opt_out.of_figure(table) == [0.0, 0.9, 0.95]
    assert opt_out.of_figure(table[table["q"].isin([0.0, 0.75])]) == [0.0, 0.75]
    assert opt_out.of_figure(table[table["q"].eq(0.0)]) == [0.0]


def test_losses_are_fedavgs_at_the_least_and_most_skewed():
    rows = [
        (at(method, p=p), 0, t, metric, client, 10 * p + t + client)
        for method in (FEDAVG, MIXTURE)
        for p in (0.2, 0.6, 1.0)
        for t in (0, 1)
        for metric, clients in (("train_loss", [0]), ("validation_nll", [0, 1]))
        for client in clients
    ]
    found = specialists.losses(frame_of(*rows)).set_index(["method", "round"])["value"]
    names = {f"{p} p, {of}" for p in ("least", "largest") for of in ("training", "validation")}
    assert set(found.index.get_level_values(0)) == names and len(found) == 8
    assert found["largest p, training", 1] == 11.0 and found["least p, validation", 0] == 2.5
