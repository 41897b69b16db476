"""What FedMix's figures measure beside the papers' own numbers, by hand."""

from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from rows import logged

from fedlib.data.records import DatasetError
from fedlib.engine import play_round
from fedlib.partition import Dirichlet
from fedlib.tasks import Task
from fedrun.train import initial_state
from papers import fedmix as names
from papers.fedmix import analysis, claims
from papers.fedmix.experiments import COMMUNICATION, LABEL_SKEW, LONG

FEDAVG, FEDMIX = names.FEDAVG, names.FEDMIX
# Client 0 has 30 examples of label 0, and client 1 has 10 of label 1: p(s) = 3/4, 1/4.
COUNTS = np.array([[30, 0], [0, 10]])
TWO = SimpleNamespace(
    task=SimpleNamespace(dataset="made", counts=lambda seed: {"train": COUNTS}), cohort=2
)


def diverged(method, t, value, expert=-1, item="head.weight"):
    return (method, 0, t, "divergence", -1, expert, item, value)


def posterior(t, matrix):
    """Rows of q(z|y) ``[labels, K]`` after a round."""
    return [(FEDMIX, 0, t, "q", -1, k, str(y), v) for (y, k), v in np.ndenumerate(matrix)]


def test_unrelated_updates_diverge_by_what_their_weights_leave():
    """FedAvg: (1 - (9 + 1) / 16) / 2. Experts: p(s|z) = 6/7, 1/7 and 1/2, 1/2 by hand."""
    rows = [diverged(FEDAVG, 1, 0.1), *(diverged(FEDMIX, 1, 0.1, k) for k in (0, 1))]
    rows += posterior(0, np.array([[0.8, 0.2], [0.4, 0.6]]))
    found = analysis.unrelated_divergence(logged(rows), TWO)
    by = found.set_index(["method", "expert"])["value"].to_dict()
    assert by == pytest.approx({(FEDAVG, -1): 3 / 16, (FEDMIX, 0): 6 / 49, (FEDMIX, 1): 1 / 4})


def test_relative_divergence_is_one_minus_the_mean_cosine():
    """Updates at right angles have 1, whatever the weights; a cosine of 1/2 has 1/2."""
    apart = {FEDAVG: (3 / 16,), FEDMIX: (6 / 49, 1 / 4)}
    rows = posterior(0, np.array([[0.8, 0.2], [0.4, 0.6]]))
    for t, cosine in ((1, 0.0), (2, 0.5)):
        for item in ("base.weight", "head.weight"):
            rows += [diverged(FEDAVG, t, (1 - cosine) * apart[FEDAVG][0], item=item)]
            rows += [
                diverged(FEDMIX, t, (1 - cosine) * u, k, f"experts.{item}")
                for k, u in enumerate(apart[FEDMIX])
            ]
    rows += [diverged(FEDMIX, t, 0.3, item="phi") for t in (1, 2)]  # no part of a model
    rows += posterior(2, np.array([[0.8, 0.2], [0.4, 0.6]]))
    for tensor in ("", "head.weight"):
        found = analysis.relative_divergence(logged(rows), TWO, tensor)
        by = found.set_index(["method", "seed", "round"])["value"].to_dict()
        assert by == pytest.approx(
            {(m, 0, t): v for m in (FEDAVG, FEDMIX) for t, v in ((1, 1.0), (2, 0.5))}
        )


def test_the_weights_part_of_a_lower_divergence():
    """Experts: mean 73/392 if unrelated, of which 0.8 is measured; FedAvg is unrelated, 3/16."""
    rows = [*posterior(0, np.array([[0.8, 0.2], [0.4, 0.6]])), diverged(FEDAVG, 1, 3 / 16)]
    rows += [diverged(FEDMIX, 1, 0.8 * u, k) for k, u in enumerate((6 / 49, 1 / 4))]
    table = analysis.by_weights(logged(rows), TWO)
    mean = (6 / 49 + 1 / 4) / 2
    assert table.loc[FEDMIX].tolist() == pytest.approx(
        [0.8 * mean, mean, 0.8, (3 / 16 - mean) / (3 / 16 - 0.8 * mean)]
    )
    assert table.loc[FEDAVG].tolist() == pytest.approx([3 / 16, 3 / 16, 1, np.nan], nan_ok=True)


def test_q_is_interpolated_to_the_beginning_of_a_round():
    """Round 2 begins with the mean of what was logged after rounds 0 and 2."""
    rows = [diverged(FEDMIX, 2, 0.1, k) for k in (0, 1)]
    rows += posterior(0, np.array([[1.0, 0.0], [0.0, 1.0]]))
    rows += posterior(2, np.array([[0.6, 0.4], [0.8, 0.2]]))
    found = analysis.unrelated_divergence(logged(rows), TWO)
    assert found["value"].tolist() == pytest.approx([6 / 49, 1 / 4])


def test_a_cohort_of_one_client_has_nothing_to_diverge():
    rows = [diverged(FEDAVG, t, 0.0) for t in (1, 2, 3)]
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
    rows = [*posterior(0, q), *(diverged(FEDMIX, 1, 0.1, k) for k in range(q.shape[1]))]
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
    rows = [r for t, q in ((0, even), (10, even), (75, sure), (100, sure)) for r in posterior(t, q)]
    found = analysis.client_entropy(logged(rows), TWO).set_index("round")["value"].to_dict()
    two = np.log(2)
    assert found == pytest.approx({0: two, 10: two, 75: two / 2, 100: two / 2}, abs=1e-9)
    (claim,) = claims.entropy_claims(analysis.client_entropy(logged(rows), TWO))
    assert claim.effect == pytest.approx(-two / 2, abs=1e-9)
