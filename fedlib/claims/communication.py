"""Claims of the FedMix paper (000) about performance and communication, and its ablations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

import numpy as np
import pandas as pd

from fedlib import datasets, frames
from fedlib.algorithms import FedAvg, FedMix, PrunedFedMix
from fedlib.claims.fedmix import final, late
from fedlib.claims.rule import POINT, Claim, above, below, equal, greater
from fedlib.experiment import Experiment
from fedlib.models import Net
from fedlib.recipes import (
    BIAS,
    BIASED,
    FEDAVG,
    FEDMIX,
    PRUNING,
    WIDE,
    with_experts,
    with_pruning,
)

BySeed = Mapping[int, float]
Accuracy = Callable[[str], BySeed]
TWO, TEN = with_experts(2), with_experts(10)
TEN_PRUNED = f"{TEN} + pruning"


def communication_claims(frame: pd.DataFrame, dataset: str) -> list[Claim]:
    """Test what sec. 4.1 says of Fig. 4 on one data set.

    Accuracies are those of the last round with the server's parameters; data without claims of
    their own (digits) are asked those of CIFAR-10, whose label skew they have.
    """
    accuracy = final(frame, "test_accuracy")
    claims = _OF_DATA.get(dataset, _cifar10)
    return claims(frame, lambda method: accuracy.get(method, {}))


def _cifar10(frame: pd.DataFrame, accuracy: Accuracy) -> list[Claim]:
    sent = _megabytes(frame)
    return [
        greater(
            "FedMix (K = 4) beats FedAvg at equal rounds",
            "Sec. 4.1, Fig. 4d",
            accuracy(FEDMIX),
            accuracy(FEDAVG),
        ),
        greater(
            "FedMix (K = 4) beats FedAvg with as many parameters, at equal bytes per round",
            "Sec. 4.1, Fig. 4d",
            accuracy(FEDMIX),
            accuracy(WIDE[4]),
        ),
        greater(
            "FedMix (K = 2) beats FedAvg with as many parameters, at equal bytes per round",
            "Sec. 4.1, Fig. 4d",
            accuracy(TWO),
            accuracy(WIDE[2]),
        ),
        _at_equal_traffic(frame, FEDMIX, "FedMix (K = 4)", "Fig. 4a"),
        _at_equal_traffic(frame, TWO, "FedMix (K = 2)", "Fig. 4a"),
        greater(
            "A personal bias improves FedMix on its clients",
            "Sec. 4.1, Fig. 4d",
            accuracy(BIAS),
            accuracy(FEDMIX),
        ),
        greater(
            "Pruning sends fewer bytes: MB in all, without vs with it",
            "Sec. 4.1, Fig. 4a",
            sent.get(FEDMIX, {}),
            sent.get(PRUNING, {}),
        ),
        _at_equal_traffic(frame, PRUNING, "FedMix with pruning", "Fig. 4a"),
    ]


def _cifar100(frame: pd.DataFrame, accuracy: Accuracy) -> list[Claim]:
    return [
        greater(
            "FedMix (K = 4) beats FedAvg at equal rounds",
            "Sec. 4.1, Fig. 4e",
            accuracy(FEDMIX),
            accuracy(FEDAVG),
        ),
        greater(
            "FedMix (K = 10) beats FedAvg at equal rounds",
            "Sec. 4.1, Fig. 4e",
            accuracy(TEN),
            accuracy(FEDAVG),
        ),
        greater(
            "FedMix (K = 4) learns faster per round than FedAvg: mean accuracy over the rounds",
            "Sec. 4.1, Fig. 4e",
            _mean_over_rounds(frame, FEDMIX),
            _mean_over_rounds(frame, FEDAVG),
        ),
        _at_equal_traffic(frame, TEN_PRUNED, "FedMix (K = 10) with pruning", "Fig. 4b"),
        greater(
            "Biased FedAvg beats FedAvg",
            "Sec. 4.1, Fig. 4e",
            accuracy(BIASED),
            accuracy(FEDAVG),
        ),
        greater(
            "Biased FedAvg is the better inductive bias: it beats FedMix (K = 10)",
            "Sec. 4.1, Fig. 4e",
            accuracy(BIASED),
            accuracy(TEN),
        ),
    ]


def _femnist(frame: pd.DataFrame, accuracy: Accuracy) -> list[Claim]:
    apart = list(_difference(accuracy(BIASED), accuracy(FEDAVG)).values())
    return [
        greater(
            "FedMix (K = 2) loses to FedAvg: FedAvg vs FedMix",
            "Sec. 4.1, Fig. 4f",
            accuracy(FEDAVG),
            accuracy(TWO),
        ),
        greater(
            "More experts help: K = 4 beats K = 2",
            "Sec. 4.1, Fig. 4f",
            accuracy(FEDMIX),
            accuracy(TWO),
        ),
        above(
            "Biased FedAvg is like FedAvg: at most one point below it",
            "Sec. 4.1, Fig. 4f",
            apart,
            -POINT,
        ),
        below("... and at most one point above it", "Sec. 4.1, Fig. 4f", apart, POINT),
    ]


_OF_DATA = {"cifar100": _cifar100, "femnist": _femnist}


def tuning_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test Fig. 13: one local epoch on little data overfits, so that accuracy falls.

    The same clients with their own and with the server's parameters, over the last quarter of the
    rounds; overfitting that grows shows as a difference that falls.
    """
    gain = frames.adapted(frame).drop(columns="value").rename(columns={"gain": "value"})
    last = late(gain)
    claims = [
        below(
            f"{method}: a local epoch costs accuracy, own minus server parameters",
            "App. G, Fig. 13",
            list(last.get(method, {}).values()),
            0.0,
        )
        for method in (FEDAVG, BIASED, FEDMIX, PRUNING)
    ]
    first = late(gain[gain["round"] <= gain["round"].max() / 2])  # the second quarter
    text = "... and more so later: own minus server, second vs last quarter, mean over methods"
    return [*claims, greater(text, "App. G, Fig. 13", _over_methods(first), _over_methods(last))]


