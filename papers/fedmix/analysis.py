"""Analysis of FedMix (000): from stored metrics to the frames of its figures and claims.

Experts and traffic, new clients, clusters of clients with permuted labels (sec. 4.3 and App. B),
and what messages reveal of a client's labels (App. C).
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.optimize import linear_sum_assignment

from companion import frames, plotting
from companion.frames import ByMethod, final, in_points
from companion.panels import Panel
from companion.plotting.style import INTERVAL, Drawn, real_first
from fedlib import data as datasets
from fedlib.algorithms import FedAvg, FedMix, Private
from fedlib.engine.selection import Selection
from fedlib.models import FunctionalModel
from fedlib.privacy import epsilon, total_variation
from fedlib.privacy.labels import from_rows
from fedlib.tasks import Task
from fedrun import Experiment, find_result
from fedrun import run as trained
from papers import fedmix as names
from papers.fedmix.experiments import LABEL_SKEW, NEW_CLIENTS, Mixtures, guarded, overheard
from papers.fedmix.leaks import best_threshold, leak_behind_noise, leak_of_sums, lengths
from papers.published import HERE, published
from papers.scaled import ONCE

DEAD = 0.05  # a fifth of 1/4, the share of each of four experts that are used equally
PAPER_TRAVEL = 2.0  # rate x rounds in the paper: 2,000 rounds at 1e-3
RUN = ["method", "seed"]

# Experts and traffic: sec. 2 and 4, Fig. 1 to 6, 11, 13 and 14.


def least_used(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the smallest entry of the marginal q(z) under uniform labels.

    Columns method, seed, value.
    """
    marginal = frames.last(frame, "q").groupby([*RUN, "expert"])["value"].mean()
    return marginal.groupby(RUN).min().reset_index()


def most_used(frame: pd.DataFrame, method: str) -> pd.DataFrame:
    """Return the largest mean gate of an expert on test data: method, seed, round, value."""
    rows = frame[(frame["metric"] == "test_gate") & (frame["method"] == method)]
    use = rows.groupby([*RUN, "round", "expert"])["value"].mean()
    return use.groupby([*RUN, "round"]).max().reset_index()


def dead_experts(least: pd.DataFrame) -> pd.Series:
    """Return by method in how many runs an expert has less than a fifth of 1/K of the labels.

    Args:
        least: the table of `least_used` for four experts.
    """
    return least.groupby("method")["value"].agg(lambda v: f"{(v < DEAD).sum()} of {len(v)}")


def experts_of(frame: pd.DataFrame) -> list[int]:
    """Return the numbers of experts K of which a frame has runs; FedAvg's is 1."""
    methods = {*frame["method"].unique()}
    return [k for k in range(1, 65) if names.with_experts(k) in methods]


def etas_of(frame: pd.DataFrame) -> list[float]:
    """Return the thresholds eta of which a frame has runs; FedMix's is 0."""
    methods, etas = {*frame["method"].unique()}, (round(0.05 * i, 2) for i in range(21))
    return [eta for eta in etas if names.with_pruning(eta) in methods]


