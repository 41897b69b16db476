"""Claims: what a handful of seeds decides, recomputed by a second route; and stored verdicts."""

import itertools
import math
import statistics
from dataclasses import replace
from functools import partial

import nbformat
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbformat.v4 import new_notebook
from scipy import stats

from companion import claims, inference
from companion.claims import ELSEWHERE, FAILS, HOLDS, OPEN, UNTESTED
from companion.sections import SCALES
from fedlib import paths
from papers.registry import SECTIONS

SAID = "x", "Fig. 0"


def test_differences_are_paired_by_seed_and_told_in_points():
    a, b = {0: 0.5, 1: 0.9, 2: 0.1}, {2: 0.0, 0: 0.4, 1: 0.79, 7: 5.0}
    claim = claims.judge(*SAID, a, b)
    assert claim.verdict == HOLDS and claim.seeds == 3 and claim.unit == "points"
    assert claim.effect == pytest.approx(31 / 3) and claim.values == "0.1 0.11 0.1"
    assert claim.measured.startswith("0.500 vs 0.397: +10.3 points [8.9, 11.8] (criterion: > 0)")
    assert claims.judge(*SAID, b, a).verdict == FAILS
    assert claims.judge(*SAID, a, {}).verdict == UNTESTED
    assert claims.judge(*SAID, [1.0, 1.1], 0.5).verdict == UNTESTED
    traffic = claims.judge(*SAID, {s: 30.0 + s for s in a}, dict.fromkeys(a, 20.0))
    assert (traffic.unit, traffic.effect) == ("", 11.0)


def test_a_claim_says_whose_it_is_and_one_about_another_scale_is_not_judged():
    about = {"kind": "ours", "exploratory": True, "quote": "it is"}
    claim = claims.judge(*SAID, [1.0, 1.1, 1.2], 0.5, **about)
    assert {n: getattr(claim, n) for n in about} == about
    (row,) = claims.shown(claims.table({"here": [claim]})).to_dict("records")
    told = {"claim": "x (“it is”)", "whose": "ours, exploratory", "detectable effect": "0.33"}
    assert {n: row[n] for n in told} == told
    least = (1, "points"), (253.6, ""), (math.nan, "")
    every = [replace(claim, detects=effect, unit=unit) for effect, unit in least]
    effects = claims.shown(claims.table({"here": every}))["detectable effect"]
    assert effects.tolist() == ["1.0 points", "254", ""]
    far = claims.judge(*SAID, [1.0, 1.1, 1.2], 0.5, here=False)
    assert far.verdict == ELSEWHERE and math.isnan(far.p) and far.needed == 0


close = partial(pytest.approx, rel=1e-4)
TOLD = [
    (([12, 13.0, 14], 20, "<"), {"measured": "13 [10.52, 15.48] (criterion: < 20)", "most": 20}),
    (([2.0, 3.0, 4.0], 1), {"measured": "3.000 [0.516, 5.484] (criterion: > 1)", "least": 1}),
    (([0.98, 0.99, 1.0], 0.5), {"low": close(0.950224), "high": 1, "p": close(0.00178790)}),
    (({0: 0.0, 1: 0.02, 2: 0.04}, dict.fromkeys(range(3), 0.99)), {"low": close(-99.91515)}),
    (([1.0], 0.5), {"measured": "1.000 (criterion: > 0.5)", "seeds": 1, "values": "1"}),
    (({0: 1.0}, {}), {"measured": "not trained yet", "seeds": 0}),
]


@pytest.mark.parametrize(("sides", "told"), TOLD)
def test_a_claim_tells_what_its_sides_come_to(sides, told):
    """A share stays below 1 and a difference of two above -100 points."""
    claim = claims.judge(*SAID, *sides, kind="ours")
    assert (claim.text, claim.place, claim.kind) == (*SAID, "ours")
    assert {n: getattr(claim, n) for n in told} == told


FLOORS = {0: ELSEWHERE, 0.0049: ELSEWHERE, 0.0051: HOLDS}


