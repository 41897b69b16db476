"""The claims of FedMix (000) and their tests.

`papers/claims.csv` has their words and places, `papers/compared.csv` what one method is compared
with another in.
What phi tells of clients' labels is no claim of the paper: those claims are ours, and say so.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from companion import frames
from companion.claims import OFTEN, UNTESTED, BySeed, Claim
from companion.frames import ByMethod, by_method, final
from companion.panels import Panel
from fedlib.algorithms import PrunedFedMix
from fedrun import Experiment
from papers import fedmix as names
from papers.fedmix import FEDAVG, FEDMIX, analysis
from papers.fedmix.analysis import GUESSING, LABEL_SET, SOURCES, TRUTH, late, newcomers
from papers.fedmix.experiments import LABEL_SKEW, ROTATED
from papers.judging import asked, compared, judged

ONE_HOT = 0.1  # a row of q(z|y) counts as one-hot below this share of log K
UNIFORM = 0.9  # ... and as uniform above this one
SPECIAL = 0.5  # ... and experts as specialised below this one
# What sec. 4.1 says of CIFAR-10 it says of all but "the initial training phase".
PAPER_ROUNDS = LABEL_SKEW.settings("paper")["cifar10"].rounds
_judged = partial(judged, "000")


def _compared(
    figure: str, dataset: str, values: Mapping[str, ByMethod], *, whole: bool = True, but: str = ""
) -> list[Claim]:
    """Test what is said of a figure on a data set, ``but`` for what is said of one method.

    Digits are asked what CIFAR-10 is, whose label skew they have. What is said of late rounds is
    not judged here unless the paper's rounds are ``all_examples``.
    """
    at = {what: methods.__getitem__ for what, methods in values.items()}
    rows = asked("000", f"{figure}, {dataset.replace('digits', 'cifar10')}")
    each = (compared("000", [r], at, here=whole or not r["late"]) for r in rows if r["a"] != but)
    return [claim for claims in each for claim in claims]


# Divergence and specialisation: sec. 1 and 2, Fig. 1, 3 and 14.


def divergence_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test Fig. 1: per expert, FedMix's gradients diverge less than FedAvg's once q has formed."""
    curve = frames.divergence(frame)
    early = by_method(curve[curve["round"] <= curve["round"].max() // 10])
    last = by_method(late(curve))
    rows = (
        ("diverge.less", last[FEDAVG], ">", last[FEDMIX]),
        ("diverge.starts", last[FEDAVG], ">", early[FEDAVG]),
    )
    return _judged(rows, unit="")


def specialisation_claims(frame: pd.DataFrame, phi_rate: float) -> list[Claim]:
    """Test Fig. 3 and 14: does q(z|y) specialise, do experts live, what do the entropies do?

    ``phi_rate`` is the server's rate for phi. A logit moves by about that much per round, so that
    runs with another rate or length are compared at the same rate x rounds: the paper's is 2.
    """
    accuracy, least = final(frame, "test_accuracy"), by_method(analysis.least_used(frame))
    k, entropy = frame["expert"].max() + 1, partial(one_hotness, frame)
    epochs, rounds = (most_used(frame, m) for m in (names.CENTRALISED, names.ORIGINAL))
    first, last = (epochs.get(t, {}) for t in (1, max(epochs, default=0)))
    played = final_rounds(frame)
    whole, as_far = played >= PAPER_ROUNDS, phi_rate * played == analysis.PAPER_TRAVEL
    within = least_entropy(phi_rate * played, k) < ONE_HOT  # reach of q
    on_the_way = [("special.travel", entropy(names.ENSEMBLE, phi_rate), ">", UNIFORM)]
    rows = [
        ("special.one", entropy(FEDMIX), "<", ONE_HOT, {"here": within}),
        ("special.alive", [v / (1 / k) for v in least[FEDMIX].values()], ">", 0.2),
        ("special.kept", least[FEDMIX], ">", least[names.UNREGULARISED], {"unit": ""}),
        ("special.none", entropy(names.ENSEMBLE), ">", UNIFORM, {"here": as_far}),
        *(on_the_way if not as_far else ()),
        ("special.ensemble", accuracy[FEDMIX], ">", accuracy[names.ENSEMBLE]),
        ("special.fedavg", accuracy[FEDMIX], ">", accuracy[FEDAVG], {"here": whole}),
        ("original.first", first, ">", UNIFORM),
        ("original.last", last, ">", UNIFORM),
    ]
    if rounds:
        rows.append(("original.federated", rounds[max(rounds)], ">", UNIFORM))
    return _judged(rows)


def least_entropy(travel: float, experts: int) -> float:
    """Return the entropy over log K of a row of q of which each logit has moved by ``travel``.

    One of them upward and the others downward, from equal ones: no row can be closer to one-hot.
    """
    others = (experts - 1) * np.exp(-2 * travel)
    return float((np.log1p(others) + 2 * travel * others / (1 + others)) / np.log(experts))


def one_hotness(frame: pd.DataFrame, method: str, rate: float = 0) -> list[float]:
    """Return the mean row entropy of q over log K after the last round, a number per seed.

    0 is one expert per value of the condition, 1 no specialisation. With the server's ``rate`` for
    phi it is that of the round by which phi has travelled the distance of the paper.
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


def over_rounds(
    panels: Sequence[Panel], judge: Callable[[Panel], Sequence[Claim]]
) -> dict[str, list[Claim]]:
    """Return what a section of few methods decides, by the panel's name and rounds.

    Claims of methods that it lacks are no claims of it.
    """
    tested = {f"{p.name}, {final_rounds(p.frame):,} rounds": judge(p) for p in panels}
    return {name: [c for c in every if c.verdict != UNTESTED] for name, every in tested.items()}


# Performance against communication: sec. 4.1, Fig. 4 and 13, App. G.


def communication_claims(frame: pd.DataFrame, dataset: str) -> list[Claim]:
    """Test what sec. 4.1 says of Fig. 4 on one data set.

    Accuracies are those of the last round with the server's parameters.
    """
    values = {
        "last": final(frame, "test_accuracy"),
        "rounds": by_method(frames.curve(frame, "test_accuracy")),
        "traffic": at_equal_traffic(frame),
        "megabytes": megabytes(frame),
    }
    return _compared("Fig. 4", dataset, values, whole=final_rounds(frame) >= PAPER_ROUNDS)


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
    return ByMethod(frames.at_traffic(course, budget) | {names.FEDAVG: frames.by_seed(ends)})


def tuning_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test Fig. 13: one local epoch on little data overfits, so that accuracy falls.

    The same clients with their own and with the server's parameters, over the last quarter of the
    rounds; overfitting that grows shows as a difference that falls.
    """
    gain = frames.adapted(frame).drop(columns="value").rename(columns={"gain": "value"})
    halves = gain[gain["round"] <= gain["round"].max() / 2], gain  # the second quarter is late
    first, last = (by_method(late(rows)) for rows in halves)
    methods = (FEDAVG, names.BIASED, FEDMIX, names.PRUNING)
    # Of the seeds that all methods have.
    earlier, at_last = (pd.DataFrame(v).dropna().mean(axis=1).to_dict() for v in (first, last))
    costs = (("epoch.costs", last[m], "<", 0.0, {"method": m}) for m in methods)
    return _judged([*costs, ("epoch.grows", earlier, ">", at_last)])


def final_rounds(frame: pd.DataFrame) -> int:
    """Return the rounds that the federations of a frame have played."""
    return int(frame.loc[frame["method"] != names.CENTRALISED, "round"].max())


def weighed(
    frame: pd.DataFrame, experiments: Mapping[str, Experiment]
) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Return the bytes that methods sent down and up in the first round, and that they weigh.

    ``experiments`` are the methods' of the frame; those that prune are left out.
    """
    whole = {m: e for m, e in experiments.items() if not isinstance(e.algorithm, PrunedFedMix)}
    asked = {m: list(analysis.expected_traffic(e)[1:]) for m, e in whole.items()}
    first = frame[frame["round"] == 1].groupby(["method", "metric"])["value"].max()
    sent = {m: [int(first[m][f"bytes_{way}"]) for way in ("down", "up")] for m in asked}
    return sent, asked


def ablation_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test Fig. 11: the numbers of experts K, each against the next smaller, and the thresholds.

    Only what the frame holds two of is compared; at least the paper's statements about pruning are
    always asked.
    """
    local, new = final(frame, "test_accuracy"), final(frame, "global_accuracy")
    etas, sent, rows = analysis.etas_of(frame), megabytes(frame), list[tuple[Any, ...]]()
    for few, many in pairwise(analysis.experts_of(frame)):
        a, b, words = *map(names.with_experts, (many, few)), {"few": few, "many": many}
        rows += [("more.local", local[a], ">", local[b], words)]
        rows += [("more.new", new[a], ">", new[b], words)]
    if names.TEN in local:
        rows.append(("ten", own_experts(frame, names.TEN), ">", 0.9))
    for low, high in pairwise(etas):
        less, more = (sent[names.with_pruning(eta)] for eta in (low, high))
        rows.append(("pruned.fewer", less, ">", more, {"low": low, "high": high, "unit": ""}))
    plain, half, most = (names.with_pruning(eta) for eta in (0, 0.5, max(etas, default=0)))
    pruned = local[most] if most != plain else {}
    rows.append(("pruned.half", local[half], ">=", local[plain]))
    rows.append(("pruned.most", local[plain], ">", pruned))
    return _judged(rows)


def own_experts(frame: pd.DataFrame, method: str) -> dict[int, float]:
    """Return the share of labels whose expert is no other label's, in the last q(z|y), by seed."""
    rows = frames.last(frame[frame["method"] == method], "q").reset_index(drop=True)
    best = rows.loc[rows.groupby(["seed", "item"])["value"].idxmax()]
    return frames.by_seed(best.assign(value=~best.duplicated(["seed", "expert"], keep=False)))


# Rotated MNIST: sec. 4.2, Fig. 5 and 6.


def rotated_claims(frame: pd.DataFrame, dataset: str) -> list[Claim]:
    """Test Fig. 5 or 6, by data set; and whether an expert is of one angle, or one label."""
    papers = ROTATED.settings("paper").get(dataset)
    whole = papers is None or final_rounds(frame) >= papers.rounds
    last = _compared("Sec. 4.2", dataset, {"": final(frame, "test_accuracy")}, whole=whole)
    kinds = (("angles.one", names.BY_ANGLE), ("labels.one", names.BY_LABEL))
    return last + _judged((n, one_hotness(frame, method), "<", ONE_HOT) for n, method in kinds)


# Label permutations: sec. 4.3, Fig. 7 and 8, App. B.


def cluster_claims(frame: pd.DataFrame, permutations: analysis.Truth) -> list[Claim]:
    """Test Fig. 7 and 8: are the clusters found, when, and what do too few or many experts do?"""
    course, accuracy = analysis.course(frame, permutations), final(frame, "test_accuracy")
    early = analysis.published_rounds()
    all_but_none = 1 - 0.5 / len(next(iter(permutations.values())))  # not a single client is wrong
    three, four, five = map(names.with_k, names.KS)

    def at(name: str, method: str, most: float = np.inf) -> BySeed:
        rows = analysis.measure(course[course["round"] <= most], name).sort_values("round")
        return by_method(rows.groupby(analysis.RUN, as_index=False).last())[method]

    later = (
        ("later", at("right", four), ">", all_but_none),
        ("later.sharp", at("sharpness", four), ">", 0.9),
    )
    slower = [("slower", at("right", names.SLOWER), ">", all_but_none)]
    rows = (
        ("found", at("right", four, early), ">", all_but_none),
        ("found.sharp", at("sharpness", four, early), ">", 0.9),
        *(later if course["round"].max() > early else ()),
        *(slower if names.SLOWER in accuracy else ()),
        ("few", at(analysis.MERGED, three), OFTEN, 0.5),
        ("many.apart", at("pure", five), ">", all_but_none),
        ("many.doubled", at(analysis.DOUBLED, five), OFTEN, 0.5),
        ("enough", accuracy[four], ">", accuracy[three]),
    )
    return _judged(rows, early=early)


# New clients: sec. 2, Fig. 12, App. F.


def new_client_claims(frame: pd.DataFrame, dataset: str) -> list[Claim]:
    """Test Fig. 12: accuracy on a new client without labels, last round.

    Of CIFAR-100 the paper says other things than of CIFAR-10, and of FEMNIST nothing. "appendix" is
    App. F: FedAvg and FedMix on seen clients, and p(s) against p(s|x) on a new one.
    """
    there = frame[frame["who"] != names.NEW] if "who" in frame else frame
    values = {of: final(there, f"{of}_accuracy") for of in ("global", "test", "validation")}
    but = "" if names.BIAS in values["global"] else names.BIAS
    return _compared("Fig. 12", dataset, values, but=but)


def joining_claims(frame: pd.DataFrame, classes: int) -> list[Claim]:
    """Test sec. 2: a new client with labels fits its gate, and without a gate experts are lost.

    "Almost random" is below twice what guessing gives; it is said of experts that specialise, whose
    q keeps less than half of the largest entropy.
    """
    before, after = newcomers(frame, 0)[FEDMIX], newcomers(frame, 1)
    special = max(one_hotness(frame, FEDMIX), default=0.0) < SPECIAL
    rows = (
        ("joins.gains", after[FEDMIX], ">", before),
        ("joins.better", after[FEDMIX], ">", after[FEDAVG]),
        ("joins.lost", before, "<", 2 / classes, {"here": special}),
    )
    return _judged(rows, classes=classes)


# What messages tell of labels: App. C.

BIAS, PHI = SOURCES["labels_from_bias"], SOURCES["labels_from_phi"]


def privacy_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test App. C: bias after one step and after several, and q(z|s).

    Near-identical is a mean total variation below 0.1, and below a fifth of guessing's. Nothing is
    said of phi where runs were audited before it was.
    """
    known = analysis.leaks(frame)
    methods, told = {FEDAVG, FEDMIX, *known["method"]}, {*known["source"]}
    groups = known.groupby(["method", known["message"] + ": " + known["source"]])
    off = defaultdict(dict, {key: frames.by_seed(rows) for key, rows in groups})
    step, guess = (off[FEDAVG, f"{names.STEP}: {source}"] for source in (BIAS, GUESSING))
    rows = [
        ("leak.step", step, "<", 0.1),
        ("leak.share", [step[s] / guess[s] for s in step if guess.get(s)], "<", 0.2),
    ]
    claims = _judged(rows)
    at = {method: lambda source, of=method: off[of, source] for method in methods}
    for row in asked("000", "App. C"):
        if row["what"] in methods and (PHI in told or "phi" not in row["name"]):
            message = row["a"].partition(": ")[0]
            # A distance of two distributions is no accuracy, and has no points.
            claims += compared("000", [row], at, message=message, unit="")
    return claims


def wrong_sets(frame: pd.DataFrame) -> pd.Series:
    """Return by message how many clients' label sets, of all seeds, differ from what phi shows."""
    there = frame["method"].eq(names.FEDMIX) & frame["metric"].isin([TRUTH, LABEL_SET])
    client = ["message", "seed", "client"]
    wide = frame[there].pivot_table("value", [*client, "item"], "metric")
    told = wide.reindex(columns=[TRUTH, LABEL_SET]).dropna().gt(0)
    return told[TRUTH].ne(told[LABEL_SET]).groupby(client).any().groupby("message").sum()