def swept(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return by how many points each K and each eta exceeds FedAvg in the last round (Fig. 11).

    Columns method (FedMix's K, and pruning at K = 4), at ("K = 2"), seed, gigabytes, value.
    """
    ends = frames.against_traffic(frame, metric).groupby(RUN, as_index=False).last()
    base = ends[ends["method"] == names.FEDAVG].set_index("seed")["value"]
    ends["value"] = 100 * (ends["value"] - ends["seed"].map(base))
    settings = {names.with_experts(k): (names.FEDMIX, f"K = {k}") for k in experts_of(frame)}
    etas = {names.with_pruning(eta): f"eta = {eta:g}" for eta in etas_of(frame) if eta}
    settings |= {name: (names.PRUNING, at) for name, at in etas.items()}
    found = [ends[ends["method"] == n].assign(method=m, at=at) for n, (m, at) in settings.items()]
    # The curve of pruning begins at FedMix, which prunes nothing.
    found.append(ends[ends["method"] == names.FEDMIX].assign(method=names.PRUNING, at=""))
    return pd.concat(found).dropna()[["method", "at", "seed", "gigabytes", "value"]]


def relative_divergence(
    frame: pd.DataFrame, setting: Mixtures, *, by_tensor: bool = False
) -> pd.DataFrame:
    """Return the gradient divergence divided by that of unrelated updates with the same weights.

    It is 1 minus the weighted mean cosine of two clients' updates, over pairs, tensors and experts:
    0 if all updates have one direction, 1 if they are orthogonal. Eq. 16 itself is (1 - sum_s
    p(s|z)^2) / 2 for orthogonal updates, which decreases as p(s|z) becomes more uneven.

    Args:
        frame: runs of a section, with the divergence of every round, and q(z|y) where it was
            logged.
        setting: their setting, whose task and cohorts determine p(s|z). Runs with another partition
            (``CENTRALISED``) and with pruning, which have other weights, are left out.
        by_tensor: whether it is computed for each tensor (``base.0.weight``: without the experts'
            prefix).

    Returns:
        Columns method, seed, round, value, and tensor if asked for.
    """
    rows = frames.divergences(frame)
    rows = rows.assign(tensor=rows["item"].str.removeprefix("experts."))
    apart = unrelated_divergence(frame, setting).rename(columns={"value": "unrelated"})
    both = rows.merge(apart, on=[*RUN, "round", "expert"])
    keys = [*RUN, "round", *["tensor"] * by_tensor]
    sums = both.groupby(keys, as_index=False)[["value", "unrelated"]].sum()
    sums = sums[sums["unrelated"] > 0]  # a cohort of one client has no pair
    return sums.assign(value=sums["value"] / sums["unrelated"])[[*keys, "value"]]


def unrelated_divergence(frame: pd.DataFrame, setting: Mixtures) -> pd.DataFrame:
    """Return the divergence of one tensor if all updates were orthogonal, (1 - sum p(s|z)^2) / 2.

    p(s|z) is that of the round's cohort (eq. 8), with q(z|y) at the beginning of the round,
    interpolated between the rounds at which it was logged; it is p(s) for methods without q.
    Columns method, seed, round, expert, value.

    Args:
        frame, setting: as of `relative_divergence`.
    """
    found = [pd.DataFrame(columns=[*RUN, "round", "expert", "value"])]
    whole = frame[~frame["method"].str.contains("pruning") & frame["method"].ne(names.CENTRALISED)]
    runs: Any = whole.groupby(RUN, sort=False)
    for (method, seed), run in runs:
        rounds = np.unique(run.loc[run["metric"].eq("divergence"), "round"])
        if len(rounds):
            weights = _weights(run, setting, seed, rounds)
            apart = pd.DataFrame((1 - (weights**2).sum(1)) / 2, index=rounds)
            apart.columns -= apart.shape[1] == 1  # one model is expert -1
            long = apart.rename_axis("round").reset_index().melt("round", var_name="expert")
            found.append(long.assign(method=method, seed=seed))
    return pd.concat(found[1:] or found, ignore_index=True)


def by_weights(frame: pd.DataFrame, setting: Mixtures) -> pd.DataFrame:
    """Return the effect of uneven weights on eq. 16 by method, in the last quarter of the rounds.

    Returns:
        Columns "as printed" (`frames.divergence`), "if unrelated" (of orthogonal updates with the
        same weights), "relative" (`relative_divergence`), and "weights' part": the share of the
        difference from FedAvg that the weights explain.
    """
    keys = [*RUN, "round"]
    kinds = {
        "as printed": frames.divergence(frame),
        "relative": relative_divergence(frame, setting),
    }
    table = pd.DataFrame(
        {n: frames.late(c).set_index(keys)["value"] for n, c in kinds.items()}
    ).dropna()
    table.insert(1, "if unrelated", table["as printed"] / table["relative"])
    means = table.groupby(RUN).mean().groupby("method").mean()
    less = means.reindex([names.FEDAVG]).iloc[0] - means.drop(index=names.FEDAVG, errors="ignore")
    return means.assign(**{"weights' part": less["if unrelated"] / less["as printed"]})


def client_entropy(frame: pd.DataFrame, setting: Mixtures) -> pd.DataFrame:
    """Return the entropy of FedMix's q(z|s) in nats, mean over clients, where q(z|y) was logged.

    q(z|s) is the mean of the rows of q(z|y), weighted by the client's label shares (eq. 8). Columns
    method, seed, round, value.
    """
    rows = frame[frame["metric"].eq("q") & frame["method"].eq(names.FEDMIX)]
    found = []
    of_run: Any = rows.groupby([*RUN, "round"], sort=False)
    for (method, seed, t), logged in of_run:
        counts = label_counts(setting.task, int(seed))
        share = counts / counts.sum(1, keepdims=True)
        q = share @ frames.matrix(logged, "q", method, seed, t)
        found.append((method, seed, t, -(q * np.log(np.maximum(q, 1e-12))).sum(1).mean()))
    return pd.DataFrame(found, columns=[*RUN, "round", "value"])


def _weights(run: pd.DataFrame, setting: Mixtures, seed: int, rounds: np.ndarray) -> np.ndarray:
    """Return p(s|z) of the cohorts of some rounds, ``[rounds, S, K]``; one model has K = 1."""
    counts = label_counts(setting.task, seed)
    sizes = counts.sum(1)
    # Cohorts are drawn with rounds that are counted from 0.
    cohorts = np.stack([_cohort(setting.cohort, len(counts), seed, t - 1) for t in rounds])
    joint = sizes[cohorts][..., None].astype(float)
    if len(logged := run[run["metric"] == "q"]):
        wide = logged.assign(item=logged["item"].astype(int))
        q = wide.pivot_table("value", "round", ["item", "expert"])
        between = [np.interp(rounds - 1, q.index, q[column]) for column in q]
        at = np.stack(between, 1).reshape(len(rounds), counts.shape[1], -1)
        joint = joint * ((counts / sizes[:, None])[cohorts] @ at)
    return np.asarray(joint / joint.sum(1, keepdims=True))


@cache
def _cohort(size: int | float, clients: int, seed: int, round: int) -> np.ndarray:
    """Return the cohort of a round, ``[S]``; it is the same for all methods, and slow to draw."""
    fed: Any = SimpleNamespace(ids=np.arange(clients), participants=None)
    return Selection(size).choose(fed, seed, round)


def label_counts(task: Task, seed: int) -> np.ndarray:
    """Return how many training examples of each label each client has, ``[clients, labels]``.

    The counts behind Fig. 1 (CIFAR-10 and Fashion-MNIST) are stored for some seeds, so that it can
    be drawn without data. All others are counted from the data.
    """
    known = LABEL_SKEW.settings("standard").get(task.dataset)
    stored, key = _counted(), (task.dataset, seed)
    same = known is not None and replace(known.task, model=task.model) == task
    return stored[key] if same and key in stored else task.counts(seed)["train"]


@cache
def _counted() -> dict[tuple[str, int], np.ndarray]:
    """Return the stored counts ``[clients, labels]`` by data set and seed."""
    rows = pd.read_csv(HERE / "fedmix" / "label_counts.csv")
    each: Any = rows.groupby(["dataset", "seed"])["counts"]
    return {key: np.array([of.split() for of in counts], int).T for key, counts in each}


def by_tensor(frame: pd.DataFrame, setting: Mixtures) -> pd.DataFrame:
    """Return `relative_divergence` of each tensor, mean over the last quarter of the rounds.

    Columns tensor (as `layer_names` calls it), method, seed, value.
    """
    rows = frames.late(relative_divergence(frame, setting, by_tensor=True))
    means = rows.groupby(["tensor", *RUN])["value"].mean().reset_index()
    return means.assign(tensor=means["tensor"].map(layer_names(means["tensor"].to_list())))


def layer_names(tensors: Sequence[str]) -> dict[str, str]:
    """Return readable names of a network's tensors: "layer 1 weight", "output bias"."""
    layers = dict.fromkeys(name.rpartition(".")[0] for name in tensors)
    called = {layer: f"layer {i}" for i, layer in enumerate(layers, 1)} | {"head": "output"}
    parts = {name: name.rpartition(".") for name in tensors}
    return {name: f"{called[layer]} {kind}" for name, (layer, _, kind) in parts.items()}


def spread(rounds: Sequence[int], count: int) -> list[int]:
    """Return ``count`` of the given rounds, including both ends, denser at the beginning."""
    at = np.unique(np.round((len(rounds) - 1) * np.linspace(0, 1, count) ** 1.5).astype(int))
    return [rounds[i] for i in at]


def above(curve: pd.DataFrame, base: str) -> pd.DataFrame:
    """Return the difference of each method's curve from that of ``base``, by seed and round.

    Columns method, seed, round, value; ``base`` itself and seeds that it lacks are left out.
    """
    level = curve[curve["method"] == base].drop(columns="method")
    both = curve[curve["method"] != base].merge(level, on=["seed", "round"], suffixes=("", "_base"))
    return both[[*RUN, "round"]].assign(value=both["value"] - both["value_base"])


def ahead_of_fedavg(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the difference of accuracy from FedAvg's, by method, seed and round."""
    return above(frames.curve(frame, "test_accuracy"), names.FEDAVG)


def ahead_at_traffic(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the difference of accuracy from FedAvg's at equal traffic.

    The budgets are FedAvg's traffic after each of its evaluated rounds, ``round``; the accuracies
    of the other methods are interpolated between evaluations. A run whose total traffic is up to 1%
    less than a budget, as with a private bias, is compared at its end. Columns method, seed, round,
    gigabytes, value.
    """
    course = frames.against_traffic(frame, "test_accuracy").sort_values("round")
    base, found = course[course["method"] == names.FEDAVG], [course[:0]]
    runs: Any = course[course["method"] != names.FEDAVG].groupby(RUN, sort=False)
    for (method, seed), run in runs:
        at = base[base["seed"].eq(seed) & base["gigabytes"].le(1.01 * run["gigabytes"].max())]
        reached = np.interp(at["gigabytes"], run["gigabytes"], run["value"])
        found.append(at.assign(method=method, value=reached - at["value"]))
    return pd.concat(found[1:] or found, ignore_index=True)[[*RUN, "round", "gigabytes", "value"]]


def ahead_of_best(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the difference of accuracy from FedAvg's best round, by seed.

    FedAvg's best round is chosen on test data, which favours FedAvg. Columns as of
    `ahead_at_traffic`.
    """
    course = frames.against_traffic(frame, "test_accuracy")
    best = course[course["method"] == names.FEDAVG].groupby("seed")["value"].max()
    others = course[course["method"] != names.FEDAVG].join(best.rename("best"), on="seed")
    others = others.assign(value=others["value"] - others["best"]).dropna(subset="value")
    return others[[*RUN, "round", "gigabytes", "value"]].reset_index(drop=True)


def at_equal_traffic(frame: pd.DataFrame) -> ByMethod:
    """Return FedAvg's last accuracy, and those of the other methods at FedAvg's total traffic.

    A run that has sent less is left out.
    """
    course = frames.against_traffic(frame, "test_accuracy")
    ends = course[course["method"] == names.FEDAVG].groupby("seed").last()
    budget = frames.by_seed(ends, "gigabytes")
    return ByMethod(frames.at_traffic(course, budget) | {names.FEDAVG: frames.by_seed(ends)})


def with_rounds(p: Panel) -> str:
    """Return a panel's title with its rounds in place of its scale.

    An example is "CIFAR-10, 2,000 rounds".
    """
    return p.titled(f"{plotting.title(p.dataset)}, {p.frame['round'].max():,} rounds")


def fig_4(
    shown: Sequence[Panel], *methods: str, title: Callable[[Panel], str] = attrgetter("name")
) -> Drawn:
    """Draw Fig. 4: the mean client accuracy over rounds and over the traffic.

    A single panel is drawn side by side, several in two rows. The heading has the difference of
    FedMix and FedAvg at equal rounds, and at FedAvg's total traffic, which is marked; of a single
    panel also that of FedMix and a FedAvg of its size.

    Args:
        shown: the panels.
        methods: the methods; all by default.
        title: returns the title of a panel.
    """
    shown = [p.only(methods) if methods else p for p in shown]
    courses: dict[str, pd.DataFrame] = {
        title(p): frames.against_traffic(p.frame, "test_accuracy") for p in shown
    }
    same: dict[str, pd.DataFrame] = {
        title(p): frames.rows_of(at_equal_traffic(p.frame)) for p in shown
    }
    told = plotting.findings(courses, names.FEDMIX, names.FEDAVG, start="At equal rounds, ")
    start = "\nAt FedAvg's total traffic, "
    told += plotting.findings(same, names.FEDMIX, names.FEDAVG, "", start=start)
    if len(shown) == 1:
        start = "\nAt equal rounds and traffic, "
        told += plotting.findings(courses, names.FEDMIX, names.WIDE[4], start=start)
    left = ["mean client test accuracy", *[""] * (len(shown) - 1)]

    def field(name: str, ylabel: str, x: str) -> plotting.Cell:
        course = courses[name]
        sent = course.loc[course["method"] == names.FEDAVG, "gigabytes"].max()
        mark = sent if x == "gigabytes" and pd.notna(sent) else None
        return plotting.Cell(name, course, x, ylabel, mark=mark, called="FedAvg's total traffic")

    rows = [
        [field(name, label, x) for name, label in zip(courses, left, strict=True)]
        for x in ("round", "gigabytes")
    ]
    if len(shown) == 1:
        rows = [[*rows[0], rows[1][0]._replace(ylabel="")]]
    return plotting.grid(rows, heading=told)


def budgets(p: Panel) -> Drawn:
    """Draw by how much accuracy exceeds FedAvg's over the traffic: at equal bytes, and its best.

    The heading has the difference of FedMix from FedAvg's best round after the last round.
    """
    best, called = ahead_of_best(p.frame), "FedAvg's best round"
    levels = {
        "points above FedAvg at the same bytes": ahead_at_traffic(p.frame),
        "points above the best of FedAvg's rounds": best,
    }
    cells = [
        plotting.Cell(with_rounds(p), in_points(rows), "gigabytes", y, zero=True)
        for y, rows in levels.items()
    ]
    ends = best[best["round"] == best["round"].max()]
    zero = ends.assign(method=called, value=0.0)
    both: dict[str, pd.DataFrame] = {p.name: pd.concat([ends, zero])}
    start = f"After {best['round'].max():,} rounds, "
    told = plotting.findings(both, names.FEDMIX, called, "", start=start)
    return plotting.grid([cells], heading=told)


def beside_ensemble(p: Panel) -> Drawn:
    """Draw accuracy, FedMix minus the ensemble, and the mean row entropy of q over the rounds.

    The last round after which FedMix is ahead is marked.
    """
    accuracy, entropy = (frames.curve(p.frame, m) for m in ("test_accuracy", "q_entropy"))
    ahead = in_points(above(accuracy, names.ENSEMBLE))
    ahead = ahead[ahead["method"] == names.FEDMIX]
    means = ahead.groupby("round")["value"].mean()
    drawn = {
        "mean client test accuracy": accuracy,
        "FedMix minus the ensemble (points)": ahead,
        "mean entropy of a row of q (nats)": entropy,
    }
    mark: Any = {
        "mark": means.index[means > 0].max(),
        "called": "FedMix is ahead for the last time",
    }
    cells = [
        plotting.Cell(with_rounds(p), curve, ylabel=y, zero=curve is ahead, **mark)
        for y, curve in drawn.items()
    ]
    course: dict[str, pd.DataFrame] = {p.name: accuracy}
    start = "Last round, "
    told = plotting.findings(course, names.FEDMIX, names.ENSEMBLE, start=start)
    return plotting.grid([cells], heading=told)


def changed_by_epoch(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the change of the cohort's accuracy by a local epoch, mean over the last quarter.

    Columns method, seed, value, in percentage points.
    """
    rows = frames.late(frames.adapted(frame))
    return in_points(rows.groupby(RUN)["gain"].mean().rename("value").reset_index())


def expected_traffic(experiment: Experiment) -> tuple[int, int, int]:
    """Return an experiment's parameters sent to a client, and a cohort's bytes down and up.

    They are computed from the sizes of the shared parameters, at 4 bytes a number; FedMix's clients
    also send q(z|s), K numbers. Neither data nor training are needed. Pruning is ignored: with it,
    the bytes are the most that a round can send.
    """
    task, algorithm, clients = experiment.task, experiment.algorithm, experiment.cohort
    assert isinstance(clients, int)
    sizes = _sizes(algorithm, FunctionalModel(task.model, *datasets.form(task.dataset)))
    shared = sum(size for name, size in sizes.items() if not name.startswith(algorithm.local))
    said = algorithm.experts if isinstance(algorithm, FedMix) else 0
    return shared, 4 * clients * shared, 4 * clients * (shared + said)


def _sizes(algorithm: FedAvg, net: FunctionalModel) -> dict[str, int]:
    """Return how many numbers each of an algorithm's parameters has."""
    one = {name: tensor.numel() for name, tensor in net.init(0).items()}
    if not isinstance(algorithm, FedMix):
        return one
    k, classes = algorithm.experts, one["head.bias"]
    own = {"phi": classes * k, "gate.A": net.width * k, "gate.b": k}
    if algorithm.personal_bias:
        own["bias"] = one.pop("head.bias")
    return {**{f"experts.{name}": k * size for name, size in one.items()}, **own}


# New clients: sec. 2, Fig. 12, App. F.

SEEN = "participating client"
UNLABELLED = "new client, no labels"
BEFORE = "new client, before fitting"
AFTER = "new client, after fitting"
WAYS = (SEEN, BEFORE, AFTER, UNLABELLED)
APPENDIX_F = (
    # what, method, metric here, and the place of the paper's number in ``published``
    ("participating clients, validation", names.FEDAVG, "validation_accuracy", 1),
    ("participating clients, validation", names.FEDMIX, "validation_accuracy", 0),
    ("new client", names.FEDAVG, "global_accuracy", 3),
    ("new client", names.FEDMIX, "global_accuracy", 4),
    ("new client", names.DENSITIES, "global_accuracy", 2),
)


def seen_and_new(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the last accuracy on participating clients (x) and on a new client (y).

    Columns method, seed, x, y.
    """
    x, y = final(frame, "test_accuracy"), final(frame, "global_accuracy")
    order = [m for m in dict.fromkeys(frame["method"]) if m in y]
    rows = [(m, s, x[m][s], y[m][s]) for m in order for s in sorted(y[m])]
    return pd.DataFrame(rows, columns=[*RUN, "x", "y"])


def newcomers(frame: pd.DataFrame, round: int) -> ByMethod:
    """Return the mean accuracy, after some round, of the clients that joined a federation."""
    curve = frames.curve(frame[frame["who"] == names.NEW], "test_accuracy")
    return frames.by_method(curve[curve["round"] == round])


def printed() -> pd.DataFrame:
    """Return the numbers that App. F states, as fractions: what, method, value, row."""
    table = pd.DataFrame(APPENDIX_F, columns=["what", "method", "metric", "place"])
    said = published("000", "App.F").loc[table["place"]].reset_index(drop=True)
    return table[["what", "method"]].assign(value=said["value"] / 100, row=said["row"])


def measured(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the measured values of these numbers, a row per seed: what, method, seed, value."""
    everyone = frame[frame["who"] != names.NEW]
    ends = {metric: final(everyone, metric) for _, _, metric, _ in APPENDIX_F}
    rows = [
        (what, method, seed, value)
        for what, method, metric, _ in APPENDIX_F
        for seed, value in ends[metric][method].items()
    ]
    return pd.DataFrame(rows, columns=["what", "method", "seed", "value"])


def appendix_f(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers of App. F, published and measured.

    Columns what, method, published, mean, low, high (95% over three seeds or more), seeds, values
    (by seed). Numbers without runs have missing values.
    """
    said = printed().drop(columns="row").rename(columns={"value": "published"})
    ours = frames.bands(measured(frame), ("what", "method"), each=True)
    return said.merge(ours, "left", ["what", "method"]).fillna({"seeds": 0}).astype({"seeds": int})


def beside(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table of `appendix_f` as `plotting.dots` draws it, with the runs' values."""
    ours = table.assign(row=table["method"] + "\n" + table["what"], group="measured")
    missing = dict.fromkeys(("low", "high", "values"), float("nan"))
    said = ours.assign(group="published (MNIST)", mean=table["published"], **missing)
    columns = ["row", "group", "mean", "low", "high", "values"]
    return pd.concat([ours, said], ignore_index=True)[columns]


def first_stage(scale: str, dataset: str, seeds: int = 0, rounds: int = 0) -> pd.DataFrame:
    """Return the metrics of the stored federations that newcomers join.

    The methods have the names of what trained; there are no rows if nothing is stored.
    """
    asked = NEW_CLIENTS.by_run(scale, dataset, seeds=seeds, rounds=rounds)
    stages = {run.method: [s for e in every for s in e.before] for run, every in asked if run.where}
    stored = {method: [r for s in each if (r := find_result(s))] for method, each in stages.items()}
    if not any(stored.values()):
        return pd.DataFrame(columns=[*RUN, "round", "metric", "client", "value"])
    return frames.together((method, {}, results) for method, results in stored.items())


def three_ways(frame: pd.DataFrame, first: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracies of the three ways to test (sec. 2), of the methods that newcomers join.

    Args:
        frame: the newcomers' runs.
        first: the runs of the federations that they join; may have no rows.

    Returns:
        Columns method, way, seed, value.
    """
    ends: dict[str, ByMethod] = {
        SEEN: final(first, "test_accuracy"),
        UNLABELLED: final(first, "global_accuracy"),
        BEFORE: newcomers(frame, 0),
        AFTER: newcomers(frame, 1),
    }
    rows = [(m, way, s, v) for m in names.JOINING for way in WAYS for s, v in ends[way][m].items()]
    return pd.DataFrame(rows, columns=["method", "way", "seed", "value"])


# Clusters of clients whose labels are permuted: sec. 4.3, Fig. 7 and 8, App. B.

MEASURES = {
    "right": "share of clients whose expert is the one of their permutation",
    "pure": "share of clients whose expert serves no other permutation",
    "agreement": "adjusted Rand index of experts and permutations",
    "sharpness": "largest entry of q(z|s), mean over clients",
}
LEAST = "least used expert, times K"
LEFT = ("experts", "experts left", "permutations", "... with experts of their own")
MERGED, DOUBLED = "one expert for two permutations", "two experts for one permutation"
AHEAD = "common / between when an expert has half its share"
Truth = Mapping[int, np.ndarray]


def truth(task: Task, seeds: Iterable[int]) -> dict[int, np.ndarray]:
    """Return the permutation of every client, int ``[clients]``, by seed; no data are needed.

    Args:
        task: a task whose clients have permuted labels.
        seeds: the seeds.
    """
    request: Any = task.partition
    return {seed: request.given(request.of.clients, seed) for seed in seeds}


def published_rounds() -> int:
    """Return the number of rounds after which the paper finds its clusters (Fig. 7)."""
    return int(published("000", "Sec 4.3/Fig 7")["value"].item())


def one_hot(permutation: np.ndarray) -> np.ndarray:
    """Return the permutation of each client as zeros and ones, ``[clients, permutations]``."""
    return np.eye(int(permutation.max()) + 1)[permutation]


def aligned(q: np.ndarray, permutation: np.ndarray) -> np.ndarray:
    """Return q(z|s) ``[clients, K]`` with rows and columns in the order of the permutations.

    Rows are sorted by permutation, and experts by the permutation with which they are matched, in
    the assignment with the most probability on matched pairs; unmatched experts come last.
    """
    kinds, experts = linear_sum_assignment(-(one_hot(permutation).T @ q))
    matched = experts[np.argsort(kinds)]
    others = np.setdiff1d(np.arange(q.shape[1]), matched)
    return q[np.argsort(permutation, kind="stable")][:, [*matched, *others]]


def measures(q: np.ndarray, permutation: np.ndarray) -> dict[str, float]:
    """Return how well q(z|s) ``[clients, K]`` recovers the permutations ``[clients]``.

    Returns:
        The measures by name. ``MEASURES`` describes the first four; "right" matches experts with
        permutations one to one, so that it cannot reach 1 with fewer experts than permutations.
        ``LEAST`` is the share of all clients' q of the least used expert, times K. ``SHARED`` and
        ``BETWEEN`` are the two parts of the unevenness of q as squared distances: of the mean of
        all clients from a uniform q, and of the permutations' means from that mean (averaged over
        clients). ``LEFT``: an expert is left if it is some client's most probable one, and a
        permutation has its own experts if all of its clients have experts that serve no other
        permutation. ``MERGED``: one expert serves two whole permutations, and every other
        permutation has its own. ``DOUBLED``: no expert is shared, one permutation has two experts
        and every other one has one.
    """
    from sklearn.metrics import adjusted_rand_score  # slow to import

    k, overall = q.shape[1], q.mean(0)
    own = np.stack([q[permutation == i].mean(0) for i in permutation])
    counts = np.zeros((int(permutation.max()) + 1, k), int)  # clients by permutation and expert
    np.add.at(counts, (permutation, q.argmax(1)), 1)
    serves, served = (counts > 0).sum(0), (counts > 0).sum(1)
    left = (k, (serves > 0).sum(), len(counts), (counts[:, serves > 1].sum(1) == 0).sum())
    return {
        "right": counts[linear_sum_assignment(-counts)].sum() / len(q),
        "pure": counts[:, serves == 1].sum() / len(q),
        "agreement": float(adjusted_rand_score(permutation, q.argmax(1))),
        "sharpness": float(q.max(1).mean()),
        LEAST: k * overall.min(),
        names.SHARED: np.square(overall - 1 / k).sum(),
        names.BETWEEN: np.square(own - overall).sum(1).mean(),
        **dict(zip(LEFT, left, strict=True)),
        MERGED: (served == 1).all() and sorted(serves) == [*[1] * (k - 1), 2],
        DOUBLED: (serves == 1).all() and sorted(served) == [*[1] * (len(counts) - 1), 2],
    }


def course(frame: pd.DataFrame, permutations: Truth) -> pd.DataFrame:
    """Return the `measures` of every logged q(z|s), with columns method, seed and round."""
    rows, found = frame[frame["metric"] == "clusters"], []
    of_run: Any = rows.groupby([*RUN, "round"], sort=False)
    for (method, seed, t), logged in of_run:
        q = frames.matrix(logged, "clusters", method, seed, t)
        at = {"method": method, "seed": seed, "round": t}
        found.append(at | measures(q, permutations[seed]))
    return pd.DataFrame(found)


def measure(course: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return one measure of a course as a curve: columns method, seed, round, value."""
    return course[[*RUN, "round"]].assign(value=course[name])


def reached(curves: Mapping[str, pd.DataFrame], method: str, most: float) -> str:
    """Return in words the share that a method reaches by round ``most``, with its interval.

    It is that of the first panel; panels of real data come first. The interval is that of claims.
    """
    rows = curves[real_first(curves)[0]].query("method == @method and round <= @most")
    ends = rows.sort_values("round").groupby("seed")["value"].last()
    mean, low, high = frames.interval(ends, (0, 1))
    told = f"{method}, round {rows['round'].max()}: {mean:.2f}"
    if len(ends) < 2:  # one seed has no interval
        return f"{told}, {len(ends)} seed"
    return f"{told} [{INTERVAL}{low:.2f}, {high:.2f}], {len(ends)} seeds"


def parted(course: pd.DataFrame) -> pd.DataFrame:
    """Return the two parts of the unevenness of q(z|s), ``SHARED`` and ``BETWEEN``.

    Columns method (the part), seed, round, value.
    """
    at, kinds = course[["seed", "round"]], (names.SHARED, names.BETWEEN)
    both = pd.concat([at.assign(method=kind, value=course[kind]) for kind in kinds])
    return both.sort_index(kind="stable")[[*RUN, "round", "value"]].reset_index(drop=True)


def crowded(course: pd.DataFrame) -> pd.DataFrame:
    """Return by run how many experts are left at the end, and how many permutations have their own.

    The last column, ``AHEAD``, is the ratio of ``SHARED`` and ``BETWEEN`` in the round in which the
    least used expert first had less than half of 1/K; NaN if no expert had.
    """
    behind = course[course[LEAST] < 0.5].groupby(RUN).first()
    ends = course.groupby(RUN, sort=False)[list(LEFT)].last()
    return ends.assign(**{AHEAD: behind[names.SHARED] / behind[names.BETWEEN]})


def seen(
    frame: pd.DataFrame, seed: int, permutation: np.ndarray, most: float = np.inf, method: str = ""
) -> dict[str, np.ndarray]:
    """Return q(z|s) for display: title -> `aligned` matrix.

    It is that of the last logged round up to ``most``, for every method that has the seed, or for
    one.
    """
    rows = frame[(frame["metric"] == "clusters") & (frame["seed"] == seed)]
    rows = rows[(rows["round"] <= most) & (rows["method"].eq(method) | (not method))]
    ends = {str(m): int(t) for m, t in rows.groupby("method", sort=False)["round"].max().items()}
    q = {m: frames.matrix(rows, "clusters", m, seed, t) for m, t in ends.items()}
    return {f"{m}, round {ends[m]}": aligned(q[m], permutation) for m in ends}


# What messages reveal of a client's labels: App. C.

TRUTH = "label_share"
SOURCES = {
    "labels_from_bias": "output bias",
    "labels_from_weights": "output weights",
    "labels_from_q": "q(z|s)",
    "labels_from_phi": "phi",
    "labels_from_phi_cohort": "phi, by the cohort",
}
LABEL_SET = "label_set_from_phi"
METHODS = (names.FEDAVG, names.BIASED, names.FEDMIX)
MESSAGES = (names.STEP, names.EPOCH, names.TRAINED)
GUESSING = "guessing"
MOST = 0.8  # the share of the clients in a range
SIZES, NOISES = (1, 2, 3, 5, 10), (0, 0.1, 0.3, 1, 3, 10)  # clients; noise relative to an update


def audited(frame: pd.DataFrame, method: str, message: str, seed: int) -> pd.DataFrame:
    """Return the rows of one run: the audit of one message of every client."""
    mine = (frame["method"] == method) & (frame["message"] == message) & (frame["seed"] == seed)
    return frame[mine]


def shares(audit: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return label shares as a table with a row per client and a column per class; may be empty.

    Args:
        audit: the rows of one run.
        metric: the truth, or one of the reconstructions.
    """
    rows = audit[audit["metric"] == metric].assign(item=lambda r: r["item"].astype(int))
    return rows.set_index(["client", "item"])["value"].unstack()


def of_client(audit: pd.DataFrame, client: int) -> dict[str, np.ndarray]:
    """Return one client's label shares ``[classes]``: the truth and every reconstruction."""
    every = {name: shares(audit, m) for m, name in {TRUTH: "true", **SOURCES}.items()}
    return {n: table.loc[client].to_numpy() for n, table in every.items() if client in table.index}


def leaks(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the total variation between every client's label shares and their reconstruction.

    The source "guessing" is the baseline: the mean of all clients' shares for every client. Columns
    method, message, source, seed, client, value.
    """
    found = [pd.DataFrame(columns=["method", "message", "source", "seed", "client", "value"])]
    audits = frame[frame["metric"].isin([TRUTH, *SOURCES])]
    for (method, message, seed), audit in audits.groupby(["method", "message", "seed"], sort=False):
        true = shares(audit, TRUTH)
        guesses = {source: shares(audit, metric) for metric, source in SOURCES.items()}
        guesses[GUESSING] = true * 0 + true.mean()
        for source, guess in guesses.items():
            if len(guess):
                off = total_variation(guess.to_numpy(), true.to_numpy())
                run = {"method": method, "message": message, "source": source, "seed": seed}
                found.append(pd.DataFrame({**run, "client": true.index, "value": off}))
    return pd.concat(found[1:] or found, ignore_index=True)


def ranges(leaked: pd.DataFrame) -> pd.DataFrame:
    """Return the mean, and the range of the central ``MOST`` of the clients, of all seeds.

    Columns as `plotting.dots` draws them: method, row (the source), group (the message), mean, low,
    high.
    """
    known = leaked[leaked["source"] != GUESSING]
    known = known.rename(columns={"source": "row", "message": "group"})
    by = known.groupby(["method", "row", "group"], sort=False)["value"]
    low, high = (by.quantile((1 + sign * MOST) / 2) for sign in (-1, 1))
    table = pd.DataFrame({"mean": by.mean(), "low": low, "high": high}).reset_index()
    order = {source: i for i, source in enumerate((*SOURCES.values(), *MESSAGES))}
    return table.sort_values(["row", "group"], key=lambda c: c.map(order), kind="stable")


def label_sets(frame: pd.DataFrame, message: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return FedMix's true label shares, and the label sets recovered from phi, ``[S, classes]``.

    Both are empty if the run did not store them.
    """
    audit = audited(frame, names.FEDMIX, message, seed)
    told = shares(audit, LABEL_SET)
    return shares(audit, TRUTH).reindex(told.index).to_numpy(), told.to_numpy() > 0


def guessed_sets(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the share of clients whose whole label set is recovered, by message, over all seeds.

    Columns clients, and the shares that are right: "read off phi", and the guess "all labels" for
    every client, which needs no message.
    """
    rows = {}
    for message in MESSAGES:
        every = (label_sets(frame, message, int(seed)) for seed in frame["seed"].unique())
        if not (sets := [each for each in every if len(each[0])]):
            continue
        held, read = (np.concatenate(of) for of in zip(*sets, strict=True))
        right = {"read off phi": (held > 0) == read, "all labels": held > 0}
        shares = {name: found.all(1).mean() for name, found in right.items()}
        rows[message] = {"clients": len(held), **shares}
    return pd.DataFrame(rows).T


def hidden(runs: Mapping[str, Sequence[Experiment]]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return what phi reveals of labels in sums over clients, and behind noise.

    Args:
        runs: audited runs of FedMix by message.

    Returns:
        Two tables with columns method (the message), seed, and those of `leak_of_sums` and
        `leak_behind_noise`.
    """
    sums, noise = [], []
    for message, every in runs.items():
        for run in every:
            at: dict[str, Any] = {"method": message, "seed": run.seed}
            update, q, truth, share, _ = overheard(run)
            sizes = (*SIZES, len(update))
            sums.append(leak_of_sums(update, q, truth, share, sizes, run.seed).assign(**at))
            noise.append(leak_behind_noise(update, q, truth, NOISES, run.seed).assign(**at))
    return pd.concat(sums, ignore_index=True), pd.concat(noise, ignore_index=True)


def prices(setting: Mixtures, device: str = "cpu") -> pd.DataFrame:
    """Return what secure aggregation and differential privacy cost FedMix, and hide (seed 0).

    Returns:
        A row per method of `guarded`: "client accuracy", "entropy of q(z|y)" (nats), "KB up" (per
        client and round), "labels inferred" (the balanced accuracy of the server's best test of who
        holds which label, from the phi of one further round; chance is 1/2), and "epsilon" for
        delta = 1 / M^1.1 (NaN without the package dp-accounting). A server that adds the noise
        itself is trusted: it receives clipped messages without noise.
    """
    made, rows = guarded(setting), {}
    for name, experiment in made.items():
        result = trained(experiment, device=device, progress=False)
        curve = {n: [*result.curve(n).values()] for n in ("test_accuracy", "q_entropy", "bytes_up")}
        once = replace(experiment, first_stage=made[names.FEDMIX], **ONCE)
        sent = np.mean(curve["bytes_up"]) / setting.cohort / 1000
        rows[name] = {
            "client accuracy": curve["test_accuracy"][-1],
            "entropy of q(z|y)": curve["q_entropy"][-1],
            "KB up": sent,
            "labels inferred": _told_by_phi(once),
            "epsilon": _epsilon(experiment, setting),
        }
        if name == names.FEDMIX:  # masks cancel in the sums and change nothing else
            masked = sent + _masking(int(setting.cohort)) / 1000
            told = {"KB up": masked, "labels inferred": _told_by_phi(once, summed=True)}
            rows["secure sums"] = {**rows[name], **told}
    return pd.DataFrame(rows).T


def _masking(cohort: int) -> int:
    """Return the bytes that a client sends in secure aggregation besides its masked message.

    They are its weight, two public keys, and two shares of secrets for each other client of the
    cohort (examples/secure_sum.py).
    """
    return 4 + 2 * 32 + (cohort - 1) * 2 * 48


def _told_by_phi(experiment: Experiment, summed: bool = False) -> float:
    """Return how well a server can tell who holds which label by the norms of phi's rows.

    If messages are ``summed`` behind masks, the server sees the same of every client.
    """
    update, _, truth, p, _ = overheard(experiment)
    if summed:
        update = np.broadcast_to(np.tensordot(p, update, 1), update.shape)
    return best_threshold(lengths(update), truth > 0)


def _epsilon(experiment: Experiment, setting: Mixtures) -> float:
    """Return epsilon of a run; infinity without differential privacy."""
    if not isinstance(experiment.algorithm, Private):
        return np.inf
    who = {"clients": setting.clients, "cohort": int(setting.cohort), "rounds": setting.rounds}
    with contextlib.suppress(ImportError):
        return epsilon(experiment.algorithm, delta=setting.clients**-1.1, **who)
    return np.nan


def guess(heard: tuple[Any, ...], client: int, told: bool) -> Figure:
    """Draw a client's message of phi and, if ``told``, the true and the recovered label shares.

    Colours are cube roots relative to the largest update, so that small steps are visible; a row
    that has not moved is white.

    Args:
        heard: what `overheard` returns.
        client: the client.
        told: whether the answer is shown.
    """
    (updates, q, truth, _, labels), at = heard, np.arange(len(heard[1]))
    sent, held, read = updates[client], truth[client], from_rows(updates[client], q)
    figure, (left, right) = plt.subplots(1, 2, sharey=True, figsize=(plotting.PAGE, 3.0))
    moved = np.cbrt(np.where(sent == 0, np.nan, sent / abs(sent).max()))
    left.imshow(moved, cmap="PuOr", vmin=-1, vmax=1, aspect="auto")
    left.set(title=f"client {client}: what it sends of phi", xlabel="expert", ylabel="label")
    left.set_xticks(range(q.shape[1]), [str(z + 1) for z in range(q.shape[1])])
    left.set_yticks(at, labels)
    right.set(xlim=(0, 1), title="Which labels does it hold, and which most?")
    if told:
        right.barh(at - 0.2, held, 0.4, label="held")
        right.barh(at + 0.2, read, 0.4, label="read off the message")
        off = f"client {client}: {total_variation(read, held):.2f} off"
        right.set(title=off, xlabel="share of its examples")
        right.legend(loc="center right")
    return figure
