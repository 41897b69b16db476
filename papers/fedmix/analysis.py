"""From stored metrics to what figures of FedMix (000) draw: experts, traffic, and new clients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from companion import frames
from companion.frames import ByMethod, final, run_columns
from fedlib import data as datasets
from fedlib.algorithms import FedAvg, FedMix
from fedlib.models import Net
from fedlib.runs import Experiment, Result, find
from papers.fedmix import DENSITIES, FEDAVG, FEDMIX, JOINING, NEW, with_experts, with_pruning
from papers.fedmix.experiments import NEW_CLIENTS
from papers.published import published

PAPER_TRAVEL = 2.0  # 2,000 rounds at the rate 1e-3
SEEN = "seen client"
UNLABELLED = "new, no labels"
BEFORE = "new, labels, before fitting"
AFTER = "new, labels, after fitting"
WAYS = (SEEN, AFTER, BEFORE, UNLABELLED)
APPENDIX_F = (
    # what, method, metric here; the paper's metric, method and a word of its setting
    ("seen clients, validation", FEDAVG, "validation_accuracy", "val_", "FedAvg", ""),
    ("seen clients, validation", FEDMIX, "validation_accuracy", "val_", "FedMix", ""),
    ("new client", FEDAVG, "global_accuracy", "test_", "FedAvg", ""),
    ("new client", FEDMIX, "global_accuracy", "test_", "FedMix", "with p(s)"),
    ("new client", DENSITIES, "global_accuracy", "test_", "FedMix", "p(s|x*)"),
)


def late(curve: pd.DataFrame) -> ByMethod:
    """Return the mean of a curve over the last quarter of its rounds, by method and seed."""
    return frames.by_method(curve[curve["round"] > 0.75 * curve["round"].max()])


def one_hotness(frame: pd.DataFrame, method: str, rate: float = 0) -> list[float]:
    """Return the mean row entropy of q over log K after the last round, a number per seed.

    0 is one expert per value of the condition, 1 no specialisation. With the server's ``rate`` for
    phi it is that of the round by which phi has travelled as far as in the paper.
    """
    rows = frame[frame["method"] == method]
    most = np.log(rows.loc[rows["metric"] == "q", "expert"].max() + 1)
    if rate:
        rows = rows[rows["round"] == round(PAPER_TRAVEL / rate)]
    return [v / most for v in final(rows, "q_entropy")[method].values()]


def least_used(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the smallest entry of the marginal q(z), labels being uniform: method, seed, value."""
    rows = frames.last(frame, "q")
    run = run_columns(rows)
    marginal = rows.groupby([*run, "expert"], as_index=False, dropna=False)["value"].mean()
    return marginal.groupby(run, as_index=False, dropna=False)["value"].min()


def winners(frame: pd.DataFrame, method: str) -> dict[int, dict[int, float]]:
    """Return the most used expert's mean gate on test data, by round and seed."""
    rows = frame[(frame["metric"] == "test_gate") & (frame["method"] == method)]
    use = rows.groupby(["round", "seed", "expert"], as_index=False)["value"].mean()
    most = use.groupby(["round", "seed"], as_index=False)["value"].max()
    return {int(str(t)): frames.by_seed(rows) for t, rows in most.groupby("round")}


def own_experts(frame: pd.DataFrame, method: str) -> dict[int, float]:
    """Return the share of labels whose expert is no other label's, in the last q(z|y), by seed."""
    at = frames.logged_rounds(frame, "q", method)[-1]
    rows = frame[(frame["method"] == method) & (frame["metric"] == "q") & (frame["round"] == at)]
    shares = {}
    for seed in sorted(rows["seed"].unique().tolist()):
        best = frames.matrix(frame, "q", method, seed, at).argmax(1)
        shares[seed] = float(np.mean(np.bincount(best)[best] == 1))
    return shares


def experts_of(frame: pd.DataFrame) -> list[int]:
    """Return the numbers of experts K that a frame has runs of; FedAvg's is 1."""
    there = set(frame["method"])
    return [k for k in range(1, 65) if with_experts(k) in there]


def etas_of(frame: pd.DataFrame) -> list[float]:
    """Return the thresholds eta that a frame has runs of; FedMix's is 0."""
    there = set(frame["method"])
    return [eta for eta in (round(0.05 * i, 2) for i in range(21)) if with_pruning(eta) in there]


