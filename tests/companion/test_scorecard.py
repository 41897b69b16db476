"""The scorecard: every published number is placed, judged by hand-made cases, and shown."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from companion import scorecard
from companion.scorecard import (
    ABSENT,
    INSIDE,
    NEVER,
    NO,
    NOT,
    ORDER,
    TOO_FEW,
    VERDICTS,
    _run_of,
    judged,
    not_at_hand,
    page,
)
from companion.sections import Run
from fedlib.runs import Result, export
from papers.book import BOOK, RESCALED
from papers.pm_moe.experiments import FOURTEEN
from papers.published import published

# One exhibit: to look for the runs of all takes half a minute.
ONE = replace(BOOK, exhibits=tuple(e for e in BOOK.exhibits if e.section is FOURTEEN))
COLUMNS = ["round", "metric", "client", "expert", "item", "value"]


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """Stores of its own."""
    for name in ("RUNS", "RESULTS", "FIGURES"):
        monkeypatch.setenv(f"FEDLIB_{name}", str(tmp_path / name.lower()))
    return tmp_path


def table(*rows):
    names = ["value", "mean", "low", "high", "seeds", "group", "why_not"]
    return pd.DataFrame(rows, columns=names).assign(at_hand=True)


NAN = float("nan")


def half(*values, group="a"):
    """Numbers that are measured at half of what is published, in the published order."""
    return [(v, v / 2, v / 2 - 1, v / 2 + 1, 3, group, "") for v in values]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([(50, 49, 45, 55, 3, "a", "")], [INSIDE]),
        ([(50, 50, NAN, NAN, 2, "a", "")], [TOO_FEW]),
        ([(50, NAN, NAN, NAN, 0, "a", "")], [NEVER]),
        ([(NAN, NAN, NAN, NAN, 0, "a", "no number")], [NO]),
        (half(30, 40, 50, 60), [ORDER] * 4),
        (half(30), [NOT]),  # alone, there is no order
        # Lowest here, as published highest: of the others two of three agree, below three quarters.
        ([(60, 10, 9, 11, 3, "a", ""), *half(30, 40, 50)], [NOT] * 4),
        ([*half(30, 60), (40, 90, 89, 91, 3, "b", ""), (50, 80, 79, 81, 3, "b", "")],
         [ORDER, ORDER, NOT, NOT]),
    ],
)  # fmt: skip
def test_a_number_is_judged_by_the_stated_rule(rows, said):
    assert judged(table(*rows)).tolist() == said and {*said} <= {*VERDICTS}
    # Only what was never run lacks its data.
    lacking = judged(table(*rows).assign(at_hand=False)).tolist()
    assert lacking == [ABSENT if v == NEVER else v for v in said]


def test_what_the_standard_scale_has_a_sample_of_is_not_at_hand():
    rows = published().set_index("row").loc[not_at_hand(BOOK)]
    assert rows["paper"].str.startswith("004").all()
    assert set(rows["dataset"]) == {"Cifar100", "TINY"}
    assert {"FedAvg", "DBE", "FedPer+PM-MOE"} <= set(rows["method"])


def test_every_published_number_has_a_run_to_be_compared_with_or_a_reason():
    """Numbers without a reason are those that some exhibit prints, each at one place."""
    reasons = BOOK.why_not()
    placed = [
        int(row)
        for exhibit in BOOK.exhibits
        for dataset in {d for s in ("standard", "paper") for d in exhibit.section.settings(s)}
        for row in exhibit.printed(dataset).dropna(subset="value")["row"]
    ]
    wanted = set(reasons.index[reasons.eq("")])
    # The derived rows stand for those that they correct.
    assert wanted <= set(placed)
    extra = published().set_index("row").loc[sorted(set(placed) - wanted)]
    assert extra["repeats"].ge(0).all() and not set(extra["repeats"]) & set(extra.index)


def test_a_number_that_was_printed_too_small_is_compared_in_its_rescaled_form():
    rows = published("001", "Table 1e").set_index("row")
    said = BOOK.why_not()[rows.index]
    rescaled = rows["metric"].str.endswith("DERIVED")
    assert said[rescaled].eq("").all() and rescaled.sum() == 16
    assert said[~rescaled].value_counts().to_dict() == {RESCALED: 16, "": 4}


def test_what_an_exhibit_prints_is_what_its_section_can_measure():
    for exhibit in BOOK.exhibits:
        first = next(iter(exhibit.section.settings("paper")))
        bare = set(exhibit.section.methods("paper", first))
        for dataset in exhibit.section.settings("paper"):
            printed = exhibit.printed(dataset)
            known = set(printed["method"]) - {"PM-MOE", "all"}
            assert known <= bare, (exhibit.notebook, known - bare)


def stored(section, dataset, name, accuracy):
    """Export made-up runs at the standard scale, a client with that accuracy; return their keys."""
    made = []
    for experiment in section.experiments("standard", dataset, name):
        value = accuracy + 0.01 * (experiment.seed - 1)
        rows = [(0, "examples", 0, -1, "", 10.0)]
        for metric in ("test_accuracy", "validation_accuracy"):
            rows.append((experiment.rounds, metric, 0, -1, "", value))
        metrics = pa.Table.from_pandas(pd.DataFrame(rows, columns=COLUMNS), preserve_index=False)
        made.append(Result(experiment, metrics, {"commit": "abc"}))
    export(made, f"{section.name}-{dataset}-{made[0].experiment.key}")
    return [result.experiment.key for result in made]


def test_a_stored_run_is_joined_with_the_number_it_measures():
    keys = stored(FOURTEEN, "cifar10", "FedPer, S = 0", 0.9)
    stored(FOURTEEN, "cifar10", "FedAvg, S = 0", 0.3)
    found = scorecard.numbers(ONE)
    assert len(found) == len(published())
    one = found[found["paper"].str.startswith("004") & found["table_or_figure"].eq("Table 1")]
    one = one[one["dataset"].eq("Cifar10") & one["setting"].str.endswith("S=0")].set_index("method")
    row = one.loc["FedPer"]
    assert row["value"] == 89.90 and row["mean"] == pytest.approx(90.0)
    assert row["low"] < 89.9 < row["high"] and row["verdict"] == INSIDE
    assert (row["seeds"], row["scale"], row["commit"]) == (3, "standard", "abc")
    assert row["notebook"] == "12_fourteen_baselines"
    assert row["key"] == keys[0]
    assert one.loc["FedAvg", "verdict"] == ORDER  # far below, as FedPer is far above
    assert one.loc["DBE", "verdict"] == NEVER
    for dataset, verdict in {"Cifar100": ABSENT, "TINY": ABSENT, "AGNews": NEVER}.items():
        rows = found[found["dataset"].eq(dataset) & found["table_or_figure"].eq("Table 1")]
        rows = rows[rows["paper"].str.startswith("004")]
        assert set(rows["verdict"]) == {verdict}


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ({"p": 0.8, "q": 0.0}, {"p": 0.8, "q": 0.0}),
        ({"p": 0.8, "q": np.nan}, {"p": 0.8}),
        ({"p": 0.8}, {"p": 0.8, "q": 0.5}),  # the last that it can be of
        ({"p": 0.3}, None),
        ({"p": 0.8, "q": 0.0, "method": "B"}, None),
    ],
)
def test_the_run_behind_a_number_stands_where_its_rows_do(monkeypatch, columns, found):
    places = [{"p": 0.8}, {"p": 0.8, "q": 0.0}, {"p": 0.8, "q": 0.5}, {"p": 0.2}]
    runs = [Run("A", None, where) for where in places]
    section = SimpleNamespace(
        runs=lambda scale, dataset, methods: [r for r in runs if r.method in methods],
        experiments=lambda scale, dataset, run: [run.where],
    )
    monkeypatch.setattr("companion.scorecard.find", lambda where: where)
    rows = pd.DataFrame([{"method": "A", "seed": 0, "value": 0.5, **columns}] * 2)
    panel = SimpleNamespace(scale="paper", dataset="x")
    assert _run_of(SimpleNamespace(section=section), panel, rows) == found


def claims_of(folder, scale, name, verdict, seeds=3):
    home = folder / "figures" / scale
    home.mkdir(parents=True, exist_ok=True)
    row = ("CIFAR-10 (standard)", "a > b & <c>", "Table 1", "0.5 vs 0.4", seeds, verdict, True)
    names = ["tested on", "claim", "source", "measured", "seeds", "verdict", "clear"]
    pd.DataFrame([row], columns=names).to_csv(home / name, index=False)


def test_a_claim_is_taken_from_the_largest_scale(folders):
    claims_of(folders, "quick", "12_claims.csv", "undecided")
    claims_of(folders, "standard", "12_claims.csv", "holds")
    found = scorecard.collected()
    assert len(found) == 1 and found["verdict"].item() == "holds"
    assert found["notebook"].item() == "12_fourteen_baselines"


def test_the_page_stands_alone_and_escapes_what_it_shows(folders):
    nothing, none = scorecard.numbers(ONE), scorecard.collected()
    assert set(nothing["verdict"]) == {NEVER, ABSENT, NO} and nothing["mean"].isna().all()
    assert none.empty and "None yet" in page(nothing, none)
    claims_of(folders, "standard", "12_claims.csv", "does not hold")
    files, numbers, claims = scorecard.write(ONE)
    text = files[0].read_text()
    assert "a &gt; b &amp; &lt;c&gt;" in text and "<c>" not in text
    assert "http://" not in text and "https://" not in text and "<script src" not in text
    assert text.count("<tr>") > len(numbers)
    assert "../notebooks/12_fourteen_baselines.ipynb" in text
    assert len(pd.read_parquet(files[1])) == len(numbers) == len(published())
    assert len(pd.read_parquet(files[2])) == len(claims) == 1
