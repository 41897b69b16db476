"""Claims of the FedMix paper (000) about divergence and specialisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from fedlib import frames
from fedlib.claims.rule import Claim, above, below, greater
from fedlib.recipes import CENTRALISED, ENSEMBLE, FEDAVG, FEDMIX, ORIGINAL, UNREGULARISED

ONE_HOT = 0.1  # a row of q(z|y) counts as one-hot below this share of log K
UNIFORM = 0.9  # ... and as uniform above this one
PAPER_TRAVEL = 2.0  # 2,000 rounds at the rate 1e-3


def divergence_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test Fig. 1: per expert, FedMix's gradients diverge less than FedAvg's once q has formed."""
    curve = frames.divergence(frame)
    last = late(curve)
    first = curve[curve["round"] <= curve["round"].max() // 10]
    early = {m: dict(g.groupby("seed")["value"].mean()) for m, g in first.groupby("method")}
    return [
        greater(
            "FedMix's divergence per expert is below FedAvg's in the last quarter of training",
            "Fig. 1",
            last.get(FEDAVG, {}),
            last.get(FEDMIX, {}),
        ),
        greater(
            "FedAvg's clients start diverging: last quarter above the first tenth of training",
            "Sec. 1, Fig. 1",
            last.get(FEDAVG, {}),
            early.get(FEDAVG, {}),
        ),
    ]


def specialisation_claims(frame: pd.DataFrame, phi_rate: float) -> list[Claim]:
    """Test Fig. 3 and 14: does q(z|y) specialise, do experts live, what do the entropies do?

    ``phi_rate`` is the server's rate for phi. A logit moves by about that much per round, so that
    runs with another rate or length are compared at the same rate x rounds: the paper's is 2.
    """
    k = experts(frame)
    row, least = final(frame, "q_entropy"), least_used(frame)
    accuracy = {
        m: dict(zip(g["seed"], g["value"], strict=True))
        for m, g in frames.reported(frame).query("rule == 'last'").groupby("method")
    }
    gate = winners(frame, CENTRALISED)
    claims = [
        below(
            "FedMix assigns each label to one expert: mean row entropy of q(z|y) over log K",
            "Fig. 14a",
            _share(row.get(FEDMIX, {}), np.log(k)),
            ONE_HOT,
        ),
        above(
            "FedMix's experts all live: K times the marginal q(z) of the least used expert",
            "Sec. 2.1, Fig. 14a",
            _share(least.get(FEDMIX, {}), 1 / k),
            0.2,
        ),
        greater(
            "The marginal entropy term keeps experts alive: least used expert, with vs without it",
            "Sec. 2.1",
            least.get(FEDMIX, {}),
            least.get(UNREGULARISED, {}),
        ),
        above(
            "With H(q) no expert specialises: mean row entropy of q(z|y) over log K, last round",
            "Fig. 3",
            _share(row.get(ENSEMBLE, {}), np.log(k)),
            UNIFORM,
        ),
        above(
            "... at the paper's travel of phi, rate x rounds = 2",
            "Fig. 3, time scale",
            _share(travelled(frame, ENSEMBLE, phi_rate), np.log(k)),
            UNIFORM,
        ),
        greater(
            "Specialised beats the ensemble: FedMix vs FedMix with H(q), accuracy of last round",
            "Fig. 3",
            accuracy.get(FEDMIX, {}),
            accuracy.get(ENSEMBLE, {}),
        ),
        greater(
            "Specialised beats FedAvg, accuracy of last round",
            "Fig. 3",
            accuracy.get(FEDMIX, {}),
            accuracy.get(FEDAVG, {}),
        ),
        above(
            "The original mixture (eq. 3, S = 1) collapses to one expert: its share after an epoch",
            "Fig. 14b",
            list(gate.get(1, {}).values()),
            UNIFORM,
        ),
        above(
            "... and after the last epoch that was run",
            "Fig. 14b, extended",
            list(_last(gate).values()),
            UNIFORM,
        ),
    ]
    if ORIGINAL in set(frame["method"]):
        survivors = list(_last(winners(frame, ORIGINAL)).values())
        text = "The federated original mixture (eq. 3) collapses to one expert by the last round"
        claims.append(above(text, "App. H", survivors, UNIFORM))
    return claims


def late(curve: pd.DataFrame) -> dict[str, dict[int, float]]:
    """Return the mean of a curve over the last quarter of its rounds, by method and seed."""
    tail = curve[curve["round"] > 0.75 * curve["round"].max()]
    return {str(m): dict(g.groupby("seed")["value"].mean()) for m, g in tail.groupby("method")}


def final(frame: pd.DataFrame, metric: str) -> dict[str, dict[int, float]]:
    """Return a scalar metric after the last round, by method and seed."""
    curve = frames.curve(frame, metric)
    ends = curve.sort_values("round").groupby(["method", "seed"], as_index=False).last()
    return {
        str(m): dict(zip(g["seed"], g["value"], strict=True)) for m, g in ends.groupby("method")
    }


def travelled(frame: pd.DataFrame, method: str, rate: float) -> dict[int, float]:
    """Return the mean row entropy of q when phi has travelled as far as in the paper, by seed."""
    curve = frames.curve(frame, "q_entropy")
    there = curve["round"] == round(PAPER_TRAVEL / rate)
    rows = curve[there & (curve["method"] == method)]
    return dict(zip(rows["seed"], rows["value"], strict=True))


def least_used(frame: pd.DataFrame) -> dict[str, dict[int, float]]:
    """Return the smallest entry of the marginal q(z) (uniform over labels), by method and seed."""
    rows = frames.last(frame, "q")
    marginal = rows.groupby(["method", "seed", "expert"], as_index=False)["value"].mean()
    least = marginal.groupby(["method", "seed"], as_index=False)["value"].min()
    return {
        str(m): dict(zip(g["seed"], g["value"], strict=True)) for m, g in least.groupby("method")
    }


def winners(frame: pd.DataFrame, method: str) -> dict[int, dict[int, float]]:
    """Return the most used expert's mean gate on test data, by round and seed."""
    rows = frame[(frame["metric"] == "test_gate") & (frame["method"] == method)]
    use = rows.groupby(["round", "seed", "expert"], as_index=False)["value"].mean()
    most = use.groupby(["round", "seed"], as_index=False)["value"].max()
    return {int(r): dict(zip(g["seed"], g["value"], strict=True)) for r, g in most.groupby("round")}


def by_tensor(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the divergence of each tensor in the last quarter of the rounds, mean over experts.

    Columns tensor (``base.0.weight``: without the experts' prefix), method, seed, value.
    """
    rows = frame[frame["metric"] == "divergence"]
    rows = rows[~rows["item"].str.startswith(("phi", "gate."))]
    rows = rows[rows["round"] > 0.75 * rows["round"].max()]
    tensor = rows["item"].str.removeprefix("experts.")
    rows = rows.assign(tensor=tensor)
    return rows.groupby(["tensor", "method", "seed"], as_index=False)["value"].mean()


def least_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the least used expert's marginal as a frame: method, seed, value."""
    rows = [(m, s, v) for m, by_seed in least_used(frame).items() for s, v in by_seed.items()]
    return pd.DataFrame(rows, columns=["method", "seed", "value"])


def spread(rounds: Sequence[int], count: int) -> list[int]:
    """Return ``count`` of the given rounds, first and last among them, denser at the beginning."""
    at = np.unique(np.round((len(rounds) - 1) * np.linspace(0, 1, count) ** 1.5).astype(int))
    return [rounds[i] for i in at]


def experts(frame: pd.DataFrame) -> int:
    """Return K, the number of experts of the mixtures in a frame."""
    return int(frame["expert"].max()) + 1


def _last(by_round: Mapping[int, Mapping[int, float]]) -> Mapping[int, float]:
    return by_round[max(by_round)] if by_round else {}


def _share(values: Mapping[int, float], of: float) -> list[float]:
    return [v / of for v in values.values()]
