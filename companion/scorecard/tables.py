"""The verdicts of the scorecard, and its tables as notebook 16 shows them."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from companion import plotting
from companion.inference import LEAST_SEEDS
from companion.trained import INITIAL_NOTE

POINTS = 2.0  # percentage points: the margin of agreement
AGREES, DIFFERS, IMPRECISE, OTHER = "agrees", "differs", "too imprecise", "other scale"
OWN = (AGREES, DIFFERS, IMPRECISE)  # what can be told of a run at the paper's own scale
NEVER, ABSENT, NO, DIVERGED = "not run", "data not at hand", "not comparable", "diverged"
_LIMITS = {"points": POINTS, "seeds": LEAST_SEEDS}
_WORDS = pd.read_csv(Path(__file__).with_name("verdicts.csv")).to_numpy()
VERDICTS = {verdict: text.format(**_LIMITS) for verdict, text in _WORDS}


def titled(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with the titles of papers, sections and data sets in place of their names."""
    known = {name: rows[name].map(plotting.title) for name in ("section", "data") if name in rows}
    return rows.assign(paper=rows["paper"].str[:3].map(plotting.title), **known)


def by_table(numbers: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
    """Return the measured numbers of each published table, as `plotting.dumbbells` draws them."""
    measured = numbers[numbers["seeds"].gt(0) & numbers["value"].notna() & ~numbers["repeats"]]
    found = {}
    for (paper, item), rows in measured.groupby(["paper", "table_or_figure"], sort=False):
        places = rows["group"].str.split(", ", expand=True)
        differing = places.loc[:, places.nunique().gt(1)].fillna("").map(plotting.title)
        names = [", ".join(of) for of in differing.assign(method=rows["method"]).to_numpy()]
        found[f"{plotting.title(str(paper)[:3])}, {item}"] = rows.assign(name=names)
    return found


def gaps_by_paper(numbers: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return measured minus published by paper, as `plotting.dots` draws it, the paper scale first.

    The groups of a panel are verdicts; their markers are means, and their strokes single numbers.

    Args:
        numbers: the tables of `by_table` below each other.
    """
    own = numbers["verdict"].isin(OWN).map({True: "paper scale", False: "smaller settings"})
    rows = numbers.assign(row=titled(numbers)["paper"], group=numbers["verdict"], own=own)
    each = rows.groupby(["own", "row", "group"], sort=False)["gap"]
    gaps = each.agg(mean="mean", low="min", high="max", values=list).reset_index()
    return {str(name): here.drop(columns="own") for name, here in gaps.groupby("own")}


LISTED = {
    "paper": "paper",
    "table_or_figure": "item",
    "data": "data",
    "setting": "setting",
    "method": "method",
    "metric": "metric",
    "value": "published",
    "floor": "floor",
    "mean": "measured",
    "interval": "95% interval",
    "seeds": "seeds",
    "key": "run",
    "said": "verdict",
}


def listed(numbers: pd.DataFrame) -> pd.DataFrame:
    """Return every published number in words beside what was measured, one row each.

    ``python -m fedrun show RUN`` shows the stored run behind a number. The floor of a number on
    clients' own tests is the majority-class baseline on the paper's own partition.
    """
    rows = titled(numbers.assign(data=numbers["dataset"]))
    for column in ("value", "floor", "mean"):
        rows[column] = rows[column].map("{:.4g}".format, na_action="ignore")
    ends = zip(numbers["low"], numbers["high"], strict=True)
    rows["interval"] = ["" if pd.isna(low) else f"{low:.3g} to {high:.3g}" for low, high in ends]
    rows["seeds"] = numbers["seeds"].astype(int).astype(str).replace("0", "")
    why = numbers["why_not"].map(lambda text: f": {text}" if text else "")
    again = numbers["repeats"].map({True: " (printed before)", False: ""})
    counts = numbers[["initial", "seeds"]].astype(int).to_numpy()
    initial = [f"; {INITIAL_NOTE.format(*of)}" if of[0] else "" for of in counts]
    rows["said"] = numbers["verdict"] + why + again + initial
    return rows[[*LISTED]].rename(columns=LISTED).fillna("")
