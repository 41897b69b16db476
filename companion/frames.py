"""Tidy frames of stored metrics, which figures draw and claims test."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedlib.metrics import interval
from fedrun import Result, files
from fedrun.provenance import warn_of_both_kinds

# The columns of metrics, and of tables made from them, that do not identify a run.
_OF_ROWS = {"round", "metric", "client", "expert", "item", "value"}
_OF_ROWS |= {"rule", "gigabytes", "server", "gain", "weight", "tensor", "rank"}


def put_table(path: Path, table: pd.DataFrame, what: str, **how: Any) -> None:
    """Write a table as CSV atomically: a reader sees the whole old file or the whole new one."""
    text = table.to_csv(index=False, lineterminator="\n", **how)
    files.write(path, lambda part: part.write_text(text, "utf-8", newline=""), what)


def read_table(path: Path, what: str, **how: Any) -> pd.DataFrame:
    """Return the table that `put_table` wrote.

    Args:
        path: the file.
        what: what an error calls it.
        how: arguments of ``pandas.read_csv``.

    Raises:
        Damaged: if the file is no such table; the message names it.
    """
    with files.reading(path, what):
        return pd.read_csv(path, **how)


def run_columns(table: pd.DataFrame) -> list[str]:
    """Return the columns that identify a run: method, seed, and the names of its place, such as p.

    A run without one of these names has NaN in its column, or "" if the values are words.
    """
    where = [str(c) for c in table.columns if c not in _OF_ROWS and c not in ("method", "seed")]
    return ["method", "seed", *where]


def by_run(table: pd.DataFrame, *more: str, sort: bool = True) -> Any:
    """Group the rows of a table by run, and by further columns."""
    keys = [*run_columns(table), *more]
    return table.groupby(keys, as_index=False, sort=sort, dropna=False)


def by_seed(table: pd.DataFrame, column: str = "value") -> dict[int, float]:
    """Return the mean of a column by seed, over all else: the numbers that claims compare."""
    means: dict[Any, float] = table.groupby("seed")[column].mean().to_dict()
    return means


def same_seeds(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of those seeds that every method of a table has.

    Runs may lack a metric that was not logged yet when they were trained.
    """
    methods = table.groupby("seed")["method"].nunique()
    return table[table["seed"].isin(methods.index[methods == table["method"].nunique()])]


class ByMethod(dict[str, dict[int, float]]):
    """Numbers by method and seed; a method that was not run has an empty mapping."""

    def __missing__(self, method: str) -> dict[int, float]:
        return {}


def by_method(table: pd.DataFrame) -> ByMethod:
    """Return the mean of the column value by method and seed, over all else."""
    return ByMethod({str(method): by_seed(rows) for method, rows in table.groupby("method")})


def rows_of(numbers: Mapping[str, Mapping[int, float]]) -> pd.DataFrame:
    """Return numbers by method and seed as a frame: columns method, seed, value."""
    rows = [(method, seed, v) for method, each in numbers.items() for seed, v in each.items()]
    return pd.DataFrame(rows, columns=["method", "seed", "value"])


