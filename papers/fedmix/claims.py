"""The claims of FedMix (000), each quoted with its place, and their tests.

A table's row is (claim, place, a, b): that a is greater than b on the same seeds. What phi tells of
clients' labels is no claim of the paper: those claims are ours, and say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TypeVar

import numpy as np
import pandas as pd

from companion import frames
from companion.claims import (
    POINT,
    BySeed,
    Claim,
    above,
    alike,
    below,
    differences,
    equal,
    greater,
    on_par,
)
from companion.frames import ByMethod, final
from fedlib.algorithms import PrunedFedMix
from fedlib.runs import Experiment
from papers.fedmix import (
    BIAS,
    BIASED,
    BY_ANGLE,
    BY_LABEL,
    CENTRALISED,
    DENSITIES,
    ENSEMBLE,
    EPOCH,
    FEDAVG,
    FEDMIX,
    LOCAL_GLOBAL,
    ORIGINAL,
    PRUNING,
    SLOWER,
    STEP,
    TEN,
    TEN_PRUNED,
    TRAINED,
    TWO,
    UNREGULARISED,
    WIDE,
    analysis,
    clusters,
    privacy,
    with_experts,
    with_k,
    with_pruning,
)
from papers.fedmix.analysis import late, newcomers, one_hotness, winners
from papers.fedmix.privacy import BIAS as B
from papers.fedmix.privacy import GUESSING, MESSAGES, PHI, Q

ONE_HOT = 0.1  # a row of q(z|y) counts as one-hot below this share of log K
UNIFORM = 0.9  # ... and as uniform above this one
DECIDED = 0.9  # a client counts as decided when its most probable expert has this much of q(z|s)
CHANCES = 2  # "almost random" is below twice what guessing gives
NEAR = 0.1  # a mean total variation below this is called near-identical
FIFTH = 0.2  # ... if it is also below this share of guessing's
DIGITS = 6  # decimals to which the identity behind eq. 15 must hold
OURS = "ours, not in 000"
NOT_HERE = "not in the paper"
EXTENDED = "App. C, extended"
K = TypeVar("K")


def _greater(values: Mapping[K, BySeed], *rows: tuple[str, str, K, K]) -> list[Claim]:
    """Test rows of (claim, place, a, b): a's value is greater than b's on the same seeds."""
    return [greater(text, source, values[a], values[b]) for text, source, a, b in rows]


# Divergence and specialisation: sec. 1 and 2, Fig. 1, 3 and 14.


def divergence_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test Fig. 1: per expert, FedMix's gradients diverge less than FedAvg's once q has formed."""
    curve = frames.divergence(frame)
    last = late(curve)
    early = frames.by_method(curve[curve["round"] <= curve["round"].max() // 10])
    texts = (
        "FedMix's divergence per expert is below FedAvg's in the last quarter of training",
        "FedAvg's clients start diverging: last quarter above the first tenth of training",
    )
    return [
        greater(texts[0], "Fig. 1", last[FEDAVG], last[FEDMIX]),
        greater(texts[1], "Sec. 1, Fig. 1", last[FEDAVG], early[FEDAVG]),
    ]


def specialisation_claims(frame: pd.DataFrame, phi_rate: float) -> list[Claim]:
    """Test Fig. 3 and 14: does q(z|y) specialise, do experts live, what do the entropies do?

    ``phi_rate`` is the server's rate for phi. A logit moves by about that much per round, so that
    runs with another rate or length are compared at the same rate x rounds: the paper's is 2.
    """
    accuracy, least = final(frame, "test_accuracy"), frames.by_method(analysis.least_used(frame))
    k = frame["expert"].max() + 1
    text = "FedMix assigns each label to one expert: mean row entropy of q(z|y) over log K"
    claims = [below(text, "Fig. 14a", one_hotness(frame, FEDMIX), ONE_HOT)]
    text = "FedMix's experts all live: K times the marginal q(z) of the least used expert"
    alive = [v / (1 / k) for v in least[FEDMIX].values()]
    claims += [above(text, "Sec. 2.1, Fig. 14a", alive, 0.2)]
    text = "The marginal entropy term keeps experts alive: least used expert, with vs without it"
    claims += _greater(least, (text, "Sec. 2.1", FEDMIX, UNREGULARISED))
    text = "With H(q) no expert specialises: mean row entropy of q(z|y) over log K, last round"
    claims += [above(text, "Fig. 3", one_hotness(frame, ENSEMBLE), UNIFORM)]
    text, there = "... at the paper's travel of phi, rate x rounds = 2", "Fig. 3, time scale"
    claims += [above(text, there, one_hotness(frame, ENSEMBLE, phi_rate), UNIFORM)]
    text = "Specialised beats the ensemble: FedMix vs FedMix with H(q), accuracy of last round"
    claims += _greater(
        accuracy,
        (text, "Fig. 3", FEDMIX, ENSEMBLE),
        ("Specialised beats FedAvg, accuracy of last round", "Fig. 3", FEDMIX, FEDAVG),
    )
    gate = winners(frame, CENTRALISED)
    text = "The original mixture (eq. 3, S = 1) collapses to one expert: its share after an epoch"
    claims += [above(text, "Fig. 14b", gate.get(1, {}), UNIFORM)]
    text = "... and after the last epoch that was run"
    claims += [above(text, "Fig. 14b, extended", _last(gate), UNIFORM)]
    if ORIGINAL in set(frame["method"]):
        text = "The federated original mixture (eq. 3) collapses to one expert by the last round"
        claims.append(above(text, "App. H", _last(winners(frame, ORIGINAL)), UNIFORM))
    return claims


def _last(by_round: Mapping[int, BySeed]) -> BySeed:
    return by_round[max(by_round)] if by_round else {}


# Performance against communication: sec. 4.1, Fig. 4 and 13, App. G.


def communication_claims(frame: pd.DataFrame, dataset: str) -> list[Claim]:
    """Test what sec. 4.1 says of Fig. 4 on one data set.

    Accuracies are those of the last round with the server's parameters; data without claims of
    their own (digits) are asked those of CIFAR-10, whose label skew they have.
    """
    known = {"cifar100": _cifar100, "femnist": _femnist}
    return known.get(dataset, _cifar10)(frame, final(frame, "test_accuracy"))


_EQUAL = "beats FedAvg at equal gigabytes, when it has sent as much as FedAvg in all"


def _cifar10(frame: pd.DataFrame, accuracy: ByMethod) -> list[Claim]:
    place, place_a = "Sec. 4.1, Fig. 4d", "Sec. 4.1, Fig. 4a"
    sized = "beats FedAvg with as many parameters, at equal bytes per round"
    sent = "Pruning sends fewer bytes: MB in all, without vs with it"
    return [
        *_greater(
            accuracy,
            ("FedMix (K = 4) beats FedAvg at equal rounds", place, FEDMIX, FEDAVG),
            (f"FedMix (K = 4) {sized}", place, FEDMIX, WIDE[4]),
            (f"FedMix (K = 2) {sized}", place, TWO, WIDE[2]),
            ("A personal bias improves FedMix on its clients", place, BIAS, FEDMIX),
        ),
        *_greater(
            analysis.at_equal_traffic(frame),
            (f"FedMix (K = 4) {_EQUAL}", place_a, FEDMIX, FEDAVG),
            (f"FedMix (K = 2) {_EQUAL}", place_a, TWO, FEDAVG),
            (f"FedMix with pruning {_EQUAL}", place_a, PRUNING, FEDAVG),
        ),
        *_greater(analysis.megabytes(frame), (sent, place_a, FEDMIX, PRUNING)),
    ]


def _cifar100(frame: pd.DataFrame, accuracy: ByMethod) -> list[Claim]:
    place, better = "Sec. 4.1, Fig. 4e", "Biased FedAvg is the better inductive bias: it beats"
    faster = "FedMix (K = 4) learns faster per round than FedAvg: mean accuracy over the rounds"
    over_rounds = frames.by_method(frames.curve(frame, "test_accuracy"))
    pruned = (f"FedMix (K = 10) with pruning {_EQUAL}", "Sec. 4.1, Fig. 4b", TEN_PRUNED, FEDAVG)
    return [
        *_greater(
            accuracy,
            ("FedMix (K = 4) beats FedAvg at equal rounds", place, FEDMIX, FEDAVG),
            ("FedMix (K = 10) beats FedAvg at equal rounds", place, TEN, FEDAVG),
            ("Biased FedAvg beats FedAvg", place, BIASED, FEDAVG),
            (f"{better} FedMix (K = 10)", place, BIASED, TEN),
        ),
        *_greater(over_rounds, (faster, place, FEDMIX, FEDAVG)),
        *_greater(analysis.at_equal_traffic(frame), pruned),
    ]


def _femnist(frame: pd.DataFrame, accuracy: ByMethod) -> list[Claim]:
    place, (biased, fedavg) = "Sec. 4.1, Fig. 4f", (accuracy[BIASED], accuracy[FEDAVG])
    gap = differences(biased, fedavg)
    return [
        *_greater(
            accuracy,
            ("FedMix (K = 2) loses to FedAvg: FedAvg vs FedMix", place, FEDAVG, TWO),
            ("More experts help: K = 4 beats K = 2", place, FEDMIX, TWO),
        ),
        on_par("Biased FedAvg is like FedAvg: at most one point below it", place, biased, fedavg),
        below("... and at most one point above it", place, gap, POINT),
    ]


def tuning_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test Fig. 13: one local epoch on little data overfits, so that accuracy falls.

    The same clients with their own and with the server's parameters, over the last quarter of the
    rounds; overfitting that grows shows as a difference that falls.
    """
    gain = frames.adapted(frame).drop(columns="value").rename(columns={"gain": "value"})
    last, place = late(gain), "App. G, Fig. 13"
    text = "a local epoch costs accuracy, own minus server parameters"
    methods = (FEDAVG, BIASED, FEDMIX, PRUNING)
    claims = [below(f"{method}: {text}", place, last[method], 0.0) for method in methods]
    first = late(gain[gain["round"] <= gain["round"].max() / 2])  # the second quarter
    text = "... and more so later: own minus server, second vs last quarter, mean over methods"
    return [*claims, greater(text, place, _over_methods(first), _over_methods(last))]


def _over_methods(values: Mapping[str, BySeed]) -> BySeed:
    """Return the mean over methods by seed, of the seeds that all methods have."""
    seeds = set.intersection(*(set(v) for v in values.values())) if values else set()
    return {s: float(np.mean([v[s] for v in values.values()])) for s in sorted(seeds)}


def traffic_claim(frame: pd.DataFrame, experiments: Mapping[str, Experiment]) -> Claim:
    """Test that runs sent the bytes that their models' sizes say, in the first round.

    ``experiments`` are the methods' of the frame; those that prune are left out.
    """
    whole = {m: e for m, e in experiments.items() if not isinstance(e.algorithm, PrunedFedMix)}
    asked = {m: list(analysis.expected_traffic(e)[1:]) for m, e in whole.items()}
    first = frame[frame["round"] == 1].groupby(["method", "metric"])["value"].max()
    sent = {m: [int(first[m][f"bytes_{way}"]) for way in ("down", "up")] for m in asked}
    total, expected = (sum(map(sum, each.values())) for each in (sent, asked))
    text = "What is sent is what the parameters weigh: bytes of a round, sum of the methods"
    found = total if sent == asked else f"{total}, divided otherwise"
    return equal(text, "Sec. 4.1", found, expected)


def ablation_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test Fig. 11: the numbers of experts K, each against the next smaller, and the thresholds.

    Only what the frame holds two of is compared; at least the paper's statements about pruning are
    always asked.
    """
    local, new = final(frame, "test_accuracy"), final(frame, "global_accuracy")
    claims, place = [], "App. E, Fig. 11b"
    for few, many in pairwise(analysis.experts_of(frame)):
        small, large = with_experts(few), with_experts(many)
        text = f"More experts, higher accuracy: K = {many} vs K = {few}"
        claims += _greater(local, (f"{text}, local", "App. E, Fig. 11a", large, small))
        claims += _greater(new, (f"{text}, new shard", "App. E, Fig. 11c", large, small))
    if TEN in set(frame["method"]):
        text = "With K = 10, the classes' number, each class has an expert to itself: their share"
        claims.append(above(text, "App. E", analysis.own_experts(frame, TEN), 0.9))
    sent, etas = analysis.megabytes(frame), analysis.etas_of(frame)
    for low, high in pairwise(etas):
        text = f"More pruning sends fewer bytes: MB in all, eta = {low:g} vs {high:g}"
        claims += _greater(sent, (text, place, with_pruning(low), with_pruning(high)))
    text = "Pruning at eta = 0.5 has no significant drop: at most one point below eta = 0, local"
    claims.append(on_par(text, "Sec. 2.1, App. E", local[with_pruning(0.5)], local[FEDMIX]))
    highest = with_pruning(max(etas, default=0))
    text = "The most pruning causes some loss: eta = 0 vs the highest eta, local"
    pruned = local[highest] if highest != FEDMIX else {}
    return [*claims, greater(text, place, local[FEDMIX], pruned)]


# Rotated MNIST: sec. 4.2, Fig. 5 and 6.


def turned_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test Fig. 5: clients differ in the angles of their digits only.

    "Collapses to FedAvg" is an equality, which no test can show. It is read as: less than a point
    above and less than a point below, and both must hold.
    """
    last, place = final(frame, "test_accuracy"), "Sec. 4.2, Fig. 5"
    text = "A personal bias collapses to FedAvg: accuracy of last round, less than a point above"
    gap = differences(last[BIASED], last[FEDAVG])
    return [
        _better(last, BY_ANGLE, BY_LABEL, "Conditioning q on the true source of difference", place),
        _better(last, BY_ANGLE, FEDAVG, "FedMix has an advantage", place),
        _better(last, BY_LABEL, FEDAVG, "... also with the other condition", place),
        below(text, place, gap, POINT),
        on_par("... and less than a point below", place, last[BIASED], last[FEDAVG]),
        *_specialised(frame),
    ]


def skewed_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test Fig. 6: clients differ in angles and in labels."""
    last, place = final(frame, "test_accuracy"), "Sec. 4.2, Fig. 6"
    return [
        _better(last, BIASED, FEDAVG, "A personal bias helps against label skew", place),
        _better(last, BY_LABEL, BIASED, "FedMix gains more than a personal bias", place),
        _better(last, BY_LABEL, FEDAVG, "FedMix has an advantage", place),
        _better(last, BY_ANGLE, FEDAVG, "... also with the other condition", place),
        *_specialised(frame),
    ]


def _better(last: ByMethod, a: str, b: str, what: str, place: str) -> Claim:
    return greater(f"{what}: {a} vs {b}, accuracy of last round", place, last[a], last[b])


def _specialised(frame: pd.DataFrame) -> list[Claim]:
    text = "have one expert each: mean row entropy of q over log K"
    kinds = {"Angles": one_hotness(frame, BY_ANGLE), "Labels": one_hotness(frame, BY_LABEL)}
    return [below(f"{kind} {text}", NOT_HERE, found, ONE_HOT) for kind, found in kinds.items()]


# Label permutations: sec. 4.3, Fig. 7 and 8, App. B.


def cluster_claims(frame: pd.DataFrame, permutations: clusters.Truth) -> list[Claim]:
    """Test Fig. 7 and 8: are the clusters found, when, and what do too few or many experts do?"""
    early, found = clusters.published_rounds(), clusters.course(frame, permutations)
    all_but_none = 1 - 0.5 / len(next(iter(permutations.values())))  # not a single client is wrong
    four, late = with_k(4), clusters.at(found, "right")

    def seen(name: str, method: str, most: float = np.inf) -> BySeed:
        return clusters.at(found, name, most)[method]

    text = f"K = 4 finds the clusters within {early} rounds: share of clients with their expert"
    sure = f"... and q(z|s) is one-hot within {early} rounds: its largest entry"
    claims = [
        above(text, "Fig. 7", seen("right", four, early), all_but_none),
        above(sure, "Fig. 7", seen("sharpness", four, early), DECIDED),
    ]
    if found["round"].max() > early:
        text, place = "K = 4 has found the clusters after the last round", "Fig. 7, more rounds"
        sure = "... and q(z|s) is one-hot after the last round"
        claims += [
            above(text, place, late[four], all_but_none),
            above(sure, place, seen("sharpness", four), DECIDED),
        ]
    if SLOWER in late:
        text = "K = 4 finds them at half the server's rate in twice the rounds"
        claims.append(above(text, NOT_HERE, late[SLOWER], all_but_none))
    pure = seen("pure", with_k(5))
    return [*claims, *_misspecified(frame, permutations, pure, all_but_none)]


def _misspecified(
    frame: pd.DataFrame, permutations: clusters.Truth, pure: BySeed, all_but_none: float
) -> list[Claim]:
    three, five = (clusters.tables(frame, with_k(k), permutations) for k in (3, 5))
    merged = [float(clusters.merges_two(counts)) for counts in three]
    doubled = [float(clusters.doubles_one(counts)) for counts in five]
    place, accuracy = "Fig. 8, App. B.1", final(frame, "test_accuracy")
    merges = "K = 3 merges two permutations and tells the others apart: share of seeds"
    apart = "K = 5 tells all permutations apart: share of clients among their own kind"
    doubles = "K = 5 gives one permutation two experts and the others one each: share of seeds"
    fewer = "An expert per permutation beats too few: K = 4 vs K = 3, accuracy of last round"
    return [
        above(merges, place, merged, 0.5),
        above(apart, place, pure, all_but_none),
        above(doubles, place, doubled, 0.5),
        *_greater(accuracy, (fewer, NOT_HERE, with_k(4), with_k(3))),
    ]


# New clients: sec. 2, Fig. 12, App. F.


def new_client_claims(frame: pd.DataFrame, dataset: str) -> list[Claim]:
    """Test Fig. 12: accuracy on a new client without labels, last round.

    Of CIFAR-100 the paper says other things than of CIFAR-10 (which the digits follow), and of
    FEMNIST nothing.
    """
    seen, new = final(frame, "test_accuracy"), final(frame, "global_accuracy")
    if dataset == "femnist":
        return []
    if dataset == "cifar100":
        text = "Biased FedAvg is indistinguishable from FedAvg on a new client: within a point"
        rows = [
            ("FedAvg outperforms FedMix on a new client", "App. F", FEDAVG, FEDMIX),
            ("... and so does biased FedAvg", "App. F", BIASED, FEDMIX),
        ]
        return [alike(text, "App. F", new[BIASED], new[FEDAVG]), *_greater(new, *rows)]
    rows = [
        ("Biased FedAvg falls below FedAvg on a new client", "Fig. 12", FEDAVG, BIASED),
        ("Local/Global falls below FedAvg on a new client", "Fig. 12", FEDAVG, LOCAL_GLOBAL),
        ("FedMix beats FedAvg on a new client", "Fig. 12", FEDMIX, FEDAVG),
    ]
    if BIAS not in new:
        return _greater(new, *rows)
    text = "FedMix with a personal bias keeps that: above FedAvg"
    gain = ("... and gains on seen clients by it: above FedMix there", "Sec. 4.1", BIAS, FEDMIX)
    return [*_greater(new, *rows, (text, "Sec. 4.1", BIAS, FEDAVG)), *_greater(seen, gain)]


def appendix_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test App. F: FedAvg and FedMix on seen clients, and p(s) against p(s|x) on a new one."""
    runs = analysis.everyone(frame)
    seen = "FedMix beats FedAvg on seen clients, validation accuracy"
    text = "p(s|x) from auto-encoders does no better: FedMix with p(s) is above it"
    return [
        *_greater(final(runs, "validation_accuracy"), (seen, "App. F", FEDMIX, FEDAVG)),
        *_greater(
            final(runs, "global_accuracy"),
            ("On a new client FedAvg beats FedMix with p(s)", "App. F", FEDAVG, FEDMIX),
            (text, "App. F, eq. 18", FEDMIX, DENSITIES),
        ),
    ]


def joining_claims(frame: pd.DataFrame, classes: int) -> list[Claim]:
    """Test sec. 2: a new client with labels fits its gate, and without a gate experts are lost."""
    before, after = newcomers(frame, 0)[FEDMIX], newcomers(frame, 1)
    fits = "A new client with labels gains by fitting its gate: after vs before"
    better = "... and is then better off with FedMix than with FedAvg's model"
    text = f"Without a gate, ensembling experts is almost random: accuracy times {classes} labels"
    return [
        greater(fits, "Sec. 2", after[FEDMIX], before),
        *_greater(after, (better, "Sec. 2, extended", FEDMIX, FEDAVG)),
        below(text, "Sec. 2", [v * classes for v in before.values()], CHANCES),
    ]


# What messages tell of labels: App. C.


def exactness_claim(error: float) -> Claim:
    """Test the identity behind eq. 15: the largest error of any share when outputs are uniform."""
    text = f"With uniform outputs one full-batch step gives p(y|s) away: error to {DIGITS} decimals"
    return equal(text, "Eq. 15 (A13)", round(error, DIGITS), 0.0)


def privacy_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test App. C: bias after one step and after several, q(z|s), and a bias that is not sent."""
    known = privacy.leaks(frame)
    avg, mix = (privacy.means(known, method) for method in (FEDAVG, FEDMIX))
    step, guess = avg[STEP, B], avg[STEP, GUESSING]
    share = [step[s] / guess[s] for s in step if guess.get(s)]
    near = "One full-batch step of a fresh model: reconstruction from the bias near-identical"
    several = "Several steps reduce the congruence: distance after one epoch vs after one step"
    still = "... and still leak: guessing is further off than one epoch's bias"
    trained = "A trained model leaks too: guessing is further off than the bias"
    later = "q(z|s) reveals less once q has specialised: distance trained vs fresh, one epoch"
    epoch, last = avg[EPOCH, B], avg[TRAINED, B]
    return [
        below(near, "Fig. 9", step, NEAR),
        below("... its distance as a share of guessing's", "Fig. 9", share, FIFTH),
        greater(several, "Fig. 10", epoch, step),
        greater(still, "Fig. 10", avg[EPOCH, GUESSING], epoch),
        greater(trained, EXTENDED, avg[TRAINED, GUESSING], last),
        *_biased(known),
        *(
            greater(f"FedMix's {Q} reveals less than its bias, {m}", "App. C", mix[m, Q], mix[m, B])
            for m in (EPOCH, TRAINED)
        ),
        greater(later, EXTENDED, mix[TRAINED, Q], mix[EPOCH, Q]),
        *_of_phi(frame, mix),
    ]


def _biased(known: pd.DataFrame) -> list[Claim]:
    if BIASED not in set(known["method"]):
        return []
    off = privacy.means(known, BIASED)
    told = int((known["method"].eq(BIASED) & known["source"].eq(B)).sum())
    text = "... but its output weights tell: guessing is further off"
    return [
        equal("Biased FedAvg sends no bias: shares read off one", EXTENDED, told, 0),
        *(
            greater(f"{text}, {m}", EXTENDED, off[m, GUESSING], off[m, privacy.WEIGHTS])
            for m in MESSAGES
        ),
    ]


def _of_phi(frame: pd.DataFrame, off: Mapping[tuple[str, str], BySeed]) -> list[Claim]:
    """Test what phi tells; nothing for runs that were audited before phi was."""
    sets = {message: privacy.wrong_sets(frame, message) for message in MESSAGES}
    text = "Rows of phi name every client's labels: clients read wrongly"
    named = [equal(f"{text}, {m}", OURS, wrong, 0) for m, (wrong, of) in sets.items() if of]
    if not named:
        return []
    trained = "A trained model's phi tells more than its bias: distance of bias vs phi"
    fresh = "A fresh model's bias tells more than one message of phi, one full-batch step"
    cohort = "... unless the cohort's messages are read together: distance of one vs all"
    more = [(f"... and phi tells more than q(z|s), {m}", OURS, (m, Q), (m, PHI)) for m in MESSAGES]
    return [
        *named,
        *_greater(
            off,
            *more,
            (trained, OURS, (TRAINED, B), (TRAINED, PHI)),
            (fresh, OURS, (STEP, PHI), (STEP, B)),
            (cohort, OURS, (STEP, PHI), (STEP, privacy.COHORT)),
        ),
    ]
