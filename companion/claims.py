"""Verdicts on the claims of papers, computed from runs.

A *claim* is one sentence of a paper with a criterion: a number, of which there is one per seed, is
above a bound, below a bound, or within a margin of zero. A *test* of a claim (`Claim`) is the
result in one setting. The 95% interval over seeds decides (`companion.inference`):

- ``holds``: the whole interval satisfies the criterion.
- ``contradicted``: the whole interval violates it.
- ``no difference of a point``: the claim says that one accuracy is larger than another, the sign is
  undecided, and the difference is within a percentage point of zero (two one-sided tests).
- ``undecided``: the interval contains the boundary, or p exceeds `DISCOVERY`.
- ``still training``: the claim is about the end of training, and a curve that it compares had not
  stopped rising (`companion.trained.Survey`).
- ``not tested``: there are fewer than three seeds, or the setting cannot show what is claimed.

No seed is left out for its outcome. Where runs did not train, or kept their initial model, the test
says in how many seeds (`companion.trained`). If no run of a method is better than the floor (the
majority-class baseline), the claim is not tested. Where seeds were added after a look at the
results, the interval and p are corrected for the number of looks.

A claim has one verdict (`answers`), from its most faithful setting; the tests in other settings are
listed below it. Next to the verdict stands the effect according to the paper's numbers, if they
give one, and whether the interval contains it (`Claim.relation`).

Verdicts are stored with the notebooks and compared with those of another execution. Training
amplifies differences in the last bit of a float: a processor with other instructions trains other
models of the same quality, so that a close call may get another verdict. A clear verdict may not.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from math import inf, isfinite, isnan, nan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from companion import inference
from companion.frames import put_table, read_table
from companion.inference import (
    CONTRADICTED,
    DISCOVERY,
    EQUAL,
    HOLDS,
    LEAST_SEEDS,
    MOST_SEEDS,
    OPEN,
    TRAINING,
    UNTESTED,
    Limits,
)
from companion.plotting.style import CALLED, MISSING, title
from companion.sections import DEMONSTRATION, FAITHFUL
from fedlib import paths
from fedlib.metrics.intervals import interval

BASELINE = CALLED  # also the ``place`` of claims about it
NO_ORDER = "no two methods of a family differ"  # ``measured`` if nothing can be ordered
TESTED = (HOLDS, CONTRADICTED, EQUAL, OPEN)
WORST = (CONTRADICTED, TRAINING, OPEN, UNTESTED, EQUAL, HOLDS)  # a claim has its worst part's
DEMO = "demo"  # marks the verdict of a test on digits
MARKS = {
    DEMO: "a demonstration on digits, which decides nothing about the paper",
    TRAINING: "a compared accuracy still rises by a point or more from the third to the last "
    "quarter of the rounds, so that nothing is known of where training ends",
    EQUAL: "the sign is undecided, and the difference is less than a percentage point",
}
PAPER, AUDIT, IDENTITY, OURS = KINDS = ("paper", "audit", "identity", "ours")
POINT = 0.01  # accuracies that differ by less than a percentage point count as the same
# The criteria of claims: the least and the largest difference from the other side. They ask for a
# number above or below, at most a point below or above, and within a point.
RULES = {">": (0.0, inf), "<": (-inf, 0.0)}
RULES |= {">=": (-POINT, inf), "<=": (-inf, POINT), "~": (-POINT, POINT)}
OFTEN = "often"  # a yes-or-no result is yes in more than a share of the runs
BARELY = 0.005  # a run that exceeds the floor by no more counts as the floor
ORDERED = 0.5  # the rank correlation below which an order is not the published one
INSIDE, SMALLER, LARGER, OPPOSITE = "inside", "smaller", "larger", "opposite"
BySeed = Mapping[int, float]
MOST_MOVED = 0.05
"""The share of trained verdicts that may leave their boundary, or reach it, by chance."""
VERDICTS = "verdicts.csv"  # next to the notebooks; `make notebooks` writes it
COLUMNS = ("notebook", "tested on", "claim", "verdict", "clear", "p")


@dataclass(frozen=True)
class Claim:
    """One test of a claim: the sentence, its source, what was measured, and the verdict.

    Attributes:
        text: the claim, and the ``part`` of it that is tested.
        place: where the paper says it.
        measured: the number in words, with its interval and criterion.
        verdict: one of ``WORST``.
        seeds: the number of seeds.
        clear: False for a close call: the interval ends within half its width of the boundary.
        kind: "paper" (in the words of the ``quote``), "audit" (the effect of released code, or of a
            way of reporting, on a number), "identity" (arithmetic), or "ours".
        quote: the paper's words.
        exploratory: whether the claim was made, or its setting chosen, after its numbers were seen.
        effect, low, high: the tested number and its interval, in percentage points if ``unit`` is
            "points".
        unit: "points" for differences of accuracies, "" for all else.
        least, most: the criterion.
        detects: the smallest difference from the criterion that so many seeds detect with 80%
            power.
        needed: the number of seeds that would decide an undecided claim at the measured effect, 0
            for others.
        p: the p-value of the boundary.
        values: the tested number by seed, with spaces in between.
        data: the data sets for which the paper makes the claim, "; " between them, "" for all.
        paper, name, part: the row of ``papers/claims.csv`` that is tested, and which part of it.
        methods: the methods whose curves are compared, "; " between them.
        published, published_se: the effect according to the paper's numbers, and its standard error
            if they have deviations; NaN for none.
        setting: how faithful the setting is, one of `companion.sections.FAITHFUL`.
        dataset: the data set on which the claim is tested.
    """

    text: str
    place: str
    measured: str
    verdict: str
    seeds: int
    clear: bool = True
    kind: str = PAPER
    quote: str = ""
    exploratory: bool = False
    effect: float = nan
    low: float = nan
    high: float = nan
    unit: str = ""
    least: float = -inf
    most: float = inf
    detects: float = nan
    needed: int = 0
    p: float = nan
    values: str = ""
    data: str = ""
    paper: str = ""
    name: str = ""
    part: str = ""
    methods: str = ""
    published: float = nan
    published_se: float = nan
    setting: str = ""
    dataset: str = ""

    def on(self, dataset: str, setting: str = "", exploratory: bool = False) -> "Claim":
        """Return the claim as tested on a data set, in a setting.

        If the paper makes the claim for other data sets, its kind becomes "ours", and it is
        exploratory.

        Args:
            dataset: the name of the data set.
            setting: how faithful the setting is.
            exploratory: whether the setting was chosen by looking at its results.
        """
        claim = replace(self, dataset=dataset, setting=setting)
        if self.data and dataset not in self.data.split("; "):
            theirs: dict[str, Any] = {"quote": "", "published": nan, "published_se": nan}
            claim = replace(claim, kind=OURS, exploratory=True, **theirs)
        return replace(claim, exploratory=True) if exploratory else claim

    def unless_rising(self, rising: Mapping[str, float]) -> "Claim":
        """Return the claim, with verdict `TRAINING` if a compared accuracy still rises by a point.

        The call is close if an accuracy rises by between half a point and one and a half.

        Args:
            rising: by method, how much its accuracy rises at the end of training.
        """
        rises = {m: rising[m] for m in self.methods.split("; ") if m in rising}
        still = {m: rise for m, rise in rises.items() if rise >= POINT}
        if self.verdict not in TESTED:
            return self
        near = any(abs(rise - POINT) < POINT / 2 for rise in rises.values())
        clear = self.clear and not near  # if it is near, another processor may decide otherwise
        if not still:
            return replace(self, clear=clear)
        told = ", ".join(f"{method} by {100 * rise:.1f}" for method, rise in still.items())
        told = f"{self.measured}; accuracy still rises, in points per quarter: {told}"
        return replace(self, verdict=TRAINING, measured=told, clear=clear, needed=0)

    @property
    def relation(self) -> str:
        """How the measured effect compares with the published one; "" if there is none.

        "inside" means that the interval contains the published effect. Otherwise the measured
        effect is "smaller", "larger", or "opposite", that is, of the other sign. A standard error
        of the published effect widens the interval.
        """
        return relation(self.effect, self.low, self.high, self.published, self.published_se)


def relation(effect: float, low: float, high: float, published: float, se: float = nan) -> str:
    """Return how a measured effect compares with a published one: see `Claim.relation`."""
    if isnan(published) or isnan(low):
        return ""
    error = 0.0 if isnan(se) else inference.Z * se
    below, above = np.hypot(effect - low, error), np.hypot(high - effect, error)
    if effect - below <= published <= effect + above:
        return INSIDE
    if published * effect < 0 and (low > 0 or high < 0):
        return OPPOSITE
    return SMALLER if abs(effect) < abs(published) else LARGER


def judge(
    text: str, place: str, a: BySeed | Sequence[float], b: BySeed | float, rule: str = ">",
    **about: Any,
) -> Claim:  # fmt: skip
    """Test that a number, one per seed, satisfies a criterion.

    Args:
        text, place: of the claim.
        a: the number by seed. A seed with a number that is not finite counts as not run.
        b: a bound, or numbers by seed: then the paired differences a - b are judged.
        rule: one of ``RULES``: ">" asks for a number above ``b``; "~" for equivalence, which holds
            if the whole interval lies within a percentage point (two one-sided tests). With
            ``OFTEN`` each number is 1 or 0, and ``b`` is the share of runs that must be exceeded.
        about: further fields of the claim (kind, quote, exploratory), and arguments of `_judge`:
            ``limits``, the range of the number, if its values do not show it; ``floor``, the
            baseline by seed; ``looks``, see `judging`; and ``here``, False if the setting cannot
            show what is claimed.
    """
    if rule == OFTEN:
        return _often(text, place, a, b, **about)
    least, most = RULES[rule]
    if isinstance(b, Mapping):
        return _compare(text, place, a, b, least=least, most=most, **about)
    return _judge(text, place, a, least=b + least, most=b + most, **about)


_WHERE: ContextVar[tuple[str, Mapping[int, int]]] = ContextVar("where", default=("", {}))


@contextmanager
def judging(dataset: str, looks: Mapping[int, int]) -> Iterator[None]:
    """Judge claims on a data set and after a number of looks, which they then need not state.

    Args:
        dataset: the name of the data set.
        looks: the number of looks at the results, by the least number of seeds for which it holds.
            {4: 2} are runs that were looked at with three seeds, and that have more seeds since.
    """
    token = _WHERE.set((dataset, looks))
    try:
        yield
    finally:
        _WHERE.reset(token)


def judged_dataset() -> str:
    """Return the name of the data set on which claims are judged, "" outside of `judging`."""
    return _WHERE.get()[0]


def looked(looks: Mapping[int, int] | None, seeds: int) -> int:
    """Return how often the results of so many seeds were looked at."""
    known = _WHERE.get()[1] if looks is None else looks
    return inference.looked(known, seeds)


def ordered(
    text: str,
    place: str,
    ours: Mapping[str, BySeed],
    theirs: Mapping[str, float],
    families: Mapping[str, str],
    **about: Any,
) -> Claim:
    """Test that methods are in the published order within their ``families``.

    The rank correlation within families of the means over seeds is compared with that of random
    permutations (`inference.concordance`). The claim holds if p, times the number of looks, is at
    most `DISCOVERY`, and is contradicted if the interval over seeds ends below ``ORDERED``.
    Differences between families, as between methods with and without private parts, are no
    evidence.

    Args:
        text, place: of the claim.
        ours: the measured numbers by method and seed.
        theirs: the published number of each method.
        families: the family of each method.
        about: further fields of the claim.
    """
    names = [m for m in theirs if ours.get(m)]
    seeds = sorted(set.intersection(*(set(ours[m]) for m in names))) if names else []
    if len(names) < 2 or not seeds:
        return Claim(text, place, MISSING, UNTESTED, 0, **about)

    def concordance(some: Sequence[int]) -> tuple[float, float]:
        means = [float(np.mean([ours[m][s] for s in some])) for m in names]
        groups = [families.get(m, "") for m in names]
        return inference.concordance(means, [theirs[m] for m in names], groups)

    (all_of_them, p), each = concordance(seeds), [concordance([s])[0] for s in seeds]
    p = min(p * looked(None, len(seeds)), 1.0)
    if isnan(all_of_them):
        return Claim(text, place, NO_ORDER, UNTESTED, len(seeds), **about)
    judged = _judge(text, place, each, least=ORDERED, limits=(-1.0, 1.0), **about)
    chance = f"{all_of_them:.2f} within families, p = {p:.2g} against shuffling"
    if judged.verdict not in TESTED:
        return replace(judged, measured=chance)
    if p <= DISCOVERY:
        return replace(judged, measured=chance, verdict=HOLDS, p=p, needed=0)
    if judged.verdict == CONTRADICTED:
        return replace(judged, measured=chance)
    return replace(judged, measured=chance, verdict=OPEN, p=p)


def _often(text: str, place: str, runs: Any, share: Any, **about: Any) -> Claim:
    """Test that more than a ``share`` of the runs, of which each is 1 or 0, are 1.

    The exact binomial interval decides, which is wide even if five runs agree. The detectable
    effect and the number of seeds needed are not computed.
    """
    values = [*_finite(runs).values()]
    judged = _judge(text, place, values, least=share, **about)
    if judged.verdict not in TESTED:
        return judged
    low, high, p = inference.binomial(values, share, looked(about.get("looks"), len(values)))
    verdict = HOLDS if share < low else CONTRADICTED if high < share else OPEN
    clear = min(abs(low - share), abs(high - share)) > (high - low) / 2
    measured = _in_words(judged.effect, low, high, share, inf, "")
    ends: dict[str, Any] = {"low": low, "high": high, "p": p, "detects": nan}
    judged = replace(judged, measured=measured, verdict=verdict, clear=clear, **ends)
    return replace(_cautious(judged), needed=0)


def table(claims: Mapping[str, Sequence[Claim]]) -> pd.DataFrame:
    """Return tests, given by the data set and scale of each, as a frame for a notebook."""
    rows = [{"tested on": where, **vars(c)} for where, tested in claims.items() for c in tested]
    names = ["tested on", *Claim.__dataclass_fields__]
    return pd.DataFrame(rows, columns=names).rename(columns={"text": "claim"})


def answers(tests: pd.DataFrame, said: pd.DataFrame) -> pd.DataFrame:
    """Return the verdict of each claim of a paper, from its most faithful setting.

    Each part of a claim is judged in the most faithful setting in which it was tested, on every
    data set of that setting. The claim has the worst verdict of its parts, and the numbers of the
    part that decides. Tests that are exploratory, ours, or on digits do not count.

    Args:
        tests: a table of tests, as `table` returns, with the column notebook.
        said: the claims: columns paper, name, claim, place, quote, and data.

    Returns:
        A row per claim: the columns of ``said``, those of the deciding test (verdict, effect, low,
        high, unit, seeds, p, needed, part, dataset, setting, published, notebook, ...), relation,
        and ``parts``, the number of tests behind the verdict.
    """
    keys = ["paper", "name", "part"]
    theirs = tests["kind"].eq(PAPER) & ~tests["exploratory"].astype(bool) & ~demonstrations(tests)
    mine = tests[theirs].assign(rank=ranks(tests[theirs]))
    chosen = mine[mine["rank"].eq(mine.groupby(keys)["rank"].transform("min"))]
    chosen = chosen.sort_values("seeds", ascending=False, kind="stable")
    chosen = chosen.drop_duplicates([*keys, "dataset"])
    # Of parts with the same verdict the least certain decides; of contradictions the most certain.
    sure = chosen["p"].fillna(1.0).where(chosen["verdict"].eq(CONTRADICTED), -chosen["p"])
    order = chosen.assign(worst=chosen["verdict"].map(WORST.index), sure=sure)
    order = order.sort_values(["worst", "sure"], kind="stable").drop_duplicates(keys[:2])
    deciding = order[[c for c in tests if c in keys[:2] or c not in said]]
    counts = chosen.groupby(keys[:2]).size().rename("parts").reset_index()
    tested = sentences(order)[[*keys[:2], "claim"]].rename(columns={"claim": "tested"})
    found = said.merge(deciding, "left", keys[:2]).merge(counts, "left", keys[:2])
    found = found.merge(tested, "left", keys[:2])  # its words are filled in
    found["claim"] = found.pop("tested").fillna(found["claim"])
    found = found.fillna({"parts": 0, "verdict": UNTESTED, "part": "", "setting": "", "unit": ""})
    return found.assign(relation=relations(found))


def ranks(tests: pd.DataFrame) -> pd.Series:
    """Return how faithful the setting of each test is: 0 for the most faithful.

    Tests with the verdict "not tested" come after all others.
    """
    rank = tests["setting"].map(FAITHFUL.index).astype(int)  # without rows, it is of type object
    return rank + len(FAITHFUL) * tests["verdict"].eq(UNTESTED)


def sentences(tests: pd.DataFrame) -> pd.DataFrame:
    """Return the papers' claims among tests, in the form that `answers` takes."""
    theirs = tests[tests["kind"].eq(PAPER) & ~tests["exploratory"].astype(bool)]
    part = [f": {part}" if part else "" for part in theirs["part"]]
    claim = [text.removesuffix(of) for text, of in zip(theirs["claim"], part, strict=True)]
    rows = theirs.assign(claim=claim)[["paper", "name", "claim", "place", "quote", "data"]]
    return rows.drop_duplicates(["paper", "name"])


