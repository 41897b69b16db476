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
from hypothesis import given, settings
from hypothesis import strategies as st
from nbformat.v4 import new_notebook
from scipy import stats

from companion import claims, inference
from companion.claims import CONTRADICTED, EQUAL, HOLDS, OPEN, TESTED, TRAINING, UNTESTED, WORST
from companion.sections import FAITHFUL, REDUCED, ROUNDS, SCALES
from fedlib import paths
from papers.registry import SECTIONS

SAID = "x", "Fig. 0"


def test_differences_are_paired_by_seed_and_told_in_points():
    a, b = {0: 0.5, 1: 0.9, 2: 0.1}, {2: 0.0, 0: 0.4, 1: 0.79, 7: 5.0}
    claim = claims.judge(*SAID, a, b)
    assert claim.verdict == HOLDS and claim.seeds == 3 and claim.unit == "points"
    assert claim.effect == pytest.approx(31 / 3) and claim.values == "0.1 0.11 0.1"
    assert claim.measured.startswith("0.500 vs 0.397: +10.3 points [8.9, 11.8] (criterion: > 0)")
    assert claims.judge(*SAID, b, a).verdict == CONTRADICTED
    assert claims.judge(*SAID, a, {}).verdict == UNTESTED
    assert claims.judge(*SAID, [1.0, 1.1], 0.5).verdict == UNTESTED
    traffic = claims.judge(*SAID, {s: 30.0 + s for s in a}, dict.fromkeys(a, 20.0))
    assert (traffic.unit, traffic.effect) == ("", 11.0)


def test_a_claim_says_whose_it_is_and_one_about_another_scale_is_not_judged():
    about = {"kind": "ours", "exploratory": True, "quote": "it is"}
    claim = claims.judge(*SAID, [1.0, 1.1, 1.2], 0.5, **about)
    assert {n: getattr(claim, n) for n in about} == about
    (row,) = claims.shown(claims.table({"here": [claim]})).to_dict("records")
    told = {"claim": "x", "source": "ours, exploratory", "seeds": "3", "place": SAID[1]}
    assert {n: row[n] for n in told} == told
    far = claims.judge(*SAID, [1.0, 1.1, 1.2], 0.5, here=False)
    assert far.verdict == UNTESTED and math.isnan(far.p) and far.needed == 0


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


FLOORS = {0: UNTESTED, 0.0049: UNTESTED, 0.0051: HOLDS}


@pytest.mark.parametrize(("above", "verdict"), FLOORS.items())
def test_what_every_run_has_by_the_floor_alone_does_not_hold(above, verdict):
    floor = {0: 0.4, 1: 0.5, 2: 0.6}
    a, b = ({s: v + above for s, v in floor.items()}, {s: v - 0.1 for s, v in floor.items()})
    claim = claims.judge(*SAID, a, b, floor=floor)
    assert claim.verdict == verdict and ("the floor" in claim.measured) == (verdict == UNTESTED)
    assert claims.judge(*SAID, a, a, ">=", floor=floor).verdict == verdict
    assert claims.judge(*SAID, a, 0.1, floor=floor).verdict == verdict
    assert claims.judge(*SAID, b, a, floor=floor).verdict == CONTRADICTED  # what fails may fail
    zero, least = dict.fromkeys(floor, 0.0), dict.fromkeys(floor, claims.BARELY)
    assert claims.judge(*SAID, least, -0.1, floor=zero).verdict == UNTESTED
    noise = {s: v + 0.001 * (s - 1) for s, v in floor.items()}  # no difference of a point
    for at, same in ({}, EQUAL), (floor, UNTESTED):
        assert claims.judge(*SAID, noise, floor, floor=at).verdict == same


