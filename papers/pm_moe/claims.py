"""What 004 claims: of fourteen methods, of a mixture of what nine keep private, and of gates."""

from collections.abc import Collection
from functools import partial

import pandas as pd

from companion import frames
from companion.claims import Claim, ordered
from papers import pm_moe as names
from papers.judging import Numbers, by, floor_claims, judged, said, scored, whole
from papers.pm_moe import NINE, analysis
from papers.pm_moe.experiments import PrivateParts
from papers.scaled import MAJORITY

HALF_A_POINT = 0.005  # about what 004 says that its mixture adds


def fourteen_claims(
    table: pd.DataFrame, known: pd.DataFrame, diverged: Collection[str] = ()
) -> list[Claim]:
    """Test what 004 says of its baselines (Table 1), and whether their order is the published.

    Nothing is said of a family as long as one of its methods is missing that has not ``diverged``,
    and nothing of sharing before two ratios were run.
    """
    ratios = sorted(table["S"].unique())
    none, some = ratios[0], ratios[-1]
    sides = (whole(methods, table, diverged) for methods in (NINE, names.TRADITIONAL))
    nine, others = (partial(by(table), methods) for methods in sides)
    rows = [("apart", nine(S=none), ">", others(S=none))]
    if some > none:
        rows.append(("helps", others(S=some), ">", others(S=none)))
        rows.append(("harms", nine(S=none), ">", nine(S=some)))
    claims = judged("004", rows, none=none, some=some)
    orders = [_ordered(table, known, s) for s in (ratios if len(known) else [])]
    return [*claims, *orders, *floor_claims(table, "S")]


def _ordered(table: pd.DataFrame, known: pd.DataFrame, s: float) -> Claim:
    """Test the published order at an S among methods that share all, and among the nine."""
    claim, place, about = said("004", "order", s=s)
    theirs = known[known["S"] == s].dropna(subset="value").set_index("method")["value"].to_dict()
    families = {m: names.family(m) for m in (*names.TRADITIONAL, *NINE)}
    ours = {m: scored(table, method=m, S=s) for m in families}
    return ordered(claim, place, ours, {m: theirs[m] for m in families}, families, **about)


def mixture_claims(frame: pd.DataFrame, diverged: Collection[str] = ()) -> list[Claim]:
    """Test what 004 says of PM-MoE, its denoising, and the synchronous mixture (Tables 2 to 4).

    Nothing is said of all nine as long as one is missing that has not ``diverged``.
    """
    table, claims = analysis.scores(frame), []

    def nine(rows: pd.DataFrame) -> pd.DataFrame:
        return rows[rows["method"].isin(whole(NINE, rows, diverged))]

    for s, here in table.groupby("S"):
        added = nine(analysis.gains(here))
        cleaned = nine(analysis.gains(here, names.DENOISED, names.WITH_MOE))
        least = added.groupby("method")["value"].mean().nsmallest(1)
        mixed = nine(here[here[names.STAGE].eq(names.WITH_MOE)])
        rows = (
            ("improves", *_sides(added)),
            ("least", *_sides(added[added["method"].isin(least.index)])),
            ("denoised", *_sides(cleaned)),
            ("synchronous", scored(mixed), ">", scored(here, method=names.SYNCHRONOUS)),
        )
        floor = scored(here, method=MAJORITY)
        sides = ((n, Numbers(a, floor), *of) for n, a, *of in rows)
        claims += judged("004", sides, s=s, n=added["method"].nunique() or len(NINE))
    told = nine(analysis.reporting(frame))
    largest, all_of_them = (frames.by_seed(told, column) for column in ("maximum", "all"))
    chosen = {seed: largest[seed] - all_of_them[seed] for seed in largest}
    claims += judged("004", [("largest", chosen, ">", HALF_A_POINT)])
    # What the nine have alone is judged with the fourteen.
    return claims + floor_claims(analysis.second_stages(table), "S")


def revealed_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test A.4: private parts tell no more of a client's labels than the best constant guess."""
    table = analysis.revealed(frame)
    rows = []
    for method, told in table.groupby("method", sort=False):
        at = {source: frames.by_seed(of) for source, of in told.groupby("source")}
        one, other = (at[guess] for guess in analysis.CONSTANT)
        best = {seed: max(one[seed], other[seed]) for seed in one}
        for source in (s for s in (analysis.READ, analysis.ASKED) if s in at):
            rows.append(("hidden", at[source], "<=", best, {"method": method, "source": source}))
    return judged("004", rows)


def _sides(gained: pd.DataFrame) -> tuple[dict[int, float], str, dict[int, float]]:
    """Return what methods have after a stage, that it should be more, and what they had before."""
    return frames.by_seed(gained, "after"), ">", frames.by_seed(gained, "before")


def gate_claims(table: pd.DataFrame, setting: PrivateParts) -> list[Claim]:
    """Test what 004 says of its gates at every S (Fig. 5 to 8)."""
    claims = [claim for _, here in table.groupby("S") for claim in _of_gates(here, setting)]
    judged = analysis.second_stages(analysis.unchosen(table, *analysis.NUMBERS))
    return [*claims, *floor_claims(judged, "S", ", with every choice of a number")]


def _of_gates(table: pd.DataFrame, setting: PrivateParts) -> list[Claim]:
    """Return the claims at one S: the first choice of every kind is the best, and numbers."""
    shared, every = table["S"].iloc[0], setting.clients
    best, other = (every, every // 2) if shared else (every // 2, every)
    most_of = "top.all" if shared else "top.half"
    made_of = {part: scored(analysis.made_of(table), part=part) for part in analysis.PARTS}

    def at(choice: str, default: float, number: float) -> dict[int, float]:
        return scored(analysis.varied(table, choice, default), **{choice: number})

    slow, fast, few = min(setting.gate_rates), max(setting.gate_rates), min(setting.tops)
    top, rate = partial(at, "k", best), partial(at, "lr", setting.gate_rate)
    gated, most, length = (setting.gated, max(setting.gate_epochs), partial(at, "epochs"))
    chosen = top(best)
    others = {
        p: {s: chosen[s] + d for s, d in by.items() if s in chosen} for p, by in made_of.items()
    }
    rows = (
        *((part, chosen, ">", by) for part, by in others.items()),
        *((most_of, chosen, ">", top(k), {"other": k}) for k in (few, other)),
        ("rate", rate(fast), ">", rate(slow)),
        ("epochs", length(gated, gated), ">=", length(gated, most)),
    )
    return judged("004", rows, s=shared, best=best, fast=fast, slow=slow, gated=gated, most=most)
