"""FedMix that prunes experts (000, algorithm 2; A10, A11): by hand, in its limits, at its price."""

from __future__ import annotations

import pytest
import torch
from conftest import make_federation, parts_of
from hypothesis import given, settings
from hypothesis import strategies as st
from playing import play

from fedlib.algorithms import PrunedFedMix
from fedlib.algorithms.variants import MEMORY, renormalised
from fedlib.engine import evaluate, play_round
from fedlib.models import Net, part
from fedlib.optim import Optimizer, sgd

FROZEN = Optimizer("sgd", lr=0.1, rates=(("phi", 0.0),))  # clients leave phi as it is


def with_q(state, q):
    """Give every label the same q(z|y), which is then every client's q(z|s)."""
    state.shared["phi"] = torch.tensor(q).log().expand(len(state.shared["phi"]), -1).clone()
    return state


def rows_in_order(report, values):
    return values[torch.as_tensor(report.rows).argsort()]


def test_thresholds_by_hand():
    """K = 4 and eta = 0.9: kept from 0.225 on, sent from 0.2025 on."""
    fed = make_federation((5, 5))
    algorithm = PrunedFedMix(experts=4, eta=0.9)
    state = algorithm.init(fed, 0)
    assert torch.equal(state.memory[MEMORY], torch.full((2, 4), 0.25))
    state.memory[MEMORY] = torch.tensor([[0.5, 0.21, 0.2, 0.09], [0.25, 0.1, 0.4, 0.25]])
    ctx = algorithm.client_context(fed, state, torch.tensor([0, 1]))
    assert ctx["sent"].tolist() == [[1, 1, 0, 0], [1, 0, 1, 1]]
    assert algorithm.alike(fed, state, torch.tensor([0, 1])).tolist() == [2, 3]
    assert ctx["order"].tolist() == [[0, 1, 2, 3], [0, 2, 3, 1]]

    def kept(q, row):
        mine = {n: t[row] for n, t in ctx.items()}
        return algorithm.kept(torch.tensor(q), mine).tolist()

    assert kept([0.5, 0.23, 0.26, 0.01], 0) == [True, True, False, False]  # the third is not there
    assert kept([0.5, 0.22, 0.27, 0.01], 0) == [True, False, False, False]
    assert kept([0.1, 0.1, 0.4, 0.4], 0) == [True, True, False, False]  # q left both: all of these
    q = torch.tensor([0.5, 0.3, 0.15, 0.05])
    expected = torch.tensor([0.625, 0.375, 0, 0])
    torch.testing.assert_close(renormalised(q, q >= 0.225), expected)


@pytest.fixture
def uneven():
    """Two clients with one q = (.5, .3, .15, .05): the first is sent experts 0 and 1, the other
    all four, of which it keeps the same two."""
    fed = make_federation((6, 6))
    algorithm = PrunedFedMix(
        experts=4, eta=0.9, client=FROZEN, server=sgd(1.0), marginal_entropy=0.0, batch_size=None
    )
    state = with_q(algorithm.init(fed, 0), [0.5, 0.3, 0.15, 0.05])
    state.memory[MEMORY] = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.25] * 4])
    return fed, algorithm, state


def test_bytes_by_hand(uneven):
    fed, algorithm, state = uneven
    _, report = play(algorithm, fed, 1, state=state)
    expert, phi, q = fed.net.parameters(), 3 * 4, 4
    down, up = (rows_in_order(report, t).tolist() for t in (report.down, report.up))
    assert down == [4 * (2 * expert + phi), 4 * (4 * expert + phi)]
    assert up == [4 * (2 * expert + phi + q)] * 2


def test_a_pruned_expert_is_not_computed(uneven, monkeypatch):
    fed, algorithm, state = uneven
    for row, experts in ((0, 2), (1, 4)):
        leaves = algorithm.start(fed, state, torch.tensor([row]))
        for name, leaf in leaves.items():
            if name.startswith("experts."):
                assert leaf.shape == (1, experts, *state.shared[name].shape[1:])
    calls = []
    features = Net.features
    monkeypatch.setattr(Net, "features", lambda *args: calls.append(1) or features(*args))
    play(algorithm, fed, 1, state=state, chunk=1)
    assert len(calls) == 2 + 4  # one batch each


def test_the_experts_that_are_sent_are_the_right_ones(uneven):
    fed, algorithm, state = uneven
    state.memory[MEMORY] = torch.tensor([[0.05, 0.5, 0.05, 0.4], [0.25] * 4])
    leaves = algorithm.start(fed, state, torch.tensor([0]))
    for name, leaf in state.shared.items():
        if name.startswith("experts."):
            assert torch.equal(leaves[name][0], leaf[[1, 3]])
    assert torch.equal(leaves["phi"][0], state.shared["phi"])


def test_what_is_pruned_sends_zeros_and_gets_no_weight(uneven):
    fed, algorithm, state = uneven
    after, report = play(algorithm, fed, 1, state=state)
    for name, message in report.messages.items():
        if name.startswith("experts."):
            assert message.shape == (2, *state.shared[name].shape)
            assert not message[:, 2:].any() and message[:, :2].any()
            assert torch.equal(after.shared[name][2:], state.shared[name][2:])
    weight = report.weights["experts.head.bias"]
    assert not weight[:, 2:].any()
    torch.testing.assert_close(weight[:, :2].sum(0), torch.ones(2).double())
    expected = torch.tensor([[0.625, 0.375, 0, 0]] * 2)
    torch.testing.assert_close(report.messages["q_s"], expected)
    raw = torch.tensor([[0.5, 0.3, 0.15, 0.05]] * 2)
    torch.testing.assert_close(report.messages["q_raw"], raw)
    torch.testing.assert_close(after.memory[MEMORY], raw)


