"""Dropout: what drops is said from outside, so that it is a client's own everywhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from conftest import after, assert_alike, make_federation
from playing import TASK

from fedlib.algorithms import IFCA, FedAvg, FedMix, Local, Mixture
from fedlib.models import LeNet, Net
from fedlib.models.families import Dropout
from fedlib.optim import sgd
from fedlib.runs import Experiment
from papers.adaptive.experiments import ADAPTIVE

DROPS = LeNet(channels=(3, 4), hidden=(6, 5), kernel=3, dropout=0.5, channel_dropout=0.25)
PLAIN = replace(DROPS, dropout=0.0, channel_dropout=0.0)
SHAPE = (12, 12, 1)


def test_what_drops_and_what_stays_by_hand():
    drop = Dropout(0.5, 3)
    x = torch.tensor([[1.0, 2.0, 3.0]])
    assert torch.equal(drop(x), x)
    drop.noise = torch.tensor([[0.4, 0.5, 0.9]])
    assert torch.equal(drop(x), torch.tensor([[0.0, 4.0, 6.0]]))
    images = torch.ones(1, 3, 2, 2)
    assert torch.equal(drop(images).sum((2, 3)), torch.tensor([[0.0, 8.0, 8.0]]))


def test_a_net_drops_with_noise_only_and_forgets_it():
    net, plain = Net(DROPS, SHAPE, 3), Net(PLAIN, SHAPE, 3)
    assert net.noise == DROPS.noise == 4 + 6 + 5 and plain.noise == PLAIN.noise == 0
    assert net.parameters() == plain.parameters()
    params, x = net.init(0), torch.rand(8, 1, 12, 12)
    values = dict(zip(plain.init(0), params.values(), strict=True))
    torch.testing.assert_close(net(params, x), plain(values, x))
    # Noise above every probability drops nothing, but scales; the first numbers are another's.
    noise = torch.rand(8, 20)
    with_noise = net(params, x, noise)
    assert not torch.allclose(with_noise, net(params, x))
    torch.testing.assert_close(net(params, x, noise[:, 5:]), with_noise)
    torch.testing.assert_close(net(params, x), plain(values, x))
    silent = net.features(params, x, torch.zeros(8, 15))
    assert not silent.any(), "all units of the last hidden layer have dropped"


@pytest.mark.parametrize("algorithm", [FedAvg, IFCA, Local])
def test_a_client_drops_the_same_whoever_shares_its_program(algorithm):
    fed, still = (make_federation((9, 5, 7), model=m, shape=SHAPE) for m in (DROPS, PLAIN))
    made = algorithm(epochs=2, batch_size=4, client=sgd(0.1))
    one, without = after(made, fed, 2, chunk=1), after(made, still, 2).flat()
    assert_alike(one, after(made, fed, 2, chunk=3))
    moved = {n: t for n, t in one.flat().items() if n.endswith("head.weight")}
    assert moved and not any(torch.allclose(t, without[n]) for n, t in moved.items())


def test_specialist_and_gate_drop_units_of_their_own():
    fed = make_federation((9, 5, 7), model=PLAIN, shape=SHAPE)
    first = after(FedAvg(batch_size=4), fed, 2)
    home = {"epochs": 2, "batch_size": 4, "client": sgd(0.1), "stop": None}
    both, plain = (Mixture(**home, expert=m, gate=m) for m in (DROPS, PLAIN))
    assert both.phases()[0].noise == (("dropout", 2 * DROPS.noise),)
    ends = [after(mixture, fed, first=first).local for mixture in (both, plain)]
    for name in ("own.head.weight", "gate.head.weight"):
        assert not torch.allclose(ends[0][name], ends[1][name])


def test_the_papers_networks_drop_as_in_table_1():
    setting = ADAPTIVE.settings("paper")["cifar10"]
    found = (setting.task.model, setting.own, setting.chooser)
    assert [net.dropout for net in found] == [0.80, 0.76, 0.78]


def test_an_algorithm_without_dropout_says_so():
    task = replace(TASK, model=DROPS)
    assert Experiment(task, FedAvg(), 1).task is task
    with pytest.raises(ValueError, match="FedMix trains without dropout"):
        Experiment(task, FedMix(), 1)
    for name in ("dropout", "channel_dropout"):
        with pytest.raises(ValueError, match=rf"LeNet.{name} must lie in \[0, 1\)"):
            LeNet(**{name: 1.0})
