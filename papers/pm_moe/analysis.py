"""Claims of 004: fourteen federated methods, and a mixture of what nine of them keep private."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy import stats

from companion import frames
from companion.claims import BySeed, Claim, above, greater, on_par
from fedlib.randomness import generator
from papers.claims.floor import floor_claims
from papers.published import floors, published
from papers.recipes import DENOISED, MAJORITY, NINE, SYNCHRONOUS, TRADITIONAL, WITH_MOE

LAST, BEST = "last", "best on validation"
# How 004 calls the data sets.
PRINTED = {
    "mnist": "MNIST",
    "fashion_mnist": "FMNIST",
    "cifar10": "Cifar10",
    "cifar100": "Cifar100",
    "tiny_imagenet": "TINY",
    "ag_news": "AGNews",
}


def scores(frame: pd.DataFrame, rule: str = LAST) -> pd.DataFrame:
    """Return every run's accuracy over all clients' tests (004, eq. 31): method, seed, S, value."""
    table = frames.reported(frame, weighted=True)
    return frames.apart(table[table["rule"] == rule].drop(columns="rule"))


def printed(item: str, dataset: str) -> pd.DataFrame:
    """Return the published accuracies of a table as fractions: method, S, value, row.

    No rows for a data set that 004 does not have.
    """
    rows = published("004", item)
    rows = rows[
        rows["dataset"].eq(PRINTED.get(dataset, "")) & rows["metric"].str.contains("weighted")
    ]
    names = rows["method"].str.replace("+PM-MOE", f" {WITH_MOE}", regex=False)
    return pd.DataFrame(
        {
            "method": names.replace({"FedGEN": "FedGen"}),
            "S": rows["setting"].str.extract(r"S=(\d+)")[0].astype(float),
            "value": rows["value"] / 100,
            "row": rows["row"],
        }
    ).reset_index(drop=True)


def beside_floor(item: str = "Table 1") -> pd.DataFrame:
    """Return the published accuracies of the fourteen methods and the floor of their partition.

    Columns dataset, S, method, value, floor, as fractions; for the data sets that have a floor.
    """
    known = floors("004").rename(columns={"at": "S"})
    parts = [printed(item, name).assign(dataset=name) for name in known["dataset"].unique()]
    rows = pd.concat(parts).merge(known, on=["dataset", "S"])
    rows = rows[rows["method"].isin([*TRADITIONAL, *NINE])]
    return rows[["dataset", "S", "method", "value", "floor"]].reset_index(drop=True)


def released_log() -> pd.DataFrame:
    """Return what the released logs of FedCP's 2,001 rounds say (S = 20), in percent, by data set.

    "best_round_accuracy" is the largest on tests; beside it what Table 2 has with PM-MoE.
    """
    log = published("004", "released log")
    wide = log.pivot_table("value", "dataset", "metric", sort=False).rename_axis(columns=None)
    table = published("004", "Table 2")
    mixed = table[table["method"].eq("FedCP+PM-MOE") & table["setting"].str.endswith("S=20")]
    return wide.assign(**{f"published {WITH_MOE}": mixed.set_index("dataset")["value"]})


def tabled(table: pd.DataFrame, known: pd.DataFrame) -> pd.DataFrame:
    """Return scores with half their 95% intervals and [the published], by method and S."""
    theirs = known.set_index(["method", "S"])["value"].to_dict()
    rows: dict[str, dict[str, str]] = {}
    for (method, s), runs in table.groupby(["method", "S"], sort=False):
        text = frames.stated(runs["value"], theirs.get((method, s)))
        rows.setdefault(str(method), {})[f"S = {s:g}"] = text
    return pd.DataFrame.from_dict(rows, orient="index").fillna("")


def ranges(groups: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Return the means of several tables by method, a frame per S, as dots need them.

    ``groups`` are tables with columns method, S, value: a row per seed, or one if published. What
    the first does not have is left out. Columns row, group, mean, low, high: the 95% interval over
    rows, none for fewer than three.
    """
    first = next(iter(groups.values()))
    panels = {}
    for s, here in first.groupby("S"):
        rows = []
        for group, table in groups.items():
            known = table[table["S"] == s].dropna(subset="value")
            for method in here["method"].unique():
                values = known.loc[known["method"] == method, "value"].tolist()
                rows += [(method, group, *frames.interval(values))] if values else []
        names = ["row", "group", "mean", "low", "high"]
        panels[f"S = {float(str(s)):g}"] = pd.DataFrame(rows, columns=names)
    return panels