def test_two_sides_that_are_the_same_in_every_seed_differ_in_nothing():
    a, one = {0: 0.4, 1: 0.5, 2: 0.6}, {"p": pytest.approx(math.nan, nan_ok=True), "needed": 0}
    for rule, verdict in ((">", CONTRADICTED), ("<", CONTRADICTED), ("~", HOLDS), (">=", HOLDS)):
        claim = claims.judge(*SAID, a, dict(a), rule)
        assert claim.verdict == verdict and (claim.low, claim.high) == (0, 0)
        if verdict == CONTRADICTED:
            assert {name: getattr(claim, name) for name in one} == one
    assert claims.judge(*SAID, [0.5] * 3, 0.5).verdict == CONTRADICTED
    assert claims.judge(*SAID, a, {**a, 2: 0.61}).verdict == OPEN
    assert claims.judge(*SAID, a, dict(a), floor=a).verdict == UNTESTED


@pytest.mark.parametrize("none", [math.nan, math.inf])
def test_a_seed_without_a_number_is_one_that_was_not_run(none):
    """It left claims undecided, which over 1000 seeds were to decide."""
    a, b = {0: 0.4, 1: 0.5, 2: 0.6, 3: 0.5}, {0: 0.1, 1: 0.2, 2: 0.2, 3: 0.1}
    for side in (b, 0.1):
        whole, with_gap = (claims.judge(*SAID, of, side) for of in (a, {**a, 4: none}))
        assert whole.verdict == HOLDS and with_gap == whole
    assert claims.judge(*SAID, {**a, 4: 0.5}, {**b, 4: none}) == claims.judge(*SAID, a, b)
    floored = claims.judge(*SAID, {**a, 4: none}, 0.1, floor={**a, 4: 0.0})
    assert floored.verdict == UNTESTED
    few = claims.judge(*SAID, {**a, 0: none, 1: none}, 0.1)
    assert (few.verdict, few.seeds) == (UNTESTED, 2)


@pytest.mark.parametrize(("side", "verdict"), [(1, HOLDS), (-1, CONTRADICTED)])
def test_a_call_is_close_where_its_interval_ends_within_half_its_width_of_it(side, verdict):
    half = EDGES[3][0] / math.sqrt(3)  # of an interval of three runs that are 1 apart
    for mean, clear in ((1.95 * half, False), (2.05 * half, True)):
        runs = [side * mean + d for d in (-1, 0, 1)]
        claim = claims.judge(*SAID, runs, 0.0, limits=None)
        assert (claim.verdict, claim.clear) == (verdict, clear)


def test_what_seeds_would_decide_is_told_with_an_undecided_claim():
    def seeds(claim):
        return claims.shown(claims.table({"here": [claim]}))["seeds"].item()

    near = claims.judge(*SAID, {0: 0.52, 1: 0.54, 2: 0.53}, {0: 0.53, 1: 0.5, 2: 0.5})
    assert near.verdict == OPEN and 3 < near.needed < 30
    assert seeds(near) == f"3 ({near.needed} seeds would decide)"
    none = claims.judge(*SAID, [0.1, -0.1, 0.0], 0.0)
    assert seeds(none) == "3 (over 1000 seeds would decide)"
    clear = claims.judge(*SAID, [10.0, 10.1, 10.2], 0.5)
    close = claims.judge(*SAID, [0.54, 0.56, 0.58], 0.47)
    assert clear.verdict == close.verdict == HOLDS and clear.clear and not close.clear
    assert seeds(clear) == "3"


# The same by a second, naive route.


# Student's quantiles of 97.5% and 99% by number of runs, from a printed table.
EDGES = {3: (4.30265273, 6.96455673), 4: (3.182446305, 4.540702858)}
EDGES |= {5: (2.776445105, 3.746947388), 6: (2.570581836, 3.364929999)}
EDGES |= {9: (2.306004135, 2.896459448), 10: (2.262157163, 2.821437925)}
EDGES |= {11: (2.228138852, 2.763769458), 15: (2.144786688, 2.624494068)}


