"""What 003 shows beyond Table 2: recovered clusters, experts' worth, and how it was judged."""

from __future__ import annotations

import numpy as np
import pandas as pd

from companion import frames
from companion.claims import BySeed, Claim, above, below, greater, on_par
from papers.claims.adaptive import RIVALS, clients, scores
from papers.claims.floor import floor_claims
from papers.recipes import ALL_RELEASED, BEST, FEDAVG, MOE, PEEKING, REDRAWN, STOPPED

RECOVERED = 0.9  # an adjusted Rand index above which clusters count as found
FIRST = 10  # clients that the released code evaluates


def experts(frame: pd.DataFrame) -> pd.DataFrame:
    """Return what every expert is worth to every client of the mixture, on the client's tests.

    Columns method, seed, client, expert (from 1; the last is the local one), value, and p, J, eps
    as far as methods have them.
    """
    rows = frames.last(frame, "expert_accuracy").assign(client=lambda t: t["item"].astype(int))
    rows = rows.assign(expert=rows["expert"] + 1)
    return frames.apart(rows[["method", "seed", "client", "expert", "value"]])


def worth(frame: pd.DataFrame) -> pd.DataFrame:
    """Return, for every run of a mixture, what it is worth beside the best choice of one expert.

    Columns method, p, J, eps, seed; ``mixture``; ``oracle``, the mean accuracy if every client
    knew which expert is best on its tests, which nobody can; ``local``, the share of the clients
    for whom that is the local one; ``entropy`` of the gate, 1 where it trusts all alike.
    """
    each = frames.last(frame, "expert_accuracy")
    run = frames.RUN
    best = each.groupby([*run, "item"], sort=False)["value"].max().groupby(run, sort=False).mean()
    count = each.groupby(run, sort=False)["expert"].max() + 1
    last = each.groupby(run, sort=False)["expert"].transform("max")
    top = each.assign(own=each["expert"] == last)
    top = top.loc[top.groupby([*run, "item"], sort=False)["value"].idxmax()]
    entropy = frames.last(frame, "gate_entropy").groupby(run, sort=False)["value"].mean()
    mixture = frames.ended(frame, "test_accuracy").set_index(run)["value"]
    table = pd.DataFrame(
        {
            "mixture": mixture.reindex(best.index),
            "oracle": best,
            "local": top.groupby(run, sort=False)["own"].mean(),
            "entropy": entropy / np.log(count),
        }
    )
    return frames.apart(table.reset_index())


def matrices(frame: pd.DataFrame, seed: int = 0) -> dict[str, np.ndarray]:
    """Return expert accuracies ``[clients, J + 1]`` of one seed by p, at most J and exploration."""
    table = experts(frame)
    table = table[table["method"].eq(MOE) & table["seed"].eq(seed)]
    table = table[table["J"].eq(table["J"].max()) & table["eps"].eq(table["eps"].max())]
    return {
        f"p = {p:g}": rows.pivot_table("value", "client", "expert").to_numpy()
        for p, rows in table.groupby("p")
    }