def agreement(table: pd.DataFrame, known: pd.DataFrame, s: float) -> dict[int, float]:
    """Return each seed's rank correlation of the methods with their published order at an S."""
    theirs = known[known["S"] == s].set_index("method")["value"]
    found = {}
    for seed, runs in table[table["S"] == s].groupby("seed"):
        ours = runs.set_index("method")["value"]
        both = [m for m in ours.index if m in theirs.index]
        found[int(str(seed))] = float(stats.spearmanr(ours[both], theirs[both]).statistic)
    return found


def fourteen_claims(table: pd.DataFrame, known: pd.DataFrame) -> list[Claim]:
    """Test what 004 says of its baselines (Table 1), and whether their order is the published."""
    ratios = sorted(table["S"].unique())
    none, some = ratios[0], ratios[-1]

    def mean_of(methods: tuple[str, ...], s: float) -> BySeed:
        return frames.by_seed(table[table["method"].isin(methods) & table["S"].eq(s)])

    claims = [
        greater(
            f"Methods with private parts beat those without where nothing is shared (S = {none:g})",
            "Table 1",
            mean_of(NINE, none),
            mean_of(TRADITIONAL, none),
        ),
        greater(
            f"Sharing a part of every class helps methods without private parts (S = {some:g})",
            "Table 1",
            mean_of(TRADITIONAL, some),
            mean_of(TRADITIONAL, none),
        ),
        greater(
            f"... and harms those with private parts (S = {some:g})",
            "Table 1",
            mean_of(NINE, none),
            mean_of(NINE, some),
        ),
    ]
    if len(known):
        claims += [
            above(
                f"The order of the methods is the published one (rank correlation, S = {s:g})",
                "Table 1",
                agreement(table, known, s),
                0.5,
            )
            for s in ratios
        ]
    return [*claims, *floor_claims(table, "S")]


def gains(table: pd.DataFrame, ending: str = WITH_MOE, over: str = "") -> pd.DataFrame:
    """Return what a second stage adds to a first one: method, S, seed, value.

    The runs whose names end in ``ending`` over those of the same method with ``over`` instead.
    """
    rows = []
    for method in NINE:
        side = [
            table[table["method"] == f"{method} {end}".strip()].set_index(["S", "seed"])["value"]
            for end in (ending, over)
        ]
        gain = (side[0] - side[1]).dropna().rename("value").reset_index()
        rows.append(gain.assign(method=method))
    return pd.concat(rows, ignore_index=True)[["method", "S", "seed", "value"]]


def ablation(table: pd.DataFrame) -> pd.DataFrame:
    """Return the nine methods alone, with PM-MoE, and with some experts left out (Table 3).

    Mean, half the 95% interval, (seeds), of scores at one S; below them the floor, which has
    nothing to mix.
    """
    listed = (*NINE, *({MAJORITY} & {*table["method"]}))
    columns: dict[str, dict[str, str]] = {}
    for kind, ending in {"alone": "", "PM-MoE": WITH_MOE, "denoised": DENOISED}.items():
        named = {f"{m} {ending}".strip(): m for m in listed}
        rows = table[table["method"].isin(named)]
        stated = rows.groupby("method")["value"].agg(frames.stated)
        columns[kind] = {named[str(m)]: str(text) for m, text in stated.items()}
    return pd.DataFrame(columns, dtype=object).reindex(listed).dropna(how="all").fillna("")