def ablation_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test Fig. 11: the numbers of experts K, each against the next smaller, and the thresholds.

    Only what the frame holds two of is compared; at least the paper's statements about pruning are
    always asked.
    """
    local, new = final(frame, "test_accuracy"), final(frame, "global_accuracy")
    there = experts_of(frame)
    claims = []
    for few, many in pairwise(there):
        small, large = with_experts(few), with_experts(many)
        text = f"More experts, higher accuracy: K = {many} vs K = {few}"
        claims += [
            greater(f"{text}, local", "App. E, Fig. 11a", local[large], local[small]),
            greater(f"{text}, new shard", "App. E, Fig. 11c", new[large], new[small]),
        ]
    if TEN in set(frame["method"]):
        text = "With K = 10, the classes' number, each class has an expert to itself: their share"
        claims.append(above(text, "App. E", list(own_experts(frame, TEN).values()), 0.9))
    sent = _megabytes(frame)
    etas = etas_of(frame)
    for low, high in pairwise(etas):
        claims.append(
            greater(
                f"More pruning sends fewer bytes: MB in all, eta = {low:g} vs {high:g}",
                "App. E, Fig. 11b",
                sent[with_pruning(low)],
                sent[with_pruning(high)],
            )
        )
    highest = with_pruning(max(etas, default=0))
    lost = _difference(local.get(with_pruning(0.5), {}), local.get(FEDMIX, {}))
    claims += [
        above(
            "Pruning at eta = 0.5 has no significant drop: at most one point below eta = 0, local",
            "Sec. 2.1, App. E",
            list(lost.values()),
            -POINT,
        ),
        greater(
            "The most pruning causes some loss: eta = 0 vs the highest eta, local",
            "App. E, Fig. 11b",
            local.get(FEDMIX, {}),
            local.get(highest, {}) if highest != FEDMIX else {},
        ),
    ]
    return claims


def own_experts(frame: pd.DataFrame, method: str) -> dict[int, float]:
    """Return the share of labels whose expert is no other label's, in the last q(z|y), by seed."""
    at = frames.logged_rounds(frame, "q", method)[-1]
    rows = frame[(frame["method"] == method) & (frame["metric"] == "q") & (frame["round"] == at)]
    shares = {}
    for seed in sorted(rows["seed"].unique().tolist()):
        best = frames.matrix(frame, "q", method, seed, at).argmax(1)
        shares[seed] = float(np.mean(np.bincount(best)[best] == 1))
    return shares


def experts_of(frame: pd.DataFrame) -> list[int]:
    """Return the numbers of experts K that a frame has runs of; FedAvg's is 1."""
    there = set(frame["method"])
    return [k for k in range(1, 65) if with_experts(k) in there]