def relations(tests: pd.DataFrame) -> list[str]:
    """Return how the effect of each row compares with the published one: see `Claim.relation`."""
    columns = ["effect", "low", "high", "published", "published_se"]
    return [relation(*row) for row in tests[columns].astype(float).to_numpy()]


def demonstrations(table: pd.DataFrame) -> pd.Series:
    """Return which tests were made on the digits of the quick scale: demonstrations."""
    return table["tested on"].str.contains(DEMONSTRATION, regex=False)


def effect(row: Mapping[Any, Any]) -> str:
    """Return the effect of a test with its interval: "+3.2 points [1.1, 5.3]"; "" for none.

    The number of decimals depends on the width of the interval.
    """
    mean, low, high = (float(row[name]) for name in ("effect", "low", "high"))
    if isnan(mean):
        return ""
    mean, low, high = (float(f"{v:.6g}") for v in (mean, low, high))  # as tables are stored
    width = high - low if high > low else abs(mean) or 1.0
    digits = int(np.clip(-np.floor(np.log10(width / 5)), 1, 3 if row["unit"] else 4))
    mean, low, high = (round(v, digits) + 0.0 for v in (mean, low, high))  # + 0.0: no "-0.0"
    sign, unit = ("+", f" {row['unit']}") if row["unit"] else ("", "")
    interval = "" if isnan(low) else f" [{low:.{digits}f}, {high:.{digits}f}]"
    return f"{mean:{sign}.{digits}f}{unit}{interval}"


