"""A recorded step trains like an eager one; here the recording is played by a stand-in."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import LENET, make_federation

from fedlib.algorithms import FedAvg, FedMix
from fedlib.engine import Phase, program, rounds
from fedlib.engine.program import WARM_UP, Program, Recorded
from fedlib.optim import Optimizer


class Tape:
    """Stands in for a CUDA graph: knows what was recorded, and whether it ran too early."""

    def __init__(self):
        self.recorded = self.played = 0

    def __call__(self, fn):
        self.recorded += 1

        def replay():
            self.played += 1
            fn()

        return replay


def cohort(algorithm, seed):
    fed = make_federation((12, 12, 12), model=LENET, shape=(12, 12, 1))
    state = algorithm.init(fed, seed)
    rows = torch.arange(3)
    parts = (
        {n: t.clone() for n, t in algorithm.start(fed, state, rows).items()},
        algorithm.client_context(fed, state, rows),
        algorithm.broadcast(fed, state),
    )

    def loss(params, ctx, batch, common):
        return algorithm.loss(fed.net, params, {**ctx, **common}, batch)

    places = np.random.default_rng(seed).permuted(np.tile(np.arange(12), (3, 1)), axis=1)
    plan = places.reshape(3, 6, 2), np.full((3, 6), 2), np.full(6, 2)
    return loss, parts, list(fed.train.batches(rows, *plan))


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "adagrad"])
@pytest.mark.parametrize("algorithm", [FedAvg(), FedMix(experts=2)], ids=lambda a: type(a).__name__)
def test_replayed_steps_equal_eager_ones_cohort_after_cohort(algorithm, name):
    tape, made = Tape(), None
    optimizer = Optimizer(name, lr=0.1, momentum=0.5 if name == "sgd" else 0.0)
    for seed in range(3):
        loss, parts, batches = cohort(algorithm, seed)
        eager = Program(loss, optimizer, tuple(parts[0]), *parts)
        made = made or Recorded(loss, optimizer, tuple(parts[0]), *parts, record=tape)
        made.begin(*parts)
        for batch in batches:
            torch.testing.assert_close(made.step(batch), eager.step(batch), rtol=0, atol=0)
        for leaf, other in zip(made.moving.values(), eager.moving.values(), strict=True):
            assert torch.equal(leaf, other)
    assert tape.recorded == 1 and tape.played == 3 * 6 - WARM_UP


def test_a_recording_keeps_its_hands_off_what_it_was_given():
    loss, parts, batches = cohort(FedAvg(), 0)
    before = [{n: t.clone() for n, t in part.items()} for part in parts]
    made = Recorded(loss, Optimizer(lr=0.5), tuple(parts[0]), *parts, record=Tape())
    for batch in batches:
        made.step(batch)
    for part, copy in zip(parts, before, strict=True):
        assert all(torch.equal(part[n], copy[n]) for n in part)


def test_a_failed_recording_says_so_and_goes_on_eagerly():
    def refuse(fn):
        raise RuntimeError("capture is not possible here")

    loss, parts, batches = cohort(FedAvg(), 0)
    eager = Program(loss, Optimizer(lr=0.1), tuple(parts[0]), *parts)
    made = Recorded(loss, Optimizer(lr=0.1), tuple(parts[0]), *parts, record=refuse)
    with pytest.warns(UserWarning, match="eagerly, as recording failed: capture is not possible"):
        for batch in batches:
            assert torch.equal(made.step(batch), eager.step(batch))


def test_a_cpu_and_an_optimiser_with_other_memory_are_not_recorded():
    loss, parts, _ = cohort(FedAvg(), 0)
    fed = make_federation()
    phase = Phase(Optimizer())
    made = program.program(fed, "key", loss, phase.optimizer, tuple(parts[0]), *parts)
    assert type(made) is Program and "yogi" not in program.RECORDABLE


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("algorithm", [FedAvg(batch_size=5), FedMix(batch_size=5)], ids=repr)
def test_on_a_gpu_recorded_rounds_agree_with_the_cpu(algorithm):
    fed = make_federation((12, 9, 12), model=LENET, shape=(12, 12, 1))
    results = []
    for where in (fed, fed.to("cuda")):
        state = algorithm.init(where, 0)
        for t in range(6):
            state, _ = rounds.play_round(algorithm, where, state, round=t, seed=0, cohort=3)
        results.append(state.shared)
    for name, leaf in results[0].items():
        torch.testing.assert_close(results[1][name].cpu(), leaf, rtol=1e-3, atol=1e-4)
