"""How a stage begins after others, and what all that is trained at home has in common."""

from __future__ import annotations

import numpy as np
import torch
from conftest import make_federation, scatter

from fedlib.algorithms import (
    IFCA,
    Densities,
    Local,
    Mixture,
)
from fedlib.algorithms.ifca import CLUSTERS, FIT, best_fit, count, pick, settled, used
from fedlib.engine import State, evaluate, play_round
from fedlib.models import MLP
from fedlib.optim import adam
from fedlib.partition import IID, Own
from fedlib.runs import Experiment, begun
from fedlib.tasks import Task

HOME = {"cohort": 1.0, "evaluate_every": 1}
TASK = Task("digits", IID(clients=3, size=12), MLP((4,)), Own(test=0.25))
CLUSTERED = IFCA(clusters=3)


def clusters(fed):
    """A settled state of three clusters; clients fit the last, the first and the last best."""
    state = CLUSTERED.init(fed, 0)
    fit = torch.tensor([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0], [torch.nan, 2.0, 1.0]])
    return State(state.shared, {}, memory={**state.memory, FIT: fit})


def test_clients_take_the_model_that_fits_them_best():
    fed = make_federation()
    state = clusters(fed)
    assert best_fit(state).tolist() == [2, 0, 2]
    assert count(state.shared) == 3 and count({"head.bias": torch.zeros(3)}) == 1
    for name, leaf in settled(state).items():
        assert torch.equal(leaf, state.shared[CLUSTERS + name][[2, 0, 2]])
    rest = {**used(state), "head.bias": torch.arange(3.0)}
    assert count(rest) == 2 and pick(rest, torch.tensor([1, 0]))["head.bias"].shape == (2, 3)


def test_a_stage_begins_with_the_federation_and_what_was_trained_beside_it():
    fed = TASK.build(0)
    first = Experiment(TASK, CLUSTERED, 2)
    alone = Experiment(TASK, Local(), 1, **HOME)
    mixture = Mixture(epochs=1, batch_size=4)
    federated = CLUSTERED.init(fed, 0)
    own = scatter(Local().init(fed, 0))
    fresh = begun(first, fed, [])
    for name, leaf in federated.shared.items():
        assert torch.equal(fresh.shared[name], leaf)
    tuned = begun(Experiment(TASK, Local(), 1, after=first, **HOME), fed, [federated])
    chosen = settled(CLUSTERED.assign_models(fed, federated))
    assert all(torch.equal(tuned.local[name], leaf) for name, leaf in chosen.items())
    both = begun(
        Experiment(TASK, mixture, 1, after=first, beside=alone, **HOME), fed, [federated, own]
    )
    for name, leaf in own.local.items():
        assert torch.equal(both.local[f"own.{name}"], leaf)
    for name, leaf in federated.shared.items():
        assert torch.equal(both.shared[f"global.{name}"], leaf)


def test_densities_stand_on_clusters_too():
    fed = make_federation()
    first = CLUSTERED.assign_models(fed, CLUSTERED.init(fed, 0))
    stage = Densities(
        of=CLUSTERED, epochs=1, batch_size=4, client=adam(0.01), hidden=(4,), latent=2
    )
    state, report = play_round(stage, fed, stage.init(fed, 0, first), round=0, seed=0, cohort=1.0)
    alone = evaluate(fed, CLUSTERED, first, fed.test)
    np.testing.assert_array_equal(evaluate(fed, stage, state, fed.test).nll, alone.nll)
    assert (report.up > 0).all() and not report.down.any()
