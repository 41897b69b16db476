"""FedMix and the original mixture of experts: golden tests G4, G5, G6, G20 and hand arithmetic."""

from __future__ import annotations

import pytest
import torch
from conftest import make_federation
from hypothesis import given, settings
from hypothesis import strategies as st
from playing import play

from fedlib.algorithms import FedAvg, FedMix
from fedlib.algorithms.arithmetic import entropy
from fedlib.algorithms.fedmix import client_given_expert, marginal_entropy_gradient, q_of_client
from fedlib.engine import State, play_round
from fedlib.models import part
from fedlib.optim import Optimizer, adam, sgd


def test_g4_holds_whatever_the_label_shares_sum_to_in_floating_point():
    fed = make_federation((7,) * 9, classes=7)
    mixed, _ = play(FedMix(experts=1), fed, cohort=7)
    plain, _ = play(FedAvg(server=adam(1e-3)), fed, cohort=7)
    assert all(torch.equal(mixed.shared[f"experts.{n}"][0], t) for n, t in plain.shared.items())


def test_g4_as_many_experts_as_clients_with_one_hot_q_are_independent_models():
    fed = make_federation((8, 8, 8), side="client")
    fed.train.side["client"] = torch.arange(3)[:, None].expand(3, 8).clone()
    algorithm = FedMix(
        experts=3,
        condition="client",
        server=sgd(1.0),
        client=Optimizer("sgd", lr=0.1, rates=(("phi", 0.0), ("gate.", 0.0))),
        marginal_entropy=0.0,
        batch_size=4,
    )
    state = algorithm.init(fed, 0)
    state.shared["phi"] = torch.eye(3) * 200  # one-hot to the last bit
    start = part(state.shared, "experts.")
    after, report = play_round(algorithm, fed, state, round=0, seed=0, cohort=3)
    assert torch.equal(report.weights["experts.head.bias"], torch.eye(3).double()[report.rows])
    alone = FedAvg(server=sgd(1.0), client=sgd(0.1), batch_size=4)
    for client in range(3):
        own = State({n: t[client] for n, t in start.items()}, {})
        only = make_federation((8, 8, 8))
        only.train.sizes = (only.ids == client) * only.train.sizes
        expected, _ = play_round(alone, only, own, round=0, seed=0, cohort=3)
        for name, leaf in expected.shared.items():
            got = after.shared[f"experts.{name}"][client]
            torch.testing.assert_close(got, leaf, rtol=1e-4, atol=1e-6)


@settings(max_examples=50)
@given(clients=st.integers(1, 6), experts=st.integers(1, 5), seed=st.integers(0, 10**6))
def test_g5_client_given_expert_sums_to_one(clients, experts, seed):
    rng = torch.Generator().manual_seed(seed)
    q = torch.rand(clients, experts, generator=rng, dtype=torch.float64).softmax(1)
    p = torch.rand(clients, generator=rng, dtype=torch.float64) + 0.1
    p = p / p.sum()
    torch.testing.assert_close(client_given_expert(q, p).sum(0), torch.ones(experts).double())
    uniform = client_given_expert(torch.full_like(q, 1 / experts), p)
    torch.testing.assert_close(uniform, p[:, None].expand(-1, experts))


def test_an_expert_that_nobody_uses_stands_still_and_keeps_its_momentum(fed):
    algorithm = FedMix(experts=2, server=adam(0.1))
    state = algorithm.init(fed, 0)
    state, _ = play_round(algorithm, fed, state, round=0, seed=0, cohort=3)
    rows = torch.arange(3)
    messages = {n: torch.ones(3, *t.shape) for n, t in state.shared.items()}
    messages["q_s"] = torch.tensor([[1.0, 0.0]] * 3)
    after = algorithm.aggregate(fed, state, rows, messages)
    assert not torch.equal(
        after.shared["experts.head.bias"][0], state.shared["experts.head.bias"][0]
    )
    assert torch.equal(after.shared["experts.head.bias"][1], state.shared["experts.head.bias"][1])
    for quantity in ("exp_avg", "exp_avg_sq", "step"):
        name = f"experts.head.bias/1/{quantity}"
        assert torch.equal(after.optimizer[name], state.optimizer[name])
        moved = f"experts.head.bias/0/{quantity}"
        assert not torch.equal(after.optimizer[moved], state.optimizer[moved])


@pytest.mark.parametrize("server", [sgd(0.5), adam(0.01)])
def test_g6_the_entropy_of_the_marginal_rises_when_clients_leave_phi_alone(fed, server):
    algorithm = FedMix(experts=3, server=server)
    state = algorithm.init(fed, 0)
    state.shared["phi"] = torch.tensor([[2.0, 0.0, -1.0], [1.0, 0.3, 0.0], [0.0, 1.0, 0.0]])
    p = fed.train.counts(3).sum(0) / fed.train.counts(3).sum()
    before = entropy(p @ state.shared["phi"].softmax(-1))
    messages = {n: torch.zeros(3, *t.shape) for n, t in state.shared.items()}
    messages["q_s"] = torch.full((3, 3), 1 / 3)
    after = algorithm.aggregate(fed, state, torch.arange(3), messages)
    assert entropy(p @ after.shared["phi"].softmax(-1)) > before
    still = FedMix(experts=3, server=server, marginal_entropy=0.0)
    after = still.aggregate(fed, state, torch.arange(3), messages)
    assert torch.equal(after.shared["phi"], state.shared["phi"])


