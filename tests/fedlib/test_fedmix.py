"""FedMix, its pruned and its clustered form: golden tests G4 and G20, and hand arithmetic."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import make_federation, parts_of
from hypothesis import given, settings
from hypothesis import strategies as st
from playing import client, close, held_by, play

from fedlib import ClusteredFedMix, FedAvg, FedMix, Optimizer, PrunedFedMix, adam, sgd
from fedlib.algorithms.arithmetic import at_label, entropy, mean_of
from fedlib.algorithms.fedmix import MEMORY, marginal_entropy_gradient, renormalised
from fedlib.engine import State, play_round
from fedlib.engine.protocol import SHAPES
from fedlib.models import Batch, FunctionalModel, select_prefix


def test_g4_as_many_experts_as_clients_with_one_hot_q_are_independent_models():
    fed = make_federation((8, 8, 8), side="client")
    fed.train.side["client"] = torch.arange(3).repeat_interleave(8)
    frozen = Optimizer("sgd", lr=0.1, rates=(("phi", 0.0), ("gate.", 0.0)))
    how = {"server": sgd(1.0), "client": frozen, "marginal_entropy": 0.0, "batch_size": 4}
    algorithm = FedMix(experts=3, condition="client", **how)
    state = algorithm.init(fed, 0)
    state.server_params["phi"] = torch.eye(3) * 200  # one-hot to the last bit
    start = select_prefix(state.server_params, "experts.")
    after, report = play_round(algorithm, fed, state, round=0, seed=0, cohort=3)
    assert torch.equal(report.weights["experts.head.bias"], torch.eye(3).double()[report.clients])
    alone = FedAvg(server=sgd(1.0), client=sgd(0.1), batch_size=4)
    for row in range(3):
        own = State({n: t[row] for n, t in start.items()}, {})
        only = make_federation((8, 8, 8))
        only.train = only.train.subset(np.arange(only.num_clients), (only.ids == row) * 8)
        expected, _ = play_round(alone, only, own, round=0, seed=0, cohort=3)
        mine = select_prefix(after.server_params, "experts.")
        close(expected.server_params, {n: t[row] for n, t in mine.items()})


def test_an_expert_that_nobody_uses_stands_still_and_keeps_its_momentum(fed):
    algorithm = FedMix(experts=2, server=adam(0.1))
    state = algorithm.init(fed, 0)
    state, _ = play_round(algorithm, fed, state, round=0, seed=0, cohort=3)
    rows = torch.arange(3)
    messages = {n: torch.ones(3, *t.shape) for n, t in state.server_params.items()}
    messages["q_s"] = torch.tensor([[1.0, 0.0]] * 3)
    after = algorithm.aggregate(fed, state, rows, messages)
    same = after.server_params["experts.head.bias"] == state.server_params["experts.head.bias"]
    assert not same[0].all() and same[1].all()
    for quantity in ("exp_avg", "exp_avg_sq", "step"):
        names = [f"experts.head.bias/{k}/{quantity}" for k in (0, 1)]
        kept = [torch.equal(after.server_optimizer[n], state.server_optimizer[n]) for n in names]
        assert kept == [False, True]


def test_g20_gradient_vanishes_at_uniform_and_at_one_hot():
    p = torch.tensor([0.5, 0.5]).double()
    assert marginal_entropy_gradient(torch.zeros(2, 4).double(), p).abs().max() < 1e-15
    one_hot = torch.tensor([[800.0, 0, 0], [0, 0, 800.0]]).double()
    assert marginal_entropy_gradient(one_hot, p).abs().max() == 0


def said_by(fed, params, experts, x, y):
    """Features and log p(y|x) of each expert for one example, by its number; leaves in order."""
    h, logp = {}, {}
    for place, k in enumerate(experts):
        w = {n: t[place] for n, t in select_prefix(params, "experts.").items()}
        h[k] = fed.net.features(w, x[None])[0]
        logp[k] = fed.net(w, x[None])[0].log_softmax(0)[y]
    return h, logp


@pytest.mark.parametrize("eta", [None, 0.8])
def test_the_loss_is_that_of_eq_6_and_of_algorithm_2(eta):
    """Example by example and expert by expert; pruned, q' by zeroing and dividing."""
    fed, count = make_federation((10, 4)), 2 if eta is None else 4
    algorithm = FedMix(experts=2) if eta is None else PrunedFedMix(experts=4, eta=eta)
    state = algorithm.init(fed, 3)
    if eta is not None:
        state.server_memory[MEMORY][0] = torch.tensor([0.1, 0.3, 0.3, 0.3])  # 0 is not sent
    params, ctx = client(fed, algorithm, state, 0)
    draw = torch.Generator().manual_seed(1)
    params["gate.A"] = torch.randn(params["gate.A"].shape, generator=draw)
    params["gate.b"] = torch.randn(count, generator=draw)
    x, y = fed.train.inputs(torch.arange(5)), fed.train.y[:5]
    phi = torch.tensor([[0.0, 1.0, -3.0, 0.5], [0.0, 1.5, -2.0, 1.0], [0.0, 1.0, -4.0, 1.0]])
    params["phi"] = phi[:, :count]
    q_s = sum(fed.shares("label")[0][c] * params["phi"][c].softmax(0) for c in range(3))
    held = [0, 1] if eta is None else [1, 2, 3]
    keep = [k for k in held if q_s[k] >= (eta or 0) / count]
    assert keep == ([0, 1] if eta is None else [1, 3])
    total = {"map": 0.0, "entropy": 0.0, "likelihood": 0.0}
    for b in range(5):
        h, logp = said_by(fed, params, held, x[b], y[b])
        pooled = sum(q_s[k] * h[k] for k in keep) / sum(q_s[k] for k in keep)
        gate = (params["gate.A"].T @ pooled + params["gate.b"]).log_softmax(0)
        q = params["phi"][y[b]].softmax(0)
        bound = sum(q[k] / sum(q[j] for j in keep) * logp[k] for k in keep) + q @ gate
        total["map"] -= bound / 5
        total["entropy"] -= (bound - q @ q.log()) / 5
        total["likelihood"] -= sum((logp[k] + gate[k]).exp() for k in keep).log() / 5
    for objective in total if eta is None else ["map"]:
        asked, batch = replace(algorithm, objective=objective), Batch(x, y, torch.ones(5))
        got = asked.loss(fed.net, params, ctx, batch)
        torch.testing.assert_close(got, total[objective])


