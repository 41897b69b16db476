"""Numbers in sentences other than effects of claims, from stored runs and published tables."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from companion import frames, scorecard
from companion.claims import effect, judge, table
from companion.inference import LEAST_SEEDS
from companion.panels import Panel, stored
from companion.scorecard.tables import AGREES, DIFFERS, IMPRECISE
from companion.sections import OWN, PROTOCOL
from papers.adaptive import analysis as adaptive
from papers.adaptive.experiments import MOE
from papers.fedmix import BIASED, FEDMIX, analysis
from papers.fedmix import claims as fedmix
from papers.judging import by, scored
from papers.pm_moe import DENOISED, NINE, TRADITIONAL
from papers.pm_moe import analysis as private
from papers.pm_moe.claims import SHOWN
from papers.published import published
from papers.registry import REGISTRY
from papers.scaled import FEDAVG, LOCAL, TUNED
from papers.specialists import analysis as two
from papers.specialists.experiments import EARLY_STOPPING, LAST_CLIENT, MIXTURE, OWN_NETWORK

Numbers = Mapping[str, object]


class Unsupported(ValueError):
    """The stored results no longer support a sentence, or the name of a number in it."""


@cache
def panel(section: str, dataset: str, scale: str = "standard") -> Panel:
    """Return the stored panel of a section and data set.

    Raises:
        LookupError: if nothing is stored.
    """
    for one in stored(REGISTRY.sections[section], [], scale, dataset):
        return one
    raise LookupError(f"nothing is stored of {section}:{dataset} at the {scale} scale")


@cache
def published_numbers() -> pd.DataFrame:
    """Return every published number beside what was measured: see `scorecard.numbers`."""
    return scorecard.numbers(REGISTRY)


def minus(a: Mapping[int, float], b: Mapping[int, float], unit: str = "points") -> str:
    """Return the paired difference of numbers by seed, with its interval, in words."""
    return effect(table({"": [judge("", "", a, b, unit=unit)]}).iloc[0].to_dict())


def _budget() -> Numbers:
    """Return the lead of biased FedAvg over FedMix at FedAvg's total traffic."""
    long = panel("long", "cifar10")
    if max(long.rising[m] for m in (FEDAVG, BIASED)) > 0:
        raise Unsupported(f"longer training could be better: {long.rising}")
    ahead = analysis.ahead_at_traffic(long.frame)
    ends = ahead[ahead["round"] == ahead["round"].max()]
    of = {m: frames.by_seed(ends[ends["method"] == m]) for m in (BIASED, FEDMIX)}
    lead = minus(of[BIASED], of[FEDMIX]).removeprefix("+")
    return {"biased": lead, "mean": lead.partition(" ")[0]}


def _label_sets() -> Numbers:
    """Return the number of clients whose label sets phi reveals, and the share with all labels."""
    frame = panel("privacy", "cifar10").frame
    if fedmix.wrong_sets(frame).any():
        raise Unsupported("a label set was read wrongly off phi")
    held = frame[frame["metric"].eq(analysis.TRUTH) & frame["method"].eq(FEDMIX)]
    first = held[held["message"] == held["message"].iloc[0]]
    labels = first[first["value"].gt(0)].groupby(["seed", "client"])["item"].nunique()
    said = {"clients": f"{len(labels):,}", "seeds": first["seed"].nunique()}
    return {**said, "all": f"{labels.eq(labels.max()).mean():.0%}"}


def _floor() -> Numbers:
    """Return how many published accuracies of 004 are below the majority-class baseline."""
    rows = private.beside_floor()
    said: dict[str, object] = {}
    for dataset in ("cifar10", "ag_news"):
        here = rows[rows["dataset"] == dataset]
        said[f"{dataset} cells"] = int(here["value"].lt(here["floor"]).sum())
        said[f"{dataset} all"] = len(here)
    here = rows[rows["dataset"].eq("cifar10") & rows["S"].eq(0)].set_index("method")
    lost = [m for m in here.index if here.loc[m, "value"] < here.loc[m, "floor"]]
    if {*lost} != {*TRADITIONAL}:
        raise Unsupported(f"below the baseline on CIFAR-10: {lost}")
    floor, fedavg = (100 * here.loc[[FEDAVG], ["floor", "value"]]).to_numpy()[0]
    return {**said, "lost": len(lost), "floor": f"{floor:.1f}", "fedavg": f"{fedavg:.1f}"}


