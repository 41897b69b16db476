"""Every method of all five papers on the same tasks: a table that no paper has.

This module has its experiments, its tables and figures, and what a reader would expect of them.
"""

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pandas as pd
from scipy import stats

from companion import frames
from companion.claims import Claim
from companion.sections import Run, federated, placed
from fedlib import algorithms
from fedlib.algorithms import FedAvg
from fedlib.algorithms.ifca import EpsilonGreedy
from fedlib.metrics import over_clients
from fedlib.optim import Optimizer, sgd
from fedrun import Experiment
from papers.adaptive.experiments import ALL_EQUAL, BEST, MOE
from papers.fedmix import BIAS, BIASED, ETA, FEDMIX, LOCAL_GLOBAL, PRUNING
from papers.judging import by, floor_claims, judged, whole, without_floor
from papers.pm_moe import MIXED, NINE, SYNCHRONOUS, TRADITIONAL, UNTUNED
from papers.pm_moe import experiments as pm_moe
from papers.pm_moe.experiments import PrivateParts, at_home, local_round, stage
from papers.scaled import FEDAVG, LOCAL, MAJORITY, TUNED
from papers.specialists.experiments import MIXTURE

CLUSTERS, EPSILON = 3, 0.33  # of IFCA, at every scale
CLUSTERED = "FedMix, clustered"
BOTH_TRAINED = "Mixture, global expert trained"
EXPLORING = "IFCA, exploring"
CLUSTER_TUNED = "IFCA, fine-tuned"
# Related methods of other papers, at the quick scale only: the runs of larger scales are fixed.
BESIDE = ("Ditto", "APFL", "pFedMe", "FedAMP", "FedALA", "Per-FedAvg")
AGAINST_DRIFT = ("FedNova", "FedDyn")
FEDEM = "FedEM"
# What each paper proposes for clients that differ in their labels.
PROPOSED: dict[str, tuple[str, ...]] = {
    "FedMix": (FEDMIX, BIAS, PRUNING),
    "Local and global experts": (MIXTURE,),
    "Local and global experts, first version": (BOTH_TRAINED,),
    "Adaptive experts": (MOE,),
    "PM-MoE": MIXED,
}
# The methods that figures always name.
REFERENCES = (FEDAVG, TUNED, LOCAL)
# What a method has instead of one model for all.
FAMILIES: dict[str, tuple[str, ...]] = {
    "one model for all": (*TRADITIONAL, *AGAINST_DRIFT),
    "a part stays private": (BIASED, LOCAL_GLOBAL, *NINE, UNTUNED),
    "global experts, a gate each": (FEDMIX, BIAS, PRUNING, CLUSTERED, FEDEM),
    "clusters": (BEST, EXPLORING, CLUSTER_TUNED, ALL_EQUAL, MOE),
    "a local model": (LOCAL, TUNED, MIXTURE, BOTH_TRAINED, SYNCHRONOUS, *BESIDE),
    "private parts of all clients": MIXED,
    "no model": (MAJORITY,),
}


def _every_method(setting: PrivateParts, dataset: str) -> list[Run]:
    """Return every method, with no class shared between the clients.

    All have the same batches and rounds, and servers average; only phi has a larger learning rate,
    which it needs in few rounds.
    """
    here = setting.sharing(0.0)
    first = pm_moe.first_stages(here)
    return placed(
        {
            **first,
            **_fedmixes(here),
            **_second_stages(here, first[FEDAVG]),
            **{name: pm_moe.mixed(here, m) for name, m in zip(MIXED, NINE, strict=True)},
            SYNCHRONOUS: pm_moe.synchronous(here),
            **(_relatives(here) if dataset in EVERY_METHOD.known["quick"] else {}),
        }
    )


def _relatives(setting: PrivateParts) -> dict[str, Experiment]:
    """Return methods of other papers: other averages, personal models, and a mixture by EM.

    Per-FedAvg is evaluated after an epoch of each client. Hyper-parameters are the algorithms'
    defaults, not tuned; pFedMe's lambda is smaller than the paper's 15, because its product with
    the clients' rate must stay well below 2.
    """
    rounds = local_round(setting)
    made: dict[str, FedAvg] = {
        "Ditto": algorithms.Ditto(lam=0.1, **rounds),
        "APFL": algorithms.APFL(alpha=0.5, adaptive=True, **rounds),
        "pFedMe": algorithms.PFedMe(lam=5.0, eta=0.1, **rounds),
        "FedAMP": algorithms.FedAMP(**rounds),
        "FedALA": algorithms.FedALA(**rounds),
        "FedNova": algorithms.FedNova(**rounds),
        "FedDyn": algorithms.FedDyn(alpha=0.1, **rounds),
        FEDEM: algorithms.FedEM(experts=setting.experts, **rounds),
    }
    runs = {name: federated(setting, a, cohort=1.0) for name, a in made.items()}
    meta = federated(setting, algorithms.PerFedAvg(alpha=0.05, **rounds), cohort=1.0)
    return {**runs, "Per-FedAvg": at_home(setting, 1, meta)}