def test_two_clients_aggregated_by_hand():
    """p(s|z) for q = (.8 .2), (.4 .6) and sizes 1:3 is (.2/.5, .3/.5) and (.05/.5, .45/.5)."""
    fed = make_federation((2, 6))
    algorithm = FedMix(experts=2, server=sgd(1.0), marginal_entropy=0.3)
    state = algorithm.init(fed, 0)
    phi = torch.tensor([[2.0, 0.0], [1.0, 0.3], [0.0, 1.0]], requires_grad=True)
    state.server_params["phi"] = phi.detach()
    p = fed.train.y[fed.train.indices].bincount(minlength=3) / 8
    entropy(p @ phi.softmax(-1)).backward()
    messages = {n: torch.zeros(2, *t.shape) for n, t in state.server_params.items()}
    messages["q_s"] = torch.tensor([[0.8, 0.2], [0.4, 0.6]])
    messages["experts.head.bias"][0] += 10.0
    messages["phi"][1] += 4.0
    after = algorithm.aggregate(fed, state, torch.tensor([0, 1]), messages)
    moved = state.server_params["experts.head.bias"] - after.server_params["experts.head.bias"]
    torch.testing.assert_close(moved, torch.tensor([[4.0], [1.0]]).expand(2, 3))
    torch.testing.assert_close(phi.detach() - after.server_params["phi"], 3.0 - 0.3 * phi.grad)


def test_what_is_observed_of_q_by_hand():
    """p(y) = (3/4, 1/4, 0) and q(z|y) = (1/2, 1/2), (1, 0): the marginal is (5/8, 3/8)."""
    fed = make_federation((2, 6))
    fed.train.y[:8] = torch.tensor([0, 1, 0, 0, 0, 0, 0, 1])
    algorithm = FedMix(experts=2)
    state = algorithm.init(fed, 0)
    state.server_params["phi"] = torch.tensor([[0.0, 0.0], [200.0, 0.0], [0.0, 200.0]])
    seen = algorithm.log_metrics(fed, state)
    assert seen["q"].tolist() == [[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]]
    assert float(seen["q_entropy"]) == pytest.approx(3 / 4 * np.log(2))
    marginal = -5 / 8 * np.log(5 / 8) - 3 / 8 * np.log(3 / 8)
    assert float(seen["q_marginal_entropy"]) == pytest.approx(marginal)


def test_q_conditioned_on_side_information():
    fed = make_federation((10, 10), side="angle")
    state, _ = play(FedMix(experts=2, condition="angle"), fed, cohort=2)
    assert state.server_params["phi"].shape == (2, 2) and state.server_params["phi"].any()
    expected = (fed.train.side["angle"][:10] == 1).double().mean()
    assert float(fed.shares("angle")[0, 1]) == pytest.approx(float(expected))


def test_means_over_a_batch_by_hand():
    """Of padding nothing counts, of one example it is that one, and of none it is nothing."""
    rows = torch.tensor([[3.0, 1.0], [5.0, 7.0]])
    for weight, mean in (([1.0, 1.0], [4.0, 4.0]), ([0.0, 1.0], [5.0, 7.0]), ([0.0, 0.0], [0, 0])):
        assert mean_of(rows, torch.tensor(weight)).tolist() == mean


