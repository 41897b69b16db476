"""What a server remembers: a stateful algorithm as a reader would write one."""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest
import torch

from benchmarks.robustness.tiny import TASK
from fedlib.algorithms import IFCA, FedAvg, FedGen, LastClient, PrunedFedMix
from fedlib.engine import State, play_round
from fedlib.optim import adam
from fedlib.runs import Experiment, run_with_state, store
from fedlib.values import value

TIMES = "times"


@value
class Rested(FedAvg):
    """FedAvg that counts how often a client has taken part, and weighs it by the inverse."""

    def init(self, fed, seed, first=None):
        begun = FedAvg.init(self, fed, seed, first)
        return replace(begun, memory={TIMES: torch.zeros(fed.clients)})

    def before_round(self, fed, state, rows, *, round, seed):
        taken = state.memory[TIMES].index_add(0, rows, torch.ones(len(rows)))
        return replace(state, memory={TIMES: taken})

    def weights(self, fed, state, rows, messages):
        p = 1 / state.memory[TIMES][rows].double()
        return dict.fromkeys(messages, p / p.sum())


RESTED = Rested(server=adam(0.01), batch_size=4)


def test_an_algorithm_that_remembers_needs_no_care_of_its_own():
    fed = TASK.build(0)
    state, times, weights = RESTED.init(fed, 0), torch.zeros(fed.clients), []
    for t in range(4):
        state, report = play_round(RESTED, fed, state, round=t, seed=0, cohort=2)
        times[report.rows] += 1
        inverse = 1 / times[report.rows].double()
        torch.testing.assert_close(report.weights["head.bias"], inverse / inverse.sum())
        weights.append(report.weights["head.bias"])
    assert torch.equal(state.memory[TIMES], times) and times.sum() == 8
    assert any(not torch.allclose(w, w.mean()) for w in weights)
    assert TIMES not in state.optimizer and state.optimizer  # Adam remembers, too


def test_a_resumed_run_remembers(monkeypatch):
    experiment = Experiment(TASK, RESTED, rounds=4, cohort=2, evaluate_every=4)
    straight = run_with_state(experiment, progress=False)[1]
    kept = store.restore(experiment).state
    assert torch.equal(kept.memory[TIMES], straight.memory[TIMES])
    other = replace(experiment, seed=1)
    running = importlib.import_module(
        "fedlib.runs.run"
    )  # the package exports a function of its name
    play = play_round

    def stops(*args, **kwargs):
        if kwargs["round"] == 2:
            raise KeyboardInterrupt
        return play(*args, **kwargs)

    monkeypatch.setattr(running, "play_round", stops)
    with pytest.raises(KeyboardInterrupt):
        run_with_state(other, progress=False)
    assert store.restore(other).state.memory[TIMES].sum() == 4
    monkeypatch.setattr(running, "play_round", play)
    assert run_with_state(other, progress=False)[1].memory[TIMES].sum() == 8


@pytest.mark.parametrize(
    "algorithm",
    [
        IFCA(server=adam(0.01)),
        PrunedFedMix(experts=2),
        FedGen(noise=4, hidden=4, steps=2, server=adam(0.01)),
        LastClient(server=adam(0.01)),
    ],
    ids=lambda a: type(a).__name__,
)
def test_checkpoints_with_both_memories_in_one_group_are_read(algorithm):
    fed = TASK.build(0)
    state, _ = play_round(
        algorithm, fed, algorithm.init(fed, 0), round=0, seed=0, cohort=fed.clients
    )
    assert state.memory and state.optimizer
    old = {
        n.replace("optimizer:", "server:", 1).replace("memory:", "server:", 1): t
        for n, t in state.flat().items()
    }
    assert not any(n.startswith(("optimizer:", "memory:")) for n in old)
    again = State.from_flat(old)
    for now, before in zip(
        (state.shared, state.local, state.optimizer, state.memory),
        (again.shared, again.local, again.optimizer, again.memory),
        strict=True,
    ):
        assert now.keys() == before.keys()
        assert all(torch.equal(before[n], t) for n, t in now.items())