@pytest.mark.parametrize(("above", "verdict"), FLOORS.items())
def test_what_every_run_has_by_the_floor_alone_does_not_hold(above, verdict):
    floor = {0: 0.4, 1: 0.5, 2: 0.6}
    a, b = ({s: v + above for s, v in floor.items()}, {s: v - 0.1 for s, v in floor.items()})
    claim = claims.judge(*SAID, a, b, floor=floor)
    assert claim.verdict == verdict and ("the floor" in claim.measured) == (verdict == ELSEWHERE)
    assert claims.judge(*SAID, a, a, ">=", floor=floor).verdict == verdict
    assert claims.judge(*SAID, a, 0.1, floor=floor).verdict == verdict
    assert claims.judge(*SAID, b, a, floor=floor).verdict == FAILS  # what fails may fail
    zero, least = dict.fromkeys(floor, 0.0), dict.fromkeys(floor, claims.BARELY)
    assert claims.judge(*SAID, least, -0.1, floor=zero).verdict == ELSEWHERE


def test_two_sides_that_are_the_same_in_every_seed_differ_in_nothing():
    a, one = {0: 0.4, 1: 0.5, 2: 0.6}, {"p": pytest.approx(math.nan, nan_ok=True), "needed": 0}
    for rule, verdict in ((">", FAILS), ("<", FAILS), ("~", HOLDS), (">=", HOLDS)):
        claim = claims.judge(*SAID, a, dict(a), rule)
        assert claim.verdict == verdict and (claim.low, claim.high) == (0, 0)
        if verdict == FAILS:
            assert {name: getattr(claim, name) for name in one} == one
    assert claims.judge(*SAID, [0.5] * 3, 0.5).verdict == FAILS
    assert claims.judge(*SAID, a, {**a, 2: 0.61}).verdict == OPEN
    assert claims.judge(*SAID, a, dict(a), floor=a).verdict == ELSEWHERE


@pytest.mark.parametrize("none", [math.nan, math.inf])
def test_a_seed_without_a_number_is_one_that_was_not_run(none):
    """It left claims undecided, which over 1000 seeds were to decide."""
    a, b = {0: 0.4, 1: 0.5, 2: 0.6, 3: 0.5}, {0: 0.1, 1: 0.2, 2: 0.2, 3: 0.1}
    for side in (b, 0.1):
        whole, with_gap = (claims.judge(*SAID, of, side) for of in (a, {**a, 4: none}))
        assert whole.verdict == HOLDS and with_gap == whole
    assert claims.judge(*SAID, {**a, 4: 0.5}, {**b, 4: none}) == claims.judge(*SAID, a, b)
    floored = claims.judge(*SAID, {**a, 4: none}, 0.1, floor={**a, 4: 0.0})
    assert floored.verdict == ELSEWHERE
    few = claims.judge(*SAID, {**a, 0: none, 1: none}, 0.1)
    assert (few.verdict, few.seeds) == (UNTESTED, 2)


@pytest.mark.parametrize("side", [1, -1])
def test_an_equivalence_is_decided_at_the_nearer_of_its_boundaries(side):
    gaps, near = [side * v for v in (0.001, 0.004, 0.013)], side * 0.01
    claim = claims.judge(*SAID, gaps, 0.0, "~")
    assert claim.verdict == OPEN and claim.needed == inference.needed(gaps, near)
    assert claim.p == pytest.approx(stats.ttest_1samp(gaps, near).pvalue, rel=0.01)


@pytest.mark.parametrize(("side", "verdict"), [(1, HOLDS), (-1, FAILS)])
def test_a_call_is_close_where_its_interval_ends_within_half_its_width_of_it(side, verdict):
    half = EDGES[3] / math.sqrt(3)  # of an interval of three runs that are 1 apart
    for mean, clear in ((1.95 * half, False), (2.05 * half, True)):
        runs = [side * mean + d for d in (-1, 0, 1)]
        claim = claims.judge(*SAID, runs, 0.0, limits=None)
        assert (claim.verdict, claim.clear) == (verdict, clear)


