"""Every published number joined with the runs that measured it."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from companion import frames
from companion.panels import Panel, stored
from companion.scorecard.collected import LARGEST_FIRST
from companion.scorecard.exhibits import EXHIBITS, Exhibit, not_at_hand, why_not
from companion.scorecard.floors import of_rows
from companion.scorecard.judge import judged
from fedlib.runs import Result, find
from fedlib.runs.exported import path_of
from papers.published import published

# The quick scale has data of its own, which no paper has numbers for.
WITH_NUMBERS = [scale for scale in LARGEST_FIRST if scale != "quick"]
TEXTS = ("group", "scale", "notebook", "key", "device", "commit", "file")
MEASURED = ("mean", "low", "high", "seeds", *TEXTS)


def numbers() -> pd.DataFrame:
    """Return a row per published number: what was measured at the largest scale, and a verdict.

    Columns of published.csv, then floor (on own tests, in percent: always a client's commonest
    label on the paper's own partition; NaN elsewhere), mean, low, high (95% over seeds, in
    percent), seeds, group (of numbers that are ranked together), scale, notebook, key (of the first
    seed's run), its device and commit and the file of
    ``results/`` that holds it, why_not, at_hand, verdict.
    """
    table = published().set_index("row", drop=False)
    rows = [row for exhibit in EXHIBITS for row in _measured(exhibit)]
    found = pd.DataFrame(rows, columns=["row", *MEASURED]).drop_duplicates("row").set_index("row")
    table = table.assign(floor=of_rows()).join(found)
    table = table.assign(why_not=why_not(), at_hand=~table.index.isin(not_at_hand()))
    table = table.fillna({"seeds": 0} | dict.fromkeys(TEXTS, ""))
    table["group"] = table["group"].where(table["group"].ne(""), table["table_or_figure"])
    # Published in percent; what is measured are fractions.
    ends = ["mean", "low", "high"]
    table[ends] = table[ends].astype(float) * 100
    return table.assign(verdict=judged(table)).reset_index(drop=True)


def _measured(exhibit: Exhibit) -> Iterator[dict[str, object]]:
    """Yield what was measured for each number of an exhibit, the largest scale first."""
    for scale in WITH_NUMBERS:
        for panel in stored(exhibit.section, [], scale):
            printed = exhibit.printed(panel.dataset).dropna(subset="value")
            known = exhibit.measured(panel).groupby(list(exhibit.keys))["value"]
            runs = {key: values.tolist() for key, values in known}
            for _, row in printed.iterrows():
                values = runs.get(tuple(row[k] for k in exhibit.keys))
                if values:
                    yield _row(exhibit, panel, row, values)


def _row(exhibit: Exhibit, panel: Panel, row: pd.Series, values: list[float]) -> dict[str, object]:
    mean, low, high = frames.interval(values)
    group = (exhibit.paper, panel.dataset, *(str(row.get(k, k)) for k in exhibit.apart))
    result = _run_of(exhibit, panel, row)
    made = result.provenance if result is not None else {}
    file = path_of(result.experiment) if result is not None else None
    return {
        "row": row["row"],
        "mean": mean,
        "low": low,
        "high": high,
        "seeds": len(values),
        "scale": panel.scale,
        "group": ", ".join(group),
        "notebook": exhibit.notebook,
        "key": result.experiment.key if result is not None else "",
        "device": made.get("device", ""),
        "commit": made.get("commit", ""),
        "file": file.name if file is not None else "",
    }


def _run_of(exhibit: Exhibit, panel: Panel, row: pd.Series) -> Result | None:
    """Return the run of the first seed behind a number: the method with that name and those keys.

    A method's name has its numbers in it, "Mixture, p = 0.8".
    """
    wanted = {k: row[k] for k in exhibit.keys if k not in ("metric", "what")}
    named = frames.apart(pd.DataFrame({"method": panel.frame["method"].unique()}))
    named["name"] = panel.frame["method"].unique()
    for key, value in wanted.items():
        if key in named:
            named = named[named[key].eq(value) | (named[key].isna() & (key != "method"))]
    if not len(named):
        return None
    return find(exhibit.section.experiments(panel.scale, panel.dataset, named["name"].iloc[-1])[0])
