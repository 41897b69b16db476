"""FedMix's claims and measures of training, traffic and new clients (000), by hand."""

from contextlib import suppress
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from rows import initials, logged, runs_of

from companion.panels import Panel
from fedlib.data.records import DatasetError
from fedlib.engine import play_round
from fedlib.partition import Dirichlet
from fedlib.tasks import Task
from fedrun.train import initial_state
from papers import fedmix as names
from papers.claimed import ClaimTest, _long
from papers.fedmix import analysis, claims
from papers.fedmix.experiments import COMMUNICATION, LABEL_SKEW, LONG

FEDAVG, FEDMIX, BIASED = names.FEDAVG, names.FEDMIX, names.BIASED
BY_LABEL, BY_ANGLE = names.BY_LABEL, names.BY_ANGLE
NOISE = (0.0, 0.001, -0.001)  # by seed


def told(method, seed, t, metric, value, client=-1):
    """A row of a metric that is of no expert and no item."""
    return (method, seed, t, metric, client, -1, "", value)


def posterior(method, seed, matrix, t=100):
    """The rows of a logged q(z|y) ``[labels, K]``."""
    cells = np.ndenumerate(np.asarray(matrix, float))
    return [(method, seed, t, "q", -1, k, str(label), v) for (label, k), v in cells]


# Divergence and specialisation.


def diverging(method, seed, t, value, item="base.0.weight", expert=-1):
    return (method, seed, t, "divergence", -1, expert, item, value)


def test_specialisation_claims_read_the_right_rows():
    one_hot, dead, rows = [[1, 0], [0, 1]], [[1, 0], [1, 0]], []
    mixtures = {FEDMIX: (one_hot, 0.01), names.UNREGULARISED: (dead, 0.01)}
    mixtures[names.ENSEMBLE] = (one_hot, 0.69)
    for seed in range(3):
        noise = 1e-3 * seed
        for method, (q, entropy) in mixtures.items():
            rows += posterior(method, seed, q)
            for t, value in ((100, entropy), (40, 0.5)):
                rows.append(told(method, seed, t, "q_entropy", value + noise / 10))
        for method, value in ((FEDMIX, 0.8), (names.ENSEMBLE, 0.6), (FEDAVG, 0.9)):
            rows.append(told(method, seed, 100, "test_accuracy", value + noise, client=0))
        for epoch, most in ((1, 0.95), (5, 0.4)):
            for k, use in enumerate((most, 1 - most)):
                row = (names.CENTRALISED, seed, epoch, "test_gate", -1, k, "0", use + noise)
                rows += [row, (names.ORIGINAL, *row[1:])]
    found = initials(claims.specialisation_claims(logged(rows), 0.05))
    # One-hot, kept alive, and so again; H(q) has entropy .69 of log 2, but .5 at round 2 / 0.05;
    # above the ensemble and below FedAvg; collapsed after an epoch, not in the end.
    assert found == "hhhchchc"
    without = [row for row in rows if row[0] != names.CENTRALISED]
    assert initials(claims.specialisation_claims(logged(without), 0.05)) == found[:-2] + "nn"


def test_runs_of_a_few_methods_over_the_papers_rounds_decide_what_is_about_these():
    """What nothing is known of is judged on the runs of all methods, and not said twice."""
    rows = []
    for seed, (method, entropy) in product(range(3), ((FEDMIX, 0.01), (names.ENSEMBLE, 0.69))):
        rows += posterior(method, seed, [[1, 0], [0, 1]], 100)
        rows.append(told(method, seed, 100, "q_entropy", entropy + 1e-4 * seed))
        rows.append(told(method, seed, 100, "test_accuracy", entropy + 1e-3 * seed, client=0))
    every = claims.specialisation_claims(logged(rows), analysis.PAPER_TRAVEL / 100)
    some = _long(lambda panel: every)(None)
    # One-hot, both parts of it; H(q) keeps all of log 2; behind the ensemble; no FedAvg.
    assert initials(some) == "hhhc" and len(every) == 8
    test = ClaimTest("02", LONG, lambda panel: some, ", 2,000 rounds")
    assert test.of([SimpleNamespace(name="Digits")]) == {"Digits, 2,000 rounds": some}


