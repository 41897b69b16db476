"""What runs logged: curves, matrices, and where each run ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from companion.frames.seeds import ByMethod, by_method, run_columns
from fedlib.metrics import over_clients
from fedlib.runs import Result
from fedlib.values import one_of


def together(
    runs: Iterable[tuple[str, Mapping[str, float | str], Sequence[Result]]],
) -> pd.DataFrame:
    """Return the metrics of runs with columns ``method``, ``seed``, and one per name of a place.

    ``runs`` are a method's name, where it stands, and its results. Where others stand at a place, a
    method that does not has NaN in that column, or "" for a word.
    """
    given = [*runs]
    words = {n: isinstance(v, str) for _, where, _ in given for n, v in where.items()}
    parts = [
        frame_of(result).assign(
            method=method,
            seed=result.experiment.seed,
            **{n: where.get(n, "" if word else np.nan) for n, word in words.items()},
        )
        for method, where, results in given
        for result in results
    ]
    return pd.concat(parts, ignore_index=True)


def frame_of(result: Result) -> pd.DataFrame:
    """Return a run's metrics as a frame, with the columns of ``fedlib.runs.log``."""
    return result.metrics.to_pandas()


def stacked(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return tables below each other under their names; of none an empty one."""
    return pd.concat(tables) if tables else pd.DataFrame()


def divergences(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the logged rows of divergence; phi and gates are no part of the model and left out."""
    rows = frame[frame["metric"] == "divergence"]
    return rows[~rows["item"].str.startswith(("phi", "gate."))]


def divergence(frame: pd.DataFrame, over: str = "mean", tensor: str = "") -> pd.DataFrame:
    """Return gradient divergence by method, seed and round, summed over a model's tensors.

    Of K experts it is the mean over experts (``over="mean"``: comparable with one model) or the sum
    (``over="sum"``: K times as large). ``tensor`` restricts it to the tensors whose name ends so.
    """
    rows = divergences(frame)
    if tensor:
        rows = rows[rows["item"].str.endswith(tensor)]
    run = run_columns(rows)
    keys = [*run, "round", "expert"]
    by_expert = rows.groupby(keys, as_index=False, dropna=False)["value"].sum()
    one_of("over", over, ("mean", "sum"))
    groups = by_expert.groupby([*run, "round"], as_index=False, dropna=False)["value"]
    return groups.mean() if over == "mean" else groups.sum()


def smooth(curve: pd.DataFrame, window: int) -> pd.DataFrame:
    """Return a curve averaged over a sliding window of rounds (the first window-1 rounds drop)."""
    if window < 1:
        raise ValueError(f"window must be >= 1, got {window}")
    run = run_columns(curve)
    ordered = curve.sort_values([*run, "round"])
    mean = ordered.groupby(run, dropna=False)["value"].transform(lambda v: v.rolling(window).mean())
    return ordered.assign(value=mean).dropna(subset="value").reset_index(drop=True)


def curve(frame: pd.DataFrame, metric: str, weighted: bool = False) -> pd.DataFrame:
    """Return a metric by method, seed and round, averaged over clients where it has clients.

    ``weighted``: by their training examples, which is the accuracy over all examples where every
    client tests on the same share of its own (004, eq. 31).
    """
    rows = frame[frame["metric"] == metric]
    run = run_columns(frame)
    by_round = [*run, "round"]
    if not weighted:
        return rows.groupby(by_round, as_index=False, dropna=False)["value"].mean()  # type: ignore[return-value]
    sizes = frame.loc[frame["metric"] == "examples", [*run, "client", "value"]]
    sizes = sizes.rename(columns={"value": "weight"})
    rows = rows.merge(sizes, how="left", on=[*run, "client"]).dropna(subset="value")
    rows["value"] *= rows["weight"]
    sums = rows.groupby(by_round, sort=False, dropna=False)[["value", "weight"]].sum()
    return (sums["value"] / sums["weight"]).rename("value").reset_index()


def adapted(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the cohort's test accuracy after its local epochs, and what these changed.

    Columns method, seed, round, value (with the parameters that a client is about to send),
    server (of the same clients, with the server's parameters at the end of the round) and gain,
    value - server. Rounds that were not evaluated, and runs that did not log it, have no row.
    """
    run = run_columns(frame)
    key = [*run, "round", "client"]
    own, server = (
        frame.loc[frame["metric"] == metric, [*key, "value"]]
        for metric in ("adapted_test_accuracy", "test_accuracy")
    )
    both = own.merge(server.rename(columns={"value": "server"}), on=key)
    both["gain"] = both["value"] - both["server"]
    means = both.groupby([*run, "round"], as_index=False, sort=False, dropna=False)
    return means[["value", "server", "gain"]].mean()


def matrix(frame: pd.DataFrame, metric: str, method: str, seed: int, round: int) -> np.ndarray:
    """Return a logged matrix ``[items, experts]``, e.g. q(z|y) after some round."""
    rows = frame[(frame["metric"] == metric) & (frame["method"] == method)]
    rows = rows[(rows["seed"] == seed) & (rows["round"] == round)]
    wide = rows.assign(item=rows["item"].astype(int)).pivot_table("value", "item", "expert")
    if wide.empty:
        raise ValueError(f"{metric!r} of {method!r}, seed {seed}, was not logged at round {round}")
    return wide.to_numpy()


def logged_rounds(frame: pd.DataFrame, metric: str, method: str) -> list[int]:
    """Return the rounds at which a metric of a method was logged."""
    rows = frame[(frame["metric"] == metric) & (frame["method"] == method)]
    return sorted(rows["round"].unique().tolist())


def reported(
    frame: pd.DataFrame, metric: str = "test_accuracy", weighted: bool = False
) -> pd.DataFrame:
    """Return each run's mean client accuracy: last round, last ten evaluations, best on validation.

    Columns method, seed, rule, value. The round is chosen on validation data, never on test data.
    ``metric`` is the accuracy to report: "global_accuracy" is that on the whole test set.
    ``weighted``: by the clients' examples, see ``curve``.
    """
    test, held = (curve(frame, m, weighted) for m in (metric, "validation_accuracy"))
    run = run_columns(frame)
    both = test.merge(held, on=[*run, "round"], suffixes=("", "_held"))
    both = both.sort_values("round", kind="stable")  # runs stay in the order of their plan
    rows = []
    for name, course in both.groupby(run, sort=False, dropna=False):
        held_out = course["value_held"].to_numpy()
        best = np.nan  # without validation examples nothing can be chosen
        if not np.isnan(held_out).all():
            best = course["value"].iloc[int(np.nanargmax(held_out))]
        values = {
            "last": course["value"].iloc[-1],
            "last ten": course["value"].iloc[-10:].mean(),
            "best on validation": best,
        }
        rows += [(*name, rule, value) for rule, value in values.items()]
    return pd.DataFrame(rows, columns=[*run, "rule", "value"])


def spread_over_clients(frame: pd.DataFrame) -> pd.DataFrame:
    """Return how the last round's test accuracy spreads over clients, by method (mean over seeds).

    Columns mean, weighted (by training examples; equally where a run did not log them), std,
    worst_decile, and global: the accuracy on the whole test set of all clients' predictions
    marginalised with p(s).
    """
    run = run_columns(frame)
    end = frame[frame["round"] == frame.groupby(run, dropna=False)["round"].transform("max")]
    every = dict(list(frame.groupby(run, sort=False, dropna=False)))
    rows = []
    for name, tests in end[end["metric"] == "test_accuracy"].groupby(run, sort=False, dropna=False):
        mine = every[name]
        n = mine[mine["metric"] == "examples"].set_index("client")["value"]
        sizes = tests["client"].map(n).fillna(1.0).to_numpy()
        overall = mine[mine["metric"] == "global_accuracy"].sort_values("round")["value"]
        summary = over_clients(tests["value"].to_numpy(), sizes)
        rows.append({"method": name[0], **summary, "global": overall.iloc[-1]})
    return pd.DataFrame(rows).groupby("method", sort=False).mean().round(3)


def last(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the rows of a metric at each run's last round that has it."""
    rows = frame[frame["metric"] == metric]
    groups = rows.groupby(run_columns(rows), dropna=False)
    return rows[rows["round"] == groups["round"].transform("max")]


def final(frame: pd.DataFrame, metric: str) -> ByMethod:
    """Return a metric after each run's last round that has it, averaged over clients."""
    course = curve(frame, metric).sort_values("round")
    ends = course.groupby(run_columns(course), as_index=False, dropna=False).last()
    return by_method(ends)


def ended(
    frame: pd.DataFrame, metric: str, clients: int = 0, *, each: bool = False
) -> pd.DataFrame:
    """Return a metric of the state that each run ended with, averaged over clients.

    That is the last round's, or of a run that kept its best state that of the round it kept.
    ``clients`` restricts the mean to the first so many: where second stages are trained for some
    clients only, the others are compared on the same. Columns method, seed, value; with ``each``
    there is no mean, but a column client.
    """
    rows = frame[frame["metric"].isin([metric, "kept_round"])]
    rows = rows[rows["client"] < clients] if clients else rows  # kept_round has no client, -1
    run, found = run_columns(rows), []
    for _, logged in rows.groupby(run, sort=False, dropna=False):
        values, kept = (logged[logged["metric"] == m] for m in (metric, "kept_round"))
        at = kept["value"].iloc[-1] if len(kept) else values["round"].max()
        found.append(values[values["round"] == at])
    last = pd.concat(found) if found else rows
    if each:
        return last[[*run, "client", "value"]].reset_index(drop=True)
    return last.groupby(run, sort=False, dropna=False)["value"].mean().reset_index()
