"""Claims of the FedMix paper (000, App. C) about what messages tell of a client's labels.

What phi tells is no claim of the paper: those claims are ours, and say so.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from companion import frames
from companion.claims import Claim, below, equal, greater
from fedlib.privacy import total_variation
from papers.recipes import BIASED, EPOCH, FEDAVG, FEDMIX, STEP, TRAINED, audited

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
OURS = "ours, not in 000"
METHODS = (FEDAVG, BIASED, FEDMIX)
STAGES = (STEP, EPOCH, TRAINED)
GUESSING = "guessing"
NEAR = 0.1  # a mean total variation below this is called near-identical
FIFTH = 0.2  # ... if it is also below this share of guessing's
DIGITS = 6  # decimals to which the identity behind eq. 15 must hold


def shares(frame: pd.DataFrame, run: str, seed: int, metric: str) -> pd.DataFrame:
    """Return a table of label shares, one row per client and one column per class; may be empty.

    ``run`` is a name by `recipes.audited`, ``metric`` the truth or one of the reconstructions.
    """
    mine = (frame["method"] == run) & (frame["seed"] == seed) & (frame["metric"] == metric)
    rows = frame[mine].assign(item=lambda r: r["item"].astype(int))
    return rows.pivot_table("value", "client", "item")


def of_client(frame: pd.DataFrame, run: str, seed: int, client: int) -> dict[str, np.ndarray]:
    """Return one client's label shares ``[classes]``: the truth and every reconstruction."""
    names = {TRUTH: "true", **SOURCES}
    every = {name: shares(frame, run, seed, metric) for metric, name in names.items()}
    return {n: table.loc[client].to_numpy() for n, table in every.items() if client in table.index}