def etas_of(frame: pd.DataFrame) -> list[float]:
    """Return the thresholds eta that a frame has runs of; FedMix's is 0."""
    there = set(frame["method"])
    return [eta for eta in (round(0.05 * i, 2) for i in range(21)) if with_pruning(eta) in there]


def expected_traffic(experiment: Experiment) -> tuple[int, int, int]:
    """Return an experiment's parameters sent to a client, and a cohort's bytes down and up.

    By arithmetic on the sizes of what is not local, at 4 bytes a number; FedMix's clients also send
    q(z|s), K numbers. Nothing is trained and no data are looked for. Pruning is not taken into
    account: for it the bytes are the most that a round can send.
    """
    task, algorithm, clients = experiment.task, experiment.algorithm, experiment.cohort
    assert isinstance(clients, int)
    sizes = _sizes(algorithm, Net(task.model, *datasets.form(task.dataset)))
    shared = sum(size for name, size in sizes.items() if not algorithm.is_local(name))
    said = algorithm.experts if isinstance(algorithm, FedMix) else 0
    return shared, 4 * clients * shared, 4 * clients * (shared + said)


def _sizes(algorithm: FedAvg, net: Net) -> dict[str, int]:
    """Return how many numbers each of an algorithm's parameters has: one network, or K and more."""
    one = {name: tensor.numel() for name, tensor in net.init(0).items()}
    if not isinstance(algorithm, FedMix):
        return one
    k, classes = algorithm.experts, one["head.bias"]
    own = {"phi": classes * k, "gate.A": net.width * k, "gate.b": k}
    if algorithm.personal_bias:
        own["bias"] = one.pop("head.bias")
    return {**{f"experts.{name}": k * size for name, size in one.items()}, **own}


def traffic_claim(frame: pd.DataFrame, experiments: Mapping[str, Experiment]) -> Claim:
    """Test that runs sent the bytes that their models' sizes say, in the first round.

    ``experiments`` are the methods' of the frame; those that prune are left out.
    """
    whole = {m: e for m, e in experiments.items() if not isinstance(e.algorithm, PrunedFedMix)}
    asked = {m: list(expected_traffic(e)[1:]) for m, e in whole.items()}
    first = frame[frame["round"] == 1].groupby(["method", "metric"])["value"].max()
    sent = {m: [int(first[m][f"bytes_{way}"]) for way in ("down", "up")] for m in asked}
    total, expected = (sum(map(sum, each.values())) for each in (sent, asked))
    return equal(
        "What is sent is what the parameters weigh: bytes of a round, sum of the methods",
        "Sec. 4.1",
        total if sent == asked else f"{total}, divided otherwise",
        expected,
    )


def _at_equal_traffic(frame: pd.DataFrame, method: str, name: str, source: str) -> Claim:
    """Test that a method beats FedAvg when it has sent as many bytes as FedAvg did in all."""
    course = frames.against_traffic(frame, "test_accuracy")
    ends = course[course["method"] == FEDAVG].groupby("seed").last()
    return greater(
        f"{name} beats FedAvg at equal gigabytes, when it has sent as much as FedAvg in all",
        f"Sec. 4.1, {source}",
        frames.at_traffic(course, method, _by_seed(ends["gigabytes"])),
        _by_seed(ends["value"]),
    )


def _megabytes(frame: pd.DataFrame) -> dict[str, dict[int, float]]:
    total = frames.gigabytes(frame).groupby(["method", "seed"])["gigabytes"].max() * 1e3
    return {str(m): _by_seed(rows.droplevel(0)) for m, rows in total.groupby(level=0)}


def _mean_over_rounds(frame: pd.DataFrame, method: str) -> BySeed:
    rows = frames.curve(frame, "test_accuracy")
    return _by_seed(rows[rows["method"] == method].groupby("seed")["value"].mean())


def _over_methods(values: Mapping[str, BySeed]) -> dict[int, float]:
    """Return the mean over methods by seed, of the seeds that all methods have."""
    seeds = set.intersection(*(set(v) for v in values.values())) if values else set()
    return {s: float(np.mean([v[s] for v in values.values()])) for s in sorted(seeds)}


def _by_seed(values: pd.Series) -> dict[int, float]:
    return dict(zip(values.index.tolist(), values.tolist(), strict=True))


def _difference(a: BySeed, b: BySeed) -> dict[int, float]:
    return {s: a[s] - b[s] for s in sorted(a.keys() & b.keys())}
