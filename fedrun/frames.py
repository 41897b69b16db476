"""``frame`` and ``compare``: the metrics of several runs as a table, with intervals over seeds."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from math import isnan, nan
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from fedlib.data import DatasetError
from fedlib.metrics.intervals import LEAST_SEEDS, Limits, interval
from fedlib.privacy.labels import OF_LABELS
from fedlib.values import short_repr
from fedrun.baseline import Baselines, mean_of
from fedrun.experiment import COLUMNS, LOSSES, Result
from fedrun.provenance import warn_of_both_kinds

if TYPE_CHECKING:
    import pandas as pd


class Compared(NamedTuple):
    """A metric of a method over seeds, and its difference to the first method.

    Args:
        method: name of the method.
        mean: mean over seeds.
        low, high: ends of its 95% confidence interval; NaN for fewer than three seeds, if a seed
            has no value, and if all have the same, from which no interval can be estimated.
        seeds: number of runs.
        ahead: mean difference to the first method over the seeds of both; NaN for the first.
        ahead_low, ahead_high: ends of the 95% confidence interval of these paired differences; NaN
            in the same cases.
        worst, tenth, spread: the metric's minimum, 10th percentile and standard deviation over the
            clients, means over seeds; the maximum and the 90th percentile of a loss (a metric whose
            name ends in "nll" or "loss"). NaN for a metric that clients do not have.
        majority: the same mean for the majority-class baseline, if the metric is an accuracy that
            ``run`` logs; else NaN. NaN also if the data of a run are missing, or data or code have
            changed since.
        pairs: number of seeds that the method shares with the first method; 0 for the first.
    """

    method: str
    mean: float
    low: float
    high: float
    seeds: int
    ahead: float
    ahead_low: float
    ahead_high: float
    worst: float = nan
    tenth: float = nan
    spread: float = nan
    majority: float = nan
    pairs: int = 0


class Comparison(list[Compared]):
    """The methods that ``compare`` compared; it prints as a table, also in notebooks.

    >>> print(compare({"mine": [run(tiny)]}))  # doctest: +ELLIPSIS
          seeds  test_accuracy  95% CI ... majority class
    mine      1 ...
    """

    metric = "test_accuracy"

    def to_frame(self) -> pd.DataFrame:
        """Return the table as a data frame with a row for each method. This needs pandas."""
        import pandas as pd

        def ends(mean: float, low: float, high: float, seeds: int) -> str:
            few = ("", "one seed", "two seeds")[seeds] if seeds < LEAST_SEEDS else "equal seeds"
            return few * (not isnan(mean)) if isnan(low) else f"{low:.3f} to {high:.3f}"

        percentile = "90th percentile" if self.metric.endswith(LOSSES) else "10th percentile"
        rows = {
            r.method: {
                "seeds": r.seeds, self.metric: r.mean,
                "95% CI": ends(r.mean, r.low, r.high, r.seeds),
                "minus the first": r.ahead,
                "its 95% CI": ends(r.ahead, r.ahead_low, r.ahead_high, r.pairs)
                if r.pairs or r is self[0] else "no common seeds",
                "worst client": r.worst, percentile: r.tenth, "spread": r.spread,
                "majority class": r.majority,
            }
            for r in self
        }  # fmt: skip
        return pd.DataFrame.from_dict(rows, orient="index")

    def __str__(self) -> str:
        return self.to_frame().to_string(float_format="{:.3f}".format, na_rep="")

    def _repr_html_(self) -> str:
        return self.to_frame().to_html(float_format="{:.3f}".format, na_rep="")

    def plot(self, ax: Any = None) -> Any:
        """Draw means, intervals and worst clients on a matplotlib axis, and return it."""
        from matplotlib import pyplot as plt

        axis, names = ax or plt.gca(), [r.method for r in self]
        if ax is None:
            plt.gcf().set_layout_engine("constrained")  # else long names would be cut off
        bars = [[max(0.0, r.mean - r.low), max(0.0, r.high - r.mean)] for r in self]
        sides = [list(side) for side in zip(*bars, strict=True)] if self else None
        axis.errorbar([r.mean for r in self], names, xerr=sides, fmt="o", label="mean, 95% CI")
        axis.plot([r.worst for r in self], names, "x", color="0.4", label="worst client")
        for i, line in enumerate({r.majority for r in self if not isnan(r.majority)}):
            label = "_" * (i > 0) + "majority-class baseline"  # one entry of the legend
            axis.axvline(line, color="black", ls="--", lw=1, label=label)
        axis.set(xlabel=self.metric)
        axis.legend()
        return axis


def frame(results: Mapping[str, Iterable[Result]]) -> pd.DataFrame:
    """Return the metrics of several runs as one data frame. This needs pandas.

    Args:
        results: the runs of each method, by its name.

    Returns:
        a frame with the columns method, seed, round, metric, client, expert, item and value, and
        client_name and class_name, which are "" if a row has no client or class, or this has no
        name. The item is a class in the metrics of ``audit_labels`` and in FedMix's q(z|y).
        Next to each accuracy that ``run`` logs, the column majority has that of the majority-class
        baseline for the same client; it is NaN for other metrics, and if the data of a run are
        missing, or data or code have changed since.

    Raises:
        TypeError: if ``results`` is not a mapping from names to iterables of results.
        ValueError: if there are no runs.

    >>> table = frame({"FedAvg": [run(tiny)]})
    >>> bool(table[table["metric"] == "test_accuracy"]["value"].between(0, 1).all())
    True
    """
    import pandas as pd

    parts, baselines = [], Baselines()
    for method, runs in _named(results).items():
        for run in runs:
            more = {**_names(run), "majority": _floors(run, baselines)}
            part = run.metrics.to_pandas().assign(method=method, seed=run.experiment.seed, **more)
            parts.append(part)
    if not parts:
        raise ValueError("results has no runs")
    table = pd.concat(parts, ignore_index=True)
    return table[["method", "seed", *COLUMNS, "majority", "client_name", "class_name"]]


def compare(
    results: Mapping[str, Iterable[Result]],
    metric: str = "test_accuracy",
    limits: Limits | Literal["auto"] = "auto",
) -> Comparison:
    """Return the mean of a metric over seeds for each method, and its difference to the first.

    ``print`` shows the result as a table, for which it needs pandas; its method ``plot`` draws it,
    for which it needs matplotlib.

    A warning is issued if the runs have different data sets, partitions, held-out examples or
    numbers of rounds.

    Args:
        results: the runs of each method, by its name, one run per seed.
        metric: the metric; its value is that of ``Result.final``. Default: "test_accuracy".
        limits: the least and the greatest possible value of the metric, to which intervals are
            clipped, or None if it is not bounded on both sides. Default: "auto", which is None for
            a loss and if a value is outside of [0, 1], and else (0.0, 1.0).

    Returns:
        a list with a ``Compared`` for each method.

    Raises:
        TypeError: if ``results`` is not a mapping from names to iterables of results.
        ValueError: if a run did not log the metric, a method has two runs of one seed, a mean is
            outside the limits, or the limits are invalid.

    >>> from dataclasses import replace
    >>> runs = {"mine": [run(replace(tiny, seed=s)) for s in range(3)]}
    >>> found = compare(runs)[0]
    >>> found.low <= found.mean <= found.high, found.seeds
    (True, 3)
    """
    named = _named(results)
    _warn_of_other_data(named)
    ends = {method: _by_seed(method, runs, metric) for method, runs in named.items()}
    first = next(iter(ends.values()), {})
    rows, baselines = Comparison(), Baselines()
    rows.metric = metric
    if limits == "auto":
        inside = all(0 <= v <= 1 for values in ends.values() for v in values.values())
        limits = (0.0, 1.0) if inside and not metric.endswith(LOSSES) else None
    for method, values in ends.items():
        ahead = [values[s] - first[s] for s in values if s in first and values is not first]
        difference = _interval(ahead) if ahead else (nan,) * 3
        mean = _interval([*values.values()], limits)
        worst, tenth, spread = _over_clients(named[method], metric)
        floor = np.mean([mean_of(baselines.of(run, metric)) for run in named[method]])
        more = worst, tenth, spread, float(floor)
        rows.append(Compared(method, *mean, len(values), *difference, *more, pairs=len(ahead)))
    return rows


def _interval(values: Sequence[float], limits: Limits = None) -> tuple[float, float, float]:
    """Return the mean and its interval, whose ends are NaN if the values are equal.

    Student's interval of equal values has width 0, as if other seeds could give no other value.
    """
    mean, low, high = interval(values, limits)
    return (mean, nan, nan) if low == high else (mean, low, high)


def _over_clients(runs: Sequence[Result], metric: str) -> list[float]:
    """Return the worst client, 10th percentile and deviation over clients, means over runs."""
    try:
        each = [np.array([*run.per_client(metric).values()]) for run in runs]
    except ValueError:  # a metric of the server
        return [nan] * 3
    each = [values[~np.isnan(values)] for values in each]
    worst = 1.0 if metric.endswith(LOSSES) else 0.0
    of = [(*np.quantile(v, [worst, abs(worst - 0.1)]), v.std()) for v in each if len(v)]
    return [float(v) for v in np.mean(of, 0)] if of else [nan] * 3


def _floors(run: Result, baselines: Baselines) -> list[float]:
    """Return the majority-class baseline of every row of a run's metrics."""
    floors = {metric: baselines.of(run, metric) for metric in run.logged}
    rows = zip(run.metrics["metric"].to_pylist(), run.metrics["client"].to_pylist(), strict=True)
    return [floors[metric].get(client, nan) for metric, client in rows]