def test_what_seeds_would_decide_is_told_with_an_undecided_claim():
    def seeds(claim):
        return claims.shown(claims.table({"here": [claim]}))["seeds"].item()

    near = claims.judge(*SAID, {0: 0.52, 1: 0.54, 2: 0.53}, {0: 0.53, 1: 0.5, 2: 0.5})
    assert near.verdict == OPEN and 3 < near.needed < 30
    assert seeds(near) == f"3 ({near.needed} would decide)"
    none = claims.judge(*SAID, [0.1, -0.1, 0.0], 0.0)
    assert seeds(none) == "3 (over 1000 would decide)"
    clear = claims.judge(*SAID, [10.0, 10.1, 10.2], 0.5)
    close = claims.judge(*SAID, [0.54, 0.56, 0.58], 0.47)
    assert clear.verdict == close.verdict == HOLDS and clear.clear and not close.clear
    assert seeds(clear) == "3"


# The same by a second, naive route.


# Student's quantile of 97.5% by number of runs, from a printed table.
EDGES = {3: 4.30265273, 4: 3.182446305, 5: 2.776445105}
EDGES |= {9: 2.306004135, 10: 2.262157163, 11: 2.228138852}


def naive(values, least, most, limits, looks=1):
    """Verdict and interval of runs, in plain Python."""
    n, mean = len(values), statistics.fmean(values)
    edge = EDGES[n] if looks == 1 else stats.t.ppf(1 - 0.025 / looks, n - 1)
    half = edge * statistics.stdev(values) / math.sqrt(n) if len(set(values)) > 1 else 0.0
    ends = [mean - half, mean + half]
    if limits and half:
        a, b = limits
        at = math.acos(1 - 2 * (mean - a) / (b - a))
        turn = half / math.sqrt((mean - a) * (b - mean))
        angles = max(at - turn, 0), min(at + turn, math.pi)
        ends = [a + (b - a) * (1 - math.cos(angle)) / 2 for angle in angles]
    inside = all(least < end < most for end in ends)
    # Beyond a boundary is not on it.
    outside = ends[1] < least or ends[0] > most or ends[0] == ends[1] in (least, most)
    return HOLDS if inside else FAILS if outside else OPEN, ends


shares = st.lists(st.integers(0, 1000).map(lambda i: i / 1000), min_size=3, max_size=5)


@given(shares, st.sampled_from([0.1, 0.5, 0.95]))
def test_shares_are_judged_as_by_hand_and_their_intervals_stay_in_range(values, bound):
    for rule, ends in ((">", (bound, math.inf)), ("<", (-math.inf, bound))):
        found = claims.judge(*SAID, values, bound, rule)
        verdict, (low, high) = naive(values, *ends, (0, 1))
        assert (found.low, found.high) == pytest.approx((low, high), abs=1e-6)
        assert 0 <= found.low <= found.effect <= found.high <= 1
        if min(abs(low - bound), abs(high - bound)) > 1e-6:
            assert found.verdict == (OPEN if found.p > claims.DISCOVERY else verdict)
            assert (found.p <= 0.05) == (verdict != OPEN)


@given(shares, st.data())
def test_differences_are_judged_as_by_hand(values, data):
    size = {"min_size": len(values), "max_size": len(values)}
    other = data.draw(st.lists(st.integers(0, 1000).map(lambda i: i / 1000), **size))
    a, b = (dict(enumerate(side)) for side in (values, other))
    gaps = [x - y for x, y in zip(values, other, strict=True)]
    for rule, least, most in (
        (">", 0, math.inf), (">=", -0.01, math.inf),
        ("<=", -math.inf, 0.01), ("~", -0.01, 0.01),
    ):  # fmt: skip
        found = claims.judge(*SAID, a, b, rule)
        verdict, ends = naive(gaps, least, most, (-1, 1))
        assert (found.low, found.high) == pytest.approx([100 * e for e in ends], abs=1e-4)
        if min(abs(e - x) for e in ends for x in (least, most)) > 1e-6:
            assert found.verdict == (OPEN if found.p > claims.DISCOVERY else verdict)
            assert (found.p <= 0.05) == (verdict != OPEN)


