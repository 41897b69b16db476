"""Megabytes per round, up and down, measured on the tensors that a round exchanges."""

from __future__ import annotations

import pytest
from conftest import make_federation

from fedlib.algorithms import FedAvg, FedMix, Local
from fedlib.engine import play_round
from fedlib.models import LeNet, fedmix_lenet5

CIFAR10 = {"shape": (32, 32, 3), "classes": 10}
FEMNIST = {"shape": (28, 28, 1), "classes": 62}


def traffic(algorithm, model, data):
    """MB of a round of ten clients with one example each: traffic does not depend on the data."""
    fed = make_federation((1,) * 10, model=model, **data)
    state = algorithm.init(fed, 0)
    _, report = play_round(algorithm, fed, state, round=0, seed=0, cohort=10)
    assert len(report.down) == len(report.up) == 10
    return int((report.down + report.up).sum()) / 1e6


@pytest.mark.parametrize(
    ("algorithm", "model", "data", "megabytes"),
    [
        (FedAvg(), LeNet(), CIFAR10, 4.96),
        (FedAvg(), fedmix_lenet5(), CIFAR10, 35.5),
        (FedMix(experts=2), fedmix_lenet5(), CIFAR10, 70.9),
        (FedMix(experts=4), fedmix_lenet5(), CIFAR10, 141.9),
        (FedAvg(), fedmix_lenet5(61), CIFAR10, 70.7),
        (FedAvg(), fedmix_lenet5(113), CIFAR10, 142.4),
        (FedAvg(), fedmix_lenet5(), FEMNIST, 25.7),
        (FedMix(experts=2), fedmix_lenet5(), FEMNIST, 51.3),
        (FedMix(experts=4), fedmix_lenet5(), FEMNIST, 102.7),
        (Local(), fedmix_lenet5(), CIFAR10, 0.0),
    ],
)
def test_megabytes_per_round_of_ten_clients(algorithm, model, data, megabytes):
    assert traffic(algorithm, model, data) == pytest.approx(megabytes, abs=0.06)


def test_phi_and_q_are_negligible_but_counted_and_gates_cost_what_they_weigh():
    """4 experts: phi is 10 x 4 both ways, q(z|s) 4 up, an averaged gate 512 x 4 + 4 both ways."""
    local, averaged = FedMix(experts=4), FedMix(experts=4, gates="averaged")
    mixed = traffic(local, fedmix_lenet5(), CIFAR10) * 1e6
    assert mixed == 10 * 4 * (2 * (4 * 443_306 + 40) + 4)
    more = traffic(averaged, fedmix_lenet5(), CIFAR10) * 1e6
    assert more - mixed == pytest.approx(10 * 4 * 2 * (512 * 4 + 4))