def _released(dataset: str, departure: str) -> tuple[Any, Any]:
    """Return scores at the paper's scale without FedAvg's early stopping, and with a departure.

    The early stopping that the paper states is one of the departures, ``EARLY_STOPPING``.
    """
    other = "as_printed" if departure == EARLY_STOPPING else "as_released"
    plain, released = (
        two.of_panel(panel(section, dataset, "paper")) for section in ("specialists", other)
    )
    released = released[released["departure"] == departure]
    return plain[plain["p"].isin(released["p"])], released


def _distances(dataset: str, departure: str, methods: tuple[str, ...]) -> dict[str, str]:
    """Return the mean distances of accuracies from published ones, as described and released."""
    known, found = two.printed("001", dataset), {}
    for name, rows in zip(("described", "released"), _released(dataset, departure), strict=True):
        gaps = two.gaps(rows, known, [*methods])
        means = gaps.groupby(["method", "metric", "p"])["gap"].mean()
        found[name] = f"{100 * means.abs().mean():.1f}"
    return found


def _last_client() -> Numbers:
    """Return FedAvg's loss of accuracy by returning the last client's model, and distances."""
    plain, last = _released("cifar10", LAST_CLIENT)
    ours, theirs = (
        frames.by_seed(rows[rows["method"].eq(FEDAVG) & rows["metric"].eq(two.GLOBAL)])
        for rows in (last, plain)
    )
    return {"lost": minus(ours, theirs), **_distances("cifar10", LAST_CLIENT, (FEDAVG,))}


def _own_network() -> Numbers:
    """Return distances on Fashion-MNIST with the paper's and the released code's networks."""
    (departure,) = OWN_NETWORK
    return {**_distances("fashion_mnist", departure, (FEDAVG, LOCAL, TUNED, MIXTURE))}


def _early_stopping() -> Numbers:
    """Return FedAvg's distances without and with the early stopping that the paper states."""
    sets = ("cifar10", "fashion_mnist")
    found = {dataset: _distances(dataset, EARLY_STOPPING, (FEDAVG,)) for dataset in sets}
    return {f"{d} {way}": far for d, ways in found.items() for way, far in ways.items()}


def _lead() -> Numbers:
    """Return the mixture's lead over fine-tuning on the global test set, by data set and way."""
    said = {}
    for dataset in ("cifar10", "fashion_mnist"):
        plain, changed = (
            two.of_panel(panel(section, dataset, "paper"))
            for section in ("specialists", "as_printed")
        )
        leads = two.leads(two.by_way(changed, plain, two.printed("001", dataset)))
        for row in leads.rename(columns={"mean": "effect"}).to_dict("records"):
            said[f"{dataset} {row['row']}"] = effect({**row, "unit": "points"})
    return said


def _opted() -> Numbers:
    """Return how many points 95% opting out costs the mixture on local test sets, at p = 0.6."""
    at = by(two.of_panel(panel("opt_out", "cifar10", "paper")), metric=two.OWN, p=0.6)
    before, after = at(MIXTURE, q=0.0), at(MIXTURE, q=0.95)
    return {"lost": f"{100 * np.mean([before[seed] - after[seed] for seed in after]):.0f}"}


def _too_small() -> Numbers:
    """Return how many accuracies of 001's Table 1e were divided by 7,600 in place of 1,000."""
    rows = published("001", "Table 1e")
    rows = rows.assign(p=rows["setting"].str.extract(r"p=([\d.]+)")[0])
    rows = rows[rows["metric"].str.startswith("global")]
    printed, rescaled = (rows[rows["metric"].str.endswith(e)] for e in ("accuracy", "DERIVED"))
    both = printed.merge(rescaled, on=["method", "p"], suffixes=("", "_rescaled"))
    factors = both["value_rescaled"] / both["value"]
    if not (factors.between(7.5, 7.7).all() and both["value"].lt(25).all()):
        raise Unsupported(f"Table 1e: {both}")
    return {"count": len(both)}


def _energies() -> Numbers:
    """Return the rank correlation of energies at temperature 1 with cosines, on random outputs."""
    dimensions = 512
    v = private.at_random(dimensions)
    energies, cosines = np.logaddexp.reduce(v, axis=-1), v.sum(-1)
    same = [float(stats.spearmanr(*pair).statistic) for pair in zip(energies, cosines, strict=True)]
    return {"same": f"{np.mean(same):.4f}", "dimensions": dimensions}


