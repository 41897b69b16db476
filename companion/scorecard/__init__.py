"""Every published number and every claim beside what was measured."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from companion import inference, trained
from companion.claims import IDENTITY, OPEN, Claim
from companion.claims import table as claims_frame
from companion.diverged import lost
from companion.frames import read_table
from companion.inference import LEAST_SEEDS
from companion.panels import Panel, stored
from companion.scorecard import tables as words
from companion.sections import (
    OWN,
    PROTOCOL,
    SCALES,
    USUAL,
    PublishedTable,
    Registry,
    Run,
    Section,
    has_data,
)
from fedlib import paths
from fedlib.metrics import interval
from fedrun import Experiment, Result, find_result

LARGEST_FIRST = SCALES[::-1]
# No paper has numbers for the data of the quick scale.
WITH_NUMBERS = [scale for scale in LARGEST_FIRST if scale != "quick"]
BALANCED = "balanced_accuracy"  # on the global test set, which the baseline does not concern
ORDERED = "closer to the published order than chance"
TEXTS = ("group", "family", "scale", "faithful", "notebook", "key", "device", "commit")
MARKS = ("diverged",)
MEASURED = ("mean", "low", "high", "seeds", "values", *MARKS, "initial", *TEXTS)


def collected(folder: Path | None = None) -> pd.DataFrame:
    """Return all tests beyond the quick scale: the columns of `claims.table`, and notebook.

    Tests of the quick scale are left out, because no checkout keeps its figures. A test of the same
    claim on the same data that several scales have is that of the largest scale. Identities, which
    only check arithmetic, are left out. The table is empty if no notebook has been run.

    Args:
        folder: the folder of figures; by default the one to which figures are written.
    """
    folders = [(folder or paths.figures()) / scale for scale in WITH_NUMBERS]
    found = [file for folder in folders for file in sorted(folder.glob("*_claims.csv"))]
    parts = [_tests(file) for file in found]
    rows = pd.concat([claims_frame({}).assign(notebook=""), *parts], ignore_index=True)
    unique = rows[rows["kind"].ne(IDENTITY)].drop_duplicates(["notebook", "tested on", "claim"])
    return unique.sort_values(["notebook", "tested on"], kind="stable").reset_index(drop=True)


def _tests(file: Path) -> pd.DataFrame:
    rows = read_table(file, "table of claims", dtype={"paper": str, "values": str})
    texts = [name for name, kind in Claim.__annotations__.items() if kind is str and name != "text"]
    return rows.fillna(dict.fromkeys(texts, "")).assign(notebook=_name(file))


def _name(file: Path) -> str:
    """Return the name of the notebook that wrote a file "NN_claims.csv"."""
    number = file.name[:2]
    return next((n.stem for n in paths.notebooks().glob(f"{number}_*.ipynb")), number)


def numbers(registry: Registry) -> pd.DataFrame:
    """Return a row per published number: what was measured, and a verdict.

    The measurement is that of the largest scale with enough seeds for an interval, or else of any.

    Returns:
        The columns of the published number, then floor (on own tests, in percent: the
        majority-class baseline on the paper's own partition; NaN elsewhere), mean, low, high (95%
        over seeds, in percent), seeds, values (by seed), diverged (whether it has no seeds because
        a run diverged), initial (the number of runs whose kept model is the initial one), group (of
        numbers that are ranked together) and family, scale, faithful (one of
        `companion.sections.FAITHFUL`; a run that no plan has at the paper's scale is at most
        reduced), notebook, key (of the first run), the devices that trained it and its commit,
        why_not, at_hand, gap (mean - value), repeats (whether an earlier row is the same number)
        and verdict.
    """
    table = registry.published().set_index("row", drop=False)
    by_section = defaultdict[str, list[PublishedTable]](list)
    for item in registry.tables:
        by_section[item.section.name].append(item)
    rows = [row for items in by_section.values() for row in _measured(items[0].section, items)]
    found = pd.DataFrame(rows, columns=["row", *MEASURED])
    found = found.sort_values("seeds", key=lambda n: n.lt(LEAST_SEEDS), kind="stable")
    found = found.drop_duplicates("row").set_index("row")
    table = table.assign(floor=floors_by_row(registry)).join(found)
    why, at_hand = table.pop("why_not"), ~table.index.isin(not_at_hand(registry))
    table = table.assign(why_not=why, at_hand=at_hand)
    table = table.fillna({"seeds": 0, "initial": 0} | dict.fromkeys(TEXTS, ""))
    table[[*MARKS]] = table[[*MARKS]].eq(True)
    table["group"] = table["group"].where(table["group"].ne(""), table["table_or_figure"])
    # Published numbers are in percent, measured ones are fractions.
    ends = ["mean", "low", "high"]
    table[ends] = table[ends].astype(float) * 100
    fractions = (of if isinstance(of, list) else [] for of in table["values"])
    table["values"] = [[100 * v for v in of] for of in fractions]
    table = table.assign(gap=table["mean"] - table["value"], repeats=table["repeats"].ge(0))
    return table.assign(verdict=judged(table)).reset_index(drop=True)


def of_data(
    registry: Registry, dataset: str, numbers: pd.DataFrame, claims: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the numbers and the claims of one data set.

    Args:
        registry: the sections.
        dataset: its name in sections; "" for all.
        numbers: the table of `numbers`.
        claims: the tests.

    Raises:
        OtherData: if no section has the data set at the standard or paper scale.
    """
    if not dataset:
        return numbers, claims
    known = [name for scale in WITH_NUMBERS for name in registry.data(scale)]
    has_data("paper", dataset, dict.fromkeys(known))
    at = [(one, scale) for one in registry.sections.values() for scale in WITH_NUMBERS]
    found = [(s, one.settings(s)[dataset]) for one, s in at if dataset in one.settings(s)]
    shown = {Panel(dataset, s, of, pd.DataFrame(), trained=False).name for s, of in found}
    rows = {
        row
        for item in registry.tables
        for scale in WITH_NUMBERS
        if dataset in item.section.settings(scale)
        for row in item.printed(dataset)["row"]
    }
    named = numbers.loc[numbers["row"].isin(rows), "dataset"]  # papers have different names of it
    tested = claims["tested on"].map(lambda where: where.startswith(tuple(shown)))
    return numbers[numbers["dataset"].isin(named)], claims[tested.astype(bool)]


