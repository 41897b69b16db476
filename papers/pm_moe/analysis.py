"""Analysis of 004: from stored metrics to its tables and figures, beside the published numbers."""

from collections.abc import Collection, Mapping, Sequence
from math import nan
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import stats
from sklearn.manifold import TSNE

from companion import frames
from companion.panels import Panel
from fedlib.data import class_names
from fedlib.engine import State
from fedlib.federation import Federation
from fedlib.models.architectures import ACTIVATIONS, INITS
from fedlib.randomness import generator
from fedrun import find_result
from papers.judging import whole, without_floor
from papers.pm_moe import DENOISED, NINE, STAGE, SYNCHRONOUS, TRADITIONAL, WITH_MOE, called
from papers.pm_moe.experiments import PRIVATE_PARTS
from papers.published import floors, published
from papers.scaled import MAJORITY

EPOCHS, ROUNDS = 50, 2000  # the paper's: of gates, and of the first stage
# How 004 calls the data sets.
PRINTED = {
    "mnist": "MNIST",
    "fashion_mnist": "FMNIST",
    "cifar10": "Cifar10",
    "cifar100": "Cifar100",
    "tiny_imagenet": "TINY",
    "ag_news": "AGNews",
}
# How it writes its methods and stages. "+PM-MOE" of Table 2 has the numbers that Table 3 has for
# "+MoE+Denoising", so it is the stage with denoising.
_WRITTEN = {"FedGEN": "FedGen", "+MOE": WITH_MOE, "+PM-MOE": DENOISED, "+MOE+Denoising": DENOISED}
RUN = ["method", "seed", "S", STAGE]
BEST = "PM-MOE"  # the name in 004 of the best of nine
NINE_MEAN = "mean of nine"
# Rules of reporting a gain: which number, and over which round of the first stage.
ALL, LARGEST, CHOSEN = "all clients", "largest of M + 1", "all, over the best round"
# Sources of label sets: private parts, and guesses that are the same for all clients.
READ, ASKED = "the parameters of a private part", "the predictions of a private part"
CONSTANT = ("all labels", "the labels of most clients")
# Whose base computes the features of a client (Fig. 1A), and the models whose distances are logged.
OWN, NEAREST, OTHERS = (
    "its own base",
    "the base of the client with the most similar labels",
    "others",
)
FEATURES_OF = {
    "trained on all data": "distance_central",
    "the client's own base": "distance_own",
    "another client's base": "distance_borrowed",
}
SIDES = "with private parts", "without private parts"  # families that headings compare
NUMBERS = ("k", "lr", "epochs", "gamma", "T", "layers")
# Choices of a gate: that of 004 first, then the others that Fig. 5 compares.
PARTS: dict[str, tuple[int | str, ...]] = {
    "layers": (4, 3, 2, 1),
    "activation": ("leaky_relu", *(a for a in ACTIVATIONS if a != "leaky_relu")),
    "initialisation": ("orthogonal", *(i for i in INITS if i != "orthogonal")),
}
SPELT = {"relu": "ReLU", "prelu": "PReLU", "elu": "ELU", "selu": "SELU", "silu": "SiLU"}
SPELT |= {"mish": "Mish", "xavier": "Xavier", "kaiming": "Kaiming"}


def has_gates(frame: pd.DataFrame) -> bool:
    """Return whether a frame has runs of PM-MoE, and not only first stages."""
    return STAGE in frame and bool(frame[STAGE].eq(WITH_MOE).any())


def scores(frame: pd.DataFrame, *, weighted: bool = True) -> pd.DataFrame:
    """Return the accuracy of every run over all clients' tests after the last round (004, eq. 31).

    It is a mean over clients, by default weighted by their numbers of training examples. Columns
    method, stage, seed, S, value, and one for each choice of a gate that a run varies.
    """
    table = frames.reported(frame, weighted=weighted)
    table = table[table["rule"] == "last"].drop(columns="rule")
    return table if STAGE in table else table.assign(stage="")


def printed(item: str, dataset: str) -> pd.DataFrame:
    """Return the published accuracies of a table as fractions: method, stage, S, value, row.

    There are no rows for a data set that 004 does not have. Table 3 has a single method, the best
    one of a data set.
    """
    rows = published("004", item)
    here = rows["dataset"].eq(PRINTED.get(dataset, "")) & rows["metric"].str.contains("weighted")
    rows = rows[here].reset_index(drop=True)
    names = rows["method"].str.extract(r"^([^+]*)(.*)$").replace(_WRITTEN)
    best = "LG-FedAvg" if dataset == "ag_news" else "FedCP"
    table = rows.assign(
        method=names[0].replace({"": best, "pFL": best}),
        stage=names[1],
        S=rows["setting"].str.extract(r"S=(\d+)")[0].astype(float),
        value=rows["value"] / 100,
    )
    return table[["method", STAGE, "S", "value", "row"]]