def naive(values, limits, looks=1, level=0.95):
    """Interval of runs, in plain Python."""
    n, mean = len(values), statistics.fmean(values)
    edge = (
        EDGES[n][level == 0.98] if looks == 1 else stats.t.ppf(1 - (1 - level) / 2 / looks, n - 1)
    )
    half = edge * statistics.stdev(values) / math.sqrt(n) if len(set(values)) > 1 else 0.0
    ends = [mean - half, mean + half]
    if limits and half:
        a, b = limits
        at = math.acos(1 - 2 * (mean - a) / (b - a))
        turn = half / math.sqrt((mean - a) * (b - mean))
        angles = max(at - turn, 0), min(at + turn, math.pi)
        ends = [a + (b - a) * (1 - math.cos(angle)) / 2 for angle in angles]
    return ends


def verdict_of(ends, least, most, points=False):
    """What an interval of 98% decides; of a difference in points, also that there is none."""
    low, high = ends
    if high < least or low > most or low == high in (least, most):  # beyond it is not on it
        return CONTRADICTED
    if least < low and high < most:
        return HOLDS
    none = points and 0 in (least, most) and low > -0.01 and high < 0.01
    return EQUAL if none else OPEN


shares = st.lists(st.integers(0, 1000).map(lambda i: i / 1000), min_size=3, max_size=5)


@given(shares, st.sampled_from([0.1, 0.5, 0.95]))
def test_shares_are_judged_as_by_hand_and_their_intervals_stay_in_range(values, bound):
    for rule, ends in ((">", (bound, math.inf)), ("<", (-math.inf, bound))):
        found = claims.judge(*SAID, values, bound, rule)
        low, high = naive(values, (0, 1))
        assert (found.low, found.high) == pytest.approx((low, high), abs=1e-6)
        assert 0 <= found.low <= found.effect <= found.high <= 1
        strict = naive(values, (0, 1), level=0.98)
        if min(abs(end - bound) for end in (low, high, *strict)) > 1e-6:
            assert found.verdict == verdict_of(strict, *ends)
            assert (found.p <= 0.05) == (verdict_of((low, high), *ends) != OPEN)


@given(shares, st.data(), st.sampled_from([1, 0.02]), st.integers(1, 2))
def test_differences_are_judged_as_by_hand(values, data, spread, looks):
    """Also where they are so small that there is none of a point, and after another look."""
    size = {"min_size": len(values), "max_size": len(values)}
    other = data.draw(st.lists(st.integers(0, 1000).map(lambda i: i / 1000), **size))
    a, b = ({s: 0.5 + spread * (v - 0.5) for s, v in enumerate(of)} for of in (values, other))
    gaps = [a[s] - b[s] for s in a]
    ends, strict = (naive(gaps, (-1, 1), looks, level) for level in (0.95, 0.98))
    for rule, least, most in (
        (">", 0, math.inf), ("<", -math.inf, 0), (">=", -0.01, math.inf),
        ("<=", -math.inf, 0.01), ("~", -0.01, 0.01),
    ):  # fmt: skip
        found = claims.judge(*SAID, a, b, rule, looks={0: looks})
        assert (found.low, found.high) == pytest.approx([100 * e for e in ends], abs=1e-4)
        if min(abs(e - x) for e in (*ends, *strict) for x in (-0.01, 0, 0.01)) > 1e-6:
            assert found.verdict == verdict_of(strict, least, most, points=True)
            assert (found.p <= 0.05) == (verdict_of(ends, least, most) != OPEN)


