"""What 004 claims: of fourteen methods, of a mixture of what nine keep private, and of gates."""

from __future__ import annotations

import pandas as pd

from companion import frames
from companion.claims import BySeed, Claim, above, greater, on_par
from papers.floor import MAJORITY, floor_claims
from papers.pm_moe import DENOISED, NINE, STAGE, SYNCHRONOUS, TRADITIONAL, WITH_MOE, called
from papers.pm_moe.analysis import (
    NUMBERS,
    agreement,
    gains,
    made_of,
    reporting,
    scores,
    unchosen,
    varied,
)
from papers.pm_moe.settings import PrivateParts


def fourteen_claims(table: pd.DataFrame, known: pd.DataFrame) -> list[Claim]:
    """Test what 004 says of its baselines (Table 1), and whether their order is the published."""
    ratios = sorted(table["S"].unique())
    none, some = ratios[0], ratios[-1]

    def mean_of(methods: tuple[str, ...], s: float) -> BySeed:
        return frames.by_seed(table[table["method"].isin(methods) & table["S"].eq(s)])

    apart = "Methods with private parts beat those without where nothing is shared"
    helps = "Sharing a part of every class helps methods without private parts"
    claims = [
        greater(text, "Table 1", mean_of(*better), mean_of(*worse))
        for text, better, worse in (
            (f"{apart} (S = {none:g})", (NINE, none), (TRADITIONAL, none)),
            (f"{helps} (S = {some:g})", (TRADITIONAL, some), (TRADITIONAL, none)),
            (f"... and harms those with private parts (S = {some:g})", (NINE, none), (NINE, some)),
        )
    ]
    if len(known):
        claims += [
            above(
                f"The order of the methods is the published one (rank correlation, S = {s:g})",
                "Table 1",
                agreement(table, known, s),
                0.5,
            )
            for s in ratios
        ]
    return [*claims, *floor_claims(called(table), "S")]


def mixture_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test what 004 says of PM-MoE, its denoising, and the synchronous mixture (Tables 2 to 4)."""
    table, claims = scores(frame), []
    for s in sorted(table["S"].unique()):
        here = table[table["S"] == s]
        added, cleaned = gains(here), gains(here, DENOISED, WITH_MOE)
        zero = dict.fromkeys(frames.by_seed(added), 0.0)
        least = frames.by_seed(added.loc[added.groupby("seed")["value"].idxmin()])
        nine, from_start = here[here[STAGE] == WITH_MOE], here[here["method"] == SYNCHRONOUS]
        improves = f"PM-MoE improves on its first stage (mean of nine, S = {s:g})"
        harms = f"... and never harms: the least gain of the nine is no loss (S = {s:g})"
        denoised = f"Denoising improves on that (mean of nine, S = {s:g})"
        beats = f"PM-MoE (mean of nine) beats a mixture trained from the start (S = {s:g})"
        claims += [
            greater(improves, "Table 2", frames.by_seed(added), zero),
            on_par(harms, "Table 2", least, zero),
            greater(denoised, "Table 3", frames.by_seed(cleaned), zero),
            greater(beats, "Table 4", frames.by_seed(nine), frames.by_seed(from_start)),
        ]
    told = reporting(frame)
    # What the nine have alone is judged with the fourteen.
    second = table[~(table["method"].isin(NINE) & table[STAGE].eq(""))]
    return [
        *claims,
        greater(
            "The largest of 004's evaluations is more than the converted federation has",
            "released code",
            frames.by_seed(told, "maximum"),
            frames.by_seed(told, "all"),
        ),
        *floor_claims(called(second), "S"),
    ]


def gate_claims(table: pd.DataFrame, setting: PrivateParts) -> list[Claim]:
    """Test what 004 says of its gates at every S (Fig. 5 to 8)."""
    claims = []
    for s in sorted(table["S"].unique()):
        here = table[table["S"] == s]
        claims += _of_parts(made_of(here), f"S = {s:g}")
        claims += _of_numbers(here, float(s), setting)
    numbers = unchosen(table, *NUMBERS)
    judged = numbers[numbers[STAGE].eq(WITH_MOE) | numbers["method"].eq(MAJORITY)]
    return [*claims, *floor_claims(called(judged), "S", ", with every choice of a number")]


def _of_parts(gains: pd.DataFrame, where: str) -> list[Claim]:
    """Return the claims of Fig. 5: the first choice of every kind is the best."""
    texts = {
        "layers": "Four layers beat fewer",
        "activation": "LeakyReLU beats the other activations",
        "initialisation": "Orthogonal weights beat the other initialisations",
    }
    claims = []
    for part, text in texts.items():
        lost = frames.by_seed(gains[gains["part"] == part])
        zero = dict.fromkeys(lost, 0.0)
        claims.append(greater(f"{text} (mean of them, {where})", "Fig. 5", zero, lost))
    return claims


def _of_numbers(table: pd.DataFrame, s: float, setting: PrivateParts) -> list[Claim]:
    """Return the claims of Fig. 6 to 8 at one S."""
    where, all_of_them = f"S = {s:g}", setting.clients
    best, other = (all_of_them, all_of_them // 2) if s else (all_of_them // 2, all_of_them)

    def at(choice: str, default: float, number: float) -> BySeed:
        rows = varied(table, choice, default)
        return frames.by_seed(rows[rows[choice] == number])

    def k(number: int) -> BySeed:
        return at("k", best, number)

    slow, fast, few = min(setting.gate_rates), max(setting.gate_rates), min(setting.tops)
    gated, most = setting.gated, max(setting.gate_epochs)
    rates = (at("lr", setting.gate_rate, rate) for rate in (fast, slow))
    lengths = (at("epochs", gated, n) for n in (gated, most))
    named, alike = f"The {best} largest weights beat", f"{gated} epochs of a gate are as good as"
    return [
        greater(f"{named} {few} ({where})", "Fig. 6", k(best), k(few)),
        greater(f"{named} {other} ({where})", "Fig. 6", k(best), k(other)),
        greater(f"A gate's rate of {fast:g} beats {slow:g} ({where})", "Fig. 7", *rates),
        on_par(f"{alike} {most} ({where})", "Fig. 8", *lengths),
    ]