CURVES = [(3.9, 0.5, 0.6, "hhh"), (3.9, 0.7, 0.6, "hch"), (4.0, 0.9, 0.8, "cuu")]


@pytest.mark.parametrize(("early", "fedmix", "ensemble", "expected"), CURVES)
def test_divergence_claims(early, fedmix, ensemble, expected):
    """FedAvg's own rises or not; over that of unrelated updates the others are beside its .8.

    In the last row FedMix is above FedAvg, and seeds disagree on the ensemble and on the rise.
    """
    cells = product(range(3), range(1, 101))
    wide = 0.5 * (early == 4.0)
    rise = {s: 4.0 + wide * (s - 1) for s in range(3)}
    ends = [(FEDAVG, s, t, early if t <= 50 else rise[s]) for s, t in cells]
    rows = [diverging(m, s, t, value + 0.001 * s) for m, s, t, value in ends]
    known = {FEDAVG: 0.8, FEDMIX: fedmix, names.ENSEMBLE: ensemble}
    relative = [
        (m, s, 100, v + (0.001 + wide) * s * (m == names.ENSEMBLE))
        for (m, v), s in product(known.items(), range(3))
    ]
    relative = pd.DataFrame(relative, columns=["method", "seed", "round", "value"])
    found = claims.divergence_claims(logged(rows), relative)
    assert initials(found) == expected and {c.unit for c in found} == {""}


def test_tensors_are_named_by_their_layers():
    named = analysis.layer_names(["base.0.bias", "base.0.weight", "base.3.bias", "head.bias"])
    assert [*named.values()] == ["layer 1 bias", "layer 1 weight", "layer 2 bias", "output bias"]


def test_experts_are_used_and_owned_as_the_last_q_says():
    early, late = [[1, 0], [1, 0]], [[0.8, 0.2], [0.6, 0.4]]
    rows = logged(posterior(FEDMIX, 0, early, t=10), posterior(FEDMIX, 0, late))
    least = analysis.least_used(rows)
    assert least.to_dict("records") == [{"method": FEDMIX, "seed": 0, "value": pytest.approx(0.3)}]
    one = analysis.least_used(logged(posterior(FEDMIX, 0, np.eye(4)[[0, 0, 1, 1, 2, 2, 2, 2]])))
    assert analysis.dead_experts(pd.concat([least, one])).to_dict() == {FEDMIX: "1 of 2"}
    q = np.eye(3)
    chosen = enumerate(([0, 1, 1], [2, 0, 1]))
    both = [posterior(names.TEN, seed, q[which]) for seed, which in chosen]
    assert claims.own_experts(logged(*both), names.TEN) == pytest.approx({0: 1 / 3, 1: 1.0})


# Traffic and ablations.


def run(method, ends, cost, new=None):
    """Rows of three seeds whose accuracy rises in a line to ``ends``, at ``cost`` bytes a round."""
    rows = []
    for seed in range(3):
        for t in (0, 10, 20):
            rows.append(told(method, seed, t, "test_accuracy", ends * t / 20 + 1e-4 * seed, 0))
            rows.append(told(method, seed, t, "global_accuracy", (new or ends) * t / 20))
        for t in range(1, 21):
            rows += [told(method, seed, t, f"bytes_{way}", cost / 2) for way in ("down", "up")]
    return rows


# Last accuracy and megabytes a round.
SKEWED = {FEDAVG: (0.5, 1), names.WIDE[4]: (0.7, 4), FEDMIX: (0.6, 4), names.PRUNING: (0.6, 1),
          names.BIAS: (0.6, 4)}  # fmt: skip
OTHERS = {FEDAVG: (0.5, 1), BIASED: (0.505, 1), names.TWO: (0.4, 2), FEDMIX: (0.45, 4),
          names.TEN: (0.6, 10), names.TEN_PRUNED: (0.6, 1)}  # fmt: skip
