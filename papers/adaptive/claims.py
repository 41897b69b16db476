"""What 003 claims of clusters found with exploration, and of a mixture over all of them."""

from functools import partial

import pandas as pd

from companion.claims import Claim, above, below, on_par
from papers.adaptive import analysis, experiments
from papers.adaptive.analysis import at_most, scores
from papers.adaptive.experiments import ALL_EQUAL, BEST, EAGER, MOE, REDRAWN
from papers.floor import FEDAVG, LOCAL, TUNED, comparing, floor_claims, scored

RIVALS = {
    BEST: "the best cluster",
    ALL_EQUAL: "the ensemble",
    TUNED: "the fine-tuned best cluster",
    LOCAL: "training alone",
}
RECOVERED = 0.9  # an adjusted Rand index above which clusters count as found
FIG_3 = "Table 2, Fig. 3"
OURS, UNNAMED = "not in the paper (D11)", "not in the paper (A27)"
GREEDY = {"eps": 0.0}


def _beats(table: pd.DataFrame, ending: str, source: str = "Sec. 5") -> list[Claim]:
    compare = comparing(table)
    return [
        compare(f"The mixture beats {name}{ending}", source, MOE, method)
        for method, name in RIVALS.items()
    ]


def adaptive_claims(table: pd.DataFrame) -> list[Claim]:
    """Test what 003 says of Table 2 and Fig. 3 to 5, at the largest J and most exploration."""
    most = {"J": float(table["J"].max()), "eps": float(table["eps"].max())}
    low, high = ({"p": float(p)} for p in (table["p"].min(), table["p"].max()))
    compare, spread = (comparing(table, column, **most) for column in ("value", "spread"))
    theirs, differ = analysis.conclusion(), f"where clients differ most (p = {high['p']:g}"
    extreme = f"{differ}; published:"
    worse = f"... and the best cluster alone worse {differ})"
    alike = f"Exploration makes clients more alike: spread of the mixture at p = {low['p']:g}"
    ifca = f"The mixture beats IFCA {extreme} by {theirs['over_ifca']:.3f})"
    alone = f"... and training alone {extreme} by {theirs['over_local']:.3f})"
    less = f"Its clients are more alike than IFCA's {extreme} spread less by "
    apart = f"... but less than with training alone (p = {high['p']:g})"
    fewer = "The mixture does not depend on J: J = {:g} at most a point below J = {:g}"
    still = "The gate hardly leaves its initial weights: the ensemble is at most a point below"
    better = "Exploration makes the mixture better (mean over p)"
    js = sorted(table.loc[table["J"].between(1, most["J"], inclusive="neither"), "J"].unique())
    return [
        *_beats(at_most(table, "J", "eps"), " (mean over p)", "Table 2"),
        compare(better, FIG_3, MOE, MOE, {}, GREEDY),
        compare(worse, FIG_3, BEST, BEST, high | GREEDY, high),
        spread(alike, "Sec. 5, Table 2", MOE, MOE, low | GREEDY, low),
        compare(ifca, "Sec. 6", MOE, BEST, high, high | GREEDY),
        compare(alone, "Sec. 6", MOE, LOCAL, high),
        spread(f"{less}{theirs['less_spread']:.0%})", "Sec. 6", BEST, MOE, high | GREEDY, high),
        spread(apart, "Sec. 6", MOE, LOCAL, high),
        *(
            compare(fewer.format(j, most["J"]), "Fig. 4", MOE, MOE, {"J": j}, at, rule=on_par)
            for j in js
            for at in [{"p": table.loc[table["J"].eq(j), "p"].tolist()}]  # where it was run
        ),
        compare(still, OURS, ALL_EQUAL, MOE, rule=on_par),
        compare("A gate that learns faster is better than the paper's", OURS, EAGER, MOE),
        *floor_claims(at_most(table, "J", "eps"), "p"),
    ]


def recovery_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test whether clusters find the true orientations, and what mixtures over them are worth."""
    found, table = analysis.recovery(frame), scores(frame)
    table, high = table[table["method"] != REDRAWN], {"eps": float(found["eps"].max())}
    claims = []
    for k in sorted(found["orientations"].unique()):
        compare = comparing(found, orientations=k)
        best = partial(scored, found, method=BEST, orientations=k)
        text = f"Clusters recover {k:g} orientations (adjusted Rand index)"
        better = f"recovers {k:g} orientations better"
        redrawing, ending = f"Redrawing initial models {better}", f", {k:g} orientations"
        here = at_most(table[table["orientations"] == k], "J", "eps")
        claims += [
            above(f"{text}, greedily", "Ghosh et al.", best(**GREEDY), RECOVERED),
            above(f"{text}, exploring", "Sec. 4", best(**high), RECOVERED),
            compare(f"Exploration {better}", "Sec. 4", BEST, BEST, high, GREEDY),
            compare(redrawing, "Ghosh et al.", REDRAWN, BEST, {}, GREEDY),
            *_beats(here, ending),
            *floor_claims(here, ending=ending),
        ]
    return claims


def writer_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test what 003 says of its second data set, clients that are writers (Fig. 6b)."""
    table = at_most(scores(frame), "J")
    most, high, ending = at_most(table, "eps"), {"eps": float(table["eps"].max())}, ", writers"
    text = "Exploration makes writers more alike: spread"
    alike = comparing(table, "spread")(text, "Sec. 5, Fig. 6", MOE, MOE, GREEDY, high)
    return [*_beats(most, ending), alike, *floor_claims(most, ending=ending)]


def protocol_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test what the released protocol is worth (A29, D3 to D6)."""
    compare, ten = comparing(analysis.clients(frame)), range(analysis.FIRST)
    peeking, released = experiments.PEEKING, experiments.ALL_RELEASED
    text = f"The released protocol reports more than all clients have (first {len(ten)}, on tests)"
    return [
        compare("Choosing on the tests makes the mixture look better", "D3", peeking, MOE),
        compare(text, "D3 to D6", released, MOE, {"client": ten}, {}),
    ]


def participation_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test on what 003's claims hang that it does not name: how many clients a round has."""
    table = analysis.participation(frame)
    compare, cohorts = comparing(table), sorted(table["cohort"].unique())
    few, many = ({"cohort": cohorts[i]} | GREEDY for i in (0, -1))
    high, beat = {"eps": float(table["eps"].max())}, f"{cohorts[-1]:g} beat {cohorts[0]:g}"
    text = f"The best of many clusters needs many clients in a round: {beat} at equal local work"
    one = f"With few clients in a round ({cohorts[0]:g}) one model beats the best of many clusters"
    explored = "Exploration makes the mixture better with {:g} clients in a round"
    return [
        compare(text, UNNAMED, BEST, BEST, many, few),
        compare(one, UNNAMED, FEDAVG, BEST, few),
        *(
            compare(explored.format(c), UNNAMED, MOE, MOE, at | high, at | GREEDY)
            for c in cohorts
            for at in [{"cohort": c}]
        ),
    ]


def option_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test what taking converged clusters out of what is sent saves, and what it costs."""
    most, stopped = at_most(frame, "eps"), experiments.STOPPED
    down = most[most["metric"] == "bytes_down"]
    sent, explored = (scored(down, method=method) for method in (stopped, BEST))
    text = "Clusters that leave when converged save traffic: ratio of bytes"
    cost = comparing(analysis.clients(most))
    return [
        below(text, "Sec. 3.1", {s: sent[s] / explored[s] for s in sent}, 1.0),
        cost("... and cost at most a point", "Sec. 3.1", stopped, BEST, rule=on_par),
    ]