def by_tensor(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the divergence of each tensor in the last quarter of the rounds, mean over experts.

    Columns tensor (``base.0.weight``: without the experts' prefix), method, seed, value.
    """
    rows = frames.divergences(frame)
    rows = rows[rows["round"] > 0.75 * rows["round"].max()]
    rows = rows.assign(tensor=rows["item"].str.removeprefix("experts."))
    by = ["tensor", *run_columns(rows)]
    return rows.groupby(by, as_index=False, dropna=False)["value"].mean()


def spread(rounds: Sequence[int], count: int) -> list[int]:
    """Return ``count`` of the given rounds, first and last among them, denser at the beginning."""
    at = np.unique(np.round((len(rounds) - 1) * np.linspace(0, 1, count) ** 1.5).astype(int))
    return [rounds[i] for i in at]


def ahead_of_fedavg(frame: pd.DataFrame) -> pd.DataFrame:
    """Return by how much accuracy exceeds FedAvg's on the same seed and round.

    Columns method, seed, round, value; FedAvg itself and seeds that it has not are left out.
    """
    curve = frames.curve(frame, "test_accuracy")
    base = curve[curve["method"] == FEDAVG].drop(columns="method")
    others = curve[curve["method"] != FEDAVG]
    both = others.merge(base, on=["seed", "round"], suffixes=("", "_base"))
    gain = both["value"] - both["value_base"]
    return both[["method", "seed", "round"]].assign(value=gain)


def megabytes(frame: pd.DataFrame) -> ByMethod:
    """Return what each run has sent in all, down and up, in megabytes."""
    sent = frames.gigabytes(frame)
    total = sent.groupby(run_columns(sent), as_index=False, dropna=False)["gigabytes"].max()
    return frames.by_method(total.assign(value=total["gigabytes"] * 1e3))


def at_equal_traffic(frame: pd.DataFrame) -> ByMethod:
    """Return FedAvg's last accuracy, and the others' when they had sent as much as it did in all.

    A run that has sent less is left out.
    """
    course = frames.against_traffic(frame, "test_accuracy")
    ends = course[course["method"] == FEDAVG].groupby("seed").last()
    budget = frames.by_seed(ends, "gigabytes")
    found = {str(m): frames.at_traffic(course, str(m), budget) for m in course["method"].unique()}
    return ByMethod({**found, FEDAVG: frames.by_seed(ends)})


def expected_traffic(experiment: Experiment) -> tuple[int, int, int]:
    """Return an experiment's parameters sent to a client, and a cohort's bytes down and up.

    By arithmetic on the sizes of what is not local, at 4 bytes a number; FedMix's clients also send
    q(z|s), K numbers. Nothing is trained and no data are looked for. Pruning is not taken into
    account: for it the bytes are the most that a round can send.
    """
    task, algorithm, clients = experiment.task, experiment.algorithm, experiment.cohort
    assert isinstance(clients, int)
    sizes = _sizes(algorithm, Net(task.model, *datasets.form(task.dataset)))
    shared = sum(size for name, size in sizes.items() if not algorithm.is_local(name))
    said = algorithm.experts if isinstance(algorithm, FedMix) else 0
    return shared, 4 * clients * shared, 4 * clients * (shared + said)


def _sizes(algorithm: FedAvg, net: Net) -> dict[str, int]:
    """Return how many numbers each of an algorithm's parameters has: one network, or K and more."""
    one = {name: tensor.numel() for name, tensor in net.init(0).items()}
    if not isinstance(algorithm, FedMix):
        return one
    k, classes = algorithm.experts, one["head.bias"]
    own = {"phi": classes * k, "gate.A": net.width * k, "gate.b": k}
    if algorithm.personal_bias:
        own["bias"] = one.pop("head.bias")
    return {**{f"experts.{name}": k * size for name, size in one.items()}, **own}


def seen_and_new(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the last accuracy on seen clients (x) and on a new one (y): method, seed, x, y."""
    x, y = final(frame, "test_accuracy"), final(frame, "global_accuracy")
    order = [m for m in dict.fromkeys(frame["method"]) if m in y]
    rows = [(m, s, x[m][s], y[m][s]) for m in order for s in sorted(y[m])]
    return pd.DataFrame(rows, columns=["method", "seed", "x", "y"])


def everyone(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of a frame that all clients took part in."""
    return frame[frame["who"] != NEW]


def newcomers(frame: pd.DataFrame, round: int) -> ByMethod:
    """Return the mean accuracy of clients who joined a method's federation, after some round."""
    curve = frames.curve(frame[frame["who"] == NEW], "test_accuracy")
    return frames.by_method(curve[curve["round"] == round])


def printed() -> pd.DataFrame:
    """Return the numbers that App. F states, as fractions: what, method, value, row."""
    said = published("000", "App.F")
    rows = []
    for what, method, _, theirs, name, word in APPENDIX_F:
        chosen = said["metric"].str.startswith(theirs) & said["method"].str.startswith(name)
        chosen &= said["setting"].str.contains(word, regex=False)
        number = said[chosen].iloc[0]
        rows.append((what, method, number["value"] / 100, number["row"]))
    return pd.DataFrame(rows, columns=["what", "method", "value", "row"])


def measured(frame: pd.DataFrame) -> pd.DataFrame:
    """Return what runs have of these numbers, a row per seed: what, method, seed, value."""
    rows = [
        (what, method, seed, value)
        for what, method, metric, *_ in APPENDIX_F
        for seed, value in final(everyone(frame), metric)[method].items()
    ]
    return pd.DataFrame(rows, columns=["what", "method", "seed", "value"])


def appendix_f(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers of App. F, published beside measured.

    Columns what, method, published, mean, low, high (95% over three seeds or more), seeds; what was
    not run has missing numbers.
    """
    ours, rows = measured(frame), []
    for what, method, number in printed()[["what", "method", "value"]].itertuples(index=False):
        runs = ours.loc[ours["what"].eq(what) & ours["method"].eq(method), "value"].tolist()
        mean, low, high = frames.interval(runs) if runs else (float("nan"),) * 3
        rows.append((what, method, number, mean, low, high, len(runs)))
    names = ["what", "method", "published", "mean", "low", "high", "seeds"]
    return pd.DataFrame(rows, columns=names)


def beside(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table of `appendix_f` as `plotting.dots` draws it: row, group, mean, low, high."""
    row = table["method"] + "\n" + table["what"]
    ours = table.assign(row=row, group="measured")
    said = table.assign(row=row, group="published (MNIST)", mean=table["published"])
    both = pd.concat([ours, said.assign(low=float("nan"), high=float("nan"))])
    return both[["row", "group", "mean", "low", "high"]].reset_index(drop=True)


def first_stage(scale: str, dataset: str, seeds: int = 0, rounds: int = 0) -> pd.DataFrame:
    """Return the metrics of the federations that newcomers join, as far as they are stored.

    Methods have the names of what trained; no rows if none is there.
    """
    stored: list[tuple[str, dict[str, str], list[Result]]] = []
    for run in (run for run in NEW_CLIENTS.runs(scale, dataset) if run.where):
        every = NEW_CLIENTS.experiments(scale, dataset, run, seeds=seeds, rounds=rounds)
        found = [find(e.after) for e in every if e.after is not None]
        stored.append((run.method, {}, [result for result in found if result is not None]))
    if not any(results for *_, results in stored):
        return pd.DataFrame(columns=["method", "seed", "round", "metric", "client", "value"])
    return frames.together(stored)


def three_ways(frame: pd.DataFrame, first: pd.DataFrame) -> pd.DataFrame:
    """Return the three ways to test (sec. 2) of the methods that newcomers join.

    ``frame`` has the newcomers' runs and ``first`` what they join, which may be missing. Columns
    method, way, seed, value.
    """
    ends: dict[str, ByMethod] = {
        SEEN: final(first, "test_accuracy"),
        UNLABELLED: final(first, "global_accuracy"),
        BEFORE: newcomers(frame, 0),
        AFTER: newcomers(frame, 1),
    }
    rows = [(m, way, s, v) for m in JOINING for way in WAYS for s, v in ends[way][m].items()]
    return pd.DataFrame(rows, columns=["method", "way", "seed", "value"])


def by_way(ways: pd.DataFrame) -> pd.DataFrame:
    """Return the frame of `three_ways` as `plotting.dots` draws it: row, group, mean, low, high."""
    bands = frames.bands(ways, by=("method", "way"))
    return bands.rename(columns={"method": "row", "way": "group"})
