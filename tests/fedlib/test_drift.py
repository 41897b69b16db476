"""Methods that hold clients together: FedProx, SCAFFOLD, MOON, FedGen, by hand and at limits."""

import numpy as np
import torch
from conftest import make_federation
from playing import SIZES, Linear, arrays, one, one_step, play
from torch.nn.functional import cosine_similarity, cross_entropy

from fedlib.algorithms import MOON, SCAFFOLD, FedGen, FedProx
from fedlib.algorithms.server_training import MADE, generate
from fedlib.engine import play_round
from fedlib.models import MLP, add_prefix, select_prefix
from fedlib.optim import sgd
from fedlib.randomness import torch_seed

SMALL = {"noise": 3, "hidden": 5, "steps": 20, "invented": 6}


def small(sizes=(3, 12)):
    return make_federation(sizes, model=Linear(), shape=(4, 4, 2))


def test_the_proximal_term_pulls_towards_the_received_model():
    fed = small((5,))
    mu, lr = 0.7, 0.1
    algorithm = FedProx(mu=mu, epochs=3, batch_size=None, client=sgd(lr))
    state = algorithm.init(fed, 0)
    w0 = arrays(state.shared)
    w = dict(w0)
    for _ in range(3):
        free = one_step(fed, 0, w, lr)
        w = {n: free[n] - lr * mu * (w[n] - w0[n]) for n in w}
    after, _ = play_round(algorithm, fed, state, round=0, seed=0, cohort=1)
    for n, t in w.items():
        np.testing.assert_allclose(after.shared[n].numpy(), t, rtol=1e-3, atol=1e-6)


def test_two_rounds_of_scaffold_by_hand():
    fed, lr, steps = small(), 0.1, 2
    algorithm = SCAFFOLD(epochs=steps, batch_size=None, client=sgd(lr))
    state = algorithm.init(fed, 0)
    w = {n: t for n, t in arrays(state.shared).items() if not n.startswith("control.")}
    c = {n: np.zeros_like(t) for n, t in w.items()}
    own = [dict(c), dict(c)]
    for t in range(3):
        ends = []
        for row in (0, 1):
            local = dict(w)
            for _ in range(steps):
                free = one_step(fed, row, local, lr)
                local = {n: free[n] - lr * (c[n] - own[row][n]) for n in w}
            ends.append(local)
        new = [
            {n: own[row][n] - c[n] + (w[n] - ends[row][n]) / (steps * lr) for n in w}
            for row in (0, 1)
        ]
        c = {n: c[n] + sum(new[row][n] - own[row][n] for row in (0, 1)) / 2 for n in w}
        w, own = {n: (ends[0][n] + ends[1][n]) / 2 for n in w}, new
        state, _ = play_round(algorithm, fed, state, round=t, seed=0, cohort=2)
        for n in w:
            close = {"rtol": 2e-3, "atol": 1e-5}
            np.testing.assert_allclose(state.shared[n].numpy(), w[n], **close)
            np.testing.assert_allclose(state.shared[f"control.{n}"].numpy(), c[n], **close)
            for row in (0, 1):
                mine = state.local[f"drift.{n}"][row].numpy()
                np.testing.assert_allclose(mine, own[row][n], **close)


def test_a_cohort_moves_the_control_variate_by_its_share():
    fed = make_federation(SIZES)
    algorithm = SCAFFOLD(batch_size=4)
    state, report = play(algorithm, fed, rounds=1, cohort=1)
    (row,) = report.rows
    for n, c in select_prefix(state.shared, "control.").items():
        torch.testing.assert_close(c, state.local[f"drift.{n}"][row] / 3)


def test_moons_term_is_its_formula():
    fed = make_federation((8,), model=MLP((6,)))
    algorithm = MOON(mu=2.0, tau=0.3, batch_size=None)
    leaves = [fed.net.init(seed) for seed in (0, 1, 2)]
    params, theirs, before = leaves
    batch = one(fed)
    x, y = batch.x, batch.y
    z, z_g, z_p = (fed.net.features(w, x) for w in leaves)
    near, far = ((cosine_similarity(z, other, -1) / 0.3).exp() for other in (z_g, z_p))
    expected = cross_entropy(fed.net(params, x), y) - 2.0 * (near / (near + far)).log().mean()
    own = add_prefix(before, "previous.")
    loss = algorithm.loss(fed.net, {**params, **own}, add_prefix(theirs, "received."), batch)
    torch.testing.assert_close(loss, expected)


