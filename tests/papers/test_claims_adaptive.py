"""Scores of adaptive experts: taken apart, set beside Table 2, and judged."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

from companion import plotting
from companion.claims import FAILS, HOLDS
from papers.claims import adaptive
from papers.recipes import ALL_EQUAL, BEST, EAGER, LOCAL, MOE, TUNED, at

COLUMNS = ["method", "seed", "round", "metric", "client", "expert", "value"]
VALUES = {MOE: 0.75, BEST: 0.60, ALL_EQUAL: 0.70, TUNED: 0.72, EAGER: 0.76}


def frame(ps=(0.2, 1.0), seeds=3, clients=4):
    """Two clients in four are a tenth better; without exploration all are .05 worse."""
    rows = []
    for p, s, c in itertools.product(ps, range(seeds), range(clients)):
        own = 0.001 * s * (1 + p) + 0.1 * (c % 2)
        for (m, v), j, eps in itertools.product(VALUES.items(), (1, 3, 6), (0.0, 0.33)):
            if eps and j == 1:
                continue
            worse = 0.0 if eps else 0.05 * (-1 if m == BEST and p == 1 else 1)
            wide = (1.0 if eps else 1.5) + 0.5 * (m == BEST)
            name = at(m, p=p, J=j, eps=eps)
            value = v - worse + 0.0007 * s + wide * own
            rows.append((name, s, 9, "test_accuracy", c, -1, value))
        rows.append((at(LOCAL, p=p), s, 9, "test_accuracy", c, -1, 0.5 + 0.8 * own))
    return pd.DataFrame(rows, columns=COLUMNS)


def test_scores_keep_spread_over_clients_and_over_seeds_apart():
    table = adaptive.scores(frame())
    row = table.query("method == @MOE and seed == 0 and p == 0.2 and J == 6 and eps == 0.33").iloc[
        0
    ]
    assert row["value"] == pytest.approx(0.80)
    assert row["spread"] == pytest.approx(np.std([0, 0.1, 0, 0.1], ddof=1))
    assert table[table["method"] == LOCAL][["J", "eps"]].isna().all(axis=None)
    assert len(adaptive.clients(frame())) == 4 * len(table)


def test_what_looks_as_published_holds():
    verdicts = {c.text: c.verdict for c in adaptive.adaptive_claims(adaptive.scores(frame()))}
    gate = "The gate hardly leaves its initial weights: the ensemble is at most a point below"
    assert verdicts.pop(gate) == FAILS
    assert set(verdicts.values()) == {HOLDS} and len(verdicts) == 13


def test_fewer_clusters_are_compared_at_the_fractions_that_they_have():
    """At p = 0.2, where J = 3 was not run, the mixture over six clusters is far better."""
    table = adaptive.scores(frame())
    table = table[~(table["J"].lt(6) & table["p"].eq(0.2))]
    low = table["method"].eq(MOE) & table["p"].eq(0.2)
    table.loc[low, "value"] += 0.5
    verdicts = {c.text: c.verdict for c in adaptive.adaptive_claims(table)}
    text = "The mixture does not depend on J: J = 3 at most a point below J = 6"
    assert verdicts[text] == HOLDS


def test_what_the_paper_concludes_is_in_its_table():
    said = adaptive.conclusion()
    assert said["over_ifca"] == pytest.approx(0.2979, abs=2e-4)  # the text: 29.78%
    assert said["over_local"] == pytest.approx(0.0439, abs=2e-4)  # the text: 4.38%
    assert said["less_spread"] == pytest.approx(0.6039, abs=1e-4)  # the text: 60.39%


def test_without_clusters_and_with_one_both_strategies_are_the_same():
    table = adaptive.strategies(adaptive.scores(frame(ps=(0.6,), seeds=1)))
    none = table[table["method"].str.endswith("no exploration")]
    assert set(none["eps"].dropna()) == {0.0} and len(none) == 5 * 3 + 1
    most = table.drop(none.index)
    assert set(most.loc[most["J"] > 1, "eps"]) == {0.33} and (most["J"] == 1).sum() == 5


def test_table_2_stands_beside_the_papers():
    known = adaptive.printed()
    assert len(known) == 5 * 10 - 2, "two means of the best cluster are missing in the text"
    assert known["value"].between(0.3, 1).all() and set(known["eps"]) == {0.0, 0.33}
    assert not len(adaptive.printed("digits"))
    cell = adaptive.table_2(adaptive.scores(frame()), known).loc[(0.2, 0.33), MOE]
    assert cell.startswith("0.8") and cell.endswith("(3) {0.058} [0.724]")
    assert "[" not in adaptive.table_2(adaptive.scores(frame()), known[:0]).loc[(0.2, 0.33), MOE]
    assert adaptive.table_2(adaptive.scores(frame()), known).loc[(1.0, 0.0), LOCAL]


def test_clusters_are_counted_most_popular_first():
    name = at(BEST, p=0.6, J=3, eps=0)
    held = [1, 1, 1, 2]  # cluster of each client
    rows = [
        (name, 0, t, "clusters", -1, j, float(held[c] == j))
        for t, c, j in itertools.product((0, 5), range(4), range(3))
    ]
    sizes = adaptive.sizes(pd.DataFrame(rows, columns=COLUMNS))
    assert sizes.sort_values("rank")["value"].tolist() == [3, 1, 0]


def test_shares_of_clients_rise_to_one():
    table = adaptive.clients(frame(seeds=1))
    figure, drawn = plotting.cumulative({"x": table[table["method"] == LOCAL]}, xlabel="a")
    assert drawn["value"].is_monotonic_increasing and drawn["share"].iloc[-1] == 1
    assert drawn["share"].iloc[0] == pytest.approx(1 / 8)
    assert figure.axes[0].get_legend_handles_labels()[1] == [LOCAL]
