"""Claims of 000 about divergence and specialisation, on numbers small enough to check by hand."""

from __future__ import annotations

import pandas as pd
import pytest

from companion.claims import FAILS, HOLDS
from papers.fedmix import CENTRALISED, ENSEMBLE, FEDAVG, FEDMIX, UNREGULARISED, analysis, claims

COLUMNS = ["method", "seed", "round", "metric", "client", "expert", "item", "value"]


def frame(*rows):
    return pd.DataFrame(rows, columns=COLUMNS)


def gd(method, seed, round, value, item="base.0.weight", expert=-1):
    return (method, seed, round, "divergence", -1, expert, item, value)


def _q(method, seed, matrix, round=100):
    return [
        (method, seed, round, "q", -1, k, str(c), matrix[c][k])
        for c in range(len(matrix))
        for k in range(len(matrix[0]))
    ]


def test_specialisation_claims_read_the_right_rows():
    rows = []
    for seed in range(3):
        one_hot, dead = [[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]]
        noise = 1e-3 * seed
        for method, q, entropy in (
            (FEDMIX, one_hot, 0.01), (UNREGULARISED, dead, 0.01), (ENSEMBLE, one_hot, 0.69)
        ):  # fmt: skip
            rows += _q(method, seed, q)
            rows += [(method, seed, 100, "q_entropy", -1, -1, "", entropy + noise / 10)]
            rows += [(method, seed, 40, "q_entropy", -1, -1, "", 0.5 + noise / 10)]
        for method, value in ((FEDMIX, 0.8), (ENSEMBLE, 0.6), (FEDAVG, 0.9)):
            for split in ("test", "validation"):
                rows.append((method, seed, 100, f"{split}_accuracy", 0, -1, "", value + noise))
        for epoch, most in ((1, 0.95), (5, 0.4)):
            for k, use in enumerate((most, 1 - most)):
                rows.append((CENTRALISED, seed, epoch, "test_gate", -1, k, "0", use + noise))
    tested = {c.text: c.verdict for c in claims.specialisation_claims(frame(*rows), 0.05)}
    assert list(tested.values()) == [
        HOLDS,  # one-hot
        HOLDS,  # alive
        HOLDS,  # the marginal term keeps experts alive
        HOLDS,  # H(q): entropy .69 of log 2
        FAILS,  # ... but .5 at round 2 / 0.05
        HOLDS,  # specialised above ensemble
        FAILS,  # specialised below FedAvg
        HOLDS,  # collapse after an epoch
        FAILS,  # ... not after the last
    ]


def test_divergence_claims():
    rows = [
        gd(m, s, t, v + 0.001 * s)
        for s in range(3)
        for t in range(1, 101)
        for m, v in ((FEDAVG, 3.9 if t <= 50 else 4.0), (FEDMIX, 3.9 if t <= 50 else 3.0))
    ]
    assert [c.verdict for c in claims.divergence_claims(frame(*rows))] == [HOLDS, HOLDS]
    flat = [
        gd(m, s, t, 4.0 + 0.001 * s) for s in range(3) for t in (1, 100) for m in (FEDAVG, FEDMIX)
    ]
    assert HOLDS not in [c.verdict for c in claims.divergence_claims(frame(*flat))]


def test_spread_keeps_the_ends():
    assert analysis.spread([0, 10, 20, 30, 40], 3) == [0, 10, 40]
    assert analysis.spread([0], 5) == [0]


def test_divergence_of_every_tensor_is_that_of_the_last_quarter():
    rows = [
        gd(method, 0, t, t * (1 + k), f"{prefix}{tensor}", k)
        for method, prefix in ((FEDMIX, "experts."), (FEDAVG, ""))
        for tensor in ("base.0.weight", "head.bias")
        for t in (50, 80, 100)
        for k in range(2)
    ]
    table = analysis.by_tensor(frame(*rows, gd(FEDMIX, 0, 100, 9.0, "phi")))
    assert set(table["tensor"]) == {"base.0.weight", "head.bias"} and len(table) == 4
    assert (table["value"] == 90 * 1.5).all()  # rounds 80 and 100, both experts


def test_the_least_used_expert_is_that_of_the_last_q():
    rows = _q(FEDMIX, 0, [[1, 0], [1, 0]], round=10) + _q(FEDMIX, 0, [[0.8, 0.2], [0.6, 0.4]])
    least = analysis.least_used(frame(*rows))
    assert least.to_dict("records") == [{"method": FEDMIX, "seed": 0, "value": pytest.approx(0.3)}]