def leaks(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the total variation between every client's label shares and their reconstruction.

    Columns method, stage, source, seed, client, value. The source "guessing" is no leak but the
    comparison: the mean of all clients' shares, for every client.
    """
    found = []
    audits = frame[frame["metric"].isin([TRUTH, *SOURCES])]
    for run, seed in audits[["method", "seed"]].drop_duplicates().itertuples(index=False):
        method, _, stage = str(run).partition(": ")
        truth = shares(audits, run, seed, TRUTH)
        guesses = {SOURCES[m]: shares(audits, run, seed, m) for m in SOURCES}
        guesses[GUESSING] = truth * 0 + truth.mean()
        for source, guess in guesses.items():
            if len(guess):
                value = total_variation(guess.to_numpy(), truth.to_numpy())
                rows = pd.DataFrame({"client": truth.index, "value": value})
                found.append(rows.assign(method=method, stage=stage, source=source, seed=seed))
    names = ["method", "stage", "source", "seed", "client", "value"]
    return pd.concat(found, ignore_index=True)[names] if found else pd.DataFrame(columns=names)


def spread(leaked: pd.DataFrame, level: float = 0.8) -> pd.DataFrame:
    """Return mean, low and high by method, source and stage: the range of most clients.

    ``level`` is the share of clients (of all seeds) between low and high. Columns as
    `plotting.dots` draws them: method, row (the source), group (the stage), mean, low, high.
    """
    known = leaked[leaked["source"] != GUESSING]
    rows = []
    for key, group in known.groupby(["method", "source", "stage"], sort=False):
        low, high = np.quantile(group["value"], [(1 - level) / 2, (1 + level) / 2])
        rows.append((*key, group["value"].mean(), low, high))
    named = pd.DataFrame(rows, columns=["method", "row", "group", "mean", "low", "high"])
    order = {source: i for i, source in enumerate((*SOURCES.values(), *STAGES))}
    return named.sort_values(["row", "group"], key=lambda c: c.map(order), kind="stable")


def label_sets(frame: pd.DataFrame, stage: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return FedMix's true label shares and the label sets read off phi, ``[S, classes]`` each.

    Both are empty where the run did not store them.
    """
    run = audited(FEDMIX, stage)
    told = shares(frame, run, seed, LABEL_SET)
    if not len(told):
        return np.zeros((0, 0)), np.zeros((0, 0), dtype=bool)
    return shares(frame, run, seed, TRUTH).loc[told.index].to_numpy(), told.to_numpy() > 0


def wrong_sets(frame: pd.DataFrame, stage: str) -> tuple[int, int]:
    """Return how many clients' label sets, of all seeds, are read off wrongly, and of how many."""
    seeds = sorted(frame.loc[frame["metric"] == LABEL_SET, "seed"].unique())
    wrong = every = 0
    for seed in seeds:
        truth, told = label_sets(frame, stage, seed)
        wrong += int((told != (truth > 0)).any(-1).sum())
        every += len(told)
    return wrong, every


def means(leaked: pd.DataFrame, method: str, stage: str, source: str) -> dict[int, float]:
    """Return the mean total variation over clients, by seed."""
    rows = leaked[(leaked["method"] == method) & (leaked["stage"] == stage)]
    return frames.by_seed(rows[rows["source"] == source])


def summary(leaked: pd.DataFrame) -> pd.DataFrame:
    """Return the mean total variation over clients and seeds: method and source by stage."""
    table = leaked.pivot_table("value", ["method", "source"], "stage", sort=False)
    rows = [(m, s) for m in METHODS for s in (*SOURCES.values(), GUESSING)]
    order = pd.MultiIndex.from_tuples([row for row in rows if row in table.index])
    ordered = table.reindex(order)[[s for s in STAGES if s in table.columns]]
    ordered.columns.name = None
    return ordered


def exactness_claim(error: float) -> Claim:
    """Test the identity behind eq. 15: the largest error of any share when outputs are uniform."""
    text = f"With uniform outputs one full-batch step gives p(y|s) away: error to {DIGITS} decimals"
    return equal(text, "Eq. 15 (A13)", round(error, DIGITS), 0.0)


def privacy_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test App. C: bias after one step and after several, q(z|s), and a bias that is not sent."""
    known = leaks(frame)

    def tv(method: str, stage: str, source: str) -> dict[int, float]:
        return means(known, method, stage, source)

    step, guess = tv(FEDAVG, STEP, BIAS), tv(FEDAVG, STEP, GUESSING)
    told = known[(known["method"] == BIASED) & (known["source"] == BIAS)]
    return [
        below(
            "One full-batch step of a fresh model: reconstruction from the bias near-identical",
            "Fig. 9",
            step,
            NEAR,
        ),
        below(
            "... its distance as a share of guessing's",
            "Fig. 9",
            [step[s] / guess[s] for s in step if guess.get(s)],
            FIFTH,
        ),
        greater(
            "Several steps reduce the congruence: distance after one epoch vs after one step",
            "Fig. 10",
            tv(FEDAVG, EPOCH, BIAS),
            step,
        ),
        greater(
            "... and still leak: guessing is further off than one epoch's bias",
            "Fig. 10",
            tv(FEDAVG, EPOCH, GUESSING),
            tv(FEDAVG, EPOCH, BIAS),
        ),
        greater(
            "A trained model leaks too: guessing is further off than the bias",
            "App. C, extended",
            tv(FEDAVG, TRAINED, GUESSING),
            tv(FEDAVG, TRAINED, BIAS),
        ),
        *_biased(known, len(told)),
        *(
            greater(
                f"FedMix's q(z|s) reveals less than its bias, {stage}",
                "App. C",
                tv(FEDMIX, stage, Q),
                tv(FEDMIX, stage, BIAS),
            )
            for stage in (EPOCH, TRAINED)
        ),
        greater(
            "q(z|s) reveals less once q has specialised: distance trained vs fresh, one epoch",
            "App. C, extended",
            tv(FEDMIX, TRAINED, Q),
            tv(FEDMIX, EPOCH, Q),
        ),
        *_of_phi(frame, known),
    ]


def _of_phi(frame: pd.DataFrame, known: pd.DataFrame) -> Sequence[Claim]:
    """Test what phi tells; nothing for runs that were audited before phi was."""
    claims = []
    for stage in STAGES:
        wrong, clients = wrong_sets(frame, stage)
        if clients:
            text = f"Rows of phi name every client's labels: clients read wrongly, {stage}"
            claims.append(equal(text, OURS, wrong, 0))
    if not claims:
        return []

    def tv(stage: str, source: str) -> dict[int, float]:
        return means(known, FEDMIX, stage, source)

    return [
        *claims,
        *(
            greater(
                f"... and phi tells more than q(z|s), {stage}",
                OURS,
                tv(stage, Q),
                tv(stage, PHI),
            )
            for stage in STAGES
        ),
        greater(
            "A trained model's phi tells more than its bias: distance of bias vs phi",
            OURS,
            tv(TRAINED, BIAS),
            tv(TRAINED, PHI),
        ),
        greater(
            "A fresh model's bias tells more than one message of phi, one full-batch step",
            OURS,
            tv(STEP, PHI),
            tv(STEP, BIAS),
        ),
        greater(
            "... unless the cohort's messages are read together: distance of one vs all",
            OURS,
            tv(STEP, PHI),
            tv(STEP, COHORT),
        ),
    ]


def _biased(known: pd.DataFrame, told: int) -> Sequence[Claim]:
    if BIASED not in set(known["method"]):
        return []
    return [
        equal("Biased FedAvg sends no bias: shares read off one", "App. C, extended", told, 0),
        *(
            greater(
                f"... but its output weights tell: guessing is further off, {stage}",
                "App. C, extended",
                means(known, BIASED, stage, GUESSING),
                means(known, BIASED, stage, WEIGHTS),
            )
            for stage in (STEP, EPOCH, TRAINED)
        ),
    ]