def prefixes(
    before: np.ndarray, after: np.ndarray, sizes: np.ndarray, order: np.ndarray
) -> np.ndarray:
    """Return the accuracy of the federation with none, one, ..., all clients converted.

    ``before`` and ``after`` are the clients' accuracies without and with a mixture, ``sizes`` their
    weights, ``order`` that in which they are converted. 004's released code reports the largest of
    these M + 1 numbers.
    """
    right = np.array([before] * (len(order) + 1), dtype=float)
    for k, client in enumerate(order, start=1):
        right[k:, client] = after[client]
    return (right @ sizes) / sizes.sum()


def evaluated(frame: pd.DataFrame, method: str, s: float, seed: int) -> np.ndarray:
    """Return 004's M + 1 evaluations of one method's second stage, in a random order of clients."""
    first, second = f"{method}, S = {s:g}", f"{method} {WITH_MOE}, S = {s:g}"
    runs = frame[frame["seed"] == seed]
    ends = [
        frames.last(runs[runs["method"] == m], "test_accuracy").set_index("client")["value"]
        for m in (first, second)
    ]
    sizes = runs[runs["method"].eq(first) & runs["metric"].eq("examples")]
    weights = sizes.set_index("client")["value"].reindex(ends[0].index)
    there = ends[0].notna() & ends[1].reindex(ends[0].index).notna()
    before, after = (e.reindex(ends[0].index)[there].to_numpy() for e in ends)
    order = generator(seed, "cohort", 0).permutation(len(before))
    return prefixes(before, after, weights[there].to_numpy(), order)


def reporting(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the gains of PM-MoE by what is reported: method, S, seed, all, maximum.

    ``all`` is the gain of the federation in which all clients are converted, ``maximum`` that of
    the best of 004's evaluations, which cannot be negative.
    """
    known = scores(frame)
    rows = []
    for method in NINE:
        runs = known[known["method"] == f"{method} {WITH_MOE}"]
        for s, seed in runs[["S", "seed"]].itertuples(index=False):
            course = evaluated(frame, method, s, seed)
            rows.append((method, s, seed, course[-1] - course[0], course.max() - course[0]))
    return pd.DataFrame(rows, columns=["method", "S", "seed", "all", "maximum"])


def mixture_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test what 004 says of PM-MoE, its denoising, and the synchronous mixture (Tables 2 to 4)."""
    table, claims = scores(frame), []
    for s in sorted(table["S"].unique()):
        here = table[table["S"] == s]
        added, cleaned = gains(here), gains(here, DENOISED, WITH_MOE)
        each = {m: frames.by_seed(added[added["method"] == m]) for m in NINE}
        zero = dict.fromkeys(frames.by_seed(added), 0.0)
        claims += [
            greater(
                f"PM-MoE improves on its first stage (mean of nine, S = {s:g})",
                "Table 2",
                frames.by_seed(added),
                zero,
            ),
            on_par(
                f"... and never harms: the least gain of the nine is no loss (S = {s:g})",
                "Table 2",
                {seed: min(g[seed] for g in each.values() if seed in g) for seed in zero},
                zero,
            ),
            greater(
                f"Denoising improves on that (mean of nine, S = {s:g})",
                "Table 3",
                frames.by_seed(cleaned),
                zero,
            ),
            greater(
                f"PM-MoE (mean of nine) beats a mixture trained from the start (S = {s:g})",
                "Table 4",
                frames.by_seed(here[here["method"].isin([f"{m} {WITH_MOE}" for m in NINE])]),
                frames.by_seed(here[here["method"] == SYNCHRONOUS]),
            ),
        ]
    told = reporting(frame)
    # What the nine have alone is judged with the fourteen.
    second = table[~table["method"].isin(NINE)]
    return [
        *claims,
        greater(
            "The largest of 004's evaluations is more than the converted federation has",
            "released code",
            frames.by_seed(told, "maximum"),
            frames.by_seed(told, "all"),
        ),
        *floor_claims(second, "S"),
    ]
