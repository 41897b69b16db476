"""Analysis of 001 and 002: from stored metrics to the frames of their tables and figures."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pandas as pd

from companion import frames
from companion.panels import Panel
from companion.trained import belongs_to
from fedlib.metrics import interval
from papers.published import published
from papers.scaled import FEDAVG, TUNED
from papers.specialists.experiments import EARLY_STOPPING, MIXTURE

GLOBAL, OWN, HELD = METRICS = ("balanced_accuracy", "test_accuracy", "validation_accuracy")
LOSSES = {"training": "train_loss", "validation": "validation_nll"}
TESTS = {GLOBAL: "global test", OWN: "local test", HELD: "local validation"}
# FedAvg's early stopping, as stated in 001; without it, the best state of all rounds is kept.
UNSTOPPED = "no early stopping"
SKEWS = ("least p", "largest p")
_PRINTED = {
    "global_test_accuracy": GLOBAL,
    "local_test_accuracy": OWN,
    "global_test_accuracy_rescaled_DERIVED": GLOBAL,
    "local_validation_accuracy": HELD,
}


def scores(
    frame: pd.DataFrame, clients: int, metrics: Sequence[str] = METRICS, *, each: bool = False
) -> pd.DataFrame:
    """Return the final accuracies of each run on global test, own test and validation examples.

    Args:
        frame: the metrics of runs.
        clients: the number of clients, from the first on, for which personal stages were trained.
        metrics: the names of the metrics.
        each: whether clients are returned, with a column client, in place of their mean.

    Returns:
        Columns method, seed, p, q or alpha as the frame has them, metric and value.
    """
    ends = [frames.ended(frame, m, clients, each=each).assign(metric=m) for m in metrics]
    return pd.concat(ends, ignore_index=True)


def of_panel(panel: Panel) -> pd.DataFrame:
    """Return the `scores` of a panel of 001 or 002."""
    return scores(panel.frame, panel.setting.tested)  # type: ignore[attr-defined]


def as_printed(panel: Panel) -> Panel:
    """Return the runs with the early stopping that 001 states, and without other departures."""
    frame = panel.frame[panel.frame["departure"].eq(EARLY_STOPPING)]
    return replace(panel, frame=frame).only(frame["method"].unique())


def whole(panels: Iterable[Panel]) -> list[Panel]:
    """Return the panels with all of their planned seeds, because each judgement is a look."""
    return [p for p in panels if p.frame["seed"].nunique() >= p.setting.seeds]


def printed(paper: str = "001", dataset: str = "") -> pd.DataFrame:
    """Return Table 1 of 001 or of 002: data, method, metric, p, value in [0, 1], row.

    Global accuracies on AG News that were divided by 7,600 in place of 1,000 (all but the first row
    of Table 1e) are replaced by rescaled ones.

    Args:
        paper: "001" or "002".
        dataset: one data set; "" for all.
    """
    rows = published(paper, "Table 1")
    rows = rows[rows["metric"].isin(_PRINTED)]
    rows = rows.assign(
        p=rows["setting"].str.extract(r"p=([\d.]+)")[0].astype(float),
        derived=rows["metric"].str.endswith("DERIVED"),
        metric=rows["metric"].map(_PRINTED),
        data=rows["dataset"].str.lower().str.replace("[- ]", "_", regex=True),
        value=rows["value"] / 100,
    ).replace({"data": {"cifar_10": "cifar10"}})
    columns = ["data", "method", "metric", "p"]
    rows = rows.sort_values("derived").drop_duplicates(columns, keep="last")
    rows = rows[rows["data"].eq(dataset) | (not dataset)].sort_index()
    return rows[[*columns, "value", "row"]].reset_index(drop=True)


def beside(table: pd.DataFrame, printed: pd.DataFrame, initial: pd.DataFrame) -> pd.DataFrame:
    """Return Table 1 by test and p: each method's mean and interval, [published].

    Cells also state how many runs kept the ``initial`` model, or stand on such a run.
    """
    known = printed.set_index(["metric", "p", "method"])["value"].to_dict()
    said = {}
    for key, rows in table.groupby(["metric", "p", "method"], sort=False):
        kept = int(belongs_to(rows, initial).sum())
        said[key] = frames.stated(rows["value"], known.get(key))
        said[key] += f" initial model kept: {kept}" * (kept > 0)
    wide = pd.Series(said).unstack(sort=False).rename(TESTS, level=0)
    return wide.rename_axis(["test", "p"]).sort_index().fillna("")


def gaps(table: pd.DataFrame, printed: pd.DataFrame, methods: Sequence[str]) -> pd.DataFrame:
    """Return the accuracies of methods on both test sets, with their gaps to published ones.

    Columns method, metric, p, seed, value and gap, value minus published.
    """
    known = printed.set_index(["method", "metric", "p"])["value"].rename("theirs")
    rows = table[table["method"].isin(methods) & table["metric"].isin([GLOBAL, OWN])]
    rows = rows.join(known, on=["method", "metric", "p"]).dropna(subset="theirs")
    gap = rows["value"] - rows["theirs"]
    return rows.assign(gap=gap)[["method", "metric", "p", "seed", "value", "gap"]]


def of_fedavg(table: pd.DataFrame, metric: str, over: str) -> pd.DataFrame:
    """Return every method's score divided by FedAvg's at the same ``over`` and seed (Fig. 4 and 5).

    Columns method, seed, ``over`` and value.
    """
    rows = table[table["metric"] == metric]
    base = rows[rows["method"] == FEDAVG].set_index([over, "seed"])["value"]
    both = rows[rows["method"] != FEDAVG].join(base.rename("base"), on=[over, "seed"])
    both["value"] /= both["base"]
    return both[["method", "seed", over, "value"]].reset_index(drop=True)


def losses(frame: pd.DataFrame) -> pd.DataFrame:
    """Return FedAvg's losses over its rounds at the least and the largest p (001's appendix).

    The training loss is that of a cohort while it trains, averaged over a fiftieth of the rounds,
    because few clients per round make it noisy. The validation loss is the mean over the evaluated
    clients. Columns method ("least p, training"), seed, round, value.
    """
    ours = frame[frame["method"] == FEDAVG]
    courses = [frames.curve(ours, metric).assign(of=of) for of, metric in LOSSES.items()]
    courses[0] = frames.smooth(courses[0], max(1, int(frame["round"].max()) // 50))
    rows = pd.concat(courses, ignore_index=True)
    ends = dict(zip((rows["p"].min(), rows["p"].max()), SKEWS, strict=True))
    rows = rows[rows["p"].isin(list(ends))]
    rows = rows.assign(method=rows["p"].map(ends) + ", " + rows["of"])
    return rows[["method", "seed", "round", "value"]]


def moved(released: pd.DataFrame, plain: pd.DataFrame) -> pd.DataFrame:
    """Return the effect of departures of the released code: method, seed, metric, departure, value.

    Differences from the ``plain`` scores are paired by seed and p, and averaged over p.
    """
    both = released.merge(plain, on=["method", "seed", "metric", "p"], suffixes=("", "_plain"))
    both["value"] = both["value"] - both["value_plain"]
    groups = both.groupby(["departure", "method", "metric", "seed"], sort=False)
    return groups["value"].mean().reset_index()


def by_way(released: pd.DataFrame, plain: pd.DataFrame, printed: pd.DataFrame) -> pd.DataFrame:
    """Return scores as published, without early stopping of FedAvg, with it, and with departures.

    Only methods and p that departures change are included. Columns method, metric, p, way, seed and
    value.
    """
    changed = released.rename(columns={"departure": "way"})
    parts = [printed.assign(way="published"), plain.assign(way=UNSTOPPED), changed]
    table = pd.concat(parts, ignore_index=True)
    table = table[table["method"].isin(changed["method"]) & table["p"].isin(changed["p"])]
    return table[["method", "metric", "p", "way", "seed", "value"]]


def columns_by_way(table: pd.DataFrame) -> pd.DataFrame:
    """Return Table 1 with a column per way: published, without early stopping, and so on.

    Measured cells have the mean, half of its 95% interval and, in parentheses, the number of seeds.
    There is a row by test, p and method of each published number.

    Args:
        table: the table of `by_way`.
    """
    place = ["metric", "p", "method"]
    ours = table[table["way"].ne("published")]
    columns = ours.groupby([*place, "way"], sort=False)["value"].agg(frames.stated)
    theirs = table[table["way"].eq("published")].set_index(place)["value"].map("{:.3f}".format)
    wide = theirs.to_frame("published").join(columns.unstack(sort=False), how="inner").fillna("")
    wide = wide.rename(TESTS, level=0).rename_axis(["test", "p", "method"])
    return wide.sort_index(level=["test", "p"], sort_remaining=False)


def distances(table: pd.DataFrame) -> pd.DataFrame:
    """Return the distances of scores from published ones by way, as `plotting.dots` draws them.

    A row is a method, and a group a way. The distance is that of the mean over seeds in points,
    averaged over both tests and those p at which the method has every way.

    Args:
        table: the table of `by_way`.
    """
    place = ["method", "metric", "p"]
    theirs = table[table["way"].eq("published")].set_index(place)["value"].rename("theirs")
    ours = table[table["way"].ne("published")].groupby([*place, "way"], sort=False)["value"].mean()
    far = ours.reset_index().join(theirs, on=place).dropna(subset="theirs")
    far["mean"] = 100 * (far["value"] - far["theirs"]).abs()
    ways = far.groupby("method")["way"].transform("nunique")
    far = far[far.groupby(place)["way"].transform("nunique").eq(ways)]
    far = far.rename(columns={"method": "row", "way": "group"})
    drawn = far.groupby(["row", "group"], sort=False)["mean"].mean().reset_index()
    return drawn.assign(low=drawn["mean"], high=drawn["mean"])


def leads(table: pd.DataFrame) -> pd.DataFrame:
    """Return the mixture's lead over fine-tuning on the global test set, as `plotting.dots` draws.

    A row is a way. The lead is the difference of accuracies in points, paired by seed and p, and
    averaged over those p at which every way has both methods.

    Args:
        table: the table of `by_way`.

    Returns:
        Columns row, group ("measured" or "published"), values (a lead per seed), mean, low and high
        (95% interval over seeds).
    """
    rows = table[table["metric"].eq(GLOBAL)].fillna({"seed": 0})  # published numbers have none
    both = rows.pivot_table("value", ["way", "p", "seed"], "method", sort=False)
    lead = (100 * (both[MIXTURE] - both[TUNED])).dropna().rename("lead").reset_index()
    lead = lead[lead.groupby("p")["way"].transform("nunique").eq(lead["way"].nunique())]
    told = []
    for way, of in lead.groupby("way", sort=False):
        values = of.groupby("seed")["lead"].mean().to_numpy()
        group = "published" if way == "published" else "measured"
        told.append((way, group, values, *interval(values)))
    return pd.DataFrame(told, columns=["row", "group", "values", "mean", "low", "high"])


def at_q(table: pd.DataFrame, q: float) -> pd.DataFrame:
    """Return the scores with the fraction q opting out, and *Local*'s at the same p."""
    here = table["q"] == q
    return table[here | (table["q"].isna() & table["p"].isin(table["p"][here]))]