ALIKE = {FEDAVG: (0.5, 1), BIASED: (0.52, 1)}


@runs_of("communication")
def test_each_data_set_is_asked_its_own_claims(code, expected):
    ends, dataset = eval(code)
    rows = logged(*(run(method, end, 1e6 * cost) for method, (end, cost) in ends.items()))
    assert initials(claims.communication_claims(rows, dataset)) == expected


def test_a_local_epoch_is_judged_on_the_same_clients():
    rows = []
    for seed in range(3):
        for t in range(10, 101, 10):
            rows += [told(FEDAVG, seed, t, "test_accuracy", v, c) for c, v in ((0, 0.5), (1, 0.9))]
            # Only the weaker client was in the cohort.
            loss = 0.001 * t + 1e-4 * seed
            rows.append(told(FEDAVG, seed, t, "adapted_test_accuracy", 0.5 - loss, client=0))
    assert initials(claims.tuning_claims(logged(rows))) == "h"
    assert initials(claims.tuning_claims(logged(run(FEDAVG, 0.5, 1e6)))) == "n"


def test_ablations_compare_what_is_there():
    pruned = {names.with_pruning(0.5): (0.595, 3e6), names.PRUNING: (0.5, 2e6)}
    runs = [run(method, *ends) for method, ends in pruned.items()]
    rows = logged(run(FEDAVG, 0.5, 1e6, new=0.6), run(FEDMIX, 0.6, 4e6, new=0.5), *runs)
    assert analysis.experts_of(rows) == [1, 4] and analysis.etas_of(rows) == [0.0, 0.5, 0.9]
    ends = analysis.swept(rows, "test_accuracy").groupby(["method", "at"])["value"].mean()
    settings = {(FEDMIX, "K = 1"): 0, (FEDMIX, "K = 4"): 10, (names.PRUNING, ""): 10}
    settings |= {(names.PRUNING, "eta = 0.5"): 9.5, (names.PRUNING, "eta = 0.9"): 0}
    assert ends.to_dict() == pytest.approx(settings), "points above FedAvg"
    # One number of experts is not compared with itself; half a point lost, and ten.
    assert initials(claims.ablation_claims(rows)) == "cchh"
    more = logged(run(names.with_experts(8), 0.7, 8e6))
    tested = claims.ablation_claims(pd.concat([rows, more]))
    assert initials(tested) == "hhhh"
    assert [c.part for c in tested[:2]] == ["local tests", "new client"]
    assert tested[0].text.startswith("More experts, higher accuracy: K = 8 minus K = 4")


MEGABYTES = {"cifar100": {FEDAVG: 22.3, FEDMIX: 89.1, names.TEN: 222.7}, "femnist": {FEDAVG: 25.7}}
MEGABYTES["cifar10"] = {FEDAVG: 35.5, names.WIDE[2]: 70.7, names.WIDE[4]: 142.4, FEDMIX: 141.9}


@pytest.mark.parametrize("dataset", MEGABYTES)
def test_traffic_of_the_papers_rounds_by_arithmetic(dataset):
    for method, megabytes in MEGABYTES[dataset].items():
        experiment = COMMUNICATION.experiments("paper", dataset, method)[0]
        _, down, up = analysis.expected_traffic(experiment)
        assert (down + up) / 1e6 == pytest.approx(megabytes, abs=0.05), method


def test_runs_send_what_the_arithmetic_says():
    both = (FEDMIX, names.PRUNING)
    asked = {m: COMMUNICATION.experiments("quick", "digits", m)[0] for m in both}
    _, down, up = analysis.expected_traffic(asked[FEDMIX])
    ways = (("bytes_down", down), ("bytes_up", up))
    sent = logged([told(m, 0, 1, way, value) for m in both for way, value in ways])
    found, expected = claims.weighed(sent, asked)
    assert found == expected == {FEDMIX: [down, up]}, "what is pruned weighs less"
    found, _ = claims.weighed(sent.assign(value=sent["value"] - 4), asked)
    assert found != expected


# Rotated MNIST.

