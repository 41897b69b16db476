"""What clusters of clients FedMix finds when labels are permuted (000, sec. 4.3 and App. B)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score

from companion import frames
from fedlib.partition import LabelPermuted
from fedlib.tasks import Task
from papers.published import published

MEASURES = {
    "right": "share of clients whose expert is the one of their permutation",
    "pure": "share of clients whose expert serves no other permutation",
    "agreement": "adjusted Rand index of experts and permutations",
    "sharpness": "largest entry of q(z|s), mean over clients",
}
AHEAD = "shared / between at half"
SHARED, BETWEEN = "shared by all clients", "between permutations"
Truth = Mapping[int, np.ndarray]


def truth(task: Task, seeds: Iterable[int]) -> dict[int, np.ndarray]:
    """Return the permutation of every client, int ``[clients]``, by seed; needs no data.

    ValueError for a task whose clients call the classes by the same labels.
    """
    request = task.partition
    if not isinstance(request, LabelPermuted) or not hasattr(request.of, "clients"):
        raise ValueError(f"{request} does not permute the labels of a given number of clients")
    return {seed: request.given(request.of.clients, seed) for seed in seeds}


def one_hot(permutation: np.ndarray) -> np.ndarray:
    """Return who has which permutation as zeros and ones, ``[clients, permutations]``."""
    return np.eye(int(permutation.max()) + 1)[permutation]


def aligned(q: np.ndarray, permutation: np.ndarray) -> np.ndarray:
    """Return q(z|s) ``[clients, K]`` as a reader compares it with the permutations.

    Rows are sorted by permutation and experts by the permutation that they are matched with, by
    the assignment that puts most probability on matched pairs; unmatched experts come last.
    """
    mass = one_hot(permutation).T @ q
    kinds, experts = linear_sum_assignment(-mass)
    matched = experts[np.argsort(kinds)]
    others = np.setdiff1d(np.arange(q.shape[1]), matched)
    return q[np.argsort(permutation, kind="stable")][:, [*matched, *others]]


def table_of(q: np.ndarray, permutation: np.ndarray) -> np.ndarray:
    """Count clients by permutation and most probable expert, int ``[permutations, K]``."""
    counts = np.zeros((int(permutation.max()) + 1, q.shape[1]), int)
    np.add.at(counts, (permutation, q.argmax(1)), 1)
    return counts


def measures(q: np.ndarray, permutation: np.ndarray) -> dict[str, float]:
    """Return how well q(z|s) ``[clients, K]`` finds the permutations ``[clients]``.

    ``MEASURES`` says what the numbers are. "right" matches experts with permutations one to one,
    so that with fewer experts than permutations it cannot reach 1.
    """
    counts = table_of(q, permutation)
    matched = linear_sum_assignment(-counts)
    alone = (counts > 0).sum(0) == 1
    return {
        "right": counts[matched].sum() / len(q),
        "pure": counts[:, alone].sum() / len(q),
        "agreement": float(adjusted_rand_score(permutation, q.argmax(1))),
        "sharpness": float(q.max(1).mean()),
    }


def course(frame: pd.DataFrame, permutations: Truth) -> pd.DataFrame:
    """Return ``measures`` of every logged q(z|s): columns method, seed, round and the measures."""
    found = [{**at, **measures(q, permutations[at["seed"]])} for at, q in _logged(frame)]
    return pd.DataFrame(found, columns=["method", "seed", "round", *MEASURES])


def _logged(frame: pd.DataFrame) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
    """Yield method, seed and round of every logged q(z|s), and the matrix."""
    rows = frame[frame["metric"] == "clusters"]
    names = ["method", "seed", "round"]
    for at in rows[names].drop_duplicates().itertuples(index=False, name=None):
        yield dict(zip(names, at, strict=True)), frames.matrix(frame, "clusters", *at)


def least_used(frame: pd.DataFrame) -> pd.DataFrame:
    """Return how much of all clients' q(z|s) the least used expert has, times K: 1 is its part.

    Columns method, seed, round, value.
    """
    found = [{**at, "value": q.shape[1] * q.mean(0).min()} for at, q in _logged(frame)]
    return pd.DataFrame(found, columns=["method", "seed", "round", "value"])


def parted(frame: pd.DataFrame, permutations: Truth) -> pd.DataFrame:
    """Return what has made q(z|s) uneven: what all clients share, or what permutations differ in.

    Squared distances, mean over clients: of the mean of all clients from a uniform q, and of the
    permutations' means from that. Columns method (of which distance), seed, round, value.
    """
    found = []
    for at, q in _logged(frame):
        both = _distances(q, permutations[at["seed"]])
        kinds = zip((SHARED, BETWEEN), both, strict=True)
        found += [{**at, "method": kind, "value": value} for kind, value in kinds]
    return pd.DataFrame(found, columns=["method", "seed", "round", "value"])


def crowded(frame: pd.DataFrame, permutations: Truth) -> pd.DataFrame:
    """Return by run how many experts are left in the end, and how many permutations have their own.

    An expert is left if it is some client's most probable one; a permutation has its own if all of
    its clients have experts that serve no other. The last column is about the round in which the
    least used expert first had less than half its part: what all clients share, divided by what
    permutations differ in (``parted``); NaN if no expert fell so far behind.
    """
    rows: dict[tuple[str, int], dict[str, float]] = {}
    for at, q in _logged(frame):  # round after round: what stays is the last one's
        who, key = permutations[at["seed"]], (at["method"], at["seed"])
        counts = table_of(q, who)
        alone = (counts > 0).sum(0) <= 1
        ahead = rows.get(key, {}).get(AHEAD, np.nan)
        if np.isnan(ahead) and q.shape[1] * q.mean(0).min() < 0.5:
            ahead = np.divide(*_distances(q, who))
        rows[key] = {
            "experts": q.shape[1],
            "experts left": int((counts.sum(0) > 0).sum()),
            "permutations": len(counts),
            "... with experts of their own": int((counts[:, ~alone].sum(1) == 0).sum()),
            AHEAD: ahead,
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["method", "seed"])


def _distances(q: np.ndarray, permutation: np.ndarray) -> tuple[float, float]:
    """Return how far all clients' mean is from uniform, and permutations' from it, squared."""
    overall, own = q.mean(0), np.stack([q[permutation == k].mean(0) for k in permutation])
    shared = np.square(overall - 1 / q.shape[1]).sum()
    return float(shared), float(np.square(own - overall).sum(1).mean())


def measured(course: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return one measure of a course as a curve: columns method, seed, round, value."""
    return course[["method", "seed", "round"]].assign(value=course[name])