def not_at_hand(registry: Registry) -> list[int]:
    """Return the rows whose data set no section of the standard scale has in full.

    They can only be measured at the paper's scale.
    """
    known = [one.settings("standard") for one in registry.sections.values()]
    full = {setting.task.dataset for settings in known for setting in settings.values()}
    return [
        row
        for item in registry.tables
        for name, setting in item.section.settings("paper").items()
        if setting.task.dataset not in full
        for row in item.printed(name)["row"]
    ]


def _measured(section: Section, items: Sequence[PublishedTable]) -> Iterator[dict[str, object]]:
    """Yield the measurement of each number of a section's tables, the largest scale first.

    A method with a diverged run is left out of its panel; a panel of the method alone has its other
    places. Numbers whose run diverged come last.
    """
    without = list[dict[str, object]]()
    for scale in WITH_NUMBERS:
        gone = [(d, run) for d in section.settings(scale) for run, _ in lost(section, scale, d)]
        shown = stored(section, [], scale, part=True)
        for method in dict.fromkeys(run.method for _, run in gone):
            shown += stored(section, [method], scale, part=True)
        for item in items:
            without += [row for d, run in gone for row in _diverged(item, scale, d, run)]
        for panel in shown:
            for item in items:
                yield from _of_panel(item, panel)
    yield from without


def _of_panel(item: PublishedTable, panel: Panel) -> Iterator[dict[str, object]]:
    """Yield what a panel has measured for each number of a table."""
    printed = item.printed(panel.dataset).dropna(subset="value")
    runs = dict(iter(item.measured(panel).groupby(list(item.keys))))
    theirs = _of_paper(item, panel.dataset)
    for _, row in printed.iterrows():
        measured = runs.get(tuple(row[k] for k in item.keys))
        if measured is not None:
            yield _row(item, panel, row, measured, theirs)


def _diverged(
    item: PublishedTable, scale: str, dataset: str, run: Run
) -> Iterator[dict[str, object]]:
    """Yield the numbers of a table that have no measurement because a run diverged."""
    place = {"method": run.method, **run.where}
    found = {"seeds": 0, "diverged": True, "scale": scale, "notebook": item.notebook}
    for _, row in item.printed(dataset).iterrows():
        if all(row.get(name, at) == at for name, at in place.items()):
            yield {"row": row["row"], **found}


