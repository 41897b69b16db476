"""Claims of the FedMix paper (000, App. E) about the number of experts and about pruning."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd

from companion import frames
from companion.claims import Claim, above, greater, on_par
from papers.claims.communication import TEN, megabytes
from papers.recipes import FEDMIX, with_experts, with_pruning


def ablation_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test Fig. 11: the numbers of experts K, each against the next smaller, and the thresholds.

    Only what the frame holds two of is compared; at least the paper's statements about pruning are
    always asked.
    """
    local, new = frames.final(frame, "test_accuracy"), frames.final(frame, "global_accuracy")
    there = experts_of(frame)
    claims = []
    for few, many in pairwise(there):
        small, large = with_experts(few), with_experts(many)
        text = f"More experts, higher accuracy: K = {many} vs K = {few}"
        claims += [
            greater(f"{text}, local", "App. E, Fig. 11a", local[large], local[small]),
            greater(f"{text}, new shard", "App. E, Fig. 11c", new[large], new[small]),
        ]
    if TEN in set(frame["method"]):
        text = "With K = 10, the classes' number, each class has an expert to itself: their share"
        claims.append(above(text, "App. E", own_experts(frame, TEN), 0.9))
    sent = megabytes(frame)
    etas = etas_of(frame)
    for low, high in pairwise(etas):
        claims.append(
            greater(
                f"More pruning sends fewer bytes: MB in all, eta = {low:g} vs {high:g}",
                "App. E, Fig. 11b",
                sent[with_pruning(low)],
                sent[with_pruning(high)],
            )
        )
    highest = with_pruning(max(etas, default=0))
    claims += [
        on_par(
            "Pruning at eta = 0.5 has no significant drop: at most one point below eta = 0, local",
            "Sec. 2.1, App. E",
            local[with_pruning(0.5)],
            local[FEDMIX],
        ),
        greater(
            "The most pruning causes some loss: eta = 0 vs the highest eta, local",
            "App. E, Fig. 11b",
            local[FEDMIX],
            local[highest] if highest != FEDMIX else {},
        ),
    ]
    return claims


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