def test_only_the_cohorts_memory_changes(uneven):
    fed, algorithm, state = uneven
    after, report = play(algorithm, fed, 1, state=state, cohort=1)
    away = 1 - int(report.rows[0])
    assert torch.equal(after.memory[MEMORY][away], state.memory[MEMORY][away])
    assert not torch.equal(after.memory[MEMORY][1 - away], state.memory[MEMORY][1 - away]) or (
        away == 1
    )


def sent_after(path):
    """Which of two experts one client is sent after q(z|s) has taken a path (eta = 1)."""
    fed = make_federation((6,))
    algorithm = PrunedFedMix(
        experts=2, eta=1.0, client=FROZEN, server=sgd(1.0), marginal_entropy=0.0
    )
    state, seen = algorithm.init(fed, 0), []
    for t, first in enumerate(path):
        state = with_q(state, [first, 1 - first])
        state, _ = play_round(algorithm, fed, state, round=t, seed=0, cohort=1)
        seen.append(algorithm.client_context(fed, state, torch.tensor([0]))["sent"][0].tolist())
    return seen


def test_an_expert_may_come_back():
    """The client prunes below .5 and the server below .45: .46 is pruned, but still sent."""
    seen = sent_after([0.54, 0.46, 0.6, 0.5])
    assert seen == [[1, 1], [1, 1], [1, 0], [1, 1]]


@settings(max_examples=100)
@given(
    experts=st.integers(1, 6),
    eta=st.floats(0, 1),
    spread=st.floats(0, 20),
    seed=st.integers(0, 10**6),
)
def test_q_without_what_is_pruned_sums_to_one(experts, eta, spread, seed):
    draw = torch.Generator().manual_seed(seed)
    algorithm = PrunedFedMix(experts=experts, eta=eta)
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


def test_the_loss_is_that_of_algorithm_2():
    """Example by example and expert by expert, q' by zeroing and dividing."""
    fed = make_federation((10, 4))
    algorithm = PrunedFedMix(experts=4, eta=0.8, phi_scale=1.0)
    state = algorithm.init(fed, 3)
    state.memory[MEMORY][0] = torch.tensor([0.1, 0.3, 0.3, 0.3])  # 0 is not sent
    row = torch.tensor([0])
    params = {n: t[0] for n, t in algorithm.start(fed, state, row).items()}
    ctx = {n: t[0] for n, t in algorithm.client_context(fed, state, row).items()}
    draw = torch.Generator().manual_seed(1)
    params["gate.A"] = torch.randn(params["gate.A"].shape, generator=draw)
    params["gate.b"] = torch.randn(4, generator=draw)
    x, y = fed.train.inputs(torch.arange(5)), fed.train.y[:5]
    params["phi"] = torch.tensor([[0.0, 1.0, -3.0, 0.5], [0.0, 1.5, -2.0, 1.0], [0.0, 1, -4, 1]])
    q_s = sum(ctx["p_y"][c] * params["phi"][c].softmax(0) for c in range(3))
    held = [1, 2, 3]
    keep = [k for k in held if q_s[k] >= 0.8 / 4]
    assert keep == [1, 3]
    total = 0.0
    for b in range(5):
        h, logp = {}, {}
        for place, k in enumerate(held):
            w = {n: t[place] for n, t in part(params, "experts.").items()}
            h[k] = fed.net.features(w, x[b : b + 1])[0]
            logp[k] = fed.net(w, x[b : b + 1])[0].log_softmax(0)[y[b]]
        pooled = sum(q_s[k] * h[k] for k in keep) / sum(q_s[k] for k in keep)
        gate = (params["gate.A"].T @ pooled + params["gate.b"]).log_softmax(0)
        q = params["phi"][y[b]].softmax(0)
        mine = {k: q[k] / sum(q[j] for j in keep) for k in keep}
        total -= sum(mine[k] * logp[k] for k in keep) / 5
        total -= sum(q[k] * gate[k] for k in range(4)) / 5
    batch = {"x": x, "y": y, "weight": torch.ones(5)}
    torch.testing.assert_close(algorithm.loss(fed.net, params, ctx, batch), total)


def test_predictions_use_the_experts_that_are_sent_and_are_distributions(uneven):
    fed, algorithm, state = uneven
    x = fed.test.inputs(torch.arange(6))
    state.local["gate.b"] += torch.tensor([0.3, -0.2, 1.0, 2.0])
    code = algorithm.encode(fed.net, state.shared, x)
    params, ctx = parts_of(fed, algorithm, state, 0)
    said = algorithm.predict(fed.net, params, ctx, code)
    torch.testing.assert_close(said.gate.sum(-1), torch.ones(6))
    assert not said.gate[:, 2:].any()
    torch.testing.assert_close(said.gate[0, :2], torch.tensor([0.3, -0.2]).softmax(0))
    torch.testing.assert_close(said.logp.exp().sum(-1), torch.ones(6))
    # A client that has only its own experts says the same as the server's evaluation of it.
    own = {n: t[0] for n, t in algorithm.start(fed, state, torch.tensor([0])).items()}
    again = algorithm.predict(fed.net, own, ctx, algorithm.encode(fed.net, own, x))
    torch.testing.assert_close(again.logp, said.logp)
    assert again.gate.shape == (6, 2)
    assert evaluate(fed, algorithm, state, fed.test).nll.shape == (2,)