def _row(
    item: PublishedTable, panel: Panel, row: pd.Series, runs: pd.DataFrame, theirs: set[Experiment]
) -> dict[str, object]:
    """Return the measurement of one published number."""
    values = runs["value"].tolist()
    limits = (0.0, 1.0) if all(0 <= v <= 1 for v in values) else None
    ends = zip(("mean", "low", "high"), interval(values, limits=limits), strict=True)
    group = (item.paper, panel.dataset, *(str(row.get(k, k)) for k in item.apart))
    found = {"row": row["row"], **dict(ends), "seeds": len(values), "values": values}
    found |= {"group": ", ".join(group), "family": item.family(str(row.get("method", "")))}
    found |= {"scale": panel.scale, "notebook": item.notebook}
    found["initial"] = int(trained.belongs_to(runs, panel.initial).sum())
    if result := _result_of(item, panel, runs):
        commit = result.provenance.get("commit", "")
        made = {"device": devices(result.provenance), "commit": commit}
        found |= {"key": result.experiment.key, **made}
        planned = _bare(result.experiment) in theirs
        own = item.section.settings("paper")[panel.dataset].faithful if planned else ""
        found["faithful"] = own or (USUAL["paper"] if planned else panel.faithful)
    return found


def devices(made: Mapping[str, Any]) -> str:
    """Return the devices that trained a run, in their order, as it may have been moved."""
    parts = made.get("segments") or [made]
    return ", then ".join(dict.fromkeys(part["device"] for part in parts if "device" in part))


def _result_of(item: PublishedTable, panel: Panel, measured: pd.DataFrame) -> Result | None:
    """Return the run of the first seed behind a number, None if no method has its name.

    Args:
        item: the table.
        panel: the panel that measured the number.
        measured: the rows of the number. If they keep too few columns to identify the run, it is
            the last one that they can be of.
    """
    section, scale, dataset = item.section, panel.scale, panel.dataset
    for run in reversed(section.runs(scale, dataset, [*measured["method"].unique()])):
        if all(v in measured[name].unique() for name, v in run.where.items() if name in measured):
            return find_result(section.experiments(scale, dataset, run)[0])
    return None


def _of_paper(item: PublishedTable, dataset: str) -> set[Experiment]:
    """Return the runs of a data set at the papers' own scale."""
    there = dataset in item.section.settings("paper")
    return {_bare(r.experiment) for r in item.section.runs("paper", dataset)} if there else set()


def _bare(experiment: Experiment) -> Experiment:
    """Return an experiment without the interval of evaluations, which changes no result."""
    stops = experiment.stop is not None  # a stop depends on the evaluations
    return replace(experiment, seed=0, evaluate_every=experiment.evaluate_every * stops)


def judged(table: pd.DataFrame) -> pd.Series:
    """Return the verdict of every number; agreement has three values, as for claims.

    A number agrees if the interval of measured minus published lies within ``POINTS`` of zero,
    differs if it lies wholly outside, and is too imprecise if it contains a boundary. A standard
    error of the published number widens the interval.

    Args:
        table: columns value, se (of the published number, NaN for none), mean, low, high, seeds (0:
            never run), diverged, faithful, at_hand (whether its data set is available), and why_not
            ("" if the number is to be compared with a run).
    """
    error = inference.Z * table["se"].fillna(0.0)
    gap = table["mean"] - table["value"]
    low = gap - np.hypot(table["mean"] - table["low"], error)
    high = gap + np.hypot(table["high"] - table["mean"], error)
    few, never = table["seeds"].lt(LEAST_SEEDS), table["seeds"].eq(0)
    verdicts = {
        words.NO: table["why_not"].ne(""),
        words.DIVERGED: never & table["diverged"],
        words.ABSENT: never & ~table["at_hand"],
        words.NEVER: never,
        words.OTHER: ~table["faithful"].isin((PROTOCOL, OWN)),
        words.IMPRECISE: few,
        words.AGREES: low.ge(-words.POINTS) & high.le(words.POINTS),
        words.DIFFERS: low.gt(words.POINTS) | high.lt(-words.POINTS),
    }
    chosen = np.select([*verdicts.values()], [*verdicts], words.IMPRECISE)
    return pd.Series(chosen, index=table.index)