def test_every_stored_claim_is_what_its_numbers_by_seed_say():
    """Interval and verdict of what notebooks have stored, from the numbers stored beside them."""
    checked, every = 0, itertools.product(SECTIONS.values(), SCALES)
    known = {
        look for one, scale in every for at in one.settings(scale).values() for look in at.looks
    }
    for file in (paths.ROOT / "figures").glob("standard/*_claims.csv"):
        table = pd.read_csv(file, keep_default_na=False)
        for row in table.to_dict("records") if "values" in table else ():
            values = [float(v) for v in str(row["values"]).split()]
            # Shares of seeds have an exact interval, and orders a shuffling: tests of their own.
            others = "share of seeds" in row["claim"] or "shuffling" in row["measured"]
            if row["verdict"] not in TESTED or row["seeds"] not in EDGES or others:
                continue
            scale = 100 if row["unit"] else 1
            least, most = (float(row[c]) / scale for c in ("least", "most"))
            # A difference of two sides that are no shares has no range: the table does not say so.
            ranges = [(-1, 1)] if max(map(abs, values)) < 1 else []  # of a correlation, too
            ranges += [] if row["unit"] else [inference_limits(values, least, most), None]
            looks = {1} | {times for least, times in known if least <= len(values)}
            # Of so many p the one that is most significantly behind is told.
            looks |= {*range(2, 8)} if "significantly behind" in row["claim"] else set()
            ends = [float(row[end]) / scale for end in ("low", "high")]
            stored = pytest.approx(ends, rel=1e-4, abs=1e-9)
            every = itertools.product(ranges, looks)
            (how, *_) = [of for of in every if naive(values, *of) == stored]
            found = verdict_of(naive(values, *how, level=0.98), least, most, bool(row["unit"]))
            assert row["verdict"] == found, (file, row["claim"])
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
        return (steps > stats.t.ppf(1 - claims.DISCOVERY / 2, n - 1)).mean()

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
        assert (claim.needed > claim.seeds) == (verdict == OPEN)
    assert claims.judge(*SAID, values, 0.0).p == pytest.approx(p, rel=1e-3)


COINS = [(0, 5, OPEN), (5, 5, OPEN), (0, 7, CONTRADICTED), (7, 7, HOLDS), (1, 7, OPEN)]


@pytest.mark.parametrize(("count", "n", "verdict"), [*COINS, (0, 2, UNTESTED)])
def test_what_is_so_or_not_in_few_runs_is_no_certainty(count, n, verdict):
    """Five coins that all fall on one side come in one of sixteen throws."""
    runs = {seed: float(seed < count) for seed in range(n)}
    claim = claims.judge(*SAID, runs, 0.5, claims.OFTEN)
    assert claim.verdict == verdict and claim.effect == count / n
    if verdict != UNTESTED:
        assert claim.p == pytest.approx(stats.binomtest(count, n, 0.5).pvalue)
        assert 0 <= claim.low <= count / n <= claim.high <= 1
        assert (claim.p < 0.05) == (not claim.low <= 0.5 <= claim.high)


def test_what_is_judged_after_looks_has_those_that_its_seeds_had():
    """With three seeds or none in a list there is one look; shares of runs are judged so, too."""
    values, often = [0.010, 0.014, 0.018, 0.001, 0.022], [1.0] * 8
    with claims.judging("mnist", {4: 2, 9: 3}):
        few, twice = (claims.judge(*SAID, values[:n], 0.0) for n in (3, 5))
        told = claims.judge(*SAID, values, 0.0, looks={})
        coins = claims.judge(*SAID, dict(enumerate(often)), 0.5, claims.OFTEN)
    once, plain = (claims.judge(*SAID, values[:n], 0.0) for n in (5, 3))
    assert (few, told) == (plain, once) and twice.p == pytest.approx(2 * once.p)
    edge = stats.t.ppf(1 - 0.05 / 4, 4) * stats.sem(values)
    ends = once.effect - edge, once.effect + edge
    assert (twice.low, twice.high) == pytest.approx(ends, abs=1e-5)
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
    assert (
        wrong.verdict == CONTRADICTED and "-1.00 within families" in wrong.measured and wrong.p == 0
    )
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


# One verdict of a claim, from all of its tests.


EFFECTS = [
    ((1, 0.5, 1.5, 1.2), "inside"), ((1, 0.5, 1.5, 2), "smaller"), ((1, 0.5, 1.5, 0.2), "larger"),
    ((-2, -2.5, -1.5, -1), "larger"), ((1, 0.5, 1.5, -1), "opposite"),
    ((-1, -1.5, -0.5, 1), "opposite"), ((0.2, -0.5, 0.9, -1), "smaller"),
    ((1, 0.5, 1.5, math.nan), ""), ((1, math.nan, math.nan, 1), ""),
    # By hand: half a point and 1.96 standard errors come to one point at .4419.
    ((1, 0.5, 1.5, 2, 0.44), "smaller"), ((1, 0.5, 1.5, 2, 0.443), "inside"),
    ((2, 1.5, 2.5, 1, 0.44), "larger"), ((2, 1.5, 2.5, 1, 0.443), "inside"),
]  # fmt: skip


