"""What 004 claims of gates and energies, on runs made up so that the verdicts are known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from companion.claims import FAILS, HOLDS
from papers.floor import MAJORITY
from papers.pm_moe import STAGE, WITH_MOE
from papers.pm_moe.analysis import CHOICES, PARTS, by_choice, made_of, ranks, told, varied
from papers.pm_moe.claims import gate_claims
from papers.pm_moe.experiments import GATES

SETTING = GATES.settings("quick")["digits"]
OTHERS = {part: choices[1:] for part, choices in PARTS.items()}
ALL_OTHERS = {(part, choice) for part, choices in OTHERS.items() for choice in choices}


def table(effects, noise=0.001, seeds=3):
    """Scores of the quick plan at S = 0: 0.8, and what ``effects`` says of a choice or a method."""
    rng = np.random.default_rng(0)
    rows = []
    for run in GATES.runs("quick", "digits"):
        gained = sum(effects.get(place, 0.0) for place in [run.method, *run.where.items()])
        for seed in range(seeds * (run.where["S"] == 0)):
            value = 0.8 + gained + noise * rng.standard_normal()
            rows.append({"method": run.method, "seed": seed, **run.where, "value": value})
    made = pd.DataFrame(rows)
    return made.fillna(dict.fromkeys([STAGE, "activation", "initialisation", "weights"], ""))


@pytest.mark.parametrize(
    ("other", "few", "all_of_them", "fast", "long", "verdict"),
    [(-0.1, -0.1, -0.05, 0.1, -0.005, HOLDS), (0.1, 0.1, 0.05, -0.1, 0.1, FAILS)],
)
def test_claims_are_what_is_built_in(other, few, all_of_them, fast, long, verdict):
    effects = dict.fromkeys(ALL_OTHERS, other)
    effects |= {("k", 2): few, ("k", 10): all_of_them, ("lr", 0.5): fast, ("epochs", 10): long}
    effects[MAJORITY] = -0.5 if verdict == HOLDS else 0.5
    claims = gate_claims(table(effects), SETTING)
    assert len(claims) == 8 and {c.verdict for c in claims} == {verdict}, claims


def test_a_number_varies_and_the_rest_stays():
    scores = table({("k", 2): 0.1})
    rows = varied(scores, "k", SETTING.clients // 2)
    assert {*rows["method"]} == {"FedPer"} and {*rows[STAGE]} == {WITH_MOE}
    assert rows.groupby("k").size().to_dict() == {2: 3, 5: 3, 10: 3}
    assert rows[rows["k"] == 2]["value"].mean() == pytest.approx(0.9, abs=0.01)
    assert not {*CHOICES} & {*rows} - {"k"}
    cold = varied(scores, "T", 1.0, {"gamma": SETTING.gamma})
    assert sorted(cold["T"].unique()) == sorted(SETTING.temperatures)


def test_every_choice_differs_from_the_first_on_the_same_seeds():
    scores = table({("layers", 2): 0.1, ("activation", "relu"): -0.2}, noise=0.0)
    found = made_of(scores).groupby(["part", "choice"])["value"].agg(["mean", "size"])
    assert {*found.index} == ALL_OTHERS and (found["size"] == 3).all()
    assert found.loc[("layers", 2), "mean"] == pytest.approx(0.1)
    assert found.loc[("activation", "relu"), "mean"] == pytest.approx(-0.2)
    assert found["mean"].abs().sum() == pytest.approx(0.3)
    (panel,) = by_choice(made_of(scores)).values()
    assert {"2 layers", "1 layer", "relu", "kaiming"} <= set(panel["row"])
    assert set(panel["group"]) == {f"FedPer {WITH_MOE}"} and len(panel) == len(ALL_OTHERS)


def test_ranks_go_from_the_least_energy_to_the_most():
    energies = np.array([[0.3, 0.1, 0.2], [5.0, 5.0, 1.0]])
    assert ranks(energies).tolist() == [[1.0, 0.0, 0.5], [0.75, 0.75, 0.0]]


def test_at_a_high_temperature_all_but_the_constant_is_the_cosine():
    """FACTS 9.2: H = T log D + cos / D + O(Var / T), and max_d v_d for T near zero."""
    draw = torch.Generator().manual_seed(0)
    own = torch.randn(4, 1, 10, generator=draw).double()
    said = torch.randn(4, 6, 10, generator=draw).double()
    unit = torch.nn.functional.normalize
    v = unit(said, dim=-1) * unit(own, dim=-1)
    energies = {t: (t * (v / t).logsumexp(-1)).numpy() for t in (100.0, 1.0, 1e-4)}
    table = told(energies, 10)
    assert table.loc[100.0, "T log D"] == pytest.approx(100 * np.log(10))
    spread = float(v.mean(-1).std(1, correction=0).mean())
    assert table.loc[100.0, "spread"] == pytest.approx(spread, rel=0.05)
    by_cosine = ranks(v.sum(-1).numpy())
    np.testing.assert_array_equal(ranks(energies[100.0].astype(float)), by_cosine)
    np.testing.assert_allclose(energies[1e-4], v.max(-1).values.numpy(), atol=1e-3)
    last = table.columns[-1]
    assert table.loc[100.0, last] == pytest.approx(1) and table.loc[1e-4, last] < 0.99