def recovery(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the adjusted Rand index of clusters and orientations in the end, by run.

    Columns method, seed, orientations, J, eps, value; where there are as many clusters as
    orientations.
    """
    rows = frames.apart(frames.last(frame, "recovery:angle")[["method", "seed", "value"]])
    return rows[rows["J"] == rows["orientations"]].reset_index(drop=True)


def recovery_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test whether clusters find the true orientations, and what mixtures over them are worth."""
    found, table = recovery(frame), scores(frame)
    most = float(found["eps"].max())
    claims = []
    for k in sorted(found["orientations"].unique()):
        at = found[found["orientations"] == k]
        redrawn, best = (at[at["method"] == method] for method in (REDRAWN, BEST))
        index = {eps: frames.by_seed(best[best["eps"] == eps]) for eps in (0.0, most)}
        text = f"Clusters recover {k:g} orientations (adjusted Rand index)"
        claims += [
            above(f"{text}, greedily", "Ghosh et al.", index[0.0], RECOVERED),
            above(f"{text}, exploring", "Sec. 4", index[most], RECOVERED),
            greater(
                f"Exploration recovers {k:g} orientations better",
                "Sec. 4",
                index[most],
                index[0.0],
            ),
            greater(
                f"Redrawing initial models recovers {k:g} orientations better",
                "Ghosh et al.",
                frames.by_seed(redrawn),
                index[0.0],
            ),
        ]
        here = table[table["orientations"].eq(k) & table["J"].isin([k, np.nan])]
        here = here[(here["eps"].eq(most) | here["eps"].isna()) & here["method"].ne(REDRAWN)]
        claims += _beats(here, f"{k:g} orientations")
        claims += floor_claims(here, ending=f", {k:g} orientations")
    return claims


def writer_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test what 003 says of its second data set, clients that are writers (Fig. 6b)."""
    table = scores(frame)
    j, eps = table["J"].max(), table["eps"].max()
    most = table[table["J"].isin([j, np.nan]) & table["eps"].isin([eps, np.nan])]
    greedy = table[table["J"].eq(j) & table["eps"].eq(0.0)]
    spread = [frames.by_seed(t[t["method"] == MOE], "spread") for t in (greedy, most)]
    return [
        *_beats(most, "writers"),
        greater("Exploration makes writers more alike: spread", "Sec. 5, Fig. 6", *spread),
        *floor_claims(most, ending=", writers"),
    ]


def _beats(table: pd.DataFrame, where: str) -> list[Claim]:
    ours = frames.by_seed(table[table["method"] == MOE])
    return [
        greater(
            f"The mixture beats {name}, {where}",
            "Sec. 5",
            ours,
            frames.by_seed(table[table["method"] == method]),
        )
        for method, name in RIVALS.items()
    ]


def protocols(frame: pd.DataFrame) -> pd.DataFrame:
    """Return mean accuracies under the described and the released protocol, by method.

    Columns of "all clients" and of the "first ten", each with half a 95% interval.
    """
    table = clients(frame)
    sides = {"all clients": table, f"first {FIRST}": table[table["client"] < FIRST]}
    columns = {}
    for name, rows in sides.items():
        runs = rows.groupby(frames.RUN, sort=False)["value"].mean().reset_index()
        columns[name] = runs.groupby("method", sort=False)["value"].agg(frames.stated)
    return pd.DataFrame(columns).rename_axis(None)


def protocol_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test what the released protocol is worth (A29, D3 to D6)."""
    table = clients(frame)

    def score(method: str, first: bool = False) -> BySeed:
        rows = table[table["method"] == method]
        return frames.by_seed(rows[rows["client"] < FIRST] if first else rows)

    return [
        greater(
            "Choosing on the tests makes the mixture look better", "D3", score(PEEKING), score(MOE)
        ),
        greater(
            f"The released protocol reports more than all clients have (first {FIRST}, on tests)",
            "D3 to D6",
            score(ALL_RELEASED, first=True),
            score(MOE),
        ),
    ]


def participation(frame: pd.DataFrame) -> pd.DataFrame:
    """Return mean client accuracies by how many clients take part in a round, a row per run.

    Columns method, seed, cohort, eps, value, spread; what has no cohort, as training alone, is the
    same at each.
    """
    table = scores(frame)
    alone = table["cohort"].isna()
    cohorts = table.loc[~alone, "cohort"].unique()
    same = [table[alone].assign(cohort=cohort) for cohort in cohorts]
    return pd.concat([table[~alone], *same], ignore_index=True)


def participation_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test on what 003's claims hang that it does not name: how many clients a round has."""
    table = participation(frame)
    high, cohorts = table["eps"].max(), sorted(table["cohort"].unique())

    def score(method: str, **where: float) -> BySeed:
        rows = table[table["method"] == method]
        for name, value in where.items():
            rows = rows[rows[name] == value]
        return frames.by_seed(rows)

    few, many = cohorts[0], cohorts[-1]
    said = "not in the paper (A27)"
    return [
        greater(
            f"The best of many clusters needs many clients in a round: {many:g} beat {few:g} at "
            "equal local work",
            said,
            score(BEST, cohort=many, eps=0.0),
            score(BEST, cohort=few, eps=0.0),
        ),
        greater(
            f"With few clients in a round ({few:g}) one model beats the best of many clusters",
            said,
            score(FEDAVG, cohort=few),
            score(BEST, cohort=few, eps=0.0),
        ),
        *(
            greater(
                f"Exploration makes the mixture better with {cohort:g} clients in a round",
                said,
                score(MOE, cohort=cohort, eps=high),
                score(MOE, cohort=cohort, eps=0.0),
            )
            for cohort in cohorts
        ),
    ]


def options(frame: pd.DataFrame) -> pd.DataFrame:
    """Return how other ways to find clusters compare: by method accuracy, spread, use, traffic.

    ``clusters in use`` are some client's best in the end, ``open`` those still trained.
    """
    rows = {}
    each = frames.ended(frame, "test_accuracy", each=True)
    for method, runs in each.groupby("method", sort=False):
        mine = frame[frame["method"] == method]
        by_seed = runs.groupby("seed")["value"]
        used = frames.last(mine, "cluster_share").assign(used=lambda t: t["value"] > 0)
        down = mine[mine["metric"] == "bytes_down"].groupby("seed")["value"].sum()
        rows[str(method)] = {
            "accuracy": frames.stated(by_seed.mean()),
            "spread over clients": round(float(by_seed.std().mean()), 3),
            "clusters in use": round(float(used.groupby("seed")["used"].sum().mean()), 1),
            "open": round(float(frames.last(mine, "open_clusters")["value"].mean()), 1),
            "MB down": round(float(down.mean()) / 1e6, 2),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def option_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test what taking converged clusters out of what is sent saves, and what it costs."""
    table = clients(frame)
    usual = frames.apart(frame[frame["metric"] == "bytes_down"])
    most = usual["eps"].max()
    explored = table[table["method"].eq(BEST) & table["eps"].eq(most)]
    sent = [
        frames.by_seed(rows)
        for rows in (
            usual[usual["method"].eq(BEST) & usual["eps"].eq(most)],
            usual[usual["method"] == STOPPED],
        )
    ]
    saved = [sent[1][s] / sent[0][s] for s in sorted(sent[0].keys() & sent[1].keys())]
    return [
        below(
            "Clusters that leave when converged save traffic: ratio of bytes",
            "Sec. 3.1",
            saved,
            1.0,
        ),
        on_par(
            "... and cost at most a point",
            "Sec. 3.1",
            frames.by_seed(table[table["method"] == STOPPED]),
            frames.by_seed(explored),
        ),
    ]
