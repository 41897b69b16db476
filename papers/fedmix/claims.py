"""The claims of FedMix (000) and their tests.

`papers/claims.csv` has their texts and places, and `papers/compared.csv` the comparisons. The paper
makes no claim about what phi reveals of clients' labels: those claims are ours, and say so.
"""

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from companion import frames
from companion.claims import OFTEN, BySeed, Claim
from companion.frames import ByMethod, by_method, final
from fedlib.algorithms import PrunedFedMix
from fedrun import Experiment
from papers import fedmix as names
from papers.fedmix import FEDAVG, FEDMIX, analysis
from papers.fedmix.analysis import GUESSING, LABEL_SET, SOURCES, TRUTH, newcomers
from papers.judging import asked, compared, judged

SURE = 0.9  # a label has a single expert if an entry of its row of q(z|y) is above this
UNIFORM = 0.9  # a row is uniform if its entropy is above this share of log K
SPECIAL = 0.5  # experts are specialised if the entropy is below this share of log K
_judged = partial(judged, "000")


def _compared(figure: str, dataset: str, values: Mapping[str, ByMethod]) -> list[Claim]:
    """Test the comparisons of a figure on a data set; digits have those of CIFAR-10."""
    at = {what: methods.__getitem__ for what, methods in values.items()}
    return compared("000", asked("000", f"{figure}, {dataset.replace('digits', 'cifar10')}"), at)


# Divergence and specialisation: sec. 1 and 2, Fig. 1, 3 and 14.