def test_an_empty_client_says_nothing_and_silences_nobody():
    fed, algorithm = make_federation((12, 0, 8)), FedMix(experts=2, batch_size=4)
    state, report = play(algorithm, fed, 1, cohort=3)
    empty = report.clients.tolist().index(1)
    assert report.messages["q_s"][empty].tolist() == [0.5, 0.5]
    for name, weights in report.weights.items():
        torch.testing.assert_close(weights.sum(0), torch.ones_like(weights.sum(0)))
        assert (weights[empty] == 0).all(), name
    assert all(leaf.isfinite().all() for leaf in state.flat().values())


FROZEN = Optimizer("sgd", lr=0.1, rates=(("phi", 0.0),))  # clients leave phi as it is


def with_q(state, q):
    """Give every label the same q(z|y), which is then every client's q(z|s)."""
    phi = state.server_params["phi"]
    state.server_params["phi"] = torch.tensor(q).log().expand(len(phi), -1).clone()
    return state


def test_thresholds_by_hand():
    """K = 4 and eta = 0.9: kept from 0.225 on, sent from 0.2025 on."""
    fed, algorithm = make_federation((5, 5)), PrunedFedMix(experts=4, eta=0.9)
    state = algorithm.init(fed, 0)
    assert torch.equal(state.server_memory[MEMORY], torch.full((2, 4), 0.25))
    state.server_memory[MEMORY] = torch.tensor([[0.5, 0.21, 0.2, 0.09], [0.25, 0.1, 0.4, 0.25]])
    ctx = algorithm.client_constants(fed, state, torch.tensor([0, 1]))
    assert ctx["sent"].tolist() == [[1, 1, 0, 0], [1, 0, 1, 1]]
    assert ctx[SHAPES].tolist() == [2, 3]
    assert ctx["order"].tolist() == [[0, 1, 2, 3], [0, 2, 3, 1]]

    def kept(q, row):
        mine = {n: t[row] for n, t in ctx.items()}
        return algorithm.kept(torch.tensor(q), mine).tolist()

    assert kept([0.5, 0.23, 0.26, 0.01], 0) == [True, True, False, False]  # the third is not there
    assert kept([0.5, 0.22, 0.27, 0.01], 0) == [True, False, False, False]
    assert kept([0.1, 0.1, 0.4, 0.4], 0) == [True, True, False, False]  # q left both: all of these


@pytest.fixture
def uneven():
    """Two clients with one q = (.5, .3, .15, .05): the first is sent experts 0 and 1, the other
    all four, of which it keeps the same two."""
    fed = make_federation((6, 6))
    how = {"client": FROZEN, "server": sgd(1.0), "marginal_entropy": 0.0, "batch_size": None}
    algorithm = PrunedFedMix(experts=4, eta=0.9, **how)
    state = with_q(algorithm.init(fed, 0), [0.5, 0.3, 0.15, 0.05])
    state.server_memory[MEMORY] = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.25] * 4])
    return fed, algorithm, state


def test_a_pruned_expert_is_neither_sent_nor_computed(uneven, monkeypatch):
    fed, algorithm, state = uneven
    calls, features = [], FunctionalModel.features
    with monkeypatch.context() as patch:
        patch.setattr(FunctionalModel, "features", lambda *args: calls.append(1) or features(*args))
        play(algorithm, fed, 1, state=state, chunk=1)
    assert len(calls) == 2 + 4  # one batch each
    state.server_memory[MEMORY] = torch.tensor([[0.05, 0.5, 0.05, 0.4], [0.25] * 4])
    for row, held in ((0, [1, 3]), (1, [0, 1, 2, 3])):
        leaves = algorithm.client_params(fed, state, torch.tensor([row]))
        for name, leaf in state.server_params.items():
            expected = leaf[held] if name.startswith("experts.") else leaf
            assert torch.equal(leaves[name][0], expected)


def test_what_is_pruned_sends_zeros_and_gets_no_weight(uneven):
    fed, algorithm, state = uneven
    after, report = play(algorithm, fed, 1, state=state)
    for name in select_prefix(report.messages, "experts."):
        message, start = report.messages[f"experts.{name}"], state.server_params[f"experts.{name}"]
        assert message.shape == (2, *start.shape)
        assert not message[:, 2:].any() and message[:, :2].any()
        assert torch.equal(after.server_params[f"experts.{name}"][2:], start[2:])
    weight = report.weights["experts.head.bias"]
    assert not weight[:, 2:].any()
    torch.testing.assert_close(weight[:, :2].sum(0), torch.ones(2).double())
    raw = torch.tensor([[0.5, 0.3, 0.15, 0.05]] * 2)
    expected = {"q_s": torch.tensor([[0.625, 0.375, 0, 0]] * 2), "q_raw": raw}
    close({**expected, MEMORY: raw}, {**report.messages, **after.server_memory})
    expert, phi, q = fed.net.parameters(), 3 * 4, 4
    order = report.clients.argsort()
    assert report.download[order].tolist() == [4 * (n * expert + phi) for n in (2, 4)]
    assert report.upload.tolist() == [4 * (2 * expert + phi + q)] * 2