PULL = (0.0, 0.004, 0.001)  # of a seed, shared by all methods
OWN = {FEDAVG: 0, BIASED: 0.0005, BY_LABEL: 0.0003, BY_ANGLE: 0.0007}  # ... and of a method


def rotated(*last, seeds=3):
    """Runs with these last accuracies in the order of ``OWN``."""
    rows = []
    for method, accuracy in zip(OWN, last, strict=False):
        for seed in range(seeds):
            end = accuracy + PULL[seed] + OWN[method] * seed
            rows += [told(method, seed, 9, "test_accuracy", end, client=i) for i in range(2)]
    return logged(rows)


@runs_of("rotated")
def test_the_papers_figures_5_and_6_and_the_other_way_round(code, expected):
    assert initials(claims.rotated_claims(*eval(code))) == expected


# New clients.


def course(method, metric, *values):
    """A metric's values by round, for three seeds that differ a little."""
    each = [(s, t, v) for s in range(3) for t, v in enumerate(values)]
    return [told(method, s, t, metric, v + NOISE[s] * t) for s, t, v in each]


def last(*accuracies):
    """Runs with these last accuracies, on seen clients and on a new one; None was not run."""
    methods = (FEDAVG, BIASED, names.LOCAL_GLOBAL, FEDMIX, names.BIAS)
    known = {m: v for m, v in zip(methods, accuracies, strict=False) if v}
    metrics = ("global_accuracy", "test_accuracy")
    return logged(*(course(m, metric, 0.1, v) for m, v in known.items() for metric in metrics))


@runs_of("newcomers")
def test_the_last_round_on_a_new_client_is_compared(code, expected):
    assert initials(claims.new_client_claims(*eval(code))) == expected


def test_appendix_f_has_the_papers_numbers_beside_the_measured():
    ends = {(FEDAVG, "validation"): 0.97, (FEDMIX, "validation"): 0.98, (FEDAVG, "global"): 0.96}
    ends |= {(FEDMIX, "global"): 0.95, (names.DENSITIES, "global"): 0.94}
    runs = [course(method, f"{test}_accuracy", 0.1, end) for (method, test), end in ends.items()]
    joined = logged(course(FEDMIX, "global_accuracy", 0.0, 0.0)).assign(who=names.NEW)
    every = pd.concat([logged(*runs).assign(who=""), joined])
    table = analysis.appendix_f(every)
    assert table["published"].tolist() == pytest.approx([0.97, 0.977, 0.969, 0.9663, 0.959])
    assert table["mean"].tolist() == pytest.approx([0.97, 0.98, 0.96, 0.95, 0.94])
    assert table["seeds"].tolist() == [3] * 5
    missing = analysis.appendix_f(logged(course(FEDAVG, "global_accuracy", 0.5)).assign(who=""))
    assert missing["mean"].isna().tolist() == [True, True, False, True, True]
    drawn = analysis.beside(table)
    assert len(drawn) == 10 and drawn.loc[drawn["group"] != "measured", "low"].isna().all()
    assert initials(claims.new_client_claims(every, "appendix")) == "hhhh"


def joining():
    """NewClients' accuracy before and after they fit, among runs of those who were there."""
    fitted = {FEDMIX: (0.15, 0.9), FEDAVG: (0.8, 0.8)}
    new = logged(*(course(m, "test_accuracy", *values) for m, values in fitted.items()))
    there = logged(course(FEDMIX, "test_accuracy", 0.99, 0.1))
    return pd.concat([there.assign(who=""), new.assign(who=names.NEW)])