HEADS = ("verdict", "claim", "measured", "published", "vs published", "seeds", "setting")


def headlines(answers: pd.DataFrame) -> pd.DataFrame:
    """Return `answers` as a table for readers: the verdict first, and published beside measured.

    Columns verdict, claim, measured, published, vs published (`Claim.relation`), seeds, and setting
    with the data set. If several parts or data sets are judged, the numbers are of the deciding
    one.
    """
    found = [_headline(row) for row in answers.to_dict("records")]
    return pd.DataFrame(found, columns=HEADS)


def _headline(row: Mapping[Any, Any]) -> tuple[str, ...]:
    claim = f"{row['claim']} ({row['part']})" if row["part"] and row["parts"] > 1 else row["claim"]
    published = "" if pd.isna(row["published"]) else f"{row['published']:.3g}"
    if not row["parts"]:
        return row["verdict"], claim, "", published, "", "", ""
    # The text may begin with the place that decides, such as "p = 0.7: +1.2 points".
    place, measured, _ = row["measured"].partition(": ")
    at = place if measured and " = " in place else ""
    where = ", ".join(filter(None, (row["setting"], title(str(row["dataset"])), at)))
    seeds = str(int(row["seeds"]))
    return row["verdict"], claim, effect(row), published, row["relation"], seeds, where


