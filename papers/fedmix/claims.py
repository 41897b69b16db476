"""The claims of FedMix (000), each quoted with its place, and their tests.

A row is (claim, place, a, rule, b). What phi tells of clients' labels is no claim of the paper:
those claims are ours, and say so.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise

import numpy as np
import pandas as pd

from companion import frames
from companion.claims import BySeed, Claim, equal
from companion.frames import ByMethod, by_method, final
from fedlib.algorithms import PrunedFedMix
from fedlib.runs import Experiment
from papers import fedmix as names
from papers.fedmix import analysis
from papers.fedmix.analysis import GUESSING, LABEL_SET, MESSAGES, SOURCES, TRUTH, late, newcomers
from papers.floor import judged

ONE_HOT = 0.1  # a row of q(z|y) counts as one-hot below this share of log K
UNIFORM = 0.9  # ... and as uniform above this one
DIGITS = 6  # decimals to which the identity behind eq. 15 must hold
OURS = "ours, not in 000"
NOT_HERE = "not in the paper"
EXTENDED = "App. C, extended"
Row = tuple[str, str, str]
Leak = tuple[str, str, str, tuple[str, str], tuple[str, str]]


def _greater(values: Mapping[str, BySeed], place: str, *rows: Row) -> list[Claim]:
    """Test rows of (claim, a, b): a's value is greater than b's on the same seeds."""
    return judged(*((text, place, values[a], ">", values[b]) for text, a, b in rows))


# Divergence and specialisation: sec. 1 and 2, Fig. 1, 3 and 14.


def divergence_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test Fig. 1: per expert, FedMix's gradients diverge less than FedAvg's once q has formed."""
    curve = frames.divergence(frame)
    early = by_method(curve[curve["round"] <= curve["round"].max() // 10])[names.FEDAVG]
    last = by_method(late(curve))
    return judged(
        ("FedMix's divergence per expert is below FedAvg's in the last quarter of training",
         "Fig. 1", last[names.FEDAVG], ">", last[names.FEDMIX]),
        ("FedAvg's clients start diverging: last quarter above the first tenth of training",
         "Sec. 1, Fig. 1", last[names.FEDAVG], ">", early),
    )  # fmt: skip


def specialisation_claims(frame: pd.DataFrame, phi_rate: float) -> list[Claim]:
    """Test Fig. 3 and 14: does q(z|y) specialise, do experts live, what do the entropies do?

    ``phi_rate`` is the server's rate for phi. A logit moves by about that much per round, so that
    runs with another rate or length are compared at the same rate x rounds: the paper's is 2.
    """
    accuracy, least = final(frame, "test_accuracy"), by_method(analysis.least_used(frame))
    k = frame["expert"].max() + 1
    epochs, rounds = (most_used(frame, m) for m in (names.CENTRALISED, names.ORIGINAL))
    first, last = (epochs.get(t, {}) for t in (1, max(epochs, default=0)))
    claims = judged(
        ("FedMix assigns each label to one expert: mean row entropy of q(z|y) over log K",
         "Fig. 14a", one_hotness(frame, names.FEDMIX), "<", ONE_HOT),
        ("FedMix's experts all live: K times the marginal q(z) of the least used expert",
         "Sec. 2.1, Fig. 14a", [v / (1 / k) for v in least[names.FEDMIX].values()], ">", 0.2),
        ("The marginal entropy term keeps experts alive: least used expert, with vs without it",
         "Sec. 2.1", least[names.FEDMIX], ">", least[names.UNREGULARISED]),
        ("With H(q) no expert specialises: mean row entropy of q(z|y) over log K, last round",
         "Fig. 3", one_hotness(frame, names.ENSEMBLE), ">", UNIFORM),
        ("... at the paper's travel of phi, rate x rounds = 2",
         "Fig. 3, time scale", one_hotness(frame, names.ENSEMBLE, phi_rate), ">", UNIFORM),
        ("Specialised beats the ensemble: FedMix vs FedMix with H(q), accuracy of last round",
         "Fig. 3", accuracy[names.FEDMIX], ">", accuracy[names.ENSEMBLE]),
        ("Specialised beats FedAvg, accuracy of last round",
         "Fig. 3", accuracy[names.FEDMIX], ">", accuracy[names.FEDAVG]),
        ("The original mixture (eq. 3, S = 1) collapses to one expert: its share after an epoch",
         "Fig. 14b", first, ">", UNIFORM),
        ("... and after the last epoch that was run", "Fig. 14b, extended", last, ">", UNIFORM),
        ("The federated original mixture (eq. 3) collapses to one expert by the last round",
         "App. H", rounds.get(max(rounds, default=0), {}), ">", UNIFORM),
    )  # fmt: skip
    return claims if rounds else claims[:-1]


def one_hotness(frame: pd.DataFrame, method: str, rate: float = 0) -> list[float]:
    """Return the mean row entropy of q over log K after the last round, a number per seed.

    0 is one expert per value of the condition, 1 no specialisation. With the server's ``rate`` for
    phi it is that of the round by which phi has travelled as far as in the paper.
    """
    rows = frame[frame["method"] == method]
    most = np.log(rows.loc[rows["metric"] == "q", "expert"].max() + 1)
    if rate:
        rows = rows[rows["round"] == round(analysis.PAPER_TRAVEL / rate)]
    return [v / most for v in final(rows, "q_entropy")[method].values()]


def most_used(frame: pd.DataFrame, method: str) -> dict[int, BySeed]:
    """Return the most used expert's mean gate on test data, by round and seed."""
    rows = frame[(frame["metric"] == "test_gate") & (frame["method"] == method)]
    use = rows.groupby(["round", "seed", "expert"])["value"].mean()
    most = use.groupby(["round", "seed"]).max().reset_index()
    return {int(str(t)): frames.by_seed(rows) for t, rows in most.groupby("round")}


# Performance against communication: sec. 4.1, Fig. 4 and 13, App. G.

_FOUR, _TWO, _TEN = "FedMix (K = 4)", "FedMix (K = 2)", "FedMix (K = 10)"
_ROUNDS = "beats FedAvg at equal rounds"
_SIZED = "beats FedAvg with as many parameters, at equal bytes per round"
_EQUAL = "beats FedAvg at equal gigabytes, when it has sent as much as FedAvg in all"
_FASTER = "learns faster per round than FedAvg: mean accuracy over the rounds"
_BETTER = "Biased FedAvg is the better inductive bias: it beats"
_OWN_BIAS = "A personal bias improves FedMix on its clients"
_SENT = "Pruning sends fewer bytes: MB in all, without vs with it"
_LIKE = "Biased FedAvg is like FedAvg: at most one point"
# By data set: claim, part of the figure, what is compared, a, rule, b.
FIG_4 = {
    "cifar10": (
        (f"{_FOUR} {_ROUNDS}", "d", "last", names.FEDMIX, ">", names.FEDAVG),
        (f"{_FOUR} {_SIZED}", "d", "last", names.FEDMIX, ">", names.WIDE[4]),
        (f"{_TWO} {_SIZED}", "d", "last", names.TWO, ">", names.WIDE[2]),
        (_OWN_BIAS, "d", "last", names.BIAS, ">", names.FEDMIX),
        (f"{_FOUR} {_EQUAL}", "a", "traffic", names.FEDMIX, ">", names.FEDAVG),
        (f"{_TWO} {_EQUAL}", "a", "traffic", names.TWO, ">", names.FEDAVG),
        (f"FedMix with pruning {_EQUAL}", "a", "traffic", names.PRUNING, ">", names.FEDAVG),
        (_SENT, "a", "megabytes", names.FEDMIX, ">", names.PRUNING),
    ),
    "cifar100": (
        (f"{_FOUR} {_ROUNDS}", "e", "last", names.FEDMIX, ">", names.FEDAVG),
        (f"{_TEN} {_ROUNDS}", "e", "last", names.TEN, ">", names.FEDAVG),
        ("Biased FedAvg beats FedAvg", "e", "last", names.BIASED, ">", names.FEDAVG),
        (f"{_BETTER} {_TEN}", "e", "last", names.BIASED, ">", names.TEN),
        (f"{_FOUR} {_FASTER}", "e", "rounds", names.FEDMIX, ">", names.FEDAVG),
        (f"{_TEN} with pruning {_EQUAL}", "b", "traffic", names.TEN_PRUNED, ">", names.FEDAVG),
    ),
    "femnist": (
        (f"{_TWO} loses to FedAvg: FedAvg vs FedMix", "f", "last", names.FEDAVG, ">", names.TWO),
        ("More experts help: K = 4 beats K = 2", "f", "last", names.FEDMIX, ">", names.TWO),
        (f"{_LIKE} below it", "f", "last", names.BIASED, ">=", names.FEDAVG),
        ("... and at most one point above it", "f", "last", names.BIASED, "<=", names.FEDAVG),
    ),
}


def communication_claims(frame: pd.DataFrame, dataset: str) -> list[Claim]:
    """Test what sec. 4.1 says of Fig. 4 on one data set.

    Accuracies are those of the last round with the server's parameters; data without claims of
    their own (digits) are asked those of CIFAR-10, whose label skew they have.
    """
    values = {
        "last": final(frame, "test_accuracy"),
        "rounds": by_method(frames.curve(frame, "test_accuracy")),
        "traffic": at_equal_traffic(frame),
        "megabytes": megabytes(frame),
    }
    return judged(
        *(
            (text, f"Sec. 4.1, Fig. 4{part}", values[what][a], rule, values[what][b])
            for text, part, what, a, rule, b in FIG_4.get(dataset, FIG_4["cifar10"])
        )
    )


def megabytes(frame: pd.DataFrame) -> ByMethod:
    """Return what each run has sent in all, down and up, in megabytes."""
    total = frames.gigabytes(frame).groupby(analysis.RUN)["gigabytes"].max() * 1e3
    return by_method(total.rename("value").reset_index())


def at_equal_traffic(frame: pd.DataFrame) -> ByMethod:
    """Return FedAvg's last accuracy, and the others' when they had sent as much as it did in all.

    A run that has sent less is left out.
    """
    course = frames.against_traffic(frame, "test_accuracy")
    ends = course[course["method"] == names.FEDAVG].groupby("seed").last()
    budget = frames.by_seed(ends, "gigabytes")
    found = {str(m): frames.at_traffic(course, str(m), budget) for m in course["method"].unique()}
    return ByMethod({**found, names.FEDAVG: frames.by_seed(ends)})


def tuning_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test Fig. 13: one local epoch on little data overfits, so that accuracy falls.

    The same clients with their own and with the server's parameters, over the last quarter of the
    rounds; overfitting that grows shows as a difference that falls.
    """
    gain = frames.adapted(frame).drop(columns="value").rename(columns={"gain": "value"})
    halves = gain[gain["round"] <= gain["round"].max() / 2], gain  # the second quarter is late
    first, last = (by_method(late(rows)) for rows in halves)
    text, place = "a local epoch costs accuracy, own minus server parameters", "App. G, Fig. 13"
    methods = (names.FEDAVG, names.BIASED, names.FEDMIX, names.PRUNING)
    # Of the seeds that all methods have.
    earlier, at_last = (pd.DataFrame(v).dropna().mean(axis=1).to_dict() for v in (first, last))
    later = "... and more so later: own minus server, second vs last quarter, mean over methods"
    return judged(
        *((f"{method}: {text}", place, last[method], "<", 0.0) for method in methods),
        (later, place, earlier, ">", at_last),
    )


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
    etas, claims = analysis.etas_of(frame), []
    for few, many in pairwise(analysis.experts_of(frame)):
        text = f"More experts, higher accuracy: K = {many} vs K = {few}"
        pair = names.with_experts(many), names.with_experts(few)
        claims += _greater(local, "App. E, Fig. 11a", (f"{text}, local", *pair))
        claims += _greater(new, "App. E, Fig. 11c", (f"{text}, new shard", *pair))
    if names.TEN in local:
        text = "With K = 10, the classes' number, each class has an expert to itself: their share"
        claims += judged((text, "App. E", own_experts(frame, names.TEN), ">", 0.9))
    for low, high in pairwise(etas):
        text = f"More pruning sends fewer bytes: MB in all, eta = {low:g} vs {high:g}"
        pair = names.with_pruning(low), names.with_pruning(high)
        claims += _greater(megabytes(frame), "App. E, Fig. 11b", (text, *pair))
    plain, half, most = (names.with_pruning(eta) for eta in (0, 0.5, max(etas, default=0)))
    return claims + judged(
        ("Pruning at eta = 0.5 has no significant drop: at most one point below eta = 0, local",
         "Sec. 2.1, App. E", local[half], ">=", local[plain]),
        ("The most pruning causes some loss: eta = 0 vs the highest eta, local",
         "App. E, Fig. 11b", local[plain], ">", local[most] if most != plain else {}),
    )  # fmt: skip


def own_experts(frame: pd.DataFrame, method: str) -> dict[int, float]:
    """Return the share of labels whose expert is no other label's, in the last q(z|y), by seed."""
    rows = frames.last(frame[frame["method"] == method], "q").reset_index(drop=True)
    best = rows.loc[rows.groupby(["seed", "item"])["value"].idxmax()]
    return frames.by_seed(best.assign(value=~best.duplicated(["seed", "expert"], keep=False)))


# Rotated MNIST: sec. 4.2, Fig. 5 and 6.

_HAS, _ALSO = "FedMix has an advantage", "... also with the other condition"
FIG_5 = (
    ("Conditioning q on the true source of difference", names.BY_ANGLE, names.BY_LABEL),
    (_HAS, names.BY_ANGLE, names.FEDAVG),
    (_ALSO, names.BY_LABEL, names.FEDAVG),
)
FIG_6 = (
    ("A personal bias helps against label skew", names.BIASED, names.FEDAVG),
    ("FedMix gains more than a personal bias", names.BY_LABEL, names.BIASED),
    (_HAS, names.BY_LABEL, names.FEDAVG),
    (_ALSO, names.BY_ANGLE, names.FEDAVG),
)


def turned_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test Fig. 5: clients differ in the angles of their digits only.

    "Collapses to FedAvg" is an equality, which no test can show. It is read as: less than a point
    above and less than a point below, and both must hold.
    """
    last, place = final(frame, "test_accuracy"), "Sec. 4.2, Fig. 5"
    biased, fedavg = last[names.BIASED], last[names.FEDAVG]
    collapses = judged(
        ("A personal bias collapses to FedAvg: accuracy of last round, less than a point above",
         place, biased, "<=", fedavg),
        ("... and less than a point below", place, biased, ">=", fedavg),
    )  # fmt: skip
    return [*_better(last, place, FIG_5), *collapses, *_specialised(frame)]


def skewed_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test Fig. 6: clients differ in angles and in labels."""
    last = final(frame, "test_accuracy")
    return [*_better(last, "Sec. 4.2, Fig. 6", FIG_6), *_specialised(frame)]


def _better(last: ByMethod, place: str, rows: tuple[Row, ...]) -> list[Claim]:
    said = "{}: {} vs {}, accuracy of last round".format
    return _greater(last, place, *((said(*row), *row[1:]) for row in rows))


def _specialised(frame: pd.DataFrame) -> list[Claim]:
    text = "have one expert each: mean row entropy of q over log K"
    angles, labels = (one_hotness(frame, method) for method in (names.BY_ANGLE, names.BY_LABEL))
    return judged(
        (f"Angles {text}", NOT_HERE, angles, "<", ONE_HOT),
        (f"Labels {text}", NOT_HERE, labels, "<", ONE_HOT),
    )


# Label permutations: sec. 4.3, Fig. 7 and 8, App. B.


def cluster_claims(frame: pd.DataFrame, permutations: analysis.Truth) -> list[Claim]:
    """Test Fig. 7 and 8: are the clusters found, when, and what do too few or many experts do?"""
    course, accuracy = analysis.course(frame, permutations), final(frame, "test_accuracy")
    early, longer = analysis.published_rounds(), "Fig. 7, more rounds"
    all_but_none = 1 - 0.5 / len(next(iter(permutations.values())))  # not a single client is wrong
    three, four, five = map(names.with_k, names.KS)

    def at(name: str, method: str, most: float = np.inf) -> BySeed:
        rows = analysis.measure(course[course["round"] <= most], name).sort_values("round")
        return by_method(rows.groupby(analysis.RUN, as_index=False).last())[method]

    claims = judged(
        (f"K = 4 finds the clusters within {early} rounds: share of clients with their expert",
         "Fig. 7", at("right", four, early), ">", all_but_none),
        (f"... and q(z|s) is one-hot within {early} rounds: its largest entry",
         "Fig. 7", at("sharpness", four, early), ">", 0.9),
        ("K = 4 has found the clusters after the last round",
         longer, at("right", four), ">", all_but_none),
        ("... and q(z|s) is one-hot after the last round",
         longer, at("sharpness", four), ">", 0.9),
        ("K = 4 finds them at half the server's rate in twice the rounds",
         NOT_HERE, at("right", names.SLOWER), ">", all_but_none),
        ("K = 3 merges two permutations and tells the others apart: share of seeds",
         "Fig. 8, App. B.1", at(analysis.MERGED, three), ">", 0.5),
        ("K = 5 tells all permutations apart: share of clients among their own kind",
         "Fig. 8, App. B.1", at("pure", five), ">", all_but_none),
        ("K = 5 gives one permutation two experts and the others one each: share of seeds",
         "Fig. 8, App. B.1", at(analysis.DOUBLED, five), ">", 0.5),
        ("An expert per permutation beats too few: K = 4 vs K = 3, accuracy of last round",
         NOT_HERE, accuracy[four], ">", accuracy[three]),
    )  # fmt: skip
    later = claims[2:4] if course["round"].max() > early else []
    slower = claims[4:5] if names.SLOWER in accuracy else []
    return [*claims[:2], *later, *slower, *claims[5:]]


# New clients: sec. 2, Fig. 12, App. F.

FALLS = "falls below FedAvg on a new client"
FIG_12 = (
    (f"Biased FedAvg {FALLS}", names.FEDAVG, names.BIASED),
    (f"Local/Global {FALLS}", names.FEDAVG, names.LOCAL_GLOBAL),
    ("FedMix beats FedAvg on a new client", names.FEDMIX, names.FEDAVG),
)
ON_CIFAR100 = (
    ("FedAvg outperforms FedMix on a new client", names.FEDAVG, names.FEDMIX),
    ("... and so does biased FedAvg", names.BIASED, names.FEDMIX),
)


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
        alike = judged((text, "App. F", new[names.BIASED], "~", new[names.FEDAVG]))
        return alike + _greater(new, "App. F", *ON_CIFAR100)
    bias = judged(
        ("FedMix with a personal bias keeps that: above FedAvg",
         "Sec. 4.1", new[names.BIAS], ">", new[names.FEDAVG]),
        ("... and gains on seen clients by it: above FedMix there",
         "Sec. 4.1", seen[names.BIAS], ">", seen[names.FEDMIX]),
    )  # fmt: skip
    return _greater(new, "Fig. 12", *FIG_12) + bias * (names.BIAS in new)


def appendix_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test App. F: FedAvg and FedMix on seen clients, and p(s) against p(s|x) on a new one."""
    runs = frame[frame["who"] != names.NEW]
    seen, new = final(runs, "validation_accuracy"), final(runs, "global_accuracy")
    return judged(
        ("FedMix beats FedAvg on seen clients, validation accuracy",
         "App. F", seen[names.FEDMIX], ">", seen[names.FEDAVG]),
        ("On a new client FedAvg beats FedMix with p(s)",
         "App. F", new[names.FEDAVG], ">", new[names.FEDMIX]),
        ("p(s|x) from auto-encoders does no better: FedMix with p(s) is above it",
         "App. F, eq. 18", new[names.FEDMIX], ">", new[names.DENSITIES]),
    )  # fmt: skip


def joining_claims(frame: pd.DataFrame, classes: int) -> list[Claim]:
    """Test sec. 2: a new client with labels fits its gate, and without a gate experts are lost.

    "Almost random" is below twice what guessing gives.
    """
    before, after = newcomers(frame, 0)[names.FEDMIX], newcomers(frame, 1)
    lost = f"Without a gate, ensembling experts is almost random: accuracy times {classes} labels"
    return judged(
        ("A new client with labels gains by fitting its gate: after vs before",
         "Sec. 2", after[names.FEDMIX], ">", before),
        ("... and is then better off with FedMix than with FedAvg's model",
         "Sec. 2, extended", after[names.FEDMIX], ">", after[names.FEDAVG]),
        (lost, "Sec. 2", [v * classes for v in before.values()], "<", 2),
    )  # fmt: skip


# What messages tell of labels: App. C.

STEP, EPOCH, TRAINED = MESSAGES
BIAS, WEIGHTS, Q, PHI, COHORT = SOURCES.values()
_TELL = "... but its output weights tell: guessing is further off"
_LESS, _MORE = f"FedMix's {Q} reveals less than its bias", "... and phi tells more than q(z|s)"
# Claim, place, a method, and of which message and source it is further off than of the others.
OF_BIAS = (
    ("Several steps reduce the congruence: distance after one epoch vs after one step",
     "Fig. 10", names.FEDAVG, (EPOCH, BIAS), (STEP, BIAS)),
    ("... and still leak: guessing is further off than one epoch's bias",
     "Fig. 10", names.FEDAVG, (EPOCH, GUESSING), (EPOCH, BIAS)),
    ("A trained model leaks too: guessing is further off than the bias",
     EXTENDED, names.FEDAVG, (TRAINED, GUESSING), (TRAINED, BIAS)),
)  # fmt: skip
OF_WEIGHTS = tuple(
    (f"{_TELL}, {m}", EXTENDED, names.BIASED, (m, GUESSING), (m, WEIGHTS)) for m in MESSAGES
)
OF_Q = (
    *((f"{_LESS}, {m}", "App. C", names.FEDMIX, (m, Q), (m, BIAS)) for m in (EPOCH, TRAINED)),
    ("q(z|s) reveals less once q has specialised: distance trained vs fresh, one epoch",
     EXTENDED, names.FEDMIX, (TRAINED, Q), (EPOCH, Q)),
)  # fmt: skip
OF_PHI = (
    *((f"{_MORE}, {m}", OURS, names.FEDMIX, (m, Q), (m, PHI)) for m in MESSAGES),
    ("A trained model's phi tells more than its bias: distance of bias vs phi",
     OURS, names.FEDMIX, (TRAINED, BIAS), (TRAINED, PHI)),
    ("A fresh model's bias tells more than one message of phi, one full-batch step",
     OURS, names.FEDMIX, (STEP, PHI), (STEP, BIAS)),
    ("... unless the cohort's messages are read together: distance of one vs all",
     OURS, names.FEDMIX, (STEP, PHI), (STEP, COHORT)),
)  # fmt: skip


def exactness_claim(error: float) -> Claim:
    """Test the identity behind eq. 15: the largest error of any share when outputs are uniform."""
    text = f"With uniform outputs one full-batch step gives p(y|s) away: error to {DIGITS} decimals"
    return equal(text, "Eq. 15 (A13)", round(error, DIGITS), 0.0)


def privacy_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test App. C: bias after one step and after several, q(z|s), and a bias that is not sent.

    Near-identical is a mean total variation below 0.1, and below a fifth of guessing's. Nothing is
    said of phi where runs were audited before it was.
    """
    known = analysis.leaks(frame)
    groups = known.groupby(["method", "message", "source"])
    off = defaultdict(dict, {key: frames.by_seed(rows) for key, rows in groups})

    def further(rows: Iterable[Leak]) -> list[Claim]:
        return judged(*((text, at, off[m, *a], ">", off[m, *b]) for text, at, m, a, b in rows))

    step, guess = (off[names.FEDAVG, STEP, source] for source in (BIAS, GUESSING))
    claims = judged(
        ("One full-batch step of a fresh model: reconstruction from the bias near-identical",
         "Fig. 9", step, "<", 0.1),
        ("... its distance as a share of guessing's",
         "Fig. 9", [step[s] / guess[s] for s in step if guess.get(s)], "<", 0.2),
    ) + further(OF_BIAS)  # fmt: skip
    if len(biased := known[known["method"] == names.BIASED]):
        told, text = int(biased["source"].eq(BIAS).sum()), "Biased FedAvg sends no bias"
        claims += judged((f"{text}: shares read off one", EXTENDED, told, "==", 0))
        claims += further(OF_WEIGHTS)
    claims += further(OF_Q)
    if len(wrong := wrong_sets(frame)):
        text = "Rows of phi name every client's labels: clients read wrongly"
        read = [m for m in MESSAGES if m in wrong]
        claims += judged(*((f"{text}, {m}", OURS, int(wrong[m]), "==", 0) for m in read))
        claims += further(OF_PHI)
    return claims


def wrong_sets(frame: pd.DataFrame) -> pd.Series:
    """Return by message how many clients' label sets, of all seeds, are read wrongly off phi."""
    there = frame["method"].eq(names.FEDMIX) & frame["metric"].isin([TRUTH, LABEL_SET])
    client = ["message", "seed", "client"]
    wide = frame[there].pivot_table("value", [*client, "item"], "metric")
    told = wide.reindex(columns=[TRUTH, LABEL_SET]).dropna().gt(0)
    return told[TRUTH].ne(told[LABEL_SET]).groupby(client).any().groupby("message").sum()