@settings(max_examples=100)
@given(st.integers(1, 6), st.floats(0, 1), st.floats(0, 20), st.integers(0, 10**6))
def test_q_without_what_is_pruned_sums_to_one(experts, eta, spread, seed):
    draw, algorithm = torch.Generator().manual_seed(seed), PrunedFedMix(experts=experts, eta=eta)
    q = (spread * torch.randn(experts, generator=draw)).softmax(0)
    sent = torch.randint(2, (experts,), generator=draw)
    sent[int(torch.randint(experts, (), generator=draw))] = 1
    keep = algorithm.kept(q, {"sent": sent})
    assert keep.any() and not (keep & (sent == 0)).any()
    pruned = renormalised(q, keep)
    if q[keep].sum() > 1e-30:
        torch.testing.assert_close(pruned.sum(), torch.tensor(1.0))
    assert not pruned[~keep].any()
    # Of those sent every one above the threshold stays.
    assert not ((q >= eta / experts) & (sent > 0) & ~keep).any()


def test_predictions_use_the_experts_that_are_sent(uneven):
    fed, algorithm, state = uneven
    x = fed.test.inputs(torch.arange(6))
    state.client_params["gate.b"] += torch.tensor([0.3, -0.2, 1.0, 2.0])
    code = algorithm.shared_forward(fed.net, state.server_params, x)
    params, ctx = parts_of(fed, algorithm, state, 0)
    said = algorithm.predict(fed.net, params, ctx, code)
    assert not said.gate[:, 2:].any()
    torch.testing.assert_close(said.gate[0, :2], torch.tensor([0.3, -0.2]).softmax(0))
    # A client that has only its own experts says the same as the server's evaluation of it.
    own, _ = client(fed, algorithm, state, 0)
    again = algorithm.predict(fed.net, own, ctx, algorithm.shared_forward(fed.net, own, x))
    torch.testing.assert_close(again.logp, said.logp)
    assert again.gate.shape == (6, 2)


def joint_of(algorithm, fed, state, row):
    """Mean log p(y, z|x) over one client's examples, ``[K]``, from the leaves of a state."""
    x, y = held_by(fed.train, row)
    params, _ = client(fed, algorithm, state, row)
    code = algorithm.shared_forward(fed.net, params, x)
    gate = (code["h"] * (params["pi"] / params["pi"].sum())[:, None]).sum(1)
    gate = (gate @ params["gate.A"] + params["gate.b"]).log_softmax(-1)
    return (at_label(code["logp"], y) + gate).mean(0)


@pytest.mark.parametrize(("damping", "beta"), [(0.75, 1.0), (0.0, 1.0), (0.75, 0.1), (0.5, 3.0)])
def test_one_batch_moves_pi_by_the_damped_step(damping, beta):
    """And experts along the gradient of the bound, of which the pi that it leads to is constant."""
    fed = make_federation((6, 9))
    how = {"damping": damping, "entropy_weight": beta, "batch_size": None, "client": sgd(0.3)}
    algorithm = ClusteredFedMix(experts=3, **how)
    state = algorithm.init(fed, 0)
    assert torch.equal(state.client_params["pi"], torch.full((2, 3), 1 / 3))
    state.client_params["pi"] = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
    state.client_params["gate.b"] += torch.tensor([0.5, 0.0, -1.0])
    joint = torch.stack([joint_of(algorithm, fed, state, row) for row in range(2)])
    best = (joint / beta).softmax(1)
    expected = damping * state.client_params["pi"] + (1 - damping) * best
    after, report = play(algorithm, fed, 1, state=state)
    torch.testing.assert_close(after.client_params["pi"], expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(report.losses, -(expected * joint).sum(1)[report.clients])


def test_pi_stays_a_probability_and_at_its_client():
    fed = make_federation((11, 4, 9)).permuted(np.array([2, 0, 1]))
    algorithm = ClusteredFedMix(experts=4, batch_size=4, epochs=2, server=adam(0.01))
    state, report = play(algorithm, fed, 6)
    pi = state.client_params["pi"]
    torch.testing.assert_close(pi.sum(1), torch.ones(3))
    assert (pi >= 0).all() and not torch.allclose(pi[0], pi[1], atol=1e-4)
    torch.testing.assert_close(report.messages["q_s"], pi[torch.as_tensor(report.clients)])
    assert torch.equal(algorithm.log_metrics(fed, state)["clusters"], pi[[1, 2, 0]]), "by their ids"