def test_three_ways_to_test():
    ends = {"test_accuracy": 0.95, "global_accuracy": 0.85}
    first = logged(*(course(FEDMIX, metric, 0.1, end) for metric, end in ends.items()))
    ways = analysis.three_ways(joining(), first)
    mean = ways.groupby(["method", "way"], sort=False)["value"].mean()
    assert list(mean[FEDMIX].index) == list(analysis.WAYS)
    assert mean[FEDMIX].tolist() == pytest.approx([0.95, 0.15, 0.9, 0.85])
    assert list(mean[FEDAVG].index) == [analysis.BEFORE, analysis.AFTER]
    assert initials(claims.joining_claims(joining(), classes=10)) == "hhh"
    # Said of experts that specialise: q keeps 0.88 of the largest entropy, or 0.02.
    for kept, third in ((0.88, "n"), (0.02, "h")):
        q = [told(FEDMIX, s, 600, "q_entropy", kept * np.log(2)) for s in range(3)]
        q += [row for s in range(3) for row in posterior(FEDMIX, s, [[0.5, 0.5]], 600)]
        tested = claims.joining_claims(pd.concat([joining(), logged(q)]), classes=10)
        assert initials(tested) == "hh" + third
    missing = analysis.first_stage("quick", "two_class_digits")
    assert missing.empty
    assert {*analysis.three_ways(joining(), missing)["way"]} == {analysis.BEFORE, analysis.AFTER}


# What figures measure beside the papers' own numbers.


# Client 0 has 30 examples of label 0, and client 1 has 10 of label 1: p(s) = 3/4, 1/4.
COUNTS = np.array([[30, 0], [0, 10]])
Q = np.array([[0.8, 0.2], [0.4, 0.6]])
TWO = SimpleNamespace(
    task=SimpleNamespace(dataset="made", counts=lambda seed: {"train": COUNTS}), cohort=2
)


def test_unrelated_updates_diverge_by_what_their_weights_leave():
    """FedAvg: (1 - (9 + 1) / 16) / 2. Experts: p(s|z) = 6/7, 1/7 and 1/2, 1/2 by hand."""
    rows = [diverging(FEDAVG, 0, 1, 0.1), *(diverging(FEDMIX, 0, 1, 0.1, expert=k) for k in (0, 1))]
    rows += posterior(FEDMIX, 0, Q, t=0)
    found = analysis.unrelated_divergence(logged(rows), TWO)
    by = found.set_index(["method", "expert"])["value"].to_dict()
    assert by == pytest.approx({(FEDAVG, -1): 3 / 16, (FEDMIX, 0): 6 / 49, (FEDMIX, 1): 1 / 4})


def test_relative_divergence_is_one_minus_the_mean_cosine():
    """Updates at right angles have 1, whatever the weights; a cosine of 1/2 has 1/2."""
    apart = {FEDAVG: (3 / 16,), FEDMIX: (6 / 49, 1 / 4)}
    rows = posterior(FEDMIX, 0, Q, t=0)
    for t, cosine in ((1, 0.0), (2, 0.5)):
        for item in ("base.weight", "head.weight"):
            rows += [diverging(FEDAVG, 0, t, (1 - cosine) * apart[FEDAVG][0], item=item)]
            rows += [
                diverging(FEDMIX, 0, t, (1 - cosine) * u, expert=k, item=f"experts.{item}")
                for k, u in enumerate(apart[FEDMIX])
            ]
    rows += [diverging(FEDMIX, 0, t, 0.3, item="phi") for t in (1, 2)]  # no part of a model
    rows += posterior(FEDMIX, 0, Q, t=2)
    expected = {(m, 0, t): v for m in (FEDAVG, FEDMIX) for t, v in ((1, 1.0), (2, 0.5))}
    found = analysis.relative_divergence(logged(rows), TWO)
    assert found.set_index(["method", "seed", "round"])["value"].to_dict() == pytest.approx(
        expected
    )
    table = analysis.by_tensor(logged(rows), TWO)  # of the last round, a quarter of two
    assert {*table["tensor"]} == {"layer 1 weight", "output weight"} and len(table) == 4
    assert table["value"].tolist() == pytest.approx([0.5] * 4)


