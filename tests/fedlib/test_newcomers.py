"""New clients (000, sec. 2 and App. F): with labels, without, and those that are held back."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from conftest import make_federation, parts_of, scatter, told_newcomers
from playing import play

from fedlib.algorithms import FedAvg, FedMix, Local, LocalGlobal, Newcomers, Personal
from fedlib.engine import EarlyStop, evaluate, evaluate_global
from fedlib.models import MLP, part
from fedlib.optim import sgd
from fedlib.partition import IID, Clients, Dirichlet, Mirrored, Own, Rotated
from fedlib.tasks import Task

SIZES = (12, 3, 9)


FEDERATIONS = {
    "FedAvg": FedAvg(batch_size=4),
    "Personal": Personal(batch_size=4),
    "Personal, head": Personal(local=("head.",), batch_size=4),
    "LocalGlobal": LocalGlobal(batch_size=4),
    "FedMix": FedMix(experts=2, batch_size=4),
    "FedMix, bias": FedMix(experts=2, personal_bias=True, batch_size=4),
    "FedMix, averaged": FedMix(experts=2, gates="averaged", batch_size=4),
}
each_federation = pytest.mark.parametrize("of", FEDERATIONS.values(), ids=FEDERATIONS)


@each_federation
def test_newcomers_train_what_is_local_and_send_nothing(of):
    first, _ = play(of, make_federation(SIZES))
    kept = copy.deepcopy(first)
    joined = make_federation((7, 8), seed=5)
    algorithm = Newcomers(of=of, batch_size=4, client=sgd(0.5))
    begun = algorithm.init(joined, 0, first)
    start = {n: t.clone() for n, t in begun.local.items()}
    assert begun.local.keys() == first.local.keys()
    state, report = play(algorithm, joined, 2, first=first)
    assert not report.messages and not report.weights and int(report.up.sum()) == 0
    assert state.shared.keys() == kept.shared.keys()
    for name, leaf in kept.shared.items():
        assert torch.equal(state.shared[name], leaf)
    for name, leaf in kept.local.items():
        assert torch.equal(first.local[name], leaf)
        assert state.local[name].shape == (2, *leaf.shape[1:])
        assert not torch.equal(state.local[name], start[name])
        assert not torch.equal(state.local[name][0], state.local[name][1])


def test_a_newcomer_of_fedavg_is_the_global_model():
    first, _ = play(FedAvg(), make_federation(SIZES))
    joined = make_federation((7, 8), seed=5)
    algorithm = Newcomers(of=FedAvg(), stop=EarlyStop(every=1, patience=1), epochs=3)
    state, report = play(algorithm, joined, 1, first=first)
    assert report.losses.tolist() == [0.0, 0.0]
    got, expected = (evaluate(joined, a, s, joined.test)
                     for a, s in ((algorithm, state), (FedAvg(), first)))  # fmt: skip
    np.testing.assert_array_equal(got.nll, expected.nll)


@pytest.mark.parametrize("first", [None, "nothing shared"])
def test_without_a_federation_there_is_nothing_to_join(fed, first):
    if first:
        first, _ = play(Local(), fed, 1)
    with pytest.raises(ValueError, match="give its experiment as `after`"):
        Newcomers().init(fed, 0, first)


def gates_of(fed, algorithm, state, x):
    """Every client's gate and log p_w(y|x, z), expert by expert."""
    gates = []
    for row in range(fed.clients):
        params, ctx = parts_of(fed, algorithm, state, row)
        q = params["phi"].softmax(1)
        q = sum(ctx["p_y"][c] * q[c] for c in range(fed.classes))
        h = [fed.net.features({n: t[k] for n, t in part(params, "experts.").items()}, x)
             for k in range(algorithm.experts)]  # fmt: skip
        pooled = sum(q[k] * h[k] for k in range(algorithm.experts))
        gates.append((pooled @ params["gate.A"] + params["gate.b"]).softmax(1))
    return gates