def test_every_stored_claim_is_what_its_numbers_by_seed_say():
    """Interval and verdict of what notebooks have stored, from the numbers stored beside them."""
    checked, every = 0, itertools.product(SECTIONS.values(), SCALES)
    settings = (setting for section, scale in every for setting in section.settings(scale).values())
    known = {look for setting in settings for look in setting.looks}
    for file in (paths.ROOT / "figures").glob("standard/*_claims.csv"):
        table = pd.read_csv(file, keep_default_na=False)
        for row in table.to_dict("records") if "values" in table else ():
            values = [float(v) for v in str(row["values"]).split()]
            if row["verdict"] not in (HOLDS, FAILS, OPEN) or row["seeds"] not in EDGES:
                continue
            scale = 100 if row["unit"] else 1
            least, most = (float(row[c]) / scale for c in ("least", "most"))
            # A difference of two sides that are no shares has no range: the table does not say so.
            ranges = [(-1, 1)] if max(map(abs, values)) < 1 else []  # of a correlation, too
            ranges += [] if row["unit"] else [inference_limits(values, least, most), None]
            looks = {1} | {times for least, times in known if least <= len(values)}
            found = [naive(values, least, most, *of) for of in itertools.product(ranges, looks)]
            if "share of seeds" in row["claim"]:  # an exact interval, which has a test of its own
                continue
            ends = [float(row[end]) / scale for end in ("low", "high")]
            stored = pytest.approx(ends, rel=1e-4, abs=1e-9)
            (verdict, _), *_ = [one for one in found if [*one[1]] == stored]
            reasons = ("the floor", "shuffling", "may be chance")
            excused = [reason in row["measured"] for reason in reasons]
            assert any(excused) or row["verdict"] == verdict, (file, row["claim"])
            checked += 1
    assert checked > 50


def inference_limits(values, least, most):
    bounds = [b for b in (least, most) if math.isfinite(b)]
    ranges = ((low, 1) for low in (0, -1) if all(low <= v <= 1 for v in values))
    return next((of for of in ranges if all(of[0] < b < 1 for b in bounds)), None)


def test_the_smallest_difference_is_found_four_times_in_five():
    """By playing the experiment 20,000 times."""
    values = [0.01, 0.03, 0.02, 0.0]
    effect, sd = statistics.fmean(values), statistics.stdev(values)

    def found(effect, n):
        runs = np.random.default_rng(1).normal(effect, sd, (20_000, n))
        steps = runs.mean(1) / (runs.std(1, ddof=1) / math.sqrt(n))
        return (steps > stats.t.ppf(0.975, n - 1)).mean()

    assert found(inference.detectable(values), 4) == pytest.approx(0.8, abs=0.01)
    enough = inference.needed(values, 0.0)
    assert found(effect, enough - 1) < 0.8 <= found(effect, enough)


def test_false_discoveries_are_counted_by_rank():
    """Benjamini and Hochberg: the largest k with p_(k) <= k q / m."""
    p = pd.Series([0.001, 0.012, 0.014, 0.04, 0.2, math.nan], index=list("abcdef"))
    kept = inference.discoveries(p)
    ranked = sorted(p.dropna())
    last = max(v for k, v in enumerate(ranked, 1) if v <= 0.05 * k / len(ranked))
    assert kept.to_dict() == {k: bool(v <= last) for k, v in p.items()}
    assert kept.sum() == 4 and not inference.discoveries(p[-1:]).any()