def in_points(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with values in percentage points in place of fractions."""
    return rows.assign(value=100 * rows["value"])


def stated(
    values: Sequence[float] | pd.Series, published: float | None = None, spread: float | None = None
) -> str:
    """Return a mean, half of its 95% interval, and the number of runs: "0.612 ± 0.020 (3)".

    Args:
        values: a number per run.
        published: the published number, which follows in brackets: "[0.633]".
        spread: the standard deviation over clients, which follows in braces: "{0.041}".
    """
    mean, low, high = interval(values)
    half = "" if np.isnan(low) else f" ± {(high - low) / 2:.3f}"
    clients = "" if spread is None else f" {{{spread:.3f}}}"
    theirs = "" if published is None else f" [{published:.3f}]"
    return f"{mean:.3f}{half} ({len(values)}){clients}{theirs}"


def bands(
    curve: pd.DataFrame, by: Sequence[str] = ("method", "round"), *, each: bool = False
) -> pd.DataFrame:
    """Return the mean, the 95% interval over seeds (low, high) and the number of seeds of a curve.

    Args:
        curve: the columns of ``by``, and value: a row per seed.
        by: the columns that identify a point of the curve.
        each: whether there is also a column values, a list of the numbers.
    """
    rows = []
    for key, group in curve.groupby(list(by), sort=False):
        values = group["value"].tolist()
        rows.append((*key, *interval(values), len(group), values))
    drawn = pd.DataFrame(rows, columns=[*by, "mean", "low", "high", "seeds", "values"])
    return drawn if each else drawn.drop(columns="values")


# Metrics of runs.


def together(
    runs: Iterable[tuple[str, Mapping[str, float | str], Sequence[Result]]],
) -> pd.DataFrame:
    """Return the metrics of runs with columns method and seed, and one per name of their places.

    A run without one of these names has NaN in its column, or "" if the values are words. A
    UserWarning is issued if only some of the runs were pinned to AVX2.

    Args:
        runs: a method's name, the place of its runs, and their results.
    """
    given = [*runs]
    warn_of_both_kinds(r.provenance for _, _, results in given for r in results)
    words = {n: "" for _, where, _ in given for n, v in where.items() if isinstance(v, str)}
    parts = [
        frame_of(result).assign(method=method, seed=result.experiment.seed, **where)
        for method, where, results in given
        for result in results
    ]
    return pd.concat(parts, ignore_index=True).fillna(words)


def frame_of(result: Result) -> pd.DataFrame:
    """Return a run's metrics as a frame, with the columns of ``fedrun.experiment``."""
    return result.metrics.to_pandas()


def stacked(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return tables below each other, with their names as an index; an empty frame for none."""
    return pd.concat(tables) if tables else pd.DataFrame()


def divergences(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the logged rows of gradient divergence.

    Those of phi and of gates, which are no part of the experts' networks, are left out.
    """
    rows = frame[frame["metric"] == "divergence"]
    return rows[~rows["item"].str.startswith(("phi", "gate."))]


def divergence(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the gradient divergence by method, seed and round, summed over the tensors of a model.

    For K experts it is the mean over experts, which is comparable with a single model.
    """
    by_expert = by_run(divergences(frame), "round", "expert")["value"].sum()
    return by_run(by_expert, "round")["value"].mean()


def smooth(curve: pd.DataFrame, window: int) -> pd.DataFrame:
    """Return the moving average of a curve; the first ``window - 1`` rounds are left out."""
    ordered = curve.sort_values([*run_columns(curve), "round"])
    mean = by_run(ordered)["value"].transform(lambda v: v.rolling(window).mean())
    return ordered.assign(value=mean).dropna(subset="value").reset_index(drop=True)


def curve(frame: pd.DataFrame, metric: str, weighted: bool = False) -> pd.DataFrame:
    """Return a metric by method, seed and round: the mean over clients.

    Args:
        frame: the metrics of runs.
        metric: the name of the metric.
        weighted: whether clients are weighted by their training examples. This gives the accuracy
            over all examples if every client tests on the same share of its own.
    """
    rows = frame[frame["metric"] == metric]
    if not weighted:
        return by_run(rows, "round")["value"].mean()
    mine = [*run_columns(frame), "client"]
    sizes = frame.loc[frame["metric"] == "examples", [*mine, "value"]]
    sizes = sizes.rename(columns={"value": "weight"})
    rows = rows.merge(sizes, how="left", on=mine).dropna(subset="value")
    rows["value"] *= rows["weight"]
    sums = by_run(rows, "round", sort=False)[["value", "weight"]].sum()
    return sums.assign(value=sums["value"] / sums["weight"]).drop(columns="weight")


def adapted(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the cohort's test accuracy after its local epochs, and the change by these epochs.

    Rounds that were not evaluated, and runs that did not log the metric, have no row.

    Returns:
        Columns method, seed, round, value (with the parameters that a client is about to send),
        server (of the same clients with the server's parameters at the end of the round), and gain,
        value - server.
    """
    key = [*run_columns(frame), "round", "client"]
    own, server = (
        frame.loc[frame["metric"] == metric, [*key, "value"]]
        for metric in ("adapted_test_accuracy", "test_accuracy")
    )
    both = own.merge(server.rename(columns={"value": "server"}), on=key)
    both["gain"] = both["value"] - both["server"]
    return by_run(both, "round", sort=False)[["value", "server", "gain"]].mean()


def matrix(frame: pd.DataFrame, metric: str, method: str, seed: int, round: int) -> np.ndarray:
    """Return a logged matrix ``[items, experts]``, such as q(z|y) after a round.

    Raises:
        ValueError: if it was not logged at this round.
    """
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


def reported(frame: pd.DataFrame, weighted: bool = False) -> pd.DataFrame:
    """Return the mean client accuracy of each run by rule: see ``RULES``.

    The best round is chosen on validation data, never on test data.

    Args:
        frame: the metrics of runs.
        weighted: whether clients are weighted by their training examples: see `curve`.

    Returns:
        Columns method, seed, rule, value.
    """
    test, held = (curve(frame, f"{part}_accuracy", weighted) for part in ("test", "validation"))
    run = run_columns(test)
    both = test.merge(held, on=[*run, "round"], suffixes=("", "_held"))
    both = both.sort_values("round", kind="stable")  # keeps runs in the order of their plan
    rows = [
        (*name, rule, choose(course))
        for name, course in both.groupby(run, sort=False, dropna=False)
        for rule, choose in RULES.items()
    ]
    return pd.DataFrame(rows, columns=[*run, "rule", "value"])


# Without validation examples no round can be chosen.
RULES: dict[str, Callable[[pd.DataFrame], Any]] = {
    "last": lambda course: course["value"].iloc[-1],
    "last quarter": lambda course: late(course)["value"].mean(),
    "best on validation": lambda course: (
        course["value"][course["value_held"].eq(course["value_held"].max())].iloc[0]
        if course["value_held"].notna().any()
        else np.nan
    ),
}


def late(curve: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the last quarter of the rounds."""
    return curve[curve["round"] > 0.75 * curve["round"].max()]


def last(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the rows of a metric at the last round of each run that logged it."""
    rows = frame[frame["metric"] == metric]
    return rows[rows["round"] == by_run(rows)["round"].transform("max")]


def final(frame: pd.DataFrame, metric: str) -> ByMethod:
    """Return a metric at the last round of each run that logged it, averaged over clients."""
    course = curve(frame, metric).sort_values("round")
    ends = course.groupby(run_columns(course), as_index=False, dropna=False).last()
    return by_method(ends)


def ended(
    frame: pd.DataFrame, metric: str, clients: int = 0, *, each: bool = False
) -> pd.DataFrame:
    """Return a metric of the final state of each run, averaged over clients.

    That is the state after the last round, or the best one if the run kept it.

    Args:
        frame: the metrics of runs.
        metric: the name of the metric.
        clients: the number of clients, from the first on, of which the mean is taken; 0 for all. If
            second stages are trained for some clients only, other methods are compared on the same
            clients.
        each: whether clients are returned, with a column client, in place of their mean.

    Returns:
        Columns method, seed, value.
    """
    rows = frame[frame["metric"].isin([metric, "kept_round"])]
    rows = rows[rows["client"] < clients] if clients else rows  # the client of kept_round is -1
    rows = rows.reset_index(drop=True)
    of, is_kept = by_run(rows, sort=False).ngroup(), rows["metric"].eq("kept_round")
    kept, values = rows["value"].where(is_kept).groupby(of).transform("last"), rows[~is_kept]
    last = values.groupby(of)["round"].transform("max")
    ends = values[values["round"] == kept.fillna(last)[values.index]]
    if each:
        return ends[[*run_columns(ends), "client", "value"]].reset_index(drop=True)
    return by_run(ends, sort=False)["value"].mean()


# Traffic of runs, and metrics over it.


def gigabytes(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the traffic of each run up to each round, down and up, in gigabytes (1e9 bytes).

    The clients of the cohorts of all rounds are counted; round 0 has sent nothing. Columns method,
    seed, round, gigabytes.
    """
    rows = frame[frame["metric"].isin(["bytes_down", "bytes_up"])]
    run = run_columns(rows)
    sent = by_run(rows, "round", sort=False)["value"].sum()
    nothing = sent[run].drop_duplicates().assign(round=0, value=0.0)
    sent = pd.concat([nothing, sent], ignore_index=True).sort_values([*run, "round"])
    total = by_run(sent)["value"].cumsum() / 1e9
    return sent.drop(columns="value").assign(gigabytes=total).reset_index(drop=True)


def against_traffic(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the curve of a metric with the gigabytes that were sent up to each of its rounds.

    Columns method, seed, round, value, gigabytes.
    """
    return curve(frame, metric).merge(gigabytes(frame), on=[*run_columns(frame), "round"])


def at_traffic(course: pd.DataFrame, budget: Mapping[int, float]) -> ByMethod:
    """Return the value of each method and seed at the traffic of a budget.

    Values are interpolated between evaluations. A seed whose run has sent less than the budget is
    left out.

    Args:
        course: a curve of `against_traffic`.
        budget: gigabytes by seed; a seed without a budget is left out.
    """
    found = ByMethod()
    runs: Any = course.sort_values("gigabytes").groupby(["method", "seed"])
    for (method, seed), run in runs:
        most = budget.get(seed, np.inf)
        if most <= run["gigabytes"].iloc[-1]:
            value = float(np.interp(most, run["gigabytes"], run["value"]))
            found.setdefault(method, {})[seed] = value
    return found


def traffic(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the megabytes per round, down and up, and in all, by method (mean over runs)."""
    rows = frame[frame["metric"].isin(["bytes_down", "bytes_up"])]
    run = run_columns(rows)
    per_run = rows.groupby([*run, "metric"], sort=False, dropna=False)["value"]
    out = (per_run.mean() / 1e6).groupby(["method", "metric"], sort=False).mean().unstack()
    total = per_run.sum().groupby(run, sort=False, dropna=False).sum().groupby("method").mean()
    out["total"] = total / 1e6
    names = {"bytes_down": "MB down per round", "bytes_up": "MB up per round", "total": "MB in all"}
    return out.rename(columns=names).rename_axis(columns=None).round(2)