def test_moons_previous_model_is_the_one_that_was_trained():
    fed = make_federation(SIZES)
    algorithm = MOON(batch_size=4)
    state = algorithm.init(fed, 0)
    start = {n: t.clone() for n, t in state.shared.items()}
    after, report = play_round(algorithm, fed, state, round=0, seed=0, cohort=2)
    for n, t in select_prefix(after.local, "previous.").items():
        for place, row in enumerate(report.rows.tolist()):
            trained = start[n] - report.messages[n][place]
            torch.testing.assert_close(t[row], trained, rtol=1e-4, atol=1e-6)
        (away,) = set(range(3)) - set(report.rows.tolist())
        assert torch.equal(t[away], start[n])


class Inventor(torch.nn.Module):
    """FedGen's generator as it is usually written."""

    def __init__(self, fresh):
        super().__init__()
        hidden, inputs = fresh["first.weight"].shape
        self.first, self.norm = torch.nn.Linear(inputs, hidden), torch.nn.BatchNorm1d(hidden)
        self.last = torch.nn.Linear(hidden, len(fresh["last.bias"]))
        self.load_state_dict(fresh, strict=False)

    def forward(self, noise, y):
        h = torch.cat([noise, torch.eye(3)[y]], -1)
        return self.last(torch.relu(self.norm(self.first(h))))


def test_invented_features_are_normalised_over_real_rows_only():
    torch.manual_seed(0)
    fed = make_federation((8,), model=MLP((6,)))
    made = select_prefix(FedGen(**SMALL).leaves(fed, 0), MADE)
    u, y, weight = torch.rand(5, 3), torch.tensor([0, 1, 2, 0, 0]), torch.tensor([1.0, 1, 1, 0, 0])
    z = generate(made, u, y, 3, weight)
    torch.testing.assert_close(z[:3], generate(made, u[:3], y[:3], 3, weight[:3]))
    torch.testing.assert_close(z[:3], Inventor(made)(u[:3], y[:3]))


def test_fedgens_generator_has_one_adam_for_all_rounds():
    """Against a loop that makes an nn.Module and a torch.optim.Adam once, before round 0."""
    fed = make_federation(SIZES, model=MLP((6,)))
    algorithm = FedGen(batch_size=4, **SMALL)
    state = algorithm.init(fed, 0)
    inventor = Inventor(select_prefix(state.shared, MADE))
    engine = torch.optim.Adam(inventor.parameters(), lr=5e-3)
    pool = (torch.bincount(fed.train.y[:24], minlength=3) / 24).cumsum(0)
    for t in range(3):
        received = state.shared
        state, report = play_round(algorithm, fed, state, round=t, seed=0, cohort=2)
        share = torch.tensor([SIZES[row] for row in report.rows.tolist()])
        share = share / share.sum()
        weight, bias = (
            received[n] - torch.einsum("s,s...->...", share, report.messages[n])
            for n in ("head.weight", "head.bias")
        )
        draw = torch.Generator().manual_seed(torch_seed(0, "server", t))
        for _ in range(SMALL["steps"]):
            u = torch.rand(SMALL["invented"], SMALL["noise"] + 1, generator=draw)
            y = (u[:, -1:] >= pool).sum(-1).clamp(max=2)
            engine.zero_grad()
            cross_entropy(inventor(u[:, :-1], y) @ weight.T + bias, y).backward()
            engine.step()
        # What batch normalisation takes out again has no gradient but rounding.
        made = {n: v for n, v in inventor.named_parameters() if n != "first.bias"}
        for n, expected in made.items():
            got = state.shared[MADE + n]
            torch.testing.assert_close(got, expected.detach(), rtol=1e-3, atol=1e-4)