def _fedmixes(setting: PrivateParts) -> dict[str, Experiment]:
    """Return the methods of 000: mixtures with global experts, and its baselines."""
    rounds, several = local_round(setting), local_round(setting, experts=setting.experts)
    mix = {**several, "server": Optimizer("sgd", lr=1.0, rates=(("phi", setting.phi_rate),))}
    made: dict[str, FedAvg] = {
        BIASED: algorithms.Personal(**rounds),
        LOCAL_GLOBAL: algorithms.LocalGlobal(**rounds),
        FEDMIX: algorithms.FedMix(**mix),
        BIAS: algorithms.FedMix(**mix, personal_bias=True),
        PRUNING: algorithms.PrunedFedMix(**mix, eta=ETA),
        CLUSTERED: algorithms.ClusteredFedMix(**several, server=sgd(1.0)),
    }
    return {name: federated(setting, a, cohort=1.0) for name, a in made.items()}


def _second_stages(setting: PrivateParts, generalist: Experiment) -> dict[str, Experiment]:
    """Return the methods of 001 to 003: local training, fine-tuning, mixtures, and clusters.

    Local training has as many epochs as the others have rounds. Clusters are found greedily and
    with exploration; the latter are used in several ways.
    """
    alone, tuned = at_home(setting, setting.rounds), at_home(setting, setting.tuned, generalist)
    mix, found = local_round(setting, epochs=setting.tuned), local_round(setting, clusters=CLUSTERS)
    both = algorithms.Mixture(**mix, train_global=True)
    clustered = (algorithms.IFCA(**found, explore=EpsilonGreedy(eps)) for eps in (0.0, EPSILON))
    greedy, explored = (federated(setting, one, cohort=1.0) for one in clustered)
    gated = algorithms.Mixture(**mix, frozen=True)
    return {
        LOCAL: alone,
        TUNED: tuned,
        MIXTURE: stage(setting, algorithms.Mixture(**mix), first_stage=tuned),
        BOTH_TRAINED: stage(setting, both, first_stage=generalist, local_stage=alone),
        BEST: greedy,
        EXPLORING: explored,
        CLUSTER_TUNED: at_home(setting, setting.tuned, explored),
        ALL_EQUAL: stage(
            setting, replace(gated, pool="mean"), first_stage=explored, local_stage=alone
        ),
        MOE: stage(setting, gated, first_stage=explored, local_stage=alone),
    }


EVERY_METHOD = pm_moe.section("every_method", _every_method)

OWN, WORST, ALL, NEW = "local test sets", "worst tenth", "global test set", "new client"


def standings(frame: pd.DataFrame) -> pd.DataFrame:
    """Return four accuracies of every run after the last round: method, seed, kind, value.

    "local test sets" is the mean over clients, "worst tenth" that of the tenth with the lowest
    accuracy, "global test set" the mean over clients on the union of all test sets, and "new
    client" the accuracy there of the clients' joint prediction for a client without labels.
    """
    own, everywhere, new = (
        frames.last(frame, metric).groupby(["method", "seed"], sort=False)["value"]
        for metric in ("test_accuracy", "everywhere_accuracy", "global_accuracy")
    )
    worst = own.agg(lambda v: over_clients(v.to_numpy(), np.ones(len(v)))["worst_decile"])
    kinds = {OWN: own.mean(), WORST: worst, ALL: everywhere.mean(), NEW: new.mean()}
    wide = pd.concat(kinds, axis=1).reset_index()
    return wide.melt(["method", "seed"], var_name="kind")


