"""One's own runs side by side: as a frame, and with intervals over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from fedlib.data import DatasetError
from fedlib.metrics.intervals import Limits, interval
from fedrun.experiment import COLUMNS, Result
from fedrun.provenance import warn_of_both_kinds

if TYPE_CHECKING:
    import pandas as pd


class Compared(NamedTuple):
    """A method's metric over seeds: mean, 95% interval and runs, and how far it is ahead.

    ``ahead`` is the mean difference to the first method over the seeds that both have, with the
    95% interval of these paired differences: NaN for the first, and ends for fewer than three.
    """

    method: str
    mean: float
    low: float
    high: float
    seeds: int
    ahead: float
    ahead_low: float
    ahead_high: float


def frame(results: Mapping[str, Iterable[Result]]) -> pd.DataFrame:
    """Return the metrics of runs below each other, with columns method and seed (needs pandas).

    Args:
        results: a method's name and its runs.

    Returns:
        columns method, seed, round, metric, client, expert, item and value, and as they are called
        client_name and class_name: "" where a row is of none, or of one without a name. An item is
        a class in metrics that begin with label, and in FedMix's q(z|y).

    Raises:
        TypeError: for runs without the names of their methods.
        ValueError: if there are none.

    >>> table = frame({"FedAvg": [run(tiny)]})
    >>> bool(table[table["metric"] == "test_accuracy"]["value"].between(0, 1).all())
    True
    """
    import pandas as pd

    parts = [
        result.metrics.to_pandas().assign(
            method=method, seed=result.experiment.seed, **_names(result)
        )
        for method, runs in _named(results).items()
        for result in runs
    ]
    if not parts:
        raise ValueError("there is no run to make a frame of")
    table = pd.concat(parts, ignore_index=True)
    return table[["method", "seed", *COLUMNS, "client_name", "class_name"]]


def compare(
    results: Mapping[str, Iterable[Result]],
    metric: str = "test_accuracy",
    limits: Limits = (0.0, 1.0),
) -> list[Compared]:
    """Return what each method reached over its seeds, and how far ahead of the first it is.

    ``pandas.DataFrame(compare(...))`` makes a table of it.

    Args:
        results: a method's name and its runs, one for each seed.
        metric: averaged over clients, of the state that a run ended with.
        limits: the ends of the metric's range, None if it has none, or one only.

    Raises:
        TypeError: for runs without the names of their methods.
        ValueError: for a metric that a run did not log, two runs of one seed, a mean outside of
            the limits, and limits that are no range.

    >>> from dataclasses import replace
    >>> runs = {"mine": [run(replace(tiny, seed=s)) for s in range(3)]}
    >>> found = compare(runs)[0]
    >>> found.low <= found.mean <= found.high, found.seeds
    (True, 3)
    """
    ends = {method: _by_seed(method, runs, metric) for method, runs in _named(results).items()}
    first = next(iter(ends.values()), {})
    rows = []
    for method, values in ends.items():
        ahead = [values[s] - first[s] for s in values if s in first and values is not first]
        difference = interval(ahead) if ahead else (float("nan"),) * 3
        rows.append(
            Compared(method, *interval([*values.values()], limits), len(values), *difference)
        )
    return rows


def _names(result: Result) -> dict[str, list[str]]:
    """Return what each row's client is called, and its class."""
    clients, classes = dict(enumerate(result.client_names)), dict[str, str]()
    with suppress(DatasetError, ValueError):  # data of one's own may be gone
        classes = {str(label): name for label, name in enumerate(result.class_names)}
    q = ["q"] if getattr(result.experiment.algorithm, "condition", "") == "label" else []
    client, metric, item = (result.metrics[n].to_pylist() for n in ("client", "metric", "item"))
    of_class = [m.startswith("label") or m in q for m in metric]
    pairs = zip(item, of_class, strict=True)
    return {
        "client_name": [clients.get(one, "") for one in client],
        "class_name": [classes.get(one, "") if told else "" for one, told in pairs],
    }


def _named(results: Any) -> Mapping[str, Sequence[Result]]:
    """Return runs by method; TypeError for runs without a method's name, and for one alone.

    A UserWarning says if only some of them were pinned.
    """
    alone = isinstance(results, Mapping) and any(isinstance(r, Result) for r in results.values())
    if alone or not isinstance(results, Mapping):
        raise TypeError('runs are given by method, as {"mine": [result, ...]}')
    named = {method: [*runs] for method, runs in results.items()}
    made = (result.provenance for runs in named.values() for result in runs)
    warn_of_both_kinds(made, stacklevel=3)
    return named


def _by_seed(method: str, runs: Sequence[Result], metric: str) -> dict[int, float]:
    ends = {result.experiment.seed: result.final(metric) for result in runs}
    if len(ends) < len(runs) or not ends:
        raise ValueError(f"{method}: there must be one run for each seed, got {len(runs)} runs")
    return ends
