"""What 003 claims of clusters found with exploration, and of a mixture over all of them."""

from __future__ import annotations

import pandas as pd

from companion import frames
from companion.claims import Claim, above, below, on_par
from papers.adaptive.analysis import (
    FIRST,
    at_most,
    clients,
    conclusion,
    participation,
    recovery,
    scores,
)
from papers.adaptive.experiments import (
    ALL_EQUAL,
    ALL_RELEASED,
    BEST,
    EAGER,
    MOE,
    PEEKING,
    REDRAWN,
    STOPPED,
)
from papers.floor import FEDAVG, LOCAL, TUNED, Compare, comparing, floor_claims

RIVALS = {
    BEST: "the best cluster",
    ALL_EQUAL: "the ensemble",
    TUNED: "the fine-tuned best cluster",
    LOCAL: "training alone",
}
RECOVERED = 0.9  # an adjusted Rand index above which clusters count as found
FIG_3 = "Table 2, Fig. 3"
OURS = "not in the paper (D11)"
GREEDY = {"eps": 0.0}


def _beats(table: pd.DataFrame, ending: str, source: str = "Sec. 5") -> list[Claim]:
    compare = comparing(table)
    return [
        compare(f"The mixture beats {name}{ending}", source, MOE, method)
        for method, name in RIVALS.items()
    ]


def adaptive_claims(table: pd.DataFrame) -> list[Claim]:
    """Test what 003 says of Table 2 and Fig. 3 to 5, at the largest J and most exploration."""
    most = at_most(table, "J", "eps")
    j, eps = float(table["J"].max()), float(table["eps"].max())
    compare, spread = (comparing(table, column, J=j, eps=eps) for column in ("value", "spread"))
    return [
        *_beats(most, " (mean over p)", "Table 2"),
        *_explored(table, compare, spread),
        *_concluded(table, compare, spread),
        *_clusters_and_gates(table, compare, j),
        *floor_claims(most, "p"),
    ]


def _explored(table: pd.DataFrame, compare: Compare, spread: Compare) -> list[Claim]:
    low, high = float(table["p"].min()), float(table["p"].max())
    better = "Exploration makes the mixture better (mean over p)"
    worse = f"... and the best cluster alone worse where clients differ most (p = {high:g})"
    alike = f"Exploration makes clients more alike: spread of the mixture at p = {low:g}"
    at_low, at_high = {"p": low}, {"p": high}
    return [
        compare(better, FIG_3, MOE, MOE, {}, GREEDY),
        compare(worse, FIG_3, BEST, BEST, at_high | GREEDY, at_high),
        spread(alike, "Sec. 5, Table 2", MOE, MOE, at_low | GREEDY, at_low),
    ]


def _concluded(table: pd.DataFrame, compare: Compare, spread: Compare) -> list[Claim]:
    at, theirs = {"p": float(table["p"].max())}, conclusion()
    extreme = f"where clients differ most (p = {at['p']:g}; published:"
    ifca = f"The mixture beats IFCA {extreme} by {theirs['over_ifca']:.3f})"
    alone = f"... and training alone {extreme} by {theirs['over_local']:.3f})"
    less = f"spread less by {theirs['less_spread']:.0%})"
    alike = f"Its clients are more alike than IFCA's {extreme} {less}"
    apart = f"... but less than with training alone (p = {at['p']:g})"
    return [
        compare(ifca, "Sec. 6", MOE, BEST, at, at | GREEDY),
        compare(alone, "Sec. 6", MOE, LOCAL, at),
        spread(alike, "Sec. 6", BEST, MOE, at | GREEDY, at),
        spread(apart, "Sec. 6", MOE, LOCAL, at),
    ]


def _clusters_and_gates(table: pd.DataFrame, compare: Compare, most: float) -> list[Claim]:
    claims = []
    for j in sorted(j for j in table["J"].dropna().unique() if 1 < j < most):
        text = f"The mixture does not depend on J: J = {j:g} at most a point below J = {most:g}"
        there = {"p": table.loc[table["J"].eq(j), "p"].tolist()}
        claims.append(compare(text, "Fig. 4", MOE, MOE, {"J": j}, there, rule=on_par))
    still = "The gate hardly leaves its initial weights: the ensemble is at most a point below"
    return [
        *claims,
        compare(still, OURS, ALL_EQUAL, MOE, rule=on_par),
        compare("A gate that learns faster is better than the paper's", OURS, EAGER, MOE),
    ]


