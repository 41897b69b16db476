"""A captured step on a simulated GPU, whose kernels are recorded and replayed."""

from unittest.mock import patch

import pytest
import torch
from conftest import make_federation
from playing import BATTERY, begun
from torch.utils._pytree import tree_leaves

from benchmarks.simulated_gpu import OnGPU, SimulatedGPU, placed, simulated_gpu
from fedlib import FedAvg, MajorityClass, Optimizer, adam, processor, sgd
from fedlib import algorithms as alg
from fedlib.engine import captured, play_round

CALLED = SimulatedGPU.called
ROUNDS = 4


def place(t):
    return t.inner.untyped_storage().data_ptr()


def recorded(counts):
    """Return a stand-in for ``cuda_graph``: what the GPU is asked once, it is asked again.

    As a graph does, it repeats kernels on the tensors of the capture and nothing else of Python.
    """

    def capture(step):
        for _ in range(captured.WARM_UP):
            step()
        tape = []

        def called(self, func, args, kwargs):
            found = CALLED(self, func, args, kwargs)
            tape.append((func, args, kwargs, found))
            return found

        SimulatedGPU.current.counts.clear()
        with patch.object(SimulatedGPU, "called", called):
            step()
        counts.append(SimulatedGPU.current.counts.copy())

        def replay():
            for func, args, kwargs, found in tape:
                if func.is_view or torch.Tag.inplace_view in func.tags:
                    continue
                again = CALLED(SimulatedGPU.current, func, args, kwargs)
                given = {place(t) for t in tree_leaves((args, kwargs)) if isinstance(t, OnGPU)}
                for old, new in zip(tree_leaves(found), tree_leaves(again), strict=True):
                    if isinstance(old, OnGPU) and place(old) not in given:
                        old.inner.copy_(new.inner.view(old.inner.shape))

        return replay

    return capture


def played(algorithm, sizes=(11, 4, 9), cohort=3):
    """Return the parameters after some rounds, with what captures were and what they asked."""
    fed, counts = placed(make_federation(sizes)), []
    state = begun(algorithm, fed)
    with patch.object(captured, "cuda_graph", recorded(counts)):
        for t in range(ROUNDS):
            state, _ = play_round(algorithm, fed, state, round=t, seed=0, cohort=cohort)
    tensors = {**state.server_params, **state.client_params}
    return {n: t.cpu() for n, t in tensors.items()}, counts


@pytest.fixture
def there():
    captured._graphs.clear()
    with simulated_gpu() as one:
        yield one
    captured._graphs.clear()


def both_ways(algorithm, monkeypatch, **how):
    plain, none = played(algorithm, **how)
    assert not none
    monkeypatch.setenv(processor.GRAPHS, "1")
    return plain, *played(algorithm, **how)


@pytest.mark.slow
@pytest.mark.parametrize("name", alg.__all__)
def test_replayed_steps_train_every_algorithm_as_single_ones_do(name, there, monkeypatch):
    algorithm = BATTERY[name]
    plain, replayed, counts = both_ways(algorithm, monkeypatch)
    assert counts or isinstance(algorithm, MajorityClass), "nothing was captured"
    for one in counts:
        assert one["copies"] == one["waits"] == 0, "a captured step must not need the host"
    for name, param in plain.items():
        assert torch.allclose(param, replayed[name], atol=1e-6), name


@pytest.mark.parametrize(
    "client", [sgd(0.1, momentum=0.9), adam(0.01), Optimizer(clip=0.1)], ids=str
)
def test_an_optimiser_begins_every_round_anew(client, there, monkeypatch):
    algorithm = FedAvg(batch_size=4, epochs=2, client=client)
    plain, replayed, counts = both_ways(algorithm, monkeypatch)
    assert len(counts) == 1
    assert all(torch.allclose(plain[n], replayed[n], atol=1e-6) for n in plain)


def test_an_optimiser_that_begins_with_more_than_zeros_is_not_captured(there, monkeypatch):
    monkeypatch.setenv(processor.GRAPHS, "1")
    assert played(FedAvg(client=Optimizer("Adagrad", lr=0.1)))[1] == []


def test_shapes_are_captured_when_they_come_again(there, monkeypatch):
    """Cohorts of one and two clients: each has a graph, and as many are kept as may be."""
    monkeypatch.setenv(processor.GRAPHS, "1")
    monkeypatch.setattr(captured, "KEPT", 1)
    algorithm = FedAvg(batch_size=4)
    fed, counts = placed(make_federation((8, 8, 8))), []
    state = begun(algorithm, fed)
    with patch.object(captured, "cuda_graph", recorded(counts)):
        for t, cohort in enumerate((1, 2, 2, 2, 1)):
            state, _ = play_round(algorithm, fed, state, round=t, seed=0, cohort=cohort)
    assert len(counts) == 1  # of two; the first of one client was forgotten
    assert len(captured._graphs) == 1


def test_what_cannot_be_captured_is_trained_step_by_step(there, monkeypatch):
    plain, _ = played(FedAvg(batch_size=4))
    monkeypatch.setenv(processor.GRAPHS, "1")
    asked = []

    def refuse(step):
        asked.append(step)
        raise RuntimeError("operation not permitted when stream is capturing")

    said = pytest.warns(UserWarning, match="FedAvg trains without a CUDA graph: .* capturing")
    with patch(f"{__name__}.recorded", lambda counts: refuse), said:
        again, _ = played(FedAvg(batch_size=4))
    assert len(asked) == 1, "it is tried once"
    assert all(torch.equal(plain[n], again[n]) for n in plain)


def test_on_a_cpu_nothing_is_captured(monkeypatch):
    monkeypatch.setenv(processor.GRAPHS, "1")
    captured._graphs.clear()
    fed = make_federation((8, 8))
    state = begun(FedAvg(), fed)
    for t in range(3):
        state, _ = play_round(FedAvg(), fed, state, round=t, seed=0, cohort=2)
    assert not captured._graphs
