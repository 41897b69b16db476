"""Personal parts of one network: biased FedAvg and Local/Global, by hand and in their limits."""

from __future__ import annotations

import pytest
import torch
from conftest import LENET, make_federation, parts_of, scatter, told_newcomers
from playing import IMAGE, play

from fedlib.algorithms import FedAvg, FedMix, LocalGlobal, Personal
from fedlib.engine import evaluate, evaluate_global
from fedlib.models import MLP, Net, ResNet, fedmix_lenet5, part
from fedlib.optim import sgd


def twins(clients=3):
    """A federation whose clients all hold the same examples."""
    fed = make_federation((8,) * clients)
    fed.train.index[:] = fed.train.index[0]
    return fed


def leaf_of(state, name, row=0):
    return state.shared[name] if name in state.shared else state.local[name][row]


@pytest.mark.parametrize("local", [("head.bias",), ("head.",), ("base.",), ()])
def test_personal_leaves_that_never_differ_are_those_of_fedavg(local):
    fed = twins()
    mine, _ = play(Personal(local=local, batch_size=None), fed)
    plain, _ = play(FedAvg(batch_size=None), fed)
    assert set(mine.local) == {n for n in plain.shared if local and n.startswith(local)}
    for name, leaf in plain.shared.items():
        for row in range(3):
            torch.testing.assert_close(leaf_of(mine, name, row), leaf)


def test_a_newcomer_gets_the_mean_logits_which_are_those_of_the_mean_bias():
    fed = make_federation((12, 3, 9))
    algorithm = Personal()
    state = scatter(algorithm.init(fed, 0))
    h = fed.net.features(state.shared, fed.test.inputs(torch.arange(len(fed.test.y))))
    bias = sum(n / 24 * state.local["head.bias"][row] for row, n in enumerate((12, 3, 9)))
    expected = (h @ state.shared["head.weight"].T + bias).log_softmax(-1)
    told = told_newcomers(algorithm, fed, state)
    torch.testing.assert_close(told, expected, rtol=1e-4, atol=1e-5)
    right = (expected.argmax(-1) == fed.test.y).double().mean()
    assert evaluate_global(fed, algorithm, state) == pytest.approx(float(right))


@pytest.mark.parametrize("local", [("head.",), ("base.1.",), ("head.bias", "base.1.weight")])
def test_clients_predict_with_their_own_leaves(local):
    fed = make_federation((12, 12))
    algorithm = Personal(local=local)
    state = scatter(algorithm.init(fed, 0), scale=0.3)
    scores = evaluate(fed, algorithm, state, fed.test)
    for row in range(2):
        held = fed.test.index[row]
        params, _ = parts_of(fed, algorithm, state, row)
        logits = fed.net({n: params[n] for n in fed.net.init(0)}, fed.test.inputs(held))
        nll = torch.nn.functional.cross_entropy(logits, fed.test.y[held])
        assert scores.nll[row] == pytest.approx(float(nll), rel=1e-4)


@pytest.mark.parametrize("bad", ["haed.bias", "head.bias.", "bias"])
def test_a_prefix_of_no_leaf_lists_the_leaves(fed, bad):
    with pytest.raises(ValueError, match=rf"no leaf begins with '{bad}'; there are .*head\.bias"):
        Personal(local=("head.bias", bad)).init(fed, 0)


NETS = {
    "LeNet": (LENET, IMAGE, {3: "Conv2d, MaxPool2d, ReLU", 7: "Conv2d, MaxPool2d, ReLU, Flatten",
                             9: "Linear, ReLU"}),
    "MLP": (MLP(hidden=(7, 5)), IMAGE, {3: "Stackable, ReLU", 5: "Stackable, ReLU"}),
    "ResNet": (ResNet(blocks=1, widths=(4, 8)), IMAGE, {1: "Conv2d", 3: "GroupNorm, ReLU",
                                                        4: "_Block",
                                                        7: "_Block, AdaptiveAvgPool2d, Flatten"}),
}  # fmt: skip