def of_figure(table: pd.DataFrame) -> list[float]:
    """Return the fractions of Fig. 6: no opting out, and the two largest fractions."""
    qs = sorted(table["q"].dropna().unique().tolist())
    return [*qs[:1], *qs[1:][-2:]]


def ledger(frame: pd.DataFrame) -> pd.DataFrame:
    """Return what participating and opted-out clients sent to the federation, by q.

    Means over seeds and p: clients, largest and smallest cohort, and megabytes up in all.
    """
    run, ours = ["q", "p", "seed"], frame[frame["method"] == FEDAVG]
    inside = ours[ours["metric"] == "opted_in"].set_index([*run, "client"])["value"].gt(0)
    sent = ours[ours["metric"] == "client_bytes_up"].join(inside.rename("in"), on=[*run, "client"])
    cohorts = sent.groupby([*run, "round"]).size().groupby(run)
    sides = (sent[sent["in"].eq(side)].groupby(run)["value"].sum() for side in (True, False))
    taking_part, opted_out = (side / 1e6 for side in sides)
    columns = {
        "participating clients": inside.groupby(run).sum(),
        "opted-out clients": (~inside).groupby(run).sum(),
        "smallest cohort": cohorts.min(),
        "largest cohort": cohorts.max(),
        "MB up (participating)": taking_part,
        "MB up (opted out)": opted_out,
    }
    table = pd.DataFrame(columns).dropna(subset="smallest cohort")
    return table.fillna(0.0).groupby("q").mean()
