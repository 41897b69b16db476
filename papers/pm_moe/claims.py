"""The claims of 004: on fourteen methods, on a mixture of private parts, and on its gates."""

from collections.abc import Collection
from functools import partial
from typing import Any

import pandas as pd

from companion import frames
from companion.claims import BySeed, Claim, ordered
from papers import pm_moe as names
from papers.judging import Numbers, by, floor_claims, judged, said, scored, whole
from papers.pm_moe import NINE, analysis
from papers.pm_moe.experiments import PrivateParts
from papers.scaled import MAJORITY

HALF_A_POINT = 0.005  # about the published gain of the mixture
SHOWN = 0.00005  # half of the last printed digit of a percentage with two decimals
HUNDREDTH = 0.01  # of the cost of the first stage; the paper prints 0.39%
FEW = 0.05  # the share of methods that may lose if "all" improve
GATED = "FedPer"  # the method whose gates are varied
STRONGEST, DBE = "FedCP", "DBE"  # Table 3's method on images, and the one that gains most in print


def fourteen_claims(
    table: pd.DataFrame, known: pd.DataFrame, diverged: Collection[str] = ()
) -> list[Claim]:
    """Test the claims on the baselines (Table 1), and whether their order is the published one.

    Claims on a family are not made as long as one of its methods is missing that has not
    ``diverged``, and the claim on shared classes is made only if two ratios S were run.
    """
    ratios = sorted(table["S"].unique())
    none, some = ratios[0], ratios[-1]
    sides = (whole(methods, table, diverged) for methods in (NINE, names.TRADITIONAL))
    nine, others = (partial(by(table), methods) for methods in sides)
    every = (*NINE, *names.TRADITIONAL)
    rows: list[tuple[Any, ...]] = [("apart", nine(S=none), ">", others(S=none), {"methods": every})]
    if some > none:
        rows.append(("harms", nine(S=none), ">", nine(S=some), {"methods": NINE}))
    orders = [_ordered(table, known, s) for s in (ratios if len(known) else [])]
    return [*judged("004", rows), *orders, *floor_claims(table, "S")]


def _ordered(table: pd.DataFrame, known: pd.DataFrame, s: float) -> Claim:
    """Test the published order at an S within the methods that share all and within the nine."""
    claim, place, about = said("004", "order", s=s)
    theirs = known[known["S"] == s].dropna(subset="value").set_index("method")["value"].to_dict()
    families = {m: names.family(m) for m in (*names.TRADITIONAL, *NINE)}
    ours = {m: scored(table, method=m, S=s) for m in families}
    return ordered(claim, place, ours, {m: theirs[m] for m in families}, families, **about)


def mixture_claims(frame: pd.DataFrame, diverged: Collection[str] = ()) -> list[Claim]:
    """Test the claims on PM-MoE, its denoising, and the synchronous mixture (Tables 2 to 4).

    PM-MoE is the stage with denoising, as in Table 2 (`analysis.printed`). Claims on all nine
    methods are not made as long as one is missing that has not ``diverged``.
    """
    table = analysis.scores(frame)
    nothing = table[table["S"] == table["S"].min()]

    def nine(rows: pd.DataFrame) -> pd.DataFrame:
        return rows[rows["method"].isin(whole(NINE, rows, diverged))]

    added = nine(analysis.gains(table))
    cleaned = analysis.gains(nothing)
    only = {"methods": (STRONGEST,)}
    rows: list[tuple[Any, ...]] = [
        ("improves", *_sides(added, table), {"methods": NINE}),
        ("all", lost(added), "<", FEW),
        ("moe", *_sides(_of(STRONGEST, analysis.gains(nothing, names.WITH_MOE)), nothing), only),
        ("denoised", *_sides(_of(STRONGEST, _denoised(nothing)), nothing), only),
        ("dbe", *_sides(_of(DBE, cleaned), nothing), {"methods": (DBE,)}),
        ("own", analysis.own_weight(frame), ">", 1.0),
    ]
    for s, here in table.groupby("S"):
        mixed, alone = _best(here, diverged)
        rows.append(("best", mixed, ">", alone, {"part": f"S = {s:g}", "methods": NINE}))
    both = scored(nothing, method=names.SYNCHRONOUS), {"methods": (*NINE, names.SYNCHRONOUS)}
    rows.append(("synchronous", _best(nothing, diverged)[0], ">", *both))
    told = nine(analysis.reporting(frame))
    largest, all_of_them = (frames.by_seed(told, column) for column in ("maximum", "all"))
    chosen = {seed: largest[seed] - all_of_them[seed] for seed in largest}
    rows.append(("largest", chosen, ">", HALF_A_POINT))
    # The nine methods alone are judged with the fourteen.
    return judged("004", rows) + floor_claims(analysis.second_stages(table), "S")