@settings(max_examples=50)
@given(values=st.integers(1, 6), experts=st.integers(1, 5), seed=st.integers(0, 10**6))
def test_g20_entropy_gradient_equals_autograd(values, experts, seed):
    rng = torch.Generator().manual_seed(seed)
    phi = torch.randn(values, experts, generator=rng, dtype=torch.float64).requires_grad_(True)
    p = torch.rand(values, generator=rng, dtype=torch.float64)
    p = p / p.sum()
    entropy(p @ phi.softmax(-1)).backward()
    torch.testing.assert_close(
        marginal_entropy_gradient(phi.detach(), p), phi.grad, atol=1e-12, rtol=1e-9
    )


def test_g20_gradient_vanishes_at_uniform_and_at_one_hot():
    p = torch.tensor([0.5, 0.5]).double()
    assert marginal_entropy_gradient(torch.zeros(2, 4).double(), p).abs().max() < 1e-15
    one_hot = torch.tensor([[800.0, 0, 0], [0, 0, 800.0]]).double()
    assert marginal_entropy_gradient(one_hot, p).abs().max() == 0


def test_loss_by_hand(fed):
    """The bound of eq. 6 on one batch of two examples, expert by expert, in plain Python."""
    algorithm = FedMix(experts=2)
    state = algorithm.init(fed, 0)
    params = {n: t[0] for n, t in algorithm.start(fed, state, torch.tensor([0])).items()}
    params["phi"] = torch.tensor([[1.0, -1.0], [0.0, 0.5], [2.0, 0.0]])
    params["gate.A"] = torch.linspace(-1, 1, 14).reshape(7, 2)
    params["gate.b"] = torch.tensor([0.1, -0.2])
    ctx = {"p_y": fed.shares("label")[0]}
    x, y = fed.train.inputs(torch.tensor([0, 1])), fed.train.y[:2]
    total = {"map": 0.0, "entropy": 0.0, "likelihood": 0.0}
    pool = q_of_client(params["phi"], ctx["p_y"])
    for b in range(2):
        h, logp = [], []
        for k in range(2):
            w = {n: t[k] for n, t in part(params, "experts.").items()}
            h.append(fed.net.features(w, x[b : b + 1])[0])
            logp.append(fed.net(w, x[b : b + 1])[0].log_softmax(0)[y[b]])
        gate = (
            params["gate.A"].T @ (pool[0] * h[0] + pool[1] * h[1]) + params["gate.b"]
        ).log_softmax(0)
        q = params["phi"][y[b]].softmax(0)
        bound = sum(q[k] * (logp[k] + gate[k]) for k in range(2))
        total["map"] -= bound / 2
        total["entropy"] -= (bound - sum(v * v.log() for v in q)) / 2
        total["likelihood"] -= sum((logp[k] + gate[k]).exp() for k in range(2)).log() / 2
    batch = {"x": x, "y": y, "weight": torch.ones(2)}
    for objective, expected in total.items():
        got = FedMix(experts=2, objective=objective).loss(fed.net, params, ctx, batch)
        torch.testing.assert_close(got, expected)


def test_two_clients_aggregated_by_hand():
    """p(s|z) for q = (.8 .2), (.4 .6) and sizes 1:3 is (.2/.5, .3/.5) and (.05/.5, .45/.5)."""
    fed = make_federation((2, 6))
    algorithm = FedMix(experts=2, server=sgd(1.0), marginal_entropy=0.0)
    state = algorithm.init(fed, 0)
    messages = {n: torch.zeros(2, *t.shape) for n, t in state.shared.items()}
    messages["q_s"] = torch.tensor([[0.8, 0.2], [0.4, 0.6]])
    messages["experts.head.bias"][0] += 10.0
    messages["phi"][1] += 4.0
    after = algorithm.aggregate(fed, state, torch.tensor([0, 1]), messages)
    moved = state.shared["experts.head.bias"] - after.shared["experts.head.bias"]
    torch.testing.assert_close(moved, torch.tensor([[4.0], [1.0]]).expand(2, 3))
    torch.testing.assert_close(state.shared["phi"] - after.shared["phi"], torch.full((3, 2), 3.0))


def test_q_conditioned_on_side_information():
    fed = make_federation((10, 10), side="angle")
    algorithm = FedMix(experts=2, condition="angle")
    state, report = play(algorithm, fed, cohort=2)
    assert state.shared["phi"].shape == (2, 2)
    assert report.messages["q_s"].shape == (2, 2)
    shares = fed.shares("angle")
    expected = (fed.train.side["angle"][0] == 1).double().mean()
    assert float(shares[0, 1]) == pytest.approx(float(expected))
    with pytest.raises(ValueError, match="side information 'colour'; allowed: angle, label"):
        FedMix(condition="colour").init(fed, 0)


def test_gates_stay_with_their_client_or_are_averaged(fed):
    local, report = play(FedMix(experts=2), fed, cohort=1)
    assert set(local.local) == {"gate.A", "gate.b"} and "gate.A" not in report.messages
    assert not torch.equal(local.local["gate.b"][0], local.local["gate.b"][1])
    averaged, report = play(FedMix(experts=2, gates="averaged"), fed, cohort=1)
    assert not averaged.local and "gate.A" in report.messages


def test_the_likelihood_leaves_q_alone(fed):
    state, report = play(FedMix(experts=2, objective="likelihood"), fed, cohort=3)
    assert not state.shared["phi"].any() and "q_s" not in report.messages


def test_an_empty_client_says_nothing_and_silences_nobody():
    fed = make_federation((12, 0, 8))
    algorithm = FedMix(experts=2, batch_size=4)
    state, report = play(algorithm, fed, 1, cohort=3)
    empty = report.rows.tolist().index(1)
    assert report.messages["q_s"][empty].tolist() == [0.5, 0.5]
    for name, weights in report.weights.items():
        torch.testing.assert_close(weights.sum(0), torch.ones_like(weights.sum(0)))
        assert (weights[empty] == 0).all(), name
    assert all(leaf.isfinite().all() for leaf in state.flat().values())