def test_a_verdict_that_may_be_chance_among_many_is_undecided_and_tells_why():
    """One bound, one p: what notebooks, findings and the scorecard say is this one verdict."""
    values = [0.010, 0.014, 0.018, 0.004, 0.022]
    p = stats.ttest_1samp(values, 0).pvalue
    for shift, verdict in ((0.0, HOLDS), (-0.0035, OPEN)):
        claim = claims.judge(*SAID, [v + shift for v in values], 0.0)
        assert claim.verdict == verdict and claim.low > 0 and claim.clear <= (verdict == HOLDS)
        assert ("may be chance" in claim.measured) == (claim.p > claims.DISCOVERY)
    assert claims.judge(*SAID, values, 0.0).p == pytest.approx(p, rel=1e-3)


@pytest.mark.parametrize(
    "count, n, verdict",
    [(0, 5, OPEN), (5, 5, OPEN), (0, 7, FAILS), (7, 7, HOLDS), (1, 7, OPEN), (0, 2, UNTESTED)],
)
def test_what_is_so_or_not_in_few_runs_is_no_certainty(count, n, verdict):
    """Five coins that all fall on one side come in one of sixteen throws."""
    runs = {seed: float(seed < count) for seed in range(n)}
    claim = claims.judge(*SAID, runs, 0.5, claims.OFTEN)
    assert claim.verdict == verdict and claim.effect == count / n
    if verdict != UNTESTED:
        assert claim.p == pytest.approx(stats.binomtest(count, n, 0.5).pvalue)
        assert 0 <= claim.low <= count / n <= claim.high <= 1
        assert (claim.p < 0.05) == (not claim.low <= 0.5 <= claim.high)


def test_more_seeds_after_a_look_widen_the_interval_that_decides():
    values = [0.010, 0.014, 0.018, 0.001, 0.022]
    once, twice = (claims.judge(*SAID, values, 0.0, looks=of) for of in ({}, {4: 2, 7: 3}))
    assert twice.p == pytest.approx(2 * once.p) and twice.effect == once.effect
    edge = stats.t.ppf(1 - 0.05 / 4, 4) * stats.sem(values)
    ends = once.effect - edge, once.effect + edge
    assert (twice.low, twice.high) == pytest.approx(ends, abs=1e-5)


def test_what_is_judged_after_looks_has_those_that_its_seeds_had():
    """With three seeds or none in a list there is one look; shares of runs are judged so, too."""
    values, often = [0.010, 0.014, 0.018, 0.001, 0.022], [1.0] * 8
    with claims.after_looks({4: 2, 9: 3}):
        few, twice = (claims.judge(*SAID, values[:n], 0.0) for n in (3, 5))
        told = claims.judge(*SAID, values, 0.0, looks={})
        coins = claims.judge(*SAID, dict(enumerate(often)), 0.5, claims.OFTEN)
    once, plain = (claims.judge(*SAID, values[:n], 0.0) for n in (5, 3))
    assert (few, told) == (plain, once) and twice.p == pytest.approx(2 * once.p)
    assert coins.p == pytest.approx(4 / 2**8) and coins.low == pytest.approx(0.0125 ** (1 / 8))


def test_the_bound_controls_false_discoveries_among_the_stored_claims():
    """Raising it needs other claims, not another opinion; half as strict would do nothing more."""
    kept = claims.stored()
    p = kept.loc[~kept["tested on"].str.contains("(quick)", regex=False), "p"].dropna()
    if len(p):
        assert inference.discoveries(p)[p <= claims.DISCOVERY].all()


def test_an_order_within_families_is_compared_with_every_shuffling():
    ours, theirs = [1, 2, 4, 3, 9, 7, 8], [10, 20, 30, 40, 50, 60, 70]
    families = list("aaaabbb")
    seen, p = inference.concordance(ours, theirs, families, draws=40_000)

    def score(a, b):
        mean = statistics.fmean
        return sum((x - mean(a)) * (y - mean(b)) for x, y in zip(a, b, strict=True))

    ranks = [1, 2, 4, 3], [3, 1, 2]
    plain = [1, 2, 3, 4], [1, 2, 3]
    total = sum(map(score, ranks, plain))
    assert seen == pytest.approx(total / (5 + 2))
    perms = itertools.product(*(itertools.permutations(r) for r in ranks))
    reached = [sum(map(score, each, plain)) >= total - 1e-9 for each in perms]
    assert p == pytest.approx(statistics.fmean(reached), abs=0.01)
    # The gap between two families is no evidence: shifting one changes nothing.
    apart = inference.concordance([1, 2, 4, 3, 109, 107, 108], theirs, families, draws=40_000)
    assert apart == (seen, p)
    assert inference.concordance([1, 2], [1, 2], ["a", "b"])[1] == 1.0