def best_printed(dataset: str) -> pd.DataFrame:
    """Return the numbers of "PM-MOE" in Table 1: the best of nine mixtures.

    Columns as of `printed`.
    """
    rows = printed("Table 1", dataset)
    return rows[rows["method"] == BEST].reset_index(drop=True)


def best_of_nine(
    table: pd.DataFrame, diverged: Collection[str] = (), stage: str = DENOISED
) -> pd.DataFrame:
    """Return the best of the nine methods at a stage, by S and seed, chosen on tests as in Table 1.

    There are no rows as long as one of the nine is missing that has not ``diverged``.
    """
    mixed = table[table[STAGE].eq(stage)]
    mixed = mixed[mixed["method"].isin(whole(NINE, mixed, diverged))]
    best = mixed.groupby(["S", "seed"], as_index=False)["value"].max()
    return best.assign(method=BEST, stage="")


def label_sets(scores: np.ndarray) -> np.ndarray:
    """Return which labels clients are taken to hold, bool ``[clients, classes]``.

    These are the labels with scores above the mean of the client's scores. For heads, this mean is
    0: the rows of a head that increase are balanced by others (`fedlib.privacy.parts`).
    """
    return np.asarray(scores > scores.mean(1, keepdims=True))


def revealed(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracy of inferring which labels a client holds, over clients and labels.

    Args:
        frame: runs of `fedlib.privacy.PartsAudit`.

    Returns:
        Columns method, seed, S, source, value. Sources are what private parts reveal (`READ`,
        `ASKED`), and constant guesses (`CONSTANT`): all labels for every client, and the labels
        that more than half of the clients hold.
    """
    rows = []
    for run, logged in frame.groupby(["method", "seed", "S"], sort=False):
        held, scores = (_matrix(logged, m) for m in ("held_labels", "labels_from_parts"))
        guesses = {CONSTANT[0]: np.ones_like(held), CONSTANT[1]: (held > 0).mean(0) > 0.5}
        guesses |= {READ: label_sets(scores)} if scores.size else {}
        right = {source: ((guess > 0) == (held > 0)).mean() for source, guess in guesses.items()}
        right[ASKED] = frames.last(logged, "asked_labels")["value"].mean()
        rows += [(*run, source, float(value)) for source, value in right.items()]
    return pd.DataFrame(rows, columns=["method", "seed", "S", "source", "value"])


def best_constant(table: pd.DataFrame) -> pd.DataFrame:
    """Return the better of the constant guesses of `revealed` by method, S and seed."""
    constant = table[table["source"].isin(CONSTANT)]
    return constant.groupby(["method", "S", "seed"], sort=False)[["value"]].max().reset_index()


def guessed(table: pd.DataFrame) -> pd.DataFrame:
    """Return the guesses of `revealed` at one S, as `plotting.dots` draws them."""
    (drawn,) = ranges({s: table[table["source"] == s] for s in (ASKED, READ)}).values()
    return drawn


def similarities(frame: pd.DataFrame) -> pd.DataFrame:
    """Return how similar features are to those of a central model, as a mean over clients.

    Args:
        frame: runs of `fedlib.algorithms.features.FeaturesAudit`.

    Returns:
        Columns method, seed, S, source, value. Sources are the client's own base (`OWN`), the base
        of the client whose labels are most similar (`NEAREST`), and the mean of all other bases
        (`OTHERS`). Values are the linear centred kernel alignment.
    """
    rows = []
    for run, logged in frame.groupby(["method", "seed", "S"], sort=False):
        alike, overlap = (_matrix(logged, m) for m in ("feature_similarity", "label_overlap"))
        own = np.eye(len(alike), dtype=bool)
        nearest = np.where(own, -1, overlap).argmax(1)
        by_source = {OWN: alike[own], NEAREST: alike[range(len(alike)), nearest]}
        by_source[OTHERS] = alike[~own]
        rows += [(*run, source, float(of.mean())) for source, of in by_source.items()]
    return pd.DataFrame(rows, columns=["method", "seed", "S", "source", "value"])


def embedded(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the t-SNE of one client's features by model, of the first seed (Fig. 1A).

    Args:
        frame: runs of `fedlib.algorithms.features.FeaturesAudit`.

    Returns:
        By model, columns x, y and label, a row per test example.
    """
    logged = frame[frame["seed"] == frame["seed"].min()]
    labels = _matrix(logged, "example_label")[:, 0].astype(int)
    made = {}
    for model, metric in FEATURES_OF.items():
        apart = _matrix(logged, metric)
        near = min(30.0, (len(apart) - 1) / 3)
        tsne = TSNE(metric="precomputed", init="random", perplexity=near, random_state=0)
        places = pd.DataFrame(tsne.fit_transform(apart), columns=["x", "y"]).round(2)
        made[model] = places.assign(label=labels)
    return made


def _matrix(logged: pd.DataFrame, metric: str) -> np.ndarray:
    """Return the matrix ``[items, experts]`` that a run logged last, empty if it logged none."""
    rows = frames.last(logged, metric)
    return (
        rows.assign(item=rows["item"].astype(int)).pivot_table("value", "item", "expert").to_numpy()
    )


def by_size(frame: pd.DataFrame, method: str) -> pd.DataFrame:
    """Return by how much a method exceeds the majority-class baseline, by the size of its clients.

    A row per S: over all clients, weighted by their sizes, and over each quarter of them; means
    with half of their 95% intervals.
    """
    keys = ["S", "seed", "client"]
    ends = frames.ended(frame, "test_accuracy", each=True).set_index(keys)
    mine, floor = (ends.loc[ends["method"] == m, "value"] for m in (method, MAJORITY))
    sizes = frame[frame["metric"].eq("examples") & frame["method"].eq(method)].set_index(keys)
    both = pd.DataFrame({"lead": mine - floor, "size": sizes["value"]}).dropna()
    place = both.groupby(["S", "seed"])["size"].rank(method="first", pct=True)
    means = {"all clients": both["lead"].groupby(["S", "seed"]).mean()}
    sums = both.assign(lead=both["lead"] * both["size"]).groupby(["S", "seed"]).sum()
    means["weighted by size"] = sums["lead"] / sums["size"]
    for k, name in enumerate(("smallest quarter", "second", "third", "largest quarter")):
        quarter = both["lead"][place.gt(k / 4) & place.le((k + 1) / 4)]
        means[name] = quarter.groupby(["S", "seed"]).mean()
    said = {name: values.groupby("S").agg(frames.stated) for name, values in means.items()}
    return pd.DataFrame(said)


def beside_floor() -> pd.DataFrame:
    """Return the published accuracies of the fourteen methods and the baseline of their partition.

    Columns dataset, S, method, value, floor, as fractions; for the data sets with a known baseline.
    """
    known = floors("004").rename(columns={"at": "S"})
    parts = [printed("Table 1", name).assign(dataset=name) for name in known["dataset"].unique()]
    rows = pd.concat(parts).merge(known, on=["dataset", "S"])
    rows = rows[rows["method"].isin([*TRADITIONAL, *NINE])]
    return rows[["dataset", "S", "method", "value", "floor"]].reset_index(drop=True)


def _side(method: str) -> str:
    return SIDES[method in TRADITIONAL]


def sides(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return rows with the families of methods, ``SIDES``, in place of the methods, a frame per S.

    The majority-class baseline is left out.

    Args:
        table: columns method and S, and any others.
    """
    rows = without_floor(table)
    rows = rows.assign(method=rows["method"].map(_side))
    return {f"S = {s:g}": here for s, here in rows.groupby("S")}


def each_as_a_run(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return families as `sides` does, with the mean of each method in place of a seed's run.

    The majority-class baseline is kept.

    Args:
        table: columns method, S, seed, round and value.
    """
    means = table.groupby(["method", "S", "round"], as_index=False, sort=False)["value"].mean()
    of = means["method"].mask(means["method"].ne(MAJORITY), means["method"].map(_side))
    rows = means.assign(seed=means["method"], method=of)
    return {f"S = {s:g}": here for s, here in rows.groupby("S")}


def released_log() -> pd.DataFrame:
    """Return the numbers in FedCP's released logs by data set, in percent (S = 20, 2,001 rounds).

    "best_round_accuracy" is the largest on tests; beside it is Table 2's number with PM-MoE.
    """
    log = published("004", "released log")
    wide = log.pivot_table("value", "dataset", "metric", sort=False).rename_axis(columns=None)
    table = published("004", "Table 2")
    mixed = table[table["method"].eq("FedCP+PM-MOE") & table["setting"].str.endswith("S=20")]
    return wide.assign(**{f"published {DENOISED}": mixed.set_index("dataset")["value"]})


def tabled(table: pd.DataFrame, known: pd.DataFrame) -> pd.DataFrame:
    """Return scores with half of their 95% intervals and [the published], by method and S."""
    theirs = called(known).set_index(["method", "S"])["value"].to_dict()
    cells = {
        (method, f"S = {s:g}"): frames.stated(runs["value"], theirs.get((method, s)))
        for (method, s), runs in called(table).groupby(["method", "S"], sort=False)
    }
    return pd.Series(cells).unstack(sort=False).fillna("")


def ranges(groups: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Return the means of several tables by method, a frame per S, as `plotting.dots` draws them.

    Args:
        groups: by name of the group, columns method, S, value: a row per seed, or one if published.
            Methods and S that the first table lacks are left out.

    Returns:
        By title, columns row, group, mean, low, high (the 95% interval over rows, none for fewer
        than three), and values.
    """
    every = pd.concat([called(table).assign(group=group) for group, table in groups.items()])
    first = every[every["group"] == next(iter(groups))]
    there = every["method"].isin(first["method"]) & every["S"].isin(first["S"])
    rows = every[there].dropna(subset="value")
    means = frames.bands(rows, by=("S", "method", "group"), each=True)
    means = means.rename(columns={"method": "row"}).drop(columns="seeds")
    return {f"S = {float(str(s)):g}": rows.drop(columns="S") for s, rows in means.groupby("S")}


def gains(table: pd.DataFrame, stage: str = DENOISED, over: str = "") -> pd.DataFrame:
    """Return the gain of a stage over another one of the same method, and the accuracies of both.

    Columns method, S, seed, value, after and before, for the nine methods in their order.
    """
    nine = table[table["method"].isin(NINE)].set_index(["method", "S", "seed"])
    after, before = (nine.loc[nine[STAGE] == s, "value"] for s in (stage, over))
    both = pd.DataFrame({"value": after - before, "after": after, "before": before}).dropna()
    both = both.reset_index().sort_values("method", key=lambda m: m.map(NINE.index), kind="stable")
    return both.reset_index(drop=True)


def gains_over_chosen(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the gains of PM-MoE over its first stage at the round that is best on validation.

    PM-MoE itself starts from the last round, which may be a bad one. Columns as of `gains`.
    """
    first = frames.reported(frame[frame[STAGE].eq("")], weighted=True)
    best = first[first["rule"] == "best on validation"].drop(columns="rule")
    mixed = scores(frame)
    return gains(pd.concat([best, mixed[mixed[STAGE] != ""]], ignore_index=True))


def by_stage(gains: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Return tables of `gains` by S for the findings in headings: the tables' names are methods.

    Only the methods, S and seeds of all tables are included; "alone" is the first table's column
    before.
    """
    keys = ["method", "S", "seed"]
    after = {name: table.set_index(keys)["after"] for name, table in gains.items()}
    alone = next(iter(gains.values())).set_index(keys)["before"]
    every = pd.concat({**after, "alone": alone}, axis=1, join="inner").reset_index(keys[1:])
    long = every.melt(keys[1:], var_name="method")
    return {f"S = {s:g}": long[long["S"] == s] for s in sorted(long["S"].unique())}


def beside_published(ours: pd.DataFrame, theirs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return measured and published gains in points, a frame per S, as `plotting.dots` draws them.

    There is a row per method, and their mean comes first; the published gains may be of some
    methods.
    """
    theirs = (
        _with_mean(theirs) if theirs["method"].nunique() == len(NINE) else frames.in_points(theirs)
    )
    return ranges({"measured": _with_mean(ours), "published": theirs})


def overview(gains: Mapping[str, Mapping[str, pd.DataFrame]]) -> pd.DataFrame:
    """Return the mean gain of the nine by data set and S as `plotting.dots` draws it.

    Args:
        gains: the result of `beside_published` by data set; the gains of the nine methods become
            the values.
    """
    parts = []
    for name, by_s in gains.items():
        for s, rows in by_s.items():
            mean = rows[rows["row"].eq(NINE_MEAN)]
            ours = rows[rows["group"].eq("measured") & rows["row"].ne(NINE_MEAN)]["mean"].to_numpy()
            each = [ours if group == "measured" else ours[:0] for group in mean["group"]]
            values = pd.Series(each, index=mean.index, dtype=object)
            parts.append(mean.assign(row=f"{name}, {s}", values=values))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["row", "group"])


def _with_mean(rows: pd.DataFrame) -> pd.DataFrame:
    means = rows.groupby(["S", "seed"], as_index=False)["value"].mean().assign(method=NINE_MEAN)
    return frames.in_points(pd.concat([means, rows], ignore_index=True))


def error_spreads(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the variance ratio of experts' errors by method for `plotting.dots`; groups are S."""
    table = frames.ended(frame, "error_spread")
    table = table[table[STAGE] == WITH_MOE].drop(columns=STAGE)
    return pd.concat(rows.assign(group=s) for s, rows in ranges({"": table}).items())


def table_2(table: pd.DataFrame, dataset: str) -> pd.DataFrame:
    """Return the nine methods alone and with denoised PM-MoE, and the baseline, as `tabled`."""
    rows = table[table[STAGE].ne(WITH_MOE) & table["method"].ne(SYNCHRONOUS)]
    return tabled(rows, printed("Table 2", dataset))


def table_4(table: pd.DataFrame, dataset: str) -> pd.DataFrame:
    """Return the mean of the nine with PM-MoE, Fed-Syn-MoE and the baseline, as `tabled`."""
    nine = table[table[STAGE] == DENOISED]
    mean = nine.groupby([STAGE, "S", "seed"], as_index=False)["value"].mean()
    others = table[table["method"].isin([SYNCHRONOUS, MAJORITY])]
    both = pd.concat([others, mean.assign(method=NINE_MEAN)])
    return tabled(both, printed("Table 4", dataset))


def stages_of(table: pd.DataFrame, method: str) -> pd.DataFrame:
    """Return a method's mixtures at S = 0, with and without denoising, for findings."""
    rows = table[table["method"].eq(method) & table["S"].eq(0)]
    names = {WITH_MOE: "all experts", DENOISED: "denoised"}
    return rows.assign(method=rows[STAGE].map(names)).dropna(subset="method")


def ablation(table: pd.DataFrame) -> pd.DataFrame:
    """Return the nine methods alone, with PM-MoE, and with denoising (Table 3).

    Cells have the mean, half of the 95% interval, and (seeds), of scores at one S. The last row is
    the majority-class baseline.
    """
    steps = {"": "alone", WITH_MOE: "PM-MoE", DENOISED: "denoised"}
    said = table.groupby(["method", STAGE])["value"].agg(frames.stated).unstack()
    said = said.reindex([*NINE, MAJORITY], columns=[*steps]).dropna(how="all")
    return said.set_axis([*steps.values()], axis=1).rename_axis(None).astype(object).fillna("")


def prefixes(
    before: np.ndarray, after: np.ndarray, sizes: np.ndarray, order: np.ndarray
) -> np.ndarray:
    """Return the accuracy of the federation with none, one, ..., all clients converted.

    004's released code reports the largest of these M + 1 numbers.

    Args:
        before: the clients' accuracies without a mixture.
        after: those with a mixture.
        sizes: the clients' weights.
        order: the order in which clients are converted.
    """
    converted = np.argsort(order) < np.arange(len(order) + 1)[:, None]
    return (np.where(converted, after, before) @ sizes) / sizes.sum()


def evaluated(frame: pd.DataFrame, method: str, s: float, seed: int) -> np.ndarray:
    """Return the M + 1 evaluations of a method's second stage, in a random order of clients."""
    run = frame[frame["method"].eq(method) & frame["S"].eq(s) & frame["seed"].eq(seed)]
    alone, mixed = (run[run[STAGE] == name] for name in ("", DENOISED))
    ends = [frames.last(rows, "test_accuracy") for rows in (alone, mixed)]
    columns = [*ends, alone[alone["metric"] == "examples"]]
    clients = pd.concat([rows.set_index("client")["value"] for rows in columns], axis=1).dropna()
    order = generator(seed, "cohort", 0).permutation(len(clients))
    before, after, sizes = clients.to_numpy().T
    return prefixes(before, after, sizes, order)


def course(frame: pd.DataFrame, method: str) -> pd.DataFrame:
    """Return the gain in each of a method's M + 1 evaluations in points (S = 0, first seed).

    Columns method, seed, at (the number of converted clients), value.
    """
    values = 100 * evaluated(frame, method, 0.0, 0)
    gained = {"at": range(len(values)), "value": values - values[0]}
    return pd.DataFrame({"method": method, "seed": 0, **gained})


def reporting(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the gains of PM-MoE by way of reporting: method, S, seed, all, maximum.

    ``all`` is the gain of the federation with all clients converted, ``maximum`` that of the best
    of 004's evaluations, which cannot be negative.
    """
    runs = gains(scores(frame))[["method", "S", "seed"]]
    few = frame[frame["metric"].isin(["test_accuracy", "examples"])]  # speeds up the loop
    courses = [evaluated(few, *run) for run in runs.itertuples(index=False)]
    gained = {"all": [c[-1] - c[0] for c in courses], "maximum": [c.max() - c[0] for c in courses]}
    return runs.assign(**gained)


def local_gate_weights(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the gate weight of the client's own base in each run of Fed-Syn-MoE, and its accuracy.

    The index is S and seed. Columns before and after (training), means over tests in which all
    labels have equal weight, and accuracy.
    """
    runs = frame[frame["method"] == SYNCHRONOUS]
    own = runs[runs["metric"].eq("test_gate") & runs["expert"].eq(1)].sort_values("round")
    by_run = own.groupby(["S", "seed", "round"])["value"].mean().groupby(["S", "seed"])
    ends = scores(runs).set_index(["S", "seed"])["value"]
    return pd.DataFrame({"before": by_run.first(), "after": by_run.last(), "accuracy": ends})


def second_stage_cost(panel: Panel) -> dict[int, float]:
    """Return the cost of FedCP's second stage as a share of its first (A.9), by seed, at S = 0.

    It is computed in CPU seconds for the paper's 50 epochs of gates after 2,000 rounds, from the
    seconds of an epoch and of a round here.
    """
    found = {}
    for run, experiments in PRIVATE_PARTS.by_run(panel.scale, panel.dataset, ["FedCP"]):
        if run.where != {"S": 0.0, STAGE: WITH_MOE}:
            continue
        for one in experiments:
            stages = [find_result(stage) for stage in (*one.before, one)]
            first, gates = (s.provenance.get("cpu_seconds", nan) if s else nan for s in stages)
            rounds, epochs = one.before[0].rounds, one.algorithm.epochs
            found[one.seed] = (gates / epochs * EPOCHS) / (first / rounds * ROUNDS)
    return found


def own_weight(frame: pd.DataFrame) -> dict[int, float]:
    """Return the gate weight of a client's own private part, times M, by seed, at the least S.

    It is 1 for an even gate: the mean over clients and methods after the last epoch.
    """
    mixed = frame[frame[STAGE].eq(WITH_MOE) & frame["S"].eq(frame["S"].min())]
    last = frames.last(mixed, "gate_share")
    own = last[last["item"].astype(int).eq(last["expert"])]
    return frames.by_seed(own.assign(value=own["value"] * (last["expert"].max() + 1)))


def told_gains(frame: pd.DataFrame, dataset: str) -> dict[str, pd.DataFrame]:
    """Return the gains of PM-MoE by the rule of reporting: method, S, seed, value, and others.

    The rules are the two of `reporting`, the gain over the first stage's best round, and Table 2 as
    printed.
    """
    told = reporting(frame)
    ways = {ALL: told["all"], LARGEST: told["maximum"]}
    ours = {way: told.assign(value=values) for way, values in ways.items()}
    theirs = gains(printed("Table 2", dataset).assign(seed=0))
    return {**ours, CHOSEN: gains_over_chosen(frame), "published": theirs}


def mean_gains(gained: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the mean of `told_gains` over methods and seeds in points, a row per S."""
    means = {way: 100 * rows.groupby("S")["value"].mean() for way, rows in gained.items()}
    return pd.DataFrame(means).round(2)


def unchosen(table: pd.DataFrame, *but: str) -> pd.DataFrame:
    """Return the runs with the default of every choice of a gate, ``but`` for some choices."""
    others = table[table.columns.difference([*RUN, "value", *but])]
    return table[others.isin([np.nan, ""]).all(axis=1)]


def second_stages(table: pd.DataFrame) -> pd.DataFrame:
    """Return the scores of second stages, with names as of `called`; not the nine alone."""
    named = called(table)
    return named[~named["method"].isin(NINE)]


def varied(
    table: pd.DataFrame, choice: str, default: float | str, given: Mapping[str, float] | None = None
) -> pd.DataFrame:
    """Return the mixtures that vary one choice, and those with its default.

    Args:
        table: scores.
        choice: one of ``NUMBERS`` or ``PARTS``.
        default: its value in runs that do not vary it.
        given: values of other choices that differ from their defaults.

    Returns:
        Columns method, stage, S, seed, the choice, and value.
    """
    given = given or {}
    # If only some runs are stored, a choice may have no run: then nothing is compared.
    table = table.reindex(columns=[*dict.fromkeys([*table.columns, STAGE, choice, *given])])
    rows = unchosen(table[table[STAGE] == WITH_MOE], choice, *given)
    rows = rows[rows[[*given]].eq(pd.Series(given)).all(axis=1)]
    rows = rows.assign(**{choice: rows[choice].replace("", np.nan).fillna(default)})
    return rows[[*RUN, choice, "value"]]


def from_default(rows: pd.DataFrame, choice: str, default: float | str) -> pd.DataFrame:
    """Return the rows of `varied` with differences from the ``default``'s value, paired by run."""
    base = rows.loc[rows[choice] == default, [*RUN, "value"]]
    both = rows.merge(base, on=RUN, suffixes=("", "_base"))
    return both.assign(value=both["value"] - both["value_base"])[rows.columns]


def by_value(panels: Mapping[str, pd.DataFrame], choice: str) -> dict[str, pd.DataFrame]:
    """Return tables whose methods are the values of a choice, such as "k = 10", for findings."""
    text = f"{choice} = {{:g}}".format
    return {name: rows.assign(method=rows[choice].map(text)) for name, rows in panels.items()}


def made_of(table: pd.DataFrame) -> pd.DataFrame:
    """Return the difference of each choice of ``PARTS`` from the first of its kind, by seed.

    Columns method, part, choice, S, seed, value.

    Args:
        table: scores; a run without any of the choices has the first of each.
    """
    found = []
    for part, (first, *others) in PARTS.items():
        rows = from_default(varied(table, part, first), part, first)
        found += [rows[rows[part] == c].assign(part=part, choice=c) for c in others]
    every = pd.concat(found, ignore_index=True)
    return every[["method", "part", "choice", "S", "seed", "value"]]


PLAIN, RENORMALISED = "k largest weights", "renormalised to 1"


def by_top(table: pd.DataFrame, default: int) -> pd.DataFrame:
    """Return the difference in points of each k from the default on the same seed, at one S.

    The methods are ``PLAIN``, with weights as they are, and ``RENORMALISED``, with weights that sum
    to 1. Columns method, seed, k, value.
    """
    rows = table[table[STAGE] == WITH_MOE].reindex(columns=[*RUN, "value", *NUMBERS, "weights"])
    rows = unchosen(rows, "k", "weights").fillna({"k": default, "weights": ""})
    names = {"": PLAIN, "as they are": PLAIN, "renormalised": RENORMALISED}
    rows = rows.assign(method=rows["weights"].map(names)).dropna(subset="method")
    rows = rows.drop_duplicates(["method", "k", "seed"])
    base = rows[rows["method"].eq(PLAIN) & rows["k"].eq(default)].set_index("seed")["value"]
    gap = 100 * (rows["value"] - rows["seed"].map(base))
    return rows.assign(value=gap).dropna(subset="value")[["method", "seed", "k", "value"]]


def differences(table: pd.DataFrame, choice: str, default: float) -> pd.DataFrame:
    """Return the differences of the values of a choice from its default in points, by S."""
    rows = from_default(varied(table, choice, default), choice, default)
    rows = frames.in_points(rows[rows[choice] != default])
    return rows.pivot_table("value", choice, "S", aggfunc=lambda v: frames.stated([*v]))


def by_choice(differences: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the differences of `made_of`, a frame per S, as `plotting.dots` draws them."""

    def row(part: str, choice: int | str) -> str:
        if isinstance(choice, str):
            return f"{part}: {SPELT.get(choice, choice)}"
        return f"{choice} layer{'s' * (choice > 1)}"

    rows = zip(differences["part"], differences["choice"], strict=True)
    named = differences.assign(method=[row(*of) for of in rows])
    parts = differences.groupby("method", sort=False).groups
    return ranges({f"{method} {WITH_MOE}": named.loc[rows] for method, rows in parts.items()})


def ranks(energies: np.ndarray) -> np.ndarray:
    """Return the ranks of each client's experts, from 0 (least confidence) to 1 (most)."""
    return (stats.rankdata(energies, axis=1) - 1) / (energies.shape[1] - 1)


def told(energies: Mapping[float, np.ndarray], dimensions: int) -> pd.DataFrame:
    """Return a summary of the confidences ``[clients, M]`` of each temperature T, a row each.

    "T log D" is a constant that all scores share; "spread" is the mean over clients of the standard
    deviation over experts; "order as at T = ..." is the mean over clients of the rank correlation
    with the scores at the highest temperature.
    """
    first, rows = max(energies), []
    for t, scores in energies.items():
        pairs = zip(ranks(scores), ranks(energies[first]), strict=True)
        same = [np.corrcoef(a, b)[0, 1] for a, b in pairs]
        rows.append((t, t * np.log(dimensions), scores.mean(), scores.std(1).mean(), np.mean(same)))
    names = ["T", "T log D", "mean score", "spread", f"order as at T = {first:g}"]
    return pd.DataFrame(rows, columns=names).set_index("T")


def temperatures(panel: Panel, table: pd.DataFrame) -> pd.DataFrame:
    """Return `told` of a panel's stored confidences at S = 0, with the accuracy at each S.

    They are those of the first seed, and of the first method whose gates are studied.

    Args:
        panel: the panel.
        table: its scores.
    """
    setting: Any = panel.setting
    rows, found = panel.frame[panel.frame["gamma"].eq(setting.gamma)], {}
    for t in setting.temperatures:
        here = rows[rows["T"].fillna(1.0).eq(t) & rows["S"].eq(0)]
        last = max(frames.logged_rounds(here, "expert_energy", setting.studied[0]), default=None)
        if last is not None:
            found[t] = frames.matrix(here, "expert_energy", setting.studied[0], 0, last)
    ends = varied(table, "T", 1.0, {"gamma": setting.gamma}).assign(
        S=lambda t: "accuracy, S = " + t["S"].map("{:g}".format)
    )
    said = ends.pivot_table("value", "T", "S", aggfunc=lambda v: frames.stated([*v]))
    return told(found, len(class_names(panel.dataset))).join(said).sort_index(ascending=False)


def at_random(dimensions: int) -> np.ndarray:
    """Return v ``[50 clients, 20 experts, D]`` of random outputs, whose sum over D is a cosine.

    Experts resemble a client's own expert to different degrees.
    """
    draw, clients, experts = np.random.default_rng(0), 50, 20
    own, near = draw.normal(size=(clients, 1, dimensions)), draw.normal(size=(clients, experts, 1))
    said = near * own + draw.normal(size=(clients, experts, dimensions))
    norms = np.linalg.norm(said, axis=-1) * np.linalg.norm(own, axis=-1)
    return np.asarray(said * own / norms[..., None])


def like_the_cosine(dimensions: Sequence[int], ts: Sequence[float]) -> pd.DataFrame:
    """Return the rank correlation of the confidences of random outputs with the cosine.

    Columns method ("D = 10"), seed (the client), T, value.
    """
    parts = []
    for d in dimensions:
        v = at_random(d)
        for t in ts:
            energies = t * np.logaddexp.reduce(v / t, axis=-1)
            pairs = zip(ranks(energies), ranks(v.sum(-1)), strict=True)
            same = [np.corrcoef(*pair)[0, 1] for pair in pairs]
            columns = {"method": f"D = {d}", "seed": range(len(v)), "T": t, "value": same}
            parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True)


def heads_say(fed: Federation, state: State) -> torch.Tensor:
    """Return the logits of all heads of FedPer on all tests, ``[tests, clients, C]``."""
    images = fed.test.inputs(torch.arange(len(fed.test.y), device=fed.device))
    h = fed.net.features(state.server_params, images)
    weight, bias = (state.client_params[f"head.{name}"] for name in ("weight", "bias"))
    return (torch.einsum("nd,mcd->nmc", h, weight) + bias).cpu()


def evened(said: torch.Tensor, t: float) -> torch.Tensor:
    """Return every client's mixture of its own head (weight 1 - t) and of all heads evenly (t).

    Args:
        said: the heads' logits ``[..., clients, C]``.
        t: the weight that is spread evenly.

    Returns:
        The logits of mixtures, of the same shape.
    """
    return said.lerp(said.mean(-2, keepdim=True), t)


def toward_even(
    said: torch.Tensor, y: torch.Tensor, tests: Sequence[torch.Tensor], ts: Sequence[float]
) -> pd.DataFrame:
    """Return the clients' mean accuracy as their gates go from one-hot to even.

    Args:
        said: the heads' logits ``[tests, clients, C]``.
        y: the labels ``[tests]``.
        tests: the indices of each client's own tests.
        ts: the weights t of `evened`.

    Returns:
        Columns method (whose tests), seed, t, value.
    """
    rows = []
    for t in ts:
        right = evened(said, t).argmax(-1).eq(y[:, None]).double()
        own = torch.stack([right[mine, c].mean() for c, mine in enumerate(tests)]).mean()
        rows.append(("local test sets", 0, t, float(own)))
        rows.append(("global test set", 0, t, float(right[torch.cat([*tests])].mean())))
    return pd.DataFrame(rows, columns=["method", "seed", "t", "value"])