@pytest.mark.parametrize(("numbers", "word"), EFFECTS)
def test_an_effect_is_compared_with_the_published_one(numbers, word):
    names = "effect", "low", "high", "published", "published_se"
    claim = claims.Claim(*SAID, "", HOLDS, 3, **dict(zip(names, numbers, strict=False)))
    assert claim.relation == word and claims.relations(claims.table({"": [claim]})) == [word]


def test_a_claim_of_a_curve_that_still_rises_is_told_so():
    claim = claims.Claim(*SAID, "1", OPEN, 3, needed=9, methods="a; b")
    assert claim.unless_rising({"a": 0.0049, "c": 0.5}) == claim
    assert claim.unless_rising({"a": 0.0099}) == replace(claim, clear=False)
    told = claim.unless_rising({"a": 0.02, "b": 0.01, "c": 0.5})
    assert (told.verdict, told.needed) == (TRAINING, 0)
    assert told.measured == "1; accuracy still rises, in points per quarter: a by 2.0, b by 1.0"
    none = replace(claim, verdict=UNTESTED)
    assert none.unless_rising({"a": 0.5}) == none
    alone = replace(claim, methods="")  # not about where training ends
    assert alone.unless_rising({"a": 0.5}) == alone


def a_test(verdict, setting=REDUCED, part="", dataset="a", seeds=3, **more):
    where = {"part": part, "setting": setting, "dataset": dataset}
    return claims.Claim(*SAID, "1", verdict, seeds, paper="000", name="n", **where, **more)


def answered(*tests, where="A (standard)"):
    """The one answer that tests give, each of a notebook of its own."""
    said = claims.sentences(claims.table({"": [a_test(HOLDS), replace(a_test(OPEN), name="o")]}))
    table = claims.table({where: tests}).assign(notebook=[str(i) for i in range(len(tests))])
    one, other = claims.answers(table, said).to_dict("records")
    assert (other["verdict"], other["parts"], other["claim"]) == (UNTESTED, 0, SAID[0])
    return one


DECIDING = {
    "the surest contradiction": (CONTRADICTED, (0.02, 0.001, math.nan), "1"),
    "what holds least surely": (HOLDS, (0.001, 0.02, math.nan), "1"),
    "the first of two alike": (HOLDS, (math.nan, math.nan), "0"),
    "nothing": (UNTESTED, (), pytest.approx(math.nan, nan_ok=True)),
}


@pytest.mark.parametrize(("verdict", "ps", "decides"), DECIDING.values(), ids=DECIDING)
def test_of_tests_with_one_verdict_one_decides(verdict, ps, decides):
    tests = [a_test(verdict, part=str(p), p=p) for p in ps]
    one = answered(*tests)
    assert (one["verdict"], one["notebook"]) == (verdict, decides)
    assert answered(*tests, where="Digits (quick)")["parts"] == 0


TESTS = st.builds(
    a_test, st.sampled_from(WORST), st.sampled_from(FAITHFUL), st.sampled_from("xyz"),
    st.sampled_from("ab"), st.integers(3, 9), exploratory=st.booleans(),
    kind=st.sampled_from(claims.KINDS),
)  # fmt: skip


@settings(max_examples=40)
@given(st.lists(TESTS, max_size=9))
def test_no_less_faithful_test_of_a_part_decides_anything(tests):
    """By plain loops: of every part and data set, the test with most seeds where it counts."""
    counted = {}
    for one in tests:
        mine = [t for t in tests if t.part == one.part and t.kind == "paper" and not t.exploratory]
        ranks = [(t.verdict == UNTESTED, FAITHFUL.index(t.setting)) for t in mine]
        there = [t for t, rank in zip(mine, ranks, strict=True) if rank == min(ranks)]
        for dataset in {t.dataset for t in there}:
            same = [t for t in there if t.dataset == dataset]
            counted[one.part, dataset] = max(same, key=lambda t: t.seeds)
    found, worst = answered(*tests), {t.verdict for t in counted.values()}
    assert found["parts"] == len(counted)
    assert found["verdict"] == min(worst, key=WORST.index, default=UNTESTED)
    if counted:
        one = counted[found["part"], found["dataset"]]
        assert (one.setting, one.seeds, one.verdict) == tuple(
            found[name] for name in ("setting", "seeds", "verdict")
        )


