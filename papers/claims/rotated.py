"""Claims of the FedMix paper (000) about rotated MNIST: which side information should q see?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from companion import frames
from companion.claims import POINT, Claim, below, differences, greater, on_par
from papers.claims.fedmix import ONE_HOT
from papers.recipes import BIASED, BY_ANGLE, BY_LABEL, FEDAVG


def turned_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test Fig. 5: clients differ in the angles of their digits only.

    "Collapses to FedAvg" is an equality, which no test can show. It is read as: less than a point
    above and less than a point below, and both must hold.
    """
    last = frames.final(frame, "test_accuracy")
    return [
        _better(last, BY_ANGLE, BY_LABEL, "Conditioning q on the true source of difference", "5"),
        _better(last, BY_ANGLE, FEDAVG, "FedMix has an advantage", "5"),
        _better(last, BY_LABEL, FEDAVG, "... also with the other condition", "5"),
        below(
            "A personal bias collapses to FedAvg: accuracy of last round, less than a point above",
            "Sec. 4.2, Fig. 5",
            differences(last[BIASED], last[FEDAVG]),
            POINT,
        ),
        on_par("... and less than a point below", "Sec. 4.2, Fig. 5", last[BIASED], last[FEDAVG]),
        *_specialised(frame),
    ]


def skewed_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test Fig. 6: clients differ in angles and in labels."""
    last = frames.final(frame, "test_accuracy")
    return [
        _better(last, BIASED, FEDAVG, "A personal bias helps against label skew", "6"),
        _better(last, BY_LABEL, BIASED, "FedMix gains more than a personal bias", "6"),
        _better(last, BY_LABEL, FEDAVG, "FedMix has an advantage", "6"),
        _better(last, BY_ANGLE, FEDAVG, "... also with the other condition", "6"),
        *_specialised(frame),
    ]


def ahead_of_fedavg(frame: pd.DataFrame) -> pd.DataFrame:
    """Return by how much accuracy exceeds FedAvg's on the same seed and round.

    Columns method, seed, round, value; FedAvg itself and seeds that it has not are left out.
    """
    curve = frames.curve(frame, "test_accuracy")
    base = curve[curve["method"] == FEDAVG].drop(columns="method")
    both = curve[curve["method"] != FEDAVG].merge(
        base, on=["seed", "round"], suffixes=("", "_base")
    )
    gain = both["value"] - both["value_base"]
    return both[["method", "seed", "round"]].assign(value=gain)


def one_hotness(frame: pd.DataFrame, method: str) -> list[float]:
    """Return the mean row entropy of q over log K after the last round, a number per seed.

    0 is one expert per value of the condition, 1 no specialisation.
    """
    rows = frame[frame["method"] == method]
    q = rows[rows["metric"] == "q"]
    if q.empty:
        return []
    most = np.log(q["expert"].max() + 1)
    curve = frames.curve(rows, "q_entropy").sort_values("round")
    return (curve.groupby("seed")["value"].last() / most).tolist()


def _better(last: frames.ByMethod, a: str, b: str, what: str, figure: str) -> Claim:
    text = f"{what}: {a} vs {b}, accuracy of last round"
    return greater(text, f"Sec. 4.2, Fig. {figure}", last[a], last[b])


def _specialised(frame: pd.DataFrame) -> list[Claim]:
    return [
        below(
            f"{kind} have one expert each: mean row entropy of q over log K",
            "not in the paper",
            one_hotness(frame, method),
            ONE_HOT,
        )
        for kind, method in (("Angles", BY_ANGLE), ("Labels", BY_LABEL))
    ]
