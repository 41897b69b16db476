"""Claims about performance, communication and ablations, on numbers small enough to check."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from companion.claims import FAILS, HOLDS, OPEN, UNTESTED
from papers.claims import ablations, communication
from papers.recipes import (
    BIAS,
    BIASED,
    COMMUNICATION,
    FEDAVG,
    FEDMIX,
    PRUNING,
    SECTIONS,
    WIDE,
    with_experts,
    with_pruning,
)

COLUMNS = ["method", "seed", "round", "metric", "client", "expert", "item", "value"]
TWO, TEN = with_experts(2), with_experts(10)


def run(method, ends, cost, new=None, rounds=(0, 10, 20)):
    """Rows of three seeds whose accuracy rises in a line to ``ends``, at ``cost`` bytes a round."""
    rows = []
    for seed in range(3):
        noise = 1e-4 * seed
        for t in rounds:
            share = t / rounds[-1]
            rows.append((method, seed, t, "test_accuracy", 0, -1, "", ends * share + noise))
            rows.append((method, seed, t, "global_accuracy", -1, -1, "", (new or ends) * share))
        for t in range(1, rounds[-1] + 1):
            rows.append((method, seed, t, "bytes_down", -1, -1, "", cost / 2))
            rows.append((method, seed, t, "bytes_up", -1, -1, "", cost / 2))
    return rows


def frame(*parts):
    return pd.DataFrame([row for part in parts for row in part], columns=COLUMNS)


def verdicts(claims):
    return {claim.text: claim.verdict for claim in claims}


def test_cifar10_is_compared_by_round_by_size_and_by_traffic():
    rows = frame(
        run(FEDAVG, 0.5, 1e6),
        run(WIDE[4], 0.7, 4e6),
        run(FEDMIX, 0.6, 4e6),
        run(PRUNING, 0.6, 1e6),
        run(BIAS, 0.6, 4e6),
    )
    said = verdicts(communication.communication_claims(rows, "cifar10"))
    assert list(said.values()) == [
        HOLDS,  # .6 against .5 after 20 rounds
        FAILS,  # .6 against .7 of the wide network
        UNTESTED,  # no K = 2
        FAILS,  # FedAvg's 20 MB pay for 5 rounds of FedMix: .15
        UNTESTED,
        OPEN,  # the bias changes nothing
        HOLDS,  # fewer bytes
        HOLDS,  # as many bytes as FedAvg, and .6
    ]
    assert said == verdicts(communication.communication_claims(rows, "digits"))


def test_each_data_set_has_its_own_claims():
    rows = frame(
        run(FEDAVG, 0.5, 1e6),
        run(BIASED, 0.505, 1e6),
        run(TWO, 0.4, 2e6),
        run(FEDMIX, 0.45, 4e6),
        run(TEN, 0.6, 1e7),
        run(communication.TEN_PRUNED, 0.6, 1e6),
    )
    femnist = verdicts(communication.communication_claims(rows, "femnist"))
    assert list(femnist.values()) == [HOLDS, HOLDS, HOLDS, HOLDS]
    cifar100 = verdicts(communication.communication_claims(rows, "cifar100"))
    assert list(cifar100.values()) == [FAILS, HOLDS, FAILS, HOLDS, HOLDS, FAILS]


def test_similar_means_within_a_point_on_both_sides():
    rows = frame(run(FEDAVG, 0.5, 1e6), run(BIASED, 0.52, 1e6))
    *_, below, above = communication.communication_claims(rows, "femnist")
    assert (below.verdict, above.verdict) == (HOLDS, FAILS)


def test_a_local_epoch_is_judged_on_the_same_clients():
    rows = []
    for seed in range(3):
        for t in range(10, 101, 10):
            loss = 0.001 * t + 1e-4 * seed
            for client, server in ((0, 0.5), (1, 0.9)):
                rows.append((FEDAVG, seed, t, "test_accuracy", client, -1, "", server))
            # Only the weaker client was in the cohort.
            rows.append((FEDAVG, seed, t, "adapted_test_accuracy", 0, -1, "", 0.5 - loss))
    fedavg, *others, more = communication.tuning_claims(pd.DataFrame(rows, columns=COLUMNS))
    assert fedavg.verdict == more.verdict == HOLDS
    assert {claim.verdict for claim in others} == {UNTESTED}
    untold = communication.tuning_claims(frame(run(FEDAVG, 0.5, 1e6)))
    assert {claim.verdict for claim in untold} == {UNTESTED}


def test_ablations_compare_what_is_there():
    rows = frame(
        run(FEDAVG, 0.5, 1e6, new=0.6),
        run(FEDMIX, 0.6, 4e6, new=0.5),
        run(with_pruning(0.5), 0.595, 3e6),
        run(PRUNING, 0.5, 2e6),
    )
    assert ablations.experts_of(rows) == [1, 4]
    assert ablations.etas_of(rows) == [0.0, 0.5, 0.9]
    said = verdicts(ablations.ablation_claims(rows))
    assert list(said.values()) == [
        HOLDS,  # K = 4 against 1, local
        FAILS,  # ... new shard
        HOLDS,  # bytes, eta 0 against .5
        HOLDS,  # ... .5 against .9
        HOLDS,  # half a point lost at .5
        HOLDS,  # ten at .9
    ]


def test_every_class_may_have_an_expert_of_its_own():
    q = np.eye(3)
    shared = q[[0, 1, 1]]
    rows = [
        (TEN, seed, 10, "q", -1, k, str(c), (q if seed else shared)[c][k])
        for seed in range(2)
        for c in range(3)
        for k in range(3)
    ]
    shares = ablations.own_experts(pd.DataFrame(rows, columns=COLUMNS), TEN)
    assert shares == pytest.approx({0: 1 / 3, 1: 1.0})


@pytest.mark.parametrize(
    ("dataset", "method", "megabytes"),
    [
        ("cifar10", FEDAVG, 35.5),
        ("cifar10", WIDE[2], 70.7),
        ("cifar10", WIDE[4], 142.4),
        ("cifar10", TWO, 70.9),
        ("cifar10", FEDMIX, 141.9),
        ("cifar100", FEDAVG, 22.3),
        ("cifar100", FEDMIX, 89.1),
        ("cifar100", TEN, 222.7),
        ("femnist", FEDAVG, 25.7),
    ],
)
def test_traffic_of_the_papers_rounds_by_arithmetic(dataset, method, megabytes):
    experiment = COMMUNICATION.experiments("paper", dataset, method)[0]
    _, down, up = communication.expected_traffic(experiment)
    assert (down + up) / 1e6 == pytest.approx(megabytes, abs=0.05)


def test_runs_send_what_the_arithmetic_says():
    experiment = COMMUNICATION.experiments("quick", "digits", FEDMIX)[0]
    pruned = COMMUNICATION.experiments("quick", "digits", PRUNING)[0]
    _, down, up = communication.expected_traffic(experiment)
    rows = [
        (method, 0, 1, f"bytes_{way}", -1, -1, "", value)
        for method in (FEDMIX, PRUNING)
        for way, value in (("down", down), ("up", up))
    ]
    sent = pd.DataFrame(rows, columns=COLUMNS)
    asked = {FEDMIX: experiment, PRUNING: pruned}
    assert communication.traffic_claim(sent, asked).verdict == HOLDS
    less = sent.assign(value=sent["value"] - 4)
    assert communication.traffic_claim(less, asked).verdict == FAILS


def test_methods_of_the_claims_exist():
    known = {
        method
        for name in ("communication", "ablation")
        for data in SECTIONS[name].settings("standard")
        for method in SECTIONS[name].methods("standard", data)
    }
    assert communication.TEN_PRUNED in known and {TWO, BIAS, *WIDE.values()} <= known
