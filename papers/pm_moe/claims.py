"""What PM-MoE's gates are made of, and what energy scores tell (004, Fig. 5 to 8, eq. 10 to 12)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from companion import frames
from companion.claims import Claim, greater, on_par
from fedlib.models import GateNet
from fedlib.models.gate import ACTIVATIONS, INITS
from papers.claims.floor import floor_claims
from papers.recipes import MAJORITY, WITH_MOE
from papers.recipes.private_parts import PrivateParts

NUMBERS = ("k", "lr", "epochs", "gamma", "T", "layers")
PART, CHOICE = "part", "choice"
_GATE = GateNet()
# What a gate is made of: the choice of 004 first, then the others that Fig. 5 compares.
PARTS: dict[str, tuple[str, ...]] = {
    "layers": tuple(str(n) for n in range(len(_GATE.hidden) + 1, 0, -1)),
    "activation": (_GATE.activation, *(a for a in ACTIVATIONS if a != _GATE.activation)),
    "initialisation": (_GATE.init, *(i for i in INITS if i != _GATE.init)),
}


def varied(
    table: pd.DataFrame, choice: str, default: float, given: Mapping[str, float] | None = None
) -> pd.DataFrame:
    """Return the mixtures in which one number was chosen otherwise, and those of the ``default``.

    ``table`` are scores taken apart by name; ``choice`` is one of ``NUMBERS``, and ``given`` says
    which others are not left as they are. Columns method, S, seed, value, and the choice.
    """
    others = [n for n in NUMBERS if n in table and n != choice]
    rows = table[table["method"].str.endswith(WITH_MOE)]
    for name in others:
        asked = (given or {}).get(name)
        rows = rows[rows[name].isna() if asked is None else rows[name] == asked]
    return rows.assign(**{choice: rows[choice].fillna(default)}).drop(columns=others)


def made_of(table: pd.DataFrame) -> pd.DataFrame:
    """Return by how much each choice of ``PARTS`` differs from the first of its kind, by seed.

    ``table`` are scores taken apart by name; the mixture without further name is what the first
    choices make. Columns method, part, choice, S, seed, value.
    """
    plain = _plain(table)
    base = plain[plain["method"].str.endswith(WITH_MOE)]
    found = []
    for part, choices in PARTS.items():
        for choice in choices[1:]:
            if part == "layers":
                rows = table[table["layers"] == float(choice)]
            else:
                rows = plain[plain["method"].str.endswith(f", {choice}")]
                rows = rows.assign(method=rows["method"].str.removesuffix(f", {choice}"))
            found.append(_gained(rows, base).assign(part=part, choice=choice))
    return pd.concat(found, ignore_index=True)[["method", PART, CHOICE, "S", "seed", "value"]]


def _plain(table: pd.DataFrame) -> pd.DataFrame:
    return table[table[[n for n in NUMBERS if n in table]].isna().all(axis=1)]


def _gained(rows: pd.DataFrame, base: pd.DataFrame) -> pd.DataFrame:
    both = rows.merge(base, on=["method", "S", "seed"], suffixes=("", "_base"))
    return both.assign(value=both["value"] - both["value_base"])


def by_choice(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the differences of ``made_of`` a frame per S, as dots need them."""
    panels = {}
    for s, rows in table.groupby("S"):
        shown = [
            (_named(str(part), str(choice)), method, *_ends(runs))
            for (method, part, choice), runs in rows.groupby(["method", PART, CHOICE], sort=False)
        ]
        names = ["row", "group", "mean", "low", "high"]
        panels[f"S = {float(str(s)):g}"] = pd.DataFrame(shown, columns=names)
    return panels


def _named(part: str, choice: str) -> str:
    if part != "layers":
        return choice
    return f"{choice} layer{'' if choice == '1' else 's'}"


def _ends(runs: pd.DataFrame) -> tuple[float, float, float]:
    return frames.interval(runs["value"])


def ranks(energies: np.ndarray) -> np.ndarray:
    """Return each client's experts by rank, 0 for the least energy and 1 for the most."""
    return (rankdata(energies, axis=1) - 1) / (energies.shape[1] - 1)


def told(energies: Mapping[float, np.ndarray], dimensions: int) -> pd.DataFrame:
    """Return what the energy scores ``[clients, M]`` of each temperature T say, a row each.

    "T log D" is what every score has, whatever the expert; "spread" is what is left, the mean over
    clients of the standard deviation over experts; "order as at T = ..." the mean over clients of
    the rank correlation with the scores of the highest temperature.
    """
    first = max(energies)
    rows = []
    for t, scores in energies.items():
        pairs = zip(ranks(scores), ranks(energies[first]), strict=True)
        same = [np.corrcoef(a, b)[0, 1] for a, b in pairs]
        rows.append((t, t * np.log(dimensions), scores.mean(), scores.std(1).mean(), np.mean(same)))
    names = ["T", "T log D", "mean score", "spread", f"order as at T = {first:g}"]
    return pd.DataFrame(rows, columns=names).set_index("T")


def gate_claims(table: pd.DataFrame, setting: PrivateParts) -> list[Claim]:
    """Test what 004 says of its gates at every S of scores taken apart by name (Fig. 5 to 8)."""
    claims = []
    for s in sorted(table["S"].unique()):
        here = table[table["S"] == s]
        claims += _of_parts(made_of(here), f"S = {s:g}")
        claims += _of_numbers(here, float(s), setting)
    mixed = table["method"].str.endswith(WITH_MOE)
    judged = table[mixed | table["method"].eq(MAJORITY)]
    return [*claims, *floor_claims(judged, "S", ", with every choice of a number")]


def _of_parts(gains: pd.DataFrame, where: str) -> list[Claim]:
    """Return the claims of Fig. 5: the first choice of every kind is the best."""
    texts = {
        "layers": "Four layers beat fewer",
        "activation": "LeakyReLU beats the other activations",
        "initialisation": "Orthogonal weights beat the other initialisations",
    }
    claims = []
    for part, text in texts.items():
        lost = frames.by_seed(gains[gains[PART] == part])
        zero = dict.fromkeys(lost, 0.0)
        claims.append(greater(f"{text} (mean of them, {where})", "Fig. 5", zero, lost))
    return claims


def _of_numbers(table: pd.DataFrame, s: float, setting: PrivateParts) -> list[Claim]:
    """Return the claims of Fig. 6 to 8 at one S."""
    where, all_of_them = f"S = {s:g}", setting.clients
    best, other = (all_of_them, all_of_them // 2) if s else (all_of_them // 2, all_of_them)

    def at(choice: str, default: float) -> Callable[[float], dict[int, float]]:
        rows = varied(table, choice, default)
        return lambda number: frames.by_seed(rows[rows[choice] == number])

    k, rate, epochs = (
        at("k", best),
        at("lr", setting.gate_rate),
        at("epochs", setting.gated),
    )
    rates, lengths = setting.gate_rates, setting.gate_epochs
    named = f"The {best} largest weights beat"
    return [
        greater(f"{named} {min(setting.tops)} ({where})", "Fig. 6", k(best), k(min(setting.tops))),
        greater(f"{named} {other} ({where})", "Fig. 6", k(best), k(other)),
        greater(
            f"A gate's rate of {max(rates):g} beats {min(rates):g} ({where})",
            "Fig. 7",
            rate(max(rates)),
            rate(min(rates)),
        ),
        on_par(
            f"{setting.gated} epochs of a gate are as good as {max(lengths)} ({where})",
            "Fig. 8",
            epochs(setting.gated),
            epochs(max(lengths)),
        ),
    ]