def test_orders_hold_against_chance_and_fail_where_they_are_others():
    theirs = {m: i for i, m in enumerate("abcdefgh")}
    family = dict.fromkeys("abcd", "one") | dict.fromkeys("efgh", "two")

    def order(names):
        ours = {m: {s: names.index(m) + 0.1 * s for s in range(3)} for m in names}
        return claims.ordered(*SAID, ours, theirs, family)

    assert order("abcdefgh").verdict == order("efghabcd").verdict == HOLDS
    assert order("abdcefgh").p == pytest.approx(0.014, abs=0.005)
    wrong = order("dcbahgfe")
    assert wrong.verdict == FAILS and "-1.00 within families" in wrong.measured and wrong.p == 0
    none = claims.ordered(*SAID, {"a": {0: 1.0}}, theirs, family)
    assert (none.verdict, none.place, none.seeds) == (UNTESTED, SAID[1], 0)
    for alone in (family, dict(zip(theirs, theirs, strict=True))):  # all alike, or one in each
        same = claims.ordered(
            *SAID, {m: dict.fromkeys(range(3), 1.0) for m in theirs}, theirs, alone
        )
        assert (same.verdict, same.measured, same.seeds) == (UNTESTED, claims.NO_ORDER, 3)
    like = {"a": (1, 2, 2), "b": (2, 1, 4), "c": (4, 1, 1), "d": (3, 4, 3)}
    some = {m: dict(enumerate(values)) for m, values in like.items()}
    assert claims.ordered(*SAID, some, theirs, family).verdict == OPEN


# What notebooks have told, compared with what another execution tells.

