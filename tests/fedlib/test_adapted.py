"""Accuracy with the leaves that a client has just trained (000, App. G)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import LENET, make_federation
from playing import SIZES
from torch.nn.functional import pad

from fedlib.algorithms import FedAvg, FedMix, Local, Personal, PrunedFedMix
from fedlib.algorithms.variants import MEMORY
from fedlib.engine import play_round
from fedlib.models import MLP
from fedlib.optim import sgd
from fedlib.partition import Dirichlet, Mirrored
from fedlib.runs import Experiment, run
from fedlib.tasks import Task

FAST = {"batch_size": 4, "client": sgd(0.3)}
ALGORITHMS = {
    "FedAvg": FedAvg(**FAST),
    "Personal": Personal(local=("head.",), **FAST),
    "Local": Local(**FAST),
    "FedMix": FedMix(experts=2, **FAST),
    "PrunedFedMix": PrunedFedMix(experts=3, eta=1.0, **FAST),
}


def accuracy(fed, algorithm, params, ctx, table, row):
    """One client's share of right answers, example by example."""
    hits = 0
    for example in table.index[row, : table.sizes[row]]:
        code = algorithm.encode(fed.net, params, table.inputs(example[None]))
        said = algorithm.predict(fed.net, params, ctx, code).logp[0]
        hits += int(said.argmax() == table.y[example])
    return hits / table.sizes[row]


@pytest.mark.parametrize("model", [LENET, None])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_adapted_accuracies_are_those_of_the_trained_leaves(name, model):
    fed, algorithm = make_federation(SIZES, model=model, shape=(12, 12, 1)), ALGORITHMS[name]
    fed.test.sizes = np.array([6, 3, 5])  # ragged: padding must not count
    state = algorithm.init(fed, 0)
    if name == "PrunedFedMix":
        state.memory[MEMORY] = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0], [1 / 3] * 3])
    contexts = algorithm.client_context(fed, state, torch.arange(3)) | {}
    shared = {n: t.clone() for n, t in state.shared.items()}
    after, report = play_round(algorithm, fed, state, round=0, seed=0, cohort=3, score=True)
    assert set(report.adapted) == {"validation", "test"}
    for place, row in enumerate(report.rows):
        sent = {n: shared[n] - report.messages[n][place] for n in shared if n in report.messages}
        params = {**sent, **{n: t[row] for n, t in after.local.items()}}
        ctx = {n: t[row] for n, t in contexts.items()}
        for split, table in (("validation", fed.validation), ("test", fed.test)):
            expected = accuracy(fed, algorithm, params, ctx, table, row)
            assert float(report.adapted[split][place]) == pytest.approx(expected)


def test_a_client_without_test_examples_has_no_accuracy(fed):
    fed.test.sizes = np.array([6, 0, 6])
    fed.test.index = pad(fed.test.index, (0, 0))
    state = FedAvg().init(fed, 0)
    _, report = play_round(FedAvg(), fed, state, round=0, seed=0, cohort=3, score=True, chunk=1)
    none = report.adapted["test"].isnan()
    assert none.tolist() == (report.rows == 1).tolist()


def test_runs_log_them_where_clients_are_scored():
    task = Task(
        "digits",
        Dirichlet(clients=6, alpha=0.5, size=20),
        MLP(hidden=(8,)),
        Mirrored(pool=100, validation=10, test=10),
    )
    experiment = Experiment(task, FedAvg(), rounds=5, cohort=3, evaluate_every=2)
    frame = run(experiment, device="cpu", progress=False).metrics.to_pandas()
    for metric in ("adapted_test_accuracy", "adapted_validation_accuracy"):
        found = frame[frame["metric"] == metric]
        assert found.groupby("round")["client"].nunique().to_dict() == {2: 3, 4: 3, 5: 3}
        assert found["value"].between(0, 1).all()