def test_the_weights_part_of_a_lower_divergence():
    """Experts: mean 73/392 if unrelated, of which 0.8 is measured; FedAvg is unrelated, 3/16."""
    rows = [
        *posterior(FEDMIX, 0, Q, t=0),
        diverging(FEDAVG, 0, 1, 3 / 16),
    ]
    rows += [diverging(FEDMIX, 0, 1, 0.8 * u, expert=k) for k, u in enumerate((6 / 49, 1 / 4))]
    table = analysis.by_weights(logged(rows), TWO)
    mean = (6 / 49 + 1 / 4) / 2
    assert table.loc[FEDMIX].tolist() == pytest.approx(
        [0.8 * mean, mean, 0.8, (3 / 16 - mean) / (3 / 16 - 0.8 * mean)]
    )
    assert table.loc[FEDAVG].tolist() == pytest.approx([3 / 16, 3 / 16, 1, np.nan], nan_ok=True)


def test_q_is_interpolated_to_the_beginning_of_a_round():
    """Round 2 begins with the mean of what was logged after rounds 0 and 2."""
    rows = [diverging(FEDMIX, 0, 2, 0.1, expert=k) for k in (0, 1)]
    rows += posterior(FEDMIX, 0, np.array([[1.0, 0.0], [0.0, 1.0]]), t=0)
    rows += posterior(FEDMIX, 0, np.array([[0.6, 0.4], [0.8, 0.2]]), t=2)
    found = analysis.unrelated_divergence(logged(rows), TWO)
    assert found["value"].tolist() == pytest.approx([6 / 49, 1 / 4])


def test_a_cohort_of_one_client_has_nothing_to_diverge():
    rows = [diverging(FEDAVG, 0, t, 0.0) for t in (1, 2, 3)]
    one = SimpleNamespace(task=TWO.task, cohort=1)
    assert analysis.relative_divergence(logged(rows), one).empty


def test_cohorts_and_weights_are_those_of_training():
    """Those that the first round of a run on digits averages its messages with."""
    setting = LABEL_SKEW.settings("quick")["digits"]
    one = LABEL_SKEW.experiments("quick", "digits", FEDMIX, seeds=1)[0]
    fed = one.task.build(0)
    state = initial_state(one, fed, [])
    q = state.server_params["phi"].softmax(-1).numpy()
    _, report = play_round(one.algorithm, fed, state, round=0, seed=0, cohort=one.cohort)
    rows = [
        *posterior(FEDMIX, 0, q, t=0),
        *(diverging(FEDMIX, 0, 1, 0.1, expert=k) for k in range(q.shape[1])),
    ]
    weights = report.weights["experts.head.weight"].numpy()
    found = analysis.unrelated_divergence(logged(rows), setting)["value"]
    assert found.tolist() == pytest.approx(((1 - (weights**2).sum(0)) / 2).tolist(), rel=1e-5)


def test_label_counts_are_stored_for_the_figures_partition_and_no_other(monkeypatch):
    """450 examples of each of 100 clients; where the data are there, their partition's."""
    ours = LABEL_SKEW.settings("standard")
    for setting in ours.values():
        for seed in range(setting.seeds):
            counts = analysis.label_counts(setting.task, seed)
            assert counts.shape == (100, 10) and (counts.sum(1) == 450).all()
        with suppress(DatasetError):
            assert (counts == setting.task.counts(seed)["train"]).all()
    for section in (LONG, COMMUNICATION):
        assert section.settings("standard")["cifar10"].task == ours["cifar10"].task
    other = replace(ours["cifar10"].task, partition=Dirichlet(100, alpha=0.1, size=450))
    monkeypatch.setattr(Task, "counts", lambda task, seed: {"train": COUNTS})
    assert analysis.label_counts(other, 0) is COUNTS


def traffic(method, sent, accuracies, seed=0):
    """A run that sends so many bytes in each of 10, 20, ... rounds, evaluated every tenth."""
    last = 10 * (len(accuracies) - 1)
    rows = [(method, seed, t, "bytes_up", -1, -1, "", sent) for t in range(1, last + 1)]
    cells = zip(range(0, last + 1, 10), accuracies, strict=True)
    return rows + [(method, seed, t, "test_accuracy", 0, -1, "", v) for t, v in cells]