def recovery_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test whether clusters find the true orientations, and what mixtures over them are worth."""
    found, table = recovery(frame), scores(frame)
    high = {"eps": float(found["eps"].max())}
    claims = []
    for k in sorted(found["orientations"].unique()):
        at = found[found["orientations"] == k]
        compare, best = comparing(at), at[at["method"] == BEST]
        greedy, most = (frames.by_seed(best[best["eps"] == e["eps"]]) for e in (GREEDY, high))
        text = f"Clusters recover {k:g} orientations (adjusted Rand index)"
        better = f"recovers {k:g} orientations better"
        claims += [
            above(f"{text}, greedily", "Ghosh et al.", greedy, RECOVERED),
            above(f"{text}, exploring", "Sec. 4", most, RECOVERED),
            compare(f"Exploration {better}", "Sec. 4", BEST, BEST, high, GREEDY),
            compare(
                f"Redrawing initial models {better}", "Ghosh et al.", REDRAWN, BEST, {}, GREEDY
            ),
        ]
        here = table[table["orientations"].eq(k) & table["method"].ne(REDRAWN)]
        here = at_most(here, "J", "eps")
        ending = f", {k:g} orientations"
        claims += [*_beats(here, ending), *floor_claims(here, ending=ending)]
    return claims


def writer_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test what 003 says of its second data set, clients that are writers (Fig. 6b)."""
    table = at_most(scores(frame), "J")
    most, ending = at_most(table, "eps"), ", writers"
    high = {"eps": float(table["eps"].max())}
    text = "Exploration makes writers more alike: spread"
    alike = comparing(table, "spread")(text, "Sec. 5, Fig. 6", MOE, MOE, GREEDY, high)
    return [*_beats(most, ending), alike, *floor_claims(most, ending=ending)]


def protocol_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test what the released protocol is worth (A29, D3 to D6)."""
    compare, first = comparing(clients(frame)), {"client": range(FIRST)}
    text = f"The released protocol reports more than all clients have (first {FIRST}, on tests)"
    return [
        compare("Choosing on the tests makes the mixture look better", "D3", PEEKING, MOE),
        compare(text, "D3 to D6", ALL_RELEASED, MOE, first, {}),
    ]


def participation_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test on what 003's claims hang that it does not name: how many clients a round has."""
    table, said = participation(frame), "not in the paper (A27)"
    compare, cohorts = comparing(table), sorted(table["cohort"].unique())
    few, many = ({"cohort": cohorts[i]} for i in (0, -1))
    text = (
        f"The best of many clusters needs many clients in a round: {cohorts[-1]:g} beat "
        f"{cohorts[0]:g} at equal local work"
    )
    one = f"With few clients in a round ({cohorts[0]:g}) one model beats the best of many clusters"
    claims = [
        compare(text, said, BEST, BEST, many | GREEDY, few | GREEDY),
        compare(one, said, FEDAVG, BEST, few | GREEDY),
    ]
    for cohort in cohorts:
        text = f"Exploration makes the mixture better with {cohort:g} clients in a round"
        here = {"cohort": cohort}
        high = here | {"eps": float(table["eps"].max())}
        claims.append(compare(text, said, MOE, MOE, high, here | GREEDY))
    return claims


def option_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test what taking converged clusters out of what is sent saves, and what it costs."""
    down = frame[frame["metric"] == "bytes_down"]
    explored, stopped = (
        frames.by_seed(rows)
        for rows in (
            at_most(down[down["method"] == BEST], "eps"),
            down[down["method"] == STOPPED],
        )
    )
    saved = [stopped[s] / explored[s] for s in sorted(explored.keys() & stopped.keys())]
    text = "Clusters that leave when converged save traffic: ratio of bytes"
    cost = comparing(at_most(clients(frame), "eps"))
    return [
        below(text, "Sec. 3.1", saved, 1.0),
        cost("... and cost at most a point", "Sec. 3.1", STOPPED, BEST, rule=on_par),
    ]