def orders(table: pd.DataFrame) -> pd.DataFrame:
    """Return how well the measured order of each published table agrees with the published one.

    Returns:
        Columns paper, table_or_figure, dataset, numbers, correlation (of ranks within the families
        of a group, over all groups of the table), p (of random permutations there), and verdict:
        `ORDERED` if p survives the control of false discoveries at 5% among all tables, else
        "undecided". Tables without two numbers in a family are left out.
    """
    known = table["seeds"].gt(0) & table["value"].notna()
    measured = table[known & ~table["repeats"]]
    keys, rows = ["paper", "table_or_figure", "dataset"], []
    for name, of in measured.groupby(keys):
        families = [*(of["group"] + of["family"])]
        rows.append((*name, len(of), *inference.concordance(of["mean"], of["value"], families)))
    found = pd.DataFrame(rows, columns=[*keys, "numbers", "correlation", "p"])
    found = found.dropna(subset="correlation").reset_index(drop=True)
    kept = inference.discoveries(found["p"])
    return found.assign(verdict=np.where(kept, ORDERED, OPEN))


def at_own_scale(registry: Registry, numbers: pd.DataFrame) -> pd.DataFrame:
    """Return what was measured at the papers' own scale, and which command trains the rest.

    Args:
        registry: the sections and blocks.
        numbers: the table of `numbers`.

    Returns:
        A row per paper, section and data set: numbers; how many of them agree, differ or are
        imprecise; gap (mean of those that differ, measured - published); left (numbers without a
        run at that scale); CPU hours (planned, of the campaign's block that trains them; NaN if
        there is none, as the rest needs a GPU); GPU hours (if a GPU was timed); and command.
    """
    once = numbers[~numbers["repeats"] & numbers["why_not"].eq("")]
    rows_of = defaultdict[tuple[str, str, str], set[int]](set)
    for item in registry.tables:
        for name in item.section.settings("paper"):
            rows_of[item.paper, item.section.name, name] |= {*item.printed(name)["row"]}
    found = []
    for (paper, section, name), rows in rows_of.items():
        of = once[once["row"].isin(rows)]
        own = of[of["faithful"].isin((PROTOCOL, OWN)) & of["seeds"].gt(0)]
        counts = {word: own["verdict"].eq(word).sum() for word in words.OWN}
        gap, left = own["gap"][own["verdict"].eq(words.DIFFERS)].mean(), len(of) - len(own)
        at = {"paper": paper, "section": section, "data": name, "numbers": len(of)}
        at["setting"] = ", ".join(own["faithful"].unique())
        found.append({**at, **counts, "gap": gap, "left": left})
    table = pd.DataFrame(found)
    table = table[table["numbers"].gt(0)].reset_index(drop=True)
    train = [_training(registry, *of) for of in table[["section", "data", "left"]].to_numpy()]
    return table.join(pd.DataFrame(train, columns=["CPU hours", "GPU hours", "command"]))


def _training(
    registry: Registry, section: str, dataset: str, left: int
) -> tuple[float, float, str]:
    """Return the hours and the command that train the rest of a section at its own scale."""
    part = f"{section}:{dataset}"
    if not left:
        return 0.0, 0.0, ""
    for block in registry.blocks:
        if {section, part} & {re.split("[@/]", one)[0] for one in block.parts.get("paper", ())}:
            return block.hours, np.nan, f"make campaign BLOCKS={block.number}"
    hours = registry.gpu_hours.get(part, np.nan)
    return np.nan, hours, f"make paper SCALE=paper SECTIONS={part}"


def floors_by_row(registry: Registry) -> pd.Series:
    """Return the majority-class baseline in percent, by row of the published numbers on own tests.

    It is computed on the paper's own partition.
    """
    known = registry.floors().set_index(["paper", "dataset", "at"])["floor"]
    found: dict[Any, float] = {}
    for item in (e for e in registry.tables if e.paper in registry.floored):
        for dataset in known.loc[item.paper].index.unique("dataset"):
            rows = item.printed(dataset)
            rows = rows[rows["metric"] != BALANCED] if "metric" in rows else rows
            at = rows.set_index("row")[registry.floored[item.paper]]
            found |= at.map(known[item.paper, dataset]).dropna().to_dict()
    return pd.Series(found, dtype=float) * 100
