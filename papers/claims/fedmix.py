"""Claims of the FedMix paper (000) about divergence and specialisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from companion import frames
from companion.claims import Claim, above, below, greater
from papers.recipes import CENTRALISED, ENSEMBLE, FEDAVG, FEDMIX, ORIGINAL, UNREGULARISED

ONE_HOT = 0.1  # a row of q(z|y) counts as one-hot below this share of log K
UNIFORM = 0.9  # ... and as uniform above this one
PAPER_TRAVEL = 2.0  # 2,000 rounds at the rate 1e-3


def divergence_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test Fig. 1: per expert, FedMix's gradients diverge less than FedAvg's once q has formed."""
    curve = frames.divergence(frame)
    last = late(curve)
    first = curve[curve["round"] <= curve["round"].max() // 10]
    early = frames.by_method(first)
    return [
        greater(
            "FedMix's divergence per expert is below FedAvg's in the last quarter of training",
            "Fig. 1",
            last[FEDAVG],
            last[FEDMIX],
        ),
        greater(
            "FedAvg's clients start diverging: last quarter above the first tenth of training",
            "Sec. 1, Fig. 1",
            last[FEDAVG],
            early[FEDAVG],
        ),
    ]


def specialisation_claims(frame: pd.DataFrame, phi_rate: float) -> list[Claim]:
    """Test Fig. 3 and 14: does q(z|y) specialise, do experts live, what do the entropies do?

    ``phi_rate`` is the server's rate for phi. A logit moves by about that much per round, so that
    runs with another rate or length are compared at the same rate x rounds: the paper's is 2.
    """
    k = experts(frame)
    row, least = frames.final(frame, "q_entropy"), frames.by_method(least_used(frame))
    accuracy = frames.final(frame, "test_accuracy")
    gate = winners(frame, CENTRALISED)
    claims = [
        below(
            "FedMix assigns each label to one expert: mean row entropy of q(z|y) over log K",
            "Fig. 14a",
            _share(row[FEDMIX], np.log(k)),
            ONE_HOT,
        ),
        above(
            "FedMix's experts all live: K times the marginal q(z) of the least used expert",
            "Sec. 2.1, Fig. 14a",
            _share(least[FEDMIX], 1 / k),
            0.2,
        ),
        greater(
            "The marginal entropy term keeps experts alive: least used expert, with vs without it",
            "Sec. 2.1",
            least[FEDMIX],
            least[UNREGULARISED],
        ),
        above(
            "With H(q) no expert specialises: mean row entropy of q(z|y) over log K, last round",
            "Fig. 3",
            _share(row[ENSEMBLE], np.log(k)),
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
            accuracy[FEDMIX],
            accuracy[ENSEMBLE],
        ),
        greater(
            "Specialised beats FedAvg, accuracy of last round",
            "Fig. 3",
            accuracy[FEDMIX],
            accuracy[FEDAVG],
        ),
        above(
            "The original mixture (eq. 3, S = 1) collapses to one expert: its share after an epoch",
            "Fig. 14b",
            gate.get(1, {}),
            UNIFORM,
        ),
        above(
            "... and after the last epoch that was run",
            "Fig. 14b, extended",
            _last(gate),
            UNIFORM,
        ),
    ]
    if ORIGINAL in set(frame["method"]):
        text = "The federated original mixture (eq. 3) collapses to one expert by the last round"
        claims.append(above(text, "App. H", _last(winners(frame, ORIGINAL)), UNIFORM))
    return claims


def late(curve: pd.DataFrame) -> frames.ByMethod:
    """Return the mean of a curve over the last quarter of its rounds, by method and seed."""
    return frames.by_method(curve[curve["round"] > 0.75 * curve["round"].max()])


def travelled(frame: pd.DataFrame, method: str, rate: float) -> dict[int, float]:
    """Return the mean row entropy of q when phi has travelled as far as in the paper, by seed."""
    curve = frames.curve(frame, "q_entropy")
    there = curve["round"] == round(PAPER_TRAVEL / rate)
    return frames.by_seed(curve[there & (curve["method"] == method)])


def least_used(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the smallest entry of the marginal q(z), labels being uniform: method, seed, value."""
    rows = frames.last(frame, "q")
    marginal = rows.groupby([*frames.RUN, "expert"], as_index=False)["value"].mean()
    return marginal.groupby(frames.RUN, as_index=False)["value"].min()


def winners(frame: pd.DataFrame, method: str) -> dict[int, dict[int, float]]:
    """Return the most used expert's mean gate on test data, by round and seed."""
    rows = frame[(frame["metric"] == "test_gate") & (frame["method"] == method)]
    use = rows.groupby(["round", "seed", "expert"], as_index=False)["value"].mean()
    most = use.groupby(["round", "seed"], as_index=False)["value"].max()
    return {int(str(t)): frames.by_seed(rows) for t, rows in most.groupby("round")}


def by_tensor(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the divergence of each tensor in the last quarter of the rounds, mean over experts.

    Columns tensor (``base.0.weight``: without the experts' prefix), method, seed, value.
    """
    rows = frames.divergences(frame)
    rows = rows[rows["round"] > 0.75 * rows["round"].max()]
    rows = rows.assign(tensor=rows["item"].str.removeprefix("experts."))
    return rows.groupby(["tensor", *frames.RUN], as_index=False)["value"].mean()


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