@pytest.mark.parametrize("personal_bias", [False, True])
def test_fedmix_marginalises_the_gates_of_all_clients(personal_bias):
    """p(z|x) = sum_s p(z|x, s) p(s), App. F; a personal bias is averaged with the same weights."""
    fed = make_federation(SIZES)
    algorithm = FedMix(experts=2, personal_bias=personal_bias, phi_scale=1.0)
    state = scatter(algorithm.init(fed, 0))
    x = fed.test.inputs(torch.arange(len(fed.test.y)))
    share = [n / sum(SIZES) for n in SIZES]
    gate = sum(p * g for p, g in zip(share, gates_of(fed, algorithm, state, x), strict=True))
    total = 0
    for k in range(2):
        w = {n: t[k] for n, t in part(state.shared, "experts.").items()}
        if personal_bias:
            bias = sum(p * b for p, b in zip(share, state.local["bias"], strict=True))
            w["head.bias"] = bias
        total = total + gate[:, k : k + 1] * fed.net(w, x).softmax(-1)
    told = told_newcomers(algorithm, fed, state)
    torch.testing.assert_close(told.exp(), total, rtol=1e-4, atol=1e-5)
    right = float((total.argmax(-1) == fed.test.y).double().mean())
    assert evaluate_global(fed, algorithm, state) == pytest.approx(right)


def test_clients_without_shared_parts_average_their_predictions():
    fed = make_federation(SIZES)
    state = scatter(Local().init(fed, 0), scale=0.3)
    x = fed.test.inputs(torch.arange(len(fed.test.y)))
    total = 0
    for row, n in enumerate(SIZES):
        own = {name: t[row] for name, t in state.local.items()}
        total = total + n / sum(SIZES) * fed.net(own, x).softmax(-1)
    torch.testing.assert_close(told_newcomers(Local(), fed, state).exp(), total)


def task(partition, held_out=None):
    return Task("digits", partition, MLP(hidden=(8,)), held_out or Mirrored(200, 10, 10))


@pytest.mark.parametrize("held_out", [Mirrored(200, 10, 10), Own(0.2, 0.1)])
@pytest.mark.parametrize(
    "of", [IID(10, 30), Dirichlet(10, 0.5, size=30), Rotated(IID(10, 30), (0.0, 90.0, 180.0))]
)
def test_some_clients_hold_what_they_hold_among_all(of, held_out):
    whole = task(of, held_out).divide(3).parts
    some = {rows: task(Clients(of, *rows), held_out).divide(3).parts for rows in ((0, 7), (7, 10))}
    # Who of a client's own examples are for validation is drawn by its number among some.
    names = ["train"] if isinstance(held_out, Mirrored) else ["train", "validation"]

    def held(parts, row):
        return sorted(i for name in names for i in parts[name].client(row).tolist())

    for (first, last), parts in some.items():
        assert parts["train"].clients == last - first
        for row in range(first, last):
            assert held(parts, row - first) == held(whole, row)
    seen, new = ({i for r in range(p["train"].clients) for i in held(p, r)} for p in some.values())
    assert seen and new and not seen & new


def test_some_clients_have_the_side_information_that_they_have_among_all():
    of = Rotated(IID(10, 30), (0.0, 90.0, 180.0))
    whole, new = (task(p).divide(3).parts for p in (of, Clients(of, 7, 10)))
    for name, part_of in new.items():
        width = part_of.index.shape[1]
        assert part_of.side["angle"].tolist() == whole[name].side["angle"][7:, :width].tolist()
    assert len(set(new["train"].side["angle"].ravel().tolist())) > 1


def test_bad_bounds_are_errors():
    with pytest.raises(ValueError, match=r"size=30\): 11 needed, but only 10 are"):
        task(Clients(IID(10, 30), 0, 11)).divide(0)
    with pytest.raises(ValueError, match="first must be at least 0, last above it"):
        Clients(IID(10), 4, 4)
    with pytest.raises(ValueError, match="first must be"):
        Clients(IID(10), -1, 4)
    with pytest.raises(ValueError, match="go around Clients, not inside"):
        Clients(Rotated(IID(10), (0.0, 180.0), None), 0, 5)