def lost(added: pd.DataFrame) -> dict[int, float]:
    """Return by seed the share of methods and S that lose accuracy by PM-MoE.

    Losses that two printed decimals do not show are not counted.
    """
    return frames.by_seed(added.assign(loses=added["value"].lt(-SHOWN).astype(float)), "loses")


def _best(table: pd.DataFrame, diverged: Collection[str]) -> tuple[BySeed, BySeed]:
    """Return the best of nine mixtures and the best of nine alone, each chosen on tests."""
    mixed = frames.by_seed(analysis.best_of_nine(table, diverged))
    return mixed, frames.by_seed(analysis.best_of_nine(table, diverged, ""))


def _denoised(table: pd.DataFrame) -> pd.DataFrame:
    return analysis.gains(table, names.DENOISED, names.WITH_MOE)


def cost_claims(cost: dict[int, float]) -> list[Claim]:
    """Test A.9: a second stage costs less than a hundredth of the first."""
    return judged("004", [("cost", cost, "<", HUNDREDTH)])


def _of(method: str, gained: pd.DataFrame) -> pd.DataFrame:
    return gained[gained["method"] == method]


def revealed_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test A.4: private parts reveal no more of labels than the best constant guess."""
    table = analysis.revealed(frame)
    rows = []
    for method, told in table.groupby("method", sort=False):
        at = {source: frames.by_seed(of) for source, of in told.groupby("source")}
        best = frames.by_seed(analysis.best_constant(told))
        for source in (s for s in (analysis.READ, analysis.ASKED) if s in at):
            rows.append(("hidden", at[source], "<=", best, {"part": f"{source} ({method})"}))
    return judged("004", rows)


def feature_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test Fig. 1A: another client's base brings features nearer to a central model's."""
    found = analysis.similarities(frame).groupby("source")
    at = {source: frames.by_seed(of) for source, of in found}
    more = {"part": analysis.NEAREST, "unit": "", "methods": ("LG-FedAvg",)}
    return judged("004", [("features", at[analysis.NEAREST], ">", at[analysis.OWN], more)])


def _sides(gained: pd.DataFrame, table: pd.DataFrame) -> tuple[Numbers, str, dict[int, float]]:
    """Return the accuracies after a stage, the rule ">", and the accuracies before it."""
    after = Numbers(frames.by_seed(gained, "after"), scored(table, method=MAJORITY))
    return after, ">", frames.by_seed(gained, "before")


def gate_claims(table: pd.DataFrame, setting: PrivateParts) -> list[Claim]:
    """Test the claims on gates (Fig. 5 to 8): parts as means over S, numbers at each S."""
    made_of = {part: scored(analysis.made_of(table), part=part) for part in analysis.PARTS}
    # Of the other choices the accuracy is lower: a positive effect is in the paper's direction.
    ahead = {part: {s: -gain for s, gain in gained.items()} for part, gained in made_of.items()}
    choices = [(part, lead, ">", 0.0, {"unit": "points"}) for part, lead in ahead.items()]
    numbers = [row for _, here in table.groupby("S") for row in _of_numbers(here, setting)]
    every = [(*row[:4], {**dict(*row[4:]), "methods": (GATED,)}) for row in [*choices, *numbers]]
    table = analysis.second_stages(analysis.unchosen(table, *analysis.NUMBERS))
    return judged("004", every) + floor_claims(table, "S", ", with every choice of a number")


def _of_numbers(table: pd.DataFrame, setting: PrivateParts) -> list[tuple[Any, ...]]:
    """Return the claims on k, the learning rate and the epochs of a gate at one S."""
    shared, every = table["S"].iloc[0], setting.clients
    best, others = (every, (min(setting.tops), every // 2)) if shared else (
        every // 2, (min(setting.tops), every)
    )  # fmt: skip

    def at(choice: str, default: float, number: float) -> dict[int, float]:
        return scored(analysis.varied(table, choice, default), **{choice: number})

    top, rate = partial(at, "k", best), partial(at, "lr", setting.gate_rate)
    gated, most = setting.gated, max(setting.gate_epochs)
    said, s = "top.all" if shared else "top.half", {"part": f"S = {shared:g}"}
    return [
        *((said, top(best), ">", top(k), {"part": f"{best} experts over {k}"}) for k in others),
        ("rate", rate(max(setting.gate_rates)), ">", rate(min(setting.gate_rates)), s),
        ("epochs", at("epochs", gated, gated), ">=", at("epochs", gated, most), s),
    ]