def published_rounds() -> int:
    """Return the number of rounds after which the paper has found its clusters (Fig. 7)."""
    return int(published("000", "Sec 4.3/Fig 7")["value"].item())


def seen(
    frame: pd.DataFrame, seed: int, permutation: np.ndarray, most: float = np.inf, method: str = ""
) -> dict[str, np.ndarray]:
    """Return what a reader should see of q(z|s) after round ``most``: title -> ``aligned`` matrix.

    That is the last logged round up to ``most``, of every method that has the seed, or of one.
    """
    rows = frame[(frame["metric"] == "clusters") & (frame["seed"] == seed)]
    rows = rows[(rows["round"] <= most) & (rows["method"].eq(method) | (not method))]
    ends = rows.groupby("method", sort=False)["round"].max()
    return {
        f"{name}, round {t}": aligned(
            frames.matrix(frame, "clusters", str(name), seed, int(t)), permutation
        )
        for name, t in ends.items()
    }


def merges_two(counts: np.ndarray) -> bool:
    """Return whether one expert serves two whole permutations and every other one has its own.

    ``counts`` are those of ``table_of``, ``[permutations, K]``.
    """
    whole = bool(((counts > 0).sum(1) == 1).all())
    return whole and sorted((counts > 0).sum(0)) == [*[1] * (counts.shape[1] - 1), 2]


def doubles_one(counts: np.ndarray) -> bool:
    """Return whether no expert is shared, one permutation has two and every other one has one."""
    pure = bool(((counts > 0).sum(0) == 1).all())
    return pure and sorted((counts > 0).sum(1)) == [*[1] * (counts.shape[0] - 1), 2]


def tables(frame: pd.DataFrame, method: str, permutations: Truth) -> list[np.ndarray]:
    """Return ``table_of`` the last q(z|s) of every seed of a method."""
    rows = frame[(frame["metric"] == "clusters") & (frame["method"] == method)]
    ends = rows.groupby("seed")["round"].max()
    return [
        table_of(frames.matrix(frame, "clusters", method, seed, t), permutations[seed])
        for seed, t in zip(ends.index.tolist(), ends.tolist(), strict=True)
    ]


def at(found: pd.DataFrame, name: str, most: float = np.inf) -> frames.ByMethod:
    """Return a measure by method and seed: the last one logged by round ``most``."""
    early = measured(found[found["round"] <= most], name).sort_values("round")
    return frames.by_method(early.groupby(["method", "seed"], as_index=False).last())