def leaderboard(table: pd.DataFrame, costs: pd.DataFrame) -> pd.DataFrame:
    """Return a row per method, the best on local test sets first.

    Accuracies are means with half of their 95% intervals over seeds. Costs are means: megabytes
    sent and received by all clients in all rounds and stages, MiB that a client holds, and the time
    of training relative to FedAvg's.
    """
    by_method = table.groupby(["method", "kind"], sort=False)["value"]
    said = by_method.agg(lambda v: frames.stated(v).rsplit(" ", 1)[0]).unstack()
    spent = costs.groupby("method", sort=False)[["megabytes", "client_mib", "seconds"]].mean()
    seconds = spent.pop("seconds")
    spent["time over FedAvg's"] = seconds / seconds.get(TRADITIONAL[0], np.nan)
    names = {"megabytes": "MB down and up", "client_mib": "MiB held"}
    whole = said[[OWN, WORST, ALL, NEW]].join(spent.rename(columns=names).round(2))
    order = table[table["kind"] == OWN].groupby("method")["value"].mean()
    whole.insert(0, "family", [family(m) for m in whole.index])
    return whole.loc[order.sort_values(ascending=False).index].rename_axis(None)


def family(method: str) -> str:
    """Return the family of a method, one of ``FAMILIES``; "" for none."""
    return next((name for name, methods in FAMILIES.items() if method in methods), "")


def frontier(table: pd.DataFrame, x: str = ALL, y: str = OWN) -> pd.DataFrame:
    """Return the means of two kinds by method, and whether another method is better in both.

    Columns method, family, x, y, best, group (the paper that proposes it, or ""), and named
    (whether figures name it). The majority-class baseline is no rival.
    """
    means = table.groupby(["method", "kind"], sort=False)["value"].mean().unstack()
    return _unbeaten(means.rename(columns={x: "x", y: "y"})[["x", "y"]], sign=1)


def by_bytes(table: pd.DataFrame, costs: pd.DataFrame) -> pd.DataFrame:
    """Return the same over the megabytes received and sent, of which fewer are better."""
    means = table[table["kind"] == OWN].groupby("method", sort=False)["value"].mean()
    both = pd.DataFrame({"y": means}).assign(x=costs.groupby("method")["megabytes"].mean())
    return _unbeaten(both[both["x"].notna() | (both.index == MAJORITY)], sign=-1)


def _unbeaten(means: pd.DataFrame, sign: int) -> pd.DataFrame:
    """Return x and y by method, with the columns of `frontier`.

    Args:
        means: x and y by method.
        sign: 1 if a larger x is better, -1 if a smaller one is.
    """
    xs, ys, rival = sign * means["x"], means["y"], means.index != MAJORITY
    best = [
        name != MAJORITY and not (rival & (xs >= x) & (ys >= y) & ((xs > x) | (ys > y))).any()
        for name, x, y in zip(means.index, xs, ys, strict=True)
    ]
    table = means.assign(best=best).rename_axis("method").reset_index()
    group, single = table["method"].map(proposed), table["method"].isin(REFERENCES)
    # The nine of PM-MoE lie too close together to be named.
    single |= group.ne("") & group.ne("PM-MoE")
    family_of = table["method"].map(family)
    return table.assign(family=family_of, group=group, named=single | table["best"])


def proposed(method: str) -> str:
    """Return the paper that proposes a method; "" if it is none of the five."""
    papers = (paper for paper, methods in PROPOSED.items() if method in methods)
    return next(papers, "").removesuffix(", first version")


def correlations(table: pd.DataFrame, one: str, other: str) -> dict[int, float]:
    """Return the rank correlation over methods of two kinds of accuracy, by seed."""
    wide = table.pivot_table("value", ["seed", "method"], "kind").groupby("seed")
    return {int(str(s)): float(stats.spearmanr(w[one], w[other]).statistic) for s, w in wide}


def _mean_of(methods: Collection[str]) -> str:
    return f" (mean of its {len(methods)} methods)" if len(methods) > 1 else ""


def leaderboard_claims(table: pd.DataFrame, diverged: Collection[str] = ()) -> list[Claim]:
    """Test what a reader of all five papers would expect of the table.

    Claims on a paper are not made as long as one of its methods is missing that has not
    ``diverged``.
    """
    own = table[table["kind"] == OWN]
    at = by(own)
    beats = [
        ("own", at(ours), ">", at(other), {"paper": paper, "other": other, "over": over})
        for paper, every in PROPOSED.items()
        for ours in [whole(every, own, diverged)]
        for over in [_mean_of(ours or every)]
        for other in (FEDAVG, TUNED)
    ]
    trade = ("trade", correlations(without_floor(table), OWN, ALL), "<", 0.0)
    # The methods of 004 are judged in its own notebooks, on the same runs.
    elsewhere = own["method"].isin((*TRADITIONAL, *NINE, UNTUNED, SYNCHRONOUS, *MIXED))
    return [*judged("all", [*beats, trade]), *floor_claims(own[~elsewhere])]
