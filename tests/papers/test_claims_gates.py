"""What 004 claims of gates and energies, on runs made up so that the verdicts are known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from companion import frames
from companion.claims import FAILS, HOLDS
from papers.claims import gates
from papers.recipes import GATES, MAJORITY, WITH_MOE, at

SETTING = GATES.settings("quick")["digits"]
NAME = f"FedPer {WITH_MOE}"


def table(effects, noise=0.001, seeds=3):
    """Scores of the quick plan at S = 0; ``effects`` adds to .8 what is in a method's name."""
    rng = np.random.default_rng(0)
    names = [m for m in GATES.methods("quick", "digits") if m.endswith("S = 0")]
    rows = []
    for method in names:
        gained = sum(v for part, v in effects.items() if part in method)
        for seed in range(seeds):
            rows.append((method, seed, 0.8 + gained + noise * rng.standard_normal()))
    return frames.apart(pd.DataFrame(rows, columns=["method", "seed", "value"]))


def verdicts(scores):
    return {c.text.split(" (")[0]: c.verdict for c in gates.gate_claims(scores, SETTING)}


def test_claims_hold_where_they_are_built_in():
    worse = {"layers": -0.1, "relu": -0.1, "elu": -0.1, "silu": -0.1, "mish": -0.1}
    worse |= dict.fromkeys(("uniform", "normal,", "xavier", "kaiming", "spectral"), -0.1)
    worse |= {"k = 2,": -0.1, "k = 10,": -0.05, "lr = 0.5": 0.1, "epochs = 10": -0.005}
    worse |= {MAJORITY: -0.5}
    said = verdicts(table(worse))
    assert set(said.values()) == {HOLDS}, said


def test_claims_fail_where_the_contrary_is_built_in():
    better = {"layers": 0.1, "relu": 0.1, "elu": 0.1, "silu": 0.1, "mish": 0.1}
    better |= dict.fromkeys(("uniform", "normal,", "xavier", "kaiming", "spectral"), 0.1)
    better |= {"k = 2,": 0.1, "k = 10,": 0.05, "lr = 0.5": -0.1, "epochs = 10": 0.1}
    said = verdicts(table(better))
    assert set(said.values()) == {FAILS}, said


def test_a_number_varies_and_the_rest_stays():
    scores = table({"k = 2,": 0.1})
    rows = gates.varied(scores, "k", SETTING.clients // 2)
    assert set(rows["method"]) == {NAME}
    assert sorted(rows["k"].unique()) == [2, 5, 10]
    assert rows.groupby("k").size().tolist() == [3] * 3
    assert rows[rows["k"] == 2]["value"].mean() == pytest.approx(0.9, abs=0.01)
    cold = gates.varied(scores, "T", 1.0, {"gamma": SETTING.gamma})
    assert sorted(cold["T"].unique()) == sorted(SETTING.temperatures)


def test_every_choice_differs_from_the_first_on_the_same_seeds():
    scores = table({at(NAME, layers=2): 0.1, f"{NAME}, relu": -0.2}, noise=0.0)
    found = gates.made_of(scores).groupby(["part", "choice"])["value"].agg(["mean", "size"])
    assert len(found) == sum(len(choices) - 1 for choices in gates.PARTS.values())
    assert (found["size"] == 3).all()
    assert found.loc[("layers", "2"), "mean"] == pytest.approx(0.1)
    assert found.loc[("activation", "relu"), "mean"] == pytest.approx(-0.2)
    assert found["mean"].abs().sum() == pytest.approx(0.3)
    (panel,) = gates.by_choice(gates.made_of(scores)).values()
    assert {"2 layers", "relu", "kaiming"} <= set(panel["row"])


def test_ranks_go_from_the_least_energy_to_the_most():
    energies = np.array([[0.3, 0.1, 0.2], [5.0, 5.0, 1.0]])
    assert gates.ranks(energies).tolist() == [[1.0, 0.0, 0.5], [0.75, 0.75, 0.0]]


def test_at_a_high_temperature_all_but_the_constant_is_the_cosine():
    """FACTS 9.2: H = T log D + cos / D + O(Var / T), and max_d v_d for T near zero."""
    draw = torch.Generator().manual_seed(0)
    own = torch.randn(4, 1, 10, generator=draw).double()
    said = torch.randn(4, 6, 10, generator=draw).double()
    unit = torch.nn.functional.normalize
    v = unit(said, dim=-1) * unit(own, dim=-1)
    energies = {t: (t * (v / t).logsumexp(-1)).numpy() for t in (100.0, 1.0, 1e-4)}
    told = gates.told(energies, 10)
    assert told.loc[100.0, "T log D"] == pytest.approx(100 * np.log(10))
    spread = float(v.mean(-1).std(1, correction=0).mean())
    assert told.loc[100.0, "spread"] == pytest.approx(spread, rel=0.05)
    by_cosine = gates.ranks(v.sum(-1).numpy())
    np.testing.assert_array_equal(gates.ranks(energies[100.0].astype(float)), by_cosine)
    np.testing.assert_allclose(energies[1e-4], v.max(-1).values.numpy(), atol=1e-3)
    last = told.columns[-1]
    assert told.loc[100.0, last] == pytest.approx(1) and told.loc[1e-4, last] < 0.99