def _losing() -> Numbers:
    """Return how many runs, and published numbers, lose accuracy by PM-MoE with denoising.

    Losses that two printed decimals do not show are not counted, as in the claim.
    """
    runs, lost = 0, 0
    for dataset in ("mnist", "fashion_mnist", "cifar10"):
        gained = private.gains(private.scores(panel("private_parts", dataset).frame), DENOISED)
        runs, lost = runs + len(gained), lost + int(gained["value"].lt(-SHOWN).sum())
    names = ("mnist", "fashion_mnist", "cifar10", "cifar100", "tiny_imagenet", "ag_news")
    known = [private.gains(private.printed("Table 2", d).assign(seed=0)) for d in names]
    cells, fall = sum(map(len, known)), sum(int(k["value"].lt(0).sum()) for k in known)
    return {"runs": runs, "lost": lost, "cells": cells, "fall": fall}


def _reporting() -> Numbers:
    """Return the gain of PM-MoE on CIFAR-10 (S = 0), and that of the largest evaluation."""
    told = private.reporting(panel("private_parts", "cifar10").frame)
    told = told[told["S"].eq(0) & told["method"].isin(NINE)]
    means = 100 * told[["all", "maximum"]].mean()
    return {"all": f"{means['all']:+.1f}", "largest": f"{means['maximum']:+.1f}"}


def _equal_clients() -> Numbers:
    """Return the mean gain of PM-MoE over nine methods, by data set, if all clients count alike."""
    return {name: mean_gain(name) for name in ("mnist", "fashion_mnist", "cifar10")}


def mean_gain(dataset: str, *, weighted: bool = False) -> str:
    """Return the mean gain of PM-MoE over nine methods, with its interval.

    Args:
        dataset: the data set.
        weighted: whether clients are weighted by their numbers of examples. Default: False.
    """
    scores = private.scores(panel("private_parts", dataset).frame, weighted=weighted)
    gained = private.gains(scores)
    return minus(frames.by_seed(gained, "after"), frames.by_seed(gained, "before"))


def _over_p() -> Numbers:
    """Return the lead of 003's exploring mixture over the fine-tuned best cluster at each p.

    The name of a number is p, and "P published" for the one of Table 2.
    """
    scores = adaptive.at_most(adaptive.scores(panel("adaptive", "cifar10").frame), "J")
    exploring = (adaptive.by_exploration(t)["exploring"] for t in (scores, adaptive.printed()))
    ours, theirs = (dict([*table.groupby("p")]) for table in exploring)
    found = {}
    for p, rows in ours.items():
        mixture, tuned = (scored(rows, method=m) for m in (MOE, TUNED))
        found[f"{p:g}"] = minus(mixture, tuned)
        value = theirs[p].set_index("method")["value"]
        found[f"{p:g} published"] = f"{100 * (value[MOE] - value[TUNED]):+.1f}"
    if not found["0.2"].startswith("+") or not found["0.8"].startswith("-"):
        raise Unsupported(f"the lead at p = 0.2 and that at p = 0.8 have the same sign: {found}")
    return found


# The verbs of a count of one number, and of several numbers.
_VERBS = {
    AGREES: ("agrees", "agree"),
    DIFFERS: ("differs", "differ"),
    IMPRECISE: ("is too imprecise to tell", "are too imprecise to tell"),
}


def _agreement() -> Numbers:
    """Return how many published numbers agree, differ or are imprecise, at the papers' scale."""
    once = published_numbers().query("not repeats")
    said: dict[str, object] = {"comparable": int(once["why_not"].eq("").sum())}
    once = once[once["why_not"].eq("") & once["seeds"].ge(LEAST_SEEDS)]
    own = once[once["faithful"].isin((PROTOCOL, OWN))]
    for paper, rows in [("", own), *own.groupby(own["paper"].str[:3])]:
        counts = {word: int(rows["verdict"].eq(word).sum()) for word in _VERBS}
        some = {word: n for word, n in counts.items() if n or word != IMPRECISE}
        told = [f"{n} {_VERBS[word][n != 1]}" for word, n in some.items()]
        said[f"{paper} counts".strip()] = ", ".join(told)
        said[f"{paper} numbers".strip()] = len(rows)
    return said


_FUNCTIONS: tuple[Callable[[], Numbers], ...] = (
    _budget, _label_sets, _floor, _early_stopping, _last_client, _own_network, _lead, _opted,
    _too_small, _energies, _losing, _reporting, _agreement, _equal_clients, _over_p,
)  # fmt: skip
NUMBERS = {of.__name__.strip("_").replace("_", " "): cache(of) for of in _FUNCTIONS}
