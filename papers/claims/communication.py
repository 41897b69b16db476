"""Claims of the FedMix paper (000) about performance and communication."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from companion import frames
from companion.claims import POINT, BySeed, Claim, below, differences, equal, greater, on_par
from companion.frames import ByMethod
from fedlib import data as datasets
from fedlib.algorithms import FedAvg, FedMix, PrunedFedMix
from fedlib.models import Net
from fedlib.runs import Experiment
from papers.claims.fedmix import late
from papers.recipes import (
    BIAS,
    BIASED,
    FEDAVG,
    FEDMIX,
    PRUNING,
    TEN_PRUNED,
    WIDE,
    with_experts,
)

TWO, TEN = with_experts(2), with_experts(10)


def communication_claims(frame: pd.DataFrame, dataset: str) -> list[Claim]:
    """Test what sec. 4.1 says of Fig. 4 on one data set.

    Accuracies are those of the last round with the server's parameters; data without claims of
    their own (digits) are asked those of CIFAR-10, whose label skew they have.
    """
    claims = _OF_DATA.get(dataset, _cifar10)
    return claims(frame, frames.final(frame, "test_accuracy"))


def _cifar10(frame: pd.DataFrame, accuracy: ByMethod) -> list[Claim]:
    sent = megabytes(frame)
    return [
        greater(
            "FedMix (K = 4) beats FedAvg at equal rounds",
            "Sec. 4.1, Fig. 4d",
            accuracy[FEDMIX],
            accuracy[FEDAVG],
        ),
        greater(
            "FedMix (K = 4) beats FedAvg with as many parameters, at equal bytes per round",
            "Sec. 4.1, Fig. 4d",
            accuracy[FEDMIX],
            accuracy[WIDE[4]],
        ),
        greater(
            "FedMix (K = 2) beats FedAvg with as many parameters, at equal bytes per round",
            "Sec. 4.1, Fig. 4d",
            accuracy[TWO],
            accuracy[WIDE[2]],
        ),
        _at_equal_traffic(frame, FEDMIX, "FedMix (K = 4)", "Fig. 4a"),
        _at_equal_traffic(frame, TWO, "FedMix (K = 2)", "Fig. 4a"),
        greater(
            "A personal bias improves FedMix on its clients",
            "Sec. 4.1, Fig. 4d",
            accuracy[BIAS],
            accuracy[FEDMIX],
        ),
        greater(
            "Pruning sends fewer bytes: MB in all, without vs with it",
            "Sec. 4.1, Fig. 4a",
            sent[FEDMIX],
            sent[PRUNING],
        ),
        _at_equal_traffic(frame, PRUNING, "FedMix with pruning", "Fig. 4a"),
    ]


def _cifar100(frame: pd.DataFrame, accuracy: ByMethod) -> list[Claim]:
    over_rounds = frames.by_method(frames.curve(frame, "test_accuracy"))
    return [
        greater(
            "FedMix (K = 4) beats FedAvg at equal rounds",
            "Sec. 4.1, Fig. 4e",
            accuracy[FEDMIX],
            accuracy[FEDAVG],
        ),
        greater(
            "FedMix (K = 10) beats FedAvg at equal rounds",
            "Sec. 4.1, Fig. 4e",
            accuracy[TEN],
            accuracy[FEDAVG],
        ),
        greater(
            "FedMix (K = 4) learns faster per round than FedAvg: mean accuracy over the rounds",
            "Sec. 4.1, Fig. 4e",
            over_rounds[FEDMIX],
            over_rounds[FEDAVG],
        ),
        _at_equal_traffic(frame, TEN_PRUNED, "FedMix (K = 10) with pruning", "Fig. 4b"),
        greater(
            "Biased FedAvg beats FedAvg",
            "Sec. 4.1, Fig. 4e",
            accuracy[BIASED],
            accuracy[FEDAVG],
        ),
        greater(
            "Biased FedAvg is the better inductive bias: it beats FedMix (K = 10)",
            "Sec. 4.1, Fig. 4e",
            accuracy[BIASED],
            accuracy[TEN],
        ),
    ]


def _femnist(frame: pd.DataFrame, accuracy: ByMethod) -> list[Claim]:
    biased, fedavg = accuracy[BIASED], accuracy[FEDAVG]
    return [
        greater(
            "FedMix (K = 2) loses to FedAvg: FedAvg vs FedMix",
            "Sec. 4.1, Fig. 4f",
            accuracy[FEDAVG],
            accuracy[TWO],
        ),
        greater(
            "More experts help: K = 4 beats K = 2",
            "Sec. 4.1, Fig. 4f",
            accuracy[FEDMIX],
            accuracy[TWO],
        ),
        on_par(
            "Biased FedAvg is like FedAvg: at most one point below it",
            "Sec. 4.1, Fig. 4f",
            biased,
            fedavg,
        ),
        below(
            "... and at most one point above it",
            "Sec. 4.1, Fig. 4f",
            differences(biased, fedavg),
            POINT,
        ),
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
            last[method],
            0.0,
        )
        for method in (FEDAVG, BIASED, FEDMIX, PRUNING)
    ]
    first = late(gain[gain["round"] <= gain["round"].max() / 2])  # the second quarter
    text = "... and more so later: own minus server, second vs last quarter, mean over methods"
    return [*claims, greater(text, "App. G, Fig. 13", _over_methods(first), _over_methods(last))]


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
        frames.at_traffic(course, method, frames.by_seed(ends, "gigabytes")),
        frames.by_seed(ends),
    )


def megabytes(frame: pd.DataFrame) -> ByMethod:
    """Return what each run has sent in all, down and up, in megabytes."""
    total = frames.gigabytes(frame).groupby(frames.RUN, as_index=False)["gigabytes"].max()
    return frames.by_method(total.assign(value=total["gigabytes"] * 1e3))


def _over_methods(values: Mapping[str, BySeed]) -> BySeed:
    """Return the mean over methods by seed, of the seeds that all methods have."""
    seeds = set.intersection(*(set(v) for v in values.values())) if values else set()
    return {s: float(np.mean([v[s] for v in values.values()])) for s in sorted(seeds)}
