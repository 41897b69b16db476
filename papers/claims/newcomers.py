"""Claims of the FedMix paper (000, sec. 2, Fig. 12, App. F) about clients that did not train."""

from __future__ import annotations

import pandas as pd

from companion import frames
from companion.claims import BySeed, Claim, alike, below, greater
from companion.frames import ByMethod, final
from fedlib.runs import Result, find
from papers.published import published
from papers.recipes import (
    BIAS,
    BIASED,
    DENSITIES,
    FEDAVG,
    FEDMIX,
    JOINING,
    LOCAL_GLOBAL,
    NEW_CLIENTS,
    joined,
)

SEEN = "seen client"
UNLABELLED = "new, no labels"
BEFORE = "new, labels, before fitting"
AFTER = "new, labels, after fitting"
WAYS = (SEEN, AFTER, BEFORE, UNLABELLED)
CHANCES = 2  # "almost random" is below twice what guessing gives
APPENDIX_F = (
    # what, method, metric here; the paper's metric, method and a word of its setting
    ("seen clients, validation", FEDAVG, "validation_accuracy", "val_", "FedAvg", ""),
    ("seen clients, validation", FEDMIX, "validation_accuracy", "val_", "FedMix", ""),
    ("new client", FEDAVG, "global_accuracy", "test_", "FedAvg", ""),
    ("new client", FEDMIX, "global_accuracy", "test_", "FedMix", "with p(s)"),
    ("new client", DENSITIES, "global_accuracy", "test_", "FedMix", "p(s|x*)"),
)


def new_client_claims(frame: pd.DataFrame, dataset: str) -> list[Claim]:
    """Test Fig. 12: accuracy on a new client without labels, last round.

    Of CIFAR-100 the paper says other things than of CIFAR-10 (which the digits follow), and of
    FEMNIST nothing.
    """
    if dataset == "femnist":
        return []
    new = final(frame, "global_accuracy")
    return _cifar100(new) if dataset == "cifar100" else _cifar10(new, frame)


def appendix_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test App. F: FedAvg and FedMix on seen clients, and p(s) against p(s|x) on a new one."""
    held, new = final(frame, "validation_accuracy"), final(frame, "global_accuracy")
    return [
        greater(
            "FedMix beats FedAvg on seen clients, validation accuracy",
            "App. F",
            held[FEDMIX],
            held[FEDAVG],
        ),
        greater(
            "On a new client FedAvg beats FedMix with p(s)",
            "App. F",
            new[FEDAVG],
            new[FEDMIX],
        ),
        greater(
            "p(s|x) from auto-encoders does no better: FedMix with p(s) is above it",
            "App. F, eq. 18",
            new[FEDMIX],
            new[DENSITIES],
        ),
    ]


def joining_claims(frame: pd.DataFrame, classes: int) -> list[Claim]:
    """Test sec. 2: a new client with labels fits its gate, and without a gate experts are lost."""
    fitted = {way: at(frame, joined(FEDMIX), t) for way, t in ((BEFORE, 0), (AFTER, 1))}
    fedavg = at(frame, joined(FEDAVG), 1)
    return [
        greater(
            "A new client with labels gains by fitting its gate: after vs before",
            "Sec. 2",
            fitted[AFTER],
            fitted[BEFORE],
        ),
        greater(
            "... and is then better off with FedMix than with FedAvg's model",
            "Sec. 2, extended",
            fitted[AFTER],
            fedavg,
        ),
        below(
            f"Without a gate, ensembling experts is almost random: accuracy times {classes} labels",
            "Sec. 2",
            [v * classes for v in fitted[BEFORE].values()],
            CHANCES,
        ),
    ]


def at(frame: pd.DataFrame, method: str, round: int, metric: str = "test_accuracy") -> BySeed:
    """Return a metric of a method after some round, the mean over clients, by seed."""
    curve = frames.curve(frame, metric)
    return frames.by_seed(curve[(curve["method"] == method) & (curve["round"] == round)])


def seen_and_new(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the last accuracy on seen clients (x) and on a new one (y): method, seed, x, y."""
    x, y = final(frame, "test_accuracy"), final(frame, "global_accuracy")
    order = [m for m in dict.fromkeys(frame["method"]) if m in y]
    rows = [(m, s, x[m][s], y[m][s]) for m in order for s in sorted(y[m])]
    return pd.DataFrame(rows, columns=["method", "seed", "x", "y"])


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
        for seed, value in final(frame, metric)[method].items()
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
    runs: dict[str, list[Result]] = {}
    for method in JOINING:
        every = NEW_CLIENTS.experiments(scale, dataset, joined(method), seeds=seeds, rounds=rounds)
        stored = [find(e.after) for e in every if e.after is not None]
        there = [r for r in stored if r is not None]
        runs |= {method: there} if there else {}
    return frames.together(runs) if runs else pd.DataFrame(columns=_COLUMNS)


def three_ways(frame: pd.DataFrame, first: pd.DataFrame) -> pd.DataFrame:
    """Return the three ways to test (sec. 2) of the methods that newcomers join.

    ``frame`` has the newcomers' runs and ``first`` what they join, which may be missing. Columns
    method, way, seed, value.
    """
    ends = {SEEN: final(first, "test_accuracy"), UNLABELLED: final(first, "global_accuracy")}
    rows = []
    for method in JOINING:
        ways: dict[str, BySeed] = {way: known[method] for way, known in ends.items()}
        ways[BEFORE], ways[AFTER] = (at(frame, joined(method), t) for t in (0, 1))
        rows += [(method, way, s, v) for way in WAYS for s, v in ways[way].items()]
    return pd.DataFrame(rows, columns=["method", "way", "seed", "value"])


def by_way(ways: pd.DataFrame) -> pd.DataFrame:
    """Return the frame of `three_ways` as `plotting.dots` draws it: row, group, mean, low, high."""
    return frames.bands(ways, by=("method", "way")).rename(
        columns={"method": "row", "way": "group"}
    )


_COLUMNS = ["method", "seed", "round", "metric", "client", "expert", "item", "value"]


def _cifar10(new: ByMethod, frame: pd.DataFrame) -> list[Claim]:
    seen = final(frame, "test_accuracy")
    pairs = [
        ("Biased FedAvg falls below FedAvg on a new client", FEDAVG, BIASED, "Fig. 12"),
        ("Local/Global falls below FedAvg on a new client", FEDAVG, LOCAL_GLOBAL, "Fig. 12"),
        ("FedMix beats FedAvg on a new client", FEDMIX, FEDAVG, "Fig. 12"),
        ("FedMix with a personal bias keeps that: above FedAvg", BIAS, FEDAVG, "Sec. 4.1"),
    ]
    claims = [
        greater(text, where, new[a], new[b])
        for text, a, b, where in pairs
        if BIAS not in (a, b) or BIAS in new
    ]
    if BIAS in new:
        text = "... and gains on seen clients by it: above FedMix there"
        claims.append(greater(text, "Sec. 4.1", seen[BIAS], seen[FEDMIX]))
    return claims


def _cifar100(new: ByMethod) -> list[Claim]:
    biased, fedavg, mix = (new[m] for m in (BIASED, FEDAVG, FEDMIX))
    text = "Biased FedAvg is indistinguishable from FedAvg on a new client: within a point"
    return [
        alike(text, "App. F", biased, fedavg),
        greater("FedAvg outperforms FedMix on a new client", "App. F", fedavg, mix),
        greater("... and so does biased FedAvg", "App. F", biased, mix),
    ]