def test_accuracies_are_compared_at_every_budget_and_with_the_best_of_all_rounds():
    """FedMix sends twice as much: at FedAvg's round 10 it is half way to its own round 10."""
    rows = traffic(FEDAVG, 1e6, (0.1, 0.5, 0.4)) + traffic(FEDMIX, 2e6, (0.1, 0.3, 0.7))
    found = analysis.ahead_at_traffic(logged(rows)).set_index("round")
    assert found["method"].eq(FEDMIX).all()
    assert found["value"].to_dict() == pytest.approx({0: 0.0, 10: 0.2 - 0.5, 20: 0.3 - 0.4})
    assert found["gigabytes"].to_dict() == pytest.approx({0: 0.0, 10: 0.01, 20: 0.02})
    best = analysis.ahead_of_best(logged(rows)).set_index(["method", "round"])
    assert best["value"].to_dict() == pytest.approx(
        {(FEDMIX, t): v for t, v in ((0, -0.4), (10, -0.2), (20, 0.2))}
    )
    assert best["gigabytes"].loc[FEDMIX, 20] == pytest.approx(0.04)
    panel = Panel(
        "cifar10", "standard", LABEL_SKEW.settings("standard")["cifar10"], logged(rows), False
    )
    figure, drawn = analysis.budgets(panel)
    assert figure.get_suptitle().startswith(
        "After 20 rounds, FedMix minus FedAvg's best round: +20"
    )
    assert drawn.groupby("y")["mean"].last().round(6).tolist() == [-10.0, 20.0], "in points"


def test_fedmix_stands_beside_the_ensemble_until_it_is_ahead_for_the_last_time():
    rows = [
        (method, 0, t, metric, -1, -1, "", value)
        for method, values in ((FEDMIX, (0.2, 0.6, 0.5)), (names.ENSEMBLE, (0.1, 0.5, 0.7)))
        for t, accuracy in enumerate(values)
        for metric, value in (("test_accuracy", accuracy), ("q_entropy", 1.0 - t / 10))
    ]
    panel = Panel(
        "cifar10", "standard", LABEL_SKEW.settings("standard")["cifar10"], logged(rows), False
    )
    figure, drawn = analysis.beside_ensemble(panel)
    assert "FedMix minus Ensemble (with H(q)): -20" in figure.get_suptitle()
    apart = drawn[drawn["y"].str.startswith("FedMix minus")].set_index("round")["mean"]
    assert apart.round(6).to_dict() == {0: 10.0, 1: 10.0, 2: -20.0}
    marks = [line.get_xdata()[0] for line in figure.axes[1].lines if line.get_linestyle() == ":"]
    assert marks == [1]


def test_label_sets_are_read_right_where_all_labels_is_a_wrong_guess():
    """Of two clients with both labels and one with one: all are read, and two guessed."""
    held = {0: (0.5, 0.5), 1: (0.2, 0.8), 2: (1.0, 0.0)}
    rows = [
        (FEDMIX, 0, 1, metric, client, -1, str(y), float(share > 0) if read else share, names.STEP)
        for client, shares in held.items()
        for y, share in enumerate(shares)
        for read, metric in enumerate((analysis.TRUTH, analysis.LABEL_SET))
    ]
    table = analysis.guessed_sets(logged(rows, places=("message",)))
    assert table.index.tolist() == [names.STEP]
    assert table.loc[names.STEP].tolist() == pytest.approx([3, 1, 2 / 3])


def test_the_entropy_of_a_client_is_that_of_its_labels_mean_row():
    """One label a client: its row's own entropy; it falls as the rows become one-hot."""
    even, sure = np.full((2, 2), 0.5), np.array([[1.0, 0.0], [0.5, 0.5]])
    courses = ((0, even), (10, even), (75, sure), (100, sure))
    rows = [r for t, q in courses for r in posterior(FEDMIX, 0, q, t)]
    found = analysis.client_entropy(logged(rows), TWO).set_index("round")["value"].to_dict()
    two = np.log(2)
    assert found == pytest.approx({0: two, 10: two, 75: two / 2, 100: two / 2}, abs=1e-9)
    (claim,) = claims.entropy_claims(analysis.client_entropy(logged(rows), TWO))
    assert claim.effect == pytest.approx(-two / 2, abs=1e-9)