def divergence_claims(frame: pd.DataFrame, relative: pd.DataFrame) -> list[Claim]:
    """Test Fig. 1 over the last quarter of the rounds.

    Args:
        frame: the metrics of the runs.
        relative: the divergence relative to that of unrelated updates
            (`analysis.relative_divergence`). By eq. 16, even unrelated updates diverge less if
            their weights are uneven, as an expert's are.
    """
    curve = frames.divergence(frame)
    early = by_method(curve[curve["round"] <= curve["round"].max() // 10])
    last, aligned = by_method(frames.late(curve)), by_method(frames.late(relative))
    rows = (
        ("diverge.less", aligned[FEDMIX], "<", aligned[FEDAVG]),
        ("diverge.specialised", aligned[FEDMIX], "<", aligned[names.ENSEMBLE]),
        ("diverge.starts", last[FEDAVG], ">", early[FEDAVG]),
    )
    return _judged(rows, unit="")


def specialisation_claims(frame: pd.DataFrame, phi_rate: float) -> list[Claim]:
    """Test Fig. 3 and 14: whether q(z|y) specialises, experts are used, and entropies change.

    A logit of phi moves by about the server's rate per round, so that the entropy of an ensemble is
    read when rate x rounds is that of the paper, 2.

    Args:
        frame: the metrics of the runs.
        phi_rate: the server's rate for phi.
    """
    accuracy, least = final(frame, "test_accuracy"), by_method(analysis.least_used(frame))
    surest = by_method(largest_entries(frame))
    used = analysis.most_used(frame, names.CENTRALISED)
    epochs = (used[used["round"] == t] for t in (1, used["round"].max()))
    first, last = map(frames.by_seed, epochs)
    sides, one = ((FEDMIX, names.ENSEMBLE), surest[FEDMIX])
    rows = [
        ("special.one", one, ">", SURE, {"methods": (FEDMIX,)}),
        (
            "special.kept", least[FEDMIX], ">", least[names.UNREGULARISED],
            {"unit": "", "part": "more of the least used expert"},
        ),
        ("special.kept", one, ">", SURE, {"part": "each label gets one expert"}),
        ("special.none", one_hotness(frame, names.ENSEMBLE, phi_rate), ">", UNIFORM),
        ("special.ensemble", *_sides(accuracy, *sides), {"methods": sides}),
        ("rounds.4", *_sides(accuracy, FEDMIX, FEDAVG), {"methods": (FEDMIX, FEDAVG)}),
        ("original.first", first, ">", UNIFORM),
        ("original.last", last, ">", UNIFORM),
    ]  # fmt: skip
    return _judged(rows)


def _sides(values: ByMethod, a: str, b: str) -> tuple[BySeed, str, BySeed]:
    return values[a], ">", values[b]


def largest_entries(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the largest entry of the rows of the last q(z|y): mean over labels, by run."""
    rows = frames.last(frame, "q")
    most = rows.groupby(["method", "seed", "item"])["value"].max().reset_index()
    return pd.DataFrame(most.groupby(["method", "seed"])["value"].mean().reset_index())


def one_hotness(frame: pd.DataFrame, method: str, rate: float = 0) -> list[float]:
    """Return the mean row entropy of q over log K after the last round, a number per seed.

    0 is a single expert per value of the condition, and 1 no specialisation.

    Args:
        frame: the metrics of runs.
        method: the method.
        rate: the server's rate for phi; the number is then that of the round at which rate x rounds
            is the paper's. 0 takes the last round.
    """
    rows = frame[frame["method"] == method]
    most = np.log(rows.loc[rows["metric"] == "q", "expert"].max() + 1)
    if rate:
        rows = rows[rows["round"] == round(analysis.PAPER_TRAVEL / rate)]
    return [v / most for v in final(rows, "q_entropy")[method].values()]


def entropy_claims(entropy: pd.DataFrame) -> list[Claim]:
    """Test sec. 2.1, which motivates pruning: the entropy of q(z|s) decreases during training.

    Args:
        entropy: the table of `analysis.client_entropy`, of which the last quarter of the rounds is
            compared with the first.
    """
    first = by_method(entropy[entropy["round"] <= 0.25 * entropy["round"].max()])
    last = by_method(frames.late(entropy))
    return _judged([("entropy.falls", last[FEDMIX], "<", first[FEDMIX])], unit="")


# Performance against communication: sec. 4.1, Fig. 4 and 13, App. G.


def communication_claims(frame: pd.DataFrame, dataset: str) -> list[Claim]:
    """Test the claims of sec. 4.1 on Fig. 4, on one data set.

    Accuracies are those of the last round with the server's parameters. For a given budget after
    "the initial training phase", the final accuracies of mixtures are compared with the best that
    FedAvg and biased FedAvg have reached after any round.
    """
    course, last = frames.curve(frame, "test_accuracy"), final(frame, "test_accuracy")
    best = by_method(pd.DataFrame(course.groupby(analysis.RUN)["value"].max().reset_index()))
    plateau = {method: best[method] for method in (FEDAVG, names.BIASED)}
    values = {"last": last, "rounds": by_method(course), "end or best": ByMethod(last | plateau)}
    return _compared("Fig. 4", dataset, values)


def tuning_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test Fig. 13: a local epoch on little data overfits, so that accuracy decreases.

    The same clients are compared with their own and with the server's parameters, over the last
    quarter of the rounds, mean over the methods.
    """
    gain = frames.adapted(frame).drop(columns="value").rename(columns={"gain": "value"})
    gain = gain[gain["method"].isin((FEDAVG, names.BIASED, FEDMIX))]
    costs = frames.by_seed(frames.same_seeds(frames.late(gain)))
    return _judged([("epoch.costs", costs, "<", 0.0, {"unit": "points"})])


def weighed(
    frame: pd.DataFrame, experiments: Mapping[str, Experiment]
) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Return the bytes that methods sent down and up in the first round, and the expected ones.

    Args:
        frame: the metrics of runs.
        experiments: the experiments of its methods; those that prune are left out.
    """
    whole = {m: e for m, e in experiments.items() if not isinstance(e.algorithm, PrunedFedMix)}
    asked = {m: list(analysis.expected_traffic(e)[1:]) for m, e in whole.items()}
    first = frame[frame["round"] == 1].groupby(["method", "metric"])["value"].max()
    sent = {m: [int(first[m][f"bytes_{way}"]) for way in ("down", "up")] for m in asked}
    return sent, asked


def ablation_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test Fig. 11: the largest number of experts against the smallest, and the thresholds."""
    tests = {of: final(frame, f"{of}_accuracy") for of in ("test", "global")}
    several = [k for k in analysis.experts_of(frame) if k > 1]
    few, many = map(names.with_experts, (min(several), max(several)))
    words = {"few": min(several), "many": max(several), "methods": (few, many)}
    parts = {"test": "local tests", "global": "new client"}
    rows: list[tuple[Any, ...]] = [
        ("more.local", *_sides(tests[of], many, few), {**words, "part": part})
        for of, part in parts.items()
    ]
    if names.TEN in tests["test"]:
        rows.append(("ten", own_experts(frame, names.TEN), ">", 0.9, {"methods": (names.TEN,)}))
    most = max(analysis.etas_of(frame), default=0)
    local, (plain, half, all_of) = tests["test"], map(names.with_pruning, (0, 0.5, most))
    rows.append(("pruned.half", local[half], ">=", local[plain], {"methods": (half, plain)}))
    pruned = local[all_of] if all_of != plain else {}
    rows.append(("pruned.most", local[plain], ">", pruned, {"methods": (plain, all_of)}))
    return _judged(rows)


def own_experts(frame: pd.DataFrame, method: str) -> dict[int, float]:
    """Return the share of labels whose expert is no other label's, in the last q(z|y), by seed."""
    rows = frames.last(frame[frame["method"] == method], "q").reset_index(drop=True)
    best = rows.loc[rows.groupby(["seed", "item"])["value"].idxmax()]
    return frames.by_seed(best.assign(value=~best.duplicated(["seed", "expert"], keep=False)))


# Rotated MNIST: sec. 4.2, Fig. 5 and 6.


def rotated_claims(frame: pd.DataFrame, dataset: str) -> list[Claim]:
    """Test Fig. 5 or 6, by data set."""
    return _compared("Sec. 4.2", dataset, {"": final(frame, "test_accuracy")})


# Label permutations: sec. 4.3, Fig. 7 and 8, App. B.


def cluster_claims(frame: pd.DataFrame, permutations: analysis.Truth) -> list[Claim]:
    """Test Fig. 7 and 8: whether the clusters are found, and when; and too few or many experts."""
    course, accuracy = analysis.course(frame, permutations), final(frame, "test_accuracy")
    early = analysis.published_rounds()
    all_but_none = 1 - 0.5 / len(next(iter(permutations.values())))  # every client is right
    three, four, five = map(names.with_k, names.KS)

    def at(name: str, method: str, most: float = np.inf) -> BySeed:
        rows = analysis.measure(course[course["round"] <= most], name).sort_values("round")
        return by_method(rows.groupby(analysis.RUN, as_index=False).last())[method]

    pure, doubled = at("pure", five), at(analysis.DOUBLED, five)
    apart = {seed: float(pure[seed] > all_but_none and doubled[seed]) for seed in pure}
    rows = [
        ("found", at("right", four, early), ">", all_but_none),
        ("few", at(analysis.MERGED, three), OFTEN, 0.5),
        ("many.apart", apart, OFTEN, 0.5),
    ]
    if course["round"].max() > early:
        rows.append(("later", at("right", four), ">", all_but_none))
    if names.SLOWER in accuracy:
        rows.append(("slower", at("right", names.SLOWER), ">", all_but_none))
    return _judged(rows)


# New clients: sec. 2, Fig. 12, App. F.


def new_client_claims(frame: pd.DataFrame, dataset: str) -> list[Claim]:
    """Test Fig. 12: accuracy on a new client without labels after the last round.

    Args:
        frame: the metrics of the runs.
        dataset: the data set, for which the claims differ: FEMNIST has none. "appendix" is App. F:
            FedAvg and FedMix on participating clients, and p(s) against p(s|x) on a new one.
    """
    there = frame[frame["who"] != names.NEW] if "who" in frame else frame
    values = {of: final(there, f"{of}_accuracy") for of in ("global", "test", "validation")}
    return _compared("Fig. 12", dataset, values)


def joining_claims(frame: pd.DataFrame, classes: int) -> list[Claim]:
    """Test sec. 2: a new client with labels fits its gate, and experts without a gate fail.

    "Almost random" is below twice the accuracy of chance. The claim is about experts that
    specialise: it is tested only if q keeps less than half of the largest entropy.
    """
    before, after = newcomers(frame, 0)[FEDMIX], newcomers(frame, 1)
    special = max(one_hotness(frame, FEDMIX), default=0.0) < SPECIAL
    rows = (
        ("joins.gains", after[FEDMIX], ">", before),
        ("joins.better", after[FEDMIX], ">", after[FEDAVG]),
        ("joins.lost", before, "<", 2 / classes, {"here": special}),
    )
    return _judged(rows)


# What messages reveal of labels: App. C.

BIAS, PHI = SOURCES["labels_from_bias"], SOURCES["labels_from_phi"]


def privacy_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test App. C: the bias after one step and after several, and q(z|s).

    Near-identical means a mean total variation below 0.1, and below a fifth of that of guessing.
    Runs that were audited before phi was have no claims about phi.
    """
    known = analysis.leaks(frame)
    methods, told = {FEDAVG, FEDMIX, *known["method"]}, {*known["source"]}
    groups = known.groupby(["method", known["message"] + ": " + known["source"]])
    off = defaultdict(dict, {key: frames.by_seed(rows) for key, rows in groups})
    step, guess = (off[FEDAVG, f"{names.STEP}: {source}"] for source in (BIAS, GUESSING))
    share = [step[s] / guess[s] for s in step if guess.get(s)]
    rows = [
        ("leak.step", step, "<", 0.1, {"part": "total variation"}),
        ("leak.step", share, "<", 0.2, {"part": "as a share of guessing's"}),
    ]
    claims = _judged(rows)
    at = {method: lambda source, of=method: off[of, source] for method in methods}
    for row in asked("000", "App. C"):
        if row["what"] in methods and (PHI in told or "phi" not in row["name"]):
            # A distance of two distributions is no accuracy, and has no points.
            claims += compared("000", [row], at, unit="")
    return claims


def wrong_sets(frame: pd.DataFrame) -> pd.Series:
    """Return by message the number of clients whose label set differs from that read off phi."""
    there = frame["method"].eq(names.FEDMIX) & frame["metric"].isin([TRUTH, LABEL_SET])
    client = ["message", "seed", "client"]
    wide = frame[there].pivot_table("value", [*client, "item"], "metric")
    told = wide.reindex(columns=[TRUTH, LABEL_SET]).dropna().gt(0)
    return told[TRUTH].ne(told[LABEL_SET]).groupby(client).any().groupby("message").sum()
