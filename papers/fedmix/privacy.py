"""What messages tell of a client's labels (000, App. C): shares, sets, and how far off they are."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pandas as pd

from companion import frames
from fedlib.privacy import total_variation
from papers.fedmix import BIASED, EPOCH, FEDAVG, FEDMIX, STEP, TRAINED

TRUTH = "label_share"
SOURCES = {
    "labels_from_bias": "output bias",
    "labels_from_weights": "output weights",
    "labels_from_q": "q(z|s)",
    "labels_from_phi": "phi",
    "labels_from_phi_cohort": "phi, by the cohort",
}
BIAS, WEIGHTS, Q, PHI, COHORT = SOURCES.values()
LABEL_SET = "label_set_from_phi"
METHODS = (FEDAVG, BIASED, FEDMIX)
MESSAGES = (STEP, EPOCH, TRAINED)
GUESSING = "guessing"


def audited(frame: pd.DataFrame, method: str, message: str, seed: int) -> pd.DataFrame:
    """Return the rows of one run: the audit of one message of every client."""
    mine = (frame["method"] == method) & (frame["message"] == message) & (frame["seed"] == seed)
    return frame[mine]


def shares(audit: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return a table of label shares, one row per client and one column per class; may be empty.

    ``audit`` has the rows of one run, ``metric`` is the truth or one of the reconstructions.
    """
    rows = audit[audit["metric"] == metric].assign(item=lambda r: r["item"].astype(int))
    return rows.pivot_table("value", "client", "item")


def of_client(audit: pd.DataFrame, client: int) -> dict[str, np.ndarray]:
    """Return one client's label shares ``[classes]``: the truth and every reconstruction."""
    every = {name: shares(audit, m) for m, name in {TRUTH: "true", **SOURCES}.items()}
    return {n: table.loc[client].to_numpy() for n, table in every.items() if client in table.index}


def leaks(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the total variation between every client's label shares and their reconstruction.

    Columns method, message, source, seed, client, value. The source "guessing" is no leak but the
    comparison: the mean of all clients' shares, for every client.
    """
    found, run = [], ["method", "message", "seed"]
    audits = frame[frame["metric"].isin([TRUTH, *SOURCES])]
    for _, audit in audits.groupby(run, sort=False):
        truth = shares(audit, TRUTH)
        guesses = {source: shares(audit, metric) for metric, source in SOURCES.items()}
        guesses[GUESSING] = truth * 0 + truth.mean()
        for source, guess in guesses.items():
            if len(guess):
                value = total_variation(guess.to_numpy(), truth.to_numpy())
                rows = pd.DataFrame({"source": source, "client": truth.index, "value": value})
                found.append(rows.assign(**{name: audit[name].iloc[0] for name in run}))
    columns = ["method", "message", "source", "seed", "client", "value"]
    return pd.concat(found, ignore_index=True)[columns] if found else pd.DataFrame(columns=columns)


def spread(leaked: pd.DataFrame, level: float = 0.8) -> pd.DataFrame:
    """Return mean, low and high by method, source and message: the range of most clients.

    ``level`` is the share of clients (of all seeds) between low and high. Columns as
    `plotting.dots` draws them: method, row (the source), group (the message), mean, low, high.
    """
    known = leaked[leaked["source"] != GUESSING]
    rows = []
    for key, group in known.groupby(["method", "source", "message"], sort=False):
        low, high = np.quantile(group["value"], [(1 - level) / 2, (1 + level) / 2])
        rows.append((*key, group["value"].mean(), low, high))
    named = pd.DataFrame(rows, columns=["method", "row", "group", "mean", "low", "high"])
    order = {source: i for i, source in enumerate((*SOURCES.values(), *MESSAGES))}
    return named.sort_values(["row", "group"], key=lambda c: c.map(order), kind="stable")


def label_sets(frame: pd.DataFrame, message: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return FedMix's true label shares and the label sets read off phi, ``[S, classes]`` each.

    Both are empty where the run did not store them.
    """
    audit = audited(frame, FEDMIX, message, seed)
    told = shares(audit, LABEL_SET)
    if not len(told):
        return np.zeros((0, 0)), np.zeros((0, 0), dtype=bool)
    return shares(audit, TRUTH).loc[told.index].to_numpy(), told.to_numpy() > 0


def wrong_sets(frame: pd.DataFrame, message: str) -> tuple[int, int]:
    """Return how many clients' label sets, of all seeds, are read off wrongly, and of how many."""
    seeds = sorted(frame.loc[frame["metric"] == LABEL_SET, "seed"].unique())
    wrong = every = 0
    for seed in seeds:
        truth, told = label_sets(frame, message, seed)
        wrong += int((told != (truth > 0)).any(-1).sum())
        every += len(told)
    return wrong, every


def means(leaked: pd.DataFrame, method: str) -> dict[tuple[str, str], dict[int, float]]:
    """Return the mean total variation over clients of a method, by message and source, by seed."""
    found: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    rows = leaked[leaked["method"] == method]
    for (message, source), group in rows.groupby(["message", "source"]):
        found[str(message), str(source)] = frames.by_seed(group)
    return found


def summary(leaked: pd.DataFrame) -> pd.DataFrame:
    """Return the mean total variation over clients and seeds: method and source by message."""
    table = leaked.pivot_table("value", ["method", "source"], "message", sort=False)
    rows = [(m, s) for m in METHODS for s in (*SOURCES.values(), GUESSING)]
    order = pd.MultiIndex.from_tuples([row for row in rows if row in table.index])
    ordered = table.reindex(order)[[m for m in MESSAGES if m in table.columns]]
    ordered.columns.name = None
    return ordered
