"""What 004 claims: of fourteen methods, of a mixture of what nine keep private, and of gates."""

from functools import partial

import pandas as pd

from companion import frames
from companion.claims import Claim
from papers.judging import floor_claims, judged, scored
from papers.pm_moe import DENOISED, NINE, SYNCHRONOUS, TRADITIONAL, WITH_MOE, analysis, called
from papers.pm_moe.experiments import PrivateParts


def fourteen_claims(table: pd.DataFrame, known: pd.DataFrame) -> list[Claim]:
    """Test what 004 says of its baselines (Table 1), and whether their order is the published."""
    ratios = sorted(table["S"].unique())
    none, some = ratios[0], ratios[-1]
    nine, others = (partial(scored, table, method=methods) for methods in (NINE, TRADITIONAL))
    rows = (
        ("apart", nine(S=none), ">", others(S=none)),
        ("helps", others(S=some), ">", others(S=none)),
        ("harms", nine(S=none), ">", nine(S=some)),
        *(
            ("order", analysis.agreement(table, known, s), ">", 0.5, {"s": s})
            for s in (ratios if len(known) else [])
        ),
    )
    return judged("004", rows, none=none, some=some) + floor_claims(called(table), "S")


def mixture_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test what 004 says of PM-MoE, its denoising, and the synchronous mixture (Tables 2 to 4)."""
    table, claims = analysis.scores(frame), []
    for s, here in table.groupby("S"):
        added, cleaned = analysis.gains(here), analysis.gains(here, DENOISED, WITH_MOE)
        least = frames.by_seed(added.loc[added.groupby("seed")["value"].idxmin()])
        rows = (
            ("improves", frames.by_seed(added), ">", _zero(least)),
            ("least", least, ">=", _zero(least)),
            ("denoised", frames.by_seed(cleaned), ">", _zero(least)),
            ("synchronous", scored(here, stage=WITH_MOE), ">", scored(here, method=SYNCHRONOUS)),
        )
        claims += judged("004", rows, s=s)
    told = analysis.reporting(frame)
    largest, all_of_them = (frames.by_seed(told, column) for column in ("maximum", "all"))
    claims += judged("004", [("largest", largest, ">", all_of_them)])
    return claims + floor_claims(_second(table), "S")


def gate_claims(table: pd.DataFrame, setting: PrivateParts) -> list[Claim]:
    """Test what 004 says of its gates at every S (Fig. 5 to 8)."""
    claims = [claim for _, here in table.groupby("S") for claim in _of_gates(here, setting)]
    judged = _second(analysis.unchosen(table, *analysis.NUMBERS))
    return [*claims, *floor_claims(judged, "S", ", with every choice of a number")]


def _of_gates(table: pd.DataFrame, setting: PrivateParts) -> list[Claim]:
    """Return the claims at one S: the first choice of every kind is the best, and numbers."""
    shared, every = table["S"].iloc[0], setting.clients
    best, other = (every, every // 2) if shared else (every // 2, every)
    lost = {part: scored(analysis.made_of(table), part=part) for part in analysis.PARTS}

    def at(choice: str, default: float, number: float) -> dict[int, float]:
        return scored(analysis.varied(table, choice, default), **{choice: number})

    slow, fast, few = min(setting.gate_rates), max(setting.gate_rates), min(setting.tops)
    top, rate = partial(at, "k", best), partial(at, "lr", setting.gate_rate)
    gated, most, length = (setting.gated, max(setting.gate_epochs), partial(at, "epochs"))
    rows = (
        *((part, _zero(others), ">", others) for part, others in lost.items()),
        *(("top", top(best), ">", top(k), {"other": k}) for k in (few, other)),
        ("rate", rate(fast), ">", rate(slow)),
        ("epochs", length(gated, gated), ">=", length(gated, most)),
    )
    return judged("004", rows, s=shared, best=best, fast=fast, slow=slow, gated=gated, most=most)


def _zero(values: dict[int, float]) -> dict[int, float]:
    return dict.fromkeys(values, 0.0)


def _second(table: pd.DataFrame) -> pd.DataFrame:
    """Return what second stages have: what the nine have alone is judged with the fourteen."""
    named = called(table)
    return named[~named["method"].isin(NINE)]
