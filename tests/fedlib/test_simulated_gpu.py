"""Every algorithm plays on a simulated GPU: no tensor of mixed devices, the same numbers."""

import pytest
import torch
from conftest import make_federation
from playing import begun, every
from small import TASK

from benchmarks.simulated_gpu import DEVICE, placed, simulated_gpu
from fedlib.engine import play_round
from fedrun import Experiment
from fedrun.train import RunOptions, Training


def scored(algorithm, fed, chunk=None):
    """The metrics of two scored rounds of all clients."""
    training = Training(
        Experiment(TASK, algorithm, 2, cohort=3, evaluate_every=1), fed, RunOptions()
    )
    training.state = state = begun(algorithm, fed)
    for t in range(2):
        how = {"round": t, "seed": 0, "cohort": 3, "chunk": chunk, "score": True}
        state, report = play_round(algorithm, fed, state, **how)
        training.log_round(state, t + 1, report)
    return training.log.table()


@pytest.mark.slow
@every
def test_every_algorithm_plays_two_scored_rounds_on_a_card(algorithm):
    with simulated_gpu() as there:
        table = scored(algorithm, placed(make_federation((11, 4, 9))))
    assert there.counts["kernels"] and len(table)


def test_the_card_refuses_what_a_gpu_refuses_and_counts_what_it_costs():
    with simulated_gpu() as there:
        x = torch.arange(6.0).to(DEVICE)
        assert (x.device, x.is_cuda, x[1:3].device) == (DEVICE, True, DEVICE)
        there.counts.clear()
        with pytest.raises(RuntimeError, match="some tensors are on cuda:0, others on the host"):
            x + torch.ones(6)
        there.counts.clear()
        y = (x * 2 + 1).sum()  # three kernels
        assert float(y) == 36  # and a wait
        x[torch.tensor([1, 2])]  # a kernel, after a copy of the indices
    assert there.counts == {"kernels": 4, "waits": 1, "copies": 1}