def test_an_answer_is_told_beside_what_was_published():
    numbers = {"effect": 3.21, "low": 1.1, "high": 5.3, "unit": "points", "published": 2.0}
    some = [a_test(HOLDS, ROUNDS, "x", "cifar10", **numbers), a_test(HOLDS, ROUNDS, "y", "cifar10")]
    table = claims.table({"A (standard)": some[:1]})
    for tests, of in (some[:1], "x"), (some, "x (x)"):
        table = claims.table({"A (standard)": tests})
        (row,) = claims.headlines(claims.answers(table, claims.sentences(table))).to_numpy()
        told = "+3.2 points [1.1, 5.3]", "2", "inside", "3", f"{ROUNDS}, CIFAR-10"
        assert [*row] == [HOLDS, of, *told]
    at = replace(some[0], measured="p = 0.7: 0.5 vs 0.4: +3.2 points [1.1, 5.3]")
    table = claims.table({"A (standard)": [at]})
    (row,) = claims.headlines(claims.answers(table, claims.sentences(table))).to_numpy()
    assert row[-1] == f"{ROUNDS}, CIFAR-10, p = 0.7", "the place that decides is named"
    nothing = claims.answers(table[:0], claims.sentences(table))
    assert claims.headlines(nothing).to_numpy().tolist() == [[UNTESTED, "x", *[""] * 5]]


WORDS = [
    ((3.214, 3.11, 3.32, "points"), "+3.21 points [3.11, 3.32]"),
    ((-0.5, math.nan, math.nan, "points"), "-0.5 points"), ((math.nan,) * 3 + ("",), ""),
    ((0.1234, 0.1101, 0.1401, ""), "0.123 [0.110, 0.140]"), ((0.5, 0.5, 0.5, ""), "0.5 [0.5, 0.5]"),
]  # fmt: skip


@pytest.mark.parametrize(("numbers", "words"), WORDS)
def test_an_effect_has_the_decimals_that_its_interval_asks_for(numbers, words):
    names = "effect", "low", "high", "unit"
    assert claims.effect(dict(zip(names, numbers, strict=True))) == words


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
    "turned": (ROWS, first(CONTRADICTED), False, "contradiction: 07, Digits (quick), alpha"),
    "flipped": (first(CLOSE), first(CONTRADICTED), False, "1 contradict"),
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
    assert set(kept["verdict"]) <= {*WORST}


def test_the_claims_about_the_baseline_are_one_row_per_place():
    """Two of three hold on the first data set, and all on the second."""
    beat, uneven = {0: 0.9, 1: 0.91, 2: 0.92}, {0: 0.4, 1: 0.6, 2: 0.5}
    won = {m: f"{m} beats the {claims.BASELINE}" for m in "abc"}
    ends = zip(won.values(), (beat, beat, uneven), strict=True)
    rows = [claims.judge(text, claims.BASELINE, a, 0.5) for text, a in ends]
    other = claims.judge("a beats b", "Fig. 1", beat, 0.5)
    told = claims.shown(claims.table({"X": [other, *rows], "Y": rows[:2]}))
    beat = f"methods beat the {claims.BASELINE}"
    assert told["claim"].tolist() == ["a beats b", f"2 of 3 {beat}", f"2 of 2 {beat}"]
    assert told["verdict"].tolist() == [HOLDS, OPEN, HOLDS]
    assert told["measured"].tolist()[1:] == ["undecided: c", ""]
    demo = claims.shown(claims.table({"Digits (quick)": rows[:2]}))
    assert demo["verdict"].tolist() == [f"{HOLDS} (demo)"]
