"""What 004 claims: of fourteen methods, of a mixture of what nine keep private, and of gates."""

from functools import partial

import pandas as pd

from companion import frames
from companion.claims import Claim, above, greater, on_par
from papers.floor import floor_claims, scored
from papers.pm_moe import DENOISED, NINE, SYNCHRONOUS, TRADITIONAL, WITH_MOE, analysis, called
from papers.pm_moe.experiments import PrivateParts

BEST = {
    "layers": "Four layers beat fewer",
    "activation": "LeakyReLU beats the other activations",
    "initialisation": "Orthogonal weights beat the other initialisations",
}


def fourteen_claims(table: pd.DataFrame, known: pd.DataFrame) -> list[Claim]:
    """Test what 004 says of its baselines (Table 1), and whether their order is the published."""
    ratios = sorted(table["S"].unique())
    none, some = ratios[0], ratios[-1]
    nine, others = (partial(scored, table, method=methods) for methods in (NINE, TRADITIONAL))
    apart = "Methods with private parts beat those without where nothing is shared"
    helps = "Sharing a part of every class helps methods without private parts"
    harms = f"... and harms those with private parts (S = {some:g})"
    order = "The order of the methods is the published one (rank correlation, S = {:g})"
    return [
        greater(f"{apart} (S = {none:g})", "Table 1", nine(S=none), others(S=none)),
        greater(f"{helps} (S = {some:g})", "Table 1", others(S=some), others(S=none)),
        greater(harms, "Table 1", nine(S=none), nine(S=some)),
        *(
            above(order.format(s), "Table 1", analysis.agreement(table, known, s), 0.5)
            for s in (ratios if len(known) else [])
        ),
        *floor_claims(called(table), "S"),
    ]


def mixture_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test what 004 says of PM-MoE, its denoising, and the synchronous mixture (Tables 2 to 4)."""
    table, claims = analysis.scores(frame), []
    for s, here in table.groupby("S"):
        where = f"S = {s:g}"
        added, cleaned = analysis.gains(here), analysis.gains(here, DENOISED, WITH_MOE)
        least = frames.by_seed(added.loc[added.groupby("seed")["value"].idxmin()])
        mixed, from_start = scored(here, stage=WITH_MOE), scored(here, method=SYNCHRONOUS)
        improves = f"PM-MoE improves on its first stage (mean of nine, {where})"
        harms = f"... and never harms: the least gain of the nine is no loss ({where})"
        denoised = f"Denoising improves on that (mean of nine, {where})"
        beats = f"PM-MoE (mean of nine) beats a mixture trained from the start ({where})"
        claims += [
            greater(improves, "Table 2", frames.by_seed(added), _zero(least)),
            on_par(harms, "Table 2", least, _zero(least)),
            greater(denoised, "Table 3", frames.by_seed(cleaned), _zero(least)),
            greater(beats, "Table 4", mixed, from_start),
        ]
    told = analysis.reporting(frame)
    largest, all_of_them = (frames.by_seed(told, column) for column in ("maximum", "all"))
    text = "The largest of 004's evaluations is more than the converted federation has"
    return [
        *claims,
        greater(text, "released code", largest, all_of_them),
        *floor_claims(_second(table), "S"),
    ]


def gate_claims(table: pd.DataFrame, setting: PrivateParts) -> list[Claim]:
    """Test what 004 says of its gates at every S (Fig. 5 to 8)."""
    claims = [claim for _, here in table.groupby("S") for claim in _of_gates(here, setting)]
    judged = _second(analysis.unchosen(table, *analysis.NUMBERS))
    return [*claims, *floor_claims(judged, "S", ", with every choice of a number")]


def _of_gates(table: pd.DataFrame, setting: PrivateParts) -> list[Claim]:
    """Return the claims at one S: the first choice of every kind is the best, and numbers."""
    shared, every = table["S"].iloc[0], setting.clients
    best, other = (every, every // 2) if shared else (every // 2, every)
    where, gains = f"S = {shared:g}", analysis.made_of(table)
    lost = {text: scored(gains, part=part) for part, text in BEST.items()}

    def at(choice: str, default: float, *numbers: float) -> list[dict[int, float]]:
        rows = analysis.varied(table, choice, default)
        return [scored(rows, **{choice: number}) for number in numbers]

    slow, fast, few = min(setting.gate_rates), max(setting.gate_rates), min(setting.tops)
    gated, most = setting.gated, max(setting.gate_epochs)
    named, alike = f"The {best} largest weights beat", f"{gated} epochs of a gate are as good as"
    rates, lengths = at("lr", setting.gate_rate, fast, slow), at("epochs", gated, gated, most)
    return [
        *(
            greater(f"{text} (mean of them, {where})", "Fig. 5", _zero(others), others)
            for text, others in lost.items()
        ),
        greater(f"{named} {few} ({where})", "Fig. 6", *at("k", best, best, few)),
        greater(f"{named} {other} ({where})", "Fig. 6", *at("k", best, best, other)),
        greater(f"A gate's rate of {fast:g} beats {slow:g} ({where})", "Fig. 7", *rates),
        on_par(f"{alike} {most} ({where})", "Fig. 8", *lengths),
    ]


def _zero(values: dict[int, float]) -> dict[int, float]:
    return dict.fromkeys(values, 0.0)


def _second(table: pd.DataFrame) -> pd.DataFrame:
    """Return what second stages have: what the nine have alone is judged with the fourteen."""
    named = called(table)
    return named[~named["method"].isin(NINE)]