QUICK, STORED = "Digits (quick), alpha", "CIFAR-10 (standard)"
CLOSE = "a close call that holds"


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Keep notebooks and figures in folders of their own; return them."""
    found = tmp_path / "notebooks", tmp_path / "figures" / "quick"
    monkeypatch.setenv("FEDLIB_NOTEBOOKS", str(found[0]))
    for folder in found:
        folder.mkdir(parents=True)
    return found


def execute(folders, number, rows):
    """Have a notebook of that number written its claims; return its path."""
    notebook = folders[0] / f"{number}_some.ipynb"
    nbformat.write(new_notebook(), notebook)
    full = [
        (where, claim, "000", "1.0", HOLDS if verdict == CLOSE else verdict, 3,
         verdict not in (CLOSE, OPEN))
        for where, claim, verdict in rows
    ]  # fmt: skip
    names = ["tested on", "claim", "place", "measured", "verdict", "seeds", "clear"]
    pd.DataFrame(full, columns=names).to_csv(folders[1] / f"{number}_claims.csv", index=False)
    return notebook


ROWS = [(QUICK, str(i), HOLDS) for i in range(20)]


def test_what_is_stored_is_what_an_execution_told(folders):
    odd = [*ROWS[:1], (STORED, 'a, "b" and c: d', CLOSE), (STORED, "x" * 99, UNTESTED)]
    for number, rows in (("07", ROWS), ("03", odd), ("09", ROWS)):
        claims.store(execute(folders, number, rows), folders[1])
    kept = claims.stored()
    assert kept["notebook"].drop_duplicates().tolist() == ["03", "07", "09"] and len(kept) == 43
    third = kept[kept["notebook"] == "03"]
    assert third["claim"].tolist() == [claim for _, claim, _ in odd]
    assert third["clear"].tolist() == [True, False, True]
    assert claims.compare(folders[1])
    (folders[0] / "09_some.ipynb").unlink()
    claims.store(execute(folders, "07", ROWS[1:]), folders[1])
    assert claims.stored()["notebook"].value_counts().to_dict() == {"03": 3, "07": 19}


def first(verdict):
    """The rows with another verdict of the first claim."""
    return [(QUICK, "0", verdict), *ROWS[1:]]


EXECUTIONS = {
    "same": (ROWS, ROWS, True, "20 verdicts, 20 of them on runs trained again: 0 contradict those"),
    "close": (ROWS, first(CLOSE), True, "0 came near"),
    "near": (ROWS, first(OPEN), True, f"near its boundary: 07, {QUICK}: 0: was"),
    "two near": (ROWS, [(QUICK, "1", OPEN), *first(OPEN)[:1], *ROWS[2:]], False, "DO NOT AGREE"),
    "turned": (ROWS, first(FAILS), False, "contradiction: 07, Digits (quick), alpha"),
    "flipped": (first(CLOSE), first(FAILS), False, "1 contradict"),
    "one more": (ROWS, [*ROWS, (STORED, "new", HOLDS)], False, f"07, {STORED}: new: was 'not"),
    "stored": ([*ROWS, (STORED, "a", CLOSE)], [*ROWS, (STORED, "a", OPEN)], False, f"{STORED}: a"),
    "not run": (ROWS, None, False, "0: was 'holds', is 'not tested'"),
}


@pytest.mark.parametrize(("old", "new", "agree", "said"), EXECUTIONS.values(), ids=EXECUTIONS)
def test_an_execution_is_compared_with_what_is_stored(folders, capsys, old, new, agree, said):
    claims.store(execute(folders, "07", old), folders[1])
    if new is None:
        (folders[1] / "07_claims.csv").unlink()
    else:
        execute(folders, "07", new)
    assert claims.compare(folders[1]) == agree and said in capsys.readouterr().out


def test_every_notebook_of_claims_saves_them_and_has_its_verdicts_stored():
    """The comparison would pass over a notebook whose verdicts it cannot find."""
    claiming = set()
    for notebook in sorted(paths.notebooks().glob("*.ipynb")):
        sources = [c.source for c in nbformat.read(notebook, as_version=4).cells]
        if any("claims_table(" in s for s in sources):
            number = notebook.name[:2]
            assert any(f'"{number}_claims", scale)' in s for s in sources), notebook.name
            claiming.add(number)
    kept = claims.stored()
    assert set(kept["notebook"]) == claiming and len(claiming) > 12
    assert not kept.duplicated(["notebook", "tested on", "claim"]).any(), "two would be one"
    assert set(kept["verdict"]) <= {HOLDS, FAILS, OPEN, UNTESTED, ELSEWHERE, claims.UNTRAINED}


def test_the_claims_about_the_baseline_are_one_row_per_place():
    """Two of three hold on the first data set, and all on the second."""
    beat, uneven = {0: 0.9, 1: 0.91, 2: 0.92}, {0: 0.4, 1: 0.6, 2: 0.5}
    won = {m: f"{m} beats the majority-class baseline" for m in "abc"}
    ends = zip(won.values(), (beat, beat, uneven), strict=True)
    rows = [claims.judge(text, claims.BASELINE, a, 0.5) for text, a in ends]
    other = claims.judge("a beats b", "Fig. 1", beat, 0.5)
    told = claims.folded(claims.table({"X": [other, *rows], "Y": rows[:2]}))
    beat = "methods judged here beat the majority-class baseline"
    assert told["claim"].tolist() == ["a beats b", f"2 of the 3 {beat}", f"2 of the 2 {beat}"]
    assert told["verdict"].tolist() == [HOLDS, OPEN, HOLDS]
    assert {*told} == {*claims.table({"X": rows})}
    assert told["measured"].tolist()[1:] == ["undecided: c", ""]
    assert claims.shown(told)["verdict"].tolist() == told["verdict"].tolist()
    demo = claims.shown(claims.table({"Digits (quick)": rows[:2]}))
    assert demo["verdict"].tolist() == [f"{HOLDS} (demo)"] * 2