@pytest.mark.parametrize("name", NETS)
def test_below_and_above_a_cut_are_the_whole_net(name):
    model, shape, cuts = NETS[name]
    net = Net(model, shape, 3)
    assert net.cuts == cuts
    params = net.init(1)
    x = torch.randn(5, 1, *shape[:2], generator=torch.Generator().manual_seed(0))
    for cut in net.cuts:
        lower = {n: t for n, t in params.items() if LocalGlobal(cut=cut).is_local(n)}
        upper = {n: t for n, t in params.items() if n not in lower}
        assert lower and upper
        # Each half gets only its own leaves: a KeyError would say that it reads others.
        again = net.above(upper, net.below(lower, x, cut), cut)
        assert torch.equal(again, net(params, x))


def test_the_cuts_of_the_paper():
    """Its input layer of LeNet-5, and ResNet-20 up to its first block (000, sec. 4.1)."""
    lenet = Net(fedmix_lenet5(), (32, 32, 3), 10)
    assert {n for n in lenet.init(0) if LocalGlobal(cut=3).is_local(n)} == {
        "base.0.weight",
        "base.0.bias",
    }
    resnet = Net(ResNet(), (32, 32, 3), 100)
    local = {n.split(".")[1] for n in resnet.init(0) if LocalGlobal(cut=4).is_local(n)}
    assert local == {"0", "1", "3"} and resnet.cuts[4] == "_Block"
    # "base.10" must not pass for "base.1".
    assert not LocalGlobal(cut=4).is_local("base.10.first.0.weight")
    assert LocalGlobal(cut=11).is_local("base.10.first.0.weight")


@pytest.mark.parametrize(("model", "cut"), [(LENET, 3), (LENET, 7), (MLP(hidden=(7, 5)), 3)])
def test_a_newcomer_gets_the_global_part_on_the_mean_representation(model, cut):
    fed = make_federation((12, 3, 9), model=model, shape=IMAGE)
    algorithm = LocalGlobal(cut=cut)
    state = scatter(algorithm.init(fed, 0), scale=0.2)
    x = fed.test.inputs(torch.arange(len(fed.test.y)))
    mean = 0
    for row, n in enumerate((12, 3, 9)):
        own = {name: t[row] for name, t in state.local.items()}
        mean = mean + n / 24 * fed.net.below(own, x, cut)
    expected = fed.net.above(state.shared, mean, cut).log_softmax(-1)
    torch.testing.assert_close(
        told_newcomers(algorithm, fed, state), expected, rtol=1e-4, atol=1e-5
    )


def test_a_cut_that_is_none_lists_the_legal_ones():
    fed = make_federation(model=LENET, shape=IMAGE)
    message = r"no cut 4; legal: 3 \(after Conv2d, MaxPool2d, ReLU\); 7 .*; 9 \(after Linear, ReLU"
    with pytest.raises(ValueError, match=message):
        LocalGlobal(cut=4).init(fed, 0)
    with pytest.raises(ValueError, match="cut must be >= 1, got 0"):
        LocalGlobal(cut=0)


def test_a_personal_bias_of_fedmix_by_hand(fed):
    """Every expert's logits get the client's bias; one expert is then biased FedAvg."""
    algorithm = FedMix(experts=2, personal_bias=True)
    state = scatter(algorithm.init(fed, 0))
    params, ctx = parts_of(fed, algorithm, state, 1)
    x = fed.test.inputs(torch.arange(6))
    said = algorithm.predict(fed.net, params, ctx, algorithm.encode(fed.net, state.shared, x))
    total = 0
    for k in range(2):
        w = {n: t[k] for n, t in part(state.shared, "experts.").items()}
        logits = fed.net({**w, "head.bias": state.local["bias"][1]}, x)
        total = total + said.gate[:, k : k + 1] * logits.softmax(-1)
    torch.testing.assert_close(said.logp.exp(), total, rtol=1e-4, atol=1e-6)


def test_one_expert_with_a_personal_bias_is_biased_fedavg():
    fed = make_federation((11, 4, 9))
    mixed, _ = play(FedMix(experts=1, personal_bias=True, server=sgd(1.0), batch_size=4), fed)
    biased = Personal(batch_size=4)
    state = biased.init(fed, 0)
    state.local["head.bias"].zero_()  # FedMix's personal bias starts at zero
    state, _ = play(biased, fed, 3, state=state, cohort=3)
    torch.testing.assert_close(mixed.local["bias"], state.local["head.bias"], rtol=1e-4, atol=1e-6)
    for name, leaf in state.shared.items():
        torch.testing.assert_close(mixed.shared[f"experts.{name}"][0], leaf, rtol=1e-4, atol=1e-6)