def shown(table: pd.DataFrame) -> pd.DataFrame:
    """Return every test of a table in words; those on digits come last, marked as demonstrations.

    The tests against the majority-class baseline are folded into one row per data set and scale.
    """
    table = _folded(table)
    table = table.iloc[demonstrations(table).argsort(kind="stable")]
    counts = zip(table["seeds"], table["needed"], strict=True)
    seeds = [
        f"{n} ({enough(more)} seeds would decide)" if more else str(n or "") for n, more in counts
    ]
    asked = table["exploratory"].astype(bool).map({True: ", exploratory", False: ""})
    demo = demonstrations(table).map({True: f" ({DEMO})", False: ""})
    new: dict[str, Any] = {"verdict": table["verdict"] + demo, "seeds": seeds}
    new["source"] = table["kind"] + asked
    columns = ["verdict", "claim", "tested on", "measured", "seeds", "source", "place"]
    return table.assign(**new)[columns]


def _folded(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table of tests with one row per place for those against the baseline."""
    about = table["place"].eq(BASELINE)
    rows = []
    for _, group in table[about].groupby("tested on", sort=False):
        others = group[group["verdict"].ne(HOLDS)]
        missed = [
            f"{verdict}: {', '.join(some['claim'].str.partition(' beats ')[0])}"
            for verdict, some in others.groupby("verdict", sort=False)
        ]
        held = f"{len(group) - len(others)} of {len(group)} methods beat the {BASELINE}"
        one = {"claim": held, "measured": "; ".join(missed), "needed": 0}
        one |= {"verdict": min(group["verdict"], key=WORST.index), "seeds": group["seeds"].min()}
        rows.append(group.iloc[0].to_dict() | one)
    return pd.concat([table[~about], pd.DataFrame(rows, columns=table.columns)], ignore_index=True)


def enough(needed: float) -> str:
    """Return in words how many seeds are needed."""
    return f"over {MOST_SEEDS}" if needed > MOST_SEEDS else f"{needed:g}"


def _compare(text: str, place: str, a: Any, b: BySeed, **how: Any) -> Claim:
    """Judge the paired differences of two sides, and state the means of both."""
    seeds = sorted(_finite(a).keys() & _finite(b).keys())
    sides = [[side[s] for s in seeds] for side in (a, b)]
    share = all(0 <= v <= 1 for side in sides for v in side)
    how = {"limits": (-1.0, 1.0) if share else None, "unit": "points" if share else "", **how}
    runs = {s: max(a[s], b[s]) for s in seeds}
    claim = _judge(text, place, [a[s] - b[s] for s in seeds], runs=runs, **how)
    if not seeds:
        return claim
    first, second = (f"{np.mean(side):.3f}" for side in sides)
    return replace(claim, measured=f"{first} vs {second}: {claim.measured}")


def _judge(
    text: str,
    place: str,
    numbers: BySeed | Sequence[float],
    *,
    least: float = -inf,
    most: float = inf,
    limits: Limits | str = "seen",
    unit: str = "",
    floor: BySeed | None = None,
    runs: BySeed | None = None,
    here: bool = True,
    looks: Mapping[int, int] | None = None,
    **about: Any,
) -> Claim:
    """Test that a number, one per seed, lies between two bounds, of which one may be infinite."""
    known = _finite(numbers)
    runs = runs or (known if isinstance(numbers, Mapping) else None)
    if not (values := [*known.values()]):
        return Claim(text, place, MISSING, UNTESTED, 0, **about)
    bounds, times = [b for b in (least, most) if isfinite(b)], looked(looks, len(values))
    ends = _seen(values, bounds) if isinstance(limits, str) else limits
    mean, low, high = interval(values, limits=ends, looks=times)
    scale, by_seed = 100 if unit else 1, " ".join(f"{v:.9g}" for v in values)
    claim = Claim(
        text, place, _in_words(mean, low, high, least, most, unit), UNTESTED, len(values),
        effect=scale * mean, low=scale * low, high=scale * high, least=scale * least,
        most=scale * most, detects=scale * inference.detectable(values), unit=unit,
        values=by_seed, **about,
    )  # fmt: skip
    if len(values) < LEAST_SEEDS:
        return claim
    beyond = high < least or most < low
    verdict = HOLDS if least < low and high < most else CONTRADICTED if beyond else OPEN
    asked = bounds if least < mean < most else [least if mean <= least else most]
    nearest = min(bounds, key=lambda b: abs(mean - b))
    p = min(times * max(inference.p_value(values, b, ends) for b in asked), 1.0)
    clear = min(abs(end - b) for end in (low, high) for b in bounds) > (high - low) / 2
    claim = _cautious(replace(claim, verdict=verdict, clear=clear, p=p))
    if claim.verdict == OPEN and unit and (least, most) in (RULES[">"], RULES["<"]):
        apart = [inference.p_value(values, b, ends) for b in (-POINT, POINT)]
        if -POINT < mean < POINT and times * max(apart) <= DISCOVERY:
            claim = replace(claim, verdict=EQUAL)
    if claim.verdict == OPEN:
        claim = replace(claim, needed=inference.needed(values, nearest))
    if not here:
        return replace(claim, verdict=UNTESTED, needed=0, p=nan)
    floored = floor and runs and all(v <= floor.get(s, -inf) + BARELY for s, v in runs.items())
    if floored:
        claim = replace(claim, measured=f"{claim.measured}; every run is the floor")
    # If all seeds agree at the boundary, or no method beats the floor, more seeds decide nothing.
    if (low == high and low in bounds) or (floored and claim.verdict in (HOLDS, EQUAL)):
        return replace(claim, verdict=UNTESTED if floored else CONTRADICTED, needed=0, p=nan)
    return claim


def _finite(numbers: BySeed | Sequence[float]) -> dict[int, float]:
    """Return the finite ones of numbers by seed, or by their position."""
    every = numbers if isinstance(numbers, Mapping) else dict(enumerate(numbers))
    return {seed: v for seed, v in every.items() if isfinite(v)}


def _cautious(claim: Claim) -> Claim:
    """Return a claim, undecided if its p may be chance among so many claims."""
    if claim.verdict == OPEN or not claim.p > DISCOVERY:
        return claim
    doubt = f"{claim.measured}; p = {claim.p:.2g}, which may be chance among so many claims"
    return replace(claim, verdict=OPEN, clear=False, measured=doubt)


def _seen(values: Sequence[float], bounds: Sequence[float]) -> Limits:
    """Return the range that numbers seem to have: [0, 1], [-1, 1] or none.

    A range is excluded if a bound lies at its end: a share is never asked to be above 0.
    """
    for least in (0.0, -1.0):
        if all(least <= v <= 1 for v in values) and all(least < b < 1 for b in bounds):
            return least, 1.0
    return None


def _in_words(mean: float, low: float, high: float, least: float, most: float, unit: str) -> str:
    """Return a number, interval and criterion: "+3.2 points [1.1, 5.3] (criterion: > 0)"."""
    if unit:
        number, ends = f"{100 * mean:+.1f} {unit}", f"[{100 * low:.1f}, {100 * high:.1f}]"
        bounds = [f"{100 * b:g}" for b in (least, most)]
    else:
        form = "{:.3f}" if max(abs(mean), abs(high)) < 10 else "{:.4g}"
        number, ends = form.format(mean), f"[{form.format(low)}, {form.format(high)}]"
        bounds = [f"{b:.3g}" for b in (least, most)]
    criterion = f"> {bounds[0]}" if isfinite(least) else f"< {bounds[1]}"
    if isfinite(least) and isfinite(most):
        criterion = f"{bounds[0]} to {bounds[1]}"
    return f"{number}{'' if np.isnan(low) else ' ' + ends} (criterion: {criterion})"


# The verdicts of notebooks, and their comparison with those of another execution.


def stored() -> pd.DataFrame:
    """Return the stored verdicts: columns ``COLUMNS``, with notebooks by number, such as "07"."""
    return _read(sorted(paths.notebooks().glob(VERDICTS)))


def drawn(folder: Path) -> pd.DataFrame:
    """Return the verdicts that notebooks have written into a folder of figures."""
    return _read(sorted(folder.glob("[0-9][0-9]_claims.csv")))


def store(notebook: Path, folder: Path) -> None:
    """Replace the stored verdicts of a notebook by those that it has just written."""
    old, new, number = stored(), drawn(folder), notebook.name[:2]
    there = {path.name[:2] for path in paths.notebooks().glob("*.ipynb")} - {number}
    parts = [old[old["notebook"].isin(there)], new[new["notebook"] == number]]
    rows = pd.concat(parts).sort_values("notebook", kind="stable")
    if len(rows) or len(old):
        put_table(paths.notebooks() / VERDICTS, rows, "the verdicts")


def compare(folder: Path, numbers: Sequence[str] = ()) -> bool:
    """Print how the verdicts in a folder of figures differ from the stored ones.

    If runs were trained again, a close call may become undecided or cease to be so, which up to one
    verdict in twenty may do. Every other difference is a contradiction, also a claim that only one
    of the executions tests.

    Args:
        folder: the folder of figures.
        numbers: the numbers of the notebooks, such as "07"; all by default.

    Returns:
        Whether the verdicts agree.
    """
    both = stored().merge(drawn(folder), "outer", [*COLUMNS[:3]], suffixes=(" was", " is"))
    both = both[both["notebook"].isin(numbers or both["notebook"])]
    was, now = both["verdict was"], both["verdict is"]
    moved, demo = was.ne(now), demonstrations(both)
    close = both["clear was"].eq(False) | both["clear is"].eq(False)
    tried, open_ = (*TESTED, TRAINING), (OPEN, TRAINING, EQUAL)
    may = moved & demo & close & was.isin(tried) & now.isin(tried)
    may &= was.isin(open_) | now.isin(open_)
    for kind, rows in (("near its boundary", both[may]), ("contradiction", both[moved & ~may])):
        for of in rows.fillna("not tested").to_dict("records"):
            change = f"{of['claim']}: was {of['verdict was']!r}, is {of['verdict is']!r}"
            print(f"{kind}: {of['notebook']}, {of['tested on']}: {change}")
    trained, wrong = int((demo & was.notna()).sum()), int((moved & ~may).sum())
    agree = not wrong and may.sum() <= MOST_MOVED * trained
    print(
        f"{was.notna().sum()} verdicts, {trained} of them on runs trained again: {wrong} "
        f"contradict those stored, {may.sum()} came near their boundary or left it "
        f"({MOST_MOVED:.0%} of those trained again may): "
        f"{'they agree' if agree else 'THEY DO NOT AGREE'}"
    )
    return bool(agree)


def _read(tables: Sequence[Path]) -> pd.DataFrame:
    """Return the verdicts of some tables; the default notebook is that of the file name."""
    parts = [pd.DataFrame(columns=list(COLUMNS))] * (not tables)
    for one in tables:
        how: dict[str, Any] = {"keep_default_na": False, "dtype": dict.fromkeys(COLUMNS[:4], str)}
        rows = read_table(one, "table of claims", **how)
        p = pd.to_numeric(rows["p"]) if "p" in rows else nan
        parts.append(rows.assign(notebook=rows.get("notebook", one.name[:2]), p=p))
    return pd.concat(parts)[list(COLUMNS)]