def _names(result: Result) -> dict[str, list[str]]:
    """Return the columns client_name and class_name of a result's metrics."""
    clients, classes = dict(enumerate(result.client_names)), dict[str, str]()
    with suppress(DatasetError, ValueError):  # a user-defined data set may be missing
        classes = {str(label): name for label, name in enumerate(result.class_names)}
    q = ["q"] if getattr(result.experiment.algorithm, "condition", "") == "label" else []
    client, metric, item = (result.metrics[n].to_pylist() for n in ("client", "metric", "item"))
    of_class = [m in OF_LABELS or m in q for m in metric]
    pairs = zip(item, of_class, strict=True)
    return {
        "client_name": [clients.get(one, "") for one in client],
        "class_name": [classes.get(one, "") if told else "" for one, told in pairs],
    }


def _named(results: Any) -> Mapping[str, Sequence[Result]]:
    """Return the runs of each method as a list; raise TypeError if they are not given by method.

    Warns if only some of the runs were pinned to AVX2.
    """
    alone = isinstance(results, Mapping) and any(isinstance(r, Result) for r in results.values())
    if alone or not isinstance(results, Mapping):
        raise TypeError('results must be runs by method, such as {"mine": [result, ...]}')
    named = {method: [*runs] for method, runs in results.items()}
    for odd in (r for runs in named.values() for r in runs if not isinstance(r, Result)):
        what = "results wanted, run(...) or sweep(...) the experiments first"
        raise TypeError(f"{what}; got {short_repr(odd)}")
    made = (result.provenance for runs in named.values() for result in runs)
    warn_of_both_kinds(made, stacklevel=3)
    return named


def _warn_of_other_data(named: Mapping[str, Sequence[Result]]) -> None:
    """Warn if runs have different data or rounds, to which their differences may then be due.

    Later stages, and baselines of a single round, may have other rounds than the rest.
    """
    runs = [run.experiment for results in named.values() for run in results]
    data = {(e.task.dataset, e.task.partition, e.task.held_out) for e in runs}
    rounds = {e.rounds for e in runs if e.first_stage is None and e.rounds > 1}
    for what, settings in (("data", {*map(repr, data)}), ("rounds", {*map(str, rounds)})):
        if len(settings) > 1:
            told = f"the compared runs have different {what}: {', '.join(sorted(settings))}"
            warnings.warn(told, stacklevel=3)


def _by_seed(method: str, runs: Sequence[Result], metric: str) -> dict[int, float]:
    ends = {result.experiment.seed: result.final(metric) for result in runs}
    if len(ends) < len(runs) or not ends:
        seeds = f"got {len(runs)} runs with {len(ends)} seeds"
        raise ValueError(f"{method}: there must be one run for each seed, {seeds}")
    return ends
